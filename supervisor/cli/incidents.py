"""``supervisorctl incidents``: what went wrong, what was done about it, and where its evidence lies.

Asks the daemon; where none runs, its journal is read, which a daemon that starts now does not notice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from supervisor.api.client import NotThereError, RefusedError
from supervisor.base.errors import UsageError
from supervisor.cli import render, state_folder, which
from supervisor.core.words import root_line, size, span

INDENT = "    "
SHOWN_STEPS = 3  # of what was done, in the list


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``[ID] [NAME | RUN.toml] [--open]``."""
    what = "number of an incident; name of a run, or its RUN.toml"
    parser.add_argument("what", nargs="*", metavar="[ID] [NAME]", help=what)
    parser.add_argument("--open", action="store_true", help="only those that are still open")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="the run's state folder; no daemon is asked")


def main(options: argparse.Namespace) -> int:
    """List the incidents, or show one. Raises SupervisorError."""
    number, name = _meant_incident(options)
    found = _find_incidents(options, name, number)
    if options.json:
        print(json.dumps(found if number is None else found[0], indent=2, ensure_ascii=False))
    elif number is not None:
        print("\n".join(one(found[0])))
    else:
        print("\n".join(describe_incidents(found, only_open=options.open)))
    return 0


def _meant_incident(options: argparse.Namespace) -> tuple[int | None, str | None]:
    words = list(options.what)
    numbers = [word for word in words if word.isascii() and word.isdigit() and len(word) <= 9]
    names = [word for word in words if word not in numbers]
    if len(numbers) > 1 or len(names) > 1:
        raise UsageError("incidents takes the number of one incident and the name of one run, no more.")
    if names and options.run and names[0] != options.run:
        raise UsageError(f"Two runs are named, {options.run} and {names[0]}: name one.")
    return (int(numbers[0]) if numbers else None), (names[0] if names else options.run)


def _find_incidents(options: argparse.Namespace, name: str | None, number: int | None) -> list[dict[str, Any]]:
    """From the daemon, else from the journal."""
    run = which.find_run(name, options.socket, options.state_dir)
    query = {"open": int(options.open), **({"id": number} if number is not None else {})}
    if options.state_dir is None and (run.has_daemon or run.state_dir is None):
        try:
            answer: list[dict[str, Any]] = run.client.get("/v1/incidents", **query)["incidents"]
        except (NotThereError, KeyError):  # it ended a moment ago
            if run.state_dir is None:
                raise
        except RefusedError as error:
            if run.state_dir is None or "There is no /v1/incidents" not in str(error):  # a daemon of an older version
                raise
        else:
            return answer
    folder = run.folder() if run.state_dir is None else run.state_dir
    found: list[dict[str, Any]] = state_folder.read("incidents", folder, number=number, only_open=options.open)
    return found


# ---------------------------------------------------------------- as text


def describe_incidents(found: Sequence[Mapping[str, Any]], *, only_open: bool) -> list[str]:
    """One paragraph an incident, newest first."""
    if not found:
        return ["No incident is open." if only_open else "No incident."]
    lines: list[str] = []
    for item in found:
        lines += _paragraph_of_incident(item)
    return lines


def _paragraph_of_incident(item: Mapping[str, Any]) -> list[str]:
    head = f"#{item['id']}  {_time_of_day(item['opened'])}  {_word_for_state(item)}  [{render.safe(item['cause'])}]"
    lines = [*render.fold(head, "    "), *render.wrap(item["sentence"], INDENT), *_root_causes(item)]
    done = [str(sentence) for sentence in item.get("done") or ()]
    shown = done[:SHOWN_STEPS] if len(done) <= SHOWN_STEPS else [*done[: SHOWN_STEPS - 1], done[-1]]
    for sentence in shown:
        lines += render.wrap(sentence, "    - ")
    if paths := [str(bundle["path"]) for bundle in item.get("bundles") or ()]:
        lines += render.wrap(f"evidence: {paths[0]}" + (f" and {len(paths) - 1} more" if paths[1:] else ""), INDENT)
    return lines


def one(item: Mapping[str, Any]) -> list[str]:
    """The story of one incident in sentences, and its evidence part by part."""
    lines = [
        f"Incident {item['id']} of attempt {item['attempt']}: {_word_for_state(item)}.",
        *render.wrap(item["sentence"], "  "),
    ]
    lines += _root_causes(item, "  ")
    if signals := item.get("signals"):
        lines.append("What convicted:")
        for sentence in signals:
            lines += render.wrap(sentence, "  - ")
    lines.append("What happened:")
    for event in item.get("story") or ():
        level = str(event.get("level") or "")
        mark = "" if level in ("", "info", "debug") else f"{level.upper()}  "
        lines += render.wrap(f"{_time_of_day(event['wall'], seconds=True)}  {mark}{event['sentence']}", "  ")
    if not item.get("bundles"):
        lines.append("There is no evidence of it on this machine any more, or none was collected.")
    for bundle in item.get("bundles") or ():
        lines += _evidence_of_bundle(bundle)
    return lines


def _root_causes(item: Mapping[str, Any], indent: str = INDENT) -> list[str]:
    """What the logs show as the root cause, and what helps."""
    lines: list[str] = []
    for root in item.get("roots") or ():
        line = root_line(str(root["name"]), str(root["role"]), str(root["text"]), str(item["sentence"]))
        lines += render.wrap(f"{line[0].upper()}{line[1:]}", indent)
        helps = "Remedy" if item.get("open") else "If it returns"
        lines += render.wrap(f"{helps}: {root['remedy']}", indent) if root.get("remedy") else []
    return lines


def _evidence_of_bundle(bundle: Mapping[str, Any]) -> list[str]:
    if not bundle.get("finished"):
        return [f"Evidence: {render.safe(bundle['path'])} (it was not finished)"]
    took = f"{float(bundle.get('seconds') or 0.0):.1f} s, {size(float(bundle.get('size_bytes') or 0))}"
    lines = [f"Evidence: {render.safe(bundle['path'])} ({took})"]
    parts = bundle.get("parts") or ()
    rows = [
        (render.safe(part["name"]), render.safe(part["state"]), f"{float(part['seconds']):>5.1f} s", _file_names(part))
        for part in parts
    ]
    for line, part in zip(render.table(rows) if rows else (), parts, strict=True):
        lines.append(f"  {line}")
        for note in part.get("notes") or ():
            lines += render.wrap(note, " " * (4 + len(render.safe(part["name"]))))
    return lines


def _file_names(part: Mapping[str, Any]) -> str:
    return ", ".join(render.safe(name) for name in part.get("files") or ()) or "nothing"


def _word_for_state(item: Mapping[str, Any]) -> str:
    lasted = span(float(item["down_s"]))
    if item["open"]:
        return f"open for {lasted}"
    step = item.get("recovered_step")
    return f"over after {lasted}, with step {step}" if step is not None else f"ended after {lasted}, without a new step"


def _time_of_day(wall: float, *, seconds: bool = False) -> str:
    shape = "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"
    return datetime.fromtimestamp(float(wall)).astimezone().strftime(shape)
