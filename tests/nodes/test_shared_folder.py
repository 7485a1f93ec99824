"""The shared folder hangs for reading, holds nonsense, or another daemon's word: agents are heard, and nothing ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.core.evolve import replace
from supervisor.nodes.wire import SharedFolder, WireError
from tests.nodes.rig import Cluster
from tests.nodes.test_wire import RUN, Stage, stage

__all__ = ["stage"]  # a fixture


def hang(path: Path) -> None:
    """Whoever opens it waits, as on a file system that hangs."""
    os.mkfifo(path.with_name("fifo"), 0o600)
    path.with_name("fifo").rename(path)


def let_go(path: Path) -> None:
    """Those that wait go on, and read nothing."""
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def test_a_folder_that_hangs_leaves_what_was_read_last(tmp_path: Path) -> None:
    for name, text in (("token", "secret"), ("head.json", json.dumps({"run": RUN, "address": "h:1"}))):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(text)
    folder = SharedFolder(tmp_path, {}, RUN)
    assert folder.read(5)
    for name in ("token", "head.json"):  # cannot be read, as with a stale handle
        (tmp_path / name).rename(tmp_path / f"{name}.good")
        (tmp_path / name).mkdir()
    assert folder.read(5) and folder.token == "secret" and folder.left["address"] == "h:1"
    for name in ("token", "head.json"):
        (tmp_path / name).rmdir()
        (tmp_path / f"{name}.good").rename(tmp_path / name)
    hang(tmp_path / "head.json")
    began = time.monotonic()
    assert not folder.read(0.2) and not folder.read(0.2)
    assert time.monotonic() - began < 5
    assert (folder.token, folder.left["address"]) == ("secret", "h:1")
    let_go(tmp_path / "head.json")
    (tmp_path / "head.json").unlink()
    deadline = time.monotonic() + 10
    while not (folder.read(1) and not folder.left) and time.monotonic() < deadline:
        pass
    assert folder.left == {}


def test_a_head_writes_its_address_over_nonsense(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.nodes.head.TELL_AGAIN_S", 0.1)
    file = stage.nodes.folder / "head.json"
    stage.wait_for(file.exists, "where the head listens")
    file.write_bytes(b"\xff\xfe\x00nonsense")
    stage.wait_for(lambda: stage.head.address.encode() in file.read_bytes(), "its address again")


def test_a_head_that_lost_the_run_ends_no_agent_of_the_one_that_has_it(stage: Stage) -> None:
    file = stage.nodes.folder / "head.json"
    stage.wait_for(file.exists, "where the head listens")
    stage.state = replace(stage.state, fence=replace(stage.state.fence, lost=True))
    of_the_other = json.dumps({"address": "other:1", "run": RUN})
    file.write_text(of_the_other)
    stage.head.close(0)
    assert file.read_text() == of_the_other


def test_an_agent_of_an_earlier_start_of_the_same_job_is_refused(stage: Stage) -> None:
    stage.head._job = "17.1"
    _, answer = stage.greet(job="17.0")
    assert answer["error"] == "n1 is of job 17.0, and the head of job 17.1"
    line, answer = stage.greet(job="17.1")
    assert "proof" in answer
    with pytest.raises(WireError):
        line.close()
        line.wait_for_one(1)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make_one(**settings: float) -> Cluster:
        made.append(Cluster(tmp_path / "c", **settings))  # type: ignore[arg-type]
        return made[-1].start()

    yield make_one
    for cluster in made:
        cluster.close()
    assert not [process for cluster in made for process in cluster.living()]


@pytest.mark.soak
def test_a_connection_that_breaks_while_the_folder_hangs_comes_back_and_a_death_is_seen(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(last=100_000)
    cluster.wait_for_step(3)
    files = [cluster.shared / name for name in ("token", "head.json")]
    for file in files:
        hang(file)
    agent = cluster.agent("n3")
    agent.suspend()
    cluster.wait_for(lambda: any("The agent of n3 is gone" in one for one in cluster.sentences("machine")), "a cut")
    agent.resume()
    cluster.wait_for(lambda: cluster.sentences("machine").count("The agent of n3 is there.") == 2, "n3 again")
    (cluster.out / "end-2").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) == 2, "a second start")
    assert "vLLM 2 on n3 died silently" in cluster.sentences("verdict")[0]
    cluster.wait_for_step(cluster.starts()[1] + 2)
    for file in files:
        let_go(file)
    cluster.check_sound()


@pytest.mark.soak
def test_an_agent_that_is_frozen_for_longer_than_its_lease_leaves_no_second_writer(
    make: Callable[..., Cluster],
) -> None:
    """It alone is frozen: its trainer writes on, and only its nanny can put another agent in its place."""
    cluster = make(machines=5, machine_silent=2, lease=30, last=100_000)
    cluster.wait_for_step(3)
    first = cluster.component("trainer")
    cluster.agent("n0").suspend()
    (cluster.out / "end-2").write_text("0")
    cluster.wait_for(lambda: len(cluster.starts()) >= 2, "a second start")
    assert not first.is_running()
    cluster.wait_for_step(cluster.starts()[-1] + 2)
    cluster.check_sound()
