"""What machines know about Dockerfiles and shell scripts: hadolint and shellcheck have nothing to say of ours.

Both come from the package index with their programs inside, so that this runs wherever the tests run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
SKIPPED = {".venv", ".git", "build", ".demo", ".bench", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis"}


def shell_scripts() -> list[Path]:
    """Every file of the repository that a POSIX shell or bash runs, by its first line."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - SKIPPED)
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix not in {"", ".sh"} or path.is_symlink() or not path.is_file():
                continue
            if re.match(rb"#!(/usr)?/bin/(env )?(ba)?sh\b", path.open("rb").read(30)):
                found.append(path)
    return found


def linter(name: str) -> str:
    """Beside the Python that runs these tests, or on PATH."""
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: pip install -c constraints.txt -e '.[dev]'")
    return program


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [linter("hadolint"), "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_hadolint_would_say_it(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN apt-get install git\nRUN cd /tmp && echo $UNQUOTED\n")
    done = subprocess.run([linter("hadolint"), "--no-color", str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert {"DL3007", "DL3008", "SC2086"} <= set(re.findall(r"DL\d+|SC\d+", done.stdout))


def test_what_hadolint_is_told_to_leave_alone_has_a_reason() -> None:
    told = re.findall(r"(?m)^# hadolint .*$", DOCKERFILE.read_text())
    assert told
    assert [line for line in told if not re.fullmatch(r"# hadolint ignore=[A-Z]{2}\d{4} # .{4,}", line)] == []


@pytest.mark.soak
@pytest.mark.parametrize("script", [str(path.relative_to(ROOT)) for path in shell_scripts()])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    done = subprocess.run(
        [linter("shellcheck"), "--color=never", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_scripts_are_found() -> None:
    names = {path.name for path in shell_scripts()}
    assert {"onstart.sh", "run", "machine", "supervisor.sh", "prime-rl.sh", "health.sh"} <= names
