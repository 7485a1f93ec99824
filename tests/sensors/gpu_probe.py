"""The GPU sensor in a process of its own, because LD_LIBRARY_PATH decides at a program's start which NVML it finds.

``look T`` on standard input looks once at time T and prints the facts as one JSON line; ``start`` hands the sensor to
a ``Looker``, from which on each fact is a line of its own. KMSG names the file that stands for the kernel's log.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from supervisor.core.facts import Fact
from supervisor.jobs.base import GpuPlan
from supervisor.sensors.base import Looker
from supervisor.sensors.gpu import GpuSensor
from supervisor.sensors.xid import XidEvents

now = 0.0


def say(facts: list[Fact]) -> None:
    print(json.dumps([{"kind": type(fact).__name__, **dataclasses.asdict(fact)} for fact in facts]), flush=True)


def main() -> None:
    global now
    faults = XidEvents(Path(os.environ.get("KMSG", "/nonexistent")))
    plan = GpuPlan(*json.loads(sys.argv[1]))
    sensor = GpuSensor(plan, clock=lambda: now, heartbeat_s=10, retry_s=5, lost_retry_s=300, faults=faults)
    for line in sys.stdin:
        verb, _, word = line.strip().partition(" ")
        if verb == "look":
            now = float(word)
            say(list(sensor.look()))
        else:
            looker = Looker(sensor, lambda fact: say([fact]), interval_s=0.02, deadline_s=0.2, heartbeat_s=0.1)
            looker.start()


main()
