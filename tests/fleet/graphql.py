"""As much of GraphQL as a fake service needs: one operation, its arguments and variables, what it selects.

A name that the schema lacks is an error, as it is on a real server: a query that was only imagined does not pass.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(
    r'\s*(?:"""(?:.|\n)*?"""|"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|\$?\w+|[!():={}\[\]])|[\s,]+'
)


class InvalidQueryError(Exception):
    """A query that no server would take."""


@dataclass
class Field:
    name: str
    alias: str
    arguments: dict[str, Any] = field(default_factory=dict)
    selection: list[Field] = field(default_factory=list)


class _Reader:
    def __init__(self, text: str, variables: dict[str, Any]) -> None:
        self.tokens, at = [], 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                raise InvalidQueryError(f'Syntax Error: Unexpected character: "{text[at]}".')
            if found[0].strip(" \t\r\n,"):
                self.tokens.append(found[0].strip())
            at = found.end()
        self.variables = variables
        self.declared: set[str] = set()

    def peek(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def take(self, wanted: str = "") -> str:
        if not self.tokens or (wanted and self.tokens[0] != wanted):
            raise InvalidQueryError(f'Syntax Error: Expected "{wanted}", found "{self.peek() or "<EOF>"}".')
        return self.tokens.pop(0)

    def read_operation(self) -> tuple[str, list[Field]]:
        kind = self.take() if self.peek() in ("query", "mutation") else "query"
        if self.peek() not in ("(", "{"):
            self.take()
        if self.peek() == "(":
            self.take()
            while self.peek() != ")":
                name = self.take().removeprefix("$")
                self.take(":")
                while self.peek() not in (")", "") and not self.peek().startswith("$"):
                    kind_of = self.take()
                    if kind_of == "!" and self.variables.get(name) is None:
                        raise InvalidQueryError(f'Variable "${name}" of required type was not provided.')
                self.declared.add(name)
            self.take(")")
        fields = self.read_selection()
        if self.tokens:
            raise InvalidQueryError(f'Syntax Error: Unexpected "{self.peek()}".')
        return kind, fields

    def read_selection(self) -> list[Field]:
        self.take("{")
        found = []
        while self.peek() != "}":
            name = alias = self.take()
            if self.peek() == ":":
                self.take()
                name = self.take()
            one = Field(name, alias)
            if self.peek() == "(":
                one.arguments = self.read_pairs("(", ")")
            if self.peek() == "{":
                one.selection = self.read_selection()
            found.append(one)
        self.take("}")
        return found

    def read_pairs(self, begin: str, end: str) -> dict[str, Any]:
        self.take(begin)
        found = {}
        while self.peek() != end:
            name = self.take()
            self.take(":")
            found[name] = self.read_value()
        self.take(end)
        return found

    def read_value(self) -> Any:
        token = self.peek()
        if token == "{":
            return self.read_pairs("{", "}")
        if token == "[":
            self.take()
            values = []
            while self.peek() != "]":
                values.append(self.read_value())
            self.take()
            return values
        self.take()
        if token.startswith("$"):
            if token[1:] not in self.declared:
                raise InvalidQueryError(f'Variable "{token}" is not defined.')
            return self.variables.get(token[1:])
        try:
            return json.loads(token)
        except ValueError:
            return token  # a value of an enumeration


def read(text: str, variables: dict[str, Any]) -> tuple[str, list[Field]]:
    """``query`` or ``mutation``, and its fields with all arguments resolved. Raises InvalidQueryError."""
    return _Reader(text, variables).read_operation()


def check(kind: str, fields: list[Field], types: dict[str, dict[str, str]], inputs: dict[str, set[str]]) -> None:
    """Raises InvalidQueryError. ``types``: type -> field -> the type of what it holds, "" for a leaf.

    ``inputs``: field -> what its ``input`` may hold.
    """
    for one in fields:
        if one.name not in types[kind]:
            raise InvalidQueryError(f'Cannot query field "{one.name}" on type "{kind}".')
        inside = types[kind][one.name]
        if bool(inside) != bool(one.selection):
            raise InvalidQueryError(f'Field "{one.name}" must have a selection of subfields, or must not.')
        wrong = set(one.arguments.get("input") or {}) - inputs.get(one.name, set())
        if wrong or set(one.arguments) - {"input"}:
            raise InvalidQueryError(f'Field "{min(wrong, default="")}" is not defined by the input of "{one.name}".')
        if inside:
            check(inside, one.selection, types, inputs)


def select(value: Any, fields: list[Field]) -> Any:
    """What was selected of a value: objects are dictionaries, or functions of a field's input."""
    if isinstance(value, list):
        return [select(one, fields) for one in value]
    if value is None or not fields:
        return value
    found = {}
    for one in fields:
        inside = value.get(one.name)
        found[one.alias] = select(
            inside(one.arguments.get("input") or {}) if callable(inside) else inside, one.selection
        )
    return found
