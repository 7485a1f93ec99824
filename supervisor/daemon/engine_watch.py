"""Looking at the inference server that is a role of its own: its log from its first line, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.core import facts as f
from supervisor.jobs.base import Job, LogSource, literal
from supervisor.process.launch import ShimState
from supervisor.sensors.base import Looker, Sensor
from supervisor.sensors.logs import LastLines, LogSensor


class EngineWatch:
    """Follows one start of the server. ``close`` ends it."""

    def __init__(
        self,
        engine: int,
        log: Path,
        job: Job,
        look: Callable[[], ShimState],
        start: Callable[[Sensor], Looker],
        *,
        positions: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """``start`` sets a sensor looking; ``positions``: where the daemon before was in ``log``."""
        self.engine = engine
        self.log = log
        mine = [position for position in positions if position.get("path") == str(log)]
        self._logs = _EngineLog([LogSource("inference", str(literal(log)))], job, positions=mine, late=not mine)
        following = start(self._logs)
        self._lookers = [following, start(_End(engine, look, self._logs, following))]

    def positions(self) -> list[dict[str, str | int]]:
        """Where its log was read to."""
        return self._logs.positions()

    def close(self) -> None:
        """Look no more."""
        for looker in self._lookers:
            looker.stop(timeout_s=0.5)
        self._logs.close()


class _EngineLog(LogSensor):
    name = "engine-log"


@dataclass
class _End:
    """Its end, told once, and only after its last lines: they say why."""

    engine: int
    look_at_it: Callable[[], ShimState]
    logs: LogSensor
    following: Looker
    last: LastLines | None = None
    told: bool = False
    name = "own-engine"

    def look(self) -> Sequence[f.Fact]:
        if self.told or (one := self.look_at_it()).state not in ("exited", "lost"):
            return ()
        if self.last is None:
            self.last = LastLines(self.logs, self.following)
        if not self.last.are_read():
            return ()
        self.told = True
        return (f.EngineExited(self.engine, one.exit_code, one.signal, lost=one.state == "lost"),)

    def unknown(self, reason: str) -> Sequence[f.Fact]:
        return ()  # only what was seen to end is ever reported
