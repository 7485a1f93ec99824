"""Pictures of a standstill: what GPUs and processes show while no token, rollout, file or byte moves, and for how long.

A collective that never ends, an orchestrator that waits for ever, a barrier of a save and a slow environment look much
the same. What tells them apart is what this run has shown while it was healthy: each picture has its own longest time,
learned from steps that were done (``still/NAME`` in ``Learned``). A picture that was never seen healthy has a short
limit. Where any part cannot be seen, there is no picture, and the slower rules of ``deadlines`` hold alone.
"""

from __future__ import annotations

from typing import Literal

from supervisor.core.deadlines import (
    FRESH_S,
    LEARNED_FROM,
    PAUSE_LONGEST,
    excuse,
    explanation_ended,
    knows_counters,
    save_of_trainer,
)
from supervisor.core.evolve import replace
from supervisor.core.facts import EffortLook
from supervisor.core.machines import rest_since, sees_all_gpus
from supervisor.core.phases import EACH_AT_FIRST, KEEP, learn
from supervisor.core.records import Learned
from supervisor.core.state import Activity, State
from supervisor.core.watch import Watch

Name = Literal["spins", "rests", "mixed", "cpu"]
FLOORS_S: dict[str, float] = {"spins": 90.0, "rests": 180.0, "mixed": 300.0, "cpu": 300.0}
"""Seconds that a picture may stand though it was never seen before. Ranks that all spin wait for each other; a rank
with a GPU that rests may do what only its CPU shows (``mixed``, ``cpu``). For ``rests`` that holds in a start."""
ELSEWHERE_S = 1200.0
"""At least so long all may rest in a step: environments that wait for a judge or a sandbox elsewhere look like a hang,
and no pause of before is a bound for theirs."""
SAVING_S = 300.0
"""At least so long a save may write nothing, neither by calls nor by the kernel's writing back: it waits for a mount.
That a save is told of explains silence; that it would be seen to write makes its silence a picture of its own."""
SAVING, STARTING = "save/", "start/"
START = 2.0  # times the floor, in a start: it loads, compiles and connects
FEW = 2.0  # times the floor, where less than KEEP steps were seen: the run may just not have paused yet
MOVING_CORES = 0.5  # of environments and helpers together: those that poll take less
MOVING_BYTES_S = float(1 << 20)  # logs, heartbeats and metrics stay far below
GAP_S = 45.0  # between two looks: what moved in a longer gap was not seen, so it is unknown
SHORTEST_S = 20.0  # two looks
AT_WORK_FACTOR = 3.0
"""Where engine, trainer and rollouts stand still and processes visibly move, it takes so many times as long until that
counts as a hang: they may do what the run waits for (tests, a slow save, a download), or only poll."""
AT_WORK = 2.0  # times the least that a GPU draws
KNOWN_POWER_W = 150.0  # a GPU that was never seen to draw more was never seen to work
PREFIX, SEEN = "still/", "seen"


def with_effort(state: State, fact: EffortLook) -> Activity | None:
    """What is known of the processes after a look. One that fails, or cannot see files or network, tells nothing."""
    activity, now = state.job.activity, state.now
    if fact.reason or fact.helper_cores is None or fact.file_bytes_s is None or fact.net_bytes_s is None:
        return activity
    cores = fact.helper_cores + sum(effort.cores for effort in fact.efforts if effort.role == "env")
    flushed = fact.flushed_bytes_s if _situation(state) == SAVING else 0.0
    rates = (fact.file_bytes_s, fact.net_bytes_s, MOVING_BYTES_S if flushed is None else flushed)
    moves = cores >= MOVING_CORES or max(rates) >= MOVING_BYTES_S
    gap_s = now - activity.seen_t if activity is not None else GAP_S
    if activity is None or gap_s > GAP_S:
        return Activity(now, now, moves)
    # Work shows at two looks in a row; a heartbeat, a log that is rotated or a collector of garbage at one. The sensor
    # speaks on change, so what it told last stood until now.
    moved = activity.moves and (moves or gap_s > SHORTEST_S)
    return replace(activity, seen_t=now, moved_t=now if moved else activity.moved_t, moves=moves)


def name_picture(state: State) -> str:
    """The present picture, "" while there is none."""
    return state.job.activity.picture if state.job.activity is not None else ""


def sees_processes(state: State) -> bool:
    """Is it known at present what the job's processes do, on all of its machines?"""
    activity = state.job.activity
    return activity is not None and state.now - activity.seen_t <= GAP_S


def processes_moved(state: State, until: float) -> float:
    """When environments, files or network of the job last moved, ``until`` at most; 0.0 where it was never seen."""
    return min(state.job.activity.moved_t, until) if state.job.activity is not None else 0.0


def engines_worked(state: State, watch: Watch) -> float | None:
    """When the engine, or one of several, last made a token; None where the counters of one are unknown."""
    each = [*state.engines.values()] or [state.engine]
    return max(one.worked_t for one in each) if all(knows_counters(one, watch) for one in each) else None


def _sees_all(state: State) -> bool:
    """Would a picture be seen now if there were one? A step of which this was never so teaches nothing.

    Only of a GPU that was seen at rest and at work is it known which of them it does.
    """
    trainers = [memory for memory in state.gpus.by_uuid.values() if memory.gpu.role == "trainer"]
    known = all(
        one.power_low_w is not None and one.power_high_w > max(KNOWN_POWER_W, AT_WORK * one.power_low_w)
        for one in trainers
    )
    return bool(trainers) and known and sees_processes(state) and engines_worked(state, Watch(state.now)) is not None


def trainer_rests_since(state: State) -> float | None:
    """Since when all of the trainer's GPUs have drawn little; None: one works, or it is unknown."""
    return rest_since(state, "trainer") if sees_all_gpus(state) else None


def _look_at_trainer(state: State) -> Name | None:
    """What the trainer shows, given that its GPUs draw little; None: unknown."""
    loaded = [m.loaded_since is not None for m in state.gpus.by_uuid.values() if m.gpu.role == "trainer"]
    effort = state.job.efforts.get("trainer")
    if not loaded or effort is None:
        return None
    if any(loaded):
        return "spins" if all(loaded) else "mixed"
    return "cpu" if effort.last.cores >= MOVING_CORES else "rests"


def still_since(state: State, watch: Watch) -> float | None:
    """Since when no part has moved and nothing known explained it; None: one moves, or cannot be seen."""
    rests = trainer_rests_since(state)
    activity, job = state.job.activity, state.job
    if rests is None or activity is None or not sees_processes(state):
        return None
    worked_t = engines_worked(state, watch)
    if worked_t is None:
        return None
    began = state.attempt.started if state.progress.step is None else state.progress.t
    moved = [began, rests, activity.moved_t, worked_t, explanation_ended(state, watch, _seen_phases(state))]
    moved += [growth.t for growth in job.growth.values()]
    # A count that is not told at present says nothing; the other parts do.
    moved += [job.work.moved_t] if job.work is not None and not watch.over(job.work.t, FRESH_S) else []
    return max(moved)


def time_picture(state: State, watch: Watch) -> tuple[float, float] | None:
    """Since when the present picture has stood, and for how many seconds it may; None: there is none, or unknown."""
    since, limit_s = still_since(state, watch), picture_limit(state)
    if since is None or limit_s is None or excuse(state, watch, _seen_phases(state)):
        return None
    return since, limit_s


def picture_limit(state: State) -> float | None:
    """For how many seconds the present picture may stand; None: there is none, or too little is known of this run."""
    name, here, learned = name_picture(state), _situation(state), state.books.learned.phases
    if not name:
        return None
    seen, times = learned.get(_key(here, SEEN)), learned.get(_key(here, name))
    if seen is None or seen.count < {STARTING: 1, SAVING: LEARNED_FROM}.get(here, EACH_AT_FIRST):
        return None
    if here == STARTING:
        floor_s = START * FLOORS_S[name]
    else:
        few = FEW if seen.count < (EACH_AT_FIRST if here == SAVING else KEEP) else 1.0
        floor_s = few * (max(FLOORS_S[name], SAVING_S) if here == SAVING else FLOORS_S[name])
        floor_s = max(floor_s, ELSEWHERE_S) if name == "rests" else floor_s
    return floor_s if times is None else max(floor_s, PAUSE_LONGEST * times.longest_s)


def _situation(state: State) -> str:
    """Pictures of a start, of a save and of a step say different things: each is learned by itself."""
    if state.mode == "starting":
        return STARTING
    return SAVING if save_of_trainer(state) is not None else ""


def _seen_phases(state: State) -> tuple[str, ...]:
    """Phases that explain nothing here: a save would be seen to write."""
    return ("checkpoint",) if _situation(state) == SAVING else ()


def after_look(state: State, activity: Activity) -> tuple[Activity, dict[str, float]]:
    """After a look at the processes: what it shows, and for how long that has stood in this step at most (s).

    The times are learned once the step is done.
    """
    shows, pictures = _look_at_trainer(state), state.job.pictures
    if shows is None:
        return activity, pictures
    picture = shows if shows == activity.shows else activity.picture
    activity = replace(activity, shows=shows, picture=picture)
    here = _situation(state)
    times = {_key(here, SEEN): 1.0} if _sees_all(state) else {}
    since = still_since(state, Watch(state.now))
    if since is not None and picture and state.now - since >= SHORTEST_S:
        times[_key(here, picture)] = state.now - since
    longer = {key: seconds for key, seconds in times.items() if pictures.get(key, 0.0) < seconds}
    return activity, {**pictures, **longer} if longer else pictures


def learn_pictures(learned: Learned, pictures: dict[str, float]) -> Learned:
    """A step is done: what stood meanwhile was healthy, or lifted by itself."""
    for key, seconds in pictures.items():
        learned = learn(learned, key, seconds)
    return learned


def _key(here: str, name: str) -> str:
    return f"{PREFIX}{here}{name}"
