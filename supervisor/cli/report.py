"""``rl-supervisor report``: where the time of a run went, its incidents, what was saved, how often to save.

What is handed on (``--md``, ``--html``, ``--png``) names no machine, unless ``--full`` says so, and never has secrets.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from supervisor.base.errors import UsageError
from supervisor.cli import where
from supervisor.cli.document import Bullets, Document, Paragraph, Section, Table, to_html, to_markdown, to_text
from supervisor.cli.hand_on import check_place, clean_texts, hide_hosts, write_file
from supervisor.cli.render import clock, safe, table, wrap
from supervisor.cli.run_log import gather_log, tell_log
from supervisor.core.interval import count, percent
from supervisor.core.time_kinds import CATEGORIES, STOPPED, WORDS
from supervisor.core.words import span

MOST_COLUMNS = 4  # pods beside each other in the table


def report(
    options: argparse.Namespace,
    *,
    price: float | None,
    person_every_h: float,
    incident: int | None,
    as_json: bool,
    md: bool,
    html: Path | None,
    png: Path | None,
    full: bool,
) -> int:
    """Print the report of a run, or write it to a file. Raises SupervisorError when nothing is known of it."""
    if (file := png or html) is not None:
        check_place(file)
    if png is not None:
        from supervisor.cli.web import draw_page

        if incident is not None:
            raise UsageError("--png draws the page of a run. Of one incident there are --md and --html.")
        return draw_page(options, png, price, full=full)
    if html is not None and incident is None:
        from supervisor.cli.web import write_page

        return write_page(options, html, price, full=full)
    from supervisor.views import run_report
    from supervisor.views.engine_idle import measure_idle

    run_file = where.run_file_of(options)
    found = run_report.gather(run_file, os.environ)
    job = run_file.job  # an interval that is not set is the one that was seen
    is_set = "checkpoint_interval" in job.model_fields_set and job.checkpoint_interval != "auto"
    answer = run_report.report(
        found,
        price=price if price is not None else run_file.report.dollars_per_hour,
        person_every_h=person_every_h,
        interval_steps=job.first_interval if is_set else None,
        idle=measure_idle(run_file.state_dir / "journal.db"),
    )
    if as_json and incident is None:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return 0
    hands_on = md or html is not None

    def clean(value: Any) -> Any:
        return hide_hosts(value) if hands_on and not full else clean_texts(value)

    if incident is None:
        if md:
            answer["log"] = gather_log(run_file, os.environ)
        print(to_markdown(make_document(clean(answer))) if md else "\n".join(text(answer)))
        return 0
    from supervisor.cli import post_mortem

    story = clean(post_mortem.find_story(run_file, incident, here=where.has_run_file(options)))
    if as_json:
        print(json.dumps(post_mortem.join_ledger(clean(answer), story, incident), indent=2, ensure_ascii=False))
        return 0
    document = post_mortem.make_document(clean(answer), story, incident)
    if html is not None:
        write_file(html, to_html(document))
        print(f"{html} opens in any browser, without a network.")
    else:
        print(to_markdown(document) if md else "\n".join(to_text(document)))
    return 0


# ---------------------------------------------------------------- Markdown


def make_document(answer: Mapping[str, Any]) -> Document:
    """The report for issues and chats. Times are UTC: its readers are elsewhere."""
    pods = answer["pods"] if len(answer["pods"]) > 1 else ()
    last = [answer["interval"]["sentence"], answer["interval"]["warning"], *answer["notes"]]
    return Document(
        f"Run {answer['run']}",
        (
            Section("", [Paragraph(" ".join(_head_sentences(answer, stamp_utc)))]),
            Section("Where the time went", [Table(_ledger_rows(answer), numbers=True)]),
            Section("Pods", [Table(_pod_rows(pods, stamp_utc), numbers=True)] if pods else []),
            Section("Incidents", [_incident_table(answer)]),
            Section("Money and what was saved", [Bullets(_money_sentences(answer))]),
            Section("What would have saved time", [Bullets(_would_bring_sentences(answer))]),
            Section("Checkpoints", [Bullets([sentence for sentence in last if sentence])]),
            Section("For the log of runs", [Bullets(tell_log(answer["log"]))]),
        ),
    )


def stamp_utc(wall: float) -> str:
    """A time for people elsewhere."""
    return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M} UTC"


def _incident_table(answer: Mapping[str, Any]) -> Table | Paragraph:
    if not answer["incidents"]:
        return Paragraph("No incident.")
    numbers = {pod["journal"]: number for number, pod in enumerate(answer["pods"], 1)}
    rows = [("incident", "when", "what", "after step", "time")]
    for one in answer["incidents"]:
        pod = f"pod {numbers[one['journal']]}, " if len(numbers) > 1 and one["journal"] in numbers else ""
        what = f"{str(one['sentence']).rstrip('.')} ({one['cause']})"
        step = "" if one["step"] is None else str(one["step"])
        rows.append((f"{pod}{one['number']}", stamp_utc(one["opened"]), what, step, _time_taken(one)))
    return Table(rows)


# ---------------------------------------------------------------- text


def text(answer: Mapping[str, Any]) -> list[str]:
    """The report as a page of text."""
    lines = [line for sentence in _head_sentences(answer, clock) for line in wrap(sentence)]
    lines += ["", "Where the time went", *_ledger_lines(answer)]
    if len(answer["pods"]) > 1:
        lines += ["", "Pods", *(f"  {line}" for line in table(_pod_rows(answer["pods"], clock)))]
    lines += ["", *_incident_lines(answer)]
    lines += ["", *(line for sentence in _money_sentences(answer) for line in wrap(sentence))]
    lines += ["", "What would have saved time (each by itself, not the sum)"]
    lines += [line for sentence in _would_bring_sentences(answer) for line in wrap(sentence, "  ", hang="    ")]
    lines += ["", *wrap(answer["interval"]["sentence"])]
    if answer["interval"]["warning"]:
        lines += wrap(f"Note: {answer['interval']['warning']}")
    for note in answer["notes"]:
        lines += wrap(f"Note: {note}")
    return lines


def _head_sentences(answer: Mapping[str, Any], stamp: Callable[[float], str]) -> list[str]:
    pods = len(answer["pods"])
    where = f" on {pods} pods" if pods > 1 else ""
    lost = answer["steps_lost"]
    told = f"{count(answer['steps_kept'], 'step')} stayed"
    told += (
        f", {lost} {'was' if lost == 1 else 'were'} lost and had to be done again. " if lost else ", none was lost. "
    )
    told += f"{count(answer['incident_count'], 'incident')}, {count(answer['restarts'], 'restart')}."
    first = (
        f"Run {answer['run']}: {percent(answer['ettr'])} of {span(answer['seconds'])}{where} was "
        f"effective training (ETTR), {stamp(answer['began'])} to {stamp(answer['until'])}."
    )
    sentences = [first, told]
    if answer["categories"].get(STOPPED, 0.0) > 0.001 * answer["seconds"]:
        sentences.append(
            f"Of the time in which it was not stopped by a person: {percent(answer['ettr_while_wanted'])}."
        )
    return sentences


def _ledger_lines(answer: Mapping[str, Any]) -> list[str]:
    rows = _ledger_rows(answer)
    widths = [max(len(row[column]) for row in rows) for column in range(1, len(rows[0]))]
    aligned = [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))] for row in rows]
    return [f"  {line}" for line in table(aligned)]


def _ledger_rows(answer: Mapping[str, Any]) -> list[list[str]]:
    pods = answer["pods"][-MOST_COLUMNS:] if len(answer["pods"]) > 1 else []
    numbers = range(len(answer["pods"]) - len(pods) + 1, len(answer["pods"]) + 1)
    from supervisor.views.run_report import percentages

    shares = [percentages(part["categories"]) for part in (answer, *pods)]
    rows = [["", "time", "share", *(f"pod {number}" for number in numbers)]]
    for name in CATEGORIES:
        seconds = answer["categories"].get(name)
        if seconds:
            rows.append([WORDS[name], span(seconds), *(share.get(name, "") for share in shares)])
    rows.append(["all", span(answer["seconds"]), *("100.0 %" if share else "" for share in shares)])
    return rows


def _pod_rows(pods: Sequence[Mapping[str, Any]], stamp: Callable[[float], str]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "from", "to", "time", "training", "steps", "lost", "incidents")]
    for number, pod in enumerate(pods, 1):
        rows.append(
            (
                f"pod {number}",
                stamp(pod["began"]),
                stamp(pod["until"]),
                span(pod["seconds"]),
                percent(pod["ettr"]),
                str(pod["steps_kept"]),
                str(pod["steps_lost"]),
                str(pod["incident_count"]),
            )
        )
    return rows


def _incident_lines(answer: Mapping[str, Any]) -> list[str]:
    incidents = answer["incidents"]
    if not incidents:
        return ["No incident."]
    numbers = {pod["journal"]: number for number, pod in enumerate(answer["pods"], 1)}
    lines = ["Incidents"]
    for one in incidents:
        pod = f"pod {numbers[one['journal']]} " if len(numbers) > 1 and one["journal"] in numbers else ""
        where = f" (after step {one['step']})" if one["step"] is not None else ""
        head = f"{pod}#{one['number']}  {clock(one['opened'])}  {safe(one['sentence']).rstrip('.')}{where}"
        lines += wrap(f"{head}  [{safe(one['cause'])}]", "  ", hang="      ")
        lines += wrap(_time_taken(one), "      ", hang="      ")
    missing = answer["incident_count"] - len(incidents)
    if missing > 0:
        lines.append(f"  and {missing} older ones, with stories that are no longer kept")
    return lines


def _time_taken(one: Mapping[str, Any]) -> str:
    if one.get("open"):
        return f"noticed in {span(one['noticed_s'])}; open for {span(one['seconds'])}"
    parts = [f"noticed in {span(one['noticed_s'])}"]
    if one["ended_s"]:
        parts.append(f"ended in {span(one['ended_s'])}")
    if one["prepared_s"]:
        parts.append(f"ready after {span(one['prepared_s'])} more")
    if one["first_step_s"]:
        parts.append(f"first step {span(one['first_step_s'])} after the launch")
    lost = f"; {count(one['steps_lost'], 'step')} lost" if one["steps_lost"] else "; no step lost"
    end = f"; {span(one['seconds'])} in all" if one["recovered"] else "; not recovered by itself"
    return ", ".join(parts) + lost + end


def _money_sentences(answer: Mapping[str, Any]) -> list[str]:
    saved, cost = answer["saved"], answer["cost"]
    sentences: list[str] = []
    if cost is not None:
        sentences.append(
            f"At {dollars_in_words(cost['dollars_per_hour'])} an hour that is {dollars_in_words(cost['dollars'])}, "
            f"of which {dollars_in_words(cost['training_dollars'])} went into steps that stayed"
            f"{'; the time between pods is counted as paid.' if len(answer['pods']) > 1 else '.'}"
        )
    if not saved["incidents"]:
        return [*sentences, "The supervisor recovered from nothing yet, so it saved nothing yet."]
    each = f"{count(saved['incidents'], 'incident')} that it recovered from by itself"
    baseline = (
        f"Estimated against this baseline: {saved['baseline']}, so a dead job stands for "
        f"{saved['person_every_h'] / 2:g} h on average before it is restarted. Lost pods are "
        "not counted; set another round with --person-every HOURS."
    )
    if saved["seconds"] <= 0:
        return [*sentences, f"By that measure the supervisor saved nothing in the {each}.", baseline]
    worth = f", {dollars_in_words(saved['dollars'])}" if saved["dollars"] is not None else ""
    told = f"What the supervisor saved: about {span(saved['seconds'])} of pod time{worth}, in the {each}."
    return [*sentences, told, baseline]


def _would_bring_sentences(answer: Mapping[str, Any]) -> list[str]:
    return [
        one["sentence"] + (f" {dollars_in_words(one['dollars'])}." if one["dollars"] is not None else "")
        for one in answer["would_bring"]
    ]


def dollars_in_words(amount: float) -> str:
    """``$3.20``."""
    return f"${amount:,.2f}" if abs(amount) < 1000 else f"${amount:,.0f}"
