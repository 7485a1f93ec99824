"""What people should hear about the machine before it is a failure. Nothing is done about it; each is said once."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.core.evolve import replace
from supervisor.core.moves import Actions, say
from supervisor.core.state import State
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
    present = dict(_host(state, tuple(state.host.warned)))
    present.update(_gpus(state))
    acts: Actions = [
        say("warning", sentence, "warning") for name, sentence in present.items() if name not in state.host.warned
    ]
    acts += [say("cleared", _OVER[name.partition(":")[0]]) for name in state.host.warned if name not in present]
    if state.host.oom_t == state.now and before.host.oom_t != state.host.oom_t:
        told = "The kernel ended a process because memory was full (OOM kill)."
        if state.tier.over != before.tier.over:
            told += f" Checkpoints lay in memory ({state.tier.folder}): the next start saves on the run's own volume."
        acts.append(say("warning", told, "warning"))
    return (replace(state, host=replace(state.host, warned=tuple(present))) if acts else state), acts


_OVER = {
    "memory": "The host has memory again.",
    "pressure": "The host's tasks no longer wait for memory.",
    "files": "Open files are well below their limit again.",
    "shm": "Shared memory has room again.",
    "slowed": "A GPU that was slowed runs at its clocks again.",
    "blind": "The GPU driver answers again.",
    "gpu": "A new attempt: what was said of its GPU is no longer held against it.",
}


def _host(state: State, warned: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    host = state.host.look
    if host is None:
        return

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
