"""`supervisorctl explain`: each piece of evidence with its age and its deadline, and what would change the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from supervisor.cli import render
from supervisor.core import facts as f
from supervisor.core.words import span
from supervisor.views import status
from tests.core.world import SETTINGS, World


def explained(world: World) -> dict[str, Any]:
    answer = status.explain(world.state)
    json.dumps(answer)  # it travels as JSON
    return answer


def piece(world: World, name: str) -> dict[str, Any]:
    (found,) = [item for item in explained(world)["evidence"] if item["name"] == name]
    return dict(found)


def text(world: World, **more: Any) -> str:
    return "\n".join(render.explanation({**explained(world), **more}, now=world.state.wall))


@pytest.fixture
def world() -> World:
    """A run at step 20 whose engine works."""
    world = World()
    world.running_at(20)
    world.engine(iterations=100.0, running=8.0, liveness="absent")
    world.t += 1
    world.engine(iterations=140.0, running=8.0, liveness="absent")
    return world


def test_counters_are_measured_against_the_seconds_after_which_their_silence_is_a_signal(world: World) -> None:
    world.t += 4
    world.engine(iterations=140.0, running=8.0, liveness="absent")
    counters = piece(world, "engine counters")
    assert counters["sentence"] == "140 iterations"
    assert counters["age_s"] == 4
    assert counters["deadline_s"] == SETTINGS.hang
    assert counters["left_s"] == pytest.approx(SETTINGS.hang - 4, abs=1.1)
    assert counters["would"] == f"{span(SETTINGS.hang)} without a token while work waits would be a signal"
    assert "engine counters" in text(world)
    left = span(SETTINGS.hang - 4)
    assert f"without a token while work waits would be a signal ({left} left)" in text(world)
    world.engine(iterations=140.0, running=0.0, liveness="absent", waiting=0.0)
    assert piece(world, "engine counters")["left_s"] is None
    assert "no work waits now" in piece(world, "engine counters")["would"]


def test_what_cannot_be_seen_is_unknown_and_no_signal(world: World) -> None:
    world.see(f.GpuLook(reason="the driver hangs"))
    assert piece(world, "GPUs")["sentence"] == "unknown: the driver hangs"
    assert piece(world, "GPUs")["would"] == "unknown is no signal"


def test_an_empty_gpu_says_when_it_becomes_a_signal(world: World) -> None:
    world.after(5)
    world.gpus()
    world.gpus(inference=0)
    world.t += 4
    world.see(f.Tick())
    fallen = piece(world, "GPU 0")
    assert (fallen["age_s"], fallen["deadline_s"], fallen["left_s"]) == (4, 10, 6)
    assert fallen["would"] == "so little for so long would be a signal"


def test_a_process_that_went_is_proof_after_its_grace(world: World) -> None:
    world.engine_process_dies()
    (gone,) = [item for item in explained(world)["evidence"] if item["would"].startswith("proof")]
    assert gone["deadline_s"] == SETTINGS.engine_grace
    (soon,) = explained(world)["forecast"]
    assert soon["act"]
    assert soon["in_s"] == pytest.approx(SETTINGS.engine_grace, abs=0.1)
    assert soon["sentence"].startswith("vLLM died silently")
    world.answer = False
    world.t += soon["in_s"]
    world.see(f.Tick())
    assert world.said("verdict")[0].startswith("vLLM died silently"), "what was foretold is what came"


def test_the_forecast_is_what_the_core_then_concludes(world: World) -> None:
    """Nothing moves any more: the core's own conclusions come when, and as, explain foretold them."""
    foretold = explained(world)["forecast"]
    assert [item["act"] for item in foretold][-1], foretold
    world.answer = False
    begun, last = world.t, foretold[-1]
    while not world.said("verdict"):
        world.t += 1
        world.engine(iterations=140.0, running=8.0, liveness="absent")
        assert world.t - begun < 2 * last["in_s"], f"the core never concluded what was foretold: {last}"
    assert world.t - begun == pytest.approx(last["in_s"], abs=2.5)
    assert world.said("verdict")[0].partition(":")[0] == last["sentence"].partition(":")[0]
    if len(foretold) > 1:
        assert world.said("suspect"), "the suspicion came first, as foretold"


def test_paused_it_says_what_would_be_done_and_goes_on_looking(world: World) -> None:
    world.see(f.Command("pause", "anna"))
    world.engine_process_dies()
    world.after(SETTINGS.engine_grace + 1)
    answer = explained(world)
    assert answer["would_do"] == f"the job would be stopped and started again at step {world.state.last_good}"
    shown = text(world)
    assert "Paused: nothing is done about it." in shown
    assert f"Otherwise the job would be stopped and started again at step {world.state.last_good}." in shown
    before = piece(world, "engine counters")["sentence"]
    world.engine(iterations=999.0, running=8.0, liveness="absent")
    assert piece(world, "engine counters")["sentence"] != before


def test_paused_beside_a_dead_job_the_first_line_says_that_nothing_trains_and_what_to_type(world: World) -> None:
    world.see(f.Command("pause", "anna"))
    healthy = render.headline(status.status(world.state), "r")
    assert healthy.startswith("r  RUNNING (PAUSED)  paused; step 20 of 1000")
    assert status.status(world.state)["state"] == "running"
    hung = World()
    hung.running_at(20)
    hung.see(f.Command("pause", "anna"))
    hung.engine_process_dies()
    hung.after(SETTINGS.engine_grace + 1)
    told = render.headline(status.status(hung.state), "r")
    assert told.startswith("r  PAUSED  paused, so nothing is done about it until you run: supervisorctl resume bs4; ")
    world.see(f.ComponentExited(1, "launcher", 1))
    told = render.headline(status.status(world.state), "r")
    assert told.startswith(
        "r  PAUSED  paused, so the job has ended and nothing is started until you run: supervisorctl resume bs4; The"
    )
    assert "running since" not in "\n".join(render.status_block(status.status(world.state)))
    assert status.status(world.state)["state"] == render.HELD, "supervisorctl status ends with 3"
    world.see(f.Command("resume", "anna"))
    assert "PAUSED" not in render.headline(status.status(world.state), "r")


def test_observed_it_keeps_a_ledger_of_what_it_did_not_do() -> None:
    world = World(replace(SETTINGS, mode="observe"))
    world.suppress = True
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.see(f.AttemptAdopted(1, None, 77))
    assert world.said("attached") == ["Attached to the job of a person (pid 77) as attempt 1; it is not touched."]
    world.see(f.ProcessSeen(1, "inference", 78, 5, "VLLM::EngineCore"))
    world.see(f.ProcessSeen(1, "trainer", 79, 5, "PRIME-RL::Trainer"))
    world.step(1)
    world.see(f.ProcessGone(1, "inference", 78, 5))
    world.after(SETTINGS.engine_grace + 1)
    (kept,) = explained(world)["would"]
    assert kept["sentence"].startswith("Would have restarted the job at the last good step: vLLM died silently")
    assert world.state.mode == "running", "the belief is true: nothing was stopped"
    world.see(f.ProcessSeen(1, "inference", 88, 9, "VLLM::EngineCore"))  # the person's own script starts it again
    for number in (2, 3, 4):  # the first two may be of rollouts that were there already
        world.t += 60
        world.see(f.StepDone("trainer", number, 60.0))
    (kept, *_) = explained(world)["would"]
    assert kept["outcome"].startswith("the run went on by itself")
    at = [datetime.fromtimestamp(kept[name]).astimezone().strftime("%H:%M") for name in ("wall", "outcome_wall")]
    shown = " ".join(text(world, observed="this run is only observed.").split())
    assert f"Not done, since the run is only observed: {at[0]} Would have restarted the job" in shown
    assert f"; {at[1]} the run went on by itself" in shown
    assert "This run is only observed." in shown
    assert status.status(world.state)["mode"] == "observe"


def test_an_attached_job_that_ends_leaves_the_run_waiting_for_the_next_one() -> None:
    world = World(replace(SETTINGS, mode="observe"))
    world.suppress = True
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.see(f.AttemptAdopted(1, None, 77))
    world.step(1)
    world.see(f.ComponentExited(1, "rl", None, lost=True))
    world.survey()
    world.after(60)
    assert world.state.mode == "stopped", world.state.why
    assert world.state.ending.code is None, "and the daemon stays to watch the next one"
    world.see(f.AttemptAdopted(2, None, 99))
    world.step(2)
    assert (world.state.mode, world.state.attempt.number, world.state.attempt.pid) == ("running", 2, 99)


def test_a_start_that_was_held_back_does_not_end_the_job_that_was_attached_meanwhile() -> None:
    """The core asked for attempt 1 just before it heard that a person's job is attempt 1."""
    world = World(replace(SETTINGS, mode="observe"))
    world.answer = False
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.survey()
    world.after(2)
    number = world.state.attempt.number
    world.see(f.AttemptAdopted(number, None, 77))
    world.see(f.Suppressed("Start", number, "the run is only observed."))
    assert (world.state.mode, world.state.attempt.pid) == ("starting", 77)


def test_lines_fit_a_terminal(world: World) -> None:
    world.see(f.ErrorSeen("trainer", "cuda-oom", "torch.OutOfMemoryError: " + "CUDA out of memory. " * 12))
    world.see(f.PhaseSeen("trainer", "checkpoint", 21, "Saving checkpoint at step 21"))
    lines = text(world).splitlines()
    assert max(map(len, lines)) <= 100
    assert any("then it excuses silence no longer (" in line for line in lines)


def test_what_is_left_of_a_start_adds_up_with_what_it_may_take() -> None:
    """A save or an evaluation before the first step stretches the limit: "may take 60 s (67 s left)" is no sum."""
    world = World()
    world.boot()
    world.job_up()
    assert world.state.mode == "starting"
    world.see(f.PhaseSeen("orchestrator", "weight-update", 0))
    world.t += 5
    world.see(f.Tick())
    deadline = explained(world)["deadline"]
    extra, gone = 3 * SETTINGS.hang, world.state.now - world.state.attempt.started
    more = f"known reasons explain {span(extra)} more"
    assert deadline["sentence"] == f"The first step after a start may take {span(SETTINGS.startup)}; {more}."
    assert deadline["seconds_left"] == pytest.approx(SETTINGS.startup + extra - gone, abs=0.2)
    start = piece(world, "start")
    assert start["age_s"] == pytest.approx(gone, abs=0.1)
    assert start["deadline_s"] == pytest.approx(SETTINGS.startup + extra, abs=0.1)
    assert start["would"].startswith(f"{span(SETTINGS.startup + extra)} without one alone")
