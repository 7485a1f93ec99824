"""No expression takes longer than in proportion to a line that was made for it: each is tried on pumped lines.

A line grows by repeating what stands at some place of one that the expression knows. Four times the length may take
four times as long; an expression that goes back and forth takes sixteen times, or thousands.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from supervisor import signatures
from supervisor.primerl import logs
from supervisor.signatures.registry import Signature
from tests.fuzz.given import PUMPS
from tests.fuzz.profiles import CHOSEN, MANY
from tests.fuzz.test_lines import KNOWN

LONGEST = signatures.LONGEST
SHORT = LONGEST // 4
TOO_LONG_S = 0.02  # of one match of one line; the whole budget of a thousand lines a second is less
PROPORTION = 10  # between 4 (in proportion) and 16 (its square)
EVERY = CHOSEN == MANY
SIGNATURES: dict[str, Signature] = {one.name: one for one in logs.SIGNATURES.signatures} | {
    one.name: one for one in signatures.any_job().signatures
}
MODULES = (
    "supervisor.primerl.logs",
    "supervisor.primerl.verifiers",
    "supervisor.jobs.plain",
    "supervisor.sensors.vllm_metrics",
    "supervisor.sensors.xid",
    "supervisor.checkpoints.manifest",
    "supervisor.checkpoints.claims",
    "supervisor.checkpoints.log_files",
    "supervisor.base.secrets",
    "supervisor.base.secret_shapes",
)
OTHERS = (
    "KEY=value token: abcdefghijklmnop https://user:password@host/path?x=1&y=2 Bearer abcdefghijklmnop",
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "-----BEGIN RSA PRIVATE KEY----- MIIEow -----END RSA PRIVATE KEY-----",
    'vllm:num_requests_running{engine="0",model_name="a"} 3.0',
    "step_20", "gen_00007.beat.json", "K0041234567890abcdefghijklmnopq", "hf_abcdefghijklmnopqrst",
)  # fmt: skip


def patterns(module: ModuleType) -> Iterator[tuple[str, re.Pattern[str] | re.Pattern[bytes]]]:
    """Every expression that the module holds, in tables too."""
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            yield name, value
        elif isinstance(value, tuple):
            for number, row in enumerate(value):
                for cell in row if isinstance(row, tuple) else (row,):
                    if isinstance(cell, re.Pattern):
                        yield f"{name}[{number}]", cell


def pumped(line: str, size: int, every: bool) -> Iterator[str]:
    """``line`` up to some place, then what stands there again and again, then what fits nothing."""
    places = range(len(line) + 1) if every else range(0, len(line) + 1, max(1, len(line) // 4))
    for at in places:
        near = {line[at : at + 1], line[at : at + 4]}
        if every:
            near |= {line[max(0, at - 1) : at + 1], line[:at]}
        common = set(PUMPS) if every else {" ", "0"}
        for pump in sorted((near | common) - {""}):
            start = line[:at]
            yield (start + pump * (1 + (size - len(start)) // len(pump)))[: size - 1] + "\x01"


def took(match: Callable[[str], object], line: str, tries: int = 1) -> float:
    """Seconds of this thread's own time on a processor: how busy the machine is does not count."""
    best = float("inf")
    for _ in range(tries):
        begun = time.thread_time()
        match(line)
        best = min(best, time.thread_time() - begun)
    return best


def in_proportion(name: str, match: Callable[[str], object], lines: list[str]) -> None:
    for line in lines:
        for short, long in zip(pumped(line, SHORT, EVERY), pumped(line, LONGEST, EVERY), strict=True):
            if took(match, short) < TOO_LONG_S / PROPORTION:
                continue  # the square of four times as much would still be no harm
            least = max(took(match, short, 3), 1e-6)
            most = took(match, long)
            if most >= TOO_LONG_S and most / least >= PROPORTION:
                most = took(match, long, 3)  # what was slow because of something else is quick now
            assert most < TOO_LONG_S or most / least < PROPORTION, (
                f"{name}: {least * 1e3:.1f} ms for {SHORT} characters, {most * 1e3:.1f} ms for {LONGEST}: {long[:99]!r}"
            )


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, len(SIGNATURES), 25))
def test_a_signature_takes_no_longer_than_in_proportion_to_the_line(first: int) -> None:
    for name in sorted(SIGNATURES)[first : first + 25]:
        one = SIGNATURES[name]
        lines = [line[:200] for _, line in (*one.examples, *one.others)]
        in_proportion(name, one.pattern.match, lines if EVERY else lines[:2])


@pytest.mark.soak
@pytest.mark.parametrize("module", MODULES)
def test_an_expression_of_ours_takes_no_longer_than_in_proportion_to_the_line(module: str) -> None:
    found = dict(patterns(importlib.import_module(module)))
    lines = [*KNOWN, *OTHERS] if EVERY else [*KNOWN[:3], *OTHERS[:3]]
    for name, pattern in found.items():
        if isinstance(pattern.pattern, bytes):
            in_proportion(f"{module}.{name}", lambda line, p=pattern: p.search(line.encode()), lines)  # type: ignore[misc]
        else:
            in_proportion(f"{module}.{name}", pattern.search, lines)


def test_an_expression_that_goes_back_and_forth_is_found() -> None:
    def match(line: str) -> None:
        until = time.thread_time() + 0.005 * (len(line) / SHORT) ** 2
        while time.thread_time() < until:
            pass

    with pytest.raises(AssertionError, match="ms for"):
        in_proportion("one of that kind", match, ["aaaa"])
