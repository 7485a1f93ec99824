"""What a fact costs the head of a run over many machines, by their number: `python -m bench head_facts` (a minute).

The real core and the real journal in one process, fed with what the agents of so many machines lead to: a start tells
each process, a network that fails and comes back each machine, and then there are steps and lines of an engine that is
not reached. CPU seconds of this process alone, writing to the disk included, waiting for it not. What arrives as bytes
(beats, output) is no fact; `python -m bench many_agents --machines 512` has its cost, with a real daemon.

Asked for: with 512 machines 1,000 facts a second on one core, on the worst of the kinds. Exit code 1 below that.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.settings import Settings
from supervisor.core.state import State
from supervisor.journal.journal import Journal

MACHINES = (1, 8, 64, 512)
LEAST = 1000.0  # facts a second
STEPS, TICKS = 300, 2000
LOAD_S, STEP_S, LINE_S = 300.0, 240.0, 30.0

Fed = Iterator[tuple[str, float, f.Fact]]
"""What it is, seconds since the fact before, and the fact."""


def begin(names: Sequence[str]) -> Fed:
    """A daemon and its agents, up to a launched job."""
    yield "", 0.0, f.DaemonStarted("bench", Settings("bench", has_engine=False, first_step_at=1), journal="bench")
    for name in names:
        yield "an agent connects", 0.01, f.MachineLook(name)
    yield "", 1.0, f.StoreSteps()
    yield "", 1.0, f.LocalSteps(settled=True)
    yield "", 1.0, f.AttemptStarted(1, None, 1, "rl", machines=tuple(names))


def live(names: Sequence[str]) -> Fed:
    """A start, steps, and a network that fails for all at once and comes back before the next step is late."""
    yield "", 3.0, f.ProcessSeen(1, "trainer", 1, 1, "trainer", True, names[0], 0)
    for index, name in enumerate(names):
        for pid in (2, 3):  # the server and its engine core
            yield "a process is seen", 0.001, f.ProcessSeen(1, "inference", pid, 1, "vllm", True, name, index)
    for step in range(1, STEPS + 1):
        yield "a step is done", LOAD_S if step == 1 else STEP_S, f.StepDone("trainer", step, STEP_S)
    for _ in range(TICKS):
        yield "time passes", 0.05, f.Tick()
    for _ in range(2):
        for name in names:
            yield "a machine is silent", 0.001, f.MachineLook(name, 11.0)
        for name in names:
            yield "a machine speaks again", 0.001, f.MachineLook(name)
    yield "", 1.0, f.StepDone("trainer", STEPS + 1, STEP_S)
    for _ in range(TICKS // 10):
        yield "a line of an error", LINE_S / 100, f.ErrorSeen("orchestrator", "connection-error", "Connection error.")


def feed(machines: int, folder: Path) -> dict[str, float]:
    """Microseconds of CPU a fact, by what it is."""
    names = [f"n{number}" for number in range(machines)]
    journal, state, t = Journal(folder), State(), 1000.0
    seconds: dict[str, float] = {}
    count: dict[str, int] = {}
    for facts in (begin(names), live(names)):
        for kind, after_s, fact in facts:
            t += after_s
            observation = f.Observation(t, t, fact, "bench")
            began = time.process_time()
            decision = decide(state, observation)
            journal.record(observation, state, decision.state, decision.actions)
            seconds[kind] = seconds.get(kind, 0.0) + time.process_time() - began
            count[kind] = count.get(kind, 0) + 1
            state = decision.state
    if state.mode != "running" or state.attempt.number != 1:
        raise RuntimeError(f"the run was not left alone: {state.mode}, {state.why}")
    journal.close()
    return {kind: 1e6 * seconds[kind] / count[kind] for kind in seconds if kind}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.head_facts", description=__doc__)
    parser.parse_args(arguments)
    found = {}
    for machines in MACHINES:
        with tempfile.TemporaryDirectory(prefix="rl-bench-") as folder:
            found[machines] = feed(machines, Path(folder))
    print(f"{'CPU a fact, microseconds':28}" + "".join(f"{f'{machines} machines':>14}" for machines in MACHINES))
    for kind in found[MACHINES[0]]:
        print(f"{kind:28}" + "".join(f"{found[machines][kind]:14.0f}" for machines in MACHINES))
    least = {machines: 1e6 / max(costs.values()) for machines, costs in found.items()}
    print(f"{'facts a second at least':28}" + "".join(f"{least[machines]:14,.0f}" for machines in MACHINES))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; asked: {LEAST:,.0f} with {MACHINES[-1]} machines")
    return int(least[MACHINES[-1]] < LEAST)


if __name__ == "__main__":
    raise SystemExit(main())
