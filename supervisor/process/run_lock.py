"""The lock that lets one daemon at a time watch a run, and what is done where its holder has lost its nanny.

A nanny that is killed leaves its daemon behind: the run goes on, and nothing starts that daemon again. The next nanny's
daemon finds the lock held. It then waits for the lock, and hands on to the holder what it is told meanwhile: ``kill
$(cat pid_file)`` ends the run, whichever daemon watches it. The holder, which sees that its nanny is gone, gives its
place at a calm moment to the one that waits; that one's nanny starts and watches the daemon from then on. The job is
not touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from supervisor.base import logs
from supervisor.base.errors import ConfigError, TryAgainError
from supervisor.base.proc_stat import start_ticks
from supervisor.base.socket_paths import try_to_lock
from supervisor.process.known_names import NANNY
from supervisor.process.survivors import Identity, alive, send_signal

WANTED = "lock.wanted"
"""Beside the lock: the process that waits for it. The holder takes it away when it gives its place."""
ENDING = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 0.5


def take_lock(state_dir: Path, run_id: str, environ: Mapping[str, str]) -> IO[str]:
    """The lock's open file, to be kept. Waits only below a nanny, and only for a holder without its nanny.

    Raises TryAgainError while another daemon watches the run, and ConfigError where the folder cannot be written.
    """
    path = state_dir / "lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        handle = path.open("a+")  # what the holder wrote stays there
    except OSError as error:
        raise ConfigError(
            f"The state folder {state_dir} cannot be written: {error.strerror}. "
            "Set run.state_dir to a folder on a local disk that this user may write."
        ) from error
    nanny = nanny_of(environ)
    if not try_to_lock(handle.fileno()):
        holder, its_nanny = read_holder(path)
        if nanny is None or holder is None or its_nanny is None or alive(its_nanny) or not alive(holder):
            who = f"pid {holder[0]} holds {path}" if holder is not None and alive(holder) else f"{path} is held"
            raise TryAgainError(
                f"Another daemon already watches run {run_id} ({who}). See it with: supervisorctl status"
            )
        _wait_for_place(handle, path, run_id, holder)
    # Also one that is gone: an upgrade changes nothing of that.
    _write_holder(handle, _identity(environ.get(NANNY, "")))
    return handle


class Heir:
    """Who waits for the place of a daemon that has lost its nanny. ``due`` is asked at each turn of the loop."""

    def __init__(self, state_dir: Path, environ: Mapping[str, str]) -> None:
        """``environ`` as this process was given it."""
        self._nanny = _identity(environ.get(NANNY, ""))
        self._path = state_dir / WANTED
        self._looked = float("-inf")

    def due(self, calm: Callable[[], bool]) -> bool:
        """Is this the moment to give it the place? ``calm``: is nothing under way that must not be begun again?"""
        if self._nanny is None or os.getppid() == self._nanny[0] or time.monotonic() - self._looked < LOOK_S:
            return False
        self._looked = time.monotonic()
        try:
            heir = _identity(self._path.read_text(errors="replace").strip())
            if heir is None or not alive(heir) or not calm():
                return False
            self._path.unlink()
        except OSError:
            return False
        told = f"The nanny of this daemon is gone, and another one is there: its daemon (pid {heir[0]}) goes on with"
        logs.say("warning", "lock", f"{told} the run. The job is not touched.")
        return True


def nanny_of(environ: Mapping[str, str]) -> Identity | None:
    """The nanny that is this process's parent, None without one."""
    found = _identity(environ.get(NANNY, ""))
    return found if found is not None and found[0] == os.getppid() else None


def _wait_for_place(handle: IO[str], path: Path, run_id: str, holder: Identity) -> None:
    """Until the holder is gone and the lock is ours; TryAgainError when we are told to end meanwhile and it has ended.

    The holder keeps its pid over an upgrade, for a moment without the lock: that alone is no end of it.
    """
    told: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        told.append(number)
        send_signal(holder, number)

    wanted = path.with_name(WANTED)
    before = {number: signal.signal(number, hand_on) for number in ENDING}
    logs.say(
        "warning",
        "lock",
        f"The daemon of run {run_id} (pid {holder[0]}) has lost the parent that restarts it. This process waits to "
        "replace it, and passes SIGTERM on to it until then.",
    )
    given = False
    try:
        with contextlib.suppress(OSError):  # a full disk: then it goes on when that one ends
            wanted.write_text(f"{os.getpid()}-{start_ticks(os.getpid()) or 0}\n")
            given = True
        while alive(holder) or not try_to_lock(handle.fileno()):
            if not alive(holder) and read_holder(path)[0] not in (None, holder):
                raise TryAgainError(f"Another daemon took over run {run_id}. See it with: supervisorctl status")
            time.sleep(LOOK_S)
    finally:
        given = given and not wanted.exists()
        with contextlib.suppress(OSError):
            wanted.unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)
    if told and given:
        # It had given its place by then and heard nothing any more: the sender starts one that ends the run.
        signal.signal(told[0], signal.SIG_DFL)
        os.kill(os.getpid(), told[0])
    if told:
        raise TryAgainError(f"Told to end: so was pid {holder[0]}, which watched run {run_id}, and it has ended.")


def _write_holder(handle: IO[str], nanny: Identity | None) -> None:
    """The holder and its nanny; a full disk costs the line and nothing else."""
    words = [f"{os.getpid()}-{start_ticks(os.getpid()) or 0}", *([f"{nanny[0]}-{nanny[1]}"] if nanny else [])]
    try:
        handle.truncate(0)
        handle.write(" ".join(words) + "\n")
        handle.flush()
    except OSError:
        logs.say(
            "warning", "lock", "The lock's file cannot be written: another daemon cannot say which process holds it."
        )


def read_holder(path: Path) -> tuple[Identity | None, Identity | None]:
    """The holder and its nanny, as the file says. A line of another boot or container names no living process."""
    try:
        words = path.read_text(errors="replace").split()
    except OSError:
        return None, None
    found = [_identity(word) for word in words[:2]]
    return (found[0] if found else None), (found[1] if len(found) > 1 else None)


def _identity(text: str) -> Identity | None:
    pid, _, ticks = text.partition("-")
    if not (pid.isascii() and pid.isdigit() and ticks.isascii() and ticks.isdigit()) or len(text) > 40:
        return None
    return int(pid), int(ticks)
