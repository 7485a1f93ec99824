"""``rl-supervisor attach``: find the job that a person started, and watch it without ever touching it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from supervisor.api.client import Client, NotThereError
from supervisor.base.secrets import remember_environment
from supervisor.config.settings import load
from supervisor.daemon import find_job as finding
from supervisor.daemon import loop, upgrade
from supervisor.primerl import open_job


def attach(run_file: Path, pid: int | None) -> int:
    """Tell the run's daemon to watch the job, or become its daemon; returns the exit code.

    Raises SupervisorError with the candidates when it is not clear which process is meant.
    """
    remember_environment(os.environ)
    if upgrade.VARIABLE in os.environ:  # the program before, in this very process, had found the job
        return loop.main(run_file, loop.Options(attached=True))
    settings = load(run_file)
    found = finding.find(settings, open_job(settings, os.environ), pid)
    number, ticks = found.process
    try:
        taken, sentence = Client(settings.socket, run=settings.run.id).command("attach", [f"{number}:{ticks}"])
    except NotThereError:
        print(f"Attaching to process {number}: {found.title} ({found.why}). It is never touched.", file=sys.stderr)
        return loop.main(run_file, loop.Options(attach_to=found.process))
    print(sentence, file=sys.stdout if taken else sys.stderr)
    return 0 if taken else 1
