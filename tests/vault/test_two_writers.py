"""A pod falls asleep at any of its requests or file operations; another takes the run over and works; it wakes up.

Whatever it does then: the other's step stays restorable with its bytes, ``latest.json`` names what the other published,
and as soon as the sleeper looks at the claims it is told that it is fenced (promise 9).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import delete_step, keep_lineage, list_steps, sweep_run
from supervisor.checkpoints.claims import Fence, beat, look, mark_leaving, release
from supervisor.checkpoints.keeping import tidy
from supervisor.checkpoints.lineage import Entry, Lineage
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.records import read_latest, settle_pointer
from supervisor.checkpoints.writers import FencedError
from supervisor.storage.base import StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import quiet
from tests.vault.machine import Machine
from tests.vault.pod import PART, RUN, Content, Pod, go_back, save
from tests.vault.scenes import A, B, held


class Counting(Fence):
    """Notes at which point of the machine each look at the claims began."""

    def __init__(self, pod: Pod, machine: Machine) -> None:
        super().__init__(pod.open(), RUN, 1, A)
        self._machine = machine
        self.looks: list[int] = []

    def __call__(self) -> None:
        self.looks.append(len(self._machine.labels))
        super().__call__()

    def slept(self) -> None:
        """The clock went on: its last look is no longer a moment ago."""
        self._looked = float("-inf")


Act = Callable[[Pod, Counting], object]


def publish_40(pod: Pod, fence: Counting) -> None:
    publish(pod.open(), pod.plan(40, writer=A, generation=1, fence=fence), quiet)


def prune_20(pod: Pod, fence: Counting) -> None:
    delete_step(pod.open(), RUN, 20, fence)


def quarantine_40(pod: Pod, fence: Counting) -> None:
    entry = Entry("quarantine", 40, 1.0, "NaN")
    keep_lineage(pod.open(), RUN, [entry], generation=1, writer=A, fence=fence)


def tidy_and_sweep(pod: Pod, fence: Counting) -> None:
    fence()
    tidy(pod.open(), RUN, (20, 30, 40), fence)
    sweep_run(pod.open(), RUN, fence=fence)


def one_more_beat(pod: Pod, fence: Counting) -> None:
    fence()  # as beat does itself
    beat(pod.open(), RUN, 1, A, 1)
    settle_pointer(pod.open(), RUN)


def say_that_it_leaves(pod: Pod, fence: Counting) -> None:
    fence()
    mark_leaving(pod.open(), RUN, 1, A)


def give_back(pod: Pod, fence: Counting) -> None:
    fence()
    release(pod.open(), RUN, 1, A)


@dataclass(frozen=True)
class Winner:
    """What the other pod does with the run, and which step it has in the store then."""

    step: int
    seed: int
    goes_back_to: int | None = None

    def work(self, other: Pod) -> Content:
        store = other.open()
        taken = held(other, B, over=True)
        assert (taken.writer, taken.generation) == (B, 2)
        fence = Fence(store, RUN, 2, B)
        happened = Lineage()
        if self.goes_back_to is not None:
            entry = Entry("rollback", self.goes_back_to, 2.0, "a person")
            happened, _ = keep_lineage(store, RUN, [entry], generation=2, writer=B, fence=fence)
        made = other.save(self.step, self.seed)
        publish(store, other.plan(self.step, writer=B, generation=2, fence=fence, happened=happened), quiet)
        return made


ACTS: dict[str, tuple[Act, tuple[int, ...]]] = {
    "publish": (publish_40, (20, 30)),
    "publish again": (publish_40, (20, 30, 40)),
    "prune": (prune_20, (20, 30, 40)),
    "quarantine": (quarantine_40, (20, 30, 40)),
    "tidy": (tidy_and_sweep, (20, 30, 40)),
    "beat": (one_more_beat, (20, 30)),
    "leave": (say_that_it_leaves, (20, 30)),
    "release": (give_back, (20, 30)),
}
WINNERS = {
    "further": Winner(60, 7),
    "same step": Winner(40, 7),
    "rollback": Winner(30, 7, goes_back_to=20),
    "reaches 20 again": Winner(20, 7, goes_back_to=-1),
}

AT_THE_FOLDER = {(act, "same step") for act in ACTS if act != "publish again"}
"""Of a step that is there names are replaced, and one rename or deletion that was on its way cannot be called back."""


def _cases() -> list[Any]:
    """All at B2, which keeps versions; a folder keeps one, and there the other pod goes on with a step of its own.

    Or with the same one, where the pod that sleeps makes names and replaces none.
    """
    cases = []
    for act in ACTS:
        for winner in WINNERS:
            for where in ("b2", "file"):
                if where == "file" and winner != "further" and (act, winner) not in AT_THE_FOLDER:
                    continue
                cases.append(pytest.param(where, act, winner, id=f"{where}-{act}-{winner}"))
    return cases


def _points(pod: Pod, act: str, winner: str, last: int) -> range:
    """At B2 a part with each winner, and together all; what reaches the very step again that goes meets each."""
    sharing = [*WINNERS] if act.startswith("publish") else [one for one in WINNERS if one != "reaches 20 again"]
    if pod.server is None or winner not in sharing:
        return range(1, last + 1)
    return range(1 + sharing.index(winner), last + 1, len(sharing))


@pytest.fixture
def two_pods(request: pytest.FixtureRequest, quick_dir: Path) -> Iterator[tuple[Pod, Pod]]:
    home, other = quick_dir / "pod", quick_dir / "other"
    home.mkdir()
    if request.param == "file":
        yield Pod(home), Pod(other, shared=home / "vault")
        return
    with B2Server(part_size=PART) as server:
        yield Pod(home, server), Pod(other, server)


@pytest.mark.soak
@pytest.mark.parametrize("two_pods", ["b2"], indirect=True)
def test_a_pod_that_sleeps_as_it_gives_the_run_back_hurts_nothing_when_it_wakes(two_pods: tuple[Pod, Pod]) -> None:
    """In each run of the tests: some points of the act that has the fewest. All others are soaks."""
    take_over_everywhere(*two_pods, "release", "same step", every=3)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("two_pods", "act", "winner"), _cases(), indirect=["two_pods"])
def test_a_pod_that_sleeps_while_another_takes_over_hurts_nothing_when_it_wakes(
    two_pods: tuple[Pod, Pod], act: str, winner: str
) -> None:
    take_over_everywhere(*two_pods, act, winner)


def take_over_everywhere(pod: Pod, other: Pod, act: str, winner: str, every: int = 1) -> None:
    do, before = ACTS[act]
    held(pod)
    for step in before:
        pod.save(step)
        publish(pod.open(), pod.plan(step, writer=A, generation=1), quiet)
    pod.save(40, seed=1)
    saved = save(pod)
    with Machine(pod.home) as whole:
        clean = Counting(pod, whole)
        do(pod, clean)
    for number in _points(pod, act, winner, len(whole.labels))[::every]:
        go_back(pod, saved)
        made: list[Content] = []
        fences: list[Counting] = []
        machine = Machine(pod.home, number, instead=partial(_work, WINNERS[winner], other, made, fences))
        ended: StoreError | None = None
        with machine:
            try:
                fences.append(Counting(pod, machine))
                do(pod, fences[0])
            except StoreError as error:
                ended = error
        where = f"{act}, asleep at {number} of {len(whole.labels)} ({machine.labels[number - 1]}), ended: {ended}"
        try:
            _it_stopped(pod, ended, looks_later=number <= max(clean.looks))
            if pod.server is None:
                _the_other_has_the_last_word(other, WINNERS[winner].step)
            _the_others_work_is_whole(other, WINNERS[winner].step, made[-1])
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}\n" + "\n".join(machine.labels[number - 3 :])) from error


def _work(winner: Winner, other: Pod, made: list[Content], asleep: list[Counting]) -> None:
    made.append(winner.work(other))
    for fence in asleep:
        fence.slept()


def _it_stopped(pod: Pod, ended: StoreError | None, *, looks_later: bool) -> None:
    """Told that it is fenced, or refused for another reason and then told at its next look."""
    assert ended is not None or not looks_later, "it looked at the claims after it woke, and was not told"
    if isinstance(ended, FencedError):
        assert ended.by == "pod-b"
        return
    with pytest.raises(FencedError):
        Fence(pod.open(), RUN, 1, A)()


def _the_other_has_the_last_word(other: Pod, step: int) -> None:
    """In a folder the pointer has one version: the request that was on its way when the pod fell asleep comes last.

    What it names is whole all the same, and the holder's next publish tells what is right.
    """
    pointer = other.pointer()
    assert pointer is not None and other.committed()[pointer] == "", "promise 2"
    fence = Fence(other.open(), RUN, 2, B)
    publish(other.open(), other.plan(step, writer=B, generation=2, fence=fence), quiet)


def _the_others_work_is_whole(other: Pod, step: int, made: Content) -> None:
    store = other.open()
    found = look(store, RUN)
    assert (found.generation, found.writer, found.released) == (2, B, False), f"promise 9: {found}"
    assert other.survives(step, made) == "", f"promise 9: step {step}: {other.survives(step, made)}"
    info = list_steps(store, RUN).steps[step]
    assert info.committed and not info.left, f"promise 9: {info}"
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.generation) == (step, 2), f"promise 9: {latest}"
    beat(store, RUN, 2, B, 1)
    settle_pointer(store, RUN)  # as the transfer process does with each beat
    by_name = json.loads(other.objects()["latest.json"])
    assert (by_name["step"], by_name["generation"]) == (f"step_{step}", 2), f"promise 2: {by_name}"
