"""Names and classes in Python source that is read and never run: what a name stands for, what a class inherits."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Read = Callable[[str], str]
"""Text of a file below ``prime_rl``, or of one of verifiers ("verifiers/v1/task.py"); "" when it is not there."""

DEEPEST = 24
"""How far imports and inheritance are followed."""

_PARSERS = {"parse_argv", "cli"}
"""Functions of prime-rl's two parsers that take the class of the configuration."""

Extra = Literal["forbid", "ignore", "allow"]
_BASES: Mapping[str, Extra] = {
    "pydantic.BaseModel": "ignore",
    "pydantic_settings.BaseSettings": "forbid",
    "pydantic_config.BaseConfig": "forbid",
}
"""What these do with unknown keys unless told otherwise (pydantic 2, pydantic-settings 2, pydantic_config 1)."""
_READS_NONE = "pydantic_config.BaseConfig"
"""Its validator _none_str_to_none is for the fields of every class that inherits from it."""


class Modules:
    """The modules of ``prime_rl``, and of verifiers since ``prime_rl`` holds its classes; each parsed once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[str, Module | None] = {}

    def get(self, file: str) -> Module | None:
        """The module in ``file`` (relative to the package); None where there is none, or it is not Python."""
        if file not in self._known:
            self._known[file] = None
            text = self._read(file)
            if text:
                try:
                    with warnings.catch_warnings(action="ignore"):  # of escapes in their texts
                        self._known[file] = Module(self, file, ast.parse(text))
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    pass
        return self._known[file]

    def find_module(self, dotted: str) -> Module | None:
        """The module of a dotted name below ``prime_rl`` or ``verifiers``."""
        if not dotted.startswith(("prime_rl.", "verifiers.")):
            return None
        path = dotted.removeprefix("prime_rl.").replace(".", "/")
        return self.get(f"{path}.py") or self.get(f"{path}/__init__.py")


@dataclass(frozen=True)
class Alias:
    """A name that stands for a type expression."""

    module: Module
    expression: ast.expr


@dataclass(frozen=True)
class Function:
    """A function, as a validator may call it."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Foreign:
    """A name from another package: "pydantic.BaseModel"."""

    dotted: str


class Module:
    def __init__(self, modules: Modules, file: str, tree: ast.Module) -> None:
        self.modules = modules
        self.file = file
        self.tree = tree

    @cached_property
    def _names_of_module(self) -> Mapping[str, ast.stmt | tuple[str, str]]:
        """What each name at the top level is: a definition, or (module, name) for an import."""
        names: dict[str, ast.stmt | tuple[str, str]] = {}
        for statement in _flatten_body(self.tree.body):
            if isinstance(statement, ast.ImportFrom):
                for one in statement.names:
                    names[one.asname or one.name] = (self._absolute_name(statement), one.name)
            elif isinstance(statement, ast.Import):
                for one in statement.names:
                    names[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0],
                        "",
                    )
            elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names[statement.name] = statement
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                if isinstance(statement.targets[0], ast.Name):
                    names[statement.targets[0].id] = statement
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                names[statement.target.id] = statement
            elif type(statement).__name__ == "TypeAlias":  # `type X = ...`, from Python 3.12 on
                names[statement.name.id] = statement  # type: ignore[attr-defined]
        return names

    def _absolute_name(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        package = [] if self.file.startswith("verifiers/") else ["prime_rl"]
        parts = [*package, *self.file.split("/")][: -statement.level]
        return ".".join([*parts, *([statement.module] if statement.module else [])])

    def parsed_classes(self) -> Iterator[str]:
        """Names of the classes that this module hands to the command line's parser."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
                called = node.func
                name = (
                    called.id
                    if isinstance(called, ast.Name)
                    else called.attr
                    if isinstance(called, ast.Attribute)
                    else ""
                )
                if name in _PARSERS:
                    yield node.args[0].id

    def find(self, name: str, depth: int = 0) -> Class | Alias | Function | Foreign | None:
        """What a name (dotted for an attribute of a module) stands for here."""
        first, _, rest = name.partition(".")
        found = self._names_of_module.get(first)
        if found is None or depth > DEEPEST:
            return None
        if isinstance(found, tuple):
            dotted, attribute = found
            wanted = ".".join(part for part in (attribute, rest) if part)
            module = self.modules.find_module(dotted)
            if module is None and attribute:
                module = self.modules.find_module(f"{dotted}.{attribute}")
                wanted = rest if module is not None else wanted
            if module is not None and wanted:
                return module.find(wanted, depth + 1)
            if dotted.partition(".")[0] == "prime_rl":
                return None
            return Foreign(f"{dotted}.{wanted}" if wanted else dotted)
        if rest:
            return None
        if isinstance(found, ast.ClassDef):
            return Class(self, found)
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(self, found)
        value = getattr(found, "value", None)
        return Alias(self, value) if isinstance(value, ast.expr) else None


def _flatten_body(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, those under a top-level ``if`` or ``try`` as well."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flatten_body([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _flatten_body([*statement.body, *(one for part in statement.handlers for one in part.body)])
        else:
            yield statement


# ---------------------------------------------------------------- classes


@dataclass(frozen=True)
class Class:
    module: Module
    node: ast.ClassDef

    @property
    def id(self) -> tuple[str, str]:
        return self.module.file, self.node.name

    def line(self, depth: int = 0) -> Iterator[Class | Foreign | None]:
        """This class and those it inherits from, nearest first; None for one that is not known."""
        yield self
        for base in self.node.bases:
            found = self.module.find(dotted_name(base.value if isinstance(base, ast.Subscript) else base))
            if isinstance(found, Class) and depth < DEEPEST:
                yield from found.line(depth + 1)
            elif isinstance(found, Foreign):
                yield found
            elif dotted_name(base) not in ("ABC", "Generic", "object"):
                yield None

    def reads_none(self) -> bool:
        """Does a class of another package that it inherits from make nothing of the text "None"? True: perhaps."""
        return any(one is None or (isinstance(one, Foreign) and one.dotted == _READS_NONE) for one in self.line())

    def literals(self, name: str) -> Iterator[str]:
        """The texts of its own field ``name``, where that is a Literal."""
        for one in self.node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id == name:
                found = (constant(node) for node in ast.walk(one.annotation) if isinstance(node, ast.expr))
                yield from (text for text in found if isinstance(text, str))

    def extra(self) -> Extra | None:
        """What becomes of a key that it does not know; None where that is not known."""
        for one in self.line():
            if one is None:
                return None
            if isinstance(one, Foreign):
                if one.dotted in _BASES:
                    return _BASES[one.dotted]
                if one.dotted.partition(".")[0] in ("abc", "typing", "enum"):
                    continue
                return None
            said = one.said_extra()
            if said != "":
                return said
        return None

    def said_extra(self) -> Extra | Literal[""] | None:
        """Its own word in ``model_config``: "" where there is none, None where it is not understood."""
        for statement in self.node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if not any(isinstance(target, ast.Name) and target.id == "model_config" for target in targets):
                continue
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Dict):
                words = {constant(key): one for key, one in zip(value.keys, value.values, strict=True) if key}
            elif isinstance(value, ast.Call) and dotted_name(value.func).endswith(("ConfigDict", "dict")):
                words = {word.arg: word.value for word in value.keywords}
            else:
                return None
            if "alias_generator" in words or None in words:
                return None
            if "extra" in words:
                said = constant(words["extra"])
                return said if said in ("forbid", "ignore", "allow") else None
        return ""


def dotted_name(node: ast.expr) -> str:
    """The dotted name that an expression is, "" where it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted_name(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
