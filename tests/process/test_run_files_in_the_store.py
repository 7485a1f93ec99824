"""What of the run's own files leaves the pod: all that a next pod needs, and no secret."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.config.settings import RunFile, load
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.daemon import fetch_run_files
from supervisor.daemon.fetch_run_files import fill_in
from supervisor.effects.run_files import describe
from tests.hands import effects_of

SECRET = "0123456789abcdef0123456789abcdef01234567"
PLAIN = 'api_key_var = "OPENAI_API_KEY"\nmax_steps = 7  # *** steps ***\n'


def run_file(folder: Path, more: str = "") -> tuple[RunFile, Path]:
    folder.mkdir(exist_ok=True)
    path = folder / "run.toml"
    path.write_text(
        f'[run]\nid = "r1"\nstate_dir = "{folder}/state"\n[job]\nkind = "rl"\ndir = "{folder}"\n'
        f'config = ["rl.toml", "more.toml"]\noutput_dir = "{folder}/out"\n{more}'
    )
    return load(path), path


def sent(folder: Path, more: str = "") -> tuple[dict[str, str], list[Path]]:
    run, _ = run_file(folder, more)
    (folder / "rl.toml").write_text(PLAIN)
    (folder / "more.toml").write_text(f'[client]\napi_key = "{SECRET}"\n')
    return describe(run, {folder / name: folder / name for name in ("rl.toml", "more.toml")})


def test_no_secret_of_the_run_goes_to_the_store(tmp_path: Path) -> None:
    hook = f"[hooks]\nfinish = \"curl -H 'Authorization: Bearer {SECRET}' https://example.org\"\n"
    texts, hiding = sent(tmp_path / "one", hook + f'[setup]\ncommands = ["WANDB_API_KEY={SECRET} true"]\n')
    assert not [name for name, text in texts.items() if SECRET in text]
    assert texts["config-0-rl.toml"] == PLAIN, "what holds none is as it was"
    assert hiding == [tmp_path / "one/more.toml"]
    assert json.loads(texts["run.json"])["masked"] == {"files": ["config-1-more.toml"]}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sentences of the start, wherever the log goes."""
    told: list[str] = []
    monkeypatch.setattr(fetch_run_files, "say", lambda level, event, sentence: told.append(sentence))
    return told


def test_a_masked_file_is_never_put_to_use_and_the_pods_own_is(tmp_path: Path, said: list[str]) -> None:
    texts, _ = sent(tmp_path / "one")
    two, path = run_file(tmp_path / "two")
    lacking = fill_in(two, path, texts)
    assert lacking.job.config == [tmp_path / "two/state/fetched/rl.toml", Path("more.toml")]
    assert (tmp_path / "two/state/fetched/rl.toml").read_text() == PLAIN
    assert "a secret was masked in the store's copy of it, which is not used: put your own there" in " ".join(said)
    said.clear()
    (tmp_path / "two/more.toml").write_text("mine = true\n")
    assert fill_in(two, path, texts).job.config[1] == Path("more.toml")
    assert "secret was masked" not in " ".join(said)


def test_a_masked_setting_is_not_taken(tmp_path: Path, said: list[str]) -> None:
    texts, _ = sent(tmp_path / "one", '[wandb]\nid = "hf_abcdefghijklmnopqrstuv"\n')
    two, path = run_file(tmp_path / "two")
    assert fill_in(two, path, texts).wandb.id is None
    assert "wandb.id is masked in the store and not taken" in " ".join(said)


def test_a_publish_sends_no_secret_and_tells_of_a_step_that_is_left(tmp_path: Path) -> None:
    run, _ = run_file(tmp_path)
    (tmp_path / "rl.toml").write_text(f'api_key = "{SECRET}"\n')
    job: Any = SimpleNamespace(
        check_step=lambda step, settled: SimpleNamespace(state="complete"),
        config_files=lambda: [tmp_path / "rl.toml"],
        facts=lambda: SimpleNamespace(name="plain", revision="", first_step=0),
        step_files=lambda step: [],
    )
    told: list[f.Fact] = []
    effects = effects_of(run, told, lambda: job)
    effects.run.job = job
    asked: list[dict[str, Any]] = []
    answer = {"step": 20, "size_bytes": 5, "already": True, "left": "it is quarantined: nan"}
    effects.store.transfers.run = lambda ask, **_: asked.append(dict(ask)) or answer  # type: ignore[func-returns-value,assignment,method-assign,misc]
    effects.store.claiming.write = lambda write: write({})  # type: ignore[method-assign]
    effects.store.publish(a.Publish(20, False, None))
    (files,) = [ask["files"] for ask in asked if ask["do"] == "put-run-files"]
    assert not [name for name, text in files.items() if SECRET in base64.b64decode(text).decode()]
    remark, failed = told
    assert isinstance(remark, f.Remark) and str(tmp_path / "rl.toml") in remark.sentence
    why = "the store has the same bytes, and it is quarantined: nan. So no pod resumes at it here, either."
    assert failed == f.PublishFailed(20, why, step_changed=True, left=True)
