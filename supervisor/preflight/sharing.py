"""One GPU for trainer and engine, and what of memory-saving, parallelism and weight transfer excludes each other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from supervisor.preflight.estimate_inputs import DEFAULT_UTILIZATION, EAGER, UTILIZATION
from supervisor.preflight.finding import Finding, Severity, Where
from supervisor.preflight.reading import (
    DATA,
    TENSOR,
    degree,
    elsewhere,
    first,
    has,
    is_number,
    lora,
    number,
    of_trainer,
    switched_on,
)
from supervisor.preflight.subject import Check, Subject
from supervisor.primerl import configs

SHARED_UTILIZATION = 0.5
"""What worked on one shared GPU: a 7B model with LoRA and activation checkpointing used 72 of 81 GB."""
HOPELESS_UTILIZATION = 0.85
SMALL = 2_000_000_000
"""Parameters up to which a shared GPU of a data centre needs none of the savings below."""
GIB = 1 << 30
ACTIVATIONS = 20 * GIB
"""What activation checkpointing saved in the measured run of 7B: more than that, a smaller model will not need."""

_BROADCAST = ("weight_broadcast.type", "trainer.weight_broadcast.type", "orchestrator.weight_broadcast.type")


def _check_era(subject: Subject) -> Iterator[Finding]:
    """[gpus] of the run file cannot say it there; CUDA_VISIBLE_DEVICES that names one GPU twice can."""
    run, dialect = subject.run_file, subject.dialect
    if subject.kind != "rl" or run is None or dialect is None or dialect.gpus == "ids":
        return
    if both := sorted({*map(str, run.gpus.inference)} & {*map(str, run.gpus.trainer)}):
        told = f"GPU {', '.join(both)} is meant for trainer and engine, and {dialect.name} cannot give one to both."
        yield Finding("shared-gpu-not-possible", told, subject.run_where("gpus", "trainer"))


def _no_share(subject: Subject) -> Iterator[Finding]:
    """vLLM takes a share of the GPU: more than nothing, and no more than all of it."""
    found = first(subject, *UTILIZATION)
    if subject.kind == "rl" and found is not None and is_number(found.value) and (found.value <= 0 or found.value > 1):
        told = f"{found.path} = {found.value}, and it is a share of the GPU's memory, between 0 and 1."
        percent = f"Set {found.path} = {found.value / 100:g}." if 1 < found.value <= 100 else ""
        yield Finding("utilization-no-share", told, subject.where(found.path), percent)


def _check_utilization(subject: Subject) -> Iterator[Finding]:
    """vLLM claims its part of the whole GPU, and refuses to start when less than that is free."""
    if not _shares_gpu(subject):
        return
    found = first(subject, *UTILIZATION)
    value = found.value if found else DEFAULT_UTILIZATION
    if not is_number(value) or not SHARED_UTILIZATION < value <= 1:
        return
    said = f"{found.path} = {value}" if found else f"gpu_memory_utilization is not set, so it is {value},"
    told = f"{said} on GPU {', '.join(_both_share(subject))}, which the trainer uses as well."
    newest = has(subject, date(2026, 8, 8)) is True  # d1046b876
    path = found.path if found else UTILIZATION[0 if newest else -1]
    if value < HOPELESS_UTILIZATION and _fits_beside(subject, float(value), ACTIVATIONS, known=True):
        return  # a small model on a large GPU
    hopeless = value >= HOPELESS_UTILIZATION and not _fits_beside(subject, float(value), GIB)
    remedy = f"Set {path} to {SHARED_UTILIZATION}, or to 0.45 if the trainer then runs out of memory."
    where = _place_of_key(subject, path)
    yield Finding("shared-gpu-utilization", told, where, remedy, None if hopeless else "warning")


def _fits_beside(subject: Subject, utilization: float, spare: int, *, known: bool = False) -> bool:
    """Could a small model be trained in the rest, with ``spare`` bytes beside it?

    Weights in 32 bits, and with full training gradients and moments. ``known``: not unless the GPU's size is known.
    """
    parameters = subject.model.parameters if subject.model else 0
    if not parameters:
        return False
    gpus = [gpu for gpu in subject.site.gpus or () if {str(gpu.index), gpu.uuid} & set(subject.plan.trainer)]
    totals = [gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    if not totals:
        return parameters <= SMALL and not known
    return parameters * (4 if lora(subject) else 16) + spare < (1 - utilization) * min(totals)


def _check_savings(subject: Subject) -> Iterator[Finding]:
    """What a large model on a shared GPU cannot do without, or should not."""
    parameters = subject.model.parameters if subject.model else 0
    if not _shares_gpu(subject) or not parameters or parameters <= SMALL:
        return
    size = f"{parameters / 1e9:.1f}B parameters"
    by_default = has(subject, date(2026, 6, 26)) is not False  # c5afcaa2e: on unless told otherwise
    said = any(subject.settings.has(f"trainer.model.{name}") for name in ("ac", "ac_offloading"))
    if not said and not by_default:
        told = (
            f"Trainer and engine share GPU {', '.join(_both_share(subject))} with {size}, and activations are all kept."
        )
        yield Finding("shared-gpu-checkpointing", told, _place_of_key(subject, "trainer.model.ac"))
    if not switched_on(subject, *EAGER):
        told = (
            f"Trainer and engine share GPU {', '.join(_both_share(subject))}, and the engine captures CUDA graphs "
            "there."
        )
        yield Finding("shared-gpu-eager", told, _place_of_key(subject, "inference.model.enforce_eager"))


def _shares_gpu(subject: Subject) -> bool:
    """With an engine that is started here."""
    return subject.plan.is_shared and subject.kind == "rl" and subject.settings.has("inference")


def _place_of_key(subject: Subject, path: str) -> Where:
    """Where it stands, or the header of the table in which it would have to; else the list of the trainer's GPUs."""
    tables = [path.rsplit(".", parts)[0] for parts in range(1, path.count(".") + 1)]
    places = (subject.where(one) for one in (path, *tables, "trainer_gpu_ids") if subject.settings.get(one) is not None)
    found = next((one for one in places if one.line), subject.file(path))
    return Where(found.file, found.line, path)


def _both_share(subject: Subject) -> list[str]:
    return sorted(set(subject.plan.inference) & set(subject.plan.trainer))


# ---------------------------------------------------------------- offloading


def _check_offloading(subject: Subject) -> Iterator[Finding]:
    fsdp = of_trainer(subject, "model.fsdp_cpu_offload")
    if subject.kind not in ("rl", "sft") or not switched_on(subject, fsdp):
        return
    where = subject.where(fsdp)
    adapter = lora(subject)
    mended = has(subject, date(2026, 1, 23), "orchestrator.reload_weights_on_start")  # 82a8241f0; d0f2eb43d
    if adapter and mended is not True:
        told = f"{fsdp} is on, and {adapter} trains an adapter."
        severity: Severity | None = None if mended is False else "warning"
        yield Finding("cpu-offload-with-lora", told, where, severity=severity)
    if subject.settings.get(of_trainer(subject, "optim.type")) == "muon":
        told = f'{fsdp} is on, and {of_trainer(subject, "optim.type")} = "muon".'
        yield Finding("cpu-offload-with-muon", told, where)
    states, full = of_trainer(subject, "model.optim_cpu_offload"), of_trainer(subject, "model.full_offload")
    if on := switched_on(subject, states, full):
        yield Finding("cpu-offload-twice", f"{fsdp} and {on} are both on.", where)
    elif subject.settings.get(states) is None and has(subject, date(2026, 6, 26)) is True:  # c5afcaa2e
        told = f"{fsdp} is on, and so is {states}, which this version switches on by default."
        yield Finding("cpu-offload-twice", told, where, f"Set {states} = false, or take {fsdp} out.")


def _full_offload(subject: Subject) -> Iterator[Finding]:
    """b8d9553c0 (2026-08-15): it excludes the other, which is on by default."""
    states, full = of_trainer(subject, "model.optim_cpu_offload"), of_trainer(subject, "model.full_offload")
    if subject.kind in ("rl", "sft") and subject.settings.has(full) and subject.settings.is_on(states) is not False:
        told = f"{full} is on, and {states} is not switched off: it is on by default."
        yield Finding("full-offload-twice", told, subject.where(full), f"Set {states} = false.")


# ---------------------------------------------------------------- vision, context parallelism


def _check_vision(subject: Subject) -> Iterator[Finding]:
    table = next(
        (path for path in ("model.vlm", "trainer.model.vlm") if isinstance(subject.settings.get(path), dict)), ""
    )
    if not table or subject.kind not in ("rl", "sft"):
        return
    for name in ("optimization_dtype", "reduce_dtype"):
        path = of_trainer(subject, f"model.{name}")
        if (value := subject.settings.get(path)) != "bfloat16":
            said = f'{path} = "{value}"' if value is not None else f"{path} is float32 by default"
            told = f"{said}, and [{table}] makes it a vision-language model."
            yield Finding("vision-needs-bfloat16", told, subject.where(path), f'Set {path} = "bfloat16".')
    implementation = of_trainer(subject, "model.impl")
    if has(subject, date(2026, 7, 20)) is True and subject.settings.get(implementation) != "custom":
        told = f'{implementation} is not "custom", and [{table}] makes it a vision-language model.'
        yield Finding("vision-needs-custom", told, subject.where(implementation), f'Set {implementation} = "custom".')
    cp, style = of_trainer(subject, "model.cp"), of_trainer(subject, "model.cp_style")
    if degree(subject, cp) > 1 and has(subject, date(2026, 7, 22)) is True and subject.settings.get(style) != "ulysses":
        told = f'{cp} = {degree(subject, cp)} of a vision-language model, and {style} is not "ulysses".'
        yield Finding("vision-needs-ulysses", told, subject.where(cp), f'Set {style} = "ulysses".')


def _context_parallel(subject: Subject) -> Iterator[Finding]:
    cp, attention = of_trainer(subject, "model.cp"), of_trainer(subject, "model.attn")
    kind, size = subject.settings.get(attention), degree(subject, cp)
    if subject.kind not in ("rl", "sft") or size < 2:
        return
    if kind in ("sdpa", "eager"):
        told = f'{cp} = {size} splits sequences over GPUs, and {attention} = "{kind}" cannot.'
        remedy = f'Set {attention} = "flash_attention_2", or {cp} = 1.'
        yield Finding("context-parallel-attention", told, subject.where(attention), remedy)
    implementation = of_trainer(subject, "model.impl")
    if subject.settings.get(implementation) == "hf" and has(subject, date(2026, 7, 20)) is True:
        told = f'{cp} = {size} splits sequences over GPUs, and {implementation} = "hf" cannot.'
        remedy = f'Set {implementation} = "custom" or "auto", or {cp} = 1.'
        yield Finding("context-parallel-implementation", told, subject.where(implementation), remedy)


# ---------------------------------------------------------------- weights to the engine


def _check_broadcast(subject: Subject) -> Iterator[Finding]:
    if subject.kind != "rl":
        return
    chosen = first(subject, *_BROADCAST)
    kind = (
        chosen.value if chosen else configs.broadcast_type(subject.settings, subject.dialect) if subject.dialect else ""
    )
    if kind not in ("nccl", "nixl"):
        return
    where = subject.where(*_BROADCAST)
    told = f'{chosen.path} = "{kind}"' if chosen else "Weights go through NCCL by default"
    if chosen and (adapter := lora(subject)):
        yield Finding("nccl-with-lora", f"{told}, and {adapter} trains an adapter.", where)
    plan = subject.plan
    if (
        kind == "nccl"
        and plan.trainer
        and len({*plan.trainer, *plan.inference}) < 2
        and subject.settings.has("inference")
    ):
        yield Finding("nccl-one-gpu", f"{told}, and trainer and engine have one GPU together.", where)
    if kind == "nccl" and subject.settings.has("inference"):
        yield from _group_size(subject, told)
    level = number(subject, "max_async_level", "trainer.max_async_level", "orchestrator.max_async_level")
    if kind == "nccl" and level and level.value != 1 and has(subject, date(2026, 5, 25)) is not True:
        told = f"{told}, and {level.path} = {level.value}."
        yield Finding("nccl-async-level", told, subject.where(level.path), f"Set {level.path} = 1.")


def _group_size(subject: Subject, told: str) -> Iterator[Finding]:
    """The launcher sizes the process group by tp times dp before it sets dp to what the GPUs allow (1826b1892)."""
    deployed, plan = subject.dialect is not None and subject.dialect.gpus == "deployment", subject.plan
    tensor, data = degree(subject, *TENSOR), degree(subject, *DATA)
    if deployed and not elsewhere(subject) and len(plan.inference) > tensor * data and not len(plan.inference) % tensor:
        path = DATA[0] if has(subject, date(2026, 8, 8)) is not False else DATA[1]
        count = len(plan.inference)
        said = f"{told}, the engine has {count} GPUs, and tp times dp is {tensor * data} as it is written."
        where = subject.where("deployment.num_infer_gpus")
        yield Finding("nccl-group-size", said, where, f"Set {path} = {count // tensor}.")


CHECKS: tuple[Check, ...] = (
    _check_era,
    _no_share,
    _check_utilization,
    _check_savings,
    _check_offloading,
    _full_offload,
    _check_vision,
    _context_parallel,
    _check_broadcast,
)
