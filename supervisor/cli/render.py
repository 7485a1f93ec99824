"""A daemon's answers as text for people. Pure: answers in, lines out."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from supervisor.base.secrets import printable
from supervisor.core.time_kinds import WORDS
from supervisor.core.words import root_line, size, span

WIDTH = 100
LEAST_WIDTH = 40
MOST_PIDS = 4
REMEDY, AGAIN = "remedy", "if it returns"  # of an incident that is open, and of one that is over
RUNNING = ("setting-up", "surveying", "restoring", "starting", "running", "recovering", "stopping", "publishing")
NOT_RUNNING = ("stopped", "finished", "gave-up", "unfit")
HELD = "paused"  # what would be running is dead or hangs, and the pause keeps it so

_SHUT_DOWN = re.compile(r"The daemon is shut down by (.{1,200})\.$")
_COLOURS = {
    "running": "32",
    "finished": "32",
    "publishing": "32",
    "recovering": "33",
    "unwatched": "33",
    "gave-up": "31;1",
    "paused": "31;1",
    "unfit": "31;1",
    "warning": "33",
    "error": "31",
    "critical": "31;1",
}


class Paint:
    """Colours on a terminal, unless NO_COLOR says otherwise (no-color.org)."""

    def __init__(self, on: bool) -> None:
        self.on = on

    @classmethod
    def for_stdout(cls) -> Paint:
        """What suits this process's output."""
        return cls(sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def __call__(self, text: str, kind: str) -> str:
        colour = _COLOURS.get(kind)
        return f"\x1b[{colour}m{text}\x1b[0m" if self.on and colour else text


PLAIN = Paint(False)


def columns() -> int:
    """How wide the terminal is; 0 for a file or a pipe: its lines stay whole for grep."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return max(LEAST_WIDTH, int(told))
    return max(LEAST_WIDTH, os.get_terminal_size(sys.stdout.fileno()).columns) if _on_terminal() else 0


def _on_terminal() -> bool:
    try:
        return os.isatty(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False


def width() -> int:
    """Of text that is always broken into lines."""
    return min(WIDTH, columns() or WIDTH)


def fold(line: str, hang: str) -> list[str]:
    """A line as the terminal can show it: broken between words, what follows further in."""
    width = columns()
    if not width or len(line) <= width:
        return [line]
    head = len(line) - len(line.lstrip())
    return textwrap.wrap(
        line[head:].replace("\t", " "), width, initial_indent=line[:head], subsequent_indent=hang,
        break_long_words=False, break_on_hyphens=False, replace_whitespace=False, drop_whitespace=True,
    )  # fmt: skip


def safe(text: object) -> str:
    """Text from outside, without control characters that would move the cursor or recolour the terminal."""
    return printable(str(text)).replace("\n", " ").replace("\t", " ")


def log_text(text: str) -> str:
    """A job's own log for a terminal: its colours are welcome, what else an escape character starts is not."""
    if text.isprintable():
        return text
    kept = re.sub(r"\x1b(?!\[(?:[0-9;]*m|K))", "?", text)
    return "".join(char if char.isprintable() or char in "\n\r\t\x1b" else "?" for char in kept)


def clock(wall: float, now: float | None = None) -> str:
    """Local time: 03:02 for the last 18 hours, with the day before that."""
    at = datetime.fromtimestamp(wall).astimezone()
    recent = abs((time.time() if now is None else now) - wall) < 18 * 3600
    return at.strftime("%H:%M" if recent else "%d %b %H:%M")


def without_colours(text: str) -> str:
    """The same for a file or a pipe."""
    return re.sub(r"\x1b\[[0-9;]*m", "", log_text(text))


def log_for_stdout(text: str) -> str:
    """What suits this process's output."""
    return log_text(text) if sys.stdout.isatty() else without_colours(text)


# ---------------------------------------------------------------- status


def headline(
    status: Mapping[str, Any], name: str, paint: Paint = PLAIN, width: int = 0, now: float | None = None
) -> str:
    """One line that says what is and what happened: ``bs4-qwen3  RUNNING  step 412 of 1000, 212 s a step, ...``."""
    state = str(status.get("state") or "unknown")
    word = state.upper().replace("-", " ") + (" (PAUSED)" if status.get("paused") and state != HELD else "")
    word += " (OBSERVED)" if status.get("mode") == "observe" else ""
    sentence = safe(status.get("sentence") or progress(status))
    for incident, words in (
        (status.get("incident"), "incident {id}"),
        (status.get("last_incident"), "last incident"),
    ):
        if incident and incident.get("opened") is not None:  # the core knows no clock; people want to know when it was
            said = words.format(**incident)
            sentence = sentence.replace(said, f"{said} at {clock(incident['opened'], now)}", 1)
    return f"{name.ljust(width)}  {paint(word, state)}  {sentence}".rstrip()


def progress(status: Mapping[str, Any]) -> str:
    """``step 412 of 1000, 212 s a step, reward 0.41``, as far as it is known."""
    step, most = status.get("step"), status.get("max_steps")
    if step is None:
        return "no step yet" + (f" of {most}" if most is not None else "")
    parts = [f"step {step}" + (f" of {most}" if most is not None else "")]
    seconds = status.get("step_seconds")
    if seconds is not None:
        parts.append(f"{seconds:.0f} s a step" if 10 <= seconds < 1000 else f"{span(seconds)} a step")
    for name in ("reward", "loss"):
        if status.get(name) is not None:
            parts.append(f"{name} {status[name]:.3g}")
    return ", ".join(parts)


def status_block(status: Mapping[str, Any], now: float | None = None) -> list[str]:
    """The lines below the headline; what is not known is left out or says why."""
    now = time.time() if now is None else now
    rows: list[tuple[str, str]] = [("progress", progress(status) + remaining_time(status))]
    rows.append(("attempt", _attempt_row(status, now)))
    if spent := status.get("goodput"):
        rows.append(("time", goodput_in_words(spent)))
    rows += [("checkpoints", _checkpoints_row(status)), ("store", _store_row(status))]
    rows.extend(("setup", str(part.get("told"))) for part in status.get("setup") or ())
    if publishing := status.get("publishing"):
        rows.append((str(publishing.get("what") or "publishing"), transfer(publishing)))
    rows.append(("disk", disk_in_words(status.get("disk") or {})))
    rows.extend(_gpu_rows(status))
    if engine := status.get("engine"):
        rows.append(("engine", engine_in_words(engine)))
    told, about = str(status.get("sentence") or ""), partial(_incident_row, status, now)
    if incident := status.get("incident"):
        lasts = f"open for {span(incident.get('seconds') or 0)}"
        rows += [("incident", about(incident, lasts, told)), *_root_cause_lines(incident, told, REMEDY)]
    if last := status.get("last_incident"):
        lasts = _how_it_ended(last, last.get("seconds"))
        rows += [("last incident", about(last, lasts, told)), *_root_cause_lines(last, told, AGAIN)]
    for one in status.get("would") or ():
        rows.append(("not done", _would_in_words(one, now)))
    for path in status.get("config_changed") or ():
        rows.append(("changed", f"{path} differs from what runs; take it with: supervisorctl restart --new-config"))
    rows.append(("job", _job_row(status)))
    rows.extend(("note", str(note)) for note in status.get("notes") or ())
    if status.get("exit_code") is not None:
        rows.append(("exit code", str(status["exit_code"])))
    return _align_rows(rows)


def _align_rows(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [line for label, text in rows if text for line in fold(f"  {label:<13} {safe(text)}", " " * 16)]


def remaining_time(status: Mapping[str, Any]) -> str:
    step, most, seconds = (status.get(name) for name in ("step", "max_steps", "step_seconds"))
    if step is None or most is None or not seconds or most <= step or status.get("state") != "running":
        return ""
    return f"; about {span((most - step) * seconds)} to go"


def goodput_in_words(spent: Mapping[str, Any]) -> str:
    """``effective training time 96.4 % over 31 h (2 pods); lost most to starting the job, to its first step``."""
    pods = f" ({spent['pods']} pods)" if spent.get("pods", 1) > 1 else ""
    text = f"effective training time {100 * spent['ettr']:.1f} % over {span(spent['seconds'])}{pods}"
    most = spent.get("lost_most_to")
    return f"{text}; lost most to {WORDS.get(most, most)}" if most else text


def _attempt_row(status: Mapping[str, Any], now: float) -> str:
    if not status.get("attempt"):
        return ""
    restarts = status.get("restarts") or 0
    text = f"{status['attempt']}, {restarts} restart{'' if restarts == 1 else 's'}"
    if status.get("pid"):
        text += f", process {status['pid']}"
    if status.get("since"):
        text += f", {str(status.get('state')).replace('-', ' ')} since {clock(status['since'], now)}"
    return text


def _checkpoints_row(status: Mapping[str, Any]) -> str:
    local = status.get("local_steps") or []
    complete = [step["step"] for step in local if step.get("state") == "complete"]
    others = [f"{step['step']} {step.get('state')}" for step in local if step.get("state") != "complete"]
    unlisted = not local and (status.get("listing") or {}).get("local")
    none = f"here unknown: {unlisted}" if unlisted else "none complete here"
    parts = [f"here {_steps_in_words(complete)}" if complete else none, *others]
    if status.get("last_good_step") is not None:
        parts.append(f"last good step {status['last_good_step']}")
    return ", ".join(parts)


def _store_row(status: Mapping[str, Any]) -> str:
    committed = [step for step in status.get("stored_steps") or () if step.get("committed")]
    stored = [step["step"] for step in committed if not step.get("left")]
    held = f"holds {_steps_in_words(stored)}" if stored else "holds no published step"
    reason = status.get("store_reason")
    return f"{status.get('store', '')} {f'cannot be used: {reason}' if reason else held}".strip()


def _steps_in_words(steps: Sequence[int]) -> str:
    shown = [str(step) for step in sorted(steps)[-5:]]
    more = f" and {len(steps) - 5} older" if len(steps) > 5 else ""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(shown)}{more}"


def transfer(moving: Mapping[str, Any]) -> str:
    """``step 420, sending 12.0 GiB of 31.0 GiB (38 %) at 240 MiB/s, about 80 s to go``."""
    done, total, rate, left = (moving.get(name) for name in ("bytes", "total_bytes", "rate", "remaining_s"))
    parts = [f"step {moving['step']}"] if moving.get("step") is not None else []
    phase = str(moving.get("phase") or "")
    if total and done is not None:
        share = f"({min(100, int(100 * done / total))} %)"
        parts.append(f"{phase} {size(done)} of {size(total)} {share}{f' at {size(rate)}/s' if rate else ''}".strip())
    elif phase:
        parts.append(phase)
    elif done is not None:
        parts.append("about to begin")
    if left is not None:
        parts.append(f"about {span(left)} to go")
    return ", ".join(parts)


def disk_in_words(disk: Mapping[str, Any]) -> str:
    total, free = disk.get("total_bytes"), disk.get("free_bytes")
    if not total or free is None:
        return f"{disk.get('path', '')} unknown: {disk.get('reason') or 'not looked at yet'}".strip()
    return f"{disk.get('path', '')} {(total - free) / total:.0%} used, {size(free)} of {size(total)} free".strip()


def _gpu_rows(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    machines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for gpu in status.get("gpus") or ():
        if gpu.get("host"):
            machines.setdefault((gpu["host"], gpu.get("role", "")), []).append(gpu)
            continue
        used, total = gpu.get("used_bytes"), gpu.get("total_bytes")
        memory = f"{size(used)} of {size(total)} used" if used is not None and total else "unknown"
        rows.append((f"gpu {gpu.get('index')}", f"{gpu.get('role', ''):<9} {memory}"))
    for (host, role), gpus in machines.items():
        least, most = (size(end(gpu["used_bytes"] for gpu in gpus)) for end in (min, max))
        used = least if least == most else f"{least} to {most}"
        rows.append((f"gpus {host}", f"{len(gpus)} {role:<9} {used} of {size(gpus[0]['total_bytes'])} used"))
    if status.get("gpu_reason"):
        rows.append(("gpus", f"unknown: {status['gpu_reason']}"))
    return rows


def engine_in_words(engine: Mapping[str, Any]) -> str:
    if count := engine.get("engines"):
        odd = engine.get("odd") or ()
        parts = [f"{count - len(odd)} of {count} answer", *odd[:3]]
    else:
        parts = [f"/health {engine.get('health')}"]
    if engine.get("liveness") not in (None, "absent"):
        parts.append(f"/liveness {engine['liveness']}")
    parts += [f"{engine[name]:g} {name}" for name in ("running", "waiting") if engine.get(name) is not None]
    return ", ".join(parts)


def _how_it_ended(incident: Mapping[str, Any], lasted_s: float | None) -> str:
    step, lasted = incident.get("recovered_step"), span(lasted_s or 0.0)
    return f"ended after {lasted}" if step is None else f"over after {lasted} with step {step}"


def _incident_row(status: Mapping[str, Any], now: float, incident: Mapping[str, Any], lasts: str, told: str) -> str:
    """Its sentence only where the headline has not told it."""
    at = f" at {clock(incident['opened'], now)}" if incident.get("opened") is not None else ""
    sentence = str(incident.get("sentence") or incident.get("cause") or "").rstrip(".")
    said = "" if sentence.split(". ")[0] in told else f": {sentence}"
    command = f"supervisorctl incidents {incident.get('id')} {status.get('run') or ''}".rstrip()
    return f"#{incident.get('id')}{at}, {lasts}{said} ({command})"


def _root_cause_lines(incident: Mapping[str, Any], told: str, helps: str) -> list[tuple[str, str]]:
    """What the logs show as the root cause, where the headline has not told it, and what helps against the newest."""
    roots = incident.get("roots") or ()
    lines = [root_line(str(one["name"]), str(one["role"]), str(one["text"]), told) for one in roots]
    rows = [("root cause", line.removeprefix("root cause: ")) for line in lines if line not in told]
    return rows + [(helps, str(one["remedy"])) for one in roots[-1:] if one.get("remedy")]


def headline_without_daemon(found: Mapping[str, Any], commands: Mapping[str, str], now: float | None = None) -> str:
    """The headline of a run without a daemon: since when and why, whether its job lives, and what to type."""
    said = found.get("last_words") or {}
    if found.get("finished"):
        return f"{said['sentence']} That was at {clock(said['wall'], now)}, and its daemon has ended."
    if (pid := found.get("daemon_pid")) is not None:
        return f"Its daemon (process {pid}) lives, and does not answer: it is starting or ending, or it hangs."
    since = f" since {clock(found['since'], now)}" if found.get("since") is not None else ""
    ended = found.get("ended")
    why = f"it ended with exit code {ended}" if ended is not None else "it was killed, or it crashed"
    if ended == 0 and (by := _SHUT_DOWN.match(str(found.get("why") or ""))):
        meant = ", as `systemctl stop` or the end of a pod sends it" if by[1] == "SIGTERM" else ""
        why = f"it was told to end, by {by[1]}{meant}"
    job = "The job lives on without it. " if found.get("job") else ""
    if gone := (found.get("job") or {}).get("gone"):
        job = f"{' and '.join(gone)} died since, and nobody acts. "
    if (parent := found.get("parent_pid")) is not None:
        return f"No daemon{since}: {why}. {job}Its parent (process {parent}) starts it again: nothing to type."
    first = "Mend the cause, then start it" if ended == 93 else "Start it"
    first = "This pod is unfit: take another one, or start it" if ended == 94 else first
    held = f". A person had stopped the run, so then type: supervisorctl start {found.get('run') or ''}".rstrip()
    return f"No daemon{since}: {why}. {job}{first}: {commands['start']}{held if found.get('held') else ''}"


def unwatched_block(found: Mapping[str, Any], now: float | None = None) -> list[str]:
    """The lines below it, those first that a person needs first."""
    now = time.time() if now is None else now
    told, said, incident = str(found.get("sentence") or ""), found.get("last_words") or {}, found.get("incident") or {}
    is_over, finished = not incident.get("open"), found.get("finished")
    is_past = is_over or found.get("ended_otherwise")
    rows = [] if is_past else _root_cause_lines(incident, told, REMEDY)
    if job := found.get("job"):
        rows.append(("job", _living_job(job, now)))
    elif not finished:
        rows.append(("job", "nothing of it runs"))
    rows.append(("progress", progress := _before_the_end(found)))
    sentence = str(said.get("sentence") or "")
    if sentence not in f"{told} {progress}" and not sentence.startswith("shutdown was asked"):
        words = ("last words", f"{clock(said['wall'], now)} {_without_remedies(sentence, incident)}")
        rows.insert(0 if found.get("ended_otherwise") else len(rows), words)
        told += sentence
    if incident:
        lasts = _how_it_ended(incident, incident.get("down_s")) if is_over else "not over"
        rows.append(("last incident" if is_over else "incident", _incident_row(found, now, incident, lasts, told)))
        rows += _root_cause_lines(incident, told, AGAIN) if is_past else []
    rows.append(("note", str(found.get("worthless") or "")))
    if not finished:
        paths = [shlex.quote(str(bundle["path"])) for bundle in incident.get("bundles") or () if not is_over]
        rows += [("job's logs", f"rl-supervisor diagnose {path}") for path in paths[-1:]]
        rows.append(("daemon's log", str((found.get("commands") or {}).get("log") or "")))
    return _align_rows(rows)


def _before_the_end(found: Mapping[str, Any]) -> str:
    """``step 41 of 400, 212 s, reward 0.41; published step 40``, as the daemon knew it."""
    step, published = found.get("progress"), found.get("published")
    parts = [str(step)] if step and not found.get("job") else []  # a job that lives knows better
    return "; ".join([*parts, f"published step {published}"] if published is not None else parts)


def _without_remedies(sentence: str, incident: Mapping[str, Any]) -> str:
    """The end of a run repeats what helps, which has a line of its own."""
    for root in incident.get("roots") or ():
        sentence = sentence.replace(str(root.get("remedy") or "\0"), "").strip()
    return sentence


def _living_job(job: Mapping[str, Any], now: float) -> str:
    """``attempt 2 lives: step 41; 4 processes: 4768 (rl), 4801 (python3); its logs last grew 3 s ago``."""
    pids = [f"{pid} ({name})" for pid, name in job["pids"].items()]
    more = f" and {len(pids) - MOST_PIDS} more" if len(pids) > MOST_PIDS else ""
    step = f"last step {job['step']}; " if job.get("step") is not None else ""
    grew = f"; its logs last grew {span(now - job['silent_since'])} ago" if job.get("silent_since") else ""
    are = f"{len(pids)} process{'es' if len(pids) != 1 else ''}"
    left = "'s rest" if job.get("gone") else ""
    return f"attempt {job['attempt']}{left} lives: {step}{are}: {', '.join(pids[:MOST_PIDS])}{more}{grew}"


def _job_row(status: Mapping[str, Any]) -> str:
    parts = [str(status.get("job") or "")]
    if status.get("wandb_id"):
        parts.append(f"W&B run {status['wandb_id']}")
    if status.get("daemon_pid"):
        age = f", up {span(status['uptime_s'])}" if status.get("uptime_s") is not None else ""
        parts.append(f"rl-supervisor {status.get('version', '')} (process {status['daemon_pid']}{age})")
    return "; ".join(part for part in parts if part)


# ---------------------------------------------------------------- the other answers


def checkpoints(answer: Mapping[str, Any]) -> list[str]:
    """A table: each step, where it is, how large, and why it is not complete."""
    local = {step["step"]: step for step in answer.get("local_steps") or ()}
    stored = {step["step"]: step for step in answer.get("stored_steps") or ()}
    rows = [("STEP", "HERE", "STORE", "SIZE", "")]
    for step in sorted({*local, *stored}):
        here, there = local.get(step), stored.get(step)
        notes = []
        if step == answer.get("last_good_step"):
            notes.append("last good step")
        if step == answer.get("published_step"):
            notes.append("latest published")
        if step in (answer.get("pinned") or ()):
            notes.append("pinned")
        if step in (answer.get("held") or ()):
            notes.append("held: from before training became worthless")
        if here and here.get("reason"):
            notes.append(safe(here["reason"]))
        if there and there.get("left"):
            notes.append(f"left: {safe(there['left'])}")
        if damage := (answer.get("damaged") or {}).get(str(step)):
            notes.append(f"damaged in the store: {safe(damage)}")
        elif there and there.get("problem"):
            notes.append(f"in the store: {safe(there['problem'])}")
        bytes_ = (here or there or {}).get("size_bytes")
        published = "-" if not there else "published" if there.get("committed") else "incomplete"
        amount = size(bytes_) if bytes_ is not None else "-"
        rows.append((str(step), safe(here["state"]) if here else "-", published, amount, "; ".join(notes)))
    lines = table(rows) if len(rows) > 1 else ["No checkpoint yet."]
    if answer.get("store_reason"):
        lines.append(f"The store cannot be used: {safe(answer['store_reason'])}")
    if answer.get("publishing"):
        moving = answer["publishing"]
        lines.append(f"{str(moving.get('what') or 'publishing').capitalize()} {safe(transfer(moving))}.")
    return lines


def explanation(answer: Mapping[str, Any], now: float | None = None) -> list[str]:
    """Why the supervisor thinks what it thinks, in lines of at most a hundred columns where words allow it."""
    lines = wrap(answer.get("sentence") or "")
    lines += [line for finding in answer.get("worthless") or () for line in wrap(f"But: {finding}", "  ")]
    lines += _not_acting(answer)
    if deadline := answer.get("deadline"):
        left = deadline.get("seconds_left")
        when = "" if left is None else f" ({span(left)} left)" if left >= 0 else f" (overdue by {span(-left)})"
        lines += wrap(f"waits for: {str(deadline.get('sentence')).rstrip('.')}{when}", "  ")
    if history := answer.get("history"):
        lines += ["Before:", *(line for sentence in history for line in wrap(sentence, "  "))]
    if evidence := answer.get("evidence"):
        lines += ["Evidence:", *_evidence_lines(evidence)]
    if forecast := answer.get("forecast"):
        lines.append("If nothing moved from now on:")
        for item in forecast:
            acts = "acted upon" if item.get("act") else "suspected"
            lines += wrap(f"in {span(item['in_s'])}, {acts}: {item.get('sentence')}", "  ")
    if would := answer.get("would"):
        lines += ["Not done, since the run is only observed:"]
        lines += [line for one in would for line in wrap(_would_in_words(one, now), "  ")]
    if start := answer.get("start"):
        lines += ["Each start adds to your own configuration:"]
        lines += [line for one in start for line in wrap(_change_in_words(one), "  ")]
    return lines


def _not_acting(answer: Mapping[str, Any]) -> list[str]:
    """Why nothing is done, and what would be done otherwise."""
    would = str(answer.get("would_do") or "")
    lines = []
    if answer.get("paused"):
        lines += wrap("Paused: nothing is done about it. `supervisorctl resume` lets it act.", "  ")
    if observed := str(answer.get("observed") or ""):
        lines += wrap(f"{observed[:1].upper()}{observed[1:]}", "  ")
    if would and (answer.get("paused") or observed or answer.get("mode") == "observe"):
        lines += wrap(f"Otherwise {would}.", "  ")
    return lines


def _evidence_lines(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for what was seen, and below it what it is measured against."""
    rows = []
    for item in items:
        age = item.get("age_s")
        rows.append((safe(item.get("name")), f"{span(age)} ago" if age is not None else "", safe(item.get("sentence"))))
    lines = []
    for line, item in zip(table(rows), items, strict=True):
        lines += wrap(line, "  ", hang=" " * 6, keep=True)
        if would := item.get("would"):
            left = item.get("left_s")
            when = "" if left is None else f" ({span(left)} left)" if left > 0 else f" (passed {span(-left)} ago)"
            lines += wrap(f"{would}{when}", "      ", hang=" " * 6)
    return lines


def _change_in_words(one: Mapping[str, Any]) -> str:
    """``--ckpt.keep-last 1000000: only the supervisor deletes checkpoints (your ckpt.keep_last = 1 is overruled)``."""
    text = f"{one.get('what')}: {one.get('why')}"
    return f"{text} (your {one.get('yours')} is overruled)" if one.get("yours") else text


def _would_in_words(one: Mapping[str, Any], now: float | None = None) -> str:
    """``03:12 Would have restarted the job: vLLM died silently; 03:16 the run went on by itself``."""
    text = f"{clock(one.get('wall') or 0.0, now)} {str(one.get('sentence')).rstrip('.')}"
    if outcome := one.get("outcome"):
        text += f"; {clock(one.get('outcome_wall') or 0.0, now)} {str(outcome).rstrip('.')}"
    return text


def wrap(text: object, indent: str = "", *, hang: str | None = None, keep: bool = False) -> list[str]:
    """``text`` in lines of at most so many columns as the terminal has, those after the first a little further in."""
    text = safe(text)
    if keep and len(indent) + len(text) <= width():
        return [indent + text]  # columns keep their blanks
    hang = " " * (len(indent) + 2) if hang is None else hang
    return textwrap.wrap(
        text, width(), initial_indent=indent, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False
    )


def event(item: Mapping[str, Any], paint: Paint = PLAIN) -> str:
    """``2026-01-06 03:02:11  WARNING  sentence``; good news has no level."""
    at = datetime.fromtimestamp(float(item.get("wall") or 0)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    level = str(item.get("level") or "info")
    word = "" if level in ("info", "debug") else level.upper() + "  "
    return paint(f"{at}  {word}{safe(item.get('sentence') or item.get('event'))}", level)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be."""
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
