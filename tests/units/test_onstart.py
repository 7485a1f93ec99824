"""units/onstart.sh for real: the actual script, with a stand-in for rl-supervisor that writes down what it was told."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "units" / "onstart.sh"
NANNY = ROOT / "supervisor" / "process" / "nanny.py"

# With --restart it is looked after by the real nanny, as the real program is. Without: appends its pid and words to
# `calls`; then ends with the next code of `codes`, or stays until SIGTERM.
NURSED = f"""#!/bin/bash
[ "${{@: -1}}" = --restart ] && exec "${{NURSE:-{sys.executable}}}" -I -S \\
  "${{NANNY:-{NANNY}}}" -- "$0" "${{@:1:$#-1}}"
"""
STAND_IN = (
    NURSED
    + """
echo "$$ $*" >>"$BOX/calls"
env >"$BOX/env"
echo "key=${B2_APPLICATION_KEY:-none} other=${OTHER:-none}" >>"$BOX/seen"
ls -l /proc/$$/fd >>"$BOX/fds"
code=$(sed -n "$(wc -l <"$BOX/calls")p" "$BOX/codes" 2>/dev/null)
[ -n "$code" ] && { [ "$code" = crash ] && kill -SEGV $$; exit "$code"; }
trap 'sleep 0.3; echo stopped >>"$BOX/calls.stopped"; exit 0' TERM
while :; do sleep 0.05; done
"""
)


NEEDED = [
    "bash",
    "date",
    "id",
    "flock",
    "dirname",
    "basename",
    "base64",
    "mkdir",
    "mv",
    "rm",
    "cat",
    "sleep",
    "awk",
    "stat",
    "cp",
    "ls",
    "sed",
    "wc",
    "chmod",
]


def of_this_box(script: str, folder: Path) -> str:
    """The script with the box's own places for those of the machine: another run's variables and files may be there."""
    for place in ("/proc/1/environ", "/etc/environment", "/etc/rp_environment", "/etc/rl-supervisor"):
        assert place in script
        script = script.replace(place, f"{folder}/machine{place}")
    return script


class Box:
    """A pod of its own: folders, a PATH with the stand-in first, and the script's processes to end afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "etc"
        self.log = folder / "log" / "demo.log"
        self.pid_file = folder / "locks" / "onstart-demo.pid"
        for name in ("etc", "bin", "locks"):
            (folder / name).mkdir()
        (self.etc / "demo.toml").write_text("[run]\n")
        self.script = folder / SCRIPT.name
        self.script.write_text(of_this_box(SCRIPT.read_text(), folder))
        program = folder / "bin" / "rl-supervisor"
        program.write_text(STAND_IN)
        program.chmod(0o755)
        self.env = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "BOX": str(folder),
            "HOME": str(folder),
            "RL_SUPERVISOR_ETC": str(self.etc),
            "RL_SUPERVISOR_VENV": str(folder / "venv"),
            "RL_SUPERVISOR_LOG": str(self.log),
            "RL_SUPERVISOR_LOCKS": str(folder / "locks"),
            "RL_SUPERVISOR_BACKOFF": "0.05",
        }

    def codes(self, *codes: int | str) -> None:
        (self.folder / "codes").write_text("".join(f"{code}\n" for code in codes))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.script), *words],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, **env: str) -> tuple[int, str]:
        child = self.start(*words, **env)
        said, _ = child.communicate(timeout=30)
        return child.returncode, said

    def calls(self) -> list[str]:
        """One line a start of the stand-in: its pid and its words."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    if box.pid_file.exists():
        end(int(box.pid_file.read_text()))


def end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, "waited 20 s in vain"
        time.sleep(0.01)


@pytest.mark.parametrize("code", [0, 93, 94])
def test_finished_person_needed_and_unfit_end_it_with_the_same_code(box: Box, code: int) -> None:
    box.codes(code, 0)
    assert box.run("--foreground", "demo")[0] == code
    assert [call.split(" ", 1)[1] for call in box.calls()] == [f"onstart {box.etc / 'demo.toml'}"]


def test_try_again_and_crashes_are_started_again_until_the_run_is_finished(box: Box) -> None:
    box.codes(75, 1, "crash", 75, 0)
    code, said = box.run("--foreground")
    assert code == 0
    assert len(box.calls()) == 5
    assert "ended with 75; again in 0.05 s" in said
    assert "was killed (SIGSEGV); again in 0.2 s" in said


def test_twice_at_once_gives_one_daemon(box: Box) -> None:
    several = [box.start("demo") for _ in range(4)]
    said = [child.communicate(timeout=30)[0] for child in several]
    assert [child.returncode for child in several] == [0] * 4
    assert sum("supervised already" in text for text in said) == 3
    wait_until(box.calls)
    assert box.run("demo")[1].strip().endswith("demo is supervised already")
    assert len(box.calls()) == 1


def test_it_returns_at_once_and_the_daemon_goes_on_with_its_output_in_the_log(box: Box) -> None:
    code, said = box.run("demo")
    assert code == 0
    assert f"log: {box.log}" in said
    wait_until(box.calls)
    assert alive(int(box.calls()[0].split()[0]))
    assert alive(int(box.pid_file.read_text()))
    end(int(box.pid_file.read_text()))
    assert not box.pid_file.exists(), "the number may be another's tomorrow"
    assert "RL_SUPERVISOR_PID_FILE" not in (box.folder / "env").read_text()


def test_the_daemon_that_is_killed_is_started_again_under_the_same_parent(box: Box) -> None:
    assert box.run("demo")[0] == 0
    wait_until(box.calls)
    parent = box.pid_file.read_text()
    os.kill(int(box.calls()[0].split()[0]), signal.SIGKILL)
    wait_until(lambda: len(box.calls()) == 2)
    assert box.pid_file.read_text() == parent
    assert "was killed (SIGKILL); again in 0.05 s. A job that runs lives on." in box.log.read_text()
    assert box.run("demo")[1].strip().endswith("demo is supervised already")


def test_sigterm_reaches_the_daemon_and_is_waited_for(box: Box) -> None:
    child = box.start("--foreground", "demo")
    wait_until(box.calls)
    wait_until(lambda: catches_sigterm(int(box.calls()[0].split()[0])))
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert (box.folder / "calls.stopped").read_text() == "stopped\n"
    assert not alive(int(box.calls()[0].split()[0]))


def catches_sigterm(pid: int) -> bool:
    mask = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def test_sigterm_during_the_wait_between_two_starts_starts_one_more_that_ends_what_is_left(box: Box) -> None:
    box.codes(75)
    child = box.start("--foreground", "demo", RL_SUPERVISOR_BACKOFF="300")
    wait_until(box.calls)
    wait_until(lambda: not children_of(child.pid))
    child.terminate()
    said, _ = child.communicate(timeout=30)
    assert "ended with 75: one more ends what it left." in said
    assert child.returncode == 0
    assert len(box.calls()) == 2
    assert (box.folder / "calls.stopped").read_text() == "stopped\n"


def children_of(pid: int) -> list[str]:
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = []
    for child in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found.append(Path(f"/proc/{child}/cmdline").read_text())
    return found


def test_the_lock_is_free_again_after_the_end_and_was_never_the_daemons(box: Box) -> None:
    box.codes(0, 0)
    assert box.run("--foreground", "demo")[0] == 0
    assert box.run("--foreground", "demo")[0] == 0
    assert len(box.calls()) == 2
    assert "onstart-demo.lock" not in (box.folder / "fds").read_text()


def test_the_env_file_wins_over_the_environment_and_nothing_in_it_is_executed(box: Box) -> None:
    box.codes(0)
    (box.etc / "demo.env").write_text(
        f"# keys\nexport B2_APPLICATION_KEY=\"from file\"\nOTHER='$(touch {box.folder}/hacked)'\nnot a line\nPWD=/\n"
    )
    code, said = box.run("--foreground", "demo", B2_APPLICATION_KEY="from environment")
    assert code == 0
    assert (box.folder / "seen").read_text() == f"key=from file other=$(touch {box.folder}/hacked)\n"
    assert not (box.folder / "hacked").exists()
    assert "from file" not in said


def test_the_only_run_file_needs_no_name_and_two_do(box: Box) -> None:
    box.codes(0)
    assert box.run("--foreground")[0] == 0
    (box.etc / "other.toml").write_text("")
    code, said = box.run("--foreground")
    assert code == 93
    assert f"There is not exactly one run file in {box.etc}" in said
    assert box.run("--foreground", "../demo")[0] == 93


def test_a_fresh_pod_gets_its_run_file_from_the_environment_and_keeps_one_that_is_there(box: Box) -> None:
    box.codes(0, 0)
    text = '[run]\nid = "fresh"\n'
    encoded = base64.b64encode(text.encode()).decode()
    given = {"RL_SUPERVISOR_RUN": "fresh", "RL_SUPERVISOR_RUN_FILE_B64": encoded}
    assert box.run("--foreground", **given)[0] == 0
    assert (box.etc / "fresh.toml").read_text() == text
    (box.etc / "fresh.toml").write_text("edited")
    assert box.run("--foreground", **given)[0] == 0
    assert (box.etc / "fresh.toml").read_text() == "edited"

    code, said = box.run("--foreground", "none")
    assert code == 93
    assert "none.toml does not exist" in said
    code, said = box.run("--foreground", "bad", RL_SUPERVISOR_RUN_FILE_B64="%%%")
    assert code == 93
    assert "is it base64" in said
    assert not list(box.etc.glob(".bad*"))


def other_user(box: Box) -> list[str]:
    """Words that run a command as a user who has no home and no entry in the password file."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to be somebody else")
    for folder in (box.folder, *box.folder.parents[:-2]):
        folder.chmod(0o755)  # pytest's own folders are for root alone
    shutil.copy(NANNY, box.folder)  # the checkout may be for root alone, too
    (box.folder / "home").mkdir()
    for path in (box.folder, box.folder / "home", box.folder / "locks"):
        os.chown(path, 54322, 54322)
    return [
        "setpriv",
        "--reuid=54322",
        "--regid=54322",
        "--clear-groups",
        "bash",
        str(box.script),
        "--foreground",
    ]


def without_folders(box: Box) -> dict[str, str]:
    """The box's environment without its folders, and a Python that is not in root's home."""
    names = ("PATH", "BOX", "RL_SUPERVISOR_LOCKS", "RL_SUPERVISOR_BACKOFF")
    return {
        **{name: box.env[name] for name in names},
        "NURSE": shutil.which("python3", path="/usr/bin") or sys.executable,
        "NANNY": str(box.folder / NANNY.name),
    }


def test_another_user_than_root_has_its_folders_where_xdg_says(box: Box) -> None:
    words = other_user(box)
    box.codes(0)
    config = box.folder / "home/.config/rl-supervisor"
    text = base64.b64encode(b"[run]\n").decode()
    keep = without_folders(box)
    env = {**keep, "HOME": str(box.folder / "home"), "RL_SUPERVISOR_RUN": "mine", "RL_SUPERVISOR_RUN_FILE_B64": text}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert (config / "mine.toml").read_text() == "[run]\n"
    assert box.calls()[0].endswith(f"onstart {config / 'mine.toml'}")


def test_a_user_without_a_home_gets_one_in_var_tmp(box: Box) -> None:
    words = other_user(box)
    box.codes(0)
    home = Path("/var/tmp/rl-supervisor-54322")
    shutil.rmtree(home, ignore_errors=True)
    text = base64.b64encode(b"[run]\n").decode()
    keep = without_folders(box)
    env = {**keep, "HOME": "/proc", "RL_SUPERVISOR_RUN": "mine", "RL_SUPERVISOR_RUN_FILE_B64": text}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert box.calls()[0].endswith(f"onstart {home}/.config/rl-supervisor/mine.toml")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_what_providers_write_for_ssh_is_taken_and_process_one_comes_first(box: Box) -> None:
    """A container of its own, entered by ssh: process 1, Vast.ai's /etc/environment and RunPod's file have the keys."""
    container = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare with a pid namespace, to have a process 1")
    box.codes(0)
    shutil.copytree("/etc", box.folder / "whole", symlinks=True)
    (box.folder / "whole/environment").write_text('B2_APPLICATION_KEY="from vast"\nOTHER="from vast"\n')
    (box.folder / "whole/rp_environment").write_text(
        'export OTHER="from runpod"\nexport RUNPOD_POD_ID="abc"\nexport _="/usr/bin/printenv"\n'
    )
    login = " ".join(f"{name}={value}" for name, value in box.env.items())
    first = box.folder / "first"
    first.write_text(
        f"mount --bind {box.folder}/whole /etc && env -i {login} bash {SCRIPT} --foreground demo; exit $?\n"
    )
    env = {"PATH": os.environ["PATH"], "B2_APPLICATION_KEY": "from process 1"}
    done = subprocess.run(
        [*container, "sh", str(first)], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (box.folder / "seen").read_text() == "key=from process 1 other=from vast\n"
    assert "RUNPOD_POD_ID=abc" in (box.folder / "env").read_text().splitlines()


def without_program(box: Box) -> dict[str, str]:
    """A PATH that holds no rl-supervisor and no uv, but all else that the script needs."""
    (box.folder / "bin" / "rl-supervisor").unlink()
    for name in NEEDED:
        found = shutil.which(name)
        assert found, f"these tests need {name}"
        (box.folder / "bin" / name).symlink_to(found)
    return {"PATH": str(box.folder / "bin")}


def test_an_environment_of_process_one_that_may_not_be_opened_is_passed_over(box: Box) -> None:
    """As of root in a container without CAP_SYS_PTRACE, to whom its mode looks as if it could be read."""
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root loses capabilities, with setpriv")
    if subprocess.run([*bare, "cat", "/proc/1/environ"], capture_output=True, check=False).returncode == 0:
        pytest.skip("here this user may open it")
    place = box.folder / "machine/proc/1/environ"
    place.parent.mkdir(parents=True)
    place.symlink_to("/proc/1/environ")
    box.codes(0)
    done = subprocess.run(
        [*bare, "bash", box.script, "--foreground", "demo"], env=box.env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Permission denied" in done.stderr) == (0, False), done.stderr


def test_not_installed_and_nothing_to_install_from_needs_a_person(box: Box) -> None:
    code, said = box.run("--foreground", "demo", **without_program(box))
    assert code == 93
    assert "set RL_SUPERVISOR_PACKAGE" in said


def test_sigterm_while_an_install_is_waited_for_is_an_end_like_any_other(box: Box) -> None:
    python = box.folder / "bin" / "python3"
    env = without_program(box)
    python.write_text('#!/bin/bash\n[ "$2" = venv ] && exit 1\nexit 0\n')
    python.chmod(0o755)
    child = box.start(
        "--foreground", "demo", RL_SUPERVISOR_PACKAGE="/none.whl", **{**env, "RL_SUPERVISOR_BACKOFF": "300"}
    )
    assert child.stdout is not None
    while "again in 300 s" not in (line := child.stdout.readline()):
        assert line, "it ended without waiting"
    child.terminate()
    said, _ = child.communicate(timeout=30)
    assert (child.returncode, "stopped" in said) == (0, True), said


def test_a_missing_rl_supervisor_is_installed_in_an_environment_of_its_own_and_a_failed_install_tried_again(
    box: Box,
) -> None:
    box.codes(0)
    env = without_program(box)
    (box.folder / "stand-in").write_text(STAND_IN)
    python = box.folder / "bin" / "python3"
    # Makes the environment; its `pip install` fails once, as without network, then brings the program.
    python.write_text(
        """#!/bin/bash
case "$*" in
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
"-m pip install"*)
  echo "$*" >>"$BOX/pip"
  [ "$(wc -l <"$BOX/pip")" = 2 ] || exit 1
  cp "$BOX/stand-in" "$BOX/venv/bin/rl-supervisor"; chmod 755 "$BOX/venv/bin/rl-supervisor" ;;
esac
"""
    )
    python.chmod(0o755)
    code, said = box.run("--foreground", "demo", RL_SUPERVISOR_PACKAGE="/mnt/a wheel.whl", **env)
    assert code == 0, said
    pip = (box.folder / "pip").read_text().splitlines()
    assert pip == ["-m pip install --quiet --disable-pip-version-check /mnt/a wheel.whl"] * 2
    assert "rl-supervisor could not be installed or started (1); again" in said
    assert len(box.calls()) == 1
