"""Ordinary lines with numbers that mean something elsewhere: a port that ends with 404 is no refusal."""

from __future__ import annotations

import re

import pytest

from bench.diagnose import ROLES, lines
from supervisor.core.facts import Role
from supervisor.primerl.logs import SIGNATURES

NUMBERS = (
    *(1, 5, 6, 7, 8, 9, 11, 12, 13, 15, 24, 28, 30, 31, 36, 43, 45, 48, 63, 74, 79, 92, 94, 95, 98, 99, 101, 103, 104),
    *(
        107,
        110,
        111,
        113,
        116,
        119,
        120,
        122,
        126,
        127,
        134,
        137,
        139,
        143,
        154,
        255,
        304,
        401,
        403,
        404,
        405,
        408,
        409,
    ),
    *(413, 422, 429, 500, 502, 503, 504, 524, 529, 700, 709, 719, 804, 999, 1062, 2049, 40404, 54044, 50031, 13799),
)
PATHS = (
    *("v1/chat/completions", "v1/completions", "chat/completions/tokens", "v1/models", "health", "metrics", "liveness"),
    *("pause?mode=keep&clear_cache=false", "resume", "update_weights", "reload_weights", "init_broadcaster"),
    *("load_lora_adapter", "v1/load_lora_adapter", "unload_lora_adapter", "get_world_size", "v1/embeddings"),
)
KINDS: tuple[Role, ...] = ("launcher", "trainer", "orchestrator", "inference", "env", "job")


def ordinary() -> set[str]:
    """Messages of healthy lines, each shape once."""
    found = {f'127.0.0.1:40000 - "POST /{path} HTTP/1.1" 200 OK' for path in PATHS}
    found |= {f'INFO:     10.0.0.4:40000 - "GET /{path} HTTP/1.1" 200 OK' for path in PATHS}
    found |= {f"HTTP Request: POST http://localhost:8000/{path} 'HTTP/1.1 200 OK'" for path in PATHS}
    for role in ROLES:
        shapes = {re.sub(r"\d+", "0", line): line for line in lines(role, 60)}
        found |= set(shapes.values())
    return found


@pytest.mark.parametrize("role", KINDS)
def test_no_number_makes_an_ordinary_line_an_error(role: Role) -> None:
    wrong = []
    for line in ordinary():
        places = [found.span() for found in re.finditer(r"(?<![\d.v])\d+", line) if line[found.end() :][:3] != " OK"]
        for begin, end in places:
            for number in NUMBERS:
                changed = f"{line[:begin]}{number}{line[end:]}"
                known = SIGNATURES.match(role, changed, diagnosing=True)
                if known is not None and not known.quiet:
                    wrong.append((known.name, changed))
    assert not wrong, wrong[:5]
