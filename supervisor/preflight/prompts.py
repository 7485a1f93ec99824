"""How long prompts are: as an engine counted them in an earlier attempt, as the configuration says, else an assumption.

It cannot be known before a tokenizer has seen the data. What is only assumed is called an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.journal import attempt_logs
from supervisor.journal.attempt_folders import attempts
from supervisor.preflight.reading import sources
from supervisor.preflight.site import Refused
from supervisor.preflight.subject import Subject

MEASURED_WITH_TOOLS = 1300
"""Tokens of a prompt with tool definitions, the smallest that was seen in the measured run (1297 to about 1500)."""
WITHOUT_TOOLS = 256
"""System prompt, question and template."""
BESIDE_SYSTEM = 128
"""A question and the template's own words."""
BYTES_PER_TOKEN = 4
"""Of prose, in the vocabularies of today's models; code and names have fewer."""

LINES = 5000
LATEST_ATTEMPTS = 3
MOST = 1000
_ROLES = {"inference", "orchestrator", "launcher"}
# vLLM's sentences, of 0.10 to 0.15 (entrypoints/openai, serving_engine.py and the renderer's parameters).
_REFUSED = re.compile(
    r"is too large: (?P<asked>\d{1,9})\. This model's maximum context length is (?P<context>\d{1,9}) tokens and your "
    r"request has (?P<prompt>\d{1,9}) input tokens"
    r"|maximum context length is (?P<context2>\d{1,9}) tokens\. However, you requested \d{1,9} tokens "
    r"\((?P<prompt2>\d{1,9}) in the messages, (?P<asked2>\d{1,9}) in the completion\)"
)
_LIMIT = re.compile(r"max_(?:prompt|input)_tokens|(?:prompt|input)_max_tokens")
_DEEPEST = 20


class Prompt(NamedTuple):
    """Tokens that a prompt may need, and a clause that says how that is known."""

    tokens: int
    told: str


def prompt(subject: Subject, *, tools: bool) -> Prompt:
    """What a training prompt may need, by the best that is known. ``tools``: are their definitions a part of it?"""
    if seen := max(subject.site.refused, key=lambda one: one.prompt, default=None):
        told = f"the engine counted {seen.prompt} tokens in a prompt of an earlier attempt ({seen.log})"
        return Prompt(seen.prompt, told)
    said = list(_lengths_in_configuration(subject))
    limits = [
        (value, name) for name, value in said if _LIMIT.fullmatch(name.rpartition(".")[2]) and _whole_number(value)
    ]
    if limits:
        most, name = max(limits)
        return Prompt(most, f"{name} allows prompts of {most} tokens")
    assumed = MEASURED_WITH_TOOLS if tools else WITHOUT_TOOLS
    texts = [value for name, value in said if name.endswith(".system_prompt") and isinstance(value, str)]
    longest = max(texts, key=len, default="")
    about = len(longest.encode("utf-8", "replace")) // BYTES_PER_TOKEN
    if about + BESIDE_SYSTEM > assumed:
        told = f"its system prompt of {len(longest)} characters alone has an estimated {about}"
        return Prompt(about + BESIDE_SYSTEM, told)
    what = "one with tools had 1297 in a measured run" if tools else f"{WITHOUT_TOOLS} are assumed to be needed"
    return Prompt(assumed, f"{what}; how long these are is not known here")


def refused_before(subject: Subject, asked: int, context: int) -> Refused | None:
    """A request that an engine refused with these very numbers."""
    return next((one for one in subject.site.refused if (one.asked, one.context) == (asked, context)), None)


def _lengths_in_configuration(subject: Subject) -> Iterator[tuple[str, Any]]:
    """What stands below the environments, each with its dotted name."""
    for place, source in sources(subject):
        yield from _walk_below(".".join(part for part in place if isinstance(part, str)), source, 0)


def _walk_below(name: str, node: object, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and depth < _DEEPEST:
        for key, value in node.items():
            yield from _walk_below(f"{name}.{key}", value, depth + 1)
    else:
        yield name, node


def _whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# ---------------------------------------------------------------- earlier attempts


def find_refused_prompts(state_dir: Path | None, own: Sequence[Path]) -> tuple[Refused, ...]:
    """Requests that did not fit, by the ends of the logs of the last attempts; else of the job's ``own`` files."""
    if state_dir is not None:
        for number in reversed(attempts(state_dir)[-LATEST_ATTEMPTS:]):
            logs = [one for one in attempt_logs.logs_of(state_dir, number) if one.role in _ROLES]
            lines = ((str(one.pieces[-1]), attempt_logs.last_lines(one.pieces, LINES)) for one in logs)
            if found := _refused_lengths(lines):
                return found
    return _refused_lengths(_read_logs(own))


def _read_logs(paths: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    for path in paths:
        with suppress(OSError):
            if path.is_file():  # a FIFO would be read for ever
                yield str(path), attempt_logs.last_lines((path,), LINES)


def _refused_lengths(logs: Iterable[tuple[str, list[str]]]) -> tuple[Refused, ...]:
    found: dict[tuple[int, int, int], Refused] = {}
    for name, lines in logs:
        for match in (match for line in lines for match in _REFUSED.finditer(line)):
            prompt, asked, context = (int(match[one] or match[f"{one}2"]) for one in ("prompt", "asked", "context"))
            found.setdefault((prompt, asked, context), Refused(prompt, asked, context, name))
            if len(found) >= MOST:
                return tuple(found.values())
    return tuple(found.values())
