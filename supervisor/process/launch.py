"""Starting a component under its shim so that it outlives the daemon, and looking at one that was started.

Two ways: a transient systemd service of its own (when the daemon's own service dies, systemd takes everything in the
daemon's cgroup with it, ``setsid`` or not), and elsewhere a double fork that leaves the shim to init. Secrets travel
in a file in memory that the shim removes once it has read it; no command line and no environment of the shim or of
systemd holds any.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, Literal

from supervisor.base import proc_stat
from supervisor.base.errors import ConfigError, SupervisorError, TryAgainError
from supervisor.base.own_child import NEVER
from supervisor.base.records import dataclass
from supervisor.base.secrets import mask_texts, remember_environment
from supervisor.jobs.base import Component, Place
from supervisor.process import own_cgroup, ports, shim_records, transient
from supervisor.process.known_names import NANNY
from supervisor.process.survivors import (
    ATTEMPT_MARKER,
    RUN_MARKER,
    Belongings,
    Record,
    alive,
    look_at,
    read_record,
    send_signal,
)

How = Literal["auto", "systemd", "fork"]
COMPONENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SHIM = Path(__file__).absolute().with_name("shim.py")
UNWRITTEN = "the exit record is not written yet (is the disk full or slow?)"
HANDSHAKE_S = 30.0  # a shim answers within 0.1 s; a pod that swaps may take its time
MEMORY = Path("/dev/shm")  # noqa: S108
SHIM_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Launched:
    """A component that runs. ``notes``: sentences a person should read (a limit that could not be raised)."""

    shim_pid: int
    child_pid: int
    child_start_ticks: int
    how: Literal["systemd", "fork"]
    unit: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShimState:
    """What became of a component. ``state``:

    - "absent": never started here (no record);
    - "running": ``pid`` with ``start_ticks`` lives; with a ``reason`` its shim is gone, and ``shim_pid`` is ``pid``;
    - "exited": it ended with ``exit_code`` or ``signal``;
    - "lost": it is gone with its shim, which left no exit record, or the machine was rebooted;
    - "unknown": this look failed (no descriptor left, a state folder on NFS that does not answer). It may live.
    """

    state: Literal["absent", "running", "exited", "lost", "unknown"]
    pid: int | None = None
    start_ticks: int | None = None
    shim_pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_wall: float | None = None
    ended_wall: float | None = None
    how: str = ""
    unit: str | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    place: Place | None = None  # where it runs, in a run over several machines


def launch(component: Component, attempt_dir: Path, how: How, run_id: str, unwanted: Event = NEVER) -> Launched:
    """Start ``component`` under a shim of its own; returns once it runs.

    The markers ``RL_SUPERVISOR_RUN`` and ``RL_SUPERVISOR_ATTEMPT`` are added to its environment. ``unwanted``: when
    set, a stop waits behind this start, which waits for no port any more.

    Raises ConfigError (a person has to act) and TryAgainError (no memory, no process slots, a port that it needs is
    taken, a shim that fails). After any of them nothing of the component is alive.
    """
    attempt_dir = attempt_dir.absolute()
    check_component(component)
    remember_environment(component.env)  # what the job is given, it may print
    way = choose(how)
    attempt_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
    forget_earlier(attempt_dir, component.name, run_id)
    ports.wait_until_free(component.name, component.ports, hosts=component.hosts, unwanted=unwanted)
    unit = transient.unit_name(run_id, attempt_dir.name, component.name) if way == "systemd" else None
    group = own_cgroup.make_group(run_id, attempt_dir, component.name) if way == "fork" else None
    spec: shim_records.Spec = {
        "name": component.name,
        "argv": list(component.argv),
        "shown_argv": mask_texts(component.argv),
        "cwd": str(component.cwd),
        "env": {**component.env, **markers(attempt_dir, run_id)},
        "nofile": component.nofile,
        "attempt_dir": str(attempt_dir),
        "run_id": run_id,
        "how": way,
        "unit": unit,
        "cgroup": str(group) if group else None,
        "reply": "",
    }
    path = write_spec(spec, attempt_dir)
    reply = Path(f"{path}.reply")
    label = f"{run_id}/{attempt_dir.name}/{component.name}"
    try:
        with os.fdopen(os.memfd_create("complaints"), "w+b") as complaints:  # no disk has to take it
            if unit is None:
                start_forked(path, label, markers(attempt_dir, run_id), complaints)
            else:
                transient.start_unit(
                    unit,
                    shim_argv(path, label),
                    environment=markers(attempt_dir, run_id),
                    nofile=component.nofile,
                    description=f"{component.name} of run {run_id} ({attempt_dir.name})",
                )
            answer = wait_for_answer(reply, complaints)
            if answer is None:
                if group is not None:
                    own_cgroup.kill_group(group)
                abandon(component, attempt_dir, run_id, unit)
                raise explain_no_answer(component, complaints, unit)
    finally:
        path.unlink(missing_ok=True)
        reply.unlink(missing_ok=True)
        if group is not None:
            own_cgroup.remove_group(group)  # stays where the job is in it
    if "error" in answer:
        number = answer.get("errno", 0)
        cause = OSError(number, os.strerror(number), str(attempt_dir)) if number else None
        raise (TryAgainError if answer["kind"] == "try-again" else ConfigError)(answer["error"]) from cause
    return Launched(
        shim_pid=answer["shim_pid"],
        child_pid=answer["child_pid"],
        child_start_ticks=answer["child_start_ticks"] or 0,
        how=way,
        unit=unit,
        notes=tuple(answer["notes"]),
    )


def look_at_component(attempt_dir: Path, component: str) -> ShimState:
    """What became of a component that was started here, in this or an earlier life of the daemon.

    Cheap (a few small reads), except for a lost shim under systemd, where ``systemctl`` is asked once (5 s at most).
    A process with the recorded pid and another start time is never taken for ours.
    """
    record = None
    try:
        record = read_record(attempt_dir, component)
        return _look_with(record, attempt_dir, component)
    except ValueError as error:
        return ShimState("lost", reason=f"{error}; nothing is known of what it started")
    except OSError as error:  # proves nothing, but an end that was written down does
        reason = f"what became of {component} cannot be seen: {error}"
        return read_end(attempt_dir, component, record) or ShimState("unknown", reason=reason)


def _look_with(record: Record | None, attempt_dir: Path, component: str) -> ShimState:
    if (ended := read_end(attempt_dir, component, record)) is not None:
        return ended
    if record is None:
        return ShimState("absent", reason=f"{component} was never started in {attempt_dir}")
    if not proc_stat.is_this_boot(record.boot_id):
        return from_record("lost", record, f"the machine was rebooted since {component} was started")
    if alive(record.shim):
        # The disk may be too full or too slow for the exit record: then the shim's name tells the end.
        process = look_at(record.shim[0])
        named = re.fullmatch(r"rl-(exit|signal) (\d+)", process.name) if process else None
        if not named:
            return from_record("running", record)
        number = int(named[2])
        end = (number, None) if named[1] == "exit" else (None, number)
        return read_end(attempt_dir, component, record) or from_record("exited", record, UNWRITTEN, *end)
    if (ended := read_end(attempt_dir, component, record)) is not None:  # it may have been written since
        return ended
    gone = f"the shim of {component} (pid {record.shim[0]}) is gone: its exit status will never be known"
    if alive(record.child):
        return replace(from_record("running", record, gone), shim_pid=record.child[0])
    if record.unit and (code := transient.exit_status(record.unit)) is not None:
        return from_record("exited", record, UNWRITTEN, *((code, None) if code < 128 else (None, code - 128)))
    return from_record("lost", record, gone)


# ---------------------------------------------------------------- before the start


def check_component(component: Component) -> None:
    """Find what would fail anyway while it can still be said well. Raises ConfigError."""
    name, argv = component.name, component.argv
    if not COMPONENT_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a component: letters, digits, - and _ only")
    if not argv:
        raise ConfigError(f"the command of {name} is empty")
    if any("\0" in word for word in (*argv, *component.env.keys(), *component.env.values())):
        raise ConfigError(f"the command or environment of {name} holds a NUL character, which no process can be given")
    cwd = component.cwd
    if not cwd.is_dir():
        raise ConfigError(f"{name} should run in {cwd}, which is not a folder: set job.dir to where it is installed")
    if not os.access(cwd, os.X_OK):
        raise ConfigError(f"{name} should run in {cwd}, which user {os.geteuid()} may not enter")
    program = argv[0]
    if "/" in program:
        found = cwd / program
        if not found.exists():
            raise ConfigError(
                f"{name} cannot start: {found} does not exist; install the trainer or mend {_words(name)}"
            )
        if not (found.is_file() and os.access(found, os.X_OK)):
            raise ConfigError(f"{name} cannot start: {found} may not be executed by user {os.geteuid()}")
    elif shutil.which(program, path=component.env.get("PATH", os.defpath)) is None:
        raise ConfigError(f"{name} cannot start: no {program} in the job's PATH; install it or mend {_words(name)}")


def _words(component: str) -> str:
    """The setting that the command line's first word comes from; only a plain command's component is called so."""
    return "[job.plain] start and resume" if component == "job" else "[job] launcher"


def choose(how: How) -> Literal["systemd", "fork"]:
    """Which way to start. "auto" takes systemd only as root, since a user's manager ends when the user logs out, and
    never in a job of Slurm, whose limits and end a service of systemd would escape.
    """
    if how == "fork" or (how == "auto" and (os.geteuid() != 0 or "SLURM_JOB_ID" in os.environ)):
        return "fork"
    missing = transient.why_not()
    if not missing:
        return "systemd"
    if how == "auto":
        return "fork"
    raise ConfigError(f'supervision.shim = "systemd" cannot work here: {missing}; set it to "auto" or "fork"')


def forget_earlier(attempt_dir: Path, name: str, run_id: str) -> None:
    """Remove the records of an earlier start in this folder. SupervisorError when anything of it still runs."""
    earlier = look_at_component(attempt_dir, name)
    if earlier.pid is not None:
        raise SupervisorError(
            f"{name} of {attempt_dir.name} is running already (pid {earlier.pid}): stop it before it is started again"
        )
    if earlier.state != "absent" and (left := Belongings(attempt_dir, [name], run_id).jobs()):
        raise SupervisorError(
            f"{name} of {attempt_dir.name} ended but left {left[0].name} (pid {left[0].pid}) behind: stop the attempt "
            f"before it is started again"
        )
    for record in ("exit.json", "shim.json"):
        (attempt_dir / f"{name}.{record}").unlink(missing_ok=True)


def markers(attempt_dir: Path, run_id: str) -> dict[str, str]:
    """Environment variables by which a process is known to belong to this attempt, whatever became of its parents."""
    return {RUN_MARKER: run_id, ATTEMPT_MARKER: str(attempt_dir)}


def write_spec(spec: shim_records.Spec, attempt_dir: Path) -> Path:
    """Put the spec where only our user and the shim can read it: in memory, else (no /dev/shm) beside the records."""
    problem: OSError | None = None
    for folder in (MEMORY, attempt_dir):
        try:
            fd, name = tempfile.mkstemp(prefix="rl-supervisor-", suffix=".spec", dir=folder)  # mode 0600
        except OSError as error:
            problem = error
            continue
        try:
            with os.fdopen(fd, "w") as file:
                json.dump({**spec, "reply": f"{name}.reply"}, file)
            return Path(name)
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            problem = error
    raise TryAgainError(
        f"the job cannot be started: neither {MEMORY} nor {attempt_dir} takes a file of a few kilobytes ({problem})"
    ) from problem


# ---------------------------------------------------------------- the start


def shim_argv(spec: Path, label: str, *options: str) -> list[str]:
    """Command line of a shim; the interpreter is the daemon's own, the environment variables of Python are ignored."""
    return [sys.executable, "-I", "-S", "-X", "utf8", str(SHIM), *options, str(spec), label]


def start_forked(spec: Path, label: str, environment: dict[str, str], complaints: IO[bytes]) -> None:
    """Start a shim that leaves us: the first process forks and ends, init (or the next subreaper) has the second."""
    # By it the nanny knows the shims of its own run; the job is not given it.
    known = {NANNY: os.environ[NANNY]} if NANNY in os.environ else {}
    try:
        first = subprocess.Popen(
            shim_argv(spec, label, "--detach"),
            stdin=subprocess.DEVNULL,
            stdout=complaints,
            stderr=complaints,
            env={**SHIM_ENVIRONMENT, **environment, **known},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise TryAgainError(f"no process could be started for the job's shim: {error}") from error
    try:
        first.wait(HANDSHAKE_S)
    except subprocess.TimeoutExpired:
        first.kill()
        first.wait()


def wait_for_answer(reply: Path, complaints: IO[bytes]) -> shim_records.Answer | None:
    """The shim's answer, None when it complained or did not answer in time."""
    deadline = time.monotonic() + HANDSHAKE_S
    pause = 0.005
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            answer: shim_records.Answer = json.loads(reply.read_bytes())
            return answer
        complaints.seek(0)
        if complaints.read(1):
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return None


def explain_no_answer(component: Component, complaints: IO[bytes], unit: str | None) -> TryAgainError:
    """Why a start was given up. Nothing that a shim says condemns the pod: pip may just be replacing its files."""
    complaints.seek(0)
    said = complaints.read().decode(errors="replace").strip().splitlines()
    where = f"; see journalctl -u {unit}" if unit else ""
    told = f"failed ({said[-1]})" if said else f"gave no answer within {HANDSHAKE_S:.0f} s (a slow disk?){where}"
    return TryAgainError(f"the shim of {component.name} {told}; nothing of the job was left running")


def abandon(component: Component, attempt_dir: Path, run_id: str, unit: str | None) -> None:
    """Kill whatever a start that gave no answer may have left."""
    if unit:
        transient.stop_unit(unit)
    belongings = Belongings(attempt_dir, [component.name], run_id)
    deadline = time.monotonic() + 5
    while (left := belongings.list_living()) and time.monotonic() < deadline:
        for process in left:
            send_signal(process.identity, signal.SIGKILL)
        time.sleep(0.05)


# ---------------------------------------------------------------- reading what became of it


def read_end(attempt_dir: Path, component: str, record: Record | None) -> ShimState | None:
    """The exit record, None when there is none or it belongs to another start."""
    try:
        data = json.loads((attempt_dir / f"{component}.exit.json").read_bytes())
        code, signum = (None if data[name] is None else int(data[name]) for name in ("exit_code", "signal"))
        pid, wall = int(data["child_pid"]), float(data["wall"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if record is not None and record.child[0] != pid:
        return None
    known = from_record("exited", record) if record else ShimState("exited")
    return replace(known, exit_code=code, signal=signum, ended_wall=wall)


def from_record(
    state: Literal["running", "exited", "lost"],
    record: Record,
    reason: str = "",
    code: int | None = None,
    signum: int | None = None,
) -> ShimState:
    """A state that the record and /proc tell."""
    pid, ticks = record.child if state == "running" else (None, None)
    wall, how, unit = record.started_wall, record.how, record.unit
    return ShimState(state, pid, ticks, record.shim[0], code, signum, wall, None, how, unit, reason, record.notes)
