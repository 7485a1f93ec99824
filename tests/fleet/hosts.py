"""Hosts of this machine: a home each, behind a stand-in for ``ssh``; and a job that trains in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

JOB = """
import json, os, sys, time
steps, out = int(sys.argv[1]), os.path.expanduser("~/out")
first, pause = 1, 0.25
if "--from" in sys.argv:
    pause = 0.05  # nobody waits for a moment of it any more
    first = json.load(open(sys.argv[-1] + "/state.json"))["step"] + 1
os.makedirs(out, exist_ok=True)
open(out + "/said", "w").write(os.environ.get("SAID", ""))
for step in range(first, steps + 1):
    time.sleep(pause)
    print(f"step {step} loss 0.5", flush=True)
    open(out + "/steps", "a").write(f"step {step}\\n")
    if step % 5 == 0:
        folder = f"{out}/checkpoints/step_{step}"
        os.makedirs(folder)
        json.dump({"step": step}, open(folder + "/part", "w"))
        os.rename(folder + "/part", folder + "/state.json")
print("all steps are done", flush=True)
"""


def write_host(folder: Path, name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The home ``folder/name``, and a program that is ``ssh`` to it. It fails as ssh does where ``name.down`` is.

    ``environ``: what else all that runs there has in its environment.
    """
    home = folder / name
    home.mkdir(mode=0o700)
    script = folder / f"ssh-{name}"
    script.write_text(
        f"""#!/bin/bash
[ -e {folder}/{name}.down ] && {{ echo "ssh: connect to host {name} port 22: No route to host" >&2; exit 255; }}
export {" ".join(f"{key}={value}" for key, value in (environ or {}).items())}
export {" ".join(f"{key}={value}" for key, value in own_places(home).items())}
exec ${{@: -1}}
"""
    )
    script.chmod(0o700)
    return script


def own_places(home: Path) -> dict[str, str]:
    """The variables by which what runs in ``home`` sees neither this machine's runs nor those of another pod."""
    return {
        "HOME": str(home),
        "RL_SUPERVISOR_VENV": sys.prefix,
        "RL_SUPERVISOR_ETC": str(home / "etc"),
        "RL_SUPERVISOR_STATE": str(home / "lib"),
        "RL_SUPERVISOR_SOCKET_DIR": str(home / "run"),
        "RL_SUPERVISOR_LOCKS": str(home / "locks"),
        "RL_SUPERVISOR_LOG": str(home / "log"),
    }


def processes_of(home: Path) -> list[int]:
    """What runs with this home."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has_home(entry, home)]


def _has_home(process: Path, home: Path) -> bool:
    try:
        return f"HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def signal_pod(home: Path, number: signal.Signals) -> list[int]:
    """Send a signal to all that runs with this home; returns whom.

    A process that was seen may have ended since, and its number may be another test's: where many tests run, a look at
    all processes takes a second, and the numbers come round. What stands still or is gone there says no word.
    """
    told = []
    for pid in processes_of(home):
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                if _has_home(Path(f"/proc/{pid}"), home):
                    signal.pidfd_send_signal(process, number)
                    told.append(pid)
            finally:
                os.close(process)
    return told


def start_pod(home: Path, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """What a rented pod starts, in its home, as a container would. It prints to ``onstart.log`` there."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    words = {**_hide_process_one(), **kept, **own_places(home), **environ}
    with (home / "onstart.log").open("ab") as log:
        subprocess.Popen(
            command, env=words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, start_new_session=True
        )


def _hide_process_one() -> dict[str, str]:
    """A start script reads what its container was given from process 1, where its own environment lacks it. Here that
    is the machine's: a variable that is empty is one that is set."""
    try:
        given = Path("/proc/1/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {
        name.decode(): "" for name, equals, _ in (one.partition(b"=") for one in given) if equals and name.isascii()
    }


def kill_pod(home: Path) -> None:
    """All at once, as when a container is stopped. A process that is being started may be missed once."""
    deadline, missed = time.monotonic() + 10, 0
    while missed < 2 and time.monotonic() < deadline:
        missed = 0 if signal_pod(home, signal.SIGKILL) else missed + 1
        time.sleep(0.02)
