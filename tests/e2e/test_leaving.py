"""Pods that go: real daemons that have five seconds, half a minute, or a word in advance, and the pod after them."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from tests.b2server import B2Server
from tests.people.in_process import call

from .rig import Pod, pids_of
from .test_pods import b2_settings, first_pod, in_bucket, in_latest, next_pod

LONG = 600  # what nobody waits for here: whoever goes on within a test was let in sooner


def over_b2(server: B2Server, **tables: dict[str, Any]) -> dict[str, Any]:
    options = b2_settings(server)
    options["settings"]["store"]["take_over_after"] = LONG
    options["settings"].update(tables)
    return options


def publishing(pod: Pod, done: float) -> int:
    """Wait until a publish is under way and sent to this part; the step."""

    def nearly() -> int:
        moving = pod.status().get("publishing") or {}
        enough = moving.get("phase") == "sending" and moving["bytes"] >= done * moving["total_bytes"] > 0
        return int(moving["step"] or 0) if enough else 0

    return int(pod.wait_for(nearly, f"a publish is {done:.0%} done"))


def says_that_it_goes(pod: Pod) -> bool:
    return bool(pod.sentences("leave-marked"))


def terminate(pod: Pod, number: int = signal.SIGTERM) -> float:
    assert pod.daemon is not None
    pod.daemon.send_signal(number)
    return time.monotonic()


def newest_complete(pod: Pod) -> int:
    """With the trainer's part and the orchestrator's: a job that is stopped while it saves leaves one of them."""
    outputs = pod.practice.home / "outputs"
    steps = [path.parts for path in outputs.rglob("*") if path.name in (".metadata", "progress.pt")]

    def whole(step: int) -> bool:
        return {parts[-1] for parts in steps if f"step_{step}" in parts} == {".metadata", "progress.pt"}

    return max(step for step in range(2, 401, 2) if whole(step))


def marks(server: B2Server) -> list[str]:
    return sorted(name.rpartition("/")[2] for name in server.objects() if "/writers/" in name and ".beat" not in name)


# ---------------------------------------------------------------- five seconds


@pytest.mark.soak
@pytest.mark.parametrize("grace_s", [20, 5])
def test_a_few_seconds_are_enough_for_a_step_that_is_nearly_published_and_the_next_pod_resumes_at_it(
    tmp_path: Path, pods: list[Pod], b2: B2Server, grace_s: int
) -> None:
    """Twenty seconds beside other tests: on two busy cores a request, which is a process, takes some by itself."""
    options = over_b2(b2, leaving={"grace_s": grace_s})
    one = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    b2.fail("b2_upload_file", name="manifest.json", times=1, delay_s=grace_s / 4)
    one.wait_for(lambda: not any(fault.times for fault in b2.state.faults), "the last request of a publish is slow")
    step = int((one.status().get("publishing") or {})["step"])
    asked = terminate(one)
    assert one.wait_exit(20) == 0, one.story()
    assert time.monotonic() - asked < grace_s + 3, f"a kill comes after {grace_s} s\n{one.story()}"
    assert step in in_bucket(b2), one.story()
    newest = max(in_bucket(b2))
    assert newest >= step and in_latest(b2)["step"] == f"step_{newest}", one.story()
    assert "gen_00001.leave.json" in marks(b2), "the store was told before anything else"
    assert one.said_so("leaving", f"This pod goes in {grace_s} s (SIGTERM).")
    assert not one.practice.alive()

    two = next_pod(tmp_path / "two", one, settings=over_b2(b2)["settings"])
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.resume_steps() == [newest]


@pytest.mark.soak
def test_a_pod_that_is_killed_before_it_could_give_the_run_back_keeps_the_next_one_waiting_for_seconds_only(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = over_b2(b2, leaving={"grace_s": 30})
    one = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    b2.state.bytes_per_s = 3_000
    terminate(one)
    one.wait_for(lambda: says_that_it_goes(one), "the store is told")
    one.vanish()
    b2.state.bytes_per_s = 0
    assert "gen_00001.end.json" not in marks(b2)

    two = next_pod(tmp_path / "two", one, settings=over_b2(b2)["settings"])
    pods.append(two)
    began = time.monotonic()
    two.start("onstart")
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "it is let in")
    assert 29 < time.monotonic() - began < 95, "its heartbeat has to stand still for 30 s"
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.resume_steps() == [max(in_bucket(b2))]


@pytest.mark.soak
def test_a_pod_that_waits_for_one_that_goes_lets_it_publish_its_last_step(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = over_b2(b2, leaving={"grace_s": 40})
    one = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    two = first_pod(tmp_path / "two", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.sentences("claim-held"), "it waits")
    b2.state.bytes_per_s = 8_000
    step = publishing(one, 0.1)
    terminate(one)
    assert one.wait_exit() == 0, one.story()
    published = in_bucket(b2)
    b2.state.bytes_per_s = 0
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "it is let in")
    assert not one.sentences("fenced"), "nobody took the run while it was still writing"
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert step in published or one.said_so("leaving", "it is given up")
    assert two.resume_steps() == [max(published)]


@pytest.mark.soak
def test_half_a_minute_is_enough_for_a_step_that_was_complete_and_not_published(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = over_b2(b2, leaving={"grace_s": 30})
    one = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=200_000, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: len(one.sentences("published")) >= 2, "steps are published")
    asked = terminate(one)
    assert one.wait_exit() == 0, one.story()
    assert time.monotonic() - asked < 31
    assert in_latest(b2)["step"] == f"step_{newest_complete(one)}"
    assert "gen_00001.end.json" in marks(b2), "and the run is given back"


# ---------------------------------------------------------------- a word in advance


class Notice:
    """A provider's page: 404 until the pod goes."""

    def __init__(self) -> None:
        self.text = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if outer.text else 404)
                self.send_header("Content-Length", str(len(outer.text)))
                self.end_headers()
                self.wfile.write(outer.text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/notice"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


def by_signal(folder: Path) -> tuple[dict[str, Any], Callable[[Pod], object], str]:
    return {"signal": "SIGUSR1", "within_s": 20}, lambda pod: terminate(pod, signal.SIGUSR1), "SIGUSR1"


def by_file(folder: Path) -> tuple[dict[str, Any], Callable[[Pod], object], str]:
    path = folder / "preempted"
    return {"file": str(path)}, lambda pod: path.write_text("20\n"), f"{path} appeared"


def by_page(folder: Path) -> tuple[dict[str, Any], Callable[[Pod], object], str]:
    page = Notice()
    text = '{"action": "terminate", "within_s": 20}'
    settings = {"url": page.url, "url_matches": "terminate|stop"}
    return settings, lambda pod: setattr(page, "text", text), "the page of leaving.url says so"


def by_command(folder: Path) -> tuple[dict[str, Any], Callable[[Pod], object], str]:
    path = folder / "flag"
    words = [sys.executable, "-c", f"import pathlib; print(pathlib.Path({str(path)!r}).read_text())"]
    return {"command": words}, lambda pod: path.write_text("20"), f"{sys.executable} says so"


@pytest.mark.parametrize(
    "way", [by_signal, *(pytest.param(way, marks=pytest.mark.soak) for way in (by_file, by_page, by_command))]
)
def test_a_word_in_advance_ends_the_run_here_with_its_last_step_published(
    tmp_path: Path, pods: list[Pod], way: Callable[[Path], tuple[dict[str, Any], Callable[[Pod], object], str]]
) -> None:
    leaving, fire, why = way(tmp_path)
    store = (tmp_path / "store").as_uri()
    settings = {"leaving": leaving, "store": {"take_over_after": LONG}}
    pod = first_pod(tmp_path / "one", "v0.6", store=store, settings=settings, max_steps=400, step_s=0.3)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    fire(pod)
    assert pod.wait_exit() == 0, pod.story()
    assert any(f"({why})" in sentence for sentence in pod.sentences("leaving")), pod.sentences("leaving")
    assert any("This pod goes in 20 s" in sentence for sentence in pod.sentences("leaving"))
    assert pod.latest()["step"] == f"step_{newest_complete(pod)}"
    names = {path.name for path in (tmp_path / "store" / "practice" / "writers").iterdir()}
    assert {"gen_00001.leave.json", "gen_00001.end.json"} <= names
    assert not pod.practice.alive()


@pytest.mark.soak
def test_triggers_that_cannot_be_asked_are_told_once_and_cost_nothing(tmp_path: Path, pods: list[Pod]) -> None:
    leaving = {"url": "http://127.0.0.1:9/notice", "command": ["/nowhere/at-all"]}
    pod = first_pod(tmp_path / "one", "v0.6", settings={"leaving": leaving}, max_steps=4, step_s=0.3)
    pods.append(pod)
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    told = pod.sentences("trigger-failed")
    assert len(told) == 2 and any("leaving.url: nothing listens there" in one for one in told), told


# ---------------------------------------------------------------- the dead-man heartbeat


class Healthchecks:
    """Counts the pings."""

    def __init__(self) -> None:
        self.pings: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.pings.append(time.monotonic())
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"OK")

            def log_message(self, format: str, *args: object) -> None:
                """The pings are counted."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.key = "5b0f9d1e-2a33-41f0-a1c2-8e2d6c1e77aa"
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/{self.key}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


def silent(pod: Pod) -> str:
    return next(iter(pod.sentences("heartbeat-stopped")), "")


@pytest.mark.soak
def test_the_heartbeat_stops_when_the_store_refuses_writes_and_its_address_is_written_nowhere(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    page = Healthchecks()
    options = over_b2(b2, heartbeat={"url": page.url, "object": True, "interval_s": 1, "behind_s": 3})
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, **options)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: len(page.pings) >= 3, "it goes out")
    pod.wait_for(lambda: "runs/practice/heartbeat.json" in b2.objects(), "and an object in the store")
    b2.fail("b2_get_upload_url|b2_start_large_file", times=100_000, status=403)
    pod.wait_for(lambda: silent(pod), "it stops")
    assert "to be published" in silent(pod)
    pings = len(page.pings)
    pod.wait_for(lambda: pod.step() > 8, "the run goes on")
    assert len(page.pings) <= pings + 1
    assert page.key not in pod.output.read_text()
    with b2.state.lock:
        kept = b"".join(b2.objects()[name] for name in b2.objects())
    assert page.key.encode() not in kept
    written = [path for path in pod.state_dir.rglob("*") if path.is_file()]
    assert not [path for path in written if page.key.encode() in path.read_bytes()]


@pytest.mark.soak
def test_the_heartbeat_stops_when_the_run_stands_still(tmp_path: Path, pods: list[Pod]) -> None:
    page = Healthchecks()
    settings = {"heartbeat": {"url": page.url, "interval_s": 1}, "deadlines": {"step_floor": 3, "step_ceiling": 5}}
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.3, settings=settings)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: len(page.pings) >= 3 and pod.step() > 6, "it goes out")
    pod.ctl("pause")  # so that nothing is done about it
    for pid in pids_of(pod.practice):
        os.kill(pid, signal.SIGSTOP)
    pod.wait_for(lambda: silent(pod), "it stops")
    assert "no step is done since" in silent(pod)
    note = pod.ctl("status").stdout
    assert "The dead-man heartbeat is silent: no step is done since" in note, note
    pings = len(page.pings)
    until = time.monotonic() + 3
    pod.wait_for(lambda: time.monotonic() > until, "three intervals pass")
    assert len(page.pings) <= pings + 1
    assert len(pod.sentences("heartbeat-stopped")) == 1


def test_bad_settings_are_named_with_their_line(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "one", settings={"heartbeat": {"url": "hc-ping.com/5b0f9d1e-2a33"}})
    done = call(main, ["check", str(pod.run_file)])
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "[heartbeat] url: what is written there does not begin with http:// or https://." in told
    assert re.search(rf"{re.escape(str(pod.run_file))}:\d+ heartbeat.url\n", told)
    assert "5b0f9d1e" not in told
