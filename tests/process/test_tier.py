"""The tier: where the trainer saves, what comes from there to the volume, and what becomes of it in bad moments."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import StoreError, SupervisorError
from supervisor.checkpoints.completeness import check_dcp, folder_size
from supervisor.checkpoints.drain import drain
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.actions import Start
from supervisor.effects import move_aside, tier_fit
from supervisor.effects import tier as module
from supervisor.effects.tier import Tier
from supervisor.effects.tier_fit import Room, why_too_small
from supervisor.jobs.base import TieredPart
from tests.hands import context

from .conftest import wait_for

GOLDEN = Path(__file__).parent.parent / "checkpoints" / "golden" / "dcp_2_ranks"
GIB = 1 << 30
STEP_BYTES = sum(path.stat().st_size for path in GOLDEN.iterdir())


class Child:
    """The transfer child, in this process: drains for real, or refuses."""

    refuses = ""
    hangs_at = -1  # this step's copy is not done before it is cancelled
    cancelled = threading.Event()

    def cancel(self, what: str, why: str) -> None:
        assert what == "drain"
        self.cancelled.set()

    def run(self, asked: dict[str, Any], what: str = "") -> dict[str, Any]:
        if asked["source"].endswith(f"step_{self.hangs_at}/trainer"):
            assert self.cancelled.wait(30)
            raise StoreError("transient", "cancelled")
        if self.refuses:
            raise StoreError("no-room", self.refuses)
        done = drain(Path(asked["source"]), Path(asked["target"]), Path(asked["staging"]), lambda moved: None)
        return vars(done)


class Pod:
    """A run with a tier, whose trainer is this test. A daemon that was killed is followed by another ``Tier``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fast = folder, folder / "fast"
        self.fast.mkdir()
        self.home = folder / "out" / "checkpoints"
        self.facts: list[f.Fact] = []
        self.child = Child()
        self.memory_left, self.looks = 64 * GIB, 0
        self.tiers: list[Tier] = []
        self.set(str(self.fast))

    def set(self, tier: str) -> None:
        plain = {"start": ["x"], "resume": ["x", "{step}"], "checkpoint": "c/{step}"}
        job = {"kind": "command", "dir": str(self.folder), "output_dir": "out", "plain": plain}
        values = {
            "run": {"id": "r", "state_dir": str(self.folder / "state")},
            "job": job,
            "checkpoints": {"tier": tier},
        }
        self.run_file = RunFile.model_validate(values)
        (self.folder / "state").mkdir(exist_ok=True)

    def daemon(self, observed: str = "") -> Tier:
        run = context(self.run_file, self.facts)
        run.observed = observed
        run.job = self  # type: ignore[assignment]
        self.tiers.append(Tier(run, self.child, lambda: None, self.look_at_memory))  # type: ignore[arg-type]
        return self.tiers[-1]

    def look_at_memory(self) -> f.HostLook:
        return f.HostLook(64 * GIB, max(0, self.memory_left - folder_size([self.fast])[0]))

    def tiered_part(self) -> TieredPart | str:
        self.looks += 1
        return TieredPart(self.home, "trainer", self.home.parent / "weights")

    def save(self, step: int, at: int, *, torn: bool = False) -> Path:
        """The trainer saves where it was told at its start; ``at``: the time of its .metadata."""
        assert self.run_file.tier_dir is not None
        folder = self.run_file.tier_dir / "checkpoints" / f"step_{step}" / "trainer"
        folder.mkdir(parents=True, exist_ok=True)
        for path in GOLDEN.iterdir():
            if not (torn and path.name == ".metadata"):
                shutil.copyfile(path, folder / path.name)
                os.utime(folder / path.name, (at, at + (path.name == ".metadata")))
        return folder

    def is_safe(self, step: int) -> bool:
        return check_dcp(self.home / f"step_{step}" / "trainer").ok

    def there(self) -> dict[str, bool]:
        """Names on the tier, and whether each is a link."""
        assert self.run_file.tier_dir is not None
        folder = self.run_file.tier_dir / "checkpoints"
        return {path.name: path.is_symlink() for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    def said(self, event: str) -> list[str]:
        return [fact.sentence for fact in self.facts if isinstance(fact, f.Remark) and fact.event == event]

    def last_look(self) -> f.TierLook:
        return [fact for fact in self.facts if isinstance(fact, f.TierLook)][-1]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    made = Pod(tmp_path)
    yield made
    for tier in made.tiers:
        tier.close(job_runs=True)


def start(step: int | None, attempt: int = 1) -> Start:
    return Start(attempt, step)


def test_each_step_comes_to_the_volume_and_the_tier_keeps_the_newest_for_the_resume(pod: Pod) -> None:
    tier = pod.daemon()
    folder = tier.place(pod, start(None))  # type: ignore[arg-type]
    assert folder == pod.run_file.tier_dir and pod.there() == {}, "the launcher refuses a fresh start beside any step"
    pod.save(2, 1000)
    wait_for(lambda: pod.is_safe(2), "step 2 is whole on the volume")
    pod.save(4, 2000)
    wait_for(lambda: pod.there() == {"step_4": False} and pod.is_safe(4), "step 4 is there, and 2 gives its room back")
    wait_for(lambda: pod.last_look().waiting == (), "nothing waits")
    assert not (pod.folder / "out" / ".draining").exists()

    assert tier.place(pod, start(4, 2)) == folder and pod.there() == {"step_4": False}  # type: ignore[arg-type]
    tier.place(pod, start(2, 3))  # type: ignore[arg-type]
    assert pod.there() == {"step_2": True}, "a step that only the volume has is found through a link"
    assert check_dcp(folder / "checkpoints" / "step_2" / "trainer").ok
    (pod.home.parent / "logs").mkdir()  # the launcher was there
    wait_for(lambda: (folder / "weights").is_symlink(), "weights for people go to the volume")


def test_steps_that_come_faster_wait_their_turn_while_the_next_save_fits_and_are_skipped_and_named_where_not(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    pod.child.refuses = "the volume is full"
    for step in (2, 4, 6):
        pod.save(step, 1000 * step)
    wait_for(lambda: pod.last_look().waiting == (2, 4, 6) and pod.last_look().failed, "all wait")
    assert "the volume is full" in pod.said("tier")[0]
    pod.child.refuses = ""
    wait_for(lambda: pod.there() == {"step_6": False}, "none waits any more")
    assert all(map(pod.is_safe, (2, 4, 6))) and not pod.said("skipped"), "no rule lets a whole step go while it fits"

    monkeypatch.setattr(Tier, "_room_left", lambda self, folder: STEP_BYTES - 1)
    pod.child.refuses = "the volume is full"
    for step in (8, 10):
        pod.save(step, 1000 * step)
    wait_for(lambda: pod.last_look().waiting == (8, 10) and pod.last_look().failed, "both wait")
    both = {"step_8": False, "step_10": False}
    wait_for(lambda: pod.there() == both, "the newest step of the volume makes room at once")
    pod.child.refuses = ""
    wait_for(lambda: pod.is_safe(10) and pod.said("skipped"), "the newest is next")
    (told,) = pod.said("skipped")
    assert told.startswith("Step 8 is skipped") and not pod.is_safe(8) and "step_8" not in pod.there()


def test_a_step_is_skipped_while_the_copy_of_another_takes_longer_than_the_interval(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer would find no room for its next save, and end."""
    monkeypatch.setattr(Tier, "_room_left", lambda self, folder: (3 - len(pod.there())) * STEP_BYTES)
    pod.child.hangs_at, pod.child.cancelled = 4, threading.Event()
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    for step in (4, 6):
        pod.save(step, 1000 * step)
        wait_for(lambda: tier._under_way == 4, "step 4 is on its way")
    assert pod.there() == {"step_4": False, "step_6": False} and not pod.said("skipped"), "a third still fits"
    pod.save(8, 8000)
    wait_for(lambda: pod.said("skipped"), "step 6 makes room for the next save")
    assert pod.there() == {"step_4": False, "step_8": False} and tier._under_way == 4
    assert pod.said("skipped")[0].startswith("Step 6 is skipped: steps complete faster than the volume takes them")
    pod.child.hangs_at = -1
    pod.child.cancelled.set()
    wait_for(lambda: pod.is_safe(8), "the newest is next")
    assert not pod.said("tier-lost")


def test_a_step_that_is_saved_while_old_ones_are_looked_for_ends_no_look(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    look = Tier._list_waiting
    with tier._lock:  # its thread waits
        for step in (2, 4):
            pod.save(step, 100 * step)
        monkeypatch.setattr(Tier, "_list_waiting", lambda self, part: (pod.save(6, 600), look(self, part))[1])
        monkeypatch.setattr(Tier, "_room_left", lambda self, folder: 0)
        part = pod.tiered_part()
        assert isinstance(part, TieredPart) and pod.run_file.tier_dir is not None
        tier._drop_older(pod.run_file.tier_dir, part, copied=2)
    assert pod.there()["step_6"] is False


def test_a_pod_that_is_about_to_go_brings_the_newest_step_and_lists_before_any_older_one(pod: Pod) -> None:
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    pod.child.hangs_at = 4
    pod.save(4, 4000)
    wait_for(lambda: tier._under_way == 4, "step 4 is on its way")
    pod.save(8, 8000)
    pod.save(12, 12000, torn=True)  # the job was killed at once
    tier.hurry()
    tier.settle(pod)  # type: ignore[arg-type]
    assert pod.is_safe(8) and not pod.is_safe(4) and pod.last_look().failed == "", "and the listing is waited for"
    pod.child.hangs_at = -1
    wait_for(lambda: pod.is_safe(4), "the older one comes as soon as there is time")
    assert not pod.said("tier"), "nothing failed"


def test_a_folder_that_a_stranger_made_in_the_tiers_place_is_neither_read_nor_emptied(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/shm is everybody's, and the folder's name can be known: a step of a stranger would run a stranger's code."""
    pod.save(4000, 4000)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    tier = pod.daemon()
    tier.settle(pod)  # type: ignore[arg-type]
    assert tier.place(pod, start(None)) is None  # type: ignore[arg-type]
    tier.close(job_runs=False)
    assert not pod.home.exists() and pod.there() == {"step_4000": False}
    assert "is not this user's own folder" in pod.said("tier")[-1]


def test_a_daemon_that_only_observes_leaves_the_tier_as_it_is(pod: Pod) -> None:
    first = pod.daemon()
    first.place(pod, start(None))  # type: ignore[arg-type]
    pod.save(4, 4000)
    wait_for(lambda: pod.is_safe(4) and not pod.last_look().waiting, "step 4 is whole on the volume")
    first.close(job_runs=True)
    pod.daemon(observed="a person wants to look").close(job_runs=False)
    assert pod.there() == {"step_4": False}


def test_a_tier_that_became_read_only_costs_the_run_no_start(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    pod.save(4, 4000)
    wait_for(lambda: pod.is_safe(4) and not pod.last_look().waiting, "step 4 is whole on the volume")

    def refuse(*_: object) -> int:
        raise SupervisorError("step_4 could not be deleted (Read-only file system)")

    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(pod.fast))
    monkeypatch.setattr(move_aside, "delete_trees", refuse)
    pod.save(6, 6000)
    wait_for(lambda: pod.is_safe(6) and not pod.last_look().waiting, "what became whole there is still copied")
    assert tier.place(pod, start(4, 2)) is None  # type: ignore[arg-type]
    told = " ".join(pod.said("tier"))
    assert "could not be emptied" in told and "cannot be written" in told


def test_what_a_drain_of_a_lost_host_left_on_the_volume_goes_and_a_whole_copy_stays(pod: Pod) -> None:
    pod.home.mkdir(parents=True)
    staging = pod.home.parent / ".draining"
    for name in ("step_4", "step_6"):
        shutil.copytree(GOLDEN, staging / name)
        (staging / name / ".metadata").touch()
    (staging / "step_4" / "__1_0.distcp").unlink()
    pod.daemon().place(pod, start(None))  # type: ignore[arg-type]
    assert [path.name for path in staging.iterdir()] == ["step_6"]


def test_a_tier_inside_the_output_folder_is_refused_by_the_run_file(pod: Pod) -> None:
    """The launchers delete or refuse what they do not know there."""
    with pytest.raises(ValueError, match="lies inside of output_dir"):
        pod.set(str(pod.folder / "out" / "fast"))
    pod.set(str(pod.folder))  # the other way round, each has its own folder


def test_a_killed_job_leaves_whole_steps_that_are_brought_and_a_torn_one_that_is_not(pod: Pod) -> None:
    pod.daemon().place(pod, start(None))  # type: ignore[arg-type]
    pod.tiers[0].close(job_runs=True)  # that daemon is killed, and so is the job in the middle of a save
    pod.save(4, 4000)
    torn = pod.save(6, 6000, torn=True)
    tier = pod.daemon()
    tier.settle(pod)  # type: ignore[arg-type]
    assert pod.is_safe(4) and not (pod.home / "step_6").exists() and torn.exists()
    tier.place(pod, start(4, 2))  # type: ignore[arg-type]
    assert pod.there() == {"step_4": False}


def test_a_whole_step_that_the_full_volume_refused_is_set_aside_and_named_at_the_next_start(pod: Pod) -> None:
    pod.home.mkdir(parents=True)
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    pod.save(4, 4000)
    wait_for(lambda: pod.is_safe(4), "step 4 is whole on the volume")
    pod.child.refuses = "no room"
    pod.save(6, 6000)
    tier.settle(pod)  # type: ignore[arg-type]
    assert pod.last_look().waiting == (6,)
    tier.place(pod, start(4, 2))  # type: ignore[arg-type]
    assert set(pod.there()) == {"step_4"}, "step 6 is not resumed at; 4 may have made room for 8 already"
    aside = next(word for word in pod.said("tier")[-1].split() if "step_6" in word).rstrip(".")
    assert check_dcp(Path(aside) / "trainer").ok, "no whole step is deleted before the volume has it"


def test_what_a_killed_delete_left_on_the_tier_goes_while_the_job_runs(pod: Pod) -> None:
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    folder = pod.save(2, 100).parent
    wait_for(lambda: pod.said("drained"), "step 2 is copied")
    tier.close(job_runs=True)
    pod.save(4, 200)
    folder.rename(folder.with_name(f"{move_aside.DELETING}step_2"))
    pod.daemon()
    wait_for(lambda: pod.is_safe(4) and pod.there() == {"step_4": False}, "what is left of step 2 is gone")


def test_what_a_daemon_that_was_killed_as_it_gave_the_tier_up_left_there_goes(pod: Pod) -> None:
    """It had put the link to the volume in the place of the steps, and was deleting these."""
    tier = pod.daemon()
    tier.place(pod, start(None))  # type: ignore[arg-type]
    steps = pod.save(2, 100).parents[1]
    wait_for(lambda: pod.said("drained"), "step 2 is copied")
    tier.close(job_runs=True)
    left = steps.rename(steps.with_name(f"{move_aside.DELETING}checkpoints"))
    steps.symlink_to(pod.home)
    pod.daemon()
    wait_for(lambda: not left.exists(), "its memory is given back")
    assert pod.is_safe(2) and steps.is_symlink()


def test_a_mark_that_a_step_was_copied_takes_no_page_of_a_full_tier(pod: Pod) -> None:
    pod.daemon().place(pod, start(None))  # type: ignore[arg-type]
    tree = pod.save(2, 100).parent
    wait_for(lambda: pod.last_look().waiting == () and pod.said("drained"), "step 2 is copied")
    assert (tree / module.MARK).stat().st_blocks == 0


def test_a_tier_that_was_emptied_is_told_with_the_steps_that_are_gone(pod: Pod) -> None:
    pod.daemon().place(pod, start(None))  # type: ignore[arg-type]
    pod.child.refuses = "the volume hangs"
    pod.save(4, 4000)
    wait_for(lambda: pod.last_look().waiting == (4,), "step 4 waits")
    pod.tiers[0].close(job_runs=True)
    shutil.rmtree(pod.fast)
    pod.fast.mkdir()  # the container was restarted
    pod.child.refuses = ""
    tier = pod.daemon()
    tier.settle(pod)  # type: ignore[arg-type]
    tier.settle(pod)  # type: ignore[arg-type]
    (told,) = pod.said("tier-lost")
    assert told.startswith(f"The tier {pod.run_file.tier_dir} was emptied before step 4 was copied to the volume")
    assert pod.last_look().waiting == ()


@pytest.mark.parametrize("setting", ["off", "elsewhere"])
def test_a_changed_setting_brings_what_is_left_there_and_leaves_no_memory_taken(pod: Pod, setting: str) -> None:
    before = pod.daemon().place(pod, start(None))  # type: ignore[arg-type]
    pod.tiers[0].close(job_runs=True)
    pod.save(4, 4000)
    (pod.folder / "elsewhere").mkdir()
    pod.set("off" if setting == "off" else str(pod.folder / "elsewhere"))
    tier = pod.daemon()
    tier.settle(pod)  # type: ignore[arg-type]
    assert pod.is_safe(4)
    assert tier.place(pod, start(4, 2)) == pod.run_file.tier_dir  # type: ignore[arg-type]
    assert before is not None and not before.exists()
    assert (pod.folder / "state" / "tier.json").exists() is (setting == "elsewhere")


def test_where_memory_gets_short_the_copy_goes_first_and_then_the_trainer_saves_on_the_volume(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_fit, "lies_in_memory", lambda folder: True)
    tier = pod.daemon()
    folder = tier.place(pod, start(None))  # type: ignore[arg-type]
    assert folder is not None
    pod.save(4, 4000)
    wait_for(lambda: pod.is_safe(4), "step 4 is whole on the volume")
    torn = pod.save(6, 6000, torn=True)
    pod.memory_left = 0
    looks = pod.looks
    wait_for(lambda: pod.looks > looks + 2, "it looks")
    assert pod.there() == {"step_4": False, "step_6": False}, "nothing is moved in the middle of a save"
    shutil.rmtree(torn.parent)
    wait_for(lambda: (folder / "checkpoints").is_symlink(), "it gives the tier up")
    assert check_dcp(folder / "checkpoints" / "step_4" / "trainer").ok, "what it resumed at is found as before"
    pod.save(8, 8000)
    assert pod.is_safe(8)
    wait_for(lambda: "has room for 0 bytes" in pod.last_look().over, "it is told")
    assert tier.place(pod, start(8, 2)) is None and not folder.exists()  # type: ignore[arg-type]

    pod.memory_left = 64 * GIB
    tier = pod.daemon()
    folder = tier.place(pod, start(8, 3))  # type: ignore[arg-type]
    assert folder is not None
    pod.save(10, 9000)
    wait_for(lambda: pod.is_safe(10), "step 10 is whole on the volume")
    pod.memory_left = 3 * STEP_BYTES // 2  # with what the copy holds it is enough
    wait_for(lambda: pod.there().get("step_10") is True, "the copy gives its memory back")
    assert not (folder / "checkpoints").is_symlink() and check_dcp(folder / "checkpoints" / "step_10" / "trainer").ok


def test_a_start_without_the_tier_says_why_in_one_sentence(pod: Pod) -> None:
    tier = pod.daemon()
    assert tier.place(pod, replace(start(None), no_tier="the kernel ended a process")) is None  # type: ignore[arg-type]
    pod.set("/nowhere")
    assert pod.daemon().place(pod, start(None)) is None  # type: ignore[arg-type]
    pod.set("auto")
    assert pod.daemon().place(pod, start(None)) is None  # type: ignore[arg-type]
    head = "The trainer saves on the run's own volume, not on a tier: "
    told = pod.said("tier")
    assert told[:2] == [f"{head}the kernel ended a process.", f"{head}there is no folder /nowhere."]
    assert told[2].startswith(f"{head}the size of a step is not known") or "/dev/shm" in told[2]


ROOM = Room(Path("/dev/shm"), 64 * GIB, 62 * GIB, True, 20 * GIB, 200 * GIB, 120 * GIB)


@pytest.mark.parametrize(
    ("room", "auto", "why"),
    [
        (ROOM, True, ""),
        (
            replace(ROOM, total_bytes=64 << 20, free_bytes=64 << 20),
            False,
            "/dev/shm has only 64.0 MiB in all, and a tier needs 1.0 GiB",
        ),
        (replace(ROOM, step_bytes=None), False, ""),
        (replace(ROOM, step_bytes=None), True, "the size of a step is not known before one is saved"),
        (
            replace(ROOM, free_bytes=40 * GIB),
            False,
            "three steps and a margin take 61.0 GiB, and /dev/shm has room for 40.0 GiB",
        ),
        (replace(ROOM, peak_bytes=None), False, ""),
        (replace(ROOM, peak_bytes=None), True, "how much memory the job needs is not known before it has made a step"),
        (
            replace(ROOM, peak_bytes=170 * GIB),
            False,
            "three steps and a margin take 61.0 GiB, and beside the job 30.0 GiB of 200 GiB memory are left",
        ),
        (replace(ROOM, peak_bytes=170 * GIB, in_memory=False), True, ""),
    ],
)
def test_three_steps_have_to_fit_under_every_limit(room: Room, auto: bool, why: str) -> None:
    assert why_too_small(room, auto=auto) == why


def test_the_probe_wants_half_as_much_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tier_fit.write_rate(tmp_path, 8 << 20) > 0 and not list(tmp_path.iterdir())
    rates = {"/fast": 3e9, "/slow": 2e9, "/slower": 1.9e9}
    monkeypatch.setattr(tier_fit, "write_rate", lambda folder: rates[str(folder)])
    assert tier_fit.why_not_faster(Path("/fast"), Path("/slow")) == ""
    rates["/slow"] = 2.1e9
    assert "1.5 times as much is wanted" in tier_fit.why_not_faster(Path("/fast"), Path("/slow"))


def test_a_folder_that_a_logout_empties_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = tmp_path / "logind.conf"
    said.write_text("[Login]\n#RemoveIPC=no\n")
    monkeypatch.setattr(tier_fit, "LOGIND", (str(said),))
    shm = Path("/dev/shm")
    assert tier_fit.is_emptied_at_logout(shm, 1000, tmp_path)
    assert not tier_fit.is_emptied_at_logout(shm, 0, tmp_path), "root's files stay"
    assert not tier_fit.is_emptied_at_logout(Path("/mnt/nvme"), 1000, tmp_path)
    assert not tier_fit.is_emptied_at_logout(shm, 1000, tmp_path / "no-systemd")
    said.write_text("[Login]\nRemoveIPC=no\n")
    assert not tier_fit.is_emptied_at_logout(shm, 1000, tmp_path)
