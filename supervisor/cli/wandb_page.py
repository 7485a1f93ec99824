"""``rl-supervisor wandb``: what W&B shows of a run, and where that differs from what the supervisor knows.

W&B is never the judge: its page lags, and goes on showing what is over. Nothing of it runs in the daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from supervisor.base import secrets
from supervisor.base.errors import SupervisorError, UsageError
from supervisor.cli import where
from supervisor.cli.hand_on import clean_texts
from supervisor.cli.render import NOT_RUNNING, RUNNING, wrap
from supervisor.cli.wandb_place import Place, find_id, find_place, list_offline
from supervisor.cli.wandb_sync import sync_offline
from supervisor.config.settings import RunFile
from supervisor.core.words import span
from supervisor.web.sources import PATIENT_S, RunSource, Seen

DIFFERS = 3  # exit code
REQUEST_S, CHILD_S = 20, 60.0
STALL_S = 600.0  # W&B's client beats about every 30 s; the monitor that this replaces called ten minutes a stall
USUAL_LAG_S = 35 * 60.0
"""A page that showed a step half an hour late was seen on a healthy run (30 to 33 min behind the pod)."""
AHEAD_S = 300.0  # a heartbeat so far in the future comes from another clock
NOISE_STEPS = 1  # a step that is done while both are asked
OVER = ("finished", "crashed", "failed", "killed")


def wandb(options: argparse.Namespace, *, words: list[str], dry_run: bool) -> int:
    """``wandb RUN.toml`` or ``wandb sync RUN.toml``. Raises UsageError and SupervisorError."""
    is_sync = len(words) == 2 and words[0] == "sync"
    if len(words) != 1 and not is_sync:
        raise UsageError("wandb takes one run file, or the word sync and one: rl-supervisor wandb sync RUN.toml")
    if dry_run and not is_sync:
        raise UsageError("--dry-run belongs to: rl-supervisor wandb sync RUN.toml --dry-run")
    options.run_file = Path(words[-1])
    run_file = where.run_file_of(options)
    if is_sync:
        return sync_offline(run_file, os.environ, dry_run=dry_run)
    return _show_page(run_file)


def _show_page(run_file: RunFile) -> int:
    if find_spec("wandb") is None:
        raise UsageError("This needs W&B's client. Install it with: pip install 'rl-supervisor[wandb]'")
    seen = RunSource(run_file, os.environ, here=True, price=None).look(PATIENT_S)
    told = (seen.status or {}).get("wandb_id") or (seen.newest or {}).get("wandb_run_id")
    run_id = find_id(run_file, str(told) if told else None)
    if not run_id:
        raise SupervisorError(f"Run {run_file.run.id} has no id in W&B yet: it is chosen at the first start.")
    place = find_place(run_file, os.environ, run_id)
    if not place.project:
        raise UsageError("The run's W&B project is not known here. Name it: WANDB_PROJECT=my-project rl-supervisor ...")
    differs = False
    for one in place.ids:
        page = _ask_wandb(place, one)
        lines, sentences = compare_page(page, seen)
        differs = differs or bool(sentences)
        print(*(part for line in lines for part in wrap(clean_texts(line))), sep="\n")
        for sentence in sentences:
            print(*wrap(clean_texts(sentence), "- ", hang="  "), sep="\n")
    if waiting := [one for one in list_offline(run_file, os.environ, run_id) if not one.is_sent]:
        print(*wrap(f"Folders that wait to be sent: {len(waiting)}. rl-supervisor wandb sync RUN.toml"), sep="\n")
    return DIFFERS if differs else 0


# ---------------------------------------------------------------- W&B's side


@dataclass(frozen=True)
class Page:
    """What W&B tells. None is what it does not tell; ``heartbeat`` in Unix time."""

    name: str
    state: str | None
    heartbeat: float | None
    step: int | None
    step_name: str | None
    url: str


def _ask_wandb(place: Place, run_id: str) -> Page:
    """Raises SupervisorError where W&B does not answer within a minute, refuses, or tells of another run."""
    path = "/".join(part for part in (place.entity, place.project, run_id) if part)
    key = secrets.secret("WANDB_API_KEY")
    command = [sys.executable, "-m", "supervisor.cli.wandb_child"]
    environ = {**os.environ, "WANDB_SILENT": "true", **({"WANDB_API_KEY": key} if key else {})}
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        try:
            asked = json.dumps({"path": path, "timeout_s": REQUEST_S}).encode()
            output, wrong = child.communicate(asked, timeout=CHILD_S)
        except subprocess.TimeoutExpired:
            raise SupervisorError(f"W&B did not answer for {path} within {CHILD_S:g} s.") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the client starts a program of its own
    try:
        told = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError, RecursionError):
        last = wrong.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise SupervisorError(f"W&B's client ended without an answer for {path}: {clean_texts(last)}") from None
    if "why" in told:
        raise SupervisorError(f"W&B does not show {path}: {clean_texts(str(told['why']))}")
    if told.get("id") != run_id:
        raise SupervisorError(f"W&B was asked for {path} and tells of {clean_texts(str(told.get('id')))}.")
    name = "/".join(str(told.get(part) or "?") for part in ("entity", "project", "id"))
    beat = _parse_time(told.get("heartbeat"))
    return Page(name, told.get("state"), beat, told.get("step"), told.get("step_name"), str(told.get("url") or ""))


def _parse_time(text: object) -> float | None:
    """W&B's times are UTC, and often do not say so."""
    try:
        found = datetime.fromisoformat(str(text))
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------- both sides


def compare_page(page: Page, seen: Seen) -> tuple[list[str], list[str]]:
    """What both say, and sentences about where they differ. A lag that is usual for W&B is no difference."""
    step, at = _newest_step(seen)
    age = None if page.heartbeat is None else seen.at - page.heartbeat
    beat = "no heartbeat" if age is None else f"heartbeat {span(age)} ago"
    of = f" ({page.step_name})" if page.step_name not in (None, "step") else ""
    shown = "no step" if page.step is None else f"step {page.step}{of}"
    lines = [f"W&B: {page.name} is {page.state or 'in no state'}, {shown}, {beat}. {page.url}".rstrip()]
    lines.append(f"Here: {_describe_run(seen)}{'' if step is None else f', step {step}'}.")
    sentences = [*_state_sentences(page, seen, age), *_heartbeat_sentences(page, seen, age)]
    if page.step is None or step is None or page.step_name == "_step":
        return lines, sentences
    behind = step - page.step
    if behind < -NOISE_STEPS:
        went_back = _was_rolled_back(seen)
        why = "W&B keeps points of steps that a rollback left" if went_back else "another job may log into it"
        sentences.append(f"W&B has step {page.step}, above step {step} here: {why}.")
    elif behind > NOISE_STEPS:
        lag = None if at is None or (then := _time_of_step(seen, page.step)) is None else at - then
        words = f"W&B is {behind} steps{'' if lag is None else f' ({span(lag)})'} behind."
        if lag is None or lag <= USUAL_LAG_S:
            lines.append(f"{words} Its page lags: up to {span(USUAL_LAG_S)} were seen on runs that were well.")
        else:
            sentences.append(f"{words} That is more than its page usually lags ({span(USUAL_LAG_S)}).")
    return lines, sentences


def _describe_run(seen: Seen) -> str:
    if seen.status is not None:
        return str(seen.status.get("state") or "unknown")
    if seen.ended is None:
        return "only the store is known"
    return "the job lives without a daemon" if seen.ended.get("job") else "no daemon and no job"


def _is_running(seen: Seen) -> bool | None:
    if seen.status is not None:
        state = seen.status.get("state")
        return True if state in RUNNING else False if state in NOT_RUNNING else None
    return None if seen.ended is None else bool(seen.ended.get("job"))


def _state_sentences(page: Page, seen: Seen, age: float | None) -> list[str]:
    running = _is_running(seen)
    if page.state == "running" and running is False:
        since = "" if age is None else f", and heard from it {span(age)} ago"
        return [
            f"W&B says that the run is running; here it is not. W&B learns late of an end without a farewell{since}."
        ]
    if page.state in OVER and running:
        return [
            f"W&B says {page.state}; the run is running here. W&B says so after each end, until the job logs again."
        ]
    return []


def _heartbeat_sentences(page: Page, seen: Seen, age: float | None) -> list[str]:
    if age is not None and age < -AHEAD_S:
        return [f"W&B's last heartbeat lies {span(-age)} in the future: one of the two clocks is wrong."]
    if page.state == "running" and age is not None and age > STALL_S:
        here = " The supervisor sees the run alive, so its link to W&B is what fails." if _is_running(seen) else ""
        return [f"W&B has heard nothing from the run for {span(age)}: it is stalled there.{here}"]
    return []


def _newest_step(seen: Seen) -> tuple[int | None, float | None]:
    """The newest step of all that is known, and when it was done."""
    status = seen.status or {}
    if status.get("step") is not None:
        at: Any = status.get("last_step_at")
        return int(status["step"]), float(at) if at else _time_of_step(seen, int(status["step"]))
    rows = [row for one in seen.pieces for row in one.rows if isinstance(row.get("step"), int)]
    if rows:
        last = max(rows, key=lambda row: float(row["t"]))
        return int(last["step"]), float(last["t"])
    newest: Mapping[str, Any] = seen.newest or {}
    return (int(newest["step"]), None) if newest.get("step") is not None else (None, None)


def _time_of_step(seen: Seen, step: int) -> float | None:
    """When it was done, the last time that it was."""
    times = [float(row["t"]) for one in seen.pieces for row in one.rows if row.get("step") == step]
    return max(times, default=None)


def _was_rolled_back(seen: Seen) -> bool:
    if (seen.status or {}).get("rollbacks"):
        return True
    return any(row.get("event") == "rollback" for one in seen.pieces for row in one.rows)
