"""What people are shown, computed from the core's state: the status, the explanation, nothing else."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from supervisor.core import fencing, leaving, pinned_steps
from supervisor.core.account import ledger_until_now
from supervisor.core.deadlines import (
    excuse,
    explain_step_limits,
    start_of_limit,
    startup_budget,
    step_began,
    step_limits,
)
from supervisor.core.goodput import across, sum_ledgers
from supervisor.core.launcher import who
from supervisor.core.phases import STEP
from supervisor.core.retention import held_steps, list_pinned, next_save_bytes, next_to_publish
from supervisor.core.state import UNANSWERED, Incident, State
from supervisor.core.time_kinds import PRODUCTIVE
from supervisor.core.training_health import standing_findings
from supervisor.core.upkeep import publish_until
from supervisor.core.verdicts import judge, patience_ends, progress_sentence
from supervisor.core.watch import Watch
from supervisor.core.words import root_line, span
from supervisor.views import belief

_STATES = {
    "new": "surveying",
    "backing-off": "recovering",
    "disk-full": "stopped",
    "finishing": "publishing",
    "leaving": "stopping",
}
AT_REST = ("stopped", "disk-full", "gave-up", "unfit", "finished")  # no job is there to be judged


def state_word(state: State) -> str:
    """The state as `supervisorctl status` and the metrics name it."""
    if state.mode == "surveying" and state.setup_pending:
        return "setting-up"
    if state.incidents.open is not None and state.mode in ("stopping", "surveying", "backing-off", "starting"):
        return "recovering"
    return _STATES.get(state.mode, state.mode)


def headline(state: State) -> str:
    """One sentence: where the run is, and what happened last."""
    words = []
    cause = ""
    if state.mode == "running":
        verdict = judge(state)
        cause = verdict.cause
        words.append(progress_sentence(state) if verdict.kind == "healthy" else verdict.sentence.rstrip("."))
    elif state.mode == "starting":
        words.append(judge(state).sentence.rstrip("."))
    else:
        if state.mode == "stopped" and state.incidents.open is not None:  # only observed: what happened comes first
            words.append(state.incidents.open.sentence.rstrip("."))
        words.append(state.why.rstrip("."))
        words += _what_then(state)
        if state.progress.highest is not None and state.mode not in ("finished",):
            words.append(progress_sentence(state))
    if waiting := _last_publish(state):
        words.insert(0, waiting.rstrip("."))
    for finding in standing_findings(state.worth).values():  # the note below says where to go back to
        words.insert(0, finding.rstrip("."))
    if state.orders.paused:
        words.insert(0, _what_pause_holds(state) or "paused")
    if state.store.published is not None:
        words.append(f"published step {state.store.published}")
    if state.live and _store_away(state):
        words.append("the store takes no step now")
    if untold := _what_store_lacks(state):
        words.append(untold)
    if state.incidents.open is not None:
        lasts = span(state.now - state.incidents.open.opened)
        why = state.incidents.open.sentence.rstrip(".")
        known = cause == state.incidents.open.cause or any(why in word for word in words)
        words.append(f"incident {state.incidents.open.id} open for {lasts}{'' if known else f': {why}'}")
        words += _root_cause_fields(state.incidents.open, "; ".join(words))
    elif state.incidents.closed:
        last = state.incidents.closed[-1]
        lasted = span((last.closed or last.opened) - last.opened)
        stopped = last.closed_step is None and last.closed != last.opened
        back = "open until the run was ended," if stopped else "back after"
        words.append(f"last incident: {last.sentence.rstrip('.')}; {back} {lasted}")
        words += _root_cause_fields(last, words[-1])
    return "; ".join(words)


def _what_pause_holds(state: State) -> str:
    """What is left undone and how to have it done; "" while a live job needs nothing."""
    if not state.orders.paused or not state.live or not judge(state).act:
        return ""
    left = "the job has ended and nothing is started" if state.job.ended else "nothing is done about it"
    return f"paused, so {left} until you run: supervisorctl resume {state.settings.run_id}".rstrip()


def _what_then(state: State) -> list[str]:
    """What a stop leads to, or the command that ends it."""
    if state.mode == "stopping" and state.attempt.after_stop == "restart":
        return [f"the job is being stopped, and starts again {from_step(state)}"]
    waits = state.mode == "gave-up" or (state.mode == "stopped" and not state.orders.wanted)
    if not waits or "supervisorctl start" in state.why:
        return []
    return [f"start it again with: supervisorctl start {state.settings.run_id}".rstrip()]


def from_step(state: State) -> str:
    """Where a start would begin, as far as it is known now."""
    step = state.orders.asked_step if state.orders.override else state.last_good
    return f"from step {step}" if step is not None else "from the beginning"


def _store_away(state: State) -> bool:
    """Does the store refuse what is sent, or not answer? A pod that may not write has a note of its own."""
    away = state.store.reason not in ("", *UNANSWERED) or bool(state.publishing.reason)
    return away and not state.fence.lost


def _what_store_lacks(state: State) -> str:
    """That the store could not be told of a step back; "" where it knows, or is being told."""
    refused = not fencing.may_write(state) and not fencing.is_claim_unanswered(state)
    failed = state.store.reason not in ("", *UNANSWERED) or state.lineage.after > 0 or refused
    if not (state.lineage.unwritten and failed) or state.settings.mode == "observe" or state.fence.lost:
        return ""
    return "the store does not know yet that the run went back"


def _last_publish(state: State) -> str:
    """What the daemon stays for although all else is over; "" where that is nothing."""
    if state.ending.code is None or state.ending.said:
        return ""
    return leaving.list_unpublished(state, max(0.0, publish_until(state) - state.now))


def _root_cause_fields(one: Incident, told: str) -> list[str]:
    return [root_line(root.name, root.role, root.text, told) for root in one.roots]


def status(state: State) -> dict[str, Any]:
    """The part of the status that the core knows. Sizes in bytes, times in Unix time or seconds."""
    progress = state.progress
    return {
        "run": state.settings.run_id,
        "state": "paused" if (held := bool(_what_pause_holds(state))) else state_word(state),
        "paused": state.orders.paused,
        "mode": state.settings.mode,
        "would": ledger_of_would(state)[-3:],
        "sentence": headline(state),
        "since": None if held else state.since_wall,  # of the core's mode
        "step": progress.step if progress.step is not None else progress.highest,
        "max_steps": state.settings.max_steps,
        "step_seconds": _typical_step(state),
        "last_step_at": progress.done_wall,
        "deadline": _deadline_at(state),
        "reward": progress.reward,
        "loss": progress.loss,
        "attempt": state.attempt.number,
        "restarts": state.recovery.restarts,
        "rollbacks": sum(one.kind == "rollback" for one in (*state.lineage.known, *state.lineage.unwritten)),
        "pid": state.attempt.pid,
        "worthless": list(pinned_steps.findings(state).values()),
        "last_good_step": state.last_good,
        "published_step": state.store.published,
        "listing": {"local": state.local.reason, "store": state.store.reason},  # why it failed, or ""
        "local_steps": _local_steps(state),
        "stored_steps": [
            _pick_fields(one, "step", "committed", "size_bytes", "left", "problem") for one in state.store.steps
        ],
        # that a fenced pod may not write says nothing of the store; who holds the run is told among the notes
        "store_reason": state.store.reason or ("" if state.fence.lost else state.publishing.reason),
        "next_to_publish": next_to_publish(state),
        "disk_needed_bytes": room + state.settings.stop_below_bytes if (room := next_save_bytes(state)) else None,
        "pinned": sorted(list_pinned(state)),
        "held": sorted(held_steps(state)),
        "damaged": dict(state.store.damaged),
        "quarantined": sorted(map(int, state.set_aside())),
        "gpus": [
            _pick_fields(memory.gpu, "index", "uuid", "used_bytes", "total_bytes", "role", "host")
            for memory in sorted(state.gpus.by_uuid.values(), key=lambda memory: (memory.gpu.host, memory.gpu.index))
        ],
        "gpu_reason": state.gpus.reason,
        "setup": [_setup_part(state, name) for name in state.setup] if state.setup_pending else [],
        "engine": _engine(state) if state.live else None,
        "incident": incident(state.incidents.open, state),
        "last_incident": incident(state.incidents.closed[-1], state) if state.incidents.closed else None,
        "incidents": [incident(one, state) for one in state.incidents.closed],
        "goodput": goodput(state),
        "config_changed": list(state.orders.config_changed),
        "exit_code": state.ending.code if state.ending.said else None,  # before, it still publishes
    }


def _engine(state: State) -> dict[str, Any] | None:
    """What the engine answers; of several on other machines their sums, and those with which something is wrong."""
    if state.engine.look is not None:
        return _pick_fields(state.engine.look, "health", "liveness", "running", "waiting")
    silent = {name for name, one in state.machines.items() if one.silent_since is not None}
    looks = [one.look for one in state.engines.values() if one.look is not None and one.look.host not in silent]
    odd = [look for look in looks if look.health != "ok"]
    known = {name: [n for one in looks if (n := getattr(one, name)) is not None] for name in ("running", "waiting")}
    sums = {name: sum(numbers) if numbers else None for name, numbers in known.items()}
    told = [f"{who('inference', look.host, look.index)}: {look.health}" for look in odd]
    health = odd[0].health if odd else "ok"
    return {"health": health, "liveness": None, **sums, "engines": len(looks), "odd": told} if looks else None


def _local_steps(state: State) -> list[dict[str, Any]]:
    """Those on this disk, and those that are whole only on the tier."""
    found = {one.step: _pick_fields(one, "step", "state", "reason", "size_bytes") for one in state.local.steps}
    for step in state.tier.waiting:
        known = found.get(step, {"size_bytes": 0})
        if known.get("state") != "complete":
            why = state.tier.failed or f"whole on the tier, {state.tier.folder}, and not yet on the run's own volume"
            found[step] = {"step": step, "state": "on-tier", "reason": why, "size_bytes": known["size_bytes"]}
    return [found[step] for step in sorted(found)]


def _setup_part(state: State, name: str) -> dict[str, Any]:
    part = state.setup[name]
    runs, seconds = part.took_s is None, state.now - part.since if part.took_s is None else part.took_s
    how = "running for" if runs else "failed after" if part.reason else "done after"
    told = f"{name}: {how} {span(seconds)}"
    return {"name": name, "running": runs, "seconds": seconds, "reason": part.reason, "told": told}


def _pick_fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _typical_step(state: State) -> float | None:
    times = state.books.learned.phases.get(STEP)
    return median(times.seconds[-9:]) if times else state.progress.duration_s


def goodput(state: State) -> dict[str, Any] | None:
    """The run's ledger, all pods together, up to now: seconds by category, and the effective training time ratio."""
    ledgers = {**state.books.others, state.journal or "this": ledger_until_now(state)}
    run = sum_ledgers(ledgers)
    if run.total_s <= 0:
        return None
    lost = {name: seconds for name, seconds in run.seconds.items() if name != PRODUCTIVE and seconds > 0}
    return {
        "ettr": run.share(PRODUCTIVE),
        "seconds": run.total_s,
        "pods": len(across(ledgers)),
        "categories": {name: round(seconds, 3) for name, seconds in run.seconds.items() if seconds},
        "lost_most_to": max(lost, key=lambda name: lost[name]) if lost else None,
        "steps_kept": run.steps_kept,
        "steps_lost": run.steps_lost,
    }


def incident(one: Incident | None, state: State) -> dict[str, Any] | None:
    """An incident and how long each part of it took, in seconds from its opening."""
    if one is None:
        return None
    end = one.closed if one.closed is not None else state.now

    def since_open(t: float | None) -> float | None:
        return round(t - one.opened, 3) if t else None

    return {
        "id": one.id,
        "cause": one.cause,
        "sentence": one.sentence,
        "opened": one.opened_wall,
        "closed": one.closed_wall,
        "seconds": round(end - one.opened, 3),
        "step": one.step,
        "resume_step": one.resume_step,
        "recovered_step": one.closed_step,
        "roots": [asdict(root) for root in one.roots],
        "decided_after": since_open(one.decided),
        "stopped_after": since_open(one.stopped),
        "relaunched_after": since_open(one.relaunched),
    }


def explain(state: State) -> dict[str, Any]:
    """Why the core thinks what it thinks: the verdict, the evidence with its age, the next deadline, the past."""
    verdict = judge(state) if state.live else None
    return {
        "sentence": verdict.sentence if verdict else "; ".join([state.why.rstrip("."), *_what_then(state)]),
        "verdict": {**asdict(verdict), "act": verdict.act} if verdict else None,
        "excuse": excuse(state),
        "mode": state.settings.mode,
        "paused": state.orders.paused,
        "would_do": belief.would_do(state, verdict) if verdict and verdict.act else "",
        "worthless": list(pinned_steps.findings(state).values()),
        "evidence": belief.evidence(state) if state.mode not in AT_REST else [],
        "forecast": belief.forecast(state),
        "deadline": _deadline_fields(state),
        "would": ledger_of_would(state),
        "history": [one.sentence for one in (*state.incidents.closed[-10:], state.incidents.open) if one is not None],
    }


def ledger_of_would(state: State) -> list[dict[str, Any]]:
    """What observing kept us from doing, newest last, and how it went on without us. Times are Unix time."""
    return [asdict(one) for one in state.observing.would]


def _deadline_at(state: State) -> dict[str, Any] | None:
    """What the core waits for, and the Unix time at which its patience ends."""
    waits_for = {"running": "step", "starting": "start", "backing-off": "retry"}.get(state.mode, "publish")
    ends = patience_ends(state, Watch(state.now))
    if ends is not None:
        return {"waits_for": waits_for, "at": state.wall + ends - state.now}
    fields = _deadline_fields(state)
    return fields and {"waits_for": waits_for, "at": state.wall + fields["seconds_left"]}


def _deadline_fields(state: State) -> dict[str, Any] | None:
    if state.mode == "running":
        extra = step_began(state) - state.progress.t
        left = step_limits(state).hard_s + extra - (state.now - state.progress.t)
        told = f"A new step: {explain_step_limits(state)}{_known_reasons(extra)}."
    elif state.mode == "starting":
        budget, extra = startup_budget(state), start_of_limit(state) - state.attempt.started
        left = budget + extra - (state.now - state.attempt.started)
        told = f"The first step after a start may take {span(budget)}{_known_reasons(extra)}."
    elif state.mode == "backing-off":
        told, left = "The next try.", state.recovery.backoff_until - state.now
    elif _last_publish(state):
        told = f"The store to take step {max(state.good_local(), default=0)}."
        left = publish_until(state) - state.now
    else:
        return None
    return {"sentence": told, "seconds_left": round(left, 1)}


def _known_reasons(extra_s: float) -> str:
    return f"; known reasons explain {span(extra_s)} more" if extra_s else ""
