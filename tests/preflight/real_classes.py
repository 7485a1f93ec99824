"""Asks prime-rl's own classes of configurations: real_classes.py ROOT..., with a JSON list of (kind, file) as input.

Runs in a virtual environment of that era, never in ours. The last line that it prints is a JSON list: for each file
what the launcher would say of it, "" where it takes it. What the classes need not (torch, vllm) is replaced by stubs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import sys
import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

HEAVY = {
    *("torch", "vllm", "transformers", "datasets", "wandb", "msgspec", "pyarrow", "torchtitan", "huggingface_hub"),
    *("jaxtyping", "uvicorn", "uvloop", "PIL", "math_verify", "gepa"),
}
CLASSES = {
    "rl": ("prime_rl.configs.rl:RLConfig", "prime_rl.rl:RLConfig"),
    "sft": ("prime_rl.configs.sft:SFTConfig", "prime_rl.trainer.sft.config:SFTTrainerConfig"),
}


class Stub(types.ModuleType):
    """A module of which every name is there."""

    __path__: list[str] = []  # noqa: RUF012 - what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for each heavy module."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        heavy = name.partition(".")[0] in HEAVY
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if heavy else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def config_class(kind: str) -> Any:
    """The class that the launcher of ``kind`` hands to its parser."""
    for place in CLASSES[kind]:
        module, name = place.split(":")
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(module) is not None:
                return getattr(importlib.import_module(module), name)
    raise SystemExit(f"no class for {kind} in {sys.path[:3]}")


def refusal(kind: str, path: str) -> str:
    """What `rl @ path` (or `sft @ path`) says of the file, "" where it takes it."""
    chosen = config_class(kind)
    if importlib.util.find_spec("prime_rl.utils.pydantic_config") is not None:
        parse = importlib.import_module("prime_rl.utils.pydantic_config").parse_argv
    else:
        parse = importlib.import_module("pydantic_config").cli
    sys.argv = [kind, "@", path]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            parse(chosen)
    except SystemExit:
        return out.getvalue().strip() or "it ended"
    except Exception as error:  # whatever it raises, the run ends
        return f"{type(error).__name__}: {error}"
    return ""


def main(roots: Sequence[str]) -> None:
    """Answer for each file of the input."""
    sys.path[:0] = roots
    sys.meta_path.insert(0, Stubs())
    print(json.dumps([refusal(kind, path) for kind, path in json.load(sys.stdin)]))


if __name__ == "__main__":
    main(sys.argv[1:])
