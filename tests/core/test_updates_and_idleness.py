"""Updates of weights, idle engines and counters that cannot be read: worlds of a person who had not seen the rules."""

from __future__ import annotations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import step_limits
from supervisor.core.evolve import replace

from .world import GIB, World

WORKS, SPINS, RESTS = (520.0, 100.0), (210.0, 100.0), (120.0, 5.0)
"""Watts and per cent of the trainer's GPU."""


class Run(World):
    """A run of which all sensors look each five seconds.

    Its engine works, idles, stands (it answers from within), or is silent: paused or hung while work waits, or
    taking weights while none does.
    """

    def __init__(self, *, counts: bool = True, engines: int = 0, inflight: int | None = 64) -> None:
        super().__init__()
        self.counts, self.engines_n, self.inflight = counts, engines, inflight
        self.made, self.looks, self.trainer = 0.0, 0, WORKS
        self.boot()
        self.start()

    def start(self) -> None:
        roles: tuple[f.Role, ...] = ("launcher", "inference", "orchestrator", "trainer")
        for index, role in enumerate(roles):
            self.see(f.ProcessSeen(self.state.attempt.number, role, self.pid + index, 5000 + index))
        self.made = 0.0
        self.look("idles")

    def look(
        self,
        does: str,
        *,
        counts: bool | None = None,
        made: float = 50,
        tokens: float | None = None,
        running: float | None = None,
        connections: int | None = None,
        canary: str = "",
    ) -> None:
        self.looks += 1
        counts = self.counts if counts is None else counts
        busy = does not in ("idles", "takes weights")
        if does == "works":
            self.made += made
        silent = does in ("paused", "hung", "takes weights")
        running = (64.0 if busy else 0.0) if running is None else running
        count, n = self.made if counts else None, self.engines_n
        self.see(
            f.EngineLook(
                "http://127.0.0.1:8000",
                "ok",
                "unknown" if self.looks % 3 else "timeout" if silent else "ok",
                iterations=count,
                generation_tokens=tokens,
                running=running if counts else None,
                waiting=0.0 if counts else None,
                connections=(64 if busy else 0) if connections is None else connections,
                canary=canary,
                engines=tuple(f.EngineCount(i, self.made / n, running / n, 0.0) for i in range(n)) if counts else (),
            )
        )
        draws = 500.0 if does == "works" else 120.0
        inference = f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=draws)
        trainer = f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=self.trainer[0], load=self.trainer[1])
        self.see(f.GpuLook((inference, trainer)))
        if self.inflight is not None and self.looks % 2 == 0:
            self.see(f.WorkSeen(self.inflight, int(self.made / 50) % 256, 256))

    def go(self, seconds: float, does: str, **look: object) -> float:
        """Until then, or until a stop is ordered; gives the seconds."""
        began = self.t
        while self.t < began + seconds and not self.asked(a.Stop):
            self.t += 5
            self.look(does, **look)  # type: ignore[arg-type]
        return self.t - began

    def update_line(self, number: int) -> None:
        self.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))

    def make_step(self, number: int, seconds: float, *, updates_s: float = 15, idles_s: float = 0) -> None:
        self.update_line(number)
        self.go(updates_s, "paused")
        self.go(idles_s, "idles")
        self.go(seconds - updates_s - idles_s, "works")
        self.end_step(number, seconds)

    def end_step(self, number: int, seconds: float) -> None:
        self.see(f.StepDone("orchestrator", number, seconds, 0.4))
        self.see(f.StepDone("trainer", number, seconds, loss=0.1))

    def longest_s(self, phase: str) -> float:
        times = self.state.books.learned.phases.get(phase)
        return times.longest_s if times is not None else 0.0


def run(steps: int, seconds: float = 240, *, idles_s: float = 0, counts: bool = True, engines: int = 0) -> Run:
    world = Run(counts=counts, engines=engines)
    for number in range(1, steps + 1):
        world.make_step(number, seconds, idles_s=idles_s)
    assert not world.asked(a.Stop), world.said("verdict")
    world.actions.clear()
    return world


@pytest.mark.parametrize("readable_s", [-1, 60, 300])
def test_an_error_of_the_environments_ends_no_start_whose_counters_cannot_be_read(readable_s: int) -> None:
    """A first batch of long rollouts, while code that a model wrote misses a module: the engine may be at work."""
    world = Run(inflight=None)
    for second in range(0, 1500, 5):
        world.t += 5
        world.look("works", counts=second <= readable_s)
        world.see(f.WorkSeen(64, 0, 256))
        if second % 60 == 0:
            missing = "No module named 'numpy'"
            world.see(f.ErrorSeen("orchestrator", "module-missing", missing, deterministic=True))
    assert not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize("canaries", [False, True])
def test_an_engine_that_only_we_ever_asked_for_tokens_has_served_no_one(canaries: bool) -> None:
    world = run(3)
    world.checkpoint(3)
    world.trainer = RESTS
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    began, asks = world.t, 0
    while world.t < began + 3 * 3600 and world.state.mode != "gave-up":
        world.t += 5
        if world.state.mode != "starting" or world.state.busy.start is not None:
            world.see(f.Tick())
        elif world.state.engine.look is None:
            world.start()
            asks = 0
        else:
            asks += 1
            answered = canaries and asks % 7 == 0
            world.made += answered
            world.look("idles", canary="ok" if answered else "")
    assert world.state.mode == "gave-up" and world.t < began + 3600, (world.t - began, world.said("verdict"))


def test_a_daemon_after_one_that_knew_no_updates_finds_a_hang_as_soon_as_ever() -> None:
    """The update was over three minutes before, of which that one kept nothing but the line."""
    world = run(12)
    world.update_line(13)
    world.go(15, "paused")
    world.go(180, "works")
    learned = world.state.books.learned
    phases = {name: times for name, times in learned.phases.items() if name != "engine/update"}
    books = replace(world.state.books, learned=replace(learned, phases=phases))
    world.state = replace(world.state, job=replace(world.state.job, update=None), books=books)
    attempt = world.state.attempt
    world.t += 2
    world.see(f.DaemonStarted("next", world.state.settings, "boot", attempt.number))
    world.see(f.AttemptAdopted(attempt.number, attempt.resume_step, world.pid))
    assert world.go(600, "hung") <= 130 and world.asked(a.Stop)


def test_steps_of_a_run_without_counters_are_learned_as_long_as_they_are() -> None:
    world = run(30, counts=False)
    assert world.longest_s("step") >= 220 and step_limits(world.state)[1] >= 5 * 220
    world.update_line(31)
    world.go(120, "works")
    assert world.go(900, "works", made=0) >= 900 and not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize("seconds", [30, 60, 120, 240])
@pytest.mark.parametrize("counts", [True, False])
def test_a_hang_amid_a_step_is_found_in_minutes_however_long_steps_are(seconds: int, counts: bool) -> None:
    world = run(40, seconds, counts=counts)
    world.update_line(41)
    world.go(seconds // 2, "works")
    assert world.go(1000, "hung") <= 200 and world.asked(a.Stop)


def test_updates_whose_pause_follows_an_answer_from_within_are_learned_without_counters() -> None:
    world = Run(counts=False)
    for number in range(1, 12):
        world.update_line(number)
        world.go(10, "works")
        world.make_step(number, 400, updates_s=150)
    assert not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize("idles_s", [0, 200, 400])
def test_an_engine_that_idles_after_updates_teaches_no_long_ones(idles_s: int) -> None:
    """The environments boot meanwhile: nothing runs, and it answers from within."""
    world = run(12, 640, idles_s=idles_s)
    assert world.longest_s("engine/update") < 60
    world.update_line(13)
    assert world.go(1000, "hung") <= 130 and world.asked(a.Stop)
    world = run(12, 640, idles_s=idles_s)
    world.update_line(13)
    world.go(15, "paused")
    world.go(idles_s, "idles")
    assert world.go(1000, "hung") <= 130 and world.asked(a.Stop)


def test_counters_that_cannot_be_read_teach_no_idleness() -> None:
    world = run(60)
    world.counts = False
    for number in range(61, 66):
        world.make_step(number, 240)
    world.counts = True
    world.make_step(66, 240)
    assert world.longest_s("engine/idle") < 60
    world.trainer, world.inflight = SPINS, 0
    assert world.go(1200, "idles") <= 500 and world.asked(a.Stop)


@pytest.mark.parametrize("engines", [0, 2, 4])
@pytest.mark.parametrize("updates", [False, True])
def test_engines_that_stand_together_and_answer_from_within_do_not_hang(engines: int, updates: bool) -> None:
    """They are paused beside a slower server, say: none of them works "while the others do"."""
    world = run(12, engines=engines)
    if updates:
        world.update_line(13)
    assert world.go(200, "stands", running=64.0) >= 200 and not world.asked(a.Stop), world.said("verdict")


def test_updates_whose_pause_comes_late_cost_one_restart_and_not_the_run() -> None:
    """Requests under way are ended first, for more than a minute: of such a pause only half is ever left alone."""
    world, number, restarts = Run(), 1, 0
    began = world.t
    while world.t < began + 2 * 3600 and world.state.mode != "gave-up":
        if world.state.mode == "starting" and world.state.engine.look is None:
            world.start()
            restarts += 1
        if not world.state.live:
            world.t += 5
            world.see(f.Tick())
            continue
        world.actions.clear()
        world.go(60, "works")
        world.update_line(number)
        world.go(75, "works")
        if world.go(100, "paused") >= 100 and not world.asked(a.Stop):
            world.go(60, "works")
            world.end_step(number, 295)
            number += 1
    assert world.state.mode == "running" and restarts <= 1 and number > 15, (restarts, number)


def test_answers_of_one_token_are_work_although_each_takes_few_iterations() -> None:
    """Each 40 s two iterations answer a batch of 64, and no line counts rollouts: not what our canary takes."""
    world, tokens = Run(inflight=None), 0.0

    def step(number: int, seconds: float) -> None:
        nonlocal tokens
        world.update_line(number)
        world.go(15, "paused", tokens=tokens)
        world.trainer, began = RESTS, world.t
        while world.t < began + seconds - 75 and not world.asked(a.Stop):
            world.go(35, "idles", tokens=tokens)
            tokens += 64
            world.go(5, "works", made=2, running=0.0, connections=0, tokens=tokens)
        world.trainer = WORKS
        world.go(60, "idles", tokens=tokens)
        world.end_step(number, seconds)

    for number in range(1, 61):
        step(number, 240)
    step(61, 700)
    assert not world.asked(a.Stop), world.said("verdict")


def test_an_idle_engine_that_answers_before_its_pause_has_not_been_updated() -> None:
    """Of twelve broadcasts of 135 s, no request saw one; a request sees the next one."""
    world = Run()
    for number in range(1, 13):
        world.update_line(number)
        world.go(15, "idles")
        world.go(135, "takes weights")
        world.go(90, "works")
        world.end_step(number, 240)
    assert world.longest_s("engine/update") >= 120
    world.update_line(13)
    world.go(15, "stands")
    assert world.go(150, "paused") >= 150 and not world.asked(a.Stop), world.said("verdict")


def test_pauses_that_an_engine_answers_in_at_first_are_learned() -> None:
    """Requests under way are ended, it is paused, and after 45 s it takes the weights: at each of fifty steps."""
    world = Run()
    for number in range(1, 51):
        world.update_line(number)
        world.go(15, "works")
        world.go(45, "stands")
        world.go(105, "paused")
        world.go(60, "works")
        world.end_step(number, 225)
        if number % 5 == 0:
            world.checkpoint(number)
    assert world.longest_s("engine/update") >= 120 and not world.asked(a.Stop), world.said("verdict")


def test_one_of_several_engines_hangs_also_while_the_others_have_nothing_to_do() -> None:
    """The server answers from within: it asks another one."""
    world = run(12, engines=4)
    made, began = world.made / 4, world.t
    counts = tuple(f.EngineCount(index, made, 16.0 if index == 2 else 0.0, 0.0) for index in range(4))
    look = f.EngineLook("http://127.0.0.1:8000", "ok", "ok", iterations=4 * made, running=16.0, waiting=0.0)
    while world.t < began + 200 and not world.asked(a.Stop):
        world.t += 5
        world.see(replace(look, connections=16, engines=counts))
        world.see(f.WorkSeen(64, 0, 256))
    assert world.asked(a.Stop) and "engine 2 of 4 made no token" in world.said("verdict")[-1]


@pytest.mark.parametrize("counts", [True, False])
def test_a_start_that_waits_for_nothing_of_its_engine_is_hopeless_in_minutes(counts: bool) -> None:
    """Whether or not its counters can be read: its GPUs rest, and none is connected to it."""
    world = Run(counts=counts)
    world.trainer, began = RESTS, world.t
    while world.t < began + 900 and world.state.mode != "gave-up":
        world.t += 5
        world.look("idles")
        if int(world.t - began) % 30 == 0:
            missing = "No module named 'numpy'"
            world.see(f.ErrorSeen("orchestrator", "module-missing", missing, deterministic=True))
    assert world.asked(a.Stop) and world.t < began + 600, world.said("verdict")
