"""The dead-man heartbeat over real HTTP: when it goes out, when it is silent, and that nobody reads its address."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.base import secrets
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.effects.heartbeat import Heartbeat
from supervisor.effects.run_files import describe
from supervisor.storage.base import StoreError
from tests.core.world import SETTINGS, World

KEY = "3f1b7a52-0c8e-4b7a-9d55-2f6f1e0a7c11"


class Page:
    """Counts who asks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status, self.delay_s = 200, 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                outer.asked.append((self.command, self.path))
                time.sleep(outer.delay_s)
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"OK")

            do_GET = _serve

            def log_message(self, format: str, *args: object) -> None:
                """The tests look at what was asked."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/{KEY}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


class Desk:
    """A heartbeat, a run that is well until a test says otherwise, and what was told."""

    def __init__(
        self,
        write: Callable[[dict[str, Any]], None] = lambda value: None,
        holds: Callable[[], bool] = lambda: True,
        **about: Any,
    ) -> None:
        self.world = World(SETTINGS)
        self.world.running_at(10)
        self.told: list[f.Fact] = []
        run_file = run_file_with(heartbeat={"interval_s": 1, **about})
        self.heartbeat = Heartbeat(
            run_file, self.told.append, lambda: self.world.state, lambda: self.world.t, write, holds=holds
        )

    def sentences(self, event: str) -> list[str]:
        return [fact.sentence for fact in self.told if isinstance(fact, f.Remark) and fact.event == event]


def run_file_with(**tables: Any) -> RunFile:
    job = {"kind": "command", "plain": {"start": ["a"], "resume": ["b"]}}
    return RunFile.model_validate({"run": {"id": "r"}, "job": job, **tables})


def until(true: Callable[[], object], what: str, patience_s: float = 10.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def page() -> Iterator[Page]:
    one = Page()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.mark.soak
def test_it_goes_out_while_all_is_well_and_stops_with_the_reason_told_once(page: Page) -> None:
    desk = Desk(url=page.url)
    desk.heartbeat.start()
    until(lambda: len(page.asked) >= 2, "it goes out")
    assert page.asked[0] == ("GET", f"/{KEY}")
    desk.world.see(f.Command("stop", "ubuntu"))
    until(lambda: desk.sentences("heartbeat-stopped"), "it stops")
    asked = len(page.asked)
    time.sleep(1.5)  # longer than its interval: what is asserted is that nothing comes
    desk.heartbeat.close()
    assert len(page.asked) <= asked + 1
    assert desk.sentences("heartbeat-stopped") == [
        "The dead-man heartbeat stops: the run does not train (stopped): Stopped by ubuntu."
    ]
    assert desk.heartbeat.note.startswith("The dead-man heartbeat is silent: the run does not train")


@pytest.mark.soak
def test_a_page_that_refuses_or_hangs_is_told_once_and_delays_no_other(page: Page) -> None:
    written: list[dict[str, Any]] = []
    page.delay_s = 30.0
    desk = Desk(written.append, url=page.url, object=True)
    desk.heartbeat.start()
    until(lambda: len(written) >= 2, "the object is written all the same")
    desk.heartbeat.close()
    assert (written[0]["step"], written[0]["published"]) == (10, 10)
    refused = Desk(url=page.url)
    page.delay_s, page.status = 0.0, 500
    refused.heartbeat.start()
    until(lambda: len(page.asked) >= 4, "it is tried again")
    assert refused.heartbeat.note.startswith("The dead-man heartbeat has not reached the page of [heartbeat] url for ")
    assert refused.heartbeat.note.endswith(": it answers with status 500.")
    assert [fact.level for fact in refused.told if isinstance(fact, f.Remark)] == ["info", "warning"]
    page.status = 200
    until(lambda: not refused.heartbeat.note, "it reaches its page again, and status says nothing more")
    refused.heartbeat.close()
    assert refused.sentences("heartbeat-failed") == [
        (
            "The dead-man heartbeat does not reach the page of [heartbeat] url: it answers with status 500. "
            "It is tried again."
        )
    ]


def test_a_store_that_refuses_is_told_once() -> None:
    def refuse(value: dict[str, Any]) -> None:
        raise StoreError("transient", "the link is down.")

    desk = Desk(refuse, object=True)
    desk.heartbeat.start()
    until(lambda: desk.sentences("heartbeat-failed"), "it is told")
    desk.heartbeat.close()
    assert desk.sentences("heartbeat-failed") == [
        "The dead-man heartbeat does not reach the store: the link is down. It is tried again."
    ]


def test_a_daemon_that_has_not_claimed_the_run_yet_waits_with_the_object_and_tells_no_failure() -> None:
    """After an upgrade the state knows the run as ours, and this daemon's own claim is still on its way."""
    claimed: list[bool] = []

    def write(value: dict[str, Any]) -> None:
        if not claimed:
            raise StoreError("transient", "This pod does not hold the run now: nothing is written to the store.")
        written.append(value)

    written: list[dict[str, Any]] = []
    desk = Desk(write, holds=lambda: bool(claimed), object=True)
    desk.heartbeat.start()
    until(lambda: desk.sentences("heartbeat"), "all is well")
    claimed.append(True)
    until(lambda: written, "it goes out")
    desk.heartbeat.close()
    assert not desk.sentences("heartbeat-failed")


def test_a_loop_that_hangs_sends_nothing(page: Page) -> None:
    desk = Desk(url=page.url)
    desk.world.t += 1000.0  # the clock goes on, and the state does not
    desk.heartbeat.start()
    until(lambda: "has not turned" in desk.heartbeat.note, "it is seen")
    desk.heartbeat.close()
    assert not page.asked and not desk.sentences("heartbeat-stopped"), "what never went out does not stop"


def test_without_an_outlet_nothing_is_done() -> None:
    desk = Desk()
    desk.heartbeat.start()
    assert not desk.heartbeat.note and not [t for t in threading.enumerate() if t.name == "heartbeat" and not t.daemon]


def test_its_address_is_a_secret_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = "https://hc-ping.com/8e2d6c1e-77aa-41f0-a1c2-5f0b9d1e2a33/rl-run"
    texts, _ = describe(run_file_with(heartbeat={"url": url}), {})
    assert "8e2d6c1e" not in texts["run.json"], "the store's copy of the run file"
    assert "8e2d6c1e" not in secrets.mask_secrets(f"no answer from {url}") + secrets.mask_secrets(
        "GET /8e2d6c1e-77aa-41f0-a1c2-5f0b9d1e2a33/x"
    )
    monkeypatch.setenv("RL_HEARTBEAT_URL", "https://hc-ping.com/11112222-3333-4444-5555-666677778888")
    desk = Desk()
    assert "11112222" not in secrets.mask_secrets("https://hc-ping.com/11112222-3333-4444-5555-666677778888")
    assert desk.told == []
    monkeypatch.setenv("RL_HEARTBEAT_URL", "hc-ping.com/99998888")
    odd = Desk()
    assert odd.sentences("heartbeat-failed") == [
        "The dead-man heartbeat does not go out: what RL_HEARTBEAT_URL holds does not begin with http:// or https://."
    ]


def test_a_step_that_waits_for_a_store_silences_it_after_a_while(page: Page) -> None:
    desk = Desk(url=page.url, behind_s=2)
    desk.world.publish_works = False
    desk.world.step(11)
    desk.world.checkpoint(15)
    changed = time.time()  # the file's time is the machine's
    desk.world.state = replace(
        desk.world.state,
        local=replace(
            desk.world.state.local, steps=tuple(replace(s, changed_wall=changed) for s in desk.world.state.local.steps)
        ),
    )
    desk.heartbeat.start()
    until(lambda: desk.sentences("heartbeat-stopped"), "it stops")
    desk.heartbeat.close()
    assert page.asked, "before that it went out"
    (sentence,) = desk.sentences("heartbeat-stopped")
    assert "step 15 has waited" in sentence and "the link is down" in sentence
