"""A pod for end-to-end tests: the real daemon as a subprocess, the practice job, GPUs in a folder, a store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from supervisor.api.client import Client
from supervisor.cli.main import main
from tests.practice.command_line import toml_value
from tests.practice.run import Practice, make_practice

FAST: dict[str, dict[str, Any]] = {
    # Deadlines in proportion to steps of a quarter of a second; the rules are those of production.
    "deadlines": {
        "startup": 60,
        "step_floor": 6,
        "step_ceiling": 30,
        "engine_grace": 0.5,
        "memory_fell": 1,
        "hang": 3,
        "checkpoint_save": 10,
    },
    "recovery": {"backoff": 0.2, "backoff_cap": 2},
    "supervision": {"sample": 0.2, "engine_sample": 0.3, "scan": 0.3, "quiet": 0.4, "gpu_free": 10, "shim": "fork"},
    "disk": {"stop_below_mb": 0},
    "check": {"at_start": False},  # a second for each start, and a practice run is no sound configuration of prime-rl
    "logging": {"format": "json"},
}


NVML = Path(tempfile.gettempdir()) / f"rl-supervisor-nvml-{os.geteuid()}"
"""Where the driver's stand-in is built, once for all pods: it tells of the GPUs of the pod that asks it."""


class Pod:
    """One pod with one practice run. ``store`` may be shared with another pod."""

    def __init__(
        self,
        folder: Path,
        era: str = "v0.6",
        *,
        store: str | None = None,
        settings: dict[str, dict[str, Any]] | None = None,
        practice: Practice | None = None,
        environ: dict[str, str] | None = None,
        **knobs: Any,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        knobs = {"max_steps": 12, "interval": 2, **knobs}
        self.interval: int = knobs["interval"]
        self.practice = practice or make_practice(folder / "practice", era, **knobs)
        self.state_dir = folder / "state"
        self.socket = folder / "s"
        self.run_file = folder / "run.toml"
        self.output = folder / "daemon.out"
        self.store = store or (folder / "store").as_uri()
        self.environ = environ or {}
        self.daemon: subprocess.Popen[bytes] | None = None
        self.write_run_file(settings or {})

    def write_run_file(self, settings: dict[str, dict[str, Any]]) -> None:
        tables: dict[str, dict[str, Any]] = {
            "run": {"id": "practice", "state_dir": str(self.state_dir)},
            "job": {
                "dir": str(self.practice.home),
                "config": str(self.practice.config),
                "checkpoint_interval": self.interval,
            },
            "store": {"url": self.store},
            "api": {"socket": str(self.socket)},
        }
        for source in (FAST, settings):
            for table, values in source.items():
                tables.setdefault(table, {}).update(values)
        job_env = {k: v for k, v in self.practice.environment.items() if k != "PATH"}
        lines = []
        for table, values in tables.items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
        lines += ["[job.env]", *(f"{key} = {toml_value(value)}" for key, value in job_env.items())]
        self.run_file.write_text("\n".join(lines) + "\n")

    # ------------------------------------------------------------ the daemon

    def start(self, verb: str = "run", *words: str) -> Pod:
        env = {**os.environ, **self.practice.driver_environment(NVML), **self.environ}
        with self.output.open("ab") as output:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "supervisor.cli.main", verb, str(self.run_file), *words],
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )
        return self

    def run_to_end(self, verb: str = "run", timeout_s: float = 60) -> int:
        """The exit code of a daemon that has nothing to supervise: in a fork of this process, which has imported all
        that another process would take a second for. Its GPUs are unknown: their driver is found by an environment."""
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setsid()
                output = self.output.open("a", buffering=1)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.stdout = sys.stderr = output
                os.environ.update(self.environ)
                code = main([verb, str(self.run_file)])
                output.flush()
            finally:
                os._exit(code)
        deadline = time.monotonic() + timeout_s
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError(f"the daemon did not end in {timeout_s} s\n{self.story()}")
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(done[1])

    def wait_exit(self, timeout_s: float = 120) -> int:
        assert self.daemon is not None
        try:
            return self.daemon.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon did not end in {timeout_s} s\n{self.story()}") from None

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGKILL)
            self.daemon.wait()
        self.end_job()

    def end_job(self, timeout_s: float = 20) -> None:
        """Kill the job with all that its shims hold, also what has only just begun and is not registered yet."""
        self.practice.end_all()
        deadline = time.monotonic() + timeout_s
        for shim in self._shims():
            while shim.is_running() and shim.status() != psutil.STATUS_ZOMBIE:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in shim.children(recursive=True):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            child.kill()
                assert time.monotonic() < deadline, f"the shim {shim.pid} does not end"
                time.sleep(0.02)

    def _shims(self) -> list[psutil.Process]:
        """The living shims of this pod, by the records that they leave: pid and start time, so no other is meant."""
        found = []
        for record in self.state_dir.glob("attempts/*/*.shim.json"):
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                told = json.loads(record.read_text())
                fields = Path(f"/proc/{told['shim_pid']}/stat").read_text().rpartition(")")[2].split()
                # One that has ended stays in the list until process 1 comes to it.
                if int(fields[19]) == told["shim_start_ticks"] and fields[0] != "Z":
                    found.append(psutil.Process(told["shim_pid"]))
        return found

    # ------------------------------------------------------------ what is seen

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            return dict(Client(self.socket).get("/v1/status"))
        return {}

    def command(self, verb: str, *args: str) -> None:
        Client(self.socket).command(verb, list(args))

    def said(self) -> list[dict[str, Any]]:
        """Everything that the daemons of this pod logged, from their JSON lines."""
        found = []
        for line in self.output.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    found.append(record)
        return found

    def sentences(self, event: str) -> list[str]:
        return [str(record.get("sentence")) for record in self.said() if record.get("event") == event]

    def story(self) -> str:
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return text[-6000:]

    def wait_for(self, what: Callable[[], Any], about: str, timeout_s: float = 120) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            if self.daemon is not None and self.daemon.poll() is not None:
                found = what()
                if found:
                    return found
                raise AssertionError(f"the daemon ended with {self.daemon.returncode} before: {about}\n{self.story()}")
            time.sleep(0.05)
        raise AssertionError(f"not in {timeout_s} s: {about}\n{self.story()}")

    def wait_for_here(self, what: Callable[[], Any], about: str, timeout_s: float = 120) -> None:
        """Like ``wait_for`` while no daemon runs."""
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, f"not in {timeout_s} s: {about}\n{self.story()}"
            time.sleep(0.05)

    def step(self) -> int:
        return int(self.status().get("step") or 0)

    def resume_steps(self) -> list[int | None]:
        """The resume step that each start of the job was really given."""
        key = f"--{self.practice.era.command_line['resume_key'].replace('_', '-')}"
        found: list[int | None] = []
        for start in self.practice.starts():
            words: list[str] = start["arguments"]
            plain = [word.replace("_", "-") for word in words]
            found.append(int(words[plain.index(key) + 1]) if key in plain else None)
        return found

    def stored(self) -> list[int]:
        folder = Path(self.store.removeprefix("file://")) / "practice"
        return sorted(int(path.parent.name.removeprefix("step_")) for path in folder.glob("step_*/manifest.json"))

    def latest(self) -> dict[str, Any]:
        """The store's pointer; empty before there is one."""
        pointer = Path(self.store.removeprefix("file://")) / "practice" / "latest.json"
        return dict(json.loads(pointer.read_text())) if pointer.exists() else {}

    def vanish(self) -> None:
        """The pod is gone from one moment to the next: daemon, job and disk. The store stays."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill_daemon()
        self.end_job()
        for folder in (self.practice.home, self.state_dir):
            remove_tree(folder)

    # ------------------------------------------------------------ people

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`supervisorctl --socket S WORDS...` as a person runs it."""
        return self.command_line("--socket", str(self.socket), *words)

    def command_line(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`supervisorctl WORDS...`, without a socket."""
        command = [sys.executable, "-m", "supervisor.cli.ctl", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def by_hand(self, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        """`rl-supervisor VERB RUN.toml WORDS...`, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "supervisor.cli.main", verb, str(self.run_file), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **self.environ},
        )

    def said_so(self, event: str, words: str) -> bool:
        """Was a sentence of this kind said that holds these words?"""
        return any(words in sentence for sentence in self.sentences(event))

    def step_bytes(self, step: int) -> dict[str, bytes]:
        """Every file of a step on this pod's disk, by its name below the output folder."""
        output = self.practice.home / "outputs"
        found = [path for path in output.rglob("*") if f"step_{step}" in path.parts and "checkpoints" in path.parts]
        return {path.relative_to(output).as_posix(): path.read_bytes() for path in found if path.is_file()}


def remove_tree(folder: Path, timeout_s: float = 10) -> None:
    """Delete a folder in which a process that was just killed may still be writing its last file."""
    deadline = time.monotonic() + timeout_s
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            raise AssertionError(f"{folder} cannot be deleted")


def pids_of(practice: Practice) -> Iterable[int]:
    """Everything of the practice run that lives now."""
    return practice.alive().keys()
