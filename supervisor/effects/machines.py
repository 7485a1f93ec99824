"""The port through which a run over several machines has its components launched and stopped (``supervisor.nodes``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from supervisor.config.settings import RunFile
from supervisor.core.facts import AttemptStopped
from supervisor.effects.transfers import Transfers
from supervisor.jobs.base import Component, Job, StopRules
from supervisor.process.launch import Launched
from supervisor.sensors.base import Sensor


class Disks(Protocol):
    """What is done to a step on all machines, where they have disks of their own. Each raises SupervisorError."""

    room: Sensor  # how much there is on the fullest of them

    def see(self, job: Job, run_file: RunFile, environ: Mapping[str, str]) -> Job:
        """The job with the steps of all machines; their trees and files are names only."""

    def look(self) -> None:
        """See all of them as they are now."""

    def move_aside(self, trees: Sequence[Path], output_dir: Path, label: str) -> list[Path]:
        """This and the next two are as those of ``move_aside``."""

    def delete_trees(self, trees: Sequence[Path], output_dir: Path) -> int: ...

    def delete_set_aside(self, output_dir: Path, keep: str) -> int: ...

    def run(self, transfers: Transfers, asked: dict[str, Any], what: str) -> dict[str, Any]:
        """Publish or restore: each machine moves its own files. Raises StoreError."""

    def lacks(self, asked: dict[str, Any]) -> bool:
        """Is there a machine that was not brought all of the step that this request restores?"""

    def bring_step(self, asked: dict[str, Any] | None) -> None:
        """The next start restores this on each machine that it takes; None: no step."""


class Machines(Protocol):
    """All machines of a run; where there is none of these, everything is on this one."""

    disks: Disks | None

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
        self,
        attempt: int,
        rules: StopRules,
        budget_s: float,
        gpu_wait_s: float,
        hurry: threading.Event,
        *,
        brief: bool,
        at_once: bool,
    ) -> AttemptStopped:
        """End everything up to this attempt on every machine that answers, as ``process.stop`` does on one."""

    def keep_evidence(self, asked: dict[str, Any], limit_s: float) -> Sequence[str]:
        """Have each machine keep a bundle of what the attempt does there (``evidence.known.Asked``), before it is
        ended; a sentence of each.
        """
