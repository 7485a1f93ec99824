"""From pod to pod: what one pod published, another one restores and goes on with; a daemon that dies costs nothing.

The pods are real daemons with the practice job; the stores are a folder and the small B2 server over HTTP.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.b2server import B2Server, Key
from tests.practice.gpus import DEFAULT_TOTAL_BYTES, make_gpus
from tests.practice.run import Practice, free_port_pair, make_practice

from .rig import Pod, remove_tree

NewPod = Callable[..., Pod]


def at_night(practice: Practice) -> Practice:
    """The run's own configuration has a name that no install brings along."""
    config = practice.config.with_name("night.toml")
    practice.config.rename(config)
    return dataclasses.replace(practice, config=config)


def impatient(options: dict[str, Any]) -> dict[str, Any]:
    """A pod that vanishes gives nothing back: the next one waits until its heartbeat is this old, in seconds."""
    settings = options.get("settings", {})
    return {**settings, "store": {"take_over_after": 4, **settings.get("store", {})}}


def first_pod(folder: Path, era: str, **options: Any) -> Pod:
    options["settings"] = impatient(options)
    knobs = {
        key: options.pop(key) for key in list(options) if key in ("max_steps", "interval", "step_s", "checkpoint_bytes")
    }
    practice = at_night(
        make_practice(folder / "practice", era, **{"max_steps": 20, "interval": 2, "step_s": 0.6, **knobs})
    )
    return Pod(folder, practice=practice, interval=knobs.get("interval", 2), **options)


def next_pod(folder: Path, before: Pod, setup: str | None = None, **options: Any) -> Pod:
    """A pod with GPUs and nothing else: [setup] installs the practice prime-rl, the configuration is not there."""
    practice = before.practice
    home = folder / "practice" / "prime-rl"
    remove_tree(folder)
    (folder / "practice").mkdir(parents=True)
    make_gpus(folder / "practice" / "gpus", 2, DEFAULT_TOTAL_BYTES)
    here = dataclasses.replace(
        practice,
        home=home,
        config=home / "configs" / practice.config.name,
        knobs_file=folder / "practice" / "practice-knobs.toml",
        run_dir=home / practice.run_dir.relative_to(practice.home),
        gpus=folder / "practice" / "gpus",
    )
    here.set_knobs(step_s=0.1)
    install = f"{sys.executable} -m tests.practice.install {shlex.quote(str(home))} --era {practice.era.name}"
    repository = Path(__file__).parents[2]
    command = setup if setup is not None else f"cd {shlex.quote(str(repository))} && {install}"
    settings = {**impatient(options), "setup": {"commands": [command]}}
    options.pop("settings", None)
    options = {"store": before.store, "environ": before.environ, **options}
    return Pod(folder, practice=here, settings=settings, **options)


def b2_settings(server: B2Server) -> dict[str, Any]:
    return {
        "store": "b2://the-bucket/runs",
        "environ": server.environ(),
        "settings": {"store": {"realm": server.url}},
    }


def in_bucket(server: B2Server) -> list[int]:
    names = [name.split("/") for name in server.objects()]
    return sorted(int(n[2].removeprefix("step_")) for n in names if n[-1] == "manifest.json" and n[1] == "practice")


def in_latest(server: B2Server) -> dict[str, Any]:
    return dict(json.loads(server.objects()["runs/practice/latest.json"]))


def identities(pod: Pod) -> list[Any]:
    """The W&B identity of each start: by environment in the newer eras, by flag in the older ones."""
    found = []
    for start in pod.practice.starts():
        words = start["arguments"]
        flags = [words[i + 1] for i, word in enumerate(words) if word.startswith("--") and word.endswith("wandb.id")]
        ids = [start["values"].get(name) for name in ("WANDB_SHARED_RUN_ID", "PRL_RUN_ID", "WANDB_RUN_ID")]
        found.append(next((value for value in (*flags, *ids) if value), None))
    return found


# ---------------------------------------------------------------- a pod vanishes


@pytest.mark.soak
@pytest.mark.parametrize(("era", "place"), [("v0.6", "another"), ("2026-08-21", "the same")])
def test_a_pod_vanishes_and_another_resumes_the_newest_step_byte_for_byte(
    era: str, place: str, tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    one = first_pod(tmp_path / "one", era, **b2_settings(b2))
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    one.kill_daemon()
    b2.wait_idle()
    kept = {step: one.step_bytes(step) for step in in_bucket(b2)}
    wandb = identities(one)
    assert wandb[0] and in_latest(b2)["wandb_run_id"] == wandb[0]
    one.vanish()
    newest = int(in_latest(b2)["step"].removeprefix("step_"))  # what lies above the pointer was never published
    assert newest in kept

    two = next_pod(tmp_path / ("one" if place == "the same" else "two"), one, settings={"store": {"realm": b2.url}})
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.sentences("restored"), "the step is restored")
    assert two.step_bytes(newest) == kept[newest]
    assert kept[newest], "a step has files"
    assert two.wait_exit() == 0, two.story()
    assert two.resume_steps() == [newest]
    assert "every byte verified" in two.sentences("restored")[0]
    assert two.said_so("next-pod", "night.toml is not on this pod; the store's copy of it is used")
    assert identities(two) == wandb, "one W&B run across pods"
    assert in_latest(b2)["step"] == "step_20"
    assert in_latest(b2)["wandb_run_id"] == wandb[0]


def damage(store: Path, step: int) -> Path:
    """Turn the bits of one byte in the middle of the largest object of a stored step."""
    objects = [path for path in (store / "practice" / f"step_{step}").rglob("*") if path.is_file()]
    victim = max(objects, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(bytes(data))
    return victim


@pytest.mark.soak
def test_the_newest_stored_step_is_damaged_so_the_one_before_is_restored(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "2025-09-30", store=store)
    pods.append(one)
    one.start()
    one.wait_for(lambda: len(one.sentences("published")) >= 2, "two steps are published")
    one.vanish()
    newest = int(one.latest()["step"].removeprefix("step_"))
    before = max(step for step in one.stored() if step < newest)
    victim = damage(tmp_path / "store", newest)
    broken = victim.read_bytes()

    two = next_pod(tmp_path / "two", one)
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.said_so("restore-damaged", f"Step {newest} in the store is damaged and is left as it is")
    assert victim.read_bytes() == broken, "what is damaged is a person's to look at"
    assert two.wait_exit() == 0, two.story()
    assert two.resume_steps() == [before]
    assert two.latest()["step"] == "step_20"


@pytest.mark.soak
def test_a_step_of_the_original_scripts_is_restored_and_resumed(tmp_path: Path, pods: list[Pod]) -> None:
    """Plain files under RUN/step_N and a latest.json of four fields: no manifest, no settings, no configuration."""
    one = first_pod(tmp_path / "one", "2026-08-21", store=(tmp_path / "own").as_uri())
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    one.kill_daemon()
    one.practice.end_all()
    step = max(one.stored())
    config = one.practice.config.read_text()
    local = one.step_bytes(step)
    run = tmp_path / "theirs" / "practice"
    for name, data in local.items():
        path = run / f"step_{step}" / name.split(f"step_{step}/", 1)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    pointer = {
        "step": f"step_{step}",
        "run_id": "practice",
        "wandb_run_id": "wnb01234",
        "timestamp": "2026-01-06T03:14:15+00:00",
    }
    (run / "latest.json").write_text(json.dumps(pointer))
    one.vanish()

    two = next_pod(tmp_path / "two", one, store=(tmp_path / "theirs").as_uri())
    pods.append(two)
    night = two.folder / "night.toml"
    night.write_text(config)
    home = shlex.quote(str(two.practice.home))
    text = two.run_file.read_text().replace(
        f"--era {two.practice.era.name}",
        f"--era {two.practice.era.name} && cp {shlex.quote(str(night))} {home}/configs/",
    )
    two.run_file.write_text(text)
    two.start("onstart")
    two.wait_for(lambda: two.sentences("restored"), "the step is restored")
    assert "it has no manifest" in two.sentences("restored")[0]
    assert two.step_bytes(step) == local
    assert two.wait_exit() == 0, two.story()
    assert two.resume_steps() == [step]
    assert two.latest()["step"] == "step_20"
    assert two.latest()["wandb_run_id"] == "wnb01234", "the W&B run of the scripts goes on"


# ---------------------------------------------------------------- a store that does not answer


@pytest.mark.soak
def test_a_store_that_cannot_be_listed_is_waited_for_and_never_taken_for_an_empty_one(
    tmp_path: Path, pods: list[Pod]
) -> None:
    port = free_port_pair(0)
    with B2Server(port=port) as b2:
        one = first_pod(tmp_path / "one", "v0.6", **b2_settings(b2))
        pods.append(one)
        one.start()
        one.wait_for(lambda: "runs/practice/latest.json" in b2.objects(), "a step is published")
        one.kill_daemon()
        b2.wait_idle()
        one.vanish()
        newest = int(in_latest(b2)["step"].removeprefix("step_"))
        stored = b2.state

    two = next_pod(tmp_path / "two", one, settings={"store": {"realm": f"http://127.0.0.1:{port}"}})
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: "cannot be listed" in str(two.status().get("sentence")), "the status says so")
    asked = two.ctl("status")
    assert asked.returncode == 0, asked
    assert "may hold checkpoints" in asked.stdout
    assert not two.practice.starts()
    assert two.daemon is not None and two.daemon.poll() is None, "it waits"

    kept = ("buckets", "versions", "keys", "_numbers", "_timestamp")
    with B2Server(port=port) as b2:
        b2.state.__dict__.update({k: v for k, v in stored.__dict__.items() if k in kept})
        b2.bucket = stored.buckets["the-bucket"]
        two.wait_for(lambda: two.sentences("restored"), "the store answers, and the step is restored")
        assert two.wait_exit() == 0, two.story()
        assert in_latest(b2)["step"] == "step_20"
    assert two.resume_steps() == [newest]


@pytest.mark.soak
@pytest.mark.parametrize("configured", [True, False])
def test_a_wrong_key_ends_with_93_and_says_what_to_do(
    configured: bool, tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = b2_settings(b2) | {"environ": b2.environ(Key("0000wrong001", "K000wrong"))}
    pod = first_pod(tmp_path / "one", "v0.6", **options)
    pods.append(pod)
    if not configured:
        pod.practice.config.unlink()
    assert pod.run_to_end("onstart") == 93, pod.story()
    assert not pod.practice.starts()
    text = pod.output.read_text()
    assert "B2 refuses the application key ...g001" in text, text
    assert "K000wrong" not in text


def transfer_of(pod: Pod) -> list[psutil.Process]:
    assert pod.daemon is not None
    return [
        child
        for child in psutil.Process(pod.daemon.pid).children(recursive=True)
        if "supervisor.checkpoints.transfer" in child.cmdline()
    ]


@pytest.mark.soak
def test_the_transfer_is_killed_in_the_middle_of_a_publish_which_completes_all_the_same(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    pod = first_pod(tmp_path / "one", "v0.6", max_steps=6, step_s=0.5, checkpoint_bytes=1_000_000, **b2_settings(b2))
    pods.append(pod)
    b2.state.bytes_per_s = 400_000
    pod.start()
    pod.wait_for(lambda: b2.journal("b2_upload_part"), "the first step is on its way")
    killed = 0
    for child in transfer_of(pod):
        os.kill(child.pid, signal.SIGKILL)
        killed += 1
    assert killed
    b2.state.bytes_per_s = 0
    assert pod.wait_exit() == 0, pod.story()
    assert pod.said_so("publish-failed", "was killed by signal 9 without an answer")
    assert in_latest(b2)["step"] == "step_6"
    assert pod.resume_steps() == [None]


# ---------------------------------------------------------------- a daemon dies


@pytest.mark.soak
def test_a_daemon_is_killed_and_the_next_one_takes_over_the_living_job(tmp_path: Path, pods: list[Pod]) -> None:
    seldom = {"job": {"checkpoint_interval": 6}}  # what is tried here is no publishing, and thirty of them cost most
    pod = first_pod(tmp_path / "one", "2026-01-06", max_steps=60, step_s=0.5, interval=6, settings=seldom)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    (launcher,) = {start["pid"] for start in pod.practice.starts()}
    pod.kill_daemon()
    told = len(pod.sentences("step"))
    pod.start()
    pod.wait_for(lambda: pod.sentences("adopted"), "the job is taken over")
    assert pod.status()["pid"] == launcher
    pod.wait_for(lambda: len(pod.sentences("step")) > told, "steps go on")
    assert pod.wait_exit() == 0, pod.story()
    assert [start["pid"] for start in pod.practice.starts()] == [launcher], "the job was not touched"
    assert pod.latest()["step"] == "step_60"
    assert pod.said_so("verdict", "The job finished: exit code 0")
    steps = [int(sentence.split()[1]) for sentence in pod.sentences("step")]
    assert steps == sorted(set(steps)), "no step is told twice"


@pytest.mark.soak
def test_a_daemon_without_its_journal_takes_over_the_living_job(tmp_path: Path, pods: list[Pod]) -> None:
    pod = first_pod(tmp_path / "one", "2026-01-06", max_steps=24, step_s=3)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.stored(), "a step is stored")
    (launcher,) = {start["pid"] for start in pod.practice.starts()}
    pod.kill_daemon()
    for file in pod.state_dir.glob("journal.db*"):
        file.write_bytes(b"no database at all" * 100)
    pod.start()
    pod.wait_for(lambda: pod.said_so("adopted", "which no journal tells of"), "the job is taken over")
    assert pod.status()["pid"] == launcher
    pod.practice.set_knobs(step_s=0.1)
    assert pod.wait_exit() == 0, pod.story()
    assert [start["pid"] for start in pod.practice.starts()] == [launcher], "the job was not touched"
    assert pod.latest()["step"] == "step_24"


@pytest.mark.soak
def test_a_job_that_ends_while_no_daemon_watches_is_judged_by_its_exit_code(tmp_path: Path, pods: list[Pod]) -> None:
    faults = [{"kind": "trainer-crash", "at_step": 13}]
    patient = {"deadlines": {"engine_grace": 3, "memory_fell": 30}}
    pod = Pod(tmp_path, "v0.6", faults=faults, settings=patient, max_steps=16, step_s=1.5)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.sentences("step"), "a step is done")
    pod.kill_daemon()
    assert not pod.sentences("verdict")
    pod.wait_for_here(lambda: not pod.practice.alive(), "the job has ended by itself")
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    assert pod.said_so("verdict", "The job ended with exit code 1"), pod.sentences("verdict")
    assert pod.resume_steps() == [None, 12]
    assert pod.latest()["step"] == "step_16"


@pytest.mark.soak
def test_a_job_that_finishes_while_no_daemon_watches_is_published_and_the_run_is_over(
    tmp_path: Path, pods: list[Pod]
) -> None:
    pod = Pod(tmp_path, "2026-08-21", max_steps=6, step_s=0.6)
    pods.append(pod)
    pod.start()
    pod.wait_for(lambda: pod.sentences("step"), "a step is done")
    pod.kill_daemon()
    pod.wait_for_here(lambda: not pod.practice.alive(), "the job has ended by itself")
    pod.start()
    assert pod.wait_exit() == 0, pod.story()
    assert pod.resume_steps() == [None]
    assert pod.latest()["step"] == "step_6"


# ---------------------------------------------------------------- where a person says where to begin


@pytest.mark.soak
def test_a_step_that_is_not_to_be_had_one_that_is_and_a_fresh_start(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, "v0.6", max_steps=6, step_s=0.15)
    pods.append(pod)
    pod.start()
    assert pod.wait_exit() == 0, pod.story()

    pod.start("run", "--step", "5")
    assert pod.wait_exit() == 93, pod.story()
    assert pod.said_so("gave-up", "Step 5 was asked for (--step) and cannot be used: complete here")
    assert pod.resume_steps() == [None], "nothing is started"

    pod.start("run", "--step", "4")
    assert pod.wait_exit() == 0, pod.story()
    assert pod.resume_steps() == [None, 4]
    assert pod.said_so("starting", "A person asked for step 4 (--step).")
    aside = pod.practice.home / "outputs" / ".set-aside"
    assert [path for path in aside.rglob("step_6") if "-whole" in str(path)], "kept, out of the job's sight"
    assert pod.latest()["step"] == "step_6"
    manifest = Path(pod.store.removeprefix("file://")) / "practice" / "step_6" / "manifest.json"
    assert manifest.exists()

    before = pod.step_bytes(6)
    pod.start("run", "--fresh")
    assert pod.wait_exit() == 0, pod.story()
    assert pod.resume_steps() == [None, 4, None]
    assert pod.said_so("starting", "A person asked for a fresh start (--fresh).")
    kept = {path.read_bytes() for path in aside.rglob("*") if path.is_file()}
    assert before and set(before.values()) <= kept, "nothing is lost"
    assert pod.latest()["step"] == "step_6"


def test_incomplete_steps_of_unknown_origin_are_never_started_over(tmp_path: Path, pods: list[Pod]) -> None:
    pod = Pod(tmp_path, "v0.6", max_steps=6)
    pods.append(pod)
    torn = pod.practice.trainer_part(4)
    torn.mkdir(parents=True)
    (torn / "__0_0.distcp").write_bytes(b"half")
    assert pod.run_to_end() == 93, pod.story()
    assert pod.said_so("gave-up", "There are checkpoints and none of them is good: step 4 (")
    assert pod.said_so("gave-up", "start with --step N, or with --fresh to begin again")
    assert (torn / "__0_0.distcp").read_bytes() == b"half"
    assert not pod.practice.starts()


@pytest.mark.soak
def test_a_run_whose_last_step_is_stored_is_over_on_the_next_pod_and_trains_nothing(
    tmp_path: Path, pods: list[Pod]
) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "2026-08-21", store=store, max_steps=4, step_s=0.2)
    pods.append(one)
    one.start()
    assert one.wait_exit() == 0, one.story()
    one.vanish()
    two = next_pod(tmp_path / "two", one)
    pods.append(two)
    two.start("onstart")
    assert two.wait_exit() == 0, two.story()
    assert two.said_so("verdict", "Step 4 of 4 is there: nothing is left to train.")
    assert not two.practice.starts()
