"""What the logs of a failed attempt show as the root cause stands in the status, the headline and the story."""

from __future__ import annotations

from dataclasses import replace

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import decode, encode
from supervisor.core.observe_only import held_back
from supervisor.views.status import headline, status

from .world import SETTINGS, World

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def _failed() -> World:
    world = World()
    world.running_at(12)
    world.see(f.ComponentExited(1, "launcher", 1))
    assert world.state.incidents.open is not None
    return world


def _root(attempt: int = 1, name: str = "cuda-oom", text: str = OOM) -> f.RootSeen:
    return f.RootSeen(1, attempt, name, "trainer", text, "Make batches smaller.")


def test_the_root_cause_of_an_open_incident_is_in_the_headline_and_the_status() -> None:
    world = _failed()
    world.see(_root())
    told = f'root cause: cuda-oom in the trainer: "{OOM}"'
    assert told in headline(world.state)
    (root,) = status(world.state)["incident"]["roots"]
    assert (root["name"], root["role"], root["text"]) == ("cuda-oom", "trainer", OOM)
    (said,) = world.said("root-cause")
    assert "cuda-oom in the trainer" in said
    assert OOM in said
    assert "Make batches smaller." in said, "the remedy is what a person types or changes next"


def test_the_headline_does_not_say_the_same_line_twice() -> None:
    world = World()
    world.running_at(12)
    world.see(f.ErrorSeen("trainer", "cuda-oom", OOM))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.see(_root())
    assert headline(world.state).count(OOM) == 1
    assert "root cause: cuda-oom in the trainer" in headline(world.state)


def test_the_same_root_in_each_attempt_of_an_incident_is_said_once_and_another_one_is_kept_beside_it() -> None:
    world = _failed()
    world.see(_root(1))
    world.see(_root(2))
    assert len(world.said("root-cause")) == 1
    world.see(_root(3, "address-in-use", "OSError: [Errno 98] Address already in use"))
    roots = status(world.state)["incident"]["roots"]
    assert [one["name"] for one in roots] == ["cuda-oom", "address-in-use"], "what began it, and what it ends with"
    for attempt in range(4, 9):
        world.see(_root(attempt, f"other-{attempt}", "x"))
    roots = status(world.state)["incident"]["roots"]
    assert [one["name"] for one in roots] == ["cuda-oom", "other-8"], "the state stays small"


def test_a_root_cause_that_is_known_after_the_recovery_still_belongs_to_its_incident() -> None:
    world = _failed()
    world.running_at(14)
    assert world.state.incidents.open is None
    world.see(_root())
    assert status(world.state)["last_incident"]["roots"][0]["name"] == "cuda-oom"
    assert "root cause: cuda-oom" in headline(world.state)
    assert world.said("root-cause")


def test_a_root_cause_of_an_incident_that_is_forgotten_is_only_said() -> None:
    world = _failed()
    world.see(f.RootSeen(77, 1, "cuda-oom", "trainer", OOM))
    assert world.state.incidents.open is not None
    assert world.state.incidents.open.roots == ()
    assert "incident 77" in world.said("root-cause")[0]


def test_an_error_without_a_name_is_told_by_its_own_line() -> None:
    world = _failed()
    world.see(_root(name="unknown", text="ValueError: no such column: reward_v2"))
    assert 'root cause: an error without a name in the trainer: "ValueError: no such column' in headline(world.state)


def test_a_snapshot_of_a_version_before_this_one_has_incidents_without_roots() -> None:
    world = _failed()
    old = encode(world.state.incidents.open)
    del old["roots"]
    assert decode(old) == world.state.incidents.open


def test_a_run_that_is_only_observed_gets_its_root_cause_and_tells_first_what_happened() -> None:
    world = World(replace(SETTINGS, mode="observe"))
    world.suppress = True
    world.see(f.DaemonStarted("test", world.settings, "boot"))
    world.survey()
    world.see(f.AttemptAdopted(1, None, 77))
    world.job_up()
    for number in (11, 12):
        world.step(number)
    world.see(f.ErrorSeen("launcher", "component-failed", "Error: Trainer failed with exit code 1"))
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(10)
    (asked,) = world.asked(a.CollectEvidence)
    assert held_back(asked, "the run is only observed.") is None, "its logs are read"
    assert world.state.mode == "stopped"
    world.see(_root())
    said = headline(world.state)
    assert said.startswith("The job ended with exit code 1"), said
    assert "root cause: cuda-oom in the trainer" in said, said
    assert said.index("Nothing is started") < said.index("root cause"), said
