"""What a run cost and what was saved, out of its journal and what its other pods left in the store. Nothing is written.

Works beside a living daemon, after its end, and on a machine that has only the run file and the store.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from supervisor.base.errors import SupervisorError
from supervisor.config.settings import RunFile
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.account import ledger_until_now
from supervisor.core.codec import decode
from supervisor.core.decide import decide
from supervisor.core.facts import Observation
from supervisor.core.goodput import Ledger, Outage
from supervisor.core.interval import measure_run
from supervisor.core.state import Incident, State
from supervisor.effects import run_records
from supervisor.effects.patient_transfers import PatientTransfers
from supervisor.effects.transfers import Transfers, request
from supervisor.journal.journal import open_read_only
from supervisor.storage.base import StoreError
from supervisor.views.engine_idle import EngineIdle
from supervisor.views.interval_advice import advise
from supervisor.views.would_bring import would_bring

PERSON_EVERY_H = 8.0
STALL_S = 120.0
CAUSES = {
    "engine-gone": "vLLM's process was gone.",
    "engine-memory": "vLLM was dead, and its GPU memory with it.",
    "engine-unreachable": "vLLM could not be reached.",
    "engine-silent": "vLLM answered no more.",
    "engine-hang": "vLLM answered and made no progress.",
    "engine-dead": "vLLM said that its engine was dead.",
    "trainer-gone": "The trainer's process was gone.",
    "orchestrator-gone": "The orchestrator's process was gone.",
    "launcher-gone": "The launcher's process was gone.",
    "env-gone": "An environment server's process was gone.",
    "trainer-hang": "The trainer was stuck.",
    "orchestrator-wedged": "The orchestrator was stuck.",
    "env-hang": "An environment server was stuck.",
    "job-stuck": "The orchestrator or the trainer was stuck.",
    "ended-from-outside": "The launcher was told to end.",
    "step-overdue": "No new step came.",
    "startup-overdue": "The job was started and made no step.",
    "fresh-start": "The job began from scratch although it was to resume.",
    "disk-full": "The disk was full.",
    "cuda-oom": "A GPU had too little memory.",
    "cuda-oom-engine": "The engine had too little GPU memory.",
    "nccl-timeout": "A collective operation timed out.",
}
"""Sentences for incidents of other pods: only names travel, since a sentence quotes what the job said."""


@dataclass(frozen=True)
class Found:
    """All that is known of a run. ``own``: the journal on this machine, "" where there is none."""

    run: str
    own: str = ""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    sentences: dict[int, str] = field(default_factory=dict)  # of this journal's incidents, by number
    open: Incident | None = None
    now: float = 0.0  # the journal's clock
    notes: tuple[str, ...] = ()
    on_tier: bool = False  # the trainer saves on one


def gather(run_file: RunFile, environ: Mapping[str, str]) -> Found:
    """Read the journal on this machine, if there is one, and the store. Raises SupervisorError when neither knows."""
    notes: list[str] = []
    path = run_file.state_dir / "journal.db"
    found = Found(run_file.run.id)
    try:
        is_there = path.exists()
    except PermissionError:
        is_there = False
        notes.append(f"You may not read the journal {path}, and it is left out. Try sudo.")
    if is_there:
        try:
            found = _open_journal(path, run_file.run.id)
        except (sqlite3.Error, OSError, ValueError) as error:
            notes.append(f"The journal {path} cannot be read and is left out: {error}.")
    ledgers = _without_unstarted(found.ledgers)
    try:
        asked = request(run_file, "get-records")
        # Where this machine's journal knows the run, a report of what is here is better than one in half an hour.
        kind = Transfers if ledgers else PatientTransfers
        answer = kind(environ, run_file.store.stall_s).run(asked, stall_s=STALL_S)
        stored = {str(name): base64.b64decode(text) for name, text in answer["records"].items()}
        ledgers |= run_records.of_others(stored, found.own, time.time())[1]
    except StoreError as error:
        notes.append(f"The store could not be asked, so other pods' parts may be missing or old: {error}")
    ledgers = _without_unstarted(ledgers)
    if not ledgers:
        told = " ".join([".", *notes]) if notes else f": neither in {path} nor in {run_file.store_url}."
        raise SupervisorError(f"Nothing is known of run {run_file.run.id}{told}")
    return replace(found, ledgers=ledgers, notes=tuple(notes))


def _without_unstarted(ledgers: Mapping[str, Ledger]) -> dict[str, Ledger]:
    """Without those in which nothing was ever started, such as a journal that a publish by hand made."""
    return {name: ledger for name, ledger in ledgers.items() if ledger.began_wall is not None}


def _open_journal(path: Path, run: str) -> Found:
    """The present state out of a journal that a daemon may be writing at this moment."""
    with closing(open_read_only(path)) as db:
        state = newest_state(db)
        identity = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
        said = db.execute("SELECT sentence, fields FROM events WHERE event = 'verdict' ORDER BY id DESC").fetchall()
    own = state.journal or (str(identity[0]) if identity else "this-machine")
    sentences = {int(number): str(text) for text, fields in said if (number := json.loads(fields).get("incident"))}
    sentences |= {one.id: one.sentence for one in state.incidents.closed}
    if state.incidents.open is not None:
        sentences[state.incidents.open.id] = state.incidents.open.sentence
    ledgers = {**state.books.others, own: ledger_until_now(state)}
    on_tier = bool(state.tier.folder)
    return Found(run, own, ledgers, sentences, state.incidents.open, state.now, on_tier=on_tier)


def newest_state(db: sqlite3.Connection) -> State:
    """What the daemon knew last, as far as this version can read it."""
    for number, text in db.execute("SELECT observation, state FROM snapshots ORDER BY observation DESC").fetchall():
        try:
            state = decode(json.loads(text))
        except (KeyError, TypeError, ValueError):
            continue  # of another version
        return _replay_state(db, state, number)
    return _replay_state(db, State(), 0)


def _replay_state(db: sqlite3.Connection, state: State, after: int) -> State:
    for t, wall, source, text in db.execute(
        "SELECT t, wall, source, fact FROM observations WHERE id > ? ORDER BY id", (after,)
    ):
        try:
            fact = decode(json.loads(text))
        except (KeyError, TypeError, ValueError):
            continue
        state = decide(state, Observation(t, wall, fact, source)).state
    return state


# ---------------------------------------------------------------- the report


def report(
    found: Found,
    *,
    price: float | None = None,
    person_every_h: float = PERSON_EVERY_H,
    interval_steps: int | None = None,
    idle: EngineIdle | None = None,
) -> dict[str, Any]:
    """The report as JSON values. ``price``: dollars an hour; times in seconds, Unix time, shares from 0 to 1."""
    pods = g.across(found.ledgers)
    run = g.sum_ledgers(found.ledgers)
    newest = max(pods.values(), key=lambda ledger: ledger.wall)  # not the one that began last: a pod may come back
    lost = sum(1 for ledger in pods.values() if ledger is not newest and ledger.last != k.STOPPED)
    measured = measure_run(run, lost_pods=lost, interval_steps=interval_steps)
    advice = advise(measured)
    incidents = [_incident_row(found, name, one, person_every_h) for name, pod in pods.items() for one in pod.outages]
    if found.open is not None:
        incidents.append(_open_incident(found, found.open))
    return {
        "run": found.run,
        **_part_of_ledger(run),
        "step_seconds": measured.step_s,
        "pods": [{"journal": name, **_part_of_ledger(pod)} for name, pod in pods.items()],
        "incidents": sorted(incidents, key=lambda one: float(one["opened"])),
        "saved": _time_saved([one for one in incidents if one["recovered"]], person_every_h, price),
        "cost": None if price is None else _cost_of_run(run, price),
        "interval": {
            "sentence": advice.sentence,
            "warning": advice.warning,
            "steps": advice.steps,
            "seconds": advice.interval_s,
            "loss": advice.loss,
            "present_loss": advice.present_loss,
        },
        "would_bring": [
            {**one._asdict(), "dollars": None if price is None or one.seconds is None else one.seconds / 3600 * price}
            for one in would_bring(run, advice, lost, idle, on_tier=found.on_tier)
        ],
        "notes": list(found.notes),
    }


def percentages(seconds: Mapping[str, float]) -> dict[str, str]:
    """``96.4 %`` of each part, rounded so that they add up to 100.0: the largest remainders are rounded up."""
    total = sum(seconds.values())
    if total <= 0:
        return {}
    exact = {name: 1000 * part / total for name, part in seconds.items()}
    tenths = {name: int(value) for name, value in exact.items()}
    missing = 1000 - sum(tenths.values())
    for name in sorted(exact, key=lambda one: exact[one] - tenths[one], reverse=True)[:missing]:
        tenths[name] += 1
    return {name: f"{value / 10:.1f} %" for name, value in tenths.items()}


def _part_of_ledger(ledger: Ledger) -> dict[str, Any]:
    stopped = ledger.seconds.get(k.STOPPED, 0.0)
    wanted = ledger.total_s - stopped
    return {
        "began": ledger.began_wall,
        "until": ledger.wall,
        "ettr": ledger.share(k.PRODUCTIVE),
        "ettr_while_wanted": ledger.seconds.get(k.PRODUCTIVE, 0.0) / wanted if wanted > 0 else 0.0,
        "seconds": ledger.total_s,
        "categories": {name: ledger.seconds[name] for name in k.CATEGORIES if ledger.seconds.get(name)},
        "steps_kept": ledger.steps_kept,
        "steps_lost": ledger.steps_lost,
        "restarts": ledger.restarts,
        "incident_count": ledger.incidents,
    }


def _incident_row(found: Found, journal: str, one: Outage, person_every_h: float) -> dict[str, Any]:
    sentence = found.sentences.get(one.number, "") if journal == found.own else ""
    return {
        "journal": journal,
        "number": one.number,
        "opened": one.wall,
        "cause": one.cause,
        "sentence": sentence or CAUSES.get(one.cause, f"{one.cause}."),
        "step": one.step,
        "noticed_s": one.detect_s,
        "ended_s": one.stop_s,
        "prepared_s": one.prepare_s,
        "first_step_s": one.start_s,
        "seconds": one.seconds,
        "steps_lost": one.steps_lost,
        "recovered": one.recovered,
        "saved_s": _saved_by(one, person_every_h) if one.recovered else None,
    }


def _open_incident(found: Found, incident: Incident) -> dict[str, Any]:
    outage = Outage(incident.id, incident.cause, incident.opened_wall, incident.step, recovered=False)
    return {
        **_incident_row(found, found.own, outage, 0.0),
        "noticed_s": max(0.0, incident.decided - incident.opened),
        "seconds": max(0.0, found.now - incident.opened),
        "open": True,
    }


def _saved_by(one: Outage, person_every_h: float) -> float:
    """Seconds that one recovery saved, by the baseline: failures come at any time, so a person is half a round away.

    A start by a person takes as long and loses the same steps as one by us; only what was before differs.
    """
    return person_every_h * 3600 / 2 - (one.detect_s + one.stop_s + one.prepare_s)


def _time_saved(recovered: list[dict[str, Any]], person_every_h: float, price: float | None) -> dict[str, Any]:
    seconds = sum(one["saved_s"] for one in recovered)
    return {
        "baseline": f"until a person looks, every {person_every_h:g} hours day and night",
        "person_every_h": person_every_h,
        "incidents": len(recovered),
        "seconds": seconds,
        "dollars": None if price is None else seconds / 3600 * price,
        "estimate": True,
    }


def _cost_of_run(run: Ledger, price: float) -> dict[str, float]:
    """What the time cost. A gap between pods is time without a pod, but since when it was not paid is not recorded."""
    hours = run.total_s / 3600
    return {
        "dollars_per_hour": price,
        "dollars": hours * price,
        "training_dollars": hours * price * run.share(k.PRODUCTIVE),
    }
