"""Reads a Dockerfile as far as ours goes: stages, instructions, their flags, and build arguments.

What it does not know it refuses, so that a test never passes by leaving a step out. The words are those of Docker's own
reference (docs.docker.com/reference/dockerfile).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = {
    *("FROM", "ARG", "ENV", "RUN", "COPY", "WORKDIR", "LABEL", "VOLUME"),
    *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, its flags in their order ("mount", "type=cache,..."), and the rest of the line."""

    word: str
    flags: tuple[tuple[str, str], ...]
    rest: str
    line: int

    def flag(self, name: str) -> str | None:
        return next((value for flag, value in self.flags if flag == name), None)

    def words(self) -> list[str]:
        """The exec form's words. Raises ValueError for the shell form."""
        return [str(word) for word in json.loads(self.rest)]


@dataclass
class Stage:
    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Dockerfile:
    """``arguments`` are those before the first FROM, with their defaults."""

    arguments: dict[str, str]
    stages: list[Stage]

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)


def instructions(text: str) -> list[Instruction]:
    """All instructions. Raises ValueError for one that this reader does not know."""
    found: list[Instruction] = []
    pending, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not pending and not line.strip()):
            continue
        began = began if pending else number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        found.append(_instruction(pending + line, began))
        pending = ""
    if pending:
        raise ValueError(f"line {began}: the last instruction is not finished")
    return found


def _instruction(text: str, line: int) -> Instruction:
    word, _, rest = text.strip().partition(" ")
    if word.upper() not in KNOWN or "<<" in rest:
        raise ValueError(f"line {line}: {word} is an instruction, or has a form, that these tests do not know")
    flags = []
    while match := re.match(r"\s*--([a-z-]+)(?:=(\S+))?\s+", rest):
        flags.append((match[1], match[2] or ""))
        rest = rest[match.end() :]
    return Instruction(word.upper(), tuple(flags), rest.strip(), line)


def read(path: Path) -> Dockerfile:
    """A Dockerfile of stages that all have names. Raises ValueError."""
    made = Dockerfile({}, [])
    for one in instructions(path.read_text(encoding="utf-8")):
        if one.word == "FROM":
            match = re.fullmatch(r"(\S+)\s+AS\s+(\S+)", one.rest, re.IGNORECASE)
            if match is None:
                raise ValueError(f"line {one.line}: FROM without a name for its stage")
            made.stages.append(Stage(match[2], match[1]))
        elif made.stages:
            made.stages[-1].instructions.append(one)
        elif one.word == "ARG":
            name, _, value = one.rest.partition("=")
            made.arguments[name] = value.strip('"')
        else:
            raise ValueError(f"line {one.line}: {one.word} before the first FROM")
    return made


def filled(text: str, values: Mapping[str, str]) -> str:
    """``$NAME`` and ``${NAME}`` put in. Raises KeyError for a name that nothing gives, ValueError for other forms."""
    if re.search(r"\$\{\w+[^\w}]", text):
        raise ValueError(f"a form of variable that these tests do not know: {text}")
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: values[match[1] or match[2]], text)
