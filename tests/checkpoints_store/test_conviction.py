"""A fleet's controller convicts a silent holder, and the pod that it rents goes on at once; all over real stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import claims
from supervisor.checkpoints.claims import Fence, look
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.records import read_latest
from supervisor.checkpoints.writers import FencedError
from supervisor.core import facts as f
from supervisor.effects.claiming import Claiming
from supervisor.fleet.run_look import look_at_run
from supervisor.storage.base import Store

from .conftest import RUN, Step, quiet
from .test_claims import AsleepBefore

SETTLE_S = 1.0
PATIENCE_S = 600.0


class Pod:
    """The claim of one daemon over a real store, on a clock of its own; each request is done at once."""

    def __init__(self, store: Store, letter: str, convicted: str = "", settle_s: float = 0.2) -> None:
        self.store, self.settle_s = store, settle_s
        self.now = 0.0
        self.told: list[f.Fact] = []
        self.says = {"label": f"rls-run-g00001-{letter * 6}", "step": 25, "unpublished": [20]}
        self.claiming = Claiming(
            self.run,
            self.told.append,
            lambda lane, work: work(),
            PATIENCE_S,
            about=lambda: self.says,
            convicted=convicted,
            clock=lambda: self.now,
        )
        self.claiming.journal = letter * 16

    def run(self, do: str, more: dict[str, Any]) -> dict[str, Any]:
        """As ``checkpoints.transfer`` carries it out."""
        if do == "claim":
            over = claims.Standing(**more["over"]) if "over" in more else None
            return asdict(claims.claim(self.store, RUN, more["writer"], self.settle_s, over=over))
        signed = (self.store, RUN, more["generation"], more["writer"])
        if do == "beat":
            return asdict(claims.beat(*signed, more["count"], about=more["about"]))
        assert do == "release"
        claims.release(*signed, code=more["code"], reason=more["reason"], about=more["about"])
        return {}

    @property
    def writer(self) -> str:
        return self.claiming.writer

    def starts(self) -> Pod:
        self.claiming.want(take_over=False)
        return self

    def later(self, seconds: float) -> None:
        """Its clock goes on, and its daemon does what is due."""
        until = self.now + seconds
        while self.now < until:
            self.now += 15.0
            self.claiming.tick()

    def holds(self) -> bool:
        return self.claiming.generation is not None

    def last(self) -> f.Fact:
        return self.told[-1]


def held_and_silent(store: Store) -> tuple[Pod, str]:
    """Pod a holds the run, and has beaten; what the controller hands over once it has stood still for long enough."""
    one = Pod(store, "a").starts()
    one.later(61)
    seen = look_at_run(store, RUN).claim
    assert (seen.label, seen.step, seen.unpublished) == (one.says["label"], 25, (20,))
    return one, f"{seen.generation}:{seen.mark}"


def test_the_next_pod_takes_over_at_once_and_the_old_holder_is_fenced_when_it_wakes(
    store: Store, tmp_path: Path
) -> None:
    one, handed = held_and_silent(store)
    publish(
        store, Step(tmp_path / "a10", 10).fill(shard=900).plan(tmp_path / "s", writer=one.writer, generation=1), quiet
    )
    theirs = Step(tmp_path / "b20", 20).fill(seed=2)
    two = Pod(store, "b", handed)

    def meanwhile() -> None:
        two.starts()
        assert two.last() == f.Claimed(2, watched=True) and two.now == 0.0
        plan = theirs.plan(tmp_path / "sb", writer=two.writer, generation=2, fence=Fence(store, RUN, 2, two.writer))
        publish(store, plan, quiet)

    asleep = AsleepBefore(store, 2, meanwhile)
    mine = Step(tmp_path / "a20", 20).fill(seed=1)
    plan = mine.plan(tmp_path / "s", writer=one.writer, generation=1, fence=asleep.fence(1, one.writer))
    with pytest.raises(FencedError, match="holds run"):
        publish(asleep, plan, quiet)  # type: ignore[arg-type]
    assert (asleep.awake, asleep.after) == (True, []), "not one write or delete after it woke up"
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.generation, latest.writer) == (20, 2, two.writer)
    one.later(61)
    assert isinstance(one.last(), f.Fenced) and one.last().generation == 2  # type: ignore[attr-defined]
    two.later(61)
    assert two.holds() and look_at_run(store, RUN).claim.label == two.says["label"]


def waits_as_any_other(pod: Pod, moves: Callable[[], None] = lambda: None) -> None:
    """It holds nothing while the heartbeat moves, and the run once that has stood still for the whole patience."""
    assert isinstance(pod.last(), f.ClaimHeld) and pod.last().patience_s == PATIENCE_S  # type: ignore[attr-defined]
    for _ in range(12):
        moves()
        pod.later(60)
        assert not pod.holds()
    pod.later(PATIENCE_S - 120)
    assert not pod.holds()
    pod.later(120)
    assert pod.holds()
    assert pod.last() == f.Claimed(look(pod.store, RUN).generation, watched=True)


def test_a_holder_that_beats_again_is_waited_for_as_ever(store: Store) -> None:
    one, handed = held_and_silent(store)
    one.later(61)
    two = Pod(store, "b", handed).starts()
    waits_as_any_other(two, lambda: one.later(61))


@pytest.mark.soak
def test_of_two_pods_with_one_conviction_one_holds_the_run_and_the_other_waits(store: Store) -> None:
    _, handed = held_and_silent(store)
    pods = [Pod(store, letter, handed, settle_s=SETTLE_S) for letter in "bc"]
    threads = [threading.Thread(target=pod.starts) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    (winner,) = (pod for pod in pods if pod.holds())
    (loser,) = (pod for pod in pods if not pod.holds())
    assert (look(store, RUN).generation, look(store, RUN).writer) == (2, winner.writer)
    waits_as_any_other(loser, lambda: winner.later(61))


def test_a_pod_that_wakes_later_with_the_same_environment_waits_as_any_other(store: Store) -> None:
    _, handed = held_and_silent(store)
    two = Pod(store, "b", handed).starts()
    assert two.holds()
    three = Pod(store, "c", handed).starts()
    assert not three.holds()
    two.later(61)
    again = Pod(store, "d", handed).starts()
    waits_as_any_other(again, lambda: two.later(61))


def test_a_conviction_of_a_claim_that_never_beat_counts_too(store: Store) -> None:
    """A pod that died in its first minute: the mark is that of its claim."""
    Pod(store, "a").starts()
    standing = look(store, RUN)
    two = Pod(store, "b", f"{standing.generation}:{standing.mark}", settle_s=SETTLE_S).starts()
    assert two.holds() and two.claiming.generation == 2


def test_a_copy_of_the_silent_pods_disk_is_watched_whatever_the_controller_says(store: Store) -> None:
    one, handed = held_and_silent(store)
    copy = Pod(store, "a", handed).starts()
    assert isinstance(copy.last(), f.ClaimHeld) and copy.last().copied  # type: ignore[attr-defined]
    for _ in range(5):
        one.later(61)
        copy.later(60)
        assert not copy.holds(), "the original beats"
    copy.later(210)
    assert copy.holds()


def test_a_pod_that_ends_before_its_first_beat_says_which_it_is_and_what_is_only_there(store: Store) -> None:
    """An unfit pod ends within seconds: what it has not published must not be unknown, or it would be billed on."""
    one = Pod(store, "a").starts()
    one.claiming.give_back(94, "This pod is unfit: it has 1 GPU.")
    claim = look_at_run(store, RUN).claim
    assert (claim.released, claim.code, claim.label, claim.unpublished) == (True, 94, one.says["label"], (20,))
