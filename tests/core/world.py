"""A virtual pod for tests of the core: it feeds facts at a virtual clock and collects what the core asks for."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.records import Happened, Hold
from supervisor.core.state import State

GIB = 1 << 30
SETTINGS = f.Settings(run_id="bs4", max_steps=1000, keep_local=2, stop_below_bytes=2 * GIB, keep_last=3)

HELD_BACK = (
    a.Start,
    a.Stop,
    a.StartEngine,
    a.StopEngine,
    a.PruneLocal,
    a.PruneStale,
    a.PruneStore,
    a.Restore,
    a.RunHook,
    a.Setup,
)


class World:
    """Facts in, sentences and actions out. Every effect answers at once unless a test says otherwise."""

    def __init__(self, settings: f.Settings = SETTINGS, state: State | None = None) -> None:
        self.t = 1000.0
        self.settings = settings
        self.state = state or State()
        self.actions: list[a.Action] = []
        self.log: list[f.Observation] = []
        self.pid = 100
        self.local: dict[int, str] = {}
        self.changed: dict[int, float] = {}
        self.stored: dict[int, int] = {}
        self.latest: int | None = None
        self.store_reason = ""
        self.store_permanent = False
        self.local_reason = ""
        self.answer = True  # effects answer
        self.suppress = False  # the run is only observed
        self.pinned: set[int] = set()
        self.pin_problem = ""
        self.held: tuple[int, ...] = ()  # in the store, as the pins are
        self.holds: tuple[Hold, ...] = ()
        self.hold_problem = ""
        self.happened: tuple[Happened, ...] = ()
        self.publish_works = True
        self.publish_s = 1.0
        self.damaged: set[int] = set()
        self.manifests: dict[int, str] = {}  # of stored steps
        self.spoiled: dict[int, str] = {}  # stored steps of which the listing shows that something is wrong
        self.memory = {"GPU-0": 70 * GIB, "GPU-1": 60 * GIB}
        self.shared = False

    # ------------------------------------------------------------ time and facts

    def see(self, fact: f.Fact) -> None:
        observation = f.Observation(self.t, 1.7e9 + self.t, fact)
        self.log.append(observation)
        decision = decide(self.state, observation)
        self.state = decision.state
        for action in decision.actions:
            self.actions.append(action)
            if self.answer:
                self._carry_out(action)

    def after(self, seconds: float, tick: float = 1.0) -> None:
        end = self.t + seconds
        while self.t < end:
            self.t = min(end, self.t + tick)
            self.see(f.Tick())

    def boot(self, adopted: int | None = None) -> None:
        self.see(f.DaemonStarted("test", self.settings, "boot", adopted))

    # ------------------------------------------------------------ effects

    def _carry_out(self, action: a.Action) -> None:
        if self.suppress and isinstance(action, HELD_BACK):
            number = getattr(action, "attempt", getattr(action, "step", getattr(action, "engine", None)))
            self.see(f.Suppressed(type(action).__name__, number, "the run is only observed."))
            return
        match action:
            case a.Survey():
                self.survey()
            case a.Start():
                self.pid += 10
                self.see(f.AttemptStarted(action.attempt, action.step, self.pid, "rl @ rl.toml"))
                self.local = {s: w for s, w in self.local.items() if action.step is not None and s <= action.step}
            case a.Stop():
                self.t += 3
                self.see(f.AttemptStopped(action.attempt, 3.0, gpu_free=True))
            case a.Publish():
                self.t += self.publish_s
                if self.publish_works:
                    self.stored[action.step] = GIB
                    if action.back or self.latest is None or action.step > self.latest:
                        self.latest = action.step
                    self.see(f.Published(action.step, GIB, 60.0, GIB))
                else:
                    self.see(f.PublishFailed(action.step, "the link is down."))
            case a.PruneLocal():
                self.local.pop(action.step, None)
                self.see(f.Pruned(action.step, "local", GIB))
            case a.PruneStale():
                self.see(f.Pruned(-1, "local", 0))
            case a.Pin():
                if self.pin_problem:
                    self.see(f.PinKept(action.step, action.pinned, self.pin_problem))
                else:
                    self.pinned = self.pinned | {action.step} if action.pinned else self.pinned - {action.step}
                    self.see(f.PinKept(action.step, action.pinned))
            case a.KeepHolds():
                if self.hold_problem:
                    self.see(f.HoldsKept(action.steps, action.holds, self.hold_problem))
                else:
                    self.held, self.holds = action.steps, action.holds
                    self.see(f.HoldsKept(action.steps, action.holds))
            case a.PruneStore():
                assert action.step not in self.held, f"the store refuses: step {action.step} is held"
                self.stored.pop(action.step, None)
                self.see(f.Pruned(action.step, "store", GIB))
            case a.Restore():
                if action.step in self.damaged:
                    self.see(f.RestoreFailed(action.step, "a part has another hash.", damaged=True))
                else:
                    self.local[action.step] = "complete"
                    self.see(f.Restored(action.step, GIB, 30.0))
            case a.RunHook():
                self.see(f.HookDone(action.hook))
            case a.StartEngine():
                self.see(f.EngineStarted(action.engine, 50 + action.engine, "inference @ inference.toml"))
            case a.StopEngine():
                self.t += 2
                self.see(f.EngineStopped(action.engine, 2.0, gpu_free=True))

    def survey(self) -> None:
        steps = tuple(
            f.LocalStep(
                step, state, "" if state == "complete" else "a shard is short", GIB, self.changed.get(step, 0.0)
            )
            for step, state in sorted(self.local.items())
        )
        self.see(f.LocalSteps(steps, self.local_reason, settled=True))
        if self.store_reason:
            self.see(f.StoreSteps(reason=self.store_reason, permanent=self.store_permanent))
        else:
            stored = [
                f.StoredStep(step, True, size, manifest=self.manifests.get(step, ""))
                for step, size in self.stored.items()
            ]
            stored += [
                f.StoredStep(step, False, GIB, manifest=self.manifests.get(step, f"m{step}"), problem=what)
                for step, what in self.spoiled.items()
            ]
            stored.sort(key=lambda one: one.step)
            pins = tuple(sorted(self.pinned))
            told = f.StoreSteps(tuple(stored), self.latest, pinned=pins, held=self.held, holds=self.holds)
            self.see(replace(told, happened=self.happened))

    # ------------------------------------------------------------ the job

    def job_up(self) -> None:
        """Processes, GPUs and engine of a healthy job."""
        for index, role in enumerate(("launcher", "inference", "orchestrator", "trainer")):
            self.see(f.ProcessSeen(self.state.attempt.number, role, self.pid + index, 5000 + index))
        for _ in range(2):
            self.gpus()
            self.t += 4
        self.engine()

    def gpus(self, inference: int | None = None) -> None:
        first = "shared" if self.shared else "inference"
        used = self.memory["GPU-0"] if inference is None else inference
        looks = [f.Gpu("GPU-0", 0, used, 80 * GIB, first)]
        if not self.shared:
            looks.append(f.Gpu("GPU-1", 1, self.memory["GPU-1"], 80 * GIB, "trainer"))
        self.see(f.GpuLook(tuple(looks)))

    def engine(self, **what: object) -> None:
        look = f.EngineLook("http://127.0.0.1:8000", "ok", "ok", iterations=self.t, running=8.0, waiting=0.0)
        self.see(replace(look, **what))

    def step(self, number: int, seconds: float = 200.0, reward: float | None = 0.4, loss: float = 0.1) -> None:
        end = self.t + seconds
        while self.t < end - 5:
            self.t += 5
            self.engine()
        self.t = end
        self.see(f.StepDone("orchestrator", number, seconds, reward))
        self.see(f.StepDone("trainer", number, seconds, loss=loss))

    def checkpoint(self, number: int, state: str = "complete") -> None:
        self.local[number] = state
        self.changed[number] = 1.7e9 + self.t
        self.survey()

    def running_at(self, step: int, first: int = 1) -> None:
        """A run that made steps up to ``step``, with a checkpoint every five of them."""
        self.boot()
        self.job_up()
        for number in range(first, step + 1):
            self.step(number)
            if number % 5 == 0:
                self.checkpoint(number)
        self.actions.clear()

    def engine_process_dies(self) -> None:
        self.see(f.ProcessGone(self.state.attempt.number, "inference", self.pid + 1, 5001))

    # ------------------------------------------------------------ what was said and asked

    def asked(self, kind: type[a.Action]) -> list[a.Action]:
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, event: str) -> list[str]:
        return [s.sentence for s in self.actions if isinstance(s, a.Say) and s.event == event]


class NeverAgain(World):
    """No start but the first one is answered, or none at all."""

    def __init__(self, *, first: bool = True) -> None:
        super().__init__()
        self.first = first

    def _carry_out(self, action: a.Action) -> None:
        if not isinstance(action, a.Start) or (self.first and action.attempt == 1):
            super()._carry_out(action)
