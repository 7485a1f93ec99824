"""What Slurm says of the job that this daemon runs in: its state, when it ends, and whether its machines are drained.

``squeue`` and ``sinfo`` are asked once a minute, which a controller of thousands of jobs bears. Accounting (``sacct``)
is not asked: many clusters have none, and it tells nothing of a job that lives.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from supervisor.base.hosts import expand_hosts
from supervisor.base.records import dataclass
from supervisor.core import facts as f

EARLY_S = 65.0
"""That signal may come up to a minute early (sbatch(1), ``--signal``)."""
REQUEUE_S = 45.0
"""Of the time that is left, for the script to requeue the job: a program on a slow file system begins late."""
KILL_WAIT_S = 30.0
"""Slurm's default ``KillWait``: from SIGTERM to SIGKILL for a job that is cancelled, requeued or preempted."""
TIMEOUT_S = 20.0
FORMAT = "%i|%T|%e|%N|%x|%r"
_DOWN = re.compile(r"(down|fail|not_resp|unknown)", re.IGNORECASE)
HALTED = re.compile(r"(drain|down|fail|maint|reboot|power|unknown|not_resp)", re.IGNORECASE)


class SlurmError(Exception):
    """A command of Slurm did not do what it was asked: what was tried, and its own words."""


@dataclass(frozen=True)
class SlurmJob:
    """One job, as ``squeue`` shows it. ``ends_at``: Unix time by the controller; None without a time limit."""

    id: str
    state: str  # PENDING, RUNNING, COMPLETING, CANCELLED ...
    ends_at: float | None
    nodes: str  # as Slurm writes them: n[1-2]
    excluded: str
    reason: str


def ask(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """What a command of Slurm prints. Raises SlurmError."""
    shown = " ".join(words)
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
            env={**environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"`{shown}` did not answer within {TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"`{shown}` cannot be run ({error.strerror}): is this a machine of the cluster?") from None
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]
        raise SlurmError(f"`{shown}` failed: {why}")
    return done.stdout


def find_jobs(select: Sequence[str], environ: Mapping[str, str]) -> list[SlurmJob]:
    """The jobs that ``squeue`` selects, in any state that Slurm still knows. Raises SlurmError."""
    lines = ask(["squeue", "--noheader", "--states=all", f"--format={FORMAT}", *select], environ).splitlines()
    return [job for line in lines if (job := parse_job(line)) is not None]


def parse_job(line: str) -> SlurmJob | None:
    """One line of ``squeue``; None for one that is in no form of ours."""
    parts = line.split("|", 5)
    if len(parts) != 6 or not re.fullmatch(r"\d+(_\d+)?", parts[0].strip()):
        return None
    number, state, ends, nodes, excluded, reason = (part.strip() for part in parts)
    empty = ("", "(null)", "N/A", "None")
    return SlurmJob(
        number,
        state.upper(),
        float(ends) if re.fullmatch(r"\d{1,12}", ends) else None,
        "" if nodes in empty else nodes,
        "" if excluded in empty else excluded,
        "" if reason in empty else reason,
    )


def kill_wait(text: str) -> float | None:
    """``KillWait`` of what ``scontrol show config`` prints; None where it does not say."""
    found = re.search(r"^KillWait\s*=\s*(\d{1,6}) sec", text, re.MULTILINE)
    return float(found[1]) if found else None


class SlurmSensor:
    """Looks at our own job. Keeps when it ends, for SIGTERM; tells once of what a person would want to know."""

    name = "slurm"
    interval_s = 60.0
    deadline_s = 4 * TIMEOUT_S

    def __init__(self, job: str, notice_s: float, environ: Mapping[str, str]) -> None:
        """``notice_s``: so long before its end the script of a job hears of it (``--signal=B:TERM@420``)."""
        self._job, self._notice_s, self._environ = job, notice_s, dict(environ)
        self._known: SlurmJob | None = None
        self._kill_wait_s: float | None = None
        self._drained = ""
        self._down: dict[str, str] = {}
        # Slurm takes a node that is lost out of the job (--no-kill): it is known by the list that the job began with.
        self._all = expand_hosts(environ.get("SLURM_JOB_NODELIST", ""))
        self._failed = False

    def look(self) -> Sequence[f.Fact]:
        told: list[f.Fact] = []
        try:
            if self._kill_wait_s is None:
                self._kill_wait_s = kill_wait(ask(["scontrol", "show", "config"], self._environ)) or KILL_WAIT_S
            for job in find_jobs([f"--jobs={self._job}"], self._environ):
                told += self._changed_end(job)
                nodes = self._look_at_nodes(job.nodes)
                told += self._changed_nodes("; ".join(f"{name} is {word}" for name, word in nodes.items()))
                down = {name: f"Slurm says {word}" for name, word in nodes.items() if _DOWN.match(word)}
                left = dict.fromkeys({*self._all} - {*expand_hosts(job.nodes)}, "Slurm took it out of the job")
                told += self._changed_down({**down, **(left if job.state == "RUNNING" else {})})
        except SlurmError as error:
            return [*told, *self.unknown(str(error))]
        if self._failed:
            self._failed = False
            told.append(f.Remark("slurm", "Slurm answers again."))
        return told

    def _look_at_nodes(self, nodes: str) -> dict[str, str]:
        """Of those that are out of service, in what state each is and why."""
        if not nodes:
            return {}
        lines = ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N|%T|%E"], self._environ)
        rows = [line.split("|", 2) for line in dict.fromkeys(lines.splitlines()) if line.count("|") >= 2]
        return {name.strip(): f"{word}: {why}" for name, word, why in rows if HALTED.search(word)}

    def _changed_end(self, job: SlurmJob) -> list[f.Fact]:
        before, self._known = self._known, job
        if job.ends_at is None or job.state != "RUNNING" or (before is not None and before.ends_at == job.ends_at):
            return []
        end = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(job.ends_at))
        words = f"Slurm ends job {job.id} on {job.nodes} at {end}. Before that this pod publishes and leaves."
        return [f.Remark("slurm", words)]

    def _changed_nodes(self, drained: str) -> list[f.Fact]:
        before, self._drained = self._drained, drained
        if drained == before:
            return []
        words = f"Slurm takes machines of job {self._job} out of service: {drained}." if drained else ""
        back = f"The machines of job {self._job} are in service again."
        return [f.Remark("slurm", words or back, "warning" if drained else "info")]

    def _changed_down(self, down: dict[str, str]) -> list[f.Fact]:
        """Of a run over several machines each is told for itself: with an agent that is silent it is a verdict."""
        before, self._down = self._down, down
        if len(self._all) < 2:
            return []
        names = sorted({*before, *down})
        return [f.MachineDown(name, down.get(name, "")) for name in names if before.get(name) != down.get(name)]

    def unknown(self, reason: str) -> Sequence[f.Fact]:
        if self._failed:
            return ()
        self._failed = True
        return [f.Remark("slurm", f"Slurm cannot be asked about job {self._job}: {reason.rstrip('.')}.", "warning")]

    def left_s(self, wall: float) -> float | None:
        """Seconds from SIGTERM, which has just come, until this job is killed; None: unknown. Asks no one."""
        job = self._known
        if job is None or self._kill_wait_s is None:
            return None
        left = None if job.ends_at is None else job.ends_at - wall
        # Far from its end, or with none, the job is cancelled, requeued or preempted.
        if left is None or left > self._notice_s + EARLY_S or left <= 0:
            return self._kill_wait_s
        return max(self._kill_wait_s, left - REQUEUE_S)
