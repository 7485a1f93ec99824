"""Any trainer as a command: templates, markers, expressions, folders."""

from __future__ import annotations

import glob
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.config.settings import RunFile
from supervisor.core.facts import ErrorSeen, FinishSeen, StepDone
from supervisor.jobs.base import StartRequest
from supervisor.jobs.plain import PlainJob
from supervisor.primerl import open_job


def plain(
    tmp_path: Path, environ: dict[str, str] | None = None, job: dict[str, Any] | None = None, **table: Any
) -> PlainJob:
    settings = {
        "start": ["python", "train.py", "--out", "{output_dir}", "--name", "{run_id}"],
        "resume": ["python", "train.py", "--out", "{output_dir}", "--resume", "{checkpoint}", "--step", "{step}"],
        "step_line": r"^step (?P<step>\d+) loss=(?P<loss>\S+) in (?P<duration>[\d.]+)s",
        "finish_line": r"^done training$",
        **table,
    }
    run = RunFile.model_validate(
        {
            "run": {"id": "demo", "max_steps": 90},
            "job": {"kind": "command", "dir": str(tmp_path), "output_dir": "out", "plain": settings, **(job or {})},
        }
    )
    opened = open_job(run, environ or {"PATH": "/usr/bin"})
    assert isinstance(opened, PlainJob)
    return opened


def request(step: int | None, configs: dict[Path, Path] | None = None) -> StartRequest:
    return StartRequest("demo", 2, step, configs or {}, "w4nd8", Path("/attempt"))


def step_folder(job: PlainJob, step: int, *names: str, age_s: float = 3600) -> Path:
    folder = job.output_dir / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("x")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    return folder


def test_a_fresh_start_and_a_resume_use_their_own_command_lines(tmp_path: Path) -> None:
    job = plain(tmp_path)
    out = str(tmp_path / "out")
    assert list(job.components(request(None))[0].argv) == ["python", "train.py", "--out", out, "--name", "demo"]
    resumed = job.components(request(40))[0]
    assert list(resumed.argv[4:]) == ["--resume", f"{out}/checkpoints/step_40", "--step", "40"]
    assert resumed.cwd == tmp_path
    assert resumed.env["WANDB_RUN_ID"] == "w4nd8"


def test_log_files_in_a_folder_with_brackets_in_its_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "grpo[lr=1e-6]").mkdir()
    job = plain(tmp_path / "grpo[lr=1e-6]", log=["logs/*.log", "*.txt"])
    files = [tmp_path / "a[0]" / "job.log", job.output_dir / "logs" / "0.log", job.output_dir / "1.txt"]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    patterns = [source.path for source in job.log_sources(files[0].parent)]
    assert [Path(name) for pattern in patterns for name in glob.glob(pattern)] == files  # noqa: PTH207


def test_words_that_name_a_configuration_get_the_attempts_copy(tmp_path: Path) -> None:
    start = ["python", "train.py", "conf/a.yaml", "--text=conf/a.yaml"]
    job = plain(tmp_path, job={"config": ["conf/a.yaml"]}, start=start)
    copy = Path("/attempt/config/0-a.yaml")
    argv = job.components(request(None, {tmp_path / "conf" / "a.yaml": copy}))[0].argv
    assert list(argv[2:]) == [str(copy), "--text=conf/a.yaml"]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"resume": ["python", "train.py", "--resume"]}, "resume names neither {step} nor {checkpoint}"),
        ({"start": []}, "start is empty"),
        ({"markers": []}, "half a checkpoint would count as whole"),
    ],
)
def test_commands_that_could_resume_from_the_wrong_step_are_refused(
    tmp_path: Path, table: dict[str, Any], sentence: str
) -> None:
    job = plain(tmp_path, **table)
    assert any(sentence in problem for problem in job.problems())
    with pytest.raises(ConfigError):
        job.components(request(None))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"checkpoint": "checkpoints/latest"}, r"must hold \{step\} exactly once"),
        ({"checkpoint": "/abs/step_{step}"}, "must be a path below"),
        ({"checkpoint": "../step_{step}"}, "must be a path below"),
        ({"also": ["x/{step}/{step}"]}, "exactly once"),
        ({"step_line": "step (\\d+"}, "is no regular expression"),
        ({"step_line": "step (\\d+)"}, "must have a group called step"),
    ],
)
def test_a_wrong_pattern_is_one_sentence(tmp_path: Path, table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        plain(tmp_path, **table)


def test_lines_are_read_with_the_persons_expressions(tmp_path: Path) -> None:
    job = plain(tmp_path)
    assert job.parse_line("job", "\x1b[32mstep 40 loss=0.25 in 12.5s\x1b[0m\n") == [
        StepDone("job", 40, 12.5, None, 0.25)
    ]
    assert job.parse_line("job", "step 41 loss=nan in 3.0s") == [StepDone("job", 41, 3.0, None, math.nan)]
    assert job.parse_line("job", "done training") == [FinishSeen("job", "done training")]
    (error,) = job.parse_line("job", "ModuleNotFoundError: No module named 'x'")
    assert isinstance(error, ErrorSeen)
    assert (error.signature, error.deterministic) == ("module-missing", True)
    assert error.sentence == "A Python package is missing in the job's interpreter, or does not fit the others."
    assert "[setup] can do it on each pod" in error.remedy
    assert job.parse_line("job", "x" * 10_000_000) == []
    assert job.facts().finish_line
    assert not plain(tmp_path, finish_line=None).facts().finish_line


def test_the_rule_optimizer_pt_and_its_quiet_time(tmp_path: Path) -> None:
    job = plain(tmp_path)
    step_folder(job, 40, "model.safetensors")
    assert job.check_step(40).state == "writing"
    assert "has no optimizer.pt yet" in job.check_step(40).reason
    assert job.check_step(40, settled=True).state == "incomplete"
    step_folder(job, 40, "optimizer.pt")
    assert job.check_step(40).state == "complete"
    step_folder(job, 45, "optimizer.pt", age_s=1)
    assert job.check_step(45).state == "writing"
    assert job.check_step(45, settled=True).state == "complete"
    assert list(job.steps()) == [40, 45]


def test_several_markers_and_files_beside_the_folder(tmp_path: Path) -> None:
    job = plain(tmp_path, markers=["model.pt", "metadata.json"], also=["state/{step}.bin"])
    step_folder(job, 40, "model.pt", "metadata.json")
    assert "state/40.bin is not there yet" in job.check_step(40).reason
    (job.output_dir / "state").mkdir()
    (job.output_dir / "state" / "40.bin").write_text("x")
    assert job.check_step(40, settled=True).state == "complete"
    names = [file.name for file in job.step_files(40)]
    assert names == ["metadata.json", "model.pt", ".run/state/40.bin"]
    assert [job.place(40, name) for name in names] == [
        Path("checkpoints/step_40/metadata.json"),
        Path("checkpoints/step_40/model.pt"),
        Path("state/40.bin"),
    ]
    assert sorted(tree.name for tree in job.step_trees(40)) == ["40.bin", "step_40"]


@pytest.mark.parametrize("name", ["../x", "/x", ".run/../../x", ".run/state/41.bin", ".run/other", "a/../../b", ""])
def test_no_name_from_the_store_leaves_the_step(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        plain(tmp_path, also=["state/{step}.bin"]).place(40, name)


def test_later_steps_are_moved_aside_and_odd_names_left_alone(tmp_path: Path) -> None:
    job = plain(tmp_path)
    for step in (5, 40, 41, 100):
        step_folder(job, step, "optimizer.pt")
    for odd in ("step_041", "step_final", "step_50.tmp", "xstep_60"):
        (job.output_dir / "checkpoints" / odd).mkdir()
    assert [tree.name for tree in job.above_trees(40)] == ["step_41", "step_100"]
    assert len(job.above_trees(None)) == 4
    assert list(job.steps()) == [5, 40, 41, 100]


def test_a_symlinked_step_is_refused(tmp_path: Path) -> None:
    job = plain(tmp_path)
    folder = step_folder(job, 40, "optimizer.pt")
    (folder / "data").symlink_to("/etc")
    check = job.check_step(40, settled=True)
    assert check.state == "incomplete"
    assert "symlinks are never followed" in check.reason
    assert [file.name for file in job.step_files(40)] == ["optimizer.pt"]


def test_the_last_line_of_a_traceback_is_kept_for_the_sentence_that_tells_the_end(tmp_path: Path) -> None:
    job = plain(tmp_path)
    for line, name in (
        ("RuntimeError: no batch", "python-error"),
        ("mylib.errors.NoDataError: none", "python-error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-illegal-access"),
        ("ValueError: 'max_tokens' or 'max_completion_tokens' is too large: 4000.", "max-tokens-too-large"),
    ):
        (error,) = job.parse_line("job", line)
        assert isinstance(error, ErrorSeen)
        assert (error.signature, error.text, error.deterministic) == (name, line, False)
    for line in ("rollout failed with RuntimeError: x", "Traceback (most recent call last):", "raise ValueError(text)"):
        assert job.parse_line("job", line) == []
