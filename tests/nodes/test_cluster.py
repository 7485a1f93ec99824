"""Four machines on loopback, with real agents and a real job: what dies where, and what is done about it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.core import facts as f
from supervisor.journal.journal import Journal
from supervisor.nodes.head import read_unfit
from supervisor.process import away
from tests.nodes.practice_cluster import PracticeCluster, PrimeRlCluster
from tests.nodes.proxy import Proxy
from tests.nodes.rig import Cluster, free_ports
from tests.sensors.test_gpu import States, states, states_library

__all__ = ["states", "states_library"]  # fixtures

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeCluster]:
    made: list[Cluster] = []
    proxies: list[Proxy] = []

    def make_one(*, behind: str = "", environs: dict[str, dict[str, str]] | None = None, **settings: Any) -> Cluster:
        cluster = Cluster(tmp_path / "c", **settings)
        cluster.environs = environs or {}
        if behind:
            proxy = Proxy(cluster.shared)
            cluster.proxy, cluster.heads[behind] = proxy, proxy.address
            proxies.append(proxy)
        made.append(cluster)
        return cluster.start()

    yield make_one
    for proxy in proxies:
        proxy.close()
    for cluster in made:
        cluster.close()
    left = [process for cluster in made for process in cluster.living()]
    assert not left, f"orphans: {left}"


def stays(cluster: Cluster, seconds: float) -> None:
    """The run goes on, and nothing is started anew meanwhile."""
    starts, until = len(cluster.starts()), time.monotonic() + seconds
    while time.monotonic() < until:
        step = cluster.step()
        cluster.wait_for_step(step + 1, 15)
    assert len(cluster.starts()) == starts, cluster.story()


@pytest.mark.soak
def test_an_engine_that_ends_with_0_on_another_machine_is_seen_and_the_run_goes_on_in_place(
    make: MakeCluster,
) -> None:
    cluster = make()
    cluster.wait_for_step(5)
    before = cluster.living()
    assert len(before) == 4
    ended_at = time.monotonic()
    (cluster.out / "end-2").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    resumed = cluster.starts()[1]
    cluster.wait_for_step(resumed + 1)
    assert time.monotonic() - ended_at < 20
    [verdict] = cluster.sentences("verdict")
    assert verdict.startswith("vLLM 2 on n3 died silently: it ended with exit code 0, "), verdict
    assert resumed >= 4
    assert not any(process.is_running() and process in before for process in cluster.living())
    assert cluster.stop() == 0
    for name, nanny in cluster.nannies.items():
        assert nanny.wait(30) == 0, name  # the machines are given back
    assert not cluster.living()
    cluster.check_sound()


@pytest.mark.soak
def test_an_agent_that_is_killed_adopts_what_it_had_and_still_sees_it_die(make: MakeCluster) -> None:
    cluster = make()
    cluster.wait_for_step(3)
    for _ in range(3):
        agent = cluster.agent("n3")
        agent.kill()
        cluster.wait_for(lambda old=agent: cluster.agent("n3") != old, "another agent")
        stays(cluster, 2)
    # What died while no agent watched is told by the next one.
    nanny = psutil.Process(cluster.nannies["n3"].pid)
    nanny.suspend()
    cluster.agent("n3").kill()
    (cluster.out / "end-2").write_text("0")
    cluster.wait_for(lambda: not (cluster.out / "end-2").exists(), "the engine's end")
    nanny.resume()
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 2 on n3 died silently" in cluster.sentences("verdict")[0]
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()


@pytest.mark.optin  # two and a half minutes
def test_agents_that_are_killed_fifty_times_cost_no_step(make: MakeCluster) -> None:
    cluster = make(last=100_000)
    cluster.wait_for_step(3)
    before = cluster.living()
    for number in range(50):
        name = cluster.names[number % len(cluster.names)]
        there = [f"The agent of {name} is there."] * (1 + number // len(cluster.names))
        cluster.wait_for(lambda there=there: cluster.sentences("machine").count(there[0]) >= len(there), there[0])
        cluster.agent(name).kill()
        if number % 10 == 9:
            cluster.wait_for_step(cluster.step() + 2)
    assert cluster.living() == before and len(cluster.starts()) == 1, cluster.story()
    assert not cluster.sentences("verdict")
    (cluster.out / "end-0").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 0 on n1 died silently" in cluster.sentences("verdict")[0]
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()


@pytest.mark.optin  # five minutes
def test_a_network_that_is_cut_for_five_minutes_is_no_death_either(make: MakeCluster) -> None:
    cluster = make(behind="n2", machine_silent=5, last=100_000, lease=600)
    cluster.wait_for_step(3)
    cluster.proxy.cut.set()
    stays(cluster, 300)
    cluster.proxy.cut.clear()
    stays(cluster, 8)
    assert not cluster.sentences("verdict")
    (cluster.out / "end-1").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 1 on n2 died silently" in cluster.sentences("verdict")[0]
    cluster.check_sound()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which can be made to hang."""
    if os.geteuid() != 0 or not (shutil.which("fsfreeze") and shutil.which("mkfs.ext4")):
        pytest.skip("a file system that hangs wants root, fsfreeze and mkfs.ext4")
    image, mount = tmp_path / "image", tmp_path / "volume"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop,noatime", image, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine may not mount")
    yield mount
    subprocess.run(["fsfreeze", "-u", mount], capture_output=True, check=False)
    subprocess.run(["umount", "-l", mount], check=True)


@pytest.mark.optin
@pytest.mark.parametrize("seconds", [15, 60])
def test_a_shared_folder_that_hangs_makes_no_second_writer_and_loses_nothing(
    make: MakeCluster, volume: Path, seconds: int
) -> None:
    cluster = make(common=volume, last=100_000, machine_silent=5, step_ceiling=20)
    cluster.wait_for_step(5)
    before = cluster.living()
    subprocess.run(["fsfreeze", "-f", volume], check=True)
    try:
        time.sleep(seconds)  # as long as it hangs, nothing can be waited for
    finally:
        subprocess.run(["fsfreeze", "-u", volume], check=True)
    step = cluster.step()
    cluster.wait_for_step(step + 4)
    if seconds < 20:
        assert cluster.living() == before, "a short one is not noticed"
        assert not cluster.sentences("verdict")
    (cluster.out / "end-0").write_text("0")
    starts = len(cluster.starts())
    cluster.wait_for(lambda: len(cluster.starts()) > starts, "another start")
    cluster.wait_for_step(cluster.starts()[-1] + 2)
    assert len(cluster.living()) == 4
    cluster.check_sound()
    assert cluster.stop() == 0
    cluster.wait_for(lambda: not cluster.living(), "the end of all")


@pytest.mark.soak
def test_a_head_that_is_killed_costs_nothing_and_its_successor_sees_the_next_death(make: MakeCluster) -> None:
    cluster = make()
    cluster.wait_for_step(3)
    assert cluster.daemon is not None
    cluster.daemon.kill()
    cluster.daemon.wait()
    cluster.start_daemon()
    cluster.wait_for(lambda: cluster.status().get("step"), "the new head's first look")
    stays(cluster, 6)
    assert not cluster.sentences("verdict")
    (cluster.out / "end-0").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 0 on n1 died silently" in cluster.sentences("verdict")[0]
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()


@pytest.mark.soak
def test_a_network_that_is_cut_between_head_and_an_agent_is_no_death(make: MakeCluster) -> None:
    cluster = make(behind="n2", machine_silent=5)
    cluster.wait_for_step(3)
    for seconds in (1.0, 30.0):
        cluster.proxy.cut.set()
        stays(cluster, seconds)
        cluster.proxy.cut.clear()
        stays(cluster, 8)
    assert not cluster.sentences("verdict")
    assert any("The agent of n2 is gone" in one for one in cluster.sentences("machine"))
    # It is heard again.
    (cluster.out / "end-1").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 1 on n2 died silently" in cluster.sentences("verdict")[0]
    cluster.check_sound()


@pytest.mark.soak
def test_a_machine_that_is_lost_is_left_out_and_a_spare_takes_its_place(make: MakeCluster) -> None:
    cluster = make(machines=5, machine_silent=2)
    cluster.wait_for_step(5)
    cluster.lose_machine("n2")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    [verdict] = cluster.sentences("verdict")
    assert verdict.startswith("n2 is lost: its agent has been silent for "), verdict
    cluster.wait_for_step(cluster.starts()[1] + 2)
    spare = psutil.Process(cluster.nannies["n4"].pid)
    assert any(str(cluster.out) in child.cmdline() for child in spare.children(recursive=True))
    cluster.check_sound()


@pytest.mark.soak
def test_an_engine_elsewhere_that_answers_and_makes_nothing_is_found_while_steps_go_on(
    make: MakeCluster, states: States
) -> None:
    """Two signals from its machine: counters that stand while the others' move, and requests without an answer."""
    states.set("ok", "ok", "ok")
    cluster = make(ports=free_ports(3), hang=6, machines=5, environs={"n3": states.env})
    cluster.wait_for(lambda: (cluster.status().get("engine") or {}).get("health") == "ok", "all engines are well")
    cluster.wait_for(
        lambda: {(one["host"], one["role"]) for one in cluster.status()["gpus"]} == {("n3", "inference")}, "their GPUs"
    )
    (cluster.out / "freeze-2").write_text("")
    frozen_at = cluster.step()
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert cluster.starts()[1] > frozen_at + 4, "it trained on until then"
    [verdict] = cluster.sentences("verdict")
    assert verdict.startswith("vLLM 2 on n3 hangs: it answers /health but makes no progress: it made no token for ")
    (cluster.out / "freeze-2").unlink()
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()
    assert cluster.stop() == 0
    facts = [one.fact for one in Journal(cluster.state_dir).observations()]
    assert {one.host for one in facts if isinstance(one, f.HostLook)} == {*cluster.names}, "the memory of each"
    roles = [{part.role for part in one.efforts} for one in facts if isinstance(one, f.EffortLook)]
    assert {"trainer", "inference"} in roles, "what the processes of all machines use, together"


@pytest.mark.soak
def test_a_stop_waits_for_the_gpus_of_all_machines_and_says_whose_memory_is_not_back(
    make: MakeCluster, states: States
) -> None:
    states.file.write_text(f"GPU-a {60 << 30} ok\n")
    cluster = make(environs={"n2": states.env})
    cluster.wait_for(lambda: [one["role"] for one in cluster.status().get("gpus", ())] == ["inference"], "its GPU")
    cluster.wait_for_step(2)
    (cluster.out / "end-0").write_text("1")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    told = "n2: The memory of GPU 0 did not come back after a stop, no living process of the run holds it."
    assert told in cluster.sentences("warning"), cluster.story()
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()


@pytest.mark.soak
def test_a_machine_whose_gpu_fails_is_left_out_after_the_first_death_on_it(make: MakeCluster, states: States) -> None:
    states.set("ok", "ok", "ok")
    cluster = make(machines=5, environs={"n2": states.with_events})
    cluster.wait_for_step(3)
    # While no head listens: the next one hears of it.
    assert cluster.daemon is not None
    cluster.daemon.kill()
    cluster.daemon.wait()
    states.xid("b", 79)
    cluster.start_daemon()
    said = "The driver reports: GPU 1 of n2: Xid 79."
    cluster.wait_for(lambda: any(said in one for one in cluster.sentences()), "a warning of the fault")
    assert not cluster.sentences("verdict"), "steps go on"
    (cluster.out / "end-1").write_text("1")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    [verdict] = cluster.sentences("verdict")
    assert verdict.startswith("vLLM 1 on n2 died: it ended with exit code 1, "), verdict
    assert verdict.endswith("GPU 1 of n2: Xid 79."), verdict
    cluster.wait_for_step(cluster.starts()[1] + 2)
    below = {name: psutil.Process(cluster.nannies[name].pid).children(recursive=True) for name in ("n2", "n4")}
    runs = [name for name, found in below.items() if any(str(cluster.out) in one.cmdline() for one in found)]
    assert runs == ["n4"]
    cluster.check_sound()


@pytest.mark.soak
def test_a_machine_whose_gpu_fails_and_that_no_other_can_replace_is_named_for_the_next_allocation(
    make: MakeCluster, states: States
) -> None:
    states.set("ok", "ok", "ok")
    cluster = make(machines=4, environs={"n2": states.with_events})
    cluster.wait_for_step(3)
    states.xid("b", 79)
    cluster.wait_for(lambda: any("GPU 1 of n2: Xid 79." in one for one in cluster.sentences()), "a warning")
    (cluster.out / "end-1").write_text("1")
    assert cluster.daemon is not None
    assert cluster.daemon.wait(90) == 94, cluster.story()
    assert {nanny.wait(60) for nanny in cluster.nannies.values()} == {0}, "the allocation is given back"
    assert read_unfit(cluster.shared, "several", "") == ["n2"]
    assert read_unfit(cluster.shared, "several", "17") == read_unfit(cluster.shared, "another", "") == []
    assert not cluster.living()


@pytest.mark.soak
def test_a_silent_machine_with_the_trainer_is_waited_for_until_its_lease_is_over(make: MakeCluster) -> None:
    """It is cut off and its trainer trains on: another one may start only when that one has ended."""
    cluster = make(behind="n0", machines=5, machine_silent=2, lease=30)
    cluster.wait_for_step(5)
    first = cluster.component("trainer")
    cluster.proxy.cut.set()
    (cluster.out / "end-2").write_text("0")
    waits = "n0 ran what writes and is not heard"
    cluster.wait_for(lambda: any(waits in one for one in cluster.sentences("start-waits")), "that the start waits")
    assert waits in cluster.status()["sentence"]
    assert first.is_running()
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert not first.is_running()
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.proxy.cut.clear()
    cluster.wait_for(lambda: "The agent of n0 is there." in cluster.sentences("machine")[-1], "n0 again")
    stays(cluster, 3)
    assert len(cluster.living()) == 4
    cluster.check_sound()


def start_beside(cluster: Cluster, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (cluster.folder / f"{name}.out").open("ab") as output:
        command = [sys.executable, "-m", "supervisor.cli.main", *words]
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


@pytest.mark.soak
def test_a_second_machine_of_the_same_name_is_not_heard_and_costs_nothing(make: MakeCluster) -> None:
    """It knows nothing of what the first one runs. Each displaced the other, and the trainer was started each time."""
    cluster = make()
    cluster.wait_for_step(4)
    words = ["--name", "n0", "--rank", "0", "--state", str(cluster.folder / "other")]
    cluster.nannies["other"] = start_beside(cluster, "other", "node", str(cluster.run_file), *words)
    refused = "another machine is called n0, and is heard"
    cluster.wait_for(lambda: refused in (cluster.folder / "other.out").read_text(), "a word about the name")
    stays(cluster, 3)
    # The first one is lost to the network, for less than its lease: the second one must not stand for it.
    agent = cluster.agent("n0")
    agent.suspend()
    may_write = "another machine was called n0, and may still write"
    cluster.wait_for(lambda: may_write in (cluster.folder / "other.out").read_text(), "a word about the lease")
    assert cluster.starts() == [0]
    agent.resume()
    cluster.wait_for(lambda: "n0" in str(cluster.sentences("machine")[-1]), "it is heard again")
    cluster.check_sound()


@pytest.mark.soak
def test_a_copy_that_waits_for_the_claim_takes_no_agent_away(make: MakeCluster) -> None:
    """Its address stood in the shared folder: an agent that came back ended what the living head had there."""
    cluster = make()
    cluster.wait_for_step(4)
    file = cluster.folder / "two.toml"
    own = {str(cluster.state_dir): str(cluster.folder / "state2"), f'"{cluster.socket}"': f'"{cluster.folder}/s2"'}
    text = cluster.run_file.read_text()
    for old, new in own.items():
        text = text.replace(old, new)
    file.write_text(text)
    second = start_beside(cluster, "second", "run", str(file))
    try:
        cluster.wait_for(lambda: "claim-held" in (cluster.folder / "second.out").read_text(), "it waits")
        cluster.agent("n1").kill()
        cluster.wait_for(lambda: len(cluster.sentences("machine")) > 5, "the agent is heard again")
        stays(cluster, 3)
        assert cluster.starts() == [0]
    finally:
        second.kill()
        second.wait()
    cluster.check_sound()


@pytest.mark.soak
def test_a_network_that_is_cut_while_the_job_restarts(make: MakeCluster) -> None:
    cluster = make(behind="n2", machine_silent=2)
    cluster.wait_for_step(5)
    (cluster.out / "end-2").write_text("0")
    cluster.wait_for(lambda: cluster.sentences("verdict"), "a verdict")
    cluster.proxy.cut.set()
    time.sleep(6)  # the cut's own length; no machine is spare, so nothing can start before it is over
    cluster.proxy.cut.clear()
    cluster.wait_for(lambda: len(cluster.starts()) >= 2, "a second start")
    cluster.wait_for_step(cluster.starts()[-1] + 2)
    stays(cluster, 3)
    assert len(cluster.living()) == 4
    cluster.check_sound()


@pytest.mark.soak
def test_agents_that_are_killed_when_the_head_is_told_to_end_leave_nothing(make: MakeCluster) -> None:
    cluster = make()
    cluster.wait_for_step(3)
    for name in ("n0", "n3"):
        cluster.agent(name).kill()
    assert cluster.stop() == 0
    cluster.wait_for(lambda: not cluster.living(), "the end of all")
    for nanny in cluster.nannies.values():
        assert nanny.wait(30) == 0
    cluster.check_sound()


@pytest.mark.soak
def test_without_a_head_the_agents_end_all_when_their_lease_is_over(make: MakeCluster) -> None:
    cluster = make(lease=4)
    cluster.wait_for_step(3)
    assert cluster.daemon is not None
    cluster.daemon.kill()
    cluster.wait_for(lambda: not cluster.living(), "the end of all")
    # Another head starts the run again, at the last good step.
    cluster.start_daemon()
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    cluster.wait_for_step(cluster.starts()[1] + 2)
    cluster.check_sound()


@pytest.mark.soak
def test_the_practice_job_over_four_machines_loses_an_engine_and_finishes(tmp_path: Path) -> None:
    cluster = PracticeCluster(tmp_path / "c", last=90).start()
    try:
        # By its folder: on a busy machine the daemon reads the first lines late.
        saved = cluster.practice.trainer_part(4) / ".metadata"
        cluster.wait_for(saved.exists, "the checkpoint of step 4")
        core, server = cluster.core_of_engine("n3"), cluster.server_of_engine("n3")
        killed_at = time.monotonic()
        core.kill()
        [verdict] = cluster.wait_for(lambda: cluster.sentences("verdict"), "the verdict", 15)
        assert verdict.startswith("vLLM 2 on n3 died silently: "), verdict
        closed = cluster.wait_for(lambda: cluster.sentences("incident-closed"), "a new step")
        assert time.monotonic() - killed_at < 40, closed
        assert not server.is_running()
        assert cluster.daemon is not None
        assert cluster.daemon.wait(120) == 0
        for nanny in cluster.nannies.values():
            assert nanny.wait(30) == 0
        assert not cluster.living()
    finally:
        cluster.close()
        cluster.practice.end_all()


@pytest.mark.soak
def test_a_run_of_prime_rl_whose_launcher_renders_its_parts_loses_an_engine_and_its_router_and_finishes(
    tmp_path: Path,
) -> None:
    cluster = PrimeRlCluster(tmp_path / "c", last=100)
    try:
        # A stranger holds the port of the engine on n1: it is left alone, and the start is tried again.
        with socket.create_server(("127.0.0.1", cluster.practice.port + 101)):
            cluster.start()
            cluster.wait_for(
                lambda: any("n1: inference-1 needs port" in one for one in cluster.sentences()),
                "a port that is held",
                60,
            )
        cluster.wait_for(lambda: cluster.step() >= 5, "step 5")
        # n0 has the first engine and the router. Where a start failed twice on n1, that machine is taken last.
        record = away.look_at_component(max(cluster.state_dir.glob("attempts/[0-9]*")), "inference-1")
        assert record is not None and record.place is not None
        cluster.core_of_engine(record.place.host).kill()
        [verdict] = cluster.wait_for(lambda: cluster.sentences("verdict"), "the verdict", 15)
        assert verdict.startswith(f"vLLM 1 on {record.place.host} died silently: "), verdict
        cluster.wait_for(lambda: cluster.sentences("incident-closed"), "a new step")
        first = psutil.Process(cluster.nannies["n0"].pid)
        router = next(one for one in first.children(recursive=True) if "vllm-router" in " ".join(one.cmdline()))
        router.kill()
        verdicts = cluster.wait_for(lambda: cluster.sentences("verdict")[1:], "the second verdict", 15)
        assert verdicts[0].startswith("vLLM 3 on n0 died silently: "), verdicts
        assert cluster.daemon is not None
        assert cluster.daemon.wait(180) == 0, cluster.story()
        for nanny in cluster.nannies.values():
            assert nanny.wait(30) == 0
        assert not cluster.living()
        resumed = [line for line in cluster.sentences("launched") if "step" in line]
        assert len(resumed) == 3, cluster.sentences()  # the rest of the first start had trained before it was given up
    finally:
        cluster.close()
        cluster.practice.end_all()
