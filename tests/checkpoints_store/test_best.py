"""`rl-supervisor restore --step best`: the step of the highest reward, on any machine that reaches the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.checkpoints.manifest import Manifest, ManifestFile, parse_manifest
from supervisor.checkpoints.publish import publish
from supervisor.cli.main import main
from supervisor.storage import open_store
from tests.checkpoints_store.conftest import PART, RUN, Step, quiet


def run_toml(folder: Path, url: str) -> str:
    path = folder / "run.toml"
    path.write_text(
        f'[run]\nid = "{RUN}"\n[job]\nkind = "command"\noutput_dir = "{folder}/out"\n'
        f'[job.plain]\nstart = ["true"]\nresume = ["true"]\n[store]\nurl = "{url}"\n'
    )
    return str(path)


@pytest.mark.soak
def test_best_is_the_step_of_the_highest_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    for number, reward in ((10, 0.25), (20, 0.75), (30, 0.5), (40, None)):
        step = Step(tmp_path / str(number), number).fill()
        publish(store, step.plan(tmp_path / "state", reward=reward), quiet)
    file = run_toml(tmp_path, store.url)
    assert main(["restore", file, "--step", "best", "--to", str(tmp_path / "to")]) == 0
    assert "Restored step 20" in capsys.readouterr().out
    metadata = tmp_path / "to/step_20/trainer/.metadata"
    assert metadata.read_bytes() == (tmp_path / "20/checkpoints/step_20/trainer/.metadata").read_bytes()


def test_where_no_step_says_its_reward_none_is_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    publish(store, Step(tmp_path / "10", 10).fill().plan(tmp_path / "state"), quiet)
    assert main(["restore", run_toml(tmp_path, store.url), "--step", "best", "--to", str(tmp_path / "to")]) == 1
    assert "so none is the best. Name one with --step; there are 10." in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0.5", True, 1e400, None, [0.5]])
def test_a_reward_that_is_no_number_is_none(value: object) -> None:
    manifest = Manifest(RUN, 10, "a", (ManifestFile("x", 0, "id", 10, ("a" * 40,)),), reward=0.5)
    assert parse_manifest(manifest.to_bytes(), RUN, 10).reward == 0.5
    data = json.dumps(json.loads(manifest.to_bytes()) | {"reward": value}).encode()
    assert parse_manifest(data, RUN, 10).reward is None
