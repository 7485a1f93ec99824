"""Ours in the modelled cluster: the real core in virtual time, with what its head hears and what its hands take.

The core decides, and ``nodes.allocation`` chooses the machines of a start, as in a real run. Here are the machines, the
job as physics, and the seconds that effects take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.config.nodes import LEASE_S, Nodes
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.goodput import Ledger
from supervisor.core.records import Learned
from supervisor.core.settings import Settings
from supervisor.nodes.agent import HEADLESS_S, SCAN_S
from supervisor.nodes.allocation import choose_machines
from supervisor.nodes.head import ABSENT_S, LEASE_MARGIN_S
from supervisor.nodes.wire import BEAT_S, SILENCE_S
from supervisor.simulator.clockwork import NEVER, Clockwork, Event, Owner
from supervisor.simulator.cluster import RACK, Cluster, Fault, Track
from supervisor.simulator.policy import CorePolicy

STOP_S, EVIDENCE_S, LOOK_S, START_S, PUBLISH_S = 10.0, 1.0, 1.0, 20.0, 60.0  # assumed; a start has a dry run in it
TOLD_S = 1.0  # from an end, or a fault of a GPU, until the head hears of it
QUIET_S = 30.0  # until a saved step counts as whole
COMPLAIN_S = 30.0  # between two lines of the orchestrator about an engine that it does not reach
BROKEN_S = 45.0  # a job that is started on a broken GPU lives so long
NCCL_S = 3600.0  # prime-rl's dist_timeout: then a trainer that hangs ends with an error (f19ba721a)
SLURMD_TIMEOUT_S, SLURM_LOOK_S = 300.0, 60.0  # until Slurm takes a lost machine out, its default; how often we ask
QUEUE_S = 600.0
"""From a requeue to the job's script: ByteRobust tells of 454 to 768 s for a requeue (arXiv 2509.16293, table 7), Slurm
alone lets 122 s pass (22.05, measured). In a shared cluster it may be hours."""
PERSON_S = 3600.0  # median until a person comes who is called (exit 93), as in the other simulator
WAIT_S = float(Nodes.model_fields["wait"].default)
EXIT_PERSON = 93
BEGIN_T = 1000.0  # of the core's clock
KEPT = 4  # steps that stay on the disk


@dataclass
class Machine:
    """One of the allocation."""

    rank: int
    lost_at: float | None = None
    broken: bool = False  # a GPU of it


class Job(Owner):
    """One attempt; its steps come while it is ``alive``. Then it stands, until it is stopped."""

    def __init__(self, attempt: int, resumed: int, names: list[str], launched: float) -> None:
        self.attempt, self.resumed, self.names, self.launched = attempt, resumed, names, launched


class OurRun:
    """A run with its head, from one allocation to the next."""

    def __init__(self, cluster: Cluster, spares: int) -> None:
        self.cluster, self.spares = cluster, spares
        self.clock, self.track = Clockwork(), Track(cluster)
        self.settings = Settings("simulated", has_engine=False, first_step_at=1, max_steps=10**9, keep_last=3)
        self.saved: list[int] = []
        self.stored: list[int] = []
        self.records: tuple[Learned, dict[str, Ledger]] | None = None
        self.said: list[tuple[float, str, str]] = []
        self.starts = self.allocations = self.gave_up = 0
        for fault in cluster.faults:
            self.clock.at(fault.t, self._call_strike(fault))
        self._begin_allocation()

    def run(self) -> int:
        """Let all of it happen; returns the last step that counts."""
        end_s = self.cluster.end_s
        while (t := min(self.clock.next_t(), self.deadline)) <= end_s:
            if t == self.clock.next_t():
                self.clock.step()
            else:
                self.clock.now = t
                self._see(f.Tick())
        if self.job is None or not self.job.alive:
            return max(self.saved, default=0)
        return self.track.find_steps(self.job.resumed, end_s - self.job.launched)[0]

    # ------------------------------------------------------------ the allocation and its daemon

    def _begin_allocation(self) -> None:
        self.allocations += 1
        ranks = range(self.cluster.machines + self.spares)
        self.machines = {f"a{self.allocations}-n{rank}": Machine(rank) for rank in ranks}
        self.working = list(self.machines)[: self.cluster.machines]
        self.job: Job | None = None
        self.daemon, self.core = Owner(), CorePolicy()
        self.lane_free, self.writing_until = self.clock.now, 0.0
        self.start: Event | None = None
        boot = f"allocation-{self.allocations}"
        self._see(f.DaemonStarted("simulated", self.settings, boot, journal=boot))
        for name in self.machines:
            self._see(f.MachineLook(name))

    def _end_allocation(self, after_s: float) -> None:
        self.daemon.alive = False
        self._halt_job()
        self.job, self.deadline = None, NEVER
        self.clock.after(after_s, self._begin_allocation)

    def _see(self, fact: f.Fact) -> None:
        if not self.daemon.alive:
            return
        now = self.clock.now
        acts, deadline = self.core.see(f.Observation(BEGIN_T + now, BEGIN_T + now, fact))
        self.deadline = deadline - BEGIN_T if deadline - BEGIN_T > now else now + 1.0
        for action in acts:
            self._carry_out(action)

    def _tell(self, after_s: float, fact: f.Fact) -> None:
        self.clock.after(after_s, lambda: self._see(fact), self.daemon)

    # ------------------------------------------------------------ the hands

    def _carry_out(self, action: a.Action) -> None:
        match action:
            case a.Say():
                self.said.append((self.clock.now, action.event, action.sentence))
            case a.Exit():
                self.gave_up += action.code == EXIT_PERSON
                self._end_allocation(QUEUE_S + (PERSON_S if action.code == EXIT_PERSON else 0.0))
            case a.Survey():
                self.clock.after(LOOK_S, self._tell_steps, self.daemon)
            case a.CollectEvidence():
                self._in_lane(EVIDENCE_S, lambda: None)
            case a.Stop():
                if self.start is not None:
                    self.start.cancel()
                unheard = self._unheard_machines()
                heard = max((self.machines[name].lost_at or 0.0 for name in unheard), default=-ABSENT_S)
                seconds = max(STOP_S, heard + ABSENT_S - self.clock.now)
                stopped = f.AttemptStopped(action.attempt, seconds, unheard=unheard)
                self._in_lane(seconds, lambda: self._job_stopped(stopped))
            case a.Start():
                self.start = self._in_lane(START_S, lambda: self._try_start(action, self.clock.now))
            case a.Publish():
                self.stored = [*self.stored, action.step][-KEPT:]
                self._tell(PUBLISH_S, f.Published(action.step, 1, PUBLISH_S, 1))
            case a.PruneStore():
                self.stored = [step for step in self.stored if step != action.step]
                self._tell(LOOK_S, f.Pruned(action.step, "store", 1))
            case a.KeepRecords():
                ledgers = self.records[1] if self.records is not None else {}
                self.records = action.learned, {**ledgers, action.journal: action.ledger}
            case _:
                raise NotImplementedError(f"the modelled cluster has no hands for {action}")

    def _in_lane(self, seconds: float, call: Callable[[], None]) -> Event:
        """One after the other, as the daemon starts, stops and looks."""
        self.lane_free = max(self.lane_free, self.clock.now) + seconds
        return self.clock.at(self.lane_free, call, self.daemon)

    def _tell_steps(self) -> None:
        if self.records is not None:
            self._see(f.StoreRecords(*self.records))
        self._see(f.StoreSteps(tuple(f.StoredStep(n, True, 1) for n in self.stored), max(self.stored, default=None)))
        self._tell_local(settled=True)

    def _tell_local(self, *, settled: bool = False) -> None:
        steps = tuple(f.LocalStep(n, "complete", "", 1) for n in self.saved[-KEPT:])
        self._see(f.LocalSteps(steps, settled=settled))

    def _job_stopped(self, fact: f.AttemptStopped) -> None:
        self._halt_job()
        self.job = None
        self._see(fact)

    def _try_start(self, action: a.Start, since: float) -> None:
        now = self.clock.now
        there = {name: one.rank for name, one in self.machines.items() if one.lost_at is None}
        wait_until = self.writing_until
        if len(there) < self.cluster.machines:
            if now >= since + WAIT_S:
                self._see(f.StartFailed(action.attempt, f"Only {len(there)} machines are there.", unfit=True))
                return
            wait_until = max(wait_until, since + WAIT_S)
        if now < wait_until:
            self.start = self.clock.at(wait_until, lambda: self._try_start(action, since), self.daemon)
            return
        self.start, self.starts = None, self.starts + 1
        self.working = choose_machines(there, action.avoid, self.cluster.machines)
        job = self.job = Job(action.attempt, action.step or 0, self.working, now)
        self._see(f.AttemptStarted(job.attempt, action.step, 1, "rl", machines=tuple(self.working)))
        self.clock.after(SCAN_S, lambda: self._tell_processes(job), job)
        self._await_step(job, job.resumed + 1)
        broken = next((n for n, name in enumerate(self.working) if self.machines[name].broken), None)
        if broken is not None:
            self.clock.after(BROKEN_S, lambda: self._die(broken, 1), job)

    # ------------------------------------------------------------ the job

    def _component(self, place: int) -> tuple[f.Role, int]:
        if self.cluster.is_engine(place):
            return "inference", place - (self.cluster.trainers if self.cluster.machines > 1 else 0)
        return "trainer", place

    def _tell_processes(self, job: Job) -> None:
        parts = [(n, *self._component(n)) for n in range(len(job.names))]
        if self.cluster.machines == 1:
            parts.append((0, "trainer", 0))
        for pid, (place, role, index) in enumerate([*parts, (0, "orchestrator", 0)], 1):
            self._see(f.ProcessSeen(job.attempt, role, pid, 1, role, True, job.names[place], index))

    def _await_step(self, job: Job, step: int) -> None:
        at = job.launched + self.track.seconds_to(job.resumed, step)
        self.clock.at(at, lambda: self._step_done(job, step), job)

    def _step_done(self, job: Job, step: int) -> None:
        self._see(f.StepDone("trainer", step, self.track.steps[step - 1]))
        if step % self.track.interval == 0:
            at = job.launched + self.track.seconds_to(job.resumed, step, saved=True)
            self.clock.at(at, lambda: self._step_saved(step), job)
        self._await_step(job, step + 1)

    def _step_saved(self, step: int) -> None:
        self.saved.append(step)
        self.clock.after(QUIET_S, self._tell_local, self.daemon)

    def _halt_job(self) -> None:
        if self.job is not None:
            self.job.alive = False

    # ------------------------------------------------------------ what strikes

    def _call_strike(self, fault: Fault) -> Callable[[], None]:
        return lambda: self._strike_place(fault)

    def _strike_place(self, fault: Fault) -> None:
        idle = [name for name in self.machines if name not in self.working]
        names = [*self.working, *idle]
        if self.daemon.alive and fault.place < len(names):
            self._strike(fault, names[fault.place])

    def _strike(self, fault: Fault, name: str) -> None:
        machine, job = self.machines.get(name), self.job
        if machine is None or machine.lost_at is not None:
            return
        place = job.names.index(name) if job is not None and job.alive and name in job.names else None
        match fault.kind:
            case "lost":
                self._lose([name])
            case "switch":
                self._lose([other for other, one in self.machines.items() if one.rank // RACK == machine.rank // RACK])
            case "gpu":
                machine.broken = True
                self._tell(TOLD_S, f.GpuFault("GPU 0", 79, "GPU has fallen off the bus", name))
        if place is not None and fault.kind in ("gpu", "crash"):
            self._die(place, 0 if fault.silent and self.cluster.is_engine(place) else 1)
        if place is not None and fault.kind == "hang":
            self._halt_job()
            self.clock.after(NCCL_S, lambda: self._tell_end(job, 0, "trainer", 0, 1), self.daemon)
        if place is not None and fault.again:
            later = replace(fault, again=fault.again[1:])
            self.clock.after(fault.again[0], lambda: self._strike_again(later, name), self.daemon)

    def _strike_again(self, fault: Fault, name: str) -> None:
        if self.job is not None and name in self.job.names:
            self._strike(fault, name)

    def _die(self, place: int, code: int) -> None:
        self._halt_job()
        self._tell_end(self.job, place, *self._component(place), code)

    def _tell_end(self, job: Job | None, place: int, role: f.Role, index: int, code: int) -> None:
        if job is not None and job is self.job:
            name = job.names[place]
            self._tell(TOLD_S, f.ComponentExited(job.attempt, f"{role}-{index}", code, None, False, name, role, index))

    def _lose(self, names: list[str]) -> None:
        now, job = self.clock.now, self.job
        for name in names:
            machine = self.machines[name]
            if machine.lost_at is not None:
                continue
            if machine.rank == 0:
                self._end_allocation(LEASE_S + HEADLESS_S + QUEUE_S)
                return
            machine.lost_at = now
            self._tell(SILENCE_S + BEAT_S, f.MachineLook(name, SILENCE_S + BEAT_S))
            asked = SLURM_LOOK_S * -(-(now + SLURMD_TIMEOUT_S) // SLURM_LOOK_S)
            self._tell(asked - now, f.MachineDown(name, "Slurm took it out of the job"))
            if job is None or name not in job.names:
                continue
            self._halt_job()
            if self.cluster.is_engine(job.names.index(name)):
                self._complain(job)
            else:
                self.writing_until = now + LEASE_S * 1.05 + LEASE_MARGIN_S

    def _complain(self, job: Job) -> None:
        if self.job is job:
            self._tell(TOLD_S, f.ErrorSeen("orchestrator", "connection-error", "Connection error."))
            self.clock.after(COMPLAIN_S, lambda: self._complain(job), self.daemon)

    def _unheard_machines(self) -> tuple[str, ...]:
        names = self.job.names if self.job is not None else []
        return tuple(name for name in names if self.machines[name].lost_at is not None)
