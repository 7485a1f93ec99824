"""Flags of [job] args over the configuration, as prime-rl's own parsers take them, and switches as pydantic does."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from supervisor.preflight import sharing, tracking
from supervisor.preflight.subject import Subject
from supervisor.primerl.configs import Settings, merge_configs, refusals
from tests.preflight.subjects import gpu, ids, site
from tests.primerl.eras import ERAS

DIALECT = ERAS["559b44772"].dialect
NO_KEY = site(gpus=[gpu()], environ={"HOME": "/root"})


def _settings(text: str, *args: str) -> Settings:
    return Settings(merge_configs([("", tomllib.loads(text))], args), "rl.toml")


def _subject(text: str, *args: str, **given: Any) -> Subject:
    return Subject("rl", _settings(text, *args), args=args, dialect=DIALECT, **given)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("[monitors.wandb]\nproject = 'a'", ["--no-monitors.wandb"]),
        ("[wandb]\nproject = 'a'", ["--no-wandb"]),
        ("", ["--no-wandb"]),
        ("[wandb]\noffline = true", ["--wandb"]),  # the table stays as the file has it
        ("[wandb]\noffline = 'yes'", []),
    ],
)
def test_who_switches_wandb_off_needs_no_key(text: str, args: list[str]) -> None:
    assert "wandb-key" not in ids(list(_of(tracking.CHECKS, _subject(text, *args, site=NO_KEY))))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("[trainer.model.lora]\nrank = 8\n[weight_broadcast]\ntype = 'nccl'", ["--no-trainer.model.lora"]),
        ("[weight_broadcast]\ntype = 'nccl'", ["--no-trainer.model.lora"]),
        ("[trainer.model]\nfsdp_cpu_offload = true\noptim_cpu_offload = true", ["--no-trainer.model.fsdp-cpu-offload"]),
        ("[trainer.model]\nfsdp_cpu_offload = true\noptim_cpu_offload = true", ["--trainer.model.no-fsdp-cpu-offload"]),
        ("[trainer.model.full_offload]", ["--trainer.model.optim-cpu-offload", "False"]),
        ("[trainer.model.full_offload]", ["--trainer.model.optim-cpu-offload", "0"]),
        ("[trainer.model.full_offload]", ["--no-trainer.model.optim-cpu-offload"]),
        ("[trainer.model]\nfull_offload = true\noptim_cpu_offload = 'false'", []),
    ],
)
def test_what_is_switched_off_shuts_nothing_else_out(text: str, args: list[str]) -> None:
    assert list(_of(sharing.CHECKS, _subject(text, *args))) == []


def test_a_bare_flag_leaves_the_table_of_the_file_as_it_stands() -> None:
    settings = _settings("[inference.vllm]\nmax_model_len = 9", "--inference", "--bench")
    assert settings.number("inference.vllm.max_model_len") == 9
    assert settings.get("bench") is True


def test_what_is_switched_off_is_not_there_and_0_is_a_number() -> None:
    settings = _settings("[ckpt]\ninterval = 0\n[trainer.model]\ncompile = false", "--no-slurm", "--no-ckpt.weights")
    assert not settings.has("slurm")
    assert not settings.has("trainer.model.compile")
    assert settings.get("trainer.model.compile") is False
    assert settings.has("ckpt.interval")
    assert not list(refusals(settings, DIALECT))


@pytest.mark.parametrize("value", ["true", "'true'", "'Yes'", "1"])
def test_a_start_that_would_delete_the_checkpoints_is_refused_in_each_spelling_of_true(value: str) -> None:
    assert [one.key for one in refusals(_settings(f"clean = {value}"), DIALECT)] == ["clean"]


def _of(checks: Any, subject: Subject) -> Any:
    return (one for check in checks for one in check(subject))
