"""``make demo-fleet`` shows what it says, and fails when that did not happen."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_demo(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fleet.demo", *words], capture_output=True, text=True, check=False, timeout=420
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_the_demo_shows_all_it_should() -> None:
    code, said = run_demo()
    assert code == 0, said
    assert "Trained twice: " in said


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_the_demo_fails_when_no_host_was_bad() -> None:
    code, said = run_demo("--honest")
    assert code == 1, said
    assert "The host with one GPU was not left as unfit" in said
    assert "Pods were rented on the machines [10010, 10020], and not on [10010, 10020, 10030], in turn." in said
