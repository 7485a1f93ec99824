"""When a dead-man heartbeat may go out: only while the run trains and what it trains reaches the store."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import facts as f
from supervisor.core.wellness import Tolerance, troubles

from .world import GIB, SETTINGS, World

TOLERANCE = Tolerance(behind_s=3600.0, steps=None)


def told(one: World, tolerance: Tolerance = TOLERANCE, later: float = 0.0) -> tuple[str, ...]:
    return troubles(one.state, one.t + later, 1.7e9 + one.t + later, tolerance)


def running(step: int = 10) -> World:
    one = World(SETTINGS)
    one.running_at(step)
    return one


def test_a_run_that_makes_steps_and_publishes_them_is_well() -> None:
    assert told(running()) == ()


def test_a_run_that_waits_starts_or_was_stopped_is_not() -> None:
    one = World(SETTINGS)
    assert told(one)[-1] == "the run does not train (new): nothing is known of it yet"
    one.boot()
    assert told(one)[0].startswith("the run does not train (starting)")
    one = running()
    one.see(f.Command("stop", "ubuntu"))
    assert told(one)[0] == "the run does not train (stopped): Stopped by ubuntu"


def test_a_step_that_is_overdue_is_not() -> None:
    one = running()
    one.after(360.0, 30.0)
    assert told(one) == ()
    one.state = replace(
        one.state,
        suspicion=replace(one.state.suspicion, sentence="The engine is under suspicion: its counters stand still."),
    )
    one.state = replace(one.state, now=one.state.progress.t + 3000.0)
    (clause,) = troubles(one.state, one.state.now, 1.7e9 + one.state.now, TOLERANCE)
    assert clause.startswith("no step is done since 50 min: The engine is under suspicion")


def test_a_loop_that_hangs_is_not() -> None:
    assert told(running(), later=400.0) == ("the supervisor's loop has not turned for 6 min 40 s",)


def test_a_step_that_waits_too_long_to_be_published_is_not_and_the_store_says_why() -> None:
    one = running(9)
    one.publish_works = False
    one.step(10)
    one.checkpoint(10)
    assert told(one) == (), "it has only just been tried"
    one.state = replace(
        one.state,
        local=replace(
            one.state.local, steps=tuple(replace(s, changed_wall=s.changed_wall - 3700) for s in one.state.local.steps)
        ),
    )
    (clause,) = told(one)
    assert clause.startswith("step 10 has waited 61 min 41 s to be published, and step 5 is in the store: ")
    assert clause.endswith("the link is down")


def test_more_steps_than_a_person_wants_to_lose_are_not() -> None:
    one = running(10)
    one.publish_works = False
    for number in range(11, 17):
        one.step(number)
    assert told(one) == ()
    assert told(one, replace(TOLERANCE, steps=5)) == (
        "step 16 is done and step 10 is in the store: a lost pod would cost 6 steps",
    )


def unsaved(done: int, saved: tuple[int, ...], saved_ago_s: float) -> World:
    """A run that trains at step ``done``, with the last of ``saved`` so long ago."""
    one = running(saved[0])
    for step in saved[1:]:
        one.checkpoint(step)
    wall = 1.7e9 + one.t - saved_ago_s
    one.state = replace(
        one.state,
        since_wall=wall - 3600.0,
        progress=replace(one.state.progress, step=done),
        local=replace(
            one.state.local,
            steps=tuple(replace(s, changed_wall=wall) for s in one.state.local.steps if s.step in saved),
        ),
        store=replace(one.state.store, steps=()),
    )
    return one


def test_steps_that_go_on_while_no_checkpoint_comes_any_more_are_not() -> None:
    one = unsaved(51, (10, 15, 20), 2000.0)
    (clause,) = told(one)
    assert clause == (
        "no checkpoint is complete since step 20, and step 51 is done: one every 5 steps is usual, and a lost pod "
        "would cost 31 steps"
    )
    (clause,) = told(one, replace(TOLERANCE, saves_every=10))
    assert "one every 10 steps is usual" in clause


def test_a_checkpoint_that_is_merely_late_is_no_alarm() -> None:
    assert told(unsaved(35, (10, 15, 20), 2000.0)) == (), "two have not come: a long save, or one that was damaged"
    assert told(unsaved(51, (10, 15, 20), 1000.0)) == (), "steps are quick here"
    assert told(unsaved(51, (10, 15, 30), 2000.0)) == (), "they came more seldom lately"
    assert told(unsaved(51, (20,), 2000.0)) == (), "a command saves when it likes, and this one has only just begun"
    assert told(unsaved(51, (20,), 2000.0), replace(TOLERANCE, saves_every=25)) == (), "somebody set another interval"
    just = unsaved(51, (10, 15, 20), 2000.0)
    just.state = replace(just.state, since_wall=1.7e9 + just.t - 60.0)
    assert told(just) == (), "it has been training again for a minute"


def test_a_run_that_never_saved_is_not_where_its_interval_is_set() -> None:
    one = unsaved(51, (20,), 2000.0)
    one.state = replace(
        one.state, local=replace(one.state.local, steps=()), attempt=replace(one.state.attempt, resume_step=None)
    )
    assert told(one) == ()
    (clause,) = told(one, replace(TOLERANCE, saves_every=10))
    assert clause.startswith("no checkpoint is complete since step 0, and step 51 is done")


def test_a_pause_that_a_person_forgot_is_not() -> None:
    one = running()
    one.see(f.Command("pause", "ubuntu"))
    one.see(f.Command("pause", "ubuntu"))
    assert told(one) == ()
    paused = replace(one.state, orders=replace(one.state.orders, paused_t=one.state.now - 700.0))
    assert troubles(paused, one.t, 1.7e9 + one.t, TOLERANCE) == ("the supervisor has been paused for 11 min 40 s",)


def test_a_pod_that_lost_the_run_or_is_about_to_go_is_not() -> None:
    one = running()
    one.see(f.LeaveSoon(120.0, "SIGTERM"))
    assert "this pod is about to go" in told(one)
    stopped = running()
    stopped.see(f.Command("shutdown", "SIGTERM"))
    assert "the daemon is about to end" in told(stopped), "nothing is known of the pod"
    lost = running()
    lost.state = replace(lost.state, settings=replace(lost.state.settings, fencing=True))
    lost.see(f.Claimed(1))
    lost.see(f.Fenced("pod-b", 2))
    assert any("Pod pod-b has taken this run over" in clause for clause in told(lost))


def test_a_disk_on_which_the_next_checkpoint_does_not_fit_is_not() -> None:
    one = running()
    one.state = replace(one.state, disk=replace(one.state.disk, free=GIB, total=100 * GIB))
    assert told(one) == ("the disk is full (1.0 GiB free)",)
    one.state = replace(one.state, disk=replace(one.state.disk, free=2 * GIB + GIB // 2))
    assert told(one)[0].startswith("the next checkpoint, of about 1.0 GiB")
