"""The GPU sensor in a process of its own, because LD_LIBRARY_PATH decides at a program's start which NVML it finds.

Started with one, it waits at its socket and makes a probe of itself for each connection: a process that has all modules
and no NVML yet. The first line is a probe's plan and its environment. ``look T`` looks once at time T and answers with
the facts as one JSON line; ``start`` hands the sensor to a ``Looker``, from which on each fact is a line of its own.
KMSG names the file that stands for the kernel's log.
"""

import contextlib
import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import IO

import pynvml  # noqa: F401 - the sensor imports it when it looks

from supervisor.core.facts import Fact
from supervisor.jobs.base import GpuPlan
from supervisor.sensors.base import Looker
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.xid import XidEvents

now = 0.0


def probe(lines: IO[str]) -> None:
    global now

    def say(facts: list[Fact]) -> None:
        said = [{"kind": type(fact).__name__, **dataclasses.asdict(fact)} for fact in facts]
        lines.write(json.dumps(said) + "\n")
        lines.flush()

    plan, environ = json.loads(lines.readline())
    os.environ.update(environ)
    faults = XidEvents(Path(os.environ.get("KMSG", "/nonexistent")))
    sensor = GpuSensor(GpuPlan(*plan), clock=lambda: now, heartbeat_s=10, retry_s=5, lost_retry_s=300, faults=faults)
    for line in lines:
        verb, _, word = line.strip().partition(" ")
        if verb == "look":
            now = float(word)
            say(list(sensor.look()))
        else:
            looker = Looker(sensor, lambda fact: say([fact]), interval_s=0.02, deadline_s=0.2, heartbeat_s=0.1)
            looker.start()


def main() -> None:
    """The socket comes as standard input."""
    with socket.socket(fileno=0) as listener:
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                with connection, connection.makefile("rw") as lines:
                    probe(lines)
                os._exit(0)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


main()
