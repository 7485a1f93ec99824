"""Stop at the n-th request or file operation, for every n; then start again, and look what is left.

After each cut, before anything is started again, the store must hold what it held (promise 1), its pointer must name
a step that can be restored (promise 2) and some step must be found (promise 3). Started again, the same work must end
as if nothing had happened, with no byte sent twice and nothing left over that is billed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import delete_step, sweep_run
from supervisor.checkpoints.keeping import tidy
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.storage.base import StoreError
from tests.checkpoints_store.conftest import quiet
from tests.vault.machine import Fate, Machine, PowerCut
from tests.vault.pod import NAMES, RUN, Content, Pod, go_back, save


@dataclass(frozen=True)
class Scene:
    """What is there before, what is done, what may be lost on the way, and what must be there in the end."""

    before: Callable[[Pod], None]
    act: Callable[[Pod], None]
    afterwards: Callable[[Pod], None]
    safe: tuple[int, ...] = (20,)  # steps that stay restorable with their bytes at any moment
    pointers: tuple[int, ...] = (20,)  # what latest.json may name at any moment
    between: Callable[[Pod], None] = lambda pod: None
    dangles: bool = False  # the pointer's own step is un-committed for a while, since its bytes are replaced


def published(*steps: int) -> Callable[[Pod], None]:
    def before(pod: Pod) -> None:
        for step in steps:
            pod.expected[step] = pod.save(step)
            publish(pod.open(), pod.plan(step), quiet)

    return before


# ---------------------------------------------------------------- the scenes


def publish_a_further_step(pod: Pod) -> None:
    publish(pod.open(), pod.plan(40), quiet)


def before_a_further_step(pod: Pod) -> None:
    published(20)(pod)
    pod.expected[40] = pod.save(40)


def after_a_further_step(pod: Pod) -> None:
    assert pod.pointer() == 40 and pod.committed() == {20: "", 40: ""}
    assert pod.holds(40, pod.expected[40])
    assert not list(pod.state.glob("publish-*"))


def before_the_first_step(pod: Pod) -> None:
    pod.expected[20] = pod.save(20)


def publish_the_first_step(pod: Pod) -> None:
    publish(pod.open(), pod.plan(20), quiet)


def after_the_first_step(pod: Pod) -> None:
    assert pod.pointer() == 20 and pod.committed() == {20: ""}


def before_a_step_is_reached_again(pod: Pod) -> None:
    published(20, 40)(pod)
    for name in NAMES:
        pod.local(40, name).unlink()
    pod.expected[40] = pod.save(40, seed=1)


def prune(pod: Pod) -> None:
    try:
        delete_step(pod.open(), RUN, 20)
    except StoreError as error:
        if error.kind != "missing":
            raise


def after_pruning(pod: Pod) -> None:
    assert pod.pointer() == 60 and pod.committed() == {40: "", 60: ""}
    assert not [name for name in pod.objects() if name.startswith("step_20/")]


def empty_disk(pod: Pod) -> None:
    published(20, 40)(pod)
    shutil.rmtree(pod.output)
    pod.output.mkdir()


def another_lineage_on_disk(pod: Pod) -> None:
    published(20, 40)(pod)
    pod.save(40, seed=5)


def restore_step_40(pod: Pod) -> None:
    restore(pod.open(), RUN, 40, Place("checkpoints/step_40"), pod.output, quiet)


def the_target_is_whole_or_not_there(pod: Pod) -> None:
    """What has the step's name holds every byte of it, or (before) of what was there."""
    whole = [pod.expected[40], before_on_disk]
    if (pod.output / "checkpoints/step_40").exists():
        here = {name: pod.local(40, name) for name in NAMES[:-1]}
        assert all(path.exists() for path in here.values())
        found = {name: path.read_bytes() for name, path in here.items()}
        assert any(found == {name: one[name] for name in here} for one in whole if one)


before_on_disk: Content = {}


def after_restoring(pod: Pod) -> None:
    assert {name: pod.local(40, name).read_bytes() for name in NAMES} == pod.expected[40]
    assert not list(pod.output.rglob(".restoring-*"))


FATES: dict[str, tuple[Fate, ...]] = {"file": ("kept", "lost", "torn"), "b2": ("kept", "lost")}
SCENES = {
    "first": Scene(before_the_first_step, publish_the_first_step, after_the_first_step, safe=(), pointers=()),
    "further": Scene(before_a_further_step, publish_a_further_step, after_a_further_step, (20,), (20, 40)),
    "again": Scene(
        before_a_step_is_reached_again, publish_a_further_step, after_a_further_step, (20,), (20, 40), dangles=True
    ),
    "prune": Scene(published(20, 40, 60), prune, after_pruning, (40, 60), (60,)),
    "restore": Scene(empty_disk, restore_step_40, after_restoring, (20, 40), (40,), the_target_is_whole_or_not_there),
    "replace": Scene(another_lineage_on_disk, restore_step_40, after_restoring, (20, 40), (40,)),
}


def _cases() -> list[Any]:
    """Quick ones in each run of the tests, all of them in `make soak`; B2 keeps little on the local disk to tear."""
    cases = []
    for where in ("file", "b2"):
        for name in SCENES:
            for fate in FATES[where]:
                quick = fate == "lost" if where == "file" else (name, fate) in (("prune", "kept"), ("further", "lost"))
                marks = () if quick else (pytest.mark.soak,)
                cases.append(pytest.param(where, name, fate, marks=marks, id=f"{where}-{name}-{fate}"))
    return cases


@pytest.mark.parametrize(("pod", "name", "fate"), _cases(), indirect=["pod"])
def test_killed_at_every_point_nothing_is_lost(pod: Pod, name: str, fate: Fate) -> None:
    scene = SCENES[name]
    scene.before(pod)
    saved = save(pod)
    with Machine(pod.home) as whole:
        scene.act(pod)
    scene.afterwards(pod)
    for number in range(1, len(whole.labels) + 1):
        go_back(pod, saved)
        machine = Machine(pod.home, number)
        with machine:
            try:
                scene.act(pod)
            except PowerCut:
                pass
        where = f"{name}, cut {number} of {len(whole.labels)} at {(machine.labels or ['?'])[-1]}, {fate}"
        assert machine.off or number > len(machine.labels), where
        machine.lose(fate, number)
        if pod.server is not None:
            pod.server.wait_idle()
        try:
            _nothing_is_lost(pod, scene)
            with Machine(pod.home):
                scene.act(pod)
            scene.afterwards(pod)
            _nothing_is_damaged(pod, scene)
            sweep_run(pod.open(), RUN)  # as the transfer process and the daemon do afterwards
            tidy(pod.open(), RUN, pod.committed())
            assert pod.garbage() == []
            _nothing_was_sent_twice(pod)
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"{where}: {error}\n" + "\n".join(machine.labels[-12:])) from error


def _nothing_is_lost(pod: Pod, scene: Scene) -> None:
    committed = _nothing_is_damaged(pod, scene)
    listed = pod.listed()
    assert all(listed[step] for step in scene.safe), f"promise 3: a fresh pod sees {listed}"
    assert not any(listed.get(step) for step, damage in committed.items() if damage), "a damaged step is offered"
    scene.between(pod)


def _nothing_is_damaged(pod: Pod, scene: Scene) -> dict[int, str]:
    """Told by the judge alone; returns what is committed."""
    committed = pod.committed()
    for step in scene.safe:
        assert committed.get(step) == "", f"promise 1: step {step}: {committed.get(step, 'not committed')}"
        assert pod.holds(step, pod.expected[step]), f"promise 1: step {step} has other bytes"
    pointer = pod.pointer()
    if pointer is None:
        assert not scene.pointers, "promise 2: the pointer is gone"
    else:
        assert not scene.pointers or pointer in scene.pointers, f"promise 2: the pointer names step {pointer}"
        whole = committed.get(pointer) == "" or (scene.dangles and pointer not in committed)
        assert whole, f"promise 2: the pointer names step {pointer}, which cannot be restored"
    return committed


def _nothing_was_sent_twice(pod: Pod) -> None:
    if pod.server is None:
        return
    sent = Counter(
        (entry["name"], entry.get("part", 0), entry["sha1"])
        for entry in pod.server.journal("b2_upload_.*")
        if entry.get("accepted") and not entry["name"].endswith(".json")
    )
    assert not [one for one, times in sent.items() if times > 1], "sent twice"


@pytest.mark.parametrize(("pod", "least"), [("file", 350), ("b2", 350)], indirect=["pod"])
def test_there_are_many_points_to_be_killed_at(pod: Pod, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With all fates more than a thousand; should a scene shrink to nothing, its sweep would prove nothing."""
    found = {}
    empty = save(pod)
    for name, scene in SCENES.items():
        go_back(pod, empty)
        scene.before(pod)
        with Machine(pod.home) as machine:
            scene.act(pod)
        found[name] = len(machine.labels)
    with capsys.disabled():
        print(f"kill points: {sum(found.values())} {found}")
    assert sum(found.values()) >= least and min(found.values()) > 5
