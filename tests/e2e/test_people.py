"""What people do with a running supervisor: look, stop, pause, restart, read, leave; and what they do by hand."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import __version__

from .rig import Pod

NewPod = Callable[..., Pod]
SAMPLE = re.compile(r'^rl_supervisor_\w+\{[^}]*run="practice"[^}]*\} [-+0-9.eInfNa]+$')


@pytest.fixture
def new_pod(tmp_path: Path) -> Iterator[NewPod]:
    made: list[Pod] = []

    def make(era: str = "v0.6", **options: Any) -> Pod:
        pod = Pod(tmp_path, era, **{"max_steps": 400, "step_s": 0.3, **options})
        made.append(pod)
        return pod

    yield make
    for pod in made:
        pod.close()


def running(pod: Pod, step: int = 1) -> Pod:
    pod.start()
    pod.wait_for(lambda: pod.step() >= step, f"step {step} is done")
    return pod


def page(path: Path, name: str) -> tuple[int, str]:
    """One page over the unix socket, with nothing of ours in between."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10)
    connection.sock.connect(str(path))
    connection.request("GET", name)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


# ---------------------------------------------------------------- looking


@pytest.mark.soak
def test_everything_that_can_be_asked_of_a_living_run_and_of_one_whose_daemon_is_gone(new_pod: NewPod) -> None:
    pod = running(new_pod(), 3)
    pod.wait_for(pod.stored, "a step is stored")

    shown = pod.ctl("status")
    assert shown.returncode == 0, shown
    assert re.match(r"practice +RUNNING +step \d+ of 400, .*published step \d+", shown.stdout), shown.stdout
    told = pod.ctl("status", "--json")
    status = json.loads(told.stdout)
    assert (status["run"], status["state"], status["max_steps"]) == ("practice", "running", 400)
    assert status["published_step"] in pod.stored()
    assert [gpu["role"] for gpu in status["gpus"]] == ["inference", "trainer"]
    assert status["gpus"][0]["used_bytes"] > 0

    assert "step" in pod.ctl("tail", "-n", "50", "orchestrator").stdout.lower()
    assert "Step" in pod.ctl("tail", "-n", "5", "trainer").stdout
    wrong = pod.ctl("tail", "cook")
    assert wrong.returncode == 1
    assert "There is no log of 'cook'" in wrong.stderr
    events = pod.ctl("events", "-n", "200", "--json").stdout.splitlines()
    assert "launched" in {json.loads(line)["event"] for line in events}
    steps = pod.ctl("checkpoints").stdout
    assert re.search(r"latest published", steps), steps
    explained = pod.ctl("explain").stdout
    assert "step" in explained
    assert "pid" in explained
    assert pod.ctl("version").stdout.splitlines()[0] == f"supervisorctl {__version__}"

    code, metrics = page(pod.socket, "/metrics")
    assert code == 200
    samples = [line for line in metrics.splitlines() if not line.startswith("#")]
    assert samples
    assert [line for line in samples if not SAMPLE.match(line)] == []
    assert any(line.startswith("rl_supervisor_max_steps{") and line.endswith(" 400") for line in samples)
    assert page(pod.socket, "/healthz")[0] == 200
    assert page(pod.socket, "/readyz")[0] == 200

    pod.kill_daemon()
    gone = pod.ctl("status")
    assert gone.returncode == 4, gone
    # A socket does not tell whether the job lives.
    assert "UNKNOWN No daemon answers at " in " ".join(gone.stdout.split())
    by_run = pod.command_line("status", str(pod.run_file))
    assert by_run.returncode == 3 and "The job lives on without it." in " ".join(by_run.stdout.split()), by_run
    for pid in pod.practice.pids("engine-core"):
        os.kill(pid, signal.SIGKILL)
    pod.wait_for_here(lambda: not pod.practice.pids("engine-core"), "vLLM's core is gone")
    by_run = pod.command_line("status", str(pod.run_file))
    assert "vLLM died since, and nobody acts." in " ".join(by_run.stdout.split()), by_run


@pytest.mark.soak  # for it is waited for
def test_a_daemon_that_does_not_answer_is_unknown(new_pod: NewPod) -> None:
    pod = running(new_pod())
    pod.kill_daemon()
    pod.socket.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(pod.socket))
        stranger.listen()
        hangs_up = threading.Thread(target=lambda: stranger.accept()[0].close(), daemon=True)
        hangs_up.start()
        unclear = pod.ctl("status")
        hangs_up.join(10)
    assert unclear.returncode == 4, unclear
    assert "UNKNOWN" in unclear.stdout


# ---------------------------------------------------------------- steering


@pytest.mark.soak
def test_stopped_stays_stopped_under_a_new_daemon_until_start(new_pod: NewPod) -> None:
    pod = running(new_pod(), 3)
    assert pod.ctl("stop").returncode == 0
    pod.wait_for(lambda: pod.status().get("state") == "stopped", "the run is stopped")
    assert not pod.practice.alive()
    assert pod.ctl("status").returncode == 3
    pod.kill_daemon()
    pod.start()
    pod.wait_for(lambda: pod.said_so("stopped", "Stopped by a person. It stays stopped until"), "it says so")
    assert pod.status()["state"] == "stopped"
    assert len(pod.practice.starts()) == 1
    assert pod.ctl("start").returncode == 0
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the job is started")
    assert pod.resume_steps()[1] is not None


@pytest.mark.soak
def test_paused_nothing_is_done_about_a_dead_engine_and_resumed_it_is_healed(new_pod: NewPod) -> None:
    pod = new_pod(faults=[{"kind": "engine-exit-0", "at_step": 8}], max_steps=12)
    pod.start()
    pod.wait_for(lambda: pod.sentences("launched"), "the job is launched")  # long before its eighth step
    assert pod.ctl("pause").returncode == 0
    pod.wait_for(lambda: pod.said_so("suspect", "Paused, so nothing is done about it: vLLM died"), "the death is seen")
    shown = pod.ctl("status")
    assert "PAUSED" in shown.stdout
    assert not pod.sentences("verdict")
    assert pod.practice.pids("trainer-rank"), "the job was not touched"
    pod.kill_daemon()
    pod.start()
    pod.wait_for(lambda: pod.status().get("paused"), "a new daemon is paused too")
    assert len(pod.practice.starts()) == 1
    assert pod.ctl("resume").returncode == 0
    assert pod.wait_exit() == 0, pod.story()
    assert "vLLM died silently" in pod.sentences("verdict")[0]
    assert len(pod.practice.starts()) == 2
    assert pod.latest()["step"] == "step_12"


@pytest.mark.soak
def test_a_changed_config_is_reported_left_alone_and_taken_when_asked_for(new_pod: NewPod) -> None:
    pod = running(new_pod(), 3)
    text = pod.practice.config.read_text()
    assert "max_steps = 400" in text
    pod.practice.config.write_text(text.replace("max_steps = 400", "max_steps = 300"))
    pod.wait_for(lambda: pod.said_so("config-changed", "was changed on disk; the run goes on with"), "it is reported")
    assert pod.ctl("restart").returncode == 0
    pod.wait_for(lambda: pod.sentences("launched")[1:] and pod.status().get("state") == "running", "it runs again")
    snapshots = sorted((pod.state_dir / "attempts").glob("*/config/*.toml"))
    assert "max_steps = 400" in snapshots[-1].read_text(), "what ran is what runs"
    assert pod.status()["max_steps"] == 400
    assert pod.ctl("restart", "--new-config").returncode == 0
    pod.wait_for(lambda: pod.sentences("launched")[2:] and pod.status().get("state") == "running", "it runs anew")
    snapshots = sorted((pod.state_dir / "attempts").glob("*/config/*.toml"))
    assert "max_steps = 300" in snapshots[-1].read_text()
    assert pod.status()["max_steps"] == 300
    assert not pod.sentences("verdict"), "a person's restart is no incident"


# ---------------------------------------------------------------- leaving


@pytest.mark.soak  # a SIGTERM that comes at a worse moment: test_shutdown.py
def test_sigterm_stops_the_job_cleanly_and_publishes_the_last_complete_step(new_pod: NewPod) -> None:
    pod = running(new_pod("2026-08-21"), 5)
    assert pod.daemon is not None
    pod.daemon.send_signal(signal.SIGTERM)
    assert pod.wait_exit() == 0, pod.story()
    assert not pod.practice.alive()
    complete = [step for step in range(2, 401, 2) if (pod.practice.trainer_part(step) / ".metadata").exists()]
    assert complete
    assert pod.latest()["step"] == f"step_{max(complete)}"
    pod.start()
    pod.wait_for(lambda: len(pod.practice.starts()) == 2, "the next daemon goes on")
    assert pod.resume_steps()[1] == max(complete)


@pytest.mark.soak
def test_the_finish_hook_runs_once_the_last_step_is_published_and_the_job_saw_no_key_of_the_store(
    new_pod: NewPod, tmp_path: Path
) -> None:
    pointer, seen = tmp_path / "store" / "practice" / "latest.json", tmp_path / "seen.json"
    hook = {"hooks": {"finish": f"cat '{pointer}' >> '{seen}'"}}
    keys = {
        "B2_APPLICATION_KEY_ID": "0001234567890ab0000000001",
        "B2_APPLICATION_KEY": "K000abcdefghijklmnopqrstuvwxyz1",
        "AWS_SECRET_ACCESS_KEY": "not-for-the-job",
        "WANDB_API_KEY": "for-the-job",
    }
    pod = new_pod(settings=hook, environ=keys, max_steps=4, step_s=0.2)
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    assert json.loads(seen.read_text())["step"] == "step_4"
    (start,) = pod.practice.starts()
    assert "WANDB_API_KEY" in start["names"]
    assert not [name for name in start["names"] if name.startswith(("B2_", "AWS_"))]
    written = [path for path in pod.state_dir.rglob("*") if path.is_file()]
    assert not [path for path in written if keys["B2_APPLICATION_KEY"].encode() in path.read_bytes()]


# ---------------------------------------------------------------- by hand


@pytest.mark.soak
def test_publish_by_hand_leaves_a_run_alone_that_a_daemon_has(new_pod: NewPod) -> None:
    pod = running(new_pod())
    busy = pod.by_hand("publish")
    assert busy.returncode == 1
    assert "A daemon watches run practice" in busy.stderr, busy


@pytest.mark.soak
def test_a_dead_pods_store_is_all_that_a_person_needs(new_pod: NewPod, tmp_path: Path) -> None:
    pod = new_pod(max_steps=8, step_s=0.2, faults=[{"kind": "engine-exit-0", "at_step": 5}])
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    kept = pod.step_bytes(8)
    pod.vanish()
    pod.run_file.unlink()
    there = ("--store", pod.store, "--run-id", "practice")

    def anywhere(verb: str, *words: str) -> str:
        command = [sys.executable, "-m", "supervisor.cli.main", verb, *there, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
        assert done.returncode == 0, done
        return done.stdout

    listed = anywhere("logs")
    assert {line.split()[0] for line in listed.splitlines()[1:]} == {"1", "2"}, listed
    first = anywhere("logs", "--attempt", "1")
    assert "vLLM died silently" in first, "the evidence of the incident"
    assert "Step 4" in first, "and how the trainer's log ended"
    assert "Restored step 8" in anywhere("restore", "--to", "here")
    restored = {path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert set(kept.values()) <= restored
    assert "Step 8 is good" in anywhere("verify", "--deep", "100")
    assert "effective training" in anywhere("report")


@pytest.mark.soak
def test_orders_about_a_step_are_refused_when_there_is_no_such_step(new_pod: NewPod) -> None:
    pod = running(new_pod(), 5)
    pod.wait_for(pod.stored, "a step is stored")
    pod.wait_for(lambda: pod.status().get("published_step"), "and known to be")
    stored = str(pod.stored()[-1])
    for verb, told in (("rollback", "neither here nor"), ("pin", "not whole here or")):
        refused = pod.ctl(verb, "9999")
        assert refused.returncode == 1
        assert f"Step 9999 is {told} in the store" in refused.stderr
        assert pod.ctl(verb, "newest").returncode == 2
    assert pod.ctl("pin", stored).returncode == 0
    pod.wait_for(lambda: int(stored) in pod.status()["pinned"], "it is pinned")
    assert "pinned" in pod.ctl("checkpoints").stdout
    assert pod.ctl("unpin", stored).returncode == 0
    pod.wait_for(lambda: int(stored) not in pod.status()["pinned"], "it is pinned no more")
    # A listing that was begun before may tell of the pin once more.
    pod.wait_for(lambda: pod.ctl("unpin", stored).returncode == 1, "what is not pinned cannot be unpinned")
    assert len(pod.practice.starts()) == 1, "the job was left alone"


@pytest.mark.soak
def test_publish_restore_and_prune_by_hand(new_pod: NewPod, tmp_path: Path) -> None:
    pod = new_pod("2026-01-06", max_steps=8, step_s=0.15)
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    kept = pod.step_bytes(8)

    would = pod.by_hand("prune", "--dry-run")
    assert would.returncode == 0, would
    assert "Would delete step 2 (" in would.stdout
    assert pod.step_bytes(2), "a dry run changes nothing"

    would = pod.by_hand("restore", "--dry-run", "--to", str(tmp_path / "there"))
    assert re.match(r"Would restore step 8 \(.*\) from file:///", would.stdout), would
    assert not (tmp_path / "there").exists()
    done = pod.by_hand("restore", "--to", str(tmp_path / "there"))
    assert done.returncode == 0, done
    assert "every byte verified" in done.stdout
    restored = sorted(path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file())
    assert set(kept.values()) <= set(restored)

    missing = pod.by_hand("restore", "--step", "5", "--to", str(tmp_path / "there"))
    assert missing.returncode == 1
    assert "Step 5 is not in run practice in file:///" in missing.stderr

    again = pod.by_hand("publish", "--step", "8")
    assert again.returncode == 0, again
    assert re.match(r"Step 8 \(.*\) is published already, in file:///", again.stdout), again
    never = pod.by_hand("publish", "--step", "7")
    assert never.returncode == 1
    assert "There is no step 7 to publish" in never.stderr

    pruned = pod.by_hand("prune")
    assert pruned.returncode == 0, pruned
    assert "Deleted step 2" in pruned.stdout
    assert not pod.step_bytes(2)
    assert pod.step_bytes(8) == kept
