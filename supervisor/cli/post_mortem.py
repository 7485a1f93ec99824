"""``rl-supervisor report --incident N``: one page on one incident, for those who were not there.

Time line and evidence are the journal's, costs are the ledger's, remedies are what ``diagnose`` found. Of a pod that is
gone only the ledger is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.base.errors import SupervisorError
from supervisor.cli.document import Block, Bullets, Document, Paragraph, Section, Table
from supervisor.cli.report import dollars_in_words, stamp_utc
from supervisor.config.settings import RunFile
from supervisor.core.words import root_line, size, span
from supervisor.views.incidents import read_incidents

DECIDED = ("policy", "would", "starting", "one-step-back", "rollback", "disk-room", "backing-off", "gave-up", "unfit")
"""Events that say what was decided, with the reason."""
FIRST_LINES, LAST_LINES = 14, 10  # of a time line that would not fit a page


def find_story(run_file: RunFile, number: int, *, here: bool) -> dict[str, Any]:
    """What this machine's journal tells of the incident, as ``views.incidents`` has it; {} where it tells nothing."""
    if not here or not (run_file.state_dir / "journal.db").exists():
        return {}
    try:
        return read_incidents(run_file.state_dir, number)[0]
    except SupervisorError as error:
        return {"missing": str(error)}


def join_ledger(answer: Mapping[str, Any], story: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The story and the ledger's row, as one JSON value."""
    return {"run": answer["run"], **story, "cost": _find_row(answer, story, number)}


def make_document(answer: Mapping[str, Any], story: Mapping[str, Any], number: int) -> Document:
    """The post-mortem. Raises SupervisorError where neither journal nor ledger knows the incident."""
    row = _find_row(answer, story, number)
    if not row and "sentence" not in story:
        known = ", ".join(str(one["number"]) for one in answer["incidents"]) or "none"
        raise SupervisorError(f"Run {answer['run']} has no incident {number}. It has: {known}.")
    told = {**row, **story}
    return Document(
        f"Incident {number} of run {answer['run']}",
        (
            Section("", [Paragraph(str(told["sentence"])), Paragraph(_outcome_sentence(told))]),
            Section("Time line", _time_line(story)),
            Section("Evidence", _evidence(story)),
            Section("Decision", _decision(story)),
            Section("What it cost", [Bullets(_cost_sentences(answer, row))] if row else []),
            Section("What would have prevented it", [Bullets(_prevention_sentences(answer, told, row))]),
        ),
    )


def _find_row(answer: Mapping[str, Any], story: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The ledger's row; of several pods that each count their own incidents, the journal's here, else the newest."""
    rows = [one for one in answer["incidents"] if one["number"] == number]
    if "opened" in story:
        rows = [one for one in rows if abs(one["opened"] - story["opened"]) < 60.0]
    return dict(rows[-1]) if rows else {}


def _outcome_sentence(told: Mapping[str, Any]) -> str:
    began = f"It began at {stamp_utc(told['opened'])}"
    lasted = span(float(told.get("down_s", told.get("seconds", 0.0))))
    attempt = f" in attempt {told['attempt']}" if told.get("attempt") else ""
    if told.get("open"):
        return f"{began}{attempt} and is open for {lasted}."
    step = f" with step {told['recovered_step']}" if told.get("recovered_step") is not None else ""
    if told.get("recovered") is False:
        return f"{began}{attempt} and ended after {lasted} without a new step: the supervisor did not recover from it."
    alone = " No person had to act." if told.get("recovered") else ""
    return f"{began}{attempt} and was over after {lasted}{step}.{alone}"


def _time_line(story: Mapping[str, Any]) -> list[Block]:
    events = list(story.get("story") or ())
    if not events:
        return [Paragraph(f"No time line is left here. {story.get('missing', 'The journal is on the pod.')}".strip())]
    began = float(story["opened"])
    rows = [
        (stamp_utc(one["wall"])[11:16], _offset_in_words(float(one["wall"]) - began), str(one["sentence"]))
        for one in events
    ]
    left = len(rows) - FIRST_LINES - LAST_LINES
    if left > 0:
        between = ("", "", f"{left} more. All: supervisorctl incidents {story['id']}")
        rows = [*rows[:FIRST_LINES], between, *rows[-LAST_LINES:]]
    return [Table([("UTC", "after", "what"), *rows])]


def _offset_in_words(seconds: float) -> str:
    return f"-{span(-seconds)}" if seconds < 0 else span(seconds)


def _evidence(story: Mapping[str, Any]) -> list[Block]:
    lines = [f"Seen: {sentence}" for sentence in story.get("signals") or ()]
    for root in story.get("roots") or ():
        line = root_line(str(root["name"]), str(root["role"]), str(root["text"]))
        lines.append(f"{line[0].upper()}{line[1:]}")
    for bundle in story.get("bundles") or ():
        parts = [str(part["name"]) for part in bundle.get("parts") or () if part.get("files")]
        what = f": {', '.join(parts)}" if parts else ""
        lines.append(f"Kept in {bundle['path']} ({size(float(bundle.get('size_bytes') or 0))}){what}.")
    return [Bullets(lines)] if lines else [Paragraph("None is kept here.")] if story else []


def _decision(story: Mapping[str, Any]) -> list[Block]:
    decided = [str(one["sentence"]) for one in story.get("story") or () if one["event"] in DECIDED]
    done = [sentence for sentence in story.get("done") or () if sentence not in decided]
    lines = list(dict.fromkeys([*decided, *done]))
    if lines and not any(one["event"] in DECIDED and one["event"] != "starting" for one in story["story"]):
        lines.insert(0, "Restart: no row of the policy asks for more after this cause.")
    return [Bullets(lines)] if lines else []


def _cost_sentences(answer: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    parts = (
        ("noticed_s", "until it was noticed"),
        ("ended_s", "until the job was stopped"),
        ("prepared_s", "until it could start again"),
        ("first_step_s", "from the launch to the first new step"),
    )
    told = ", ".join(f"{span(row[name])} {words}" for name, words in parts if row.get(name))
    lines = [f"Time: {span(row['seconds'])}{f' ({told})' if told else ''}."]
    lost, cost = int(row["steps_lost"] or 0), answer["cost"]
    again = lost * float(answer["step_seconds"] or 0.0)
    if lost:
        lines.append(f"Steps lost: {lost}. To do them again took about {span(again)}, at this run's mean step.")
    else:
        lines.append("Steps lost: none.")
    if cost is None:
        return [*lines, "Dollars: not known. --price D counts them, or [report] dollars_per_hour."]
    dollars = (float(row["seconds"]) + again) / 3600 * float(cost["dollars_per_hour"])
    each = dollars_in_words(cost["dollars_per_hour"])
    return [*lines, f"Dollars: {dollars_in_words(dollars)} at {each} an hour{', lost steps included' if lost else ''}."]


def _prevention_sentences(answer: Mapping[str, Any], told: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """Of the root cause, else of the cause by name; then what would have made it cheaper."""
    lines = [f"{root['name']}: {root['remedy']}" for root in told.get("roots") or () if root.get("remedy")]
    if not lines:
        lines = [f"{told['cause']}: {remedy}" for remedy in _remedies_of_cause(str(told["cause"]))]
    if not lines:
        where: Sequence[Mapping[str, Any]] = told.get("bundles") or ()
        look = f" To look again: rl-supervisor diagnose {where[0]['path']}" if where else ""
        lines.append(f"No root cause is known, so nothing that would have prevented it.{look}")
    if row and row["steps_lost"]:
        lines.append(f"How many steps a failure costs hangs on the checkpoints. {answer['interval']['sentence']}")
    return lines


def _remedies_of_cause(cause: str) -> list[str]:
    from supervisor.primerl.logs import SIGNATURES

    return [one.remedy for one in SIGNATURES.signatures if one.name == cause]
