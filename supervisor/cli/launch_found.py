"""What was found in a launch text: its launch lines and what else a person must know; and how it is shown safely."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.base.secret_shapes import SECRET_NAME
from supervisor.base.secrets import MASK, mask_secrets, remember
from supervisor.cli.launch_words import Kind
from supervisor.cli.shell_words import Word

_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S+)")
_SECRET_FLAG = re.compile(r"--?(?:[\w.-]*[.-])?(?:api-?key|token|secret|passw(?:or)?d|access-key)(?:=(.+))?")


@dataclass(frozen=True)
class Launch:
    """A line that starts a training, without what was wrapped around it."""

    kind: Kind
    line: int
    source: str
    """The command as it stands there."""
    launcher: tuple[Word, ...]
    """Words up to the entry point, it included."""
    entry: str
    arguments: tuple[Word, ...]
    env: Mapping[str, Word]
    folder: Path | None
    """Where it runs; None where that is not known."""
    venv: Path | None = None
    """The virtual environment that was activated before it."""
    venv_below: bool = False
    """It was named from the folder in which the line runs, not from the root."""
    project: Path | None = None
    """The folder that `uv run` was told to take for the project."""
    plain: bool = False
    """The program stood there alone or behind a bare `uv run`."""
    processes: Word | None = None
    """torchrun's --nproc-per-node."""
    torchrun: tuple[Word, ...] = ()
    """torchrun's other options."""
    rank: int = 3
    """How sure it is that this is the training: 3 certain, 1 any program."""


@dataclass
class Found:
    """What a text holds. ``told`` are sentences, ``prepared`` lines that a fresh pod may need before the start."""

    launches: list[Launch] = field(default_factory=list)
    parts: list[Launch] = field(default_factory=list)
    """Programs that are a part of a training: an engine, a lone trainer."""
    nofile: int | None = None
    told: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    conditions: list[int] = field(default_factory=list)
    """Lines that set something, or start a training, under a condition. They were read as if it held."""
    functions: dict[str, range] = field(default_factory=dict)
    """The lines of each function's body, which was read where it is written."""
    loops: set[str] = field(default_factory=set)
    """Variables that a `for` runs through."""

    def chosen(self) -> Launch | None:
        """The surest one, of several the last."""
        best = max((one.rank for one in self.launches), default=0)
        return next((one for one in reversed(self.launches) if one.rank == best), None)


def safe(text: str) -> str:
    """``text`` on one line, without the values of secrets."""
    flat = " ".join(text.split())
    flat = _ASSIGNED.sub(lambda found: f"{found[1]}={MASK}" if SECRET_NAME.search(found[1]) else found[0], flat)
    return mask_secrets(flat)


def remember_secrets(words: Sequence[str]) -> None:
    """Mask the values of variables and flags that are secrets by their name, wherever they would be shown."""
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        following = words[number + 1] if number + 1 < len(words) else ""
        if found := _SECRET_FLAG.fullmatch(word):
            remember(found[1] or following)
        elif re.fullmatch(r"[A-Za-z_]\w*", name) and SECRET_NAME.search(name):
            remember(value)
    if "login" in words[1:2]:
        remember(*(word for word in words[2:] if not word.startswith("-")))
