"""What it means for a run file where a pod is rented: how much notice it gives, where its variables are, what lasts.

``providers.toml`` has the rows, each with its source. Nothing is asked over the network.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Provider:
    """One provider. ``grace_s``: seconds between SIGTERM and the kill, None where it is unknown; ``said``: comments."""

    name: str
    grace_s: int | None
    said: Sequence[str]
    finish: str = ""
    """A command that ends the billing, as a suggestion."""
    notice: bool = True
    """False: it takes a pod without a word."""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PROVIDERS = {word: Provider(**{"grace_s": None, **table}) for word, table in _TABLES.items()}
BARE = Provider("a machine of no provider that is known here, and no container", None, ())


def of(name: str, *, container: bool) -> Provider:
    """By the word of ``Site.provider``."""
    return PROVIDERS.get(name) or (PROVIDERS["container"] if container else BARE)
