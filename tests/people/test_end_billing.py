"""A pod that ends its own billing: only where the run file says so, nothing is lost by it, and as its last act."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import claims
from supervisor.checkpoints.writers import writer_name
from supervisor.cli import end_billing, which
from supervisor.cli.which import Here
from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.b2server import B2Server

KEY = "k-of-this-pod-alone"
WHOLE: Mapping[str, Any] = {"label": "rls-x", "step": 12, "unpublished": []}


def claim_at_once(store: Store, writer: str) -> claims.Standing:
    """A minute in which no other pod may claim, of which nothing is waited for: no one else is there."""
    return claims.claim(store, "swe", writer, 60.0, sleep=lambda seconds: None)


class Api:
    """What a provider's page is asked, and what it answers, one after the other; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, Any]] = []
        self.answers: list[tuple[int, bytes]] = [(200, b'{"success": true}')]
        api = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                """The list has it."""

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                api.asked.append((self.command, self.path, self.headers["Authorization"], json.loads(body or b"null")))
                status, said = api.answers.pop(0) if len(api.answers) > 1 else api.answers[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_DELETE = do_POST = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def vast(self) -> dict[str, str]:
        return {"CONTAINER_API_KEY": KEY, "CONTAINER_ID": "4711", "VAST_URL": self.url}

    def runpod(self) -> dict[str, str]:
        return {"RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": "abc", "RUNPOD_API_BASE_URL": self.url}


@pytest.fixture
def api() -> Iterator[Api]:
    one = Api()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(end_billing.logs, "say", lambda level, event, sentence: told.append(f"{level}: {sentence}"))
    monkeypatch.setattr(which, "list_runs_with_daemon", lambda: [Here("swe")])
    return told


@pytest.fixture
def server() -> Iterator[B2Server]:
    with B2Server() as one:
        yield one


class Desk:
    """A run of this pod that is over."""

    def __init__(self, folder: Path, server: B2Server) -> None:
        self.file = folder / "swe.toml"
        self.environ = server.environ()
        self.store: Store = open_store("b2://the-bucket/runs", server.url, self.environ)
        self.url = server.url
        self.write_run_file()

    def write_run_file(self, hooks: str = "end_billing = true", store: str = "b2://the-bucket/runs") -> None:
        store_table = f'url = "{store}"\n' + (f'realm = "{self.url}"\n' if store.startswith("b2:") else "")
        self.file.write_text(
            f'[run]\nid = "swe"\n[job]\ndir = "/tmp"\nconfig = "c.toml"\n[hooks]\n{hooks}\n[store]\n{store_table}'
        )
        self.file.chmod(0o600)

    def give_back(self, about: Mapping[str, Any] | None = WHOLE, host: str = "", **more: Any) -> None:
        writer = writer_name(host or socket.gethostname(), "0" * 16, "a" * 8)
        held = claim_at_once(self.store, writer)
        claims.release(self.store, "swe", held.generation, writer, **{"code": 0, "about": about, **more})

    def end(self, environ: Mapping[str, str], paused: list[float] | None = None) -> None:
        waits = [] if paused is None else paused
        end_billing.end_own_billing(self.file, {**self.environ, **environ}, waits.append)


@pytest.fixture
def desk(tmp_path: Path, server: B2Server) -> Desk:
    return Desk(tmp_path, server)


def test_vast_is_asked_to_destroy_this_instance_with_its_own_key(desk: Desk, api: Api, said: list[str]) -> None:
    desk.give_back()
    desk.end(api.vast())
    assert api.asked == [("DELETE", "/api/v0/instances/4711/", f"Bearer {KEY}", {})]
    assert said == [
        "info: All is in the store. Destroying Vast.ai instance 4711 (hooks.end_billing).",
        "info: Vast.ai instance 4711 is being destroyed.",
    ]


def test_runpod_is_asked_to_terminate_this_pod(desk: Desk, api: Api, said: list[str]) -> None:
    api.answers = [(200, b'{"data": {"podTerminate": null}}')]
    desk.give_back(code=94, reason="This pod is unfit.")
    desk.end(api.runpod())
    [(method, path, key, body)] = api.asked
    assert (method, path, key) == ("POST", "/graphql", f"Bearer {KEY}")
    assert body["variables"] == {"id": "abc"} and "podTerminate(input: {podId: $id})" in body["query"]
    assert said[-1] == "info: RunPod pod abc is being destroyed."


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda desk: desk.give_back({**WHOLE, "unpublished": [10, 12]}), "step 12 is only on its disk"),
        (lambda desk: desk.give_back({**WHOLE, "unpublished": None}), "it is not known which steps are only on"),
        (lambda desk: desk.give_back(None), "it is not known which steps are only on its disk"),
        (lambda desk: None, "the store does not show that this pod gave the run back"),
        (lambda desk: desk.give_back(host="another-pod"), "the store does not show that this pod gave the run back"),
        (
            lambda desk: claim_at_once(desk.store, writer_name(socket.gethostname(), "0" * 16, "a" * 8)),
            "the store does not show that this pod gave the run back",
        ),
        (lambda desk: desk.write_run_file(store="file:///tmp/steps"), "its steps are in a folder"),
        (lambda desk: desk.environ.update(B2_APPLICATION_KEY="wrong"), "it cannot be looked at what would be lost"),
    ],
    ids=["a step is only here", "unknown", "said nothing", "never claimed", "not ours", "held", "folder", "store away"],
)
def test_nothing_is_ended_where_something_could_be_lost(
    desk: Desk, api: Api, said: list[str], prepare: Callable[[Desk], object], why: str
) -> None:
    prepare(desk)
    desk.end(api.vast())
    assert api.asked == []
    [sentence] = said
    assert sentence.startswith(f"warning: This pod does not end its own billing: {why}"), sentence
    assert sentence.endswith("End it by hand.")


def test_another_run_that_is_watched_on_this_pod_keeps_it(
    desk: Desk, api: Api, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(which, "list_runs_with_daemon", lambda: [Here("other"), Here("swe")])
    desk.give_back()
    desk.end(api.vast())
    assert api.asked == []
    assert "run other is still watched here" in said[0]


@pytest.mark.parametrize("hooks", ["", "end_billing = false"])
def test_by_default_nothing_is_asked_or_said(desk: Desk, api: Api, said: list[str], hooks: str) -> None:
    desk.write_run_file(hooks)
    desk.give_back()
    desk.end(api.vast())
    assert api.asked == [] and said == []


@pytest.mark.parametrize("environ", [{}, {"CONTAINER_API_KEY": KEY}, {"RUNPOD_POD_ID": "abc"}])
def test_a_pod_without_a_key_of_its_own_says_so(desk: Desk, said: list[str], environ: dict[str, str]) -> None:
    desk.give_back()
    desk.end(environ)
    assert "its provider gave it no key for that" in said[0]


@pytest.mark.parametrize(
    ("answers", "last"),
    [
        ([(429, b"too many"), (503, b""), (200, b'{"success": true}')], "is being destroyed."),
        ([(404, b"{}")], "is being destroyed."),
        ([(403, b"{}")] * 3, "is still billed: HTTP 403. End it by hand."),
        ([(200, b'{"success": false, "msg": "' + KEY.encode() + b'"}')] * 3, "is still billed: it was refused. End"),
        ([(200, b"<html>")] * 3, "is still billed: it was refused. End it by hand."),
    ],
)
def test_vast_is_asked_again_and_what_fails_is_said_without_the_key(
    desk: Desk, api: Api, said: list[str], answers: list[tuple[int, bytes]], last: str
) -> None:
    api.answers, paused, asked = [*answers], list[float](), len(answers)
    desk.give_back()
    desk.end(api.vast(), paused)
    assert len(api.asked) == asked and paused == [end_billing.PAUSE_S] * (asked - 1)
    assert last in said[-1]
    assert KEY not in "".join(said)


def test_what_runpod_refuses_comes_with_status_200(desk: Desk, api: Api, said: list[str]) -> None:
    api.answers = [(200, b'{"errors": [{"message": "no"}], "data": null}')]
    desk.give_back()
    desk.end(api.runpod())
    assert said[-1] == "error: RunPod pod abc is still billed: it was refused. End it by hand."


def test_a_provider_that_does_not_answer_is_said(desk: Desk, api: Api, said: list[str]) -> None:
    desk.give_back()
    api.server.shutdown()
    api.server.server_close()
    desk.end(api.vast())
    assert said[-1] == "error: Vast.ai instance 4711 is still billed: nothing listens there. End it by hand."
