"""What a run over many machines costs its head: `python -m bench many_agents` (about a minute and a half).

The daemon is real, and so is what it hears. The agents are 64 connections of one program that imitates them: each
launches what it is told, beats every second and carries a log of `--lines` lines a second. Every fifteen seconds each
engine's answers are told, every ten its machine's eight GPUs, whose memory moves, and every ten the trainer makes a
step. After a minute one engine ends with exit code 0, and the verdict is awaited. `--machines 512` asks more.

Asked for: 5 % of a core and 96 MiB with 64 agents, the verdict within 3 s. Exit code 1 where a figure is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.footprint import Meter
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.nodes import wire
from supervisor.nodes.wire import Line, Message

RUN = """
[run]
id = "many"
state_dir = "{folder}/state"
[job]
kind = "command"
dir = "{folder}"
output_dir = "{folder}/out"
[job.plain]
start = []
resume = ["{{step}}"]
step_line = 'step (?P<step>\\d+) done'
[store]
url = "file://{folder}/store"
[api]
socket = "{folder}/s"
[logging]
format = "json"
[check]
at_start = false
[nodes]
folder = "{folder}/nodes"
listen = "127.0.0.1:0"
"""
COMPONENT = (
    '[[nodes.components]]\nrole = "{role}"\nmachine = {machine}\nstart = ["x"]\nresume = ["x", "{{step}}"]\n{port}'
)
MACHINES, LINES = 64, 2
WARM_UP_S, MEASURED_S = 15.0, 60.0
CORE, MIB, VERDICT_S = 5.0, 96.0, 3.0
STEP_S = 10.0
ENGINE_S, GPU_S, HOST_S = 15, 10, 30
TEXT = "(APIServer pid=42) INFO 08-21 10:00:00 [loggers.py:236] Engine 000: Avg generation throughput: 3.2 tokens/s\n"


class Agent:
    """One machine: what it was told to launch lives until ``end``."""

    def __init__(self, number: int, head: str, token: str) -> None:
        self.name, self.number = f"n{number}", number
        host, _, port = head.rpartition(":")
        self.line = Line(socket.create_connection((host, int(port)), 10))
        hello, mine = self.line.wait_for_one(10), secrets.token_hex(16)
        proof = wire.prove(token, "agent", "many", self.name, str(hello["nonce"]), mine)
        about = {"run": "many", "name": self.name, "rank": number, "nonce": mine, "address": "127.0.0.1"}
        self.line.put({"v": wire.VERSION, "proof": proof, **about})
        self.line.longest = wire.LONGEST_LINE
        self.line.wait_for_one(10)
        self.line.put({"t": "report", "parts": [], "age": 0.0})
        self.part: Message = {}
        self.beats, self.written, self.step = itertools.count(1), 0, 0

    def hear(self) -> None:
        """Launch what is told; a stop ends it."""
        for message in self.line.take():
            if message.get("t") != "do":
                continue
            if message["do"] == "launch":
                place = message["place"]
                top = {"attempt": message["attempt"], "name": message["component"]["name"]}
                self.part = {**top, "role": place["role"], "index": place["index"]}
                state = {"state": "running", "shim_pid": 1, "pid": 1000 + self.number, "start_ticks": 7}
                self.line.put({"t": "done", "id": message["id"], "state": state})
                self.line.put({"t": "part", **top, "state": state, "age": 0.0})
                process = {"pid": 1000 + self.number, "ticks": 7, "title": top["name"], "key": True}
                self.line.put({"t": "seen", **self.part, **process, "age": 0.0})
                self.written = 0
            else:
                self.part = {}
                self.line.put({"t": "done", "id": message["id"], "seconds": 0.1, "survivors": []})

    def beat(self, lines: int) -> None:
        """Once a second."""
        number = next(self.beats)
        self.line.put({"t": "beat", "n": number})
        if not self.part:
            return
        text = TEXT * lines
        if self.part["role"] == "trainer" and number % STEP_S == 0:
            self.step += 1
            text += f"step {self.step} done\n"
        top = {"attempt": self.part["attempt"], "name": self.part["name"]}
        if self.part["role"] == "inference" and (number + self.number) % ENGINE_S == 0:
            self.line.put({"t": "engine", **self.part, "look": encode(self.make_look(number)), "age": 0.0})
        if (number + self.number) % GPU_S == 0:
            self.line.put({"t": "gpus", "look": encode(self.make_gpus(number)), "age": 0.0})
        if (number + self.number) % HOST_S == 0:
            host = f.HostLook(
                1 << 40, (1 << 39) + (number % 7 << 34), 1.0, 0, 900, 65536, "vllm (pid 7)", 1 << 39, 1 << 38
            )
            self.line.put({"t": "host", "look": encode(host), "age": 0.0})
            does = f.EffortLook((f.Effort(self.part["role"], 1.0 + number % 3, 0.5),), "", 0.3, 1e5, 1e5, 1e5)
            self.line.put({"t": "effort", "attempt": self.part["attempt"], "look": encode(does), "age": 0.0})
        self.line.put({"t": "log", **top, "at": self.written, "data": text})
        self.written += len(text)

    @staticmethod
    def make_look(number: int) -> f.EngineLook:
        """What its engine answers: well, and at work."""
        counts = {"generation_tokens": 900.0 * number, "iterations": 30.0 * number, "running": 24.0, "waiting": 2.0}
        return f.EngineLook("http://127.0.0.1:8100", "ok", "ok", **counts, connections=3)  # type: ignore[arg-type]

    def make_gpus(self, number: int) -> f.GpuLook:
        """Its GPUs, whose memory moves."""
        role = self.part["role"]
        held, total = (70 << 30) + (number % 7 << 28), 80 << 30
        gpus = (f.Gpu(f"GPU-{self.name}-{n}", n, held, total, role, (), "", 600.0, 95.0) for n in range(8))
        return f.GpuLook(tuple(gpus))

    def end(self) -> None:
        """What runs here ends with exit code 0."""
        state = {"state": "exited", "exit_code": 0, "pid": 1000 + self.number, "start_ticks": 7}
        top = {"attempt": self.part["attempt"], "name": self.part["name"]}
        self.line.put({"t": "part", **top, "state": state, "age": 0.0})


def imitate(agents: Sequence[Agent], lines: int, over: threading.Event) -> None:
    """All of them, until ``over``: each beats at its own moment of a second."""
    due = {agent: time.monotonic() + agent.number / len(agents) for agent in agents}
    while not over.is_set():
        ready, _, _ = select.select([agent.line for agent in agents], [], [], 0.02)
        for agent in agents:
            if agent.line in ready:
                agent.hear()
            if time.monotonic() >= due[agent]:
                due[agent] += 1.0
                agent.beat(lines)
            agent.line.flush()


def wait_for(what: Any, about: str, limit_s: float = 120.0) -> Any:
    """The first answer that is not empty."""
    until = time.monotonic() + limit_s
    while not (found := what()):
        if time.monotonic() > until:
            raise RuntimeError(f"not in {limit_s:.0f} s: {about}")
        time.sleep(0.02)
    return found


def sentences_of(output: Path, event: str) -> list[str]:
    """What the daemon said of it."""
    records = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    return [str(one["sentence"]) for one in records if one.get("event") == event]


def measure(folder: Path, machines: int, lines: int) -> list[tuple[str, float, str, float]]:
    """Name, value, unit and what is asked for."""
    roles = ["trainer", *["inference"] * (machines - 1)]
    ports = {"trainer": "", "inference": "port = 8100\n"}
    parts = "".join(COMPONENT.format(role=role, machine=n, port=ports[role]) for n, role in enumerate(roles))
    run_file, output = folder / "run.toml", folder / "daemon.out"
    run_file.write_text(RUN.format(folder=folder) + parts)
    run_file.chmod(0o600)
    with output.open("wb") as file:
        words = [sys.executable, "-m", "supervisor.cli.main", "run", str(run_file)]
        daemon = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
    over = threading.Event()
    try:
        head_file = folder / "nodes" / "head.json"
        wait_for(head_file.exists, "the head listens")
        head, token = json.loads(head_file.read_text())["address"], (folder / "nodes" / "token").read_text().strip()
        agents = [Agent(number, head, token) for number in range(machines)]
        imitation = threading.Thread(target=imitate, args=(agents, lines, over), daemon=True)
        imitation.start()
        wait_for(lambda: sentences_of(output, "step"), "the first step")
        time.sleep(WARM_UP_S)
        meter = Meter(daemon.pid)
        time.sleep(MEASURED_S)
        cost = meter.cost()
        began = time.monotonic()
        agents[-1].end()
        [verdict] = wait_for(lambda: sentences_of(output, "verdict"), "the verdict", 30)
        took = time.monotonic() - began
        print(verdict)
        over.set()
        imitation.join()  # before the head that it talks to is gone
    finally:
        over.set()
        daemon.kill()
        daemon.wait()
    return [
        ("head: CPU, of one core", cost.cpu, "%", CORE),
        ("head: memory (RSS)", cost.rss_mib, "MiB", MIB),
        ("an engine's end to the verdict", took, "s", VERDICT_S),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_agents", description=__doc__)
    parser.add_argument("--machines", type=int, default=MACHINES)
    parser.add_argument("--lines", type=int, default=LINES, help="of each log, a second")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder:
        found = measure(Path(folder), options.machines, options.lines)
    for name, value, unit, most in found:
        print(f"{name:40} {value:8.2f} {unit:4} at most {most:g} {unit}{'   MISSED' if value > most else ''}")
    print(f"{options.machines} machines, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    return int(any(value > most for _, value, _, most in found))


if __name__ == "__main__":
    sys.exit(main())
