"""Facts, actions and state to JSON values and back. Dataclasses carry their name under "@"; tuples become lists."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from supervisor.core import actions, facts, goodput, pace, records, repeats, state, training_health
from supervisor.core.flat_state import is_flat, with_parts
from supervisor.core.settings import with_new_names


def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (facts, actions, state, records, goodput, training_health, pace, repeats):
        for name, value in vars(module).items():
            is_ours = isinstance(value, type) and is_dataclass(value)
            if is_ours and found.setdefault(name, value) is not value:
                raise TypeError(f"Two classes of the core are called {name}: one would be written as the other.")
    return found


CLASSES = _classes()
_FIELDS = {name: tuple(field.name for field in fields(cls)) for name, cls in CLASSES.items()}


def encode(value: Any) -> Any:
    """A JSON value (dicts, lists, strings, numbers, None) for a dataclass of the core or a container of them."""
    name = type(value).__name__
    if name in _FIELDS and is_dataclass(value):
        return {"@": name, **{field: encode(getattr(value, field)) for field in _FIELDS[name]}}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(value: Any) -> Any:
    """The inverse of ``encode``. Unknown fields (of another version) are left out, missing ones take their default.

    Raises KeyError for an unknown class and TypeError for a missing field without default.
    """
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if isinstance(value, dict):
        if "@" in value:
            if is_flat(value):
                value = with_parts(value)
            elif value["@"] == "Settings":
                value = with_new_names(value)
            known = _FIELDS[value["@"]]
            return CLASSES[value["@"]](**{key: decode(item) for key, item in value.items() if key in known})
        return {key: decode(item) for key, item in value.items()}
    if value != value:  # noqa: PLR0124 - one NaN for all, so that a decoded fact equals the one that was encoded
        return math.nan
    return value
