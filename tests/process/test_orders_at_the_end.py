"""An order that comes while the daemon ends: it is refused, or the next daemon keeps to it. None is taken and lost."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.api.client import Client, NotThereError
from supervisor.config.run_file import load
from supervisor.core import facts as f
from supervisor.core.state import Ending, State
from supervisor.daemon.api_backend import ApiBackend
from supervisor.daemon.loop import Before, Daemon, Options
from supervisor.journal.journal import Journal


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rls") as name:  # short enough for a socket
        yield Path(name)


@pytest.fixture
def daemon(folder: Path) -> Daemon:
    """One that gives up at its next turn."""
    path = folder / "run.toml"
    path.write_text(
        f'[run]\nid = "demo"\nstate_dir = "{folder}/state"\n[api]\nsocket = "{folder}/api.sock"\n'
        '[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true"]\n[check]\nat_start = false\n'
    )
    made = Daemon(path, load(path), os.environ, Options(), Before())
    given_up = replace(State(made.settings(None)), mode="gave-up", why="Three restarts failed.", ending=Ending(93))
    made.state = given_up
    return made


def test_an_order_is_refused_once_the_end_is_decided(daemon: Daemon) -> None:
    backend = ApiBackend(daemon, daemon.attaching)
    daemon.post(f.Tick(), "clock")
    assert daemon._loop() == 93
    for verb in ("start", "stop", "pause", "attach", "upgrade"):
        answer = backend.command(verb, [], "root")
        assert not answer.ok
        assert answer.sentence == "The daemon is about to end: give this order to the next one."
    assert backend.command("shutdown", [], "root").ok, "which is what happens"
    assert daemon._inbox.empty()
    daemon._end(93)


def test_who_orders_something_on_a_full_state_disk_is_told_that_the_journal_cannot_keep_it(daemon: Daemon) -> None:
    daemon.state = replace(daemon.state, mode="running", ending=Ending())
    daemon.journal.failure = "The journal j.db cannot be written: database or disk is full. Make room on its disk."
    answer = ApiBackend(daemon, daemon.attaching).command("pause", [], "root")
    assert answer.ok and answer.sentence.startswith("Paused: ") and answer.sentence.endswith(daemon.journal.failure)
    daemon._end(0)


@pytest.mark.parametrize("signals", [0, 1], ids=["while it looks for the root cause", "at a signal"])
def test_the_next_daemon_keeps_to_an_order_that_was_taken_a_moment_before(
    daemon: Daemon, folder: Path, signals: int
) -> None:
    daemon._signals = signals
    daemon.post(f.Tick(), "clock")
    daemon.post(f.Command("pause", "root"), "api")
    daemon.post(f.Command("stop", "root"), "api")
    daemon.post(f.Command("shutdown", "SIGTERM"), "signal")
    daemon._end(daemon._loop())
    with contextlib.closing(Journal(folder / "state")) as journal:
        state, _ = journal.rebuild()
        assert (state.orders.paused, state.orders.wanted) == (True, False)
        said = [event.sentence for event in journal.events(-1, 10)]
        assert "stop was asked for by root." in said
        assert "shutdown was asked for by SIGTERM." not in said, "it ends already"


def test_a_daemon_that_gives_its_place_hears_no_more_orders(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.api.start()
    socket = daemon.context.run_file.socket
    assert Client(socket).get("/v1/status")["run"] == "demo"
    heard: list[bool] = []

    def close() -> None:
        with pytest.raises(NotThereError):
            Client(socket).get("/v1/status")
        heard.append(False)

    monkeypatch.setattr(daemon.messages, "close", close)
    monkeypatch.setattr(daemon._heir, "due", lambda calm: True)
    daemon._end(daemon._loop())
    assert heard == [False]
