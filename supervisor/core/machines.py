"""A run over several machines: what is heard of each, what ended where, and which a start leaves out if it can."""

from __future__ import annotations

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.facts import Role
from supervisor.core.state import GpuMemory, Host, Machine, State

BAD_AFTER = 2  # deaths on one machine, or starts that failed there: once may happen to any
HEARD_WITHIN_S = 30.0  # after a daemon's start: agents come back one by one
END_THE_JOB = ("launcher", "job", "trainer")


def look(state: State, fact: f.MachineLook) -> State:
    """What is heard of one machine."""
    known = _find(state, fact.host)
    since = None if fact.silent_s is None else known.silent_since or state.now - fact.silent_s
    one = replace(known, speaks=fact.silent_s is None, silent_since=since, seat=fact.seat or known.seat)
    return _with(state, fact.host, one)


def _find(state: State, name: str) -> Machine:
    return state.machines.get(name, Machine())


def _with(state: State, name: str, one: Machine) -> State:
    return replace(state, machines={**state.machines, name: one})


def successor(state: State, name: str) -> str | None:
    """The machine that is heard and was made in place of this one: it is made when that one has gone, or has to go."""
    seat = state.machines[name].seat
    same = (other for other, one in state.machines.items() if one.seat == seat and one.speaks and other != name)
    return next(same, None) if seat else None


def note_gpus(state: State, host: str, *, seen: bool, uuids: tuple[str, ...] | None = None) -> State:
    """Are its GPUs known now, and which are they?"""
    known = _find(state, host)
    return _with(state, host, replace(known, sees_gpus=seen, gpus=known.gpus if uuids is None else uuids))


def host_of(state: State, name: str) -> Host:
    """What is known of the memory of one machine; "": of the daemon's own."""
    return _find(state, name).host if name else state.host


def note_host(state: State, name: str, host: Host) -> State:
    """Remember what a machine's agent told of its memory."""
    known = _find(state, name)
    return _with(state, name, replace(known, host=host))


def list_hosts(state: State) -> dict[str, Host]:
    """By name, "" for the daemon's own."""
    return {"": state.host, **{name: one.host for name, one in state.machines.items()}}


def list_ooms(state: State) -> dict[str, float]:
    """When the kernel last ended a process for want of memory, by machine that the attempt uses ("": the daemon's)."""
    hosts = {"": state.host, **{name: state.machines[name].host for name in state.machines_used()}}
    return {name: one.oom_t for name, one in hosts.items() if one.oom_t is not None}


def find_oom(state: State, t: float, within_s: float, host: str = "") -> str | None:
    """Where that was so near to ``t``, or None; on ``host`` if that is given."""
    near = (name for name, oom_t in list_ooms(state).items() if abs(t - oom_t) <= within_s)
    return next((name for name in near if host in {"", name}), None)


def without_times(memory: GpuMemory) -> GpuMemory:
    """What is remembered of a GPU that cannot be seen now."""
    return replace(memory, fallen_since=None, rests_since=None, loaded_since=None)


def sees_all_gpus(state: State) -> bool:
    """Are the GPUs of each machine of the attempt known? On one machine there is nothing else to ask."""
    return all(state.machines[name].sees_gpus for name in state.machines_used())


def rest_since(state: State, role: Role) -> float | None:
    """Since when all GPUs of this role that are seen have drawn little; None: one works, or it is unknown."""
    each = [m.rests_since for m in state.gpus.by_uuid.values() if m.gpu.role == role]
    known = [since for since in each if since is not None]
    return max(known) if known and len(known) == len(each) else None


def note_down(state: State, fact: f.MachineDown) -> State:
    """What the engine that gave it says."""
    return _with(state, fact.host, replace(_find(state, fact.host), down=fact.why))


def note_bad_gpu(state: State, host: str) -> State:
    """A GPU of it needs a reset: a restart there does not help."""
    return _with(state, host, replace(_find(state, host), bad=True))


def is_gone(state: State, fact: f.ProcessGone) -> bool:
    """Is it known already that this very component has ended?"""
    place = (fact.role, fact.host, fact.index)
    return bool(fact.host) and any((one.role, one.host, one.index) == place for one in state.job.gone)


def ends_the_job(fact: f.ComponentExited) -> bool:
    """Does the job end with it, as it does with the launcher on one machine?"""
    return fact.role in END_THE_JOB and fact.index == 0


def blame(state: State, host: str) -> State:
    """Something died on this machine, or the machine itself."""
    if not host:
        return state
    known = _find(state, host)
    return _with(state, host, replace(known, deaths=known.deaths + 1))


def note_failed_start(state: State, host: str, *, for_good: bool) -> State:
    """A start failed on this machine. ``for_good``: it cannot start a process; until one is started there."""
    if not host:
        return state
    known = _find(state, host)
    failed = max(BAD_AFTER, known.failed_starts) if for_good else known.failed_starts + 1
    return _with(state, host, replace(known, failed_starts=failed))


def cannot_start(state: State, host: str) -> bool:
    """Has a start failed on this machine for good, or several in a row?"""
    return host in state.machines and state.machines[host].failed_starts >= BAD_AFTER


def to_avoid(state: State) -> tuple[str, ...]:
    """Machines that a start takes only where there is no other, the worst last."""
    bad = {
        name: one
        for name, one in state.machines.items()
        if one.deaths >= BAD_AFTER or cannot_start(state, name) or one.bad or one.down or one.silent_since is not None
    }
    return tuple(sorted(bad, key=lambda name: (bad[name].deaths + bad[name].failed_starts, name)))


def has_no_other(state: State, host: str) -> bool:
    """Has a GPU of this machine to be reset, and is no other one there in its place?"""
    just_begun = state.now - state.began < HEARD_WITHIN_S  # else what was not heard is of another allocation
    idle = {
        name
        for name, one in state.machines.items()
        if one.attempt != state.attempt.number and (one.speaks or (just_begun and one.silent_since is None))
    }
    return host in state.machines and state.machines[host].bad and idle <= {*to_avoid(state)}
