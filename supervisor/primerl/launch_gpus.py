"""Which GPUs a launch line chooses, in the words of all eras, and the [gpus] of a run file that mean the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_FLAGS = {
    "inference-gpu-ids": ("ids", "inference"),
    "trainer-gpu-ids": ("ids", "trainer"),
    "inference-gpus": ("counts", "inference"),
    "trainer-gpus": ("counts", "trainer"),
    "deployment.num-infer-gpus": ("deployment", "inference"),
    "deployment.num-train-gpus": ("deployment", "trainer"),
    "deployment.num-gpus": ("deployment", "trainer"),
}


def gpu_part(name: str) -> tuple[str, str] | None:
    """How and for which part a flag (in kebab case, without its dashes) chooses GPUs."""
    return _FLAGS.get(name)


def names_gpus(name: str) -> bool:
    """Does the run file's [gpus] say it as well?"""
    return name in _FLAGS or f"deployment.{name}" in _FLAGS


def chosen(
    flags: Mapping[str, tuple[str, list[int]]],
    *,
    sft: bool,
    engine: bool,
    teacher: bool,
    visible: Sequence[int] | None,
) -> tuple[list[int], list[int]] | None:
    """GPUs of the engine and of the trainer; None where [gpus] cannot say the same, and the flags stay as they are.

    ``flags``: for "inference" and "trainer" how it is said, and the ids or the count. ``engine``: the configuration has
    an inference server; ``teacher``: it has one more, which a CUDA_VISIBLE_DEVICES of the first two would hide.
    """
    wanted = ("trainer",) if sft else ("inference", "trainer")
    if any(which not in flags for which in wanted) or len({style for style, _ in flags.values()}) > 1:
        return None
    style, trainer = flags["trainer"]
    if style == "ids":
        return None if sft else (flags["inference"][1], trainer)
    if teacher or not (engine or sft):  # without an engine the launcher gives the trainer the first ones
        return None
    inference_count = flags["inference"][1][0] if "inference" in flags else 0
    total = inference_count + trainer[0]
    seen = list(range(total)) if visible is None else list(visible)
    if style == "counts":
        seen.sort()  # that launcher sorts them (get_cuda_visible_devices at ceb60c03f)
    return (seen[:inference_count], seen[inference_count:total]) if len(seen) >= total else None


def whole(text: str, least: int) -> int | None:
    found = re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII)
    return int(found[0]) if found and int(found[0]) >= least else None


def numbers(values: Sequence[str]) -> list[int] | None:
    """``0,1``, ``[0, 1]``, ``0 1`` or ``"0" "1"``."""
    parts = [part.strip().strip("'\"") for value in values for part in value.strip("[] ").split(",")]
    found = [whole(part, 0) for part in parts if part]
    return [number for number in found if number is not None] if found and None not in found else None
