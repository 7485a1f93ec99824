"""The Slurm cluster that this machine's commands reach: a pod is a job, and the queue picks the machine.

The label is the first word of the job's comment. Accounting is not asked: many clusters have none. A job requeues
itself before its wall time, and Slurm requeues it when its machine is lost. It keeps its number, comment and
environment then, so it stays the same pod.
"""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.base.errors import SupervisorError, TryAgainError
from supervisor.fleet.fleet_file import ACCOUNT_KEYS
from supervisor.fleet.places.base import LABEL, ErrorKind, Instance, Offer, Order, Phase, PlaceError, Want
from supervisor.sensors.slurm import SlurmError, ask
from supervisor.slurm.ended import UNFIT
from supervisor.slurm.submit import OVER, submit
from supervisor.storage.backends import SECRETS

NAME = "slurm"
FORMAT = "%A|%T|%S|%D|%N|%r|%k"  # number, state, start (also an expected one), machines, their names, reason, comment
LOG_BYTES = 16 << 10
PHASES: Mapping[str, Phase] = {
    "PENDING": "queued",
    "REQUEUED": "queued",
    **dict.fromkeys(("REQUEUE_HOLD", "RESV_DEL_HOLD"), "held"),
    "CONFIGURING": "starting",
    "RUNNING": "running",
    **dict.fromkeys(OVER, "stopped"),
    "SPECIAL_EXIT": "stopped",
}
"""squeue(1), JOB STATE CODES. Any other is unknown: one that is COMPLETING ends, or goes back into the queue."""
ENDS = {
    "BOOT_FAIL": "its machine did not boot",
    "COMPLETED": "its script ended with code 0",
    "DEADLINE": "it reached its deadline",
    "FAILED": "its script ended with another code than 0",
    "NODE_FAIL": "its machine is lost, and Slurm may not requeue it",
    "OUT_OF_MEMORY": "it used more memory than it had asked for",
    "PREEMPTED": "another job took its machine, and Slurm may not requeue it",
    "SPECIAL_EXIT": "it holds itself until a person has looked (exit 93)",
    "TIMEOUT": "it reached its wall time and did not requeue itself",
}
JOB_LINE = re.compile(r"[0-9]+\|[A-Z_]+\|[^|]*\|[0-9]*\|[^|]*\|[^|]*\|")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
HELD = re.compile("JobHeld|held state")
NEVER = re.compile(
    "AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|Invalid(Account|QOS)|MaxMemPerLimit"
    "|Partition(Node|Time)Limit|QOSNotAllowed|ReservationDeleted"
)
"""Reasons for which a job waits until a person changes something (squeue(1), JOB REASON CODES)."""
KINDS: tuple[tuple[str, ErrorKind | None, str], ...] = (
    ("cannot be run", "refused", "Let the controller run on a machine that has Slurm's commands: the login machine."),
    ("(?i)munge|authentication", "key", "Look whether munged runs on this machine, with the cluster's key."),
    ("Unable to contact|standby mode", "away", "Jobs that run go on without it."),
    ("did not answer|timed out|Zero Bytes", None, ""),
    ("accounting/QOS policy", "credit", "See what your account may use: sacctmgr show assoc user=$USER; end a job."),
    ("did not take", "refused", "Mend [slurm] of the run file. What is left out: rl-supervisor fleet history."),
)
"""The first pattern that Slurm's words match decides (Slurm 22.05, src/common/slurm_errno.c). None: no answer came."""


class Slurm:
    """The jobs of this user. ``folder``: from where they are submitted."""

    name = NAME

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """sbatch hands its environment on to the job: no key of the controller is in it."""
        self._folder = folder
        keys = {*ACCOUNT_KEYS.values(), "RL_NOTIFY_URLS"}
        self._environ = {
            name: value for name, value in environ.items() if name not in keys and not name.startswith(SECRETS)
        }

    def list_instances(self) -> list[Instance]:
        """All jobs of this user that Slurm still knows; not those that were cancelled."""
        words = ["squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", f"--format={FORMAT}"]
        lines = [line for line in self._ask(words, "away").splitlines() if line.strip()]
        # A comment of another job may hold a line break, and a warning may stand between them.
        jobs = [line for line in lines if JOB_LINE.match(line)]
        if lines and not jobs:
            raise PlaceError("away", f"Slurm: squeue printed what is no job: {lines[0][:100]!r}.")
        return [one for line in jobs if (one := _read_job(line)) is not None]

    def find_offers(self, want: Want) -> list[Offer]:
        """The cluster itself, where it answers. What a job takes is only known of its run."""
        self.list_instances()
        return [Offer(NAME, want.gpu, want.gpus, 0.0, spot=False, is_job=True)]

    def create(self, offer: Offer, order: Order) -> str:
        """Submit ``order.onstart``, which is a script. Returns the job's number."""
        environ = {**self._environ, **order.env}
        try:
            return submit(order.onstart, self._folder, environ, [f"--comment={order.label}"])
        except TryAgainError:
            raise PlaceError("unsure", "Slurm: sbatch did not answer within a minute. It may have worked.") from None
        except SupervisorError as error:
            raise _explain(str(error), "unsure") from None

    def raise_bid(self, instance: Instance, bid: float) -> None:
        """There is none."""
        raise PlaceError("refused", "A job of Slurm takes no bid.")

    def destroy(self, instance: Instance) -> None:
        """A job that runs gets SIGTERM, and publishes what fits into Slurm's KillWait."""
        self._ask(["scancel", instance.id], "unsure")

    def read_log(self, instance: Instance) -> str:
        """The end of its output, where this machine sees the file."""
        try:
            shown = ask(["scontrol", "show", "job", instance.id], self._environ)
            path = re.search(r"^\s*StdOut=(.+)$", shown, re.MULTILINE)
            return "" if path is None else Path(path[1]).read_bytes()[-LOG_BYTES:].decode(errors="replace")
        except (SlurmError, OSError):
            return ""  # the job is forgotten, or never began

    def read_credit(self) -> float | None:
        """Not in dollars."""
        return None

    def _ask(self, words: list[str], otherwise: ErrorKind) -> str:
        try:
            return ask(words, self._environ)
        except SlurmError as error:
            raise _explain(str(error), otherwise) from None


def _explain(said: str, otherwise: ErrorKind) -> PlaceError:
    """The error with what to do next."""
    kind, then = next(((kind, then) for words, kind, then in KINDS if re.search(words, said)), (otherwise, ""))
    told = said if said[0].isupper() else f"Slurm: {said}"
    return PlaceError(kind or otherwise, f"{told.rstrip('.')}. {then}".strip())


def _read_job(line: str) -> Instance | None:
    parts = [part.strip() for part in line.split("|", 6)]
    number, state, start, count, nodes, reason, comment = parts
    if state == "CANCELLED":
        return None
    phase = PHASES.get(state, "unknown")
    if phase == "queued" and (HELD.search(reason) or NEVER.match(reason)):
        phase = "held"
    label, _, told = comment.partition(" ")
    # A job in the queue again names no machine; its comment names those that were unfit.
    last = told.partition(f" {UNFIT}")[0].split(", ") if UNFIT in told else []
    named = tuple(name for name in last if NODE.fullmatch(name))
    single = count == "1" and len(named) < 2
    return Instance(
        number,
        label if LABEL.fullmatch(label) else "",
        phase,
        None,
        machine=nodes or ",".join(named) if single else "",
        unfit=() if single else named,
        says=_say(number, state, phase, reason, start),
        is_job=True,
    )


def _say(number: str, state: str, phase: Phase, reason: str, start: str) -> str:
    if phase == "held" and NEVER.match(reason):
        return f"Slurm does not start it as it is ({reason}). Mend [slurm] of the run file, then: scancel {number}"
    if phase == "held":
        return f"it is held ({reason}). To let it start: scontrol release {number}"
    if phase == "queued":
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(start))) if start.isdigit() else ""
        return f"{reason or 'no reason given'}{f'; expected to start at {at}' if at else ''}"
    return f"{state}: {ENDS[state]}" if state in ENDS else state
