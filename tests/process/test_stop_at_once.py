"""A job that has failed: all of it is told in one moment, so a launcher that joins its parts returns at once."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from supervisor.core import actions as a
from supervisor.effects import before_stop
from supervisor.jobs.base import StepCheck, StopRules
from tests.primerl.helpers import job_of, write_step
from tests.process.conftest import Attempt

RULES = StopRules([(signal.SIGTERM, 330.0)], at_once_s=5.0)
JOINS = """
# As prime-rl's launcher since April 2026: each monitor thread is joined for 5 s, then each part is told.
import threading
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        tell(f"part {number}"); sleep()
    children.append(child)
threads = [threading.Thread(target=os.waitpid, args=(child, 0), daemon=True) for child in children]
for thread in threads:
    thread.start()
def end(*_):
    tell("told")
    for thread in threads:
        thread.join(timeout=5)
    tell("returned")
    os._exit(1)
signal.signal(signal.SIGTERM, end)
tell("up")
while all(thread.is_alive() for thread in threads):
    time.sleep(0.1)
tell("blamed a part"); sleep()
"""
UPLOADER = """
import ctypes
parent = os.getpid()
def name(word):
    ctypes.CDLL(None).prctl(15, ctypes.c_char_p(word), 0, 0, 0)
if os.fork() == 0:
    name(b"wandb-core")
    signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), os._exit(0)))
    tell("uploader")
    while os.getppid() == parent:
        time.sleep(0.02)
    tell("sent"); os._exit(0)
tell("up"); sleep()
"""


def test_a_launcher_that_joins_its_parts_returns_at_once(attempt: Attempt) -> None:
    attempt.start(JOINS)
    for note in ("up", *(f"part {number}" for number in range(4))):
        attempt.told(note)
    report = attempt.stop(RULES, at_once=True)
    assert (attempt.folder / "returned").exists() and not (attempt.folder / "blamed a part").exists()
    assert (report.survivors, report.killed, attempt.look().exit_code) == ((), 0, 1)
    assert report.seconds < 5, "not one join ran to its end"
    assert attempt.alive() == []


def test_what_is_deaf_has_its_few_seconds_and_no_more(attempt: Attempt) -> None:
    attempt.start("signal.signal(signal.SIGTERM, signal.SIG_IGN); tell('up'); sleep()")
    attempt.told("up")
    report = attempt.stop(StopRules([(signal.SIGTERM, 330.0)], at_once_s=0.3), at_once=True)
    assert (report.survivors, report.killed) == ((), 1)
    assert 0.3 <= report.seconds < 15


def test_rules_that_know_no_such_way_are_followed_after_a_failure_too(attempt: Attempt) -> None:
    attempt.start(JOINS.replace("timeout=5", "timeout=0.3"))
    attempt.told("up")
    report = attempt.stop(StopRules([(signal.SIGTERM, 30.0)]), at_once=True)
    assert (attempt.folder / "told").exists()
    assert report.seconds >= 1.2, "four joins, each to its end"
    assert (report.survivors, attempt.alive()) == ((), [])


def test_wandb_is_not_told_beside_its_parent_and_sends_what_it_has(attempt: Attempt) -> None:
    attempt.start(UPLOADER)
    attempt.told("uploader")
    attempt.told("up")
    report = attempt.stop(RULES, at_once=True)
    assert (attempt.folder / "sent").exists() and not (attempt.folder / "asked").exists()
    assert (report.survivors, report.killed) == ((), 0)


class Steps:
    """A job with one step, whole once ``whole`` is set; a look notes that it was made."""

    def __init__(self, changed_wall: float = 0.0) -> None:
        self.whole, self.looks, self.changed_wall = threading.Event(), 0, changed_wall

    def steps(self) -> list[int]:
        return [4]

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        self.looks += 1
        if self.looks == 3:
            self.whole.set()
        return StepCheck("complete" if self.whole.is_set() else "incomplete", changed_wall=self.changed_wall)


def wait(job: Steps, folder: Path, **order: object) -> float:
    action = a.Stop(1, "", 60.0, **{"at_once": True, **order})  # type: ignore[arg-type]
    begun = time.monotonic()
    before_stop.wait_for_what_is_kept(action, job, folder, "run", threading.Event())  # type: ignore[arg-type]
    return time.monotonic() - begun


def test_a_save_is_waited_for_until_it_is_whole_or_its_writer_is_gone(tmp_path: Path) -> None:
    me = (os.getpid(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
    gone = (os.getpid(), me[1] - 1)
    job = Steps()
    assert wait(job, tmp_path, saving=4, writers=(me,), save_s=30.0) < 15
    assert job.whole.is_set() and job.looks >= 3
    assert wait(Steps(), tmp_path, saving=4, writers=(me, gone), save_s=30.0) < 15, "a rank is gone: it will not be"
    assert wait(Steps(), tmp_path, saving=4, writers=(me,), save_s=30.0, brief=True) < 1, "the pod goes"


def test_a_save_on_a_tier_is_waited_for_until_the_trainer_has_it_and_not_until_the_volume_does(tmp_path: Path) -> None:
    """The copy is made after the stop, and the step counts only then."""
    (tmp_path / "fast").mkdir()
    job = job_of(tmp_path, "559b44772", checkpoints={"tier": str(tmp_path / "fast")})
    assert job.layout.tier is not None
    part, tiered = write_step(job, 4) / "trainer", job.layout.tier / "checkpoints" / "step_4" / "trainer"
    shutil.copytree(part, tiered)
    shutil.rmtree(part)
    (orchestrator,) = job.output_dir.rglob("progress.pt")
    me = (os.getpid(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
    order = a.Stop(1, "", 60.0, at_once=True, saving=4, writers=(me,), save_s=30.0)

    def is_awaited() -> bool:
        hurry = Mock(is_set=Mock(return_value=False), wait=Mock(return_value=True))  # in a hurry once it waits
        before_stop.wait_for_what_is_kept(order, job, tmp_path, "run", hurry)
        return hurry.wait.called

    assert not is_awaited() and job.check_step(4, settled=True).state == "incomplete", "whole there, and no step yet"
    os.utime(tiered / ".metadata", (2e9, 2e9))
    assert job.check_step(4, settled=True, on_tier=True).changed_wall == 2e9, "the trainer's rows of it are the newest"
    for file in (tiered / ".metadata", orchestrator):
        away = file.rename(file.with_suffix(".away"))
        assert is_awaited(), f"{file.name} is still to be written"
        away.rename(file)


@pytest.mark.soak
def test_a_pod_that_goes_does_not_wait_for_wandb(attempt: Attempt) -> None:
    """Its wandb-core is frozen, too: the seconds that are left are the publish's."""
    attempt.start(UPLOADER)
    uploader = attempt.told("uploader")
    attempt.told("up")
    os.kill(uploader[0], signal.SIGSTOP)
    report = attempt.stop(RULES, budget_s=3.0, brief=True, at_once=True)
    assert (report.survivors, attempt.alive()) == ((), [])
    assert report.seconds < before_stop.SENDS_EACH_S / 2, "of ten that it would get"


def test_a_disk_that_hangs_holds_up_no_stop(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one whose files cannot be understood. The volume comes back later, or never."""
    monkeypatch.setattr(before_stop, "LOOK_S", 0.3)
    monkeypatch.setattr(before_stop, "SENDS_EACH_S", 0.3)
    attempt.start(UPLOADER)
    attempt.told("uploader")
    back, hurry = threading.Event(), threading.Event()

    class Hangs(Steps):
        def steps(self) -> list[int]:
            back.wait(60)
            raise ValueError("embedded null byte")

    def look() -> str:
        order = a.Stop(1, "", 60.0, at_once=True)
        return before_stop.wait_for_what_is_kept(order, Hangs(), attempt.folder, attempt.run_id, hurry)  # type: ignore[arg-type]

    try:
        assert look() == "the disk does not answer"
        monkeypatch.setattr(before_stop, "LOOK_S", 60.0)
        threading.Timer(0.2, hurry.set).start()
        begun = time.monotonic()
        assert look() == "" and time.monotonic() - begun < 15, "a second word ends the patience with the disk, too"
        back.set()
        hurry.clear()
        assert look() == "embedded null byte"
    finally:
        back.set()


def test_rows_of_a_step_that_is_kept_are_sent_first_and_only_those(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_stop, "SENDS_EACH_S", 0.5)
    fresh, old = Steps(time.time() + 3600), Steps(time.time() - 60)
    for job in (fresh, old):
        job.whole.set()
    assert wait(fresh, attempt.folder) < 0.5, "without W&B nothing is sent"
    attempt.start(UPLOADER)
    attempt.told("uploader")
    run = attempt.run_id
    order = a.Stop(1, "", 60.0, at_once=True)
    for job in (fresh, old):
        begun = time.monotonic()
        before_stop.wait_for_what_is_kept(order, job, attempt.folder, run, threading.Event())  # type: ignore[arg-type]
        assert (time.monotonic() - begun >= 0.5) == (job is fresh)
