"""What a run has learned and what it has cost, as plain values that travel: in the journal, and in the store.

The next attempt, the next daemon and the next pod begin with them. They name no pod, no path and no secret.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from supervisor.base.records import dataclass


@dataclass(frozen=True)
class PhaseTimes:
    """How long one phase took, newest last. ``count`` and ``longest_s`` are of the whole run, not of the window."""

    seconds: tuple[float, ...] = ()
    longest_s: float = 0.0
    count: int = 0
    median_s: float = 0.0  # of the window
    late_s: float = 0.0  # what is suspicious (``supervisor.core.phases``)


@dataclass(frozen=True)
class Learned:
    """Times by name: ``step``, ``resume`` (launch to first new step), and ``role/phase`` for each phase of a role."""

    phases: dict[str, PhaseTimes] = field(default_factory=dict)


@dataclass(frozen=True)
class Hold:
    """Training is worth nothing since step ``bad``: what the store keeps of it, for the next pod.

    ``why``: what people were told; "" while it is only feared. ``lifted``: the step from which on it is well again.
    """

    finding: str  # its name in ``supervisor.core.training_health``
    bad: int
    why: str = ""
    lifted: int | None = None


LONGEST_WHY = 300  # characters of one that are kept in the store


@dataclass(frozen=True)
class Happened:
    """Something that leaves steps of a run, or takes one back; ``wall`` is Unix time.

    rollback: all steps above ``step`` are left (-1: all); quarantine: ``step`` is; take: a person wants it after all.
    A rollback with a ``why`` is the supervisor's own, a person's has none.
    """

    kind: Literal["rollback", "quarantine", "take"]
    step: int
    wall: float
    why: str = ""
