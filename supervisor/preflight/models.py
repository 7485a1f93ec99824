"""What is known of a model without loading it.

To be written: ``facts_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelFacts:
    """A model's shape. 0 where a number is not known. ``origin``: where it was read, a clause for people."""

    name: str
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    parameters: int = 0
    active_parameters: int = 0
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    intermediate: int = 0
    experts: int = 0
    vocabulary: int = 0
    positions: int = 0
    tied: bool = False
    dtype: str = ""
    gated: bool | None = None
    origin: str = ""


def facts_of(name: str, snapshots: Mapping[str, Path], folder: Path) -> ModelFacts | None:
    """Facts of the model ``name``: a folder (relative to ``folder``), a snapshot in the cache, or the table's; or None."""
    raise NotImplementedError
