"""What people should hear about the machine before it is a failure. Nothing is done about it; each is said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from supervisor.core.evolve import replace
from supervisor.core.facts import HostLook
from supervisor.core.machines import list_hosts
from supervisor.core.moves import Actions, say
from supervisor.core.state import Host, State
from supervisor.core.words import size, span

LITTLE_MEMORY = 0.05
HIGH_PRESSURE = 40.0  # percent of the last ten seconds
MANY_FILES = 0.85
LITTLE_SHM = 0.05
BLIND_S = 120.0
SLOWED_S = 600.0  # a short peak of heat is usual
GONE_BELOW = 0.8  # a warning is taken back only well below its threshold, so that it is not said again and again


def warn(before: State, state: State) -> tuple[State, Actions]:
    """Say what is new about host and GPUs, and take back what is over."""
    warned, earlier = state.host.warned, list_hosts(before)
    news = {host: one for host, one in list_hosts(state).items() if one is not earlier.get(host)}
    present = dict(_gpus(state))
    # Of machines of which this fact says nothing, what was said stands.
    present |= {name: "" for name in warned if _kind(name) in _OF_HOST and _where(name) not in news}
    for host, one in news.items():
        present |= dict(_host(host, one.look, warned))
    acts: Actions = [say("warning", sentence, "warning") for name, sentence in present.items() if name not in warned]
    acts += [say("cleared", _over(name)) for name in warned if name not in present]
    for host, one in news.items():
        if one.oom_t is not None and earlier.get(host, Host()).oom_t != one.oom_t:
            where = f" on {host}" if host else ""
            told = f"The kernel ended a process{where} because memory was full (OOM kill)."
            if state.tier.over != before.tier.over:
                told += (
                    f" Checkpoints lay in memory ({state.tier.folder}): the next start saves on the run's own volume."
                )
            acts.append(say("warning", told, "warning"))
    return (replace(state, host=replace(state.host, warned=tuple(present))) if acts else state), acts


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _where(name: str) -> str:
    return name.partition(":")[2]


def _over(name: str) -> str:
    over = _OVER[_kind(name)]
    return f"{_where(name)}: {over}" if _where(name) and _kind(name) in _OF_HOST else over


_OVER = {
    "memory": "The host has memory again.",
    "pressure": "The host's tasks no longer wait for memory.",
    "files": "Open files are well below their limit again.",
    "shm": "Shared memory has room again.",
    "slowed": "A GPU that was slowed runs at its clocks again.",
    "blind": "The GPU driver answers again.",
    "gpu": "A new attempt: what was said of its GPU is no longer held against it.",
}


_OF_HOST = ("memory", "pressure", "files", "shm")


def _host(name: str, host: HostLook | None, warned: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for kind, sentence in _short_of(host, [one for one in _OF_HOST if _key(one, name) in warned]) if host else ():
        yield _key(kind, name), f"{name}: {sentence}" if name else sentence


def _key(kind: str, host: str) -> str:
    return f"{kind}:{host}" if host else kind


def _short_of(host: HostLook, warned: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is nearly used up, and a sentence."""

    def beyond(name: str, value: float, limit: float) -> bool:
        return value >= (limit * GONE_BELOW if name in warned else limit)

    if host.memory_total_bytes and host.memory_available_bytes is not None:
        used = 1 - host.memory_available_bytes / host.memory_total_bytes
        if beyond("memory", used, 1 - LITTLE_MEMORY):
            left = f"{size(host.memory_available_bytes)} of {size(host.memory_total_bytes)}"
            yield "memory", f"The host has little memory left ({left}): the kernel will end a process when it is full."
    if host.memory_pressure is not None and beyond("pressure", host.memory_pressure, HIGH_PRESSURE):
        yield "pressure", f"The host's tasks waited for memory {host.memory_pressure:.0f} % of the last 10 s."
    limit = host.open_files_limit
    if host.open_files is not None and limit and beyond("files", host.open_files / limit, MANY_FILES):
        whose = f" by {host.open_files_of}" if host.open_files_of else ""
        text = f"{host.open_files} of {limit} files are open{whose}: at the limit each new connection fails."
        yield "files", f"{text} Raise job.nofile and restart at a good moment."
    if host.shm_total_bytes and host.shm_free_bytes is not None:
        used = 1 - host.shm_free_bytes / host.shm_total_bytes
        if beyond("shm", used, 1 - LITTLE_SHM):
            room = f"{size(host.shm_free_bytes)} of {size(host.shm_total_bytes)} free"
            text = f"Shared memory (/dev/shm) is nearly full ({room}): vLLM and data loaders stall or die when it is."
            yield "shm", f"{text} Give the container more (docker run --shm-size)."


def _gpus(state: State) -> Iterator[tuple[str, str]]:
    since = state.gpus.unseen_since
    if since is not None and state.gpus.by_uuid and state.now - since >= BLIND_S:
        yield "blind", f"The GPU driver has not answered for {span(state.now - since)}: {state.gpus.reason}"
    for memory in state.gpus.by_uuid.values():
        slowed = memory.slowed_since
        if slowed is not None and state.now - slowed >= SLOWED_S and memory.gpu.role != "other":
            reads = f"{memory.gpu.name} has been slowed for {span(state.now - slowed)}: {memory.gpu.slowed}"
            yield f"slowed:{memory.gpu.uuid}", f"{reads}. The whole step waits for it. Look at its cooling and power."
    for trouble in state.gpus.trouble:
        yield f"gpu:{trouble.text}", f"The driver reports: {trouble.text}."
