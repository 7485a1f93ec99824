"""The real ``b2`` command against the test server, so that the server does not share b2sdk's or our own misreadings.

And the other way round: what we publish can be fetched by hand, and what a person uploads by hand can be restored.
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

B2 = Path(sys.executable).with_name("b2")
Cli = Callable[..., str]


@pytest.fixture
def cli(b2: B2Server, tmp_path: Path) -> Cli:
    if not B2.exists():
        pytest.skip("the b2 command line tool is not installed beside this Python")
    environ = {
        **os.environ,
        **b2.environ(),
        "B2_ENVIRONMENT": b2.url,
        "B2_ACCOUNT_INFO": str(tmp_path / "account.sqlite"),
        "HOME": str(tmp_path),
    }

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [B2, *map(str, words)], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "step/trainer").mkdir(parents=True)
    (tmp_path / "step/trainer/__0_0.distcp").write_bytes(os.urandom(250_003))
    (tmp_path / "step/trainer/.metadata").write_bytes(os.urandom(700))
    (tmp_path / "step/a name+with%signs ü").write_bytes(b"x")
    return tmp_path / "step"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.soak
def test_a_published_step_is_fetched_by_hand_with_b2_sync(b2: B2Server, cli: Cli, folder: Path, tmp_path: Path) -> None:
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=4)
    sources = [Source(path, str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file()]
    publish(store, PublishPlan("run-7", 20, sources, tmp_path / "state"), lambda _: None)
    (tmp_path / "back").mkdir()
    cli("sync", "--no-progress", "b2://the-bucket/run-7/step_20", tmp_path / "back")
    back = tree(tmp_path / "back")
    assert json.loads(back.pop("manifest.json"))["step"] == 20
    assert len(back.pop("manifest.blocks")) % 16 == 0  # only ours reads it; a hand may ignore it
    assert back == tree(folder)


@pytest.mark.soak
def test_a_step_that_was_uploaded_by_hand_with_the_pointer_of_the_original_scripts_is_restored(
    b2: B2Server, cli: Cli, folder: Path, tmp_path: Path
) -> None:
    latest = {"step": "step_20", "run_id": "run-7", "wandb_run_id": "w", "timestamp": "2026-01-06T03:14:15"}
    shutil.copytree(folder, tmp_path / "run/step_20")
    (tmp_path / "run/latest.json").write_text(json.dumps(latest))
    cli("sync", "--no-progress", tmp_path / "run", "b2://the-bucket/run-7")
    assert any(e["op"] == "b2_finish_large_file" for e in b2.state.journal)
    store = open_store("b2://the-bucket", b2.url, b2.environ(), streams=4)
    found = list_steps(store, "run-7").steps[20]
    assert (found.committed, found.legacy) == (True, True)
    done = restore(store, "run-7", 20, Place("checkpoints/step_20"), tmp_path / "pod-b", lambda _: None)
    assert done.verified is False
    assert tree(tmp_path / "pod-b/checkpoints/step_20") == tree(folder)


@pytest.mark.soak
def test_the_tool_reads_hides_and_deletes_single_files(b2: B2Server, cli: Cli, folder: Path, tmp_path: Path) -> None:
    shard = folder / "trainer/__0_0.distcp"
    cli("file", "upload", "--no-progress", "the-bucket", shard, "x/shard")
    assert "x/shard" in cli("ls", "--recursive", "b2://the-bucket")
    cli("file", "download", "--no-progress", "b2://the-bucket/x/shard", tmp_path / "shard")
    assert (tmp_path / "shard").read_bytes() == shard.read_bytes()
    cli("file", "server-side-copy", "b2://the-bucket/x/shard", "b2://the-bucket/y/shard")
    assert b2.objects()["y/shard"] == shard.read_bytes()
    cli("file", "hide", "b2://the-bucket/x/shard")
    assert list(b2.objects()) == ["y/shard"]
    cli("rm", "--no-progress", "--versions", "--recursive", "b2://the-bucket/x")
    assert [version.name for version in b2.state.versions.values()] == ["y/shard"]
