"""Two pods, one run: the real daemons, each with its own disk, over one store."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.fleet.run_look import look_at_run
from supervisor.storage import open_store
from tests.b2server import B2Server

from .rig import Pod
from .test_pods import b2_settings, first_pod, in_bucket, in_latest, next_pod, transfer_of

PATIENT = {"store": {"take_over_after": 60}}
"""Longer than a busy machine keeps a heartbeat waiting."""
LONG = {"store": {"take_over_after": 600}}
"""What nobody waits for here: whoever goes on within a test was let in at once."""


def over_b2(server: B2Server, **store: Any) -> dict[str, Any]:
    options = b2_settings(server)
    options["settings"]["store"].update(store)
    return options


def unfinished(server: B2Server) -> list[str]:
    with server.state.lock:
        return [version.name for version in server.state.versions.values() if version.action == "start"]


def local_steps(pod: Pod) -> set[int]:
    return {step["step"] for step in pod.status().get("local_steps", []) if step["state"] == "complete"}


def writers(pod: Pod) -> list[str]:
    folder = Path(pod.store.removeprefix("file://")) / "practice" / "writers"
    return sorted(path.name for path in folder.glob("*.json"))


@pytest.mark.soak
def test_a_duplicate_started_by_mistake_waits_and_the_run_ends_once(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=PATIENT, max_steps=24, step_s=3)
    two = next_pod(tmp_path / "two", one, settings=PATIENT)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    two.start("onstart")
    two.wait_for(lambda: two.said_so("claim-held", "holds this run (generation 1, its heartbeat moved"), "it waits")
    assert "nothing is started here" in str(two.status().get("sentence"))
    told = two.ctl("status")
    assert "at once with: supervisorctl start --take-over" in " ".join(told.stdout.split()), told
    one.practice.set_knobs(step_s=0.1)
    assert one.wait_exit() == 0, one.story()
    assert two.wait_exit() == 0, two.story()
    assert not two.practice.starts(), "the duplicate trained nothing"
    assert two.said_so("verdict", "Step 24 of 24 is there: nothing is left to train.")
    assert one.latest()["generation"] == 1
    assert {"gen_00001.json", "gen_00001.end.json", "gen_00002.json"} <= set(writers(one))


@pytest.mark.soak
def test_take_over_fences_the_pod_that_held_the_run_and_its_job_goes_on(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=PATIENT, max_steps=400)
    two = first_pod(tmp_path / "two", "v0.6", store=store, settings=PATIENT, max_steps=400)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    two.practice.set_knobs(step_s=0.4)
    two.start("onstart", "--take-over")
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "it holds the run")
    one.wait_for(lambda: one.sentences("fenced"), "the other one is told")
    assert one.said_so("fenced", "has taken this run over (generation 2): nothing is published")
    told, published = one.step(), len(one.sentences("published"))
    one.wait_for(lambda: one.step() > told + 2, "its job goes on")
    assert len(one.sentences("published")) == published, "and nothing of it is published"
    two.wait_for(lambda: two.latest().get("generation") == 2, "the new holder publishes")
    assert not two.said_so("publish-failed", "holds run")


@pytest.mark.soak
def test_a_pod_that_is_handed_the_standing_of_a_convicted_one_goes_on_at_once(tmp_path: Path, pods: list[Pod]) -> None:
    """What a fleet's controller does: it looks at the store, and tells the pod that it rents what it saw last."""
    url = (tmp_path / "store").as_uri()
    store = open_store(url, None, {})
    settings = {"store": {"take_over_after": 30}}  # a beat each three seconds
    label = "rls-practice-g00001-0a1b2c"
    one = first_pod(
        tmp_path / "one",
        "v0.6",
        store=url,
        settings=settings,
        max_steps=400,
        step_s=0.5,
        environ={"RL_SUPERVISOR_LABEL": label},
    )
    pods.append(one)
    one.start()

    def heard() -> bool:
        looked = look_at_run(store, "practice")
        return bool(looked.claim.step and looked.published) and looked.claim.unpublished is not None

    one.wait_for(heard, "a heartbeat tells how far the run is")
    assert look_at_run(store, "practice").claim.label == label
    one.vanish()
    seen = look_at_run(store, "practice").claim
    handed = {"RL_SUPERVISOR_CONVICTED": f"{seen.generation}:{seen.mark}"}
    two = next_pod(tmp_path / "two", one, settings=LONG, environ=handed)
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.said_so("convicted", "this pod claims the run at once"), "it holds the run")
    assert not two.sentences("claim-held"), "it waited for nothing"
    two.wait_for(lambda: two.latest().get("generation") == 2, "it publishes")
    assert two.ctl("shutdown").returncode == 0
    assert two.wait_exit() == 0, two.story()
    last = look_at_run(store, "practice").claim
    assert (last.released, last.code) == (True, 75), last
    assert "shut down" in last.reason, last


@pytest.mark.soak
def test_a_copied_disk_never_steals_the_run_of_its_living_original(tmp_path: Path, pods: list[Pod]) -> None:
    """State and outputs copied to another machine: the same journal, and no proof that it is the same pod."""
    store = (tmp_path / "store").as_uri()
    impatient = {"store": {"take_over_after": 30}}  # a beat each three seconds: a copy watches for nine
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=impatient, max_steps=400, step_s=0.5)
    two = first_pod(tmp_path / "two", "v0.6", store=store, settings=impatient, max_steps=400, step_s=0.5)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    two.state_dir.mkdir()
    for name in ("journal.db", "journal.db-wal"):
        shutil.copyfile(one.state_dir / name, two.state_dir / name)  # as kill -9 would leave it
    two.start()
    two.wait_for(lambda: two.said_so("claim-held", "with this very state folder"), "it watches")
    copied, beaten = time.monotonic(), one.step()
    one.wait_for(lambda: time.monotonic() - copied > 15 and one.step() > beaten, "longer than three beats")
    assert not two.practice.starts() and not two.sentences("claimed")
    assert not one.sentences("fenced"), "the original goes on"
    one.vanish()
    gone = time.monotonic()
    two.wait_for(lambda: two.sentences("claimed"), "the original is dead")
    assert time.monotonic() - gone < 25, "three beats, and not the whole patience"


@pytest.mark.soak
def test_rollback_by_hand_is_seen_by_a_pod_that_comes_before_the_next_publish(tmp_path: Path, pods: list[Pod]) -> None:
    store = (tmp_path / "store").as_uri()
    settings = {"store": {"keep_last": 50}}
    one = first_pod(tmp_path / "one", "v0.6", store=store, max_steps=400, step_s=0.3, settings=settings)
    pods.append(one)
    one.start()
    one.wait_for(lambda: len(one.stored()) >= 3, "three steps are stored")
    target = one.stored()[0]
    one.practice.set_knobs(step_s=30)
    told = one.ctl("rollback", str(target))
    assert told.returncode == 0, told
    one.wait_for(lambda: one.latest()["step"] == f"step_{target}", "the pointer went back")
    one.vanish()
    left = max(one.stored())
    assert left > target, "what was left is not deleted"

    two = next_pod(tmp_path / "two", one)
    pods.append(two)
    two.practice.set_knobs(step_s=0.3)
    two.start("onstart")
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.resume_steps() == [target]


# ---------------------------------------------------------------- one pod comes while another one writes


@pytest.mark.soak
def test_a_pod_that_is_fenced_in_the_middle_of_a_publish_spoils_nothing_and_may_take_the_run_back(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = over_b2(b2, take_over_after=12, keep_last=50)
    one = first_pod(tmp_path / "one", "v0.6", max_steps=400, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    two = first_pod(tmp_path / "two", "v0.6", max_steps=400, checkpoint_bytes=1_000_000, **options)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: len(one.sentences("published")) >= 2, "two steps are published")
    b2.state.bytes_per_s = 60_000
    sent = len(b2.journal("b2_upload_part"))
    one.wait_for(lambda: len(b2.journal("b2_upload_part")) > sent + 1, "another one is on its way")
    before = set(in_bucket(b2))
    two.practice.set_knobs(step_s=0.4)
    two.start("onstart", "--take-over")
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "it holds the run")
    b2.state.bytes_per_s = 0
    one.wait_for(lambda: one.sentences("fenced"), "the other one is told")
    here, published = local_steps(one), len(one.sentences("published"))

    told = one.ctl("status")
    assert told.returncode == 0, told
    words = " ".join(told.stdout.split())  # the lines of `status` are broken where the machine's name ends
    assert "has taken this run over (generation 2)" in words
    assert "Take it back with: supervisorctl start --take-over" in words
    two.wait_for(lambda: in_latest(b2).get("generation") == 2, "the new holder publishes")
    assert before <= set(in_bucket(b2)), "what was published stays"
    assert len(one.sentences("published")) == published, "the loser publishes no more"
    assert here <= local_steps(one) and not one.sentences("pruned"), "and keeps what its job saves on its own disk"
    checked = two.by_hand("verify")
    assert checked.returncode == 0, checked

    assert one.ctl("start", "--take-over").returncode == 0
    two.wait_for(lambda: two.sentences("fenced"), "now the other one is told")
    one.wait_for(lambda: one.said_so("claimed", "generation 3"), "it holds the run again")
    one.wait_for(lambda: in_latest(b2).get("generation") == 3, "and publishes")
    assert len(one.practice.starts()) == 1, "its job was never touched"
    assert not two.sentences("defect") and not one.sentences("defect")


@pytest.mark.soak
def test_a_pod_that_sleeps_for_longer_than_its_heartbeat_may_is_fenced_when_it_wakes(
    tmp_path: Path, pods: list[Pod]
) -> None:
    store = (tmp_path / "store").as_uri()
    patient = {"store": {"take_over_after": 6}}
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=patient, max_steps=400, step_s=0.5)
    two = first_pod(tmp_path / "two", "v0.6", store=store, settings=patient, max_steps=400)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    assert one.daemon is not None
    asleep = [psutil.Process(one.daemon.pid), *transfer_of(one)]
    for process in asleep:
        process.suspend()
    two.practice.set_knobs(step_s=0.4)
    two.start("onstart")
    two.wait_for(lambda: two.said_so("claim-held", "holds this run (generation 1"), "it waits")
    two.wait_for(lambda: two.said_so("claimed", "generation 2"), "the heartbeat stood still for long enough")
    held = next(record for record in two.said() if record.get("event") == "claim-held")
    claimed = next(record for record in two.said() if record.get("event") == "claimed")
    assert two.said().index(held) < two.said().index(claimed)
    published = len(one.sentences("published"))
    for process in asleep:
        if process.is_running():
            process.resume()
    one.wait_for(lambda: one.said_so("fenced", "has taken this run over (generation 2)"), "it is told")
    two.wait_for(lambda: two.latest().get("generation") == 2, "the new holder publishes")
    assert len(one.sentences("published")) <= published + 1, "at most what was in the store before it fell asleep"
    assert two.latest()["generation"] == 2


@pytest.mark.soak
def test_a_pod_that_only_observes_takes_the_run_from_nobody(tmp_path: Path, pods: list[Pod]) -> None:
    """However short its patience is: it has nothing to publish."""
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=PATIENT, max_steps=400, step_s=0.5)
    observe = {"recovery": {"mode": "observe"}, "store": {"take_over_after": 1}}
    two = Pod(tmp_path / "two", "v0.6", store=store, settings=observe, max_steps=400)
    pods += [one, two]
    two.start()
    two.wait_for(lambda: two.sentences("observing"), "it looks, with nothing to look at")
    assert not writers(two)
    one.start()
    one.wait_for(lambda: one.said_so("claimed", "generation 1"), "nobody is in the way")
    one.wait_for(lambda: len(one.sentences("published")) >= 2, "the holder publishes")
    assert two.daemon is not None
    two.daemon.send_signal(signal.SIGTERM)
    assert two.wait_exit() == 0, two.story()
    assert not one.sentences("fenced") and not two.sentences("claimed")
    assert "gen_00001.end.json" not in writers(one) and "gen_00002.json" not in writers(one)


# ---------------------------------------------------------------- who need not wait


@pytest.mark.soak
def test_the_next_daemon_of_a_pod_holds_its_run_at_once_and_a_second_pod_after_a_shutdown(
    tmp_path: Path, pods: list[Pod]
) -> None:
    store = (tmp_path / "store").as_uri()
    one = first_pod(tmp_path / "one", "v0.6", store=store, settings=LONG, max_steps=400, step_s=0.5)
    two = next_pod(tmp_path / "two", one, settings=LONG)
    pods += [one, two]
    one.start()
    one.wait_for(lambda: one.stored(), "a step is stored")
    one.kill_daemon()
    one.start()
    one.wait_for(lambda: one.said_so("claimed", "generation 2"), "its own journal's claim is no other pod's")
    one.wait_for(lambda: one.sentences("adopted"), "the job is taken over")
    one.wait_for(lambda: one.latest().get("generation") == 2, "and publishing goes on")
    assert not one.sentences("claim-held")
    assert not one.sentences("swept"), "what it left half-sent itself is gone on with"

    assert one.daemon is not None
    one.daemon.send_signal(signal.SIGTERM)
    assert one.wait_exit() == 0, one.story()
    assert "gen_00002.end.json" in writers(one)
    newest = one.latest()["step"]
    two.start("onstart")
    two.wait_for(lambda: two.said_so("claimed", "generation 3"), "nobody waits for a pod that gave its run back")
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.resume_steps() == [int(newest.removeprefix("step_"))], "the last step was published before"


@pytest.mark.soak
def test_a_run_that_cannot_be_given_back_says_what_that_costs(tmp_path: Path, pods: list[Pod], b2: B2Server) -> None:
    one = first_pod(tmp_path / "one", "v0.6", max_steps=60, step_s=0.5, **over_b2(b2, take_over_after=8))
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    b2.fail("b2_upload_file", name=r"\.end\.json", status=503, times=100)
    assert one.daemon is not None
    one.daemon.send_signal(signal.SIGTERM)
    assert one.wait_exit(150) == 0, one.story()  # the client's own tries took 44 s, and 60 beside other tests
    assert one.said_so("release-failed", "could not be given back in the store, so another pod waits 8 s")


@pytest.mark.soak
def test_what_a_pod_that_is_gone_left_half_sent_is_cancelled_once_another_one_holds_the_run(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    options = over_b2(b2, take_over_after=4)
    one = first_pod(tmp_path / "one", "v0.6", max_steps=60, step_s=0.5, checkpoint_bytes=1_000_000, **options)
    pods.append(one)
    one.start()
    one.wait_for(lambda: one.sentences("published"), "a step is published")
    b2.state.bytes_per_s = 60_000
    one.wait_for(lambda: unfinished(b2), "another one is on its way")
    one.vanish()
    b2.state.bytes_per_s = 0
    b2.wait_idle()
    left = unfinished(b2)
    assert left
    two = next_pod(tmp_path / "two", one, settings={"store": options["settings"]["store"]})
    pods.append(two)
    two.practice.set_knobs(step_s=30)
    two.start("onstart")
    two.wait_for(lambda: two.sentences("swept"), "what nobody finishes is cancelled")
    assert two.said_so("swept", f"Cancelled {len(left)} unfinished uploads"), two.sentences("swept")
    assert not unfinished(b2)


# ---------------------------------------------------------------- which steps are left


@pytest.mark.soak
def test_a_step_that_was_quarantined_on_one_pod_is_restored_by_no_other(
    tmp_path: Path, pods: list[Pod], b2: B2Server
) -> None:
    """The store knows at once: no publish comes after it."""
    one = first_pod(tmp_path / "one", "v0.6", max_steps=60, **over_b2(b2, take_over_after=4))
    pods.append(one)
    # Slow enough for step 4 to be published before the job fails there for the second time.
    one.practice.set_knobs(step_s=2.5, faults=[{"kind": "trainer-crash", "at_step": 5, "every_time": True}])
    one.start()
    one.wait_for(lambda: one.sentences("one-step-back"), "step 4 is quarantined")
    one.practice.set_knobs(step_s=30)
    one.wait_for(lambda: one.said_so("lineage", "latest.json went back to step 2"), "the store knows")
    assert in_latest(b2)["step"] == "step_2"
    one.vanish()
    assert 4 in in_bucket(b2), "nobody deletes it for that"
    two = next_pod(tmp_path / "two", one, settings=over_b2(b2)["settings"])
    pods.append(two)
    two.start("onstart")
    two.wait_for(lambda: two.practice.starts(), "the job is started")
    assert two.resume_steps() == [2]
