"""What are people told of an error? A ``Cause`` is a kind of error in words: what it is, where, and what helps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from supervisor.core.launcher import failed_part, who
from supervisor.diagnosis import standstill
from supervisor.diagnosis.advice import where_to_look
from supervisor.diagnosis.frames import Frame
from supervisor.diagnosis.kinds import ENDED, PART_ENDED, UNREACHED, Kind, time_key
from supervisor.diagnosis.own_words import in_its_words, missing_from, say_missing
from supervisor.diagnosis.ranks import Ranks, ranks_in_words
from supervisor.diagnosis.seen import SLACK_S, Event, Log, Place, Sighting, last_time_of
from supervisor.signatures.registry import Link
from supervisor.signatures.xids import SOURCE, seen_in

MOST_WAITS: Final = 4  # lines of parts that wait
CALLED_UNKNOWN: Final = "unknown"
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
_UNKNOWN: Final = "An exception that rl-supervisor does not know ended it."
_LAST_ERROR: Final = "The log ends with this error, which rl-supervisor does not know."
_OWN_CODE: Final = "Your own code, or the environment's, raised an exception that has no entry here."
_BY_SIGNAL: Final = re.compile(r".{0,200} failed with exit code -(\d{1,2})\b")
_BY_HANGUP: Final = re.compile(r"SIGHUP|(?:got signal:|Received) 1\b|Hangup")
_BY_KEYBOARD: Final = re.compile(r"KeyboardInterrupt|interrupt signal|SIGINT|(?:got signal:|Received) 2\b")
_CRASHED: Final = 'a crash in native code, of which its own log may hold a "Fatal Python error"'
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


def describe_each(kinds: Iterable[Kind]) -> list[Cause]:
    """Describe each, in the order in which they came."""
    return [describe(kind) for kind in sorted(kinds, key=lambda kind: (*time_key(kind.first_t), kind.event.first.line))]


def describe_root(root: Kind, waits: Sequence[Sighting]) -> Cause:
    """Describe the root cause: also what ``waits`` beside it, and since when it has been fatal."""
    cause = describe(root)
    if any(root.event is event for _, event in waits):
        cause.more = tuple(event.text for _, event in waits[1:MOST_WAITS])
        if root.signature is None:
            cause.name, cause.remedy = standstill.NAME, standstill.REMEDY
            cause.sentence = standstill.say(waits)
    if root.event.anew is not None:
        since = cause.first
        cause.first, cause.text, before = root.event.anew
        cause.more, cause.count = (), cause.count - before
        cause.notes.append(f"It had come {before} times before, since {since.shown or since}, and the run went on.")
    return cause


def describe(kind: Kind) -> Cause:
    """Say what it is and what helps: in its signature's words, then with what its own lines add."""
    event = next((event for _, event in kind.events if event.fatal), kind.event)
    signature = event.signature
    cause = Cause(
        name=signature.name if signature else CALLED_UNKNOWN,
        sentence=signature.sentence if signature else _UNKNOWN if event.raised else _LAST_ERROR,
        kind=signature.kind if signature else "unknown",
        link=kind.link,
        remedy=signature.remedy if signature else where_to_look(event.raised, event.text),
        source=signature.source if signature else "",
        text=event.text,
        first=event.first,
        last=max(kind.events, key=lambda one: (one[0].at(one[1].last) or 0.0, one[1].last.line))[1].last,
        count=kind.count,
        roles=tuple(dict.fromkeys(one.role or ("kernel" if log.kernel else "unknown") for log, one in kind.events)),
        more=tuple(event.more),
    )
    _add_to_remedy(cause, event)
    if signature is None or signature.name in _OF_USERS:
        _add_own_code(cause, kind, event)
    cause.sentence = _own_sentence(kind, event) or cause.sentence
    if code := seen_in(event.text):
        number, xid = code
        if xid is not None:
            cause.sentence, cause.remedy, cause.source = xid.sentence, xid.remedy, SOURCE
        else:
            cause.sentence = f"Xid {number}, which our table does not have."
    if event.resuming is not None:
        cause.notes.append(f"It came while step {event.resuming} was being resumed, before any new step.")
    return cause


def _add_to_remedy(cause: Cause, event: Event) -> None:
    """What the error's own words advise goes before the remedy, the program that it came through behind it."""
    words = in_its_words(event.text, event.raised, event.more, of_settings=cause.name in _OF_SETTINGS)
    if words and missing_from(cause.remedy, words):
        cause.remedy = f"{words} {cause.remedy}"
    if cause.name in _OF_PROGRAMS and event.raised is not None and (trainer := event.raised.trainer):
        cause.remedy += f" It came through {trainer}: if nothing of this is wrong, upgrade {trainer}."


def _add_own_code(cause: Cause, kind: Kind, event: Event) -> None:
    """Where in the user's code it was raised, and the exception that it began with."""
    raised = next((one.raised for _, one in kind.events if one.raised and one.raised.place), event.raised)
    if raised is None:
        return
    cause.own = raised.place
    if event.signature is None:
        cause.own = raised.place or raised.last
        if raised.place is not None:
            cause.sentence = _OWN_CODE
        inside = event.raised.last if event.raised is not None else None
        if inside is not None and cause.own is not None and inside.path != cause.own.path:
            cause.notes.append(f"It was raised at {inside}: {inside.code or event.text}")
    began = raised
    while began.cause is not None:
        began = began.cause
    cause.began = began.text[:200] if began is not raised else ""


def _own_sentence(kind: Kind, event: Event) -> str:
    """The sentence where the error's own lines say more than its signature; "" where they do not."""
    if kind.name == "module-missing":
        return say_missing(event.text)
    if kind.name == PART_ENDED and (part := failed_part(event.text)) is not None:
        return f"{who(part)} died: the launcher saw its exit code, and ended all others."
    if kind.name == ENDED and any(_BY_HANGUP.search(one.text) for _, one in kind.events):
        return (
            "SIGHUP told the job to stop: its terminal or SSH session was closed. torchrun takes it in spite of nohup."
        )
    if kind.name == ENDED and any(_BY_KEYBOARD.search(one.text) for _, one in kind.events):
        return "SIGINT told the job to stop: a person pressed Ctrl-C, or a program sent what Ctrl-C sends."
    return ""


def add_notes(cause: Cause, root: Kind, cascade: Iterable[Cause], logs: Sequence[Log]) -> None:
    """Add what the logs tell of the root beside its own line."""
    half = cause.name == CALLED_UNKNOWN and any(log.half_line and log.name == cause.last.file for log in logs)
    if half and any(event.last.line == log.before + log.lines for log, event in root.events):
        cause.notes.append("The log's last line has no line end: it may be cut, and its rest may say more.")
    if root.name == PART_ENDED and (ended := _BY_SIGNAL.match(root.event.text)) and int(ended[1]) in _SIGNALS:
        cause.notes.append(f"Exit code -{ended[1]} is {_SIGNALS[int(ended[1])]}.")
    if not _COLLECTIVE.isdisjoint((root.name, *(one.name for one in cascade))):
        cause.notes += [sentence for sentence in _odd_ranks(logs) if sentence][:1]
    several = any(len(log.ranks.seen) > 1 for log, _ in root.events) and root.name not in _COLLECTIVE
    if several and not cause.notes and 0 < len(root.event.ranks) <= 8:
        cause.notes.append(f"It was said by {ranks_in_words(sorted(root.event.ranks)).lower()}.")
    if root.name in UNREACHED and (engine := _silent_engine(root, logs)) is not None:
        at = f" at {engine.last_shown}" if engine.last_shown else ""
        cause.notes.append(
            f"The engine's own log ({engine.name}) ends{at} without an error: it died without a word, or was killed. "
            "Look at the kernel's log, the limit of open files, and the GPU's memory."
        )


def _odd_ranks(logs: Sequence[Log]) -> Iterator[str]:
    """Of each role's ranks, which one was the root of what they ended with; "" where none is."""
    for role in ("trainer", "inference", "job", None):
        ranks = Ranks()
        for log in logs:
            if log.role == role or (role == "trainer" and log.merged):
                ranks.add(log.ranks)
        yield ranks.root()[1]


def _silent_engine(root: Kind, logs: Iterable[Log]) -> Log | None:
    """The last engine's log, where all engines fell silent well before the root's last line and told of no error."""
    engines = [log for log in logs if log.role == "inference" and not log.merged]
    heard_t = last_time_of(engines)
    if heard_t is None or root.last_t is None or root.last_t - heard_t < SLACK_S:
        return None
    return None if any(log.events for log in engines) else engines[-1]
