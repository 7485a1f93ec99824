"""A run file that others can suddenly write costs no run: the real daemon, killed under its job and started again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.rig import Pod

pytestmark = pytest.mark.soak


def test_a_daemon_that_finds_its_run_file_writable_adopts_the_job_and_a_changed_one_leaves_it_alone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pod = Pod(tmp_path / "pod", max_steps=2000)
    request.addfinalizer(pod.close)
    pod.start()
    pod.wait_for(lambda: pod.step() >= 2, "step 2", 150)
    job = pod.status()["pid"]

    pod.kill_daemon()
    pod.run_file.chmod(0o666)
    pod.start()
    pod.wait_for(
        lambda: pod.status().get("pid") == job, "the job adopted, though everybody can write the run file", 150
    )
    assert pod.status()["restarts"] == 0

    pod.kill_daemon()
    pod.run_file.write_text(pod.run_file.read_text() + '[hooks]\nfinish = "true"\n')
    pod.start()
    assert pod.wait_exit(150) == 93
    assert "is not obeyed, since others could change it" in pod.story()
    os.kill(job, 0)

    pod.run_file.chmod(0o600)  # a person has looked at it: it is his
    pod.run_file.write_text(pod.run_file.read_text().partition("[hooks]")[0])
    pod.start()
    pod.wait_for(lambda: pod.status().get("pid") == job, "the job, which nobody touched", 150)
    assert pod.status()["restarts"] == 0
