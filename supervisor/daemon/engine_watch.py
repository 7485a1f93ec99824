"""Looking at the inference server that is a role of its own: its log from its first line, and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from supervisor.core import facts as f
from supervisor.jobs.base import LogSource
from supervisor.process.launch import ShimState
from supervisor.sensors.base import Looker, Sensor
from supervisor.sensors.logs import CountedLogs, LastLines, Parser


class EngineWatch:
    """Follows one start of the server. ``close`` ends it."""

    def __init__(
        self,
        engine: int,
        log: Path,
        parser: Parser,
        look: Callable[[], ShimState],
        start: Callable[[Sensor], Looker],
        *,
        positions: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """``start`` sets a sensor looking; ``positions``: where the daemon before was in ``log``."""
        self.engine = engine
        self.source = LogSource("inference", str(log))
        mine = [position for position in positions if position.get("path") == str(log)]
        self._logs = _EngineLog([self.source], parser, positions=mine, late=not mine)
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


class _EngineLog(CountedLogs):
    name = "engine-log"


class _End:
    """Its end, told once, and only after its last lines: they say why."""

    name = "own-engine"

    def __init__(self, engine: int, look: Callable[[], ShimState], logs: CountedLogs, following: Looker) -> None:
        self._engine = engine
        self._look = look
        self._logs = logs
        self._following = following
        self._last: LastLines | None = None
        self._told = False

    def look(self) -> Sequence[f.Fact]:
        if self._told or (one := self._look()).state not in ("exited", "lost"):
            return ()
        if self._last is None:
            self._last = LastLines(self._logs)
        if not self._last.are_read():
            self._following.wake()
            return ()
        self._told = True
        return (f.EngineExited(self._engine, one.exit_code, one.signal, lost=one.state == "lost"),)

    def unknown(self, reason: str) -> Sequence[f.Fact]:
        return ()  # only what was seen to end is ever reported
