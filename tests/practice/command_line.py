"""prime-rl's command line, era by era: what is accepted, how it nests, and how it fails.

Tried with the real parsers: pydantic-settings 2.11 under prime-rl's own `utils/pydantic_config.py` at be0e3d131, and
prime-pydantic-config 0.3.0.dev82 and 0.4.3. What was seen there and is kept here:

| given | pydantic-settings | pydantic-config |
| --- | --- | --- |
| unknown flag, or `@file` without the space | `error: unrecognized arguments`, exit 2 | boxed message, exit 1 |
| unknown key in a file, value of a wrong type | ValidationError traceback, exit 1 | boxed message, exit 1 |
| file missing | FileNotFoundError traceback, exit 1 | boxed message, exit 1 |
| list | `1,2`, `[1,2]` or the flag repeated; `1 2` fails | `1 2` or `[1,2]`; `1,2` fails |
| `--no-clean` | a flag of every bool | an unknown key |
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from tests.practice.era import Era

INTEGERS = frozenset(
    {
        "max_steps",
        "interval",
        "resume_step",
        "step",
        "keep",
        "keep_last",
        "keep_interval",
        "port",
        "num_train_gpus",
        "num_infer_gpus",
        "seq_len",
    }
)
SECONDS = frozenset({"log.interval", "orchestrator.log.interval"})
"""Intervals that are times: 10.0 in the configuration that the launcher resolves (configs/orchestrator.py)."""
INTEGER_LISTS = frozenset({"inference_gpu_ids", "trainer_gpu_ids"})
SWITCHES = frozenset({"clean", "clean_output_dir", "bench", "dry_run"})
ENTRY_TABLES = {
    "rl": "",
    "inference": "inference",
    "orchestrator": "orchestrator",
    "trainer": "trainer",
    "sft": "",
    "env-server": "",
}


class CommandLine:
    """Reads one entry point's arguments into a nested dictionary with snake_case keys; ends the process where the
    real one does."""

    def __init__(self, era: Era, entry: str) -> None:
        self.era = era
        self.entry = entry
        self.prefix = ENTRY_TABLES[entry]
        self.old = era.command_line["parser"] == "pydantic-settings"
        self.checked = entry in ("rl", "inference", "orchestrator", "trainer")

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        config, rest = self._read_files(list(arguments))
        merge(config, self._parse_flags(rest))
        for path, value in walk(config):
            self._check_value(path, value)
        return config

    def _read_files(self, arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
        config: dict[str, Any] = {}
        rest: list[str] = []
        position = 0
        while position < len(arguments):
            word = arguments[position]
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            if word == "@":
                merge(config, self._read_file(following))
                position += 2
            elif word.startswith("--") and following == "@" and position + 2 < len(arguments):
                table = self._read_file(arguments[position + 2])
                for key in reversed(snake(word[2:]).split(".")):
                    table = {key: table}
                merge(config, table)
                position += 3
            else:
                rest.append(word)
                position += 1
        return config, rest

    def _read_file(self, name: str) -> dict[str, Any]:
        path = Path(name)
        if not path.exists():
            if self.old:
                raise FileNotFoundError(f"TOML file {name} does not exist")
            self._end_with_box(f"Config file not found: {name}")
        text = path.read_text(encoding="utf-8")
        data: dict[str, Any] = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return data

    def _parse_flags(self, words: list[str]) -> dict[str, Any]:
        config: dict[str, Any] = {}
        strays: list[str] = []
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if not word.startswith("--"):
                strays.append(word)
                continue
            name, equals, given = word[2:].partition("=")
            values = [given] if equals else []
            while not equals and position < len(words) and not words[position].startswith("--"):
                values.append(words[position])
                position += 1
                if self.old:
                    break
            path = snake(name)
            switch_off = path.startswith("no_") and path[3:].rpartition(".")[2] in SWITCHES
            if self.old and switch_off:
                path, values = path[3:], ["false"]
            if self.old and path.rpartition(".")[2] in SWITCHES and values not in ([], ["false"]):
                strays += values
                values = []
            if self.old and not self.is_known(path):
                strays += [word, *values]
                continue
            put(config, path, self._parse_value(path, values))
        if strays:
            if self.old:
                print(
                    f"usage: {self.entry} [-h] ...\n{self.entry}: error: unrecognized arguments: {' '.join(strays)}",
                    file=sys.stderr,
                )
                sys.exit(int(self.era.command_line["unknown_flag_exit"]))
            self._end_with_box(f"Unrecognized arguments: {' '.join(strays)}")
        return config

    def _parse_value(self, path: str, values: list[str]) -> Any:
        key = path.rpartition(".")[2]
        if not values:
            return {} if (f"{self.prefix}.{path}" if self.prefix else path) in self.era.keys else True
        if key in INTEGER_LISTS:
            parts = (
                values
                if len(values) > 1
                else values[0].strip("[]").split(",")
                if self.old or values[0].startswith("[")
                else values
            )
            return [self._parse_integer(path, part.strip()) for part in parts]
        if len(values) > 1:
            return values
        text = values[0]
        if text == "None":
            return None
        if key in INTEGERS:
            return self._parse_integer(path, text)
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        return text

    def _parse_integer(self, path: str, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            self._end_with_invalid(path, "Input should be a valid integer, unable to parse string as an integer", text)

    def _check_value(self, path: str, value: object) -> None:
        if not self.is_known(path):
            self._end_with_invalid(path, "Extra inputs are not permitted", value)
        if (
            path.rpartition(".")[2] in INTEGERS
            and path not in SECONDS
            and value is not None
            and (not isinstance(value, int) or isinstance(value, bool))
        ):
            self._end_with_invalid(path, "Input should be a valid integer", value)

    def is_known(self, path: str) -> bool:
        if not self.checked:
            return True
        table = self.prefix
        for key in path.split("."):
            keys = self.era.keys.get(table, frozenset())
            if f"{key}*" in keys or "*" in keys:
                return True
            if key not in keys:
                return False
            table = f"{table}.{key}" if table else key
        return True

    def _end_with_invalid(self, path: str, problem: str, value: object) -> NoReturn:
        if not self.old:
            flag = path.replace("_", "-")
            self._end_with_box(
                f"Failed to validate config:\n1 validation error for RLConfig\n--{flag}\n{problem} (got {value!r})"
            )
        print(
            "Traceback (most recent call last):\n"
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for RLConfig\n{path}\n  {problem} "
            f"[type=value_error, input_value={value!r}, input_type={type(value).__name__}]",
            file=sys.stderr,
        )
        sys.exit(1)

    def _end_with_box(self, text: str) -> NoReturn:
        body = "\n".join(f"│ {line: <76} │" for line in text.splitlines())
        print(f"╭─ Config file error {'─' * 58}╮\n{body}\n╰{'─' * 78}╯", file=sys.stderr)
        sys.exit(1)


def snake(name: str) -> str:
    return name.replace("-", "_")


def merge(into: dict[str, Any], table: dict[str, Any]) -> None:
    """Deep merge; the later one wins."""
    for key, value in table.items():
        present = into.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            merge(present, value)
        elif not (isinstance(present, dict) and value is True):
            into[key] = value


def put(config: dict[str, Any], path: str, value: object) -> None:
    *tables, key = path.split(".")
    for table in tables:
        below = config.get(table)
        if not isinstance(below, dict):
            below = config[table] = {}
        config = below
    if not (isinstance(config.get(key), dict) and value in ({}, True)):
        config[key] = value


def get(config: dict[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path, or `default` where it is absent or None."""
    present: Any = config
    for key in path.split("."):
        if not isinstance(present, dict) or key not in present:
            return default
        present = present[key]
    return default if present is None else present


def walk(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Every path in the configuration with its value, tables before what is in them."""
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{prefix}.{key}" if prefix else key
        found.append((path, value))
        if isinstance(value, dict):
            found += walk(value, path)
    return found


def to_toml(config: dict[str, Any], prefix: str = "") -> str:
    """The configuration as TOML text: what the old launchers hand to their children. None values are left out."""
    lines: list[str] = []
    tables: list[str] = []
    for key, value in config.items():
        if isinstance(value, dict):
            name = f"{prefix}.{key}" if prefix else key
            tables.append(f"[{name}]\n{to_toml(value, name)}")
        elif value is not None:
            lines.append(f"{key} = {toml_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def toml_value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)
