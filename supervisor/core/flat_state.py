"""Snapshots from before the state had parts: one flat object of 126 fields. They are read as the parts of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _fields(same: str, **renamed: str) -> dict[str, str]:
    """Old field to field of the part: those with the same name, and each other one with the name that it had."""
    return {**{name: name for name in same.split()}, **{old: new for new, old in renamed.items()}}


PARTS = {
    "orders": _fields("wanted paused paused_t new_config config_changed override asked_step asked_why left_higher"),
    "attempt": _fields("resume_step started pid snapshot began_fresh after_stop stop_reason", number="attempt"),
    "job": _fields("ended processes gone growth efforts work phases explained errors finishes scratch"),
    "gpus": _fields("trouble", by_uuid="gpus", reason="gpu_reason", unseen_since="gpu_unseen_since"),
    "host": _fields("oom_kills oom_t warned", look="host"),
    "suspicion": _fields("", sentence="suspicion", since="suspect_since"),
    "books": _fields("learned ledger records_t", others="ledgers"),
    "disk": _fields(
        "prune_after prune_t stale_attempt stale_t",
        total="disk_total",
        free="disk_free",
        reason="disk_reason",
        t="disk_t",
        nothing_said="prune_nothing_said",
    ),
    "local": _fields("outdated", steps="local", reason="local_reason", asked="survey_asked"),
    "store": _fields(
        "published quarantined rolled_back damaged doubted verified begun reading",
        steps="store",
        latest="store_latest",
        reason="store_reason",
        permanent="store_permanent",
        t="store_t",
        prune_after="prune_store_after",
    ),
    "pins": _fields(
        "held holds holds_read holds_after holds_reason", steps="pinned", wishes="pin_wishes", reason="pins_reason"
    ),
    "lineage": _fields("", known="lineage", unwritten="happened", after="lineage_after"),
    "publishing": _fields(
        "",
        after="publish_after",
        failures="publish_failures",
        permanent="publish_permanent",
        reason="publish_reason",
        held="publish_held",
        took_s="publish_took_s",
    ),
    "recovery": _fields(
        "restarts barren best_complete failures crashes stepped_back waits backoff_until backoff_outside draws"
    ),
    "incidents": _fields("", open="incident", closed="incidents", count="incident_count"),
    "ending": _fields("", code="exit_code", said="exit_said"),
    "observing": _fields("spared would"),
}
"""Part of the state -> the old field -> the field of that part's class, which is called as the part is."""
_OLD_ALONE = frozenset(old for fields in PARTS.values() for old in fields) - frozenset(PARTS)


def is_flat(value: Mapping[str, Any]) -> bool:
    """Is this JSON object a state without parts?"""
    return value.get("@") == "State" and not _OLD_ALONE.isdisjoint(value)


def with_parts(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same state with its fields in their parts; a field that was missing stays so, and takes its default."""
    moved = {old for fields in PARTS.values() for old in fields}
    found = {key: item for key, item in value.items() if key not in moved}
    for part, fields in PARTS.items():
        found[part] = {"@": part.capitalize(), **{new: value[old] for old, new in fields.items() if old in value}}
    return found
