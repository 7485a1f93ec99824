"""A container's process 1, for real: the program in a pid namespace of its own, with a job, orphans and zombies.

What is said here of docker is what its runtime does: process 1 gets SIGTERM, and when it has ended the kernel kills
everything else in the namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from supervisor.api.client import Client, NotThereError, UnclearError
from supervisor.process import nanny
from tests.practice.command_line import toml_value
from tests.process.conftest import wait_for

CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child=KILL"]

# A job that leaves what jobs leave: children nobody waits for, and a double-forked helper in a session of its own.
JOB = """
import os, signal, sys, time
def ended(*_):
    open("ended-in-order", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
    os._exit(0)
step = 0
while True:
    if not os.fork():
        os._exit(0)
    step += 1
    print("step", step, flush=True)
    time.sleep(0.1)
"""


def processes() -> dict[int, tuple[int, str, str]]:
    """Every process of this machine: its parent, its state and its name."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                head, _, tail = (folder / "stat").read_text().rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(folder.name)] = (int(tail.split()[1]), tail.split()[0], head.partition("(")[2])
    return found


def below(pid: int) -> dict[int, tuple[int, str, str]]:
    """Everything that descends from ``pid``."""
    everything, found = processes(), {pid}
    while more := {one for one, (parent, _, _) in everything.items() if parent in found} - found:
        found |= more
    return {one: everything[one] for one in found - {pid} if one in everything}


class Container:
    """One container: its process 1 is ``command``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, **env: str) -> int:
        """Start it; returns the number that its process 1 has out here."""
        with (self.folder / "said").open("ab") as said:
            self.runtime = subprocess.Popen(
                [*CONTAINER, *command],
                stdout=said,
                stderr=said,
                env={**os.environ, "RL_SUPERVISOR_BACKOFF": "0.1", **env},
            )
        runtime = self.runtime.pid
        return wait_for(
            lambda: next((pid for pid, found in processes().items() if found[0] == runtime), None), "process 1"
        )

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def wait(self) -> int:
        assert self.runtime is not None
        try:
            return self.runtime.wait(40)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said()[-4000:]) from None


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare with a pid namespace, to have a process 1 (root in a container that allows it)")
    made = Container(tmp_path)
    yield made
    if made.runtime is not None and made.runtime.poll() is None:
        made.runtime.kill()  # --kill-child: process 1 goes with it, and with that one everything
        made.runtime.wait()


@pytest.mark.soak
def test_process_one_collects_orphans_and_zombies_and_hands_sigterm_on(container: Container, tmp_path: Path) -> None:
    daemon = tmp_path / "daemon.py"
    daemon.write_text(
        dedent(
            """
            import os, signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            for _ in range(30):
                if not os.fork():
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    time.sleep(3)  # its parent is gone by now: process 1 has it, for long enough to be seen
                    os._exit(3)
                os.wait()
            while True:
                time.sleep(60)
            """
        )
    )
    one = container.start(sys.executable, "-I", "-S", nanny.__file__, "--", sys.executable, "-I", "-S", str(daemon))
    wait_for(lambda: len(below(one)) > 5, "the daemon and orphans")
    wait_for(lambda: len(below(one)) == 1, "nothing but the daemon is left")
    os.kill(one, signal.SIGTERM)
    assert container.wait() == 0


class Pod(Container):
    """A container whose process 1 is `rl-supervisor run` with a job of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.state = folder / "state"
        self.run_file = folder / "run.toml"
        self.home = folder / "job"
        self.home.mkdir()
        (self.home / "job.py").write_text(JOB)
        words = [sys.executable, "-I", "-S", str(self.home / "job.py")]
        tables: dict[str, dict[str, Any]] = {
            "run": {"id": "one", "state_dir": str(self.state)},
            "job": {"kind": "command", "dir": str(self.home)},
            "job.plain": {"start": words, "resume": [*words, "{step}"], "step_line": "step (?P<step>\\d+)"},
            "store": {"url": (folder / "store").as_uri()},
            "api": {"socket": str(folder / "s")},
            "disk": {"stop_below_mb": 0},
            "logging": {"format": "json"},
            "check": {"at_start": False},
            "supervision": {"sample": 0.3, "scan": 0.5, "gpu_free": 0, "shim": "fork"},
        }
        lines = []
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
        self.text = "\n".join(lines) + "\n"
        self.run_file.write_text(self.text)

    def run(self, *words: str) -> int:
        return self.start(sys.executable, "-m", "supervisor.cli.main", "run", str(self.run_file), *words)

    def status(self) -> dict[str, Any]:
        try:
            return dict(Client(self.folder / "s").get("/v1/status"))
        except Exception:
            return {}

    def running(self) -> bool:
        return self.status().get("state") == "running"

    def job(self, one: int) -> int:
        """The job's own process: of the shim's children (it has the job's orphans, too) the one that came first."""
        shims = [pid for pid, about in below(one).items() if about[2] == "rl-shim"]
        return wait_for(
            lambda: min((p for p, about in below(one).items() if about[0] in shims), default=None), "the job"
        )

    def daemon(self, one: int) -> int | None:
        """The daemon: the one child of process 1 that is no shim."""
        names = {pid: about for pid, about in processes().items() if about[0] == one}
        return next((pid for pid, about in names.items() if not about[2].startswith("rl-") and about[1] != "Z"), None)

    def told(self) -> list[dict[str, Any]]:
        """What is in the log that the daemon keeps by itself."""
        return [json.loads(line) for line in (self.state / "daemon.jsonl").read_text().splitlines()]


@pytest.fixture
def pod(container: Container) -> Iterator[Pod]:
    made = Pod(container.folder)
    yield made
    if made.runtime is not None and made.runtime.poll() is None:
        made.runtime.kill()
        made.runtime.wait()


@pytest.mark.soak
def test_a_killed_daemon_and_then_a_broken_run_file_cost_no_job_until_the_container_is_stopped(pod: Pod) -> None:
    one = pod.run()
    wait_for(pod.running, "the job runs", 30)
    job, daemon = pod.job(one), pod.daemon(one)
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: (found := pod.daemon(one)) != daemon and found, "another daemon", 30)
    wait_for(pod.running, "it watches the job", 30)
    second = pod.daemon(one)
    assert second is not None
    assert pod.job(one) == job
    assert pod.status()["attempt"] == 1
    assert "rl-supervisor was killed (SIGKILL); again in 0.1 s. A job that runs lives on." in pod.said()
    # The job's own orphans and zombies are its shim's; nothing hangs on process 1 but that shim and the daemon.
    zombies = lambda: [p for p, about in processes().items() if about[0] in (one, second) and about[1] == "Z"]  # noqa: E731
    wait_for(lambda: not zombies(), "no zombies")
    assert [about[2] for about in processes().values() if about[0] == one and about[2].startswith("rl-")] == ["rl-shim"]

    # Nor does a broken run file end the container, as long as a job runs in it.
    pod.run_file.write_text("[run\n")
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: "A person is needed, see above: the job lives on." in pod.said(), "a person is called", 30)
    assert pod.job(one) == job
    pod.run_file.write_text(pod.text)
    wait_for(pod.running, "it is watched again", 30)
    assert pod.job(one) == job

    os.kill(one, signal.SIGTERM)
    assert pod.wait() == 0
    assert (pod.home / "ended-in-order").exists(), "docker stop is SIGTERM to process 1, and the job is told"
    if not Path("/run/systemd/system").is_dir():
        assert {record["run"] for record in pod.told()} == {"one"}


@pytest.mark.soak
def test_a_broken_run_file_with_no_job_ends_the_container_with_93(pod: Pod) -> None:
    pod.run_file.write_text("[run\n")
    pod.run()
    assert pod.wait() == 93


@pytest.mark.soak
def test_a_stranger_in_a_container_without_a_home_has_all_his_folders(pod: Pod) -> None:
    """`docker run --user 54321`: no entry in the password file, HOME=/, nothing of root's can be written."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv, to be somebody else")
    stranger = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    # Where our own Python is in root's home: the machine's, with our packages.
    places = [str(Path(nanny.__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
    machines = f"/usr/bin/python3.{sys.version_info.minor}"
    tried = {sys.executable: {}, machines: {"PYTHONPATH": os.pathsep.join(places)}}
    trial = ["sh", "-c", 'cd / && "$0" -c "import psutil, pydantic_core, supervisor.daemon.loop" && exit 0']
    for python, more in tried.items():
        if not subprocess.run(
            [*stranger, *trial, python], capture_output=True, check=False, env={**os.environ, **more}
        ).returncode:
            break
    else:
        pytest.skip("another user may read neither this Python nor the machine's with this checkout")
    left = [Path("/var/tmp/rl-supervisor-54321"), Path("/tmp/rl-supervisor-54321")]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in (pod.folder, *pod.folder.parents[:-2]):
        folder.chmod(0o755)  # pytest's own folders are for root alone
    for folder in (pod.folder, pod.home):
        os.chown(folder, 54321, 54321)
    text = pod.text.replace(sys.executable, machines)
    lines = [line for line in text.splitlines() if not line.startswith(("state_dir", "socket"))]
    pod.run_file.write_text("\n".join(lines) + "\n")
    cut = ["env", "-u", "XDG_STATE_HOME", "-u", "XDG_RUNTIME_DIR", "-u", "RL_SUPERVISOR_SOCKET_DIR", "HOME=/"]
    try:
        one = pod.start(*cut, *stranger, python, "-m", "supervisor.cli.main", "run", str(pod.run_file), **more)
        socket = left[1] / "one.sock"

        def runs() -> bool:
            with contextlib.suppress(NotThereError, UnclearError):  # it is just starting
                return socket.exists() and "running" in str(Client(socket).get("/v1/status").get("state"))
            return False

        wait_for(runs, "it runs", 30)
        state = left[0] / "rl-supervisor/one"
        assert (state / "journal.db").stat().st_uid == 54321
        if not Path("/run/systemd/system").is_dir():
            assert (state / "daemon.jsonl").stat().st_size > 0
        os.kill(one, signal.SIGTERM)
        assert pod.wait() == 0
    finally:
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)
