"""Which effects are under way, one of a kind: the only module that writes ``State.busy``.

An action that is ordered takes its slot; the fact that answers it frees the slot again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.state import Busy, State

STALE = -1  # the "step" of a pruning that deletes only what belongs to no step
_NOTHING = Busy()
_EVERY_SLOT = tuple(vars(_NOTHING))
_START = ("start", "waits")
_OF_A_JOB = (*_START, "stop", "restore")

_TAKES: dict[type, Callable[[Any], dict[str, Any]]] = {
    a.Start: lambda action: {"start": action.attempt},
    a.Stop: lambda action: {"stop": action.attempt, "start": None, "waits": ""},
    a.Publish: lambda action: {"publish": action.step},
    a.PruneLocal: lambda action: {"prune_local": action.step},
    a.PruneStale: lambda action: {"prune_local": STALE},
    a.PruneStore: lambda action: {"prune_store": action.step},
    a.Restore: lambda action: {"restore": action.step},
    a.RunHook: lambda action: {"hook": action.hook},
    a.KeepLineage: lambda action: {"lineage": len(action.happened)},
    a.KeepHolds: lambda action: {"holds": True},
}
_OF_ACTION = {
    "Start": _START,
    "Stop": ("stop",),
    "PruneLocal": ("prune_local",),
    "PruneStale": ("prune_local",),
    "PruneStore": ("prune_store",),
    "Restore": ("restore",),
    "RunHook": ("hook",),
}
_OF_LANE = {
    "publish": ("publish", "lineage"),
    "prune": ("prune_local",),
    "pin": ("holds",),
    "prune-store": ("prune_store",),
    "restore": ("restore",),
    "setup": ("restore",),  # a restore that waits for the trainer is done on the lane of [setup]
}


def order_effect(state: State, action: a.Action) -> tuple[State, list[a.Action]]:
    """Ask for ``action``: its slot is taken until a fact answers it."""
    return replace(state, busy=replace(state.busy, **_TAKES[type(action)](action))), [action]


def free_slots(state: State, fact: f.Fact) -> State:
    """Free the slots of the effects that ``fact`` answers, and keep what a start waits for."""
    if isinstance(fact, f.StartWaits) and state.busy.start is not None:
        return replace(state, busy=replace(state.busy, waits=fact.sentence))
    answered = _ANSWERED_BY.get(type(fact))
    return state if answered is None else _free(state, answered(state, fact))


def forget_effects(state: State) -> State:
    """A journal was lost: what was under way is not known any more."""
    return _free(state, _EVERY_SLOT)


def forget_job_effects(state: State) -> State:
    """Another job than the one that was begun is watched."""
    return _free(state, _OF_A_JOB)


def _free(state: State, slots: tuple[str, ...]) -> State:
    if not slots:
        return state
    return replace(state, busy=replace(state.busy, **{slot: getattr(_NOTHING, slot) for slot in slots}))


def _of_prune(state: State, fact: f.Pruned | f.PruneFailed) -> tuple[str, ...]:
    return ("prune_store",) if fact.where == "store" else ("prune_local",)


def _of_crash(state: State, fact: f.EffectCrashed) -> tuple[str, ...]:
    """A defect in one effect must not stop that kind of effect for ever."""
    if fact.lane == "job":
        return ("stop",) if state.mode == "stopping" else _START
    if fact.lane == "hook":
        return ("hook",) if state.mode == "finishing" else ()
    return _OF_LANE.get(fact.lane, ())


_ANSWERED_BY: dict[type, Callable[[State, Any], tuple[str, ...]]] = {
    f.DaemonStarted: lambda state, fact: _EVERY_SLOT,  # the effects of the daemon before are gone
    f.AttemptStarted: lambda state, fact: _START,
    f.StartFailed: lambda state, fact: _START,
    f.AttemptStopped: lambda state, fact: ("stop",) if state.mode == "stopping" else (),
    f.Published: lambda state, fact: ("publish",),
    f.PublishFailed: lambda state, fact: ("publish",),
    f.Pruned: _of_prune,
    f.PruneFailed: _of_prune,
    f.Restored: lambda state, fact: ("restore",),
    f.RestoreFailed: lambda state, fact: ("restore",),
    f.HookDone: lambda state, fact: ("hook",) if state.mode == "finishing" else (),
    f.LineageKept: lambda state, fact: ("lineage",),
    f.LineageFailed: lambda state, fact: ("lineage",),
    f.HoldsKept: lambda state, fact: ("holds",),
    f.Suppressed: lambda state, fact: _OF_ACTION.get(fact.action, ()),
    f.EffectCrashed: _of_crash,
}
