"""What the launcher says of its parts: which of them failed, and that it ends all others.

prime-rl's launcher ends its parts one after the other, each within a minute (utils/process.py): whatever is gone after
its line was ended by it, and says nothing of why.
"""

from __future__ import annotations

import re

from supervisor.base.records import dataclass
from supervisor.core.facts import Role
from supervisor.core.state import Error, State
from supervisor.core.watch import Watch

FAILED = "component-failed"  # the signature of the launcher's line about a part
STOPPING = "stopping"  # the phase in which it ends its parts
ENDS_WITHIN_S = 600.0  # how long the launcher may take to end its tree
WENT_ON_S = 120.0  # a step done so long after its line shows that it ended nothing: its output shows other logs' lines
# "Error: Train env server gsm8k failed with exit code -9": only the name of an environment is free.
_FAILED = re.compile(r"(?i)(?:error: |process )?(.{1,160}?) (?:failed|exited) with (?:exit )?code (-?\d{1,4})")
_KILLED = (-9, -15, 137, 143)
_PARTS: tuple[tuple[str, Role], ...] = (
    ("env server", "env"),  # first: what an environment is called says nothing
    ("inference", "inference"),
    ("orchestrator", "orchestrator"),
    ("trainer", "trainer"),
    ("sft", "trainer"),
)


@dataclass(frozen=True)
class Stop:
    """The launcher ends the job since ``t``. ``part``: the one that failed before; None: no part that it named."""

    t: float
    text: str
    part: Role | None = None
    failed: bool = True  # False: the launcher was told to end

    @property
    def cause(self) -> str:
        if not self.failed:
            return "ended-from-outside"
        return FAILED if self.part is None else "engine-gone" if self.part == "inference" else f"{self.part}-gone"

    @property
    def sentence(self) -> str:
        """What happened first, in the launcher's own words."""
        return f"{who(self.part)} died: {self.text}" if self.part else f"The launcher ends the job: {self.text}"


def why_launcher_stops(state: State, watch: Watch | None = None) -> Stop | None:
    """Since when, and why, the launcher ends the job, as it says itself; None while it does not."""
    watch = watch or Watch(state.now)
    error, phase = state.job.errors.get(FAILED), state.job.phases.get("launcher")
    if error is not None:
        stop = Stop(error.first_t, error.text.rstrip(". "), failed_part(error.text))
    elif phase is not None and phase.phase == STOPPING and phase.t >= state.attempt.started:
        stop = Stop(phase.t, phase.text.rstrip(". "), failed=not phase.text.startswith("Received "))
    else:
        return None
    return None if watch.over(stop.t, ENDS_WITHIN_S) or state.progress.t - stop.t > WENT_ON_S else stop


def failed_part(text: str) -> Role | None:
    """The role of the part that a launcher's line names as failed."""
    found = _FAILED.match(text)
    name = found[1].lower() if found else ""
    return next((role for word, role in _PARTS if word in name), None)


def names_no_reader(error: Error) -> bool:
    """Does this line say that a part failed that reads no checkpoint, or that any was killed?"""
    found = _FAILED.match(error.text) if error.signature == FAILED else None
    return found is not None and (failed_part(error.text) in ("inference", "env") or int(found[2]) in _KILLED)


def who(role: Role | None, host: str = "", index: int = 0) -> str:
    """A role as the subject of a sentence, with its number and machine where the run has several."""
    name = {"inference": "vLLM", "env": "An environment server", None: "A part of the job"}.get(role, f"The {role}")
    return f"{name} {index} on {host}" if host and (index or role == "inference") else name + f" on {host}" * bool(host)
