"""The faults of the practice job: each looks from outside as the real failure does, and strikes once in a run."""

from __future__ import annotations

import http.client
import re
import signal
import time
import zipfile

import pytest

from tests.practice.conftest import LONG, Make, soak
from tests.practice.dcp import CheckpointError, read_progress
from tests.practice.imitation import FALSE_STEP
from tests.practice.processes import stat_fields
from tests.practice.run import Practice, wait_until
from tests.practice.test_runs import finish

pytestmark = pytest.mark.soak  # the end-to-end tests run the practice job, too


def get(port: int, path: str, timeout_s: float = 3.0) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def generated(practice: Practice) -> float:
    found = re.search(r"^vllm:generation_tokens_total\{.*\} (\S+)$", get(practice.engine_port, "/metrics")[1], re.M)
    assert found
    return float(found[1])


def held_gib(practice: Practice, pid: int) -> int:
    lines = (practice.gpus / f"pid.{pid}").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines) >> 30


@pytest.mark.parametrize("era", LONG[1:])
def test_an_engine_that_dies_silently_is_noticed_by_nobody(era: str, make: Make) -> None:
    practice = make(era, max_steps=20, faults=[{"kind": "engine-exit-0", "at_step": 3}])
    launcher = practice.start()
    wait_until(lambda: practice.pids("trainer-rank") and practice.pids("engine-core"), "the engine")
    wait_until(lambda: not practice.pids("engine-core") and not practice.pids("inference"), "the engine's death")
    wait_until(lambda: practice.log("orchestrator").count("onnection error.") > 8, "endless retries")

    assert launcher.poll() is None
    assert practice.pids("orchestrator") and practice.pids("trainer-rank")
    assert max(practice.trained_steps()) < 3
    log = practice.log("inference")
    assert "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client." in log
    assert "Application shutdown complete." in log
    with pytest.raises(ConnectionRefusedError):
        get(practice.engine_port, "/health")


@pytest.mark.parametrize("era", ["2026-01-06", "2026-08-21"])
def test_a_hanging_engine_answers_health_while_nothing_moves_and_its_memory_stays(era: str, make: Make) -> None:
    practice = make(era, max_steps=20, faults=[{"kind": "engine-hang", "at_step": 3}], liveness_timeout_s=0.2)
    launcher = practice.start()
    wait_until(lambda: practice.pids("engine-core"), "the engine")
    (engine,) = practice.pids("engine-core")
    wait_until(lambda: stat_fields(engine)[0] == "T", "the engine to stop")

    before = generated(practice)
    assert get(practice.engine_port, "/health")[0] == 200
    assert get(practice.engine_port, "/v1/models")[0] == 200
    assert get(practice.engine_port, "/liveness")[0] == (404 if era == "2026-01-06" else 503)
    assert generated(practice) == before
    assert held_gib(practice, engine) == 60
    assert launcher.poll() is None and practice.log("orchestrator").count("onnection error.") == 0


def test_the_router_answers_while_the_engine_behind_it_is_gone(make: Make) -> None:
    practice = make(
        "2026-08-21", max_steps=20, faults=[{"kind": "engine-exit-0", "at_step": 2}], engine_exit_delay_s=30.0
    )
    practice.start()
    wait_until(lambda: practice.pids("vllm-router") and practice.pids("engine-core"), "the server")
    wait_until(lambda: not practice.pids("engine-core"), "the engine's death")
    wait_until(lambda: get(practice.engine_port, "/health")[0] == 503, "/health to turn")

    assert practice.pids("vllm-router")
    assert get(practice.port, "/health")[0] == 503


@pytest.mark.parametrize(
    ("kind", "text"), [("trainer-crash", "illegal memory access"), soak("trainer-killed", "(exitcode: -9)")]
)
def test_a_dead_trainer_takes_the_run_down_with_exit_1_once(kind: str, text: str, make: Make) -> None:
    practice = make("v0.6", max_steps=8, interval=2, faults=[{"kind": kind, "at_step": 3}])

    code, output = finish(practice)

    assert code == 1
    assert "Error: Trainer failed with exit code 1" in output
    assert text in practice.log("trainer")
    wait_until(lambda: not practice.alive(), "all processes are gone")

    code, output = finish(practice, *practice.resume_flags(2))

    assert code == 0, output
    assert practice.trained_steps() == [2, 3, 4, 5, 6, 7]


def test_a_wedged_orchestrator_lives_and_logs_frozen_counters(make: Make) -> None:
    practice = make("v0.6", max_steps=20, faults=[{"kind": "orchestrator-wedge", "at_step": 3}], pipeline_log_s=0.1)
    practice.start()
    frozen = "Train batch 2/4 (50.0%); 4 inflight rollouts (train=4, eval=0)"
    wait_until(lambda: practice.log("orchestrator").count(frozen) > 3, "frozen pipeline lines")

    before = generated(practice)
    wait_until(lambda: practice.log("orchestrator").count(frozen) > 6, "more of them")
    assert generated(practice) == before
    assert practice.pids("orchestrator")


@pytest.mark.parametrize(
    ("how", "files"), [("shard", []), soak("metadata", [".metadata.tmp"]), soak("short", [".metadata"])]
)
def test_a_torn_checkpoint_looks_as_a_death_in_the_middle_of_writing_leaves_it(
    how: str, files: list[str], make: Make
) -> None:
    practice = make(
        "2026-01-06", max_steps=20, interval=2, faults=[{"kind": "checkpoint-torn", "at_step": 4, "how": how}]
    )

    code, _ = finish(practice)

    assert code == 1
    assert sorted(path.name for path in practice.trainer_part(4).iterdir()) == [*files, "__0_0.distcp"]
    with pytest.raises((FileNotFoundError, CheckpointError)):
        read_progress(practice.trainer_part(4))
    assert zipfile.is_zipfile(practice.orchestrator_part(4) / "progress.pt")
    assert read_progress(practice.trainer_part(2)).step == 2


def test_a_full_volume_crashes_the_trainer_with_enospc_and_not_again_once_there_is_room(make: Make) -> None:
    practice = make(
        "2026-01-06",
        max_steps=16,
        interval=2,
        volume_bytes=4_000_000,
        faults=[{"kind": "disk-full", "at_step": 3, "growth_bytes": 1_500_000}],
    )

    code, _ = finish(practice)

    assert code == 1
    assert "No space left on device" in practice.log("trainer") + practice.log("orchestrator")

    code, output = finish(practice, *practice.resume_flags(2))

    assert code == 0, output


def test_memory_that_fell_leaves_every_process_alive(make: Make) -> None:
    practice = make("v0.6", max_steps=200, faults=[{"kind": "memory-fell", "at_step": 3}])
    practice.start()
    wait_until(lambda: practice.pids("engine-core"), "the engine")
    (engine,) = practice.pids("engine-core")
    wait_until(lambda: (practice.gpus / f"pid.{engine}").exists() and held_gib(practice, engine) == 60, "its memory")
    wait_until(lambda: held_gib(practice, engine) == 0, "the fall")

    assert practice.pids("engine-core") == [engine]
    (trainer,) = practice.pids("trainer-rank")
    assert held_gib(practice, trainer) == 40


def test_an_imitation_stands_in_the_orchestrators_log_only_and_changes_nothing(make: Make) -> None:
    practice = make("2026-08-21", max_steps=4, faults=[{"kind": "imitation", "at_step": 2}])

    code, output = finish(practice)

    assert code == 0
    assert f"Step {FALSE_STEP}" in practice.log("orchestrator")
    assert practice.log("orchestrator").index("Training finished!") < practice.log("orchestrator").index("Step 3 ")
    assert f"Step {FALSE_STEP}" in output, "the launcher's tail shows it too"
    assert practice.trained_steps() == [1, 2, 3, 4]


def test_a_slow_step_is_slow_and_fine(make: Make) -> None:
    practice = make("2026-01-06", max_steps=3, faults=[{"kind": "slow-step", "at_step": 1, "factor": 30}])

    code, _ = finish(practice)

    assert code == 0
    times = [float(found) for found in re.findall(r"Step \d+ \| Time: ([\d.]+)s \| Loss", practice.log("trainer"))]
    assert times[1] > 0.8 > times[2]


def test_a_configuration_error_comes_at_the_start_that_it_is_set_for(make: Make) -> None:
    practice = make("2026-01-06", max_steps=3, interval=1, faults=[{"kind": "config-error", "at_start": 2}])

    assert finish(practice)[0] == 0
    code, output = finish(practice, *practice.resume_flags(1))
    assert (code, "ValidationError: 1 validation error for RLConfig" in output) == (1, True)
    assert finish(practice, *practice.resume_flags(1))[0] == 0


def test_sigterm_leaves_orphans_in_january_and_none_since_june(make: Make) -> None:
    january = make("2026-01-06", max_steps=200)
    launcher = january.start()
    wait_until(lambda: january.trained_steps(), "a step")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=10) == -signal.SIGTERM
    assert {"inference", "orchestrator", "trainer-rank", "engine-core", "uv"} <= set(january.alive().values())

    june = make("v0.6", max_steps=200)
    launcher = june.start()
    wait_until(lambda: june.trained_steps(), "a step")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=10) == 1
    assert "Received SIGTERM, terminating all processes..." in june.launcher_output.read_text()
    wait_until(lambda: not june.alive(), "the whole tree to be gone")


def test_a_trainer_that_ignores_sigterm_is_killed_after_the_launchers_patience(make: Make) -> None:
    practice = make("v0.6", max_steps=200, faults=[{"kind": "ignores-sigterm", "how": "trainer"}])
    launcher = practice.start()
    wait_until(lambda: practice.trained_steps(), "a step")

    started = time.monotonic()
    launcher.send_signal(signal.SIGTERM)

    assert launcher.wait(timeout=10) == 1
    assert time.monotonic() - started > 1.0
    wait_until(lambda: not practice.alive(), "the whole tree to be gone")


@pytest.mark.parametrize("era", LONG[1:])
def test_a_killed_launcher_orphans_its_children_and_end_all_finds_them(era: str, make: Make) -> None:
    practice = make(era, max_steps=200)
    launcher = practice.start()
    wait_until(lambda: practice.trained_steps(), "a step")

    launcher.kill()
    launcher.wait()
    assert {"inference", "orchestrator", "trainer-rank", "engine-core"} <= set(practice.alive().values())

    practice.end_all()
    assert practice.alive() == {}
