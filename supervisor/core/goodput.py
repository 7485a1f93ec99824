"""Where the run's time went: a ledger whose parts add up to all of it, in the names of Google's goodput library.

One ledger a journal, so one a pod; ``merged`` makes the run's out of them. ``supervisor.core.account`` keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.core.evolve import replace

# Members of ``BadputType`` in AI-Hypercomputer/ml-goodput-measurement (src/goodput_utils.py), which calls productive
# time "goodput" and has no name of its own for it; what it has no name for goes below CUSTOM_BADPUT_EVENTS, as there.
PRODUCTIVE = "GOODPUT"
STARTUP = "PROGRAM_STARTUP"
SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
RESTORE = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
WASTED = "WASTED_PROGRESS_FROM_DISRUPTION"
INFRASTRUCTURE = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
DETECTION = "CUSTOM_BADPUT_EVENTS.DETECTION"
STOPPING = "CUSTOM_BADPUT_EVENTS.STOPPING"
WAITING = "CUSTOM_BADPUT_EVENTS.WAITING"
STOPPED = "CUSTOM_BADPUT_EVENTS.STOPPED_BY_A_PERSON"
OTHER = "OTHER"
CATEGORIES = (
    PRODUCTIVE,
    STARTUP,
    SAVE,
    RESTORE,
    WASTED,
    INFRASTRUCTURE,
    DETECTION,
    STOPPING,
    WAITING,
    STOPPED,
    OTHER,
)
WORDS = {
    PRODUCTIVE: "training: steps that stayed",
    STARTUP: "starting the job, to its first step",
    SAVE: "saving checkpoints",
    RESTORE: "fetching a checkpoint",
    WASTED: "steps that were lost or cut off",
    INFRASTRUCTURE: "no pod: lost, replaced or set up",
    DETECTION: "noticing that something was wrong",
    STOPPING: "ending what was left of the job",
    WAITING: "waiting: back-off, store, disk, a person",
    STOPPED: "stopped by a person, or finished",
    OTHER: "everything else",
}
"""The categories for people."""
MOST_SPANS = 64
MOST_OUTAGES = 100
FROM_SCRATCH = -1  # a fresh start resumes below every step

Span = tuple[int, int, float]
"""First and last step, and the seconds that they took: productive until an attempt resumes below them.

A step that is under way stands as ``(121, 120, seconds)``: time that may be lost, and no step.
"""


@dataclass(frozen=True)
class Outage:
    """What one incident cost. The four parts, in seconds, add up to its whole time."""

    number: int  # of the incident in its journal
    cause: str
    wall: float  # Unix time at which it began
    step: int | None  # last step before it
    detect_s: float = 0.0  # from the first sign to the verdict
    stop_s: float = 0.0  # until nothing of the job was left
    prepare_s: float = 0.0  # back-off, looking for the last good step, fetching it
    start_s: float = 0.0  # from the launch to the first new step
    steps_lost: int = 0
    recovered: bool = True

    @property
    def seconds(self) -> float:
        """From the first sign to the first new step."""
        return self.detect_s + self.stop_s + self.prepare_s + self.start_s


@dataclass(frozen=True)
class Ledger:
    """Seconds by category of one journal (one pod's part of the run), and what else is counted there.

    Bounded: spans are merged, oldest first, and the newest hundred outages are kept. Only numbers and names.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    began_wall: float | None = None  # Unix time of the journal's first observation
    wall: float = 0.0  # Unix time up to which all is booked
    last: str = ""  # what time was spent on just then: what follows, until another pod begins, is the same or worse
    mark: float | None = None  # the journal's own clock up to which all is booked
    spans: tuple[Span, ...] = ()  # steps that may still be lost, ascending
    floor: int | None = None  # lowest step that an attempt of this journal resumed at
    steps: int = 0  # done, also those that were lost later
    steps_lost: int = 0
    timed: int = 0  # steps whose whole interval was seen
    timed_s: float = 0.0
    saves: int = 0
    uploads: int = 0
    upload_s: float = 0.0
    upload_bytes: int = 0
    incidents: int = 0
    restarts: int = 0
    outages: tuple[Outage, ...] = ()
    # what is under way
    saving: float | None = None  # since when the trainer writes a checkpoint
    saved: float = 0.0  # seconds of saves since ``mark``
    away: float = 0.0  # seconds of the pending time in which no daemon watched, until it is known that the job lived
    lost_before: int = 0  # ``steps_lost`` when the open incident began

    @property
    def total_s(self) -> float:
        """All seconds that are booked."""
        return sum(self.seconds.values())

    @property
    def kept(self) -> int:
        """Steps that stayed."""
        return self.steps - self.steps_lost

    def share(self, category: str) -> float:
        """Part of all time, 0 to 1."""
        total = self.total_s
        return self.seconds.get(category, 0.0) / total if total > 0 else 0.0


def book(ledger: Ledger, more: Mapping[str, float]) -> Ledger:
    """``ledger`` with more seconds, by category."""
    seconds = dict(ledger.seconds)
    for category, added in more.items():
        if added:
            seconds[category] = seconds.get(category, 0.0) + added
    return replace(ledger, seconds=seconds)


def with_span(spans: tuple[Span, ...], span: Span) -> tuple[Span, ...]:
    """``spans`` and one more. When there are too many, the older half is merged in pairs: old steps seldom get lost."""
    spans = (*spans, span)
    if len(spans) <= MOST_SPANS:
        return spans
    half = MOST_SPANS // 2
    pairs = zip(spans[0:half:2], spans[1:half:2], strict=True)
    return (*((a[0], b[1], a[2] + b[2]) for a, b in pairs), *spans[half:])


def lose(ledger: Ledger, above: int) -> Ledger:
    """The run goes on at step ``above``: the seconds of all steps above it were in vain."""
    if not ledger.spans or max(ledger.spans[-1][:2]) <= above:
        return ledger
    kept: list[Span] = []
    steps, seconds = 0, 0.0
    for first, last, took in ledger.spans:
        if first > above:
            steps, seconds = steps + last - first + 1, seconds + took
        elif last <= above:
            kept.append((first, last, took))
        else:
            part = took * (last - above) / (last - first + 1)  # of a merged span: an even share
            kept.append((first, above, took - part))
            steps, seconds = steps + last - above, seconds + part
    ledger = replace(ledger, spans=tuple(kept), steps_lost=ledger.steps_lost + steps)
    return book(ledger, {PRODUCTIVE: -seconds, WASTED: seconds})


def across(ledgers: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """The ledgers of a run's journals, oldest first, each knowing of the others.

    What a later pod resumed below is wasted in the earlier one's ledger. The gap before a pod, from the last record of
    those before it, is booked in its own: as the replacement of a lost pod, unless a person had stopped the run.
    A lost pod's record ends with its last one in the store, so the gap begins there.
    """
    order = sorted((one.began_wall, name) for name, one in ledgers.items() if one.began_wall is not None)
    found: dict[str, Ledger] = {}
    newest: Ledger | None = None
    for began, name in order:
        ledger = ledgers[name]
        if ledger.floor is not None:
            floor = ledger.floor
            found = {other: lose(one, floor) for other, one in found.items()}
        gap = began - newest.wall if newest is not None else 0.0
        if newest is not None and gap > 0:
            ledger = book(ledger, {STOPPED if newest.last == STOPPED else INFRASTRUCTURE: gap})
        if newest is None or ledger.wall > newest.wall:
            newest = ledger
        found[name] = ledger
    return found


def merged(ledgers: Mapping[str, Ledger]) -> Ledger:
    """The run's ledger: the sum of its journals' (``across``). Spans and what is under way are left out."""
    parts = list(across(ledgers).values())
    return Ledger(
        seconds={name: sum(one.seconds.get(name, 0.0) for one in parts) for name in CATEGORIES},
        began_wall=min((one.began_wall for one in parts if one.began_wall is not None), default=None),
        wall=max((one.wall for one in parts), default=0.0),
        last=max(parts, key=lambda one: one.wall).last if parts else "",
        floor=min((one.floor for one in parts if one.floor is not None), default=None),
        steps=sum(one.steps for one in parts),
        steps_lost=sum(one.steps_lost for one in parts),
        timed=sum(one.timed for one in parts),
        timed_s=sum(one.timed_s for one in parts),
        saves=sum(one.saves for one in parts),
        uploads=sum(one.uploads for one in parts),
        upload_s=sum(one.upload_s for one in parts),
        upload_bytes=sum(one.upload_bytes for one in parts),
        incidents=sum(one.incidents for one in parts),
        restarts=sum(one.restarts for one in parts),
        outages=tuple(sorted((out for one in parts for out in one.outages), key=lambda out: out.wall)),
    )


def ettr(ledgers: Mapping[str, Ledger]) -> float:
    """Effective training time ratio of a run: seconds of steps that stayed, by all seconds; 0 to 1.

    The measure of ByteRobust (arXiv 2509.16293) and of Llama 3 (arXiv 2407.21783, "effective training time").
    """
    return merged(ledgers).share(PRODUCTIVE)
