"""Which modules write which part of the state. Fewer is better: a part that one module writes can be read there alone.

The table may only shrink. A new writer fails here: let it ask the module that owns the part, or give the part a method.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

from supervisor.core import state
from supervisor.core.state import State

CORE = Path(state.__file__).parent
WRITERS = {
    "attempt": "adoption journal_lost leaving moves observe observed orders own_engine policy reactions step_done",
    "books": "decide observe observe_engine observe_job observe_steps step_done upkeep",
    "began": "observe",
    "busy": "under_way",
    "calm_until": "decide",
    "disk": "observe observe_steps upkeep",
    "ending": "leaving moves observed orders reactions upkeep",
    "engine": "adoption observe observe_engine observe_job",
    "engines": "observe observe_engine",
    "fence": "fencing leaving observe",
    "gpus": "observe observe_job",
    "host": "observe_job warnings",
    "incidents": "journal_lost moves observed reactions",
    "job": "adoption observe observe_job observe_steps policy reactions step_done",
    "machines": "machines observe",
    "journal": "observe",
    "leave": "leaving observe upkeep",
    "left": "adoption observe",
    "lineage": "fencing moves observe_steps waking",
    "local": "journal_lost leaving moves observe observe_steps policy reactions tier waking",
    "mode": "moves",
    "now": "observe",
    "observing": "observe observed policy step_done",
    "orders": "journal_lost moves observe observed orders policy reactions",
    "own": "moves observe observe_job own_engine policy upkeep",
    "pace": "step_done",
    "pins": "fencing observe observe_steps pinned_steps",
    "progress": "adoption observe observe_job observed orders",
    "publishing": "fencing leaving observe observe_steps reactions waking",
    "recovery": "moves observe_steps policy reactions recurring waking",
    "reminder": "reminders",
    "said": "decide",
    "settings": "journal_lost observe",
    "setup": "observe",
    "setup_pending": "observe",
    "since": "moves",
    "since_wall": "moves",
    "store": "fencing leaving moves observe observe_steps policy reactions",
    "suspicion": "observe policy",
    "tier": "observe tier",
    "wall": "observe",
    "why": "moves upkeep",
    "worth": "observe_steps pinned_steps policy step_done",
}
COPIES = ("replace", "settle")


def writers() -> dict[str, set[str]]:
    parts = {field.name for field in fields(State)}
    found: dict[str, set[str]] = defaultdict(set)
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COPIES):
                continue
            if node.args and _is_state(node.args[0]):
                for keyword in node.keywords:
                    if keyword.arg in parts:
                        found[keyword.arg].add(path.stem)
    return found


def _is_state(value: ast.expr) -> bool:
    """A name that the core gives to states, or a function of one: ``enter(state, ...)``."""
    if isinstance(value, ast.Call):
        return bool(value.args) and _is_state(value.args[0])
    return isinstance(value, ast.Name) and value.id in ("state", "seen", "before", "after")


def test_no_part_of_the_state_gets_one_more_writer_and_the_table_is_true() -> None:
    assert {part: " ".join(sorted(modules)) for part, modules in sorted(writers().items())} == WRITERS


def test_every_part_of_the_state_is_written_somewhere() -> None:
    assert {field.name for field in fields(State)} == set(WRITERS)
