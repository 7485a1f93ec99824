"""`supervisorctl explain`: every word and variable that a start has beside the person's own configuration, and why."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from supervisor.cli import render
from supervisor.config.settings import RunFile
from supervisor.jobs.base import Change
from supervisor.primerl import open_job
from tests.primerl.eras import ERAS, Era
from tests.primerl.helpers import CONFIG, job_of, request

OWN = (
    "max_steps = 100\noutput_dir = 'elsewhere'\n[ckpt]\ninterval = 50\nkeep_last = 1\n[wandb]\nproject = 'p'\n"
    "[trainer.ckpt]\ninterval = 50\n[orchestrator]\n[inference]\n"
)


def of(changes: list[Change], start: str) -> Change:
    [found] = [one for one in changes if one.what.startswith(start)]
    return found


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["rl", "sft"])
@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS.keys())
def test_every_word_after_the_persons_own_is_listed_with_a_reason_in_every_era(
    tmp_path: Path, era: Era, kind: str
) -> None:
    config = OWN + '[weight_broadcast]\ntype = "filesystem"\n'  # NCCL cannot resume in each of them
    job = job_of(tmp_path, era.commit, config=config, kind=kind, job={"args": ["--log.level", "debug"]})
    [component] = job.components(request(40))
    changes = list(job.changes(request(40)))
    assert all(one.why for one in changes)
    words = [word for one in changes if one.what.startswith("--") for word in shlex.split(one.what)]
    line = list(component.argv)
    assert line[-len(words) :] == words
    assert line[-len(words) - 2 : -len(words)] == ["--log.level", "debug"]
    variables = dict(one.what.split("=", 1) for one in changes if one.what.split("=")[0].isupper())
    passed = {"PATH", "VIRTUAL_ENV"}
    assert {name: value for name, value in component.env.items() if name not in passed} == {
        name: value for name, value in variables.items() if name not in passed
    }


def test_what_the_persons_configuration_says_instead_is_told(tmp_path: Path) -> None:
    changes = list(job_of(tmp_path, "be0e3d131", config=OWN).changes(request(40)))
    keep = of(changes, "--ckpt.keep-last")
    assert (keep.what, keep.yours) == ("--ckpt.keep-last 1000000", "ckpt.keep_last = 1")
    assert of(changes, "--ckpt.interval").yours == "ckpt.interval = 50"
    assert of(changes, "--trainer.ckpt.interval").yours == "trainer.ckpt.interval = 50"
    assert of(changes, "--output-dir").yours == 'output_dir = "elsewhere"'
    assert of(changes, "--ckpt.resume-step").yours == ""
    assert of(changes, "--no-clean").yours == ""
    assert of(changes, "65536 open files").why.startswith("[job] nofile")


def test_a_value_that_is_the_same_is_not_overruled(tmp_path: Path) -> None:
    changes = list(job_of(tmp_path, "559b44772", config=CONFIG + "[ckpt]\ninterval = 5\n").changes(request(None)))
    assert of(changes, "--ckpt.interval 5").yours == ""
    assert of(changes, "--run.name demo").yours == ""
    assert not any("resume" in one.what for one in changes)


def test_a_variable_that_the_daemon_has_otherwise_is_told(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    changes = list(job_of(tmp_path, "559b44772", environ=environ).changes(request(None)))
    assert of(changes, "CUDA_DEVICE_ORDER").yours == "CUDA_DEVICE_ORDER=FASTEST_FIRST"
    assert of(changes, "NEVER_CLEAN=").yours == ""


def test_what_is_refused_can_be_explained_all_the_same(tmp_path: Path) -> None:
    job = job_of(tmp_path, "be0e3d131", config=CONFIG + "[slurm]\n")
    assert job.problems()
    assert of(list(job.changes(request(None))), "--ckpt.interval")


def test_a_plain_command_and_the_small_trainer_tell_theirs(tmp_path: Path) -> None:
    plain = {"start": ["true"], "resume": ["true", "{step}"]}
    job = {"kind": "command", "dir": str(tmp_path), "plain": plain, "env": {"WANDB_RESUME": "must"}}
    changes = list(open_job(RunFile.model_validate({"run": {"id": "x"}, "job": job}), {}).changes(request(3)))
    assert of(changes, "WANDB_RUN_ID=w4nd8").why == "all attempts are one W&B run"
    assert not any(one.what.startswith("WANDB_RESUME") for one in changes), "[job] env has the last word here"
    (tmp_path / "vf.toml").write_text('model = "m"\n[env]\nid = "e"\n[trainer.args]\nsave_steps = 3\n')
    job = {"kind": "vf-rl", "dir": str(tmp_path), "config": "vf.toml"}
    changes = list(open_job(RunFile.model_validate({"run": {"id": "x"}, "job": job}), {}).changes(request(3)))
    assert of(changes, "trainer.args.save_steps = 10").yours == "trainer.args.save_steps = 3"
    assert of(changes, f"resume_from_checkpoint = {tmp_path}/outputs/checkpoint-3")


def test_explain_shows_them() -> None:
    start = [
        {"what": "--ckpt.keep-last 1000000", "why": "only the supervisor deletes", "yours": "ckpt.keep_last = 1"},
        {"what": "NEVER_CLEAN=1", "why": "no start may delete", "yours": ""},
    ]
    lines = render.explanation({"sentence": "All is well.", "start": start})
    assert lines[1] == "Each start adds to your own configuration:"
    assert lines[2] == "  --ckpt.keep-last 1000000: only the supervisor deletes (your ckpt.keep_last = 1 is overruled)"
    assert lines[3] == "  NEVER_CLEAN=1: no start may delete"
