"""Where the run's time went: the parts of the ledger add up to all of it, in the names of Google's goodput library.

One ledger a journal, so one a pod; ``sum_ledgers`` makes the run's out of them. ``supervisor.core.account`` keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from supervisor.base.records import dataclass
from supervisor.core.evolve import replace
from supervisor.core.time_kinds import CATEGORIES, INFRASTRUCTURE, PRODUCTIVE, STOPPED, WASTED

MOST_SPANS = 64
MOST_OUTAGES = 100
MOST_STARTS = MOST_SPANS // 4  # so few that spans between them can always be merged
SAME_START_S = 1.0
FROM_SCRATCH = -1  # a fresh start resumes below every step

Span = tuple[int, int, float]
"""First and last step, and the seconds that they took: productive until an attempt resumes below them.

A step that is under way stands as ``(121, 120, seconds)``: time that may be lost, and no step.
"""
Start = tuple[float, int]
"""Unix time at which a journal went on with the run, and the step that it went on at."""


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

    Bounded: spans are merged, oldest first, few starts are told apart, and the newest hundred outages are kept. Only
    numbers and names.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    began_wall: float | None = None  # Unix time of the journal's first observation
    wall: float = 0.0  # Unix time up to which all is booked
    last: str = ""  # what time was spent on just then: what follows, until another pod begins, is the same or worse
    mark: float | None = None  # the journal's own clock up to which all is booked
    spans: tuple[Span, ...] = ()  # steps that may still be lost, ascending
    floor: int | None = None  # lowest step that an attempt of this journal resumed at
    starts: tuple[Start, ...] = ()  # ascending; a span was done after the last one below it
    held: int | None = None  # generation of the claim that the latest start was made under
    steps: int = 0  # done, also those that were lost later
    steps_lost: int = 0
    timed: int = 0  # steps that were seen from start to end
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
    def steps_kept(self) -> int:
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


def with_span(spans: tuple[Span, ...], span: Span, starts: tuple[Start, ...] = ()) -> tuple[Span, ...]:
    """``spans`` and one more. When there are too many, the older half is merged in pairs: old steps seldom get lost.

    Spans before and after one of ``starts`` stay apart, because another pod may have replaced only the former.
    """
    spans = (*spans, span)
    if len(spans) <= MOST_SPANS:
        return spans
    half = MOST_SPANS // 2
    merged: list[Span] = []
    alone = False  # may the last one be merged with the next
    for one in spans[:half]:
        if alone and not any(merged[-1][1] <= step < one[0] for _, step in starts):
            first, last, took = merged.pop()
            # Other pods may have done steps in between: what counts is how many were done here.
            merged.append((one[0] - (last - first + 1), one[1], took + one[2]))
            alone = False
        else:
            merged.append(one)
            alone = True
    return (*merged, *spans[half:])


def lose(ledger: Ledger, above: int, until: int | None = None) -> Ledger:
    """The run goes on at step ``above``: the seconds of all steps above it, or of those to ``until``, were in vain."""
    if not ledger.spans or max(ledger.spans[-1][:2]) <= above or (until is not None and until <= above):
        return ledger
    kept: list[Span] = []
    steps, seconds = 0, 0.0
    for first, last, took in ledger.spans:
        low = max(first, above + 1)
        high = last if until is None else min(last, until)
        if max(first, last) <= above or (until is not None and first > until):
            kept.append((first, last, took))
        elif (low, high) == (first, last):
            steps, seconds = steps + last - first + 1, seconds + took
        else:
            each = took / (last - first + 1)  # of a merged span: an even share
            if first < low:
                kept.append((first, low - 1, each * (low - first)))
            if high < last:
                kept.append((high + 1, last, each * (last - high)))
            steps, seconds = steps + high - low + 1, seconds + each * (high - low + 1)
    ledger = replace(ledger, spans=tuple(kept), steps_lost=ledger.steps_lost + steps)
    return book(ledger, {PRODUCTIVE: -seconds, WASTED: seconds})


def resume_ledger(ledger: Ledger, step: int, wall: float, held: int | None) -> Ledger:
    """This journal's job goes on at ``step``, since Unix time ``wall``, under the claim of generation ``held``.

    A start at a higher step under the same claim is no start of its own: no other pod had the run in between.
    """
    ledger = lose(ledger, step)
    floor = step if ledger.floor is None else min(step, ledger.floor)
    return start_ledger(replace(ledger, floor=floor), step, wall, held)


def start_ledger(ledger: Ledger, step: int, wall: float, held: int | None) -> Ledger:
    """From ``wall`` on, what this journal does above ``step`` is the run, whatever other pods did before."""
    # Those at this step or above it have no spans left, and replaced no more of other pods than this one does.
    starts = tuple(one for one in ledger.starts if one[1] < step)
    if starts and starts == ledger.starts and held is not None and held == ledger.held:
        return ledger
    if starts and wall < starts[-1][0] + SAME_START_S:
        return replace(ledger, starts=starts, held=held)  # the same attempt, or a clock that was set back
    starts = (*starts, (wall, step))
    if len(starts) > MOST_STARTS:
        # Between the two that are closest in time another pod is least likely to have had the run.
        number = min(range(1, len(starts)), key=lambda n: starts[n][0] - starts[n - 1][0])
        starts = (*starts[:number], *starts[number + 1 :])
    return replace(ledger, starts=starts, held=held)


def all_starts(ledger: Ledger) -> tuple[Start, ...]:
    """A ledger's starts. Of one that was begun before starts were kept, its lowest stands for those from its begin."""
    starts, floor = ledger.starts, ledger.floor
    if floor is None or ledger.began_wall is None or (starts and starts[0][1] <= floor):
        return starts
    return ((ledger.began_wall, floor), *starts)


def across(ledgers: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """The ledgers of a run's journals, oldest first, each knowing of the others.

    What a pod resumed below is wasted in the others' ledgers, as far as they had begun it before: of a pod that was
    interrupted by another and resumed later, the steps since then stay. The gap before a pod, from the last record of
    those before it, is booked in its own: as the replacement of a lost pod, unless a person had stopped the run.
    A lost pod's record ends with its last one in the store, so the gap begins there.
    """
    order = sorted((one.began_wall, name) for name, one in ledgers.items() if one.began_wall is not None)
    found: dict[str, Ledger] = {}
    newest: Ledger | None = None
    for began, name in order:
        ledger = ledgers[name]
        gap = began - newest.wall if newest is not None else 0.0
        if newest is not None and gap > 0:
            ledger = book(ledger, {STOPPED if newest.last == STOPPED else INFRASTRUCTURE: gap})
        if newest is None or ledger.wall > newest.wall:
            newest = ledger
        found[name] = ledger
    starts = {name: all_starts(one) for name, one in found.items()}
    for wall, name, step in sorted((wall, name, step) for name, own in starts.items() for wall, step in own):
        for other, one in found.items():
            if other != name:
                until = next((low for since, low in starts[other] if (since, other) > (wall, name)), None)
                found[other] = lose(one, step, until)
    return found


def sum_ledgers(ledgers: Mapping[str, Ledger]) -> Ledger:
    """The run's ledger: the sum of its journals' (``across``). Spans and what is under way are left out.

    Its ``share`` of productive time is the effective training time ratio (ETTR): the measure of ByteRobust (arXiv
    2509.16293) and of Llama 3 (arXiv 2407.21783, "effective training time").
    """
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
