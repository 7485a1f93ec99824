"""What is asked before a job is started, and may say no; by default nobody is."""

from __future__ import annotations

import threading
from typing import Protocol

from supervisor.jobs.base import Job


class BeforeStart(Protocol):
    """Somebody who may refuse a start."""

    def before_start(self, job: Job, step: int | None, snapshot: int | None, unwanted: threading.Event) -> None:
        """Raises ConfigError where the start must not be. ``unwanted``: set when nobody waits for it any more."""

    def say(self) -> None:
        """Tell what would be in the way of a start that is not carried out."""


class _Nobody:
    def before_start(self, job: Job, step: int | None, snapshot: int | None, unwanted: threading.Event) -> None:
        pass

    def say(self) -> None:
        pass


NO_CHECK: BeforeStart = _Nobody()
