"""One round of keeping logs bounded: a child of the daemon, at the lowest priority. ``log_upkeep`` starts it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

from supervisor.effects.log_pieces import rotate, squeeze
from supervisor.effects.log_upkeep import Order, Task, plan
from supervisor.journal.attempt_folders import list_waiting_folders


def do(task: Task, order: Order) -> str:
    """Carry one task out; a sentence when something is lost by it. Raises OSError."""
    if task.work == "forget":
        for place in list_waiting_folders(task.path):
            shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(task.path, ignore_errors=True)
    elif task.work == "delete":
        task.path.unlink(missing_ok=True)
    elif task.work == "squeeze" and task.target is not None:
        squeeze(task.path, task.target)
    elif task.work == "rotate":
        return rotate(task.path, order.living_bytes)
    return ""


def main(text: str) -> int:
    """One round, in a process of its own; prints a sentence for each loss and each failure."""
    order = Order(**{**json.loads(text), "keep": tuple(json.loads(text)["keep"])})
    os.nice(19)
    lock = os.open(Path(order.state_dir) / "attempts", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 0  # the child of a daemon that died is still at work
    for task in plan(order):
        try:
            said = do(task, order)
        except FileNotFoundError:
            continue
        except OSError as error:
            said = f"{task.path} could not be compressed or deleted: {error.strerror}."
        if said:
            print(said, flush=True)  # noqa: T201 - this is how it answers
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
