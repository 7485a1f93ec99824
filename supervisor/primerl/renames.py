"""Settings of prime-rl that had more than one name: ``renames.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path

from supervisor.base.records import dataclass


@dataclass(frozen=True)
class Rename:
    """One change of a name. ``new`` "": the setting went. ``note``: a sentence on what else changed, or "".

    ``sign``: a regular expression that the configuration classes match from then on; a start, whose words are written
    with the oldest name, then says the new one. ``yields``: a version that takes both names drops what stands under
    the old one where the new one is set.
    """

    old: str
    commit: str
    day: date
    new: str = ""
    note: str = ""
    sign: str = ""
    yields: bool = False

    def apply(self, key: str) -> str:
        """``key``, with the new name in the place of the old one."""
        return self.new + key.removeprefix(self.old) if f"{key}.".startswith(f"{self.old}.") else key

    def undo(self, key: str) -> str:
        """``key``, with the old name in the place of the new one."""
        return self.old + key.removeprefix(self.new) if f"{key}.".startswith(f"{self.new}.") else key


@cache
def renames() -> Sequence[Rename]:
    """All of them, in the order of the file."""
    text = Path(__file__).with_name("renames.toml").read_text(encoding="utf-8")
    return tuple(Rename(**one) for one in tomllib.loads(text)["rename"])


def oldest_name(key: str) -> str:
    """What a setting that a start sets was called first, as ``command.py`` knows it; in snake case."""
    for one in reversed(renames()):
        key = one.undo(key) if one.sign else key
    return key


def spellings(*keys: str) -> tuple[str, ...]:
    """All names of settings that a start sets, of each the newest first. ``keys``: their oldest ones, in snake case."""
    found: list[str] = []
    for key in keys:
        names = [key]
        for one in renames():
            if one.sign and (name := one.apply(names[-1])) not in names:
                names.append(name)
        found += reversed(names)
    return tuple(found)
