"""Writes the table of facts in docs/replay.md from the core's dataclasses, so that the two cannot differ.

python docs/facts.py           print it
python docs/facts.py --write   put it into docs/replay.md
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pages import main

from supervisor.core import facts, goodput, records, settings
from supervisor.core.codec import encode

PAGE = Path(__file__).with_name("replay.md")
NOT_SEEN = (facts.Fact, facts.Observation)


def tables() -> str:
    """Markdown: each fact with its fields, in the order of the module, then the values inside them."""
    known = [cls for cls in vars(facts).values() if _own(cls, facts) and cls not in NOT_SEEN]
    told = [cls for cls in known if issubclass(cls, facts.Fact)]
    inner = [cls for cls in known if cls not in told]
    inner += [settings.Settings]
    inner += [cls for module in (records, goodput) for cls in vars(module).values() if _own(cls, module)]
    return "\n".join(
        ["### Facts", *map(_section, told), "### Values inside facts", *map(_section, inner)],
    )


def _own(cls: Any, module: Any) -> bool:
    return isinstance(cls, type) and is_dataclass(cls) and cls.__module__ == module.__name__


def _section(cls: type[Any]) -> str:
    about = _one_line(cls.__doc__ or "")
    comments = _comments(cls)
    rows = [f"| `{x.name}` | {_type(x)} | {_default(x)} | {comments.get(x.name, '')} |" for x in fields(cls)]
    head = ["", "| field | type | default | |", "| --- | --- | --- | --- |", *rows] if rows else []
    return "\n".join([f"\n**`{cls.__name__}`** {about}", *head, ""])


WORDS = {
    "Seconds": "seconds",
    "Patience": "seconds",
    "Positive": "whole number",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "Any": "anything",
}


def _type(field: Field[Any]) -> str:
    roles = " or ".join(f'"{role}"' for role in get_args(facts.Role))
    text = re.sub(r"\bRole\b", roles, str(field.type))
    text = text.replace(" | None", " or null").replace("tuple[", "list of ").replace(", ...]", "")
    text = re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace(", ", " or "), text).replace("|", "or")
    text = re.sub(r"dict\[str, (\w+)\]", r"object: name to \1", text).replace("]", "")
    text = re.sub(r"Annotated\[(\w+), [^\]]*\]|Annotated\[(\w+), .*$", lambda found: found[1] or found[2], text)
    return re.sub(rf"(?<![\"\w])({'|'.join(WORDS)})(?![\"\w])", lambda found: WORDS[found[1]], text)


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "required" if field.default_factory is MISSING else "empty"
    return f"`{_json(encode(field.default))}`"


def _json(value: Any) -> str:
    return json.dumps(value)


def _comments(cls: type[Any]) -> dict[str, str]:
    """What stands behind each field, or in the string below it: its unit and meaning."""
    found = {name: text for base in cls.__bases__ if is_dataclass(base) for name, text in _comments(base).items()}
    lines, classes = _read(sys.modules[cls.__module__])
    for statement, below in pairwise([*classes[cls.__name__].body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            _, mark, comment = lines[(statement.end_lineno or statement.lineno) - 1].partition("  # ")
            text = below.value.value if isinstance(below, ast.Expr) and not mark else comment  # type: ignore[attr-defined]
            found[statement.target.id] = _one_line(text)
    return found


@lru_cache
def _read(module: ModuleType) -> tuple[list[str], dict[str, ast.ClassDef]]:
    """Its lines, and its classes by name. (``inspect.getsource`` parses the whole module again for each class.)"""
    source = inspect.getsource(module)
    return source.splitlines(), {one.name: one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)}


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def parts() -> dict[str, str]:
    """What stands between which marks of the page."""
    return {"facts": "\n" + tables()}


if __name__ == "__main__":
    main(PAGE, parts())
