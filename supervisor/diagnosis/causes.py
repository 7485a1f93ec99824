"""What of all that was seen is the root, what followed of it, and what the run survived.

``survived`` sorts out what the run lived with, ``candidates`` chooses what may have ended it, ``root`` finds the root
among these, and ``cause_words`` describes it for people.

Three things decide: whether the run went on after it, what is known to follow from what (``after`` and ``link`` of the
signatures), and time. Where no time is told, a cause is still put before a failed part, that before what followed, and
that before the end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from supervisor.diagnosis.candidates import choose_candidates, choose_in_a_wait, read_signs
from supervisor.diagnosis.cause_words import CALLED_UNKNOWN, Cause, add_notes, describe, describe_each, describe_root
from supervisor.diagnosis.kinds import ENDED, FROM_OUTSIDE, UNREACHED, group_by_name
from supervisor.diagnosis.root import find_root, may_follow
from supervisor.diagnosis.seen import Log, Place
from supervisor.diagnosis.standstill import who_waits
from supervisor.diagnosis.survived import align_clocks, find_finish, sort_events

__all__ = ["CALLED_UNKNOWN", "ENDED", "Cause", "Diagnosis", "diagnose"]

_OF_JOB: Final = re.compile(r"\bslurm-(\d{1,12})\.(?:out|log)$")


@dataclass
class Diagnosis:
    """What came of one attempt. ``outcome``: "finished", "failed", or "unclear" (it may run on, or was cut off)."""

    attempt: str
    outcome: str
    root: Cause | None = None
    cascade: list[Cause] = field(default_factory=list)
    survived: list[Cause] = field(default_factory=list)
    step: int | None = None  # the last one done
    finish: Place | None = None
    logs: list[Log] = field(default_factory=list)
    seen: str = ""  # what the supervisor saw from outside before it ended this attempt
    order: str = ""  # with which a person, or a signal to the daemon, ended it

    @property
    def has_named_cause(self) -> bool:
        """Is anything of it known by name, other than that something ended?"""
        found = [one for one in (self.root, *self.cascade) if one is not None and one.name != CALLED_UNKNOWN]
        if any(one.link in ("cause", "failure") for one in found):
            return True
        return self.root is not None and self.root.name in (*FROM_OUTSIDE, *UNREACHED)


def diagnose(
    logs: Sequence[Log],
    seen: Mapping[str, str] = MappingProxyType({}),
    orders: Mapping[str, str] = MappingProxyType({}),
) -> list[Diagnosis]:
    """One for each attempt that the logs are of, in order; the last is the one that people ask about.

    ``seen``: by attempt, what the supervisor saw from outside. ``orders``: what it was told to do, which ended it.
    """
    _tell_jobs_apart(logs)
    attempts = dict.fromkeys(log.attempt for log in logs if not log.kernel)
    attempts = attempts or dict.fromkeys(log.attempt for log in logs)
    found = []
    for attempt in sorted(attempts, key=_natural_order):
        mine = [log for log in logs if log.attempt == attempt or (log.kernel and log.attempt not in attempts)]
        told = _judge_attempt(attempt, mine)
        told.seen = seen.get(attempt, "")
        if told.seen and told.root is not None and told.root.name == ENDED:
            told.root = None  # the supervisor ended it, for what it had seen
        told.order = orders.get(attempt, "") if told.root is not None and told.root.name == ENDED else ""
        found.append(told)
    return found


def _tell_jobs_apart(logs: Sequence[Log]) -> None:
    """Outputs of Slurm's jobs that came one after the other are attempts; what has no number is the last one's."""
    jobs = [log for log in logs if not log.attempt and log.last_t is not None and _OF_JOB.search(log.name)]
    jobs.sort(key=lambda log: log.first_t or 0.0)
    times = [(log.first_t or 0.0, log.last_t or 0.0) for log in jobs]
    if len(jobs) < 2 or any(before[1] > after[0] for before, after in itertools.pairwise(times)):
        return
    for log in jobs:
        log.attempt = f"job {_OF_JOB.search(log.name)[1]}"  # type: ignore[index]  # it was found above
    for log in logs:
        log.attempt = log.attempt or jobs[-1].attempt


def _natural_order(text: str) -> list[object]:
    """Sort attempts by this key: attempt 9 comes before attempt 10."""
    return ["".join(char for char in text if not char.isdigit()), int("".join(c for c in text if c.isdigit()) or 0)]


def _judge_attempt(attempt: str, logs: Sequence[Log]) -> Diagnosis:
    align_clocks(logs)
    present, over = sort_events(logs)
    kinds, survived, lived = map(group_by_name, (present, over, [*over, *present]))
    signs = read_signs(kinds, logs)
    steps_done = [steps.numbers[-1] for log in logs for steps in log.steps.values() if steps.numbers]
    told = Diagnosis(attempt, "unclear", step=max(steps_done, default=None), logs=list(logs))
    told.finish = find_finish(logs, signs.hard, signs.ends)
    if told.finish is not None:
        told.outcome, told.survived = "finished", describe_each([*survived, *kinds])
        return told
    ended = bool(signs.hard or signs.ends)
    if not ended:
        survived += [kind for kind in kinds if kind.is_mild and kind not in signs.suspects]
    candidates = choose_candidates(signs, logs, lived)
    waits = who_waits(logs) if all(kind.name in FROM_OUTSIDE for kind in candidates) else []
    if waits:  # what stood still for long was ended for that
        candidates = choose_in_a_wait(signs, waits)
        names = {kind.name for kind in candidates}
        survived = [kind for kind in survived if kind.signature is None or kind.name not in names]
    if candidates:
        root = find_root(candidates, [*signs.kinds, *candidates], lived)
        others = [kind for kind in kinds if kind.event is not root.event and (kind in candidates or ended)]
        cascade = [kind for kind in others if kind not in signs.kinds or may_follow(kind, root)]
        survived += [kind for kind in candidates if kind is not root and kind not in cascade]
        # What makes the steps worthless came while they were made: it is told of once.
        survived = [kind for kind in survived if all(kind.event is not one.event for one in (root, *cascade))]
        told.outcome, told.root = "failed", describe_root(root, waits)
        told.cascade = [describe(kind) for kind in cascade]
        add_notes(told.root, root, told.cascade, logs)
    told.survived = describe_each(survived)
    return told
