"""Files that others can write are not obeyed: by the daemon, by `check`, by `install`, by an upgrade, by onstart.sh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.base import proc_stat, secrets, trust
from supervisor.base.errors import ConfigError
from supervisor.cli.main import main
from supervisor.config.run_file import load
from tests.people.in_process import call
from tests.shell.conftest import STRANGER, as_root

ROOT = Path(__file__).parents[2]
RUN = """\
[run]
id = "mine"
state_dir = "{state}"
[job]
kind = "command"
[job.plain]
start = ["true"]
resume = ["true"]
"""


@pytest.fixture
def etc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of run files with mine.toml, all in order."""
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="rls"))
    folder.chmod(0o755)
    (folder / "etc").mkdir(mode=0o755)
    (folder / "state").mkdir(mode=0o750)
    run_file = folder / "etc" / "mine.toml"
    run_file.write_text(RUN.format(state=folder / "state"))
    run_file.chmod(0o644)
    yield folder / "etc"
    shutil.rmtree(folder)


def in_order(etc: Path) -> Path:
    return etc / "mine.toml"


def everybodys(etc: Path) -> Path:
    (etc / "mine.toml").chmod(0o646)
    return etc / "mine.toml"


def a_groups(etc: Path) -> Path:
    os.chown(etc / "mine.toml", -1, 54399)
    (etc / "mine.toml").chmod(0o660)
    return etc / "mine.toml"


def roots_group(etc: Path) -> Path:
    os.chown(etc / "mine.toml", 0, 0)
    (etc / "mine.toml").chmod(0o664)
    return etc / "mine.toml"


def a_strangers(etc: Path) -> Path:
    os.chown(etc / "mine.toml", STRANGER, STRANGER)
    (etc / "mine.toml").chmod(0o600)
    return etc / "mine.toml"


def in_everybodys_folder(etc: Path) -> Path:
    etc.chmod(0o777)
    return etc / "mine.toml"


def in_a_sticky_folder(etc: Path) -> Path:
    etc.chmod(0o1777)
    return etc / "mine.toml"


def in_a_strangers_folder(etc: Path) -> Path:
    os.chown(etc, STRANGER, STRANGER)
    return etc / "mine.toml"


def below_everybodys_folder(etc: Path) -> Path:
    etc.parent.chmod(0o777)
    return etc / "mine.toml"


def a_link_to_one_in_order(etc: Path) -> Path:
    (etc / "link.toml").symlink_to("../etc/./mine.toml")
    return etc / "link.toml"


def a_link_in_everybodys_folder(etc: Path) -> Path:
    open_to_all = etc.parent / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (open_to_all / "link.toml").symlink_to(etc / "mine.toml")
    return open_to_all / "link.toml"


def a_link_over_everybodys_folder(etc: Path) -> Path:
    between = a_link_in_everybodys_folder(etc)
    (etc / "first.toml").symlink_to(between)
    return etc / "first.toml"


def a_strangers_link_in_a_sticky_folder(etc: Path) -> Path:
    etc.chmod(0o1777)
    (etc / "link.toml").symlink_to("mine.toml")
    os.lchown(etc / "link.toml", STRANGER, STRANGER)
    return etc / "link.toml"


NOT_OURS = (
    f"the {{what}} {{path}} belongs to {STRANGER}, who is neither root nor the one who runs this:"
    " `chown root {path}`."
)
OPEN = "all users can write the folder {above}/open (mode 0777): `chmod go-w {above}/open`."
CASES: dict[Callable[[Path], Path], str] = {
    in_order: "",
    everybodys: "all users can write the file {etc}/mine.toml (mode 0646): `chmod go-w {etc}/mine.toml`.",
    a_groups: "all of group 54399 can write the file {etc}/mine.toml (mode 0660): `chmod g-w {etc}/mine.toml`.",
    roots_group: "",
    a_strangers: NOT_OURS.format(what="file", path="{etc}/mine.toml"),
    in_everybodys_folder: "all users can write the folder {etc} (mode 0777): `chmod go-w {etc}`.",
    in_a_sticky_folder: "",
    in_a_strangers_folder: NOT_OURS.format(what="folder", path="{etc}"),
    below_everybodys_folder: "all users can write the folder {above} (mode 0777): `chmod go-w {above}`.",
    a_link_to_one_in_order: "",
    a_link_in_everybodys_folder: OPEN,
    a_link_over_everybodys_folder: OPEN,
    a_strangers_link_in_a_sticky_folder: NOT_OURS.format(what="file", path="{etc}/link.toml"),
}


@as_root
@pytest.mark.parametrize("made", CASES, ids=lambda made: made.__name__)
def test_the_daemon_and_onstart_judge_alike(made: Callable[[Path], Path], etc: Path) -> None:
    path = made(etc)
    sentence = CASES[made].format(etc=etc, above=etc.parent)
    assert trust.problem_of(path) == sentence
    script = (ROOT / "units" / "onstart.sh").read_text()
    judge = "others_can_write()" + script.partition("others_can_write()")[2].partition("# From ssh")[0]
    words = ["bash", "-uc", f"{judge}\nothers_can_write {path}"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert (told.returncode, bool(told.stdout)) == ((0, True) if sentence else (1, False)), told
    if sentence:
        with pytest.raises(ConfigError, match=r"is not obeyed, since others could change it|may not be read"):
            load(path)  # some kernels follow no stranger's link in a sticky folder (fs.protected_symlinks)
    else:
        assert load(path).run.id == "mine"


@as_root
def test_the_sentence_says_what_to_do_where_every_file_looks_so_and_one_may_insist(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_everybodys_folder(etc)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path} is not obeyed, since others could change it and so run what they like as root: all users can write "
        f"the folder {etc} (mode 0777): `chmod go-w {etc}`. Where a volume shows every file so (a network volume, "
        f"FUSE), copy it to where only you write: `install -D -m 600 {path} /etc/rl-supervisor/mine.toml`; or, if "
        "you trust all users who can write there, set RL_SUPERVISOR_TRUST_FILES=1 in the environment."
    )
    monkeypatch.setenv("RL_SUPERVISOR_TRUST_FILES", "1")
    assert load(path).run.id == "mine"


@as_root
def test_keys_that_others_can_write_are_as_bad_and_so_are_credentials(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = etc / "mine.toml"
    (etc / "mine.env").write_text("LD_PRELOAD=/tmp/x.so\n")
    (etc / "mine.env").chmod(0o666)
    with pytest.raises(ConfigError, match=r"all users can write the file .*/mine\.env"):
        load(path)
    (etc / "mine.env").chmod(0o600)
    assert load(path).run.id == "mine"
    given = etc / "given"
    given.mkdir()
    (given / "b2_application_key").write_text("K000")
    (given / "b2_application_key").chmod(0o666)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given))
    with pytest.raises(ConfigError, match=r"all users can write the file .*/given/b2_application_key"):
        load(path)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert load(path).run.id == "mine"
    store = etc / "run-credstore"
    store.mkdir()
    monkeypatch.setattr(secrets, "CREDSTORES", (etc / "none", store))
    (store / "mine.b2_application_key").write_text("K000")
    (store / "mine.b2_application_key").chmod(0o666)
    with pytest.raises(ConfigError, match=r"all users can write the file .*/run-credstore/mine\.b2_application_key"):
        load(path)


@as_root
def test_a_file_that_says_what_it_said_when_it_was_in_order_is_still_that_file(etc: Path) -> None:
    """A volume that is mounted in another way, or a careless chmod, leaves no run without its daemon."""
    path, state = etc / "mine.toml", etc.parent / "state"
    trust.accept(path, state)
    assert (state / trust.ACCEPTED).stat().st_mode & 0o777 == 0o600
    everybodys(etc)
    in_everybodys_folder(etc)
    assert load(path).run.id == "mine"
    path.write_text(path.read_text().replace('["true"]', '["false"]'))
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)
    trust.accept(path, state)  # what is not in order is never taken down
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)


@as_root
def test_sums_that_others_could_have_written_prove_nothing(etc: Path) -> None:
    path, state = everybodys(etc), etc.parent / "state"
    path.chmod(0o644)
    trust.accept(path, state)
    path.chmod(0o666)
    state.chmod(0o777)
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)


@as_root
def test_the_variable_does_not_count_where_keys_that_others_can_write_bring_it(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd has read the .env by then, and everybody's file would vouch for itself."""
    path = everybodys(etc)
    monkeypatch.setenv(trust.VARIABLE, "1")
    (etc / "mine.env").write_text(f"B2_APPLICATION_KEY=K000\n{trust.VARIABLE}='1'\n")
    (etc / "mine.env").chmod(0o600)
    assert load(path).run.id == "mine"
    (etc / "mine.env").chmod(0o666)
    with pytest.raises(ConfigError, match=r"In .*/mine\.env it does not count, which others can write\."):
        load(path)
    (etc / "mine.env").write_text("B2_APPLICATION_KEY=K000\n")
    assert load(path).run.id == "mine", "it came from elsewhere"


@pytest.fixture
def lives(etc: Path) -> Iterator[Callable[..., None]]:
    """``lives(uid, state)``: a process with the mark of a shim lives, and its record lies in the state folder."""
    running: list[subprocess.Popen[bytes]] = []

    def start(uid: int = 0, state: Path = etc.parent / "state", marked: Path | None = None) -> None:
        folder = state / "attempts" / "0007"
        folder.mkdir(parents=True)
        env = {**os.environ, "RL_SUPERVISOR_ATTEMPT": str(marked or folder)}
        one = subprocess.Popen(["/bin/sleep", "60"], env=env, user=uid)
        running.append(one)
        record = {"shim_pid": one.pid, "shim_start_ticks": proc_stat.start_ticks(one.pid)}
        (folder / "rl.shim.json").write_text(json.dumps(record))

    yield start
    for one in running:
        one.kill()
        one.wait()


@as_root
@pytest.mark.parametrize("volume", ["run file", "state folder too"])
def test_a_job_that_ran_before_this_rule_came_keeps_its_daemon_and_its_file_is_judged_from_then_on(
    volume: str, etc: Path, lives: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_SUPERVISOR_SOCKET_DIR", str(etc.parent / "run"))
    path, state = in_everybodys_folder(etc), etc.parent / "state"
    if volume == "state folder too":
        state.chmod(0o777)
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)  # nothing runs
    lives()
    for _ in range(2):  # a look by `check` uses nothing up
        assert load(path).run.id == "mine"
    warning = trust.accept(path, state)
    assert warning.startswith(
        f"{path} is obeyed this once, since a job of this run lives that began before files were judged, although "
        f"others could change it and so run what they like as root: all users can write the folder {etc} (mode 0777): "
        f"`chmod go-w {etc}`. A daemon that finds it changed ends with 93. Where a volume"
    )
    assert load(path).run.id == "mine" and trust.accept(path, state) == ""
    path.write_text(path.read_text().replace('["true"]', '["false"]'))
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)


@as_root
def test_what_is_kept_is_what_was_obeyed_and_not_what_lies_there_a_moment_later(
    etc: Path, lives: Callable[..., None]
) -> None:
    path = everybodys(etc)
    lives()
    assert load(path).run.id == "mine"
    path.write_text(path.read_text().replace('["true"]', '["false"]'))
    trust.accept(path, etc.parent / "state")
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)


@as_root
@pytest.mark.parametrize("faked", ["a stranger's process", "another run's", "no process"])
def test_a_job_that_a_run_file_has_made_up_vouches_for_nothing(
    faked: str, etc: Path, lives: Callable[..., None]
) -> None:
    """Whoever can write the run file can name any state folder in it, and put records there."""
    path, state = everybodys(etc), etc.parent / "theirs"
    path.write_text(RUN.format(state=state))
    if faked == "a stranger's process":
        lives(STRANGER, state)
    elif faked == "another run's":
        lives(0, state, marked=etc.parent / "state" / "attempts" / "0007")
    else:
        state.mkdir()
    with pytest.raises(ConfigError, match="is not obeyed"):
        load(path)


@as_root
def test_whoever_ran_sudo_may_keep_his_run_file_at_home(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_strangers(etc)
    os.chown(etc, STRANGER, STRANGER)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert load(path).run.id == "mine"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)  # the variable of a root shell that became somebody else
    assert trust.problem_of(path) != ""


def test_the_group_of_one_user_alone_is_his_and_a_shared_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian gives each user a group and a umask of 002: that is nobody else's write access."""
    files = {
        "/etc/passwd": "root:x:0:0\nann:x:1000:1000\nbob:x:1001:100\neve:x:1002:1003\ndan:x:1003:1003",
        "/etc/group": "root:x:0:\nann:x:1000:\nusers:x:100:\nbob:x:1001:bob,eve\ndan:x:1003:",
    }
    monkeypatch.setattr(trust, "_rows", lambda path: [line.split(":") for line in files[path].splitlines()])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def problem(uid: int, gid: int) -> str:
        found = os.stat_result((0o100664, 0, 0, 1, uid, gid, 0, 0, 0, 0))
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        return trust._problem_of(Path("/home/x/run.toml"), found, last=True)

    assert problem(1000, 1000) == ""
    assert "all of group users can write" in problem(1001, 100)
    assert "all of group bob can write" in problem(1001, 1001)  # eve is in it
    assert "all of group dan can write" in problem(1003, 1003)  # it is eve's first group


@as_root
@pytest.mark.parametrize("verb", ["run", "check", "install"])
def test_each_command_refuses_it(verb: str, etc: Path) -> None:
    path = everybodys(etc)
    words = {"install": ["install", "--prefix", str(etc / "root"), "--run", str(path)]}.get(verb, [verb, str(path)])
    told = call(main, words)
    assert told.returncode == (93 if verb == "run" else 1)
    assert f"all users can write the file {path}" in told.stdout + told.stderr
    assert not list((etc / "root").glob("**/*.toml"))
    assert not list((etc.parent / "state").iterdir())


def test_a_link_in_the_place_of_the_sums_leads_nowhere(tmp_path: Path) -> None:
    """Its name can be guessed, and the folder of sockets may be one in /tmp."""
    victim, target = tmp_path / "authorized_keys", tmp_path / "run/sums"
    victim.write_text("a person's key")
    target.parent.mkdir()
    (target.parent / f".sums.{os.getpid()}").symlink_to(victim)
    trust._keep_sums(target, {"run.toml": "0" * 64})
    assert victim.read_text() == "a person's key"
    assert not target.exists()
