"""Machines with disks of their own: real agents, and a real job that writes its shards on all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.disk_rig import DiskCluster, expected

Make = Callable[..., DiskCluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[DiskCluster] = []

    def make_one(name: str = "c", **settings: Any) -> DiskCluster:
        made.append(DiskCluster(tmp_path / name, **{"last": 100_000, **settings}))
        return made[-1].start()

    yield make_one
    for cluster in made:
        cluster.close()
    left = [process for cluster in made for process in cluster.living()]
    assert not left, f"orphans: {left}"


def kill_rank(cluster: DiskCluster, rank: int) -> None:
    [process] = [one for one in cluster.living() if one.cmdline()[5] == str(rank)]
    process.kill()


def resumed_everywhere(cluster: DiskCluster) -> int:
    """Each rank of a later attempt had every byte of the step on its own disk; returns the step."""

    def loaded() -> dict[int, str]:
        found = (cluster.loaded(attempt) for attempt in range(2, 6))
        return next((one for one in found if len(one) == cluster.ranks), {})

    [told] = set(cluster.wait_for(loaded, "all ranks of another attempt", 60).values())
    step, files, _ = told.split()
    assert int(files) == len(expected(int(step), cluster.ranks))
    return int(step)


@pytest.mark.soak
def test_a_rank_dies_and_all_machines_resume_at_the_newest_step_that_is_whole_over_them(make: Make) -> None:
    cluster = make()
    cluster.wait_for(lambda: cluster.latest() >= 6, "a published step")
    kill_rank(cluster, 1)
    step = resumed_everywhere(cluster)
    assert step >= 6 and step <= cluster.latest()  # it was in the store before the start
    cluster.check_stored(cluster.latest())
    assert "The trainer 1 on n1 died" in cluster.sentences("verdict")[0]
    for name in cluster.names:
        folder = cluster.disk(name) / f"checkpoints/step_{step}"
        found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found in ({}, expected(step, 3))  # {}: deleted since, on all machines
    assert cluster.stop() == 0


@pytest.mark.soak
def test_a_lost_machine_takes_what_was_not_published_with_it_and_a_spare_gets_the_step(make: Make) -> None:
    cluster = make(machines=4, lease=5, machine_silent=3)
    cluster.wait_for(lambda: cluster.latest() >= 12, "two published steps")
    safe = cluster.latest()
    cluster.lose_machine("n2")
    step = resumed_everywhere(cluster)
    assert step >= safe
    assert step in cluster.published() or step < min(cluster.published())
    assert (cluster.disk("n3") / "checkpoints").is_dir()
    cluster.wait_for(lambda: cluster.latest() > step, "a step of the three that are left")
    cluster.check_stored(cluster.latest())
    assert cluster.stop() == 0


@pytest.mark.soak
def test_a_head_that_is_killed_again_and_again_publishes_no_step_that_is_not_whole(make: Make) -> None:
    cluster = make()
    safe = 0
    for number in range(4):
        cluster.wait_for(lambda before=safe: cluster.latest() > before, "a later step")
        safe = cluster.latest()
        if number % 2:  # in the middle of the next one
            sent = cluster.store_folder / "several"
            cluster.wait_for(
                lambda sent=sent: any(
                    not (path.parent / "manifest.json").exists() for path in sent.glob("step_*/config.json")
                ),
                "half a step in the store",
            )
        assert cluster.daemon is not None
        cluster.daemon.kill()
        cluster.daemon.wait()
        assert cluster.latest() >= safe
        for step in cluster.published():
            cluster.check_stored(step)
        cluster.start_daemon()
    cluster.wait_for(lambda: cluster.latest() > safe, "a later step")
    cluster.check_stored(cluster.latest())
    assert len(cluster.living()) == 3 and not cluster.loaded(2)  # the job never noticed
    assert cluster.stop() == 0


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [3, 2])
def test_a_run_goes_on_with_fresh_machines_in_the_same_and_in_another_number(make: Make, ranks: int) -> None:
    first = make("first")
    first.wait_for(lambda: first.latest() >= 12, "two published steps")
    assert first.stop() == 0
    last = first.latest()
    later = make("later", machines=ranks, ranks=ranks, store=first.store_folder)
    later.wait_for(lambda: len(later.loaded(1)) == ranks, "all ranks")
    [told] = set(later.loaded(1).values())
    step, files, _ = told.split()
    assert (int(step), int(files)) == (last, len(expected(last, 3)))
    later.wait_for(lambda: later.latest() > last, "a step of the fresh machines")
    later.check_stored(later.latest(), ranks)
    assert later.stop() == 0


@pytest.mark.soak
def test_a_disk_that_hangs_on_one_machine_is_told_and_costs_no_running_job(make: Make, tmp_path: Path) -> None:
    stub, hangs = tmp_path / "stub", tmp_path / "hangs"
    stub.mkdir()
    # Only the looks of the agent below this environment: the component's own environment is the head's.
    (stub / "sitecustomize.py").write_text(
        "import os, time, pathlib\n"
        "real, hangs = os.scandir, pathlib.Path(os.environ['HANGS'])\n"
        "def scandir(path='.'):\n"
        "    while hangs.exists() and 'disk-n1' in str(path):\n"
        "        time.sleep(0.1)\n"
        "    return real(path)\n"
        "os.scandir = scandir\n"
    )
    cluster = DiskCluster(tmp_path / "c", last=100_000)
    cluster.environs = {"n1": {"PYTHONPATH": str(stub), "HANGS": str(hangs)}}
    try:
        cluster.start()
        cluster.wait_for(lambda: cluster.latest() >= 6, "a published step")
        hangs.touch()
        cluster.wait_for(lambda: cluster.sentences("disks"), "that the disk hangs is told")
        assert cluster.sentences("disks")[0].startswith(
            "Parts of steps are unknown: the disk of n1 does not answer for 3"
        )
        published, step = cluster.latest(), cluster.step()
        cluster.wait_for(lambda: cluster.step() > step + 12, "steps go on")
        assert cluster.latest() <= published + 6 and len(cluster.living()) == 3
        hangs.unlink()
        cluster.wait_for(lambda: cluster.latest() > published + 6, "publishing goes on")
        cluster.check_stored(cluster.latest())
        assert not cluster.sentences("verdict")
        assert cluster.stop() == 0
    finally:
        hangs.unlink(missing_ok=True)
        cluster.close()
        shutil.rmtree(stub)
    assert not cluster.living()
