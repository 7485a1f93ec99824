"""Reads a request to the transfer child, by the types of its verb's class (``checkpoints.verbs``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from supervisor.base.errors import StoreError
from supervisor.checkpoints.verbs import VERBS, Request, StorePlace

T = TypeVar("T")


def read_request(values: object) -> Request:
    """A request from JSON. Raises StoreError of kind "permanent": what is wrong in it is our own mistake."""
    if not isinstance(values, dict):
        raise StoreError("permanent", "the request is no JSON object")
    do = values.get("do")
    if do not in VERBS:
        raise StoreError("permanent", f"the request asks for {do!r}, which is none of {', '.join(VERBS)}")
    run_id, store = values.get("run_id"), values.get("store")
    if not isinstance(run_id, str) or not isinstance(store, dict):
        raise _wrong("store" if isinstance(run_id, str) else "run_id")
    return Request(run_id, _read_fields(StorePlace, store), _read_fields(VERBS[do].as_dataclass(), values))


def _read_fields(kind: type[T], values: Mapping[str, object]) -> T:
    hints, taken = get_type_hints(kind), {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            taken[field.name] = values[field.name]
            if not _fits(values[field.name], hints[field.name]):
                raise _wrong(field.name)
        elif field.default is MISSING:
            raise _wrong(field.name)
    return kind(**taken)


def _fits(value: object, kind: Any) -> bool:
    """Is the JSON value of that type? A whole number is a float, too; a bool is no number."""
    inner = get_args(kind)
    if kind in (object, Any):
        return True
    if get_origin(kind) is UnionType:
        return any(_fits(value, one) for one in inner)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if inner:
        return isinstance(value, dict) and all(_fits(one, inner[1]) for one in value.values())
    return isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)


def _wrong(field: str) -> StoreError:
    return StoreError("permanent", f"the request's field {field!r} is missing or of a wrong type")
