"""What a log ends with where nothing moves any more: a part that waits, or that says the same again and again.

A wait is no error, and healthy runs wait, too. So it explains an end only where nothing else does, and where the parts
wait for each other, or one waits for much longer than any step took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.core.facts import Role
from supervisor.diagnosis.lines import DAY_S, Line
from supervisor.diagnosis.seen import GAP_S, Event, Log, Place, Sighting, last_time_of

BOTH_S: Final = 120.0  # that trainer and orchestrator wait at the same time
IN_VAIN: Final = 2  # steps of the orchestrator that a trainer which waits for a batch has not taken
LONGER: Final = 5.0  # than the longest step was
SAME: Final = 5  # times that a part says the very same, though it does not say that it waits
_WAITS: Final = re.compile(
    r"(?i).{0,200}?\b(?:waiting|waits? for|paus(?:ed|ing)|looking for|not (?:yet )?(?:ready|available)|pending)\b"
)
# A first start takes as long as its download: that an engine comes up has its own rule.
_OF_ENGINE: Final = re.compile(
    r"(?i).{0,300}?(?:inference (?:server|pool)|engine|throughput|\bmodel\b|download|compil)"
)
_ELAPSED: Final = re.compile(
    r"\(?\b\d+(?:\.\d+)? ?(?:s|secs?|seconds?|m|min|minutes?)\b(?: elapsed)?\)?|\d\d:\d\d:\d\d"
)
_ENDS: Final = re.compile(r"$|slurmstepd|srun: |\^C|.{0,60}(?:Kill|Terminat|[Ee]xit)")
_TRAINING: Final[tuple[Role, ...]] = ("trainer", "orchestrator")
_OTHERS: Final[tuple[Role | None, ...]] = (*_TRAINING, "job", "launcher", None)

NAME: Final = "stands-still"
SENTENCE: Final = "Nothing moves any more: this part waits, and no log shows a step since."
EACH_OTHER: Final = "The trainer and the orchestrator wait for each other, and neither can go on."
REMEDY: Final = (
    "The line says what it waits for: look at the part that should give it (its own log and last line, py-spy dump "
    "--pid PID). Where two parts wait for each other, compare the folders that they share (output_dir, run_*) and the "
    "steps from which they went on, restart from the last good step, upgrade the trainer if it comes back. Where it "
    "waits for GPUs, CPUs or machines, ask for fewer or give the job more."
)


@dataclass(frozen=True)
class Wait:
    """What a log ends with. ``event`` has the line's place and how often it came; ``said`` that it says so itself."""

    event: Event
    said: bool


def find_wait(lines: Sequence[tuple[Line, int]], role: Role | None, last: Place) -> Wait | None:
    """Of the last lines of a log, each with its number. ``last``: where it ends, with the time."""
    told = [(line, number, _ELAPSED.sub("", line.text.strip())) for line, number in lines if line.text.strip()]
    while told and told[-1][0].level is None and _ENDS.match(told[-1][0].text):
        told.pop()
    if not told or told[-1][0].level in ("ERROR", "CRITICAL", "FATAL"):
        return None
    end, number, shape = told[-1]
    same = [(line, place) for line, place, other in told if other == shape]
    said = _WAITS.match(shape) is not None
    if role not in _OTHERS or (not said and len(same) < SAME) or _OF_ENGINE.match(shape):
        return None
    since = replace(last, line=same[0][1])
    written = next((line.stamp for line, _ in reversed(lines) if line.stamp is not None), None)
    if last.t is not None and written is not None and (begun := same[0][0].stamp) is not None:
        since = replace(since, t=last.t - (written.seconds - begun.seconds) % DAY_S, shown=begun.shown)
    event = Event(None, role, end.text.strip()[:300], since, replace(last, line=number), len(same), level=end.level)
    return Wait(event, said)


def who_waits(logs: Sequence[Log]) -> list[Sighting]:
    """Those of the parts that stand still, the one that says most of it first; nothing where the run may go on."""
    waiting = [(log, log.wait) for log in logs if log.wait is not None]
    if not waiting:
        return []
    end = last_time_of(log for log in logs if not log.kernel) or 0.0
    for_s = {id(wait): _seconds(log, wait, end) for log, wait in waiting}
    both = {log.role for log, wait in waiting if wait.said and for_s[id(wait)] >= BOTH_S}
    if not (both.issuperset(_TRAINING) or _wait_in_vain(logs, waiting)):
        enough = max(GAP_S, LONGER * max(_step_times(logs), default=0.0))
        parts = [log for log in logs if log.role in _OTHERS and not log.kernel]
        if len(waiting) < len(parts) or any(for_s[id(wait)] < enough for _, wait in waiting):
            return []
    waiting.sort(key=lambda one: (one[1].event.signature is None, -one[1].event.count, one[0].role != "trainer"))
    return [(log, wait.event) for log, wait in waiting]


def _wait_in_vain(logs: Sequence[Log], waiting: Sequence[tuple[Log, Wait]]) -> bool:
    """Do both wait, the trainer for what the orchestrator has made already? No time is needed to see that.

    The trainer has to log at DEBUG: then it would have said that a batch came.
    """
    if not {log.role for log, wait in waiting if wait.said}.issuperset(_TRAINING):
        return False
    trainers = [(log, wait.event) for log, wait in waiting if log.role == "trainer" and wait.event.level == "DEBUG"]
    made = [(log, log.steps["orchestrator"]) for log in logs if "orchestrator" in log.steps]
    return bool(trainers) and all(
        (since := trainer.at(event.first)) is not None
        and any(steps.after_time(since, log.shift) >= IN_VAIN for log, steps in made)
        for trainer, event in trainers
    )


def say(waiting: Sequence[Sighting]) -> str:
    """What parts that stand still mean."""
    return EACH_OTHER if {log.role for log, _ in waiting}.issuperset(_TRAINING) else SENTENCE


def _seconds(log: Log, wait: Wait, end: float) -> float:
    since = log.at(wait.event.first)
    return 0.0 if since is None else end - since


def _step_times(logs: Sequence[Log]) -> Iterator[float]:
    """How long steps took, as far as times are told; a part that made none had all of its log for the first one."""
    for log in logs:
        for steps in log.steps.values():
            yield from (after - before for before, after in zip(steps.times, steps.times[1:], strict=False))
