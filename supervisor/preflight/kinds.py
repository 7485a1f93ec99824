"""Which values a field takes, as pydantic sees it: what it converts by itself is no mistake."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.preflight.finding import join_words
from supervisor.preflight.schema import Field

_TRUTH = {"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"}
"""Texts that pydantic takes for a bool, whatever their case (pydantic 2, "bool" in its conversion table)."""
_INT = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0+)?\s*")

_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
"""A comparison with nan is never true, and pydantic refuses it, too."""
_SAID = {"gt": "more than {}", "ge": "{} or more", "lt": "less than {}", "le": "{} or less"}

_SMALL = 4
"""A table with more keys than these does not mean one of them."""

_NAMES: Mapping[str, str] = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "table": "a table",
}


_PLURALS: Mapping[str, str] = {"str": "texts", "int": "whole numbers", "float": "numbers", "list": "lists"}


def fits(field: Field, value: object) -> bool:
    """Would pydantic take ``value``, or is it not certain that it would not?"""
    kinds = field.kinds
    if "any" in kinds or not kinds or value is None or (value == "None" and "none" in kinds):
        return True
    if isinstance(value, Mapping):
        return "table" in kinds
    if isinstance(value, list):
        tables = bool(field.below) and "table" not in kinds
        elements = Field(field.elements)
        return (
            "list" in kinds
            and not (tables and any(not isinstance(one, Mapping) for one in value))
            and all(fits(elements, one) for one in value)
        )
    if isinstance(value, bool):
        return bool(kinds & {"bool", "int", "float"})
    if isinstance(value, int | float):
        return (
            bool(kinds & {"float"})
            or (bool(kinds & {"int"}) and float(value).is_integer())
            or ("bool" in kinds and value in (0, 1))
        )
    if isinstance(value, str):
        return "str" in kinds or _text_fits(kinds, value)
    return True  # a date: nothing in prime-rl takes one, and nothing is certain


def beyond(field: Field, value: object) -> str:
    """Which number is wanted ("1 or more") where ``value`` is one that pydantic refuses; "" where it is not."""
    if "any" in field.kinds or not all(kind in _COMPARED for kind, _ in field.bounds):
        return ""
    number = _is_number(value) if "str" not in field.kinds or not isinstance(value, str) else None
    if number is None or all(_COMPARED[kind](number, limit) for kind, limit in field.bounds):
        return ""
    parts = [_SAID[kind].format(_value_as_toml(limit)) for kind, limit in field.bounds]
    return " and ".join(parts)


def _is_number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) else None


def _text_fits(kinds: frozenset[str], value: str) -> bool:
    if "bool" in kinds and value.strip().lower() in _TRUTH:
        return True
    if "int" in kinds and _INT.fullmatch(value):
        return True
    return "float" in kinds and _is_number(value) is not None


def describe_field(field: Field) -> str:
    """What a field takes, for people: "a table or "None"", "a whole number"."""
    kinds = field.kinds - ({"int"} if "float" in field.kinds else set())
    names = [name for kind, name in _NAMES.items() if kind in kinds]
    held = "tables" if field.below else _kind_of_elements(field.elements)
    if "list" in kinds and held:
        names = [f"a list of {held}" if name == "a list" else name for name in names]
    if field.choices and "str" in kinds:
        choices = [f'"{choice}"' for choice in field.choices]
        names = [name for name in names if name != "text"] + (choices if len(choices) < 4 else ["text"])
    if "none" in kinds:
        names.append('"None"')
    return join_words(names, "or") or "something else"


def _kind_of_elements(elements: frozenset[str]) -> str:
    """What a list holds, where it is of one kind."""
    kinds = elements - ({"int"} if "float" in elements else set())
    return _PLURALS.get(next(iter(kinds)), "") if len(kinds) == 1 else ""


def describe_value(value: object) -> str:
    """A value as a configuration writes it, not too long."""
    if isinstance(value, Mapping):
        return "{ ... }" if value else "{}"
    if isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        return "[ ... ]"
    text = _value_as_toml(value)
    return text if len(text) <= 60 else f"{text[:50]} ...{text[-4:]}"


def correct_value(value: object, field: Field) -> str | None:
    """The value as it was meant for ``field``, None where that is not certain."""
    kinds = field.kinds
    if isinstance(value, list):
        single = value[0] if len(value) == 1 else None
        if single is not None and fits(field, single):
            return _value_as_toml(single)
        texts = field.elements == {"str"} and not any(isinstance(one, bool | list | Mapping) for one in value)
        return _value_as_toml([str(one) for one in value]) if texts else None
    if isinstance(value, Mapping):
        return None
    if "table" in kinds and not kinds & {"str", "int", "float", "bool"}:
        return _as_table(value, field)
    if "list" in kinds and not field.below and not kinds & {"str", "int", "float", "bool"}:
        parts = [part.strip() for part in value.strip("[] ").split(",")] if isinstance(value, str) else [value]
        numbers = field.elements == {"int"} and all(_INT.fullmatch(part) for part in parts if isinstance(part, str))
        return f"[{', '.join(str(part) if numbers else _value_as_toml(part) for part in parts)}]"
    if "str" in kinds and not isinstance(value, str):
        return _value_as_toml(str(value)) if not isinstance(value, bool) else None
    return None


def _as_table(value: object, field: Field) -> str | None:
    """`ac = "selective"`, `compile = true`: what a table that says the same looks like."""
    if value is True:
        return "{}" if not any(below.required for below in field.below.values()) else None
    if value is False:
        return '"None"' if "none" in field.kinds else None
    if isinstance(value, str):
        for name, below in field.below.items():
            if value in below.choices:
                return f'{{ {name} = "{value}" }}'
    if any(below.required for below in field.below.values()) or len(field.below) > _SMALL:
        return None
    for name, below in field.below.items():
        if isinstance(below.default, int | float) and not isinstance(below.default, bool):
            number = value if isinstance(value, int | float) and fits(below, value) else below.default
            return f"{{ {name} = {_value_as_toml(number)} }}"
    return None


def _value_as_toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_value_as_toml(one) for one in value)}]"
    return str(value)
