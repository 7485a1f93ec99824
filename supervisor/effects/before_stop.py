"""What a job that has failed is given before all of it is told to end: a save in progress, and W&B's last rows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from supervisor.core import actions as a
from supervisor.jobs.base import Job
from supervisor.process.stop import UPLOADERS
from supervisor.process.survivors import Belongings, alive

POLL_S = 0.2
SENDS_EACH_S = 15.0
"""wandb-core sends rows so far apart (wandb, core/internal/filestream: defaultTransmitInterval), and none once its
parent is gone. Rows of steps that are done again come again; those of a step that is kept do not."""


def wait_for_what_is_kept(action: a.Stop, job: Job, attempt: Path, run_id: str, hurry: threading.Event) -> None:
    """Until the checkpoint that is being written is whole, and the rows of the newest whole one are sent.

    ``attempt``: the attempt's folder. Ends at once when ``hurry`` is set. Raises OSError.
    """
    if not action.at_once or action.brief:
        return
    until = time.monotonic() + min(action.save_s, action.budget_s / 2)
    while action.saving is not None and time.monotonic() < until and all(map(alive, action.writers)):
        if job.check_step(action.saving, settled=True).state == "complete" or hurry.wait(POLL_S):
            break
    steps = job.steps()
    newest = job.check_step(steps[-1], settled=True) if steps else None
    if newest is None or newest.state != "complete":
        return
    unsent_s = min(SENDS_EACH_S, SENDS_EACH_S - (time.time() - newest.changed_wall))
    if unsent_s > 0 and any(one.name in UPLOADERS for one in Belongings(attempt, (), run_id).list_living()):
        hurry.wait(unsent_s)
