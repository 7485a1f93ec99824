"""A transient systemd service for one component: its command line, its start, its end.

The service is no child of the daemon's service in any sense that systemd knows: it is not bound to it, sits in a
cgroup of its own and outlives its crash, its watchdog kill and its upgrade.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.base.errors import SupervisorError, TryAgainError

BOOTED = Path("/run/systemd/system")  # sd_booted(3)
CGROUP = Path("/proc/self/cgroup")
TIMEOUT_S = 30.0
LOOK_TIMEOUT_S = 5.0
HARD_NOFILE = 1048576  # what the kernel allows by default (fs.nr_open); vLLM and Ray raise their own soft limit


def scope() -> list[str]:
    """Which manager: the machine's for root, else the user's own."""
    return [] if os.geteuid() == 0 else ["--user"]


def why_not() -> str:
    """Why no transient service can be started here, "" when one can."""
    if not BOOTED.is_dir():
        return "systemd is not this machine's init"
    for program in ("systemd-run", "systemctl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    asked = _run_systemctl("show", "--property=Version")
    if asked is None:
        return "systemctl gives no answer"
    if asked.returncode == 0:
        return ""
    whose = "the user's systemd manager" if scope() else "systemd"
    return f"{whose} gives no answer ({asked.stderr.strip() or asked.returncode})"


def unit_name(run_id: str, attempt: str, component: str) -> str:
    """``rl-job-RUN-ATTEMPT-COMPONENT.service``; characters that unit names cannot hold become ``_``."""
    return "rl-job-" + re.sub(r"[^A-Za-z0-9:_.-]", "_", f"{run_id}-{attempt}-{component}")[:230] + ".service"


def own_unit() -> str | None:
    """The service of :func:`scope`'s manager that this process runs in, None outside such a service."""
    try:
        lines = CGROUP.read_text().splitlines()
    except OSError:
        return None
    for line in lines if BOOTED.is_dir() else ():
        services = [part for part in line.split(":", 2)[-1].split("/") if part.endswith(".service")]
        # A user's manager is itself a service of the machine's, and knows only what is below it.
        if found := services[1:] if scope() else services:
            return found[0]
    return None


def run_argv(
    unit: str, argv: Sequence[str], *, environment: Mapping[str, str], nofile: int, description: str
) -> list[str]:
    """The ``systemd-run`` command line. Nothing in it is secret: anyone on the machine can read it."""
    before = own_unit()
    properties = [
        "Type=exec",  # systemd-run then fails when the interpreter cannot be executed
        # SIGTERM goes to the shim alone, which forwards it to the launcher; what is left at the end is killed.
        "KillMode=mixed",
        "TimeoutStopSec=400",  # above the longest patience of any prime-rl era (330 s)
        f"LimitNOFILE={nofile}:{max(nofile, HARD_NOFILE)}",
        "LimitMEMLOCK=infinity",  # pinned host memory of NCCL and of offloaded optimizers
        "TasksMax=infinity",
        "OOMPolicy=continue",  # one process taken by the kernel is the supervisor's to judge, not a reason to stop all
        "Restart=no",
        # No Delegate=: the job manages no cgroups, and code that models wrote should not be given any.
    ]
    if before:
        # Units stop in the reverse of their starting order: at shutdown the daemon stops its job cleanly first.
        properties.append(f"Before={before}")
    return [
        "systemd-run",
        *scope(),
        "--quiet",
        "--no-ask-password",
        f"--unit={unit}",
        f"--description={description}",
        *(f"--property={value}" for value in properties),
        *(f"--setenv={name}={value}" for name, value in environment.items()),
        "--",
        *argv,
    ]


def start_unit(
    unit: str, argv: Sequence[str], *, environment: Mapping[str, str], nofile: int, description: str
) -> None:
    """Start the service. TryAgainError says what systemd answered.

    No ``--collect``: a unit that failed stays loaded, so that ``systemctl status`` shows how the job ended and the
    exit status can be had from systemd when the disk took no exit record; :func:`forget_unit` removes it.
    """
    forget_unit(unit)
    if _state(unit).get("ActiveState", "inactive") not in ("inactive", "failed"):
        raise SupervisorError(f"{unit} runs already: another supervisor of a run with the same name started it")
    command = run_argv(unit, argv, environment=environment, nofile=nofile, description=description)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        stop_unit(unit)
        raise TryAgainError(f"systemd-run could not start {unit}: {error}") from error
    if done.returncode != 0:
        forget_unit(unit)
        raise TryAgainError(f"systemd-run could not start {unit}: {done.stderr.strip() or done.returncode}")


def exit_status(unit: str) -> int | None:
    """Exit code of the unit's main process (the shim ends with its child's: 128 + n for signal n), None if unknown."""
    values = _state(unit)
    ended = values.get("ActiveState") in ("failed", "inactive") and values.get("LoadState") == "loaded"
    by_itself = values.get("ExecMainCode") == "1"  # CLD_EXITED; a killed shim knows nothing of its child
    return int(values["ExecMainStatus"]) if ended and by_itself else None


def stop_unit(unit: str) -> None:
    """Kill everything in the unit and forget it."""
    _systemctl("kill", "--signal=SIGKILL", unit)
    _systemctl("stop", unit)
    forget_unit(unit)


def forget_unit(unit: str) -> None:
    """Unload a unit that ended; does nothing to one that runs."""
    if BOOTED.is_dir():
        _systemctl("reset-failed", unit)


def _state(unit: str) -> dict[str, str]:
    """What systemd knows of the unit; {} when it does not answer."""
    text = _systemctl("show", "--property=LoadState,ActiveState,ExecMainCode,ExecMainStatus", unit)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _systemctl(*words: str) -> str:
    """Output of ``systemctl``; "" when it fails, which for a unit that is gone is the normal case."""
    done = _run_systemctl(*words)
    return done.stdout if done is not None and done.returncode == 0 else ""


def _run_systemctl(*words: str) -> subprocess.CompletedProcess[str] | None:
    """None where it gives no answer."""
    try:
        return subprocess.run(
            ["systemctl", *scope(), *words], capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
