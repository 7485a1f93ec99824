"""Settings that are right each by itself, and that prime-rl refuses together: before it loads anything, or soon after.

prime-rl checks these in its configuration classes, or asserts them when it sets its trainer up. Each had its days: what
came or went within the time that the installed version may be of is a warning.
"""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

from supervisor.preflight.finding import Finding, Severity
from supervisor.preflight.reading import (
    DATA,
    degree,
    elsewhere,
    first,
    has,
    is_number,
    lora,
    number,
    of_trainer,
    overlay,
    sources,
)
from supervisor.preflight.subject import Check, Subject

GPUS_PER_NODE = 8  # deployment.gpus_per_node, 1826b1892 to 559b44772
WARMUP, DECAY = 10, 10  # of the linear and the cosine scheduler since 443c657b8
LARGEST_RANK = 512  # VALID_VLLM_LORA_RANKS of inference/config.py, f35f0141c to 559b44772
STACKED = 256  # what a stacked sequence is a multiple of

_COUNTED = ("deployment.num_train_gpus", "deployment.num_infer_gpus", "deployment.num_teacher_gpus")
_TEACHERS = ("teacher_gpu_ids", "deployment.num_teacher_gpus", "orchestrator.teacher_model", "orchestrator.teacher")
_REFUSED = "refused-together"
_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt}


def _weight_of_time(subject: Subject, since: date, until: date | None = None) -> Severity | None:
    """Of what is refused from ``since`` on and until ``until``; None where it certainly is not."""
    came, went = has(subject, since), has(subject, until) if until else False
    if subject.dialect is None or came is False or went is True:
        return None
    return "error" if came is True and went is False else "warning"


def _check_schedule(subject: Subject) -> Iterator[Finding]:
    """setup_linear_scheduler and setup_cosine_scheduler (443c657b8) assert that warmup and decay fit into the run."""
    table = of_trainer(subject, "scheduler")
    kind = subject.settings.get(f"{table}.type")
    if subject.kind not in ("rl", "sft") or kind not in ("linear", "cosine") or has(subject, date(2025, 9, 23)) is None:
        return
    newer = has(subject, date(2025, 9, 23)) is True
    where = subject.where(f"{table}.type")
    warmup, decay = number(subject, f"{table}.warmup_steps"), number(subject, f"{table}.decay_steps")
    first_steps = warmup.value if warmup else WARMUP if newer else 0
    last_steps = (decay.value if decay else DECAY if newer else 0) if kind == "linear" else 0
    if subject.max_steps is None:
        if not newer or kind == "cosine" or last_steps:
            told = f'{table}.type = "{kind}" is laid out over max_steps, and there is none.'
            unsaid: Severity | None = "warning" if subject.run_file is None else None  # a flag may say it
            yield Finding("schedule-without-end", told, where, severity=unsaid)
        return
    if kind == "linear" and first_steps + last_steps > subject.max_steps:
        told = (
            f"{_say_values(f'{table}.warmup_steps', first_steps, bool(warmup))} and "
            f"{_say_values(f'{table}.decay_steps', last_steps, bool(decay))} are more than max_steps = "
            f"{subject.max_steps}."
        )
        where = subject.where(*(one.path for one in (decay, warmup) if one), f"{table}.type")
        yield Finding("schedule-past-the-end", told, where)
    elif kind == "cosine" and first_steps >= subject.max_steps and has(subject, date(2026, 8, 20)) is True:
        told = (
            f"{_say_values(f'{table}.warmup_steps', first_steps, bool(warmup))} leaves nothing of max_steps = "
            f"{subject.max_steps}."
        )
        yield Finding("schedule-past-the-end", told, subject.where(f"{table}.warmup_steps", f"{table}.type"))


def _say_values(path: str, value: int, said: bool) -> str:
    return f"{path} = {value}" if said else f"{path} ({value} unless set)"


def _check_gpus(subject: Subject) -> Iterator[Finding]:
    """validate_gpu_count of the deployment (1826b1892)."""
    if subject.dialect is None or subject.dialect.gpus != "deployment" or subject.kind != "rl" or elsewhere(subject):
        return
    if subject.settings.get("deployment.type") not in (None, "single_node"):
        return  # a fork's own way to place its parts
    most = number(subject, "deployment.gpus_per_node")
    named = [one for one in (number(subject, path) for path in _COUNTED) if one]
    total = sum(one.value for one in named) + sum(1 for path in _COUNTED[:2] if not subject.settings.has(path))
    limit = most.value if most else GPUS_PER_NODE
    if total > limit and named:
        asked = " and ".join(f"{one.path} = {one.value}" for one in named)
        told = f"{asked} come to {total} GPUs: {_say_values('deployment.gpus_per_node', limit, bool(most))} is less."
        remedy = f"Set deployment.gpus_per_node = {total}, if there are as many; else take fewer."
        yield Finding("gpus-beyond-the-node", told, subject.where(named[-1].path), remedy)


def _check_batches(subject: Subject) -> Iterator[Finding]:
    """resolve_batching of the orchestrator (668579aaf)."""
    tokens, rollouts = number(subject, "orchestrator.token_batch_size"), number(subject, "orchestrator.batch_size")
    weight = _weight_of_time(subject, date(2026, 2, 25))
    if subject.kind == "rl" and tokens and rollouts and weight:
        told = f"{rollouts.path} = {rollouts.value} and {tokens.path} = {tokens.value}: only one of them may be set."
        yield Finding(_REFUSED, told, subject.where(tokens.path), "Take one of the two out.", weight)


def _check_buffer(subject: Subject) -> Iterator[Finding]:
    """validate_thresholds and validate_env_ratios (534c27ab5), until the buffer's parts went."""
    easy, hard = (first(subject, f"orchestrator.buffer.{name}_threshold") for name in ("easy", "hard"))
    weight = _weight_of_time(subject, date(2025, 12, 18), date(2026, 6, 1))
    if weight and easy and hard and is_number(easy.value) and is_number(hard.value) and easy.value <= hard.value:
        told = f"{easy.path} = {easy.value} is not above {hard.path} = {hard.value}."
        remedy = "An example is easy from easy_threshold on, and hard up to hard_threshold: set the first one higher."
        yield Finding(_REFUSED, told, subject.where(easy.path), remedy, weight)
    ratios = first(subject, "orchestrator.buffer.env_ratios")
    weight = _weight_of_time(subject, date(2025, 12, 18), date(2026, 4, 9))
    count = sum(1 for _ in sources(subject))
    if weight and ratios and isinstance(ratios.value, list) and count and len(ratios.value) != count:
        there = "is one environment" if count == 1 else f"are {count} environments"
        told = f"{ratios.path} has {len(ratios.value)} numbers, and there {there}."
        yield Finding(_REFUSED, told, subject.where(ratios.path), "Write one number for each environment.", weight)


def _check_teacher(subject: Subject) -> Iterator[Finding]:
    """validate_teacher_model (1a5841b06), until eaf95997f."""
    weight = _weight_of_time(subject, date(2025, 12, 31), date(2026, 5, 19))
    share = first(subject, "trainer.loss.teacher_tau")
    whole = subject.knows("trainer") and subject.knows("orchestrator")
    if not weight or not whole or not share or not is_number(share.value) or share.value <= 0:
        return
    if not any(subject.settings.has(path) for path in _TEACHERS):
        told = f"{share.path} = {share.value}, and no teacher is named."
        deployed = subject.dialect is not None and subject.dialect.gpus == "deployment"
        gpus = "deployment.num_teacher_gpus" if deployed else "teacher_gpu_ids"
        remedy = f"Set {gpus}, or write a table [orchestrator.teacher_model] for one that runs already."
        yield Finding(_REFUSED, told, subject.where(share.path), remedy, weight)


def _check_adapters(subject: Subject) -> Iterator[Finding]:
    """The engine is told the adapter's rank (f35f0141c), and vLLM takes no larger one than these."""
    rank = number(subject, f"{lora(subject)}.rank") if lora(subject) else None
    weight = _weight_of_time(subject, date(2025, 12, 10))
    if subject.kind == "rl" and rank and rank.value > LARGEST_RANK and weight and subject.settings.has("inference"):
        told = f"{rank.path} = {rank.value} is more than {LARGEST_RANK}, the most that vLLM serves."
        yield Finding(_REFUSED, told, subject.where(rank.path), f"Set it to {LARGEST_RANK} or less.", weight)


def _no_evals(subject: Subject) -> Iterator[Finding]:
    """validate_non_empty_envs of the orchestrator's evals (f6563ff0e)."""
    table = subject.settings.get("orchestrator.eval")
    weight = _weight_of_time(subject, date(2026, 6, 1))
    if subject.kind == "rl" and weight and isinstance(table, dict) and not (table.get("env") or table.get("source")):
        newest = subject.schema is None or subject.schema.get("orchestrator.eval.source") is not None
        name = "source" if newest else "env"
        told = "[orchestrator.eval] is there, and names nothing to evaluate."
        remedy = f"Write a table [[orchestrator.eval.{name}]], or take [orchestrator.eval] out."
        weight = "warning" if overlay(subject) else weight
        yield Finding(_REFUSED, told, subject.where("orchestrator.eval"), remedy, weight)


def _check_folders(subject: Subject) -> Iterator[Finding]:
    """The folders of the parts are derived from the run's own, and may not be named (e26b50503)."""
    weight = _weight_of_time(subject, date(2026, 8, 13))
    if subject.run_file is None and any(text.table for text in subject.texts):
        return  # a part may be started by itself
    for path in ("trainer.output_dir", "orchestrator.output_dir") if subject.kind == "rl" and weight else ():
        if found := first(subject, path):
            told = f'{path} = "{found.value}", and each part writes into the folder of the run.'
            yield Finding(_REFUSED, told, subject.where(path), f"Take {path} out.", weight)


def _strange_code(subject: Subject) -> Iterator[Finding]:
    """trust_remote_code_only_with_hf of the trainer's model (d6e156d17)."""
    code, kind = of_trainer(subject, "model.trust_remote_code"), of_trainer(subject, "model.impl")
    weight, chosen = _weight_of_time(subject, date(2025, 9, 23)), subject.settings.get(kind)
    if weight and subject.settings.is_on(code) and chosen in ("custom", "liger_kernel"):
        told = f'{code} is on, and {kind} = "{chosen}" is prime-rl\'s own code for the model.'
        yield Finding(_REFUSED, told, subject.where(code), f'Set {kind} = "hf", or take {code} out.', weight)


def _broadcast_to_copies(subject: Subject) -> Iterator[Finding]:
    """nccl_and_dp of the engine, until 3ac5c2054. What the launcher itself makes of the GPUs was not compared."""
    copies = number(subject, *DATA)
    kinds = ("weight_broadcast.type", "inference.weight_broadcast.type")
    weight = _weight_of_time(subject, date(2025, 11, 3), date(2026, 1, 30))
    if weight and copies and copies.value > 1 and any(subject.settings.get(path) == "nccl" for path in kinds):
        told = (
            f'{copies.path} = {copies.value} and weight_broadcast.type = "nccl": NCCL reaches one copy of the engine.'
        )
        remedy = f"Take {copies.path} out, or set the type to filesystem."
        yield Finding(_REFUSED, told, subject.where(copies.path), remedy, weight)


def _check_examples(subject: Subject) -> Iterator[Finding]:
    """What SFT wants of its data and its loss (trainer/sft/config.py)."""
    if subject.kind != "sft":
        return
    chunk = number(subject, "model.fused_lm_head_token_chunk_size", "model.fused_lm_head_chunk_size")
    weight = _weight_of_time(
        subject, date(2026, 1, 5), date(2026, 6, 23)
    )  # 5ad6f62fc; the loss in slices came after 7089ba1e4
    if chunk and weight:
        told = f"{chunk.path} = {chunk.value}, and SFT of that time computes no loss in slices."
        yield Finding(_REFUSED, told, subject.where(chunk.path), f"Take {chunk.path} out.", weight)
    stacked, length = subject.settings.get("data.pack_function") == "stack", number(subject, "data.seq_len")
    weight = _weight_of_time(subject, date(2025, 9, 23), date(2026, 7, 17))
    if stacked and weight and length and length.value % STACKED:
        told = f'data.seq_len = {length.value} is no multiple of {STACKED}, which data.pack_function = "stack" wants.'
        below = length.value - length.value % STACKED
        yield Finding(_REFUSED, told, subject.where("data.seq_len"), f"Set it to {below or STACKED}.", weight)
    yield from _split_examples(subject, stacked)
    names = [first(subject, f"data.{name}") for name in ("subsets", "splits", "probabilities")]
    lists = [one for one in names if one and isinstance(one.value, list)]
    weight = _weight_of_time(subject, date(2025, 10, 9))
    if weight and len({len(one.value) for one in lists}) > 1:
        told = f"{' and '.join(f'{one.path} has {len(one.value)}' for one in lists)}: one is wanted for each."
        yield Finding(_REFUSED, told, subject.where(lists[-1].path), "Write as many of each.", weight)


def _split_examples(subject: Subject, stacked: bool) -> Iterator[Finding]:
    if degree(subject, "model.cp") < 2:
        return
    micro, weight = number(subject, "data.micro_batch_size"), _weight_of_time(subject, date(2025, 12, 17))
    if micro and micro.value != 1 and weight:
        told = f"{micro.path} = {micro.value}, and model.cp splits one sequence at a time."
        yield Finding(_REFUSED, told, subject.where(micro.path), f"Set {micro.path} = 1.", weight)
    weight = _weight_of_time(subject, date(2025, 12, 17), date(2026, 7, 17))
    if stacked and weight:
        told = 'data.pack_function = "stack", and model.cp splits sequences that are packed end to end only.'
        yield Finding(_REFUSED, told, subject.where("data.pack_function"), 'Set it to "cat".', weight)


def _check_environments(subject: Subject) -> Iterator[Finding]:
    """validate_env of each source (7089ba1e4, by these words since 327f378e0); "agg" since 9f425fffc."""
    weight = _weight_of_time(subject, date(2026, 8, 4))
    if subject.kind != "rl" or not weight or subject.schema is None:
        return
    for table in ("orchestrator.train.source", "orchestrator.eval.source"):
        listed = subject.settings.get(table)
        for index, one in enumerate(listed if isinstance(listed, list) and subject.schema.get(table) else ()):
            where = subject.where_exactly((*table.split("."), index))
            env = one.get("env", {}) if isinstance(one, Mapping) else None
            taskset = env.get("taskset", {}) if isinstance(env, Mapping) else None
            if isinstance(taskset, Mapping) and isinstance(env, Mapping) and not (env.get("id") or taskset.get("id")):
                remedy = f'Write env = {{ taskset = {{ id = "..." }} }} in [[{table}]].'
                yield Finding(_REFUSED, f"A source in {table} names no environment.", where, remedy, weight)
            if isinstance(one, Mapping) and one.get("name") == "agg":
                told = f'A source in {table} has the name "agg", which prime-rl keeps for itself.'
                yield Finding(_REFUSED, told, where, "Give it another name.", weight)


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Refused:
    """One entry of ``together.toml``."""

    says: str
    remedy: str
    since: date
    when: Mapping[str, Any]
    until: date | None = None
    kinds: Sequence[str] = ("rl", "sft")
    lacks: Sequence[str] = ()


@cache
def table() -> Sequence[Refused]:
    """All entries of ``together.toml``."""
    text = Path(__file__).with_name("together.toml").read_text(encoding="utf-8")
    return [Refused(**one) for one in tomllib.loads(text)["refused"]]


def _check_table(subject: Subject) -> Iterator[Finding]:
    """What ``together.toml`` lists."""
    several = degree(subject, "max_concurrent_runs", "trainer.max_concurrent_runs") > 1  # started by itself
    if several or not (subject.knows("trainer") and subject.knows("orchestrator")):
        return
    for one in table():
        weight = _weight_of_time(subject, one.since, one.until) if subject.kind in one.kinds else None
        paths = [_own_value(subject, path) for path in one.when]
        lacks = not any(subject.settings.has(_own_value(subject, path)) for path in one.lacks)
        if weight and lacks and all(map(partial(_rule_holds, subject), paths, one.when.values())):
            told = f"{paths[0]} {one.says}"
            yield Finding(_REFUSED, told, subject.where(paths[0]), one.remedy, weight)


def _own_value(subject: Subject, path: str) -> str:
    return path.removeprefix("trainer.") if subject.kind == "sft" else path


def _rule_holds(subject: Subject, path: str, wanted: Any) -> bool:
    if wanted == "set":
        return subject.settings.has(path)
    field = subject.schema.get(path) if subject.schema is not None else None
    value: Any = subject.settings.get(path)
    value = field.default if value is None and field else value
    if isinstance(wanted, list):
        return value in wanted
    sign, _, limit = wanted.partition(" ")
    other = subject.settings.get(_own_value(subject, limit)) if limit[0].isalpha() else float(limit)
    return is_number(value) and is_number(other) and _SIGNS[sign](value, other)


CHECKS: Sequence[Check] = (
    _check_environments,
    _check_table,
    _check_schedule,
    _check_gpus,
    _check_batches,
    _check_buffer,
    _check_teacher,
    _check_adapters,
    _no_evals,
    _check_folders,
    _strange_code,
    _broadcast_to_copies,
    _check_examples,
)
