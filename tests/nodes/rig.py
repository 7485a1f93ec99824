"""A head and its machines on loopback: the real daemon, and for each machine a real agent below its nanny."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from supervisor.api.client import Client
from tests.practice.command_line import toml_value

JOB = Path(__file__).with_name("job.py")
ENGINES = 3


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """``machines`` agents, n0 to nN; the trainer on the first machine of a start, an engine on each other one."""

    def __init__(  # noqa: PLR0917
        self,
        folder: Path,
        machines: int = 4,
        last: int = 400,
        lease: float = 60,
        common: Path | None = None,
        ports: Sequence[int] = (0,) * ENGINES,
        **deadlines: float,
    ) -> None:
        """``common``: the file system that all machines share; None: ``folder`` itself. ``ports``: of the engines."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.out = (common or folder) / "out"
        self.shared = (common or folder) / "shared"
        self.state_dir = folder / "state"
        self.run_file = folder / "run.toml"
        self.socket = folder / "s"
        self.names = [f"n{number}" for number in range(machines)]
        self.nannies: dict[str, subprocess.Popen[bytes]] = {}
        self.daemon: subprocess.Popen[bytes] | None = None
        self.heads: dict[str, str] = {}
        self.environs: dict[str, dict[str, str]] = {}
        self.proxy: Any = None
        self.ports = ports
        self.write_run_file(last, lease, deadlines)

    def write_run_file(self, last: int, lease: float, deadlines: dict[str, float]) -> None:
        py, out = sys.executable, str(self.out)
        tables: dict[str, dict[str, Any]] = {
            "run": {"id": "several", "state_dir": str(self.state_dir)},
            "job": {"kind": "command", "dir": str(self.folder), "output_dir": out},
            "job.plain": {
                "start": [],
                "resume": ["{step}"],
                "step_line": r"step (?P<step>\d+) done",
                "finish_line": "training finished",
                "first_step": 1,
            },
            "store": {"url": (self.folder / "store").as_uri()},
            "api": {"socket": str(self.socket)},
            "logging": {"format": "json"},
            "check": {"at_start": False},
            "deadlines": {"engine_grace": 0.5, "step_floor": 6, "step_ceiling": 60, **deadlines},
            "recovery": {"backoff": 0.2, "backoff_cap": 2},
            "supervision": {"sample": 0.2, "scan": 0.3, "quiet": 0.3, "shim": "fork", "gpu_free": 2},
            "disk": {"stop_below_mb": 0},
            "nodes": {"folder": str(self.shared), "listen": "127.0.0.1:0", "lease": lease, "wait": 30},
        }
        lines = []
        for table, values in tables.items():
            lines += [f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
        trainer = [py, "-u", str(JOB), "trainer", out]
        parts = [{"role": "trainer", "machine": 0, "start": [*trainer, "0", str(last), str(ENGINES)]}]
        parts[0]["resume"] = [*trainer, "{step}", str(last), str(ENGINES)]
        for number in range(ENGINES):
            start = [py, "-u", str(JOB), "engine", out, str(number), str(self.ports[number])]
            port = {"port": self.ports[number]} if self.ports[number] else {}
            parts.append({"role": "inference", "machine": number + 1, "start": start, **port})
        for part in parts:
            lines += ["[[nodes.components]]", *(f"{key} = {toml_value(value)}" for key, value in part.items())]
        self.run_file.write_text("\n".join(lines) + "\n")

    # ------------------------------------------------------------ processes

    def start(self) -> Self:
        self.start_daemon()
        for name in self.names:
            self.start_agent(name)
        return self

    def start_daemon(self) -> None:
        with (self.folder / "daemon.out").open("ab") as output:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "supervisor.cli.main", "run", str(self.run_file)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_agent(self, name: str) -> None:
        words = ["--name", name, "--rank", name[1:], "--state", str(self.folder / name)]
        words += ["--head", self.heads[name]] if name in self.heads else []
        with (self.folder / f"{name}.out").open("ab") as output:
            self.nannies[name] = subprocess.Popen(
                [sys.executable, "-m", "supervisor.cli.main", "node", str(self.run_file), *words],
                stdout=output,
                stderr=output,
                env={**os.environ, "RL_SUPERVISOR_BACKOFF": "0.3", **self.environs.get(name, {})},
                start_new_session=True,
            )

    def agent(self, name: str) -> psutil.Process:
        """The agent below its nanny."""

        def find() -> psutil.Process | None:
            nanny = psutil.Process(self.nannies[name].pid)
            for child in nanny.children():
                with contextlib.suppress(psutil.Error):
                    if "supervisor.nodes.agent" in child.cmdline():
                        return child
            return None

        found = self.wait_for(find, f"the agent of {name}")
        assert isinstance(found, psutil.Process)
        return found

    def lose_machine(self, name: str) -> None:
        """Everything of a machine from one moment to the next."""
        nanny = psutil.Process(self.nannies[name].pid)
        below = [nanny, *nanny.children(recursive=True)]
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()  # so that none starts what another would have
        below = [*below, *nanny.children(recursive=True)]
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.nannies[name].wait()
        psutil.wait_procs(below, timeout=10)  # a killed process is still seen until the kernel has ended it

    def close(self) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        for name, nanny in self.nannies.items():
            if nanny.poll() is None:
                self.lose_machine(name)

    # ------------------------------------------------------------ what is seen

    def living(self) -> list[psutil.Process]:
        """Processes of the job, by their command lines."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            with contextlib.suppress(psutil.NoSuchProcess):
                if str(JOB) in words and str(self.out) in words and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def component(self, word: str, *rest: str) -> psutil.Process:
        return next(one for one in self.living() if all(part in one.cmdline() for part in (word, *rest)))

    def step(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.out / "trained").read_text().split()[-1])
        return 0

    def starts(self) -> list[int]:
        """The steps at which the trainer was started."""
        with contextlib.suppress(OSError):
            return [int(line.split()[0]) for line in (self.out / "starts").read_text().splitlines()]
        return []

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            return dict(Client(self.socket).get("/v1/status"))
        return {}

    def sentences(self, event: str = "") -> list[str]:
        found = []
        for line in (self.folder / "daemon.out").read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and event in ("", record.get("event")):
                    found.append(str(record.get("sentence")))
        return found

    def story(self) -> str:
        texts = []
        for path in sorted(self.folder.glob("*.out")):
            texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3500:]}")
        return "\n".join(texts)

    def wait_for(self, what: Callable[[], Any], about: str, timeout_s: float = 120) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := what():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not in {timeout_s} s: {about}\n{self.story()}")

    def wait_for_step(self, step: int, timeout_s: float = 120) -> None:
        self.wait_for(lambda: self.step() >= step, f"step {step}", timeout_s)

    def check_sound(self) -> None:
        """At no time were there two writers, and no step was lost: each start is at a step that was saved."""
        assert not (self.out / "two-writers").exists(), self.story()
        trained = [int(word) for word in (self.out / "trained").read_text().split()]
        for one, after in itertools.pairwise(trained):
            assert after == one + 1 or (after <= one + 1 and (after - 1) % 2 == 0), trained

    def stop(self) -> int:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(60)
