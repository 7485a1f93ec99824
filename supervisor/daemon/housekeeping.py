"""The household's clockwork: APScheduler calls for looks and uploads at intervals. No verdict hangs on it.

What it starts only yields facts (local steps, the store's listing, changed configuration); what follows from them,
publishing and pruning included, is the core's decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from supervisor.base import trim_memory
from supervisor.config.settings import Supervision
from supervisor.daemon.active_sensors import ActiveSensors
from supervisor.daemon.inbox import Loop
from supervisor.daemon.witness import Witness
from supervisor.effects.carry_out import Effects
from supervisor.journal.journal import Journal

if TYPE_CHECKING:
    from supervisor.daemon.side_child import SideChild

CATALOGUE_S = 900.0
CATALOGUE_AGAIN_S = 60.0
LOGS_S = 600.0
CHECK_S = 86_400.0
CHECK_FIRST_S = 3600.0  # a spot pod may not live a day
POSITIONS_S = 5.0
CLAIMS_S = 0.5
TEND_LOGS_S = 10.0
TRIM_S = 60.0
TEND_CHILD_S, FIRST_CHILD_S = 10.0, 1.0
CHECKPOINT_S = 5.0
WITNESS_S = 5.0


class Housekeeping:
    """A background scheduler with the few jobs of the house."""

    def __init__(  # noqa: PLR0917
        self,
        loop: Loop,
        supervision: Supervision,
        effects: Effects,
        sensors: ActiveSensors,
        journal: Journal,
        witness: Witness,
    ) -> None:
        """Make the scheduler; ``start`` sets it going."""
        # Imported here: its own logging must be quiet before it says anything.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        self._loop, self._supervision = loop, supervision
        self._effects, self._sensors = effects, sensors
        self._journal, self._witness = journal, witness
        self._children: Sequence[SideChild] = ()
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(2)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self, children: Sequence[SideChild]) -> None:
        """Set it going; ``children`` are kept alive until the end."""
        self._children = children
        self._repeat_every(self._supervision.scan, self._sensors.look_at_steps)
        self._repeat_every(2 * self._supervision.scan, self._sensors.look_at_configs)
        self._repeat_every(POSITIONS_S, self._loop.keep_positions)
        self._repeat_every(CATALOGUE_AGAIN_S, self._read_catalogue)
        self._repeat_every(LOGS_S, self._upload_logs)
        self._repeat_every(min(TEND_LOGS_S, self._supervision.scan), self._tend_logs)
        self._repeat_every(CHECK_S, self._check_store, first_s=CHECK_FIRST_S)
        self._repeat_every(CLAIMS_S, self._effects.store.claiming.tick)
        self._repeat_every(TRIM_S, trim_memory.trim)
        self._repeat_every(CHECKPOINT_S, self._journal.checkpoint)
        self._repeat_every(WITNESS_S, self._witness.keep)
        for child in self._children:
            self._repeat_every(TEND_CHILD_S, child.tend, first_s=FIRST_CHILD_S)
        self._scheduler.start()

    def stop(self) -> None:
        """Stop it; what runs ends by itself."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        for child in self._children:
            child.close()

    def _repeat_every(self, seconds: float, work: Callable[[], None], *, first_s: float | None = None) -> None:
        # datetime without a zone would need tzlocal to agree with it; an interval only needs a first time.
        first = datetime.now().astimezone() + timedelta(seconds=first_s or seconds)
        self._scheduler.add_job(work, "interval", seconds=seconds, next_run_time=first)

    def _read_catalogue(self) -> None:
        state = self._loop.state
        if state.store.reason or state.store.t < 0 or state.now - state.store.t > CATALOGUE_S:
            self._effects.store.catalogue(force=True)

    def _check_store(self) -> None:
        busy = self._loop.state.busy
        if not self._loop.state.store.reason and busy.publish is None and busy.prune_store is None:
            self._effects.store.check()

    def _tend_logs(self) -> None:
        state = self._loop.state
        incident = state.incidents.open.attempt if state.incidents.open else 0
        self._effects.logs.tend(state.attempt.number, (state.attempt.snapshot or 0, incident))

    def _upload_logs(self) -> None:
        if self._loop.state.attempt.number:
            self._effects.store.upload_logs(self._loop.state.attempt.number)
