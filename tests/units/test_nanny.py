"""The daemon's parent where no systemd is: a stand-in daemon below the real one, killed, restarted and signalled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from supervisor.process import known_names, nanny

PRELUDE = """
import os, signal, sys, time
box = os.environ["BOX"]
starts = box + "/starts"
with open(starts, "a") as file:
    file.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\\n")
start = sum(1 for _ in open(starts))
def tell(name, text=""):
    with open(f"{box}/{name}.tmp", "w") as file:
        file.write(str(text))
    os.rename(f"{box}/{name}.tmp", f"{box}/{name}")
def sleep():
    while True:
        time.sleep(60)
def ends(number, frame):
    tell("ended", signal.Signals(number).name)
    sys.exit(0)
"""
SHORT = "nanny.FIRST_WAIT_S = 0.05"  # what a wish that is no number gets


class Crib:
    """A nanny over a stand-in daemon that is written as Python source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child: subprocess.Popen[str] | None = None

    def start(self, daemon: str, *once: str, patch: str = "", under: tuple[str, ...] = (), **env: str) -> Crib:
        source = self.folder / "daemon.py"
        source.write_text(PRELUDE + dedent(daemon))
        words = ["--once", str(len(once)), "--", sys.executable, "-I", "-S", str(source), "run", *once]
        code = f"import sys; from supervisor.process import nanny; {patch}; sys.exit(nanny.main(sys.argv[1:]))"
        program = ["-c", code] if patch else ["-I", "-S", "-X", "utf8", nanny.__file__]
        with (self.folder / "said").open("wb") as said:
            self.child = subprocess.Popen(
                [*under, sys.executable, *program, *words],
                env={**os.environ, "BOX": str(self.folder), "RL_SUPERVISOR_BACKOFF": "0.05", **env},
                stdout=said,
                stderr=said,
                text=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def wait(self) -> int:
        assert self.child is not None
        return self.child.wait(20)

    def said(self) -> list[str]:
        found = []
        for line in (self.folder / "said").read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(str(json.loads(line)["sentence"]))
        return found

    def starts(self) -> list[str]:
        file = self.folder / "starts"
        return file.read_text().splitlines() if file.exists() else []

    def told(self, name: str) -> str:
        """What the stand-in told, once it has."""
        wait_until(lambda: (self.folder / name).exists(), f"{name} is told; said so far: {self.said()}")
        return (self.folder / name).read_text()


@pytest.fixture
def crib(tmp_path: Path) -> Iterator[Crib]:
    made = Crib(tmp_path)
    yield made
    if made.child is not None and made.child.poll() is None:
        pids = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
        made.child.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        made.child.wait(10)


def wait_until(done: Callable[[], Any], what: str = "it") -> Any:
    deadline = time.monotonic() + 20
    while not (found := done()):
        assert time.monotonic() < deadline, f"waited 20 s in vain: {what}"
        time.sleep(0.01)
    return found


def state(pid: int) -> str:
    """The letter of /proc/PID/stat, "" when there is none, or none any more once the file is open."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("code", [0, 93, 94])
def test_it_ends_with_the_codes_of_the_contract(crib: Crib, code: int) -> None:
    assert crib.start(f"sys.exit({code})").wait() == code
    assert len(crib.starts()) == 1


def test_a_crash_and_try_again_are_started_again_each_time_after_twice_the_wait(crib: Crib) -> None:
    daemon = "\nif start == 3: os.kill(os.getpid(), signal.SIGSEGV)\nsys.exit([75, 1, 0, 2, 0][start - 1])"
    assert crib.start(daemon).wait() == 0
    assert crib.said() == [
        "rl-supervisor ended with 75; again in 0.05 s.",
        "rl-supervisor ended with 1; again in 0.1 s. A job that runs lives on.",
        "rl-supervisor was killed (SIGSEGV); again in 0.2 s. A job that runs lives on.",
        "rl-supervisor ended with 2; again in 0.4 s. A job that runs lives on.",
        "Done.",
    ]


def test_who_was_well_for_ten_minutes_begins_with_the_first_wait_again() -> None:
    assert nanny.next_wait(160, 599, 5) == 160
    assert nanny.next_wait(160, 600, 5) == 5


@pytest.mark.soak
@pytest.mark.parametrize("wished", ["0", "-1", "nan", "-inf"])
def test_no_wish_for_the_first_wait_makes_it_spin(crib: Crib, wished: str) -> None:
    assert crib.start("sys.exit(75 if start < 4 else 0)", RL_SUPERVISOR_BACKOFF=wished, patch=SHORT).wait() == 0
    waits = [line.rpartition("again in ")[2] for line in crib.said()[:-1]]
    assert waits == ["0.05 s.", "0.1 s.", "0.2 s."]


def test_every_signal_that_tells_of_the_end_is_handed_on() -> None:
    """One that the daemon listens to and the nanny does not would kill the nanny."""
    from supervisor.daemon import upgrade
    from supervisor.sensors.leaving import SIGNALS

    assert set(SIGNALS.values()) <= set(nanny.FORWARDED)
    assert set(SIGNALS.values()) <= set(upgrade.HELD), "one that comes during an exec waits for the new program"


def test_the_job_lives_on_when_the_daemon_is_killed_and_its_end_leaves_no_zombie(crib: Crib) -> None:
    crib.start(
        """
        if start == 1:
            if not os.fork():
                os.setsid()
                if os.fork():
                    os._exit(0)
                tell("job", os.getpid())
                sleep()
            os.wait()
        sleep()
        """
    )
    job = int(crib.told("job"))
    daemon = int(crib.starts()[0].split()[0])
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: len(crib.starts()) == 2)
    assert state(job) == "S"
    assert state(daemon) == ""
    os.kill(job, signal.SIGKILL)
    wait_until(lambda: state(job) == "", "the orphan is collected")


def test_sigterm_before_the_daemon_listens_waits_until_it_does(crib: Crib) -> None:
    crib.start('tell("begun"); time.sleep(0.6); signal.signal(signal.SIGTERM, ends); sleep()')
    crib.told("begun")
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    assert crib.told("ended") == "SIGTERM"
    assert len(crib.starts()) == 1


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGPWR"])
def test_signals_are_handed_on(crib: Crib, name: str) -> None:
    crib.start(f'signal.signal(signal.{name}, ends); signal.signal(signal.SIGTERM, ends); tell("up"); sleep()')
    crib.told("up")
    os.kill(crib.pid, signal.Signals[name])
    assert crib.told("ended") == name
    assert crib.wait() == 0


def test_a_signal_that_the_daemon_has_no_ear_for_does_not_kill_it(crib: Crib) -> None:
    crib.start('signal.signal(signal.SIGTERM, ends); tell("up"); sleep()')
    crib.told("up")
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2, signal.SIGQUIT):
        os.kill(crib.pid, number)
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    assert crib.told("ended") == "SIGTERM"
    assert len(crib.starts()) == 1


def test_a_daemon_that_is_killed_while_it_stops_the_job_is_followed_by_one_that_finishes_that(crib: Crib) -> None:
    crib.start(
        """
        if start == 1:
            signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        else:
            time.sleep(0.3)
            signal.signal(signal.SIGTERM, ends)
        tell("up"); sleep()
        """,
        RL_SUPERVISOR_BACKOFF="300",
    )
    crib.told("up")
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    assert crib.told("ended") == "SIGTERM"
    assert crib.said()[0] == "Told to end, and rl-supervisor was killed (SIGKILL): one more ends what it left."


def test_sigterm_while_it_waits_starts_one_more_at_once_and_sighup_tries_again_at_once(crib: Crib) -> None:
    crib.start("sys.exit(75)", RL_SUPERVISOR_BACKOFF="300")
    wait_until(lambda: len(crib.said()) == 1)
    os.kill(crib.pid, signal.SIGHUP)
    wait_until(lambda: len(crib.said()) == 2)
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0, "it is stopped, as was asked for"
    assert crib.said()[-2:] == ["Told to end, and rl-supervisor ended with 75: one more ends what it left.", "Stopped."]
    assert len(crib.starts()) == 3


LEAVES_A_JOB = """
import ctypes
if start == 1:  # a shim in small, as the daemon leaves it: named so, and an orphan
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        ctypes.CDLL(None).prctl(15, b"rl-shim", 0, 0, 0)
        signal.signal(signal.SIGTERM, ends)
        tell("job", os.getpid())
        sleep()
    os.wait()
    while not os.path.exists(box + "/job"):
        time.sleep(0.01)
    sys.exit(75)
"""


def test_sigterm_while_it_waits_stops_the_job_of_the_daemon_that_died(crib: Crib) -> None:
    stops = """
    def stop(number, frame):
        os.kill(int(open(box + "/job").read()), signal.SIGTERM)
        tell("in-order"); sys.exit(0)
    signal.signal(signal.SIGTERM, stop); sleep()
    """
    crib.start(LEAVES_A_JOB + dedent(stops), RL_SUPERVISOR_BACKOFF="300")
    wait_until(crib.said)
    job = int(crib.told("job"))
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    wait_until(lambda: state(job) == "", "the job has ended")
    crib.told("in-order")
    assert len(crib.starts()) == 2


@pytest.mark.parametrize("code", [75, 93])
def test_a_job_whose_daemon_fails_at_each_start_is_stopped_without_one(crib: Crib, code: int) -> None:
    crib.start(LEAVES_A_JOB + f"sys.exit({code})", RL_SUPERVISOR_BACKOFF="300")
    wait_until(crib.said)
    job = int(crib.told("job"))
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    assert state(job) == ""
    assert crib.told("ended") == "SIGTERM"


def test_a_daemon_whose_run_file_is_bad_for_a_moment_comes_back_while_the_job_lives(crib: Crib) -> None:
    crib.start(LEAVES_A_JOB.replace("75", "93") + 'signal.signal(signal.SIGTERM, ends); tell("up"); sleep()')
    job = int(crib.told("job"))
    crib.told("up")
    assert state(job) == "S"
    asked = f"A person is needed, see above: the job lives on. At once: kill -HUP {crib.pid}"
    assert crib.said() == [f"rl-supervisor ended with 93; again in 0.05 s. {asked}"]
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(job, signal.SIGKILL)


def test_a_run_that_was_given_up_is_not_tried_again_while_its_shim_waits_to_write_the_end(crib: Crib) -> None:
    ended = LEAVES_A_JOB.replace("75", "93").replace("rl-shim", "rl-exit 1")
    assert crib.start(ended).wait() == 93
    os.kill(int(crib.told("job")), signal.SIGKILL)
    assert len(crib.starts()) == 1


def test_sighup_tries_again_at_once_while_a_person_is_needed(crib: Crib) -> None:
    crib.start(LEAVES_A_JOB.replace("75", "93") + "sys.exit(0)", RL_SUPERVISOR_BACKOFF="300")
    wait_until(crib.said)
    os.kill(crib.pid, signal.SIGHUP)
    assert crib.wait() == 0
    os.kill(int(crib.told("job")), signal.SIGKILL)


def test_a_fresh_start_is_asked_for_once(crib: Crib) -> None:
    crib.start("sys.exit(1 if start < 4 else 0)", "--step", "40", patch="nanny.ONCE_S = 0.0")
    assert crib.wait() == 0
    assert [line.split(" ", 1)[1] for line in crib.starts()] == ["run --step 40", "run", "run", "run"]
    assert crib.said()[0] == "--step 40 has had its time and is not repeated."


def test_a_fresh_start_that_did_not_come_about_is_asked_for_again(crib: Crib) -> None:
    assert crib.start("sys.exit(75 if start < 3 else 0)", "--fresh").wait() == 0
    assert [line.split(" ", 1)[1] for line in crib.starts()] == ["run --fresh"] * 3


def test_an_upgrade_in_place_is_no_end(crib: Crib) -> None:
    crib.start(
        """
        if start == 1:
            os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv])
        signal.signal(signal.SIGTERM, ends); tell("up"); sleep()
        """
    )
    crib.told("up")
    first, second = crib.starts()
    assert first == second
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0


def test_nothing_of_the_parents_is_inherited(crib: Crib, tmp_path: Path) -> None:
    """Ignored signals, a blocked mask, an open lock: neither the nanny nor its daemon may suffer from them."""
    crib.start(
        """
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        here = [n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)]
        tell("seen", f"{int(status['SigBlk'], 16)} {bool(int(status['SigIgn'], 16) & (1 << 16))} {max(map(int, here))}")
        names = sorted(n for n in os.environ if n.startswith("RL_SUPERVISOR"))
        tell("names", names); tell("session", os.getsid(0) == os.getpid())
        """,
        under=("bash", "-c", f'trap "" CHLD HUP USR1; exec 9>>{tmp_path}/lock; exec "$@"', "bash"),
        RL_SUPERVISOR_PID_FILE=str(tmp_path / "pid"),
    )
    assert crib.wait() == 0
    assert crib.told("seen") == "0 False 2"
    ours = {"RL_SUPERVISOR_NANNY", *(name for name in os.environ if name.startswith("RL_SUPERVISOR"))}
    assert crib.told("names") == str(sorted(ours))
    assert crib.told("session") == "True"


def test_the_pid_file_goes_with_it_unless_it_names_somebody_else(crib: Crib, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    crib.start('tell("up"); signal.signal(signal.SIGTERM, ends); sleep()', RL_SUPERVISOR_PID_FILE=str(file))
    crib.told("up")
    file.write_text(f"{crib.pid}\n")
    os.kill(crib.pid, signal.SIGTERM)
    crib.wait()
    assert not file.exists()
    file.write_text("1\n")
    Crib(tmp_path).start("sys.exit(0)", RL_SUPERVISOR_PID_FILE=str(file)).wait()
    assert file.read_text() == "1\n"


def test_a_program_that_is_gone_for_a_moment_is_tried_again(crib: Crib, tmp_path: Path) -> None:
    program = tmp_path / "program"
    with (tmp_path / "said").open("wb") as said:
        crib.child = subprocess.Popen(
            [sys.executable, "-I", "-S", nanny.__file__, "--", str(program)],
            env={"RL_SUPERVISOR_BACKOFF": "0.05"},
            stderr=said,
            text=True,
        )
    wait_until(lambda: len(crib.said()) >= 2)
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    assert crib.wait() == 0
    assert crib.said()[0] == f"{program} cannot be started: No such file or directory."


def test_the_log_is_cut_and_one_old_part_stays(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys; from supervisor.process import nanny; os.write(2, b'x' * 1500)\n"
        f"done = nanny.cut({str(log)!r}, 1000), nanny.cut({str(log)!r}, 1000), nanny.cut('/nowhere', 0)\n"
        "os.write(2, b'new'); print(done)"
    )
    with log.open("ab") as stderr:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True
        )
    assert done.stdout == "(True, False, False)\n"
    assert log.read_text() == "new"
    assert (tmp_path / "log.1").read_text() == "x" * 1500


def test_a_closed_stderr_is_nobodys_error(crib: Crib) -> None:
    crib.start("sys.exit(75 if start < 3 else 0)", under=("bash", "-c", 'exec "$@" 2>&-', "bash"))
    assert crib.wait() == 0


def test_the_command_turns_into_it_and_keeps_its_pid(tmp_path: Path) -> None:
    """`rl-supervisor run --restart` as it is started by a person."""
    command = [
        sys.executable,
        "-m",
        "supervisor.cli.main",
        "run",
        str(tmp_path / "none.toml"),
        "--restart",
        "--step",
        "3",
    ]
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 93
    said = done.stderr.splitlines()
    assert "none.toml does not exist" in said[0]
    assert "A person is needed, see the lines above; not started again." in said[-1]

    under = {**env, "NOTIFY_SOCKET": "/run/systemd/notify"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=under)
    assert done.returncode == 93
    assert "systemd starts this daemon again by itself: leave --restart out of the unit." in done.stderr


def test_its_numbers_are_those_of_the_contract_and_it_needs_no_package() -> None:
    from supervisor.base import errors

    codes = (nanny.FINISHED, nanny.TRY_AGAIN, nanny.PERSON_NEEDED, nanny.POD_UNFIT)
    contract = (errors.EXIT_FINISHED, errors.EXIT_TRY_AGAIN, errors.EXIT_PERSON_NEEDED, errors.EXIT_POD_UNFIT)
    assert codes == contract
    done = subprocess.run([sys.executable, "-I", "-S", nanny.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "usage: nanny.py [--once N] -- PROGRAM [WORD ...]\n"


def test_a_shim_is_the_runs_own_by_more_than_its_name(tmp_path: Path) -> None:
    """Another run's shim, or whoever calls himself so, gets no signal of ours."""
    program = (
        "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, b'rl-shim', 0, 0, 0); print(flush=True); time.sleep(60)"
    )
    ours, theirs = (
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={nanny.NANNY: owner})
        for owner in ("1-77", "1-770")
    )
    try:
        for child in (ours, theirs):
            assert child.stdout is not None
            child.stdout.readline()
        assert nanny.shims_below(os.getpid(), f"{nanny.NANNY}=1-77") == [ours.pid]
    finally:
        for child in (ours, theirs):
            child.kill()
            child.communicate()


# ---------------------------------------------------------------- a daemon that hangs

SPEAKS = """
import socket
def say(words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto(words.encode(), os.environ["NOTIFY_SOCKET"])
def turn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        say("WATCHDOG=1"); time.sleep(0.05)
"""
WATCHED = {"RL_SUPERVISOR_WATCHDOG": "1.5", "patch": "nanny.LEAST_WATCH_S = 0.1; nanny.ABORT_S = 0.5"}


def test_a_daemon_that_hangs_is_killed_and_started_again_and_the_job_gets_nothing(crib: Crib) -> None:
    crib.start(
        SPEAKS
        + dedent("""
        if start == 1:
            if not os.fork():
                os.setsid()
                if os.fork():
                    os._exit(0)
                tell("job", os.getpid())
                sleep()
            os.wait()
            say("READY=1\\nSTATUS=watching"); turn(0.3)
            os.kill(os.getpid(), signal.SIGSTOP)  # SIGABRT waits: only SIGKILL ends it
        if start == 2:
            time.sleep(2.0)  # its start takes long, and nothing is asked of it before it is up
            say("READY=1"); turn(2); tell("well"); sleep()  # SIGABRT ends it
        turn(60)
        """),
        **WATCHED,
    )
    job = int(crib.told("job"))
    crib.told("well")
    assert len(crib.starts()) == 2, crib.said()
    wait_until(lambda: len(crib.starts()) == 3, "the second one hangs, too")
    assert state(job) == "S"
    hangs, killed, again, aborted = crib.said()
    assert hangs.startswith("rl-supervisor hangs: its loop has not turned for ")
    assert "was killed (SIGKILL); again in" in killed and "was killed (SIGABRT); again in" in aborted, again
    os.kill(job, signal.SIGKILL)


def test_what_a_killed_nanny_left_in_tmp_goes_with_the_next_start_and_nothing_else(tmp_path: Path) -> None:
    def start(name: str) -> tuple[Crib, Path]:
        (tmp_path / name).mkdir()
        one = Crib(tmp_path / name).start(
            SPEAKS + 'tell("socket", os.environ["NOTIFY_SOCKET"]); say("READY=1"); turn(60)', **WATCHED
        )
        cribs.append(one)
        return one, Path(one.told("socket")).parent

    cribs: list[Crib] = []
    try:
        killed, gone = start("killed")
        asleep, living = start("asleep")
        os.kill(asleep.pid, signal.SIGSTOP)
        elsewhere = gone.with_name(gone.name.replace(gone.name.split("-")[3], "0123abcd"))
        begun, more = (gone.with_name(f"{gone.name}-{word}") for word in ("begun", "more"))
        for folder in (elsewhere, begun, more):
            folder.mkdir()
        for folder in (elsewhere, more):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
                dead.bind(f"{folder}/notify")
        (more / "a-file").touch()
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        _, new = start("next")
        assert not gone.exists(), "its owner is gone"
        assert (living / "notify").exists(), "its owner sleeps"
        assert (elsewhere / "notify").exists(), "it may be another machine's, which lives"
        assert begun.exists(), "it may be bound in a moment"
        assert (more / "a-file").exists() and (new / "notify").exists()
    finally:
        for one in cribs:
            if (daemon := one.starts()) and one.child is not None:
                one.child.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(daemon[-1].split()[0]), signal.SIGKILL)
                one.child.wait(10)
        for folder in {gone, living, elsewhere, begun, more, new}:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
def test_who_was_asleep_himself_takes_nobody_for_hung(crib: Crib) -> None:
    """A container that is paused, or a host that slept: all its processes were silent."""
    crib.start(SPEAKS + 'say("READY=1"); tell("up"); turn(60)', **WATCHED)
    crib.told("up")
    daemon = int(crib.starts()[0].split()[0])
    for number, pause_s in ((signal.SIGSTOP, 2.5), (signal.SIGCONT, 1.0)):
        os.kill(daemon, number)
        os.kill(crib.pid, number)
        time.sleep(pause_s)  # longer than its patience
    assert state(daemon) in ("S", "R") and len(crib.starts()) == 1, crib.said()


def test_nobody_but_the_daemon_speaks_for_it(crib: Crib) -> None:
    crib.start(
        SPEAKS
        + dedent("""
        if start == 1:
            say("READY=1")
            if os.fork():
                sleep()
        tell("job", os.getpid())
        turn(60)
        """),
        **WATCHED,
    )
    wait_until(lambda: len(crib.starts()) == 2, "its child's words do not count")
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(crib.told("job")), signal.SIGKILL)


@pytest.mark.parametrize(
    ("wished", "watched_s"), [("", 120.0), ("0", 0.0), ("1", 10.0), ("300", 300.0), ("nan", 120.0), ("-5", 120.0)]
)
def test_no_wish_makes_the_watch_kill_a_daemon_that_is_well(wished: str, watched_s: float) -> None:
    assert nanny.watch_of(wished) == watched_s


HOLDER = """
import contextlib, pathlib
sys.path[:0] = [os.environ["SOURCE"], *os.environ["PACKAGES"].split(":")]
from supervisor.process import run_lock
from supervisor.base.errors import SupervisorError
try:
    lock = run_lock.take_lock(pathlib.Path(box, "state"), "night", os.environ)
except SupervisorError as error:
    tell(f"refused-{os.getpid()}", error)
    sys.exit(error.exit_code)
signal.signal(signal.SIGTERM, ends); tell(f"holds-{os.getpid()}"); sleep()
"""


@pytest.fixture
def left(crib: Crib) -> Iterator[tuple[int, Crib]]:
    """A daemon whose nanny was killed, and a second nanny, whose daemon finds the run's lock held."""
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    env = {"SOURCE": str(Path(nanny.__file__).parents[2]), "PACKAGES": packages}
    first = Crib(crib.folder).start(HOLDER, **env)
    wait_until(lambda: list(crib.folder.glob("holds-*[0-9]")), "the first holds it")
    holder = int(crib.starts()[0].split()[0])
    assert first.child is not None
    first.child.kill()
    first.child.wait(10)
    crib.start(HOLDER, **env)
    wait_until(lambda: "has lost the parent that restarts it" in (crib.folder / "said").read_text(), "the second waits")
    yield holder, crib
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder, signal.SIGKILL)


def test_a_nanny_after_a_killed_one_ends_the_daemon_that_was_left(left: tuple[int, Crib]) -> None:
    holder, crib = left
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0, "one more daemon has the run, and ends what that one may have left"
    assert state(holder) in ("", "Z")
    assert crib.told("ended") == "SIGTERM"
    assert "Told to end: so was pid" in crib.told(f"refused-{crib.starts()[-2].split()[0]}")
    assert (crib.folder / f"holds-{crib.starts()[-1].split()[0]}").exists()


def test_a_nanny_after_a_killed_one_takes_over_when_the_daemon_that_was_left_dies(left: tuple[int, Crib]) -> None:
    holder, crib = left
    os.kill(holder, signal.SIGKILL)
    crib.told(f"holds-{crib.starts()[-1].split()[0]}")
    assert len(crib.starts()) == 2
    os.kill(crib.pid, signal.SIGTERM)
    assert crib.wait() == 0


def test_a_link_in_the_place_of_the_old_part_of_the_log_leads_nowhere(tmp_path: Path) -> None:
    victim, log = tmp_path / "authorized_keys", tmp_path / "demo.log"
    victim.write_text("a person's key")
    log.write_text("line\n" * 100)
    (tmp_path / "demo.log.1").symlink_to(victim)
    source = (
        f"import os, sys; sys.path.insert(0, {str(Path(nanny.__file__).parent)!r}); import nanny\n"
        f"os.dup2(os.open({str(log)!r}, os.O_RDWR | os.O_APPEND), 2)\n"
        f"sys.exit(not nanny.cut({str(log)!r}, limit=100))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", source], check=False, timeout=30)
    assert done.returncode == 0
    assert victim.read_text() == "a person's key"
    assert log.read_text() == "", "the disk is not filled by it, either"


def test_the_daemon_knows_it_and_the_shims_by_the_same_words() -> None:
    assert (known_names.NANNY, known_names.SHIMS) == (nanny.NANNY, nanny.SHIMS)
