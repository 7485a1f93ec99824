"""Bytes that checkpoints, copies of weights and downloads take on a disk, by arithmetic.

prime-rl saves the whole model with torch's distributed checkpoint in every era, the frozen base of a LoRA run
included, in the dtype of optimization (float32 unless told otherwise), with the optimizer's moments of what is trained.
"""

from __future__ import annotations

from supervisor.preflight.memory_estimate import Interval
from supervisor.preflight.models import ModelFacts, embedding_parameters


def checkpoint(facts: ModelFacts, *, adapters: int, trained: int, width: int, moments: int) -> Interval:
    """One ``step_N`` of the trainer. ``adapters``: parameters of LoRA; ``trained``: those that get moments.

    Tied weights are one tensor with two names, and whether a file holds both depends on the version: the high end has
    them twice.
    """
    low = float((facts.parameters + adapters) * width + trained * moments * width)
    return Interval(low, low + _tied_twice(facts) * width)


def hf_copy(facts: ModelFacts) -> Interval:
    """A copy of the weights in the format of the hub, in bfloat16, without adapters."""
    low = 2.0 * facts.parameters
    return Interval(low, low + 2 * _tied_twice(facts))


def download(facts: ModelFacts) -> Interval:
    """What the hub sends: the weight files; at most as much again (weights in a second format, a converted copy)."""
    low = float(facts.weight_bytes) if facts.weight_bytes else (0.53 if facts.quantization else 2.0) * facts.parameters
    return Interval(low, 2.0 * low)


def _tied_twice(facts: ModelFacts) -> int:
    return embedding_parameters(facts) if facts.tied else 0
