"""Replaying runs that were claimed: they wait for no store, and other settings take no claim away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.config.core_settings import under
from supervisor.config.run_file import load
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.codec import encode
from supervisor.core.evolve import replace
from supervisor.journal import trace
from supervisor.journal.journal import Journal
from supervisor.journal.replay_trace import Turn, replay
from tests.core.world import SETTINGS, World

from .test_journal_and_replay import RUN, keep

FENCED = replace(SETTINGS, fencing=True)


def asked(turns: list[Turn], kind: type[a.Action]) -> list[a.Action]:
    return [action for turn in turns for action in turn.actions if isinstance(action, kind)]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The journal of a run that waited for another pod, held the run, published, lost it, and ended."""
    world = World(FENCED)
    world.boot()
    world.see(f.ClaimHeld("pod-b", 6, 40.0, 600.0))
    world.after(30)
    world.see(f.Claimed(7))
    world.see(f.Swept(1))
    world.after(2)
    world.job_up()
    for step in range(1, 8):
        world.step(step)
        if step % 5 == 0:
            world.checkpoint(step)
    world.see(f.Fenced("pod-c", 8))
    world.step(8)
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(30)
    kept = Journal(tmp_path)
    keep(world, kept)
    kept.close()
    return tmp_path / "journal.db"


def test_a_run_that_was_claimed_is_replayed_as_it_was_decided(recorded: Path) -> None:
    turns = list(replay(trace.load(recorded, None)))
    assert not [turn for turn in turns if turn.differs]
    assert asked(turns, a.Claim) and asked(turns, a.Sweep) and asked(turns, a.Publish)
    assert turns[-1].mode == "surveying"


def test_under_another_run_file_the_claim_is_still_the_recorded_one(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(grace=3) + "hang = 61\n[disk]\nstop_below_mb = 2048\n[store]\nkeep_last = 3\n")
    run_file = load(file)
    turns = list(replay(trace.load(recorded, None), lambda settings: under(run_file, settings)))
    assert [action.step for action in asked(turns, a.Publish)] == [5]
    assert asked(turns, a.Start), "it does not wait for ever"
    assert not [turn.instead for turn in turns if turn.counterfactual]


def test_a_claim_that_only_an_observer_did_not_ask_for_makes_no_difference(tmp_path: Path) -> None:
    world = World(replace(FENCED, mode="observe"))
    world.suppress = True
    world.boot()
    world.see(f.AttemptAdopted(1, None, 100))
    world.job_up()
    for step in range(1, 6):
        world.step(step)
    world.checkpoint(5)
    world.see(f.Claimed(1))
    world.survey()
    world.after(5)
    kept = Journal(tmp_path)
    keep(world, kept)
    kept.close()
    file = trace.load(tmp_path / "journal.db", None)
    turns = list(replay(file, lambda settings: replace(settings, mode="act")))
    assert [action.step for action in asked(turns, a.Publish)] == [5]
    assert len(asked(turns, a.Claim)) == 1


def test_in_a_world_that_answers_the_run_is_given_to_whoever_asks(tmp_path: Path) -> None:
    first = {
        "format": "rl-supervisor-trace",
        "version": 1,
        "ticks": "named",
        "effects": "answered",
        "settings": {"run_id": "bs4", "fencing": True},
        "until": 60.0,
    }
    look = encode(f.LocalSteps((f.LocalStep(5, "complete", "", 1),)))
    file = tmp_path / "claimed.jsonl"
    file.write_text(f"{json.dumps(first)}\n{json.dumps({'t': 0.0, 'fact': look})}\n")
    turns = list(replay(trace.load(file, None)))
    assert [action.step for action in asked(turns, a.Start)] == [5]
