"""A check that may refuse the start of a job; by default there is none."""

from __future__ import annotations

import threading
from typing import Protocol

from supervisor.jobs.base import Job


class BeforeStart(Protocol):
    """A check that may refuse a start."""

    def before_start(self, job: Job, step: int | None, snapshot: int | None, unwanted: threading.Event) -> None:
        """Raises ConfigError where the start must not be. ``unwanted``: set when the start is no longer wanted."""

    def say(self) -> None:
        """Tell what would be in the way of a start that is not carried out."""


class _Nobody:
    def before_start(self, job: Job, step: int | None, snapshot: int | None, unwanted: threading.Event) -> None:
        pass

    def say(self) -> None:
        pass


NO_CHECK: BeforeStart = _Nobody()
