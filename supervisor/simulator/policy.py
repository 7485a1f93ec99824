"""What a virtual pod asks its policy: here is an observation, what is to be done, and when shall I ask again?

A policy object is the journal of one pod: a new pod gets a fresh one from the factory, and a daemon that was killed and
came back on the same pod keeps it (a new ``DaemonStarted`` follows, with ``adopted`` where a job lives).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from supervisor.core.actions import Action
from supervisor.core.decide import decide
from supervisor.core.evolve import replace
from supervisor.core.facts import DaemonStarted, Observation
from supervisor.core.state import State

FOREVER = float("inf")
"""A deadline that says: wake me for observations only."""


class Policy(Protocol):
    """One pod's decisions. The world calls it from one thread, with times that never go back."""

    name: str
    omniscient: bool
    """True for the oracle alone: it is told of faults at the moment they strike."""
    tier: bool
    """Does the trainer save into memory, where three steps fit there?"""

    def see(self, observation: Observation) -> tuple[Sequence[Action], float]:
        """What to do after ``observation``, and the time ``t`` at which a ``Tick`` is wanted if nothing else happens.

        A deadline that is not after ``observation.t`` counts as 1 s later; ``FOREVER`` is allowed. The hands carry out
        actions; their facts (``AttemptStarted``, ``LocalSteps``, ...) come back through ``see``.
        """

    def learn_fault(self, t: float, fault: str) -> None:
        """Only where ``omniscient``: ``fault`` (a kind of ``faults.KINDS``) struck at ``t``.

        Called for faults that the job does not survive by itself, and only while a daemon lives (else when it is back);
        a ``Tick`` with the same ``t`` follows at once through ``see``, to act upon it. A fault that strikes while the
        policy has no attempt under way is told, too.
        """


PolicyFactory = Callable[[], Policy]
"""Makes the policy of one new pod, with an empty journal. ``baselines.POLICIES`` names those other than the core."""


class CorePolicy:
    """The real core, as the daemon runs it."""

    name = "core"
    omniscient = False
    tier = False

    def __init__(self) -> None:
        self.state = State()

    def see(self, observation: Observation) -> tuple[Sequence[Action], float]:
        decision = decide(self.state, observation)
        self.state = decision.state
        return decision.actions, decision.deadline

    def learn_fault(self, t: float, fault: str) -> None:
        raise NotImplementedError("the core is told of no fault")


class AutoIntervalPolicy(CorePolicy):
    """The real core under `job.checkpoint_interval = "auto"`."""

    name = "core-auto"

    def see(self, observation: Observation) -> tuple[Sequence[Action], float]:
        fact = observation.fact
        if isinstance(fact, DaemonStarted):
            settings = replace(fact.settings, interval_between=(1, 100))
            observation = replace(observation, fact=replace(fact, settings=settings))
        return super().see(observation)


class TierPolicy(CorePolicy):
    """The real core, and the trainer saves into memory."""

    name = "core-tier"
    tier = True


class AutoTierPolicy(AutoIntervalPolicy):
    """Both."""

    name = "core-auto-tier"
    tier = True
