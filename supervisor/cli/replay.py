"""``rl-supervisor replay`` and ``trace``: what is decided on recorded observations, and how to take them along."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.words import span
from supervisor.journal import trace, trace_lines
from supervisor.journal.replay_trace import Change, Turn, replay

SHOWN = 400  # characters of one line
RECORD = 200  # characters of one value in it


def replay_file(file: Path, *, config: Path | None, incident: int | None, as_json: bool, every: bool) -> int:
    """Print the decisions on a trace or journal; 1 when they are not those that were recorded. Raises TraceError."""
    source = trace.load(file, incident)
    change = _change_settings(config) if config is not None else None
    for note in _notes_of_source(source):
        print(json.dumps({"note": note}) if as_json else f"note: {note}")
    seen = _Seen()
    for turn in replay(source, change):
        seen.count(turn)
        if not as_json:
            _print_turn(turn, seen, every=every)
        elif every or turn.actions or turn.differs or turn.instead:
            print(json.dumps(_turn_as_json(turn, seen.first), separators=(",", ":")))
    verdict = seen.verdict(source, config)
    if as_json:
        found = {"observations": seen.observations, "decisions": seen.decisions, "counterfactual": seen.apart}
        same = None if config is not None or not source.decisions else seen.differs is None
        print(json.dumps({"summary": verdict, **found, "same": same}))
    else:
        print(verdict)
    return 1 if seen.differs else 0


def export(file: Path, *, incident: int | None, output: Path | None) -> int:
    """Write a journal's trace; to standard output without a file."""
    journal = _journal_of(file)
    told = trace_lines.export(journal, incident, output)
    if output is None:
        sys.stdout.write(told)
    else:
        print(told)
    return 0


def _journal_of(path: Path) -> Path:
    """The journal itself, or that of a run file."""
    if path.suffix != ".toml":
        return path
    from supervisor.config.run_file import load

    journal = load(path).state_dir / "journal.db"
    if not journal.exists():
        raise trace_lines.TraceError(f"The run of {path} has no journal yet ({journal}).")
    return journal


def _change_settings(config: Path) -> Change:
    from supervisor.config.core_settings import under
    from supervisor.config.run_file import load

    run_file = load(config)
    return lambda settings: under(run_file, settings) if settings.run_id else settings


def _notes_of_source(source: trace.Trace) -> Iterator[str]:
    yield from source.notes
    others = [version for version in source.versions if version != __version__]
    if source.decisions and others:
        yield f"Recorded by version {', '.join(others)}; this is {__version__}, which may decide otherwise."


class _Seen:
    """What a replay came to so far."""

    def __init__(self) -> None:
        self.observations = self.decisions = self.apart = self.different = 0
        self.first = self.last = 0.0
        self.different_world = False
        self.differs: Turn | None = None

    def count(self, turn: Turn) -> None:
        self.last = turn.observation.t
        if not self.observations:
            self.first = self.last
        self.observations += 1
        self.decisions += bool(turn.actions)
        self.different_world = self.different_world or turn.counterfactual
        self.apart += bool(turn.actions and turn.counterfactual)
        if turn.differs:
            self.differs = self.differs or turn
            self.different += 1

    def verdict(self, source: trace.Trace, config: Path | None) -> str:
        seen = f"{self.observations} observations over {span(self.last - self.first)}, "
        seen += f"{self.decisions} with decisions"
        if config is not None:
            if not self.different_world:
                return f"{seen}; under {config} the run would have been the same."
            return (
                f"{seen}, of these {self.apart} counterfactual: under {config} another action was taken, and what "
                "really followed is not what would have followed."
            )
        if not source.decisions:
            return f"{seen}; the trace does not say what was decided then."
        if self.differs is None:
            return f"{seen}; the same as recorded."
        return f"{seen}; {self.different} are not as recorded."


def _print_turn(turn: Turn, seen: _Seen, *, every: bool) -> None:
    if turn.instead:
        print(f"-- from here on counterfactual; under the settings of the recording {turn.instead} --")
    when = _time_of_turn(turn, seen.first)
    mark = "  counterfactual" if turn.counterfactual else ""
    if every:
        print(f"{when}{mark}  saw    {_shorten_value(turn.observation.fact)}")
    for action in turn.actions:
        print(f"{when}{mark}  {_action_in_words(action)}")
    if turn is seen.differs:
        print("-- first difference: recorded was --")
        for text in turn.recorded or ():
            print(f"{when}  {_recorded_action(text)}")
        print("-- end of what was recorded --" if turn.recorded else "-- nothing --")


def _turn_as_json(turn: Turn, first: float) -> dict[str, Any]:
    seen = turn.observation
    value: dict[str, Any] = {
        "t": seen.t,
        "wall": seen.wall,
        "seconds": round(seen.t - first, 3),
        "source": seen.source,
        "fact": encode(seen.fact),
        "mode": turn.mode,
        "actions": encode(turn.actions),
        "counterfactual": turn.counterfactual,
    }
    if turn.instead:
        value["instead"] = turn.instead
    if turn.differs:
        value["recorded"] = [json.loads(text) for text in turn.recorded or ()]
    return value


def _time_of_turn(turn: Turn, first: float) -> str:
    try:
        wall = datetime.fromtimestamp(turn.observation.wall, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        wall = f"{turn.observation.wall:.0f}"
    return f"{wall} {turn.observation.t - first:+11.1f} s"


def _action_in_words(action: a.Action) -> str:
    if isinstance(action, a.Say):
        return f"{action.level:<7} {action.event}: {action.sentence}"
    return f"action  {_shorten_value(action)}"


def _recorded_action(text: str) -> str:
    value = json.loads(text)
    if value.get("@") == "Say":
        return f"{value.get('level', ''):<7} {value.get('event')}: {value.get('sentence')}"
    return f"action  {text}"


def _value_as_python(item: object) -> str:
    """A value as it is written in Python; of a large record only its name."""
    text = repr(item)
    return text if isinstance(item, str) or len(text) <= RECORD else f"{type(item).__name__}(…)"


def _shorten_value(value: f.Fact | a.Action) -> str:
    words = [
        f"{key}={_value_as_python(item)}" for key, item in vars(value).items() if item not in (None, "", (), False)
    ]
    text = f"{type(value).__name__}({', '.join(words)})"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
