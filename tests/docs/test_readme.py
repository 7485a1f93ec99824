"""The README says what the program does: its tables of settings and commands, its paths, its first commands."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.base import errors
from supervisor.cli import ctl, main
from supervisor.config.settings import RunFile

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_section_of_a_run_file_is_on_the_page() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    for section in RunFile.model_fields:
        assert f"**`[{section}]`**" in page


@pytest.mark.soak
@pytest.mark.parametrize(("program", "module"), [("rl-supervisor", "main"), ("supervisorctl", "ctl")])
def test_every_command_is_in_the_table_and_every_command_of_the_table_exists(program: str, module: str) -> None:
    code = f"import sys; from supervisor.cli.{module} import main; sys.exit(main(['--help']))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60).stdout
    listed = said.partition("commands:")[2].partition("exit codes")[0]
    known = set(re.findall(r"(?m)^ {4}(\w+)(?: {2,}|$)", listed)) - {"COMMAND"}
    table = README.partition(f"\n`{program}`")[2].partition("| --- | --- |")[2].partition("\n\n")[0]
    shown = set(re.findall(r"(?m)^\| `(\w+)", table))
    assert known
    assert shown == known


@pytest.mark.parametrize(
    ("program", "parser"), [("rl-supervisor", main._build_parser()), ("supervisorctl", ctl._build_parser())]
)
def test_every_option_is_in_the_row_of_its_command(program: str, parser: argparse.ArgumentParser) -> None:
    said_below = {"--help", "--run", "--socket", "--store", "--run-id", "--endpoint", "--region", "--realm"}
    said_below |= {"--json"} if program == "supervisorctl" else {"--foreground"}
    table = README.partition(f"\n`{program}`")[2].partition("| --- | --- |")[2].partition("\n\n")[0]
    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, sub in verbs.choices.items():
        rows = " ".join(line for line in table.splitlines() if re.match(rf"\| `{name}\b", line))
        spellings = [set(action.option_strings) for action in sub._actions if action.option_strings]
        missing = [
            words
            for words in spellings
            if not words & said_below and not any(re.search(rf"(?<![\w-]){word}(?![\w-])", rows) for word in words)
        ]
        assert not missing, f"{program} {name}: {missing} is not in the table of README.md"


def test_the_first_commands_are_make_targets() -> None:
    commands = re.findall(r"(?m)^make ([\w-]+)", README)
    assert commands[:2] == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"(?m)^{name}:", makefile) for name in commands)


def test_the_exit_codes_are_those_of_the_program() -> None:
    table = README.partition("## Exit codes")[2].partition("\n\nAll other")[0]
    assert {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", table)} == {
        errors.EXIT_FINISHED,
        errors.EXIT_TRY_AGAIN,
        errors.EXIT_PERSON_NEEDED,
        errors.EXIT_POD_UNFIT,
    }


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """What a link to this page may name behind a #, as GitHub makes it from the headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", page.read_text()))
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "`code`", page.read_text())
    missing = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_the_files_that_the_five_minute_paths_use_exist() -> None:
    for name in ("units/rl-supervisor@.service", "units/onstart.sh", "configs", "Dockerfile", "LICENSE"):
        assert name in README
        assert (ROOT / name).exists()


def test_the_image_copies_what_exists_and_holds_no_secret() -> None:
    text = (ROOT / "Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    words = {line.split()[0] for line in lines if line and not line.startswith(("#", " "))}
    assert "ENV" not in words
    for line in lines:
        if line.startswith("COPY") and "--from=" not in line:
            assert all((ROOT / source).exists() for source in line.split()[1:-1] if not source.startswith("--"))
    assert '["/opt/rl-supervisor/bin/rl-supervisor", "onstart", "--restart"]' in text
