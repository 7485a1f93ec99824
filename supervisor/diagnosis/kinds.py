"""What do errors of one name say together? A ``Kind`` is all that the logs of an attempt tell of one of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from supervisor.core.launcher import FAILED
from supervisor.diagnosis.seen import Event, Sighting
from supervisor.signatures import Signature
from supervisor.signatures.registry import Link
from supervisor.signatures.xids import seen_in

OFTEN: Final = 5  # times that an error which a healthy run has, too, comes before it explains that nothing moves
LAST_WORDS: Final = 5  # ordinary lines that a part may still write of its own end

PART_ENDED: Final = FAILED
ENDED: Final = "ended-from-outside"
UNREACHED: Final = ("connection-error", "connection-refused")
FROM_OUTSIDE: Final = (ENDED, "pod-evicted", "preempted", "time-limit-reached")

_STAGES: Final = {link: place for place, link in enumerate(get_args(Link))}


@dataclass
class Kind:
    """Events of one name, as one. The first of them that is more than a warning speaks for all."""

    events: list[Sighting]

    @property
    def event(self) -> Event:
        return self.events[0][1]

    @property
    def name(self) -> str:
        return self.event.name

    @property
    def signature(self) -> Signature | None:
        return self.event.signature

    @property
    def link(self) -> Link:
        return self.signature.link if self.signature else "cause"

    @property
    def stage(self) -> int:
        """A cause comes before a failed part, that before what followed, and that before the end."""
        return _STAGES[self.link]

    @property
    def after(self) -> frozenset[str]:
        return self.signature.after if self.signature else frozenset()

    @property
    def names_no_cause(self) -> bool:
        """Does it say only that something failed?"""
        return "*" in self.after

    @property
    def is_mild(self) -> bool:
        """Does a healthy run have it, too?"""
        # A thread may end by it after its program has said that it is done.
        if all(one.in_thread and any(at.line < one.first.line for _, at in log.finishes) for log, one in self.events):
            return True
        if self.signature and self.signature.mild:
            return not any(event.fatal for _, event in self.events)
        return all(event.weak for _, event in self.events)

    @property
    def is_hard(self) -> bool:
        """Does it say that something failed, and not only that something ended?"""
        return not self.is_mild and self.link != "end"

    @property
    def comes_often(self) -> bool:
        """Is it a known error that came again and again while steps were made: of rollouts, judges, tools?"""
        return self.count >= OFTEN and self.link == "cause" and self.signature is not None

    @property
    def is_of_environment(self) -> bool:
        """Did an environment raise it?"""
        return any(event.role == "env" and event.raised is not None for _, event in self.events)

    @property
    def ended_environment(self) -> bool:
        """Is it the exception after which an environment server did nothing more?"""
        return any(one.role == "env" and one.raised is not None and one.lives < LAST_WORDS for _, one in self.events)

    @property
    def count(self) -> int:
        return sum(event.count for _, event in self.events)

    @property
    def first_t(self) -> float | None:
        return min((t for log, event in self.events if (t := log.at(event.first)) is not None), default=None)

    @property
    def last_t(self) -> float | None:
        return max((t for log, event in self.events if (t := log.at(event.last)) is not None), default=None)


def group_by_name(sightings: Iterable[Sighting]) -> list[Kind]:
    """Make a kind of each name, and of each Xid code of the GPU's driver; the earliest comes first."""
    found: dict[str, list[Sighting]] = {}
    for log, event in sightings:
        name = f"{event.name} {code[0]}" if (code := seen_in(event.text)) else event.name
        found.setdefault(name, []).append((log, event))
    kinds = []
    for pairs in found.values():
        pairs.sort(key=lambda one: (one[1].weak, *time_key(one[0].at(one[1].first)), one[1].first.line))
        # The launcher shows other logs' lines: where those are there, its own copies count for nothing. A terminal's
        # last words are those of a program that has no other log.
        real = [
            (log, event)
            for log, event in pairs
            if not log.merged
            or (event.signature and event.signature.link == "end")
            or (event.fatal and log.role is None)
        ]
        kinds.append(Kind(real or pairs))
    return sorted(kinds, key=by_time)


def time_key(t: float | None) -> tuple[bool, float]:
    """Sort times by this key; what has none comes last."""
    return t is None, t or 0.0


def by_time(kind: Kind) -> tuple[object, ...]:
    """Sort kinds by this key: at one time a cause comes first."""
    return *time_key(kind.first_t), kind.stage, kind.event.first.line
