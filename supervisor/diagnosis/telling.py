"""A diagnosis as text for a person, and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from supervisor.core.words import size
from supervisor.diagnosis.causes import CALLED_UNKNOWN, ENDED, Cause, Diagnosis
from supervisor.diagnosis.frames import is_exception
from supervisor.diagnosis.seen import Log, Place

WIDTH: Final = 110
MOST_OTHERS: Final = 8
SHOWN: Final = 240
NEAR_LINES: Final = 10  # at a log's end: what is said there may have ended it
KINDS: Final = {
    "transient": "A restart may get past it; if it comes back, only the remedy helps.",
    "deterministic": "No restart cures it.",
    "unknown": "Whether a restart cures it is not known.",
}


def text(found: Sequence[Diagnosis], logs: Sequence[Log], left_out: Sequence[str] = (), columns: int = 0) -> str:
    """The last attempt whole, those before it in a line each, and what was read and what was not.

    ``columns``: of the terminal; 0 for a file or a pipe, where the job's own lines stay whole.
    """
    lines: list[str] = []
    *earlier, last = found
    lines += _tell_attempt(last)
    told = [one for one in earlier if one.root is not None or one.seen or one.outcome == "finished"]
    if told:
        lines += ["", "Earlier attempts:"]
        lines += [_tell_briefly(one) for one in told[-MOST_OTHERS:]]
    lines += ["", _tell_what_was_read(logs)]
    lines += [f"Not all of {log.name} could be read: {log.trouble}." for log in logs if log.trouble]
    if last.root is not None and last.root.name != CALLED_UNKNOWN:
        lines += [f"{log.name} was cut inside its last error: {log.cut}." for log in logs if log.cut]
    return "\n".join(part for line in [*lines, *left_out] for part in _fold_line(line, columns))


class _Sentence(str):
    """A line of prose, which is broken at any width; what a job or a file system wrote is not, but on a terminal."""

    __slots__ = ()


def _fold_line(line: str, columns: int) -> list[str]:
    """A line as it is shown, broken between words; ``columns``: 0 for a file or a pipe."""
    width = min(WIDTH, columns or WIDTH) if isinstance(line, _Sentence) or columns else len(line)
    if len(line) <= width or not line.strip():
        return [line]
    indent = line[: len(line) - len(line.lstrip(" "))]
    hang = indent if isinstance(line, _Sentence) else f"{indent}  "
    return textwrap.wrap(
        line[len(indent) :], width, initial_indent=indent, subsequent_indent=hang, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def headline(root: Cause) -> str:
    """What went wrong, in one line, with the job's own."""
    return f"{root.name}: {_cut_text(root.text)}"


def _tell_attempt(told: Diagnosis) -> list[str]:
    where = f"{told.attempt}: " if told.attempt else ""
    step = f" after step {told.step}" if told.step is not None else ""
    survived = _tell_others("On the way it met, and survived:", told.survived)
    from_outside = [_Sentence(f"  What was seen from outside: {told.seen}")] if told.seen else []
    if told.outcome == "finished":
        return [f"{where}The run finished{step} ({told.finish}). Nothing needs to be done.", *survived]
    cut = next((log for log in told.logs if log.cut), None)
    if cut is not None and (told.root is None or told.root.name == CALLED_UNKNOWN):
        lines = [f"{where}{cut.name} was cut inside its last error{step}, and the line that names it is not there."]
        lines.append(_Sentence(f"  {cut.cut[0].upper()}{cut.cut[1:]}. Get the rest of the log, and ask again."))
        return [*lines, *from_outside, *survived]
    if told.root is None:
        if doubt := _tell_doubt(told, f"{where}The log ends near an error that runs often survive{step}: "):
            return [*doubt, *survived]
        nothing = f"{where}Nothing here says {'why it failed' if told.seen else _what_is_not_said(told)}{step}."
        return [nothing, *from_outside, _Sentence(f"  {_no_reason(told)}"), *survived]
    if told.root.name == ENDED:
        return _tell_end(told, told.root, where, step)
    root = told.root
    name = f"{_name_with_code(root)} (unknown)" if root.name == CALLED_UNKNOWN else root.name
    lines = [f"{where}Root cause{step}: {name}", _Sentence(f"  {root.sentence}"), "", *_tell_cause(root)]
    lines += [f"  raised at: {root.own}"] if root.own else []
    lines += [f"    {root.own.code}"] if root.own and root.own.code else []
    lines += [f"  it began as: {root.began}"] if root.began else []
    lines += [_Sentence(f"  {note}") for note in root.notes]
    lines += ["", _Sentence(f"  Remedy: {root.remedy}")]
    lines += [f"  {KINDS[root.kind if told.has_named_cause else 'unknown']}"]
    lines += [_Sentence(f"  Source: {root.source}")] if root.source else []
    if told.cascade:
        lines += ["", "What came with it or followed:"]
        for number, one in enumerate(told.cascade[:12], 1):
            lines.append(f"  {number}. {_cause_and_place(one)}")
            lines += [f"     raised at: {one.own}"] if one.own else []
        if len(told.cascade) > 12:
            lines.append(f"  and {len(told.cascade) - 12} more (--json lists them)")
    return lines + _tell_others("Seen before, and survived:", told.survived)


def _tell_doubt(told: Diagnosis, begun: str) -> list[str]:
    """What a run may have survived, where it is the last that is heard of the run: it may have ended it, too."""
    ends = {log.name: log.before + log.lines for log in told.logs}
    late = [one for one in told.survived if ends.get(one.last.file, one.last.line + 99) - one.last.line < NEAR_LINES]
    if not late or told.seen:
        return []
    last = late[-1]
    name = _name_with_code(last) if last.name == CALLED_UNKNOWN else last.name
    return [
        f"{begun}{name}",
        _Sentence(f"  {last.sentence}"),
        "",
        *_tell_cause(last),
        "",
        _Sentence(f"  If the run ended there: {last.remedy}"),
    ]


def _what_is_not_said(told: Diagnosis) -> str:
    """A line at the level of an error among the last ones may be a failure that is not known here."""
    for log in told.logs:
        if log.complaint is not None and log.before + log.lines - log.complaint[1].line < NEAR_LINES:
            return "for certain whether it failed"
    return "that anything failed"


def _tell_end(told: Diagnosis, root: Cause, where: str, step: str) -> list[str]:
    """The job was told to stop, which is no failure."""
    others = [one for one in told.survived if one.name != ENDED]
    failed = "" if told.cascade else " Nothing in its logs failed before that."
    if told.order:
        order = told.order[0].upper() + told.order[1:]
        return [
            f"{where}The job was stopped on purpose{step}.{failed}",
            _Sentence(f"  {order} The run can go on from its last good step."),
            *_tell_others("On the way it met, and survived:", others),
        ]
    lines = [f"{where}The job was told to stop{step} ({root.name}).{failed}", _Sentence(f"  {root.sentence}")]
    lines += ["", *_tell_cause(root), *(_Sentence(f"  {note}") for note in root.notes)]
    lines += ["", _Sentence(f"  Next: {root.remedy}")]
    if told.cascade:
        lines += ["", "What came with it or followed:"]
        lines += [f"  {number}. {_cause_and_place(one)}" for number, one in enumerate(told.cascade[:MOST_OTHERS], 1)]
    return lines + _tell_others("On the way it met, and survived:", others)


def _tell_others(title: str, causes: Sequence[Cause]) -> list[str]:
    if not causes:
        return []
    more = len(causes) - MOST_OTHERS
    lines = ["", title, *(f"  - {_cause_and_place(one)}" for one in causes[:MOST_OTHERS])]
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _no_reason(told: Diagnosis) -> str:
    last = max((log for log in told.logs if log.last_ordinary), key=lambda log: log.last_t or 0.0, default=None)
    complaints = [(log, *log.complaint) for log in told.logs if log.complaint is not None]
    if complaints:
        _, message, place = max(complaints, key=lambda one: one[0].at(one[2]) or 0.0)
        return f"The last line at the level of an error is none of the known ones: {_cut_text(message)!r} ({place})."
    if last is None:
        return "No line in it is of a format that is known here; errors were looked for."
    if {log.role for log in told.logs if log.wait is not None and log.wait.said}.issuperset(
        ("trainer", "orchestrator")
    ):
        return (
            "The trainer's last line waits, and the orchestrator's: if both stay so, neither can go on. Compare the "
            "folders that they share (output_dir, run_*) and the steps from which they went on."
        )
    at = f" at {last.last_shown}" if last.last_shown else ""
    ordinary = f"The last line ({last.name}{at}) is ordinary: {last.last_ordinary!r}."
    if told.seen:
        return ordinary
    if told.attempt:  # of a run that a supervisor watches, or watched
        return f"{ordinary} The supervisor saw no failure of it, either: `supervisorctl status` says whether it runs."
    return (
        f"{ordinary} Either the run goes on, or it was ended "
        "from outside (a lost pod, a kill), which leaves no line. The kernel's log (dmesg) tells of a kill for memory."
    )


def _tell_cause(cause: Cause) -> list[str]:
    at = f"  {cause.first.shown}" if cause.first.shown else ""
    return [f"  {cause.first}{at}", *(f"    {_cut_text(one)}" for one in (cause.text, *cause.more))]


def _name_with_code(cause: Cause) -> str:
    return cause.text.partition(":")[0] if is_exception(cause.text) else "an error"


def _cause_and_place(cause: Cause) -> str:
    times = (
        f"{cause.count} times, {cause.first} to {_range_in_words(cause.first, cause.last)}"
        if cause.count > 1
        else str(cause.first)
    )
    at = f", {cause.first.shown}" if cause.first.shown else ""
    name = _name_with_code(cause) if cause.name == CALLED_UNKNOWN else cause.name
    sentence = f"({_cut_text(cause.text, 120)})" if cause.name == CALLED_UNKNOWN else cause.sentence
    return f"{name}: {sentence} [{times}{at}]"


def _range_in_words(first: Place, last: Place) -> str:
    return f":{last.line}" if last.file == first.file else str(last)


def _tell_briefly(told: Diagnosis) -> str:
    name = told.attempt or "the one before"
    if told.root is None and told.seen and told.outcome != "finished":
        return f"  - {name}: its logs name no cause. What was seen from outside: {told.seen}"
    if told.root is None:
        return f"  - {name}: it finished"
    if told.order:
        return f"  - {name}: stopped on purpose. {told.order[0].upper()}{told.order[1:]}"
    return f"  - {name}: {told.root.name}. {told.root.sentence} [{told.root.first}]"


def _tell_what_was_read(logs: Sequence[Log]) -> str:
    count = len({log.name.partition(" (")[0] for log in logs})
    lines, read = sum(log.lines for log in logs), sum(log.bytes for log in logs)
    return f"Read: {count} log{'s' if count != 1 else ''}, {lines} line{'s' if lines != 1 else ''}, {size(read)}."


def _cut_text(text_: str, most: int = SHOWN) -> str:
    return text_ if len(text_) <= most else f"{text_[: most - 3]}..."


# ---------------------------------------------------------------- JSON


def as_json(found: Sequence[Diagnosis], logs: Sequence[Log], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """All of it. The last attempt's stands at the top, too."""
    attempts = [_diagnosis_as_json(one) for one in found]
    return {
        **attempts[-1],
        "attempts": attempts,
        "left_out": list(left_out),
        "logs": [
            {
                "file": log.name,
                "role": "kernel" if log.kernel else log.role,
                "lines": log.lines,
                "size_bytes": log.bytes,
                "trouble": log.trouble or None,
                "cut": f"It was cut inside its last error: {log.cut}." if log.cut else None,
            }
            for log in logs
        ],
    }


def _diagnosis_as_json(told: Diagnosis) -> dict[str, Any]:
    return {
        "attempt": told.attempt or None,
        "outcome": told.outcome,
        "named": told.has_named_cause,
        "step": told.step,
        "root": _cause_as_json(told.root) if told.root else None,
        "seen": told.seen or None,
        "order": told.order or None,
        "cascade": [_cause_as_json(one) for one in told.cascade],
        "survived": [_cause_as_json(one) for one in told.survived],
    }


def _cause_as_json(cause: Cause) -> dict[str, Any]:
    return {
        "name": cause.name,
        "sentence": cause.sentence,
        "kind": cause.kind,
        "remedy": cause.remedy,
        "source": cause.source,
        "text": cause.text,
        "more": list(cause.more),
        "first": _place_as_json(cause.first),
        "last": _place_as_json(cause.last),
        "count": cause.count,
        "roles": list(cause.roles),
        "own_frame": str(cause.own) if cause.own else None,
        "code": cause.own.code if cause.own else "",
        "began": cause.began or None,
        "notes": cause.notes,
    }


def _place_as_json(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "time": place.shown or None}
