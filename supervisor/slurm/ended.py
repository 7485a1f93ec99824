"""What follows when the daemon of a job has ended: the exit contract (``supervisor.base.errors``) in Slurm's words.

``scontrol requeue`` ends the script that asks for it, and a held job is no longer ended halfway: so what must not be
lost (the comment, the exclusion) is done before the job may start again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from supervisor.base.errors import EXIT_FINISHED, EXIT_PERSON_NEEDED, EXIT_POD_UNFIT, EXIT_TRY_AGAIN, SupervisorError
from supervisor.base.hosts import expand_hosts
from supervisor.base.secrets import mask_secrets
from supervisor.config.settings import RunFile
from supervisor.effects.claiming import LABEL
from supervisor.nodes.head import read_unfit
from supervisor.nodes.wire import find_job
from supervisor.sensors.slurm import HALTED, SlurmError, SlurmJob, ask, find_jobs
from supervisor.slurm.step import FLEETS
from supervisor.views import without_daemon

LONGEST_WHY = 200  # characters of a job's comment
UNFIT = "is unfit for this run (exit 94):"  # after the machine's name, also for a fleet to read
RESIZED = "DB index"
"""Without accounting Slurm updates no job that has lost a node, and a hold is such an update: it would never end
(22.05, _slurm_rpc_update_job: "Job update not available right now, the DB index is being set"; tried)."""
TRIES = 10
TRY_S = 1.0
UPDATE_S = 8.0  # of the 30 s that Slurm leaves this script once the job is held (KillWait); the rest is for the release


class JobEnd:
    """One job of Slurm at its end. ``say`` writes into the job's log."""

    def __init__(
        self,
        run: RunFile,
        log: str,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._log, self._environ = run, log, environ
        self._say, self._sleep = say, sleep
        self._id = environ.get("SLURM_JOB_ID", "")
        self._refused = ""  # what Slurm said last

    def decide(self, code: int, *, told: bool) -> int:
        """Requeue, hold or let it end; the exit code of the script. ``told``: Slurm had sent SIGTERM before."""
        job = self._look()
        if job is not None and job.state != "RUNNING":
            self._say(f"Slurm ends this job itself ({job.state.lower()}): nothing is requeued here.")
            return code
        here = self._environ.get("SLURMD_NODENAME", "")
        if job is not None and here and job.nodes and here not in expand_hosts(job.nodes):
            self._say(f"Job {self._id} runs on {job.nodes} by now: nothing is done about it from {here}.")
            return code
        if code == EXIT_PERSON_NEEDED:
            return self._hold(code)
        if not self._run.slurm.requeue:
            self._say(f"The daemon ended with {code}, and [slurm] requeue is false: the job ends.")
            return code
        if code == EXIT_POD_UNFIT and self._run.nodes is not None:
            unfit = read_unfit(self._run.nodes.folder.expanduser(), self._run.run.id, find_job(self._environ))
            # This machine is the head's, and mostly another.
            return self._exclude(job, code, unfit) if unfit else self._requeue("the allocation is unfit (94)", code)
        if code == EXIT_POD_UNFIT:
            return self._exclude(job, code, [here])
        if code == EXIT_FINISHED and not told:
            self._say("The run is finished, or a person shut it down: the job ends.")
            return code
        if told or code == EXIT_TRY_AGAIN or code > 128:
            why = "Slurm wants the machine back" if told else f"the daemon ended with {code}"
            return self._requeue(why, code)
        self._comment(f"rl-supervisor ended with {code}.", f"See {self._log}.")
        return code

    def _look(self) -> SlurmJob | None:
        try:
            return next(iter(find_jobs([f"--jobs={self._id}"], self._environ)), None)
        except SlurmError as error:
            self._say(f"The state of job {self._id} is not known: {error}.")
            return None

    def _requeue(self, why: str, code: int) -> int:
        self._say(f"Requeueing job {self._id}: {why}. Slurm starts it again in two minutes at the earliest.")
        return code if self._try(["scontrol", "requeue", self._id]) else self._stays(code)

    def _hold(self, code: int) -> int:
        """A person is needed. The job waits in the queue, with the reason where ``squeue`` and ``scontrol`` show it."""
        self._comment("A person is needed (exit 93):", f"See {self._log}. Then: scontrol release {self._id}")
        if not self._run.slurm.requeue:
            return code
        self._say(f"Holding job {self._id}. When the cause is mended: scontrol release {self._id}")
        return code if self._try(["scontrol", "requeuehold", "State=SpecialExit", self._id]) else self._stays(code)

    def _exclude(self, job: SlurmJob | None, code: int, nodes: Sequence[str]) -> int:
        """These machines are unfit. Slurm changes the exclusions of a waiting job alone: so it is held meanwhile."""
        node = ", ".join(nodes)
        if not self._comment(f"{node} {UNFIT}", f"See {self._log}.") and RESIZED in self._refused:
            self._say(f"Slurm changes nothing of this job any more: {node} is not excluded.")
            return self._requeue("the allocation is unfit (94)", code)
        earlier = expand_hosts(job.excluded) if job is not None else []
        excluded = ",".join(dict.fromkeys([*self._find_room(earlier, nodes), *nodes]))
        self._say(f"Requeueing job {self._id} without {node}, unfit for it.")
        if not self._try(["scontrol", "requeuehold", self._id]):
            return self._stays(code)
        # From here on Slurm ends this script (KillWait): a slow controller must not keep it from the release.
        if not self._try(["scontrol", "update", f"JobId={self._id}", f"ExcNodeList={excluded}"], within_s=UPDATE_S):
            self._say(f"{node} could not be excluded: the job may come back to it.")
        self._try(["scontrol", "release", self._id])
        return code

    def _find_room(self, earlier: Sequence[str], nodes: Sequence[str]) -> Sequence[str]:
        """Those of the earlier exclusions that stay: with too few machines left the job would wait for ever."""
        wished = self._run.slurm
        partition = self._environ.get("SLURM_JOB_PARTITION", "")
        try:
            words = [
                "sinfo",
                "--noheader",
                "--Node",
                "--format=%N|%T",
                *([f"--partition={partition}"] * bool(partition)),
            ]
            rows = [line.split("|", 1) for line in ask(words, self._environ).splitlines() if "|" in line]
        except SlurmError as error:
            self._say(f"How many machines are left is not known: {error}.")
            return earlier
        good = {name.strip() for name, state in rows if not HALTED.search(state)}
        if not rows or len(good - {*earlier, *nodes}) >= wished.nodes + wished.spares:
            return earlier
        kept = [name for name in earlier if name in expand_hosts(",".join(wished.exclude))]
        if dropped := [name for name in earlier if name not in kept]:
            self._say(f"Too few machines would be left: {', '.join(dropped)} may be used again.")
        return kept

    def _stays(self, code: int) -> int:
        told = f"Job {self._id} could not be requeued, so it ends with {code}. The run goes on with a new job"
        self._say(f"{told}: rl-supervisor slurm submit")
        return code

    def _why(self) -> str:
        """The daemon's own last word, from the journal; "" without one. All users of a cluster see comments."""
        found: Mapping[str, object] = {}
        with contextlib.suppress(SupervisorError, OSError):
            found = without_daemon.look(self._run.state_dir, self._run.run.id)
        why = str(found.get("why") or "") if found.get("ended") is not None else ""
        return " ".join(mask_secrets(why).split())

    def _comment(self, what: str, then: str) -> bool:
        """Was it taken? Both stay whole; why it is so, between them, is cut where it is long."""
        why = self._why()
        self._say(" ".join(f"{what} {why} {then}".split()))
        short = why if len(why) <= LONGEST_WHY else f"{why[:LONGEST_WHY]}..."
        label = self._environ.get(LABEL, "")  # by which its fleet finds the job
        text = " ".join(f"{label if label.startswith(FLEETS) else ''} {what} {short} {then}".split())
        return self._try(["scontrol", "update", f"JobId={self._id}", f"Comment={text}"], tries=2)

    def _try(self, words: list[str], tries: int = TRIES, within_s: float = float("inf")) -> bool:
        """A controller that is restarted, or a job that is just being taken down, says no for a moment."""
        until = time.monotonic() + within_s
        for number in range(tries):
            if number and time.monotonic() >= until:
                break
            try:
                ask(words, self._environ)
            except SlurmError as error:
                self._refused = str(error)
                if number in (0, tries - 1):
                    self._say(f"{error}.")
                self._sleep(TRY_S)
            else:
                return True
        return False
