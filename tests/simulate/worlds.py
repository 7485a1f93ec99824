"""Short virtual worlds for tests: a few hours, the faults that a test names, and the real core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from supervisor.core import facts as f
from supervisor.simulator.policy import CorePolicy, PolicyFactory
from supervisor.simulator.run import Outcome, simulate
from supervisor.simulator.scenario import load_scenario
from supervisor.simulator.schedule import parse_faults

AT = "2h"


def fault(kind: str, at: str | float = AT, **parameters: Any) -> dict[str, Any]:
    """One entry of a schedule."""
    return {"at": at, "kind": kind, **parameters}


class Told:
    """A simulated run and what was said in it, for tests."""

    def __init__(self, outcome: Outcome, facts: list[f.Fact]) -> None:
        self.outcome, self.account, self.world = outcome, outcome.account, outcome.world
        self.facts = facts

    def said(self, event: str) -> list[str]:
        """Sentences of one event, in order."""
        return [s.sentence for s in self.world.said_sentences if s.event == event]

    def detected_s(self, kind: str) -> float:
        """Seconds from the first fault of this kind to the policy's act upon it."""
        strike = next(s for s in self.world.account.strikes if s.kind == kind)
        assert strike.detected is not None, f"nothing was done about {kind}; said: {self.said('verdict')}"
        return strike.detected - strike.t

    def resumed_at(self) -> list[int | None]:
        """The resume step of each attempt."""
        return [fact.step for fact in self.facts if isinstance(fact, f.AttemptStarted)]

    @property
    def goes_on(self) -> bool:
        """Does the job make steps at the end?"""
        job = self.world.pod.job if self.world.pod is not None else None
        return job is not None and job.made > 0 and not job.is_blocked


def after(
    *faults: dict[str, Any],
    hours: float = 4.0,
    seed: int = 1,
    sets: Sequence[str] = (),
    policy: PolicyFactory = CorePolicy,
) -> Told:
    """The run that a pod with these faults, and no others, makes of ``hours``."""
    facts: list[f.Fact] = []

    def factory() -> Any:
        return Listening(policy(), facts)

    outcome = simulate(load_scenario("default", sets), hours, seed, factory, faults=parse_faults(list(faults), "test"))
    return Told(outcome, facts)


class Listening:
    """A policy that keeps what it is shown."""

    def __init__(self, policy: Any, facts: list[f.Fact]) -> None:
        self._policy, self._facts = policy, facts
        self.name, self.omniscient, self.tier = policy.name, policy.omniscient, policy.tier
        self.learn_fault = policy.learn_fault

    def see(self, observation: f.Observation) -> Any:
        self._facts.append(observation.fact)
        return self._policy.see(observation)


def trace_of(hours: float, seed: int, *faults: dict[str, Any], scenario: str = "default") -> list[str]:
    """The lines of a trace."""
    lines: list[str] = []
    own = parse_faults(list(faults), "test") if faults else None
    simulate(load_scenario(scenario), hours, seed, faults=own, trace=lines.append)
    assert all(json.loads(line) for line in lines)
    return lines
