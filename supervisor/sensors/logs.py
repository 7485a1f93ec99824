"""Log lines and metric records of the job, turned into facts by the job's own parsers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from supervisor.base.secrets import mask_secrets
from supervisor.core.facts import ErrorSeen, Fact, FinishSeen, LinesMissed, PhaseSeen, Remark, Role, StepDone
from supervisor.jobs.base import Job, LogSource
from supervisor.sensors.base import Clock, Looker
from supervisor.sensors.folder_events import FolderEvents
from supervisor.sensors.follow import Follower, Position, ends

DISCOVER_S = 5.0  # how often files are looked for where inotify says nothing
CATCH_UP_S = 0.1  # the least between two looks while something is left unread
SHARE = 2  # then it rests twice as long as it looked: the other threads want Python's lock, too
BURST_LINES, REST_S = 100, 0.001  # of very many lines: who rests often is seldom interrupted while he holds that lock
MOST_FACTS = 30  # of one look: beyond it, of each kind but steps the first and the last few are told
FIRST, LAST = 4, 4
TOLD_BYTES = 500_000  # less than that is passed over without a word
LAST_LINES_S = 10.0  # a log on a dead mount must not hide that the job ended
LONGEST_S = 60.0  # that its last lines are waited for while they are being read


class LogSensor:
    """Follows the log files of one attempt and posts what their lines say. Look once a second.

    - A new daemon that adopts a job passes ``positions`` (as ``positions()`` gave them, through JSON): no line is lost
      and none is told twice.
    - Before a job is started, ``end_positions(sources)`` gives the ``positions`` that keep the last attempt's lines
      out. Where that was not done, ``since_wall`` (Unix time of the start) passes over files that are older.
    - A daemon that adopts a job and has no positions comes ``late``: it reads the end of what is there, and of that
      end tells what is still so. A log of weeks, told as if it happened now, would be believed.

    ``positions()`` covers exactly the lines with posted facts. Take it, let the daemon consume what is in
    its queue by then, and only then write it down: a crash in between tells some lines twice and loses none.
    """

    name = "logs"

    def __init__(
        self,
        sources: Sequence[LogSource],
        job: Job,
        *,
        positions: Iterable[Mapping[str, object]] = (),
        since_wall: float | None = None,
        late: bool = False,
        discover_s: float = DISCOVER_S,
        clock: Clock = time.monotonic,
    ) -> None:
        known = [position for data in positions if (position := Position.from_json(data)) is not None]
        self._late = late
        self._follower = Follower(sources, known, since_wall, late=late)
        self._job = job
        self._discover_s = discover_s
        self._clock = clock
        self._events = FolderEvents()
        self._discovered_at = float("-inf")
        self._lock = threading.Lock()
        self._read: list[Position] = known
        self._confirmed: list[Position] = known
        self._closed = False
        self.looks = 0  # that saw everything and have posted all facts, so that an end can wait for them
        self.posted_at = float("-inf")  # of any look, on the monotonic clock

    def look(self) -> Sequence[Fact]:
        with self._lock:
            if self._closed:
                return ()
            now = self._clock()
            if self._events.news() or now - self._discovered_at >= self._discover_s:
                self._discovered_at = now
                self._follower.discover()
                self._events.watch(self._follower.folders())
            told: dict[str, list[Fact]] = {}  # by source: its lines come in one piece
            for number, (source, line) in enumerate(sorted(self._follower.read(), key=_telling_order), 1):
                told.setdefault(source.path, []).extend(self._parse(source, line))
                if number % BURST_LINES == 0:
                    time.sleep(REST_S)
            self._read = self._follower.positions()
            facts = [fact for found in told.values() for fact in (_present(found) if self._late else found)]
            skipped = [one for one in self._follower.passed_over() if one[1] >= TOLD_BYTES]
            missed = [LinesMissed()] if skipped or self._late else []
            self._late = self._late and self._follower.behind
            return [*(_passed_over(*one) for one in skipped), *missed, *few(facts)]

    def again_s(self, took_s: float) -> float | None:
        """Soon, while a log is written faster than one look a second reads it, or there is a backlog."""
        return max(CATCH_UP_S, SHARE * took_s) if self._follower.behind else None

    def unknown(self, reason: str) -> Sequence[Fact]:
        return (LinesMissed(),)  # else a log that says nothing: silence is what deadlines are for

    def note_posted(self) -> None:
        """The facts of the last look have been handed on (called by the ``Looker``)."""
        self._confirmed = self._read
        self.posted_at = time.monotonic()
        if not self.behind:
            self.looks += 1

    @property
    def behind(self) -> bool:
        """Did the last look leave something unread?"""
        return self._follower.behind

    def note_end_of_writer(self) -> None:
        """The writer has ended: from now on of a long backlog only the newest part is read. Any thread."""
        self._follower.ended = True

    def positions(self) -> list[dict[str, str | int]]:
        """How far each file has been read and told, for JSON. Safe in any thread; returns at once."""
        return [position.as_json() for position in self._confirmed]

    def close(self) -> None:
        """Let go of all files (the attempt is over, or the daemon ends). Stop the ``Looker`` first."""
        self._closed = True
        if not self._lock.acquire(timeout=1):
            return  # a look hangs on a dead mount, and so would closing its files
        try:
            self._events.close()
            self._follower.close()
        finally:
            self._lock.release()

    def _parse(self, source: LogSource, line: bytes) -> Sequence[Fact]:
        if source.kind == "text":
            text = line.decode(errors="replace")
            facts = self._job.parse_line(source.role, text)
            # Only the few lines that say something are masked, and whole: a fact quotes the beginning of its line, and
            # half a secret has no shape.
            safe = mask_secrets(text) if facts else text
            return facts if safe == text else self._job.parse_line(source.role, safe) or facts
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return ()  # cut at the cap, or no JSON: metrics files are written by the job, which may write anything
        return self._job.parse_metrics(source.role, record) if isinstance(record, dict) else ()


class LastLines:
    """Have the last lines of a process that had ended been read? They say why."""

    def __init__(self, logs: LogSensor, following: Looker) -> None:
        """``following`` is what calls ``logs``."""
        logs.note_end_of_writer()
        self._logs, self._following = logs, following
        self._since = time.monotonic()
        self._wanted = logs.looks + 2  # the look under way may have begun before the end

    def are_read(self) -> bool:
        """Yes, or they are waited for no longer: they cannot be read, or there are too many. No: they are looked at."""
        now = time.monotonic()
        moved = max(self._since, self._logs.posted_at)
        if self._logs.looks >= self._wanted or now - moved > LAST_LINES_S or now - self._since > LONGEST_S:
            return True
        if not self._logs.behind:  # else it goes on by itself, and rests in between
            self._following.wake()
        return False


def few(facts: list[Fact]) -> list[Fact]:
    """Of very many facts those that tell the same as all: of each kind the first and the last few, and every step.

    A job in trouble can write the same error ten thousand times a second. What the core learns from that, it learns
    from a handful; the rest would only keep it, and everything else that is told, waiting. Steps are no trouble, and
    the core does not believe a step that comes too early, so none before it may be missing. The order stays.
    """
    if len(facts) <= MOST_FACTS:
        return facts
    places: dict[tuple[object, ...], list[int]] = {}
    told: set[int] = set()
    for place, fact in enumerate(facts):
        if isinstance(fact, StepDone):
            told.add(place)
            continue
        kind = (type(fact), *(getattr(fact, name, "") for name in ("role", "signature", "phase")))
        places.setdefault(kind, []).append(place)
    told.update(place for found in places.values() for place in (*found[:FIRST], *found[-LAST:]))
    return [fact for place, fact in enumerate(facts) if place in told]


def _present(facts: list[Fact]) -> list[Fact]:
    """Of the facts at the end of one file that had been there for long, in order: those that may still be so.

    Errors, ends and phases before the last step are over. Where the numbers fall back, an attempt began that did those
    steps anew, and what the one before it did would make its steps old news.
    """
    first: dict[Role, int] = {}
    newest: dict[Role, tuple[int, int]] = {}  # place and number
    for place, fact in enumerate(facts):
        if isinstance(fact, StepDone):
            if fact.step < newest.get(fact.role, (0, fact.step))[1]:
                first[fact.role] = place
            newest[fact.role] = place, fact.step
    last = max((place for place, _ in newest.values()), default=-1)
    return [
        fact
        for place, fact in enumerate(facts)
        if (place >= first.get(fact.role, 0) if isinstance(fact, StepDone) else place > last or _lasts(fact))
    ]


def _lasts(fact: Fact) -> bool:
    return not isinstance(fact, ErrorSeen | FinishSeen | PhaseSeen)


def _passed_over(path: str, size_bytes: int) -> Remark:
    return Remark(
        "logs",
        f"{size_bytes / 1e6:.0f} MB of {path} were passed over: there was more to read than can be news. "
        "The file itself is whole.",
    )


def _telling_order(found: tuple[LogSource, bytes]) -> tuple[bool, bool]:
    # Of what came within one look, metrics come after text, which has a step's duration too, and the trainer's step
    # after the orchestrator's, which has its reward: so the one sentence about a step knows both.
    source, _ = found
    return source.kind == "jsonl", source.role == "trainer"


def end_positions(sources: Sequence[LogSource]) -> list[dict[str, str | int]]:
    """Where the log files end at this moment, in the form of ``LogSensor.positions``."""
    return [position.as_json() for position in ends(sources)]
