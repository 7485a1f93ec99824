"""How checks ask for settings: the first spelling that is set, with its path, and what an era certainly has.

prime-rl renamed most of its settings at least once. A check names all spellings, the newest first; only one of them is
known to a given version, and whether that is the right one is the business of ``keys``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Any, NamedTuple, TypeGuard

from supervisor.preflight.subject import Subject

LORA = ("trainer.model.lora", "trainer.model.experimental.lora")
"""Where the adapter is configured; until 2025-12-17 (e25953539) under `experimental`."""
_LORA_OF_SFT = tuple(path.removeprefix("trainer.") for path in LORA)
ANY_LORA = (*LORA, *_LORA_OF_SFT)
"""The same for `rl` and `sft`."""
ANY_MODEL = ("model.name", "trainer.model.name", "orchestrator.model.name", "inference.model.name", "model")
"""Where any of the trainers' configurations names its model."""

TENSOR = ("inference.vllm.tensor_parallel_size", "inference.parallel.tp")  # d1046b876, 2026-08-08
DATA = ("inference.vllm.data_parallel_size", "inference.parallel.dp")

_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")


class Set(NamedTuple):
    """A setting that a person made."""

    path: str
    value: Any


class Number(NamedTuple):
    """A whole number that a person set."""

    path: str
    value: int


def first(subject: Subject, *paths: str) -> Set | None:
    """The first of ``paths`` that is set to something; None where all have their defaults."""
    for path in paths:
        value = subject.settings.get(path)
        if value is not None and subject.counts(path):
            return Set(path, value)
    return None


def number(subject: Subject, *paths: str) -> Number | None:
    """The first of ``paths`` that is set, if it is a whole number, or what pydantic makes one of: "10" and 10.0."""
    found = first(subject, *paths)
    if found is None or isinstance(found.value, bool):
        return None
    value = found.value
    if (isinstance(value, str) and _DIGITS.fullmatch(value.strip())) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    return Number(found.path, value) if isinstance(value, int) else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Is it a number, and no truth value?"""
    return isinstance(value, int | float) and not isinstance(value, bool)


def degree(subject: Subject, *paths: str) -> int:
    """A degree of parallelism: what is set, 1 where nothing (or nothing sensible) is."""
    found = number(subject, *paths)
    return found.value if found and found.value > 0 else 1


def switched_on(subject: Subject, *paths: str) -> str:
    """The first of ``paths`` that says true, "" where none does."""
    return next((path for path in paths if subject.settings.is_on(path)), "")


def lora(subject: Subject) -> str:
    """The path of the adapter's table, "" where none is trained."""
    paths = LORA if subject.kind == "rl" else _LORA_OF_SFT
    return next((path for path in paths if subject.settings.has(path)), "")


def of_trainer(subject: Subject, key: str) -> str:
    """``key`` of the trainer: `sft` has no table [trainer], it is the trainer."""
    return f"trainer.{key}" if subject.kind == "rl" else key


def elsewhere(subject: Subject) -> bool:
    """Is it no run of this pod alone? Then its plan says nothing of it."""
    types = (subject.settings.get("deployment.type"), subject.settings.get("inference.deployment.type"))
    return subject.is_submitted or bool({"multi_node", "disaggregated"} & {str(one) for one in types})


def sources(subject: Subject) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The environments that are trained in, each with its place in the tree."""
    for path in ("orchestrator.train.source", "orchestrator.train.env", "orchestrator.env", "orchestrator.environment"):
        value = subject.settings.get(path) if subject.counts(path) else None
        parts: tuple[str | int, ...] = tuple(path.split("."))
        if isinstance(value, list):
            yield from (((*parts, index), one) for index, one in enumerate(value))
        elif isinstance(value, dict):
            yield parts, value


def overlay(subject: Subject) -> bool:
    """Is it one file that is laid over another, which is not looked at? It has no trainer and nothing to train in."""
    bare = next(sources(subject), None) is None and not subject.settings.has("trainer")
    return subject.run_file is None and subject.kind == "rl" and bare


def has(subject: Subject, day: date, marker: str = "") -> bool | None:
    """Has the installed prime-rl what came on ``day``? None where that cannot be told.

    ``marker``: a key that came on that day or shortly before. A version without it certainly has not what came then.
    """
    if subject.dialect is None:
        return None
    if subject.as_of is not None:
        return subject.as_of >= day
    since, before = subject.dialect.period()
    if since >= day:
        return True
    if before is not None and before <= day:
        return False
    if marker and subject.schema is not None and subject.schema.exact and subject.schema.get(marker) is None:
        return False
    return None
