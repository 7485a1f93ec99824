"""Findings as text for people: short enough for a terminal of 80 columns over ssh, the worst first."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence

from supervisor.base.errors import UsageError
from supervisor.cli.render import Paint, safe
from supervisor.preflight.finding import SEVERITIES, Finding, Rule, rules
from supervisor.preflight.gate import beaten

WIDEST = 100
_KINDS = {"error": "gave-up", "warning": "warning", "note": ""}


def width() -> int | None:
    """Columns to wrap at; None where no terminal reads it: a file is searched by whole sentences."""
    return min(WIDEST, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else None


def lines(
    found: Iterable[Finding], overruled: Collection[str] = (), *, brief: bool = False, paint: Paint, columns: int | None
) -> list[str]:
    """All of them, as they come: a head with severity and id, the place, the sentence, why it matters, what helps.

    Why is said with the first of an id: the fifth misspelt key matters for the same reason.
    """
    text: list[str] = []
    reasons: set[str] = set()
    for one in found:
        word, kind = ("overruled", "warning") if beaten(one, overruled) else (one.weight, _KINDS[one.weight])
        head = f"{paint(word, kind)}  {one.id}"
        if brief:
            text.append(f"{head}  {_place_in_words(one)}: {safe(one.sentence)}")
            continue
        text += ["", head, *_wrap_text(_place_in_words(one), "  ", columns), *_wrap_text(one.sentence, "  ", columns)]
        if one.id not in reasons:
            text += _wrap_text(f"Why: {one.rule.why}", "  ", columns, hang="       ")
            reasons.add(one.id)
        text += _wrap_text(f"Do:  {one.remedy or one.rule.remedy}", "  ", columns, hang="       ")
    return text


def _place_in_words(one: Finding) -> str:
    where = one.where
    if not where.file:
        return where.key or "this machine"
    file = f"{_short_path(where.file)}:{where.line}" if where.line else _short_path(where.file)
    return f"{file} {where.key}".rstrip()


def _short_path(file: str) -> str:
    """The path from here, for what lies below."""
    try:
        near = os.path.relpath(file)
    except (OSError, ValueError):  # no working directory any more
        return file
    return near if len(near) < len(file) and not near.startswith("..") else file


def _wrap_text(text: str, indent: str, columns: int | None, *, hang: str | None = None) -> list[str]:
    text = safe(text)
    if columns is None:
        return [indent + text]
    hang = indent if hang is None else hang
    wrapped = textwrap.wrap(
        text, columns, initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )
    return wrapped or [indent]


def count(found: Sequence[Finding], overruled: Collection[str] = ()) -> str:
    """``2 errors, 1 warning``; "" where there is nothing but notes."""
    numbers = dict.fromkeys(SEVERITIES, 0)
    without = 0
    for one in found:
        if beaten(one, overruled):
            without += 1
        else:
            numbers[one.weight] += 1
    told = [f"{number} {name}{'s' if number > 1 else ''}" for name, number in numbers.items() if number]
    if without:
        told.append(f"{without} overruled")
    return ", ".join(told)


def explain_finding(name: str, *, columns: int | None) -> list[str]:
    """What an id means. Raises UsageError for an unknown one, with the nearest."""
    rule = find_rule(name)
    text = [f"{rule.id} ({rule.severity}): {rule.title}."]
    text += _wrap_text(f"Why:    {rule.why}", "  ", columns, hang=" " * 10)
    text += _wrap_text(f"Do:     {rule.remedy}", "  ", columns, hang=" " * 10)
    text += _wrap_text(f"Source: {rule.source}", "  ", columns, hang=" " * 10)
    return text


def find_rule(name: str) -> Rule:
    """The rule of this id. Raises UsageError with the nearest known one."""
    rule = rules().get(name)
    if rule is None:
        near = difflib.get_close_matches(name, rules(), 3, 0.5)
        hint = f": did you mean {' or '.join(near)}?" if near else ". `rl-supervisor check` shows the ids."
        raise UsageError(f"There is no finding {name!r}{hint}")
    return rule
