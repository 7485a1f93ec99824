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
first = 1
if "--from" in sys.argv:
    first = json.load(open(sys.argv[-1] + "/state.json"))["step"] + 1
os.makedirs(out, exist_ok=True)
open(out + "/said", "w").write(os.environ.get("SAID", ""))
for step in range(first, steps + 1):
    time.sleep(0.25)
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
export HOME={home} RL_SUPERVISOR_VENV={sys.prefix} RL_SUPERVISOR_LOCKS={home}/locks RL_SUPERVISOR_LOG={home}/log
exec ${{@: -1}}
"""
    )
    script.chmod(0o700)
    return script


def processes_of(home: Path) -> list[int]:
    """What runs with this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"HOME={home}".encode() in environ:
                found.append(int(entry.name))
    return found


def start_pod(home: Path, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """What a rented pod starts, in its home, as a container would. It prints to ``onstart.log`` there."""
    words = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "RL_SUPERVISOR_VENV": sys.prefix,
        "RL_SUPERVISOR_ETC": str(home / "etc"),
        "RL_SUPERVISOR_LOCKS": str(home / "locks"),
        "RL_SUPERVISOR_LOG": str(home / "log"),
        **environ,
    }
    with (home / "onstart.log").open("ab") as log:
        subprocess.Popen(
            command, env=words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, start_new_session=True
        )


def kill_pod(home: Path) -> None:
    """All at once, as when a container is stopped. A process that is being started may be missed once."""
    deadline = time.monotonic() + 10
    while (found := processes_of(home)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
