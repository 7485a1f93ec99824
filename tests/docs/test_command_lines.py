"""Every command line of ours that a page shows is one that the program takes; those of the vault are also run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import signatures
from supervisor.checkpoints.publish import publish
from supervisor.cli import ctl, main
from supervisor.preflight.finding import rules
from supervisor.storage import open_store
from tests.checkpoints_store.conftest import PART, RUN, Step, quiet

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/operations.md",
    "docs/sentences.md",
    "docs/before-a-run.md",
    "docs/tasks.md",
    "docs/systemd.md",
    "docs/containers.md",
    "docs/clusters.md",
    "docs/leaving.md",
    "docs/store.md",
    "docs/evidence.md",
    "docs/files.md",
    "docs/vault.md",
    "docs/replay.md",
    "docs/decisions.md",
    "docs/settings.md",
    "docs/diagnosis.md",
    "docs/many-machines.md",
    "docs/preflight.md",
    "CHANGELOG.md",
)
PARSERS = {
    "rl-supervisor": main._build_parser,
    "supervisorctl": ctl._build_parser,
    "rl-supervisorctl": ctl._build_parser,
}
PLACEHOLDERS = {"N": "7", "STEP": "7", "PERCENT": "5", "HOURS": "8", "D": "24", "PID": "4711", "KEY=VALUE": "a=1"}
PRIME_RL = Path(signatures.__file__).parents[1] / "primerl" / "signatures.toml"
EVERY_SIGNATURE = signatures.read(PRIME_RL, *signatures.SHARED).signatures
VAULT = ("restore", "verify", "logs", "report")


def shown(page: str) -> Iterator[str]:
    """What begins with one of our programs, in blocks of shell and between backquotes, without comments."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"(?s)```sh\n(.*?)```", text)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"(?s)```.*?```", "", text)
    lines += [" ".join(found.split()) for found in re.findall(r"(?<!`)`([^`|]+)`(?!`)", prose)]
    for line in lines:
        words = re.sub(r"^(sudo |/opt/rl-supervisor/bin/)+", "", line.split(" #")[0]).rstrip("'").split()
        if len(words) > 1 and words[0] in PARSERS and not re.search(r"[\[\]<>…]|\.\.\.", line):
            yield " ".join(words)


def command_lines() -> list[tuple[str, str]]:
    return [(page, line) for page in PAGES for line in dict.fromkeys(shown(page))]


def test_pages_show_commands_at_all() -> None:
    found = command_lines()
    assert {page for page, _ in found} >= {"README.md", "docs/operations.md"}
    assert len(found) > 30


def test_a_finding_or_a_known_error_names_no_command_that_is_not_there() -> None:
    told = [f"{rule.why} {rule.remedy}" for rule in rules().values()]
    told += [f"{one.sentence} {one.remedy}" for one in EVERY_SIGNATURE]
    named = {match.groups() for text in told for match in re.finditer(r"\b(rl-supervisor|supervisorctl) (\w+)", text)}
    assert len(named) > 3
    for program, verb in named:
        assert f"\n    {verb} " in PARSERS[program]().format_help(), f"{program} {verb}"


def test_every_command_line_that_is_shown_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = {program: build() for program, build in PARSERS.items()}
    for page, line in command_lines():
        program, *words = shlex.split(line)
        words = [PLACEHOLDERS.get(word, word) for word in words]
        words += ["--help"] if len(words) == 1 else []  # a command that is only named
        try:
            parsers[program].parse_args(words)
        except SystemExit as ended:
            said = capsys.readouterr().err
            assert ended.code == 0, f"{page} shows `{line}`: {said}"


def vault_lines() -> list[str]:
    lines = {line for _, line in command_lines() if "--store" in line and line.split()[1] in VAULT}
    return sorted(line for line in lines if "URL" not in line)


@pytest.mark.soak
def test_what_is_shown_of_the_vault_works_on_a_machine_that_has_only_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    publish(store, Step(tmp_path / "10", 10).fill().plan(tmp_path / "state", reward=0.5), quiet)
    lines = vault_lines()
    assert {line.split()[1] for line in lines} >= {"restore", "logs"}
    for line in lines:
        words = line.replace("b2://my-bucket/runs", store.url).replace("my-run", RUN).split()[1:]
        assert main.main(words) == 0, f"{line}: {capsys.readouterr().err}"
    told = capsys.readouterr().out
    assert "Restored step 10 (" in told
    assert "No attempt has left a log in the store yet." in told


def settings_of(page: str) -> set[tuple[str, str]]:
    """`store.keep_last` and the like, as a page names them."""
    return set(
        re.findall(r"`(store|disk|job|recovery|deadlines|supervision|run|report)\.(\w+)", (ROOT / page).read_text())
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_that_a_page_names_exists(page: str) -> None:
    from supervisor.config.settings import RunFile

    for section, name in settings_of(page):
        inner = RunFile.model_fields[section].annotation
        assert inner is not None
        assert name in inner.model_fields, f"{page} names {section}.{name}"
