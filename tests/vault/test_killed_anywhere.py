"""Stop at the n-th request or file operation, for every n (of a publish at B2, every second); then start
again, and look what is left.

After each cut, before anything is started again, the store must hold what it held (promise 1), its pointer must name
a step that can be restored (promise 2) and some step must be found (promise 3). Started again, the same work must end
as if nothing had happened, with no byte sent twice and nothing left over that is billed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import sweep_run
from supervisor.checkpoints.keeping import tidy
from supervisor.storage.base import StoreError
from tests.b2server import B2Server
from tests.vault.machine import Fate, Machine, PowerCut
from tests.vault.pod import PART, RUN, Pod, go_back, save
from tests.vault.scenes import COMPOSE, SCENES, Scene

FATES: dict[str, tuple[Fate, ...]] = {"file": ("kept", "lost", "torn"), "b2": ("kept", "lost")}


LOCAL = ("first", "further", "again", "held", "restore", "replace")
"""At B2 only these write to a disk of which anything can be lost."""


def _cases() -> list[Any]:
    """All in `make soak`; B2 keeps little on the local disk to tear."""
    cases = []
    for where in ("file", "b2"):
        for name in SCENES:
            for fate in FATES[where]:
                if where == "b2" and fate == "lost" and name not in LOCAL:
                    continue
                cases.append(pytest.param(where, name, fate, id=f"{where}-{name}-{fate}"))
    return cases


@pytest.mark.parametrize(
    ("name", "every"), [("first", 5), ("restore", 5), ("quarantine", 2)], ids=["first", "restore", "quarantine"]
)
@pytest.mark.parametrize("pod", ["file"], indirect=True)
def test_killed_at_some_points_nothing_is_lost(pod: Pod, name: str, every: int) -> None:
    """In each run of the tests: the points differ little from one to the next, and the soaks go through all."""
    assert kill_at_every_point(pod, name, SCENES[name], "lost", every, first=2) >= 8


@pytest.mark.soak
@pytest.mark.parametrize(("pod", "name", "fate"), _cases(), indirect=["pod"])
def test_killed_at_every_point_nothing_is_lost(pod: Pod, name: str, fate: Fate) -> None:
    # Scenes share most of their points: at B2 each is cut at every second one, or every fourth, the next one beside it.
    every = (2 if fate == "kept" else 4) if pod.server is not None and name in LOCAL else 1
    first = 1 + LOCAL.index(name) % every if every > 1 else 1
    kill_at_every_point(pod, name, SCENES[name], fate, every, first)


@pytest.mark.soak
@pytest.mark.parametrize(("fate", "every"), [("kept", 1), ("lost", 6)], ids=["all", "some"])
def test_killed_while_a_step_is_made_of_the_one_before(lora_pod: Pod, fate: Fate, every: int) -> None:
    assert kill_at_every_point(lora_pod, "compose", COMPOSE, fate, every) >= COMPOSE.least / every


def kill_at_every_point(  # noqa: PLR0917
    pod: Pod, name: str, scene: Scene, fate: Fate, every: int = 1, first: int = 1
) -> int:
    """Returns at how many points it was cut; the last one is when it is done already."""
    scene.before(pod)
    saved = save(pod)
    with Machine(pod.home) as whole:
        scene.act(pod)
    scene.afterwards(pod)
    numbers = [*range(first, len(whole.labels) + 1, every), len(whole.labels) + 1]
    for number in numbers:
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
            if not machine.off:  # it was done, and said so: that lasts
                scene.afterwards(pod)
            _nothing_is_lost(pod, scene)
            with Machine(pod.home):
                scene.act(pod)
            scene.afterwards(pod)
            _nothing_is_damaged(pod, scene)
            sweep_run(pod.open(), RUN)  # as the transfer process and the daemon do afterwards
            tidy(pod.open(), RUN, pod.committed())
            assert pod.garbage() == [] and not list(pod.state.glob("publish-*"))
            _nothing_was_sent_twice(pod)
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"{where}: {error}\n" + "\n".join(machine.labels[-12:])) from error
    return len(numbers)


def _nothing_is_lost(pod: Pod, scene: Scene) -> None:
    committed = _nothing_is_damaged(pod, scene)
    listed = {step for step, whole in pod.listed().items() if whole}
    assert listed == set(committed), f"promise 3: a fresh pod sees {listed}, and there are {set(committed)}"
    scene.between(pod)


def _nothing_is_damaged(pod: Pod, scene: Scene) -> dict[int, str]:
    """Told by the judge alone; returns what is committed."""
    committed = pod.committed()
    assert not any(committed.values()), f"promise 1: what has a manifest has all of its files: {committed}"
    for step in scene.safe:
        assert committed.get(step) == "", f"promise 1: step {step}: {committed.get(step, 'not committed')}"
        assert pod.holds(step, pod.expected[step]), f"promise 1: step {step} has other bytes"
    pointer = pod.pointer()
    if pointer is None:
        assert not scene.pointers, "promise 2: the pointer is gone"
    else:
        assert not scene.pointers or pointer in scene.pointers, f"promise 2: the pointer names step {pointer}"
        assert committed.get(pointer) == "", f"promise 2: the pointer names step {pointer}, which cannot be restored"
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


@pytest.mark.soak
def test_there_are_more_than_a_thousand_points_to_be_killed_at(
    quick_dir: Path, lora_pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is cut in `make soak`, a folder's with each fate. One that shrank to nothing would prove nothing."""
    found = {"b2 compose": _points(lora_pod, COMPOSE)}
    with B2Server(part_size=PART) as server:
        for where in ("file", "b2"):
            home = quick_dir / where
            home.mkdir()
            pod = Pod(home, server if where == "b2" else None)
            empty = save(pod)
            for name, scene in SCENES.items():
                go_back(pod, empty)
                found[f"{where} {name}"] = _points(pod, scene)
    with capsys.disabled():
        print(f"kill points: {sum(found.values())} {found}")
    assert sum(found.values()) >= 1000


def _points(pod: Pod, scene: Scene) -> int:
    scene.before(pod)
    with Machine(pod.home) as machine:
        scene.act(pod)
    assert len(machine.labels) >= scene.least
    return len(machine.labels)
