"""Opt-in: the table of eras against prime-rl's own history. Needs PRIME_RL_GIT, a clone of PrimeIntellect-ai/prime-rl.

PRIME_RL_GIT=~/prime-rl pytest -m optin tests/primerl/test_real_history.py -s
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from supervisor.primerl.probe import dialect_of
from tests.primerl.eras import ERAS, Era

CLONE = os.environ.get("PRIME_RL_GIT", "")
pytestmark = [
    pytest.mark.optin,
    pytest.mark.skipif(not CLONE, reason="PRIME_RL_GIT names no clone of PrimeIntellect-ai/prime-rl"),
]
ROOTS = ("src/prime_rl", "packages/prime-rl-configs/src/prime_rl")


def _git(*words: str) -> str:
    found = subprocess.run(["git", "-C", CLONE, *words], capture_output=True, text=True, errors="replace", check=False)
    return found.stdout if found.returncode == 0 else ""


def _read(commit: str, name: str) -> str:
    return next((text for root in ROOTS if (text := _git("show", f"{commit}:{root}/{name}"))), "")


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_the_text_of_each_listed_commit_gives_the_dialect_in_the_table(era: Era) -> None:
    assert _git("cat-file", "-t", era.commit).strip() == "commit", f"{CLONE} lacks {era.commit}"
    found = dialect_of(partial(_read, era.commit), era.commit)
    differences = {
        field.name: (getattr(era.dialect, field.name), getattr(found, field.name))
        for field in fields(found)
        if getattr(era.dialect, field.name) != getattr(found, field.name)
    }
    assert differences == {}
    assert date.fromisoformat(_git("log", "-1", "--format=%cs", era.commit).strip()) == era.day
    print(f"\n{era.commit} {era.day} {era.tag:7} {found.name}")  # shown with -s


class _Batch:
    """`git cat-file --batch`: thousands of files in seconds."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["git", "-C", CLONE, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def read(self, commit: str, name: str) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        for root in ROOTS:
            stdin.write(f"{commit}:{root}/{name}\n".encode())
            stdin.flush()
            head = stdout.readline().split()
            if head[-1] == b"missing":
                continue
            text = stdout.read(int(head[2])).decode("utf-8", "replace")
            stdout.read(1)
            if text:
                return text
        return ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def batch() -> Iterator[_Batch]:
    opened = _Batch()
    yield opened
    opened.close()


def test_every_commit_of_main_in_the_period_is_known_and_in_its_period(batch: _Batch) -> None:
    lines = _git("log", "--first-parent", "--format=%h %cs", "ceb60c03f~1..559b44772").splitlines()
    assert len(lines) > 1000
    for line in lines:
        commit, day = line.split()
        since, before = dialect_of(partial(batch.read, commit), commit).period()
        seen = date.fromisoformat(day)
        # Commit dates on main are not quite in order (5f47740dd, e2ad3beaa, 1385e0722): a day or two of slack.
        assert (since - seen).days <= 2, line
        assert before is None or (seen - before).days <= 2, line


def test_files_that_the_rules_search_still_exist_at_the_newest_commit() -> None:
    names = (
        *("entrypoints/rl.py", "entrypoints/sft.py", "entrypoints/inference.py", "configs/rl.py", "configs/shared.py"),
        *("configs/trainer.py", "configs/sft.py", "configs/monitors.py", "trainer/ckpt.py", "trainer/rl/train.py"),
        *("orchestrator/orchestrator.py", "orchestrator/utils.py", "utils/pathing.py", "utils/process.py"),
    )
    assert [name for name in names if not _read("559b44772", name)] == []
    assert Path(CLONE).is_dir()
