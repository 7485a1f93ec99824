"""What has to hold of each decision, whatever the pod: its evidence, its deadline, its books, its being a value."""

from __future__ import annotations

import json
import math
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.account import ledger_until_now
from supervisor.core.codec import decode, encode
from supervisor.core.decide import Decision, decide
from supervisor.core.observe import observe
from supervisor.core.phases import HARD_LONGEST, WARM
from supervisor.core.proof import Verdict
from supervisor.core.reactions import react
from supervisor.core.state import State
from supervisor.core.verdicts import judge

CODEC_EVERY = 13  # observations: the whole state there and back is slow


def decision(before: State, observation: f.Observation, made: Decision, began: float) -> None:
    """``began``: time of the journal's first observation."""
    state = made.state
    assert made.deadline > observation.t
    if state.live:
        assert math.isfinite(made.deadline)
    booked = ledger_until_now(state)
    assert math.isclose(booked.total_s, state.now - began, abs_tol=1e-3), booked.seconds
    assert all(seconds >= -1e-6 for seconds in booked.seconds.values()), booked.seconds
    for action in made.actions:
        if isinstance(action, a.Say) and action.event == "verdict" and dict(action.fields).get("incident"):
            evidence(before, observation, str(dict(action.fields)["verdict"]))
    if int(observation.t * 7) % CODEC_EVERY == 0:
        again = decide(survives_the_codec(before), decode(as_json(observation)))
        the_same(again.state, state)
        assert json.dumps(encode(again.actions)) == json.dumps(encode(made.actions))


def evidence(before: State, observation: f.Observation, cause: str) -> None:
    """Nobody is stopped for one signal: proof, or two signals of different kinds, or the hard limit of silence."""
    seen = observe(before, observation)
    seen, _ = react(before, seen, observation.fact)
    if cause == "disk-full":
        assert seen.disk.free is not None
        assert seen.disk.free < seen.settings.stop_below_bytes + max(
            (s.size_bytes for s in seen.local.steps), default=0
        )
        return
    verdict = judge(seen)
    assert verdict.act
    assert verdict.cause == cause
    assert convicts(seen, verdict), verdict


def convicts(state: State, verdict: Verdict) -> bool:
    if verdict.kind in ("exited", "finished"):
        return state.job.ended is not None or bool(state.job.finishes)
    grace = state.settings.engine_grace
    own = state.own
    if verdict.cause == "engine-gone" and own.wanted and not own.alive and not own.asked:
        return True  # it was never launched
    if any(state.now - gone.t >= grace for gone in state.job.gone) and not verdict.signals:
        return True
    if verdict.cause == "step-overdue":
        times = state.books.learned.phases.get("step")
        few = times is None or times.count < WARM
        hard = state.settings.step_ceiling if few or times is None else HARD_LONGEST * times.longest_s
        return state.now - state.progress.t >= min(hard, state.settings.step_ceiling)
    if verdict.cause == "startup-overdue":
        return state.now - state.attempt.started >= min(600.0, state.settings.startup)
    if verdict.cause == "fresh-start":
        return state.job.scratch != "" and (state.progress.step or 0) < (state.attempt.resume_step or 0)
    return len({signal.kind for signal in verdict.signals}) >= 2


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


def the_same(one: Any, other: Any) -> None:
    if one != other:
        # NaN does not equal itself, and its name does.
        mine, theirs = encode(one), encode(other)
        different = {name for name in mine if json.dumps(mine[name]) != json.dumps(theirs[name])}
        assert not different, {name: (mine[name], theirs[name]) for name in different}


def survives_the_codec(state: State) -> State:
    again = decode(as_json(state))
    the_same(again, state)
    assert isinstance(again, State)
    return again
