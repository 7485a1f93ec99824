"""Traces: recorded or hand-written observations, read from a file or out of a journal.

The format is documented for strangers in docs/replay.md. Whatever is wrong with a file becomes a sentence with the
number of its line; what another version knows and this one does not is left out, and said.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from supervisor import __version__
from supervisor.core import facts as f
from supervisor.core.actions import Action
from supervisor.core.codec import CLASSES, decode, encode
from supervisor.core.settings import with_new_names
from supervisor.core.state import State
from supervisor.journal.journal import dump
from supervisor.journal.trace_lines import FORMAT, VERSION, TraceError, journal_lines

KINDS = {name: cls for name, cls in CLASSES.items() if issubclass(cls, f.Fact) and cls is not f.Fact}
Each = Literal["each"]
NUMBER = (int, float)
HEADER: dict[str, type | tuple[type, ...]] = {
    "format": str, "version": int, "by": str, "about": str, "state": dict, "settings": dict, "ticks": str,
    "effects": str, "unanswered": list, "bytes_per_s": NUMBER, "decisions": bool, "wall": NUMBER, "until": NUMBER,
    "expect": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One observation of a trace.

    ``attempt`` and ``after_s`` are for hand-written traces, where the replay answers the effects: seen only while
    that attempt lives (or each one), ``after_s`` seconds after its start instead of at ``observation.t``.
    """

    observation: f.Observation
    decided: tuple[str, ...] | None = None  # JSON of what was decided on it; None where that was not recorded
    state: State | None = None  # the state before it is this, whatever a replay arrived at
    attempt: int | Each | None = None
    after_s: float | None = None


@dataclass
class Trace:
    """A whole trace. ``notes``: what was left out and why."""

    name: str
    lines: list[Line] = field(default_factory=list)
    state: State | None = None
    settings: f.Settings | None = None  # of a hand-written trace: the replay begins with a daemon that has these
    named_ticks: bool = False  # the trace holds no ticks of its own: they come when the core wants them
    answered: bool = False  # the trace holds no answers of effects: the replay gives simple ones
    unanswered: frozenset[str] = frozenset()
    bytes_per_s: float = 250e6  # of the link to the store, where the replay answers: 2 Gbit/s
    wall: float | None = None  # Unix time of t = 0, where the trace says it
    decisions: bool = False
    until: float | None = None  # ticks go on until this t, seconds
    about: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def versions(self) -> list[str]:
        """Versions of the daemons that recorded it, as far as it tells."""
        started = [line.observation.fact for line in self.lines if isinstance(line.observation.fact, f.DaemonStarted)]
        return sorted({fact.version for fact in started})


def load(path: Path, incident: int | None = None) -> Trace:
    """The trace in ``path``: a trace file, plain or gzip, or a journal. Raises TraceError."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
    if head.startswith(b"SQLite format 3"):
        return parse(journal_lines(path, incident), f"{path}")
    if incident is not None:
        raise TraceError(f"{path} is a trace already; --incident picks from a journal ({path.parent}/journal.db).")
    try:
        opened = gzip.open if head.startswith(b"\x1f\x8b") else open
        with opened(path, "rb") as file:
            return parse((line.decode("utf-8") for line in file), str(path))
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is neither a trace nor a journal: it is not text in UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read: {error}.") from error


# ---------------------------------------------------------------- reading lines


def parse(lines: Iterable[str], name: str) -> Trace:
    """A trace from its lines. Raises TraceError with the number of the line."""
    trace = Trace(name)
    reader = _Reader(trace)
    for number, text in enumerate(lines, 1):
        if text.strip():
            reader.line(number, text)
    if not reader.begun:
        raise TraceError(f"{name} is empty; its first line has to be {_EXAMPLE}")
    if reader.unread:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(reader.unread.items()))
        trace.notes.append(
            f"Left out, because this version ({__version__}) does not know them: {kinds}. Decisions that hung on them "
            "may differ."
        )
    return trace


_EXAMPLE = f'{{"format": "{FORMAT}", "version": {VERSION}}}'


class _Reader:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.begun = False
        self.unread: dict[str, int] = {}
        self._wall: float | None = None
        self._state: State | None = None
        self._last: float | None = None

    def line(self, number: int, text: str) -> None:
        self._where = f"{self.trace.name}, line {number}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = "is no trace: its first line has to be " + _EXAMPLE
            if self.begun:
                what = f"is no JSON: {error}. If it is the last one, the file was cut off: take that line out."
            raise TraceError(f"{self._where} {what}") from error
        if not isinstance(value, dict):
            raise TraceError(f"{self._where} is no JSON object.")
        if not self.begun:
            self._parse_header(value)
            self.begun = True
        elif "fact" in value:
            self._parse_observation(value)
        elif "decision" in value:
            self._parse_decision(value["decision"])
        elif "state" in value:
            self._state = self._a_state(value["state"])
        else:
            known = '"fact" (an observation), "decision" or "state"'
            raise TraceError(f"{self._where} has none of {known}; see docs/replay.md.")

    def _parse_header(self, value: dict[str, Any]) -> None:
        if value.get("format") != FORMAT:
            raise TraceError(f"{self._where}: this is no trace; the first line has to be {_EXAMPLE}")
        if value.get("version") != VERSION:
            raise TraceError(
                f"{self._where}: version {value.get('version')!r} of the format is not known to rl-supervisor "
                f"{__version__}, which reads version {VERSION}."
            )
        for key, kinds in HEADER.items():
            if key in value and (not isinstance(value[key], kinds) or (kinds is int and value[key] is True)):
                raise TraceError(f"{self._where}: {key!r} has the wrong type ({value[key]!r}); see docs/replay.md.")
        if unknown := sorted(value.keys() - HEADER.keys() - {"made_by", "scenario", "hours", "seed"}):
            self.trace.notes.append(f"{self._where}: {', '.join(unknown)} means nothing to this version.")
        trace = self.trace
        for key, words in (("ticks", ("recorded", "named")), ("effects", ("recorded", "answered"))):
            if value.get(key, words[0]) not in words:
                raise TraceError(f"{self._where}: {key!r} is one of {', '.join(words)}, not {value[key]!r}.")
        trace.named_ticks = value.get("ticks") == "named"
        trace.answered = value.get("effects") == "answered"
        trace.unanswered = frozenset(map(str, value.get("unanswered", ())))
        trace.decisions = value.get("decisions", False)
        trace.until, trace.about = value.get("until"), value.get("about", "")
        trace.expect = value.get("expect", {})
        trace.bytes_per_s = max(1.0, float(value.get("bytes_per_s", trace.bytes_per_s)))
        self._wall = trace.wall = value.get("wall")
        if value.get("state") is not None:
            trace.state = self._a_state(value["state"])
        if "settings" in value:
            settings = {"run_id": "trace", **value["settings"]}
            trace.settings = self._parse_checked(f.Settings, settings)

    def _parse_observation(self, value: dict[str, Any]) -> None:
        fact = value["fact"]
        kind = fact.get("@") if isinstance(fact, dict) else None
        if not isinstance(kind, str):
            raise TraceError(f'{self._where}: a fact is an object with its name under "@"; see docs/replay.md.')
        if kind not in KINDS:
            if kind in CLASSES:
                raise TraceError(f"{self._where}: {kind} is no fact; docs/replay.md lists them.")
            self.unread[kind] = self.unread.get(kind, 0) + 1
            return
        after, attempt = self._parse_number(value, "after"), value.get("attempt")
        if attempt is not None and attempt != "each" and (not isinstance(attempt, int) or isinstance(attempt, bool)):
            raise TraceError(f'{self._where}: "attempt" is a number or "each", not {attempt!r}.')
        if (after is not None or attempt is not None) and not self.trace.answered:
            raise TraceError(
                f'{self._where}: "attempt" and "after" need "effects": "answered" in the first line: only then does '
                "the replay know when an attempt begins and ends."
            )
        if (after is not None) != (attempt is not None and "t" not in value):
            raise TraceError(f'{self._where}: say either "t", or "attempt" together with "after" (seconds).')
        t = self._parse_number(value, "t")
        if t is None and after is None:
            raise TraceError(f'{self._where} lacks "t", the time in seconds.')
        if t is not None:
            if self._last is not None and t < self._last and self._state is None and self.trace.answered:
                raise TraceError(f"{self._where}: t goes back from {self._last:g} to {t:g}; the lines are in order.")
            self._last = t
        wall = self._parse_number(value, "wall")
        if wall is None:
            wall = (self._wall or 0.0) + (t or 0.0)
        observed = f.Observation(t or 0.0, wall, self._parse_checked(KINDS[kind], fact), str(value.get("source", "")))
        decided: tuple[str, ...] | None = () if self.trace.decisions else None
        self.trace.lines.append(Line(observed, decided, self._state, attempt, after))
        self._state = None

    def _parse_decision(self, value: Any) -> None:
        if not self.trace.lines or not isinstance(value, list):
            raise TraceError(f"{self._where}: a decision is a list of actions and follows its observation.")
        self.trace.decisions = True
        last = self.trace.lines[-1]
        self.trace.lines[-1] = Line(last.observation, tuple(_normalize_action(action) for action in value), last.state)

    def _parse_number(self, value: dict[str, Any], key: str) -> float | None:
        found = value.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise TraceError(f"{self._where}: {key!r} is a number of seconds, not {found!r}.")
        return float(found)

    def _a_state(self, value: Any) -> State:
        if value is None:
            return State()
        try:
            found = decode(value)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"{self._where}: the state in it was written by another version and cannot be read ({error}). "
                "Replay it with the version that wrote it, or begin at a later incident."
            ) from error
        if not isinstance(found, State):
            raise TraceError(f"{self._where}: there is no state in it.")
        return found

    def _parse_checked(self, cls: type[Any], value: dict[str, Any]) -> Any:
        if cls is f.Settings:
            value = with_new_names(value)
        elif isinstance(value.get("settings"), dict):
            value = {**value, "settings": with_new_names(value["settings"])}
        for name in _unknown_fields(cls, value):
            note = f"{name} is not known to this version ({__version__}) and is left out."
            if note not in self.trace.notes:
                self.trace.notes.append(note)
        try:
            return _ADAPTERS[cls].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            missing = first["type"] in ("missing", "missing_argument")
            what = "is missing" if missing else f"is not right: {first['msg']}, not {first['input']!r:.80}"
            raise TraceError(f"{self._where}: {cls.__name__}.{where} {what}.") from None


class _Adapters(dict[type[Any], TypeAdapter[Any]]):
    def __missing__(self, cls: type[Any]) -> TypeAdapter[Any]:
        return self.setdefault(cls, TypeAdapter(cls))


_ADAPTERS = _Adapters()


def _unknown_fields(cls: type[Any], value: dict[str, Any]) -> Iterator[str]:
    known = {known.name for known in fields(cls)}
    for key, inner in value.items():
        if key != "@" and key not in known:
            yield f"{cls.__name__}.{key}"
        for item in inner if isinstance(inner, list) else [inner]:
            if isinstance(item, dict) and (other := CLASSES.get(str(item.get("@")))) and is_dataclass(other):
                yield from _unknown_fields(other, item)


def _normalize_action(action: Any) -> str:
    """The text of a recorded action as this version would write it, without the fields that came later."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        found = decode(action)
        if isinstance(found, Action):
            return dump({name: value for name, value in encode(found).items() if name in action})
    return json.dumps(action, separators=(",", ":"))
