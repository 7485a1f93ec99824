"""A gigabyte of healthy lines is read in seconds, and no line that matters is passed over for it."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]  # with which ``supervisor.signatures.words`` reads a pattern
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.diagnose import ROLES, lines
from supervisor.base.escapes import plain_bytes
from supervisor.cli import reading
from supervisor.cli.main import main
from supervisor.core.facts import Role
from supervisor.diagnosis import gates, scan
from supervisor.diagnosis.places import Source
from supervisor.diagnosis.seen import Log
from supervisor.primerl import logs
from supervisor.primerl.logs import SIGNATURES
from supervisor.signatures.words import Choices, finder
from tests.fuzz.profiles import tries

CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))
OOM = "[trainer0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.16 GiB."
ALL: dict[str, Role | None] = {
    "trainer": "trainer", "orchestrator": "orchestrator", "inference": "inference", "env": "env",
}  # fmt: skip


def read(text: str | bytes, role: Role | None = None) -> Log:
    data = text.encode() if isinstance(text, str) else text
    (log,) = scan.scan(io.BytesIO(data), "x.log", role)
    return log


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", ""),
        ("", "  \t\r"),
        ("[trainer0]:\x1b[2m03:00:12\x1b[0m \x1b[31m\x1b[1m  ERROR\x1b[0m \x1b[31m\x1b[1m\x1b[22m", "\x1b[0m\x1b[0m"),
        ("[default3]:[rank3]: ", ""),
        ("(EngineCore_DP0 pid=42) ERROR 01-06 03:00:12 [core.py:7] ", ""),
        ("2026-01-06T03:00:12.123456789Z stderr F 03:00:12   ERROR ", " [train.py::350]"),
        ("Jan 06 03:00:12 pod7 rl[4100]: ", ""),
        ("(TaskRunner pid=12) ", " [repeated 3x across cluster]"),
        ("50%|#####     | 2/4 [00:10<00:10,  5.20s/it]\r", ""),
    ],
)
def test_the_line_of_every_known_error_is_found_behind_any_prefix(before: str, behind: str) -> None:
    for signature in SIGNATURES.signatures:
        for _, line in signature.examples:
            assert gates.gate().search(plain_bytes(f"{before}{line}{behind}".encode())), (signature.name, line)


@pytest.mark.parametrize("colour", ["", "\x1b[2m"])
def test_the_line_of_every_known_error_is_found_inside_json(colour: str) -> None:
    for signature in SIGNATURES.signatures:
        for _, line in signature.examples:
            ours = json.dumps({"timestamp": "2026-08-15T10:01:00", "level": "WARNING", "message": f"{colour}{line}"})
            docker = json.dumps({"log": f"{colour}{line}\n", "stream": "stderr", "time": "2026-01-06T03:00:12.1Z"})
            for char in "<>&":  # as Go writes them
                docker = docker.replace(char, f"\\u{ord(char):04x}")
            for raw in (ours, docker):
                assert gates.gate().search(plain_bytes(raw.encode())), (signature.name, raw)


class Written:
    """Writes what a pattern matches, a hundred times as fast as ``st.from_regex``, and less odd. What a pattern asks of
    what it does not take (``(?!...)``) may not be so."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def text(self, parsed: Any) -> str:
        return "".join(self._part(str(kind), value) for kind, value in parsed)

    def _part(self, kind: str, value: Any) -> str:
        match kind:
            case "LITERAL":
                return chr(value)
            case "NOT_LITERAL":
                return self._one_of([char for char in CHARACTERS if char != chr(value)])
            case "ANY":
                return self._one_of(CHARACTERS)
            case "IN":
                return self._one_of(_characters_in(tuple(value)))
            case "BRANCH":
                return self.text(self._chance.choice(value[1]))
            case "SUBPATTERN":
                return self.text(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most = value[0], min(value[1], value[0] + 6)
                return "".join(self.text(value[2]) for _ in range(self._chance.randint(least, most)))
            case "ATOMIC_GROUP":
                return self.text(value)
        assert kind in ("AT", "ASSERT", "ASSERT_NOT"), kind
        return ""

    def _one_of(self, chars: Sequence[str]) -> str:
        return self._chance.choice(chars)


CHARACTERS: Final = "abzABZ019 _-.,:;/'\"\\()[]{}<>&|=+*#%@!?~$^`\t\u00e9\u4e2d"
CATEGORIES: Final = {"WORD": r"\w", "NOT_WORD": r"\W", "DIGIT": r"\d", "SPACE": r"\s", "NOT_SPACE": r"\S"}


@cache
def _characters_in(parts: tuple[tuple[Any, Any], ...]) -> list[str]:
    found = set[str]()
    for kind, value in parts:
        match str(kind):
            case "LITERAL":
                found.add(chr(value))
            case "RANGE":
                found |= {chr(value[0]), chr(sum(value) // 2), chr(value[1])}
            case "CATEGORY":
                one = CATEGORIES[str(value).removeprefix("CATEGORY_")]
                found |= {char for char in CHARACTERS if re.match(one, char)}
    if str(parts[0][0]) == "NEGATE":
        return [char for char in CHARACTERS if char not in found]
    return sorted(found)


CHOICES: Final = Choices([one.words for one in SIGNATURES.signatures])


def missed(place: int, line: str) -> bool:
    """Is this line matched by that signature's pattern, and passed over for want of its words?"""
    signature = SIGNATURES.signatures[place]
    return signature.pattern.match(line) is not None and not (
        finder(signature.words).search(line.encode(errors="replace")) and place in CHOICES.of(line)
    )


@pytest.mark.soak
def test_no_line_that_a_pattern_matches_is_without_its_words() -> None:
    for place, signature in enumerate(SIGNATURES.signatures):
        chance = random.Random(signature.name)
        parsed = _parser.parse(signature.pattern.pattern)
        lines = [Written(chance).text(parsed) + behind for behind in ("", "", ": x", "x")]
        assert [line for line in lines if missed(place, line)] == [], signature.name
        assert any(signature.pattern.match(line) for line in lines), (signature.name, lines)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, len(SIGNATURES.signatures), 5))
@tries(8)
@given(data=st.data())
def test_no_odd_line_that_a_pattern_matches_is_without_its_words(first: int, data: st.DataObject) -> None:
    for place, signature in enumerate(SIGNATURES.signatures[first : first + 5], first):
        line = data.draw(st.from_regex(signature.pattern))
        assert not missed(place, line), (signature.name, line)


def told(log: Log) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.role, one.text, one.first.line, one.last.line, one.count, one.weak, one.lives, one.beside,
         one.more, one.over, one.closing, one.fatal)
        for one in log.events
    ]  # fmt: skip


@pytest.mark.soak
def test_what_is_told_of_a_log_is_the_same_when_every_line_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        (name, content)
        for path in CASES
        for name, content in tomllib.loads(path.read_text(encoding="utf-8"))["files"].items()
        if content.strip()
    ]
    # Healthy lines stand before, between and behind what fails, as they do in logs.
    roles = itertools.cycle(ROLES)
    texts = [
        "\n".join([*lines(next(roles), 60), content, *lines(next(roles), 130, coloured=True), content])
        for _, content in files
    ]
    monkeypatch.setattr(scan, "MOST_STEPS", 1000)  # where every line is looked at, each step is read
    quickly = [read(text, role) for text in texts for role in (None, "trainer", "inference")]
    monkeypatch.setattr(gates, "gate", lambda: re.compile(rb"[^\n]"))
    slowly = [read(text, role) for text in texts for role in (None, "trainer", "inference")]
    assert sum(map(len, map(told, slowly))) > 300
    for fast, slow in zip(quickly, slowly, strict=True):
        assert told(fast) == told(slow)
        assert fast.lines == slow.lines
        assert {role: steps.numbers[-1] for role, steps in fast.steps.items()} == {
            role: steps.numbers[-1] for role, steps in slow.steps.items()
        }


def test_a_step_behind_ordinary_lines_that_end_what_was_told_is_counted() -> None:
    step = "{'loss': 2.0, 'learning_rate': 1e-05}\n"
    raised = 'Traceback (most recent call last):\n  File "env.py", line 2, in f\n    a, b = 1\nTypeError: no\n'
    log = read(raised + step + "03:00:12    INFO Saved\n" + step + step)
    assert log.steps["job"].lines == [5, 7, 8]


def test_of_a_hundred_thousand_steps_enough_are_read_to_tell_what_passed() -> None:
    step = "03:00:12 SUCCESS Step {n} |  45.1s | Loss 0.0010 | Entropy 0.3000\n"
    before, behind = ("".join(step.format(n=n) for n in range(*part)) for part in ((0, 50_000), (50_000, 100_000)))
    log = read(before + "03:00:12   ERROR Fatal error in train\n" + behind, "trainer")
    steps = log.steps["trainer"]
    assert steps.numbers[-1] == 99_999
    assert steps.after_line(50_001) > 100
    assert steps.lines[-1] == 100_001
    assert steps.numbers == sorted(steps.numbers)


def test_an_engine_that_was_told_to_end_is_known_fifty_lines_later_and_not_a_hundred() -> None:
    end = "(APIServer pid=1) INFO 01-06 03:00:12 [launcher.py:7] Shutting down FastAPI HTTP server.\n"
    dead = "(APIServer pid=1) ERROR 01-06 03:00:13 [async_llm.py:7] vllm.v1.engine.exceptions.EngineDeadError: x\n"
    line = '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    assert [one.closing for one in read(end + line * 49 + dead, "inference").events] == [True]
    assert [one.closing for one in read(end + line * 100 + dead, "inference").events] == [False]


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(("share", "is_enough"), [(2, True), (16, False)])
def test_re2_has_twice_the_memory_without_which_it_reads_a_hundred_times_as_slowly(share: int, is_enough: bool) -> None:
    """The more errors are known the more it needs: RE2 says so, where it is let, and MEMORY_BYTES has to grow."""
    program = f"""
import supervisor.signatures.words as words
words.MEMORY_BYTES //= {share}
options = words._finder_options
def talk(most_bytes):
    made = options(most_bytes)
    made.log_errors = True
    return made
words._finder_options = talk
from supervisor.diagnosis import gates
gates.gate().search(b"healthy")
gates.news().search(b"healthy")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("out of memory" not in done.stderr) is is_enough, done.stderr


@pytest.mark.parametrize("bad_every", [0, 100])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("role", ROLES)
def test_of_ordinary_lines_few_are_looked_at_for_themselves(
    role: str, merged: bool, bad_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that makes of megabytes a second, `python -m bench diagnose` says."""
    seen = []
    look_at = scan._Scan._look_at
    monkeypatch.setattr(scan._Scan, "_look_at", lambda *given: (seen.append(1), look_at(*given)))
    read("\n".join(lines(role, 5_000, bad_every=bad_every)) + "\n", None if merged else ALL[role])
    assert len(seen) < (400 if bad_every else 200)


def test_a_line_without_a_word_costs_the_daemon_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_message", lambda line: pytest.fail(f"it was looked at: {line}"))
    for role in ("inference", "env"):
        for coloured in (False, True):
            for line in lines(role, 500, coloured=coloured):
                assert logs.parse_line("trainer", line) == []


# ---------------------------------------------------------------- what a person sees meanwhile


class Out(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_after_two_seconds_the_newest_failure_and_how_far_it_is(tmp_path: Path, terminal: bool) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("\n".join([*lines("trainer", 20_000), OOM, ""]))
    now = 0.0
    out = Out(terminal)
    progress = reading.Progress([Source(str(path), (path,), "trainer")], out, lambda: now)
    now = 1.9
    progress(500_000)
    assert out.getvalue() == ""
    now = 2.1
    progress(500_000)
    first = out.getvalue()
    assert first.startswith("The newest lines say: cuda-oom: torch.OutOfMemoryError: CUDA out of memory.")
    assert "Reading the logs: 977 KiB of 1.3 MiB so far." in first
    now = 9.0
    progress(100_000)
    progress.end()
    more = out.getvalue().removeprefix(first)
    assert ("so far" in more) == terminal  # a file gets the line once
    assert out.getvalue().endswith("\x1b[K" if terminal else "\n")


def test_of_healthy_logs_of_standard_input_and_of_packed_ones_only_how_far_it_is(tmp_path: Path) -> None:
    healthy = tmp_path / "inference.log"
    healthy.write_text("\n".join(lines("inference", 100)))
    packed = tmp_path / "old.log.gz"
    packed.write_bytes(b"\x1f\x8b" + b"\0" * 90)
    sources = [Source("a", (healthy,), "inference"), Source("b", (packed,)), Source("c", (tmp_path / "gone.log",))]
    for found in (sources, [Source("stdin")]):
        now = iter([0.0, 3.0, 3.0])
        out = Out(False)
        reading.Progress(found, out, lambda now=now: next(now))(1 << 20)
        assert out.getvalue() == "Reading the logs: 1.0 MiB so far.\n"


def test_a_secret_in_the_newest_line_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("torch.OutOfMemoryError: CUDA out of memory. https://bob:hunter2hunter2@host/x\n")
    now = iter([0.0, 3.0, 3.0])
    out = Out(False)
    reading.Progress([Source("a", (path,), "trainer")], out, lambda: next(now))(100)
    assert "The newest lines say: " in out.getvalue()
    assert "hunter2" not in out.getvalue()


def test_the_command_says_it_on_standard_error_and_ends_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("\n".join([*lines("trainer", 200), OOM, ""]))
    assert main(["diagnose", str(path)]) == 0
    quick = capsys.readouterr()
    assert quick.err == ""
    monkeypatch.setattr(reading, "QUIET_S", 0.0)
    assert main(["diagnose", str(path)]) == 0
    slow = capsys.readouterr()
    assert slow.out == quick.out
    assert slow.err.splitlines()[0].startswith("The newest lines say: cuda-oom: ")
