"""The port through which a run over several machines has its components launched and stopped (``supervisor.nodes``)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from supervisor.core.facts import AttemptStopped
from supervisor.jobs.base import Component, StopRules
from supervisor.process.launch import Launched


class Machines(Protocol):
    """All machines of a run; where there is none of these, everything is on this one."""

    def start(self) -> None:
        """Hear the machines from now on."""

    def close(self, code: int | None) -> None:
        """``code``: the run ends here for good, so the machines are given back; None: another daemon goes on."""

    def settle(self, attempt: int, rules: StopRules, unwanted: threading.Event) -> None:
        """Wait until nothing of an attempt before this one can write. Raises SupervisorError."""

    def choose(
        self, components: Sequence[Component], avoid: Sequence[str], unwanted: threading.Event
    ) -> tuple[Sequence[Component], Sequence[str]]:
        """Decide which machine is which, those to avoid last: the components with names and addresses filled in, and
        the names of the machines in their order. Waits for machines enough.

        Raises PodUnfitError where there are too few for too long.
        """

    def launch(
        self, components: Sequence[Component], folder: Path, rules: StopRules, unwanted: threading.Event
    ) -> list[Launched]:
        """Launch all, each on its machine, once nothing of an earlier attempt can be alive. Raises SupervisorError."""

    def stop(
        self, attempt: int, rules: StopRules, budget_s: float, hurry: threading.Event, *, brief: bool
    ) -> AttemptStopped:
        """End everything up to this attempt on every machine that answers."""
