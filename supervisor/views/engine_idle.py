"""How long the engine had no request while rollouts were out: they waited for their tools and environments.

Computed from what the journal still has of this machine, about the last day. Only time between two looks counts in
which the engine's counters stood still with no request at both, and the orchestrator gathered rollouts all along: what
it waits for at the barrier, in an evaluation or for new weights is not the tools' time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.journal import archive
from supervisor.journal.journal import open_read_only

LONGEST_GAP_S = 60.0  # between two looks; of a longer one nothing is known
TOLD_S = 60.0  # an older count of rollouts says nothing of now
UPDATE_S = 60.0  # for new weights the engine rests; not each era tells when they have come
_ENDS = frozenset({"DaemonStarted", "AttemptStarted", "AttemptStopped", "ComponentExited"})
_READ = tuple(f'"fact":{{"@":"{name}"' for name in (*_ENDS, "EngineLook", "WorkSeen", "PhaseSeen", "StepDone"))


class EngineIdle(NamedTuple):
    """``idle_s`` of the ``seen_s`` seconds in which the engine's requests were counted."""

    idle_s: float
    seen_s: float


def measure_idle(journal: Path) -> EngineIdle | None:
    """None where nothing is known: no journal, no counters, or an orchestrator that tells of no rollouts."""
    try:
        with closing(open_read_only(journal)) as db:
            return add_up(line for piece in archive.pieces(db) for line in piece.lines.splitlines())
    except (OSError, sqlite3.Error, ValueError):
        return None


def add_up(lines: Iterable[str]) -> EngineIdle | None:
    """The same from the lines of a trace."""
    idle = seen = 0.0
    last: tuple[float, dict[str, Any]] | None = None
    since: float | None = None  # since when rollouts are gathered; in the future where weights are on their way
    told_t, is_told, is_held = -TOLD_S, False, False
    for line in lines:
        if not any(name in line for name in _READ):
            continue
        record = json.loads(line)
        t = float(record["t"])
        match record["fact"]:
            case {"@": "EngineLook", "host": host} if host:
                continue  # of several engines, one may be idle at any time
            case {"@": "EngineLook", "running": int() | float(), "waiting": int() | float()} as look:
                if last is not None and t - last[0] <= LONGEST_GAP_S:
                    seen += t - last[0]
                    if since is not None and since <= last[0] and _is_idle(last[1], look):
                        idle += t - last[0]
                last = t, look
            case {"@": "EngineLook"}:
                last = None
            case {"@": "PhaseSeen", "role": "orchestrator", "phase": "rollouts"}:
                is_told, is_held, since = True, False, t if since is None or since > t else since
            case {"@": "PhaseSeen", "role": "orchestrator", "phase": phase}:
                is_held = phase not in ("weight-update", "startup")
                since = t + UPDATE_S if phase == "weight-update" and since is not None else None
            case {"@": "WorkSeen", "inflight": inflight}:
                is_told, told_t = True, t
                since = None if not inflight else t if since is None and not is_held else since
            case {"@": "StepDone", "role": "orchestrator"} if t - told_t >= TOLD_S:
                since = None
            case {"@": name} if name in _ENDS:
                last = since = None
    return EngineIdle(idle, seen) if is_told and seen else None


def _is_idle(before: dict[str, Any], now: dict[str, Any]) -> bool:
    counts = [(before.get(name), now.get(name)) for name in ("iterations", "generation_tokens")]
    known = any(old is not None and new is not None for old, new in counts)
    return (
        known
        and all(old == new for old, new in counts)
        and not any(look[name] for look in (before, now) for name in ("running", "waiting"))
    )
