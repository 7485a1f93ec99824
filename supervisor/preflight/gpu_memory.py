"""Will trainer and engine fit into the memory of their GPUs? By the arithmetic of ``memory_estimate``, and named so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import product

from supervisor.preflight import estimate_inputs
from supervisor.preflight import memory_estimate as memory
from supervisor.preflight.finding import Finding, Where, join_words
from supervisor.preflight.memory_estimate import EngineSetup, Estimate, Interval, gib
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.reading import first, has
from supervisor.preflight.sharing import HOPELESS_UTILIZATION
from supervisor.preflight.site import Gpu
from supervisor.preflight.subject import Check, Subject

MEMORY_FITS = "gpu-memory-estimate"
_VLLM_TABLE = date(2026, 8, 8)  # d1046b876


def gpu_memory(subject: Subject) -> Iterator[Finding]:
    """Will trainer and engine fit, each on its GPUs, or both on one?"""
    facts = subject.model
    if facts is None or not facts.parameters or not facts.layers or not estimate_inputs.one_machine(subject):
        return
    if not estimate_inputs.gpus_said(subject):
        return
    asked = estimate_inputs.trainer_memory(subject) if estimate_inputs.trains(subject, facts) else None
    need = _memory_of_trainer(facts, asked) if asked else None
    engine = estimate_inputs.engine_setup(subject) if subject.kind == "rl" else None
    found = list(_check_engine(subject, facts, engine)) if engine else []
    if need and asked and subject.plan.is_shared:
        if not found and engine and engine.utilization < HOPELESS_UTILIZATION:  # beyond that, ``sharing`` has said so
            found += _check_shared(subject, facts, asked, need, engine)
    elif need and asked:
        found += _check_alone(subject, facts, asked, need)
    yield from found
    if need and not found:
        yield _note_estimate(subject, facts, need, engine)


def _memory_of_trainer(facts: ModelFacts, asked: estimate_inputs.Memory) -> Estimate:
    """The low end of the one, the high end of the other."""
    low, high = memory.trainer(facts, asked.low), memory.trainer(facts, asked.high)
    parts = [
        memory.Part(one.name, Interval(one.bytes.low, max(one.bytes.high, two.bytes.high)))
        for one, two in zip(low.parts, high.parts, strict=True)
    ]
    return Estimate(tuple(parts))


def _check_alone(
    subject: Subject, facts: ModelFacts, asked: estimate_inputs.Memory, need: Estimate
) -> Iterator[Finding]:
    gpu = _smallest_gpu(subject, subject.plan.trainer)
    if gpu is None:
        return
    fit = memory.fits(need.total, gpu.total_bytes)
    if fit == "yes" or (fit == "unsure" and not facts.plain):
        return
    told = (
        f"The trainer needs an estimated {need.total} on each of its GPUs ({need.formula()}), and {_gpu_by_name(gpu)} "
        f"has {gib(gpu.total_bytes)}."
    )
    remedy = _trainer_remedy(facts, asked, gpu.total_bytes, subject)
    where = _trainer_place(subject, asked, sure=fit == "no")
    yield Finding("trainer-out-of-memory" if fit == "no" else "trainer-memory-tight", told, where, remedy)


def _trainer_remedy(facts: ModelFacts, asked: estimate_inputs.Memory, there: float, subject: Subject) -> str:
    """The smallest change with which it fits by the same arithmetic: checkpointing, shorter sequences, bfloat16, an
    adapter, more GPUs, in this order."""
    part = "trainer.model" if subject.kind == "rl" else "model"
    setup = asked.high
    adapters = [setup.lora] if setup.lora else [None, estimate_inputs.default_lora()]
    several = sorted({setup.gpus, *(2**power for power in range(1, 7) if 2**power > setup.gpus)})
    for gpus, adapter, width, halved in product(several, adapters, (setup.width, 2), range(4)):
        tokens = setup.tokens >> halved
        if (halved and tokens < 1024) or (width == 2 and adapter is None):
            continue  # all parameters in bfloat16 would be trained badly
        way = replace(setup, gpus=gpus, lora=adapter, width=width, tokens=tokens, checkpointing=True)
        if memory.trainer(facts, way).total.high > there:
            continue
        changes = [f"add [{part}.ac] with freq = 1"] if not setup.checkpointing else []
        if adapter is not None and setup.lora is None:
            changes.append(f"train an adapter ([{part}.lora] with rank = {adapter.rank})")
        if width < setup.width:
            changes.append(f'hold the weights in bfloat16 (optimization_dtype = "bfloat16" in [{part}])')
        if halved:
            changes.append(f"halve seq_len {'once' if halved == 1 else f'{halved} times'}")
        if gpus > setup.gpus:
            changes.append(f"give the trainer {gpus} such GPUs")
        return f"By the same arithmetic it fits if you {join_words(changes)}."
    return "Take a smaller model, or GPUs with more memory."


def _check_shared(
    subject: Subject, facts: ModelFacts, asked: estimate_inputs.Memory, need: Estimate, engine: EngineSetup
) -> Iterator[Finding]:
    gpu = _smallest_gpu(subject, sorted(set(subject.plan.inference) & set(subject.plan.trainer)))
    if gpu is None:
        return
    taken = memory.engine(gpu.total_bytes, engine)
    both = need.total + taken.total
    fit = memory.fits(both, gpu.total_bytes)
    if fit == "yes" or (fit == "unsure" and not facts.plain):
        return
    told = (
        f"Trainer and engine share {_gpu_by_name(gpu)}, which has {gib(gpu.total_bytes)} GiB, and need an estimated "
        f"{both} "
        f"together: the engine takes {gib(taken.total.low)} (gpu_memory_utilization = {engine.utilization:g}), the "
        f"trainer {need.total} ({need.formula()})."
    )
    remedy = _shared_remedy(subject, facts, asked, engine, gpu)
    where = subject.where(*_spelling_of_share(subject))
    yield Finding("shared-gpu-out-of-memory" if fit == "no" else "shared-gpu-memory-tight", told, where, remedy)


def _shared_remedy(
    subject: Subject, facts: ModelFacts, asked: estimate_inputs.Memory, engine: EngineSetup, gpu: Gpu
) -> str:
    key = _spelling_of_share(subject)[0]
    outside = memory.engine(0, engine).total.high
    add = "" if asked.high.checkpointing else "add [trainer.model.ac] with freq = 1"
    setup = replace(asked.high, checkpointing=True)
    part = int((gpu.total_bytes - memory.trainer(facts, setup).total.high - outside) / gpu.total_bytes * 20) / 20
    apart = "give trainer and engine a GPU each"
    if part >= engine.utilization and add:
        return f"By the same arithmetic it fits if you {add}, or {apart}."
    if memory.engine_need(facts, engine) > part * gpu.total_bytes:
        return f"{apart[0].upper()}{apart[1:]}, or take a smaller model: nothing else makes them fit."
    return f"By the same arithmetic it fits if you {f'{add} and ' if add else ''}set {key} = {part:.2f}, or {apart}."


def _check_engine(subject: Subject, facts: ModelFacts, setup: EngineSetup) -> Iterator[Finding]:
    """vLLM does not start with less than its weights and one sequence of the longest context."""
    gpu = _smallest_gpu(subject, subject.plan.inference)
    if gpu is None:
        return
    need, taken = memory.engine_need(facts, setup), setup.utilization * gpu.total_bytes
    if need <= taken:
        return
    weights, per_token = memory.engine_weights(facts, setup), memory.kv_bytes_per_token(facts, setup)
    sequence = f", one sequence of {setup.max_model_len} tokens {gib(need - weights - memory.CONTEXT_LOW)}"
    told = (
        f"The engine needs an estimated {gib(need)} GiB (weights {gib(weights)}{sequence if facts.plain else ''}), and "
        f"gpu_memory_utilization = {setup.utilization:g} gives it {gib(taken)} of {_gpu_by_name(gpu)}."
    )
    helps = []
    room = int((taken - weights - memory.CONTEXT_LOW) / per_token) // 1024 * 1024 if facts.plain else 0
    if room >= 1024 and not facts.sliding_window:
        helps.append(f"set max_model_len to {room} or less")
    if not subject.plan.is_shared and 0.95 * gpu.total_bytes >= need:
        helps.append(f"raise {_spelling_of_share(subject)[0]}")
    helps.append("take GPUs with more memory, or more of them with a higher tensor parallel size")
    where = subject.where(
        *(estimate_inputs.CONTEXT if room >= 1024 else ()), *_spelling_of_share(subject), "model.name"
    )
    yield Finding("engine-out-of-memory", told, where, f"{helps[0][0].upper()}{', or '.join(helps)[1:]}.")


def _note_estimate(subject: Subject, facts: ModelFacts, need: Estimate, engine: EngineSetup | None) -> Finding:
    gpu = _smallest_gpu(subject, subject.plan.trainer)
    total = f"{need.total}" if facts.plain else f"{gib(need.total.low)} GiB at least"
    told = f"The trainer needs an estimated {total} on each of its GPUs ({need.formula()})"
    if gpu is not None:
        told += f" of {gib(gpu.total_bytes)}"
    if engine is not None:
        least = memory.engine_need(facts, engine)
        told += f"; the engine needs {gib(least)} GiB at least and takes {engine.utilization:.0%} of its GPUs"
    return Finding(MEMORY_FITS, f"{told}. The shape is from {facts.origin or 'its configuration'}.")


def _spelling_of_share(subject: Subject) -> tuple[str, ...]:
    """The key of the engine's share, as this version spells it, first."""
    newer, _, older = estimate_inputs.UTILIZATION
    said = first(subject, *estimate_inputs.UTILIZATION)
    if said is not None:
        return (said.path,)
    return (newer, older) if has(subject, _VLLM_TABLE) else (older, newer)


def _smallest_gpu(subject: Subject, names: Sequence[str]) -> Gpu | None:
    """The smallest of the GPUs with these names; None where one of them is not known."""
    there = {key: gpu for gpu in subject.site.gpus or () for key in (str(gpu.index), gpu.uuid)}
    found = [there.get(name) for name in names]
    if not found or any(gpu is None or gpu.total_bytes <= 0 for gpu in found):
        return None
    return min((gpu for gpu in found if gpu is not None), key=lambda gpu: gpu.total_bytes)


def _gpu_by_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})" if gpu.name else f"GPU {gpu.index}"


def _trainer_place(subject: Subject, asked: estimate_inputs.Memory, *, sure: bool) -> Where:
    """A model that cannot fit is the matter of its name, one that may not of the sequence length."""
    names = ("trainer.model.name", "model.name")
    return subject.where(*names) if sure or not asked.seq_len_path else subject.where(asked.seq_len_path, *names)


CHECKS: tuple[Check, ...] = (gpu_memory,)
