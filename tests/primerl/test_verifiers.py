"""verifiers' small trainer: two components without tmux, and a resume that vf-train itself cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.settings import RunFile
from supervisor.core.facts import FinishSeen, StepDone
from supervisor.jobs.base import StartRequest
from supervisor.primerl import open_job
from supervisor.primerl.verifiers import WRAPPER, VerifiersJob

CONFIG = """
model = "Qwen/Qwen2.5-1.5B-Instruct"
[env]
id = "gsm8k"
[inference]
gpus = 2
[inference.args]
enforce_eager = true
tensor_parallel_size = 2
[trainer]
gpus = 1
[trainer.args]
batch_size = 144
max_steps = 100
"""

# A stand-in for the installed package with the outside of verifiers_rl at a497ee524^: the module, its two classes, and
# a trainer that waits for the batch of its own step, as Orchestrator.get_batch does.
STAND_IN = """
import json, sys, tomllib

class RLConfig:
    def __init__(self, **settings):
        self.settings = settings

class Orchestrator:
    def __init__(self):
        self.asked = [0]
    def submit_batch(self, number):
        self.asked.append(number)

class State:
    global_step = 0

class RLTrainer:
    def __init__(self, model, env, args):
        self.args, self.orchestrator, self.state = args, Orchestrator(), State()
    def train(self, resume_from_checkpoint=None):
        if resume_from_checkpoint:
            self.state.global_step = int(resume_from_checkpoint.rpartition("-")[2])
        for _ in range(2):
            self.training_step()
            self.state.global_step += 1
        seen = {"args": self.args.settings, "from": resume_from_checkpoint, "asked": self.orchestrator.asked}
        print(json.dumps(seen))
    def update_vllm(self):
        if self.state.global_step:
            self.orchestrator.asked.append("weights")
    def training_step(self):
        self.update_vllm()
        self.orchestrator.submit_batch(self.state.global_step + 1)
        if self.state.global_step not in self.orchestrator.asked:
            raise TimeoutError(f"Batch {self.state.global_step} timed out after 600s")

def main():
    assert sys.argv[1] == "@"
    config = tomllib.load(open(sys.argv[2], "rb"))
    RLTrainer(config["model"], None, RLConfig(**config["trainer"]["args"])).train()
"""


def vf(tmp_path: Path, config: str = CONFIG, **job: Any) -> VerifiersJob:
    (tmp_path / "rl.toml").write_text(config)
    settings = {"kind": "vf-rl", "dir": str(tmp_path), "config": ["rl.toml"], "output_dir": "out", **job}
    run = RunFile.model_validate({"run": {"id": "demo"}, "job": settings})
    opened = open_job(run, {"PATH": "/usr/bin"})
    assert isinstance(opened, VerifiersJob)
    return opened


def request(step: int | None) -> StartRequest:
    return StartRequest("demo", 1, step, {}, "w4nd8", Path("/attempt"))


def test_engine_and_trainer_are_two_components_with_the_gpus_vf_rl_would_choose(tmp_path: Path) -> None:
    engine, trainer = vf(tmp_path).components(request(40))
    assert list(engine.argv) == [
        *("uv", "run", "vf-vllm", "--model", "Qwen/Qwen2.5-1.5B-Instruct", "--enforce-eager"),
        *("--tensor-parallel-size", "2", "--data-parallel-size", "1"),
    ]
    assert engine.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert trainer.env["CUDA_VISIBLE_DEVICES"] == "2"
    assert list(trainer.argv[:4]) == ["uv", "run", "python", str(WRAPPER)]
    assert trainer.argv[5] == str(tmp_path / "out" / "checkpoint-40")
    assert json.loads(trainer.argv[4])["save_steps"] == 10
    assert (engine.name, trainer.name) == ("inference", "trainer")


@pytest.mark.parametrize(
    ("step", "asked"), [(None, [0, 1, "weights", 2]), (40, [0, "weights", 40, "weights", 41, "weights", 42])]
)
def test_the_wrapper_hands_the_weights_over_and_asks_for_the_batch_of_its_first_step(
    tmp_path: Path, step: int | None, asked: list[int | str]
) -> None:
    package = tmp_path / "site" / "verifiers_rl" / "scripts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "train.py").write_text(STAND_IN)
    trainer = vf(tmp_path).components(request(step))[1]
    done = subprocess.run(
        [sys.executable, *trainer.argv[3:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(tmp_path / "site")},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["from"] == (None if step is None else str(tmp_path / "out" / f"checkpoint-{step}"))
    assert seen["asked"] == asked
    assert seen["args"]["output_dir"] == str(tmp_path / "out")
    assert seen["args"]["save_total_limit"] is None
    assert seen["args"]["batch_size"] == 144


def test_without_verifiers_the_wrapper_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(WRAPPER), "{}", "", "@", "x.toml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "vf-train is not installed in" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_huggingface_checkpoint_is_whole_with_its_optimizer_and_its_last_file(tmp_path: Path) -> None:
    job = vf(tmp_path)
    folder = tmp_path / "out" / "checkpoint-40"
    folder.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "optimizer.pt"):
        (folder / name).write_text("x")
    assert job.check_step(40).state == "writing"
    (folder / "trainer_state.json").write_text("{}")
    for path in folder.iterdir():
        os.utime(path, (time.time() - 3600,) * 2)
    assert job.check_step(40).state == "complete"
    (folder / "optimizer.pt").unlink()
    assert job.check_step(40, settled=True).state == "incomplete"
    (folder / "global_step40").mkdir()
    (folder / "global_step40" / "zero_pp_rank_0.pt").write_text("x")
    assert job.check_step(40, settled=True).state == "complete"
    assert list(job.steps()) == [40]
    assert job.place(40, "optimizer.pt") == Path("checkpoint-40/optimizer.pt")


def test_steps_come_from_the_runs_own_progress_bar_only(tmp_path: Path) -> None:
    job = vf(tmp_path)
    bar = " 11%|#         | 11/100 [01:01<08:00, 5.5s/it]\r 12%|#2        | 12/100 [01:10<08:30,  5.8s/it]"
    assert job.parse_line("trainer", bar) == [StepDone("trainer", 12)]
    assert job.parse_line("trainer", " 50%|##5  | 1/2 [00:01<00:01,  1.0s/it]") == []  # loading shards
    assert job.parse_line("inference", bar) == []
    finish = "{'train_runtime': 612.0, 'train_loss': 0.01}"
    assert job.parse_line("trainer", finish) == [FinishSeen("trainer", finish)]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (CONFIG.replace('model = "Qwen', 'name = "Qwen'), "has no `model`"),
        (CONFIG.replace('id = "gsm8k"', ""), "has no [env] id"),
        (CONFIG.replace("gpus = 2", ""), "has no [inference] gpus"),
        (CONFIG + "save_total_limit = 1\n", "[trainer.args] save_total_limit, which the supervisor decides"),
    ],
)
def test_what_vf_rl_would_refuse_or_what_would_delete_is_a_problem(tmp_path: Path, config: str, sentence: str) -> None:
    assert any(sentence in problem for problem in vf(tmp_path, config).problems())


def test_the_limits_are_said(tmp_path: Path) -> None:
    notes = " ".join(vf(tmp_path).facts().notes)
    assert "vf-train has no way to resume" in notes
    assert "tmux" in notes
