"""A transfer child of the daemon that has answered waits for the next request, for some seconds."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.checkpoints.transfer import LINGER_S
from supervisor.effects.transfers import Transfers, _Child
from supervisor.storage.base import StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import RUN, Step, until


class Kept(Transfers):
    """One that can be asked which children it has."""

    def catalogue(self, folder: Path, **more: Any) -> dict[str, Any]:
        """A look at a store that is a folder."""
        return self.run({"do": "catalogue", "run_id": RUN, "store": {"url": f"file://{folder}"}, **more})

    def waiting(self) -> list[int]:
        """Pids of those that have nothing to do."""
        return [child.process.pid for child in self._waiting]


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept(os.environ, 60.0, more_follow=True)
    yield made
    made.close()


def test_the_next_request_is_carried_out_by_the_same_process(kept: Kept, tmp_path: Path) -> None:
    first = kept.catalogue(tmp_path)
    (pid,) = kept.waiting()
    step = Step(tmp_path / "pod").fill()
    kept.run(step.request(tmp_path / "state") | {"store": {"url": f"file://{tmp_path}/store"}}, what="publish")
    assert kept.waiting() == [pid]
    assert kept.catalogue(tmp_path / "store")["steps"], "nothing of the answer before is left"
    assert kept.catalogue(tmp_path) == first
    assert kept.waiting() == [pid]
    assert psutil.Process(pid).nice() == min(19, psutil.Process().nice() + 10), "it has stepped back once"
    assert (kept._at_work, kept.moving) == ({}, {})


def test_a_moment_without_room_for_a_process_is_a_transient_failure_of_the_store(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", refuse)
        with pytest.raises(StoreError, match="No transfer process could be started: Resource temporarily") as told:
            kept.catalogue(tmp_path)
    assert told.value.kind == "transient"
    assert kept.catalogue(tmp_path)["steps"] == []


@pytest.mark.soak
def test_a_publish_to_b2_leaves_no_thread_behind_that_would_end_it(tmp_path: Path) -> None:
    step = Step(tmp_path / "pod").fill()
    with B2Server(part_size=20_000) as b2:
        kept = Kept(os.environ | b2.environ(), 60.0, more_follow=True)
        store = {"url": "b2://the-bucket/team", "realm": b2.url}
        kept.run(step.request(tmp_path / "state") | {"store": store}, what="publish")
        (pid,) = kept.waiting()
        assert kept.run({"do": "catalogue", "run_id": RUN, "store": store})["latest"]["step"] == 20
        assert kept.waiting() == [pid]
        files = psutil.Process(pid).num_fds()
        for _ in range(10):
            kept.run({"do": "catalogue", "run_id": RUN, "store": store})
        assert kept.waiting() == [pid]
        assert psutil.Process(pid).num_fds() <= files, "no connection of an earlier request is left open"
        kept.close()


def test_one_that_is_cancelled_as_it_answers_is_not_kept(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = _Child.ask

    def answer_late(child: _Child, *words: Any, **more: Any) -> dict[str, Any]:
        answer = ask(child, *words, **more)
        kept.cancel("publish", "This pod is about to go.")
        return answer

    monkeypatch.setattr(_Child, "ask", answer_late)
    store = {"url": f"file://{tmp_path}"}
    assert kept.run({"do": "catalogue", "run_id": RUN, "store": store}, what="publish")["steps"] == []
    assert kept.waiting() == [], "it was killed, and may just not be seen to be dead"


def test_what_is_urgent_has_a_process_of_its_own_and_an_error_ends_one(kept: Kept, tmp_path: Path) -> None:
    kept.catalogue(tmp_path)
    (pid,) = kept.waiting()
    kept.catalogue(tmp_path, urgent=True)
    assert kept.waiting() == [pid], "nor is that one kept"
    with pytest.raises(StoreError, match="is missing"):
        kept.run({"do": "catalogue", "run_id": RUN, "store": {}})
    assert kept.waiting() == []


@pytest.mark.soak
def test_without_a_request_it_ends_by_itself_and_leaves_no_zombie(kept: Kept, tmp_path: Path) -> None:
    kept.catalogue(tmp_path)
    (pid,) = kept.waiting()
    until(lambda: not kept.waiting(), "it has ended", LINGER_S + 30.0)
    assert not psutil.pid_exists(pid)
    kept.catalogue(tmp_path)
    assert kept.waiting() not in ([], [pid])


@pytest.mark.parametrize("was_killed", [False, True])
def test_one_that_ends_as_it_is_asked_is_replaced_and_one_that_was_killed_fails_once(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_killed: bool
) -> None:
    monkeypatch.setattr(kept, "_forget", lambda child: None)  # that comes too late
    kept.catalogue(tmp_path)
    (child,) = kept._waiting
    assert child.process.stdin is not None
    if was_killed:
        child.process.kill()
    else:
        child.process.stdin.close()  # as if it had waited long enough
    child.process.wait(20)
    if was_killed:
        with pytest.raises(StoreError) as caught:
            kept.catalogue(tmp_path)
        assert caught.value.kind == "transient"
    assert kept.catalogue(tmp_path)["steps"] == []
    assert child.process.pid not in kept.waiting()


def test_with_the_daemon_they_end(kept: Kept, tmp_path: Path) -> None:
    kept.catalogue(tmp_path)
    (child,) = kept._waiting
    kept.close()
    assert child.process.wait(20) == -9
    with pytest.raises(StoreError, match="is ending"):
        kept.catalogue(tmp_path)
