"""What a provider's answer holds, read without trust: a field may be missing, null, negative, or text for a number.

Unknown is never zero: it is None for a number and "" for a text.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

from supervisor.base.secrets import mask_secrets

Row = dict[str, Any]


def read_object(text: str) -> Row | None:
    """The JSON object that ``text`` is; None where it is none."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("Row", answer) if isinstance(answer, dict) else None


def read_number(value: object) -> float | None:
    """A finite number, also one that is written as text; one next to zero is zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return number if abs(number) >= 1e-9 else 0.0


def read_amount(value: object) -> float | None:
    """What cannot be negative: a price, a size."""
    number = read_number(value)
    return number if number is not None and number >= 0 else None


def read_id(value: object) -> str:
    """A whole number above 0 as text; "" where it is none."""
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return text if text.isascii() and text.isdigit() and text.strip("0") else ""


def read_text(value: object, secret: str = "") -> str:
    """One printable line of at most 200 characters, without ``secret``; "" where it is no text."""
    text = value if isinstance(value, str) else ""
    if secret:
        text = mask_secrets(text.replace(secret, "***"))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
