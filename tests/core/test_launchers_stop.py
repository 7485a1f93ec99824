"""A launcher that sees one of its parts fail ends all others: who died first is what it says, not what it ends first.

prime-rl joins its monitor threads for five seconds each, then ends inference, environment servers, orchestrator and
trainer one by one, each within a minute (utils/process.py, entrypoints/rl.py). The engine is thus gone some 20 s after
the launcher's line, while others live on, which is how a silent death of the engine looks from outside.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.blame import may_be_the_checkpoint
from supervisor.core.proof import Verdict

from .world import World

ENV = "Error: Train env server gsm8k failed with exit code -9"


@pytest.fixture
def world() -> World:
    world = World()
    world.running_at(12)
    return world


def launcher_says(world: World, text: str) -> None:
    world.see(f.ErrorSeen("launcher", "component-failed", text))


@pytest.mark.parametrize(
    ("text", "begins", "cause"),
    [
        # January and March 2026 have no environment servers under the launcher, August one for each source
        (ENV, "An environment server died: ", "env-gone"),
        ("Error: Eval env server AIME-2024.v2 failed with exit code 1", "An environment server died: ", "env-gone"),
        ("Error: Trainer failed with exit code 1", "The trainer died: ", "trainer-gone"),
        ("Orchestrator failed with exit code 1", "The orchestrator died: ", "orchestrator-gone"),
        ("Error: Orchestrator failed with exit code -9", "The orchestrator died: ", "orchestrator-gone"),
    ],
)
def test_the_engine_that_the_launcher_ends_is_not_what_died(world: World, text: str, begins: str, cause: str) -> None:
    launcher_says(world, text)
    world.after(20)
    assert not world.said("verdict"), "a line alone proves nothing"
    world.engine_process_dies()
    world.after(5)
    sentence = world.said("verdict")[0]
    assert sentence.startswith(begins + f"{text}.") and "silently" not in sentence
    assert "vLLM's process 111" in sentence, "what is gone is said, too"
    assert world.state.recovery.failures[-1].signature == cause
    assert len(world.asked(a.Stop)) == 1


@pytest.mark.parametrize(
    "text", ["Error: Inference failed with exit code 1", "Error: Teacher_inference failed with exit code 1"]
)
def test_an_engine_of_which_the_launcher_says_that_it_failed_has_died(world: World, text: str) -> None:
    world.engine_process_dies()
    world.after(1)
    launcher_says(world, text)
    world.after(5)
    assert world.said("verdict")[0].startswith("vLLM died: its process 111 has been gone for ")
    assert text in world.said("verdict")[0]


def test_an_engine_that_went_before_the_launcher_said_a_word_was_not_ended_by_it(world: World) -> None:
    world.engine_process_dies()
    world.after(1)
    launcher_says(world, "Error: Orchestrator failed with exit code 1")
    world.after(5)
    sentence = world.said("verdict")[0]
    assert sentence.startswith("vLLM died silently") and "the launcher says: Error: Orchestrator failed" in sentence


def test_an_environment_server_that_is_gone_is_a_death_of_its_own(world: World) -> None:
    """One that ends with exit code 0 is noticed by no launcher: rollouts would wait for it for ever."""
    world.see(f.ProcessSeen(1, "env", 900, 1, "PRIME-RL::EnvServer"))
    world.see(f.ProcessGone(1, "env", 900, 1))
    world.after(10)
    sentence = world.said("verdict")[0]
    assert sentence.startswith("An environment server died: its process 900 has been gone for ")
    assert "vLLM" in sentence and "the trainer live on" in sentence
    assert world.state.recovery.failures[-1].signature == "env-gone"


def test_an_environment_server_is_never_a_checkpoints_fault(world: World) -> None:
    world.see(f.ErrorSeen("env", "python-error", "KeyError: 'answer'"))
    assert not may_be_the_checkpoint(world.state, Verdict("dead", "env-gone", ""))
    launcher_says(world, ENV)
    world.see(f.ComponentExited(1, "launcher", 1))
    assert not may_be_the_checkpoint(world.state, Verdict("exited", "component-failed", ""))


def test_whatever_comes_first_the_environment_server_is_named() -> None:
    """Process and log are looked at by two sensors: their facts have no order."""
    told = set()
    for order in permutations(range(3)):
        world = World()
        world.running_at(12)
        world.see(f.ProcessSeen(1, "env", 900, 1, "PRIME-RL::EnvServer"))
        facts = [
            lambda: launcher_says(world, ENV),  # noqa: B023
            lambda: world.see(f.ProcessGone(1, "env", 900, 1)),  # noqa: B023
            lambda: world.see(f.PhaseSeen("launcher", "stopping", None, "Terminating all processes...")),  # noqa: B023
        ]
        for number in order:
            facts[number]()
            world.after(0.5)
        world.after(10)
        world.engine_process_dies()
        assert len(world.asked(a.Stop)) == 1
        told.add(world.said("verdict")[0].partition(":")[0])
    assert told == {"An environment server died"}


@pytest.mark.parametrize(
    "text",
    ["Received SIGTERM, terminating all processes...", "Received interrupt signal, terminating all processes..."],
)
def test_a_launcher_that_was_told_to_end_is_no_death_of_the_engine(world: World, text: str) -> None:
    world.see(f.PhaseSeen("launcher", "stopping", None, text))
    world.after(20)
    assert not world.said("verdict")
    world.engine_process_dies()
    world.after(5)
    assert world.said("verdict")[0].startswith(
        f"The launcher ends the job: {text[:-3]}; vLLM's process 111 has been gone"
    )
    assert world.state.recovery.failures[-1].signature == "ended-from-outside"


def test_a_job_that_ends_because_its_launcher_was_told_to_says_so_and_not_a_bare_exit_code(world: World) -> None:
    world.see(f.PhaseSeen("launcher", "stopping", None, "Received SIGTERM, terminating all processes..."))
    world.after(2)
    world.see(f.ErrorSeen("orchestrator", "connection-error", "All connection attempts failed"))  # while it is ended
    world.see(f.ComponentExited(world.state.attempt.number, "rl", 1, None, False))
    world.after(5)
    [verdict] = world.said("verdict")
    assert verdict == (
        "The job ended with exit code 1 after step 12 of 1000. The launcher ends the job: Received SIGTERM, "
        "terminating all processes."
    )
    assert world.state.incidents.open is not None and world.state.incidents.open.cause == "ended-from-outside"


def test_an_error_before_the_launcher_was_told_to_end_still_explains_the_end(world: World) -> None:
    world.see(f.ErrorSeen("trainer", "cuda-out-of-memory", "CUDA out of memory"))
    world.after(2)
    world.see(f.PhaseSeen("launcher", "stopping", None, "Received SIGTERM, terminating all processes..."))
    world.see(f.ComponentExited(world.state.attempt.number, "rl", 1, None, False))
    world.after(5)
    assert "CUDA out of memory" in world.said("verdict")[0]


def test_a_launcher_that_goes_on_for_long_after_its_line_ended_nothing(world: World) -> None:
    """Its output shows another log's lines, in which a model may write what it likes."""
    launcher_says(world, ENV)
    for number in range(13, 17):
        world.step(number)
    world.engine_process_dies()
    world.after(5)
    assert world.said("verdict")[0].startswith("vLLM died silently")


def test_an_engine_whose_end_only_its_port_shows_is_not_blamed_either(world: World) -> None:
    """In a container the process ids may be the host's."""
    launcher_says(world, ENV)
    world.after(20)
    for _ in range(30):
        world.t += 5
        world.engine(health="refused", liveness="refused", iterations=None, running=None, waiting=None)
        world.gpus(inference=0)
    assert world.said("verdict")[0].startswith(f"An environment server died: {ENV}.")


def test_what_the_others_cry_while_they_are_ended_is_not_why_the_job_ended(world: World) -> None:
    launcher_says(world, ENV)
    world.after(15)
    world.see(f.ErrorSeen("orchestrator", "connection-error", "APIConnectionError('Connection error.')"))
    world.see(f.ErrorSeen("inference", "engine-dead", "EngineCore encountered a fatal error."))
    world.see(f.ErrorSeen("inference", "model-unknown", "ValueError: no such model", deterministic=True))
    world.after(3)
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(3)
    assert world.said("verdict")[0] == f"The job ended with exit code 1 after step 12 of 1000: {ENV}."


def test_a_finished_launcher_ends_its_parts_one_by_one_and_none_of_them_died(world: World) -> None:
    """Each may take a minute, and there may be several environment servers."""
    world.see(f.ProcessSeen(1, "env", 900, 1, "PRIME-RL::EnvServer"))
    world.step(13)
    for role, text in (
        ("orchestrator", "Orchestrator finished."),
        ("trainer", "RL trainer finished!"),
        ("launcher", "Training finished!"),
    ):
        world.see(f.FinishSeen(role, text))  # type: ignore[arg-type]
    world.after(60)
    world.engine_process_dies()
    world.after(60)
    world.see(f.ProcessGone(1, "env", 900, 1))
    world.after(200)
    assert not world.said("verdict")


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_cause_is_what_the_failing_part_says_whichever_line_is_read_first(
    world: World, order: tuple[int, ...]
) -> None:
    """The launcher's line says only which part it was, and the engine cries while it is ended."""
    lines = [
        f.ErrorSeen("trainer", "cuda-illegal-access", "RuntimeError: CUDA error: an illegal memory access"),
        f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code 1"),
        f.ErrorSeen("inference", "engine-dead", "EngineDeadError: EngineCore encountered an issue"),
    ]
    for number in order:
        if number == 2 and 1 not in order[: order.index(2)]:
            continue  # before the launcher's line it would be a cause of its own
        world.see(lines[number])
        world.after(0.1, 0.1)
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(5)
    [verdict] = world.said("verdict")
    assert "illegal memory access" in verdict


def test_what_was_survived_minutes_ago_is_not_why_the_launcher_ends_the_job(world: World) -> None:
    world.see(f.ErrorSeen("orchestrator", "hub-unreachable", "ReadTimeout: huggingface.co"))
    world.after(240)
    launcher_says(world, "Error: Trainer failed with exit code 1")
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(60)
    assert "Trainer failed" in world.said("verdict")[0]
    assert world.state.recovery.failures[-1].signature == "component-failed"


def test_of_two_that_speak_at_the_end_the_one_that_the_launcher_names_is_the_cause(world: World) -> None:
    world.see(f.ErrorSeen("trainer", "nccl-timeout", "Watchdog caught collective operation timeout"))
    world.see(f.ErrorSeen("orchestrator", "python-error", "KeyError: 'reward'"))
    world.after(0.2, 0.2)
    world.see(f.ErrorSeen("trainer", "connection-error", "Connection reset by peer"))
    launcher_says(world, "Error: Orchestrator failed with exit code 1")
    world.see(f.ComponentExited(world.state.attempt.number, "launcher", 1))
    world.after(60)
    assert "KeyError" in world.said("verdict")[0]
