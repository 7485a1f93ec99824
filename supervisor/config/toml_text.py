"""Values and keys as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.base.errors import ConfigError

COLUMNS = 118


def value_text(value: object) -> str:
    """A TOML value. Raises ConfigError for text that is not UTF-8, which no TOML file can hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_text(name)} = {value_text(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, Sequence):
        parts = [value_text(part) for part in value]
        line = f"[{', '.join(parts)}]"
        return line if len(line) <= COLUMNS - 20 else "[\n" + _list_on_rows(value, parts) + "]"
    return str(value)


def _list_on_rows(values: Sequence[Any], parts: Sequence[str]) -> str:
    """A list on several lines; a flag and what belongs to it share one."""
    rows: list[str] = []
    for value, part in zip(values, parts, strict=True):
        new = not rows or (isinstance(value, str) and value.startswith("-")) or len(rows[-1]) + len(part) > COLUMNS - 8
        if new:
            rows.append(part)
        else:
            rows[-1] += f", {part}"
    return "".join(f"    {row},\n" for row in rows)


def quote_text(text: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, and DEL is the one that JSON leaves plain."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"The name {text!a} is not UTF-8, which a run file must be: rename it.") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key_text(name: str) -> str:
    """A TOML key, bare where it may be."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else quote_text(name)
