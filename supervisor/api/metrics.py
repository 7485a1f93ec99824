"""The daemon's status as Prometheus text (exposition format 0.0.4). Pure: status and state in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Labels = Mapping[str, str]
Family = tuple[str, str, str, Sequence[tuple[Labels, float]]]  # a metric: name, type, help, samples

KNOWN_STATES = (
    "stopped",
    "setting-up",
    "surveying",
    "restoring",
    "starting",
    "running",
    "recovering",
    "stopping",
    "publishing",
    "paused",
    "finished",
    "gave-up",
    "unfit",
)

_INFO = {
    # label, key of the status. "job" and "instance" are Prometheus' own.
    "attempt": "attempt",
    "dialect": "job",
    "mode": "mode",
    "pod": "host",
    "version": "version",
    "wandb_id": "wandb_id",
}

_SIMPLE: Sequence[tuple[str, str, str, str]] = (
    # name, type, key of the status, help
    ("step", "gauge", "step", "Last training step that is done."),
    ("max_steps", "gauge", "max_steps", "Last step of the run."),
    ("step_seconds", "gauge", "step_seconds", "Median duration of the recent steps, in seconds."),
    ("last_step_timestamp_seconds", "gauge", "last_step_at", "Unix time at which the newest step was done."),
    ("reward", "gauge", "reward", "Reward of the last step."),
    ("loss", "gauge", "loss", "Loss of the last step."),
    ("attempt", "gauge", "attempt", "Number of the present attempt."),
    ("restarts_total", "counter", "restarts", "Restarts of the job by this supervisor."),
    ("rollbacks_total", "counter", "rollbacks", "Times that the run went back to an earlier step on purpose."),
    ("last_good_step", "gauge", "last_good_step", "Highest step that can be resumed from."),
    ("published_step", "gauge", "published_step", "Highest step that is published in the store."),
    ("checkpoint_interval_steps", "gauge", "checkpoint_interval", "Steps between two checkpoints."),
    ("uptime_seconds", "gauge", "uptime_s", "Age of the daemon, in seconds."),
    ("state_since_seconds", "gauge", "since", "Unix time at which the present state began."),
    ("paused", "gauge", "paused", "1 while the supervisor observes but does not act."),
)


def render(status: Mapping[str, Any]) -> str:
    """All metrics of a status as text."""
    lines: list[str] = []
    for name, kind, about, samples in list_families(status):
        lines += [f"# HELP {name} {_escape_help(about)}", f"# TYPE {name} {kind}"]
        lines.extend(f"{name}{_label_text(labels)} {_value_text(number)}" for labels, number in samples)
    lines.extend(_wait_lines({"run": str(status.get("run") or "")}, status.get("loop_waits") or {}))
    return "\n".join(lines) + "\n"


def list_families(status: Mapping[str, Any]) -> list[Family]:
    """All metrics of a status (``protocol.Desk.status``). What is unknown has no sample: it is not zero."""
    found: list[Family] = []

    def family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, object]]) -> None:
        known = [({**run, **tags}, number) for tags, value in samples if (number := _number_text(value)) is not None]
        if known:
            found.append((f"rl_supervisor_{name}", kind, about, known))

    run = {"run": str(status.get("run") or "")}
    info = {label: str(status.get(key) or "") for label, key in _INFO.items()}
    state = str(status.get("state") or "")
    states = (*KNOWN_STATES, *(() if state in KNOWN_STATES or not state else (state,)))
    disk = status.get("disk") or {}
    local, stored = status.get("local_steps") or (), status.get("stored_steps") or ()
    engine, incident, publishing = (status.get(name) or {} for name in ("engine", "incident", "publishing"))
    publishing = {} if publishing.get("what") == "restoring" else publishing
    gpus = [(_gpu_labels(gpu), gpu) for gpu in status.get("gpus") or ()]
    path = {"path": str(disk.get("path") or "")}

    family("up", "gauge", "1 when the daemon answers.", [({}, 1)])
    family("run_info", "gauge", "What the run is, in labels. The value is always 1.", [(info, 1)])
    family("state", "gauge", "1 for the state that the run is in.", [({"state": s}, int(s == state)) for s in states])
    for name, kind, key, about in _SIMPLE:
        family(name, kind, about, [({}, status.get(key))])
    deadline = status.get("deadline") or {}
    about = "Unix time at which the supervisor's present patience ends: for a step, a start, a retry or a publish."
    waits_for = {"waits_for": str(deadline.get("waits_for"))}
    family("deadline_timestamp_seconds", "gauge", about, [(waits_for, deadline.get("at"))])
    times = (status.get("goodput") or {}).get("categories") or {}
    about = "Where the run's time went, all pods together, in seconds. Productive time that a failure undid moves."
    family("time_seconds", "gauge", about, [({"category": name}, seconds) for name, seconds in times.items()])
    family("incident_open", "gauge", "1 while an incident is open.", [({}, int(bool(incident)))])
    family("incident_seconds", "gauge", "Age of the open incident, in seconds.", [({}, incident.get("seconds"))])
    listing = status.get("listing") or {}
    if local or not listing.get("local"):
        complete = sum(step.get("state") == "complete" for step in local)
        family("local_steps", "gauge", "Complete checkpoints on the local disk.", [({}, complete)])
        held = sum(int(step.get("size_bytes") or 0) for step in local)
        family("local_checkpoint_bytes", "gauge", "Size of all local checkpoints.", [({}, held)])
    if stored or not listing.get("store"):
        committed = sum(step.get("committed") is True for step in stored)
        family("stored_steps", "gauge", "Published checkpoints in the store.", [({}, committed)])
    family("disk_free_bytes", "gauge", "Free space of the checkpoint volume.", [(path, disk.get("free_bytes"))])
    needed = [(path, status.get("disk_needed_bytes"))]
    family("disk_needed_bytes", "gauge", "Free space that the next checkpoint needs, with the reserve.", needed)
    family("disk_total_bytes", "gauge", "Size of the checkpoint volume.", [(path, disk.get("total_bytes"))])
    family(
        "gpu_memory_used_bytes", "gauge", "GPU memory in use.", [(tags, gpu.get("used_bytes")) for tags, gpu in gpus]
    )
    family("gpu_memory_total_bytes", "gauge", "GPU memory.", [(tags, gpu.get("total_bytes")) for tags, gpu in gpus])
    if engine:
        family(
            "engine_healthy", "gauge", "1 when the engine answers /health.", [({}, int(engine.get("health") == "ok"))]
        )
    family("engine_requests_running", "gauge", "Requests that the engine works on.", [({}, engine.get("running"))])
    family("engine_requests_waiting", "gauge", "Requests that wait in the engine.", [({}, engine.get("waiting"))])
    family("publish_bytes", "gauge", "Bytes sent of the step that is being published.", [({}, publishing.get("bytes"))])
    family("publish_total_bytes", "gauge", "Size of that step.", [({}, publishing.get("total_bytes"))])
    return found


def _wait_lines(run: Labels, waits: Mapping[str, Any]) -> Iterable[str]:
    """The loop's waits as a histogram (``supervisor.daemon.inbox``)."""
    if not waits:
        return
    name = "rl_supervisor_loop_wait_seconds"
    yield f"# HELP {name} How long facts and due moments waited for the decision loop."
    yield f"# TYPE {name} histogram"
    for bound, count in {**waits["at_most"], "+Inf": waits["count"]}.items():
        yield f"{name}_bucket{_label_text({**run, 'le': bound})} {count}"
    yield f"{name}_sum{_label_text(run)} {_value_text(waits['sum_s'])}"
    yield f"{name}_count{_label_text(run)} {waits['count']}"


def _gpu_labels(gpu: Mapping[str, Any]) -> Labels:
    host = ("host",) if gpu.get("host") else ()
    return {name: str(gpu.get(name, "")) for name in ("index", "uuid", "role", *host)}


def _number_text(value: object) -> float | None:
    if isinstance(value, (bool, int, float)):
        return float(value)
    return None


def _value_text(number: float) -> str:
    """As Go's ParseFloat reads it."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)


def _label_text(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return "{" + inner + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
