"""Sound configurations with a mistake put in: it is found where it is, and nothing whatever makes a check raise."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.preflight import Finding
from tests.fuzz.profiles import CHOSEN, MANY
from tests.preflight.harness import PARTS, Case, cases, found, shown

SOUND = {name: case for name, case in cases().items() if case.sound and case.files and case.kind in ("rl", "sft")}
FILES = ("config.toml", *(f"{part}.toml" for part in PARTS))
# Of each sound case in each run. The seed is the case's name, so that a failure comes again.
MUTANTS = 10 if CHOSEN == MANY else 1

Injected = tuple[str, str, int] | None
"""A file's name, its text with the mistake, and the mistake's line; None where the case has no place for it."""


# ---------------------------------------------------------------- mistakes that are found in every configuration


def _texts(case: Case) -> Iterator[tuple[str, str]]:
    return ((name, case.files[name]) for name in FILES if name in case.files)


def _line(case: Case, pattern: str, change: Callable[[re.Match[str]], str]) -> Injected:
    """The first line that ``pattern`` fits becomes another."""
    for name, text in _texts(case):
        lines = text.split("\n")
        for at, line in enumerate(lines):
            if match := re.fullmatch(pattern, line):
                return name, "\n".join([*lines[:at], change(match), *lines[at + 1 :]]), at + 1
    return None


def unquoted_text(case: Case) -> Injected:
    return _line(case, r'(name) = "([^"]+)"', lambda match: f"{match[1]} = {match[2]}")


def a_quote_is_missing(case: Case) -> Injected:
    return _line(case, r'(name) = "([^"]+)"', lambda match: f'{match[1]} = "{match[2]}')


def unknown_key(case: Case) -> Injected:
    return _line(case, r"(batch_size) = (\d+)", lambda match: f"{match[1]} = {match[2]}\nbatch_sizes = {match[2]}")


def text_for_a_number(case: Case) -> Injected:
    return _line(case, r"(max_steps) = (\d+)", lambda match: f'{match[1]} = "as many as it takes"')


def list_for_a_number(case: Case) -> Injected:
    return _line(case, r"(batch_size) = (\d+)", lambda match: f"{match[1]} = [{match[2]}]")


def odd_batch(case: Case) -> Injected:
    if not re.search(r"(group_size|rollouts_per_example) = [^1\n]", "".join(text for _, text in _texts(case))):
        return None  # groups of one, or SFT, which has none
    return _line(case, r"(batch_size) = (\d+)", lambda match: f"{match[1]} = {int(match[2]) + 1}")


def endless_answers(case: Case) -> Injected:
    if any("max-tokens" in word for word in case.args):
        return None  # a flag says otherwise
    return _line(case, r"(max_tokens|max_completion_tokens) = (\d+)", lambda match: f"{match[1]} = 9000000")


def no_steps(case: Case) -> Injected:
    return _line(case, r"(max_steps) = (\d+)", lambda match: f"{match[1]} = 0")


# Each with the ids of which one must be found, and whether it must be known which prime-rl is meant.
MISTAKES: dict[Callable[[Case], Injected], tuple[set[str], bool]] = {
    unquoted_text: ({"unquoted-text"}, False),
    a_quote_is_missing: ({"unclosed"}, False),
    unknown_key: ({"unknown-key", "ignored-key"}, True),
    text_for_a_number: ({"wrong-kind"}, True),
    list_for_a_number: ({"wrong-kind"}, True),
    odd_batch: ({"batch-of-whole-groups", "micro-batches-divide"}, True),
    endless_answers: ({"max-tokens-fill-context", "max-tokens-above-context", "max-tokens-above-seq-len"}, True),
    no_steps: ({"no-steps"}, True),
}


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak, id="all"), pytest.param(4, id="some")])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.__name__)
def test_a_mistake_is_found_in_sound_configurations(
    mistake: Callable[[Case], Injected], every: int, tmp_path: Path
) -> None:
    ids, version = MISTAKES[mistake]
    tried, wrong = 0, []
    with_a_place = [(case, mistake(case)) for case in SOUND.values() if case.era or not version]
    for number, (case, put) in enumerate([one for one in with_a_place if one[1] is not None][::every]):
        assert put is not None
        name, text, line = put
        here = tmp_path / str(number)
        here.mkdir()
        findings = found(replace(case, files={**case.files, name: text}), here)
        tried += 1
        file = str(here / name)
        lines = {line, line + 1} if mistake is unknown_key else {line}
        if not any(one.id in ids and one.where.file == file and one.where.line in lines for one in findings):
            wrong.append(f"{case.name} line {line} of {name}:\n{shown(findings)}")
    assert tried > 10 / every
    assert not wrong, "\n\n".join(["", *wrong])


# ---------------------------------------------------------------- nothing makes it raise

ODD = (
    *(
        '""',
        '"None"',
        '"x" * 3',
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        '[1, "a", { b = 2 }]',
        "{ a = { b = [1] } }",
        "true",
        "false",
    ),
    *("-1", "0", "1", "1.5", "-0.0", "1e308", "inf", "nan", "9223372036854775807", "-9223372036854775808", "0x10"),
    *(
        "1979-05-27",
        "07:32:00",
        '"""\nover\nlines"""',
        "'it''s'",
        "None",
        "nil",
        "= 3",
        ",",
        "[",
        "{",
        '"',
        "\\",
        "\u2028",
    ),
    *(
        ";",
        '"' + "long" * 5000 + '"',
        "[" * 80,
        "{ a = " * 80,
        "99999999999999999999999999",
        '"${HOME}"',
        '"\\u0000"',
        "#",
    ),
)
HEADERS = (
    "[model]",
    "[[model]]",
    "[trainer.model.lora]",
    "[orchestrator]",
    "[[orchestrator]]",
    "[inference]",
    "[a.b.c]",
)


def _mutant(text: str, chance: random.Random) -> str:
    """``text`` with one to three of its lines made odd."""
    lines = text.split("\n")
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(lines))
        line = lines[at]
        key, equals, _ = line.partition("=")
        kind = chance.randrange(8)
        if equals and kind < 4:
            lines[at] = f"{key}= {chance.choice(ODD)}"
        elif equals and kind == 4:
            lines[at] = f"{key.strip()}.below = {chance.choice(ODD)}"
        elif kind == 5:
            lines[at] = chance.choice(HEADERS)
        elif kind == 6:
            lines.insert(chance.randrange(len(lines)), line)
        else:
            cut = chance.randrange(len(line) + 1)
            lines[at] = line[:cut] + chance.choice(("", "\t", "\r", "é", "\u00a0", "]", "'", " = ")) + line[cut + 1 :]
    return "\n".join(lines)


@pytest.mark.soak
@pytest.mark.fuzz
@pytest.mark.parametrize("name", SOUND)
def test_odd_values_and_broken_lines_never_raise_and_what_is_said_of_them_can_be_read(
    name: str, tmp_path: Path
) -> None:
    chance = random.Random(name)
    for number in range(MUTANTS):
        case = SOUND[name]
        place = chance.choice([file for file in FILES if file in case.files] or [*case.files])
        files = {**case.files, place: _mutant(case.files[place], chance)}
        here = tmp_path / str(number)
        here.mkdir()
        for one in found(replace(case, files=files), here):
            _readable(one, files)


def _readable(one: Finding, files: object) -> None:
    told = one.as_json()
    for part in ("sentence", "remedy", "why"):
        text = str(told[part])
        assert "\n" not in text, (one.id, text, files)
        assert len(text) < 2000, (one.id, len(text), files)
