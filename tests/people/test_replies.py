"""What a daemon answers to `pin`, `unpin` and `rollback`: taken, or refused with what there is instead."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.core import facts as f
from supervisor.core.evolve import replace
from supervisor.core.state import Attempt, Fence, Local, Pins, State, Store
from supervisor.daemon.order_replies import answer

STORED = tuple(f.StoredStep(step, committed=True, size_bytes=10) for step in range(10, 300, 10))


HERE = (f.LocalStep(310, "complete", "", 10, 0.0), f.LocalStep(320, "writing", "its files change", 5, 0.0))
IN_STORE = Store(steps=STORED, reason="", t=5.0)
PINS = Pins(steps=(20,))


def state(store: Store = IN_STORE, pins: Pins = PINS, **more: Any) -> State:
    settings = f.Settings(run_id="r", max_steps=400)
    return State(settings=settings, local=Local(steps=HERE), store=store, pins=pins, **more)


@pytest.mark.parametrize("step", [10, 290, 310])
def test_a_run_goes_back_to_any_step_that_is_somewhere(step: int) -> None:
    taken, sentence = answer(state(), "rollback", [str(step)], "")
    assert taken
    assert f"goes on at step {step}." in sentence


def test_a_fenced_pod_promises_no_resume_after_a_shutdown() -> None:
    assert "it resumes at the next start" in answer(state(), "shutdown", [], "")[1]
    fenced = state(fence=Fence(asked=True, lost=True, by="vm-2", by_generation=2))
    assert answer(fenced, "shutdown", [], "") == (
        True,
        "The job is being stopped, then the daemon ends; the next one waits while pod vm-2 holds the run.",
    )


@pytest.mark.parametrize("step", [11, 320, 9999])
def test_a_run_does_not_go_back_to_a_step_that_is_nowhere(step: int) -> None:
    taken, sentence = answer(state(), "rollback", [str(step)], "")
    assert not taken
    assert sentence == (
        f"Step {step} is neither here nor in the store, so nothing is changed. Complete here: 310; in the store: 200, "
        "210, 220, 230, 240, 250, 260, 270, 280, 290 and 19 older."
    )


def test_a_damaged_step_is_none_to_go_back_to_and_a_store_that_is_away_is_named() -> None:
    assert not answer(state(replace(IN_STORE, damaged={"290": "one file is missing"})), "rollback", ["290"], "")[0]
    taken, sentence = answer(state(replace(IN_STORE, steps=(), reason="no connection")), "rollback", ["290"], "")
    assert (taken, sentence) == (False, "Step 290 is not here, and the store cannot be listed (no connection).")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (290, "Step 290 is kept in the store until it is unpinned."),
        (310, "Step 310 stays on this disk until it is published, and then in the store until it is unpinned."),
        (320, "Step 320 is not complete yet; once it is, it is published and kept until it is unpinned."),
        (330, "There is no step 330 yet; it is kept in the store when it comes."),
    ],
)
def test_a_step_is_pinned_before_it_is_published_or_even_made(step: int, told: str) -> None:
    assert answer(state(), "pin", [str(step)], "") == (True, told)


@pytest.mark.parametrize("step", [5, 401])
def test_a_step_that_never_comes_is_not_pinned(step: int) -> None:
    taken, sentence = answer(state(), "pin", [str(step)], "")
    assert not taken
    assert sentence.startswith(f"Step {step} is not whole here or in the store; in the store: 200, ")


def test_only_what_is_pinned_is_unpinned() -> None:
    assert answer(state(), "unpin", ["20"], "")[0]
    assert answer(state(pins=replace(PINS, wishes={"30": True})), "unpin", ["30"], "")[0]
    assert answer(state(), "unpin", ["40"], "") == (False, "Step 40 is not pinned; pinned: 20.")
    assert answer(state(pins=replace(PINS, reason="the pins cannot be read")), "unpin", ["40"], "")[0], (
        "who knows what is pinned?"
    )


@pytest.mark.parametrize("verb", ["rollback", "pin", "unpin", "restart"])
def test_a_pod_that_lost_the_run_changes_nothing_and_says_who_has_it(verb: str) -> None:
    lost = Fence(asked=True, generation=3, lost=True, by="gpu-9", by_generation=4)
    taken, sentence = answer(state(fence=lost), verb, ["290"] if verb != "restart" else [], "")
    assert not taken
    assert sentence.startswith("Nothing is changed. Pod gpu-9 has taken this run over (generation 4)")
    assert sentence.endswith("Take it back with: supervisorctl start --take-over")
    assert answer(state(fence=lost), "start", ["--take-over"], "")[0]


def test_of_a_run_that_is_only_observed_nothing_is_rolled_back() -> None:
    assert answer(state(), "rollback", ["290"], "it is only observed.") == (
        False,
        "Nothing is started or stopped: it is only observed.",
    )


def test_an_answer_promises_nothing_that_does_not_happen() -> None:
    """A run that is paused starts nothing, one that runs is not started, and one that is stopped is not stopped."""
    running = state(mode="running", attempt=Attempt(number=1))
    assert answer(running, "start", [], "")[1] == "The job is already running."
    assert answer(running, "stop", [], "")[1].startswith("The job is being stopped. The run stays stopped")
    stopped = state(mode="stopped")
    assert answer(stopped, "stop", [], "")[1] == "No job runs, and none is started until: supervisorctl start"
    assert answer(stopped, "start", [], "")[1] == "The run will be started from its last good step."
    for now, verb, args in ((stopped, "start", []), (running, "restart", []), (running, "rollback", ["290"])):
        paused = replace(now, orders=replace(now.orders, paused=True))
        taken, sentence = answer(paused, verb, args, "")
        assert taken
        assert sentence.endswith("once the supervisor, which is paused, acts again: supervisorctl resume"), sentence
    assert answer(replace(running, orders=replace(running.orders, paused=True)), "pause", [], "")[1].startswith(
        "Paused already"
    )
