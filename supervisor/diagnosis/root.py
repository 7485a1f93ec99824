"""Which of the candidates is the root? What is known to cause another goes before it, and else the earlier one."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Final

from supervisor.diagnosis.kinds import ENDED, FROM_OUTSIDE, OFTEN, Kind, by_time, time_key
from supervisor.diagnosis.seen import GAP_S, SLACK_S
from supervisor.primerl.logs import SIGNATURES

NO_SAMPLES: Final = "batch-empty"
_PLACES: Final = {signature.name: place for place, signature in enumerate(SIGNATURES.signatures)}
_ENV_SERVER: Final = re.compile(r"(?i).{0,80}\benv(?:ironment)?[ _]server\b")


def find_root(candidates: Sequence[Kind], kinds: Sequence[Kind], lived: Iterable[Kind]) -> Kind:
    """Go from the first that failed to its cause, and from that to its own, as far as they are known.

    ``lived``: also what came while steps were still made, which may explain that they were worth nothing.
    """
    root = _first_failure(candidates)
    passed = {root.name}
    while causes := _known_causes(root, candidates, kinds, passed) or _likely_causes(root, kinds, lived, passed):
        root = min(causes, key=_by_weight)
        passed.add(root.name)
    return root


def may_follow(kind: Kind, root: Kind) -> bool:
    """Does no clock say that it was over before the root came?"""
    t, begun = kind.last_t, root.first_t
    return t is None or begun is None or t >= begun - _slack_of(root)


def _first_failure(candidates: Sequence[Kind]) -> Kind:
    """Of what failed at the same time as the first, what is most likely a cause."""
    failing = [kind for kind in candidates if kind.is_hard]
    others = [kind for kind in candidates if not kind.is_hard]
    if not failing:
        return min(others, key=_by_weight)
    own = [kind for kind in failing if kind.name != "oom-killer" or not all(log.kernel for log, _ in kind.events)]
    if own and (kind := min(own, key=by_time)).link == "cause" and kind.signature is not None:
        failing = own  # the kernel may have killed a sandboxed program: only what is known to follow leads to that
    first = min(failing, key=by_time)
    if any(_ended_before(kind, first) for kind in others):
        # What fails while a job is being ended is no cause of it; what had kept it from moving before may be.
        return min((kind for kind in others if kind.is_mild or _ended_before(kind, first)), key=_by_weight)
    t = first.first_t
    return min((k for k in failing if t is None or k.first_t is None or k.first_t <= t + SLACK_S), key=_by_weight)


def _known_causes(root: Kind, candidates: Container[Kind], kinds: Iterable[Kind], passed: Container[str]) -> list[Kind]:
    """What is known to cause this very error, also if it came much earlier; any candidate where it names no cause."""
    known = [
        kind
        for kind in kinds
        if kind.name not in passed
        and (
            kind.stage <= root.stage
            if kind.name in root.after
            else root.names_no_cause and kind in candidates and kind.stage < root.stage
        )
        and not _ended_before(root, kind)
    ]
    in_time = [kind for kind in known if _came_in_time(kind, root)]
    if in_time or not (root.names_no_cause and root.is_hard):
        return in_time
    # It says only that something failed. A cause that is known goes before it, whatever the clocks say.
    return [kind for kind in known if kind.signature is not None]


def _came_in_time(kind: Kind, root: Kind) -> bool:
    """Did it come before the root, as far as the clocks or the order in a file tell?"""
    if kind.first_t is None or root.first_t is None or kind.first_t <= root.first_t + _slack_of(kind):
        return True
    # Programs that write into one log may have different clocks.
    lines = {event.first.file: event.first.line for _, event in root.events}
    return any(event.first.line < lines.get(event.first.file, 0) for _, event in kind.events)


def _likely_causes(root: Kind, kinds: Iterable[Kind], lived: Iterable[Kind], passed: Container[str]) -> list[Kind]:
    """What else explains it: each rollout's own error where none was left, a known warning where it is not known."""
    others = [kind for kind in kinds if kind.name not in passed]
    if root.name == NO_SAMPLES:
        failed = [kind for kind in others if kind.count > 1 and kind.is_of_environment]
        failed += [kind for kind in lived if kind.name not in passed and kind.comes_often]
        return sorted(failed, key=lambda kind: -kind.count)[:1]
    if root.signature is not None:
        return []
    if _ENV_SERVER.match(root.event.text) and (ended := [kind for kind in others if kind.ended_environment]):
        return ended
    return [
        kind
        for kind in others
        if kind.signature is not None
        and kind.link == "cause"
        and (not kind.signature.mild or kind.count >= OFTEN)
        and any(
            log is mine and event.last.line < begun.first.line and not any(steps.count for steps in log.steps.values())
            for log, event in kind.events
            for mine, begun in root.events
        )
    ]


def _slack_of(kind: Kind) -> float:
    """The kernel counts from its boot: `dmesg -T` is minutes off on a machine that ran for weeks."""
    return GAP_S if all(log.kernel for log, _ in kind.events) else SLACK_S


def _ended_before(kind: Kind, other: Kind) -> bool:
    """Was the job ended from outside before the other came? Where no times are told, the order in one log says it."""
    if kind.name not in FROM_OUTSIDE:
        return False
    if kind.first_t is None and other.first_t is None:
        one, two = kind.event.first, other.event.first
        return one.file == two.file and one.line < two.line
    # A scheduler's line is written by another machine, with a clock of its own.
    slack = 0.0 if kind.name == ENDED else SLACK_S
    return kind.first_t is not None and other.first_t is not None and kind.first_t < other.first_t + slack


def _by_weight(kind: Kind) -> tuple[object, ...]:
    """Sort kinds by this key: what is known to be a cause comes first, then what came first."""
    known = kind.signature is not None
    place = _PLACES.get(kind.name, 0)
    return kind.stage, kind.is_mild, not known, *time_key(kind.first_t), place, kind.event.first.line
