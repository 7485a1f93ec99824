"""The faster file system on which the trainer saves: each whole step is copied from there to the run's own volume.

The trainer's part of step N lies in ``TIER/checkpoints/step_N/trainer``, all else of the step on the volume from the
start. For the rest of the program a step begins to exist when its part is whole on the volume (``checkpoints.drain``).
The tier keeps the newest part that was copied, for a quick resume; a start at another step finds a link to the volume.

Two marks make this repeatable after any crash: ``step_N/.drained`` on the tier, with the time of the ``.metadata`` that
was copied, and ``tier.json`` in the state folder, with the tier in use and what waited there when it was last seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.base.beside import Beside
from supervisor.base.durable import exchange_names
from supervisor.base.errors import StoreError, SupervisorError
from supervisor.checkpoints.completeness import check_dcp, folder_size
from supervisor.checkpoints.drain import list_files
from supervisor.core import facts as f
from supervisor.core.actions import Start
from supervisor.effects import move_aside, tier_fit
from supervisor.effects.run_context import RunContext
from supervisor.effects.tier_fit import Room
from supervisor.effects.transfers import Transfers, request
from supervisor.jobs.base import Job, TieredPart
from supervisor.jobs.steps import numbered_folders
from supervisor.sensors.host import HostSensor

LOOK_S = 1.0
AGAIN_S, LONGEST_WAIT_S = 5.0, 60.0
STAGING = ".draining"  # on the volume, outside of what the launchers look at
MARK = ".drained"
ASIDE = "not-drained"
FULL_BELOW = 0.02  # of the tier: a save that was cut off with less free was cut off for want of room
CLOSE_S = 5.0


class Tier:
    """Places the trainer's checkpoints on the tier of the run file, and brings them to the volume.

    Where the run file has none and no attempt left one, nothing of this does anything.
    """

    def __init__(
        self,
        run: RunContext,
        transfers: Transfers,
        peak_memory: Callable[[], int | None],
        memory: Callable[[], f.HostLook] | None = None,
    ) -> None:
        """``peak_memory``: what the run has used at most; ``memory``: looks at what the host has left."""
        self._run, self._transfers, self._peak_memory = run, transfers, peak_memory
        self._memory = memory or _look_at_memory
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._memo = run.state_dir / "tier.json"
        self._folder, self._waited = self._read_memo()
        if self._folder is None and (tier := run.run_file.tier_dir) is not None and tier.is_dir():
            self._folder = tier  # the state folder was lost, and what waits there is still to be brought
        self._look = f.TierLook()
        self._again_t, self._failures = 0.0, 0
        self._newest_only, self._under_way = False, -1  # the step that is being copied
        if self._folder is not None:
            self._begin()  # a job that lives may be saving there

    # ------------------------------------------------------------ a start

    def place(self, job: Job, action: Start) -> Path | None:
        """Where the trainer of the attempt about to start saves; None: on the volume, as ever. Raises SupervisorError.

        No process of the run writes. The folder then holds the resume step and nothing else.
        """
        folder, part = self._run.run_file.tier_dir, job.tiered_part()
        if folder is None and self._folder is None:
            return None
        with self._lock:
            if isinstance(part, TieredPart):
                self._note_full_tier(part)
            why = "" if folder is None else self._why_not(folder, part, action)
            if self._folder is not None and (why or folder != self._folder):
                self._leave(part)
            if isinstance(part, TieredPart):
                self._delete_old_copies(part)
            if folder is None:
                return None
            if why or isinstance(part, str):
                self._run.post(f.Remark("tier", f"The trainer saves on the run's own volume, not on a tier: {why}."))
                return None
            try:
                self._prepare(folder, part, action.step)
            except OSError as error:
                raise SupervisorError(
                    f"The tier {folder} cannot be used: {error.strerror} ({error.filename})"
                ) from error
            self._folder = folder
            self._tell(waiting=(), failed="")
            self._begin()
            return folder

    def _why_not(self, folder: Path, part: TieredPart | str, action: Start) -> str:
        """Why this start does without the tier, a clause."""
        if isinstance(part, str):
            return part
        if why := action.no_tier or self._look.over:
            return why
        auto = self._run.run_file.checkpoints.tier == "auto"
        try:
            if not folder.parent.is_dir():
                return f"there is no folder {folder.parent}"
            if os.path.lexists(folder) and not _is_own(folder):
                return f"{folder} is not this user's own folder"
            if auto and tier_fit.is_emptied_at_logout(folder, os.geteuid()):
                return f"systemd-logind empties {folder.parent} when the last session of this user ends (RemoveIPC)"
            room = os.statvfs(folder.parent)
            own_bytes = folder_size([folder])[0] - folder_size([folder / move_aside.ASIDE])[0]
            look = self._memory()
            why = tier_fit.why_too_small(
                Room(
                    folder.parent,
                    room.f_blocks * room.f_frsize,
                    room.f_bavail * room.f_frsize + own_bytes,
                    tier_fit.lies_in_memory(folder.parent),
                    _size_of_newest(part),
                    look.memory_total_bytes,
                    self._peak_memory(),
                ),
                auto=auto,
            )
            if not why and auto:
                why = tier_fit.why_not_faster(folder.parent, move_aside.nearest_folder(part.home))
            if not why and not os.access(move_aside.nearest_folder(folder), os.W_OK):
                why = f"{move_aside.nearest_folder(folder)} cannot be written"
        except OSError as error:
            return f"{error.filename or folder} cannot be used ({error.strerror})"
        return why

    def _prepare(self, folder: Path, part: TieredPart, step: int | None) -> None:
        checkpoints = folder / "checkpoints"
        if checkpoints.is_symlink():
            checkpoints.unlink()
        move_aside.make_for_job(checkpoints)
        move_aside.finish_deletions(folder)
        self._clear(folder, part, keep=step)
        if step is not None and not (checkpoints / f"step_{step}").exists():
            (checkpoints / f"step_{step}").symlink_to(part.home / f"step_{step}")
        if step is not None:
            _link_weights(folder, part)
        self._write_memo(folder, ())

    def _leave(self, part: TieredPart | str) -> None:
        """Make the tier of the attempts before this one empty: no process of the run writes there any more."""
        folder = self._folder
        if folder is not None and _is_own(folder) and isinstance(part, TieredPart):
            try:
                self._clear(folder, part, keep=None)
            except SupervisorError as error:
                if self._list_waiting(part):
                    raise
                self._run.post(f.Remark("tier", f"The tier {folder} could not be emptied: {error}", "warning"))
            for path in (folder / "weights", folder / "checkpoints", folder):
                with contextlib.suppress(OSError):
                    path.unlink() if path.is_symlink() else path.rmdir()
        self._memo.unlink(missing_ok=True)
        self._folder, self._waited = None, ()
        self._post(f.TierLook(over=self._look.over))

    def _clear(self, folder: Path, part: TieredPart, keep: int | None) -> None:
        """Delete what the volume has, and what is torn; a whole step that the volume refused is set aside there."""
        if (folder / "checkpoints").is_symlink():
            return  # an attempt before this one gave the tier up: the volume's own steps are behind it
        for step, tree in numbered_folders(folder / "checkpoints").items():
            if tree.is_symlink():
                tree.unlink()
                continue
            here, there = tree / part.part, part.home / f"step_{step}" / part.part
            drained = _is_drained(tree, part)
            if drained and step == keep and _same_files(here, there):
                continue
            if check_dcp(here).ok and not drained and not _same_files(here, there):
                moved = move_aside.move_aside([tree], folder, ASIDE)
                told = f"Step {step} was not copied to the volume, so the run does not resume at it: {moved[0]}."
                self._run.post(f.Remark("tier", told, "warning"))
            else:
                move_aside.delete_trees([tree], folder)

    def _delete_old_copies(self, part: TieredPart) -> None:
        """What killed drains left on the volume, and no drain goes on with, since the tier was lost. None runs now.

        A whole copy goes only where the step has one.
        """
        if part.home.is_dir() and (staging := self._staging_folder(part)).is_dir():
            homes = {path: part.home / path.name.removesuffix(".old") / part.part for path in staging.iterdir()}
            gone = [path for path, home in homes.items() if check_dcp(home).ok or not check_dcp(path).ok]
            with contextlib.suppress(SupervisorError):
                move_aside.delete_trees(gone, self._run.run_file.output_dir)
            with contextlib.suppress(OSError):
                staging.rmdir()

    # ------------------------------------------------------------ steps on their way

    def settle(self, job: Job) -> None:
        """Bring every whole step to the volume (of a pod that is about to go the newest), and tell which are gone.

        For the moment before the steps are listed, with no job or with one that lives.
        """
        part = job.tiered_part()
        if self._folder is None or isinstance(part, str):
            return
        with self._lock:
            self._tell_lost(part)
            waiting = self._list_waiting(part)
            self._tell(waiting=waiting)
            for step in reversed(waiting):
                if not self._newest_only or step > max(self._list_drained(part), default=-1):
                    self._drain(step, part, urgent=True)  # no training waits for this machine's time
            left = self._list_waiting(part)
            self._tell(waiting=left, failed=self._look.failed if left else "")

    def hurry(self) -> None:
        """The pod is about to go: no listing, and so no publish, waits for the copy of a step that is not the newest.

        What a copy has so far stays, and it goes on after the newest one.
        """
        self._newest_only = True
        part = self._run.job.tiered_part() if self._run.job is not None else ""
        if isinstance(part, TieredPart) and 0 <= self._under_way < max(self._list_waiting(part), default=-1):
            self._transfers.cancel("drain", "The pod is about to go, and a newer step comes first.")

    def _run_loop(self) -> None:
        killed = True  # perhaps: what the daemon before was deleting is looked for once
        while not self._ended.wait(LOOK_S):
            job = self._run.job
            if job is None or self._run.observed or self._folder is None:
                continue
            try:
                if self._lock.acquire(blocking=False):
                    try:
                        if killed and _is_own(self._folder):
                            move_aside.finish_deletions(self._folder)
                            killed = False
                        self._step_on(job)
                    finally:
                        self._lock.release()
            except (OSError, SupervisorError) as error:
                self._tell(failed=str(error))
            except Exception as error:
                self._run.post(f.EffectCrashed("tier", f"{type(error).__name__}: {error}"))

    def _step_on(self, job: Job) -> None:
        part, folder = job.tiered_part(), self._folder
        if isinstance(part, str) or folder is None or not _is_own(folder) or (folder / "checkpoints").is_symlink():
            return
        self._tell_lost(part)
        _link_weights(folder, part)
        waiting = self._list_waiting(part)
        self._tell(waiting=waiting, failed=self._look.failed if waiting else "")
        if waiting and time.monotonic() >= self._again_t:
            copy = Beside(lambda: self._drain(waiting[-1], part))
            while copy.hangs:  # the trainer saves on meanwhile, perhaps more often than the volume takes a step
                with contextlib.suppress(OSError, SupervisorError):  # a tier that became read-only can still be copied
                    self._drop_older(folder, part, copied=waiting[-1])
                copy.wait(time.monotonic() + LOOK_S)
            copy.result(None)
            self._drop_older(folder, part)
            self._tell(waiting=self._list_waiting(part))
        elif not waiting:
            self._give_up_if_short(folder, part)

    def _list_waiting(self, part: TieredPart) -> tuple[int, ...]:
        """Whole steps that were not copied yet, ascending."""
        return tuple(
            step
            for step, tree in sorted(self._trees().items())
            if check_dcp(tree / part.part).ok and not _is_drained(tree, part)
        )

    def _list_drained(self, part: TieredPart) -> list[int]:
        return [step for step, tree in self._trees().items() if _is_drained(tree, part)]

    def _trees(self) -> dict[int, Path]:
        if self._folder is None or not _is_own(self._folder) or (self._folder / "checkpoints").is_symlink():
            return {}
        found = numbered_folders(self._folder / "checkpoints")
        return {step: tree for step, tree in found.items() if not tree.is_symlink()}

    def _staging_folder(self, part: TieredPart) -> Path:
        """Where copies are made, on the volume's file system; ``part.home`` exists."""
        return move_aside.top_of_tree(part.home.resolve() / "step", self._run.run_file.output_dir.resolve()) / STAGING

    def _drain(self, step: int, part: TieredPart, *, urgent: bool = False) -> None:
        tree = self._trees()[step]
        try:
            move_aside.make_for_job(part.home)
            home = part.home.resolve() / f"step_{step}"
            staging = self._staging_folder(part) / f"step_{step}"
            saved = _time_of_save(tree, part)
            asked = request(
                self._run.run_file,
                "drain",
                source=str(tree / part.part),
                target=str(home / part.part),
                staging=str(staging),
                urgent=urgent,
            )
            began, self._under_way = time.monotonic(), step
            answer = self._transfers.run(asked, what="drain")
            with contextlib.suppress(OSError):
                staging.parent.rmdir()
            (tree / MARK).touch()  # empty: on a full tier there is no page for a word
            os.utime(tree / MARK, ns=(saved, saved))
        except (StoreError, OSError) as error:
            if self._newest_only and step < max(self._list_waiting(part), default=-1):
                return  # it made way
            self._failures += 1
            self._again_t = time.monotonic() + min(LONGEST_WAIT_S, AGAIN_S * 2 ** (self._failures - 1))
            self._tell(failed=str(error))
            if self._failures == 1:
                told = f"Step {step} could not be copied from the tier to the volume, and is tried again: {error}"
                self._run.post(f.Remark("tier", told, "warning"))
            return
        finally:
            self._under_way = -1
        self._failures, self._again_t = 0, 0.0
        self._tell(failed="")
        seconds = time.monotonic() - began
        told = f"Step {step} is whole on the volume: {int(answer['size_bytes']):,} bytes in {seconds:.1f} s."
        self._run.post(f.Remark("drained", told))

    def _drop_older(self, folder: Path, part: TieredPart, copied: int = -1) -> None:
        """Delete what is older than the newest whole step and on the volume, or torn: steps are saved one by one.

        A whole one that the volume does not have yet waits its turn. Where the next save would not fit beside it, it is
        skipped, once the volume has a newer one, or while step ``copied`` is on its way there and a newer one waits.
        """
        trees, drained = self._trees(), self._list_drained(part)
        waiting = [one for one in self._list_waiting(part) if one in trees]  # last: one copied meanwhile is in neither
        newest, safe = max([*drained, *waiting], default=-1), max(drained, default=-1)
        gone = [step for step in trees if step < newest and step not in waiting and (step in drained or step < safe)]
        move_aside.delete_trees([trees[step] for step in gone], folder)
        for step in waiting:
            if step in (copied, newest) or (step > safe and copied in (-1, newest)):
                continue
            if self._room_left(folder) >= folder_size([trees[newest]])[0]:
                return
            move_aside.delete_trees([trees[step]], folder)
            self._write_memo(folder, tuple(one for one in self._waited if one != step))  # it is not lost with the tier
            told = f"Step {step} is skipped: steps complete faster than the volume takes them from the tier."
            self._run.post(f.Remark("skipped", f"{told} The next save would not fit beside it."))

    # ------------------------------------------------------------ too little room

    def _give_up_if_short(self, folder: Path, part: TieredPart) -> None:
        """Where the next save would not fit, make room; and where that is not enough, let it go to the volume.

        Called while nothing waits. Nothing is done while a save is under way: then there is a step that is not whole.
        """
        trees = self._trees()
        if len(self._list_drained(part)) < len(trees):
            return
        sizes = {step: folder_size([tree])[0] for step, tree in trees.items()}
        needed, room = max(sizes.values(), default=_size_of_newest(part) or 0), self._room_left(folder)
        if room >= needed:
            return
        if sizes and room + sum(sizes.values()) >= needed:
            for step, tree in trees.items():  # kept for a quick resume; from now on the volume's own is found here
                _swap_for_link(tree, part.home / f"step_{step}", folder)
            return
        if _swap_for_link(folder / "checkpoints", part.home, folder):
            why = f"{folder} has room for {room:,} bytes, and a step takes {needed:,}"
            self._tell(over=why)
            self._run.post(
                f.Remark("tier", f"The trainer saves on the run's own volume from now on: {why}.", "warning")
            )

    def _room_left(self, folder: Path) -> int:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        left = self._memory().memory_available_bytes if self._look.in_memory else None
        return free if left is None else min(free, left)

    def _note_full_tier(self, part: TieredPart) -> None:
        """A save that was cut off on a full tier is no fault of the job: the next start saves on the volume."""
        if self._folder is None or not self._folder.is_dir():
            return
        torn = [step for step, tree in self._trees().items() if not check_dcp(tree / part.part).ok]
        room = os.statvfs(self._folder)
        if torn and room.f_bavail < FULL_BELOW * room.f_blocks:
            self._tell(over=f"{self._folder.parent} was full in the middle of a save")

    # ------------------------------------------------------------ what is known

    def _tell_lost(self, part: TieredPart) -> None:
        """Steps that waited there and are neither there nor on the volume are gone with their file system."""
        trees = self._trees()
        gone = [step for step in self._waited if step not in trees]
        lost = [step for step in gone if not check_dcp(part.home / f"step_{step}" / part.part).ok]
        if lost:
            steps = ", ".join(map(str, lost))
            told = (
                f"The tier {self._folder} was emptied before step {steps} was copied to the volume: a container's "
                "restart does that, or the end of a login session. The run goes on from the volume and the store."
            )
            self._run.post(f.Remark("tier-lost", told, "warning"))
        if gone:
            self._waited = tuple(step for step in self._waited if step in trees)

    def _tell(self, **changes: object) -> None:
        folder = self._folder
        in_memory = self._look.in_memory
        if folder is not None and str(folder) != self._look.folder:
            in_memory = tier_fit.lies_in_memory(folder if folder.is_dir() else folder.parent)
        look = replace(self._look, folder=str(folder or ""), in_memory=in_memory, **changes)  # type: ignore[arg-type]
        if folder is not None and look.waiting != self._waited:
            self._write_memo(folder, look.waiting)
        self._post(look)

    def _post(self, look: f.TierLook) -> None:
        if look != self._look:
            self._look = look
            self._run.post(look)

    def _read_memo(self) -> tuple[Path | None, tuple[int, ...]]:
        try:
            told = json.loads(self._memo.read_text())
            return Path(told["folder"]), tuple(int(step) for step in told["waiting"])
        except (OSError, ValueError, KeyError, TypeError):
            return None, ()

    def _write_memo(self, folder: Path, waiting: tuple[int, ...]) -> None:
        self._waited = waiting
        new = self._memo.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk: what waits is found on the tier itself
            new.write_text(json.dumps({"folder": str(folder), "waiting": list(waiting)}))
            new.replace(self._memo)

    # ------------------------------------------------------------ its thread

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_loop, name="tier", daemon=True)
            self._thread.start()

    def close(self, *, job_runs: bool) -> None:
        """End the thread. A drain that is under way goes on with the next daemon; without a job the tier is emptied."""
        self._ended.set()
        if self._folder is None or self._run.observed or not self._lock.acquire(timeout=CLOSE_S):
            return
        try:
            job = self._run.job
            part = job.tiered_part() if job is not None else ""
            if isinstance(part, TieredPart) and not job_runs and len(self._list_drained(part)) == len(self._trees()):
                self._leave(part)
        except (OSError, SupervisorError):
            return  # memory of a tmpfs that stays taken is the pod's, and the next start clears it
        finally:
            self._lock.release()


def _look_at_memory() -> f.HostLook:
    look = HostSensor().look()[0]
    return look if isinstance(look, f.HostLook) else f.HostLook()


def _is_own(folder: Path) -> bool:
    """Is it a folder of this user, and no link? Each user can write to /dev/shm, and a resume runs a step's code."""
    try:
        look = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(look.st_mode) and look.st_uid == os.geteuid()


def _time_of_save(tree: Path, part: TieredPart) -> int:
    return (tree / part.part / ".metadata").stat().st_mtime_ns


def _is_drained(tree: Path, part: TieredPart) -> bool:
    try:
        return (tree / MARK).stat().st_mtime_ns == _time_of_save(tree, part)
    except OSError:
        return False


def _same_files(one: Path, other: Path) -> bool:
    found = list_files(one)
    return bool(found) and found == list_files(other)


def _size_of_newest(part: TieredPart) -> int | None:
    """Bytes of the trainer's part of the newest whole step on the volume."""
    for _, tree in sorted(numbered_folders(part.home).items(), reverse=True):
        if check_dcp(tree / part.part).ok:
            return folder_size([tree / part.part])[0]
    return None


def _link_weights(folder: Path, part: TieredPart) -> None:
    """Weights for people (``weights/``, until 2026-08-20) go to the volume at once: nothing resumes from them.

    The launcher of a fresh run folder refuses one that holds them, so the link waits until the folder is made.
    """
    link = folder / "weights"
    if link.is_symlink() or not (part.home.parent / "logs").is_dir():
        return
    with contextlib.suppress(OSError):
        link.rmdir()  # an empty one, made by the trainer; what is in another stays there
    if not os.path.lexists(link):
        move_aside.make_for_job(part.weights)
        link.symlink_to(part.weights)


def _swap_for_link(tree: Path, target: Path, folder: Path) -> bool:
    """Put a link to ``target`` in the place of ``tree``, at once: who reads or saves there finds one or the other.

    False where the system cannot.
    """
    link = tree.with_name(f"{move_aside.DELETING}{tree.name}")
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    if not exchange_names(link, tree):
        link.unlink()
        return False
    move_aside.finish_deletions(folder)  # what lies under the link's first name is the old tree
    return True
