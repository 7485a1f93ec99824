"""One call, ``say``, and where its sentence goes: journald, a terminal, JSON lines, a rotated file. It never raises.

A supervisor that dies or waits because its log cannot be written would be the incident it exists to prevent: a full
disk, a closed stderr, a stuck journald or a terminal stopped with Ctrl-S cost lines, which are counted, and no time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from supervisor.base.log_outlets import (
    JournalOutlet,
    Outlet,
    Record,
    RotatedFile,
    StreamOutlet,
    json_line,
    stderr_is_journal,
)
from supervisor.base.secrets import mask_value, printable, remember_environment

# structlog loads these where they are, as in most jobs' environments: 4 MiB and 0.05 s, and nothing here uses them.
_unused = [name for name in ("rich", "greenlet") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_unused))  # type: ignore[arg-type]  # importing one fails
import structlog  # noqa: E402

for _name in _unused:
    del sys.modules[_name]
if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

Format = Literal["auto", "journal", "pretty", "json"]
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_OURS = ("event", "level", "sentence", "run", "time", "wall")


class Outlets:
    """The logger that structlog wraps: hands each finished record to every outlet, one record at a time."""

    def __init__(self, outlets: list[Outlet]) -> None:
        self.outlets = outlets
        self._lock = threading.RLock()  # a signal handler may speak while its own thread is writing

    def write(self, **record: Any) -> None:
        """Write one record everywhere."""
        with self._lock:
            for outlet in self.outlets:
                outlet.write(record)

    debug = info = warning = error = critical = write

    def close(self) -> None:
        """Release files and sockets."""
        with self._lock:
            for outlet in self.outlets:
                outlet.close()


_outlets = Outlets([])


def configure(
    format: Format = "auto",
    level: str = "info",
    file: Path | None = None,
    run_id: str = "",
    *,
    file_bytes: int = 20_000_000,
    keep: int = 5,
    journal_socket: Path = Path("/run/systemd/journal/socket"),
) -> None:
    """Decide where the sentences of this process go. May be called again; the last call counts.

    ``auto`` means journald's own protocol when stderr is the journal (systemd.exec(5), $JOURNAL_STREAM), text for
    people on a terminal, JSON lines elsewhere. ``file`` also gets JSON lines and is rotated at
    ``file_bytes``; ``keep`` older ones stay.
    """
    global _outlets
    remember_environment()
    if format == "auto":
        format = "journal" if stderr_is_journal() else "pretty" if _is_terminal() else "json"
    outlets: list[Outlet]
    if format == "journal":
        outlets = [JournalOutlet(journal_socket)]
    elif format == "pretty":
        outlets = [StreamOutlet(_pretty_in_colour if _is_terminal() and not os.environ.get("NO_COLOR") else _pretty)]
    else:
        outlets = [StreamOutlet(json_line)]
    if file is not None:
        outlets.append(RotatedFile(file, file_bytes, keep))
    old, _outlets = _outlets, Outlets(outlets)
    old.close()
    structlog.configure(
        processors=[_Stamp(run_id), lambda logger, method, record: {name: mask_value(v) for name, v in record.items()}],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _outlets,
        cache_logger_on_first_use=False,
    )
    _catch_libraries(level)


def say(level: str, event: str, sentence: str, /, **fields: object) -> None:
    """Tell people one thing. ``event`` is a stable name, ``fields`` are for machines (RL_STEP, RL_INCIDENT ...).

    Never raises and never waits longer than a second; secrets are masked.
    """
    clean = {name + "_" if name in _OURS else name: value for name, value in fields.items()}
    logger = structlog.get_logger()
    getattr(logger, level if level in LEVELS else "info")(event, sentence=sentence, **clean)


class _Stamp:
    """Adds time, level and run to the record."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __call__(self, logger: WrappedLogger, method: str, record: EventDict) -> EventDict:
        stamp: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": method}
        if self._run_id:
            stamp["run"] = self._run_id
        # What every line has comes first, and what is not known is left out: people read these lines too.
        stamp |= {"event": record.pop("event", ""), "sentence": record.pop("sentence", "")}
        return stamp | {name: value for name, value in record.items() if value is not None}


def _pretty(record: Record) -> str:
    """``03:02:11  sentence`` in local time; what is not good news carries its level."""
    at = datetime.fromisoformat(str(record["time"])).astimezone().strftime("%H:%M:%S")
    level = str(record["level"])
    word = "" if level in ("info", "debug") else f"{level.upper()}  "
    return f"{at}  {word}{printable(str(record.get('sentence', record.get('event', ''))))}"


def _pretty_in_colour(record: Record) -> str:
    colour = {"warning": "33", "error": "31", "critical": "31;1", "debug": "2"}.get(str(record["level"]))
    return f"\x1b[{colour}m{_pretty(record)}\x1b[0m" if colour else _pretty(record)


def _is_terminal() -> bool:
    try:
        return os.isatty(sys.__stderr__.fileno() if sys.__stderr__ else 2)
    except (OSError, ValueError):
        return False


class _Libraries(logging.Handler):
    """Warnings of libraries (APScheduler, watchdog) leave through the same outlets."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)
        level = record.levelname.lower()
        say(level if level in LEVELS else "warning", "library", f"{record.name}: {text}", library=record.name)


def _catch_libraries(level: str) -> None:
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _Libraries)]
    root.addHandler(_Libraries(logging.DEBUG if level == "debug" else logging.WARNING))
    logging.raiseExceptions = False
