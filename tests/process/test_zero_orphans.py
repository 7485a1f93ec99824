"""Zero orphans in a hundred kills: a job with every bad habit, ended at a random moment, leaves nothing.

What is alive afterwards is looked for by other means than those under test: every process of the job has the attempt's
folder in its command line.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.effects import own_cgroup, survivors
from supervisor.effects.survivors import Identity
from supervisor.jobs.base import StopRules
from supervisor.sensors.processes import Identity as Seen
from supervisor.sensors.processes import process_sensors
from tests.process.conftest import Attempt, kill, wait_for

ZOO = """
role = sys.argv[1] if len(sys.argv) > 1 else "launcher"

def become(role, env):
    # A program of its own, with another command line and maybe no environment, as an engine's workers are.
    os.execve(sys.executable, [sys.executable, "-I", "-S", sys.argv[0], role], env)

def child(role, env=None):
    if os.fork() == 0:
        become(role, dict(os.environ) if env is None else env)

def escaped(role, env=None):
    # A double fork into a session of its own.
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        become(role, dict(os.environ) if env is None else env)

if role != "launcher":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if role == "launcher":
    child("trainer"); escaped("engine"); escaped("washed", {}); child("stopped"); child("forker")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    tell("launcher"); sleep()
elif role == "stopped":
    tell(role)
    os.kill(os.getpid(), signal.SIGSTOP)
elif role == "forker":
    tell(role)
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
else:
    tell(role)
    sleep()
"""
ROLES = ("launcher", "trainer", "engine", "washed", "stopped", "forker")
VICTIMS = ("nobody", "launcher", "trainer", "engine", "shim", "daemon")
HASTY = StopRules(((signal.SIGTERM, 0.05),))


def alive_in(folder: Path) -> list[str]:
    """Living processes whose command line names the folder. Not looked for by anything that the stop looks for."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                state = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{folder}/job.py" in words and state not in "ZX":
                found.append(f"{name} {state} {words}")
    return found


def one_kill(attempt: Attempt, victim: str, chance: random.Random, *, grouped: bool) -> None:
    """One attempt: it comes up, something of it (or of us) dies, and it is stopped."""
    launched = attempt.start(ZOO)
    shim = (launched.shim_pid, _ticks(launched.shim_pid))
    if grouped and victim != "shim":
        time.sleep(chance.uniform(0, 0.25))  # it may be anywhere on its way
    else:
        # Without a group, only what was seen once can be told from a stranger later.
        wait_for(lambda: all((attempt.folder / role).exists() for role in ROLES), "all of it is up")
    watcher, scanner = process_sensors(1, [Seen(*shim)], lambda *_: None, lambda: ())
    scanner.look()
    known = [(one.pid, one.start_ticks) for one in scanner.identities()]
    watcher.close()
    if victim == "daemon":
        _stop_and_die(attempt, chance)
    elif victim != "nobody":
        _kill(attempt, victim, launched.shim_pid)
    report = attempt.stop(HASTY, budget_s=30.0, known=known)
    assert report.survivors == ()
    assert alive_in(attempt.folder) == []
    assert not survivors.alive(shim)


def _ticks(pid: int) -> int:
    found = survivors.look_at(pid)
    return found.start_ticks if found else 0


def _kill(attempt: Attempt, victim: str, shim: int) -> None:
    try:
        pid = shim if victim == "shim" else int((attempt.folder / victim).read_text())
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it had not come so far


def _stop_and_die(attempt: Attempt, chance: random.Random) -> None:
    """Another daemon begins the stop and is killed in the middle of it."""
    source = (
        "from pathlib import Path; from supervisor.effects.stop import stop_attempt\n"
        "from supervisor.jobs.base import StopRules\n"
        "print('begun', flush=True)\n"
        f"stop_attempt(Path({str(attempt.folder)!r}), [], {attempt.run_id!r}, StopRules(((15, 0.3),)), 30.0,"
        " lambda: True, 1.0)"
    )
    other = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()
    time.sleep(chance.uniform(0, 0.6))
    other.kill()
    other.wait()
    other.stdout.close()


def kills(tmp_path: Path, count: int, seed: int, *, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not grouped:
        monkeypatch.setattr(own_cgroup, "make", lambda *_: None)
    chance = random.Random(seed)
    for number in range(count):
        folder = tmp_path / f"attempt-{number}"
        folder.mkdir()
        attempt = Attempt(folder, f"orphans-{os.getpid()}")
        victim = VICTIMS[number % len(VICTIMS)]
        try:
            one_kill(attempt, victim, chance, grouped=grouped)
        except BaseException as error:
            error.add_note(f"kill {number} of seed {seed}: {victim}, {'with' if grouped else 'without'} a group")
            left: list[Identity] = [p.identity for p in survivors.Belongings(folder, [], attempt.run_id).living()]
            left += [(pid, _ticks(pid)) for pid in (int(one.split()[0]) for one in alive_in(folder))]
            kill(left)
            raise


def can_group(tmp_path: Path) -> bool:
    folder = own_cgroup.make("probe", tmp_path, "probe")
    if folder is not None:
        own_cgroup.remove(folder)
    return folder is not None


@pytest.mark.parametrize("grouped", [True, False], ids=["own group", "no group"])
def test_a_few_kills_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    if grouped and not can_group(tmp_path):
        pytest.skip("this user may make no control groups (version 2, Linux 5.14) here")
    kills(tmp_path, 6, 1, grouped=grouped, monkeypatch=monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("grouped", [True, False], ids=["own group", "no group"])
def test_a_hundred_kills_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    if grouped and not can_group(tmp_path):
        pytest.skip("this user may make no control groups (version 2, Linux 5.14) here")
    kills(tmp_path, 100, random.SystemRandom().randrange(1 << 30), grouped=grouped, monkeypatch=monkeypatch)
