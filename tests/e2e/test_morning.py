"""What a person reads in the morning: one minute, an 80-column terminal, with a daemon or without one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import ctl
from tests.people.in_process import call

from .rig import Pod


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Any]:
    made: list[Pod] = []

    def make(**knobs: Any) -> Pod:
        made.append(Pod(tmp_path, "2026-08-21", max_steps=400, step_s=0.5, **knobs))
        return made[-1]

    yield make
    for pod in made:
        pod.close()


def typed(pod: Pod, *words: str) -> tuple[int, str]:
    """`supervisorctl WORDS... RUN.toml` on a terminal of 80 columns."""
    done = call(ctl.main, [*words, str(pod.run_file)], {"COLUMNS": "80"})
    if "--json" not in words:
        assert all(len(line) <= 80 or len(line.split()) == 1 for line in done.stdout.splitlines()), done.stdout
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.soak
def test_a_run_that_no_restart_can_cure_is_given_up_and_names_the_root_cause_though_its_daemon_has_ended(
    pods: Any,
) -> None:
    pod = pods(faults=[{"kind": "config-error", "every_time": True}])
    pod.start()
    assert pod.wait_exit() == 93, pod.story()
    assert "A restart cannot cure this" in pod.sentences("gave-up")[0]
    assert len(pod.practice.starts()) <= 1
    line = "pydantic_core._pydantic_core.ValidationError: 1 validation error for RLConfig / max_steps"
    (root,) = pod.sentences("root-cause")
    assert root.startswith("Root cause: config-invalid in the launcher: "), root
    assert line in root, "the job's own line, with the setting that it is about"
    code, said = typed(pod, "status")
    assert code == 3
    assert "practice NOT RUNNING No daemon since" in said, said
    assert "it ended with exit code 93" in said, said
    assert f"Mend the cause, then start it: rl-supervisor run {pod.run_file}" in said, said
    assert "root cause config-invalid in the launcher" in said, said
    assert "max_steps" in said, said
    assert "nothing of it runs" in said, said
    assert f'Root cause: config-invalid in the launcher: "{line}' in typed(pod, "incidents")[1]
    (told,) = json.loads(typed(pod, "--json", "incidents")[1])
    assert told["roots"][0]["name"] == "config-invalid"


@pytest.mark.soak
def test_a_job_that_lives_without_its_daemon_is_told_as_living(pods: Any) -> None:
    pod = pods().start()
    pod.wait_for(lambda: pod.step() >= 2, "two steps are done")
    pod.kill_daemon()
    seen = len(pod.practice.trained_steps())
    pod.wait_for_here(lambda: len(pod.practice.trained_steps()) >= seen + 3, "the job makes steps of its own")
    known = max(pod.practice.trained_steps())
    code, said = typed(pod, "status")
    assert code == 3, "what starts it again where it does not run still does"
    assert "practice UNWATCHED No daemon since" in said, said
    assert "it was killed, or it crashed. The job lives on without it. Start it: rl-supervisor run" in said, said
    status = json.loads(typed(pod, "--json", "status")[1])
    job = status["job"]
    assert job["attempt"] == 1
    assert {*map(int, job["pids"])} >= {*pod.practice.alive()}, "every process of the job"
    assert "PRIME-RL::Launcher" in said, said
    assert job["step"] >= known, "the job's newest step, which no daemon has seen"
    told = re.search(r"attempt 1 lives: last step (\d+);", said)
    assert told is not None, said
    assert int(told[1]) >= known, said
    assert "last words" in said, said
    pod.end_job()
    code, said = typed(pod, "status")
    assert code == 3
    assert "practice NOT RUNNING No daemon since" in said, said
    assert "job nothing of it runs" in said, said
