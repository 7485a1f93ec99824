"""What a job that has failed is given before all of it is told to end: a save in progress, and W&B's last rows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from supervisor.base.beside import Beside
from supervisor.core import actions as a
from supervisor.jobs.base import Job
from supervisor.process.stop import UPLOADERS
from supervisor.process.survivors import Belongings, alive

POLL_S = 0.2
LOOK_S = 5.0  # for the looks at the checkpoints: on a disk that hangs one may never come back
SENDS_EACH_S = 15.0
"""wandb-core sends rows so far apart (wandb, core/internal/filestream: defaultTransmitInterval), and none once its
parent is gone. Rows of steps that are done again come again; those of a step that is kept do not."""


def wait_for_what_is_kept(action: a.Stop, job: Job, attempt: Path, run_id: str, hurry: threading.Event) -> str:
    """Until the checkpoint that is being written is whole, and the rows of the newest whole one are sent.

    On the tier is enough: what is whole there is copied after the stop. ``attempt``: its folder. Ends at once when
    ``hurry`` is set. The stop must come, whatever the disk is like: returns why the checkpoints could not be looked at,
    or "".
    """
    if not action.at_once or action.brief:
        return ""
    save_s = min(action.save_s, action.budget_s / 2)
    looks = Beside(lambda: _wait(action, save_s, job, Belongings(attempt, (), run_id), hurry))
    until = time.monotonic() + save_s + SENDS_EACH_S + LOOK_S
    while looks.hangs and time.monotonic() < until and not hurry.is_set():
        looks.wait(time.monotonic() + POLL_S)
    try:
        if not hurry.is_set():
            looks.result(until)
    except TimeoutError:
        return "the disk does not answer"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _wait(action: a.Stop, save_s: float, job: Job, tree: Belongings, hurry: threading.Event) -> None:
    until = time.monotonic() + save_s
    while action.saving is not None and time.monotonic() < until and all(map(alive, action.writers)):
        if job.check_step(action.saving, settled=True, on_tier=True).state == "complete" or hurry.wait(POLL_S):
            break
    if not any(one.name in UPLOADERS for one in tree.list_living()):
        return
    steps = job.steps()
    newest = job.check_step(steps[-1], settled=True, on_tier=True) if steps else None
    if newest is not None and newest.state == "complete":
        hurry.wait(max(0.0, min(SENDS_EACH_S, SENDS_EACH_S - (time.time() - newest.changed_wall))))
