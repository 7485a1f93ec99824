"""Fold a look at the engine: what it answers, whether its counters move, and whether work waits for it."""

from __future__ import annotations

from math import isnan

from supervisor.core import facts as f
from supervisor.core.deadlines import PAUSED_BY_S, explained_s, knows_counters
from supervisor.core.evolve import replace, settle
from supervisor.core.observe_job import note_updated
from supervisor.core.phases import ENGINE_IDLE, ENGINE_UP
from supervisor.core.state import EngineMemory, EngineUnit, State, Work
from supervisor.core.watch import Watch

CANARY_COUNT = 3  # tokens or iterations that a one-token request of ours may take
CANARY_AFTER = 0.5  # of hang_s: so long counters stand still before the sensor asks for one
TOLD_S = 60.0  # what the orchestrator counted longer ago says nothing of what waits for the engine now


def observe_engine(state: State, fact: f.EngineLook) -> State:
    """Into the lone engine, or into one of several. What all engines teach is learned of a lone one."""
    old = state.engines.get(fact.place, EngineMemory()) if fact.host else state.engine
    new = _note_health(state, replace(old, look=fact, look_t=state.now), fact)
    new = _note_answers(new, fact, state.now)
    if fact.liveness == "ok":
        _note_answer_in_update(state, old)
    new = _note_count(state, old, new, fact)
    if fact.canary == "ok":
        new = replace(new, canary_misses=0, moved_t=state.now)  # it made a token for us, whatever its counters say
    if fact.engines or old.units:
        new = replace(new, units={str(u.index): _unit(old.units.get(str(u.index)), u, state.now) for u in fact.engines})
    new = _note_work(state, new, fact)
    if fact.host:
        return replace(state, engines={**state.engines, fact.place: new})
    settle(state, engine=new)
    return state


def _note_health(state: State, engine: EngineMemory, fact: f.EngineLook) -> EngineMemory:
    if fact.health == "ok":
        if not engine.ever_ok and state.mode == "starting" and state.progress.timed and not fact.host:
            settle(state, books=state.books.with_time(ENGINE_UP, state.now - state.attempt.started))
        return replace(engine, ever_ok=True, bad_since=None, bad_looks=0, slow_since=None)
    if fact.health == "timeout":
        # A server that is late with /health is late with all that it is asked: none of it speaks of the engine.
        since = engine.slow_since if engine.slow_since is not None else state.now
        return replace(engine, slow_since=since, liveness_misses=0, canary_misses=0)
    if fact.health in ("bad", "refused"):
        since = engine.bad_since if engine.bad_since is not None else state.now
        return replace(engine, bad_since=since, bad_looks=engine.bad_looks + 1)
    return engine


def _note_answers(engine: EngineMemory, fact: f.EngineLook, now: float) -> EngineMemory:
    """What /liveness and our own request for a token say; nothing where the server is slow, whatever it is asked."""
    slow = fact.health == "timeout"
    if fact.liveness in ("ok", "absent"):
        engine = replace(engine, liveness_misses=0, lively_t=now if fact.liveness == "ok" else engine.lively_t)
    elif fact.liveness in ("bad", "timeout") and not slow:
        engine = replace(engine, liveness_misses=engine.liveness_misses + 1)
    if fact.canary in ("timeout", "bad") and not slow:
        engine = replace(engine, canary_misses=engine.canary_misses + 1)
    return engine


def _note_answer_in_update(state: State, old: EngineMemory) -> None:
    """It answers from within. That ends an update where it has no tokens to make, or where none can be counted."""
    update, hang_s, known = state.job.update, state.settings.hang, knows_counters(old, Watch(state.now))
    if update is None or (known and old.work_since is not None):
        return
    silent_s = state.now - max(old.moved_t, old.lively_t)
    # An idle one answers before its pause as well, which may be long in coming.
    if not known or silent_s >= hang_s or state.now - update.t >= PAUSED_BY_S:
        note_updated(state, silent_s, waited=silent_s >= hang_s)


def _note_count(state: State, old: EngineMemory, engine: EngineMemory, fact: f.EngineLook) -> EngineMemory:
    count, now = fact.iterations if fact.iterations is not None else fact.generation_tokens, state.now
    if count is None or isnan(count):  # no number differs from itself for ever
        return engine
    if count == engine.count:
        return replace(engine, counted_t=now)
    # Backwards means a restarted engine: a new base, and no proof of standing still either.
    began_anew = engine.count is None or count < engine.count
    new = replace(
        engine, counted_t=now, count=count, moved_t=now, canary_misses=0, ours=0.0 if began_anew else engine.ours
    )
    # Tokens may be our own canary's where it was time for one, or one was answered; else they are the job's.
    answered = old.look is not None and old.look.canary == "ok"
    ours = answered or now - engine.moved_t >= state.settings.hang * CANARY_AFTER
    if engine.count is not None and ours and 0 < count - engine.count <= CANARY_COUNT and not _made_many(old, fact):
        return replace(new, ours=engine.ours + count - engine.count)
    still_s = max(1.0, engine.counted_t - engine.moved_t)  # a pause that no look saw is a short one
    note_updated(state, still_s, waited=_keeps_work_waiting(old, state.settings.hang))
    idle_s = now - engine.worked_t - explained_s(state, engine.worked_t)
    # Of one whose counters could not be read meanwhile, it is not known that it rested.
    if knows_counters(old, Watch(now)) and idle_s >= state.settings.hang and state.live and not fact.host:
        settle(state, books=state.books.with_time(ENGINE_IDLE, idle_s))
    return replace(new, worked_t=now)


def _made_many(old: EngineMemory, fact: f.EngineLook) -> bool:
    """Do its tokens, where they are counted as well, show that few iterations answered many requests?"""
    before, after = old.look.generation_tokens if old.look is not None else None, fact.generation_tokens
    return before is not None and after is not None and after - before > CANARY_COUNT


def _keeps_work_waiting(engine: EngineMemory, hang_s: float) -> bool:
    """Does work wait for an engine that does not answer from within while it stands still? Else it is idle."""
    silent = not answers_from_within(engine, hang_s) or engine.counted_t - engine.lively_t >= hang_s / 2
    return engine.work_since is not None and silent


def answers_from_within(engine: EngineMemory, hang_s: float) -> bool:
    """Has /liveness been answered well after its counters moved last? Then it is idle, rather than stuck."""
    return engine.lively_t > engine.moved_t + hang_s / 2


def _note_work(state: State, engine: EngineMemory, fact: f.EngineLook) -> EngineMemory:
    work = state.job.work
    # Of several engines, it is not told which one the job waits for.
    told = work if work is not None and state.now - work.t < TOLD_S and not fact.host else None
    if waiting_work(fact, told):
        return engine if engine.work_since is not None else replace(engine, work_since=state.now)
    if fact.health == "ok" and (fact.running is not None or fact.connections is not None):
        return replace(engine, work_since=None)
    return engine


def _unit(old: EngineUnit | None, unit: f.EngineCount, now: float) -> EngineUnit:
    busy = (unit.running or 0) > 0 or (unit.waiting or 0) > 0
    if old is None or unit.iterations != old.count:
        return EngineUnit(unit.iterations, now, now, now if busy else None)
    since = old.busy_since if old.busy_since is not None else now
    return EngineUnit(old.count, old.moved_t, now, since if busy else None)


def waiting_work(look: f.EngineLook, work: Work | None) -> bool:
    """Does work wait for the engine? Its own counts can stay 0 on a stopped engine, so others are asked as well."""
    if (look.running or 0) > 0 or (look.waiting or 0) > 0:
        return True
    if look.host and look.running is not None and look.waiting is not None:
        return False  # one of several may be idle while a router keeps its connections open
    if look.connections is not None:
        return look.connections > 0  # without a connection, rollouts in flight wait for something else
    return work is not None and work.inflight > 0
