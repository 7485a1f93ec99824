"""Random sequences of publish, prune, pin, rollback, crash, other writers and restore, against a model in memory.

The model knows, of each step, which bytes must come back, or that they may be gone; whatever the store does otherwise
is a counterexample, which hypothesis makes as short as it can.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.checkpoints.catalogue import delete_step, keep_lineage, list_steps, sweep_run
from supervisor.checkpoints.claims import Fence, claim
from supervisor.checkpoints.keeping import read_pins, set_pin, tidy
from supervisor.checkpoints.lineage import Entry, Kind, read
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage.base import StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import quiet
from tests.vault.machine import Machine, PowerCut
from tests.vault.pod import PART, RUN, Content, Pod

A, B = (writer_name(f"pod-{name}", name * 16, "0001") for name in "ab")
STEPS = st.integers(1, 5)
ACTS = st.one_of(
    st.tuples(st.just("publish"), STEPS, st.integers(0, 2)),
    st.tuples(st.just("prune"), STEPS, st.just(0)),
    st.tuples(st.just("pin"), STEPS, st.just(0)),
    st.tuples(st.just("unpin"), STEPS, st.just(0)),
    st.tuples(st.just("restore"), STEPS, st.just(0)),
    st.tuples(st.just("crash in publish"), STEPS, st.integers(1, 90)),
    st.tuples(st.just("crash in prune"), STEPS, st.integers(1, 30)),
    st.tuples(st.just("second writer"), STEPS, st.just(0)),
    st.tuples(st.just("take over and back"), STEPS, st.integers(0, 2)),
    st.tuples(st.just("rollback"), STEPS, st.just(0)),
    st.tuples(st.just("quarantine"), STEPS, st.just(0)),
    st.tuples(st.just("crash in rollback"), STEPS, st.integers(1, 60)),
    st.tuples(st.just("sweep"), STEPS, st.just(0)),
)


@dataclass
class Model:
    """What has to be in the store."""

    pod: Pod
    there: dict[int, Content] = field(default_factory=dict)
    published_in: dict[int, int] = field(default_factory=dict)  # step -> lineage
    happened: list[Entry] = field(default_factory=list)
    pins: set[int] = field(default_factory=set)
    pointer: int | None = None
    generation: int = 0
    lives: int = 0

    def fence(self) -> Fence:
        return Fence(self.pod.open(), RUN, self.generation, A)

    def take(self, writer: str) -> int:
        standing = claim(self.pod.open(), RUN, writer, 0.0, take_over=True, sleep=lambda _: None, clock=lambda: 0.0)
        assert standing.writer == writer
        return standing.generation

    def send(self, step: int, writer: str = A) -> None:
        fence = Fence(self.pod.open(), RUN, self.generation, writer)
        more: dict[str, Any] = {"generation": self.generation, "fence": fence, "happened": read(self.pod.open(), RUN)}
        publish(self.pod.open(), self.pod.plan(step, writer=writer, **more), quiet)

    def left(self, step: int) -> bool:
        """Did something happen to it after it was published?"""
        since = self.happened[self.published_in[step] :]
        return any(step > one.step if one.kind == "rollback" else step == one.step for one in since)

    def good(self) -> set[int]:
        return {step for step in self.there if not self.left(step)}

    def is_there(self, step: int, made: Content) -> None:
        """It was published to the end, and the pointer followed unless it names a higher one."""
        if self.there.get(step) != made or step not in self.published_in:
            self.published_in[step] = len(self.happened)  # else it was there already, and nothing was written
        self.there[step] = made
        before, self.pointer = self.pointer, self.pod.pointer()
        assert self.pointer == step or (before is not None and self.pointer in self.good() and self.pointer > step)

    # ------------------------------------------------------------ acts

    def publish(self, step: int, seed: int) -> None:
        made = self.pod.save(step, seed + 1000 * len(self.happened))
        self.send(step)
        self.is_there(step, made)

    def take_over_and_back(self, step: int, seed: int) -> None:
        """Another pod goes on with the run for a step, and then this one again."""
        self.generation = self.take(B)
        made = self.pod.save(step, 100 + seed + 1000 * len(self.happened))
        self.send(step, B)
        self.is_there(step, made)
        self.generation = self.take(A)

    def goes(self, kind: Kind, step: int) -> Entry:
        return Entry(kind, step, float(len(self.happened)), "a person")

    def keep(self, entry: Entry) -> None:
        fence = self.fence()
        keep_lineage(self.pod.open(), RUN, [entry], generation=self.generation, writer=A, fence=fence)

    def went(self, entry: Entry) -> None:
        self.happened.append(entry)
        before, self.pointer = self.pointer, self.pod.pointer()
        if before is not None and self.left_or_gone(before):
            assert self.pointer == max(self.good(), default=None), "promise 2: it names the newest good step, or none"
        else:
            assert self.pointer == before, "promise 2: it goes back only from a step that is left"

    def left_or_gone(self, step: int) -> bool:
        return step not in self.there or self.left(step)

    def rollback(self, step: int, _: int) -> None:
        entry = self.goes("rollback", step)
        self.keep(entry)
        self.went(entry)

    def quarantine(self, step: int, _: int) -> None:
        entry = self.goes("quarantine", step)
        self.keep(entry)
        self.went(entry)

    def crash_in_rollback(self, step: int, number: int) -> None:
        entry = self.goes("rollback", step)
        before = self.pointer
        self._until_cut(number, lambda: self.keep(entry))
        kept = any(entry.same(one) for one in list_steps(self.pod.open(), RUN).happened.entries)
        assert kept or self.pod.pointer() == before, "promise 2: it went back, and the store does not say why"
        self.keep(entry)
        self.went(entry)

    def sweep(self, step: int, _: int) -> None:
        sweep_run(self.pod.open(), RUN, fence=self.fence())
        tidy(self.pod.open(), RUN, self.pod.committed(), self.fence())
        unfinished = [one for one in self.pod.garbage() if not one.endswith("latest.json")]
        assert unfinished == [], "something is billed that serves nobody"

    def prune(self, step: int, _: int) -> None:
        kept = step in self.pins or step == self.pointer or (step in self.there and len(self.there) <= 2)
        if not kept:
            delete_step(self.pod.open(), RUN, step, self.fence())
            self.there.pop(step, None)
            return
        with pytest.raises(StoreError) as caught:
            delete_step(self.pod.open(), RUN, step, self.fence())
        assert caught.value.kind == "permanent"

    def pin(self, step: int, _: int) -> None:
        self.pins = set(set_pin(self.pod.open(), RUN, step, pinned=True))
        assert step in self.pins

    def unpin(self, step: int, _: int) -> None:
        self.pins = set(set_pin(self.pod.open(), RUN, step, pinned=False))
        assert step not in self.pins

    def restore(self, step: int, _: int) -> None:
        self.lives += 1
        output = self.pod.home / f"restored-{self.lives}" / "output"
        if step in self.there:
            assert self.pod.restored(step, output) == self.there[step]
        else:
            with pytest.raises(StoreError) as caught:
                self.pod.restored(step, output)
            assert caught.value.kind in ("missing", "damaged")

    def crash_in_publish(self, step: int, number: int) -> None:
        made = self.pod.save(step, 10 + number + 1000 * len(self.happened))
        machine = self._until_cut(number, lambda: self.send(step))
        if step in self.pod.committed():
            old = self.there.get(step)
            assert self.pod.holds(step, made) or (old is not None and self.pod.holds(step, old))
            if self.pod.holds(step, made) and old != made:
                self.there[step], self.published_in[step] = made, len(self.happened)
        else:
            self.there.pop(step, None)  # these are other bytes: the old ones were un-committed first
            self.published_in.pop(step, None)
        before, self.pointer = self.pointer, self.pod.pointer()
        away = max(self.good() - {step}, default=None)
        assert self.pointer in ((before, step, away) if before == step else (before, step)), "promise 2"
        assert machine.off or self.pointer is not None

    def crash_in_prune(self, step: int, number: int) -> None:
        if step in self.pins or step == self.pointer or len(self.there) <= 2:
            return
        self._until_cut(number, lambda: delete_step(self.pod.open(), RUN, step, self.fence()))
        if step not in self.pod.committed():
            self.there.pop(step, None)

    def second_writer(self, step: int, _: int) -> None:
        """An outbid pod comes back while another holds the run: it changes nothing, and says so."""
        taken = self.take(B)
        assert taken > self.generation
        before = self.pod.objects()
        self.pod.save(step, 99)
        acts: list[Callable[[], object]] = [lambda: self.send(step)]
        if step in self.there and step != self.pointer and step not in self.pins and len(self.there) > 2:
            acts.append(lambda: delete_step(self.pod.open(), RUN, step, self.fence()))
        for act in acts:
            with pytest.raises(FencedError):
                act()
        after = self.pod.objects()
        assert {name: after.get(name) for name in before} == before, "promise 9: a fenced pod changed something"
        self.generation = self.take(A)

    def _until_cut(self, number: int, act: Callable[[], None]) -> Machine:
        with Machine(self.pod.home, number) as machine:
            try:
                act()
            except PowerCut:
                pass
        machine.lose(("kept", "lost", "torn")[number % 3], number)
        if self.pod.server is not None:
            self.pod.server.wait_idle()
        return machine

    # ------------------------------------------------------------ what always holds

    def check(self) -> None:
        committed = self.pod.committed()
        assert set(committed) == set(self.there), f"promise 1: {sorted(committed)} instead of {sorted(self.there)}"
        assert not any(committed.values()), f"promise 1: {committed}"
        for step, wanted in self.there.items():
            assert self.pod.holds(step, wanted), f"promise 1: step {step} has other bytes"
        assert self.pod.pointer() == self.pointer, "promise 2: it moved by itself"
        assert self.pointer is None or self.pointer in self.there, "promise 2: it names what cannot be restored"
        listed = {
            info.step: bool(info.left) for info in list_steps(self.pod.open(), RUN).steps.values() if info.committed
        }
        assert listed == {step: self.left(step) for step in self.there}, "promise 3"
        assert set(read_pins(self.pod.open(), RUN).steps) == self.pins


def play(pod: Pod, acts: list[tuple[str, int, int]]) -> None:
    model = Model(pod)
    model.generation = model.take(A)
    for name, step, number in acts:
        getattr(model, name.replace(" ", "_"))(step, number)
        model.check()


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=False)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


@settings(SETTINGS, max_examples=10)
@given(st.lists(ACTS, min_size=4, max_size=14))
def test_a_folder_behaves_as_the_model(acts: list[tuple[str, int, int]]) -> None:
    with _folder() as folder:
        home = Path(folder) / "pod"
        home.mkdir()
        play(Pod(home), acts)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(SETTINGS, max_examples=150)
@given(st.lists(ACTS, min_size=4, max_size=20))
def test_a_folder_behaves_as_the_model_for_long(acts: list[tuple[str, int, int]]) -> None:
    with _folder() as folder:
        home = Path(folder) / "pod"
        home.mkdir()
        play(Pod(home), acts)


@pytest.mark.soak
@pytest.mark.timeout(900)
@settings(SETTINGS, max_examples=40)
@given(st.lists(ACTS, min_size=4, max_size=12))
def test_b2_behaves_as_the_model(acts: list[tuple[str, int, int]]) -> None:
    with _folder() as folder, B2Server(part_size=PART) as server:
        home = Path(folder) / "pod"
        home.mkdir()
        play(Pod(home, server), acts)
