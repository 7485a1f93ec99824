"""The door for newcomers: the files that CONTRIBUTING.md names exist, and the hooks are what `make lint` runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_command_lines import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PLACES = (
    "",
    "supervisor",
    "supervisor/primerl",
    "supervisor/signatures",
    "supervisor/storage",
    "supervisor/simulator",
    "docs",
)


def exists(name: str) -> bool:
    return any((ROOT / place / name).exists() for place in PLACES)


def test_every_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|toml|md)|(?:[\w.-]+/)+)`", PAGE)
    named += re.findall(r"(?:python|-o|pytest) ((?:tests|docs)/[\w./]+)", PAGE)
    assert len(named) > 20
    assert [name for name in named if not exists(name) and "NAME" not in name] == []


def test_each_word_of_the_code_that_is_named_is_there() -> None:
    for word, file in {
        "BACKENDS": "tests/storage/conftest.py",
        "Boundary": "supervisor/primerl/dialect.py",
        "CHECKS": "supervisor/preflight/sharing.py",
        "open_at": "supervisor/storage/file.py",
        "_kind(": "supervisor/simulator/faults.py",
        "orchestrator-crash": "supervisor/simulator/faults.py",
        "e26b50503": "supervisor/primerl/dialect.py",
    }.items():
        assert word in PAGE
        assert word in (ROOT / file).read_text(), f"{file} has no {word} any more"


def test_the_hooks_run_what_make_lint_runs() -> None:
    lint = Path(ROOT / "Makefile").read_text().partition("\nlint-types:")[2].partition("\ncompiled-tests:")[0]
    made = {" ".join(line.split()) for line in re.findall(r"(?m)^\t\$\(BIN\)/(.*)", lint)}
    hooks = re.findall(r"entry: \.venv/bin/([^,]+),", (ROOT / ".pre-commit-config.yaml").read_text())
    plain = {hook.replace(" --force-exclude", "").replace(" --check", "") for hook in hooks}
    assert plain == {line.replace(" --check", "").removesuffix(" .") for line in made}


def test_the_workflow_calls_the_ci_that_anyone_can_run_and_at_night_all_soaks() -> None:
    asks = "\n      - run: ${{ github.event_name == 'schedule' && 'SWEEP= .ci/run' || '.ci/run' }}\n"
    assert asks in (ROOT / ".github/workflows/ci.yml").read_text()
    assert (ROOT / ".ci/run").exists()
