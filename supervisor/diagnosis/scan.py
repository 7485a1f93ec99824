"""Reads one log of any size in a stream, and keeps what may explain an end.

Most lines of a log say that all goes on. One search over a whole block finds the others: those that hold one of the
words that a known error cannot be without. Of what lies between them, only what events need is taken: how many
ordinary lines there were, the last of them, steps. Memory is bounded whatever the log holds.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import BinaryIO, Final, get_args

from supervisor.base.escapes import plain_bytes
from supervisor.core.facts import FinishSeen, FreshStartSeen, PhaseSeen, Role, StepDone
from supervisor.diagnosis import gates
from supervisor.diagnosis.bars import done_bars
from supervisor.diagnosis.frames import IGNORED, Raised, Tracebacks, bare, is_exception, nearer
from supervisor.diagnosis.last_words import LAST_WORDS, PLAIN_ERROR, says_failure
from supervisor.diagnosis.lines import LONGEST, Clock, Line, parse, unwrapper
from supervisor.diagnosis.places import identify_log
from supervisor.diagnosis.seen import GAP_S, LAST_LINES, Event, Log, Place, Steps
from supervisor.diagnosis.standstill import find_wait
from supervisor.diagnosis.step_worth import note_worth, read_step
from supervisor.primerl.logs import SIGNATURES, parse_line
from supervisor.signatures import LONGEST as MATCHED
from supervisor.signatures import Signature
from supervisor.signatures.xids import seen_in

BLOCK_BYTES: Final = 1 << 20
LINE_BYTES: Final = LONGEST
MOST_EVENTS: Final = 400
MOST_KEYS: Final = 64
SHOWN: Final = 300
MORE_LINES: Final = 3
WANTED_BYTES: Final = 600  # of an ordinary line: what it is about stands at its beginning
_POD = re.compile(r"\bpod/[\w.-]{1,120}")
_BEFORE_START: Final = frozenset({
    "gpu-plugin-unhealthy", "image-not-pulled", "image-pull-limited", "pod-config-missing", "pod-not-scheduled",
    "sandbox-not-created", "volume-not-mounted",
})  # fmt: skip
ENDS_MORE: Final = ("Traceback (most", "The above exception", "During handling", "Process ", 'File "')
PAGE_LINES: Final = 100
MOST_ENDS: Final = 4  # times that one process may tell of the exception that ends it
CAUGHT: Final = 80  # characters of its message by which an exception is known again
LIVES, MERGED_LIVES = 5, 50  # ordinary lines after an error that show that its process went on

_STARTS: Final[dict[Role, re.Pattern[str]]] = {
    "launcher": re.compile("Starting RL run"),
    "trainer": re.compile("Starting (?:RL|SFT) trainer"),
    "orchestrator": re.compile(r"Starting orchestrator(?: \(| {0,4}\[|$)"),
    "inference": re.compile("vLLM API server version"),
}
_SERVES: Final = "Application startup complete"
_QUIET_END: Final = ("SystemExit", "srun: error: ", "+ ")
_GOODBYE = re.compile(
    r".{0,120}(?:[Ss]hut(?:ting)? ?down|Waiting for (?:application|connections|background)|Finished server|"
    r"Killing subprocess|[Ee]xiting|[Tt]erminating)"
)
FINAL_LINES: Final = 3  # at a log's end in which any word of a failure counts
LOOK_BACK: Final = 30  # lines above the first word of a failure
TAIL: Final = 80  # lines at a log's end among which last words are looked for
# Trainers of other kinds say their steps so; a model's answer may speak of steps, too, further behind.
_PLAIN_STEP = re.compile(r"(?:\{'loss': )|[^'\"]{0,80}?(?:" + "|".join(gates.OTHERS_STEP) + ")")
_OF_UNIT = re.compile(r"\S{1,256}\.(?:service|scope|slice): ")  # systemd's words
_OF_JOB = re.compile(r"\((?:[\w-]{1,15}::|pt_|torchrun)")  # so prime-rl, vLLM, Ray and torch name their processes
_FAILED_SHARE = re.compile(r"\| Error (\d{1,3}\.\d)%")  # of prime-rl's rollouts, at a step of the orchestrator
_NUMBER = re.compile(r"(?:tep|teration|ollout)[ :=]{1,8}(\d{1,12})")
# The last word of transformers' Trainer (before its last save), torchtitan, verl, and an evaluation of verifiers.
_JOB_DONE = re.compile(
    r"\{'train_runtime':|(?:.{1,60} - )?(?:Training completed$|Results saved to )|\(?[\"']Final validation metrics"
)
# What vLLM says when it gets a signal (entrypoints/launcher.py, v1/engine/core.py): its own parts then lose each other.
_TOLD_TO_END = re.compile(
    r"\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received signal)|"
    r"Shutting down FastAPI HTTP server"
)
_LOST: Final = ("engine-dead", "engine-waiting-ended")
_OF_CORE = re.compile(r"\((?:EngineCore|Worker|VllmWorker|RayWorker)")
BEGUN: Final = 50  # lines that show of what kind a log is
RECENT_LINES: Final = 50  # ordinary ones within which an engine dies that was told to end
MOST_STEPS: Final = 32  # more between two events are not all read
LAST_STEPS: Final = 8  # the last of them are
NEAR_LINES: Final = 8  # before a line that is looked at: they are tried one by one for being ordinary
NEAR_BYTES: Final = 64 << 10  # no line further away is
DEATH_S: Final = 120.0  # within which an engine's end follows from an exception of it
_SAMPLE = "\u2502"  # of tables in which sampled answers are printed


def scan(
    stream: BinaryIO,
    name: str,
    role: Role | None = None,
    *,
    attempt: str = "",
    kernel: bool = False,
    progress: Callable[[int], object] = lambda size: None,
) -> list[Log]:
    """Read it to its end. More than one log comes of a text that joins several ("==> NAME <=="). Raises OSError.

    ``progress`` is told how many bytes were read each time.
    """
    return _Scan(name, role, attempt, kernel).read(stream, progress)


def blocks(
    stream: BinaryIO, log: Callable[[], Log], progress: Callable[[int], object] = lambda size: None
) -> Iterator[bytes]:
    """Whole lines in pieces of about a megabyte, each behind its line end, without colours.

    A line without end is cut, so that memory is bounded. ``log``: the one that is being read.
    """
    rest = b""
    begun = False
    try:
        while data := stream.read(BLOCK_BYTES):
            begun = True
            log().bytes += len(data)
            progress(len(data))
            whole, end, rest_of_it = data.rpartition(b"\n")
            if end:
                yield plain_bytes(b"\n%b%b" % (rest, whole))
            rest = (rest_of_it if end else rest + data)[:LINE_BYTES]
    except (EOFError, zlib.error) as error:
        if not begun:
            raise OSError("it is compressed, and damaged from its start on") from error
        log().trouble = "its compressed end is missing or damaged"
    if rest:
        log().half_line = True
        yield plain_bytes(b"\n" + rest)


def _is_cut(raised: Raised | None, number: int) -> bool:
    """Is the last line only the beginning of an exception's name?"""
    whole = ("Error", "Exception", "Interrupt", "Exit", "Warning", "Timeout", "NotFound")
    return raised is not None and raised.line == number and not (raised.message or raised.type.endswith(whole))


def _is_ignored(above: Sequence[bytes]) -> bool:
    """Do the lines above an exception, its traceback among them, say that Python ignores it?"""
    texts = (parse(raw).text for raw in reversed(above))
    head = next((text for text in texts if not text.startswith((" ", "Traceback (most"))), "")
    return head.startswith(IGNORED)


@lru_cache(maxsize=4096)
def _match_roles(roles: tuple[Role, ...], message: str, frame: str) -> Signature | None:
    """The first signature that a message has in any of these roles. A storm says one thing many times: it is kept."""
    for role in roles:
        found = SIGNATURES.match(role, message, diagnosing=True, frame=frame)
        if found is not None and found.name != "python-error":
            return found
    return None


def _first_bytes(block: bytes) -> list[bytes]:
    return block.split(b"\n", BEGUN + 1)[1 : BEGUN + 1]


def _last_ordinary(block: bytes, at: int, end: int) -> bytes:
    """Of the lines from one line end to another one; b"" where none of them is."""
    for _ in range(NEAR_LINES):
        start = block.rfind(b"\n", at, end)
        if start < 0 or gates.ORDINARY.match(block, start + 1, end):
            return block[start + 1 : end] if start >= 0 else b""
        end = start
    found = deque(gates.ORDINARY_LINE.finditer(block, max(at, end - NEAR_BYTES), end), maxlen=1)
    return _line_at(block, found[0].end(), end) if found else b""


def _line_at(block: bytes, start: int, end: int) -> bytes:
    """The line that begins at ``start``; the block, or what counts of it, goes to ``end``."""
    found = block.find(b"\n", start, end)
    return block[start : found if found >= 0 else end]


def _sample_steps(steps: list[tuple[int, re.Match[bytes]]]) -> list[tuple[int, re.Match[bytes]]]:
    """Of very many some of all and the last: what is asked of steps is whether a handful came after something."""
    if len(steps) <= MOST_STEPS:
        return steps
    return [*steps[: -LAST_STEPS : len(steps) // MOST_STEPS + 1], *steps[-LAST_STEPS:]]


class _Scan:
    def __init__(self, name: str, role: Role | None, attempt: str, kernel: bool) -> None:
        self._whole = name
        self._attempt = attempt
        self._kernel = kernel
        self._done: list[Log] = []
        self._before: Sequence[bytes] = ()  # the last lines before the block that is being read
        self._text = b""  # that block
        self._end_at = 0  # where in it the present line ends
        self._begin_log(name, role, 0)

    def _begin_log(self, name: str, role: Role | None, line: int) -> None:
        merged = role in (None, "launcher")
        self.log = Log(name, role, self._attempt, merged, kernel=self._kernel)
        self.log.before = line
        self.log.ranks.see_name(name)
        self._zero = line  # the lines before it are another log's: numbers are those of the whole file
        self._number = line
        self._clock = Clock()
        self._stamp: Line | None = None
        self._shown = ""
        self._t: float | None = None
        self._is_ahead = False  # that time is of a line further down
        self._ordinary: bytes = b""
        self._noted: bytes = b""  # the last ordinary line that was searched for a time
        self._tracebacks = Tracebacks()
        self._ignored: str | None = None  # the process that said that Python ignores what comes next
        self._open: dict[tuple[str, Role | None], Event] = {}
        self._growing: list[tuple[Event, str]] = []
        self._stalled: tuple[Event, int] | None = None  # and which of several engines
        self._resuming: int | None = None
        self._told_to_end = False  # the engine
        self._told_at: int | None = None  # after how many ordinary lines
        self._serves = False  # it is a server that came up
        self._lives = 0  # ordinary lines since something was seen that makes them count
        self._lived: dict[int, tuple[int, int]] = {}  # by an event's identity: how many when it first and last came

    def read(self, stream: BinaryIO, progress: Callable[[int], object]) -> list[Log]:
        unwrap: Callable[[bytes], bytes] | None = None
        for block in blocks(stream, lambda: self.log, progress):
            if self._number == 0:
                unwrap = unwrapper(_first_bytes(block))
                self._guess_role(block)
            if unwrap is not None:
                block = unwrap(block)
            if self._stamp is None:
                self._look_at_times(_first_bytes(block))
            self._before = self._last_lines()[1]
            self._text, self._end_at = block, 0
            self._read_block(block)
            self._end_at = len(block)
            self._note_time(self._ordinary)
        self._end_log()
        return [log for log in self._done if log.lines]

    # ------------------------------------------------------------ a block: what is looked at, and what is passed over

    def _read_block(self, block: bytes) -> None:
        """``block`` begins with a line end: each line is known by the one before it."""
        search, other = gates.gate().search, gates.OTHER_LINE.search
        at, size = 0, len(block)
        word = -1  # where the next word is
        while at < size:
            if word <= at:
                found = search(block, at)
                word = found.start() if found else size
            start = block.rfind(b"\n", at, word) if word < size else size
            if self._is_told_more:
                found = other(block, at, start)  # lines that belong to something hold no such words
                start = found.start() if found else start
            if start > at:
                self._pass_over(block, at, start)
                at = start  # what was told may have ended with them
                continue
            raw = _line_at(block, start + 1, size)
            self._number += 1
            at = self._end_at = start + 1 + len(raw)
            self._look_at(raw, word - start - 1)

    @property
    def _is_told_more(self) -> bool:
        """Do the next lines belong to what was said?"""
        return bool(self._growing) or self.log.ranks.is_in_summary or not self._tracebacks.idle

    def _look_at(self, raw: bytes, word: int) -> None:
        """One line. ``word``: where in it a word was found, or behind it."""
        if gates.ORDINARY.match(raw):
            self._is_ordinary(raw)
            if not gates.news().search(raw, 0, WANTED_BYTES):
                return
        elif word >= gates.end_of(raw) and not self._is_told_more:
            return
        for part in raw.split(b"\r") if b"\r" in raw else (raw,):
            if part:
                self._read_line(part)

    def _is_ordinary(self, raw: bytes) -> None:
        self._lives += 1
        self._ordinary = raw
        self._growing = []
        if self._stalled is not None and (found := gates.WORKS.match(raw)):
            self._note_engine_works(int(found[1] or found[2] or 0))

    def _pass_over(self, block: bytes, at: int, end: int) -> None:
        """Lines without any word, from one line end to another one."""
        number = self._number
        if self.log.events or self._told_at is not None:
            self._lives += len(gates.ORDINARY_LINE.findall(block, at, end))
        if self._stalled is not None:
            for found in gates.WORKS_LINE.finditer(block, at, end):
                self._note_engine_works(int(found[1] or found[2] or 0))
        if self._growing:
            self._growing = []  # all of them are ordinary, then
        counted, looked_at = at, 0
        for place, found in _sample_steps(list(gates.steps(block, at, end))):
            start = block.rfind(b"\n", at, found.start()) + 1
            self._number += block.count(b"\n", counted, start)
            counted = start
            raw = _line_at(block, start, end)
            passed, looked_at = place - looked_at - 1, place
            if gates.ORDINARY.match(raw):
                self._read_line(raw)
            elif not found[0].startswith(b"Step"):
                self._steps_of_job().count += max(0, passed)
                self._read_line(raw.rpartition(b"\r")[2] or raw)
        self._number = number + block.count(b"\n", at, end)
        self._ordinary = _last_ordinary(block, at, end) or self._ordinary

    def _end_log(self) -> None:
        log = self.log
        log.lines = self._number - self._zero
        if self._ordinary:
            self._note_time(self._ordinary)
            log.last_ordinary = parse(self._ordinary).text.strip()[:SHOWN]
        log.dated, log.offset = self._clock.dated, self._clock.offset
        log.cut = self._tracebacks.describe_open_traceback(self._number - log.half_line)
        if not (log.events or log.cut or self._serves):
            self._look_at_last_words()
        log.final = self._find_final_error()
        before, tail = self._last_lines()
        lines = [(parse(raw), before + place) for place, raw in enumerate(tail, 1) if before + place > self._zero]
        log.wait = None if log.kernel else find_wait(lines, log.role, self._place_now())
        if log.wait is not None:
            log.wait.event.signature = self._match_signature(lines[-1][0], log.wait.event.text)
        behind = max((event.last.line for event in log.events), default=0)
        passed = [bar for bar in done_bars(tail, before) if bar[1] > behind] if log.role in (None, "job") else []
        for event in log.events:
            first, last = self._lived.get(id(event), (self._lives, self._lives))
            event.beside, event.lives = self._lives - first, self._lives - last
            event.over = event.over or self._went_on(event) or any(at < event.first.line for at, _ in passed)
            # Its process went on. An engine's server does so for a while when the engine is dead.
            went_on = event.lives >= (MERGED_LIVES if log.merged else LIVES)
            killing = event.signature is None and self._ended_the_engine(event)
            known = event.signature is not None and (log.merged or event.role in (None, "inference"))
            handled = event.signature is None and not killing and self._is_handled(event)
            event.weak = event.weak or event.role == "env" or handled or (went_on and not (known or killing))
            if event.signature is None and log.half_line and _is_cut(event.latest, self._number):
                log.cut = f"its last line is {event.text!r}"
            if event.signature is not None and event.signature.mild:
                event.fatal = self._is_fatal(event)
                if log.role in (None, "job") and event.raised is not None and event.level is None:
                    event.over = event.over or self._is_spread(event)
        for event in log.events:
            # What became an error that a healthy run has, too, is none of another kind.
            made = event.became
            event.weak = event.weak or bool(made and made.signature and made.signature.mild and not made.fatal)
        self._done.append(log)

    def _ended_the_engine(self, event: Event) -> bool:
        """An exception in a process of the engine itself, soon after which the engine is dead."""
        if not any(_OF_CORE.match(key) for key in event.keys):
            return False
        return any(
            one.name == "engine-dead"
            and one.first.line > event.first.line
            and (one.first.t is None or event.first.t is None or one.first.t - event.first.t <= DEATH_S)
            for one in self.log.events
        )

    def _is_fatal(self, event: Event) -> bool:
        """Did its process write nothing more after the exception? A server outlives what its requests raise."""
        if event.unlogged != event.last.line or event.lives or self._serves:
            return False
        return event.count <= MOST_ENDS * max(1, len(event.keys)) and self._are_last_words(event.last.line)

    def _look_at_last_words(self) -> None:
        """Nothing known was found: is the last thing an exception without its traceback?"""
        for line, number, above in self._lines_from_the_end():
            if line.level is not None or line.text.startswith(IGNORED):
                return
            if (raised := bare(line.text.strip(), number)) is not None:
                if not _is_ignored(above) and self._are_last_words(number):
                    self._add_exception_above(line, raised)
                return

    def _find_final_error(self) -> Event | None:
        """The error with which the log ends, whatever it is: only words of an end stand behind it.

        It counts where nothing else explains the end. Of several in a row the last exception is it, else the first.
        What prime-rl's parts log at this level they live on with, as every program does that made steps.
        """
        log = self.log
        if log.kernel or log.role == "env" or self._told_at is not None:
            return None
        judged = {event.last.line for event in log.events if event.name != "SystemExit"}
        lives_on = bool(log.steps) or log.role in ("trainer", "orchestrator")
        logged = ("FATAL",) if lives_on else ("ERROR", "CRITICAL", "FATAL")
        found: tuple[Line, int] | None = None
        for line, number, above in self._lines_from_the_end():
            text = line.text.strip()
            if number in judged:
                return None
            is_error = line.level in logged
            if text.startswith(_QUIET_END):
                continue  # it says only that the program ended itself: why stands above
            if (is_error or line.level in (None, "ERROR")) and bare(text, 0) is not None:
                if not _is_ignored(above):
                    found = line, number
                break
            if line.level not in (None, "WARNING", "WARN") and not is_error:
                if not _GOODBYE.match(text):
                    break
            elif text and (is_error or (line.level is None and PLAIN_ERROR.match(text))):
                found = line, number
            elif line.level is None and not (LAST_WORDS.match(line.text) or is_exception(text)) and not found:
                break
        if found is None and not self._serves:
            found = self._find_word_of_failure()
        if found is None or (self._serves and found[0].level not in ("CRITICAL", "FATAL")):
            return None
        line, number = found
        text, place_of = line.text.strip()[:SHOWN], Place(self.log.name, number, self._t, self._shown)
        raised = bare(text, number)
        return Event(None, self._role_of(line), text, place_of, place_of, level=line.level, raised=raised)

    def _find_word_of_failure(self) -> tuple[Line, int] | None:
        """Of the last few lines, where no logger wrote one of them, the first that says in any words that it failed."""
        found: tuple[Line, int] | None = None
        seen = 0
        for line, number, _ in self._lines_from_the_end():
            text = line.text.strip()
            if not text:
                continue
            seen += 1
            if seen > FINAL_LINES or line.level is not None or text.startswith(("wandb", _SAMPLE)):
                break
            if says_failure(text):
                found = line, number
            elif not LAST_WORDS.match(line.text):
                break
        return found

    def _last_lines(self) -> tuple[int, Sequence[bytes]]:
        """Some lines up to the present one, and how many stand before them."""
        found = self._text[: self._end_at].rsplit(b"\n", TAIL)[1:]
        found = [*self._before, *found][-TAIL:]
        return self._number - len(found), found

    def _lines_from_the_end(self) -> Iterator[tuple[Line, int, Sequence[bytes]]]:
        """The same lines of this log, the last one first: each with its number and those above it."""
        before, tail = self._last_lines()
        for place in range(len(tail), max(0, self._zero - before), -1):
            yield parse(tail[place - 1]), before + place, tail[: place - 1]

    def _are_last_words(self, line: int) -> bool:
        """Does what stands behind that line only tell of an end? The exception's own text may go on for some lines."""
        before, tail = self._last_lines()
        behind = [parse(raw) for raw in tail[max(0, line - before) :]]
        others = [one for one in behind if not (LAST_WORDS.match(one.text) or is_exception(one.text))]
        return self._number - line <= TAIL and len(others) < MORE_LINES

    def _is_handled(self, event: Event) -> bool:
        """An exception that ends a process comes from each once or twice, and not again and again over pages."""
        often = event.count > MOST_ENDS * max(1, len(event.keys))
        return (often and self._number - event.last.line > LAST_LINES) or self._is_spread(event)

    def _is_spread(self, event: Event) -> bool:
        """Over pages, with more after it."""
        spread = event.count >= 3 and event.last.line - event.first.line > PAGE_LINES * event.count
        return spread and self._number - event.last.line > LAST_LINES

    def _went_on(self, event: Event) -> bool:
        """Of a plain program: a step came after its exception, and nothing of an end. Else it was not caught."""
        steps = self.log.steps.get("job")
        return (
            event.signature is None
            and self.log.role in (None, "job")
            and steps is not None
            and steps.after_line(event.last.line) > 0
            and not any(
                one.signature is not None and one.signature.link != "cause" and one.first.line > event.last.line
                for one in self.log.events
            )
        )

    def _guess_role(self, begun: bytes) -> None:
        """Which role wrote this log, where its name does not say and only one role speaks in it."""
        if self.log.role is not None or self._kernel:
            return
        marks: dict[Role, bytes] = {
            "inference": b"vLLM API server version",
            "orchestrator": b"Starting orchestrator",
            "trainer": b"Starting RL trainer",
            "launcher": b"Starting RL run",
        }
        found = [role for role, mark in marks.items() if mark in begun]
        if found == ["inference"] or (len(found) == 1 and b"vLLM" not in begun):
            self.log.role, self.log.merged = found[0], found[0] == "launcher"

    # ------------------------------------------------------------ times

    def _look_at_times(self, parts: Sequence[bytes]) -> None:
        for raw in parts:
            if (line := parse(raw)).stamp is not None:
                self._note_time_of(line)
                self._is_ahead = True
                return

    def _note_time(self, raw: bytes) -> None:
        if raw and raw is not self._noted:
            self._note_time_of(parse(raw))
            self._noted = raw

    def _line_before(self) -> bytes:
        """The line before where that has a time; b"" where it has none, or both belong to the same words."""
        if self._is_told_more:
            return b""
        end = self._text.rfind(b"\n", 0, self._end_at)
        before = self._text[self._text.rfind(b"\n", 0, max(0, end)) + 1 : max(0, end)]
        return before if before and parse(before).stamp is not None else b""

    def _note_time_of(self, line: Line) -> None:
        if line.stamp is None:
            return
        self._stamp, self._is_ahead = line, False
        self._noted = self._ordinary  # what is ordinary and was not looked at is older
        self._t = self._clock.at(line.stamp)
        self._shown = line.stamp.shown
        log = self.log
        if log.first_t is None:
            log.first_t = self._t
        log.last_t, log.last_shown = self._t, self._shown

    # ------------------------------------------------------------ one line

    def _note_engine_works(self, engine: int) -> None:
        """An engine that was said to stand still goes on."""
        if self._stalled is not None and self._stalled[1] == engine:
            self._stalled[0].over, self._stalled = True, None

    def _read_line(self, raw: bytes) -> None:
        line = parse(raw)
        text = line.text
        if text.startswith("==> ") and text.endswith(" <=="):
            self._begin_section(text[4:-4].strip())
            return
        if line.stamp is None:
            self._note_time(self._line_before() or self._ordinary)  # of the last line that had one
        self._note_time_of(line)
        self.log.ranks.see(line.rank)
        if line.level in ("INFO", "DEBUG", "SUCCESS", "TRACE"):
            self._read_progress(line)
            return
        message = text.strip()
        ignored, self._ignored = self._ignored, line.key if message.startswith(IGNORED) else None
        if ignored == line.key and is_exception(message):
            return  # without a traceback
        in_traceback = line.key in self._tracebacks
        raised = self._tracebacks.feed(line.key, self._number, text)
        if raised is not None:
            self._add_exception(line, raised)
            return
        for one in line.exception.splitlines():
            if (raised := self._tracebacks.feed("json", self._number, one)) is not None:
                self._add_exception(line, raised)
        self._grow_event(line, message)
        if not message or (in_traceback and text[:1] in " \t\u2502|>"):
            return  # a line of a program, not what it says
        self.log.ranks.feed(message)
        if message.startswith(_SAMPLE) and self._role_of(line) != "launcher":
            return
        if line.level == "WARNING" and self.log.events and self._role_of(line) in (None, "job"):
            self._note_caught(self.log.events[-1], message)
        if (signature := self._match_signature(line, message)) is not None:
            if "*" in signature.after and not self.log.events:
                self._look_back()
            event = self._add_event(signature, line, message)
            if line.level is None and (is_exception(message) or PLAIN_ERROR.match(message)):
                event.unlogged = self._number
        elif line.level in ("ERROR", "CRITICAL", "FATAL") and not (in_traceback or message.startswith(ENDS_MORE)):
            self.log.complaint = message[:SHOWN], self._place_now()
        elif line.level is None:
            self._note_others_step(message)

    def _note_others_step(self, message: str, *, steps: bool = True) -> None:
        """What trainers of another kind say of a step, or that they are done."""
        if steps and _PLAIN_STEP.match(message):
            number = _NUMBER.search(message)
            step = int(number[1]) if number else self._steps_of_job().count + 1
            loss, reward = read_step(message)
            self._add_step(StepDone("job", step, reward=reward, loss=loss), message)
        elif _JOB_DONE.match(message):
            self.log.finishes.append(("job", self._place_now()))
        elif "Started container " in message:
            # Kubernetes tells of its first tries, too: what kept this pod from starting has passed.
            pod = _POD.search(message)
            for event in self.log.events:
                of = _POD.search(event.text)
                event.over = event.over or (event.name in _BEFORE_START and (of and of[0]) in (None, pod and pod[0]))

    def _note_caught(self, event: Event, warning: str) -> None:
        """A warning just below an exception that says its message: the program caught it, and goes on."""
        said = event.latest.message[:CAUGHT] if event.latest is not None else ""
        if event.signature is None and event.count == 1 and len(said) > LIVES and said in warning:
            event.weak = event.weak or self._number - event.last.line <= MORE_LINES

    def _look_back(self) -> None:
        """Something failed, and nothing told why: an exception just above, without its traceback, may."""
        for line, number, _ in islice(self._lines_from_the_end(), 1, LOOK_BACK):
            if line.level in ("INFO", "DEBUG", "SUCCESS", "TRACE"):
                return
            message = line.text.strip()
            if (raised := bare(message, number)) is not None:
                signature = self._match_signature(line, message)
                if signature is None or not signature.mild:
                    self._add_exception_above(line, raised)
                return

    def _begin_section(self, name: str) -> None:
        """A text that joins several logs goes on with another one: ``tail -F`` of several, or a bundle in the store."""
        role, kernel = identify_log(name)
        number = self._number
        self._number -= 1
        self._end_at = self._text.rfind(b"\n", 0, self._end_at)
        self._end_log()
        self._number = number
        self._kernel = kernel
        before = self.log
        self._begin_log(f"{self._whole} ({name})", role, number)
        if not before.lines:  # it began with the name: what was read is this log's
            self.log.bytes, self.log.half_line = before.bytes, before.half_line

    def _read_progress(self, line: Line) -> None:
        message = line.text.strip()
        role = self._role_of(line)
        if role in (None, "launcher", "inference") and _STARTS["inference"].match(message):
            self._told_to_end, self._told_at, self._serves = False, None, False
        if _TOLD_TO_END.search(message):
            self._told_at = self._lives
        self._serves = self._serves or message.startswith(_SERVES)
        for start_role, pattern in _STARTS.items():
            if pattern.match(message) and (start_role == role or (role is None and start_role == "launcher")):
                self.log.starts += 1
                self.log.complaint = None
                self.log.ranks.size(message)
                self._open.clear()
        self._note_others_step(message, steps=role in (None, "job"))
        told = f"00:00:00 {line.level if line.level != 'TRACE' else 'DEBUG'} {message}"
        every: tuple[Role, ...] = ("trainer", "orchestrator", "launcher")
        for one in every if role is None or role == "launcher" else (role,):
            facts = parse_line(one, told)
            for fact in facts:
                if isinstance(fact, StepDone):
                    self._add_step(fact, message)
                    share = _FAILED_SHARE.search(message)
                    self.log.failed_percent = float(share[1]) if share else self.log.failed_percent
                elif isinstance(fact, FinishSeen):
                    self.log.finishes.append((fact.role, self._place_now()))
                elif isinstance(fact, PhaseSeen) and message.startswith("Resuming"):
                    self._resuming = fact.step
                elif isinstance(fact, FreshStartSeen):
                    self._resuming = None
            if facts:
                return
        if (signature := self._match_signature(line, message)) is not None and signature.quiet:
            event = self._add_event(signature, line, message)
            if signature.name == "engine-stalled":
                of_engine = gates.CORE.match(line.key.encode())
                self._stalled = event, int(of_engine[1] or 0) if of_engine else 0

    def _steps_of_job(self) -> Steps:
        """Of a trainer of another kind: they are counted."""
        return self.log.steps.get("job", Steps())

    def _add_step(self, step: StepDone, text: str) -> None:
        place = self._place_now()
        self.log.steps.setdefault(step.role, Steps()).add(
            replace(place, t=None) if self._is_ahead else place, step.step
        )
        note_worth(self.log, step, place, text[:SHOWN])
        self._resuming = None

    # ------------------------------------------------------------ errors

    def _role_of(self, line: Line) -> Role | None:
        role = self.log.role
        return line.role or role if role in (None, "launcher") else role

    def _match_signature(self, line: Line, message: str, frame: str = "") -> Signature | None:
        role = self._role_of(line)
        if message.startswith("rl-supervisor@") or (self.log.kernel and _OF_UNIT.match(message)):
            return None  # the job outlives its daemon, and the machine's log tells of all units: of other runs, too
        if self.log.kernel:
            roles: tuple[Role, ...] = ("job",)
        elif role is None or self.log.merged:
            roles = tuple(dict.fromkeys((role or "launcher", *(one for one in get_args(Role) if one != "env"))))
        elif role in ("env", "orchestrator"):  # no other trainer has one
            roles = (role,)
        else:
            roles = (role, "job")
        return _match_roles(roles, message[:MATCHED], frame)

    def _add_exception(self, line: Line, raised: Raised) -> None:
        frame = raised.last.path if raised.last else ""
        signature = self._match_signature(line, raised.text, frame)
        event = self._add_event(signature, line, raised.text, raised.type if signature is None else "")
        place = raised.place
        if event.raised is None or (event.raised.place is None and place is not None):
            event.raised = raised
        if raised.cause is not None and event.latest is raised.cause:
            event.count -= 1  # one error, told of by each library that it came through
        for one in self.log.events[-8:] if raised.cause is not None else ():
            if one.latest is raised.cause and one is not event:
                one.became = event
        event.in_thread = raised.in_thread and (event.in_thread or event.latest is None)
        event.latest = raised
        if line.level is None:
            event.unlogged = self._number
        if raised.own is not None and (before := raised.cause) is not None and nearer(raised.own, before.own):
            # What it was made of came through the same call: Python tells of those frames here alone.
            for one in self.log.events[-8:]:
                if one.raised is before:
                    one.raised = replace(before, own=raised.own)

    def _add_exception_above(self, line: Line, raised: Raised) -> None:
        """One that stands in a line before the present one: what follows that one is known already."""
        number, self._number = self._number, raised.line
        self._add_exception(line, raised)
        self._number, self._growing = number, []

    def _add_event(self, signature: Signature | None, line: Line, message: str, name: str = "") -> Event:
        key = signature.name if signature else name
        code = seen_in(message) or (_OF_JOB.search(message) if self.log.kernel else None)
        if code is not None:
            key = f"{key} {code[0]}"
        role = self._role_of(line)
        place = self._place_now()
        old = self._open.get((key, role))
        again = old is not None and not self._is_new_story(old, place)
        if not again and len(self.log.events) >= MOST_EVENTS:
            old = old or next((one for one in self.log.events if one.signature is signature), self.log.events[-1])
            again = True
        if old is not None and again:
            if any(steps.after_line(old.last.line) for steps in self.log.steps.values()):
                old.anew = place, message[:SHOWN], old.count
            old.count += 1
            old.last = place
            old.weak = old.weak and line.level == "WARNING"
            event = old
        else:
            event = Event(signature, role, message[:SHOWN], place, place, level=line.level, start=self.log.starts)
            event.weak = line.level in ("WARNING", "WARN", "INFO", "DEBUG", "SUCCESS") and not (
                signature is not None and signature.quiet
            )
            event.resuming = self._resuming
            if role == "inference" and event.name in _LOST and self._told_at is not None:
                self._told_to_end = self._told_to_end or self._lives - self._told_at < RECENT_LINES
            event.closing = self._told_to_end and role == "inference"
            self.log.events.append(event)
            self._open[key, role] = event
            self._growing = [*self._growing[-8:], (event, line.key)]
        if line.rank is not None:
            event.ranks.add(line.rank)
        if len(event.keys) < MOST_KEYS:
            event.keys.add(line.key)
        self._lived[id(event)] = self._lived.get(id(event), (self._lives,))[0], self._lives
        return event

    def _is_new_story(self, old: Event, place: Place) -> bool:
        if old.over or any(steps.after_line(old.last.line) >= 2 for steps in self.log.steps.values()):
            return True
        return place.t is not None and old.last.t is not None and place.t - old.last.t > GAP_S

    def _grow_event(self, line: Line, message: str) -> None:
        """The lines after an error's own: what a configuration error is about stands there."""
        left = []
        for event, key in self._growing:
            if self._number - event.last.line > PAGE_LINES:
                continue
            # vLLM's logger writes the head of a line before each line of an exception's text.
            goes_on = event.raised is not None and self._number == event.last.line + len(event.more) + 1
            logged = line.level is not None and not (goes_on and line.level == event.level)
            if key != line.key or not message or logged or message == event.text:
                left.append((event, key))
                continue
            if message.startswith(ENDS_MORE):
                continue
            event.more.append(message[:SHOWN])
            if len(event.more) < MORE_LINES:
                left.append((event, key))
        self._growing = left

    def _place_now(self) -> Place:
        return Place(self.log.name, self._number, self._t, self._shown)
