"""One line of a log, of any writer and with anything before it: level, message, time, rank and role."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from supervisor.base.escapes import plain
from supervisor.core.facts import Role

LONGEST: Final = 65536  # a JSON line carries its traceback
DAY_S: Final = 86400.0

# Ray says a line that several of its processes wrote once.
_REPEATED = re.compile(r" ?\[repeated \d{1,9}x across cluster\].{0,400}$", re.S)
_DATE = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,]\d{1,9})?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

# What others put before a line, outermost first; each may have a time of its own.
_OUTER: Final = (
    # docker logs -t, kubernetes (CRI: "... stdout F "), kubectl --timestamps, journalctl -o short-iso
    re.compile(
        rf"{_DATE}T{_CLOCK}{_ZONE} (?:std(?:out|err) [FP] |[^\s:]{{1,100}} [^\s:\[\]]{{1,60}}(?:\[\d{{1,9}}\])?: )?"
    ),
    # syslog, journalctl and ts
    re.compile(
        rf"\[?(?P<name>[A-Z][a-z]{{2}}) (?P<day>[ \d]\d) {_CLOCK}\]? "
        r"(?:[^\s:]{1,100} [^\s:\[\]]{1,60}(?:\[\d{1,9}\])?: )?"
    ),
    # ts of moreutils, and scripts that put a date of their own before what a program says
    re.compile(
        rf"\[?{_DATE}[ T]{_CLOCK}{_ZONE}\]?(?:\[[Rr]ank ?\d{{1,6}}\])?:? "
        r"(?! {0,3}(?:-|\||\[?(?:DEBUG|INFO|SUCCESS|WARN|ERROR|CRIT|FATAL|TRACE)|\[ {0,12}\d)|[IWEFC] \d)"
    ),
    # kubectl logs --prefix, docker compose
    re.compile(r"\[pod/[^\]\s]{1,200}\] "),
    re.compile(r"[a-z][\w.-]{0,60}-\d{1,4} {1,40}\| "),
    # our own kernel.txt, dmesg -T, dmesg
    re.compile(rf"{_DATE} {_CLOCK} \[ {{0,12}}\d{{1,12}}\.\d{{1,9}}\] "),
    re.compile(rf"\[[A-Z][a-z]{{2}} (?P<name>[A-Z][a-z]{{2}}) (?P<day>[ \d]\d) {_CLOCK} \d{{4}}\] "),
    re.compile(r"(?:<\d{1,3}>)?\[ {0,12}\d{1,12}\.\d{6}\] "),
)
# What stands before each line of a log, or before none: by itself it could be anything. ``who`` wrote the line.
_WRAPPERS: Final = (
    # docker compose, whatever its containers are called
    re.compile(rb"(?P<who>[A-Za-z0-9][\w.-]{0,60}) {0,40}\| ?"),
    re.compile(rb"\[(?P<who>pod/[^\]\s]{1,200})\] "),  # kubectl logs --prefix
    # stern, and logs of Kubernetes that tools joined: pod and container, or the pod alone
    re.compile(rb"(?P<who>[a-z][a-z0-9]*+(?:-[a-z0-9]++){1,8}+ [a-z][a-z0-9-]{2,60}) (?=[^a-z])"),
    re.compile(rb"(?P<who>[a-z][a-z0-9]{0,40}(?:-[a-z0-9]{1,40}){0,8}-\d{1,4}) {1,4}(?![ |])"),
    re.compile(rb" {0,4}(?P<who>\d{1,4}): "),  # srun --label, which labels no line of srun itself
    re.compile(rb"(?P<who>\d{1,7}(?:\.\d{1,3})?s)\t\d{1,7}\t"),  # Kaggle: seconds since the start, and a number
    # pdsh, which DeepSpeed starts with
    re.compile(rb"(?P<who>\d{1,3}(?:\.\d{1,3}){3}|(?:worker|node)[\w.-]{0,40}): "),
    re.compile(rb"\[(?P<who>\d{1,4},[\w:]{1,20}(?:,[\w-]{1,40})?)\]<std(?:out|err)>: ?"),  # mpirun --tag-output
    # programs that start others, and name them: "[generator-0] Traceback ..."
    re.compile(
        rb"\[(?P<who>(?!(?:DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE|rank\d{1,6})\])"
        rb"[A-Za-z][\w./:-]{0,60})\] "
    ),
)
_WRAPPED: Final = 0.8  # of the lines that a log begins with
_LABELLED: Final = 0.3  # the same behind a script of Slurm: what the script says itself has no label
_TORCHRUN = re.compile(r"\[(?P<who>[A-Za-z]{1,32})(?P<rank>\d{1,6})\]: {0,1}")
_PROCESS = re.compile(
    r"\((?:(?P<who>[A-Za-z_]{1,40})[\w .,:/<>#()-]{0,120}?)??\b(?:pid|rank)=\d{1,9}[^()]{0,40}\) ?"
    r"|\(raylet[^()]{0,60}\) ?|\(pid=[a-z_]{1,40}\) ?|\(\w{1,40}\) : "
)
# What a launcher says of a process that ended stands behind the whole command, which may be of any length.
_ENDED = re.compile(r"(?:exits with return code = |died with <Signals\.|returned non-zero exit status )[^']{1,40}$")
COMMAND: Final = 400  # characters that are kept of it
_PROGRESS = re.compile(r"[^\[\]\n]{0,500}?\d{1,9}(?:it|/\d{1,9}) \[\d\d:\d\d[^\]\n]{0,80}\](?:, )?")

_LEVEL = r"(?P<level>DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE)"
_HEADS: Final = (
    re.compile(rf"{_CLOCK}\s{{1,10}}{_LEVEL}\s(?P<text>.*)", re.S),  # prime-rl
    # vLLM; without the first bracket before 0.8
    re.compile(
        rf"{_LEVEL} (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} "
        r"(?:\[[^\]]{1,80}\] ?|[\w.]{1,80}:\d{1,6}\] ?)?(?P<text>.*)",
        re.S,
    ),
    # the logging module as verifiers sets it up, and plain loguru
    re.compile(rf"{_DATE} {_CLOCK} - [\w.]{{1,120}} - {_LEVEL} - (?P<text>.*)", re.S),
    re.compile(rf"{_DATE} {_CLOCK} - {_LEVEL} - (?:[\w./-]{{1,80}}:\d{{1,6}} - )?(?P<text>.*)", re.S),
    re.compile(rf"{_DATE}[ T]{_CLOCK}{_ZONE} \| {_LEVEL} {{0,8}}\| [^|\n]{{0,160}}?(?: - |\| )(?P<text>.*)", re.S),
    re.compile(rf"\[?{_DATE}[ T]{_CLOCK}{_ZONE}\]?\s{{0,3}}\[?{_LEVEL}\]?:?\s(?P<text>.*)", re.S),
    # AReaL
    re.compile(rf"(?P<year>\d{{4}})(?P<month>\d\d)(?P<day>\d\d)-{_CLOCK} [\w. -]{{1,60}} {_LEVEL}: (?P<text>.*)", re.S),
    re.compile(rf"{_LEVEL}:\s{{1,8}}(?P<text>.*)", re.S),  # uvicorn
    re.compile(rf"{_LEVEL}:[\w.]{{1,120}}:(?P<text>.*)", re.S),  # the logging module as it is
    re.compile(rf"{_LEVEL} [\w.]{{1,120}}: (?P<text>.*)", re.S),
    # Ray's own processes: "(raylet) [2026-01-06 03:00:12,123 E 4200 4242] file_system_monitor.cc:116: ..."
    re.compile(
        rf"(?:\((?:raylet|gcs_server)[^()\n]{{0,60}}\) ?)?\[{_DATE} {_CLOCK} (?P<level>[IWEFC]) \d{{1,9}} \d{{1,9}}\] "
        r"(?:\([\w-]{1,40}\) )?(?:[\w./]{1,80}:\d{1,6}: )?(?P<text>.*)",
        re.S,
    ),
)
# torch's own: "[E709 17:05:38.16 ProcessGroupNCCL.cpp:632] ...", "E0106 03:00:12.123000 4200 torch/...:874] ..."
_GLOG = re.compile(rf"\[?(?P<letter>[IWEF])(?P<month>\d{{1,2}})(?P<day>\d\d) {_CLOCK} [^\]\n]{{1,200}}\] ?", re.S)
_LETTERS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL"}
_CANCELLED = re.compile(rf" CANCELLED AT {_DATE}T{_CLOCK}")  # Slurm's own line has its time behind
_RANK = re.compile(r"\[(?:PG [^\]]{1,80})?[Rr]ank (\d{1,6})\]")


@dataclass(frozen=True)
class Stamp:
    """When a line was written: second of the day, and where that is told the day (of any year: years are not told)."""

    seconds: float
    day: int | None = None
    shown: str = ""


@dataclass(frozen=True)
class Line:
    """A line without what stands before its message. ``level`` None: no logger wrote it, or not its first line.

    ``text`` keeps the blanks that it begins with. ``exception``: the traceback that a JSON line carries.
    """

    level: str | None
    text: str
    stamp: Stamp | None = None
    rank: int | None = None
    role: Role | None = None
    exception: str = ""
    key: str = ""  # of the process that wrote it, as far as prefixes tell


def parse(raw: bytes) -> Line:
    """Never raises."""
    text = plain(raw[:LONGEST].decode(errors="replace")).lstrip("\ufffd").rstrip()
    stamp: Stamp | None = None
    if found := _HEADS[0].match(text):  # most lines of a run
        return Line(found["level"], found["text"], _parse_stamp(found))
    if " across cluster]" in text:
        text = _REPEATED.sub("", text)
    for outer in _OUTER:
        if found := outer.match(text):
            stamp = _parse_stamp(found) or stamp
            text = text[found.end() :]
    if text.startswith("{") and (line := _read_json(text, stamp)) is not None:
        return line
    if "[" in text[:560] and (bar := _PROGRESS.match(text)) and bar.end() < len(text):
        text = text[bar.end() :]
    role: Role | None = None
    rank: int | None = None
    key = ""
    level: str | None = None
    for _ in range(2):
        for _ in range(4):
            found = _TORCHRUN.match(text)
            if found is not None:
                role, rank = "trainer", int(found["rank"])
            else:
                found = _PROCESS.match(text)
                if found is None:
                    break
                role = "inference" if _of_engine(found["who"] or "") else role
            key += found[0].strip()
            text = text[found.end() :]
        if found := _GLOG.match(text):
            # Its head stays: what is known of such lines was written down with it.
            level, stamp = _LETTERS[found["letter"]], _parse_stamp(found) or stamp
            break
        for head in _HEADS:
            if found := head.match(text):
                level, stamp = _LETTERS.get(found["level"], found["level"]), _parse_stamp(found) or stamp
                text = found["text"]
                if head is _HEADS[1]:
                    role = role or "inference"
                break
        if found is None or not (_PROCESS.match(text) or _TORCHRUN.match(text)):
            break
        level = None  # one says again what a process of it said
    if stamp is None and text.startswith("slurmstepd: ") and (when := _CANCELLED.search(text[:400])):
        stamp = _parse_stamp(when)
    if rank is None and (named := _RANK.search(text[:200])):
        rank = int(named[1])
    if len(text) > 2 * COMMAND and (ended := _ENDED.search(text, len(text) - 120)):
        text = f"{text[:COMMAND]} ... {ended[0]}"
    return Line(level, text, stamp, rank, role, key=key)


def unwrapper(begun: Sequence[bytes]) -> Callable[[bytes], bytes] | None:
    """What makes ordinary lines of a block of a log that begins so: each names its process as vLLM and Ray do."""
    said = [raw for raw in begun if raw.strip()]
    for one in _WRAPPERS:
        share = _LABELLED if any(b"srun" in raw or b"slurm" in raw for raw in said) else _WRAPPED
        if len(said) >= 3 and sum(one.match(raw) is not None for raw in said) >= share * len(said):
            before = re.compile(rb"\n(?:%b)" % one.pattern)
            return lambda block: before.sub(rb"\n(of \g<who> pid=0) ", block)
    return None


def _of_engine(who: str) -> bool:
    return who.startswith(("APIServer", "EngineCore", "ApiServer", "Worker_", "VllmWorker", "DPCoordinator"))


def _read_json(text: str, stamp: Stamp | None) -> Line | None:
    """A line of prime-rl's JSON mode, or docker's own file format around another line."""
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("log"), str) and "stream" in record:
        inner = parse(record["log"].encode())
        return inner if inner.stamp else Line(**{**vars(inner), "stamp": _parse_iso_time(record.get("time")) or stamp})
    level = record.get("level") or record.get("levelname") or record.get("severity")
    message = record.get("message", record.get("msg", record.get("event")))
    if not isinstance(level, str) or not isinstance(message, str):
        return None
    exception = record.get("exception", record.get("exc_info", ""))
    when = _parse_iso_time(record.get("timestamp", record.get("time", record.get("ts")))) or stamp
    return Line(level.upper(), plain(message), when, exception=exception if isinstance(exception, str) else "")


def _parse_iso_time(value: object) -> Stamp | None:
    found = re.match(rf"{_DATE}[T ]{_CLOCK}", value) if isinstance(value, str) else None
    return _parse_stamp(found) if found else None


def _parse_stamp(found: re.Match[str]) -> Stamp | None:
    groups = found.groupdict()
    if not groups.get("hour"):
        return None
    seconds = int(groups["hour"]) * 3600 + int(groups["minute"]) * 60 + int(groups["second"])
    shown = f"{groups['hour']}:{groups['minute']}:{groups['second']}"
    name, number = groups.get("name"), groups.get("month")
    month = _NAMES.index(name) + 1 if name in _NAMES else int(number) if number else None
    if month is None or not groups.get("day"):
        return Stamp(seconds, None, shown)
    try:
        # Of a year that has every day: which year it was is mostly not told.
        day = date(2000, month, int(groups["day"])).toordinal()
    except ValueError:
        return Stamp(seconds, None, shown)
    return Stamp(seconds, day, f"{month:02d}-{int(groups['day']):02d} {shown}")


class Clock:
    """Seconds on one scale for the lines of one file, though some of its times have no day.

    ``offset``: what to add to have the day, too, where the first times of the file were without one.
    """

    def __init__(self) -> None:
        self.dated = False
        self.offset = 0.0
        self._day = 0
        self._newest: float | None = None

    def at(self, stamp: Stamp) -> float:
        """Seconds. Days go on where a time without one falls back by more than half a day."""
        if stamp.day is not None:
            day = stamp.day
            if self.dated and self._day - day > 300:
                day += 366  # over the end of the year
            t = day * DAY_S + stamp.seconds
            if not self.dated and self._newest is not None:
                # torchrun tells the day at the end of a log, and its steps tell none: the scale stays theirs.
                self.offset = round((t - self._newest) / DAY_S) * DAY_S
            self.dated, self._day = True, max(self._day if self.dated else 0, day)
            self._newest = t - self.offset
            return self._newest
        t = self._day * DAY_S - self.offset + stamp.seconds
        if self._newest is not None and t < self._newest - DAY_S / 2:
            self._day += 1
            t += DAY_S
        self._newest = max(t, self._newest or t)
        return t
