"""Writes the tables of docs/preflight.md: estimates against measured figures, and all findings, from the code itself.

python docs/preflight.py           print them
python docs/preflight.py --write   put them into docs/preflight.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pages import main

from supervisor.preflight import disk_estimate
from supervisor.preflight import memory_estimate as memory
from supervisor.preflight.estimate_inputs import default_lora
from supervisor.preflight.finding import SEVERITIES, rules
from supervisor.preflight.memory_estimate import GIB, EngineSetup, Interval, Lora, TrainerSetup
from supervisor.preflight.models import ModelFacts, facts_of

PAGE = Path(__file__).with_name("preflight.md")

H100 = 79.65 * GIB  # what NVML says: 81,559 MiB, which people write as "81 GB"
H100_TORCH = 79.18 * GIB  # what a CUDA program can have of it, and what vLLM takes its utilization of
A6000_TORCH = 47.53 * GIB
MIB1000 = 1000 * (1 << 20)  # the "GB" of somebody who reads 72,... MiB off nvidia-smi


@dataclass(frozen=True)
class Disk:
    """A figure of a disk, in GB."""

    what: str
    measured: str
    low_gb: float
    high_gb: float
    estimate: Interval
    source: str

    @property
    def error(self) -> float:
        """How far the middle of the estimate is from the measured range, as a part of it; 0 within."""
        middle = (self.estimate.low + self.estimate.high) / 2e9
        nearest = min(max(middle, self.low_gb), self.high_gb)
        return middle / nearest - 1


@dataclass(frozen=True)
class Gpu:
    """A figure of a GPU, in bytes. ``counts`` False: it is no reading, and only shown."""

    what: str
    measured: str
    low: float
    high: float
    estimate: Interval
    source: str
    counts: bool = True

    @property
    def inside(self) -> bool:
        return self.estimate.low <= self.low and self.high <= self.estimate.high


def model(name: str) -> ModelFacts:
    """Facts from the table."""
    facts = facts_of(name, {}, Path("/nonexistent"))
    if facts is None:
        raise LookupError(name)
    return facts


def adapters(rank: int) -> Lora:
    return Lora(rank, default_lora().targets)


QWEN3_8B, QWEN25_7B, GPT_OSS = (
    model(one) for one in ("Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct", "openai/gpt-oss-20b")
)
LORA_8B = memory.lora_parameters(QWEN3_8B, adapters(8))


def disk() -> Iterator[Disk]:
    """The figures of disks that people wrote down."""
    step = disk_estimate.checkpoint(QWEN3_8B, adapters=LORA_8B, trained=LORA_8B, width=4, moments=2)
    copy = disk_estimate.hf_copy(QWEN3_8B)
    run = "run log, 2x H100, 6 Jan 2026"
    yield Disk("Qwen3-8B, LoRA rank 8: `checkpoints/step_N`", "31 GB", 31, 31, step, run)
    yield Disk("the same: `weights/step_N`", "16 GB", 16, 16, copy, run)
    yield Disk("the same: both", "47 GB", 47, 47, step + copy, run)
    big = model("Qwen/Qwen2.5-32B")
    whole = disk_estimate.checkpoint(big, adapters=0, trained=big.parameters, width=4, moments=2)
    yield Disk(
        "32 B parameters, all trained: `checkpoints/step_N`", "300 to 400 GB", 300, 400, whole, "said of prime-rl"
    )
    yield Disk("gpt-oss-20b in bfloat16", "about 40 GB", 40, 40, disk_estimate.hf_copy(GPT_OSS), "run log, 4 Jan 2026")


def seven_billion(*, checkpointing: bool) -> Interval:
    """The trainer of the run on one H100."""
    return memory.trainer(QWEN25_7B, TrainerSetup(tokens=2048, lora=adapters(8), checkpointing=checkpointing)).total


def shared(utilization: float, *, checkpointing: bool) -> Interval:
    engine = memory.engine(H100_TORCH, EngineSetup(utilization=utilization, eager=True))
    return seven_billion(checkpointing=checkpointing) + engine.total


def gpu() -> Iterator[Gpu]:
    """The figures of GPUs that people wrote down."""
    run = "run log, 1x H100, 5 Jan 2026"
    final = shared(0.5, checkpointing=True)
    yield Gpu("Qwen2.5-7B, LoRA, one H100, 0.50 (v6)", "72 of 81 GB", 72 * MIB1000, 72.999 * MIB1000, final, run)
    yield Gpu("the same, after its first step (v5)", "74 of 81 GB", 74 * MIB1000, 74.999 * MIB1000, final, run)
    first = shared(0.45, checkpointing=False)
    yield Gpu("the same at 0.45 without checkpointing", "out of memory at 80 GB", H100, H100, first, run)
    start = seven_billion(checkpointing=True)
    held = (79.18 - 48.97) * GIB
    yield Gpu("its trainer alone, when the engine started", "48.97 of 79.18 GiB free", held, held, start, run)
    engine = memory.engine(A6000_TORCH, EngineSetup()).total
    log = "run log, 2x A6000, 4 Jan 2026"
    yield Gpu("engine with gpt-oss-20b on an A6000, 0.9", "42.83 GiB", 42.83 * GIB, 42.83 * GIB, engine, log)
    eight = memory.trainer(QWEN3_8B, TrainerSetup(tokens=2048, lora=adapters(4), checkpointing=True)).total
    plan = "a guide's plan, one A100"
    yield Gpu("trainer of Qwen3-8B, LoRA rank 4", "about 30 GB, planned", 30e9, 30e9, eight, plan, counts=False)


def gpt_oss_trainer() -> Interval:
    """The trainer that ran out of memory on an A6000 with 48 GB: not even its weights fit."""
    return memory.trainer(GPT_OSS, TrainerSetup(tokens=8192, lora=adapters(8))).total


# Peak of torch's reserved memory in GiB, which leaves the CUDA context out. PrimeIntellect-ai/prime-rl at 559b44772,
# benchmarks/results/BENCHMARKS.md of 1 Feb 2026: model, "full", "lora" (rank 16, room for four adapters) or "sft",
# tokens, are inputs of layers offloaded, GPUs, peak. All with activation checkpointing; of equal rows the larger.
BENCHMARKS: tuple[tuple[str, str, int, bool, int, float], ...] = (
    ("PrimeIntellect/INTELLECT-3", "lora", 16384, False, 8, 90.4),
    ("PrimeIntellect/INTELLECT-3", "lora", 16384, True, 8, 84.2),
    ("PrimeIntellect/INTELLECT-3", "lora", 65536, False, 8, 153.6),
    ("PrimeIntellect/INTELLECT-3", "lora", 65536, True, 8, 131.5),
    ("Qwen/Qwen3-0.6B", "full", 16384, False, 1, 12.5),
    ("Qwen/Qwen3-0.6B", "full", 65536, False, 1, 19.6),
    ("Qwen/Qwen3-0.6B", "full", 65536, True, 1, 16.1),
    ("Qwen/Qwen3-0.6B", "full", 65536, False, 4, 12.4),
    ("Qwen/Qwen3-0.6B", "lora", 16384, False, 1, 5.1),
    ("Qwen/Qwen3-0.6B", "lora", 65536, False, 1, 11.5),
    ("Qwen/Qwen3-0.6B", "lora", 65536, True, 1, 7.9),
    ("Qwen/Qwen3-0.6B", "sft", 8192, False, 1, 31.7),
    ("Qwen/Qwen3-0.6B", "sft", 16384, False, 1, 52.8),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507", "lora", 16384, False, 8, 161.5),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507", "lora", 16384, True, 8, 150.3),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "full", 16384, False, 8, 74.6),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "full", 65536, False, 8, 105.4),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "lora", 16384, False, 8, 32.0),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "lora", 65536, False, 8, 64.8),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "sft", 16384, False, 8, 106.4),
    ("Qwen/Qwen3-4B-Instruct-2507", "full", 16384, False, 8, 17.1),
    ("Qwen/Qwen3-4B-Instruct-2507", "full", 65536, False, 8, 36.1),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 16384, False, 8, 10.3),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 16384, False, 1, 23.3),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 16384, True, 1, 20.6),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 65536, False, 8, 28.8),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 65536, False, 1, 42.0),
    ("Qwen/Qwen3-4B-Instruct-2507", "lora", 65536, True, 1, 31.1),
    ("Qwen/Qwen3-4B-Instruct-2507", "sft", 16384, False, 8, 54.6),
    ("Qwen/Qwen3-4B-Instruct-2507", "sft", 65536, False, 8, 171.5),
)


def benchmarks() -> Iterator[Gpu]:
    """prime-rl's own measurements beside the estimates, both without the CUDA context."""
    for name, kind, tokens, offload, gpus, peak in BENCHMARKS:
        setup = TrainerSetup(
            gpus=gpus,
            tokens=tokens,
            lora=adapters(4 * 16) if kind == "lora" else None,
            checkpointing=True,
            offload_inputs=offload,
            fused_head=0 if kind == "sft" else tokens,
            logit_bytes=18 if kind == "sft" else 16,
        )
        parts = [part.bytes for part in memory.trainer(model(name), setup).parts if not part.name.startswith("CUDA")]
        total = Interval(sum(part.low for part in parts), sum(part.high for part in parts))
        inputs = ", inputs offloaded" if offload else ""
        what = f"{name.partition('/')[2]}, {kind}, {tokens} tokens, {gpus}x{inputs}"
        yield Gpu(what, f"{peak:.1f} GiB", peak * GIB, peak * GIB, total, "")


def tables() -> str:
    """Markdown of all of them."""
    lines = ["\n| disk | measured | estimated | error | source |", "| --- | --- | --- | --- | --- |"]
    for one in disk():
        said = f"{one.estimate.low / 1e9:.1f} GB ({one.estimate.low / GIB:.1f} GiB)"
        lines.append(f"| {one.what} | {one.measured} | {said} | {one.error:+.0%} | {one.source} |")
    lines += ["\n| GPU | measured | estimated | inside | source |", "| --- | --- | --- | --- | --- |"]
    for row in gpu():
        inside = ("yes" if row.inside else "no") if row.counts else "no reading"
        lines.append(f"| {row.what} | {row.measured} | {row.estimate} | {inside} | {row.source} |")
    low = gpt_oss_trainer().low / GIB
    lines.append(
        f"| trainer of gpt-oss-20b, LoRA, on an A6000 (48 GB) | out of memory | {low:.1f} GiB at least | "
        "yes (an error) | run log, 2x A6000, 4 Jan 2026 |"
    )
    lines += ["\n| trainer's peak | measured | estimated | high end to measured |", "| --- | --- | --- | --- |"]
    for row in benchmarks():
        lines.append(f"| {row.what} | {row.measured} | {row.estimate} | {row.estimate.high / row.high:.2f} |")
    return "\n".join([*lines, ""])


def findings() -> str:
    """Markdown: every id, errors first."""
    lines = ["| id | severity | what | who says so |", "| --- | --- | --- | --- |"]
    for rule in sorted(rules().values(), key=lambda rule: (SEVERITIES.index(rule.severity), rule.id)):
        lines.append(f"| `{rule.id}` | {rule.severity} | {_cell(rule.title)} | {_cell(rule.source)} |")
    return "\n".join(["", *lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def parts() -> dict[str, str]:
    """What stands between which marks of the page."""
    return {"estimates": tables(), "findings": findings()}


if __name__ == "__main__":
    main(PAGE, parts())
