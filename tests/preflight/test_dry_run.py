"""prime-rl's own dry run, played by a script that prints what its real parsers print; the real one by choice.

The texts are those of pydantic-settings 2.16, pydantic 2.14, tyro 1.0 and prime-pydantic-config 0.4.3, which were run.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import check
from supervisor.config.run_file import parse_toml
from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import key_positions
from supervisor.preflight import dry_run, environments, online
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.refusals import Refusal, refusals
from supervisor.preflight.subject import ConfigText, Subject
from supervisor.primerl.configs import Settings
from supervisor.primerl.probe import find_roots, probe
from supervisor.process.survivors import look_at
from tests.primerl.eras import ERAS, write_checkout

LIST = """\
trainer.model.seq_len
  Input should be a valid integer, unable to parse string as an integer [type=int_parsing, input_value='long', \
input_type=str]
    For further information visit https://errors.pydantic.dev/2.11/v/int_parsing
orchestrator.env.1.idd
  Extra inputs are not permitted [type=extra_forbidden, input_value='x', input_type=str]
    For further information visit https://errors.pydantic.dev/2.11/v/extra_forbidden
  Value error, max_steps must not be
 three [type=value_error, input_value={'trainer': {}, 'orchestr...ps': 3}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.11/v/value_error
"""
SETTINGS = f"""\
Traceback (most recent call last):
  File "/x/.venv/bin/rl", line 10, in <module>
    sys.exit(main())
pydantic_core._pydantic_core.ValidationError: 3 validation errors for RLConfig
{LIST}"""


def box(lines: list[str], title: str = "Config file error", width: int = 80) -> str:
    """Words in the box that both later parsers draw."""
    inner = width - 4
    rows = [part for line in lines for part in (textwrap.wrap(line, inner) or [""])]
    drawn = [f"\x1b[31m╭\x1b[0m─ {title} {'─' * (width - len(title) - 5)}╮"]
    drawn += [f"\x1b[31m│\x1b[0m {row:<{inner}} │" for row in rows]
    return "\n".join([*drawn, f"╰{'─' * (width - 2)}╯", ""])


TYRO = box(
    [
        "Failed to validate config from 'merged config':",
        "─" * 76,
        "3 validation errors for RLConfig",
        *LIST.splitlines(),
    ]
)
OWN = box(
    [
        *("Failed to validate config:", "─" * 196, "3 validation errors for RLConfig"),
        *(
            "--trainer.model.seq-len",
            "Input should be a valid integer, unable to parse string as an integer (got 'long')",
        ),
        *("--orchestrator.env[1].idd", "Extra inputs are not permitted (got 'x')"),
        *("<root>", "Value error, max_steps must not be three"),
    ],
    width=200,
)
THREE = [
    (
        ("trainer", "model", "seq_len"),
        "Input should be a valid integer, unable to parse string as an integer",
    ),
    (("orchestrator", "env", 1, "idd"), "Extra inputs are not permitted"),
    ((), "max_steps must not be three"),
]


@pytest.mark.parametrize("text", [SETTINGS, TYRO, OWN], ids=["pydantic-settings", "tyro", "prime-pydantic-config"])
def test_the_three_parsers_say_the_same_in_their_own_way(text: str) -> None:
    found = [(one.path, one.told.partition(" (got")[0]) for one in refusals(text)]
    assert found == THREE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "usage: rl [-h] [--trainer [JSON]]\nrl: error: unrecognized arguments: --foo.interval 3\n",
            Refusal("words", (), "unrecognized arguments: --foo.interval 3"),
        ),
        (
            box(
                ["Unrecognized options: --foo, 3", "─" * 76, "For full helptext, run rl --help"], "Unrecognized options"
            ),
            Refusal("words", (), "Unrecognized options: --foo, 3"),
        ),
        (
            box(
                ["Unrecognized command-line option(s):", "--ckpt.intervall   (did you mean --ckpt.interval?)"],
                width=200,
            ),
            Refusal(
                "words", (), "Unrecognized command-line option(s): --ckpt.intervall (did you mean --ckpt.interval?)"
            ),
        ),
        (
            box(["Invalid TOML in d.toml: Invalid value (at line 1, column 5)"]),
            Refusal("file", (), "Invalid TOML in d.toml: Invalid value (at line 1, column 5)"),
        ),
        (
            "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'flash_attn'\n",
            Refusal("import", (), "No module named 'flash_attn'", "ModuleNotFoundError"),
        ),
        (
            "AssertionError: batch_size must be divisible\n",
            Refusal("error", (), "batch_size must be divisible", "AssertionError"),
        ),
    ],
    ids=["argparse", "tyro", "own words", "own file", "import", "assertion"],
)
def test_other_refusals(text: str, expected: Refusal) -> None:
    assert refusals(text) == [expected]


@pytest.mark.parametrize("text", ["", "Killed\n", "hello\n" * 3, "╭─\n│", "3 validation errors for X", "[type=" * 50])
def test_what_is_not_understood_is_nothing(text: str) -> None:
    assert refusals(text) == []


# ---------------------------------------------------------------- run

CONFIG = """\
max_steps = 3

[trainer.model]
seq_len = "long"

[[orchestrator.env]]
id = "one"

[[orchestrator.env]]
idd = "two"
"""


class Checkout:
    """A prime-rl of which only the launcher runs, and that is a script of ours."""

    def __init__(self, folder: Path, era: str = "38494ccb4") -> None:
        self.folder = folder
        write_checkout(folder, ERAS[era])
        self.roots = find_roots(folder, None)
        for root in self.roots:
            settings = root / "configs/rl.py"
            if settings.exists():
                settings.write_text(settings.read_text() + "    dry_run: bool = False\n")
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").symlink_to(sys.executable)
        (folder / "config.toml").write_text(CONFIG)
        self.says("print('Dry run complete. To start an RL run locally, remove --dry-run from your command.')")

    def says(self, code: str) -> None:
        """What the launcher does. It notes how it was called."""
        note = self.folder / "called.json"
        script = (
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], open({str(note)!r}, 'w'))\n{code}\n"
        )
        (self.folder / ".venv/bin/rl").write_text(script)
        (self.folder / ".venv/bin/rl").chmod(0o755)

    def refuses(self, text: str) -> None:
        """It prints this and ends with 1."""
        self.says(f"sys.stderr.write({text!r})\nsys.exit(1)")

    @property
    def called(self) -> tuple[list[str], dict[str, str], str]:
        words, environ, folder = json.loads((self.folder / "called.json").read_text())
        return words, environ, folder

    def subject(self, **job: Any) -> Subject:
        table = {"kind": "rl", "dir": str(self.folder), "config": "config.toml", **job}
        run = RunFile.model_validate({"run": {"id": "dry"}, "job": table})
        config = self.folder / "config.toml"
        text = ConfigText(config, "", CONFIG, parse_toml(CONFIG), key_positions(CONFIG))
        return Subject(
            kind="rl",
            settings=Settings(parse_toml(CONFIG), str(config)),
            texts=[text],
            args=run.job.args,
            run_file=run,
            run_path=self.folder / "run.toml",
            dialect=probe(self.roots),
            roots=self.roots,
        )

    def findings(self, timeout_s: float = 30.0, known: list[Finding] | None = None, **job: Any) -> list[Finding]:
        found = list(dry_run.findings(self.subject(**job), timeout_s, known or ()))
        assert all(one.rule for one in found)
        return found


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_dry_run_that_passes_says_nothing_and_leaves_nothing_behind(checkout: Checkout) -> None:
    checkout.says(
        "place = sys.argv[sys.argv.index('--output-dir') + 1]\n"
        "os.makedirs(place + '/configs')\nopen(place + '/configs/rl.toml', 'w').write('x')\n"
        "print('Dry run complete.')"
    )
    before = sorted(checkout.folder.rglob("*"))
    assert checkout.findings() == []
    words, environ, folder = checkout.called
    assert words[-1] == "--dry-run"
    place = Path(words[words.index("--output-dir") + 1])
    assert not place.is_relative_to(checkout.folder)
    assert not place.parent.exists()
    assert folder == str(checkout.folder)
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    assert environ["NEVER_CLEAN"] == environ["NEVER_CLEAN_OUTPUT_DIR"] == "1"
    assert environ["WANDB_MODE"] == "disabled"
    assert not [word for word in words if word.startswith(("--resume", "--ckpt.resume"))]
    assert sorted(path for path in checkout.folder.rglob("*") if path.name != "called.json") == before


def test_each_refusal_becomes_a_finding_at_its_own_line(checkout: Checkout) -> None:
    checkout.refuses(OWN)
    length, env, steps = checkout.findings()
    assert (length.where.line, length.where.key, length.weight) == (4, "trainer.model.seq_len", "error")
    assert "prime-rl refuses trainer.model.seq_len: Input should be a valid integer" in length.sentence
    assert env.where.line == 10  # of the second environment
    assert (steps.where.line, steps.where.key) == (1, "max_steps")  # named in the sentence only


def test_what_was_found_already_is_not_said_again(checkout: Checkout) -> None:
    checkout.refuses(OWN)
    known = [Finding("config-unreadable", "x", Where(str(checkout.folder / "config.toml"), 4))]
    assert [one.where.line for one in checkout.findings(known=known)] == [10, 1]


def test_an_unknown_word_of_the_command_line_is_the_run_files(checkout: Checkout) -> None:
    checkout.refuses("usage: rl [-h]\nrl: error: unrecognized arguments: --foo 3\n")
    (found,) = checkout.findings(args=["--foo", "3"])
    assert (found.id, found.where.key) == ("dry-run-refused", "job.args")


def test_a_launcher_that_lacks_a_library_and_one_that_only_lacks_a_gpu(checkout: Checkout) -> None:
    checkout.refuses("Traceback (most recent call last):\nModuleNotFoundError: No module named 'vllm'\n")
    assert [(one.id, one.weight) for one in checkout.findings()] == [("dry-run-import", "error")]
    checkout.refuses("ImportError: libcuda.so.1: cannot open shared object file\n")
    assert [(one.id, one.weight) for one in checkout.findings()] == [("dry-run-failed", "warning")]
    checkout.refuses("RuntimeError: No CUDA GPUs are available\n")
    assert [one.id for one in checkout.findings()] == ["dry-run-failed"]
    checkout.refuses("requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded\n")
    assert [one.id for one in checkout.findings()] == ["dry-run-failed"]


def test_a_task_set_that_is_not_there_is_found_at_its_line(checkout: Checkout) -> None:
    checkout.refuses("ModuleNotFoundError: taskset 'one' not found (tried to import 'one'). A taskset is a package\n")
    (found,) = checkout.findings()
    assert (found.id, found.where.line) == ("dry-run-import", 7)


def test_words_that_nobody_understands_are_a_warning_with_the_last_line(checkout: Checkout) -> None:
    checkout.says("print('something odd')\nsys.exit(7)")
    (found,) = checkout.findings()
    assert (found.id, found.weight) == ("dry-run-failed", "warning")
    assert "exit code 7: something odd" in found.sentence


def test_one_that_nobody_waits_for_any_more_is_ended_at_once(checkout: Checkout) -> None:
    pids = checkout.folder / "pids"
    checkout.says(f"import time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    unwanted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        look = pool.submit(lambda: dry_run.findings(checkout.subject(), unwanted=unwanted))
        while not (pids.exists() and pids.read_text()):
            assert not look.done()
        unwanted.set()
        before = time.monotonic()
        look.result()
    assert time.monotonic() - before < 5
    process = look_at(int(pids.read_text()))
    assert process is None or process.dead


def test_an_interrupt_ends_what_the_other_looks_have_started(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C in a check --online: a dry run has two minutes, and nobody wants to wait for them."""

    ended: list[bool] = []

    def interrupted(*_: object, **__: object) -> Sequence[Finding]:
        raise KeyboardInterrupt

    def waits(*_: object, unwanted: threading.Event, **__: object) -> Sequence[Finding]:
        assert unwanted.wait(30)
        ended.append(True)
        return ()

    monkeypatch.setattr(online, "findings", interrupted)
    monkeypatch.setattr(environments, "slow_findings", waits)
    monkeypatch.setattr(dry_run, "findings", waits)
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        check._look_online(checkout.subject(), (), {}, {}, measure=False)
    assert time.monotonic() - before < 10
    assert len(ended) == 2, "each has ended what it started before the program ends"


def test_one_that_hangs_is_ended_with_all_that_it_started(checkout: Checkout) -> None:
    pids = checkout.folder / "pids"
    checkout.says(
        "import subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )
    before = time.monotonic()
    (found,) = checkout.findings(timeout_s=1.5)
    assert time.monotonic() - before < 10
    assert (found.id, found.weight) == ("dry-run-late", "note")
    for pid in map(int, pids.read_text().split()):
        process = look_at(pid)
        assert process is None or process.dead


@pytest.mark.parametrize("era", ["be0e3d131", "ceb60c03f"])
def test_versions_without_a_dry_run_are_not_run(tmp_path: Path, era: str) -> None:
    old = Checkout(tmp_path, era)
    old.says("raise SystemExit('it was run')")
    assert old.findings() == []
    assert not (tmp_path / "called.json").exists()


def test_nothing_is_run_where_there_is_no_environment_or_nothing_could_be_started(checkout: Checkout) -> None:
    assert checkout.findings(args=["--resume.step", "3"]) == []  # refused elsewhere
    (checkout.folder / ".venv/bin/python").unlink()
    assert checkout.findings() == []
    assert not (checkout.folder / "called.json").exists()


REAL = os.environ.get("RL_SUPERVISOR_TEST_PRIME_RL", "")


@pytest.mark.skipif(not REAL, reason="RL_SUPERVISOR_TEST_PRIME_RL names no installed prime-rl with a dry run")
def test_the_real_prime_rl_passes_a_sound_configuration_and_refuses_a_broken_one(tmp_path: Path) -> None:
    folder = Path(REAL)
    for key, expected in (("seq_len", []), ("seq_lenn", [("dry-run-refused", 3)])):
        text = f"max_steps = 2\n[trainer.model]\n{key} = 4096\n[orchestrator]\n"
        config = tmp_path / f"{key}.toml"
        config.write_text(text)
        job = {"kind": "rl", "dir": str(folder), "config": str(config)}
        over = Subject(
            kind="rl",
            settings=Settings(parse_toml(text), str(config)),
            texts=[ConfigText(config, "", text, parse_toml(text), key_positions(text))],
            run_file=RunFile.model_validate({"run": {"id": "dry"}, "job": job}),
            roots=find_roots(folder, folder / ".venv/bin/python"),
        )
        assert [(one.id, one.where.line) for one in dry_run.findings(over)] == expected
