"""Every command that a page for operators shows is executed: here against a practice pod, or by a test that is named.

A new command on a page fails ``test_every_command_has_a_test`` until it has a row in one of the tables below.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.checkpoints.publish import publish
from supervisor.cli import ctl, main
from supervisor.storage import open_store
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, Step, quiet
from tests.e2e.rig import Pod
from tests.practice.command_line import CommandLine
from tests.practice.era import load_era

ROOT = Path(__file__).parents[2]
PAGES = (
    *("operations", "sentences", "before-a-run", "tasks", "systemd", "containers", "leaving", "store", "evidence"),
    "files",
)
TEXTS = {page: (ROOT / "docs" / f"{page}.md").read_text() for page in PAGES}
PAGE = "\n\n".join(TEXTS.values())
PROGRAMS = {  # what a command in a sentence begins with; in a shell block each line is one
    *("rl-supervisor", "supervisorctl", "systemctl", "journalctl", "systemd-analyze", "loginctl", "b2", "tail"),
    *("pgrep", "nvidia-smi", "pip", "python3", "rl", "docker", "kill", "touch", "curl", "find", "cp", "export"),
    *("onstart.sh", "rl-supervisor-onstart", "bash", "trap", "editor", "zcat", "ln", "rm", "git", "apt-get"),
}
ALONE = {"nvidia-smi", "zcat"}  # a single word that is a command; others of one word only name their program
NO_COMMANDS = {"uv sync", "sleep infinity"}  # what a build argument is for, and what a script has until now
SYSTEMD = "tests/systemd/test_real_systemd.py"
ONSTART, BESIDE = "tests/units/test_onstart.py", "tests/image/test_beside.py"
IN_ORDER = "test_the_commands_of_the_page_work_in_their_order"

ELSEWHERE: list[tuple[str, str, str, str]] = [
    # command (a regular expression), the file and the name of the test that executes it, how that is seen in it
    (r"rl-supervisor (un)?install( .*)?", "tests/units/test_install.py", "test_all_is_put_in_place_.*", r"install\(\)"),
    (
        r"rl-supervisor init --from .*",
        "tests/people/test_init_pod.py",
        "test_the_lines_of_the_page_are_taken",
        r'\("init", "--from", .*"-o"',
    ),
    (
        r"rl-supervisor check --explain .*",
        "tests/people/test_check.py",
        "test_what_a_finding_means_.*",
        r'told\(capsys, "--explain", GROUPS\)',
    ),
    (
        r"rl-supervisor check rl\.toml( --as-of .*)?",
        "tests/people/test_check.py",
        "test_a_configuration_of_prime_rl_.*",
        r'told\(capsys, "rl\.toml", "--as-of"',
    ),
    (
        r"rl-supervisor check train\.toml orch\.toml infer\.toml",
        "tests/people/test_check.py",
        "test_the_three_files_are_checked_together",
        r'in_json\(capsys, "i\.toml", "o\.toml", "t\.toml"',
    ),
    (
        r"rl-supervisor diagnose( LOGS)?",
        "tests/diagnosis/test_command.py",
        "test_a_folder_is_read_and_the_root_is_named",
        r"diagnose",
    ),
    (
        r"rl-supervisor run RUN\.toml --overrule ID",
        "tests/e2e/test_start_check.py",
        "test_an_error_stops_the_first_start_.*",
        r'start\("run", "--overrule", ID\)',
    ),
    (r"pip install --upgrade .*", "tests/units/test_install.py", "test_pip_installs_.*", r'"pip install" in line'),
    (
        r"systemctl kill --kill-whom=main --signal=KILL .*",
        SYSTEMD,
        "test_two_runs_on_one_machine_.*",
        r'"kill", "--signal=KILL", "--kill-whom=main"',
    ),
    (r"systemctl list-units 'rl-job-\*'", SYSTEMD, "test_stop_start_pause_and_a_reboot", r'"list-units", .*rl-job-'),
    (r"systemctl status rl-supervisor@NAME", SYSTEMD, IN_ORDER, r"systemctl status"),
    (r"systemctl reload( rl-supervisor@NAME)?", SYSTEMD, "test_reload_puts_.*", r'systemctl\("reload"'),
    (r"journalctl -u rl-supervisor@NAME", SYSTEMD, "test_a_run_meets_a_silent_vllm_death_.*", r"\.journal\("),
    (r"systemd-analyze security", "tests/units/test_service.py", "test_the_unit_is_no_more_.*", r'"security"'),
    (r"rl-supervisor attach RUN\.toml", "tests/e2e/test_observe.py", "test_a_job_started_.*", r'start\("attach"\)'),
    (
        r"supervisorctl start --take-over",
        "tests/e2e/test_fencing.py",
        "test_a_pod_that_is_fenced_in_the_middle_of_a_publish_.*",
        r'ctl\("start", "--take-over"\)',
    ),
    (r"supervisorctl upgrade", "tests/e2e/test_upgrade.py", "test_a_run_goes_on_under_other_.*", r"upgrade\(pod\)"),
    (r"kill -HUP 1", "tests/units/test_nanny.py", "test_sighup_tries_again_at_once_while_a_.*", r"signal\.SIGHUP"),
    (r"kill \$\(cat .*onstart-NAME\.pid\)", ONSTART, "test_it_returns_at_once_.*", r"end\(int\(box\.pid_file"),
    (r"rl-supervisor-onstart my-run", ONSTART, "test_it_returns_at_once_.*", r'box\.run\("demo"\)'),
    (r"onstart\.sh --foreground NAME", ONSTART, "test_sigterm_reaches_the_daemon_.*", r'"--foreground", "demo"'),
    (
        r"(bash /workspace/)?onstart\.sh (NAME|my-run) -- /start\.sh",
        BESIDE,
        "test_beside_the_providers_script_.*",
        r'"bash", str\(SCRIPT\), "demo", "--"',
    ),
    (r"trap 'kill -TERM .*' TERM", BESIDE, "test_a_trap_in_a_script_of_ones_own_.*", r"trap = "),
]
OURS = {"rl-supervisor": main._build_parser, "supervisorctl": ctl._build_parser}
SYSTEMD_TOOLS = ("systemctl", "loginctl", "journalctl", "systemd-analyze")
NAMED = {
    # What the page names and no test can execute, with the reason. systemd's own are still checked to exist.
    r"systemctl (start|status|restart|--user)": "named in a sentence, without a unit",
    r"systemctl edit .*": "it opens a person's editor",
    r"editor .*": "it is a person's",
    r"loginctl enable-linger USER": "it changes a person's account",
    r"docker .*": "the tests have no container engine",
    r"nvidia-smi": "the tests have no GPU",
    r"zcat": "gzip's own; tests/process/test_kept_logs.py unpacks the same files",
}


def commands() -> list[str]:
    """Each command of the page once: lines of shell blocks, and what begins with a known program in backquotes."""
    blocks = re.findall(r"(?s)```sh\n(.*?)```", PAGE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    shown = [part for line in lines for part in re.split(r" && | \|\| ", re.split(r"(?:^|\s)#", line)[0])]
    found = shown + [code for code in sentences() if _is_command(_bare(code))]
    return list(dict.fromkeys(one for one in map(_bare, found) if one))


def sentences() -> list[str]:
    """What stands in backquotes outside of blocks."""
    prose = re.sub(r"(?s)```.*?```", "", PAGE)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def in_order() -> list[str]:
    """The commands of the block about systemd that the box executes one after the other."""
    block = TEXTS["systemd"].partition("```sh\n")[2].partition("```")[0]
    lines = [_bare(line.partition("  #")[0]) for line in block.splitlines()]
    return [line for line in lines if not line.startswith(("pip ", "editor "))]


def _bare(text: str) -> str:
    return re.sub(r"^(sudo |/opt/rl-supervisor/bin/)+", "", " ".join(text.split()))


def _is_command(text: str) -> bool:
    words = text.split()
    return bool(words) and words[0] in PROGRAMS and (len(words) > 1 or words[0] in ALONE)


def by_hand() -> str:
    """The two blocks under "Restore by hand", as one script."""
    section = TEXTS["store"].partition("## Restore by hand")[2]
    return "\n".join(re.findall(r"(?s)```sh\n(.*?)```", section.partition("\n## ")[0]))


def elsewhere(command: str) -> tuple[str, str, str] | None:
    if command in in_order():
        return SYSTEMD, IN_ORDER, r"for line in lines:\s+done = box\.run"
    return next((tuple(where) for pattern, *where in ELSEWHERE if re.fullmatch(pattern, command)), None)


def text_of(file: str, name: str) -> str:
    """The source of the one test of this name (a regular expression), "" where there is none."""
    text = (ROOT / file).read_text()
    found = [
        ast.get_source_segment(text, one) or ""
        for one in ast.parse(text).body
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_") and re.fullmatch(name, one.name)
    ]
    return found[0] if len(found) == 1 else ""


def named(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in NAMED)


# ---------------------------------------------------------------- what is executed here

LIVING = (  # beside a daemon and a job that run
    r"supervisorctl (status|explain|events|checkpoints|version|tail|incidents)( .*)?",
    r"supervisorctl (pin|unpin) 400",
    r"rl-supervisor (check|check --online|report|trace|prune|verify|logs) .*RUN\.toml.*",
    r"rl-supervisor replay( .*)?",
    r"rl-supervisor logs --store .*",
    r"pgrep -af .*",
    r"tail .+",
)
ORDERS = ("pause", "resume", "restart --new-config", "rollback 400", "stop", "start", "shutdown")
ENDED = (r"rl-supervisor (restore|publish) .*",)  # no daemon runs any more
STARTS = ("rl-supervisor run RUN.toml", "rl-supervisor run RUN.toml --step N", "rl-supervisor run RUN.toml --take-over")
B2_KEYS = (r"b2 key create .*", r"b2 rm --recursive")
OWN = (  # each has a test of its own below
    *B2_KEYS,
    r"rl-supervisor simulate .*",
    r"rl @ config\.toml .*",
    r"pip install 'rl-supervisor\[.*\]'",
)


def executed_here(command: str) -> bool:
    orders = {f"supervisorctl {order}" for order in ORDERS}
    if command in orders or command in STARTS or any(command in line for line in by_hand().splitlines()):
        return True
    return any(re.fullmatch(pattern, command) for pattern in (*LIVING, *ENDED, *OWN))


def test_the_page_shows_commands() -> None:
    found = commands()
    assert len(found) > 40, found
    assert {"supervisorctl status", "b2 sync $RUN/step_120 $OUT/checkpoints/step_120"} <= set(found)


def test_no_program_that_a_sentence_calls_is_overlooked() -> None:
    called = {code for code in map(_bare, sentences()) if " " in code} - NO_COMMANDS
    words = {code.split()[0] for code in called}
    programs = {word for word in words if word.endswith(".sh") or shutil.which(word)}
    assert programs <= PROGRAMS, "add them to PROGRAMS, or what they stand in to NO_COMMANDS"


@pytest.mark.soak
def test_every_command_has_a_test() -> None:
    for command in (one for one in commands() if not executed_here(one) and not named(one)):
        found = elsewhere(command)
        assert found is not None, (
            f"docs/ shows `{command}`, which no test executes: add it to a table of {Path(__file__).name}"
        )
        file, test, seen = found
        text = text_of(file, test)
        assert text, f"{file} has no test {test}, or several, that would execute `{command}`"
        assert re.search(seen, text), f"{test} in {file} does not execute `{command}` any more"


def test_our_own_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = {program: build() for program, build in OURS.items()}
    for command in (one for one in commands() if one.split()[0] in OURS):
        program, *words = shlex.split(command)
        if command == "rl-supervisor replay":
            words.append("incident.jsonl.gz")  # the sentence is about what `trace` has written
        try:
            parsers[program].parse_args([{"N": "3", "HOURS": "8"}.get(word, word) for word in words])
        except SystemExit:
            pytest.fail(f"{command}: {capsys.readouterr().err}")


@pytest.mark.parametrize("command", [one for one in commands() if one.split()[0] in SYSTEMD_TOOLS])
def test_systemds_own_commands_are_understood(command: str) -> None:
    program, *words = shlex.split(command)
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    known = subprocess.run([program, "--help"], capture_output=True, text=True, check=False, timeout=60).stdout
    verbs = [] if program == "journalctl" else [word for word in words if not word.startswith("-")][:1]
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    for word in (*verbs, *options):
        assert re.search(rf"(?m)(^|[ \[]){re.escape(word)}\b", known), f"{program} does not know {word}: {command}"


# ---------------------------------------------------------------- a pod


class Desk:
    """Executes commands of the page as they stand there, with what is particular to a run put in."""

    def __init__(self, pod: Pod, folder: Path) -> None:
        self.pod, self.folder = pod, folder
        self.step = 0
        self.made = 0

    def words(self, command: str) -> list[str]:
        found = []
        before = ""
        for word in shlex.split(command):
            found.append(self._filled(word, before))
            before = word
        return found

    def _filled(self, word: str, before: str) -> str:
        if word in ("N", "7", "400", "120"):
            return "1" if before in ("--incident", "--attempt") else str(self.step)
        if word == "DIR":
            self.made += 1
            return str(self.folder / f"fetched-{self.made}")
        if word == "JOURNAL.db":
            return str(self.pod.state_dir / "journal.db")
        if word.startswith(("STATE", "/var/log/rl-supervisor/")):
            return str(self.folder / "daemon.jsonl")
        if word == "incident.jsonl.gz":
            return str(self.folder / word)
        places = {"URL": self.pod.store, "b2://my-bucket/runs": self.pod.store, "ID": "practice", "my-run": "practice"}
        run_file = str(self.pod.run_file)
        return {**places, "RUN.toml": run_file, "OTHER.toml": run_file}.get(word, word)

    def run(self, command: str) -> str:
        program, *words = self.words(command)
        if command == "rl-supervisor replay":
            words.append(str(self.folder / "incident.jsonl.gz"))  # the sentence is about what `trace` has written
        if program == "supervisorctl":
            done = here(ctl.main, ["--socket", str(self.pod.socket), *words])
        elif program == "rl-supervisor":
            done = here(main.main, words)
        else:
            done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.pod.story()}"
        assert done.stdout.strip() or done.stderr.strip(), f"{command} says nothing"
        return done.stdout


def here(entry: Callable[[list[str]], int], words: list[str]) -> subprocess.CompletedProcess[str]:
    """One of our programs by its entry point, in this process: it is quicker, and there are thirty of them."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = entry(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def those(*patterns: str) -> list[str]:
    return [one for one in commands() if any(re.fullmatch(pattern, one) for pattern in patterns)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    fault = {"kind": "engine-exit-0", "at_step": 3}
    settings = {
        "logging": {"file": str(tmp_path / "daemon.jsonl")},
        "store": {"keep_last": 20},
        "disk": {"keep_local": 20},
    }
    pod = Pod(tmp_path / "pod", "v0.6", faults=[fault], max_steps=5000, step_s=0.8, settings=settings)
    yield Desk(pod, tmp_path)
    pod.close()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_page_works_on_a_pod(desk: Desk) -> None:
    pod = desk.pod

    def until(what: Callable[[], object], about: str) -> None:
        pod.wait_for(what, about, timeout_s=60)

    def state(word: str) -> Callable[[], bool]:
        return lambda: pod.status().get("state") == word

    def attempts(count: int) -> Callable[[], bool]:
        return lambda: len(pod.practice.starts()) == count and state("running")()

    pod.start("run")  # rl-supervisor run RUN.toml
    until(lambda: pod.sentences("incident-closed"), "an incident comes and goes")
    until(lambda: len(pod.stored()) >= 2, "steps are published")
    desk.step = pod.stored()[-1]
    living = those(*LIVING)
    # A trace has to be written before it is replayed, and the step is pinned until the run has gone back to it.
    for command in sorted((one for one in living if "unpin" not in one), key=lambda one: "replay" in one):
        told = desk.run(command)
        if command.startswith("pgrep"):
            assert str(pod.folder) in told, "the job is found by the page's pattern"
    assert desk.step in pod.stored()

    desk.run("supervisorctl pause")
    until(lambda: pod.status().get("paused"), "it is paused")
    desk.run("supervisorctl resume")
    until(lambda: not pod.status().get("paused"), "it goes on")
    started = len(pod.practice.starts())
    desk.run("supervisorctl restart --new-config")
    until(attempts(started + 1), "it is started again")
    desk.run("supervisorctl rollback 400")
    until(attempts(started + 2), "it is started at the older step")
    assert pod.resume_steps()[-1] == desk.step
    for command in living:
        if "unpin" in command:
            desk.run(command)
    desk.run("supervisorctl stop")
    until(state("stopped"), "it is stopped")
    desk.run("supervisorctl start")
    until(attempts(started + 3), "it goes on")
    desk.run("supervisorctl shutdown")
    assert pod.wait_exit() == 0
    desk.step = int(pod.latest()["step_number"])
    for command in those(*ENDED):
        desk.run(command)
    assert any(desk.folder.glob("fetched-*/step_*/trainer/.metadata"))

    for command in those(*(re.escape(start) for start in STARTS)):
        if command == STARTS[0]:
            continue  # that is how it was started
        count = len(pod.practice.starts())
        pod.start("run", *desk.words(command)[3:])
        until(lambda count=count: len(pod.practice.starts()) > count, command)
        if "--step" in command:
            assert pod.resume_steps()[-1] == desk.step
        assert pod.daemon is not None
        pod.daemon.send_signal(signal.SIGTERM)
        assert pod.wait_exit() == 0


# ---------------------------------------------------------------- without a pod


@pytest.fixture
def b2_tool(tmp_path: Path) -> Iterator[tuple[B2Server, dict[str, str]]]:
    if not (Path(sys.executable).with_name("b2")).exists():
        pytest.skip("the b2 command line tool is not installed beside this Python")
    with B2Server(bucket="my-bucket", part_size=PART) as server:
        yield (
            server,
            {
                **os.environ,
                **server.environ(),
                "B2_ENVIRONMENT": server.url,
                "B2_ACCOUNT_INFO": str(tmp_path / "account.sqlite"),
                "HOME": str(tmp_path),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            },
        )


@pytest.mark.soak
def test_a_step_is_restored_by_hand_as_the_page_says(b2_tool: tuple[B2Server, dict[str, str]], tmp_path: Path) -> None:
    server, environ = b2_tool
    store = open_store("b2://my-bucket/runs", server.url, server.environ(), streams=4, part_size=PART)
    step = Step(tmp_path / "pod", 120).fill()
    publish(store, replace(step.plan(tmp_path / "state"), run_id="my-run"), quiet)
    output = tmp_path / "outputs"
    (output / "checkpoints").mkdir(parents=True)
    script = by_hand().replace("/root/prime-rl/outputs", str(output))
    for name in ("B2_APPLICATION_KEY_ID", "B2_APPLICATION_KEY"):
        assert f"{name}=..." in script
        script = script.replace(f"{name}=...", f"{name}={environ[name]}")
    done = subprocess.run(
        ["bash", "-euc", script], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    assert '"step_120"' in done.stdout
    back = {str(path.relative_to(output)): path for path in output.rglob("*") if path.is_file()}
    for name, data in step.content().items():
        assert back[name].read_bytes() == data, name
    metadata = output / "checkpoints/step_120/trainer/.metadata"
    assert all(path.stat().st_mtime <= metadata.stat().st_mtime for path in back.values())


@pytest.mark.soak
def test_keys_and_deletions_of_the_page_are_understood_by_the_b2_tool(
    b2_tool: tuple[B2Server, dict[str, str]],
) -> None:
    server, environ = b2_tool
    server.put("runs/my-run/step_999/x", b"left by a rollback")
    found = those(*B2_KEYS)
    assert found
    for command in found:
        words = shlex.split(command)
        if words[1] == "rm":
            words.append("b2://my-bucket/runs/my-run/step_999")  # the sentence says which steps
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert not server.objects()


@pytest.mark.soak
def test_what_is_said_of_the_simulator_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for command in those(r"rl-supervisor simulate .*"):
        words = shlex.split(command)[1:]
        assert main.main([*words, "--hours", "5"]) == 0, command  # the page's 1000 take a minute
    assert "core" in capsys.readouterr().out


def test_the_launchers_command_lines_are_those_of_their_eras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text("max_steps = 500\n")
    (old,) = those(r"rl @ config\.toml .*")
    parsed = CommandLine(load_era("2026-01-06"), "rl").parse(shlex.split(old)[1:])
    assert parsed["ckpt"] == {"resume_step": 120, "interval": 10}
    new = re.findall(r"`(--resume\.step [^`]+)`", PAGE)
    assert new
    for words in new:
        parsed = CommandLine(load_era("2026-08-21"), "rl").parse(["@", "config.toml", *shlex.split(words)])
        assert (parsed["resume"]["step"], parsed["run"]["name"]) == (120, "NAME")


def test_the_extra_that_the_page_installs_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command in those(r"pip install 'rl-supervisor\[.*\]'"):
        assert re.search(r"\[(\w+)\]", command)[1] in extras  # type: ignore[index]
