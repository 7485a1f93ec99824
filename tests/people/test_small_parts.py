"""Secrets, systemd's notifications and Prometheus's text."""

from __future__ import annotations

import os
import queue
import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from supervisor.api import metrics
from supervisor.base import sd_notify, secrets
from supervisor.cli import render
from supervisor.core import facts as f
from supervisor.core.state import EngineMemory, State
from supervisor.daemon.api_backend import ApiBackend, House
from supervisor.daemon.attach_requests import AttachRequests
from supervisor.daemon.inbox import Inbox, Waits
from supervisor.views import status
from tests.core.world import World
from tests.people.desk import GIB, FakeDesk

# ---------------------------------------------------------------- secrets


def test_a_secret_comes_from_the_environment_else_from_systemds_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b2_application_key").write_text("from-the-credential\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.delenv("B2_APPLICATION_KEY", raising=False)
    assert secrets.secret("B2_APPLICATION_KEY") == "from-the-credential"
    monkeypatch.setenv("B2_APPLICATION_KEY", "from-the-environment")
    assert secrets.secret("B2_APPLICATION_KEY") == "from-the-environment"
    assert secrets.secret("NO_SUCH_SECRET") is None
    assert secrets.mask_secrets("a from-the-credential b from-the-environment c") == "a *** b *** c"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 rl", "WANDB_API_KEY=*** rl"),
        ('{"applicationKey": "abcdefgh12345678", "a": 1}', '{"applicationKey": "***", "a": 1}'),
        ("Authorization: Basic MDA0YTFiMmMzOkswMDR4eA==", "Authorization: Basic ***"),
        ("git clone https://me:ghp_0123456789abcdef01@host/x", "git clone https://***@host/x"),
        ("hf_abcdefghijklmnopqrstuvwx", "***"),
        ("--token hf_abcdefghijklmnopqrstuvwx", "--token ***"),
        ("sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709", "sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("step 80 of 1000, 212 s, reward 0.41", "step 80 of 1000, 212 s, reward 0.41"),
        ("secret = none", "secret = none"),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_what_does_not_is_left(text: str, kept: str) -> None:
    assert secrets.mask_secrets(text) == kept


def test_masking_takes_linear_time_on_hostile_text() -> None:
    began = time.process_time()
    for text in (
        "a-" * 40_000,
        "secret" * 16_000,
        "://" * 25_000,
        "Basic " * 16_000,
        "K00" * 25_000,
        "x:" * 40_000,
    ):
        secrets.mask_secrets(text)
    assert time.process_time() - began < 4


# ---------------------------------------------------------------- systemd


def test_systemd_is_told_and_children_cannot_speak_for_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(10)
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "120000000", "WATCHDOG_PID": str(os.getpid()), "X": "y"}
        notifier = sd_notify.notifier(env)
        assert env == {"X": "y"}
        assert notifier.watchdog_s == 120
        notifier.tell_ready("watching\nbs4")
        notifier.status("restoring step 410")
        notifier.ping()
        notifier.tell_reloading()
        notifier.tell_stopping()
        got = [manager.recv(1000).decode() for _ in range(5)]
    assert got[:3] == [
        "READY=1\nSTATUS=watching bs4",
        "STATUS=restoring step 410",
        "WATCHDOG=1",
    ]
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", got[3])
    assert got[4] == "STOPPING=1"
    notifier.ping()  # the manager is gone: nobody minds


def test_a_beginning_waits_for_room_where_a_ping_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sd_notify, "TURN_S", 60.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        notifier = sd_notify.notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        room = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1
        for _ in range(room + 10):
            notifier.ping()
        sender = threading.Thread(target=notifier.tell_ready)
        sender.start()
        got = [manager.recv(1000).decode() for _ in range(room + 1)]
        sender.join()
    assert got == ["WATCHDOG=1"] * room + ["READY=1"]


def test_who_never_reads_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sd_notify, "TURN_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notifier = sd_notify.notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        for _ in range(1000):
            notifier.ping()
        notifier.tell_ready()
        notifier.tell_stopping()


@pytest.mark.parametrize(
    ("env", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "5000000"}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "5000000"}, None),
        ({"NOTIFY_SOCKET": "@abstract"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "5000000"}, 5.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_a_watchdog_of_another_process_is_not_ours(env: dict[str, str], watchdog_s: float | None) -> None:
    notifier = sd_notify.notifier(env)
    assert env == {}
    assert notifier.watchdog_s == watchdog_s
    notifier.tell_ready("nobody listens")


# ---------------------------------------------------------------- metrics

LINE = re.compile(
    r'^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<labels>(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\} '
    r"(?P<value>[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|Inf)|NaN)$"
)


def samples(text: str) -> dict[str, float]:
    """A strict reader of the exposition format: HELP and TYPE before each family, no sample twice."""
    found: dict[str, float] = {}
    announced: list[str] = []
    assert text.endswith("\n")
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert lines[number + 1].startswith(f"# TYPE {name} ")
            assert lines[number + 1].rsplit(" ", 1)[1] in ("gauge", "counter")
            assert name not in announced
            announced.append(name)
        elif not line.startswith("# TYPE "):
            match = LINE.match(line)
            assert match, line
            assert match["name"] == announced[-1]
            key = f"{match['name'].removeprefix('rl_supervisor_')}{{{match['labels']}}}"
            assert key not in found
            found[key] = float(match["value"])
    return found


def test_the_status_as_metrics() -> None:
    got = samples(metrics.render(FakeDesk().now))
    run = 'run="bs4-qwen3"'
    assert got[f"step{{{run}}}"] == 412
    assert got[f"reward{{{run}}}"] == 0.41
    assert got[f"restarts_total{{{run}}}"] == 1
    assert got[f'gpu_memory_used_bytes{{{run},index="0",uuid="GPU-a",role="inference"}}'] == 70 * GIB
    assert got[f'disk_free_bytes{{{run},path="/workspace"}}'] == 80 * GIB
    states = {key: value for key, value in got.items() if key.startswith("state{")}
    assert len(states) == len(metrics.KNOWN_STATES)
    assert [key for key, value in states.items() if value] == [f'state{{{run},state="running"}}']
    assert (got[f"local_steps{{{run}}}"], got[f"stored_steps{{{run}}}"], got[f"incident_open{{{run}}}"]) == (2, 1, 0)
    assert got[f"engine_healthy{{{run}}}"] == 1


def test_what_is_unknown_has_no_sample_and_odd_text_stays_a_label() -> None:
    desk = FakeDesk(
        run='a"b\\c\nd', step=None, reward=float("nan"), loss=float("inf"), gpus=[], engine=None, state="odd",
        disk={"path": "/x", "total_bytes": None, "free_bytes": None, "reason": "hangs"}, incident={"seconds": 12.5},
    )  # fmt: skip
    text = metrics.render(desk.now)
    got = samples(text)
    names = {key.split("{")[0] for key in got}
    assert not names & {"step", "disk_free_bytes", "gpu_memory_used_bytes", "engine_healthy"}
    assert 'rl_supervisor_up{run="a\\"b\\\\c\\nd"} 1\n' in text
    assert got['incident_seconds{run="a\\"b\\\\c\\nd"}'] == 12.5
    assert got['state{run="a\\"b\\\\c\\nd",state="odd"}'] == 1
    assert got['loss{run="a\\"b\\\\c\\nd"}'] == float("inf")


def test_a_listing_that_failed_counts_no_checkpoint_and_one_that_found_none_counts_zero() -> None:
    names = {"local_steps", "local_checkpoint_bytes", "stored_steps"}

    def counted(world: World) -> dict[str, float]:
        got = samples(metrics.render(status.status(world.state)))
        return {name: value for key, value in got.items() if (name := key.split("{")[0]) in names}

    world = World()
    world.answer = False
    world.boot()
    assert counted(world) == {}, "nothing is listed yet"
    world.see(f.LocalSteps(reason="/data cannot be read: Stale file handle", settled=True))
    world.see(f.StoreSteps(reason="the store does not answer"))
    assert counted(world) == {}
    told = "\n".join(render.status_block(status.status(world.state)))
    assert "here unknown: /data cannot be read: Stale file handle" in told
    world.see(f.LocalSteps(settled=True))
    world.see(f.StoreSteps())
    assert counted(world) == dict.fromkeys(names, 0)
    assert "none complete here" in "\n".join(render.status_block(status.status(world.state)))


def test_engines_that_do_not_say_how_busy_they_are_are_not_idle() -> None:
    def look(host: str, running: float | None) -> EngineMemory:
        return EngineMemory(look=f.EngineLook(f"http://{host}:8000", "ok", running=running, host=host))

    silent, busy = look("b", None), look("c", 5.0)
    told = status.status(replace(State(), mode="running", engines={"b/0": silent}))
    assert render.engine_in_words(told["engine"]) == "1 of 1 answer"
    assert not [key for key in samples(metrics.render(told)) if key.startswith("engine_requests")]
    told = status.status(replace(State(), mode="running", engines={"b/0": silent, "c/0": busy}))
    assert render.engine_in_words(told["engine"]) == "2 of 2 answer, 5 running"


def test_ready_is_what_status_calls_running() -> None:
    world = World()
    world.running_at(7)
    backend = ApiBackend(cast(House, SimpleNamespace(state=world.state)), cast(AttachRequests, None))
    assert backend.ready()[0]
    world.see(f.Command("pause", "root"))
    world.engine_process_dies()
    world.after(120)
    backend = ApiBackend(cast(House, SimpleNamespace(state=world.state)), cast(AttachRequests, None))
    ready, sentence = backend.ready()
    assert not ready and sentence.startswith("paused, so nothing is done about it until you run")


def test_the_poorest_status_is_valid_too() -> None:
    assert samples(metrics.render({}))['up{run=""}'] == 1


def test_the_loops_waits_are_a_histogram() -> None:
    waits = Waits()
    for seconds in (0.00005, 0.0001, 0.09, 0.1, 99.0):
        waits.note(seconds)
    lines = metrics.render({"run": "r", "loop_waits": waits.as_dict()}).splitlines()
    name = "rl_supervisor_loop_wait_seconds"
    assert f"# TYPE {name} histogram" in lines
    counts = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}_bucket")]
    assert counts == sorted(counts)  # each bucket holds all below it
    assert f'{name}_bucket{{run="r",le="0.0001"}} 2' in lines
    assert f'{name}_bucket{{run="r",le="0.1"}} 4' in lines
    assert f'{name}_bucket{{run="r",le="+Inf"}} 5' in lines
    assert f'{name}_count{{run="r"}} 5' in lines


def test_the_inbox_knows_how_long_its_facts_waited() -> None:
    inbox: Inbox[str] = Inbox()
    inbox.put("first")
    inbox.put("second")
    time.sleep(0.03)
    assert inbox.get(1.0) == "first"
    assert inbox.get(0.0) == "second"
    with pytest.raises(queue.Empty):
        inbox.get(0.01)
    told = inbox.waits.as_dict()
    assert told["count"] == 3
    assert told["sum_s"] >= 0.06
    assert told["at_most"]["0.02"] <= 1  # only the moment for which it was in time
