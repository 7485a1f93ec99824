"""Reads pydantic classes out of Python source, as far as their keys go. Nothing is imported or run.

What is not understood becomes a field that takes anything: silence instead of a false claim. Three things decide
what a class does with a key that it does not know: ``extra`` in its ``model_config`` (BaseModel drops such keys,
BaseSettings and pydantic_config's BaseConfig refuse them), and validators that run before, which may move keys.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from supervisor.preflight.class_source import (
    DEEPEST,
    Alias,
    Class,
    Foreign,
    Function,
    Module,
    Modules,
    Read,
    constant,
    dotted_name,
)
from supervisor.preflight.installed import first_text
from supervisor.preflight.schema import Bounds, Field, Schema

LARGEST = 2 << 20
ENTRIES: Mapping[str, tuple[str, ...]] = {
    "rl": ("entrypoints/rl.py", "rl.py"),
    "sft": ("entrypoints/sft.py", "trainer/sft/train.py"),
}
"""By the word that starts them: files with a ``main`` that hands a class to the parser."""

_ANYTHING = Field(frozenset({"any"}), open=True)
_PLAIN: Mapping[str, frozenset[str]] = {
    "str": frozenset({"str"}),
    "int": frozenset({"int"}),
    "float": frozenset({"float"}),
    "FiniteFloat": frozenset({"float"}),
    "bool": frozenset({"bool"}),
    "Path": frozenset({"str"}),
    "None": frozenset({"none"}),
    "list": frozenset({"list"}),
    "tuple": frozenset({"list"}),
    "set": frozenset({"list"}),
    "Sequence": frozenset({"list"}),
    "List": frozenset({"list"}),
}
_KNOWN_PACKAGES = {"typing", "pathlib", "collections", "pydantic"}
_COMPARISONS = ("gt", "ge", "lt", "le")
_TABLES = {"dict", "Dict", "Mapping"}
_HARMLESS = {"warnings", "json", "os", "copy", "re", "pathlib", "typing"}
"""Modules that a validator may call without a key being moved by it."""
_NARROWS = {
    *("resolve_env_field", "resolve_env_config", "narrow_plugin_field", "narrowed_env_annotation"),
    *("taskset_config_type", "harness_config_type", "judge_config_type"),
}
"""Functions of verifiers that put a plugin's own class in the place of a field, which is a ``SerializeAsAny``."""


def read(roots: Sequence[Path], kind: str, verifiers: Path | None = None) -> Schema | None:
    """The schema of the prime-rl in ``roots`` ("rl" or "sft"); None where its source is not understood.

    ``verifiers``: the package folder of the verifiers beside it. Without it, what verifiers refuses is not known.
    """
    beside = [verifiers.parent] if verifiers is not None else []
    return schema_of(lambda name: first_text(beside if name.startswith("verifiers/") else roots, name, LARGEST), kind)


def schema_of(read: Read, kind: str) -> Schema | None:
    """The schema of the class that the launcher of ``kind`` hands to its parser; None where that is not found."""
    modules = Modules(read)
    for name in ENTRIES.get(kind, ()):
        module = modules.get(name)
        if module is None:
            continue
        for chosen in module.parsed_classes():
            found = module.find(chosen)
            if isinstance(found, Class):
                try:
                    field = _Reader().table(found, frozenset())
                except RecursionError:
                    return None
                return Schema(field.below, open=field.open) if field.below else None
    return None


# ---------------------------------------------------------------- fields


class _Reader:
    """Turns classes into fields. Holds what was read, since many keys share a class."""

    def __init__(self) -> None:
        self._tables: dict[tuple[tuple[str, str], frozenset[str]], Field] = {}

    def table(self, cls: Class, filled: frozenset[str]) -> Field:
        """The table of a class. ``filled``: names that validators of the classes above may write by themselves."""
        key = (cls.id, filled)
        if key not in self._tables:
            self._tables[key] = _ANYTHING  # within itself
            self._tables[key] = self._table_of_class(cls, filled)
        return self._tables[key]

    def _table_of_class(self, cls: Class, filled: frozenset[str]) -> Field:
        extra = cls.extra()
        before = [_Before(one) for one in cls.line() if isinstance(one, Class)]
        filled |= {name.rpartition(".")[2] for one in before for name in one.words}
        moved = {name for one in before if one.moves for name in one.words}
        loose = any(one.unknown for one in before)
        touched = {name for one in before for name in one.fields}
        below: dict[str, Field] = {}
        for one in reversed([one for one in cls.line() if isinstance(one, Class)]):
            for statement in one.node.body:
                for name, field in self._field_of_statement(one, statement, filled):
                    if name in touched or "*" in touched:
                        field = replace(field, kinds=field.kinds | {"any"}, open=True)
                    elif name in moved and "table" in field.kinds:
                        field = replace(field, open=True)
                    below[name] = field
        if not (cls.reads_none() or any("None" in one.words or one.reads_none for one in before)):
            below = {name: replace(field, kinds=field.kinds - {"none"}) for name, field in below.items()}
        new = [name for name in sorted(moved) if name.isidentifier() and name not in below]
        below |= {name: _moved_to(name, moved, below) for name in new}
        return Field(
            frozenset({"table"}),
            below,
            open=loose or extra in (None, "allow"),
            ignores=extra == "ignore",
        )

    def _field_of_statement(
        self, cls: Class, statement: ast.stmt, filled: frozenset[str]
    ) -> Iterator[tuple[str, Field]]:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            return
        name = statement.target.id
        if name.startswith("_") or name == "model_config" or "ClassVar" in ast.dump(statement.annotation):
            return
        field = self._kind_of_annotation(cls.module, statement.annotation, filled, 0)
        facts = [_Facts(call) for call in _field_calls(statement.annotation)]
        if statement.value is not None:
            facts.append(_Facts(statement.value))
        given = [one for one in facts if one.has_default]
        made = _classes_of_default(cls.module, statement.value)
        if field.open and field.below and len(made) == 1:  # a class that inherits from the one that is named
            usual = self.table(made[0], filled)
            field = replace(field, below={**usual.below, **field.below})
        field = replace(
            field,
            bounds=_join_fields([field.bounds, *(one.bounds for one in facts)]),
            required=not given and name not in filled,
            default=given[-1].default if given else None,
            usual=_usual_variant(cls.module, statement.value, field.variants),
            tagged=field.tagged or any(one.tagged for one in facts),
        )
        yield name, field
        for alias in (alias for one in facts for alias in one.aliases):
            if alias != name:
                yield alias, replace(field, required=False)
                yield name, replace(field, required=False)

    def _kind_of_annotation(self, module: Module, node: ast.expr, filled: frozenset[str], depth: int) -> Field:
        """What an annotation takes."""
        if depth > DEEPEST:
            return _ANYTHING
        if isinstance(node, ast.Constant):
            if node.value is None:
                return Field(_PLAIN["None"])
            if isinstance(node.value, str):
                try:
                    inner = ast.parse(node.value, mode="eval").body
                except (SyntaxError, ValueError):
                    return _ANYTHING
                return self._kind_of_annotation(module, inner, filled, depth + 1)
            return _ANYTHING
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return _join_kinds(
                [self._kind_of_annotation(module, side, filled, depth + 1) for side in (node.left, node.right)]
            )
        if isinstance(node, ast.Subscript):
            return self._kind_of_generic(module, node, filled, depth)
        name = dotted_name(node)
        found = module.find(name) if name else None
        if isinstance(found, Class):
            if any(isinstance(one, Foreign) and one.dotted in ("enum.Enum", "enum.StrEnum") for one in found.line()):
                return Field(frozenset({"str"}))
            return self.table(found, filled)
        if isinstance(found, Alias):
            return self._kind_of_annotation(found.module, found.expression, filled, depth + 1)
        last = name.rpartition(".")[2]
        if found is None or (isinstance(found, Foreign) and found.dotted.partition(".")[0] in _KNOWN_PACKAGES):
            if last in _PLAIN:
                return Field(_PLAIN[last])
            if last in _TABLES:
                return Field(frozenset({"table"}), open=True)
        if isinstance(found, Foreign) and last.endswith("Config"):  # a class of another package, or several of them
            return Field(frozenset({"table"}), open=True)
        return _ANYTHING

    def _kind_of_generic(self, module: Module, node: ast.Subscript, filled: frozenset[str], depth: int) -> Field:
        name = dotted_name(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]

        def read(one: ast.expr) -> Field:
            return self._kind_of_annotation(module, one, filled, depth + 1)

        if name == "Annotated":
            field = read(inner[0])
            changing = ("BeforeValidator", "WrapValidator", "PlainValidator")
            if any(word in ast.dump(extra) for extra in inner[1:] for word in changing):
                return replace(field, kinds=field.kinds | {"any"}, open=True)
            facts = [_Facts(one) for one in _field_calls(node)]
            tagged = field.tagged or any(one.tagged for one in facts)
            return replace(field, bounds=_join_fields([field.bounds, *(one.bounds for one in facts)]), tagged=tagged)
        if name == "SerializeAsAny":  # a class that inherits from this one may come, with keys of its own
            field = read(inner[0])
            return replace(field, open=True) if "table" in field.kinds else field
        if name == "Optional":
            return _join_kinds([read(inner[0]), Field(_PLAIN["None"])])
        if name == "Union":
            return _join_kinds([read(one) for one in inner])
        if name == "Literal":
            return _choices_of_literal(inner)
        if name in ("list", "List", "Sequence", "tuple", "set"):
            elements = read(inner[0])
            tables = "table" in elements.kinds and name not in ("tuple", "set")
            below = elements.below if tables else {}
            alike = len(inner) == 1 or (name == "tuple" and constant(inner[-1]) is ...)
            return Field(
                frozenset({"list"}),
                below,
                open=elements.open or not below,
                ignores=elements.ignores,
                variants=elements.variants if tables else {},
                tagged=elements.tagged and tables,
                elements=elements.kinds if alike and "any" not in elements.kinds else frozenset(),
            )
        if name in _TABLES:
            return Field(frozenset({"table"}), open=True)
        return _ANYTHING


def _moved_to(name: str, moved: set[str], below: Mapping[str, Field]) -> Field:
    """A key that a validator takes although no field has its name.

    Where it names exactly one table that has a field of that name, it moves the key there: `[orchestrator.sampling]`
    became `[orchestrator.train.sampling]` in that way (1a1a39619). Otherwise nothing is known of it.
    """
    there = [below[table].below[name] for table in moved if table in below and name in below[table].below]
    return replace(there[0], required=False) if len(there) == 1 else _ANYTHING


def _choices_of_literal(inner: Sequence[ast.expr]) -> Field:
    values = [constant(one) for one in inner]
    kinds = {
        {"str": "str", "int": "int", "bool": "bool", "NoneType": "none"}.get(type(one).__name__, "any")
        for one in values
    }
    if any(not isinstance(one, ast.Constant) for one in inner):
        return _ANYTHING
    return Field(frozenset(kinds), choices=tuple(one for one in values if isinstance(one, str)))


def _join_kinds(sides: Sequence[Field]) -> Field:
    """What takes one or the other. Keys of several tables are all taken: which of them is meant is not asked here."""
    kinds = frozenset(kind for side in sides for kind in side.kinds)
    texts = [side for side in sides if "str" in side.kinds]
    below: dict[str, Field] = {}
    for side in sides:
        for name, field in side.below.items():
            below[name] = _join_kinds([below[name], field]) if name in below else field
    tables = [side for side in sides if side.kinds & {"table", "list", "any"}]
    for name, field in below.items():
        # Which of the tables is meant depends on its `type`; one that drops the key takes any value of it.
        if any(name not in side.below and (side.ignores or side.open) for side in tables):
            below[name] = replace(field, kinds=field.kinds | {"any"}, open=True)
    return Field(
        kinds,
        {name: replace(field, required=field.required and len(tables) < 2) for name, field in below.items()},
        open=any(side.open for side in sides),
        choices=tuple(dict.fromkeys(choice for side in texts for choice in side.choices))
        if all(side.choices for side in texts)
        else (),
        required=all(side.required for side in sides),
        default=sides[0].default,
        ignores=any(side.ignores for side in tables),
        variants=_variants_of_union(tables),
        tagged=any(side.tagged for side in sides),
        bounds=_bounds_of_either(sides),
        elements=_elements_of_either(sides),
    )


def _bounds_of_either(sides: Sequence[Field]) -> Bounds:
    """Those of all sides that take numbers: what one refuses, another may take."""
    first, *others = [side for side in sides if side.kinds & {"int", "float", "any"}] or [Field(frozenset())]
    return tuple(bound for bound in first.bounds if all(bound in other.bounds for other in others))


def _elements_of_either(sides: Sequence[Field]) -> frozenset[str]:
    lists = [side.elements for side in sides if side.kinds & {"list", "any"}]
    return frozenset(kind for one in lists for kind in one) if all(lists) else frozenset()


def _join_fields(said: Sequence[Bounds]) -> Bounds:
    return tuple(dict.fromkeys(bound for one in said for bound in one))


def _variants_of_union(tables: Sequence[Field]) -> Mapping[str, Field]:
    """The tables of a union by their key `type`; nothing where one of them has none of its own."""
    found: dict[str, Field] = {}
    for one in tables:
        names = one.below["type"].choices if "type" in one.below else ()
        mine = one.variants or dict.fromkeys(names, one)
        if not mine or "any" in one.kinds or set(mine) & set(found):
            return {}
        found |= mine
    return found if len(found) > 1 else {}


def _classes_of_default(module: Module, value: ast.expr | None) -> list[Class]:
    """The classes that a default is made of: `= AdamWConfig()`, `Field(default_factory=AdamWConfig)`."""
    names = {dotted_name(node) for node in ast.walk(value) if isinstance(node, ast.expr)} if value else set()
    return [found for name in sorted(names) if name and isinstance(found := module.find(name), Class)]


def _usual_variant(module: Module, value: ast.expr | None, variants: Mapping[str, Field]) -> str:
    """The `type` of the class that a default is made of."""
    types = {text for one in _classes_of_default(module, value) for text in one.literals("type") if text in variants}
    return types.pop() if len(types) == 1 else ""


# ---------------------------------------------------------------- Field(...) and validators


def _is_field_call(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] == "Field"


def _field_calls(annotation: ast.expr) -> Iterator[ast.Call]:
    """The ``Field(...)`` of an ``Annotated[...]`` itself, not those of what it holds."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return
    if dotted_name(annotation.value).rpartition(".")[2] == "Annotated":
        yield from (one for one in annotation.slice.elts[1:] if _is_field_call(one))


class _Facts:
    """What a ``Field(...)`` or a plain default says."""

    def __init__(self, said: ast.expr) -> None:
        words: dict[str | None, ast.expr] = {}
        value: ast.expr | None = said
        if _is_field_call(said):
            words = {word.arg: word.value for word in said.keywords}
            value = said.args[0] if said.args else words.get("default")
        needed = isinstance(value, ast.Constant) and value.value is ...
        self.has_default = (value is not None and not needed) or "default_factory" in words or None in words
        self.default = _literal_value(value) if not needed else None
        self.tagged = constant(words.get("discriminator")) == "type"
        limits = ((name, _literal_value(words[name])) for name in _COMPARISONS if name in words)
        self.bounds: Bounds = tuple(
            (name, limit) for name, limit in limits if isinstance(limit, int | float) and not isinstance(limit, bool)
        )
        self.aliases = tuple(
            alias
            for word in ("alias", "validation_alias")
            if word in words
            for alias in (constant(node) for node in ast.walk(words[word]) if isinstance(node, ast.expr))
            if isinstance(alias, str)
        )


def _literal_value(node: ast.expr | None) -> object:
    """A number, text or bool; the text of a ``Path("...")``; None for all else."""
    if isinstance(node, ast.Call) and dotted_name(node.func) == "Path" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal_value(node.operand)
        return -value if isinstance(value, int | float) else None
    value = constant(node)
    return value if isinstance(value, int | float | str) else None


class _Before:
    """What the validators of one class that run before its fields are looked at could do to its keys."""

    def __init__(self, cls: Class) -> None:
        self.words: set[str] = set()
        """Every text in them: the names of the keys that they read, write or move are among them."""
        self.fields: set[str] = set()
        """Fields that one of them may change ("*": all)."""
        self.moves = False
        self.reads_none = False
        """Does one of them make nothing of the text "None", in all fields?"""
        self.unknown = False
        """True: they hand the keys to code that is not known here."""
        for node in cls.node.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if not isinstance(mark, ast.Call):
                    continue
                mode = next((constant(word.value) for word in mark.keywords if word.arg == "mode"), "")
                name = dotted_name(mark.func).rpartition(".")[2]
                if mode in ("before", "wrap", "plain") and name == "field_validator":
                    self._field_validator(cls, node, mark)
                elif mode in ("before", "wrap") and name in ("model_validator", "root_validator"):
                    self._read_name(cls.module, node, set())

    def _field_validator(self, cls: Class, node: ast.FunctionDef, mark: ast.Call) -> None:
        names = {name for one in mark.args if isinstance(name := constant(one), str)}
        # The one for all fields reads the text "None" as none, in every version of prime-rl that has it.
        if "*" in names and "None" in {constant(one) for one in ast.walk(node) if isinstance(one, ast.expr)}:
            self.reads_none = True
        else:
            self.fields |= names

    def _read_name(self, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef, seen: set[int]) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        body = [one for statement in node.body for one in ast.walk(statement)]
        documentation = {id(one.value) for one in body if isinstance(one, ast.Expr)}
        for one in body:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in documentation:
                self.words.add(one.value)
            elif isinstance(one, ast.Delete | ast.DictComp):
                self.moves = True
            elif isinstance(one, ast.ImportFrom):
                harmless = (one.module or "").partition(".")[0] in _HARMLESS
                self.unknown |= not harmless and not {name.name for name in one.names} <= _NARROWS
            elif isinstance(one, ast.Import):
                self.unknown |= any(name.name.partition(".")[0] not in _HARMLESS for name in one.names)
            elif isinstance(one, ast.Call):
                self._read_call(module, one, seen)

    def _read_call(self, module: Module, call: ast.Call, seen: set[int]) -> None:
        name = dotted_name(call.func)
        if name.rpartition(".")[2] in ("pop", "popitem", "clear"):
            self.moves = True
        if name.rpartition(".")[2] in _NARROWS:
            return
        found = module.find(name) if name else None
        if not call.keywords and all(dotted_name(one) == "cls" for one in call.args):
            return  # it is not handed the keys
        if isinstance(found, Function):
            self._read_name(found.module, found.node, seen)
        elif re.fullmatch(r"cls\.\w+", name) or (
            isinstance(found, Foreign) and found.dotted.partition(".")[0] not in _HARMLESS
        ):
            self.unknown = True
        elif name == "dict":
            self.moves = True
