"""Healthy runs that are slow or odd, and runs that are ill beside them: worlds of people who had not seen the rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.deadlines import excuse
from supervisor.core.evolve import replace

from .test_standstill import BUSY_W, RESTS, SPINS_W, look, run, seen_run, stands
from .world import GIB, World


def update(
    world: World,
    number: int,
    seconds: int,
    *,
    line_at: int = 0,
    role: f.Role = "trainer",
    phases: Mapping[int, str] = MappingProxyType({}),
    counts: bool = True,
) -> None:
    """A step, and the update of weights after it: the engine is paused, and answers no /liveness.

    ``role`` says that its step is done so many seconds after the update began, and the orchestrator what it does.
    """
    for _ in range(46):
        world.t += 5
        world.engine(**({} if counts else BLIND))
        world.see(f.WorkSeen(64, int(world.t) % 256, 256))
    if role == "orchestrator" or not line_at:
        world.see(f.StepDone("trainer", number, 230.0, loss=0.1))
    world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
    count = world.state.engine.count
    for second in range(5, seconds + 1, 5):
        world.t += 5
        missed = second % 15 == 0 and second >= 30
        said = {"iterations": count, "running": 64.0, **({} if counts else BLIND)}
        world.engine(**said | {"liveness": "timeout" if missed else "unknown"})
        if second == line_at:
            world.see(f.StepDone(role, number + (role == "orchestrator"), 230.0, loss=0.1))
        if second in phases:
            world.see(f.PhaseSeen("orchestrator", phases[second], number, phases[second]))
        if world.asked(a.Stop):
            return


BLIND = {"iterations": None, "running": None, "waiting": None, "connections": None, "liveness": "ok"}
"""Of an engine whose /metrics cannot be read."""


def begun() -> World:
    world = World()
    world.boot()
    world.job_up()
    return world


@pytest.mark.parametrize(
    ("seconds", "role", "line_at"),
    [(75, "trainer", 60), (75, "trainer", 5), (85, "trainer", 75), (80, "orchestrator", 65)],
)
def test_a_line_of_a_step_amid_an_update_of_weights_does_not_end_it(seconds: int, role: f.Role, line_at: int) -> None:
    """The trainer's comes behind its save, and the orchestrator ships a batch meanwhile (prime-rl 559b44772)."""
    world = begun()
    for number in range(1, 12):
        update(world, number, seconds, line_at=line_at, role=role)
    assert not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize("seconds", [75, 150])
@pytest.mark.parametrize(
    "phases",
    [
        {5: "checkpoint"},
        {5: "checkpoint", 10: "eval"},
        {5: "barrier", 20: "rollouts"},
        {70: "rollouts"},  # "All inference engines resumed", five seconds before the look that shows the first token
    ],
)
def test_nothing_that_the_orchestrator_does_amid_an_update_of_weights_ends_it(
    phases: dict[int, str], seconds: int
) -> None:
    """A batch that was held ships during the update, with its save and the evaluations after it."""
    world = begun()
    for number in range(1, 12):
        update(world, number, seconds, line_at=5, role="orchestrator", phases=phases)
    assert not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize(("after_s", "told"), [(20, True), (60, True), (90, True), (120, True), (60, False)])
def test_a_daemon_that_comes_amid_an_update_of_weights_knows_of_it(after_s: int, told: bool) -> None:
    """Not ``told``: the daemon before was an older one, whose state had it only as the role's last word."""
    world = begun()
    for number in range(1, 3):
        update(world, number, 150)
    update(world, 3, after_s)
    if not told:
        world.state = replace(world.state, job=replace(world.state.job, update=None))
    number = world.state.attempt.number
    world.see(f.DaemonStarted("next", world.settings, "boot", number))
    world.see(f.AttemptAdopted(number, world.state.attempt.resume_step, world.pid))
    for second in range(after_s + 5, 301, 5):
        world.t += 5
        missed = second % 15 == 0
        world.engine(iterations=world.state.engine.count, running=64.0, liveness="timeout" if missed else "unknown")
    assert not world.asked(a.Stop), world.said("verdict")


def test_an_engine_whose_counters_cannot_be_read_and_that_hangs_after_an_update_of_weights_is_found() -> None:
    world = begun()
    for number in range(1, 8):
        update(world, number, 20, counts=False)
    assert not world.asked(a.Stop), world.said("verdict")
    for _ in range(40):
        world.t += 5
        world.engine(**BLIND)
        world.see(f.WorkSeen(64, int(world.t) % 256, 256))
    began, done = world.t, int(world.t) % 256
    while not world.asked(a.Stop) and world.t < began + 600:
        world.t += 5
        world.engine(**BLIND | {"liveness": "timeout"})
        world.see(f.WorkSeen(64, done, 256))
    assert world.t - began <= 75 and "vLLM hangs" in world.said("verdict")[0]


@pytest.mark.parametrize("counts", [True, False])
def test_an_engine_that_hangs_in_steps_of_seconds_is_found_though_an_update_of_weights_has_just_begun(
    counts: bool,
) -> None:
    world = begun()
    for number in range(1, 8):
        world.see(f.StepDone("trainer", number, 6.0, loss=0.1))
        world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
        for _ in range(2):
            world.t += 3
            world.engine(**({} if counts else BLIND))
            world.see(f.WorkSeen(64, number, 256))
    began, count = world.t, world.state.engine.count
    while not world.asked(a.Stop) and world.t < began + 900:
        world.t += 3
        world.engine(**({"iterations": count} if counts else BLIND) | {"running": 64.0, "liveness": "timeout"})
        world.see(f.WorkSeen(64, 7, 256))
    assert world.t - began <= (90 if counts else 180) and "vLLM hangs" in world.said("verdict")[0], world.t - began


@pytest.mark.parametrize("once_s", [85, 100])
def test_an_update_of_weights_that_takes_four_times_the_usual_once_is_given_its_time(once_s: int) -> None:
    """A share is busy now and then: ended each time, for nothing of an ended one is learned."""
    world = begun()
    for number in range(1, 13):
        update(world, number, 20 if number % 4 else once_s)
    assert not world.asked(a.Stop), world.said("verdict")


def test_what_an_engine_rests_for_want_of_work_after_an_update_of_weights_is_a_part_of_the_step() -> None:
    """Agents boot their sandboxes for minutes; once, what was left to do is done before they begin."""
    world = begun()
    for number in range(1, 30):
        world.see(f.StepDone("trainer", number, 640.0, loss=0.1))
        world.see(f.PhaseSeen("orchestrator", "weight-update", number, "Updating policy in-flight"))
        for second in range(5, 641, 5):
            world.t += 5
            paused, idle = second <= 10, 10 < second <= 410
            count = world.state.engine.count if paused or idle else world.t
            running = 0.0 if idle else 64.0
            world.engine(
                iterations=count, running=running, connections=int(running), liveness="ok" if idle else "unknown"
            )
    learned = world.state.books.learned.phases
    assert learned["step"].longest_s >= 470 and learned["engine/idle"].longest_s >= 200
    assert not world.asked(a.Stop), world.said("verdict")


def test_a_trainer_that_hangs_after_an_update_of_weights_is_found_though_updates_take_minutes() -> None:
    """The engine has nothing to do and answers: it is not paused, though no token follows the update's."""
    world = run(40)
    for number in range(61, 66):
        update(world, number, 150)
        for _ in range(24):
            world.t += 10
            look(world, BUSY_W, tokens=True)
    world.see(f.StepDone("trainer", 66, 400.0, loss=0.1))
    world.see(f.PhaseSeen("orchestrator", "weight-update", 66, "Updating policy in-flight"))
    for _ in range(5):
        world.t += 10
        look(world, BUSY_W, tokens=True)
    world.actions.clear()
    for _ in range(10):
        world.t += 10
        look(world, SPINS_W, tokens=False, load=100.0)
    assert excuse(world.state) == ""


def test_updates_of_weights_that_take_minutes_are_learned() -> None:
    world = begun()
    for number in range(1, 8):
        update(world, number, 150)
    assert not world.asked(a.Stop), world.said("verdict")
    began = world.t + 230
    update(world, 8, 3600)
    assert 3 * 150 <= world.t - began <= 3 * 150 + 30 and "vLLM hangs" in world.said("verdict")[0]


def test_updates_that_begin_to_take_minutes_cost_one_restart_and_not_the_run() -> None:
    world = begun()
    for number in range(1, 12):
        update(world, number, 10)
        world.checkpoint(number)
    update(world, 12, 200)
    assert world.asked(a.Stop)
    world.after(5.0)
    world.job_up()
    world.actions.clear()
    for number in range(12, 20):
        update(world, number, 200)
    assert not world.asked(a.Stop), world.said("verdict")


def test_a_pause_that_is_no_update_teaches_none_and_a_hang_after_an_update_is_found_as_ever() -> None:
    """The environments are slow a minute after an update; later the engine hangs a minute after one."""
    world = begun()
    for number in range(1, 6):
        update(world, number, 10)
        for _ in range(12):
            world.t += 5
            world.engine()
        for _ in range(48 if number == 4 else 0):
            world.t += 5
            world.engine(iterations=world.state.engine.count, running=0.0, connections=0)
    assert not world.asked(a.Stop) and world.state.books.learned.phases["engine/update"].longest_s <= 15
    began = world.t
    while not world.asked(a.Stop) and world.t < began + 600:
        world.t += 5
        world.engine(iterations=world.state.engine.count, running=64.0, liveness="timeout")
    assert world.t - began <= 115


def test_an_error_of_the_environments_ends_no_start_in_which_the_engine_makes_tokens() -> None:
    """The traceback is of code that a model wrote."""
    world = begun()
    for _ in range(144):
        world.t += 5
        world.engine()
        world.see(f.WorkSeen(64, 0, 256))
        world.see(f.ErrorSeen("orchestrator", "module-missing", "No module named 'numpy'", deterministic=True))
    assert not world.asked(a.Stop), world.said("verdict")
    for _ in range(240):
        world.t += 5
        world.engine()
        world.see(f.WorkSeen(64, 0, 256))
        world.see(f.ErrorSeen("orchestrator", "module-missing", "No module named 'numpy'", deterministic=True))
    assert world.asked(a.Stop), "none of its rollouts ever ends"


def test_an_engine_that_is_idle_for_one_look_is_one_at_work() -> None:
    """Agents compute in their sandboxes at that moment; no rollout of theirs ends for ten minutes."""
    world = begun()
    for look_number in range(1, 200):
        world.t += 5
        world.engine(running=0.0 if look_number % 65 == 0 else 8.0, waiting=0.0)
        world.see(f.WorkSeen(64, 0, 256))
        if look_number % 6 == 0:
            world.see(f.ErrorSeen("orchestrator", "module-missing", "No module named 'numpy'", deterministic=True))
    assert not world.asked(a.Stop) and world.state.mode == "starting", world.said("verdict")


def test_the_token_of_our_own_request_is_no_work_whichever_look_shows_it() -> None:
    """A look reads the counters first and then asks for a token, so the next look shows it."""
    world = begun()
    count, worked_t = world.state.engine.count or 0.0, world.state.engine.worked_t
    for number in range(1, 60):
        world.t += 5
        asked = number % 7 == 0
        count += (number - 1) % 7 == 0 and number > 1
        world.engine(iterations=count, running=0.0, liveness="absent", canary="ok" if asked else "")
    assert world.state.engine.count == count > 5 and world.state.engine.worked_t == worked_t
    world.t += 5
    world.engine(iterations=count + 40, running=4.0, liveness="absent")
    assert world.state.engine.worked_t == world.t


def test_a_start_that_is_late_and_one_error_of_a_judge_convict_no_engine_at_work() -> None:
    world = seen_run()
    for _ in range(4):
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(60.0)
        world.job_up()
        world.checkpoint(60)
        number = (world.state.progress.highest or 60) + 1
        for t in range(0, 240, 10):
            world.t += 10
            look(world, 520.0, tokens=t > 120, load=100.0)
        world.see(f.StepDone("trainer", number, 60.0, loss=0.1))
        world.checkpoint(number)
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(60.0)
    world.job_up()
    world.actions.clear()
    for second in range(0, 18 * 60, 10):
        world.t += 10
        look(world, 120.0, tokens=True, load=5.0)
        if second % 60 == 0:
            world.see(f.ErrorSeen("env", "connection-error", "openai.APIConnectionError: Connection error"))
    assert world.state.mode == "starting" and not world.asked(a.Stop), world.said("verdict")


def test_a_server_that_is_late_with_all_answers_while_rollouts_end_is_none_that_hangs() -> None:
    world = seen_run()
    for second in range(0, 13 * 60, 10):
        world.t += 10
        gpus = (
            f.Gpu("GPU-0", 0, 70 * GIB, 80 * GIB, "inference", power_w=500.0),
            f.Gpu("GPU-1", 1, 60 * GIB, 80 * GIB, "trainer", power_w=120.0, load=5.0),
        )
        world.see(f.GpuLook(gpus))
        world.engine(health="timeout", liveness="unknown", iterations=None, running=None, waiting=None)
        world.see(f.WorkSeen(64, second // 10, 256))
    assert not world.asked(a.Stop), world.said("verdict")


def test_memory_that_others_let_go_convicts_no_engine_that_answers_from_within() -> None:
    world = World()
    world.shared = True
    world.memory["GPU-0"] = 78 * GIB
    world.running_at(7)
    for _ in range(3):
        world.gpus()
        world.step((world.state.progress.step or 0) + 1)
    for second in range(0, 180, 5):
        world.t += 5
        if second == 30:
            world.gpus(10 * GIB)
        if second == 60:
            world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
        world.engine(iterations=world.state.engine.count, running=0.0, connections=0)
    assert world.state.gpus.by_uuid["GPU-0"].fallen_since is not None
    assert not world.asked(a.Stop), world.said("verdict")


@pytest.mark.parametrize("spins", [False, True])
def test_a_judge_that_is_away_for_an_hour_ends_no_run(spins: bool) -> None:
    """All wait for it in each start. Where the trainer spins, the run is given up as ever: that no wait cures."""
    world = seen_run()
    for number in range(1, 4):
        world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
        world.after(60.0)
        world.job_up()
        for t in range(0, 240, 10):
            world.t += 10
            look(world, 520.0, tokens=t > 120, load=100.0)
        world.see(f.StepDone("trainer", 60 + number, 60.0, loss=0.1))
        world.checkpoint(60 + number)
    world.actions.clear()
    began = world.t
    while world.t < began + 3600 and world.state.mode != "gave-up":
        if world.state.mode == "starting" and not world.state.busy.start and world.state.progress.t == world.t:
            world.job_up()
        for t in range(0, 180, 10):
            world.t += 10
            look(world, SPINS_W, tokens=t > 100, load=100.0 if spins else RESTS)
        stands(world, 100.0 if spins else RESTS, 1800.0, watts=SPINS_W if spins else 120.0)
        world.actions = [one for one in world.actions if not isinstance(one, a.Stop)]
        while world.state.mode in ("backing-off", "stopping") and world.t < began + 7200:
            world.after(10.0, tick=5.0)
        world.job_up()
    assert (world.state.mode == "gave-up") == spins, world.said("verdict")
