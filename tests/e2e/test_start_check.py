"""The check before the first start: its errors stop the job unless overruled, and no run that trains pays for it.

The mistake is one that the practice job does not mind.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.practice.run import make_practice

from .rig import Pod

NewPod = Callable[..., Pod]
ID = "batch-of-whole-groups"


@pytest.fixture
def new_pod(tmp_path: Path) -> Iterator[NewPod]:
    made: list[Pod] = []

    def make(era: str = "v0.6", settings: dict[str, dict[str, Any]] | None = None, **options: Any) -> Pod:
        asked = settings or {}
        asked = {**asked, "check": {"at_start": True, **asked.get("check", {})}}
        pod = Pod(tmp_path, era, settings=asked, **{"max_steps": 400, "step_s": 0.2, **options})
        made.append(pod)
        return pod

    yield make
    for pod in made:
        pod.close()


def spoil(pod: Pod) -> None:
    """A batch of seven in groups of two: prime-rl refuses it."""
    text = pod.practice.config.read_text()
    assert "\nbatch_size = 8\n" in text
    pod.practice.config.write_text(text.replace("\nbatch_size = 8\n", "\nbatch_size = 7\n"))


def attempts(pod: Pod) -> list[str]:
    return sorted(path.name for path in pod.state_dir.glob("attempts/*"))


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_an_error_in_what_the_setup_installs_stops_the_first_start_with_93_until_it_is_overruled_by_name(
    new_pod: NewPod, tmp_path: Path
) -> None:
    pod = new_pod(environ={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    spoil(pod)
    home, hidden = pod.practice.home, pod.folder / "not-yet"
    home.rename(hidden)
    text = pod.run_file.read_text()
    pod.run_file.write_text(f'{text}[setup]\ncommands = ["mv {hidden} {home}"]\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(0.2)
        pod.start("onstart")
        heard = []
        while pod.daemon is not None and (pod.daemon.poll() is None or "STOPPING=1" not in heard[-1]):
            with suppress(TimeoutError):
                heard.append(systemd.recv(1 << 16).decode())
    assert pod.wait_exit() == 93
    assert f"[{ID}]" in heard[-1], "it is what systemctl status goes on to show"
    [sentence] = pod.sentences("gave-up")
    line = 1 + pod.practice.config.read_text().splitlines().index("batch_size = 7")
    assert f"[{ID}] {pod.practice.config} line {line}: " in sentence
    assert f"To start anyway: --overrule {ID}, or [check] overrule = " in sentence
    assert attempts(pod) == []
    assert pod.practice.starts() == []

    pod.start("run", "--overrule", ID)
    pod.wait_for(lambda: pod.step() >= 1, "a step is done, for a person has said that it is meant")
    assert pod.said_so("check", f"[{ID}]")
    assert pod.said_so("check", "It is overruled.")


@pytest.mark.soak
def test_a_run_that_has_trained_starts_again_whatever_the_check_says_of_it(new_pod: NewPod) -> None:
    pod = new_pod(settings={"check": {"overrule": [ID]}})
    spoil(pod)
    pod.start()
    pod.wait_for(lambda: pod.step() >= 3, "three steps are done")
    pod.kill_daemon()
    pod.end_job()
    pod.run_file.write_text(pod.run_file.read_text().replace(f'overrule = ["{ID}"]', "overrule = []"))
    pod.start()
    pod.wait_for(lambda: pod.status().get("attempt") == 2 and pod.status()["state"] == "running", "it trains again")
    assert pod.said_so("check", "The run starts anyway: it goes on with the configuration that last made steps.")


@pytest.mark.soak
def test_of_a_run_that_is_only_observed_it_is_said_what_would_stop_it(new_pod: NewPod) -> None:
    pod = new_pod(settings={"recovery": {"mode": "observe"}})
    spoil(pod)
    pod.start()
    pod.wait_for(lambda: pod.said_so("check", f"[{ID}]"), "the error is said")
    assert pod.said_so("check", "It would stop a start of this run, which is only observed.")
    assert pod.practice.starts() == []


@pytest.mark.soak
def test_an_inference_server_of_its_own_is_not_started_either(new_pod: NewPod, tmp_path: Path) -> None:
    practice = make_practice(tmp_path / "practice", "2026-08-21", own_engine=True, max_steps=400, interval=2)
    settings = {
        "job": {"inference_config": str(practice.engine_config)},
        "gpus": {"inference": [0], "trainer": [1]},
        "recovery": {"inference": "own-role"},
    }
    pod = new_pod("2026-08-21", practice=practice, settings=settings)
    spoil(pod)
    assert pod.start().wait_exit() == 93
    assert any(f"[{ID}]" in str(record.get("sentence")) for record in pod.said())
    assert list(pod.state_dir.glob("engines/*")) == []
    assert pod.practice.starts() == []
