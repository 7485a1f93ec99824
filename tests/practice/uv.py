"""`uv run COMMAND ...`: the wrapper that stood between the launcher and its children until 2026-03-31.

A process of its own, titled as uv is (`uv run inference @ ...`). It passes SIGTERM on and leaves SIGINT to the
terminal, and when it is killed its child lives on: that is how those eras leave orphans.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.practice.processes import set_title, spawn


def main(home: Path, arguments: list[str]) -> int:
    if not arguments or arguments[0] != "run":
        print(f"error: this uv only knows `uv run`, not {' '.join(arguments)!r}", file=sys.stderr)
        return 2
    binaries = home / ".venv" / "bin"
    set_title("uv", *arguments)
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PATH"] = path
    os.environ["VIRTUAL_ENV"] = str(home / ".venv")
    command = arguments[1:]
    if (binaries / command[0]).exists():
        command = [str(binaries / command[0]), *command[1:]]
    try:
        child = spawn(command)
    except FileNotFoundError:
        print(
            f"error: Failed to spawn: `{command[0]}`\n  Caused by: No such file or directory (os error 2)",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = child.wait()
    return code if code >= 0 else 128 - code
