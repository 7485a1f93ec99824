"""What goes to an OpenTelemetry collector: the daemon's metrics, and one trace an incident, by a child beside it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK here: pip install 'rl-supervisor[otel]'")

from supervisor.api.metrics import list_families, render
from supervisor.config.settings import load
from supervisor.core import facts as f
from supervisor.daemon import side_child
from supervisor.daemon.side_child import SideChild, side_children
from supervisor.jobs.environment import job_environment
from supervisor.otel.trace import is_over, trace_incident
from supervisor.views.incidents import read_incidents
from tests.otel.collector import Collector, collecting
from tests.people.desk import FakeDesk, serving
from tests.people.test_hand_on import keep_evidence
from tests.people.test_report import Kept, a_bad_night
from tests.web.served import until

TOKEN = "a-token-of-the-collector-81"
RUN_FILE = """\
[run]
id = "bs4"
state_dir = "{here}/state"
[job]
kind = "command"
[job.plain]
start = ["a"]
resume = ["b", "{{step}}"]
[api]
socket = "{here}/bs4.sock"
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    path = tmp_path / "bs4.toml"
    path.write_text(RUN_FILE.format(here=tmp_path))
    path.chmod(0o600)
    return path


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{TOKEN}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        yield found


@pytest.fixture
def child(run_file: Path, collector: Collector) -> Iterator[SideChild]:
    (found,) = side_children(run_file, load(run_file))
    yield found
    found.close()


def recent_night(folder: Path) -> Kept:
    """``a_bad_night``, an hour ago."""
    world = a_bad_night(folder)
    world.journal.close()
    shift = time.time() - 3600 - 1.7e9
    with sqlite3.connect(folder / "state/journal.db") as db:
        for table in ("observations", "events"):
            db.execute(f"UPDATE {table} SET wall = wall + ?", (shift,))
    return world


def desk() -> FakeDesk:
    return FakeDesk("bs4", last_incident={"id": 1, "opened": 1.0, "cause": "x", "sentence": "x", "seconds": 1.0})


# ---------------------------------------------------------------- what arrives


@pytest.mark.soak
def test_each_metric_of_the_page_arrives_with_its_labels_and_an_incident_is_one_trace_with_a_span_for_each_part(
    child: SideChild, collector: Collector, tmp_path: Path
) -> None:
    recent_night(tmp_path)
    (night,) = read_incidents(tmp_path / "state")
    keep_evidence(tmp_path / "state", collected=night["noticed"] + 1)
    with serving(tmp_path) as serve:
        serve(told := desk())
        child.tend()
        until(lambda: collector.newest("rl_supervisor_step") and collector.spans, 40)
        sent = len(collector.metrics)
        until(lambda: len(collector.metrics) > sent + 1, 20)
    assert_metrics(collector, told)
    assert_trace(collector)


def assert_metrics(collector: Collector, told: FakeDesk) -> None:
    assert collector.newest("rl_supervisor_step") == [({"run": "bs4"}, 412.0)]
    assert collector.newest("rl_supervisor_gpu_memory_used_bytes") == [
        ({"run": "bs4", "index": "0", "uuid": "GPU-a", "role": "inference"}, float(70 << 30))
    ]
    assert collector.newest("rl_supervisor_loss") == [], "what is unknown is no zero"
    names = {m.name for r in collector.metrics for scope in r.scope_metrics for m in scope.metrics}
    page = {line.split()[2] for line in render(told.status()).splitlines() if line.startswith("# TYPE")}
    assert names == {name.removesuffix("_total") for name in page}
    counter = next(m for s in collector.metrics[0].scope_metrics for m in s.metrics if m.name.endswith("_restarts"))
    assert counter.sum.is_monotonic
    resource = {tag.key: tag.value.string_value for tag in collector.metrics[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("rl-supervisor", "bs4")
    assert collector.headers[0]["authorization"] == f"Bearer {TOKEN}"


def assert_trace(collector: Collector) -> None:
    spans = {one.name: one for one in collector.spans}
    assert list(spans) == ["incident", "detect", "evidence", "stop", "restore", "start", "first step"]
    assert len(collector.spans) == len(spans), "each was sent once"
    whole = spans.pop("incident")
    assert whole.parent_span_id == b""
    assert whole.status.message.startswith("vLLM died silently")
    assert {one.trace_id for one in spans.values()} == {whole.trace_id}
    assert {one.parent_span_id for one in spans.values()} == {whole.span_id}
    seconds = {name: (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9 for name, one in spans.items()}
    assert seconds == pytest.approx(
        {"detect": 2, "evidence": 0.2, "stop": 3, "restore": 0, "start": 0, "first step": 208}, abs=0.01
    )
    tags = {tag.key: tag.value.string_value or tag.value.int_value for tag in whole.attributes}
    assert tags["rl_supervisor.cause"] == "engine-gone"
    assert tags["rl_supervisor.recovered_step"] == 6
    assert [event.name for event in whole.events][:2] == ["suspect", "verdict"]


@pytest.mark.soak
def test_a_child_that_starts_again_sends_the_same_ids(child: SideChild, collector: Collector, tmp_path: Path) -> None:
    recent_night(tmp_path)
    with serving(tmp_path) as serve:
        serve(desk())
        child.tend()
        until(lambda: len(collector.spans) == 6, 40)
        assert child._child is not None
        child._child.kill()
        child._child.wait(10)
        child._tried_at = -side_child.AGAIN_S
        child.tend()
        until(lambda: len(collector.spans) == 12, 40)
    first, again = collector.spans[:6], collector.spans[6:]
    assert [one.SerializeToString() for one in first] == [one.SerializeToString() for one in again]


def test_what_is_not_over_waits_and_what_was_given_up_is_sent(tmp_path: Path) -> None:
    world = Kept(tmp_path / "state")
    world.boot()
    world.job_up()
    world.step(1)
    world.see(f.ComponentExited(1, "launcher", 1))
    world.after(5)
    world.journal.close()
    (open_one,) = read_incidents(tmp_path / "state", 1)
    assert not is_over(open_one)
    given_up = open_one | {"story": [*open_one["story"], {"wall": 1.7e9 + 9e3, "event": "gave-up", "sentence": "No."}]}
    assert is_over(given_up)
    whole, *parts = trace_incident("bs4", "aa", given_up)
    assert whole.end == 1.7e9 + 9e3
    assert "first step" not in {one.name for one in parts}
    assert all(whole.begin <= one.begin <= one.end <= whole.end for one in parts)


# ---------------------------------------------------------------- collectors that fail


@pytest.mark.soak
def test_a_collector_that_refuses_is_told_once_with_its_reason_and_again_when_it_takes(
    child: SideChild, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(side_child, "say", lambda level, event, sentence: told.append(sentence))
    recent_night(tmp_path)
    collector.status = 401
    with serving(tmp_path) as serve:
        serve(desk())
        until(lambda: child.tend() or told, 40)  # type: ignore[func-returns-value]
        asked = collector.asked
        until(lambda: child.tend() or collector.asked > asked + 1, 20)  # type: ignore[func-returns-value]
        assert len(told) == 1
        assert "does not take what the run tells" in told[0] and "401" in told[0]
        collector.status = 200
        until(lambda: child.tend() or len(told) == 2, 20)  # type: ignore[func-returns-value]
        until(lambda: len(collector.spans) == 6, 20)
    assert told[1] == "The collector takes what the run tells again."
    assert TOKEN not in " ".join(told)
    assert TOKEN not in (tmp_path / "state/otel.log").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("wrong", ["hangs", "gone"])
def test_a_slow_or_dead_collector_costs_nobody_but_the_child(
    run_file: Path, collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "gone":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    collector.hangs.set()
    told: list[str] = []
    monkeypatch.setattr(side_child, "say", lambda level, event, sentence: told.append(sentence))
    (child,) = side_children(run_file, load(run_file))
    with serving(tmp_path) as serve:
        serve(desk())
        slowest = 0.0
        deadline = time.monotonic() + 60
        while not told and time.monotonic() < deadline:
            began = time.monotonic()
            child.tend()
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(0.05)
        began = time.monotonic()
        child.close()
        took = time.monotonic() - began
    assert told and "does not take what the run tells" in told[0]
    assert slowest < 1.0
    assert took <= side_child.CLOSE_S + 0.5
    assert child._child is not None
    assert child._child.wait(5) == 0


@pytest.mark.soak
def test_it_ends_with_its_daemon_however_that_ends(run_file: Path, collector: Collector) -> None:
    program = f"""
import time
from pathlib import Path
from supervisor.config.settings import load
from supervisor.daemon.side_child import side_children
(child,) = side_children(Path({str(run_file)!r}), load(Path({str(run_file)!r})))
child.tend()
print(child._child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        until(lambda: psutil.Process(pid).nice() >= 10)
        daemon.kill()
    psutil.Process(pid).wait(20) if psutil.pid_exists(pid) else None
    assert not psutil.pid_exists(pid)


@pytest.mark.soak
def test_an_incident_that_ends_with_the_daemon_is_still_sent(
    child: SideChild, collector: Collector, tmp_path: Path
) -> None:
    with serving(tmp_path) as serve:
        serve(desk())
        child.tend()
        until(lambda: collector.metrics, 40)
        recent_night(tmp_path)
    child.close()
    assert len(collector.spans) == 6


# ---------------------------------------------------------------- when it runs, and with what


def test_no_endpoint_no_child(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    assert side_children(run_file, load(run_file)) == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    assert len(side_children(run_file, load(run_file))) == 1


def test_without_the_sdk_it_says_what_to_install(
    child: SideChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(side_child, "say", lambda level, event, sentence: told.append(sentence))
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text("raise ImportError('none here')")
    child._environ = {**child._environ, "PYTHONPATH": str(tmp_path)}
    until(lambda: child.tend() or told, 40)  # type: ignore[func-returns-value]
    assert "pip install 'rl-supervisor[otel]'" in told[0]


def test_the_job_and_the_store_see_nothing_of_it(child: SideChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B2_APPLICATION_KEY", "a-key-of-the-store")
    assert "B2_APPLICATION_KEY" not in child._environ, "it needs no store"
    assert child._environ["OTEL_EXPORTER_OTLP_HEADERS"].endswith(TOKEN)
    given = job_environment(os.environ, ["OTEL_*"], {}, {})
    assert not [name for name in given if "HEADERS" in name]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in given, "where the person passes it on"


@pytest.mark.soak
def test_the_daemon_imports_none_of_it() -> None:
    code = "import sys, supervisor.daemon.loop, supervisor.daemon.side_child\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("opentelemetry", "supervisor.otel"))]


def test_families_and_page_are_one() -> None:
    status: dict[str, Any] = desk().status()
    samples = sum(len(samples) for *_, samples in list_families(status))
    lines = [line for line in render(status).splitlines() if not line.startswith("#") and "loop_wait" not in line]
    assert len(lines) == samples > 30
