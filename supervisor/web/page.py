"""What the page shows of a run, as JSON values. Pure; no text in it is ever taken for HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from supervisor.base.escapes import plain
from supervisor.base.secrets import mask_secrets
from supervisor.core.time_kinds import PRODUCTIVE, WORDS
from supervisor.core.words import span
from supervisor.views.run_report import percentages
from supervisor.web.history import draw_history
from supervisor.web.sources import Seen

HOUR_S = 3600.0


def page_of_run(seen: Seen, price: float | None) -> dict[str, Any]:
    """All that is shown of a run."""
    return {**tell_of_run(seen, price), **curves_of_run(seen)}


def curves_of_run(seen: Seen) -> dict[str, Any]:
    """charts, attempts, marks: what only a new sample or a new step changes, and most of a page's bytes."""
    return dict(make_plain(draw_history(seen.pieces)))


def tell_of_run(seen: Seen, price: float | None) -> dict[str, Any]:
    """run, at, state, is_live (a daemon answered), sentence, since, facts [[name, value]], money, pods, incidents,
    steps, time, logs, notes. ``price``: dollars an hour, None where it is not known.
    """
    status, report = seen.status or {}, seen.report or {}
    page = {
        "run": seen.run,
        "at": seen.at,
        "state": _state_of_run(seen),
        "is_live": seen.status is not None,
        "sentence": _sentence_of_run(seen),
        "since": status.get("since"),
        "facts": _list_facts(seen),
        "money": _count_money(report, price),
        "incidents": [_incident(one) for one in seen.incidents] or _incidents_of_ledger(report),
        "pods": [
            {"name": one["journal"][:8], "from": one["began"], "to": one["until"]} for one in report.get("pods", ())
        ],
        "time": _share_time(report),
        "steps": _list_steps(seen),
        "logs": list(seen.logs),
        "notes": [*status.get("notes", ()), *report.get("notes", ()), *seen.notes],
    }
    return dict(make_plain(page))


def line_of_run(seen: Seen) -> dict[str, Any]:
    """One line of the list of runs."""
    status = seen.status or {}
    line = {"run": seen.run, "state": _state_of_run(seen), "sentence": _sentence_of_run(seen)}
    return dict(make_plain(line | {"step": status.get("step"), "max_steps": status.get("max_steps")}))


def make_plain(value: Any) -> Any:
    """A value without secrets, and without what a terminal or a browser would obey: escapes, control characters."""
    if isinstance(value, str):
        return plain(mask_secrets(value))
    if isinstance(value, dict):
        return {str(key): make_plain(part) for key, part in value.items()}
    return [make_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _sentence_of_run(seen: Seen) -> str:
    if seen.status is not None:
        return str(seen.status.get("sentence") or "")
    if seen.ended is not None:
        return _sentence_without_daemon(seen.ended, seen.at)
    newest = seen.newest or {}
    if not newest and seen.steps is None and not seen.pieces:
        return seen.silent or (seen.notes[0] if seen.notes else "Nothing is known of this run.")
    last = max(
        (row for one in seen.pieces for row in one.rows if "event" in row), key=lambda row: row["t"], default=None
    )
    parts = [f"Step {newest['step']} is the newest that is published." if newest else "No step is published yet."]
    if last is not None:
        before = "before that, " if last["t"] < _unix_time(newest.get("timestamp")) else ""
        ago = f"{before}{span(max(0.0, seen.at - last['t']))} ago"
        parts.append(f"{ago[0].upper()}{ago[1:]}: {last['sentence']}")
    return " ".join([*([seen.silent] if seen.silent else []), *parts])


def _unix_time(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _sentence_without_daemon(ended: Mapping[str, Any], now: float) -> str:
    """Since when, whether its job lives, whether somebody has to come, and what was said last."""
    words = ended.get("last_words") or {}
    told = str(ended.get("why") or words.get("sentence") or "It left no last words.")
    if ended.get("finished"):
        return f"{told} Its daemon has ended."
    if ended.get("daemon_pid") is not None:
        return f"Its daemon lives and does not answer: it is starting or ending, or it hangs. Before: {told}"
    since = f" for {span(max(0.0, now - ended['since']))}" if ended.get("since") is not None else ""
    job = ended.get("job") or {}
    lives = f"The job lives on without it (attempt {job['attempt']}). " if job else "Nothing of the job runs. "
    if gone := job.get("gone"):
        lives = f"{' and '.join(gone)} died since, and nobody acts (attempt {job['attempt']}). "
    again = "It is started again by its parent. "
    if ended.get("parent_pid") is None:
        again = "Nothing starts it again: `supervisorctl status` there says what to type. "
    return f"No daemon answers here{since}. {lives}{again}Before: {told}"


def _state_of_run(seen: Seen) -> str:
    if seen.status is not None:
        return str(seen.status.get("state") or "unknown")
    if seen.ended is None or seen.ended.get("daemon_pid") is not None:
        return "unknown"
    return "finished" if seen.ended.get("finished") else "unwatched" if seen.ended.get("job") else "not running"


def _list_facts(seen: Seen) -> list[list[str]]:
    status, newest = seen.status or {}, seen.newest or {}
    step, most = status.get("step"), status.get("max_steps")
    engine, disk = status.get("engine") or {}, status.get("disk") or {}
    published = status.get("published_step", newest.get("step"))
    facts = [
        ("step", None if step is None else f"{step} of {most}" if most else str(step)),
        ("a step takes", None if status.get("step_seconds") is None else span(status["step_seconds"])),
        ("published", None if published is None else f"step {published}"),
        ("complete here", None if status.get("last_good_step") is None else f"step {status['last_good_step']}"),
        ("attempt", None if not status.get("attempt") else str(status["attempt"])),
        ("engine", engine.get("health")),
        ("disk", None if disk.get("free_bytes") is None else f"{disk['free_bytes'] / 1e9:.3g} GB free"),
        ("W&B", status.get("wandb_id") or newest.get("wandb_run_id") or None),
    ]
    return [[name, str(value)] for name, value in facts if value is not None]


def _count_money(report: Mapping[str, Any], price: float | None) -> dict[str, float] | None:
    """hours, useful (share from 0 to 1), and where a price is known dollars, per_hour, per_useful_hour."""
    hours = report.get("seconds", 0.0) / HOUR_S
    if hours <= 0:
        return None
    share = report["ettr"]
    money = {"hours": round(hours, 2), "useful": round(share, 4)}
    if price is not None:
        money |= {"per_hour": price, "dollars": round(hours * price, 2)}
        money |= {"per_useful_hour": round(price / share, 2)} if share > 0 else {}
    return money


def _share_time(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    categories = report.get("categories") or {}
    shares = percentages(categories)
    return [
        {
            "name": WORDS.get(name, name),
            "useful": name == PRODUCTIVE,
            "seconds": round(seconds),
            "share": shares[name],
            "words": span(seconds),
        }
        for name, seconds in sorted(categories.items(), key=lambda one: (one[0] != PRODUCTIVE, -one[1]))
    ]


def _incident(one: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "opened", "closed", "down_s", "attempt", "cause", "sentence", "signals", "done", "recovered_step")
    roots = [f"{root['name']} ({root['role']}): {root['text']}" for root in one.get("roots", ())]
    evidence = [bundle["path"] for bundle in one.get("bundles", ())]
    return {name: one.get(name) for name in names} | {"roots": roots, "evidence": evidence}


def _incidents_of_ledger(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of pods that are gone only causes and times are known."""
    found = [
        {name: one[name] for name in ("opened", "cause", "sentence")}
        | {"id": one["number"], "closed": one["opened"] + one["seconds"], "down_s": one["seconds"], "roots": []}
        for one in report.get("incidents", ())
    ]
    return found[::-1]


def _list_steps(seen: Seen) -> list[dict[str, Any]]:
    """Newest first: where each step is, and what is said of it."""
    status = seen.status or {}
    there: dict[int, dict[str, Any]] = {}
    for one in status.get("local_steps", ()):
        there.setdefault(one["step"], {})["here"] = one["state"]
        there[one["step"]]["gb"] = _gigabytes(one.get("size_bytes"))
    stored: Sequence[Mapping[str, Any]] = seen.steps if seen.steps is not None else status.get("stored_steps", ())
    for one in stored:
        row = there.setdefault(one["step"], {})
        row["store"] = "published" if one["committed"] else "not whole"
        row["gb"] = _gigabytes(one.get("size_bytes"))
        row["told"] = one.get("problem") or one.get("left") or ""
    for name in ("pinned", "held", "quarantined"):
        for step in status.get(name, ()):
            if step in there:
                there[step]["told"] = ", ".join(part for part in (there[step].get("told"), name) if part)
    for step, told in (status.get("damaged") or {}).items():
        if int(step) in there:
            there[int(step)]["told"] = f"damaged: {told}"
    return [{"step": step, **there[step]} for step in sorted(there, reverse=True)]


def _gigabytes(size: float | None) -> str:
    return f"{size / 1e9:.3g}" if size else "?"
