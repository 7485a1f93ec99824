"""The run files in configs/ are what people copy: each loads, and says what its first lines promise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from supervisor.config.settings import SECRET_NAME, RunFile, load
from supervisor.primerl.command import interpreter, refused_args
from supervisor.primerl.configs import sources

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "configs").glob("*.toml"))}


def test_there_is_one_for_each_case_that_the_readme_names() -> None:
    assert set(EXAMPLES) == {"two-gpus", "one-shared-gpu", "eight-gpus", "three-files", "sft", "other-trainer"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_loads_and_publishes_to_a_store_that_outlives_the_pod(name: str) -> None:
    run_file = load(EXAMPLES[name])
    assert run_file.store_url.startswith(("b2://", "s3://"))
    assert run_file.output_dir.is_absolute()


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_commented_out_in_it_is_valid_too(name: str) -> None:
    text = EXAMPLES[name].read_text()
    active = re.sub(r"(?m)^# (?=\[\w+\]$|\w+ = \S|  \"|\]$)", "", text)
    data = (
        tomllib.loads(active) if name != "three-files" else tomllib.loads(active.replace('url = "b2', '# url = "b2', 1))
    )
    run_file = RunFile.model_validate(data)
    if active == text:
        assert "# [" not in text
    assert run_file.run.id == load(EXAMPLES[name]).run.id


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_holds_no_key_and_no_flag_that_the_supervisor_sets(name: str) -> None:
    run_file = load(EXAMPLES[name])
    assert not [key for key in run_file.job.env if SECRET_NAME.search(key)]
    assert not [word for word in run_file.job.args if re.search(r"resume|clean|keep|ckpt", word)]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if load(EXAMPLES[name]).job.kind in ("rl", "sft")])
def test_prime_rl_is_not_told_the_same_thing_twice(name: str) -> None:
    run_file = load(EXAMPLES[name])
    assert list(refused_args(run_file)) == []


def test_shared_separate_and_absent_engines_are_told_apart() -> None:
    assert load(EXAMPLES["one-shared-gpu"]).gpus.inference == load(EXAMPLES["one-shared-gpu"]).gpus.trainer == [0]
    eight = load(EXAMPLES["eight-gpus"]).gpus
    assert [*eight.inference, *eight.trainer] == list(range(8))
    assert load(EXAMPLES["sft"]).gpus.inference == []


def test_the_step_line_of_the_other_trainer_reads_a_line() -> None:
    plain = load(EXAMPLES["other-trainer"]).job.plain
    assert plain is not None
    assert plain.step_line is not None
    found = re.search(plain.step_line, "12:00:01 step 80/5000 loss=0.3 reward=0.41 kl=0.01 time=212.5s")
    assert found is not None
    assert found.groupdict() == {"step": "80", "reward": "0.41", "duration": "212.5"}


def test_a_folder_of_the_job_may_be_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run file that serves many pods cannot name the home of each."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run = RunFile.model_validate({"run": {"id": "r"}, "job": {"dir": "~/prime-rl", "config": ["rl.toml"]}})
    assert run.output_dir == tmp_path / "prime-rl/outputs"
    assert [one.path for one in sources(run.job)] == [tmp_path / "prime-rl/rl.toml"]
    assert interpreter(run) == tmp_path / "prime-rl/.venv/bin/python"
