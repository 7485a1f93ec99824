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

import pytest

from supervisor.checkpoints.completeness import check_dcp
from supervisor.practice.run import make_practice

from .rig import Pod

MOMENTS = ("save", "drain", "publish", "any")
DEATHS = ("job", "daemon", "host")
INTERVAL = 4


class Run:
    """One pod, its tier, and all that it ever said to be safe."""

    def __init__(self, folder: Path, era: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fast = folder / "fast"
        self.fast.mkdir(parents=True)
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
        )
        settings = {
            "checkpoints": {"tier": str(self.fast)},
            "job": {"checkpoint_interval": INTERVAL},
            "store": {"keep_last": 100_000},
            "disk": {"keep_local": 100_000},
            # On a machine that many share, a silence of seconds is no hang.
            "deadlines": {"step_floor": 60, "step_ceiling": 120, "hang": 60, "checkpoint_save": 120, "startup": 120},
        }
        self.pod = Pod(folder / "pod", practice=practice, settings=settings)
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
        return [part for part in self.fast.glob("*/checkpoints/step_*/trainer") if not part.parent.is_symlink()]

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
                shutil.rmtree(self.fast)
                self.fast.mkdir()
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


def test_deaths_of_job_daemon_and_host_on_a_steps_way_from_the_tier_lose_nothing_that_was_safe(tmp_path: Path) -> None:
    plan = [("drain", "host"), ("save", "job"), ("publish", "daemon")]
    run = strike_all(tmp_path, "2026-08-21", 1, plan)
    assert sum(run.hit.values()) == len(plan)
    words = run.pod.practice.starts()[0]["arguments"]
    assert str(run.fast) in words[words.index("--ckpt.output-dir") + 1]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("era", "seed"), [("v0.6", 18), ("2026-08-21", 19)])
def test_thirty_deaths_at_seeded_moments_lose_nothing_that_was_safe(tmp_path: Path, era: str, seed: int) -> None:
    pairs = list(product(MOMENTS, DEATHS)) * 3
    random.Random(seed).shuffle(pairs)
    run = strike_all(tmp_path, era, seed, pairs[:30])
    assert sum(run.hit.values()) == 30, run.hit
