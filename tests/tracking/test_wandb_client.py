"""What the job's environment tells W&B's client, and the real client in a job with that environment."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RunFile
from supervisor.core.records import Happened
from supervisor.jobs.base import StartRequest
from supervisor.jobs.plain import PlainJob
from supervisor.jobs.wandb_client import HEALTH, PATIENCE, notes_of_rollbacks, wandb_variables
from tests.people.desk import FakeDesk, serving, until
from tests.primerl.helpers import job_of
from tests.tracking import server as wandb_server

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="no wandb here: pip install 'rl-supervisor[wandb]'")
TRIO = {f"WANDB_X_STATS_{name}" for name in ("OPEN_METRICS_ENDPOINTS", "OPEN_METRICS_FILTERS", "SAMPLING_INTERVAL")}


def run_file(tcp: str | None = "127.0.0.1:9401", **job: Any) -> RunFile:
    plain = {"start": ["false"], "resume": ["false", "{step}"]}
    return RunFile.model_validate(
        {"run": {"id": "bs4"}, "job": {"kind": "command", "plain": plain, **job}, "api": {"tcp": tcp} if tcp else {}}
    )


def test_health_comes_with_the_metrics_port_and_patience_always() -> None:
    assert wandb_variables(run_file(None), {}) == PATIENCE
    given = wandb_variables(run_file(), {})
    assert set(given) == {*PATIENCE, *TRIO}
    assert json.loads(given["WANDB_X_STATS_OPEN_METRICS_ENDPOINTS"]) == {"supervisor": "http://127.0.0.1:9401/metrics"}


@pytest.mark.parametrize(
    ("tcp", "url"),
    [
        ("0.0.0.0:9401", "http://127.0.0.1:9401/metrics"),
        ("[::]:9401", "http://[::1]:9401/metrics"),
        ("10.0.0.7:9401", "http://10.0.0.7:9401/metrics"),
    ],
)
def test_the_job_asks_where_it_can_reach(tcp: str, url: str) -> None:
    given = wandb_variables(run_file(tcp), {})
    assert json.loads(given["WANDB_X_STATS_OPEN_METRICS_ENDPOINTS"])["supervisor"] == url


def test_what_the_person_set_is_never_changed() -> None:
    own = {"WANDB_FINISH_TIMEOUT": "0", "WANDB_X_STATS_SAMPLING_INTERVAL": "2"}
    assert not set(own) & set(wandb_variables(run_file(), own))
    assert not set(own) & set(wandb_variables(run_file(env=own), {}))
    # Variables that [job] pass_env keeps from the job say nothing to its client.
    assert set(own) <= set(wandb_variables(run_file(pass_env=[]), own))
    # Our filter would drop what the person's own endpoints give, also where these are spelled as older clients did.
    for name in ("WANDB_X_STATS_OPEN_METRICS_ENDPOINTS", "WANDB__STATS_OPEN_METRICS_ENDPOINTS"):
        assert not TRIO & set(wandb_variables(run_file(), {name: '{"dcgm": "http://127.0.0.1:9400/metrics"}'}))


def test_explain_lists_them_with_their_reasons_where_the_configuration_has_wandb(tmp_path: Path) -> None:
    config = "max_steps = 9\n[wandb]\nproject = 'p'\n"
    job = job_of(tmp_path, "be0e3d131", config=config, api={"tcp": "127.0.0.1:9401"})
    request = StartRequest("bs4", 2, 85, {}, "w4nd8", tmp_path, "2026-11-24 04:12 UTC: rolled back to step 85.")
    whys = {one.what.partition("=")[0]: one.why for one in job.changes(request)}
    assert set(whys) >= {*PATIENCE, *TRIO, "WANDB_NOTES"}
    assert all(whys[name] for name in (*PATIENCE, *TRIO, "WANDB_NOTES"))
    environment = job.components(request)[0].env
    assert set(environment) >= {*PATIENCE, *TRIO, "WANDB_NOTES"}


def test_a_configuration_without_wandb_gets_none_of_them(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", config="max_steps = 9\n", api={"tcp": "127.0.0.1:9401"})
    environment = job.components(StartRequest("bs4", 1, None, {}, "w4nd8", tmp_path))[0].env
    assert not set(environment) & {*PATIENCE, *TRIO}


def test_the_notes_tell_rollbacks_and_nothing_else() -> None:
    happened = (
        Happened("quarantine", 90, 1.7e9),
        Happened("rollback", 85, 1.7e9 + 60, "The loss is NaN since step 87."),
        Happened("take", 85, 1.7e9 + 60),
        Happened("rollback", -1, 1.7e9 + 120),
    )
    assert notes_of_rollbacks(happened).splitlines() == [
        (
            "2023-11-14 22:14 UTC: rolled back to step 85. Older points above it belong to steps left behind. "
            "The loss is NaN since step 87."
        ),
        "2023-11-14 22:15 UTC: rolled back to the beginning. Older points above it belong to steps left behind.",
    ]
    assert notes_of_rollbacks(happened[:1]) == ""


# ---------------------------------------------------------------- the real client


def run_client(code: str, job: RunFile, environ: Mapping[str, str], notes: str = "") -> tuple[str, float]:
    """Output and seconds of a process with the job's own environment."""
    env = PlainJob(job, environ).job_variables(StartRequest("bs4", 2, 85, {}, "w4nd8", Path("/"), notes))
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    return ran.stdout + ran.stderr, time.monotonic() - began


@pytest.mark.soak
@needs_wandb
def test_the_health_of_the_run_arrives_in_its_own_wandb_file(tmp_path: Path) -> None:
    code = f"""
import time, wandb
run = wandb.init(project="p", mode="offline", dir={str(tmp_path)!r})
time.sleep(4)
run.finish()
"""
    with serving(tmp_path) as serve:
        api = serve(FakeDesk(), tcp="127.0.0.1:0")
        until(lambda: api.tcp_address)
        job = run_file(f"127.0.0.1:{api.tcp_address[1]}", env={"WANDB_X_STATS_SAMPLING_INTERVAL": "1"})
        told, _ = run_client(code, job, {"HOME": str(tmp_path)})
    (file,) = tmp_path.glob("wandb/offline-run-*-w4nd8/*.wandb")
    kept = file.read_bytes()
    assert b"openmetrics.supervisor.rl_supervisor_step.0" in kept, told
    assert b"openmetrics.supervisor.rl_supervisor_gpu_memory_used_bytes.0" in kept
    names = {name.split(b".")[0].decode() for name in kept.split(b"rl_supervisor_")[1:]}
    assert names <= set(HEALTH), "only what the filter lets through"


@pytest.mark.soak
@needs_wandb
def test_a_server_that_stops_answering_costs_no_step_and_a_bounded_end(tmp_path: Path) -> None:
    code = f"""
import sys, time, wandb
run = wandb.init(project="proj", dir={str(tmp_path)!r})
print("initialised", run.notes, flush=True)
time.sleep(2)  # the test makes the server hang
began = time.monotonic()
for step in range(500):
    run.log({{"step": step, "loss": 0.1}})
print("logged in", time.monotonic() - began, flush=True)
run.finish()
"""
    with wandb_server.serving() as server:
        server.add_run("w4nd8", historyLineCount=5)

        def hang() -> None:
            until(lambda: server.upserts, 60)
            time.sleep(1)
            server.hangs.set()

        threading.Thread(target=hang, daemon=True).start()
        job = run_file(None, env={"WANDB_FINISH_TIMEOUT": "3"})
        notes = notes_of_rollbacks([Happened("rollback", 85, 1.7e9)])
        told, seconds = run_client(code, job, server.environ(tmp_path), notes)
    assert "Timed out finishing run" in told, told
    assert seconds < 60, "without WANDB_FINISH_TIMEOUT it never ends"
    logged = float(told.split("logged in ")[1].split()[0])
    assert logged < 20, "a call that waited for the server would wait for minutes"
    assert server.upserts[0]["name"] == "w4nd8", "the same run"
    assert "rolled back to step 85" in server.upserts[0]["notes"], "W&B takes the notes on resume, too"


@needs_wandb
@pytest.mark.soak
def test_a_start_without_a_server_fails_in_bounded_time(tmp_path: Path) -> None:
    code = f'import wandb; wandb.init(project="proj", dir={str(tmp_path)!r})'
    with wandb_server.serving() as server:
        server.hangs.set()
        told, seconds = run_client(code, run_file(None, env={"WANDB_INIT_TIMEOUT": "3"}), server.environ(tmp_path))
    assert "wandb.errors.errors.CommError" in told, told
    assert seconds < 60
