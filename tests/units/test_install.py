"""`rl-supervisor install` and `uninstall`: into an empty root, and for one whose systemctl only takes notes.

That a real systemd likes what is installed is tried in tests/systemd.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.base import secrets
from supervisor.base.errors import ConfigError
from supervisor.cli import main
from supervisor.install import installing, unit_files
from supervisor.install.unit_files import Place
from supervisor.process import transient

ROOT = Path(__file__).parents[2]
RUN_FILE = """
[run]
id = "demo"
[job]
kind = "command"
dir = "/srv/demo"
[job.plain]
start = ["train"]
resume = ["train", "{step}"]
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
*--version) cat "$CALLS.version" 2>/dev/null ;;
*is-active*) cat "$CALLS.active" 2>/dev/null ;;
*is-enabled*) echo enabled ;;
*list-units*) cat "$CALLS.running" 2>/dev/null ;;
*enable*) [ ! -e "$CALLS.refuse" ] || { echo "Job for it failed." >&2; exit 1; } ;;
esac
exit 0
"""
as_user = pytest.mark.parametrize("user", [False, True], ids=["root", "user"])


def everything(folder: Path) -> dict[str, tuple[str, str, int]]:
    """Path, kind and mode, text and time of all that is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        text = path.read_text("latin-1") if path.is_file() else ""
        found[str(path.relative_to(folder))] = (stat.filemode(about.st_mode), text, about.st_mtime_ns)
    return found


class Machine:
    """An empty root, and one who calls the program for it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = folder / "root", capsys
        self.run_file = folder / "anything.toml"
        self.run_file.write_text(RUN_FILE)
        self.where = unit_files.place(self.root)
        self.unit = self.where.at(self.where.units) / unit_files.SERVICE
        self.config = self.where.at(self.where.config)

    def call(self, *words: str) -> tuple[int, str]:
        code = main.main([*words, "--prefix", str(self.root)])
        told = self.capsys.readouterr()
        return code, told.out + told.err

    def install(self, *words: str) -> str:
        code, text = self.call("install", "--run", str(self.run_file), *words)
        assert code == 0, text
        return text


@pytest.fixture
def at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[bool], Machine]:
    def make(user: bool) -> Machine:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/home/somebody")
        monkeypatch.setattr(os, "geteuid", lambda: 1000 if user else 0)
        return Machine(tmp_path, capsys)

    return make


@as_user
def test_a_dry_run_says_all_and_does_nothing(at: Callable[[bool], Machine], user: bool) -> None:
    machine = at(user)
    text = machine.install("--dry-run")
    assert not machine.root.exists()
    assert text.startswith("Would do, in this order:\n")
    for part in (str(machine.unit), "demo.toml, as ", "demo.env, mode 600", "+# B2_APPLICATION_KEY=", '+id = "demo"'):
        assert part in text
    assert "\n+++ " in text
    ctl = "systemctl --user" if user else "systemctl"
    assert f"\nnext: put the keys into {machine.where.config}/demo.env\n" in text
    assert f"\nnext: {ctl} enable --now rl-supervisor@demo\n" in text


@as_user
def test_all_is_put_in_place_once_and_a_second_call_changes_nothing(at: Callable[[bool], Machine], user: bool) -> None:
    machine = at(user)
    before = os.umask(0o077)
    try:
        text = machine.install()
    finally:
        os.umask(before)
    assert "systemctl --user enable --now rl-supervisor@demo" in text or not user
    assert (machine.config / "demo.toml").read_text() == RUN_FILE
    assert stat.S_IMODE((machine.config / "demo.env").stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.unit.stat().st_mode) == 0o644
    for folder in (machine.config, machine.where.at(machine.where.state)):
        assert stat.S_IMODE(folder.stat().st_mode) == (0o700 if user else 0o750)
    unit = machine.unit.read_text()
    program = Path(sys.executable).with_name("rl-supervisor")
    assert f"ExecStart={program} run {machine.where.config}/%i.toml" in unit
    assert f"EnvironmentFile=-{machine.where.config}/%i.env" in unit
    assert (machine.unit.parent / unit_files.SLICE).exists() is not user

    now = everything(machine.root)
    assert "Nothing to do: it is installed." in machine.install()
    assert "Nothing to do: it is installed." in machine.install("--dry-run")
    assert everything(machine.root) == now


@as_user
def test_what_install_put_there_goes_and_what_is_a_persons_stays(at: Callable[[bool], Machine], user: bool) -> None:
    machine = at(user)
    machine.install()
    state = machine.where.at(machine.where.state)
    (machine.config / "other.env").write_text("B2_APPLICATION_KEY=secret\n")
    (machine.config / "odd.env").write_bytes(b"\xff\n")
    (state / "demo").mkdir()
    wants = machine.unit.parent / "multi-user.target.wants"
    wants.mkdir()
    (wants / "rl-supervisor@demo.service").symlink_to(machine.unit)
    now = everything(machine.root)
    assert "Would do" in machine.call("uninstall", "--dry-run")[1]
    assert everything(machine.root) == now
    code, text = machine.call("uninstall")
    assert code == 0
    assert f"{machine.config} is left, with demo.toml, odd.env, other.env" in text
    assert f"{state} is left, with demo" in text
    assert "checkpoints, here and in the store, are left" in text
    left = {name for name, (mode, _, _) in everything(machine.root).items() if not mode.startswith("d")}
    assert {Path(name).name for name in left} == {"demo.toml", "odd.env", "other.env"}
    assert "Nothing to do" in machine.call("uninstall")[1]


def test_uninstall_right_after_an_install_without_a_run_leaves_no_folder_of_ours(
    at: Callable[[bool], Machine],
) -> None:
    machine = at(False)
    assert machine.call("install")[0] == 0
    assert machine.call("uninstall")[0] == 0
    assert not [name for name in everything(machine.root) if "rl-supervisor" in name]


def test_another_run_under_the_same_name_is_never_overwritten(at: Callable[[bool], Machine]) -> None:
    machine = at(False)
    machine.install()
    machine.run_file.write_text(RUN_FILE.replace("/srv/demo", "/srv/other"))
    now = everything(machine.root)
    code, text = machine.call("install", "--run", str(machine.run_file))
    assert code == 1
    assert "demo.toml exists and is another file than" in text
    assert everything(machine.root) == now


def test_a_run_file_that_is_in_its_place_is_taken_where_it_is_and_keys_are_never_touched(
    at: Callable[[bool], Machine],
) -> None:
    machine = at(False)
    machine.config.mkdir(parents=True)
    (machine.config / "night.toml").write_text(RUN_FILE)
    (machine.config / "night.env").write_text("B2_APPLICATION_KEY=x\n")
    (machine.config / "night.env").chmod(0o644)
    code, text = machine.call("install", "--run", str(machine.config / "night.toml"))
    assert code == 0
    assert "night.toml is in its place" in text
    assert f"others can read it: chmod 600 {machine.config / 'night.env'}" in text
    assert "next: systemctl enable --now rl-supervisor@night" in text
    assert (machine.config / "night.env").read_text() == "B2_APPLICATION_KEY=x\n"
    assert {path.name for path in machine.config.iterdir()} == {"night.toml", "night.env"}


def test_an_older_unit_of_ours_is_replaced_and_the_difference_shown(at: Callable[[bool], Machine]) -> None:
    machine = at(False)
    machine.install()
    older = machine.unit.read_text().partition("\n")[2].replace("WatchdogSec=120", "WatchdogSec=60")
    machine.unit.write_text(unit_files.mark_text(older))
    text = machine.install("--dry-run")
    assert "-WatchdogSec=60\n+WatchdogSec=120\n" in text
    text = machine.install()
    assert f"done: replace {machine.unit}" in text
    assert "until then it goes on as it is" in text
    assert "WatchdogSec=120" in machine.unit.read_text()


def test_a_plain_copy_of_the_shipped_unit_counts_as_ours(at: Callable[[bool], Machine]) -> None:
    machine = at(False)
    machine.unit.parent.mkdir(parents=True)
    shutil.copy(ROOT / "units" / unit_files.SERVICE, machine.unit)
    assert f"done: replace {machine.unit}" in machine.install()


@pytest.mark.parametrize("how", ["edited", "foreign", "link"])
def test_a_unit_that_somebody_else_wrote_or_changed_stays_and_nothing_at_all_is_done(
    at: Callable[[bool], Machine], how: str
) -> None:
    machine = at(False)
    machine.unit.parent.mkdir(parents=True)
    if how == "edited":
        machine.install()
        machine.unit.write_text(machine.unit.read_text() + "# mine\n")
    elif how == "foreign":
        machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    else:
        machine.unit.symlink_to("/dev/null")  # masked
    shutil.rmtree(machine.config, ignore_errors=True)
    now = everything(machine.root)
    code, text = machine.call("install", "--run", str(machine.run_file))
    assert code == 1
    assert "was changed by hand" in text if how == "edited" else "is not from `rl-supervisor install`" in text
    assert everything(machine.root) == now
    code, text = machine.call("uninstall")
    assert (code, f"{unit_files.SERVICE} is left" in text, os.path.lexists(machine.unit)) == (0, True, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("[job]", "[jobs]"), "[jobs]"),
        (('dir = "/srv/demo"', 'dir = "demo"'), 'job.dir = "demo" depends on where one stands'),
    ],
)
def test_a_run_file_that_would_not_work_there_is_refused_before_anything_is_done(
    at: Callable[[bool], Machine], change: tuple[str, str], sentence: str
) -> None:
    machine = at(False)
    machine.run_file.write_text(RUN_FILE.replace(*change))
    code, text = machine.call("install", "--run", str(machine.run_file))
    assert (code, sentence in text, machine.root.exists()) == (1, True, False), text


def test_a_folder_that_others_can_read_is_closed(at: Callable[[bool], Machine]) -> None:
    machine = at(False)
    machine.config.mkdir(parents=True, mode=0o755)
    assert f"done: chmod 0750 {machine.config} (it was 0755)" in machine.install()
    assert stat.S_IMODE(machine.config.stat().st_mode) == 0o750


def test_a_path_that_a_unit_cannot_name_is_refused(
    at: Callable[[bool], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = at(True)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/a b/%n")
    code, text = machine.call("install")
    assert (code, machine.root.exists()) == (1, False)
    assert "characters that a unit cannot name safely" in text


@as_user
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_to_complain_about_in_what_is_installed(
    at: Callable[[bool], Machine], user: bool
) -> None:
    machine = at(user)
    machine.install()
    units = [path for path in machine.unit.parent.iterdir() if path.is_file()]
    names = [str(path).replace("@.service", "@demo.service") for path in units]
    scope = ["--user"] if user else []
    done = subprocess.run(
        ["systemd-analyze", *scope, "verify", "--man=no", *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": "/root", "XDG_RUNTIME_DIR": str(machine.root)},
    )
    if "Failed to" in done.stderr and "demo" not in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()[:200]}")
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- where systemd answers, and where it does not


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody with a home folder and a systemctl that writes down what it is told; the file of calls."""
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("systemctl", "systemd-run"):
        (programs / name).write_text(SYSTEMCTL)
        (programs / name).chmod(0o755)
    calls.touch()
    booted = tmp_path / "booted"
    booted.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home/.config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/.local/state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(transient, "BOOTED", booted)
    (tmp_path / "demo.toml").write_text(RUN_FILE.replace("/srv/demo", str(tmp_path)))
    return calls


ASKS = ("--property=Version", "--version", " is-")


def told_to_systemd(calls: Path) -> list[str]:
    return [line for line in calls.read_text().splitlines() if not any(word in line for word in ASKS)]


def test_it_is_started_only_when_asked_and_only_when_it_does_not_run(user: Path) -> None:
    run_file = str(user.with_name("demo.toml"))
    assert main.main(["install", "--run", run_file]) == 0
    assert told_to_systemd(user) == ["--user daemon-reload"]
    user.write_text("")
    assert main.main(["install", "--run", run_file, "--now"]) == 0
    assert told_to_systemd(user) == ["--user enable --now rl-supervisor@demo"]
    user.write_text("")
    Path(f"{user}.active").write_text("active\n")
    assert main.main(["install", "--run", run_file, "--now"]) == 0
    assert told_to_systemd(user) == []


B2, S3 = "b2://my-bucket/runs", "s3://my-bucket/runs"


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        (B2, "B2_APPLICATION_KEY_ID=0051\nB2_APPLICATION_KEY='K005'\n"),
        (S3, 'AWS_ACCESS_KEY_ID=AK\n  AWS_SECRET_ACCESS_KEY = "x"\n'),
    ],
)
def test_a_run_without_the_key_of_its_store_is_not_started(
    user: Path, capsys: pytest.CaptureFixture[str], url: str, keys: str
) -> None:
    run_file = user.with_name("demo.toml")
    run_file.write_text(run_file.read_text() + f'[store]\nurl = "{url}"\n')
    env = unit_files.place().config / "demo.env"
    names = [line.strip().partition("=")[0].strip() for line in keys.splitlines()]
    assert main.main(["install", "--run", str(run_file), "--now"]) == 1
    said = capsys.readouterr().err
    assert f"The store {url} needs {' and '.join(names)}, and {env} has no value for them. Nothing was done." in said
    assert f"put the key into {env}, then systemctl --user enable --now rl-supervisor@demo" in said
    assert not unit_files.place().units.exists()

    assert main.main(["install", "--run", str(run_file)]) == 0
    assert f"next: put the keys into {env} ({', '.join(names)})\n" in capsys.readouterr().out
    assert main.main(["install", "--run", str(run_file), "--now"]) == 1, "the names alone are no keys"
    assert not [line for line in told_to_systemd(user) if "enable" in line]

    env.write_text(f"# mine\n{keys}")
    capsys.readouterr()
    assert main.main(["install", "--run", str(run_file), "--now"]) == 0
    assert "put the keys" not in capsys.readouterr().out
    assert told_to_systemd(user)[-1] == "--user enable --now rl-supervisor@demo"


def test_a_credential_of_systemd_is_a_key_as_well(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = Place(tmp_path / "units", tmp_path / "etc", tmp_path / "var", user=False, share=tmp_path / "share")
    credstore = tmp_path / "credstore"
    credstore.mkdir()
    monkeypatch.setattr(secrets, "CREDSTORES", (credstore,))
    run_file = user.with_name("demo.toml")
    run_file.write_text(run_file.read_text() + f'[store]\nurl = "{B2}"\n')
    for name in ("b2_application_key_id", "b2_application_key"):
        (credstore / f"demo.{name}").write_text("x\n")
    program = Path("/opt/rl-supervisor/bin/rl-supervisor")
    plan = installing.plan_install(where, program, run_file, now=True)
    assert "enable --now rl-supervisor@demo" in plan.steps[-1].about

    Path(f"{user}.version").write_text("systemd 249 (249.11-0ubuntu3.12)\n+PAM +AUDIT\n")
    with pytest.raises(ConfigError, match="needs B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY"):
        installing.plan_install(where, program, run_file, now=True)
    plan = installing.plan_install(where, program, run_file)
    (unit,) = [step for step in plan.steps if unit_files.SERVICE in step.about]
    assert "EnvironmentFile=" in unit.diff and "LoadCredential" not in unit.diff.replace("LoadCredential=,", "")
    told = "systemd 249 is older than 252: the unit is written without LoadCredential=, so keys go into "
    assert any(told in sentence for sentence in plan.kept)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('resume = ["train", "{step}"]', 'resume = ["train"]'), "[job.plain] resume names neither {step} nor"),
        (("dir = ", 'dir = "/nowhere" # '), "[job] dir = /nowhere: there is no such folder"),
    ],
)
def test_a_run_file_that_check_refuses_is_not_installed(
    user: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], sentence: str
) -> None:
    run_file = user.with_name("demo.toml")
    run_file.write_text(run_file.read_text().replace(*change))
    assert main.main(["check", str(run_file)]) == 1
    assert sentence in capsys.readouterr().out
    assert main.main(["install", "--run", str(run_file)]) == 1
    said = capsys.readouterr().err
    assert sentence in said and f"Nothing was done. Mend {run_file}, then: rl-supervisor check {run_file}" in said
    assert (told_to_systemd(user), unit_files.place().units.exists()) == ([], False)

    run_file.write_text(run_file.read_text() + '[setup]\ncommands = ["git clone ..."]\n')
    assert main.main(["install", "--run", str(run_file)]) == 0, "[setup] may bring the job"


def test_a_start_that_fails_says_where_to_look(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{user}.refuse").touch()
    assert main.main(["install", "--run", str(user.with_name("demo.toml")), "--now"]) == 1
    told = capsys.readouterr()
    assert "done: --user" not in told.out
    assert "Job for it failed. See: systemctl --user status rl-supervisor@demo" in told.err


def test_a_unit_is_not_taken_from_a_daemon_that_runs(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["install"]) == 0
    Path(f"{user}.running").write_text("rl-supervisor@demo.service loaded active running RL run demo, supervised\n")
    assert main.main(["uninstall"]) == 1
    assert "systemctl --user disable --now rl-supervisor@demo" in capsys.readouterr().err
    assert unit_files.place().units.joinpath(unit_files.SERVICE).exists()
    Path(f"{user}.running").unlink()
    assert main.main(["uninstall"]) == 0
    assert not unit_files.place().units.joinpath(unit_files.SERVICE).exists()
    assert told_to_systemd(user)[-1] == "--user daemon-reload"


def test_a_unit_stays_where_systemd_does_not_say_whether_a_daemon_runs(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["install"]) == 0
    systemctl = Path(os.environ["PATH"].partition(":")[0], "systemctl")
    systemctl.write_text(
        SYSTEMCTL.replace("*list-units*)", "*list-units*) echo Connection reset >&2; exit 1 ;;\n*not)")
    )
    assert main.main(["uninstall"]) == 1
    assert "does not say whether a daemon runs (Connection reset)" in capsys.readouterr().err
    assert unit_files.place().units.joinpath(unit_files.SERVICE).exists()


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_without_systemd_it_says_what_to_do_instead(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transient, "BOOTED", tmp_path / "nothing")
    assert main.main([verb]) == 1
    told = capsys.readouterr().err
    assert "systemd is not this machine's init" in told
    assert "`rl-supervisor run RUN.toml`" in told
    assert (unit_files.UNITS / "onstart.sh").exists()
    assert str(unit_files.UNITS / "onstart.sh") in told


def test_a_user_whose_manager_is_silent_hears_of_lingering(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(os.environ["PATH"].partition(":")[0], "systemctl").write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    assert main.main(["install"]) == 1
    name = pwd.getpwuid(os.getuid()).pw_name
    assert f"(no bus). For a user's own units, `loginctl enable-linger {name}`" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--now"], ["--now", "--run", "x.toml", "--prefix", "/tmp/x"]])
def test_now_needs_a_run_and_this_machine(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["install", *words]) == 2
    assert "--now starts a run" in capsys.readouterr().err


def a_checkout(folder: Path) -> Path:
    left_out = shutil.ignore_patterns(".*", "build", "tests", "bench", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=left_out))


@pytest.mark.soak
def test_a_wheel_brings_the_units_along(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(checkout)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    if "Could not find a version" in done.stderr or "No module named pip" in done.stderr:
        pytest.skip(f"no wheel can be built here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    for file in (ROOT / "units").iterdir():
        assert wheel.read(f"supervisor/install/units/{file.name}") == file.read_bytes()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_pip_installs_a_checkout_as_the_page_says_and_an_upgrade_is_the_same_again(tmp_path: Path) -> None:
    """Two lines of the page's block, with another folder in the place of /opt/rl-supervisor."""
    page = (ROOT / "docs" / "systemd.md").read_text()
    block = page.partition("```sh\n")[2].partition("```")[0]
    lines = [line.partition("  #")[0] for line in block.splitlines()]
    lines = [line for line in lines if "-m venv" in line or "pip install" in line]
    assert len(lines) == 2
    checkout, place = a_checkout(tmp_path), tmp_path / "opt"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in (*lines, lines[1]):
        command = line.replace("sudo ", "").replace("/opt/rl-supervisor", str(place))
        bash = ["bash", "-euc", command]
        done = subprocess.run(bash, cwd=checkout, env=env, capture_output=True, text=True, check=False)
        if "Could not find a version" in done.stderr:
            pytest.skip(f"no package index is reached: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, f"{command}: {done.stderr}"
    for words in (
        ("rl-supervisor", "install", "--dry-run", "--prefix", str(tmp_path / "root")),
        ("supervisorctl", "-h"),
    ):
        done = subprocess.run([place / "bin" / words[0], *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@as_user
def test_man_pages_and_completion_are_put_where_man_and_shells_look_and_removed_again(
    at: Callable[[bool], Machine], user: bool
) -> None:
    machine = at(user)
    text = machine.install()
    share = machine.where.at(machine.where.share)
    assert f"done: write man pages, and completion for bash and zsh, below {share}" in text
    assert machine.where.share == Path("/home/somebody/.local/share" if user else "/usr/local/share")
    for name in (
        "man/man1/rl-supervisor.1",
        "bash-completion/completions/supervisorctl",
        "zsh/site-functions/_rl-supervisor",
    ):
        assert (share / name).stat().st_mode & 0o777 == 0o644
    assert f"as it was: man pages and completion below {share} are up to date" in machine.install()
    (share / "man/man1/rl-supervisor.1").write_text(
        "a page of before\nWritten by `rl-supervisor install`, which replaces it\n"
    )
    (share / "man/man1/supervisorctl.1").write_text("supervisord's")
    again = machine.install()
    assert f"as it was: {share}/man/man1/supervisorctl.1 is left: it is not from `rl-supervisor install`" in again
    assert "a page of before" not in (share / "man/man1/rl-supervisor.1").read_text()
    machine.call("uninstall")
    assert [path.name for path in share.rglob("*") if path.is_file()] == ["supervisorctl.1"]


def test_supervisords_own_supervisorctl_keeps_its_man_page_and_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "bin/supervisorctl", tmp_path / "opt/rl-supervisor"
    theirs.parent.mkdir()
    theirs.touch(0o755)
    monkeypatch.setenv("PATH", str(theirs.parent))
    monkeypatch.setattr(installing, "_version", lambda: 252)
    share = tmp_path / "share"
    where = Place(tmp_path / "units", tmp_path / "etc", tmp_path / "var", user=False, share=share)
    texts = {"man/man1/supervisorctl.1": "ours", "zsh/site-functions/_rl-supervisorctl": "ours"}
    plan = installing.plan_install(where, ours, manuals=texts)
    assert f"{share}/man/man1/supervisorctl.1 is not written: supervisorctl is {theirs} here" in plan.kept
    assert not [step for step in plan.steps if "supervisorctl.1" in step.about]
