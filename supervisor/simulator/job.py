"""A prime-rl job as physics: processes, an engine that makes tokens, phases that need some of them, checkpoints.

The order within a step is that of prime-rl with one step of asynchrony (facts: orchestrator and trainer logs of v0.6
and later): rollouts of the batch; training, while the engine already works on the next batch; then, every ``interval``
steps, the save; then the weight update, for which the engine pauses with requests in flight. What each phase needs
decides what a broken part stops, and when: a dead engine lets the step that is in training end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from supervisor.simulator.clockwork import Event, Owner

if TYPE_CHECKING:
    from supervisor.simulator.pod import Pod

Role = Literal["launcher", "inference", "orchestrator", "trainer", "env"]
Health = Literal["ok", "stuck", "gone"]
Activity = Literal["absent", "idle", "working", "paused", "stuck"]

UPDATE_S = 8.0  # weight update over NCCL or the file system, the engine paused
ROLLOUTS_PART = 0.65  # of a step; the rest is training and the update
COMPLAIN_S = 30.0  # between two error lines about an engine that cannot be reached (in truth there are hundreds)
DRAIN_S = 45.0  # requests in flight end when no new ones come
ITERATIONS_PER_S = 25.0  # of one engine under load
INFLIGHT, BATCH = 64, 256
ENGINE_UP_PART = 0.75  # of the start-up: then the server listens
COMMAND = "rl @ rl.toml"
# Of a GPU's limit; assumed: training draws most of it, and a kernel that only spins ("100 % busy") far less.
POWER_BUSY, POWER_SPINS, POWER_IDLE = 0.75, 0.3, 0.17
COMPILES_PART = 0.4  # of what follows the engine's start: the last part of it, the first one reads the checkpoint
GpuWork = Literal["computes", "spins", "rests"]


class Effort(NamedTuple):
    """What the processes do now, as the kernel would count it: CPU cores of each role, and bytes a second."""

    trainer: float  # of each rank
    orchestrator: float
    env: float
    helpers: float
    file_bytes_s: float
    flushed_bytes_s: float  # by the kernel


LAST_ONES = 3  # rollouts that wait for their environment
SELDOM_SHOWN = ("training", "rollouts")  # phases that prime-rl tells at level "debug" only

_MODEL: frozenset[Role] = frozenset(("inference", "orchestrator", "trainer"))
_ROLLOUTS: frozenset[Role] = frozenset(("inference", "orchestrator", "env"))
_TRAINER: frozenset[Role] = frozenset(("trainer",))
NEEDS: dict[str, frozenset[Role]] = {
    "load": frozenset(("inference",)),  # the others start beside it, and are missed once it is up
    "resume": _MODEL,
    "rollouts": _ROLLOUTS,
    "environment": frozenset(("orchestrator", "env")),
    "eval": _ROLLOUTS,
    "training": _TRAINER,
    "checkpoint": _TRAINER,
    "weight-update": _MODEL,
}


class Line(NamedTuple):
    """One line that a role wrote into its log: what it is about, and its values."""

    role: Role
    what: Literal["phase", "step", "error", "finish"]
    name: str = ""  # the phase, or the name of the error
    step: int | None = None
    seconds: float | None = None
    value: float | None = None  # reward of the orchestrator, loss of the trainer
    text: str = ""
    extra: float | None = None  # tokens per second of the trainer, trainable part of the orchestrator's samples


@dataclass
class Process:
    """One process; identity is pid and start time."""

    role: Role
    pid: int
    start_ticks: int
    title: str
    key: bool
    engine: int | None = None  # which data-parallel engine it is
    alive: bool = True


@dataclass
class Engine:
    """One data-parallel engine and its counter."""

    health: Health = "ok"
    iterations: float = 0.0


class Job(Owner):
    """One attempt. ``started_at`` is its launch; everything of it ends with ``end``."""

    def __init__(self, pod: Pod, attempt: int, resume_step: int | None, poison: int | None, interval: int) -> None:
        self.pod, self.clock = pod, pod.clock
        self.attempt, self.resume_step, self.interval = attempt, resume_step, interval
        self.poison = poison  # the step at which this lineage crashes
        self.ruined = False  # are its weights NaN?
        self.step = resume_step if resume_step is not None else 0  # last one done
        self.made = 0  # steps done by this attempt
        self.started_at = self.clock.now
        self.broken: set[Role] = set()  # roles that are stuck or gone
        self.missing: set[Role] = set()  # those that are gone
        self.engines = [Engine() for _ in range(pod.physics.engines)]
        self.up = False  # the engine's server listens
        self.slow = 1.0  # how fast the engine is of what it could be
        self.shows_running = True  # a stopped engine's own count of running requests may read 0
        self.silent = False  # the orchestrator prints its count of rollouts no more
        self.waiting: set[Role] = set()  # roles that stand still and will go on by themselves
        self.straggles = False  # one rank that hangs computes on its CPU, and keeps its GPU at rest
        self.busy_loop = False  # the orchestrator that hangs does so in a loop
        self.activity: Activity = "absent"
        self.phase = ""
        self.phase_s = 0.0
        self.phase_since = self.clock.now
        self.step_s = 0.0  # of the step under way, as drawn
        self.exit: tuple[int | None, int | None] | None = None  # (exit code, signal)
        self.ending = False  # the launcher takes the rest down
        self.hung_for_good = False  # a stop needs the longest grace
        self.odd = ""  # unusual and healthy
        self.eval_until: float | None = None  # of one that began while the trainer had a batch
        self._left = 0.0
        self._rate = 0.0
        self._since = self.clock.now
        self._end: Event | None = None
        self._complaint: Event | None = None
        self._drain_until: float | None = None
        self._then: Callable[[], None] = lambda: None
        self._counted_t = self.clock.now
        self.processes = self._make_processes()

    def _make_processes(self) -> list[Process]:
        ticks = int(self.clock.now * 100)
        titles: list[tuple[Role, str, bool, int | None]] = [
            ("launcher", "PRIME-RL::Launcher", False, None),
            ("inference", "PRIME-RL::Inference", True, None),
            *(("inference", f"VLLM::EngineCore_DP{k}", True, k) for k in range(len(self.engines))),
            ("orchestrator", "PRIME-RL::Orchestrator", True, None),
            ("env", "PRIME-RL::EnvServer", True, None),
            *(("trainer", "PRIME-RL::Trainer", True, None) for _ in range(self.pod.physics.trainer_gpus)),
        ]
        return [
            Process(role, self.pod.next_pid(), ticks + number, title, key, engine)
            for number, (role, title, key, engine) in enumerate(titles)
        ]

    # ------------------------------------------------------------ questions

    @property
    def is_blocked(self) -> bool:
        """Can the present phase not go on?"""
        return self.exit is not None or self.ending or not NEEDS[self.phase].isdisjoint(self.broken | self.waiting)

    def progress(self) -> float:
        """How much of the present phase is done, 0 to 1."""
        self._advance_phase()
        return 1.0 - self._left / self.phase_s if self.phase_s > 0 else 1.0

    def work(self) -> tuple[int, int, int]:
        """The orchestrator's own count: rollouts in flight, done, wanted."""
        if self.phase in ("rollouts", "eval"):
            part = self.progress() / (1 - self.pod.physics.straggling) if self.phase == "rollouts" else 0.0
            done = self._part_ahead() + (1 - self._part_ahead()) * min(1.0, part)
            return INFLIGHT, int(BATCH * done), BATCH
        if self.phase == "environment":
            return LAST_ONES, BATCH - LAST_ONES, BATCH
        if self.evaluates_beside:
            return INFLIGHT, int(BATCH * self._part_ahead()), BATCH
        if self.phase == "training" and self.activity in ("working", "stuck"):
            return INFLIGHT, int(BATCH * self._part_ahead() * self.progress()), BATCH
        if self.phase in ("load", "resume", ""):
            return 0, 0, BATCH
        waits = self.phase == "weight-update" or self.activity == "stuck"
        return INFLIGHT if waits else 0, int(BATCH * self._part_ahead()), BATCH

    def gpu_work(self, role: str, *, first: bool = True) -> GpuWork:
        """What a GPU of ``role`` does: a collective that never ends only spins, and so does one that waits."""
        if role == "inference":
            return "computes" if self.activity == "working" else "rests"
        if "trainer" in self.missing or self.exit is not None:
            return "rests"
        if "trainer" in self.broken | self.waiting:
            return "rests" if self.straggles and first else "spins"
        if self.phase == "training":
            return "computes"
        barrier = self.phase in ("checkpoint", "weight-update")  # one rank writes or sends, the others wait for it
        return "spins" if barrier or (self.pod.physics.waits_spin and self.phase not in ("load", "resume")) else "rests"

    def effort(self) -> Effort:
        """What the processes do in the present phase. Those of a part that hangs do as little as while they wait."""
        phase, well = self.phase, not self.is_blocked
        spins = self.gpu_work("trainer") != "rests" or self.straggles
        compiles = phase == "resume" and well and self.progress() > 1 - COMPILES_PART
        reads = (phase == "load" or (phase == "resume" and not compiles)) and well
        serves = well and phase in ("rollouts", "eval", "environment") and "env" not in self.broken
        shows = serves and (phase != "environment" or self.pod.physics.env_shows)
        loops = "orchestrator" in self.broken and self.busy_loop
        return Effort(
            trainer=1.0 if spins or compiles else 0.3 if reads else 0.03,
            orchestrator=1.0 if loops else 0.6 if well and phase in ("rollouts", "eval") else 0.08,
            env=1.5 if shows else 0.05,
            helpers=3.0 if compiles else 2.0 if shows else 0.1,
            file_bytes_s=5e8 if reads or (phase == "checkpoint" and well and self.written_part() < 1) else 3e3,
            flushed_bytes_s=3e8 if phase == "checkpoint" and well else 1e5,
        )

    def written_part(self) -> float:
        """How much of a save is in its files, 0 to 1: the last part of it brings them to the volume."""
        return min(1.0, self.progress() / (1 - self.pod.physics.sync_part)) if self.phase == "checkpoint" else 1.0

    @property
    def evaluates_beside(self) -> bool:
        """Does the orchestrator evaluate while the trainer works?"""
        return self.eval_until is not None and self.clock.now < self.eval_until and self.phase != "eval"

    @staticmethod
    def _part_ahead() -> float:
        return 0.3  # of a batch that is generated while the trainer trains on the one before

    def iterations(self) -> list[float]:
        """Each engine's counter now."""
        self._count_iterations()
        return [engine.iterations for engine in self.engines]

    def living_processes(self, role: Role) -> list[Process]:
        return [p for p in self.processes if p.role == role and p.alive]

    # ------------------------------------------------------------ phases

    def begin(self) -> None:
        """The launcher runs; the rest comes up."""
        load_s = self.pod.chance.around_at(self.clock.now, self.pod.physics.load_s, 0.15, "load")
        self.write(Line("trainer", "phase", "startup", text="Starting RL trainer"))
        self.write(Line("orchestrator", "phase", "startup", text="Waiting for inference pool to be ready"))
        self._enter_phase("load", load_s * ENGINE_UP_PART, lambda: self._after_load(load_s * (1 - ENGINE_UP_PART)))
        self.clock.after(min(20.0, load_s / 10), self._memory_rises, self)

    def _memory_rises(self) -> None:
        self.pod.memory_of("inference", self.engines_alive())
        self.pod.memory_of("trainer", None)

    def engines_alive(self) -> list[bool]:
        return [engine.health != "gone" for engine in self.engines]

    def _after_load(self, left_s: float) -> None:
        self.up = True
        where = f"Resuming training from checkpoint step {self.resume_step}"
        text = where if self.resume_step is not None else "Starting training loop"
        self.write(Line("trainer", "phase", "startup", self.resume_step, text=text))
        self.pod.world.resumes(self)
        self._enter_phase("resume", left_s, self._next_step)

    def _next_step(self) -> None:
        physics = self.pod.physics
        if physics.max_steps and self.step >= physics.max_steps:
            self._finish_run()  # it was started although nothing is left to train
            return
        self.step_s = self.pod.next_step_s(self.step + 1)
        left = (
            self._begin_evaluation(self.step + 1)
            if self.eval_until is None
            else max(0.0, self.eval_until - self.clock.now)
        )
        self.eval_until = None
        if left:
            self._enter_phase("eval", left, lambda: self._await_environment(self._begin_rollouts))
        else:
            self._begin_rollouts()

    def _begin_evaluation(self, number: int) -> float:
        """Begin what is to be evaluated before step ``number``: for how many seconds, 0.0: nothing."""
        physics = self.pod.physics
        first = physics.eval_first and self.step == 0 and not self.made
        due = physics.eval_every and number % physics.eval_every == 0
        long = self.pod.next_eval_s
        if not (first or ((due or long) and (self.made or self.phase == "training"))):
            return 0.0
        self.pod.next_eval_s = 0.0
        self.write(Line("orchestrator", "phase", "eval", number, text=f"Running evals for step {number}"))
        return long or self.pod.chance.around(physics.eval_s, 0.3, "eval", number)

    def _await_environment(self, then: Callable[[], None]) -> None:
        """The last rollouts wait for what their environment does: tests, a sandbox, a judge."""
        if self.pod.physics.env_s:
            seconds = self.pod.chance.around(self.pod.physics.env_s, 0.5, "environment", self.step, self.phase)
            self._enter_phase("environment", seconds, then)
        else:
            then()

    def _begin_rollouts(self) -> None:
        number = self.step + 1
        self.write(Line("orchestrator", "phase", "rollouts", number, text=f"Starting orchestrator step {number}"))
        self._enter_phase(
            "rollouts", self.step_s * ROLLOUTS_PART, lambda: self._await_environment(self._begin_training)
        )

    @property
    def _update_s(self) -> float:
        return min(UPDATE_S, self.step_s / 10)

    def _begin_training(self) -> None:
        number = self.step + 1
        reward = 0.4 + 0.2 * math.tanh(number / 300) + self.pod.physics_random.gauss(0, 0.03)
        self.write(Line("orchestrator", "step", "", number, self.step_s, reward, extra=0.8))
        self.write(Line("trainer", "phase", "training", number, text=f"Starting training step {number}"))
        training_s = max(1.0, self.step_s * (1 - ROLLOUTS_PART) - self._update_s)
        if self.poison is not None and number >= self.poison:
            self.clock.after(training_s / 2, self._crash_of_poison, self)
        self._enter_phase("training", training_s, self._after_training)
        if self.pod.physics.overlaps and number != self.pod.physics.max_steps:
            seconds = self._begin_evaluation(number + 1)
            self.eval_until = self.clock.now + seconds if seconds else None
            self._refresh()
        self.clock.after(training_s * 1.1, self._refresh, self)

    def _crash_of_poison(self) -> None:
        self.pod.world.poison_strikes()
        self.crash("trainer", 1, "fatal-error", "Fatal error in train: loss is nan")

    def _after_training(self) -> None:
        self.step += 1
        self.made += 1
        loss = 0.05 + abs(self.pod.physics_random.gauss(0, 0.02))
        loss = math.nan if self.ruined else loss
        self.write(Line("trainer", "step", "", self.step, self.step_s, loss, extra=round(2e6 / self.step_s, 1)))
        self.pod.world.step_done(self.step)
        last = self.step == self.pod.physics.max_steps
        if self.step % self.interval == 0 or last:
            self.write(Line("trainer", "phase", "checkpoint", self.step, text=f"Saving checkpoint at step {self.step}"))
            self._enter_phase("checkpoint", self.pod.begin_save(self), self._after_save)
        else:
            self._update_weights()

    def _after_save(self) -> None:
        self.pod.end_save(self)
        self._update_weights()

    def _update_weights(self) -> None:
        if self.pod.physics.max_steps and self.step >= self.pod.physics.max_steps:
            self._finish_run()
            return
        self.write(
            Line("orchestrator", "phase", "weight-update", self.step, text=f"Updating policy in-flight to v{self.step}")
        )
        self._enter_phase("weight-update", self._update_s, self._next_step)

    def _finish_run(self) -> None:
        for role, text in (
            ("orchestrator", "Orchestrator finished."),
            ("trainer", "RL trainer finished!"),
            ("launcher", "RL training finished!"),
        ):
            self.write(Line(role, "finish", text=text))  # type: ignore[arg-type]
        self.clock.after(5.0, lambda: self._exit_with(0, None), self)
        self.phase, self.ending = "weight-update", True
        self._refresh()

    def _enter_phase(self, phase: str, seconds: float, then: Callable[[], None]) -> None:
        self.phase, self.phase_s, self.phase_since = phase, seconds, self.clock.now
        self._left, self._since, self._then = seconds, self.clock.now, then
        self._drain_until = None
        self._rate = 0.0
        self._refresh()

    # ------------------------------------------------------------ what moves

    def _advance_phase(self) -> None:
        now = self.clock.now
        self._left = max(0.0, self._left - (now - self._since) * self._rate)
        self._since = now

    def _refresh(self) -> None:
        """Something that the phase needs has changed: how fast does it go on, and what does the engine do?"""
        if not self.alive:
            return
        self._advance_phase()
        self._count_iterations()
        rate = 0.0 if self.is_blocked else self.slow if "inference" in NEEDS[self.phase] else 1.0
        if self._end is not None:
            self._end.cancel()
            self._end = None
        self._rate = rate
        if rate > 0:
            self._end = self.clock.after(self._left / rate, self._phase_over, self)
        self.activity = self._present_activity()
        if self._complaint is None and self._cannot_reach():
            self._complaint = self.clock.after(self.pod.physics_random.uniform(2.0, 10.0), self._write_complaint, self)
        self.pod.job_changed()

    def _cannot_reach(self) -> bool:
        """Does the orchestrator ask an engine that is not there?"""
        return (
            self.exit is None
            and "orchestrator" not in self.broken
            and self.phase in ("rollouts", "eval", "weight-update", "training")
            and any(engine.health == "gone" for engine in self.engines)
        )

    def _write_complaint(self) -> None:
        self._complaint = None
        if self._cannot_reach():
            text = "Rollout failed: APIConnectionError: Connection error."
            self.write(Line("orchestrator", "error", "connection-error", text=text))
            self._complaint = self.clock.after(COMPLAIN_S, self._write_complaint, self)

    def _phase_over(self) -> None:
        self._end = None
        self._left = 0.0
        self._then()

    def _present_activity(self) -> Activity:
        if not self.up or all(engine.health == "gone" for engine in self.engines) or self.exit is not None:
            return "absent"
        if all(engine.health != "ok" for engine in self.engines):
            return "stuck"
        if self.phase in ("load", "resume", "environment"):
            return "idle"
        if self.evaluates_beside:
            return "working"
        if self.phase == "weight-update":
            return "paused" if not self.is_blocked else "idle"
        if self.phase == "checkpoint":
            return "idle"
        if self.phase == "training":
            return "working" if self.clock.now < self.phase_since + self.phase_s * 1.1 - 1e-6 else "idle"
        if not self.is_blocked:
            return "working"
        # No new requests come, or all of them wait at a broken engine: those in flight end one by one.
        if self._drain_until is None:
            self._drain_until = self.clock.now + DRAIN_S
            self.clock.after(DRAIN_S, self._refresh, self)
        return "working" if self.clock.now < self._drain_until else "idle"

    def _count_iterations(self) -> None:
        now = self.clock.now
        if self.activity == "working":
            for engine in self.engines:
                if engine.health == "ok":
                    engine.iterations += (now - self._counted_t) * ITERATIONS_PER_S * self.slow
        self._counted_t = now

    # ------------------------------------------------------------ what breaks

    def slow_down(self, factor: float) -> None:
        """The engine makes only ``factor`` of its tokens (1.0: all again)."""
        self._count_iterations()
        self._advance_phase()
        self.slow = factor
        self._refresh()

    def jam(self, role: Role, engine: int | None = None) -> None:
        """A role stops moving and stays there; its processes live on."""
        if role == "inference":
            self._count_iterations()
            for number, one in enumerate(self.engines):
                if engine in (None, number) and one.health == "ok":
                    one.health = "stuck"
        self.broken.add(role)
        self.hung_for_good = True
        self._refresh()

    def wait(self, role: Role, *, on: bool) -> None:
        """A role begins to wait for something that will come, or goes on."""
        self._advance_phase()
        (self.waiting.add if on else self.waiting.discard)(role)
        self._refresh()

    def vanish(self, role: Role, engine: int | None = None) -> None:
        """A role's processes are gone, and the launcher takes no notice."""
        self._count_iterations()
        for process in self.living_processes(role):
            if engine is None or process.engine == engine:
                self._lose_process(process)
        if role == "inference":
            for number, one in enumerate(self.engines):
                if engine in (None, number):
                    one.health = "gone"
            if all(one.health == "gone" for one in self.engines):
                self.up = False
            self.clock.after(1.5, lambda: self.pod.memory_of("inference", self.engines_alive()), self)
        self.broken.add(role)
        self.missing.add(role)
        self._refresh()

    def crash(self, role: Role, code: int, name: str, text: str) -> None:
        """A role ends with an error; the launcher notices, ends the rest and itself (monitor_process in prime-rl)."""
        if not self.alive or self.exit is not None or self.ending:
            return
        if text:
            self.write(Line(role, "error", name, text=text))
        self.ending = True
        self.vanish(role)
        title = role.capitalize()
        self.write(Line("launcher", "error", "component-failed", text=f"{title} failed with exit code {code}"))
        self.clock.after(self.pod.physics_random.uniform(3.0, 20.0), lambda: self._exit_with(1, None), self)

    def slept(self, seconds: float) -> None:
        """The host stood still: nothing moved in that time."""
        self._since += seconds
        self._counted_t += seconds
        self.phase_since += seconds
        if self.eval_until is not None:
            self.eval_until += seconds
        if self._drain_until is not None:
            self._drain_until += seconds

    def die(self, signal: int) -> None:
        """The whole job is killed at once."""
        self._exit_with(None, signal)

    def kill_role(self, role: Role) -> None:
        """The kernel (or a person) killed a role: the launcher sees a code other than 0."""
        self.crash(role, -9, "", "")

    def _lose_process(self, process: Process) -> None:
        process.alive = False
        self.pod.watcher.process_gone(self, process)

    def _exit_with(self, code: int | None, signal: int | None) -> None:
        self._count_iterations()
        self.exit = (code, signal)
        for process in self.processes:
            if process.alive:
                self._lose_process(process)
        self.up = False
        self.pod.memory_of("inference", [False] * len(self.engines), after_s=1.5)
        self.pod.memory_of("trainer", None, gone=True, after_s=1.5)
        self._refresh()
        self.pod.job_ended(self)

    def end(self) -> None:
        """Nothing of it is left: it was stopped, or its pod is gone."""
        for process in self.processes:
            process.alive = False
        self.up = False
        self.alive = False
        self.activity = "absent"

    def write(self, line: Line) -> None:
        if self._is_shown(line):
            self.pod.write(line)

    def _is_shown(self, line: Line) -> bool:
        """Does the log's level let this line through?"""
        physics = self.pod.physics
        if physics.lines == "debug" or line.what in ("error", "finish"):
            return True
        if physics.lines == "steps":
            return line.what == "step" and line.role == "trainer"
        begins = line.name == "rollouts" and physics.step_begins
        return line.what != "phase" or line.name not in SELDOM_SHOWN or begins
