"""Another program in the daemon's place, under a living job: the real daemon, from a copy of the package that changes.

Asserted each time: the process is the same, the job is the same, and its steps go on as if nothing had happened.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.daemon.upgrade import VARIABLE
from tests.b2server import B2Server

from .rig import Pod
from .test_pods import b2_settings, in_bucket

Living = Callable[..., Pod]

ROOT = Path(__file__).parents[2]
LONG = {"store": {"take_over_after": 600}}
HOLD = """

def _held(*words, wait_for=main, **more):
    import os, time
    while os.path.exists({hold!r}) and os.environ.get({variable!r}):
        time.sleep(0.02)
    return wait_for(*words, **more)
main = _held
"""
CRASH = """

def _crashing(*words, real=main, **more):
    import os
    if os.environ.get({variable!r}):
        raise MemoryError("the new program has no luck")
    return real(*words, **more)
main = _crashing
"""


class Installed:
    """The package as a person installed it on this pod, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "supervisor", folder / "supervisor")

    def file(self, name: str) -> Path:
        return self.folder / "supervisor" / name

    def version(self, number: str) -> None:
        self.file("__init__.py").write_text(f'"""Another version."""\n\n__version__ = "{number}"\n')

    def add(self, name: str, text: str) -> Callable[[], None]:
        """Add code to a module; what is returned takes it away again."""
        path = self.file(name)
        before = path.read_text()
        path.write_text(before + text)

        def mend() -> None:
            path.write_text(before)

        return mend


class Manager:
    """Where a service manager listens: every datagram that was sent to it."""

    def __init__(self, path: Path) -> None:
        self.said: list[str] = []
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                self.said.append(self._socket.recv(4096).decode())
            except TimeoutError:
                continue

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def turns(self) -> list[str]:
        """What it was told of beginnings and ends, without pings and status lines."""
        return [text.split("=")[0] for text in self.said if text.startswith(("READY", "RELOADING", "STOPPING"))]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.chdir(tmp_path)  # `python -m` looks into the current folder first
    return Installed(tmp_path / "installed")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    one = Manager(tmp_path / "notify")
    yield one
    one.close()


def pod_of(folder: Path, installed: Installed, **options: Any) -> Pod:
    environ = {"PYTHONPATH": str(installed.folder), **options.pop("environ", {})}
    settings = {**LONG, **options.pop("settings", {})}
    knobs = {"max_steps": 400, "step_s": 0.4, **options}
    return Pod(folder / "pod", "v0.6", settings=settings, environ=environ, **knobs)


@pytest.fixture
def living(tmp_path: Path, pods: list[Pod], installed: Installed) -> Living:
    """Starts a daemon of the installed package; the pod is given once its run makes steps."""

    def start(*words: str, **options: Any) -> Pod:
        pod = pod_of(tmp_path, installed, **options)
        pods.append(pod)
        pod.start(*words)
        return pod.wait_for(lambda: pod.sentences("step") and pod, "steps are made")

    return start


def upgrade(pod: Pod) -> str:
    done = pod.ctl("upgrade")
    assert done.returncode == 0, f"{done}\n{pod.story()}"
    return done.stdout


def refused(pod: Pod) -> str:
    done = pod.ctl("upgrade")
    assert done.returncode == 1, f"{done}\n{pod.story()}"
    assert "The installed program does not take over" in done.stderr, done
    return done.stderr


def steps(pod: Pod) -> list[int]:
    return [int(sentence.split()[1]) for sentence in pod.sentences("step")]


def assert_untouched(pod: Pod, launcher: int) -> None:
    """One start, one attempt, no incident; every step was told, and none twice."""
    status = pod.status()
    assert (status["pid"], status["attempt"], status["incidents"]) == (launcher, 1, [])
    assert [start["pid"] for start in pod.practice.starts()] == [launcher]
    told = steps(pod)
    assert told == list(range(told[0], told[-1] + 1)), told


def end(pod: Pod) -> None:
    """SIGTERM ends it, as it ends a daemon that was never upgraded."""
    assert pod.daemon is not None
    pod.daemon.send_signal(signal.SIGTERM)
    assert pod.wait_exit() == 0, pod.story()
    assert not pod.practice.alive()


def zombies(daemon: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(daemon).children() if child.status() == psutil.STATUS_ZOMBIE]


def held(pod: Pod) -> bool:
    """Is the process a new program, which does not go on yet?"""
    assert pod.daemon is not None
    return VARIABLE.encode() in Path(f"/proc/{pod.daemon.pid}/environ").read_bytes()


def begin_upgrade(pod: Pod) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor.cli.ctl", "--socket", str(pod.socket), "upgrade"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# ---------------------------------------------------------------- the story


@pytest.mark.soak
def test_a_run_goes_on_under_other_versions_and_one_that_cannot_start_is_refused(
    installed: Installed, manager: Manager, living: Living
) -> None:
    pod = living(environ={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "120000000"})
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    assert pod.daemon is not None
    before = pod.status()
    launcher, daemon = before["pid"], before["daemon_pid"]
    assert daemon == pod.daemon.pid

    mend = installed.add("daemon/loop.py", '\nraise RuntimeError("half an install")\n')
    assert "RuntimeError: half an install" in refused(pod)
    assert pod.status()["uptime_s"] > before["uptime_s"], "the daemon that was asked goes on"
    mend()

    versions = ("9.0.0", "9.1.0")
    for version, old in zip(versions, (before["version"], *versions), strict=False):
        installed.version(version)
        assert f"rl-supervisor {version} took the place of {old} (pid {daemon})" in upgrade(pod)
        status = pod.status()
        assert (status["version"], status["daemon_pid"]) == (version, daemon)
        told = len(steps(pod))
        pod.wait_for(lambda told=told: len(steps(pod)) > told + 1, "steps go on")
        assert_untouched(pod, launcher)
    pod.wait_for(lambda: not zombies(daemon), "no child of the old program is left unread")
    generation = f"generation {1 + len(versions)}"
    pod.wait_for(lambda: pod.said_so("claimed", generation), "the claim is regained at once")
    assert not pod.sentences("claim-held")

    assert manager.turns() == ["READY", *(["RELOADING", "READY"] * len(versions))]
    assert all("\nMONOTONIC_USEC=" in text for text in manager.said if text.startswith("RELOADING"))
    end(pod)
    assert manager.turns()[-1] == "STOPPING"


# ---------------------------------------------------------------- what it must not cost


@pytest.mark.soak
def test_an_open_incident_is_gone_on_with_by_the_new_program(installed: Installed, living: Living) -> None:
    slow = {"recovery": {"backoff": 12, "backoff_cap": 12}}
    pod = living(settings=slow, faults=[{"kind": "trainer-crash", "at_step": 25}])
    pod.wait_for(lambda: pod.sentences("backing-off") or pod.status().get("incident"), "an incident is open")
    pod.wait_for(lambda: len(pod.practice.starts()) == 1 and not pod.practice.alive(), "the job is down")
    number = pod.status()["incident"]["id"]
    installed.version("9.0.0")
    upgrade(pod)
    assert (pod.status().get("incident") or {}).get("id", number) == number
    pod.wait_for(lambda: pod.said_so("incident-closed", f"Incident {number} is over"), "the new one closes it")
    assert pod.status()["version"] == "9.0.0"
    assert len(pod.practice.starts()) == 2
    assert [incident["id"] for incident in pod.status()["incidents"]] == [number]


@pytest.mark.soak
def test_a_publish_under_way_goes_on_where_it_was(installed: Installed, living: Living) -> None:
    with B2Server() as b2:
        options = b2_settings(b2)
        options["settings"]["store"].update(LONG["store"])
        pod = living(checkpoint_bytes=1_000_000, step_s=0.8, **options)
        pod.wait_for(lambda: pod.sentences("published"), "a step is published")
        b2.state.bytes_per_s = 100_000
        sent = len(b2.journal("b2_upload_part"))
        pod.wait_for(lambda: len(b2.journal("b2_upload_part")) > sent + 1, "another one is on its way")
        step, launcher = pod.status()["publishing"]["step"], pod.status()["pid"]
        installed.version("9.0.0")
        upgrade(pod)
        b2.state.bytes_per_s = 0
        pod.wait_for(lambda: step in in_bucket(b2), "it is published by the new one")
        assert not pod.sentences("publish-failed") and not pod.sentences("swept")
        assert_untouched(pod, launcher)
        checked = pod.by_hand("verify")
        assert checked.returncode == 0, checked
        end(pod)


@pytest.mark.soak
def test_a_job_that_ends_while_one_program_turns_into_the_other_is_judged_by_its_exit_status(
    tmp_path: Path, installed: Installed, living: Living
) -> None:
    pod = living("run", "--fresh")
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    hold = tmp_path / "hold"
    hold.touch()
    installed.add("daemon/loop.py", HOLD.format(hold=str(hold), variable=VARIABLE))
    asking = begin_upgrade(pod)
    pod.wait_for(lambda: held(pod), "the new program is there, and waits")
    (launcher,) = {start["pid"] for start in pod.practice.starts()}
    os.kill(launcher, signal.SIGKILL)  # first, or it says of a child that was killed before it that it failed
    pod.practice.end_all()
    pod.wait_for_here(lambda: not pod.practice.alive(), "the job has ended by itself")
    hold.unlink()
    assert asking.wait(60) == 0, pod.story()
    pod.wait_for(lambda: pod.said_so("verdict", "The job ended with signal 9"), "its status is told")
    pod.wait_for(lambda: pod.sentences("incident-closed"), "it goes on")
    first, second = pod.resume_steps()
    assert first is None and second is not None, "--fresh was for the first start alone"
    end(pod)


@pytest.mark.soak
def test_a_stop_that_comes_while_one_program_turns_into_the_other_is_carried_out(
    tmp_path: Path, installed: Installed, living: Living
) -> None:
    pod = living()
    hold = tmp_path / "hold"
    hold.touch()
    installed.add("daemon/loop.py", HOLD.format(hold=str(hold), variable=VARIABLE))
    asking = begin_upgrade(pod)
    pod.wait_for(lambda: held(pod), "the new program is there, and waits")
    assert pod.daemon is not None
    pod.daemon.send_signal(signal.SIGTERM)
    assert pod.daemon.poll() is None
    assert pod.practice.alive()
    hold.unlink()
    assert pod.wait_exit() == 0, pod.story()
    assert not pod.practice.alive()
    asking.wait(200)


@pytest.mark.soak
def test_a_program_that_dies_right_after_it_took_the_place_leaves_the_job_to_the_next_one(
    installed: Installed, living: Living
) -> None:
    pod = living()
    launcher = pod.status()["pid"]
    installed.add("daemon/loop.py", CRASH.format(variable=VARIABLE))
    asking = begin_upgrade(pod)
    assert pod.wait_exit() == 75, "whatever restarts daemons starts another one"
    pod.start()
    pod.wait_for(lambda: pod.sentences("adopted"), "the job is taken over")
    assert_untouched(pod, launcher)
    assert asking.wait(200) == 1
    end(pod)


@pytest.mark.soak
def test_what_would_lose_the_run_is_refused(tmp_path: Path, installed: Installed, living: Living) -> None:
    trial = installed.file("daemon/upgrade.py")
    trial.write_text(trial.read_text().replace("TRIAL_S = 45.0", "TRIAL_S = 15.0"))
    pod = living()
    launcher = pod.status()["pid"]

    mend = installed.add("journal/journal.py", "\nJournal.rebuild = lambda self: (State(), 0)\n")
    assert "it would go on with attempt 0, and this run has 1" in refused(pod)
    mend()
    mend = installed.add("config/settings.py", "\nimport time\ntime.sleep(300)\n")
    assert "it gave no answer in 15 s" in refused(pod)
    mend()
    text = pod.run_file.read_text()
    for wrong, said in (
        (text.replace('id = "practice"', 'id = "another"'), "it would go on with run 'another', and this run has"),
        (text.replace("checkpoint_interval", "checkpoint_intervall"), 'did you mean "checkpoint_interval"?'),
        (text.replace(str(pod.state_dir), str(tmp_path / "elsewhere")), "the run file names another run"),
    ):
        assert wrong != text
        pod.run_file.write_text(wrong)
        assert said in refused(pod)
    pod.run_file.write_text(text)
    assert not (pod.state_dir / "upgrade").exists(), "nothing is left of the trials"
    assert_untouched(pod, launcher)
    assert f"was started anew in its own place (pid {pod.status()['daemon_pid']})" in upgrade(pod)
    assert_untouched(pod, launcher)
    end(pod)


# ---------------------------------------------------------------- however the daemon was started


@pytest.mark.soak
def test_the_commands_of_setup_are_not_run_again(tmp_path: Path, installed: Installed, living: Living) -> None:
    ran = tmp_path / "ran"
    pod = living("onstart", settings={"setup": {"commands": [f"echo x >> {ran}"]}})
    installed.version("9.0.0")
    upgrade(pod)
    assert pod.ctl("stop").returncode == 0
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "it is stopped")
    installed.version("9.1.0")
    upgrade(pod)
    assert pod.status()["state"] == "stopped"
    assert ran.read_text() == "x\n"
    assert pod.ctl("start").returncode == 0
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "it is started again")


@pytest.mark.soak
def test_a_job_that_a_person_started_stays_one_that_is_only_observed(
    tmp_path: Path, pods: list[Pod], installed: Installed
) -> None:
    pod = pod_of(tmp_path, installed)
    pods.append(pod)
    job = pod.practice.start()
    pod.wait_for_here(lambda: pod.practice.trained_steps(), "the person's job makes steps")
    pod.start("attach")
    pod.wait_for(lambda: pod.sentences("step"), "its steps are seen")
    installed.version("9.0.0")
    upgrade(pod)
    assert "a person started its job" in pod.status()["observed"]
    pod.practice.end_all()
    job.wait()
    pod.wait_for(lambda: pod.status().get("pid") is None or pod.sentences("would"), "its end is seen")
    assert not pod.practice.alive(), "nothing is started in its place"
    assert pod.daemon is not None
    pod.daemon.send_signal(signal.SIGTERM)
    assert pod.wait_exit() == 0, pod.story()


@pytest.mark.soak
def test_under_a_nanny_the_daemon_is_replaced_and_the_nanny_does_not_notice(
    installed: Installed, living: Living
) -> None:
    pod = living("run", "--restart")
    status = pod.status()
    assert pod.daemon is not None
    assert status["daemon_pid"] != pod.daemon.pid
    installed.version("9.0.0")
    upgrade(pod)
    assert pod.status()["daemon_pid"] == status["daemon_pid"]
    assert_untouched(pod, status["pid"])
    end(pod)
