"""Writes supervisor/preflight/eras.json: what prime-rl knew when, read from the histories of prime-rl and of verifiers.

python docs/eras.py PRIME_RL VERIFIERS           is the file what the two clones give?
python docs/eras.py PRIME_RL VERIFIERS --write   write it

A new version of prime-rl: set LAST below to its commit, then write. It takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from supervisor.preflight.eras import DATA, KINDS
from supervisor.preflight.pydantic_source import schema_of
from supervisor.preflight.schema import Field, Schema, walk
from supervisor.primerl.dialect import Dialect
from supervisor.primerl.probe import dialect_of

FIRST, LAST = "ceb60c03f", "559b44772"
"""Commits on main between which it is read."""
ROOTS = ("src/prime_rl", "packages/prime-rl-configs/src/prime_rl")
VERIFIERS = "deps/verifiers"
"""The submodule that says which verifiers a commit of prime-rl is made for; since 2026-05 there is one."""


class _History:
    """What is written to ``eras.json``, era by era."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {"eras": [], "variants": []}
        self.data |= {kind: {} for kind in KINDS} | {f"{kind}-open": [] for kind in KINDS}
        self._features: dict[str, Any] = {}
        self._before: object = None
        self._variants: dict[str, int] = {}

    def add(self, commit: str, day: str, dialect: Dialect, schemas: Mapping[str, Schema]) -> None:
        """One more commit; nothing is written of one that changed nothing."""
        facts = {
            kind: {path: self._facts(field) for path in walk(schema.top) if (field := schema.get(path))}
            for kind, schema in schemas.items()
        }
        now = (dialect, facts, {kind: schema.open for kind, schema in schemas.items()})
        if now == self._before:
            return
        self._before = now
        features = asdict(dialect)
        changes = {key: value for key, value in features.items() if self._features.get(key) != value}
        self._features = features
        number = len(self.data["eras"])
        self.data["eras"].append({"commit": commit, "day": day, "dialect": changes})
        for kind, schema in schemas.items():
            if schema.open:
                self.data[f"{kind}-open"].append(number)
            for path, said in facts[kind].items():
                spans = self.data[kind].setdefault(path, [])
                if spans and spans[-1][1] == number - 1 and spans[-1][2] == said:
                    spans[-1][1] = number
                else:
                    spans.append([number, number, said])

    def _facts(self, field: Field) -> dict[str, Any]:
        facts = {"open": field.open, "required": field.required, "ignores": field.ignores, "tagged": field.tagged}
        lists = {"choices": list(field.choices)} if field.choices else {}
        default = {} if field.default is None else {"default": field.default}
        numbers = {"bounds": dict(field.bounds)} if field.bounds else {}
        elements = {"elements": " ".join(sorted(field.elements))} if field.elements else {}
        flags = {key: 1 for key, said in facts.items() if said}
        tables = {name: self._number(one) for name, one in field.variants.items()}
        variants = {"variants": tables} if tables else {}
        usual = {"usual": field.usual} if field.usual else {}
        return (
            {"kinds": " ".join(sorted(field.kinds))} | flags | lists | default | numbers | elements | variants | usual
        )

    def _number(self, field: Field) -> int:
        """The place of a whole table in the list of those that there were."""
        told = self._whole(field)
        known = len(self._variants)
        number = self._variants.setdefault(json.dumps(told), known)
        if number == known:
            self.data["variants"].append(told)
        return number

    def _whole(self, field: Field) -> dict[str, Any]:
        below = {name: self._whole(one) for name, one in field.below.items()}
        return self._facts(field) | ({"below": below} if below else {})


def history(prime_rl: Path, verifiers: Path) -> dict[str, Any]:
    """The content of ``eras.json``, from clones of both. Raises ValueError where a commit is not understood."""
    found = _History()
    looked: dict[str, str] = {}  # what the commit before was read from: names, and what they held
    words = ("log", "--first-parent", "--reverse", "--format=%H %cs", f"{FIRST}^..{LAST}", "--", *ROOTS, VERIFIERS)
    for line in _git(prime_rl, *words).splitlines():
        commit, day = line[: len(FIRST)], line.rpartition(" ")[2]
        files = _Files(prime_rl, verifiers, commit)
        if looked and all(files.blob(name) == before for name, before in looked.items()):
            continue
        looked = files.looked
        schemas = {kind: schema for kind in KINDS if (schema := schema_of(files.read, kind)) is not None}
        if set(schemas) != set(KINDS):
            raise ValueError(f"{commit}: the configuration is not understood")
        found.add(commit, day, dialect_of(files.read, commit), schemas)
    eras = found.data["eras"]
    for one, later in reversed(list(pairwise(eras))):  # their days are those of the people who merged them
        one["day"] = min(one["day"], later["day"])
    for kind in KINDS:
        found.data[kind] = dict(sorted(found.data[kind].items(), key=lambda item: item[0].split(".")))
    return found.data


class _Files:
    """The files of one commit, and of the verifiers that it names, as the reader of classes asks for them."""

    def __init__(self, prime_rl: Path, verifiers: Path, commit: str) -> None:
        self._held = {f"p/{path}": (prime_rl, blob) for path, blob in _tree(prime_rl, commit, *ROOTS).items()}
        pinned = _tree(prime_rl, commit, VERIFIERS).get(VERIFIERS)
        if pinned:
            self._held |= {path: (verifiers, blob) for path, blob in _tree(verifiers, pinned, "verifiers/v1").items()}
        self.looked: dict[str, str] = {}

    def blob(self, name: str) -> str:
        """The blob of a file by the reader's name for it, "" where there is none."""
        return self._found(name)[1]

    def read(self, name: str) -> str:
        """Its text. Which names were asked for is kept in ``looked``."""
        clone, blob = self._found(name)
        self.looked[name] = blob
        return _text(clone, blob) if blob else ""

    def _found(self, name: str) -> tuple[Path, str]:
        paths = [name] if name.startswith("verifiers/") else [f"p/{root}/{name}" for root in ROOTS]
        return next((self._held[path] for path in paths if path in self._held), (Path(), ""))


def text_of(data: Mapping[str, Any]) -> str:
    """``eras.json``: one line for each era and each key, so that a difference can be read."""
    parts = []
    for name, value in data.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(spans)}" for path, spans in value.items())
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        elif name in ("eras", "variants"):
            parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(one) for one in value) + "\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@lru_cache(maxsize=1000)
def _text(clone: Path, blob: str) -> str:
    return _git(clone, "cat-file", "blob", blob)


@lru_cache(maxsize=10)
def _tree(clone: Path, commit: str, *folders: str) -> Mapping[str, str]:
    rows = (line.split("\t") for line in _git(clone, "ls-tree", "-r", commit, *folders).splitlines())
    return {path: facts.split()[2] for facts, path in rows}


def _git(clone: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(clone), *words], capture_output=True, check=True, text=True, errors="replace"
    ).stdout


def main() -> int:
    """Compare ``eras.json`` with the two histories, or write it anew."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("prime_rl", type=Path, metavar="PRIME_RL", help="a clone of prime-rl")
    parser.add_argument("verifiers", type=Path, metavar="VERIFIERS", help="a clone of verifiers")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    text = text_of(history(given.prime_rl, given.verifiers))
    if given.write:
        DATA.write_text(text, encoding="utf-8")
    return int(DATA.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main())
