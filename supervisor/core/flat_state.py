"""Snapshots from before the state had parts: one flat object of 126 fields. They are read as the parts of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "orders": (
        "Orders",
        {
            "wanted": "wanted",
            "paused": "paused",
            "paused_t": "paused_t",
            "new_config": "new_config",
            "config_changed": "config_changed",
            "override": "override",
            "asked_step": "asked_step",
            "asked_why": "asked_why",
            "left_higher": "left_higher",
        },
    ),
    "attempt": (
        "Attempt",
        {
            "attempt": "number",
            "resume_step": "resume_step",
            "started": "started",
            "pid": "pid",
            "snapshot": "snapshot",
            "began_fresh": "began_fresh",
            "after_stop": "after_stop",
            "stop_reason": "stop_reason",
        },
    ),
    "job": (
        "Job",
        {
            "ended": "ended",
            "processes": "processes",
            "gone": "gone",
            "growth": "growth",
            "efforts": "efforts",
            "work": "work",
            "phases": "phases",
            "explained": "explained",
            "errors": "errors",
            "finishes": "finishes",
            "scratch": "scratch",
        },
    ),
    "gpus": (
        "Gpus",
        {"gpus": "by_uuid", "gpu_reason": "reason", "gpu_unseen_since": "unseen_since", "trouble": "trouble"},
    ),
    "host": (
        "Host",
        {"host": "look", "oom_kills": "oom_kills", "oom_t": "oom_t", "warned": "warned"},
    ),
    "suspicion": (
        "Suspicion",
        {"suspicion": "sentence", "suspect_since": "since"},
    ),
    "books": (
        "Books",
        {"learned": "learned", "ledger": "ledger", "ledgers": "others", "records_t": "records_t"},
    ),
    "disk": (
        "Disk",
        {
            "disk_total": "total",
            "disk_free": "free",
            "disk_reason": "reason",
            "disk_t": "t",
            "prune_nothing_said": "nothing_said",
            "prune_after": "prune_after",
            "prune_t": "prune_t",
            "stale_attempt": "stale_attempt",
            "stale_t": "stale_t",
        },
    ),
    "local": (
        "Local",
        {"local": "steps", "local_reason": "reason", "outdated": "outdated", "survey_asked": "asked"},
    ),
    "store": (
        "Store",
        {
            "store": "steps",
            "store_latest": "latest",
            "store_reason": "reason",
            "store_permanent": "permanent",
            "store_t": "t",
            "prune_store_after": "prune_after",
            "published": "published",
            "quarantined": "quarantined",
            "rolled_back": "rolled_back",
            "damaged": "damaged",
            "doubted": "doubted",
            "verified": "verified",
            "begun": "begun",
            "reading": "reading",
        },
    ),
    "pins": (
        "Pins",
        {
            "pinned": "steps",
            "pin_wishes": "wishes",
            "pins_reason": "reason",
            "held": "held",
            "holds": "holds",
            "holds_read": "holds_read",
            "holds_after": "holds_after",
            "holds_reason": "holds_reason",
        },
    ),
    "lineage": (
        "Lineage",
        {"lineage": "known", "happened": "unwritten", "lineage_after": "after"},
    ),
    "publishing": (
        "Publishing",
        {
            "publish_after": "after",
            "publish_failures": "failures",
            "publish_permanent": "permanent",
            "publish_reason": "reason",
            "publish_held": "held",
            "publish_took_s": "took_s",
        },
    ),
    "recovery": (
        "Recovery",
        {
            "restarts": "restarts",
            "barren": "barren",
            "best_complete": "best_complete",
            "failures": "failures",
            "crashes": "crashes",
            "stepped_back": "stepped_back",
            "waits": "waits",
            "backoff_until": "backoff_until",
            "backoff_outside": "backoff_outside",
            "draws": "draws",
        },
    ),
    "incidents": (
        "Incidents",
        {"incident": "open", "incidents": "closed", "incident_count": "count"},
    ),
    "ending": (
        "Ending",
        {"exit_code": "code", "exit_said": "said"},
    ),
    "observing": (
        "Observing",
        {"spared": "spared", "would": "would"},
    ),
}
"""Part of the state -> its class, and the old field -> the field of that class."""
_OLD_ALONE = frozenset(old for _, fields in PARTS.values() for old in fields) - frozenset(PARTS)


def is_flat(value: Mapping[str, Any]) -> bool:
    """Is this JSON object a state without parts?"""
    return value.get("@") == "State" and not _OLD_ALONE.isdisjoint(value)


def with_parts(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same state with its fields in their parts; a field that was missing stays so, and takes its default."""
    moved = {old for _, fields in PARTS.values() for old in fields}
    found = {key: item for key, item in value.items() if key not in moved}
    for part, (name, fields) in PARTS.items():
        found[part] = {"@": name, **{new: value[old] for old, new in fields.items() if old in value}}
    return found
