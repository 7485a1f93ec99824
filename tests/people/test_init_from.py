"""`init --from`: launch lines as people type them and as prime-rl's pages show them, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.base import secrets
from supervisor.base.errors import ConfigError
from supervisor.jobs.environment import job_environment
from supervisor.primerl.command import refused_args
from tests.people.launches import ENVIRON, Taken, take

ALL = "--trainer @ configs/r/train.toml --orchestrator @ configs/r/orch.toml --inference @ configs/r/infer.toml"
PARTS = {
    "job.trainer_config": "configs/r/train.toml",
    "job.orchestrator_config": "configs/r/orch.toml",
    "job.inference_config": "configs/r/infer.toml",
}


@pytest.fixture(autouse=True)
def _no_secret_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", secrets.NOTHING)
    secrets._short.cache_clear()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "prime-rl"
    (folder / "src" / "prime_rl").mkdir(parents=True)
    return folder


# A line, and what the run file must have at some keys. {DIR} is the checkout. A key with None must not be there.
LINES: dict[str, tuple[str, Mapping[str, Any]]] = {
    # ------------------------------------------------ as in the logs of real runs
    "resumed by hand": (
        "uv run rl @ /root/config.toml --ckpt --ckpt.resume-step 5 --ckpt.interval 5 --ckpt.keep-last 2",
        {
            "job.kind": "rl",
            "job.config": "/root/config.toml",
            "job.checkpoint_interval": 5,
            "store.keep_last": 2,
            "disk.keep_local": 2,
            "job.args": None,
            "job.launcher": None,
        },
    ),
    "wandb's names": (
        "uv run rl @ configs/prime-rl/bs.toml \\\n  --wandb.project bs \\\n  --wandb.name bs4-run1",
        {"job.config": "configs/prime-rl/bs.toml", "job.args": ["--wandb.project", "bs", "--wandb.name", "bs4-run1"]},
    ),
    "a short validation run": (
        "uv run rl @ configs/q.toml \\\n  --ckpt --ckpt.interval 5 --ckpt.keep-last 3 \\\n  --max-steps 25",
        {"run.max_steps": 25, "job.checkpoint_interval": 5, "store.keep_last": 3, "disk.keep_local": 3},
    ),
    "in a tmux that is opened first": (
        "tmux new -s training\nuv run rl @ /tmp/config.toml --ckpt --ckpt.interval 5 --ckpt.keep-last 3",
        {"job.config": "/tmp/config.toml", "job.checkpoint_interval": 5},
    ),
    "exports before it": (
        (
            "export VLLM_USE_V1=0\nexport VLLM_WORKER_MULTIPROC_METHOD=spawn\n"
            "uv run rl @ config.toml --ckpt --ckpt.interval 5 --ckpt.keep-last 3"
        ),
        {"job.env": {"VLLM_USE_V1": "0"}},  # the other one the supervisor sets itself
    ),
    "eight GPUs of three files": (
        (
            f'cd {{DIR}}\nexport PATH="$HOME/.local/bin:$PATH"\n\nuv run rl \\\n  {ALL} \\\n '
            " --inference-gpu-ids 0,1,2,3,4,5 \\\n"
            "  --trainer-gpu-ids 6,7 \\\n  --inference.parallel.dp 6 \\\n  --output-dir outputs/dakota-v12-1000steps"
        ),
        {
            **PARTS,
            "gpus.inference": [0, 1, 2, 3, 4, 5],
            "gpus.trainer": [6, 7],
            "job.args": ["--inference.parallel.dp", "6"],
            "job.output_dir": "outputs/dakota-v12-1000steps",
            "job.env.PATH": "/root/.local/bin:$PATH",
        },
    ),
    "checkpoints of both parts": (
        (
            f"uv run rl {ALL} --trainer.ckpt.interval 10 --trainer.ckpt.keep 3 --orchestrator.ckpt.interval 10 "
            "--orchestrator.ckpt.keep 3 --inference-gpu-ids 0 --trainer-gpu-ids 1"
        ),
        {**PARTS, "job.checkpoint_interval": 10, "disk.keep_local": 3, "job.args": None},
    ),
    "resumes at the latest of both parts": (
        f"uv run rl {ALL} --trainer.ckpt.resume-step -1 --orchestrator.ckpt.resume-step -1 --output-dir outputs/d",
        {"job.args": None, "job.output_dir": "outputs/d"},
    ),
    "offline": ("uv run rl @ a.toml --wandb.offline true", {"job.args": ["--wandb.offline", "true"]}),
    # ------------------------------------------------ prime-rl's own pages, by era
    "GPU counts of September 2025": (
        f"uv run rl {ALL} --trainer-gpus 2 --inference-gpus 6",
        {"gpus.inference": [0, 1, 2, 3, 4, 5], "gpus.trainer": [6, 7], "job.args": None},
    ),
    "the second experiment of a node, by counts": (
        (
            f"CUDA_VISIBLE_DEVICES=2,3 uv run rl {ALL} --trainer-gpus 1 --inference-gpus 1 "
            "--inference.server.port 8001 --output-dir outputs2"
        ),
        {
            "gpus.inference": [2],
            "gpus.trainer": [3],
            "job.env": None,
            "job.args": ["--inference.server.port", "8001"],
            "job.output_dir": "outputs2",
        },
    ),
    "the second experiment of a node, by ids": (
        f"uv run rl {ALL} --inference-gpu-ids 2 --trainer-gpu-ids 3 --orchestrator.client.base-url http://localhost:8001/v1",
        {
            "gpus.inference": [2],
            "gpus.trainer": [3],
            "job.args": ["--orchestrator.client.base-url", "http://localhost:8001/v1"],
        },
    ),
    "the second experiment of a node, today": (
        "CUDA_VISIBLE_DEVICES=2,3 uv run rl @ rl.toml --run.name exp2",
        {"run.id": "exp2", "job.env": {"CUDA_VISIBLE_DEVICES": "2,3"}, "gpus": {}},
    ),
    "deployment": (
        (
            "uv run rl @ rl.toml \\\n --deployment.num-infer-gpus 6 \\\n --deployment.num-train-gpus 2 \\\n"
            " --inference.vllm.data-parallel-size 6"
        ),
        {
            "gpus.inference": [0, 1, 2, 3, 4, 5],
            "gpus.trainer": [6, 7],
            "job.args": ["--inference.vllm.data-parallel-size", "6"],
        },
    ),
    "deployment with one half named": (
        "uv run rl @ rl.toml --deployment.num-infer-gpus 3",
        {"gpus": {}, "job.args": ["--deployment.num-infer-gpus", "3"]},
    ),
    "deployment with a teacher": (
        "rl @ a.toml --deployment.num-infer-gpus 1 --deployment.num-train-gpus 1 --deployment.num-teacher-gpus 1",
        {"gpus": {}},
    ),
    "one shared GPU": (
        "uv run rl @ rl.toml --trainer-gpu-ids 0 --inference-gpu-ids 0 --inference.gpu-memory-utilization 0.5",
        {"gpus.inference": [0], "gpus.trainer": [0], "job.args": ["--inference.gpu-memory-utilization", "0.5"]},
    ),
    "several files": ("uv run rl @ base.toml @ overlay.toml", {"job.config": ["base.toml", "overlay.toml"]}),
    "a rolling window and steps for ever": (
        "uv run rl @ rl.toml --ckpt.interval 25 --ckpt.keep-interval 100",
        {"job.checkpoint_interval": 25, "store.keep_every": 100, "store.keep_last": None},
    ),
    "the newest run": (
        "uv run rl @ rl.toml --max-steps 20 --ckpt --resume --run.name my-run",
        {"run.id": "my-run", "run.max_steps": 20, "job.args": None},
    ),
    "a fixed step of the newest run": (
        "uv run rl @ rl.toml --max-steps 20 --ckpt --resume.step 10 --run.name my-run",
        {"run.id": "my-run", "job.args": None},
    ),
    "cleaned": ("uv run rl @ rl.toml --clean", {"job.args": None}),
    "dots for what is one's own": (
        "uv run rl @ rl.toml --model.name ... --seed 7",
        {"job.config": "rl.toml", "job.args": ["--seed", "7"]},
    ),
    "tried before by its help and behind it dry": (
        "uv run rl --help\nuv run rl @ rl.toml --seed 7\nuv run rl @ rl.toml --dry-run --output-dir /tmp/x",
        {"job.config": "rl.toml", "job.args": ["--seed", "7"], "job.output_dir": None},
    ),
    "cleaned by the old word": ("uv run rl @ rl.toml --no-clean --clean-output-dir", {"job.args": None}),
    "a list of words": (
        "uv run rl @ rl.toml --trainer.model.lora.target-modules q_proj k_proj v_proj --seed 7",
        {"job.args": ["--trainer.model.lora.target-modules", "q_proj", "k_proj", "v_proj", "--seed", "7"]},
    ),
    "JSON": (
        """uv run rl @ rl.toml --orchestrator.train.source.0.args '{"dataset_name": "openai/gsm8k"}'""",
        {"job.args": ["--orchestrator.train.source.0.args", '{"dataset_name": "openai/gsm8k"}']},
    ),
    "snake case and an equals sign": (
        "uv run rl @ rl.toml --max_steps=50 --ckpt.interval=5 --trainer.optim.lr=1e-5",
        {"run.max_steps": 50, "job.checkpoint_interval": 5, "job.args": ["--trainer.optim.lr=1e-5"]},
    ),
    "an evaluation's interval is none of ours": (
        "uv run rl @ rl.toml --orchestrator.eval.interval 50",
        {"job.args": ["--orchestrator.eval.interval", "50"], "job.checkpoint_interval": "auto"},
    ),
    "no sync, and a debug log": (
        "uv run --no-sync rl @ configs/env_mix.toml --log.level debug",
        {"job.launcher": ["uv", "run", "--no-sync", "rl"], "job.args": ["--log.level", "debug"]},
    ),
    "an extra": (
        "uv run --extra flash-attn rl @ rl.toml",
        {"job.launcher": ["uv", "run", "--extra", "flash-attn", "rl"]},
    ),
    "the local launcher of February 2026": (
        "uv run rl_local @ rl.toml",
        {"job.kind": "rl", "job.launcher": ["uv", "run", "rl_local"]},
    ),
    "the last step of all and of each part": (
        "uv run rl @ rl.toml --max-steps 20 --trainer.max-steps 20 --orchestrator.max-steps=20 --seed 1",
        {"run.max_steps": 20, "job.args": ["--seed", "1"]},
    ),
    "the last step of the parts": (
        "uv run rl @ rl.toml --trainer.max-steps 20 --orchestrator.max-steps 20",
        {"run.max_steps": None, "job.args": ["--trainer.max-steps", "20", "--orchestrator.max-steps", "20"]},
    ),
    "sft's GPUs twice": (
        "torchrun --nproc-per-node 2 src/prime_rl/trainer/sft/train.py @ s.toml --deployment.num-gpus 2",
        {"gpus.trainer": [0, 1], "job.args": None},
    ),
    # ------------------------------------------------ sft
    "sft on one GPU": ("uv run sft @ configs/sft.toml", {"job.kind": "sft", "job.config": "configs/sft.toml"}),
    "sft under torchrun": (
        "uv run torchrun --local-ranks-filter 0 --nproc-per-node 8 src/prime_rl/trainer/sft/train.py @ s.toml --wandb",
        {
            "job.kind": "sft",
            "gpus.trainer": [0, 1, 2, 3, 4, 5, 6, 7],
            "job.launcher": None,
            "job.args": ["--wandb"],
        },
    ),
    "sft under torchrun with words of its own": (
        "uv run torchrun --nproc-per-node 4 --run-path src/prime_rl/trainer/sft/train.py @ sft.toml",
        {
            "gpus.trainer": [0, 1, 2, 3],
            "job.launcher": [
                *("uv", "run", "torchrun", "--nproc-per-node", "4", "--run-path"),
                "src/prime_rl/trainer/sft/train.py",
            ],
        },
    ),
    "sft on chosen GPUs": (
        "CUDA_VISIBLE_DEVICES=4,5 torchrun --nproc_per_node=2 -m prime_rl.trainer.sft.train @ sft.toml",
        {"gpus.trainer": [4, 5], "job.env": None, "job.launcher": None},
    ),
    "sft by its count": ("uv run sft @ sft.toml --deployment.num-gpus 2", {"gpus.trainer": [0, 1], "job.args": None}),
    "sft's W&B run": ("uv run sft @ sft.toml --wandb.id abc123", {"wandb.id": "abc123", "job.args": None}),
    # ------------------------------------------------ how the launcher is found
    "by its path": ("{DIR}/.venv/bin/rl @ a.toml", {"job.dir": "{DIR}", "job.launcher": None, "job.python": None}),
    "by another environment's path": (
        "/opt/venv/bin/rl @ a.toml",
        {"job.python": "/opt/venv/bin/python", "job.launcher": None},
    ),
    "as a module": (
        "python -m prime_rl.entrypoints.rl @ a.toml",
        {"job.kind": "rl", "job.launcher": ["python", "-m", "prime_rl.entrypoints.rl"]},
    ),
    "as a script": (
        "uv run python src/prime_rl/rl.py @ a.toml",
        {"job.launcher": ["uv", "run", "python", "src/prime_rl/rl.py"]},
    ),
    "with the environment activated": (
        "source .venv/bin/activate && rl @ a.toml",
        {"job.launcher": None, "job.python": None},
    ),
    "with another environment activated": (
        "source /venvs/rl/bin/activate; rl @ a.toml",
        {"job.python": "/venvs/rl/bin/python", "job.launcher": None},
    ),
    "bound to a node's memory": (
        "numactl --interleave=all uv run rl @ a.toml",
        {"job.launcher": ["numactl", "--interleave=all", "uv", "run", "rl"]},
    ),
    # ------------------------------------------------ what is wrapped around it
    "nohup": (
        "nohup uv run rl @ a.toml --seed 1 > run.log 2>&1 &",
        {"job.args": ["--seed", "1"], "job.launcher": None},
    ),
    "tmux with the line": (
        "tmux new -d -s x 'cd {DIR} && uv run rl @ a.toml'",
        {"job.dir": "{DIR}", "job.config": "a.toml"},
    ),
    "tmux with a window": ('tmux new-session -d -s x -n rl "uv run rl @ a.toml; bash"', {"job.config": "a.toml"}),
    "keys sent to tmux": ("tmux send-keys -t x:0 'uv run rl @ a.toml' C-m", {"job.config": "a.toml"}),
    "screen": ("screen -dmS train bash -c 'uv run rl @ a.toml 2>&1 | tee log'", {"job.config": "a.toml"}),
    "screen with words": ("screen -L -dmS train uv run rl @ a.toml", {"job.config": "a.toml"}),
    "bash -lc": ("bash -lc 'ulimit -n 131072 && uv run rl @ a.toml'", {"job.nofile": 131072}),
    "env and setsid": ("setsid env FOO=1 BAR='a b' uv run rl @ a.toml", {"job.env": {"FOO": "1", "BAR": "a b"}}),
    "a limit of time": ("timeout 12h uv run rl @ a.toml", {"job.config": "a.toml", "job.launcher": None}),
    "root": ("sudo -E uv run rl @ a.toml", {"job.launcher": None}),
    "piped into tee": ("uv run rl @ a.toml 2>&1 | tee -a train.log", {"job.args": None}),
    "started again for ever": ("while true; do\n  uv run rl @ a.toml\n  sleep 10\ndone", {"job.config": "a.toml"}),
    "a prompt before it": ("(rl) root@C.123:~/prime-rl$ uv run rl @ a.toml", {"job.config": "a.toml"}),
    "a fence around it": ("```bash\nuv run rl @ a.toml\n```\n", {"job.config": "a.toml"}),
    "line ends of Windows": ("uv run rl \\\r\n  @ a.toml \\\r\n  --seed 1\r\n", {"job.args": ["--seed", "1"]}),
    "dashes and quotes of an editor": (
        "uv run rl @ a.toml \u2013seed 1 \u2014wandb.name \u201cx y\u201d",
        {"job.args": ["--seed", "1", "--wandb.name", "x y"]},
    ),
    "a session of its own, without input": (
        (
            "export PRL_RUN_ID=$(cat /proc/sys/kernel/random/uuid | tr -d '-')\nexport WANDB_MODE=disabled\ncd {DIR}\n"
            "setsid uv run rl @ /w/grpo.toml --output-dir /w/runs/x > /w/train.log 2>&1 < /dev/null &\ndisown\nsleep 10"
        ),
        {"job.output_dir": "/w/runs/x", "job.env": {"WANDB_MODE": "disabled"}, "job.args": None, "wandb": None},
    ),
    "the environment's folder on the path": (
        'UV_FROZEN=1 PATH="$(pwd)/.venv/bin:$PATH" .venv/bin/rl @ ../x.toml',
        {
            "job.env.PATH": "{DIR}/.venv/bin:$PATH",
            "job.config": "../x.toml",
            "job.launcher": None,
        },
    ),
    "environments as JSON": (
        """uv run rl @ a.toml --orchestrator.env '[{"id": "owner/name"}]' --output-dir ~/outputs/x""",
        {"job.args": ["--orchestrator.env", '[{"id": "owner/name"}]'], "job.output_dir": "/root/outputs/x"},
    ),
    # ------------------------------------------------ variables
    "variables of the text": (
        'OUT=outputs/x; NAME="a b"\nuv run rl @ a.toml --output-dir $OUT --wandb.name "$NAME-${SEED:-1}"',
        {"job.output_dir": "outputs/x", "job.args": ["--wandb.name", "a b-1"]},
    ),
    "a list of words in a variable": (
        'ARGS=(--seed 1 --wandb.name "a b")\nARGS+=(--log.level debug)\nuv run rl @ a.toml "${ARGS[@]}"',
        {"job.args": ["--seed", "1", "--wandb.name", "a b", "--log.level", "debug"]},
    ),
    "the whole line in a variable": (
        'CMD="uv run rl @ a.toml --seed 1"\necho "$CMD"\neval $CMD',
        {"job.config": "a.toml", "job.args": ["--seed", "1"]},
    ),
    "a list in which one word is not known": (
        'A="--seed $((N*2))"\nA="$A --output-dir /mnt/b"\nrl @ a.toml $A --log.level x',
        {"job.output_dir": "/mnt/b", "job.args": ["--log.level", "x"]},
    ),
    "defaults that are set where they stand": (
        ': "${HF_HOME:=/data/hf}" "${P:=proj}"\nexport HF_HOME\nrl @ a.toml --wandb.project $P --seed ${S:=3}',
        {"job.env": {"HF_HOME": "/data/hf"}, "job.args": ["--wandb.project", "proj", "--seed", "3"]},
    ),
    "what stands before a command holds for what it starts": (
        "N=1\nN=2 rl @ a.toml --seed $N",  # the shell reads $N first
        {"job.env": {"N": "2"}, "job.args": ["--seed", "1"]},
    ),
    "a folder that is left again": (
        "cd {DIR}\npushd data; pushd /x; python -m pip list; popd; popd\nuv run rl @ a.toml --output-dir $PWD/out",
        {"job.dir": "{DIR}", "job.output_dir": "{DIR}/out"},
    ),
    "a variable of the environment": ("uv run rl @ $HOME/a.toml", {"job.config": "/root/a.toml"}),
    "words of the script that there are none of": ('uv run rl @ a.toml "$@"', {"job.args": None}),
    "one W&B run by its variable": (
        "WANDB_RUN_ID=r1hgf2ie WANDB_RESUME=allow uv run rl @ a.toml",
        {"wandb.id": "r1hgf2ie"},
    ),
    "two W&B runs of one name": (
        f"uv run rl {ALL} --trainer.wandb.id abc-trainer --orchestrator.wandb.id abc-orchestrator",
        {"wandb.id": "abc", "job.args": None},
    ),
    # ------------------------------------------------ mistakes that prime-rl would refuse
    "no blank behind the @": ("uv run rl @a.toml --seed 1", {"job.config": "a.toml", "job.args": ["--seed", "1"]}),
    "no blank behind three of them": (
        "uv run rl --trainer @t.toml --orchestrator @o.toml --inference @i.toml",
        {"job.trainer_config": "t.toml", "job.orchestrator_config": "o.toml", "job.inference_config": "i.toml"},
    ),
    "no @ at all": ("uv run rl a.toml", {"job.config": "a.toml"}),
    "blanks behind a backslash": ("uv run rl \\  \n  @ a.toml \\ \n --seed 1", {"job.args": ["--seed", "1"]}),
    # ------------------------------------------------ other trainers
    "verifiers' small trainer": (
        "uv run vf-rl @ configs/default.toml",
        {"job.kind": "vf-rl", "job.config": "configs/default.toml", "job.args": None},
    ),
    "torchrun with a script of one's own": (
        "torchrun --standalone --nproc_per_node=8 -m scripts.prime_rl_train -- --run=my_experiment",
        {
            "job.kind": "command",
            "job.dir": "{DIR}",
            "job.plain.start": [
                *("torchrun", "--standalone", "--nproc_per_node=8", "-m", "scripts.prime_rl_train", "--"),
                "--run=my_experiment",
            ],
        },
    ),
    "python with a script of one's own": (
        "CUDA_VISIBLE_DEVICES=1 python -m scripts.prime_rl_train --run=x --output_dir outs --num_samples=32",
        {"job.kind": "command", "gpus.trainer": [1], "job.output_dir": "outs"},
    ),
    "accelerate": (
        "accelerate launch --config-file configs/zero3.yaml --num-processes 4 train.py --lr 1e-6",
        {"job.kind": "command"},
    ),
    "a script under uv": (
        "CUDA_VISIBLE_DEVICES=2 uv run examples/grpo/train_x.py",
        {"job.kind": "command", "gpus.trainer": [2]},
    ),
    "any program": ("./run-training --big", {"job.kind": "command", "job.plain.start": ["./run-training", "--big"]}),
}


@pytest.mark.parametrize("name", LINES)
def test_a_launch_line_becomes_a_run_file_of_the_same_meaning(checkout: Path, name: str) -> None:
    line, wanted = LINES[name]
    here = str(checkout)
    taken = take(line.replace("{DIR}", here), checkout)
    found = {key: taken.get(key) for key in wanted}
    expected = {key: value.replace("{DIR}", here) if isinstance(value, str) else value for key, value in wanted.items()}
    assert found == expected, taken.text
    assert list(refused_args(taken.run)) == []
    if taken.run.job.kind != "command":
        assert taken.draft.to_do == []


AS_IF = {
    "patterns of a case are no programs": (
        'case "$1" in\n  sft) uv run sft @ s.toml ;;\n  rl|grpo) uv run rl @ rl.toml ;;\n  sft|rl|*) ;;\nesac',
        "rl.toml",
        "What stands under a condition (line 2, 3) was",
    ),
    "an arm of if": (
        'CFG=big\nif [ "$DEBUG" = 1 ]; then\n  CFG=debug\nfi\nuv run rl @ $CFG.toml',
        "debug.toml",
        "What stands under a condition (line 3) was",
    ),
    "an if in an arm, and else": (
        "if a; then\n if b; then echo; fi\n C=x.toml\nelse\n C=y.toml\nfi\ncd /w\nrl @ $C",
        "y.toml",
        "What stands under a condition (line 3, 5) was",
    ),
    "a test and what stands behind it": (
        'C=a.toml\n[[ -n "$SMOKE" ]] && C=s.toml\ncd /w || C=t.toml\nmake && export X=1\nrl @ $C',
        "t.toml",
        "What stands under a condition (line 2, 3) was",
    ),
    "a function": (
        "main() {\n  for i in 1 2; do echo $i; done\n  uv run rl @ a.toml\n}\ncd /data\nmain",
        "a.toml",
        "The line stands in the function main, which was read where it is written",
    ),
    "a function in one line": (
        'go() { uv run rl @ a.toml; }\ngo "$@"',
        "a.toml",
        "The line stands in the function go, which was read where it is written",
    ),
}


@pytest.mark.parametrize("name", AS_IF)
def test_what_a_shell_decides_later_is_read_as_if_it_held_and_a_person_is_asked_to_look(
    checkout: Path, name: str
) -> None:
    line, config, sentence = AS_IF[name]
    taken = take(line, checkout)
    assert taken.get("job.config") == config
    [told] = taken.draft.to_do
    assert told.startswith(sentence) and "Behind the launch line" not in " ".join(taken.draft.changed)


def test_a_function_that_only_tells_and_a_condition_behind_the_launch_line_ask_nothing(checkout: Path) -> None:
    line = "log() {\n  echo $*\n}\nlog go\nuv run rl @ a.toml\nif x; then\n  export Y=1\nfi"
    assert take(line, checkout).draft.to_do == []


def test_there_are_many() -> None:
    assert len(LINES) >= 70


# ---------------------------------------------------------------- what a person is told

SAID = {
    "the step of a resume": (
        "uv run rl @ a.toml --ckpt.resume-step 5",
        "--ckpt.resume-step 5 is left out. The supervisor names the step in each start",
        "rl-supervisor run RUN.toml --step 5",
    ),
    "the newest needs no step": ("uv run rl @ a.toml --ckpt.resume-step -1", "--ckpt.resume-step -1 is left out."),
    "clean": ("uv run rl @ a.toml --clean", "--clean is left out: would delete checkpoints at a start."),
    "keep": (
        "uv run rl @ a.toml --ckpt.keep-last 1",
        "[store] keep_last = 2 (two is the least) and [disk] keep_local = 1",
    ),
    "two intervals": (
        f"uv run rl {ALL} --trainer.ckpt.interval 10 --orchestrator.ckpt.interval 20",
        "say different things, and prime-rl takes one interval for all: 10 is taken.",
    ),
    "no checkpoints": ("uv run rl @ a.toml --no-ckpt", "without checkpoints there is nothing to go on from"),
    "a folder of checkpoints elsewhere": (
        "uv run rl @ a.toml --ckpt.output-dir /data/ckpt",
        "--ckpt.output-dir /data/ckpt is left out: all of a run lies in one folder",
    ),
    "W&B runs of other names": (
        f"uv run rl {ALL} --trainer.wandb.id abc --orchestrator.wandb.id def",
        "These runs begin anew in W&B.",
    ),
    "weights alone": ("uv run rl @ a.toml --ckpt.weights-only", "checkpoints of weights only cannot be resumed from"),
    "a secret in a variable": (
        "export OPENROUTER_API_KEY=0123456789; uv run rl @ a.toml",
        "OPENROUTER_API_KEY is a secret: it is not written here. Put it into the .env, from where the job gets it",
    ),
    "the store's key": (
        "B2_APPLICATION_KEY=0123456789 uv run rl @ a.toml",
        "B2_APPLICATION_KEY is a secret: it is not written here. Put it into the .env, which only the supervisor sees.",
    ),
    "a secret in a flag": (
        "uv run rl @ a.toml --inference.api-key 0123456789",
        "--inference.api-key is left out, with its value",
    ),
    "a command in a value": (
        "uv run rl @ a.toml --wandb.name run-$(date +%s)",
        "--wandb.name run-$(date +%s) is left out: what $(date +%s) stands for is not known here.",
    ),
    "an unknown variable": ("uv run rl @ a.toml --seed $SEED", "--seed $SEED is left out: what $SEED stands for"),
    "an exported name without a value": (
        "read MODE_OF; export MODE_OF; rl @ a.toml",
        "MODE_OF=$MODE_OF is left out: what $MODE_OF is, is not known.",
    ),
    "a quote that is never closed": (
        'uv run rl @ a.toml --wandb.name "my run',
        'Line 1: a " is never closed, and nothing behind it was understood: "my run',
    ),
    "a comment in the middle": (
        "uv run rl @ a.toml \\\n  # --seed 1 \\\n  --max-steps 5",
        "a shell takes it for a command of its own, not for a part of the line above: `--max-steps 5`",
    ),
    "files that would be deleted": (
        "rm -rf outputs/x\nuv run rl @ a.toml",
        "nothing of a run may be deleted at a start: `rm -rf outputs/x`",
    ),
    "processes that would be killed": ("pkill -9 python\nuv run rl @ a.toml", "`pkill -9 python`"),
    "a checkpoint that is fetched": (
        "b2 sync b2://bucket/step_5 outputs/checkpoints/step_5\nuv run rl @ a.toml",
        "the supervisor itself restores and publishes ([store])",
    ),
    "a configuration that is written": (
        "cat > a.toml <<EOF\nmax_steps = 1\nEOF\nuv run rl @ a.toml",
        "it writes a file, which has to be there before a start: `cat > a.toml <<EOF`",
    ),
    "a configuration that is changed": ("sed -i s/1/2/ a.toml\nuv run rl @ a.toml", "it changes a file: do that once"),
    "a loop": ("while true; do uv run rl @ a.toml; sleep 1; done", "the supervisor itself starts what ended again"),
    "a file of variables": ("set -a; source .env; set +a\nuv run rl @ a.toml", "that file was not read"),
    "conda": ("conda activate rl\nuv run rl @ a.toml", "say which interpreter the job uses with [job] python"),
    "a pipe": ("uv run rl @ a.toml | grep loss", "what it is piped into: the supervisor keeps all output itself"),
    "several lines": (
        "if [ -d x ]; then\n  uv run rl @ a.toml --seed 1\nelse\n  uv run rl @ a.toml --seed 2\nfi",
        "several launch lines: that of line 4 was taken, not that of line 2.",
    ),
    "torchrun's own words": (
        "torchrun --local-ranks-filter 0 --nproc-per-node 2 src/prime_rl/trainer/sft/train.py @ s.toml",
        "--local-ranks-filter 0 of torchrun is left out",
    ),
    "a way of starting that the supervisor decides": (
        "VLLM_WORKER_MULTIPROC_METHOD=fork uv run rl @ a.toml",
        "VLLM_WORKER_MULTIPROC_METHOD=fork is left out: the supervisor needs spawn there.",
    ),
    "fewer open files": ("ulimit -n 32000; uv run rl @ a.toml", "ulimit -n 32000: the job gets 65536 here"),
    "vf-rl with words": (
        "vf-rl @ a.toml --model x",
        "--model x is left out: vf-rl reads its configuration and no further words.",
    ),
    "a blank that is missing": ("uv run rl @a.toml", "has no blank behind the @"),
    "a prepared pod": (
        "wandb login 0123456789abcdef\nuv run rl @ a.toml",
        "put the key into the .env beside the run file",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_each_change_of_meaning_is_told(checkout: Path, name: str) -> None:
    line, *sentences = SAID[name]
    taken = take(line, checkout)
    for sentence in sentences:
        assert sentence in taken.said
        assert " ".join(sentence.split())[:40] in " ".join(taken.text.replace("\n#", " ").split()), "also in the file"


TO_DO = {
    "the configuration is a variable": ("uv run rl @ $CONFIG", "$CONFIG: what $CONFIG stands for is not known"),
    "files for one part beside the whole": (
        "uv run rl @ base.toml --trainer @ t.toml",
        "`--trainer @ t.toml` beside other files has no setting of its own",
    ),
    "no file at all": ("uv run rl --model.name Qwen/Qwen3-0.6B", "The line names no configuration file"),
    "only one part": ("uv run rl --trainer @ t.toml --inference @ i.toml", "The line names no file for --orchestrator"),
    "a sweep": (
        'ALL=(a b)\nfor cfg in "${ALL[@]}"; do\n  .venv/bin/rl @ \\\n    ../${cfg}.toml > "$LOGS/$cfg" 2>&1\ndone',
        "The line stands in a loop: each round is a run of its own, with a run file of its own.",
    ),
    "a fork": ("uv run rl @ a.toml --resume.dir o/checkpoints/step_5", "before the first start copy that step"),
    "another trainer's resume": ("torchrun train.py", "Add those that make your trainer go on from a step"),
    "GPUs that a shell would count": (
        "rl @ TODO-x.toml --deployment.num-train-gpus $((N/2))",
        "--deployment.num-train-gpus $((N/2)) is left out: what $((N/2)) stands for is not known here.",
    ),
    "a folder of unknown name": (
        "rl @ TODO-x.toml --output-dir /mnt/$NAME",
        "--output-dir /mnt/$NAME is left out: what $NAME stands for is not known here. It belongs in [job] output_dir.",
    ),
    "an engine that is started beside it": (
        "uv run inference @ i.toml &\nuv run rl --trainer @ t.toml --orchestrator @ o.toml",
        '[job] inference_config = "i.toml" and [recovery] inference = "own-role"',
    ),
    "a server of TRL": (
        "CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model m &\nCUDA_VISIBLE_DEVICES=1 accelerate launch train.py",
        "The text starts two programs: line 1 (trl vllm-serve) and line 2 (accelerate)",
    ),
    "two programs": (
        "CUDA_VISIBLE_DEVICES=0 vf-vllm --model m &\nCUDA_VISIBLE_DEVICES=1 accelerate launch train.py",
        "The text starts two programs: line 1 (vf-vllm) and line 2 (accelerate)",
    ),
}


@pytest.mark.parametrize("name", TO_DO)
def test_what_a_person_must_fill_in_is_told_and_stops_a_start(checkout: Path, name: str) -> None:
    line, sentence = TO_DO[name]
    taken = take(line, checkout)
    assert any(sentence in one for one in taken.draft.to_do), taken.draft.to_do
    job = taken.run.job
    if job.kind == "command":
        assert job.plain is not None
        assert not any("{step}" in word or "{checkpoint}" in word for word in job.plain.resume)  # which check refuses
    elif name not in ("a fork", "an engine that is started beside it"):
        named = [*job.config, job.trainer_config, job.orchestrator_config]
        assert any(path is not None and path.name.startswith("TODO-") for path in named)  # a file that is not there


REFUSED = {
    "Slurm's launcher": ("uv run rl_slurm @ a.toml", "hands the run to a cluster"),
    "a batch": ("sbatch run.sbatch", "hands the run to a cluster"),
    "Slurm by a flag": ("uv run rl @ a.toml --slurm.job-name x", "hands the run to a cluster"),
    "several machines": ("uv run rl @ a.toml --deployment.type multi_node", "several machines are not supported"),
    "several machines by torchrun": (
        "torchrun --nnodes=2 --nproc_per_node 8 --node-rank 0 src/prime_rl/trainer/sft/train.py @ a.toml",
        "several machines are not supported",
    ),
    "several runs": ("uv run rl @ a.toml --max-concurrent-runs 2", "several runs in one trainer"),
    "a container": ("docker run --gpus all image uv run rl @ a.toml", "runs it elsewhere than here"),
    "another machine": ('modal run deploy.py --command "uv run rl @ a.toml"', "runs it elsewhere than here"),
    "help": ("uv run rl --help", "only prints a text"),
    "an engine alone": ("vf-vllm --model m", "Only an inference server is started there"),
    "TRL's engine alone": ("trl vllm-serve --model m", "Only an inference server is started there"),
    "the parts one by one": (
        "uv run inference @ i.toml &\nuv run orchestrator @ o.toml &\nuv run trainer @ t.toml",
        "`uv run rl --trainer @ t.toml --orchestrator @ o.toml --inference @ i.toml`",
    ),
    "the trainer alone under torchrun": (
        "uv run torchrun --nproc-per-node 8 src/prime_rl/trainer/rl/train.py @ t.toml",
        "Only parts of prime-rl are started there",
    ),
    "an evaluation": ("uv run eval wordle -m m -n 20", "No launch line was found there"),
    "an installation": ("uv pip install -e my-env", "No launch line was found there"),
    "a sentence": ("Then start the training:", "No launch line was found there"),
    "nothing": ("cd /x\necho hello\n", "No launch line was found there"),
    "a comment": ("# uv run rl @ a.toml", "No launch line was found there"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_over_is_refused_with_a_sentence(checkout: Path, name: str) -> None:
    line, sentence = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        take(line, checkout)
    assert sentence in str(refused.value)


# ---------------------------------------------------------------- secrets

KEYS = ("hf_abcdefghijklmnopqrstuvwx", "0123456789abcdef0123456789abcdef01234567", "K002abcdefghijklmnopqrstuvwxyz0")


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN=KEY uv run rl @ a.toml",
        "export WANDB_API_KEY=KEY\nuv run rl @ a.toml",
        'export WANDB_API_KEY="KEY"; echo "$WANDB_API_KEY"; uv run rl @ a.toml --wandb.name $WANDB_API_KEY',
        "wandb login KEY && uv run rl @ a.toml",
        "wandb login --relogin KEY && uv run rl @ a.toml",
        "uv run rl @ a.toml --client.api-key KEY",
        "uv run rl @ a.toml --client.api-key=KEY",
        "env B2_APPLICATION_KEY=KEY uv run rl @ a.toml",
        "MY_SECRET=KEY; export MY_SECRET; uv run rl @ a.toml",
        "huggingface-cli login --token KEY\nuv run rl @ a.toml",
        "pip install --extra-index-url https://user:KEY@host/simple x\nuv run rl @ a.toml",
        "python train.py --api-key KEY",
        "python train.py --api_key=KEY",
        "MY_API_KEY=KEY bash -c 'uv run rl @ a.toml'",
        "tmux new -s x 'export WANDB_API_KEY=KEY; uv run rl @ a.toml'",
        "uv run rl @ a.toml --x https://user:KEY@host/",
        "curl -H 'Authorization: Bearer KEY' https://x | bash\nuv run rl @ a.toml",
    ],
)
@pytest.mark.parametrize("key", KEYS)
def test_no_secret_of_the_line_is_written_or_said(checkout: Path, line: str, key: str) -> None:
    taken = take(
        line.replace("KEY", key)
        if "_KEY" not in line
        else line.replace("=KEY", f"={key}").replace('"KEY"', f'"{key}"'),
        checkout,
    )
    assert key not in taken.text
    assert key not in taken.said


def test_a_secret_of_the_environment_is_never_put_in(checkout: Path) -> None:
    environ = {**ENVIRON, "WANDB_API_KEY": "abcdefgh12345678", "MODEL": "Qwen/Qwen3-8B"}
    taken = take("uv run rl @ a.toml --wandb.name $WANDB_API_KEY --model.name $MODEL", checkout, environ=environ)
    assert taken.get("job.args") == ["--model.name", "Qwen/Qwen3-8B"]
    assert "abcdefgh12345678" not in taken.text


def test_a_secret_that_the_job_needs_is_let_through_by_its_name(checkout: Path) -> None:
    taken = take("OPENROUTER_API_KEY=0123456789 HF_TOKEN=0123456789 uv run rl @ a.toml", checkout)
    assert taken.run.job.pass_env[-1] == "OPENROUTER_API_KEY"
    assert "HF_*" in taken.run.job.pass_env
    assert take("HF_TOKEN=0123456789 uv run rl @ a.toml", checkout).get("job.pass_env") is None


# ---------------------------------------------------------------- folders and scripts


def test_a_script_is_read_and_where_it_stands_counts(checkout: Path) -> None:
    (checkout / "scripts").mkdir()
    script = checkout / "scripts" / "train.sh"
    script.write_text(
        "#!/usr/bin/env bash\nset -euo pipefail\n"
        'ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"\ncd "$ROOT"\n'
        "uv pip install -e ../my-env   # the environment\nulimit -n 65536\n"
        'uv run rl @ "$ROOT/configs/a.toml" --output-dir "${OUT:-outputs/a}" "$@" 2>&1 | tee train.log\n'
    )
    taken = take(script.read_text(), checkout.parent, script=script)
    assert taken.run.job.dir == checkout
    assert [str(path) for path in taken.run.job.config] == [str(checkout / "configs" / "a.toml")]
    assert str(taken.run.job.output_dir) == "outputs/a"
    assert '#   "uv pip install -e ../my-env",' in taken.text
    assert take("cd scripts && bash train.sh --seed 3", checkout).run.job.args == ["--seed", "3"]


def test_two_programs_of_a_script_are_the_script_itself(checkout: Path) -> None:
    script = checkout / "both.sh"
    script.write_text(
        "CUDA_VISIBLE_DEVICES=0,1 vf-vllm --model m --port 8200 &\n"
        "CUDA_VISIBLE_DEVICES=2 accelerate launch train.py --output_dir outs\n"
    )
    taken = take(script.read_text(), checkout, script=script)
    assert taken.get("job.plain.start") == ["bash", str(script)]
    assert taken.get("job.plain.engine_url") == "http://127.0.0.1:8200"
    assert taken.get("gpus") == {"inference": [0, 1], "trainer": [2]}
    assert taken.get("job.output_dir") == "outs"
    assert taken.get("job.checkpoint_interval") is None


def test_a_line_from_another_folder_keeps_its_files(checkout: Path) -> None:
    elsewhere = checkout.parent / "mine"
    elsewhere.mkdir()
    python = checkout / ".venv" / "bin" / "python"
    for line in (f"{checkout}/.venv/bin/rl @ my.toml --output-dir out", f"uv run --project {checkout} rl @ my.toml"):
        job = take(line, elsewhere).run.job
        assert (job.dir, job.python) == (elsewhere, python)
        assert [str(path) for path in job.config] == ["my.toml"]
    (checkout / "configs").mkdir()
    job = take("cd configs && uv run rl @ my.toml", checkout).run.job
    assert (job.dir, job.python) == (checkout / "configs", python)


def test_a_checkout_that_a_person_names_takes_the_files_along(checkout: Path) -> None:
    elsewhere = checkout.parent / "mine"
    elsewhere.mkdir()
    (elsewhere / "my.toml").touch()
    taken = take(f"{checkout}/.venv/bin/rl @ my.toml --output-dir out", elsewhere, job_dir=checkout)
    assert (taken.run.job.dir, taken.run.job.python) == (checkout, None)
    assert [str(path) for path in taken.run.job.config] == [str(elsewhere / "my.toml")]
    assert taken.run.output_dir == elsewhere / "out"
    assert f"The job runs in {checkout}, the line ran in {elsewhere}" in taken.said


def test_a_line_that_is_not_typed_where_prime_rl_is_runs_there(checkout: Path) -> None:
    (checkout / "configs").mkdir()
    (checkout / "configs" / "a.toml").write_text("[inference]\n")
    taken = take("uv run rl @ configs/a.toml", checkout.parent, job_dir=checkout)
    assert (taken.run.job.dir, taken.get("job.config")) == (checkout, "configs/a.toml")
    assert f"The line is taken to run in {checkout}, where prime-rl is." in taken.said
    for line, python in (
        ("source .venv/bin/activate && uv run rl @ configs/a.toml", None),  # the job's own, and there is none here
        ("source ../mine/bin/activate; rl @ configs/a.toml", checkout.parent / "mine/bin/python"),
        ("source /srv/mine/bin/activate; rl @ configs/a.toml", Path("/srv/mine/bin/python")),
    ):
        assert take(line, checkout.parent, job_dir=checkout).run.job.python == python
    (checkout.parent / "b.toml").write_text("[inference]\n")  # but a file that lies here is the one that is meant
    taken = take("uv run rl @ b.toml", checkout.parent, job_dir=checkout)
    assert taken.get("job.config") == str(checkout.parent / "b.toml")


def test_lines_of_a_script_that_are_no_part_of_it_are_named_once(checkout: Path) -> None:
    taken = take("foo\nbar --x\nuv run rl @ a.toml\nbaz\n", checkout)
    assert "No part of the launch line, and left out: line 1, 2." in taken.said
    assert "Behind the launch line, and left out: `baz`. What is to be done" in taken.said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uv run rl @ a.toml; shutdown -h now", "Behind the launch line, and left out: `shutdown -h now`."),
        ("uv run rl @ a.toml && python upload.py", "Behind the launch line, and left out: `python upload.py`."),
        ("uv run rl @ a.toml || curl https://page.example/x", "left out: `curl https://page.example/x`."),
        ("bash -c 'uv run rl @ a.toml; poweroff'", "Behind the launch line, and left out: `poweroff`."),
        ("foo --x; uv run rl @ a.toml", "No part of the launch line, and left out: `foo --x`."),
        ("uv run rl @ a.toml\n\ncp -r outputs /mnt\nnotify me", "left out: `cp -r outputs /mnt`, `notify me`."),
    ],
)
def test_what_stands_behind_the_launch_or_on_its_line_is_shown(text: str, said: str, checkout: Path) -> None:
    taken = take(text, checkout)
    assert said in taken.said
    assert taken.run.job.kind == "rl"
    assert ("[hooks] finish" in taken.said) == said.startswith(("Behind", "left out"))


def test_what_is_only_said_or_waited_for_behind_it_is_passed_over(checkout: Path) -> None:
    assert "left out" not in take("uv run rl @ a.toml; echo done; sleep 5", checkout).said


def test_a_folder_that_is_not_here_is_still_the_lines(checkout: Path) -> None:
    taken = take("cd /app/prime-rl && source .venv/bin/activate && rl @ a.toml", checkout.parent)
    assert (str(taken.run.job.dir), taken.run.job.python) == ("/app/prime-rl", None)


def test_what_the_files_say_and_the_supervisor_would_overrule_is_taken_over(checkout: Path) -> None:
    (checkout / "rl.toml").write_text(
        'output_dir = "outputs/here"\n[ckpt]\ninterval = 7\nkeep_last = 4\n[run]\nname = "own-name"\n[inference]\n'
    )
    taken = take("uv run rl @ rl.toml", checkout)
    assert (taken.get("job.output_dir"), taken.get("job.checkpoint_interval")) == ("outputs/here", 7)
    assert (taken.get("run.id"), taken.get("store.keep_last"), taken.get("disk.keep_local")) == ("own-name", 4, 4)
    said = take("uv run rl @ rl.toml --output-dir o --ckpt.interval 9 --ckpt.keep-last 2 --run.name mine", checkout)
    assert (said.get("job.output_dir"), said.get("job.checkpoint_interval")) == ("o", 9)
    assert (said.get("run.id"), said.get("store.keep_last")) == ("mine", 2)


def test_without_an_engine_the_launcher_counts_the_trainers_gpus_from_the_first(checkout: Path) -> None:
    (checkout / "rl.toml").write_text("[orchestrator]\n")
    line = "uv run rl @ rl.toml --deployment.num-infer-gpus 1 --deployment.num-train-gpus 1"
    assert take(line, checkout).get("gpus") == {}
    (checkout / "rl.toml").write_text("[orchestrator]\n[inference]\n")
    assert take(line, checkout).get("gpus") == {"inference": [0], "trainer": [1]}


def test_a_pages_word_for_ones_own_is_asked_for(checkout: Path) -> None:
    taken = take("uv run rl @ configs/<env>/rl.toml", checkout)
    assert taken.get("job.config") == "TODO-env.toml"
    assert "what <env> stands for is not known here" in taken.said
    taken = take("uv run torchrun --nproc-per-node ... src/prime_rl/trainer/sft/train.py @ sft.toml", checkout)
    assert taken.get("job.launcher") is None
    assert "Write the words before the @ into [job] launcher." in taken.said


@pytest.mark.parametrize("line", ["uv run python -V", "python setup.py bdist_wheel"])
def test_a_program_that_trains_nothing_is_no_launch(checkout: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="No launch line was found there"):
        take(line, checkout)


# ---------------------------------------------------------------- odd text


@pytest.mark.parametrize(
    "text",
    [
        *("'", '"', "\\", "$", "${", "$(", "`", "(", ")", "<", "<<", "<<<", "--", "@", "\x00\x01\x7f\x0c"),
        *("cd", "source", "export", "ulimit", "tmux", "screen", "eval", "bash -c", "torchrun", "env", "timeout"),
        *("uv", "uv run", "uv run -m", "uv run rl @", "uv run rl @ ", "python", "python -m", "numactl", "nice -n"),
        *("rl", "rl --", "rl @ @ @", "rl --@ x", "rl --=x", "rl --x=@", "uv run rl @ a.toml @"),
        *("a" * 100_000, "$(" * 5000, "${a:-" * 5000, "((" * 5000, "\\\n" * 5000, "x=(" * 5000),
        *("A=(a \\ \n b)\nuv run rl @ a.toml", "uv run sft @ a.toml --trainer-gpu-ids 1", "rl @ ~x/a.toml"),
        *("uv run rl @ a.toml --x " + "'" * 4999, "cat <<EOF\nuv run rl @ a.toml\n", "case x in a) uv run rl"),
        *("eval " * 9 + "uv run rl @ a.toml", "function f { uv run rl @ a.toml; }; f"),
    ],
)  # fmt: skip
def test_odd_text_gives_a_run_file_or_a_sentence_and_nothing_else(checkout: Path, text: str) -> None:
    try:
        taken = take(text, checkout)
    except ConfigError as refused:
        assert str(refused)
    else:
        assert isinstance(taken, Taken)


def test_variables_that_double_themselves_have_an_end(checkout: Path) -> None:
    taken = take("A=xxxxxxxx\n" + "A=$A$A\n" * 60 + "uv run rl @ a.toml --x $A", checkout)
    assert len(taken.text) < 100_000


# ---------------------------------------------------------------- what only this machine has, or only a call

SEARCHED = {**ENVIRON, "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("export PATH=/x:$PATH", "PATH", "/x:$PATH"),
        ('export PATH="${PATH}:/x"', "PATH", "$PATH:/x"),
        ("export PATH=/x:$PATH\nexport PATH=/y:$PATH", "PATH", "/y:/x:$PATH"),
        ("OLD=$PATH; export PATH=/x:$OLD", "PATH", "/x:$PATH"),
        ("export LD_LIBRARY_PATH=/cuda/lib64:$LD_LIBRARY_PATH", "LD_LIBRARY_PATH", "/cuda/lib64:$LD_LIBRARY_PATH"),
        ("export PYTHONPATH=/x/src:$PYTHONPATH", "PYTHONPATH", "/x/src:$PYTHONPATH"),
        ("export PYTHONPATH=/x/src:${PYTHONPATH:-}", "PYTHONPATH", "/x/src:$PYTHONPATH"),
        ("export PATH+=:/x", "PATH", "$PATH:/x"),
        ("export OMP_NUM_THREADS=12", "OMP_NUM_THREADS", "12"),
        ("export PATH=/only/this", "PATH", "/only/this"),
    ],
)
def test_a_path_in_front_of_this_machines_is_no_copy_of_this_machines(
    checkout: Path, line: str, name: str, value: str
) -> None:
    taken = take(f"{line}\nuv run rl @ a.toml", checkout, environ=SEARCHED)
    assert taken.get(f"job.env.{name}") == value, taken.said
    if "$" in value:
        assert f"{name}={value} is in [job.env]: ${name} there is what the daemon has on each pod" in taken.said
    there = {"PATH": "/another/pod", "LD_LIBRARY_PATH": "/its/lib"}
    job = job_environment(there, [], taken.run.job.env, {})
    assert job[name] == value.replace(f"${name}", there.get(name, ""))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('--wandb.name "${1:-}"', "--wandb.name $1 is left out: what $1 stands for is not known here."),
        ('"${1:-}"', "$1 is left out: what it stands for is not known here."),
        ('--wandb.name "${TAG:-}"', "--wandb.name $TAG is left out: what $TAG stands for is not known here."),
        ('"$@"', "The text is taken as called without words: $@ is nothing."),
        ("$*", "The text is taken as called without words: $* is nothing."),
        ('--max-steps ${1:-100} "$@"', "The text is taken as called without words: $1 is 100, $@ is nothing."),
        ("$EXTRA", "$EXTRA is left out: what it stands for is not known here."),
    ],
)
def test_a_word_that_only_a_call_of_the_script_would_give_is_named(checkout: Path, words: str, said: str) -> None:
    taken = take(f"uv run rl @ a.toml {words}", checkout)
    assert said in taken.said
    assert taken.get("job.args") is None


def test_the_words_of_a_script_that_another_calls_are_known(checkout: Path) -> None:
    (checkout / "inner.sh").write_text('uv run rl @ a.toml --seed "${1:-7}" --wandb.name ${2:-x}\n')
    taken = take("bash inner.sh 3", checkout)
    assert taken.get("job.args") == ["--seed", "3", "--wandb.name", "x"]
    assert "taken as called" not in taken.said


@pytest.mark.parametrize("mark", ["SBATCH", "PBS", "BSUB"])
def test_what_a_script_asks_of_a_scheduler_is_named(checkout: Path, mark: str) -> None:
    text = (
        f"#!/bin/bash\n#{mark} --time=04:00:00   # four hours\n#{mark} --gpus=8\n## {mark} --no\nuv run rl @ a.toml\n"
    )
    taken = take(text, checkout)
    assert (
        f"#{mark} --time=04:00:00 --gpus=8 is left out: rl-supervisor asks no scheduler for time or machines. "
        "[run] max_steps bounds a run; [leaving] says how it hears that the pod is about to go."
    ) in taken.said
