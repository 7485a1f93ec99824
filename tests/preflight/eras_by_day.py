"""Subjects of a certain prime-rl, for the tests of the checks on settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from supervisor.config.settings import RunFile
from supervisor.jobs.base import GpuPlan
from supervisor.preflight.finding import Finding
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl.command import gpu_plan
from supervisor.primerl.configs import Settings
from tests.preflight.subjects import subject
from tests.primerl.eras import ERAS

SEPTEMBER, IDS, JANUARY, FEBRUARY, MARCH, JUNE, NEWEST = (
    *("ceb60c03f", "454e2cba4", "be0e3d131", "f870f3cbd", "63331ad8b", "38494ccb4", "559b44772"),
)
EVERY = (SEPTEMBER, IDS, JANUARY, FEBRUARY, MARCH, JUNE, NEWEST, None)
"""Some of each way to speak, and an unknown one."""

RUN = RunFile.model_validate({"run": {"id": "case"}, "job": {"dir": "/srv/prime-rl", "config": "rl.toml"}})


def of(era: str | None, text: str = "", **given: Any) -> Subject:
    """A subject whose installed prime-rl is that of the commit ``era`` (None: not known)."""
    dialect = ERAS[era].dialect if era else None
    plan = gpu_plan(RUN, dialect, Settings(tomllib.loads(text), ""), {}) if dialect else GpuPlan()
    known = "installed" if dialect else ""
    return subject(text, **{"dialect": dialect, "dialect_from": known, "plan": plan, "run_file": RUN, **given})


def found(checks: Sequence[Check], one: Subject) -> list[Finding]:
    """What ``checks`` find in it."""
    return [finding for check in checks for finding in check(one)]


def weights(checks: Sequence[Check], one: Subject) -> dict[str, str]:
    """The same, as id to severity."""
    return {finding.id: finding.weight for finding in found(checks, one)}


def odd_trees() -> Iterator[dict[str, Any]]:
    """Configurations in which each setting that the checks know has a value of another kind."""
    names = (
        *(
            "max_steps",
            "seq_len",
            "max_model_len",
            "max_async_level",
            "bench",
            "output_dir",
            "clean",
            "resume",
            "dry_run",
        ),
        *("inference_gpu_ids", "trainer_gpu_ids", "model", "wandb", "monitors", "ckpt", "weight_broadcast", "run"),
    )
    for value in (
        "None",
        "",
        0,
        -1,
        2**70,
        1e400,
        float("nan"),
        True,
        [],
        [[]],
        [1, "a", {}],
        {},
        {"": {}},
        "\0",
        "x" * 9,
    ):
        tree: dict[str, Any] = dict.fromkeys(names, value)
        tree["deployment"] = {"num_train_gpus": value, "num_infer_gpus": value, "type": value}
        sampling = {"max_tokens": value, "max_completion_tokens": value}
        orchestrator = dict.fromkeys(
            ("batch_size", "group_size", "rollouts_per_example", "token_batch_size", "micro_batch_size", "seq_len"),
            value,
        )
        orchestrator |= {"oversampling_factor": value, "concurrency": {"max_inflight": value}, "sampling": sampling}
        orchestrator |= {"env": [value, {"args": value}, {"args": {"max_tokens": value}, "name": value, "id": value}]}
        orchestrator |= {"client": {"base_url": value, "port": value}, "train": {"source": value, "sampling": value}}
        model = dict.fromkeys(("seq_len", "cp", "tp", "ep", "dp_replicate", "attn", "impl", "lora", "ac", "vlm"), value)
        model |= {"fsdp_cpu_offload": value, "optim_cpu_offload": value, "full_offload": value}
        ckpt = {"interval": value, "keep_last": value, "skip_optimizer": value}
        trainer = {"model": model, "data": {"fake": value}, "optim": {"type": value}, "ckpt": ckpt, "wandb": value}
        inference = {"gpu_memory_utilization": value, "parallel": {"tp": value, "dp": value}, "server": {"port": value}}
        inference |= {"model": {"max_model_len": value, "enforce_eager": value}, "vllm": value}
        yield {**tree, "orchestrator": orchestrator, "trainer": trainer, "inference": inference}
        yield {**tree, "orchestrator": value, "trainer": value, "inference": value}
        yield {"trainer": trainer, "orchestrator": orchestrator, "inference": inference, "ckpt": ckpt}
