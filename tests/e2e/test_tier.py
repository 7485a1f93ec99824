"""A run whose trainer saves on a tier: job, daemon and host are killed in the moments of a step's way to the store.

Whatever was said to be safe (complete here, or published) is there afterwards, and no start resumes at less or at what
is torn. The host's death takes the tier along.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.completeness import check_dcp
from supervisor.config.settings import load
from tests.practice.run import make_practice

from .rig import Pod, remove_tree


def has_room(folder: Path, free_bytes: int) -> bool:
    """False where there is no such folder, too."""
    return folder.is_dir() and shutil.disk_usage(folder).free >= free_bytes


MOMENTS = ("save", "drain", "publish", "any")
DEATHS = ("job", "daemon", "host")
INTERVAL = 4


# The volume of a pod is a folder of this machine's disk: its syncs return as late as a slow volume's would.
SLOW_VOLUME = """\
import os, pathlib, time
real, rates = os.fsync, pathlib.Path(os.environ["RATES"])
def fsync(descriptor):
    real(descriptor)
    place = os.readlink(f"/proc/self/fd/{descriptor}")
    for line in rates.read_text().splitlines():
        folder, mb_s = line.split()
        if place.startswith(folder):
            time.sleep(os.fstat(descriptor).st_size / (float(mb_s) * 1e6))
os.fsync = fsync
"""


class Run:
    """One pod, its tier, and all that it ever said to be safe."""

    def __init__(self, folder: Path, era: str, seed: int, tier: str = "", **knobs: Any) -> None:
        self.chance = random.Random(seed)
        (folder / "fast").mkdir(parents=True)
        practice = make_practice(
            folder / "practice",
            era,
            max_steps=1_000_000,
            interval=INTERVAL,
            step_s=0.4,
            save_s=0.2,
            ballast_bytes=24_000_000,
            gpu_count=3,
            trainer_gpus=(1, 2),
            **knobs,
        )
        settings = {
            "checkpoints": {"tier": tier or str(folder / "fast")},
            "job": {"checkpoint_interval": INTERVAL},
            "store": {"keep_last": 100_000},
            "disk": {"keep_local": 100_000},
            # On a machine that many share, a silence of seconds is no hang.
            "deadlines": {"step_floor": 60, "step_ceiling": 120, "hang": 60, "checkpoint_save": 120, "startup": 120},
        }
        (folder / "sitecustomize.py").write_text(SLOW_VOLUME)
        self.rates = folder / "rates"
        self.rates.write_text("")
        environ = {"PYTHONPATH": str(folder), "RATES": str(self.rates)}
        self.pod = Pod(folder / "pod", practice=practice, settings=settings, environ=environ)
        own = load(self.pod.run_file).tier_dir
        assert own is not None
        self.tier = own
        self.home = practice.run_dir / "checkpoints"
        self.safe: set[int] = set()
        self.starts = 0
        self.hit: dict[str, int] = {}

    def note_safe(self) -> int:
        """Remember what is said to be safe now; returns the newest."""
        told = self.pod.status()
        complete = {one["step"] for one in told.get("local_steps", ()) if one["state"] == "complete"}
        self.safe |= complete | set(self.pod.stored())
        return max(self.safe, default=0)

    def until(self, what: Callable[[], object], about: str, limit_s: float = 120) -> None:
        deadline = time.monotonic() + limit_s
        while not what():
            self.note_safe()
            assert not self.pod.sentences("gave-up"), self.pod.story()
            assert time.monotonic() < deadline, f"not in {limit_s} s: {about}\n{self.pod.story()}"
            time.sleep(0.02)

    def make_progress(self) -> None:
        """A step that is newer than all that were safe is safe."""
        before = self.note_safe()
        self.until(lambda: max(self.safe, default=0) > before, f"a step above {before} is safe")

    def await_moment(self, moment: str) -> None:
        if moment == "save":
            self.until(lambda: any(not (one / ".metadata").exists() for one in self._parts()), "a save is under way")
        elif moment == "drain":
            staging = self.pod.practice.home / "outputs" / ".draining"
            self.until(lambda: staging.exists() and any(staging.iterdir()), "a drain is under way")
        elif moment == "publish":
            store = Path(self.pod.store.removeprefix("file://")) / "practice"
            self.until(lambda: any(not (one / "manifest.json").exists() for one in store.glob("step_*")), "a publish")
        time.sleep(self.chance.uniform(0.0, 1.5 if moment == "any" else 0.1))

    def _parts(self) -> list[Path]:
        return [part for part in self.tier.glob("checkpoints/step_*/trainer") if not part.parent.is_symlink()]

    def strike(self, moment: str, death: str) -> None:
        """One death at one moment, and what is true after it."""
        self.await_moment(moment)
        safe = self.note_safe()
        self.starts = len(self.pod.resume_steps())
        if death == "job":
            self.pod.practice.end_all()
        else:
            self.pod.kill_daemon()
            if death == "host":
                self.pod.end_job()
                remove_tree(self.tier)
            self.assert_safe()
            self.pod.start()
        self.hit[f"{moment}/{death}"] = self.hit.get(f"{moment}/{death}", 0) + 1
        if death != "daemon":
            self.until(lambda: len(self.pod.resume_steps()) > self.starts, "the job is started again")
            resumed = self.pod.resume_steps()[-1]
            assert resumed is not None and resumed >= safe, (
                f"{death} at {moment}: {safe} was safe, resumed at {resumed}"
            )
        self.make_progress()
        self.assert_safe()

    def assert_safe(self) -> None:
        stored = set(self.pod.stored())
        lost = [
            step
            for step in sorted(self.safe - stored)
            if not check_dcp(self.home / f"step_{step}" / "trainer").ok and not self._set_aside(step)
        ]
        assert not lost, f"said to be safe, and gone: {lost}\n{self.pod.story()}"

    def _set_aside(self, step: int) -> bool:
        return any(self.pod.practice.home.glob(f"outputs/.set-aside/*-whole/**/step_{step}"))

    def close(self) -> None:
        self.pod.close()
        shutil.rmtree(self.tier, ignore_errors=True)


def strike_all(folder: Path, era: str, seed: int, plan: list[tuple[str, str]]) -> Run:
    run = Run(folder, era, seed)
    try:
        run.pod.start()
        run.make_progress()
        for moment, death in plan:
            run.strike(moment, death)
        assert not run.pod.status()["quarantined"], "no checkpoint is to blame for any of this"
        assert not run.pod.sentences("defect"), run.pod.sentences("defect")
        assert not list(run.pod.practice.home.glob("outputs/**/.drained")), "marks belong to the tier"
        return run
    finally:
        run.close()


@pytest.mark.soak
def test_deaths_of_job_daemon_and_host_on_a_steps_way_from_the_tier_lose_nothing_that_was_safe(tmp_path: Path) -> None:
    plan = [("drain", "host"), ("save", "job"), ("publish", "daemon")]
    run = strike_all(tmp_path, "2026-08-21", 1, plan)
    assert sum(run.hit.values()) == len(plan)
    words = run.pod.practice.starts()[0]["arguments"]
    assert words[words.index("--ckpt.output-dir") + 1] == str(run.tier)


@pytest.mark.soak
@pytest.mark.skipif(not has_room(Path("/dev/shm"), 3 << 30), reason="needs 3 GiB free in /dev/shm")
def test_auto_takes_memory_where_it_is_faster_and_fits_and_says_in_one_sentence_why_not(tmp_path: Path) -> None:
    run = Run(tmp_path, "2026-08-21", 3, tier="auto", volume_mb_s=200)
    volume, head = run.pod.practice.home, "The trainer saves on the run's own volume, not on a tier: "

    def start_again() -> str:
        """Where the trainer saves after a job's death; "" on the volume."""
        starts = len(run.pod.practice.starts())
        run.pod.practice.end_all()
        run.until(lambda: len(run.pod.practice.starts()) > starts, "the job is started again")
        words = run.pod.practice.starts()[-1]["arguments"]
        run.make_progress()
        return str(words[words.index("--ckpt.output-dir") + 1]) if "--ckpt.output-dir" in words else ""

    try:
        run.rates.write_text(f"{volume} 200\n")
        run.pod.start()
        run.make_progress()
        assert run.pod.sentences("tier") == [f"{head}the size of a step is not known before one is saved."]
        assert start_again() == str(run.tier) == f"/dev/shm/{run.tier.name}"
        assert len(run.pod.sentences("tier")) == 1 and run.pod.sentences("drained")
        for moment, death in (("drain", "job"), ("save", "daemon")):
            run.strike(moment, death)
        assert {int(told.split()[1]) for told in run.pod.sentences("drained")} & set(run.pod.stored()), "they count"
        assert len(run.pod.sentences("tier")) == 1, "each of these starts took it again"

        run.rates.write_text(f"{volume} 200\n/dev/shm 100\n")
        assert start_again() == "" and not run.tier.exists(), "and it gives the memory back"
        (told,) = run.pod.sentences("tier")[1:]
        assert told.startswith(f"{head}it takes ") and told.endswith("/s, and 1.5 times as much is wanted.")
        run.assert_safe()
    finally:
        run.close()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("era", "half"), [("v0.6", 0), ("2026-08-21", 1)])
def test_each_death_at_each_moment_loses_nothing_that_was_safe(tmp_path: Path, era: str, half: int) -> None:
    pairs = list(product(MOMENTS, DEATHS))
    random.Random(18).shuffle(pairs)
    run = strike_all(tmp_path, era, 18 + half, pairs[half::2])
    assert sum(run.hit.values()) == 6, run.hit
