"""The trainer's own configuration: read as data, with the command line's words over it, and what in it we refuse.

prime-rl is not run to resolve it, so only settings that stand in the files (or in [job] args) are seen; everything
else has the default of the era.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError
from supervisor.base.records import dataclass
from supervisor.config.run_file import parse_toml
from supervisor.config.settings import Job
from supervisor.primerl.dialect import Dialect

LARGEST = 4 << 20
_PARTS = ("", "trainer.", "orchestrator.")
_BROADCAST = [f"{part}weight_broadcast.type" for part in _PARTS]
_ON, _OFF = {"true", "t", "yes", "y", "on", "1"}, {"false", "f", "no", "n", "off", "0"}


@dataclass(frozen=True)
class Source:
    """A configuration file and the table that it fills: "" for the whole, or "trainer", "orchestrator", "inference"."""

    path: Path
    table: str = ""


def sources(job: Job) -> tuple[Source, ...]:
    """The files that the run file names, in the order of the command line."""
    whole = [Source(job.folder / path.expanduser()) for path in job.config]
    split = (
        ("trainer", job.trainer_config),
        ("orchestrator", job.orchestrator_config),
        ("inference", job.inference_config),
    )
    halves = [Source(job.folder / path.expanduser(), table) for table, path in split if path is not None]
    return (*whole, *halves)


@dataclass(frozen=True)
class Settings:
    """All configuration files in one tree, later ones over earlier ones."""

    tree: Mapping[str, Any]
    where: str
    """Names of the files, for sentences."""

    def get(self, *paths: str) -> Any:
        """The first of the dotted ``paths`` that is set (prime-rl reads the text "None" as none); None otherwise."""
        for path in paths:
            value = self._path_at(path)
            if value != "None" and value is not None:
                return value
        return None

    def number(self, *paths: str) -> int | None:
        """Like ``get``, for whole numbers only."""
        value = self.get(*paths)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def has(self, path: str) -> bool:
        """Is ``path`` there, also as an empty table, and not switched off?"""
        return (value := self.get(path)) is not None and value is not False

    def is_on(self, path: str) -> bool | None:
        """A switch as pydantic reads it ("yes" and 1 are on as well); None where it is not set, or is no switch."""
        return word in _ON if (word := str(self.get(path)).lower()) in _ON | _OFF else None

    def _path_at(self, path: str) -> Any:
        node: Any = self.tree
        for part in path.split("."):
            if not isinstance(node, Mapping):
                return None
            node = node.get(part, node.get(part.replace("_", "-")))
        return node


def load(files: Sequence[Source], args: Sequence[str] = (), copies: Mapping[Path, Path] | None = None) -> Settings:
    """Read ``files`` (from their ``copies`` where given), then put the flags of ``args`` over them.

    Raises ConfigError when a file is missing, unreadable, or not TOML (JSON for names that end in .json).
    """
    tables = [(source.table, _read_file((copies or {}).get(source.path, source.path), source.path)) for source in files]
    tree = merge_configs(tables, args)
    where = ", ".join(str(source.path) for source in files)
    return Settings(tree, f"{where} (with [job] args)" if args else where)


def merge_configs(tables: Iterable[tuple[str, Mapping[str, Any]]], args: Sequence[str] = ()) -> dict[str, Any]:
    """One tree of what each file says for its table ("": the whole), the flags of ``args`` over it."""
    tree: dict[str, Any] = {}
    for table, data in tables:
        _merge_trees(tree, {table: data} if table else data)
    for name, given in flags(args):
        named = name.replace("-", "_")
        path = without_no(named) if given is None else named
        node: Any = path == named if given is None else _parse_value(given)
        if given is None and isinstance(Settings(tree, "").get(path), Mapping):
            node = {} if node else "None"  # a table stays as the file has it, or goes as a whole
        for part in reversed(path.split(".")):
            node = {part: node}
        _merge_trees(tree, node)
    return tree


def without_no(path: str) -> str:
    """The path that ``no_a.b`` (or ``a.no_b``, with tyro) switches off; other paths as they are."""
    return re.sub(r"^no_|(?<=\.)no_(?=[^.]*$)", "", path, count=1)


def flags(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """The ``--name value`` pairs of a command line, as prime-rl's parsers see them; None for a flag without a value."""
    position = 0
    while position < len(args):
        word = args[position]
        position += 1
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if equals:
            yield name, value
        elif position < len(args) and not args[position].startswith("--"):
            yield name, args[position]
            position += 1
        else:
            yield name, None


def _parse_value(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _merge_trees(tree: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        below = tree.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            _merge_trees(below, value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def _read_file(path: Path, original: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigError(f"{original} has more than {LARGEST >> 20} MiB: that is no configuration of prime-rl.")
        text = content.decode("utf-8-sig")
        data = json.loads(text) if original.suffix == ".json" else parse_toml(text)
    except FileNotFoundError:
        raise ConfigError(
            f"{original} does not exist: put the configuration there, or mend the setting of [job] that names it."
        ) from None
    except OSError as error:
        raise ConfigError(f"{original} cannot be read ({error.strerror}): mend its permissions.") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if original.suffix == ".json" else "TOML"
        raise ConfigError(f"{original} is not {kind}: {error}. Mend it and try again.") from None
    if not isinstance(data, Mapping):
        raise ConfigError(f"{original} holds no table of settings.")
    return data


# ---------------------------------------------------------------- what we refuse


@dataclass(frozen=True)
class Refusal:
    """Why a configuration is not started, and the dotted key that is in the way."""

    sentence: str
    key: str


def refusals(settings: Settings, dialect: Dialect, *, spread: bool = False) -> Iterator[Refusal]:
    """What we cannot run, or what would take a run's safety away. ``spread``: the run file has [nodes]."""
    where = settings.where
    yield from _refuse_cluster(settings, dialect, spread)
    for path in ("max_concurrent_runs", "trainer.max_concurrent_runs"):
        if (runs := settings.number(path)) and runs > 1:
            told = f"{where} sets max_concurrent_runs = {runs}: several runs in one trainer are not supported. "
            yield Refusal(told + "Set it to 1.", path)
            break
    for path in ("ckpt.weights_only", "trainer.ckpt.weights_only"):
        if settings.is_on(path):
            yield Refusal(f"{where} sets {path}: such checkpoints cannot be resumed from. Take it out.", path)
    for path in ("ckpt.output_dir", "trainer.ckpt.output_dir"):
        if settings.get(path) is not None:
            told = (
                f"{where} sets {path}: the trainer's part of a checkpoint would lie apart from the orchestrator's. "
                "Take it out, and set [job] output_dir of the run file to the volume for checkpoints."
            )
            yield Refusal(told, path)
    for path in (f"{part}{key}" for key in ("ckpt.resume_step", "resume") for part in _PARTS):
        if settings.has(path):
            told = f"{where} sets {path}: the supervisor names the step to resume from in each start. Take it out."
            yield Refusal(told, path)
    if dialect.clean in ("output-dir", "run-dir"):
        for path in ("clean", "clean_output_dir"):
            if settings.is_on(path):
                told = f"{where} sets {path}, which would delete the run's checkpoints at a start. Take it out."
                yield Refusal(told, path)
    for path in ("dry_run", "dump_config"):
        if settings.get(path):
            yield Refusal(f"{where} sets {path}: nothing would be trained. Take it out.", path)
    for path in ("toml_files", "trainer.toml_files", "orchestrator.toml_files"):
        if settings.has(path):
            told = (
                f"{where} takes in other files with toml_files, and each attempt runs from a copy of its configuration "
                "that such paths do not reach. List all files in [job] config instead, the most general first."
            )
            yield Refusal(told, path)
            break
    if not dialect.nccl_resume and broadcast_type(settings, dialect) in ("nccl", "nixl"):
        told = (
            f"With {dialect.name}, a run that broadcasts its weights with NCCL cannot resume (prime-rl d83dce699, "
            f'2fdffa7d3). Set weight_broadcast.type = "filesystem" in {where}, or use another version.'
        )
        yield Refusal(told, next((path for path in _BROADCAST if settings.has(path)), _BROADCAST[0]))


def _refuse_cluster(settings: Settings, dialect: Dialect, spread: bool) -> Iterator[Refusal]:
    where, kind = settings.where, settings.get("deployment.type")
    old = "" if dialect.renders_parts else f"{dialect.name} cannot be told to: that takes 13 Aug 2026 or later"
    if settings.has("slurm") and old:
        told = f"{where} has [slurm], with which the launcher submits a job of its own, and {old}. Take it out."
        yield Refusal(told, "slurm")
    if spread and kind != "multi_node":
        told = f'{where} does not set deployment.type = "multi_node", and the run file has [nodes]: take one out.'
        yield Refusal(told, "deployment.type")
    if spread and old:
        yield Refusal(f"[nodes]: the launcher says which parts the run is made of, and {old}.", "deployment.type")
    if kind == "multi_node" and not spread:
        told = (
            f'{where} sets deployment.type = "multi_node", a run over several machines: it needs [nodes] in the run '
            'file (docs/many-machines.md). Or use "single_node".'
        )
        yield Refusal(told, "deployment.type")
    path = "inference.deployment.type"
    if settings.get(path) in ("multi_node", "disaggregated"):
        yield Refusal(f'{where} sets {path} = "{settings.get(path)}", which is not supported. Use "single_node".', path)


def broadcast_type(settings: Settings, dialect: Dialect) -> str:
    """How the trainer hands its weights to the engine: "filesystem", "nccl" or "nixl"."""
    chosen = settings.get(*_BROADCAST)
    by_default = dialect.nccl_default and settings.has("inference") and not settings.has("trainer.model.lora")
    return chosen if isinstance(chosen, str) else "nccl" if by_default else "filesystem"
