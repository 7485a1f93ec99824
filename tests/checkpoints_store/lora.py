"""Checkpoints of a LoRA run as torch lays them out: a frozen base, small adapters, and AdamW's state of the adapters.

torch writes a rank's tensors in one of two orders (torch 2.8, ``torch/distributed/checkpoint/filesystem.py``): with
CUDA its loader sorts them by size, small ones first; without, they keep the plan's order, which is that of the state
dict: in a layer, each frozen weight is followed by its two adapters, and the optimizer's state follows the model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Order = Literal["by size", "plan"]


@dataclass(frozen=True)
class Tensor:
    name: str
    size: int
    trained: bool


@dataclass(frozen=True)
class Shape:
    """A decoder: ``rank`` is LoRA's; gate, up and down are ``widening`` times as wide as the model."""

    hidden: int
    layers: int
    rank: int
    vocabulary: int
    widening: float = 3.5
    bytes_each: int = 4

    def tensors(self, order: Order) -> list[Tensor]:
        """All tensors of one file in the order of writing."""
        plan = list(self._model()) + list(self._optimizer())
        return plan if order == "plan" else sorted(plan, key=lambda tensor: tensor.size)

    def _adapted(self, layer: int) -> Iterator[tuple[str, int, int]]:
        wide = int(self.hidden * self.widening)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"layers.{layer}.{name}", self.hidden, self.hidden
        for name, ins, outs in (("gate_proj", self.hidden, wide), ("up_proj", self.hidden, wide)):
            yield f"layers.{layer}.{name}", ins, outs
        yield f"layers.{layer}.down_proj", wide, self.hidden

    def _model(self) -> Iterator[Tensor]:
        each = self.bytes_each
        yield Tensor("embed", self.vocabulary * self.hidden * each, False)
        for layer in range(self.layers):
            for name, ins, outs in self._adapted(layer):
                yield Tensor(f"{name}.weight", ins * outs * each, False)
                yield Tensor(f"{name}.lora_A", ins * self.rank * each, True)
                yield Tensor(f"{name}.lora_B", outs * self.rank * each, True)
            for norm in ("input", "post_attention"):
                yield Tensor(f"layers.{layer}.{norm}_norm", self.hidden * each, False)
        yield Tensor("head", self.vocabulary * self.hidden * each, False)

    def _optimizer(self) -> Iterator[Tensor]:
        for layer in range(self.layers):
            for name, ins, outs in self._adapted(layer):
                for state in ("exp_avg", "exp_avg_sq"):
                    yield Tensor(f"{name}.lora_A.{state}", ins * self.rank * self.bytes_each, True)
                    yield Tensor(f"{name}.lora_B.{state}", outs * self.rank * self.bytes_each, True)

    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.size for tensor in self.tensors("plan"))

    def trained_share(self) -> float:
        """Which part of the bytes changes at every step."""
        return sum(tensor.size for tensor in self.tensors("plan") if tensor.trained) / self.size()

    def file(self, order: Order, step: int) -> bytes:
        """The file of a step: frozen tensors depend on their name alone, trained ones on the step as well."""
        found = bytearray(random.Random(f"progress {step}").randbytes(200))
        for tensor in self.tensors(order):
            seed = f"{tensor.name} {step}" if tensor.trained else tensor.name
            found += random.Random(seed).randbytes(tensor.size)
        return bytes(found)

    def equal_blocks(self, order: Order, block_size: int) -> tuple[int, list[bool]]:
        """Size of the file, and which blocks do not change: the same without making the bytes."""
        at, touched = 200, {0}
        for tensor in self.tensors(order):
            if tensor.trained:
                touched.update(range(at // block_size, (at + tensor.size - 1) // block_size + 1))
            at += tensor.size
        return at, [index not in touched for index in range(-(-at // block_size))]


TINY = Shape(hidden=64, layers=6, rank=1, vocabulary=1500)
"""About 2.5 MB, so that a server with parts from 5 kB on plays what B2 is for a model of a billion weights."""
