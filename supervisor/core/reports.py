"""What is said of a fact of which nothing else follows: one function a fact, its sentences side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import facts as f
from supervisor.core import pinned_steps
from supervisor.core.moves import Actions, say
from supervisor.core.reminders import pods_without_progress
from supervisor.core.state import State
from supervisor.core.words import size, span


def _report_publish(before: State, state: State, fact: f.Published) -> Actions:
    rate = fact.sent_bytes / fact.seconds if fact.seconds > 0 else 0
    how = f" ({size(rate)}/s)" if fact.sent_bytes else ", nothing had to be sent"
    sentence = f"Published step {fact.step}: {size(fact.size_bytes)} in {span(fact.seconds)}{how}."
    return [say("published", sentence, step=fact.step, bytes=fact.size_bytes)]


def _report_failed_publish(before: State, state: State, fact: f.PublishFailed) -> Actions:
    if state.mode == "disk-full" and before.publishing.reason == fact.reason:
        return []  # it is tried every few seconds then
    wait = "" if fact.step_changed else f" Next try in {span(state.publishing.after - state.now)}."
    level = "info" if fact.step_changed else ("error" if fact.permanent else "warning")
    sentence = f"Publishing step {fact.step} failed: {fact.reason.rstrip('.')}.{wait}"
    return [say("publish-failed", sentence, level, step=fact.step)]


def _report_pruning(before: State, state: State, fact: f.Pruned) -> Actions:
    if fact.step < 0 and not fact.freed_bytes:
        return []
    place = "from the local disk" if fact.where == "local" else "from the store"
    what = f"step {fact.step} {place}" if fact.step >= 0 else "what is left of steps that are gone"
    freed = f", {size(fact.freed_bytes)} free again" if fact.freed_bytes else ""
    return [say("pruned", f"Deleted {what}{freed}.", step=fact.step, bytes=fact.freed_bytes, where=fact.where)]


def _report_failed_pruning(before: State, state: State, fact: f.PruneFailed) -> Actions:
    what = f"step {fact.step}" if fact.step >= 0 else "old rollouts"
    return [say("prune-failed", f"Could not delete {what} ({fact.where}): {fact.reason}", "warning")]


def _report_restore(before: State, state: State, fact: f.Restored) -> Actions:
    proof = "every byte verified" if fact.verified else "it has no manifest, so sizes and loadability were checked"
    sentence = f"Restored step {fact.step} from the store: {size(fact.size_bytes)} in {span(fact.seconds)}, {proof}."
    return [say("restored", sentence, step=fact.step, bytes=fact.size_bytes)]


def _store_records(before: State, state: State, fact: f.StoreRecords) -> Actions:
    sentence = pods_without_progress(state.books.others)
    return [say("pods", sentence, "warning")] if sentence else []


def _engine_started(before: State, state: State, fact: f.EngineStarted) -> Actions:
    return [say("engine", f"The inference server is launched ({fact.engine}): {fact.command}")]


def _config_changed(before: State, state: State, fact: f.ConfigChanged) -> Actions:
    if fact.same:
        sentence = f"{fact.path} is again as the run was started with it: no change is left to take."
        return [say("config-changed", sentence)]
    if fact.path in before.orders.config_changed:
        return []
    sentence = (
        f"{fact.path} was changed on disk; the run goes on with the snapshot it was started with. "
        "Take the change with: supervisorctl restart --new-config"
    )
    return [say("config-changed", sentence, "warning")]


def _clock_jumped(before: State, state: State, fact: f.ClockJumped) -> Actions:
    sentence = f"The host slept or its clock jumped by {span(abs(fact.seconds))}: no deadline counts that."
    return [say("clock-jumped", sentence, "warning")]


def _report_wait(before: State, state: State, fact: f.StartWaits) -> Actions:
    begins = state.busy.waits and not before.busy.waits  # machines come one by one
    return [say("start-waits", fact.sentence, "warning")] if begins else []


REPORTS: dict[type, Callable[[State, State, Any], Actions]] = {
    f.Published: _report_publish,
    f.PublishFailed: _report_failed_publish,
    f.Pruned: _report_pruning,
    f.PruneFailed: _report_failed_pruning,
    f.Restored: _report_restore,
    f.StoreRecords: _store_records,
    f.EngineStarted: _engine_started,
    f.ConfigChanged: _config_changed,
    f.ClockJumped: _clock_jumped,
    f.StartWaits: _report_wait,
    f.Remark: lambda before, state, fact: [say(fact.event, fact.sentence, fact.level)],
    f.PinKept: pinned_steps.report_pin,
    f.HoldsKept: pinned_steps.report_holds,
    f.StoreChecked: pinned_steps.report_check,
}
"""Facts that are only told. None of these changes the state."""
