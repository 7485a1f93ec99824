"""``rl-supervisor`` as people run it: check, init, version, and how every mistake ends."""

from __future__ import annotations

import argparse
import errno
import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.base import env_file
from supervisor.base.errors import ConfigError, PodUnfitError, TryAgainError
from supervisor.cli import main as cli
from supervisor.cli import terminal
from supervisor.cli.check import check
from supervisor.config.settings import load
from supervisor.daemon.loop import explain_os_error
from supervisor.storage.base import StoreError
from tests.b2server import B2Server, Key
from tests.people.in_process import call

PLAIN = """\
[run]
id = "plain"
max_steps = 20
state_dir = "{here}/state"
[job]
kind = "command"
dir = "{here}"
[job.plain]
start = ["python", "train.py", "--api-key=K004abcdefghijklmnopqrstuvwxyz1"]
resume = ["python", "train.py", "--resume", "{{step}}"]
[store]
url = "file://{here}/store"
"""


def process(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "supervisor.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)


def rl(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same here, which is much quicker."""
    return call(cli.main, words, cwd=cwd)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.toml"
    path.write_text(PLAIN.format(here=tmp_path))
    return path


def test_a_daemon_that_starts_lets_signals_wait_before_it_imports_what_takes_long() -> None:
    """A SIGTERM before that ends it, for systemd without a failure, and the job that it was to adopt lives on."""
    code = "import sys, supervisor.cli.main; print([name for name in ('pydantic', 'b2sdk') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "[]\n"


# ---------------------------------------------------------------- check


def test_check_says_what_would_be_done_and_starts_nothing(plain: Path, tmp_path: Path) -> None:
    answer = rl("check", str(plain), "--online")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = answer.stdout.splitlines()
    assert lines[0] == f"{plain} can be started: 1 warning."
    text = answer.stdout
    assert "--api-key has its secret on the job's command line." in text
    assert f"  store      file://{tmp_path}/store" in lines
    assert "  last step  20" in lines
    assert f"cd {tmp_path} && python train.py --api-key=***" in text
    assert "The store answers; it holds 0 files of this run." in text
    assert "K004" not in text
    assert not (tmp_path / "state").exists()


def test_check_says_when_a_run_is_only_observed(plain: Path) -> None:
    assert "  recovery  " not in rl("check", str(plain)).stdout
    plain.write_text(plain.read_text() + '\n[recover]\nmode = "observe"\n')
    told = rl("check", str(plain)).stdout
    assert "  recovery   observes only: publishes, and starts, stops and deletes nothing" in told


def test_check_as_json(plain: Path, tmp_path: Path) -> None:
    report = json.loads(rl("check", str(plain), "--json").stdout)
    assert (report["ok"], report["run"], report["problems"]) == (True, "plain", [])
    assert report["state_dir"] == f"{tmp_path}/state"


def test_check_tells_every_mistake_of_a_bad_run_file_and_ends_with_one(plain: Path) -> None:
    plain.write_text(plain.read_text().replace("max_steps", "max_step").replace("kind =", "knid ="))
    answer = rl("check", str(plain))
    assert answer.returncode == 1
    assert answer.stdout.splitlines()[0] == f"{plain} cannot be started: 2 errors."
    place = f'error  run-file\n  {plain}:3 run.max_step\n  [run] has no setting "max_step"; did you mean "max_steps"?\n'
    assert place in answer.stdout
    assert "Traceback" not in answer.stderr


def test_check_finds_a_job_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'[run]\nid = "x"\n[job]\ndir = "{tmp_path}/no-prime-rl"\nconfig = "rl.toml"\n')
    answer = rl("check", str(path))
    assert answer.returncode == 1
    assert f"error  prime-rl-not-found\n  {path}:4 job.dir\n  [job] dir = {tmp_path}/no-prime-rl:" in answer.stdout
    assert "Traceback" not in answer.stderr


KEYS = ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY")


def test_check_says_which_keys_of_the_store_are_missing_and_reads_the_env_beside_the_run_file(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(**environ: str) -> str:
        assert check(plain, environ=environ) == 0, "a warning is no failure"
        return capsys.readouterr().out

    plain.write_text(re.sub(r'url = ".*"', 'url = "b2://my-bucket"', plain.read_text()))
    env, both = plain.with_suffix(".env"), " and ".join(KEYS)
    assert f"needs {both}, which neither this environment nor {env} has" in told()
    env.write_text("# keys\nB2_APPLICATION_KEY_ID = 0123 \nexport B2_APPLICATION_KEY=a-secret-of-the-store\n")
    half = told()
    assert f"{env} line 3 is no NAME=value line, and systemd leaves it out: write B2_APPLICATION_KEY=..." in half
    assert "needs B2_APPLICATION_KEY, which neither" in half
    assert "a-secret-of-the-store" not in half
    env.write_text('B2_APPLICATION_KEY_ID=0123\nB2_APPLICATION_KEY="a-secret-of-the-store"\n')
    there = told()
    assert " needs " not in there and "B2_APPLICATION_KEY" not in there, "the daemon reads that file"
    assert "B2_APPLICATION_KEY" not in told(B2_APPLICATION_KEY_ID="1", B2_APPLICATION_KEY="2")
    env.unlink()
    for name in KEYS:
        (plain.parent / name.lower()).write_text("1")
    assert "B2_APPLICATION_KEY" not in told(CREDENTIALS_DIRECTORY=str(plain.parent))


def test_the_keys_beside_the_run_file_open_its_store(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with B2Server() as b2:
        key = b2.add_key(Key("0123", "the-secret-of-this-key"))
        store = f'url = "b2://{b2.bucket.name}/runs"\nrealm = "{b2.url}"'
        plain.write_text(re.sub(r'url = ".*"', store, plain.read_text()))
        plain.with_suffix(".env").write_text(f"B2_APPLICATION_KEY_ID={key.key_id}\nB2_APPLICATION_KEY='{key.secret}'\n")
        check(plain, online=True, environ={})
    assert "The store answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("A=1\n\n B = 2 \n", {"A": "1", "B": "2"}),
        ("# A=1\n;B=2\nC=3#4\n", {"C": "3#4"}),
        ("A=\"x y\"\nB='it''s'\nC=a'b'\n", {"A": "x y", "B": "its", "C": "a'b'"}),
        ('A="a\\"b\\n\\\nc"\nB=a\\\nb  \n', {"A": 'a"b\\nc', "B": "ab"}),
        ("A=$HOME\nB=`id`\n", {"A": "$HOME", "B": "`id`"}),
        ("A=\r\nB='open\nC=2", {"A": "", "B": "open\nC=2"}),
    ],
)
def test_an_env_file_is_read_as_systemd_reads_it(tmp_path: Path, text: str, read: dict[str, str]) -> None:
    (tmp_path / "run.env").write_bytes(text.encode())
    found = env_file.beside(tmp_path / "run.toml")
    assert (found.values, found.notes) == (read, ())


def test_what_no_process_can_have_is_left_out_of_an_env_file_and_told(tmp_path: Path) -> None:
    (tmp_path / "run.env").write_bytes(b"A=1\nB=x\0y\n")
    found = env_file.beside(tmp_path / "run.toml")
    assert found.values == {"A": "1"} and "line 2 is no NAME=value line" in found.notes[0]


# ---------------------------------------------------------------- init


def test_init_writes_a_run_file_that_loads_and_never_over_another(tmp_path: Path) -> None:
    job = tmp_path / 'prime "rl" \\ é'
    (job / "src" / "prime_rl").mkdir(parents=True)
    (job / "configs" / "bs4").mkdir(parents=True)
    config = job / "configs" / "bs4" / "qwen3.toml"
    config.write_text("inference_gpu_ids = [0]\ntrainer_gpu_ids = [1]\n[orchestrator]\n[trainer]\n")
    (job / "configs" / "other.toml").write_text('title = "none of ours"\n')
    (job / "configs" / "broken.toml").write_text("= =")
    answer = rl("init", "--job", str(job), "-o", "my.toml", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("my.toml is written, for the run my.\n")
    written = load(tmp_path / "my.toml")
    assert (written.run.id, written.job.dir, written.job.config) == ("my", job, [config])
    steps = answer.stdout.partition("Next, in this order:\n")[2]
    keys, checked = steps.index("key into"), steps.index("rl-supervisor check --online ")
    started = re.search(r"rl-supervisor run |systemctl .*enable --now ", steps)
    assert started is not None
    assert keys < checked < started.start(), "a run that is started before it has its keys stops and asks for them"
    before = (tmp_path / "my.toml").read_text()
    again = rl("init", "-o", "my.toml", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        1,
        "my.toml exists already and is left as it is: name another file with -o.\n",
    )
    assert (tmp_path / "my.toml").read_text() == before
    assert rl("init", "--job", str(job), cwd=tmp_path).returncode == 0
    assert load(tmp_path / "run.toml").run.id == "qwen3"  # run.toml says nothing, so the configuration names the run


def test_init_finds_the_three_separate_files(tmp_path: Path) -> None:
    job = tmp_path / "prime-rl"
    (job / "src" / "prime_rl").mkdir(parents=True)
    (job / "configs" / "reverse").mkdir(parents=True)
    for name in ("trainer", "orchestrator", "inference"):
        (job / "configs" / "reverse" / f"{name}.toml").write_text("max_steps = 3\n")
    assert rl("init", "--job", "prime-rl", cwd=tmp_path).returncode == 0
    written = load(tmp_path / "run.toml")
    assert written.run.id == "reverse"
    assert written.job.inference_config == job / "configs" / "reverse" / "inference.toml"


def test_init_on_an_empty_machine_says_what_has_to_be_filled_in(tmp_path: Path) -> None:
    answer = rl("init", "--job", "nowhere", cwd=tmp_path)
    assert answer.returncode == 0
    assert "nowhere does not look like a prime-rl checkout: it has no src/prime_rl." in answer.stdout
    assert "No configuration of prime-rl was found: set [job] config." in answer.stdout
    assert load(tmp_path / "run.toml").run.id == "my-run"
    lost = rl("init", "-o", "no/such/folder/run.toml", cwd=tmp_path)
    assert (lost.returncode, lost.stderr) == (
        1,
        "no/such/folder/run.toml cannot be written: No such file or directory.\n",
    )


# ---------------------------------------------------------------- exit codes


def test_version_and_wrong_usage() -> None:
    assert process("version").stdout == f"rl-supervisor {__version__}\n"
    assert rl("--version").stdout == f"rl-supervisor {__version__}\n"
    for words in (
        [],
        ["explode"],
        ["run"],
        ["run", "x.toml", "--step", "-1"],
        ["restore", "x.toml", "--step", "newest"],
    ):
        answer = process(*words) if words == ["explode"] else rl(*words)
        assert answer.returncode == 2
        assert "Traceback" not in answer.stderr
    mistyped = rl("chek").stderr
    assert "'check'" in mistyped and "start-check" not in mistyped
    assert "rl-supervisor diagnose LOGS" in rl().stderr, "who knows no command yet is shown them all"


@pytest.mark.soak
def test_a_bad_run_file_needs_a_person_when_it_is_run_and_is_a_failure_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text("[run]\nid = bs4\n")
    told = 'run.toml line 2, column 6: this is not TOML: Invalid value; text needs quotes: id = "bs4".\n'
    answer = process("run", "run.toml", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (93, told)
    monkeypatch.chdir(tmp_path)
    for verb, code in (("run", 93), ("onstart", 93), ("restore", 1), ("publish", 1), ("prune", 1)):
        assert cli.main([verb, "run.toml"]) == code, verb
        assert capsys.readouterr().err == told


def test_every_error_keeps_to_the_exit_contract(capsys: pytest.CaptureFixture[str]) -> None:
    for error, contract in ((ConfigError("a"), 93), (TryAgainError("b"), 75), (PodUnfitError("c"), 94)):

        def fail(error: Exception = error) -> int:
            raise error

        assert terminal.run_cli(fail, "x", contract=True) == contract
        assert terminal.run_cli(fail, "x") == 1
    assert capsys.readouterr().err == "a\na\nb\nb\nc\nc\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ESTALE, 75), (errno.EIO, 75), (errno.ENOSPC, 75), (errno.EACCES, 93), (errno.EROFS, 93)],
    ids=errno.errorcode.get,
)
def test_a_daemon_that_a_file_ended_is_started_again_unless_a_person_has_to_mend_it(number: int, code: int) -> None:
    told = explain_os_error(OSError(number, "It says so", "/mnt/nfs/run.log"))
    assert (told.exit_code, str(told)) == (code, "/mnt/nfs/run.log: It says so")


def test_a_clause_of_the_store_ends_as_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise StoreError("transient", "no connection to B2 (Connection refused)")

    assert terminal.run_cli(fail, "x") == 1
    assert capsys.readouterr().err == "No connection to B2 (Connection refused).\n"


def test_a_crash_is_one_sentence_and_a_file_without_secrets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", "do-not-show-this")

    def crash() -> int:
        raise ZeroDivisionError("while holding do-not-show-this")

    assert terminal.run_cli(crash, "rl-supervisor", contract=True) == 75
    [sentence] = capsys.readouterr().err.splitlines()
    [file] = tmp_path.iterdir()
    assert sentence == (
        "rl-supervisor failed in a way it does not know: ZeroDivisionError: while holding ***. Please report it with "
        f"{file}, which holds the details."
    )
    text = file.read_text()
    assert "Traceback" in text
    assert "do-not-show-this" not in text.replace('raise ZeroDivisionError("while holding do-not-show-this")', "")


def test_each_command_has_all_that_its_function_asks_for() -> None:
    """A command names its function, and options go to parameters of their names: no type checker sees a wrong one."""
    verbs = next(one for one in cli._build_parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    named = {name: sub for name, sub in verbs.items() if isinstance(sub.get_default("verb"), str)}
    assert len(named) >= 15
    for name, sub in named.items():
        module, _, function = sub.get_default("verb").partition(".")
        parameters = inspect.signature(getattr(import_module(f"supervisor.cli.{module}"), function)).parameters
        asked = [action for action in sub._actions if not (action.required and action.nargs == 0)]  # `notify --test`
        given = {action.dest for action in asked} | set(sub._defaults) | {"options"}
        wanted = {one.name for one in parameters.values() if one.default is inspect.Parameter.empty}
        assert wanted <= given, f"{name}: {sorted(wanted - given)}"
        unused = given - {"help", "verb", "options"} - set(parameters)
        assert not unused or "options" in parameters, f"{name}: {sorted(unused)} go nowhere"
