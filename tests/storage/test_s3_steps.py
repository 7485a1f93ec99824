"""A step's way to an S3 service and back through the transfer process, and what ``check --online`` says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints import log_files
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.scrub import scrub
from supervisor.storage import open_store
from tests.checkpoints_store.conftest import RUN, Step, Transfers, quiet, transfers, tree
from tests.checkpoints_store.test_late_writers import overtaken
from tests.s3server import ACCESS_KEY, SECRET_KEY, Proxy, Seaweed
from tests.storage.conftest import QUICK, S3_ENVIRON

__all__ = ["transfers"]
RUN_FILE = """
[run]
id = "s3run"
max_steps = 20
state_dir = "{here}/state"
[job]
kind = "command"
[job.plain]
start = ["true"]
resume = ["true", "{{step}}"]
[store]
url = "s3://{place}"
endpoint = "{endpoint}"
"""


@pytest.mark.soak
@pytest.mark.parametrize("versions", [pytest.param(False, id="plain"), pytest.param(True, id="versions")])
def test_two_steps_are_published_and_either_comes_back_byte_for_byte(
    s3: Proxy, s3_place: Callable[[bool], str], tmp_path: Path, transfers: Transfers, versions: bool
) -> None:
    store = {"store": {"url": f"s3://{s3_place(versions)}", "realm": s3.url, "streams": 4, "part_size": 1}}
    first = Step(tmp_path / "pod-a", 20).fill(shard=(11 << 20) + 7)
    second = Step(tmp_path / "pod-a2", 40).fill()
    for step in (first, second):
        done = transfers.ok(step.request(tmp_path / "state") | store, S3_ENVIRON)
        assert (done["step"], done["pointer_moved"], done["already"]) == (step.number, True, False)
    sent = [e["key"].rpartition("/")[2] for e in s3.journal.of("PutObject|CompleteMultipartUpload")]
    assert sent[-1] == "latest.json" and sent[-2] == "manifest.json"
    found = transfers.ok({"do": "catalogue", "run_id": RUN} | store, S3_ENVIRON)
    assert [(s["step"], s["committed"], s["problem"]) for s in found["steps"]] == [(20, True, ""), (40, True, "")]
    for step in (first, second):
        back = tmp_path / f"pod-b{step.number}"
        place = {"primary": f"checkpoints/step_{step.number}"}
        asked = {"do": "restore", "run_id": RUN, "step": step.number, "output_dir": str(back), "place": place}
        assert transfers.ok(asked | store, S3_ENVIRON)["verified"] is True
        assert tree(back) == step.content()


@pytest.mark.soak
def test_a_flipped_byte_on_the_way_back_is_fetched_again(
    s3: Proxy, s3_place: Callable[[bool], str], tmp_path: Path, transfers: Transfers
) -> None:
    store = {"store": {"url": f"s3://{s3_place(False)}", "realm": s3.url, "streams": 4, "part_size": 1}}
    step = Step(tmp_path / "pod-a", 20).fill()
    transfers.ok(step.request(tmp_path / "state") | store, S3_ENVIRON)
    s3.fail("GetObject", header="Range", flip_answer=True, times=2)
    asked = {"do": "restore", "run_id": RUN, "step": 20, "output_dir": str(tmp_path / "pod-b")}
    transfers.ok(asked | {"place": {"primary": "checkpoints/step_20"}} | store, S3_ENVIRON)
    assert tree(tmp_path / "pod-b") == step.content()


@pytest.mark.soak
def test_check_online_tells_whether_the_service_can_be_used(
    seaweed: Seaweed, s3_place: Callable[[bool], str], tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE.format(here=tmp_path, place=s3_place(False), endpoint=seaweed.url))

    def check(secret: str) -> str:
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret}
        words = [sys.executable, "-m", "supervisor.cli.main", "check", str(path), "--online"]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env={**os.environ, **keys}).stdout

    assert "The store answers; it holds 0 files of this run." in check(SECRET_KEY)
    refused = check("not-the-secret-key")
    assert "cannot be started" in refused and "SignatureDoesNotMatch" in refused
    assert ACCESS_KEY not in refused and "not-the-secret-key" not in refused


def test_the_daemons_modules_do_not_load_the_library() -> None:
    code = "import sys, supervisor.storage, supervisor.daemon.loop; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.soak
def test_without_versions_the_file_of_a_fenced_pod_replaces_none_of_the_holders(
    s3: Proxy, s3_place: Callable[[bool], str], tmp_path: Path
) -> None:
    place = s3_place(False)
    _, letter = overtaken(lambda: open_store(f"s3://{place}", s3.url, S3_ENVIRON, streams=2, retry=QUICK), tmp_path)
    assert letter == b"B"


@pytest.mark.soak
def test_what_rotted_there_is_sent_anew_when_the_step_is_published_by_hand(
    s3: Proxy, s3_place: Callable[[bool], str], tmp_path: Path
) -> None:
    """The service tells the ETag of the healthy bytes, and gives others each time it is asked."""
    store = open_store(f"s3://{s3_place(False)}", s3.url, S3_ENVIRON, streams=4, retry=QUICK, part_size=1)
    step = Step(tmp_path / "pod-a", 20).fill()
    publish(store, step.plan(tmp_path / "state"), quiet)
    assert publish(store, step.plan(tmp_path / "state", reread=True), quiet).already
    rot = s3.fail("GetObject", header="Range", flip_answer=True, times=1 << 30)
    assert scrub(store, RUN, quiet, deep=100).is_damaged
    before = len(s3.journal.of("PutObject"))
    done = publish(store, step.plan(tmp_path / "state", reread=True), quiet)
    sent = [e["key"] for e in s3.journal.of("PutObject")[before:]]
    assert not done.already and any(key.endswith("__0_0.distcp") for key in sent) and "sent anew" in done.note
    assert not any(key.endswith("trainer/empty") for key in sent), "nothing in it can rot"
    rot.times = 0
    assert not scrub(store, RUN, quiet, deep=100).is_damaged


def test_what_is_sent_twice_within_a_second_is_not_deleted_as_its_own_older_state(
    s3: Proxy, s3_place: Callable[[bool], str]
) -> None:
    """Without versions, the hash and the second are all that an object is known by."""
    store = open_store(f"s3://{s3_place(False)}", s3.url, S3_ENVIRON, streams=2, retry=QUICK)
    for _ in range(2):
        log_files.put_logs(store, RUN, "0" * 16, 1, {"trainer": b"the same bytes"})
    assert [file.size for file in store.list(f"{RUN}/{log_files.FOLDER}")] == [14]
