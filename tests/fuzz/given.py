"""What strangers may write: texts, numbers, JSON, and bytes that were damaged on their way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

TEXTS = (
    "", "\0", "\x1b[31m", "\x1b[", "\r", "\n", "\x85", "\u2028", "\ufeff", "\ud800", "\udcff", "٣", "²", "𝟗", "०",
    "..", "../../etc/passwd", "/etc/passwd", "a/../b", "a//b", ".", "a" * 300, "é" * 200, "é" * 2000, "CON", "{", "}",
    "%s%n", "$(touch HACKED)", "`id`", "'; DROP TABLE x; --", "nan", "Infinity", "1e999", "-1", "null", "true", "@",
)  # fmt: skip
NUMBERS: tuple[int | float, ...] = (
    0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, -(10**400), 0.5, -0.0, 1e308, -1e308, 5e-324,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
PUMPS = (" ", "\t", "a", "0", "9", ".", "-", "[", "]", "(", ")", "|", ":", "/", "\\", '"', "'", "\x1b", "\x1b[0m", "٣")

texts = st.sampled_from(TEXTS) | st.text(max_size=60)
numbers = st.sampled_from(NUMBERS) | st.integers() | st.floats()
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | numbers | texts
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
junk = (
    st.binary(max_size=200)
    | st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000, b"\xff\xfe\0", b"\xef\xbb\xbf{}", b"null"])
    | values.map(lambda value: dumped(value))
)


def dumped(value: Any) -> bytes:
    """JSON as Python writes it, with NaN and lone surrogates: a stranger's writer need not be strict."""
    return json.dumps(value).encode()


@st.composite
def altered(draw: st.DrawFn, whole: Any) -> Any:
    """The JSON value ``whole`` with one to three of its parts changed, taken out or put in."""
    value = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(1, 3))):
        value = _alter(draw, value)
    return value


def _alter(draw: st.DrawFn, value: Any) -> Any:
    """Goes down to some depth, and does something there."""
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        what = draw(st.sampled_from(["deeper", "deeper", "other", "gone", "more"]))
        if what == "deeper":
            return {**value, key: _alter(draw, value[key])}
        if what == "other":
            return {**value, key: draw(values)}
        if what == "more":
            return {**value, draw(texts): draw(values)}
        return {name: inner for name, inner in value.items() if name != key}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        what = draw(st.sampled_from(["deeper", "gone", "twice"]))
        middle = {"deeper": lambda: [_alter(draw, value[at])], "gone": list, "twice": lambda: [value[at]] * 2}[what]()
        return [*value[:at], *middle, *value[at + 1 :]]
    return draw(values)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes | Sequence[bytes]) -> bytes:
    """Bytes with some of them changed, cut out, doubled or put in."""
    data = whole if isinstance(whole, bytes) else draw(st.sampled_from(whole))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(1, 16))
        what = draw(st.sampled_from(["change", "cut", "end", "double", "insert"]))
        if what == "change":
            data = data[:at] + draw(st.binary(min_size=size, max_size=size)) + data[at + size :]
        elif what == "cut":
            data = data[:at] + data[at + size :]
        elif what == "end":
            data = data[:at]
        elif what == "double":
            data = data[: at + size] + data[at:]
        else:
            data = data[:at] + draw(st.binary(max_size=size) | junk.filter(lambda one: len(one) < 5000)) + data[at:]
    return data
