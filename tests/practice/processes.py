"""Real processes with the titles that the real ones carry, and the helpers to start, watch and end trees of them.

Standard library only: a practice process must start in a blink, and must not need what the supervisor needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

PR_SET_NAME = 15
ARGUMENTS_START, ENVIRONMENT_START = 45, 47
"""Indices into /proc/PID/stat after the command name: arg_start, arg_end, env_start, env_end (proc(5), fields 48 to
51)."""


def stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat after the command name (state first). Raises OSError when there is no process."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int | str) -> int:
    """When the process started, in clock ticks since boot: with the pid it names a process for good."""
    return int(stat_fields(pid)[19])


def register(home: Path, pid: int, role: str) -> None:
    """Notes a practice process in its install, so that a test finds all of them, whatever their titles and parents."""
    folder = home / ".practice" / "pids"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(pid)).write_text(f"{start_ticks(pid)} {role}\n", encoding="utf-8")


def registered_processes(home: Path) -> dict[int, str]:
    """The living processes of an install: pid -> role. Zombies do not live."""
    found = {}
    for file in (home / ".practice" / "pids").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            ticks, role = file.read_text(encoding="utf-8").split()
            fields = stat_fields(file.name)
            if fields[0] not in "ZX" and int(fields[19]) == int(ticks):
                found[int(file.name)] = role
    return found


def set_title(*words: str) -> None:
    """Makes `ps` show these words for the present process, as setproctitle does.

    setproctitle writes over the argument area, and over the environment area too unless SPT_NOENV is set, so that
    /proc/PID/environ of a titled process reads as nothing. Children must be given their environment explicitly after
    this.
    """
    fields = stat_fields("self")
    start, end = int(fields[ARGUMENTS_START]), int(fields[ARGUMENTS_START + 1])
    env_start, env_end = int(fields[ENVIRONMENT_START]), int(fields[ENVIRONMENT_START + 1])
    title = b"\0".join(word.encode() for word in words)
    room = end - start - 1
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title[:room], min(len(title), room))
    if not os.environ.get("SPT_NOENV") and len(words) == 1:
        ctypes.memset(env_start, 0, env_end - env_start)
    name = words[0].encode()[:15]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def spawn(
    command: list[str],
    extra_environment: dict[str, str] | None = None,
    *,
    output: int | None = None,
    pipe_in: bool = False,
    pipe_out: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts a child with this process's environment (given explicitly: a title may have wiped the C one)."""
    return subprocess.Popen(
        command,
        env={**os.environ, **(extra_environment or {})},
        stdin=subprocess.PIPE if pipe_in else None,
        stdout=subprocess.PIPE if pipe_out else output,
        stderr=None if pipe_out and output is None else output,
    )


def children_of(pid: int) -> list[int]:
    """All descendants of `pid`, nearest first."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents.setdefault(int(stat_fields(entry.name)[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = parents.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def signal_tree(pid: int, number: int) -> None:
    """The signal to all descendants, then to `pid` itself."""
    for target in [*children_of(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)


def die(number: int = signal.SIGKILL) -> None:
    """Ends the present process by a signal, as an out-of-memory killer does."""
    os.kill(os.getpid(), number)
    time.sleep(60)
