"""One trace an incident: a span for all of it, and one for each thing that was done about it. Pure.

Ids come from the journal, so the same incident has the same ids however often it is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

WHOLE = "incident"
GIVEN_UP = ("gave-up", "unfit")  # after these no step will close the incident


@dataclass(frozen=True)
class Span:
    """``begin`` and ``end`` in Unix time; ``events``: (Unix time, name, sentence)."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    begin: float
    end: float
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    events: tuple[tuple[float, str, str], ...] = ()
    failed: str = ""  # why; "" for what went well


def is_over(incident: Mapping[str, Any]) -> bool:
    """Will nothing more be told of it? ``incident`` as ``views.incidents`` has it, with its story."""
    return not incident["open"] or any(event["event"] in GIVEN_UP for event in incident["story"])


def trace_incident(run: str, journal: str, incident: Mapping[str, Any]) -> list[Span]:
    """The whole first, then detect, evidence, stop, restore, start, first step: those that took place."""
    seed = f"{journal}/{incident['id']}"
    trace_id, root_id = _make_id(seed, 16), _make_id(f"{seed}/{WHOLE}", 8)
    story = incident["story"]
    events = tuple((float(one["wall"]), str(one["event"]), str(one["sentence"])) for one in story)
    opened = float(incident["opened"])
    end = float(incident["closed"] or max((wall for wall, _, _ in events), default=opened))
    whole = Span(
        WHOLE, trace_id, root_id, None, opened, max(opened, end), _describe(run, incident), events, incident["sentence"]
    )
    parts = []
    for name, begin, until in _list_parts(incident, opened):
        begin = max(begin, opened)
        part_id = _make_id(f"{seed}/{name}", 8)
        parts.append(Span(name, trace_id, part_id, root_id, begin, min(max(begin, until), whole.end)))
    return [whole, *parts]


def _list_parts(incident: Mapping[str, Any], opened: float) -> Iterator[tuple[str, float, float]]:
    """Name, begin and end, in Unix time."""
    noticed = float(incident["noticed"] or opened)
    yield "detect", opened, noticed
    for number, bundle in enumerate(one for one in incident["bundles"] if one["collected"]):
        at = float(bundle["collected"])
        yield f"evidence{f' {number + 1}' if number else ''}", at - float(bundle["seconds"] or 0.0), at
    stopped = _time_of(incident, "stopped-job", "engine")
    if stopped is not None:
        yield "stop", noticed, stopped
    begun = stopped or noticed
    ready = _time_of(incident, "restored") or _time_of(incident, "starting")
    if ready is not None and ready >= begun:
        yield "restore", begun, ready
        begun = ready
    launched = _time_of(incident, "launched")
    if launched is not None and launched >= begun:
        yield "start", begun, launched
        if incident["closed"]:
            yield "first step", launched, float(incident["closed"])


def _time_of(incident: Mapping[str, Any], *names: str) -> float | None:
    """When it was said last, after the verdict."""
    since = float(incident["noticed"] or incident["opened"])
    times = [one["wall"] for one in incident["story"] if one["event"] in names and one["wall"] >= since]
    return float(times[-1]) if times else None


def _describe(run: str, incident: Mapping[str, Any]) -> dict[str, str | int | float]:
    told = {
        "rl_supervisor.run": run,
        "rl_supervisor.incident": incident["id"],
        "rl_supervisor.cause": incident["cause"],
        "rl_supervisor.attempt": incident["attempt"],
        "rl_supervisor.recovered_step": incident.get("recovered_step"),
        "rl_supervisor.root_cause": ", ".join(str(root["name"]) for root in incident["roots"]) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _make_id(seed: str, size: int) -> int:
    """Never 0, which OpenTelemetry takes for no id."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:size], "big") or 1
