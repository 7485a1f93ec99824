"""What of all that was seen is the root, what followed of it, and what the run survived.

Three things decide: whether the run went on after it (steps that came later), what is known to follow from what
(``after`` and ``link`` of the signatures), and time, where the logs tell it. Where they do not, a cause is still put
before a failed part, that before what followed, and that before the end.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, get_args

from supervisor.core.facts import Role
from supervisor.core.launcher import failed_part, who
from supervisor.diagnosis import standstill
from supervisor.diagnosis.advice import where_to_look
from supervisor.diagnosis.frames import Frame
from supervisor.diagnosis.lines import DAY_S
from supervisor.diagnosis.own_words import in_its_words, missing_from, say_missing
from supervisor.diagnosis.ranks import Ranks, ranks_in_words
from supervisor.diagnosis.seen import GAP_S, LAST_LINES, Event, Log, Place
from supervisor.diagnosis.standstill import who_waits
from supervisor.diagnosis.step_worth import LEAST, takes_longer
from supervisor.primerl.logs import SIGNATURES
from supervisor.signatures.registry import Link
from supervisor.signatures.xids import SOURCE, seen_in

SLACK_S: Final = 120.0  # logs of several processes tell of one moment so far apart
SURVIVED: Final[dict[Role, int]] = {"orchestrator": 2, "trainer": 4, "job": 2, "launcher": 4, "env": 4, "inference": 4}
"""Steps after an error that show that the run went on: the trainer may do a few with what it has already."""
AFTER_S: Final = 3600.0  # that the kernel may tell of something after the last line of a log
OFTEN: Final = 5  # times that an error which a healthy run has, too, comes before it explains that nothing moves
SELDOM: Final = 10  # ordinary lines for each of them: then most requests, or rollouts, end well
MOST_PERCENT: Final = 50.0  # of the rollouts: with fewer that fail a run learns
VERY_OFTEN: Final = 20  # the same where no times are told
APART_S: Final = 3.0  # times of two logs are whole seconds, and the launcher looks each second
LAST_WORDS: Final = 5  # ordinary lines that a part may still write of its own end

MOST_WAITS: Final = 4  # lines of parts that wait

_ONE_PROCESS: Final = ("orchestrator", "trainer")  # what an engine or an environment started may write on

_ORDER: Final = {link: place for place, link in enumerate(get_args(Link))}
_RANK: Final = {signature.name: place for place, signature in enumerate(SIGNATURES.signatures)}
_IGNORED: Final = ("CancelledError", "GeneratorExit", "SystemExit", "BrokenPipeError", "StopAsyncIteration")
_COLLECTIVE: Final = frozenset({
    "nccl-timeout", "nccl-error", "nccl-dump", "nccl-remote", "nccl-watchdog-stuck", "killed", "child-failed",
    "aborted", "segfault", "bus-error", "collective-mismatch",
})  # fmt: skip
# Errors that the user's own program may be at the bottom of.
_OF_USERS: Final = frozenset({
    "environment-broken", "environment-missing", "reward-function-error", "module-missing", "fatal-error",
    "task-stopped", "rollouts-aborted", "too-many-files", "host-memory-full", "permission-denied",
    "config-file-missing", "openai-key-missing", "file-missing", "batch-not-collated", "shapes-differ",
    "values-not-finite", "dataset-of-another-form", "dataset-empty", "pickled-class-missing", "loop-already-running",
    "text-not-utf8",
})  # fmt: skip
_OF_PROGRAMS: Final = frozenset({
    "arguments-differ", "cuda-call-failed", "cuda-illegal-access", "devices-mixed", "engine-weights-differ",
    "event-loop-mixed", "graph-used-twice", "index-kernel-out-of-bounds", "number-formats-mixed", "pickle-refused",
    "shapes-differ", "versions-differ", "weights-not-gathered",
})  # fmt: skip
_OF_SETTINGS: Final = frozenset({
    "command-arguments-wrong", "config-invalid", "engine-config-invalid", "hydra-config-invalid", "sizes-do-not-divide",
    "trainer-options-disagree",
})  # fmt: skip
NO_SAMPLES: Final = "batch-empty"
MODULE_MISSING: Final = "module-missing"
ENDED: Final = "ended-from-outside"
_FROM_OUTSIDE: Final = (ENDED, "pod-evicted", "preempted", "time-limit-reached")
_UNKNOWN: Final = "An exception that rl-supervisor does not know ended it."
_LAST_ERROR: Final = "The log ends with this error, which rl-supervisor does not know."
_WAITING: Final = ("Inference server was not reached", "Inference server is not ready")
_TELLING: Final = (*_FROM_OUTSIDE, "connection-error", "connection-refused")
CALLED_UNKNOWN: Final = "unknown"
PART_ENDED: Final = "component-failed"
_BY_SIGNAL = re.compile(r".{0,200} failed with exit code -(\d{1,2})\b")
_BY_HANGUP = re.compile(r"SIGHUP|(?:got signal:|Received) 1\b|Hangup")
_BY_KEYBOARD = re.compile(r"KeyboardInterrupt|interrupt signal|SIGINT|(?:got signal:|Received) 2\b")
_CRASHED: Final = 'a crash in native code, of which its own log may hold a "Fatal Python error"'
_OF_JOB = re.compile(r"\bslurm-(\d{1,12})\.(?:out|log)$")
_ENV_SERVER = re.compile(r"(?i).{0,80}\benv(?:ironment)?[ _]server\b")
_SIGNALS: Final = {
    9: "SIGKILL, which no log can tell of: mostly the kernel, because memory was full (dmesg, the pod's OOM count)",
    15: "SIGTERM: a person, or the provider, ended it",
    2: "SIGINT: a person pressed Ctrl-C",
    1: "SIGHUP: its terminal was closed",
    4: f"SIGILL: {_CRASHED}",
    6: f"SIGABRT: {_CRASHED}",
    7: f"SIGBUS: {_CRASHED}",
    11: f"SIGSEGV: {_CRASHED}",
}


@dataclass
class Cause:
    """One kind of error of an attempt, out of all its logs."""

    name: str
    sentence: str
    kind: str  # "transient", "deterministic", or "unknown"
    link: Link
    remedy: str
    source: str
    text: str
    first: Place
    last: Place
    count: int
    roles: tuple[str, ...]
    own: Frame | None = None
    more: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    began: str = ""  # the exception that it began with, where another was made of it


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
    notes: list[str] = field(default_factory=list)
    seen: str = ""  # what the supervisor saw from outside before it ended this attempt
    order: str = ""  # with which a person, or a signal to the daemon, ended it

    @property
    def has_named_cause(self) -> bool:
        """Is anything of it known by name, other than that something ended?"""
        found = [one for one in (self.root, *self.cascade) if one is not None and one.name != CALLED_UNKNOWN]
        if any(one.link in ("cause", "failure") for one in found):
            return True
        return self.root is not None and self.root.name in _TELLING


@dataclass
class _Kind:
    """Events of one name, as one."""

    events: list[tuple[Log, Event]]

    @property
    def event(self) -> Event:
        return self.events[0][1]

    @property
    def name(self) -> str:
        return self.event.name

    @property
    def link(self) -> Link:
        return self.event.signature.link if self.event.signature else "cause"

    @property
    def after(self) -> frozenset[str]:
        return self.event.signature.after if self.event.signature else frozenset()

    @property
    def mild(self) -> bool:
        signature = self.event.signature
        if all(_after_the_end(log, event) for log, event in self.events):
            return True
        if signature and signature.mild:
            return not any(event.fatal for _, event in self.events)
        return all(event.weak for _, event in self.events)

    @property
    def count(self) -> int:
        return sum(event.count for _, event in self.events)

    @property
    def first_t(self) -> float | None:
        times = [t for log, event in self.events if (t := log.at(event.first)) is not None]
        return min(times, default=None)

    @property
    def last_t(self) -> float | None:
        times = [t for log, event in self.events if (t := log.at(event.last)) is not None]
        return max(times, default=None)


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
    if not attempts:
        attempts = dict.fromkeys(log.attempt for log in logs)
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


def _after_the_end(log: Log, event: Event) -> bool:
    """Did a thread end by it after its program had said that it was done?"""
    return event.in_thread and any(place.line < event.first.line for _, place in log.finishes)


def _natural_order(text: str) -> list[object]:
    return ["".join(char for char in text if not char.isdigit()), int("".join(c for c in text if c.isdigit()) or 0)]


def _judge_attempt(attempt: str, logs: list[Log]) -> Diagnosis:
    _align_clocks(logs)
    _put_back_launchers(logs)
    told = Diagnosis(attempt, "unclear", logs=list(logs), step=_last_step(logs))
    present, over = _sort_events(logs)
    kinds = _group_by_name(present)
    stop = _launchers_stop(kinds)
    in_time = [kind for kind in kinds if not _while_ended(kind, stop)]
    hard = [kind for kind in in_time if not kind.mild and kind.link != "end"]
    ends = [kind for kind in in_time if not kind.mild and kind.link == "end"]
    ended = bool(hard or ends)
    # A part of it failed, and nothing but errors that a healthy run has, too, says why.
    broken = not hard and any(kind.name not in _FROM_OUTSIDE for kind in ends)
    # What failed says only that something did.
    noticed = bool(hard) and all("*" in kind.after for kind in hard)
    finish = _find_finish(logs, hard)
    told.survived = [_cause_of(kind) for kind in _group_by_name(over)]
    if finish is not None and not _hung_after(finish, ends, logs):
        told.outcome, told.finish = "finished", finish
        told.survived = _in_time([*told.survived, *(_cause_of(kind) for kind in kinds)])
        return told
    mild = [
        kind
        for kind in in_time
        if kind.mild
        and (
            _stands_still(kind, logs)
            or _fails_most_rollouts(kind, logs)
            or (broken and (kind.count > 1 or _ended_with(kind, stop)))
            or (noticed and _ended_with(kind, stop, hard))
        )
    ]
    candidates = [*hard, *mild, *ends]
    if all(kind.event.signature is None or "*" in kind.after for kind in hard):
        # An exception without an entry may be of the one who waited in vain for an environment server.
        candidates = [kind for kind in in_time if hard and _ended_an_environment(kind)] or candidates
    if noticed and all("*" in kind.after for kind in mild):
        # Another log may end with the error that made it fail.
        told_in = [log for kind in (*hard, *mild) for log, _ in kind.events]
        candidates = [*_last_errors([log for log in logs if log not in told_in], late=False), *candidates]
    told.survived = _in_time([*told.survived, *(_cause_of(k) for k in kinds if k.mild and not ended and k not in mild)])
    if not candidates:
        candidates = _last_errors(logs)
        # Others give up where an environment server has ended.
        candidates = [kind for kind in in_time if candidates and _ended_an_environment(kind)] or candidates
    if not candidates:
        candidates = [kind for kind in in_time if _ended_what_others_ask(kind, logs)]
    lived = _group_by_name([*over, *present])
    candidates = candidates or _worthless(logs, lived)
    # What stood still for long was ended for that.
    waits = who_waits(logs) if all(kind.name in _FROM_OUTSIDE for kind in candidates) else []
    if waits:
        raised = [kind for kind in in_time if any(event.role == "env" and event.raised for _, event in kind.events)]
        candidates = raised or _told_in_the_wait(waits[0], in_time) or _group_by_name(waits[:1])
        told.survived = [one for one in told.survived if one.name not in {kind.name for kind in candidates}]
    if not candidates:
        return told
    root = _find_root(candidates, [*in_time, *candidates], lived)
    rest = [
        kind
        for kind in kinds
        if kind is not root and (kind in candidates or ended) and (kind not in in_time or _not_before(kind, root))
    ]
    earlier = [kind for kind in candidates if kind is not root and kind not in rest]
    told.outcome, told.root = "failed", _tell_root(root, logs, waits)
    told.cascade = [_cause_of(kind) for kind in sorted(rest, key=_by_time)]
    told.survived = _in_time([*told.survived, *(_cause_of(kind) for kind in earlier)])
    _add_notes(told, root, logs)
    return told


def _sort_events(logs: Sequence[Log]) -> tuple[list[tuple[Log, Event]], list[tuple[Log, Event]]]:
    """The events of an attempt that may have ended it, and those that the run lived with."""
    present: list[tuple[Log, Event]] = []
    over: list[tuple[Log, Event]] = []
    stops = [event.text.lower() for log in logs for event in log.events if event.name == PART_ENDED]
    for log in logs:
        if _went_on_in_another(log, logs):
            continue
        for event in log.events:
            if event.start < log.starts or _is_ignored(event) or (log.kernel and _of_others(log, event, logs)):
                continue  # of a start before the last one in the same file, or of another time
            if event.closing or _is_only_a_name(event):
                continue  # an engine that is ended loses its own parts
            if _is_usual(log, event, logs):
                event.weak = True
            else:
                event.anew = None
            ended_it = _ended_its_server(log, event, stops) or _ended_its_part(log, event, stops)
            survived = _is_survived(log, event, logs) and not ended_it
            (over if survived else present).append((log, event))
    again = Counter((id(log), event.name, event.role) for log, event in over)
    for log, event in present:
        # What a run lived with more than once is no end of it where it comes once more and no part fails after it.
        if (
            again[id(log), event.name, event.role] > 1
            and event.raised is None
            and not _something_fails_after(log, event)
        ):
            event.weak = True
    lived_with = {_place_of(event) for _, event in over if event.signature is None}
    for log, event in present:
        if event.signature is None and _place_of(event) in lived_with and log.lines - event.last.line > LAST_LINES:
            event.weak = True
    return present, over


def _tell_root(root: _Kind, logs: Sequence[Log], waits: Sequence[tuple[Log, Event]]) -> Cause:
    """The root cause for people: what waited beside it, and since when it has been fatal."""
    cause = _cause_of(root)
    if any(root.event is event for _, event in waits):
        cause.more = tuple(event.text for _, event in waits[1:MOST_WAITS])
        if root.event.signature is None:
            cause.name, cause.remedy = standstill.NAME, standstill.REMEDY
            cause.sentence = standstill.say(waits)
    if root.event.anew is not None:
        since = cause.first
        cause.first, cause.text, before = root.event.anew
        cause.more, cause.count = (), cause.count - before
        cause.notes.append(f"It had come {before} times before, since {since.shown or since}, and the run went on.")
    return cause


# ---------------------------------------------------------------- what is still so


def _align_clocks(logs: Iterable[Log]) -> None:
    """Times without a day are put beside those that have one: an attempt's logs begin within hours of each other."""
    timed = [log for log in logs if log.first_t is not None]
    whole = [log for log in timed if log.dated and not log.kernel]
    anchor = min((log.first_t + log.offset for log in whole if log.first_t is not None), default=None)
    # The kernel tells of days before the job: it is read up to the job's end.
    kernels = [log.last_t + log.offset for log in timed if log.kernel and log.dated and log.last_t is not None]
    if anchor is None and timed and not kernels:
        anchor = timed[0].first_t
    for log in timed:
        log.shift = log.offset
        if log.dated or log.first_t is None or log.last_t is None:
            continue
        if anchor is not None:
            log.shift = round((anchor - log.first_t) / DAY_S) * DAY_S
        elif kernels:
            log.shift = round((max(kernels) - log.last_t) / DAY_S) * DAY_S


def _put_back_launchers(logs: Sequence[Log]) -> None:
    """A launcher names a part that ended after its last word: where its clock says before, the clock is wrong."""
    for launcher in logs:
        said = next((event for event in launcher.events if event.name == PART_ENDED), None)
        t = launcher.at(said.first) if said is not None and launcher.merged else None
        if said is None or t is None or (part := failed_part(said.text)) not in _ONE_PROCESS:
            continue
        ends = [log.last_t + log.shift for log in logs if log.role == part and log.last_t is not None]
        ahead = max(ends, default=t) - t
        if APART_S < ahead <= GAP_S:
            launcher.shift += ahead


def _last_errors(logs: Sequence[Log], *, late: bool = True) -> list[_Kind]:
    """Errors of no known kind with which a log ends, while no other log goes on (``late``)."""
    ends = [log.last_t + log.shift for log in logs if log.last_t is not None and not log.kernel]
    found = [
        (log, log.final)
        for log in logs
        if log.final is not None
        and (not late or log.last_t is None or max(ends) - (log.last_t + log.shift) <= SLACK_S)
        and not _is_ignored(log.final)
        and not _is_survived(log, log.final, logs)
    ]
    return _group_by_name(found)


def _went_on_in_another(log: Log, logs: Iterable[Log]) -> bool:
    """Is it of an earlier attempt? A later log of the same part resumed at one of its steps, and came further."""
    for role, mine in log.steps.items():
        for other in logs:
            theirs = other.steps.get(role)
            if other is log or theirs is None or log.last_t is None or other.first_t is None:
                continue
            resumed = mine.numbers[0] < theirs.numbers[0] <= mine.numbers[-1] + 1 <= theirs.numbers[-1]
            if resumed and log.last_t + log.shift <= other.first_t + other.shift:
                return True
    return False


def _is_ignored(event: Event) -> bool:
    if event.raised is not None and _made_up(event.raised.last):
        return True
    return event.signature is None and event.name.rpartition(".")[2] in _IGNORED


def _of_others(log: Log, event: Event, logs: Iterable[Log]) -> bool:
    """Does the kernel tell of a time when this attempt did not live?"""
    t = log.at(event.last)
    timed = [one for one in logs if not one.kernel and one.first_t is not None and one.last_t is not None]
    if t is None or not timed or not any(one.dated for one in timed):
        return False
    begun = min(one.first_t + one.shift for one in timed if one.first_t is not None)
    ended = max(one.last_t + one.shift for one in timed if one.last_t is not None)
    return not begun - GAP_S <= t <= ended + AFTER_S


def _something_fails_after(log: Log, event: Event) -> bool:
    behind = [one for one in log.events if one.first.line > event.last.line]
    return any(one.signature is not None and one.signature.link != "cause" for one in behind)


def _is_only_a_name(event: Event) -> bool:
    """Has an exception no words of its own, and was a known one made of it?"""
    made = event.became
    bare = event.raised is not None and not event.raised.message and event.signature is None
    return bare and made is not None and made.signature is not None


def _made_up(frame: Frame | None) -> bool:
    """Code that a model wrote and an environment ran."""
    return frame is not None and frame.path in ("<string>", "<stdin>", "<python>", "<code>")


def _place_of(event: Event) -> tuple[str, str]:
    """An exception and the line that raised it."""
    return event.name, str(event.raised and (event.raised.place or event.raised.last))


def _is_survived(log: Log, event: Event, logs: Sequence[Log]) -> bool:
    # A scheduler's last word has no time of its own, so that of the line before it: other logs go on from there.
    others = logs if event.name not in _FROM_OUTSIDE else ()
    return event.over or any(count >= enough for count, enough in _steps_after(log, event.last, others))


def _ended_its_server(log: Log, event: Event, stops: Iterable[str]) -> bool:
    """Is it the last that an environment server wrote which the launcher then named as ended?

    A traceback has no time, and such servers say little: the time of the line before may be long before it.
    """
    name = log.name.rpartition("/")[2].partition(".log")[0].lower()
    last = event.role == "env" and event.raised is not None and not (event.over or event.lives)
    return last and any(f"env server {name} failed" in text for text in stops)


def _ended_its_part(log: Log, event: Event, stops: Iterable[str]) -> bool:
    """Is it the last that a part of the job did before the launcher named it as ended? Others go on for a few steps."""
    if event.role not in _ONE_PROCESS or event.over or event.lives or event.weak or event.raised is None:
        return False
    own = any(steps.after_line(event.last.line) for steps in log.steps.values())
    return not own and any(failed_part(text) == event.role for text in stops)


def _is_usual(log: Log, event: Event, logs: Sequence[Log]) -> bool:
    """Did it come again and again between steps? Then the run lives with it, though the last one is not over yet."""
    of_first, of_last = (_steps_after(log, place, logs) for place in (event.first, event.last))
    return any(
        event.count > enough and since - left >= enough
        for (since, enough), (left, _) in zip(of_first, of_last, strict=True)
    )


def _steps_after(log: Log, place: Place, logs: Sequence[Log]) -> list[tuple[int, int]]:
    """For each role's steps: how many came after a place of ``log``, and how many show that the run went on."""
    found = [(steps.after_line(place.line), SURVIVED[role]) for role, steps in log.steps.items()]
    t = log.at(place)
    if t is None or log.kernel:
        return found
    return found + [
        (steps.after_time(t, other.shift), SURVIVED[role] + 1)
        for other in logs
        if other is not log and other.first_t is not None and _do_overlap(log, other)
        for role, steps in other.steps.items()
    ]


def _do_overlap(log: Log, other: Log) -> bool:
    """Were both written at the same time? Else their clocks differ, or they are of two runs."""
    if log.last_t is None or other.first_t is None:
        return True
    return other.first_t + other.shift <= log.last_t + log.shift + GAP_S


def _last_step(logs: Iterable[Log]) -> int | None:
    numbers = [steps.numbers[-1] for log in logs for steps in log.steps.values() if steps.numbers]
    return max(numbers, default=None)


def _find_finish(logs: Sequence[Log], failed: Sequence[_Kind]) -> Place | None:
    """Where the run said that it is done.

    The launcher alone is not believed where its parts failed (prime-rl be0e3d131), nor the orchestrator, which is done
    before the trainer. What a job does after it, its last save, may fail.
    """
    # Ray's workers that end behind the job's last word were ended with it.
    events = [(log, event) for kind in failed if kind.name != "ray-worker-died" for log, event in kind.events]
    told = {
        role: place
        for log in logs
        for role, place in log.finishes
        if role != "job" or not any(one is log and event.last.line > place.line for one, event in events)
    }
    wanted: tuple[Role, ...] = ("trainer", "job") if failed else ("launcher", "trainer", "job")
    return next((told[role] for role in wanted if role in told), None)


def _hung_after(finish: Place, ends: Iterable[_Kind], logs: Sequence[Log]) -> bool:
    """Was the job that had said so still there much later, waiting, when it was ended from outside?"""
    t = next((log.at(finish) for log in logs if log.name == finish.file), None)
    late = [kind for kind in ends if kind.name in _FROM_OUTSIDE and kind.first_t is not None]
    return t is not None and any((kind.first_t or 0.0) - t > GAP_S for kind in late) and bool(who_waits(logs))


def _told_in_the_wait(wait: tuple[Log, Event], kinds: Iterable[_Kind]) -> list[_Kind]:
    """What a part that waits said meanwhile, of errors that a healthy run gets over."""
    log, event = wait
    return [
        kind
        for kind in kinds
        if kind.mild
        and kind.event.signature is not None
        and any(where is log and said.first.line > event.first.line for where, said in kind.events)
    ]


def _stands_still(kind: _Kind, logs: Sequence[Log]) -> bool:
    """Does it come again and again while no step is done?"""
    last_t = kind.last_t
    steps_t = [
        steps.times[-1] + log.shift
        for log in logs
        for steps in log.steps.values()
        if steps.times and log.first_t is not None
    ]
    if _is_loading(kind, logs):
        return False
    if kind.link == "end" or sum(event.beside for _, event in kind.events) > SELDOM * kind.count + 50:
        return False
    if not any(steps.count for log in logs for steps in log.steps.values()):
        lasts = any(log.before + log.lines - event.last.line <= LAST_WORDS for log, event in kind.events)
        return kind.count >= OFTEN and kind.event.signature is not None and lasts
    if last_t is None or not steps_t:
        return kind.count >= VERY_OFTEN
    return kind.count >= OFTEN and last_t - max(steps_t) >= GAP_S


def _fails_most_rollouts(kind: _Kind, logs: Iterable[Log]) -> bool:
    """Does the orchestrator say that most rollouts fail, and this again and again?"""
    failing = any(log.failed_percent > MOST_PERCENT for log in logs)
    return failing and kind.count >= VERY_OFTEN and all(event.role == "orchestrator" for _, event in kind.events)


def _ended_with(kind: _Kind, stop: tuple[Log, Event] | None, noticed: Iterable[_Kind] = ()) -> bool:
    """Was a known error the exception after which its part did nothing more? Once is enough then.

    Environments raise what they like and live on: there the launcher must have said that the server ended.
    ``noticed``: what failed after it has to stand in the same log.
    """
    env_ended = stop is not None and failed_part(stop[1].text) == "env"
    beside = [log for other in noticed for log, _ in other.events]
    return any(
        (event.signature is not None or (env_ended and event.role == "env"))
        and event.raised is not None
        and event.lives < LAST_WORDS
        and (not noticed or any(log is one for one in beside))
        for log, event in kind.events
    )


def _ended_an_environment(kind: _Kind) -> bool:
    """Was it the exception after which an environment server did nothing more?"""
    return any(
        event.role == "env" and event.raised is not None and event.lives < LAST_WORDS for _, event in kind.events
    )


def _ended_what_others_ask(kind: _Kind, logs: Iterable[Log]) -> bool:
    """Is it the last that an environment's server knew to tell, while another program complains and makes no step?"""
    complaining = any(
        log.complaint is not None and not any(steps.after_line(log.complaint[1].line) for steps in log.steps.values())
        for log in logs
        if log.role != "env"
    )
    return complaining and any(
        event.role == "env" and event.signature is not None and not event.signature.mild and event.lives < LAST_WORDS
        for _, event in kind.events
    )


def _launchers_stop(kinds: Iterable[_Kind]) -> tuple[Log, Event] | None:
    """Where the launcher first said that one of its parts ended: from then on it ends the others."""
    return next((kind.events[0] for kind in kinds if kind.name == PART_ENDED), None)


def _while_ended(kind: _Kind, stop: tuple[Log, Event] | None) -> bool:
    """Did it come only after the launcher had said that one of its parts ended? Then it is of no part that failed."""
    if stop is None or kind.name == PART_ENDED:
        return False
    (stop_log, said), t = stop, stop[0].at(stop[1].first)
    if kind.name == ENDED:  # such a line has no time of its own; then only the launcher sends others a signal
        return all(event.role not in ("launcher", failed_part(said.text)) for _, event in kind.events)
    if any(event.role == failed_part(said.text) for _, event in kind.events):
        return False  # of the part that failed; its clock may go wrong
    if t is not None and kind.first_t is not None:
        return kind.first_t > t + APART_S
    return all(log is stop_log and event.first.line > said.first.line for log, event in kind.events)


def _is_loading(kind: _Kind, logs: Sequence[Log]) -> bool:
    """Does the orchestrator wait for an engine that is being started? A first download takes its time."""
    if not kind.event.text.startswith(_WAITING) or kind.first_t is None or kind.last_t is None:
        return False
    return kind.last_t - max(kind.first_t, _last_heard_t(logs) or kind.first_t) < GAP_S


def _last_heard_t(logs: Sequence[Log]) -> float | None:
    """When an engine's own log was last written to."""
    times = [log.last_t + log.shift for log in logs if log.role == "inference" and log.last_t is not None]
    return max(times, default=None)


# ---------------------------------------------------------------- the root


def _group_by_name(events: Iterable[tuple[Log, Event]]) -> list[_Kind]:
    found: dict[str, list[tuple[Log, Event]]] = {}
    for log, event in events:
        code = seen_in(event.text)
        name = f"{event.name} {code[0]}" if code else event.name
        found.setdefault(name, []).append((log, event))
    kinds = []
    for pairs in found.values():
        # The launcher shows other logs' lines: where those are there, its own copies count for nothing. A terminal's
        # last words are those of a program that has no other log.
        real = [
            (log, event)
            for log, event in pairs
            if not log.merged
            or (event.signature and event.signature.link == "end")
            or (event.fatal and log.role is None)
        ]
        kinds.append(
            _Kind(sorted(real or pairs, key=lambda pair: _sort_key(pair[0].at(pair[1].first), pair[1].first.line)))
        )
    return sorted(kinds, key=_by_time)


def _sort_key(t: float | None, line: int) -> tuple[bool, float, int]:
    return t is None, t or 0.0, line


def _by_time(kind: _Kind) -> tuple[object, ...]:
    t = kind.first_t
    return t is None, t or 0.0, _ORDER[kind.link], kind.event.first.line


def _find_root(candidates: list[_Kind], kinds: list[_Kind], lived: Sequence[_Kind]) -> _Kind:
    """``lived``: also what came while steps were still made, which may explain that they were worth nothing."""
    failing = [kind for kind in candidates if not kind.mild and kind.link != "end"]
    others = [kind for kind in candidates if kind not in failing]
    times = [kind.first_t for kind in failing if kind.first_t is not None]
    begun = min(times, default=None)
    first = min(failing, key=_by_time, default=None)
    if first is not None and any(_was_ended(kind, first) for kind in others):
        # What fails while a job is being ended is no cause of it; what had kept it from moving before may be.
        root = min((kind for kind in others if kind.mild or _was_ended(kind, first)), key=_rank_of)
    else:
        near = [kind for kind in failing if begun is None or kind.first_t is None or kind.first_t <= begun + SLACK_S]
        root = min(near or others, key=_rank_of)
    passed = {root.name}
    while True:
        t = root.first_t
        # What is known to cause this very error goes before it, also if it came much earlier.
        found = [
            kind
            for kind in kinds
            if kind.name not in passed
            and (kind.name in root.after or ("*" in root.after and kind in candidates))
            and _ORDER[kind.link] <= _ORDER[root.link]
            and (_ORDER[kind.link] < _ORDER[root.link] or kind.name in root.after)
            and not _was_ended(root, kind)
        ]
        causes = [
            kind
            for kind in found
            if t is None or kind.first_t is None or kind.first_t <= t + _slack_of(kind) or _stands_above(kind, root)
        ]
        if not causes and "*" in root.after and root.link != "end" and not root.mild:
            # It says only that something failed. A cause that is known goes before it, whatever the clocks say.
            causes = [kind for kind in found if kind.event.signature is not None]
        if not causes:
            causes = _behind_it(root, kinds, lived, passed)
        if not causes:
            return root
        root = min(causes, key=_rank_of)
        passed.add(root.name)


def _behind_it(root: _Kind, kinds: Iterable[_Kind], lived: Iterable[_Kind], passed: Container[str]) -> list[_Kind]:
    """What else explains it: each rollout's own error where none was left, a known warning where it is not known."""
    others = [kind for kind in kinds if kind.name not in passed]
    if root.name == NO_SAMPLES:
        failed = [
            kind
            for kind in others
            if kind.count > 1 and any(event.role == "env" and event.raised is not None for _, event in kind.events)
        ]
        failed += [kind for kind in lived if kind.name not in passed and _comes_often(kind)]
        return sorted(failed, key=lambda kind: -kind.count)[:1]
    if root.event.signature is not None:
        return []
    if _ENV_SERVER.match(root.event.text) and (ended := [kind for kind in others if _ended_an_environment(kind)]):
        return ended
    return [
        kind
        for kind in others
        if kind.event.signature is not None
        and kind.link == "cause"
        and (not kind.event.signature.mild or kind.count >= OFTEN)
        and any(
            log is mine and event.last.line < begun.first.line and not any(one.count for one in log.steps.values())
            for log, event in kind.events
            for mine, begun in root.events
        )
    ]


def _slack_of(kind: _Kind) -> float:
    """The kernel counts from its boot: `dmesg -T` is minutes off on a machine that ran for weeks."""
    return GAP_S if all(log.kernel for log, _ in kind.events) else SLACK_S


def _comes_often(kind: _Kind) -> bool:
    """A known error that came again and again while steps were made: of rollouts, judges, tools."""
    return kind.count >= OFTEN and kind.link == "cause" and kind.event.signature is not None


def _worthless(logs: Sequence[Log], lived: Sequence[_Kind]) -> list[_Kind]:
    """What makes the last steps worth nothing: a loss that is no number, an error beside rewards of zero.

    Or what the run tells of again and again while each step takes much longer than the one before.
    """
    broken = [(log, log.nan) for log in logs if log.nan is not None and log.nan.count >= LEAST]
    if broken:
        return _group_by_name(broken)
    zero = [log for log in logs if log.unrewarded is not None and log.unrewarded[0] >= LEAST]
    often = [
        kind
        for kind in lived
        if _comes_often(kind)
        and any(
            log is not one or event.last.line > one.unrewarded[1].line
            for log, event in kind.events
            for one in zero
            if one.unrewarded is not None
        )
    ]
    often += [
        kind
        for kind in lived
        if kind.count >= LEAST
        and kind.link == "cause"
        and kind.event.signature is not None
        and any(
            takes_longer(steps) and steps.after_line(event.last.line) <= 1
            for log, event in kind.events
            for steps in log.steps.values()
        )
    ]
    return sorted(often, key=lambda kind: -kind.count)[:1]


def _stands_above(kind: _Kind, other: _Kind) -> bool:
    """Does one file tell of it first? Programs that write into one log may have different clocks."""
    places = {one.first.file: one.first.line for _, one in other.events}
    return any(one.first.line < places.get(one.first.file, 0) for _, one in kind.events)


def _was_ended(kind: _Kind, before: _Kind) -> bool:
    """Was the job ended from outside before that? Where no times are told, the order in one log says it."""
    if kind.name not in _FROM_OUTSIDE:
        return False
    if kind.first_t is None and before.first_t is None:
        one, other = kind.event.first, before.event.first
        return one.file == other.file and one.line < other.line
    # A scheduler's line is written by another machine, with a clock of its own.
    slack = 0.0 if kind.name == ENDED else SLACK_S
    return kind.first_t is not None and before.first_t is not None and kind.first_t < before.first_t + slack


def _rank_of(kind: _Kind) -> tuple[object, ...]:
    unknown = kind.event.signature is None
    t = kind.first_t
    return _ORDER[kind.link], kind.mild, unknown, t is None, t or 0.0, _RANK.get(kind.name, 0), kind.event.first.line


def _not_before(kind: _Kind, root: _Kind) -> bool:
    """May it have followed of the root?"""
    t, begun = kind.last_t, root.first_t
    return t is None or begun is None or t >= begun - _slack_of(root)


# ---------------------------------------------------------------- for people


def _in_time(causes: list[Cause]) -> list[Cause]:
    return sorted(causes, key=lambda one: (one.first.t is None, one.first.t or 0.0, one.first.line))


def _cause_of(kind: _Kind) -> Cause:
    pairs = kind.events
    event = next((event for _, event in pairs if event.fatal), kind.event)
    signature = event.signature
    last = max(pairs, key=lambda pair: (pair[0].at(pair[1].last) or 0.0, pair[1].last.line))[1].last
    roles = tuple(dict.fromkeys(str(event.role or ("kernel" if log.kernel else "unknown")) for log, event in pairs))
    raised = next((one.raised for _, one in pairs if one.raised and one.raised.place), event.raised)
    cause = Cause(
        signature.name if signature else CALLED_UNKNOWN,
        signature.sentence if signature else _UNKNOWN if event.raised else _LAST_ERROR,
        signature.kind if signature else "unknown",
        kind.link,
        signature.remedy if signature else where_to_look(event.raised, event.text),
        signature.source if signature else "",
        event.text,
        event.first,
        last,
        kind.count,
        roles,
        more=tuple(event.more),
    )
    words = in_its_words(event.text, event.raised, event.more, of_settings=cause.name in _OF_SETTINGS)
    if words and missing_from(cause.remedy, words):
        cause.remedy = f"{words} {cause.remedy}"
    if cause.name in _OF_PROGRAMS and event.raised is not None and (trainer := event.raised.trainer):
        cause.remedy += f" It came through {trainer}: if nothing of this is wrong, upgrade {trainer}."
    if raised is not None and (signature is None or signature.name in _OF_USERS):
        cause.own = raised.place or (raised.last if signature is None else None)
        if signature is None and raised.place is not None:
            cause.sentence = "Your own code, or the environment's, raised an exception that has no entry here."
        inside = event.raised.last if event.raised is not None and signature is None else None
        if inside is not None and cause.own is not None and inside.path != cause.own.path:
            cause.notes.append(f"It was raised at {inside}: {inside.code or event.text}")
        began = raised
        while began.cause is not None:
            began = began.cause
        cause.began = began.text[:200] if began is not raised else ""
    if kind.name == MODULE_MISSING:
        cause.sentence = say_missing(event.text) or cause.sentence
    if kind.name == ENDED:
        cause.sentence = _who_stopped_it(event.text for _, event in pairs) or cause.sentence
    if kind.name == PART_ENDED and (part := failed_part(event.text)) is not None:
        cause.sentence = f"{who(part)} died: the launcher saw its exit code, and ended all others."
    if code := seen_in(event.text):
        number, xid = code
        if xid is not None:
            cause.sentence, cause.remedy, cause.source = xid.sentence, xid.remedy, SOURCE
        else:
            cause.sentence = f"Xid {number}, which our table does not have."
    if event.resuming is not None:
        cause.notes.append(f"It came while step {event.resuming} was being resumed, before any new step.")
    return cause


def _who_stopped_it(texts: Iterable[str]) -> str:
    """By which signal, where it was that of a keyboard or of a terminal."""
    texts = list(texts)
    if any(_BY_HANGUP.search(text) for text in texts):
        return (
            "SIGHUP told the job to stop: its terminal or SSH session was closed. torchrun takes it in spite of nohup."
        )
    if any(_BY_KEYBOARD.search(text) for text in texts):
        return "SIGINT told the job to stop: a person pressed Ctrl-C, or a program sent what Ctrl-C sends."
    return ""


def _add_notes(told: Diagnosis, root: _Kind, logs: Sequence[Log]) -> None:
    """What the logs tell of the root beside its own line."""
    assert told.root is not None  # noqa: S101 - for the type checker
    half = told.root.name == CALLED_UNKNOWN and any(log.half_line and log.name == told.root.last.file for log in logs)
    if half and any(event.last.line == log.before + log.lines for log, event in root.events):
        told.root.notes.append("The log's last line has no line end: it may be cut, and its rest may say more.")
    names = {root.name, *(one.name for one in told.cascade)}
    if root.name == PART_ENDED and (ended := _BY_SIGNAL.match(root.event.text)) and int(ended[1]) in _SIGNALS:
        told.root.notes.append(f"Exit code -{ended[1]} is {_SIGNALS[int(ended[1])]}.")
    if names & _COLLECTIVE:
        for role in ("trainer", "inference", "job", None):
            ranks = Ranks()
            for log in logs:
                if log.role == role or (role == "trainer" and log.merged):
                    ranks.add(log.ranks)
            _, sentence = ranks.root()
            if sentence:
                told.root.notes.append(sentence)
                break
    several = any(len(log.ranks.seen) > 1 for log, _ in root.events)
    if (
        several
        and not told.root.notes
        and root.event.ranks
        and len(root.event.ranks) <= 8
        and root.name not in _COLLECTIVE
    ):
        told.root.notes.append(f"It was said by {ranks_in_words(sorted(root.event.ranks)).lower()}.")
    silent = root.name in ("connection-error", "connection-refused")
    engines = [log for log in logs if log.role == "inference" and not log.merged]
    heard = _last_heard_t(engines)
    late = heard is not None and root.last_t is not None and root.last_t - heard >= SLACK_S
    if silent and late and not any(event for log in engines for event in log.events):
        last = engines[-1]
        at = f" at {last.last_shown}" if last.last_shown else ""
        told.root.notes.append(
            f"The engine's own log ({last.name}) ends{at} without an error: it died without a word, or was killed. "
            "Look at the kernel's log, the limit of open files, and the GPU's memory."
        )
