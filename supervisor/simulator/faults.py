"""What can go wrong in the virtual world. A fault changes the world and nothing else: no observation is made here.

``needs`` says what it takes to go on: "restart" of the job, another "pod", "room" on the disk, or "nothing", because it
passes by itself, or because nothing can be done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisor.base.errors import ConfigError
from supervisor.simulator.job import Job, Line, Role
from supervisor.simulator.scenario import GB

if TYPE_CHECKING:
    from supervisor.simulator.world import World

Values = Mapping[str, Any]


class NotNowError(Exception):
    """The fault finds nothing to strike: no job lives, no pod is there."""


@dataclass(frozen=True)
class Parameter:
    """One number (or word) of a fault. A pair [low, high] in a file is drawn from evenly."""

    default: float | str | bool
    about: str


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    needs: str
    about: str
    parameters: Mapping[str, Parameter]
    strike: Callable[[World, Values], None]


KINDS: dict[str, Kind] = {}
"""All kinds of faults, by name."""


def _kind(
    name: str, needs: str, about: str, **parameters: tuple[Any, str]
) -> Callable[[Callable[[World, Values], None]], Callable[[World, Values], None]]:
    """Puts a function that changes the world into ``KINDS``; each parameter with its default and what it is."""

    def add(strike: Callable[[World, Values], None]) -> Callable[[World, Values], None]:
        KINDS[name] = Kind(name, needs, about, {key: Parameter(*value) for key, value in parameters.items()}, strike)
        return strike

    return add


def _living_job(world: World) -> Job:
    job = world.pod.job if world.pod is not None and not world.pod.paused else None
    if job is None or not job.alive or job.exit is not None or job.ending:
        raise NotNowError("no job is alive")
    return job


def _call_that_strikes(world: World, kind: str) -> Callable[[], None]:
    """What is called when a fault that waits for its moment strikes."""

    def strikes() -> None:
        world.struck(kind)

    return strikes


def _for_a_while(world: World, kind: str, p: Values, undo: Callable[[], None]) -> None:
    """The fault strikes, and its ``seconds`` later it is over, if the pod lives so long."""
    strike = world.struck(kind)

    def over() -> None:
        strike.natural = world.clock.now
        undo()

    world.clock.after(float(p["seconds"]), over, world.here())


def _stall(world: World, kind: str, p: Values, role: Role) -> None:
    """A role of the job stands still, and goes on by itself."""
    job = _living_job(world)
    _for_a_while(world, kind, p, lambda: job.wait(role, on=False))
    job.wait(role, on=True)


@_kind(
    "engine-exit-0",
    "restart",
    "vLLM ends with exit code 0, which the launcher does not notice",
    says=(False, "does its log name the error first?"),
)
def _engine_exit_0(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("engine-exit-0")
    if p["says"]:
        text = "EngineCore encountered a fatal error."
        job.write(Line("inference", "error", "engine-dead", text=text))
    job.vanish("inference")


@_kind("engine-crash", "restart", "vLLM ends with an error, and the launcher ends the job", code=(1, "exit code"))
def _engine_crash(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("engine-crash")
    job.crash("inference", int(p["code"]), "engine-dead", "Engine core proc EngineCore_DP0 died unexpectedly")


@_kind(
    "engine-hang",
    "restart",
    "vLLM makes no token and answers /health with 200",
    says=(False, "does it log 'No available shared memory broadcast block' each minute?"),
    shows_running=(True, "does its own count of running requests stay up?"),
)
def _engine_hang(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("engine-hang")
    job.shows_running = bool(p["shows_running"])
    job.jam("inference")
    if p["says"]:
        _says_stalled(world, job)


def _says_stalled(world: World, job: Job) -> None:
    def say() -> None:
        text = "No available shared memory broadcast block found in 60 seconds."
        job.write(Line("inference", "error", "engine-stalled", text=text))
        world.clock.after(60.0, say, job)

    world.clock.after(60.0, say, job)


def _one_engine(world: World, p: Values) -> tuple[Job, int]:
    job, number = _living_job(world), int(p["engine"])
    if not 0 <= number < len(job.engines):
        raise ConfigError(
            f"There is no engine {number}: this pod has {len(job.engines)}, counted from 0. "
            "More are had with --set engines=N."
        )
    if job.engines[number].health != "ok":
        raise NotNowError(f"engine {number} is broken already")
    return job, number


@_kind("engine-one-dies", "restart", "one of several data-parallel engines is gone", engine=(0, "which one"))
def _engine_one_dies(world: World, p: Values) -> None:
    job, number = _one_engine(world, p)
    world.struck("engine-one-dies")
    job.vanish("inference", number)


@_kind("engine-one-hangs", "restart", "one of several data-parallel engines makes no token", engine=(0, "which one"))
def _engine_one_hangs(world: World, p: Values) -> None:
    job, number = _one_engine(world, p)
    world.struck("engine-one-hangs")
    job.jam("inference", number)


@_kind(
    "engine-overload",
    "nothing",
    "vLLM answers late and makes few tokens, which only looks like a hang",
    seconds=(300.0, "how long"),
    speed=(0.15, "part of its tokens that it still makes"),
)
def _engine_overload(world: World, p: Values) -> None:
    job, pod = _living_job(world), world.here()

    def over() -> None:
        pod.http_slow = False
        if pod.job is job:
            job.slow_down(1.0)

    _for_a_while(world, "engine-overload", p, over)
    pod.http_slow = True
    job.slow_down(float(p["speed"]))


@_kind("trainer-crash", "restart", "the trainer ends with a CUDA error; the launcher notices")
def _trainer_crash(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("trainer-crash")
    job.crash("trainer", 1, "fatal-error", "Fatal error in train: CUDA error: an illegal memory access was encountered")


@_kind("orchestrator-crash", "restart", "the orchestrator ends with an error")
def _orchestrator_crash(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("orchestrator-crash")
    job.crash("orchestrator", 1, "fatal-error", "Fatal error in orchestrate")


@_kind("job-killed", "restart", "a person kills the whole job")
def _launcher_killed(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("job-killed")
    job.die(9)


@_kind(
    "nccl-hang",
    "restart",
    "a collective of the trainer never ends",
    watchdog_s=(3600.0, "NCCL's own time-out after which it crashes, 0: never"),
    straggles=(False, "does the rank that others wait for use its CPU, with its GPU at rest?"),
)
def _nccl_hang(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("nccl-hang")
    job.straggles = bool(p["straggles"])
    job.jam("trainer")
    watchdog_s = float(p["watchdog_s"])
    if watchdog_s > 0:
        text = "Watchdog caught collective operation timeout"
        world.clock.after(watchdog_s, lambda: job.crash("trainer", 1, "nccl-timeout", text), job)


@_kind(
    "orchestrator-wedge",
    "restart",
    "the orchestrator lives and sends nothing more",
    silent=(False, "does its pipeline line stop as well?"),
    loops=(False, "does it use a whole core meanwhile?"),
)
def _orchestrator_wedge(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("orchestrator-wedge")
    job.silent, job.busy_loop = bool(p["silent"]), bool(p["loops"])
    job.jam("orchestrator")


@_kind("resume-deadlock", "restart", "the next resume never gets to its first step")
def _resume_deadlock(world: World, p: Values) -> None:
    world.jam_next_resume = _call_that_strikes(world, "resume-deadlock")


@_kind("env-death", "restart", "the environment server is gone; rollouts never finish")
def _env_death(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("env-death")
    job.vanish("env")


@_kind("env-hang", "restart", "the environment server lives and answers nothing more; rollouts never finish")
def _env_hang(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("env-hang")
    job.jam("env")


@_kind("env-stall", "nothing", "what the environment asks does not answer for a while", seconds=(90.0, "how long"))
def _env_stall(world: World, p: Values) -> None:
    _stall(world, "env-stall", p, "env")


@_kind(
    "collective-stall",
    "nothing",
    "a collective of the trainer waits for a link that comes back: a hang that lifts by itself",
    seconds=(60.0, "how long"),
)
def _collective_stall(world: World, p: Values) -> None:
    _stall(world, "collective-stall", p, "trainer")


@_kind(
    "host-oom",
    "restart",
    "the kernel kills a role for want of memory",
    role=("any", "trainer, orchestrator, inference, env, or any of the first three"),
)
def _host_oom(world: World, p: Values) -> None:
    job, pod, role = _living_job(world), world.here(), str(p["role"])
    if role == "any":
        role = world.fault_random.choice(("trainer", "orchestrator", "inference"))
    if role not in ("trainer", "orchestrator", "inference", "env"):
        raise ConfigError(f"host-oom kills trainer, orchestrator, inference, env or any, not {role!r}.")
    world.struck("host-oom")
    pod.oom_kills += 1
    pod.tier = False  # what is whole is drained, and no step goes there any more
    pod.memory_free_part = 0.02
    pod.watcher.host_changed()
    world.clock.after(20.0, lambda: setattr(pod, "memory_free_part", 0.6), pod)
    if role in ("inference", "env"):
        job.vanish(role)  # type: ignore[arg-type]  # vLLM's server ends with 0 when its core was killed
    else:
        job.kill_role(role)  # type: ignore[arg-type]


@_kind(
    "gpu-lost",
    "pod",
    "a GPU falls off the bus: the job crashes, and cannot start on this pod any more",
    gpu=(0, "which one, counted from 0, the engines' first"),
)
def _gpu_lost(world: World, p: Values) -> None:
    if world.pod is None:
        world.take_pods_away(world.struck("gpu-lost"))  # of the one that was to come
        return
    pod = world.here()
    number = int(p["gpu"])
    if not 0 <= number < len(pod.cards):
        raise ConfigError(f"There is no GPU {number}: this pod has {len(pod.cards)}, counted from 0.")
    if pod.cards[number].lost:
        raise NotNowError(f"GPU {number} is lost already")
    world.struck("gpu-lost")
    pod.cards[number].lost = True
    pod.watcher.gpus_changed()
    job = pod.job
    if job is not None:
        role = "trainer" if pod.cards[number].role == "trainer" else "inference"
        text = "Fatal error in train: CUDA error: unspecified launch failure"
        name = "fatal-error" if role == "trainer" else "engine-dead"
        text = text if role == "trainer" else "EngineCore encountered a fatal error."
        after_s = world.fault_random.uniform(2.0, 20.0)
        world.clock.after(after_s, lambda: job.crash(role, 1, name, text), job)  # type: ignore[arg-type]


@_kind("gpu-stumbles", "restart", "a GPU fails and works again after a restart; its host may not be done with it")
def _gpu_stumbles(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("gpu-stumbles")
    text = "Fatal error in train: CUDA error: uncorrectable ECC error encountered"
    job.crash("trainer", 1, "fatal-error", text)


@_kind("code-error", "restart", "the job's own code raises: a batch, a file, a judge that it did not expect")
def _code_error(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("code-error")
    job.crash("orchestrator", 1, "fatal-error", "Fatal error in orchestrate: KeyError: 'answer'")


@_kind("start-fails", "restart", "the next start ends while it loads: a hub, a port, a mount that is not there")
def _start_fails(world: World, p: Values) -> None:
    world.failing_starts.append(_call_that_strikes(world, "start-fails"))


@_kind("memory-stays", "nothing", "the GPU memory of the next job that ends comes back late", seconds=(90.0, "late"))
def _memory_stays(world: World, p: Values) -> None:
    world.here().memory_stays_s = float(p["seconds"])
    world.struck("memory-stays")


@_kind("slow-stop", "nothing", "the next stop takes long: a process that waits for a volume", seconds=(120.0, "longer"))
def _slow_stop(world: World, p: Values) -> None:
    world.here().slow_stop_s = float(p["seconds"])
    world.struck("slow-stop")


@_kind("host-reboot", "nothing", "the machine boots anew: memory is lost, the disk stays", seconds=(240.0, "until up"))
def _host_reboot(world: World, p: Values) -> None:
    world.here()
    world.reboot(float(p["seconds"]), world.struck("host-reboot"))


@_kind("nvml-hang", "nothing", "the GPU driver does not answer", seconds=(600.0, "how long"))
def _nvml_hang(world: World, p: Values) -> None:
    pod = world.here()

    def set_hanging(now: bool) -> None:
        pod.nvml_hangs = now
        pod.watcher.gpus_changed()

    _for_a_while(world, "nvml-hang", p, lambda: set_hanging(False))
    set_hanging(True)


@_kind(
    "disk-fills",
    "room",
    "files of others fill the disk",
    leaves_gb=(20.0, "room that they leave"),
    growth_gb_s=(0.5, "how fast they grow, 0: at once"),
    seconds=(7200.0, "until they are gone again"),
)
def _disk_full(world: World, p: Values) -> None:
    pod = world.here()
    _for_a_while(world, "disk-fills", p, lambda: pod.set_foreign(0.0))
    if world.policy.omniscient:
        return  # a bound has room: whether to prune, to stop or to risk the save is what others have to decide
    room = max(0.0, pod.disk_free() - float(p["leaves_gb"]) * GB)
    rate = float(p["growth_gb_s"]) * GB
    if rate > 0:
        pod.set_foreign(pod.foreign(), rate)
        world.clock.after(room / rate, lambda: pod.set_foreign(pod.foreign()), pod)
    else:
        pod.set_foreign(pod.foreign() + room)


@_kind("torn-checkpoint", "restart", "the trainer is killed in the middle of its next save")
def _torn_checkpoint(world: World, p: Values) -> None:
    world.here().tear_next_save = _call_that_strikes(world, "torn-checkpoint")


@_kind(
    "poison-step",
    "restart",
    "the newest checkpoint always leads to a crash; the one before does not",
    after=(2, "steps from it to the crash"),
)
def _poison_step(world: World, p: Values) -> None:
    job, pod = _living_job(world), world.here()
    whole = [step for step, folder in pod.folders.items() if folder.state == "complete"]
    newest = max(whole, default=None)
    if newest is None or newest > job.step:
        raise NotNowError("no checkpoint that could be poisoned")
    at = max(job.step + 1, newest + int(p["after"]))
    pod.poison(newest, at)
    world.poison_told = _call_that_strikes(world, "poison-step")
    job.poison = at


@_kind("weights-lost", "nothing", "the weights become NaN, and with them each later checkpoint")
def _weights_lost(world: World, p: Values) -> None:
    job = _living_job(world)
    world.struck("weights-lost")
    job.ruined = True


@_kind("store-outage", "nothing", "the store does not answer", seconds=(2100.0, "how long"))
def _store_outage(world: World, p: Values) -> None:
    strike = world.struck("store-outage")
    until = world.clock.now + float(p["seconds"])
    world.store.down_until = max(world.store.down_until, until)
    world.link_changed()

    def over() -> None:
        strike.natural = world.clock.now
        world.link_changed()

    world.clock.at(world.store.down_until, over)


@_kind("store-damage", "nothing", "the newest step in the store has wrong bytes")
def _damaged_upload(world: World, p: Values) -> None:
    world.here()
    if world.store.latest is None:
        raise NotNowError("the store is empty")
    world.struck("store-damage")
    world.store.damage(world.store.latest)


@_kind(
    "slow-link",
    "nothing",
    "the line to the store is slow",
    seconds=(3600.0, "how long"),
    speed=(0.05, "part of the bandwidth that is left"),
)
def _slow_link(world: World, p: Values) -> None:
    pod = world.here()
    _for_a_while(world, "slow-link", p, lambda: pod.link.slow_down(1.0))
    pod.link.slow_down(float(p["speed"]))


@_kind(
    "spot-loss",
    "nothing",
    "the pod is taken away, its disk with it, and another one comes",
    warning_s=(0.0, "seconds between SIGTERM and the end, 0: none"),
)
def _spot_loss(world: World, p: Values) -> None:
    strike = world.struck("spot-loss")
    warning_s = float(p["warning_s"])
    if warning_s > 0:
        world.warn()
        world.clock.after(warning_s, lambda: world.take_pods_away(strike))
    else:
        world.take_pods_away(strike)


@_kind("host-vanishes", "nothing", "the pod is gone without a word", unnoticed_s=(300.0, "until the provider notices"))
def _host_vanishes(world: World, p: Values) -> None:
    strike = world.struck("host-vanishes")
    world.take_pods_away(strike, unnoticed_s=float(p["unnoticed_s"]))


@_kind("clock-jump", "nothing", "the host stands still", seconds=(600.0, "how long"))
def _clock_jump(world: World, p: Values) -> None:
    world.here()
    strike = world.struck("clock-jump")
    world.pause_host(float(p["seconds"]), strike)


@_kind("daemon-kill", "nothing", "the supervisor itself is killed and comes back", seconds=(10.0, "until it is back"))
def _daemon_kill(world: World, p: Values) -> None:
    world.here()
    strike = world.struck("daemon-kill")
    world.kill_daemon(float(p["seconds"]), strike)


@_kind("long-evaluation", "nothing", "the next step waits for it", seconds=(2400.0, "how long"))
def _long_evaluation(world: World, p: Values) -> None:
    _living_job(world)
    world.struck("long-evaluation")
    world.here().next_eval_s = float(p["seconds"])


@_kind("big-save", "nothing", "the next checkpoint is written slowly", seconds=(600.0, "how long"))
def _big_save(world: World, p: Values) -> None:
    _living_job(world)
    world.struck("big-save")
    world.here().next_save_s = float(p["seconds"])


@_kind(
    "slow-steps",
    "nothing",
    "the next steps take longer",
    steps=(4, "how many"),
    factor=(4.0, "by up to this factor"),
)
def _heavy_steps(world: World, p: Values) -> None:
    _living_job(world)
    world.struck("slow-steps")
    factors = [1.0 + world.fault_random.random() * (float(p["factor"]) - 1.0) for _ in range(int(p["steps"]))]
    world.here().heavy_steps = factors


@_kind("log-gap", "nothing", "no log line can be read; they all come at the end", seconds=(900.0, "how long"))
def _log_gap(world: World, p: Values) -> None:
    pod = world.here()
    _for_a_while(world, "log-gap", p, pod.read_on)
    pod.logs_stand = True


def with_defaults(kind: str, given: Values) -> dict[str, Any]:
    """All parameters of one fault. Raises ConfigError, which names what is known, for an unknown or impossible one."""
    if kind not in KINDS:
        raise ConfigError(f"There is no fault {kind!r}; known are {', '.join(sorted(KINDS))}.")
    known = KINDS[kind].parameters
    for name, value in given.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"The fault {kind} has no parameter {name!r}; {has}.")
        _right_type(kind, name, known[name].default, value)
    return {name: given.get(name, parameter.default) for name, parameter in known.items()}


def _right_type(kind: str, name: str, default: object, value: object) -> None:
    if isinstance(default, bool):
        right, wanted = isinstance(value, bool) or _is_share(value), "true, false, or the chance of true from 0 to 1"
    elif isinstance(default, str):
        right, wanted = isinstance(value, str), "a word in quotes"
    else:
        pair = isinstance(value, list) and len(value) == 2 and value[0] <= value[1]
        numbers = value if isinstance(value, list) and pair else [value]
        right = all(isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in numbers)
        wanted = "a number from 0 on, or [low, high]"
    if not right:
        raise ConfigError(f"{name} of the fault {kind} takes {wanted}, not {value!r}.")


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def draw_parameters(parameters: Values, defaults: Mapping[str, Parameter], random: Any) -> dict[str, Any]:
    """Parameters with ranges and chances drawn."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            found[name] = random.uniform(*value)
        elif isinstance(defaults[name].default, bool) and not isinstance(value, bool):
            found[name] = random.random() < value
        else:
            found[name] = value
    return found
