"""What the checks look at: the run file, the trainer's configuration as text and as settings, its dialect, the machine.

``gather`` reads files and looks at the machine; everything else here is data. Nothing of a configuration that cannot
be read stops it: what is wrong is a finding, and the rest is looked at as far as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from supervisor.config.settings import RunFile
from supervisor.config.toml_positions import Key, Position
from supervisor.jobs.base import GpuPlan
from supervisor.preflight.finding import Finding, Where
from supervisor.preflight.models import ModelFacts
from supervisor.preflight.renames import find_dropped_names
from supervisor.preflight.schema import Schema
from supervisor.preflight.site import Site
from supervisor.primerl.configs import Settings, without_no
from supervisor.primerl.configs import flags as flags_of
from supervisor.primerl.dialect import Dialect

Kind = Literal["rl", "sft", "vf-rl", "command"]
How = Literal["installed", "as-of", "guessed", ""]
"""Where the dialect comes from: the installed prime-rl, a day that a person named, or the configuration's own keys."""


@dataclass(frozen=True)
class ConfigText:
    """One file of the trainer's configuration.

    ``table``: the part of the whole that it fills ("" for all of it, else "trainer", "orchestrator", "inference").
    ``data``: what it says, mistakes in the text mended where that is certain; None where it cannot be read at all.
    ``positions`` are of ``text`` as it stands in the file.
    """

    path: Path
    table: str
    text: str
    data: Mapping[str, Any] | None
    positions: Mapping[Key, Position]
    found: Sequence[Finding] = ()
    """What is wrong with its text."""

    def below(self, key: Key) -> Key:
        """``key`` of the whole as it stands in this file, () where it is another file's."""
        return key if not self.table else key[1:] if key[:1] == (self.table,) else ()


@dataclass(frozen=True)
class Subject:
    """Everything that the checks may ask. Built by ``supervisor.preflight.gather``, or by hand in tests."""

    kind: Kind
    settings: Settings
    """All files in one tree, [job] args over them; where the dialect spells a key otherwise, both must be asked for."""
    texts: Sequence[ConfigText] = ()
    args: Sequence[str] = ()
    run_file: RunFile | None = None
    run_path: Path | None = None
    run_positions: Mapping[Key, Position] = field(default_factory=dict)
    dialect: Dialect | None = None
    dialect_from: How = ""
    as_of: date | None = None
    """The day that a person named: the version of that day is the one that will run."""
    others: Sequence[tuple[Dialect, Schema | None]] = ()
    """Where it may be another version as well: some that the keys fit, or the others of a day that a person named. An
    error must be one in all of them.
    """
    schema: Schema | None = None
    """Every key that the trainer knows, of the installed version where there is one."""
    roots: Sequence[Path] = ()
    """Package folders of the installed prime-rl."""
    engine_cuts: bool | None = None
    """Does the installed engine end an answer where its context ends, instead of refusing the request?"""
    plan: GpuPlan = field(default_factory=GpuPlan)
    interval: int | None = None
    """Steps between two checkpoints as the run will be started; None: no checkpoint but the last."""
    max_steps: int | None = None
    model: ModelFacts | None = None
    steps: Mapping[int, int] = field(default_factory=dict)
    """Complete checkpoints on this disk: step to bytes."""
    revision: str = ""
    site: Site = field(default_factory=Site)
    found: Sequence[Finding] = ()
    """What was already wrong while it was gathered."""

    def where(self, *paths: str) -> Where:
        """Where the first of the dotted ``paths`` that is set stands; [job] args have the last word."""
        for path in paths:
            if self.settings.get(path) is None:
                continue
            if path not in self.flags:
                for text in reversed(self.texts):
                    below = text.below(tuple(path.split(".")))
                    if below and (place := _position_of_key(text.positions, below)):
                        return Where(str(text.path), place.line, path)
            return Where(str(self.run_path or ""), self.run_line("job", "args"), path)
        return self.file(paths[0] if paths else "")

    def find_key(self, key: Key) -> Where | None:
        """Where a key stands that passes through lists: ``key`` has the index of each element."""
        for text in reversed(self.texts):
            below = text.below(key)
            if below and (place := text.positions.get(below)):
                return Where(str(text.path), place.line, _dotted_key(key))
        return None

    def where_exactly(self, key: Key) -> Where:
        """The same; where it stands nowhere, the place of what is named like it."""
        return self.find_key(key) or self.where(_dotted_key(key))

    @property
    def is_spread(self) -> bool:
        """Is it to run over several machines? Then the plan of this pod says nothing of it."""
        return self.run_file is not None and self.run_file.nodes is not None

    @property
    def serves_apart(self) -> bool:
        """Is the inference server a role of its own, which we start and the launcher does not?"""
        return self.run_file is not None and self.run_file.recovery.inference == "own-role"

    @property
    def is_submitted(self) -> bool:
        """Would the launcher hand it to a cluster, whatever we tell it?"""
        return self.settings.has("slurm") and (self.dialect is None or not self.dialect.renders_parts)

    @cached_property
    def dropped_tables(self) -> Mapping[str, str]:
        """Tables that prime-rl throws away, since they are set under their newer name as well: old name to new one."""
        return find_dropped_names(self.settings.has, self.schema)

    def counts(self, path: str) -> bool:
        """Is a dotted path outside of what is thrown away?"""
        return not any(path == old or path.startswith(f"{old}.") for old in self.dropped_tables)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Dotted paths that [job] args set, whatever the files say."""
        return frozenset(without_no(name.replace("-", "_")) for name, _ in flags_of(self.args))

    def file(self, key: str = "") -> Where:
        """The file in which ``key`` would have to stand, where none sets it."""
        part = key.partition(".")[0]
        for text in self.texts:
            if not text.table or text.table == part:
                return Where(str(text.path), 0, key)
        return Where(str(self.texts[0].path) if self.texts else str(self.run_path or ""), 0, key)

    def knows(self, part: str) -> bool:
        """Is the configuration of the trainer, the orchestrator or inference among the files that are looked at?

        One of the three separate files alone says nothing of the others, and their defaults are not what will run; nor
        does a file that cannot be read.
        """
        return not self.texts or any(text.table in ("", part) and text.data is not None for text in self.texts)

    def run_line(self, *key: str) -> int:
        """The line of a key in the run file; 0 where it is not there."""
        place = self.run_positions.get(key)
        return place.line if place else 0

    def run_where(self, *key: str) -> Where:
        """A key of the run file."""
        return Where(str(self.run_path or ""), self.run_line(*key), ".".join(key))


Check = Callable[[Subject], Iterator[Finding]]
"""A pure look at one matter. It complains only of what it knows, and never raises on odd values."""


def _dotted_key(key: Key) -> str:
    return ".".join(part for part in key if isinstance(part, str))


def _position_of_key(positions: Mapping[Key, Position], parts: Key) -> Position | None:
    """prime-rl takes "-" and "_" for the same, and a list of tables has an index where the path has none."""
    wanted = tuple(str(part).replace("-", "_") for part in parts)
    for key, place in positions.items():
        if tuple(part.replace("-", "_") for part in key if isinstance(part, str)) == wanted:
            return place
    return None
