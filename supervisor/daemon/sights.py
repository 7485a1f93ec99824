"""What the daemon sees of the run, as its effects ask for it: the sensors' last looks, the state, the journal."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.core.state import Mode, State
from supervisor.daemon.active_sensors import ActiveSensors
from supervisor.effects.run_context import RunContext
from supervisor.evidence.known import Known
from supervisor.jobs.wandb_client import notes_of_rollbacks
from supervisor.journal.journal import Journal
from supervisor.process.survivors import Identity
from supervisor.views import status

MOST_STEPS = 16


class DaemonSights:
    """``effects.run_context.Sights`` of a living daemon."""

    def __init__(self, run: RunContext, journal: Journal, sensors: ActiveSensors, state: Callable[[], State]) -> None:
        self._run, self._journal, self._sensors, self._state = run, journal, sensors, state
        self.gpu_pids = sensors.gpu_pids
        self.log_files: Callable[[], dict[str, Path]] = sensors.log_files

    def gpu_free(self) -> bool | None:
        """Is the memory of the job's GPUs back?"""
        return self._sensors.gpu_free(*(("trainer",) if self._own_engine() else ()))

    def _own_engine(self) -> bool:
        return self._run.run_file.recovery.inference == "own-role"

    def engine_gpu_free(self) -> bool | None:
        """The same of the inference server's GPUs, where it is a role of its own."""
        return self._sensors.gpu_free("inference")

    def job_processes(self) -> list[Identity]:
        """Those of the job that were seen; with one tree alone, also helpers that no role was found for."""
        if self._own_engine():
            return self._processes_seen(engine=False)
        return [*self._processes_seen(None), *self._sensors.identities()]

    def engine_processes(self) -> list[Identity]:
        """Those of the inference server, where it is a role of its own."""
        return self._processes_seen(engine=True) if self._own_engine() else []

    def _processes_seen(self, engine: bool | None) -> list[Identity]:
        processes = self._state().job.processes_here()
        return [(one.pid, one.start_ticks) for one in processes if engine in (None, one.role == "inference")]

    def beat(self) -> dict[str, Any]:
        """The newest steps: trained, complete here, published, and which complete ones are on this disk alone."""
        state = self._state()
        here, stored = state.good_local(), state.good_stored()
        only_here = sorted(step for step in {*here, *state.tier.waiting} if step > max(stored, default=-1))
        return {
            "step": state.progress.step,
            "complete": max(here, default=None),
            "published": max(stored, default=None),
            "unpublished": None if state.local.reason else only_here[-MOST_STEPS:],
        }

    def scene(self) -> Known:
        """For the evidence of an incident; asked for by the loop, while the state is the verdict's."""
        # The verdict has put the mode to "stopping" already: shown is what was judged.
        state = self._state()
        mode: Mode = "starting" if state.progress.step is None else "running"
        judged = replace(state, mode=mode)
        processes = {one.pid: (one.role, one.title) for one in judged.job.processes_here()}
        page = self._sensors.engine_page()
        return Known(lambda: status.explain(judged), processes, page, self._run.journal)

    def peak_memory(self) -> int | None:
        """What the run has used at most, while none of its checkpoints lay in memory."""
        return self._state().host.peak_bytes

    def wandb_id(self) -> str:
        """One W&B run id for the whole run: the run file's, the journal's, latest.json's, or a new one."""
        known = self._run.run_file.wandb.id or self._journal.get("wandb_id")
        if known is None:
            known = secrets.token_hex(4)
        if self._journal.get("wandb_id") != known:
            self._journal.put("wandb_id", known)
        return known

    def wandb_notes(self) -> str:
        """The run's rollbacks, those of pods before this one, too."""
        lineage = self._state().lineage
        return notes_of_rollbacks((*lineage.known, *lineage.unwritten))
