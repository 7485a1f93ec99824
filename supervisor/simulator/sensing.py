"""Sensors of the virtual pod: the only place that makes observations, with noise, delay and *unknown*.

Each speaks as the real one does (``supervisor/sensors``): a process's end within a second, memory each second, the
engine every five, the log within a second. Where nothing moves, looks that would say the same are left out: a slow
heartbeat while all is calm, the real rhythm from the first look after a change. A sensor reads physical quantities of
the pod; what struck it, it cannot know.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from supervisor.core import facts as f
from supervisor.simulator.clockwork import NEVER, Alarm
from supervisor.simulator.engine_look import EngineEyes
from supervisor.simulator.job import POWER_BUSY, POWER_IDLE, POWER_SPINS, Job, Line, Process
from supervisor.simulator.pod import ENGINE_GIB, WALL, GpuCard, Pod, Watcher
from supervisor.simulator.scenario import GIB

CHECKPOINT_SCAN_S, QUIET_S, STEPS_HEARTBEAT_S = 15.0, 20.0, 600.0
DISK_LOOK_S, DISK_HEARTBEAT_S, DISK_CHANGE = 5.0, 600.0, 0.002
GPU_HEARTBEAT_S, GPU_ODD_S, GPU_DEADLINE_S, GPU_UNKNOWN_S = 120.0, 10.0, 10.0, 30.0
HOST_HEARTBEAT_S = 300.0
POWER_W = 700.0
DIPS, ODD_LOADS = 0.2, 0.03  # looks that find a training GPU between two kernels, and a spinning one below 90 %
EFFORT_S, EFFORT_CALM_S = 10.0, 60.0
BURSTS, STALLS = 0.03, 0.1  # looks that find a stray burst of work, and reads or writes that rest for a moment
WORK_S, WORK_CALM_S = 10.0, 120.0
MEMORY_TOTAL = 512 * GIB

Tell = Callable[[f.Fact, str], None]


def local_steps(pod: Pod, *, settled: bool = False) -> f.LocalSteps:
    """The step folders on the disk, as the checkpoint sensor or a survey lists them."""
    now, found = pod.clock.now, []
    for step, folder in sorted(pod.folders.items()):
        size, wall = int(folder.written_bytes), WALL + folder.changed
        if folder.state == "complete" and not settled and now - folder.changed < QUIET_S:
            reason = f"complete, but changed less than {QUIET_S:g} s ago"
            found.append(f.LocalStep(step, "writing", reason, size, wall))
        elif folder.state == "complete":
            found.append(f.LocalStep(step, "complete", "", size, wall))
        elif folder.state == "writing" and not settled:
            found.append(f.LocalStep(step, "writing", "its files are being written", size, wall))
        else:
            found.append(f.LocalStep(step, "incomplete", "a shard is missing", size, wall))
    return f.LocalSteps(tuple(found), settled=settled)


class Sensing(Watcher):
    """All sensors of one daemon on one pod."""

    def __init__(self, pod: Pod, random: Random, tell: Tell) -> None:
        self.pod, self.clock, self.random, self._tell = pod, pod.clock, random, tell
        self._phase_s = random.uniform(0.0, 5.0)  # of the grids on which the looks lie
        self._line_t = self.clock.now
        self._steps_said: f.LocalSteps | None = None
        self._steps_t = self.clock.now
        self._written = 0
        self._disk_said = -1
        self._steps_alarm = Alarm(self.clock, self._look_at_steps, self)
        self._disk_alarm = Alarm(self.clock, self._look_at_disk, self)
        self._gpu_alarm = Alarm(self.clock, self._look_at_gpus, self)
        self._work_alarm = Alarm(self.clock, self._look_at_work, self)
        self._effort_alarm = Alarm(self.clock, self._look_at_effort, self)
        self._work_said: tuple[int, int, int] | None = None
        self._faults_told: set[str] = set()
        self._engine: EngineEyes | None = None
        self._gpu_alarm.within(1.0)
        self._disk_alarm.within(1.0)
        self._steps_soon()
        self.clock.after(3.0, self._look_at_host, self)

    def _next_on_grid(self, every_s: float) -> float:
        """The next moment on a grid of looks."""
        behind = (self.clock.now - self._phase_s) % every_s
        left = every_s - behind
        # A hair's breadth before the grid, rounding would make the next look this one, for ever.
        return self.clock.now + (left if left > 1e-3 else left + every_s)

    def _look_fails(self) -> bool:
        return self.pod.physics.flaky > 0 and self.random.random() < self.pod.physics.flaky

    # ------------------------------------------------------------ processes

    def job_launched(self, job: Job) -> None:
        self._engine = EngineEyes(job, self.random, self._tell, owner=self, phase_s=self._phase_s)
        self._work_said = None
        self._line_t = self.clock.now
        self.clock.after(self.random.uniform(2.0, 5.0), lambda: self._scan_processes(job), self)

    def take_over(self, job: Job) -> None:
        """A new daemon finds a job that lives, or that ended while no daemon looked."""
        self._engine = EngineEyes(job, self.random, self._tell, owner=self, phase_s=self._phase_s)
        self.pod.read_on()
        if job.exit is not None:
            self.job_ended(job)
            return
        self.clock.after(self.random.uniform(0.3, 1.0), lambda: self._scan_processes(job), self)
        self.job_changed()

    def _scan_processes(self, job: Job) -> None:
        for process in job.processes:
            if process.alive:
                fact = f.ProcessSeen(
                    job.attempt, process.role, process.pid, process.start_ticks, process.title, process.key
                )
                self._tell(fact, "processes")

    def process_gone(self, job: Job, process: Process) -> None:
        fact = f.ProcessGone(job.attempt, process.role, process.pid, process.start_ticks, process.key)
        seen = job.started_at + 5.0  # a process that was never seen is not missed
        if self.clock.now >= seen:
            self.clock.after(self.random.uniform(0.05, 1.0), lambda: self._tell(fact, "processes"), self)

    def job_ended(self, job: Job) -> None:
        if job.exit is None:
            return
        code, signal = job.exit
        fact = f.ComponentExited(job.attempt, "launcher", code, signal)
        # Told after the last lines, which the log sensor reads first.
        told = max(self.clock.now + self.random.uniform(1.0, 2.0), self._line_t + 0.01)
        self.clock.at(told, lambda: self._tell(fact, "processes"), self)

    # ------------------------------------------------------------ logs

    def line(self, line: Line) -> None:
        fact = self._parse_line(line)
        self._line_t = max(self._line_t + 1e-4, self.clock.now + self.random.uniform(0.05, 1.0))
        self.clock.at(self._line_t, lambda: self._tell(fact, "logs"), self)

    @staticmethod
    def _parse_line(line: Line) -> f.Fact:
        match line.what:
            case "phase":
                return f.PhaseSeen(line.role, line.name, line.step, line.text)
            case "step" if line.role == "trainer":
                return f.StepDone("trainer", line.step or 0, line.seconds, loss=line.value, throughput=line.extra)
            case "step":
                return f.StepDone(
                    line.role, line.step or 0, line.seconds, line.value, error_rate=0.01, trainable=line.extra
                )
            case "finish":
                return f.FinishSeen(line.role, line.text)
        return f.ErrorSeen(line.role, line.name, line.text)

    def job_changed(self) -> None:
        job = self.pod.job
        if job is None or not job.alive:
            return
        if self._engine is not None and self._engine.job is job:
            self._engine.look_soon()
        self._gpu_alarm.within(GPU_ODD_S / 2)
        self._effort_alarm.not_after(self._next_on_grid(EFFORT_S))
        if job.phase in ("load", "resume"):
            return
        # The rhythm of the real lines from the moment at which the numbers may stand still.
        if self._work_alarm.t == NEVER or (job.is_blocked and self._work_alarm.t > self.clock.now + WORK_S):
            self._work_alarm.not_after(self._next_on_grid(WORK_S))

    def _look_at_work(self) -> None:
        job = self.pod.job
        if job is None or not job.alive or job.exit is not None or "orchestrator" in job.missing:
            return
        if job.phase in ("load", "resume"):
            return
        work = job.work()
        still = work == self._work_said and work[0] > 0
        self._work_said = work
        if not self.pod.logs_stand and not job.silent and self.pod.physics.pipeline:
            self._tell(f.WorkSeen(*work), "logs")
        calm = self.pod.physics.thinned and not still and not job.is_blocked
        self._work_alarm.within(WORK_CALM_S if calm else WORK_S)

    # ------------------------------------------------------------ GPUs

    def gpus_changed(self) -> None:
        self._gpu_alarm.within(self.random.uniform(0.05, 1.0))

    def _look_at_gpus(self) -> None:
        pod = self.pod
        if not pod.physics.nvml:
            self._tell(f.GpuLook(reason="there is no NVML here"), "gpu")
            self._gpu_alarm.within(GPU_HEARTBEAT_S)
            return
        if self._look_fails():
            self._tell(f.GpuLook(reason="the look failed"), "gpu")
            self._gpu_alarm.within(GPU_ODD_S)
            return
        if pod.nvml_hangs:
            fact = f.GpuLook(reason=f"gpu did not answer for {GPU_DEADLINE_S:.0f} s")
            self.clock.after(GPU_DEADLINE_S, lambda: self._tell(fact, "gpu"), self)
            self._gpu_alarm.within(GPU_UNKNOWN_S)
            return
        lost = tuple(f"GPU {card.index}: GPU is lost" for card in pod.cards if card.lost)
        if lost:
            self._tell_lost_gpus(lost)
            return
        jitter = self.random.uniform(-0.02, 0.02) * GIB
        gpus = []
        for c in pod.cards:
            power_w, load = self._gpu_reading(c)
            used = int(c.used_bytes + jitter)
            gpus.append(f.Gpu(c.uuid, c.index, used, c.total_bytes, c.role, power_w=power_w, load=load))
        self._tell(f.GpuLook(tuple(gpus)), "gpu")
        low = pod.job is not None and any(
            c.role == "inference" and c.used_bytes < ENGINE_GIB * GIB / 2 for c in pod.cards
        )
        low = low or (pod.job is not None and pod.job.is_blocked)
        self._gpu_alarm.within(GPU_HEARTBEAT_S if self.pod.physics.thinned and not low else GPU_ODD_S)

    def _gpu_reading(self, card: GpuCard) -> tuple[float, float]:
        """Watts and percent of the time: a kernel that only spins fills it, and one that computes has pauses."""
        job, random = self.pod.job, self.random
        first = card.index == self.pod.physics.engines
        work = job.gpu_work(card.role, first=first) if job is not None and job.alive else "rests"
        if work == "computes":
            dips = card.role == "trainer" and random.random() < DIPS
            part, load = (random.uniform(0.25, 0.5), random.uniform(30.0, 100.0)) if dips else (POWER_BUSY, 100.0)
        elif work == "spins":
            part, load = POWER_SPINS * random.uniform(0.75, 1.4), 100.0 if random.random() > ODD_LOADS else 80.0
        else:
            part, load = POWER_IDLE * random.uniform(0.8, 1.2), random.uniform(0.0, 20.0)
        return float(round(POWER_W * part * random.uniform(0.9, 1.1))), float(round(load))

    def _look_at_effort(self) -> None:
        """What the job's processes do: CPU, files and network, each with stray bursts and moments of rest."""
        job, random, physics = self.pod.job, self.random, self.pod.physics
        if job is None or not job.alive or job.exit is not None or not physics.proc:
            return
        if self._look_fails():
            self._tell(f.EffortLook(reason="the look failed"), "effort")
            self._effort_alarm.within(EFFORT_S)
            return
        does, ranks = job.effort(), physics.trainer_gpus
        trainer = does.trainer * random.uniform(0.85, 1.0)
        stray, rests = random.random() < BURSTS, random.random() < STALLS
        self._tell(
            f.EffortLook(
                (
                    f.Effort("trainer", round(trainer * ranks, 1), round(trainer, 1)),
                    f.Effort("orchestrator", does.orchestrator, does.orchestrator),
                    *([] if "env" in job.missing else [f.Effort("env", does.env, does.env)]),
                ),
                helper_cores=round(does.helpers * random.uniform(0.5, 1.5) + stray * random.uniform(0.3, 1.5), 1),
                file_bytes_s=round(0.0 if rests else does.file_bytes_s * random.uniform(0.3, 1.0)),
                net_bytes_s=round(2e4 * random.uniform(0.1, 3.0) + 3e6 * (random.random() < BURSTS / 2)),
                flushed_bytes_s=does.flushed_bytes_s,
            ),
            "effort",
        )
        calm = physics.thinned and job.activity == "working" and not job.is_blocked
        self._effort_alarm.within(EFFORT_CALM_S if calm else EFFORT_S)

    def _tell_lost_gpus(self, lost: tuple[str, ...]) -> None:
        for card in self.pod.cards:
            if card.lost and card.uuid not in self._faults_told:
                self._faults_told.add(card.uuid)
                text = f"Xid (PCI:0000:{card.index + 1:02x}:00): 79, GPU has fallen off the bus."
                self._tell(f.GpuFault(f"GPU {card.index}", 79, text), "gpu")
        gpus = tuple(
            f.Gpu(c.uuid, c.index, int(c.used_bytes), c.total_bytes, c.role) for c in self.pod.cards if not c.lost
        )
        self._tell(f.GpuLook(gpus, lost=lost), "gpu")
        self._gpu_alarm.within(GPU_ODD_S)

    # ------------------------------------------------------------ disk, checkpoints, host

    def disk_changed(self) -> None:
        self._disk_alarm.within(self.random.uniform(0.5, DISK_LOOK_S))

    def _look_at_disk(self) -> None:
        if self._look_fails():
            self._tell(f.DiskLook("/data/run", None, None, "statvfs did not answer"), "disk")
            self._disk_alarm.within(DISK_LOOK_S)
            return
        total, free = self.pod.disk_total, self.pod.disk_free()
        moved = abs(free - self._disk_said) > DISK_CHANGE * total
        heartbeat = self._disk_said < 0 or not self.pod.foreign_rate
        if moved or heartbeat:
            self._disk_said = free
            self._tell(f.DiskLook("/data/run", total, free), "disk")
        self._disk_alarm.within(DISK_LOOK_S if self.pod.foreign_rate else DISK_HEARTBEAT_S)

    def steps_changed(self) -> None:
        self._steps_soon()
        self.disk_changed()

    def _steps_soon(self) -> None:
        self._steps_alarm.not_after(self._next_on_grid(CHECKPOINT_SCAN_S))

    def _look_at_steps(self) -> None:
        if self._look_fails():
            self._tell(f.LocalSteps(reason="the folder did not answer"), "checkpoints")
            self._steps_soon()
            return
        now, job = self.clock.now, self.pod.job
        writing = self.pod.folder_being_written()
        if writing is not None and job is not None:
            size = int(writing.written_bytes * job.written_part())
            if size != self._written:  # a save that hangs grows no more
                self._written, writing.changed = size, now
                self._tell(f.Growing("checkpoint", size), "checkpoints")
        fact = local_steps(self.pod)
        states = [(s.step, s.state) for s in fact.steps]
        said = [(s.step, s.state) for s in self._steps_said.steps] if self._steps_said else None
        if states != said or now - self._steps_t >= STEPS_HEARTBEAT_S:
            self._steps_said, self._steps_t = fact, now
            self._tell(fact, "checkpoints")
        if any(step.state == "writing" for step in fact.steps):
            self._steps_soon()
        else:
            self._steps_alarm.within(STEPS_HEARTBEAT_S)

    def host_changed(self) -> None:
        self.clock.after(self.random.uniform(1.0, 10.0), self._tell_host, self)

    def _look_at_host(self) -> None:
        self._tell_host()
        self.clock.after(HOST_HEARTBEAT_S, self._look_at_host, self)

    def _tell_host(self) -> None:
        part = self.pod.memory_free_part
        fact = f.HostLook(
            memory_total_bytes=MEMORY_TOTAL,
            memory_available_bytes=int(MEMORY_TOTAL * part),
            memory_pressure=0.0 if part > 0.1 else 40.0,
            oom_kills=self.pod.oom_kills,
            open_files=2100,
            open_files_limit=1 << 20,
            open_files_of="orchestrator",
            shm_total_bytes=64 * GIB,
            shm_free_bytes=60 * GIB,
        )
        self._tell(fact, "host")
