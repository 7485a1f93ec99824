"""The machine and the job speak: memory, engines, phases, faults, errors. Signals at random, and never proof."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from supervisor.core import facts as f
from supervisor.core.goodput import Ledger
from supervisor.core.records import Learned, PhaseTimes

from .pod import GIB, Pod

ENGINE = f.EngineLook("http://127.0.0.1:8000", "ok", "ok", running=8.0, waiting=0.0)
ROLES = st.sampled_from(["trainer", "orchestrator", "inference", "env", "launcher"])
PHASES = st.sampled_from(
    ["download", "loading", "rollouts", "training", "checkpoint", "weight-update", "eval", "barrier", "no such phase"]
)
SIGNATURES = {
    "engine-dead": False,
    "connection-error": False,
    "cuda-oom": False,
    "gpu-xid": False,
    "config-invalid": True,
    "max-tokens-too-large": True,
    "wandb-unreachable": False,
    "network-timeout": False,
    "checkpoint-damaged": False,
    "batch-empty": False,
}


class NewsPod(Pod):
    """A pod whose sensors tell all that they can."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0.0
        self.oom_kills = 0

    # ------------------------------------------------------------ the machine

    @rule(
        inference=st.sampled_from([0, 20, 70]),
        trainer=st.sampled_from([0, 60]),
        shared=st.booleans(),
        lost=st.sampled_from([(), (), (), ("GPU 1: GPU is lost",)]),
        reason=st.sampled_from(["", "", "", "the driver did not answer for 5 s"]),
    )
    def a_look_at_the_gpus(
        self, inference: int, trainer: int, shared: bool, lost: tuple[str, ...], reason: str
    ) -> None:
        for _ in range(2):
            self.t += 4
            self.gpus(inference, trainer, shared=shared, lost=lost, reason=reason)

    def gpus(
        self, inference: int, trainer: int, *, shared: bool = False, lost: tuple[str, ...] = (), reason: str = ""
    ) -> None:
        one = f.Gpu("GPU-0", 0, inference * GIB, 80 * GIB, "shared" if shared else "inference")
        looks = () if reason else (one, f.Gpu("GPU-1", 1, trainer * GIB, 80 * GIB, "trainer"))
        self.see(f.GpuLook(looks, reason, () if reason else lost))

    @rule(xid=st.sampled_from([13, 31, 43, 48, 79, 95]), text=st.sampled_from(["", "fallen off the bus"]))
    def a_fault_of_a_gpu(self, xid: int, text: str) -> None:
        self.see(f.GpuFault("GPU 1", xid, text))

    @rule(
        kills=st.sampled_from([None, 0, 0, 1, -3]),
        left=st.sampled_from([None, 1, 30]),
        pressure=st.sampled_from([None, 0.0, 80.0]),
        files=st.sampled_from([None, 10, 1000]),
        known=st.booleans(),
    )
    def a_look_at_the_host(
        self, kills: int | None, left: int | None, pressure: float | None, files: int | None, known: bool
    ) -> None:
        if not known:
            self.see(f.HostLook(reason="no /proc"))
            return
        self.oom_kills = max(0, self.oom_kills + (kills or 0))
        self.see(
            f.HostLook(
                64 * GIB,
                None if left is None else left * GIB,
                pressure,
                None if kills is None else self.oom_kills,
                files,
                1024 if files else 0,
                "trainer (pid 1)",
                GIB,
                None if left is None else left * GIB // 32,
            )
        )

    @rule(what=st.sampled_from(["download", "rollouts", "checkpoint"]), size=st.integers(0, 5))
    def files_grow(self, what: str, size: int) -> None:
        self.see(f.Growing(what, size * GIB))  # type: ignore[arg-type]

    # ------------------------------------------------------------ the engine

    @rule(
        health=st.sampled_from(["ok", "ok", "ok", "bad", "refused", "timeout", "unknown"]),
        liveness=st.sampled_from(["ok", "absent", "bad", "timeout"]),
        canary=st.sampled_from(["", "", "ok", "timeout", "bad"]),
        made=st.sampled_from([None, 0.0, 10.0, -1000.0]),
        running=st.sampled_from([None, 0.0, 8.0]),
        engines=st.integers(0, 3),
        times=st.integers(1, 4),
        seconds=st.sampled_from([1.0, 30.0]),
    )
    def looks_at_the_engine(  # noqa: PLR0917 - drawn by name
        self,
        health: str,
        liveness: str,
        canary: str,
        made: float | None,
        running: float | None,
        engines: int,
        times: int,
        seconds: float,
    ) -> None:
        for _ in range(times):
            self.t += seconds
            self.tokens = max(0.0, self.tokens + (made or 0.0))
            units = tuple(f.EngineCount(i, self.tokens if i else 7.0, running, 0.0) for i in range(engines))
            count = self.tokens if made is not None and health == "ok" else None
            self.see(
                replace(
                    ENGINE,
                    health=health,
                    liveness=liveness,
                    canary=canary,
                    iterations=count,
                    running=running if count is not None else None,
                    connections=None if running is None else int(running),
                    engines=units if count is not None and engines > 1 else (),
                )
            )

    # ------------------------------------------------------------ what the job says

    @rule(role=ROLES, phase=PHASES, step=st.sampled_from([None, 1, 7]))
    def a_phase(self, role: f.Role, phase: str, step: int | None) -> None:
        self.see(f.PhaseSeen(role, phase, step))

    @rule(inflight=st.integers(0, 3), done=st.sampled_from([None, 0, 1, 5]), seconds=st.sampled_from([1.0, 60.0]))
    def rollouts_are_counted(self, inflight: int, done: int | None, seconds: float) -> None:
        for _ in range(3):
            self.t += seconds
            self.see(f.WorkSeen(inflight, done, 8))

    @rule(role=ROLES, signature=st.sampled_from(sorted(SIGNATURES)), times=st.integers(1, 5))
    def errors(self, role: f.Role, signature: str, times: int) -> None:
        for _ in range(times):
            self.t += 1
            fact = f.ErrorSeen(
                role, signature, f"{signature}: it failed", SIGNATURES[signature], "It failed.", "Mend it."
            )
            self.see(fact)

    @rule(text=st.sampled_from(["Starting from scratch."]))
    def a_line_about_scratch(self, text: str) -> None:
        self.see(f.FreshStartSeen("trainer", text))

    @precondition(lambda self: self.job is not None)
    @rule(
        number=st.sampled_from([math.nan, math.inf, 0.0, 0.5]),
        rate=st.sampled_from([None, 0.0, 1.0]),
        role=st.sampled_from(["orchestrator", "trainer"]),
    )
    def a_step_of_strange_numbers(self, number: float, rate: float | None, role: f.Role) -> None:
        step = max(1, self.step_now)
        self.see(f.StepDone(role, step, 100.0, number, number, number, rate, rate))

    @rule(count=st.integers(1, 60), seconds=st.sampled_from([0.1, 40.0, 5000.0]), learned=st.booleans())
    def records_of_other_pods(self, count: int, seconds: float, learned: bool) -> None:
        times = PhaseTimes((seconds,) * 5, 2 * seconds, count, seconds, 3 * seconds)
        known = Learned({"step": times, "resume": times, "trainer/training": times}) if learned else None
        self.see(f.StoreRecords(known, {"another": Ledger({"GOODPUT": 10.0})}))

    @rule(code=st.sampled_from([None, 1]), path=st.sampled_from(["rl.toml"]), same=st.booleans())
    def files_of_the_configuration_change(self, code: int | None, path: str, same: bool) -> None:
        self.see(f.ConfigChanged(path, same))

    # ------------------------------------------------------------ in the end

    def all_is_well(self) -> None:
        self.gpus(70, 60)
        self.tokens += 1
        self.see(replace(ENGINE, iterations=self.tokens))
        self.see(f.HostLook(64 * GIB, 30 * GIB, 0.0, self.oom_kills))
