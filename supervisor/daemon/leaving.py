"""What the daemon does about its pod's going: it hears of it, follows the last publish, and knows how long it has."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.core.upkeep import ENDED_WITHIN_S
from supervisor.effects.transfers import Moving
from supervisor.jobs.environment import environment_of_commands
from supervisor.sensors.base import Looker, Sensor
from supervisor.sensors.leaving import SIGNALS, SLURM_JOB, FileSource, PublishSensor, Trigger, ask_command, ask_page

if TYPE_CHECKING:
    from supervisor.sensors.slurm import SlurmSensor

ASK_S = 5.0  # Amazon's own advice for its page
MOVES_S = 0.5
RELEASE_S = 60.0  # of a daemon that ends by itself: what comes next is not kept waiting for longer
LEAST_RELEASE_S = 10.0
LAST_S = 0.3  # of the time that is left: the journal, the interpreter


class LeavingWatch:
    """The triggers of ``[leaving]``, and what follows once one of them has fired."""

    def __init__(
        self,
        run_file: RunFile,
        environ: Mapping[str, str],
        start: Callable[[Sensor, float, float], Looker],
        state: Callable[[], State],
        moving: Callable[[], Moving | None],
    ) -> None:
        """``start`` has a sensor look, with its interval and deadline; ``moving``: how far the publish under way is."""
        self._about = run_file.leaving
        self._environ = environment_of_commands(environ)
        self._start, self._state, self._moving = start, state, moving
        self._lookers: list[Looker] = []
        self._follows = False
        self._slurm: SlurmSensor | None = None
        if job := environ.get(SLURM_JOB):
            from supervisor.sensors.slurm import SlurmSensor  # of no use to most

            self._slurm = SlurmSensor(job, run_file.slurm.notice, self._environ)

    # ------------------------------------------------------------ hearing of it

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        """Those that say it, besides SIGTERM."""
        return (SIGNALS[self._about.signal],) if self._about.signal else ()

    def meaning_of(self, number: int) -> f.Fact:
        """What a signal means."""
        name = signal.Signals(number).name
        if number in self.signals:
            return f.LeaveSoon(self._about.within_s, name)
        if number == signal.SIGTERM and self._about.grace_s is not None:
            return f.LeaveSoon(self._about.grace_s, name)
        if number == signal.SIGTERM and self._slurm is not None:
            return f.LeaveSoon(self._slurm.left_s(time.time()), f"{name} from Slurm")
        return f.Command("shutdown", name)

    def start(self) -> None:
        """Ask all triggers that are set, now and then."""
        about = self._about
        if about.file is not None:
            self._ask_source("file", FileSource(about.file))
        if about.url is not None:
            self._ask_source("url", partial(ask_page, about.url, about.url_matches, about.url_headers))
        if about.command:
            self._ask_source("command", partial(ask_command, about.command, self._environ))
        if self._slurm is not None:
            self._lookers.append(self._start(self._slurm, self._slurm.interval_s, self._slurm.deadline_s))

    def _ask_source(self, name: str, source: Callable[[], tuple[str, str] | None]) -> None:
        self._lookers.append(self._start(Trigger(name, source, self._about.within_s), ASK_S, 30.0))

    # ------------------------------------------------------------ once it is so

    def follow(self) -> None:
        """Tell the core how far the publish is from now on; called after each decision."""
        if not self._follows and self._state().leave.exit_at is not None:
            self._follows = True
            self._lookers.append(self._start(PublishSensor(self._moving_bytes), MOVES_S, 15.0))

    def _moving_bytes(self) -> f.PublishMoves | None:
        moving, step = self._moving(), self._state().busy.publish
        if moving is None or step is None:
            return None
        return f.PublishMoves(step, moving.phase, moving.bytes, moving.total, round(moving.rate, 1))

    def left_s(self, now: float) -> float | None:
        """Seconds in which the daemon has to end; None: as long as that takes. ``now`` is the core's clock."""
        until = self._state().leave.until
        return None if until is None else max(0.0, until - now - LAST_S)

    def release_s(self, now: float) -> float:
        """Seconds for giving the run back where it is unknown when the pod goes: until what sent SIGTERM kills."""
        leave = self._state().leave
        return max(LEAST_RELEASE_S, leave.since + ENDED_WITHIN_S - now) if leave.asked else RELEASE_S

    def close(self) -> None:
        """Ask nothing any more."""
        for looker in self._lookers:
            looker.stop(timeout_s=0.1)
