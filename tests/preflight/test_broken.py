"""Configurations broken as people break them, in three eras: our check says what prime-rl's own classes say.

``broken/*.toml`` hold the changes, and what the classes of that commit answered before our program was asked. The
opt-in test asks them again: ``PRIME_RL_GIT`` names a clone of PrimeIntellect-ai/prime-rl, and ``PRIME_RL_VENVS`` a
folder with a virtual environment for each era (``january_2026``, ``march_2026``, ``august_2026``) in which its classes
can be imported. What only the trainer needs (torch, vllm) need not be there.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from supervisor.preflight import Finding, examine
from supervisor.preflight.gate import find_stopping_errors
from supervisor.preflight.gather import gather
from supervisor.preflight.site import Site

BROKEN = Path(__file__).parent / "broken"
CLONE = os.environ.get("PRIME_RL_GIT", "")
VENVS = os.environ.get("PRIME_RL_VENVS", "")
ERAS = ("january_2026", "march_2026", "august_2026")
_KEYS = {"name", "of", "change", "after", "add", "top", "at", "sound", "stricter"}
SOURCES = ("src", "packages/prime-rl-configs/src")


@dataclass(frozen=True)
class Broken:
    """One configuration. ``lines``: where the mistake stands, empty where no line holds it."""

    era: str
    day: date
    name: str
    kind: str
    text: str
    sound: bool
    stricter: str
    """Why we refuse what the classes take: what happens to such a run later."""
    lines: frozenset[int]


@cache
def cases() -> Sequence[Broken]:
    return [one for era in ERAS for one in _read(era)]


def _data(era: str) -> Mapping[str, Any]:
    return tomllib.loads((BROKEN / f"{era}.toml").read_text(encoding="utf-8"))


def _read(era: str) -> Iterator[Broken]:
    data = _data(era)
    for case in data["case"]:
        name, kind = case["name"], case.get("of", "rl")
        assert not (unknown := set(case) - _KEYS), f"{era}: {name} has keys that nothing reads: {sorted(unknown)}"
        text = data["base"][kind]
        if "change" in case:
            old, new = case["change"]
            assert text.count(old) == 1, f"{era}: {name}: {old!r} stands {text.count(old)} times"
            text = text.replace(old, new)
        if "after" in case:
            old, new = case["after"]
            assert text.count(old) == 1, f"{era}: {name}: {old!r} stands {text.count(old)} times"
            text = text.replace(old, f"{old}\n{new}")
        text = "\n".join(part for part in (case.get("top", ""), text, case.get("add", "")) if part)
        at = case.get("at", [])
        lines = frozenset(_line(text, one) for one in ([at] if isinstance(at, str) else at))
        yield Broken(
            era, data["day"], name, kind, text, case.get("sound", False), case.get("stricter", ""), lines
        )  # fmt: skip


def _line(text: str, part: str) -> int:
    """The line of the last place at which ``part`` stands, or of its own last line."""
    return text[: text.rindex(part) + len(part.rstrip())].count("\n") + 1


def _errors(case: Broken, folder: Path) -> Sequence[Finding]:
    path = folder / "config.toml"
    path.write_text(case.text, encoding="utf-8")
    return find_stopping_errors(examine(gather(path, environ={}, site=Site(), as_of=case.day)), frozenset())


@pytest.mark.soak
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.era}: {case.name}")
def test_check_refuses_what_prime_rl_of_that_day_refuses_and_names_the_line(case: Broken, tmp_path: Path) -> None:
    errors = _errors(case, tmp_path)
    told = "\n".join(f"{one.where.line} {one.id}: {one.sentence}" for one in errors)
    assert bool(errors) is (not case.sound or bool(case.stricter)), told or "nothing was found"
    assert not case.lines or case.lines & {one.where.line for one in errors}, f"wanted {sorted(case.lines)}:\n{told}"


def test_there_are_fifty_refused_configurations_and_some_sound_ones_in_each_era() -> None:
    assert sum(not case.sound for case in cases()) >= 50
    for era in ERAS:
        assert sum(case.sound for case in cases() if case.era == era) >= 3
        assert sum(case.kind == "sft" for case in cases() if case.era == era) >= 3


@pytest.mark.optin
@pytest.mark.skipif(not (CLONE and VENVS), reason="PRIME_RL_GIT and PRIME_RL_VENVS do not name prime-rl's classes")
@pytest.mark.parametrize("era", ERAS)
def test_prime_rls_own_classes_say_the_same(era: str, tmp_path: Path) -> None:
    python = Path(VENVS) / era / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there")
    source = tmp_path / "prime-rl"
    _unpack(_data(era)["commit"], source)
    mine = [case for case in cases() if case.era == era]
    asked = []
    for number, case in enumerate(mine):
        path = tmp_path / f"{number}.toml"
        path.write_text(case.text, encoding="utf-8")
        asked.append([case.kind, str(path)])
    roots = [str(source / name) for name in SOURCES if (source / name).is_dir()]
    done = subprocess.run(
        [python, Path(__file__).with_name("real_classes.py"), *roots],
        input=json.dumps(asked), capture_output=True, text=True, check=True, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    answers = json.loads(done.stdout.splitlines()[-1])
    wrong = [
        f"{case.name}: {told or 'taken'}"
        for case, told in zip(mine, answers, strict=True)
        if bool(told) is case.sound
    ]  # fmt: skip
    assert not wrong, "\n".join(["", *wrong])


def _unpack(commit: str, folder: Path) -> None:
    words = ["git", "-C", CLONE, "archive", commit]
    found = subprocess.run(words, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        text = [one for one in archive if one.name.startswith(SOURCES) and one.name.endswith(".py")]
        archive.extractall(folder, text, filter="data")
