"""The transfer process as the daemon sees it: one request, JSON lines, and a kill -9 at any moment."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.b2server import B2Server, Key
from tests.checkpoints_store.conftest import PART, RUN, Lasting, Served, Step, Transfers, tree, until

PARENT = """
import subprocess, sys, threading, time

def start():
    command = [sys.executable, "-m", "supervisor.checkpoints.transfer"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    child.stdin.write(sys.argv[1])
    child.stdin.close()
    print(child.pid, flush=True)

thread = threading.Thread(target=start)  # ends at once, and that alone must not end the transfer
thread.start()
thread.join()
time.sleep(60)
"""


def where(server: B2Server, url: str = "b2://the-bucket/team") -> dict[str, Any]:
    return {"url": url, "realm": server.url, "streams": 4, "part_size": None}


def accepted(server: B2Server) -> list[tuple[str, int, str]]:
    """(name, part, SHA-1) of everything that brought bytes into the store."""
    return [(e["name"], e.get("part", 0), e["sha1"]) for e in server.journal("b2_upload_.*") if e.get("accepted")]


def restore_request(output: Path, step: int = 20) -> dict[str, Any]:
    place = {"primary": f"checkpoints/step_{step}"}
    return {"do": "restore", "run_id": RUN, "step": step, "output_dir": str(output), "place": place}


def test_publish_catalogue_restore_and_delete_through_the_process(
    b2: B2Server, tmp_path: Path, lasting: Lasting
) -> None:
    store, environ = {"store": where(b2)}, b2.environ()
    first, second = Step(tmp_path / "pod-a", 20).fill(), Step(tmp_path / "pod-a2", 40).fill()
    extra = {"dialect": "prime-rl v0.6", "revision": "abc", "config_sha256": "0" * 64, "step_base": 1}
    for step in (first, second):
        done = lasting.ok(step.request(tmp_path / "state") | store | {"extra": extra, "wandb_run_id": "w7"}, environ)
        assert (done["step"], done["pointer_moved"], done["already"]) == (step.number, True, False)
    found = lasting.ok({"do": "catalogue", "run_id": RUN} | store, environ)
    assert [(s["step"], s["committed"], s["problem"]) for s in found["steps"]] == [(20, True, ""), (40, True, "")]
    assert (found["latest"]["step"], found["latest"]["wandb_run_id"], found["latest"]["legacy"]) == (40, "w7", False)

    back = lasting.ok(restore_request(tmp_path / "pod-b") | store, environ)
    assert (back["verified"], back["dialect"], back["revision"]) == (True, "prime-rl v0.6", "abc")
    assert tree(tmp_path / "pod-b") == first.content()

    kind, sentence = lasting.error({"do": "delete", "run_id": RUN, "step": 20} | store, environ)
    assert (kind, sentence) == ("permanent", f"step 20 of {RUN} is not deleted: it is one of the last 2 good steps")
    lasting.ok(Step(tmp_path / "pod-a3", 60).fill().request(tmp_path / "state") | store, environ)
    kind, sentence = lasting.error({"do": "delete", "run_id": RUN, "step": 60} | store, environ)
    assert (kind, sentence) == ("permanent", f"step 60 of {RUN} is not deleted: latest.json names it")
    freed = lasting.ok({"do": "delete", "run_id": RUN, "step": 20} | store, environ)
    assert freed["freed_bytes"] > first.files["trainer/__0_0.distcp"].stat().st_size
    deletions = [e["name"] for e in b2.journal("b2_delete_file_version", "/step_20/")]
    assert deletions[0].endswith("step_20/manifest.json") and len(deletions) == 8
    found = lasting.ok({"do": "catalogue", "run_id": RUN} | store, environ)
    assert [s["step"] for s in found["steps"]] == [40, 60]


@pytest.mark.soak
def test_kill_9_in_the_middle_of_a_publish_sends_no_verified_byte_twice(
    b2: B2Server, tmp_path: Path, transfers: Transfers
) -> None:
    step = Step(tmp_path / "pod-a").fill(shard=600_001)
    request = step.request(tmp_path / "state") | {"store": where(b2)}
    b2.fail("b2_upload_part", delay_s=0.1, times=10_000)
    for wanted in (8, 20):
        running = transfers.start(request, b2.environ())
        until(lambda: len(accepted(b2)) >= wanted, f"{wanted} parts arrived")  # noqa: B023
        running.kill()
        b2.wait_idle()
        assert not any(e["name"].endswith(".json") for e in b2.journal("b2_upload_file"))
    before = accepted(b2)
    assert 20 <= len(before) < 47
    b2.state.faults.clear()
    transfers.ok(request, b2.environ())
    everything = accepted(b2)
    assert len(everything) == len(set(everything))
    objects = b2.objects()
    for name, path in step.files.items():
        assert objects[f"team/{RUN}/step_20/{name}"] == path.read_bytes()
    assert [name.rpartition("/")[2] for name, _, _ in everything[-2:]] == ["manifest.json", "latest.json"]
    assert not [v for v in b2.state.versions.values() if v.action == "start"]


@pytest.mark.soak
def test_kill_9_in_the_middle_of_a_restore_fetches_no_verified_part_twice(
    b2: B2Server, tmp_path: Path, transfers: Transfers
) -> None:
    step = Step(tmp_path / "pod-a").fill(shard=600_001)
    transfers.ok(step.request(tmp_path / "state") | {"store": where(b2)}, b2.environ())
    output = tmp_path / "pod-b"
    request = restore_request(output) | {"store": where(b2)}
    journal = output / "checkpoints/.restoring-step_20.journal"
    b2.fail("download", name="distcp", delay_s=0.1, times=10_000)
    for wanted in (6, 20):
        running = transfers.start(request, b2.environ())
        until(lambda: journal.exists() and len(journal.read_text().splitlines()) > wanted, f"{wanted} parts")  # noqa: B023
        running.kill()
        b2.wait_idle()
        assert not (output / "checkpoints/step_20").exists()
    noted = {tuple(json.loads(line)[:2]) for line in journal.read_text().splitlines()[1:]}
    start = len(b2.state.journal)
    b2.state.faults.clear()
    transfers.ok(request, b2.environ())
    fetched = {
        (e["name"].removeprefix(f"team/{RUN}/step_20/"), e["range"][0] // PART)
        for e in b2.journal("download")
        if e["n"] >= start and "range" in e
    }
    assert noted and not noted & fetched
    assert tree(output) == step.content()


@pytest.mark.soak
def test_a_new_pod_without_the_local_plan_also_sends_nothing_twice(
    b2: B2Server, tmp_path: Path, transfers: Transfers
) -> None:
    step = Step(tmp_path / "pod-a").fill(shard=300_001)
    b2.fail("b2_upload_part", delay_s=0.1, times=10_000)
    running = transfers.start(step.request(tmp_path / "state") | {"store": where(b2)}, b2.environ())
    until(lambda: len(accepted(b2)) >= 6, "some parts arrived")
    running.kill()
    b2.wait_idle()
    b2.state.faults.clear()
    transfers.ok(step.request(tmp_path / "fresh-state") | {"store": where(b2)}, b2.environ())
    everything = accepted(b2)
    assert len(everything) == len(set(everything))


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        ("b2://the-bucket", Key("0000master01", "K000wrong"), "refuses the application key ...er01"),
        ("b2://no-such-bucket", None, "the bucket no-such-bucket does not exist"),
        ("b2://the-bucket", Key("0000narrow01", "K000n"), "only reaches names that start with 'other/'"),
        ("gs://bucket", None, "none of b2://bucket[/prefix], s3://bucket[/prefix] and file:///folder"),
    ],
)
def test_what_a_person_must_mend_is_one_sentence(
    b2: B2Server, served: Served, url: str, key: Key | None, words: str
) -> None:
    b2.add_key(Key("0000narrow01", "K000n", ("listFiles", "readFiles"), ("the-bucket",), "other/"))
    answer = served.error({"do": "catalogue", "run_id": RUN, "store": where(b2, url)}, b2.environ(key))
    assert answer[0] == "permanent"
    assert words in answer[1]
    assert "\n" not in answer[1] and "K000" not in answer[1]


@pytest.mark.soak
def test_run_files_travel_to_the_next_pod(b2: B2Server, lasting: Lasting) -> None:
    files = {"run.toml": b'[run]\nid = "x"\n', "trainer-0.toml": bytes(range(256))}
    put = {"do": "put-run-files", "run_id": RUN, "store": where(b2)}
    put["files"] = {name: base64.b64encode(data).decode() for name, data in files.items()}
    assert lasting.ok(put, b2.environ()) == {"sent": 2}
    assert lasting.ok(put, b2.environ()) == {"sent": 0}
    got = lasting.ok({"do": "get-run-files", "run_id": RUN, "store": where(b2)}, b2.environ())
    assert {name: base64.b64decode(data) for name, data in got["files"].items()} == files


STORE = {"url": "file:///tmp"}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ([], "no JSON object"),
        ({"do": "dance", "store": STORE}, "none of publish, restore"),
        ({"do": "publish", "run_id": "r", "step": "20", "store": STORE}, "'step'"),
        ({"do": "delete", "run_id": "r", "step": True, "store": STORE}, "'step'"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(served: Served, request_: object, words: str) -> None:
    kind, sentence = served.error(request_)
    assert kind == "permanent" and words in sentence


@pytest.mark.parametrize(("request_", "words"), [("{ no json", "cannot be read"), ("[]", "no JSON object")])
def test_a_request_that_makes_no_sense_is_answered_and_not_a_crash(request_: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.checkpoints.transfer"],
        input=request_,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "permanent" and words in error["sentence"]


@pytest.mark.soak
def test_progress_is_told_at_most_twice_a_second_and_grows(b2: B2Server, tmp_path: Path, transfers: Transfers) -> None:
    step = Step(tmp_path / "pod-a").fill(shard=1_000_001)
    b2.fail("b2_upload_part", delay_s=0.1, times=10_000)
    began = time.monotonic()
    _, last, lines, _ = transfers.start(step.request(tmp_path / "state") | {"store": where(b2)}, b2.environ()).end()
    seconds = time.monotonic() - began
    assert "ok" in last
    told = [line["progress"] for line in lines]
    sending = [report["bytes"] for report in told if report["phase"] == "sending"]
    assert len(sending) >= 3 and sending == sorted(sending)
    assert len(told) <= 2 * seconds + 6
    assert all(report["bytes"] <= report["total"] for report in told)


def test_it_steps_back_behind_the_training_and_dies_with_its_parent(b2: B2Server, tmp_path: Path) -> None:
    step = Step(tmp_path / "pod-a").fill(shard=600_001)
    b2.fail("b2_upload_part", delay_s=0.2, times=10_000)
    request = json.dumps(step.request(tmp_path / "state") | {"store": where(b2)})
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PARENT,
            request,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **b2.environ()},
    )
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        until(lambda: len(accepted(b2)) >= 2, "the transfer is under way")
        assert child.is_running() and child.nice() == 10 and child.ionice() == (psutil.IOPRIO_CLASS_BE, 7)
        parent.kill()
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child is gone")
    finally:
        parent.kill()
        parent.wait(timeout=10)
        assert parent.stdout is not None
        parent.stdout.close()


def test_a_transfer_starts_without_what_b2s_library_only_takes_where_it_is_there() -> None:
    lines = [
        "import sys",
        "from supervisor.checkpoints.transfer import light_imports",
        "assert 'b2sdk' not in sys.modules and 'pydantic' not in sys.modules",
        "with light_imports():",
        "    import supervisor.storage.b2",
        "import b2sdk._internal.types, b2sdk._internal.progress, gc",
        "assert b2sdk._internal.types.pydantic is None and b2sdk._internal.progress.tqdm is None",
        "assert gc.isenabled()",
        "import pydantic",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
