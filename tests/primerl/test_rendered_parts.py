"""prime-rl over several machines: what our template makes of the launcher's variables is what its own script starts."""

from __future__ import annotations

import json
import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from supervisor.base.errors import ConfigError, TryAgainError
from supervisor.jobs.base import Component, StartRequest
from supervisor.nodes.allocation import count_machines, fill_machines
from supervisor.primerl.spread import TEMPLATE, SpreadPrimeRlJob
from tests.primerl import rendered_script
from tests.primerl.helpers import job_of, request
from tests.primerl.rendered_script import CONFIGS, KEPT, forget_script, look_at_launcher, sort_started

REAL = os.environ.get("RL_SUPERVISOR_TEST_PRIME_RL", "")
CASES: dict[str, Any] = json.loads(KEPT.read_text())
HEAD = "559b44772"
CONFIG = 'max_steps = 100\n[trainer]\n[orchestrator]\n[inference]\n[slurm]\n[deployment]\ntype = "multi_node"\n'
HOLES = {"{rendezvous}": "job_7", "{logs}": "/shared/out/demo/logs/attempt_1/trainer"}
# Set by our job or by the script around it, not by the list of parts.
AROUND = {"PRL_RUN_ID": "w4nd8", "NCCL_IB_HCA": ""}


def render(variables: dict[str, Any]) -> dict[str, Any]:
    template = Environment(keep_trailing_newline=True).from_string(TEMPLATE.read_text())
    return dict(json.loads(template.render(**variables)))


def as_started(one: dict[str, Any]) -> dict[str, Any]:
    """A rendered part as a machine would start it, if the machines were called n0, n1 ..."""
    part = Component("part", one["argv"], Path("/"), one["env"])
    machines = [(f"n{number}", f"n{number}") for number in range(16)]
    argv = list(fill_machines(part, machines).argv)
    for hole, value in HOLES.items():
        argv = [word.replace(hole, value) for word in argv]
    env = {**one["env"], **AROUND}
    if "WANDB_SHARED_MODE" in env:
        env["WANDB_RUN_ID"] = "w4nd8"
    if "inference" in argv:
        env["VLLM_RPC_BASE_PATH"] = f"/tmp/vllm-rpc-me-7-{one['port']}"  # ours is /tmp
    return {"machine": one["machine"], "argv": argv, "env": env}


@pytest.mark.parametrize("name", CASES)
def test_the_parts_are_those_of_the_launchers_own_script_word_by_word(name: str) -> None:
    rendered = render(CASES[name]["variables"])
    assert rendered["refused"] == []
    assert sort_started(map(as_started, rendered["components"])) == CASES[name]["started"]


@pytest.mark.skipif(not REAL, reason="RL_SUPERVISOR_TEST_PRIME_RL names no installed prime-rl with a dry run")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_real_launcher_says_the_same_as_when_it_was_noted(name: str) -> None:
    found = look_at_launcher(Path(REAL), name)
    assert sort_started(map(forget_script, found["started"])) == CASES[name]["started"]
    assert found["variables"] == CASES[name]["variables"]


@pytest.mark.skipif(not REAL, reason="RL_SUPERVISOR_TEST_PRIME_RL names no installed prime-rl with a dry run")
def test_the_real_launcher_renders_our_template(tmp_path: Path) -> None:
    kind, config = CONFIGS["experts, 2 and 2"]
    text = rendered_script.launch(Path(REAL), kind, config, tmp_path, TEMPLATE)
    theirs = json.loads(text.replace(str(tmp_path), "/shared"))
    assert theirs == render(CASES["experts, 2 and 2"]["variables"])


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"is_disaggregated": True}, 'inference.deployment.type = "disaggregated"'),
        ({"router": {"type": "llm-d", "policy": "x"}}, 'inference.router.type = "llm-d"'),
        ({"kv_offload_mooncake": True}, 'inference.kv_cache_offload.type = "mooncake"'),
    ],
)
def test_what_the_template_cannot_do_it_says(changed: dict[str, Any], refused: str) -> None:
    assert render({**CASES["dense, 1 and 1"]["variables"], **changed})["refused"] == [refused]


# ---------------------------------------------------------------- the job


class Launcher:
    """Answers for the launcher's dry run as it did; ``words`` and ``env`` are what it was given."""

    def __init__(self, case: str, job: SpreadPrimeRlJob) -> None:
        self.rendered = render(CASES[case]["variables"])
        self.path = job.layout.run_dir / f"{'sft' if job.sft else 'rl'}.sbatch"
        self.code: int | None = 0
        self.text = "Dry run complete."
        self.words: list[str] = []
        self.env: dict[str, str] = {}

    def ask(self, words: Any, cwd: Path, env: Any, timeout_s: float) -> tuple[int | None, str]:
        self.words, self.env = list(words), dict(env)
        if self.code == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rendered))
        return self.code, self.text

    def request(self, step: int | None) -> StartRequest:
        asked = request(step)
        return StartRequest(asked.run_id, asked.attempt, step, {}, asked.wandb_id, asked.attempt_dir, "", self.ask)


def spread_job(tmp_path: Path, config: str = CONFIG, **sections: Any) -> SpreadPrimeRlJob:
    environ = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "0"}
    nodes = {"folder": str(tmp_path / "nodes")}
    job = job_of(tmp_path, HEAD, config=config, environ=environ, nodes=nodes, **sections)
    assert isinstance(job, SpreadPrimeRlJob)
    return job


def test_the_launcher_is_asked_before_each_start_and_each_part_is_a_component(tmp_path: Path) -> None:
    job = spread_job(tmp_path)
    launcher = Launcher("experts, 2 and 2", job)
    found = job.components(launcher.request(10))
    said = " ".join(launcher.words)
    assert said.endswith(f"--slurm.template-path {TEMPLATE} --dry-run")
    assert "--resume.step 10" in said
    assert f"--output-dir {tmp_path}/out" in said
    assert "--slurm None" not in said
    assert not launcher.path.exists()
    assert [one.name for one in found] == [
        "trainer-0",
        *(f"inference-{number}" for number in range(5)),
        "trainer-1",
        "orchestrator-0",
        "env-0",
        "env-1",
    ]
    assert count_machines(found) == 4
    writers = {one.name for one in found if one.place and one.place.writes}
    assert writers == {"trainer-0", "trainer-1", "orchestrator-0"}
    trainer, engine = found[0], found[1]
    assert "--rdzv-id=demo-3" in trainer.argv
    assert f"--log-dir={tmp_path}/out/demo/logs/attempt_3/trainer/torchrun" in trainer.argv
    assert "CUDA_VISIBLE_DEVICES" not in trainer.env  # this machine's says nothing of another
    assert engine.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert (trainer.env["OWN"], engine.env["OWN"]) == ("of the trainer", "of all")
    for one in found:
        assert (one.env["RL_SUPERVISOR_RUN"], one.env["RL_SUPERVISOR_ATTEMPT"]) == ("demo", "3")
        assert (one.env["PRL_RUN_ID"], one.env["WANDB_RUN_ID"]) == ("w4nd8", "w4nd8")
        assert one.cwd == Path("/shared")


def test_a_part_is_started_as_the_script_would(tmp_path: Path) -> None:
    """The checkout's .env is read, what was rendered wins, and what comes after is the part's program, not a shell."""
    job = spread_job(tmp_path)
    launcher = Launcher("sft, 1", job)
    launcher.rendered["project"] = str(tmp_path)
    launcher.rendered["components"][0]["argv"] = [
        "/bin/sh",
        "-c",
        'echo "$SAID $0 $1 $OWN $RL_SUPERVISOR_RUN $OMP_NUM_THREADS"; ps -o comm= -p $$',
        "a b",
        "c",
    ]
    launcher.rendered["components"][0]["env"]["OWN"] = 'it\'s "so" $HOME'
    (tmp_path / ".env").write_text("export SAID=well OWN=else\nRL_SUPERVISOR_RUN=another\nOMP_NUM_THREADS=9\n")
    (one,) = job.components(launcher.request(None))
    done = subprocess.run(one.argv, cwd=one.cwd, env=one.env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ['well a b c it\'s "so" $HOME demo 1', "sh"]


def test_programs_of_the_environment_are_started_by_themselves(tmp_path: Path) -> None:
    job = spread_job(tmp_path)
    launcher = Launcher("dense, 1 and 1", job)
    plain = {one.name: list(one.argv)[4:] for one in job.components(launcher.request(None))}
    assert plain["orchestrator-0"][:4] == ["uv", "run", "--no-sync", "orchestrator"]
    own = tmp_path / "prime-rl/.venv/bin/orchestrator"
    own.parent.mkdir(parents=True)
    own.touch()
    plain = {one.name: list(one.argv)[4:] for one in job.components(launcher.request(None))}
    assert plain["orchestrator-0"][:2] == [str(own), "@"]
    assert plain["inference-2"][0] == "vllm-router"


@pytest.mark.parametrize(
    ("code", "text", "error", "told"),
    [
        (1, "1 validation error for RLConfig", ConfigError, "dry run ended with 1: 1 validation error for RLConfig"),
        (1, "OSError: [Errno 116] Stale file handle", TryAgainError, "dry run ended with 1: OSError"),
        (-9, "", TryAgainError, "dry run ended with -9"),
        (None, "", TryAgainError, "gave no answer in 300 s"),
    ],
)
def test_a_launcher_that_refuses_or_hangs(
    tmp_path: Path, code: int | None, text: str, error: type[Exception], told: str
) -> None:
    job = spread_job(tmp_path)
    launcher = Launcher("dense, 1 and 1", job)
    launcher.code, launcher.text = code, text
    launcher.path.parent.mkdir(parents=True)
    launcher.path.write_text(json.dumps(launcher.rendered))  # of an earlier start: it must not be taken for this one's
    with pytest.raises(error, match=told):
        job.components(launcher.request(None))
    assert not launcher.path.exists()


def test_what_is_refused_before_the_launcher_is_asked(tmp_path: Path) -> None:
    told = " ".join(spread_job(tmp_path, gpus={"trainer": [0], "inference": [1]}).problems())
    assert "[gpus] is for one machine" in told
    sft = spread_job(tmp_path, '[eval]\n[deployment]\ntype = "multi_node"\n', kind="sft")
    assert "a second job on machines of its own" in " ".join(sft.problems())
    told = " ".join(spread_job(tmp_path, "[trainer]\n[orchestrator]\n[inference]\n").problems())
    assert 'does not set deployment.type = "multi_node"' in told
    told = " ".join(spread_job(tmp_path, CONFIG + '[inference.deployment]\ntype = "disaggregated"\n').problems())
    assert 'inference.deployment.type = "disaggregated", which is not supported' in told
    assert not spread_job(tmp_path).problems()


def test_an_older_launcher_is_refused_with_its_day(tmp_path: Path) -> None:
    job = job_of(tmp_path, "289562d2e", config=CONFIG, nodes={"folder": str(tmp_path / "nodes")})
    told = " ".join(job.problems())
    assert "13 Aug 2026 or later" in told
    assert "[nodes]" in told


def test_on_one_machine_the_launcher_is_told_to_leave_slurm_out(tmp_path: Path) -> None:
    job = job_of(tmp_path, HEAD, config=CONFIG.replace("multi_node", "single_node"))
    (launcher,) = job.components(request(None))
    assert "--slurm None" in " ".join(launcher.argv)
    assert job_of(tmp_path, HEAD, config=CONFIG).problems()


def test_each_part_is_a_log_of_its_role(tmp_path: Path) -> None:
    found = {(one.role, one.path) for one in spread_job(tmp_path).log_sources(Path("/attempt"))}
    assert ("trainer", "/attempt/trainer-*.log") in found
    assert ("inference", "/attempt/inference-*.log") in found
    path, *_ = (one.path for one in spread_job(tmp_path).log_sources(Path("/state[1]")))
    assert fnmatch("/state[1]/trainer-0.log", path), "the folder's own name is no pattern"
