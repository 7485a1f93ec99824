"""What reading one log gives: errors with their places, steps, the end. Plain data."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from supervisor.core.facts import Role
from supervisor.diagnosis.frames import Raised
from supervisor.diagnosis.ranks import Ranks
from supervisor.signatures import Signature

if TYPE_CHECKING:
    from supervisor.diagnosis.standstill import Wait

GAP_S: Final = 600.0  # an error that comes again after so long is another story
SLACK_S: Final = 120.0  # logs of several processes tell of one moment so far apart
MOST_STEPS: Final = 100_000
LAST_LINES: Final = 20  # of a log: what stands in them was not followed by much


@dataclass(frozen=True)
class Place:
    """A line of a file. ``t``: seconds on the file's own scale, None where nothing tells; ``shown``: as it stood."""

    file: str
    line: int
    t: float | None = None
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Event:
    """One kind of error in one file, for as long as nothing shows that the run went on in between."""

    signature: Signature | None  # None: an error that has no entry
    role: Role | None
    text: str
    first: Place
    last: Place
    count: int = 1
    weak: bool = False  # only ever a warning, or a line that is no logger's and after which its process went on
    level: str | None = None
    raised: Raised | None = None
    more: list[str] = field(default_factory=list)  # the lines after the first
    ranks: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)  # of the processes that said it
    start: int = 0
    lives: int = 0  # ordinary lines of the same file after the last one
    beside: int = 0  # and all of them since the first one
    resuming: int | None = None  # the step that was being resumed then
    over: bool = False  # the same file shows that it passed
    closing: bool = False  # an engine said it that had been told to end
    fatal: bool = False  # its process wrote nothing after the exception but last words
    unlogged: int = 0  # the line where it last was an exception that no logger wrote, as one is that ends a program
    latest: Raised | None = None  # the last exception that was counted
    in_thread: bool = False  # each of them ended a thread, and not its process
    became: Event | None = None  # the exception that was made of it
    anew: tuple[Place, str, int] | None = None  # the first after the last step in between, and how many were before it

    @property
    def name(self) -> str:
        """Of the signature, or of the exception."""
        return self.signature.name if self.signature else self.raised.type if self.raised else ""


@dataclass
class Steps:
    """Steps of one role in one file, in order: line, time and number of each."""

    lines: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # the last known one where a step has none
    numbers: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, place: Place, number: int) -> None:
        """Steps that are said twice (by each rank) count once."""
        if self.numbers and self.numbers[-1] == number:
            return
        self.count += 1
        if len(self.lines) >= MOST_STEPS:
            del self.lines[::2], self.times[::2], self.numbers[::2]
        self.lines.append(place.line)
        self.times.append(place.t if place.t is not None else self.times[-1] if self.times else float("-inf"))
        self.numbers.append(number)

    def after_line(self, line: int) -> int:
        """How many came after that line of the same file."""
        return len(self.lines) - bisect_right(self.lines, line)

    def after_time(self, t: float, shift: float = 0.0) -> int:
        """How many came after ``t``, where this file's own times are to be moved by ``shift``."""
        return len(self.times) - bisect_right(self.times, t - shift)


@dataclass
class Log:
    """One log, read."""

    name: str
    role: Role | None
    attempt: str = ""
    merged: bool = False  # lines of several roles: a terminal, the launcher's own output
    events: list[Event] = field(default_factory=list)
    steps: dict[Role, Steps] = field(default_factory=dict)
    finishes: list[tuple[Role, Place]] = field(default_factory=list)
    failed_percent: float = 0.0  # of the rollouts, as the orchestrator told at its last step
    ranks: Ranks = field(default_factory=Ranks)
    starts: int = 0
    before: int = 0  # lines of the same file that are another log's
    lines: int = 0
    bytes: int = 0
    first_t: float | None = None
    last_t: float | None = None
    last_shown: str = ""
    last_ordinary: str = ""  # the last line of a logger that tells of nothing bad
    final: Event | None = None  # an error of no known kind with which it ends
    wait: Wait | None = None  # it ends with a part that waits
    nan: Event | None = None  # the last steps have a loss or a gradient that is no number
    unrewarded: tuple[int, Place] | None = None  # so many last steps, since there, had a reward of zero
    complaint: tuple[str, Place] | None = None  # the last line at the level of an error that is none of the known ones
    dated: bool = False
    offset: float = 0.0  # of a dated one: from its own times to those of the days that it names
    shift: float = 0.0  # to be added to its times to compare them with those of other files
    kernel: bool = False
    half_line: bool = False  # its last line has no end
    cut: str = ""  # it ends inside of an error: what there is of it, in a few words
    trouble: str = ""  # why not all of it could be read

    @property
    def begins_t(self) -> float | None:
        """The time of its first line, comparable with other files'."""
        return self.first_t + self.shift if self.first_t is not None else None

    @property
    def ends_t(self) -> float | None:
        """The time of its last line, comparable with other files'."""
        return self.last_t + self.shift if self.last_t is not None else None

    def at(self, place: Place) -> float | None:
        """Its time, comparable with other files'."""
        return place.t + self.shift if place.t is not None else None


Sighting = tuple[Log, Event]  # an event, with the log that it stands in


def last_time_of(logs: Iterable[Log]) -> float | None:
    """When the last line of all these logs was written."""
    return max((t for log in logs if (t := log.ends_t) is not None), default=None)
