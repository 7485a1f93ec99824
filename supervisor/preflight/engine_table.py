"""Settings that prime-rl hands on to vLLM unseen: a misspelt one is dropped without a word."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Check, Subject

TABLES = ("inference.vllm", "inference.vllm_extra")
ALIKE = 0.88


@cache
def load_known_arguments() -> frozenset[str]:
    """Arguments of vLLM's engine and server, from ``vllm_settings.toml``."""
    text = Path(__file__).with_name("vllm_settings.toml").read_text(encoding="utf-8")
    return frozenset(tomllib.loads(text)["names"])


def misspelt(subject: Subject) -> Iterator[Finding]:
    """Names in the tables for vLLM that are almost, but not quite, one of its arguments."""
    for table in TABLES:
        settings = subject.settings.get(table)
        if subject.kind != "rl" or not isinstance(settings, Mapping):
            continue
        field = subject.schema.get(table) if subject.schema is not None else None
        names = {*load_known_arguments(), *(field.below if field else ())}
        for key in settings:
            name = str(key).replace("-", "_")
            near = difflib.get_close_matches(name, names, 1, ALIKE) if name not in names else []
            if near:
                told = f"{table}.{key} is no setting of vLLM that is known here: did you mean {near[0]}?"
                where = subject.where(f"{table}.{key}")
                yield Finding("engine-setting-misspelt", told, where, f"Write it as: {near[0]}")


CHECKS: tuple[Check, ...] = (misspelt,)
