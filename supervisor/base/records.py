"""``dataclass``, made cheaply: a daemon's start makes three hundred of them.

The standard library compiles up to six methods a class, 1 ms in all: a third of what a start of the daemon took. Here
``__init__`` alone is compiled, and the rest is shared. That a frozen one is not written to is held by the type checker,
which takes this for ``dataclasses.dataclass``, and not at run time.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, *, frozen: bool = False, kw_only: bool = False, eq: bool = True) -> Any:
        """As ``dataclasses.dataclass``: fields, equality, a hash if it is frozen, ``repr``."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, kw_only=kw_only, eq=eq)
        cls.__doc__ = cls.__doc__ or cls.__name__  # or else the standard library writes a signature there
        made = dataclasses.dataclass(cls, repr=False, eq=False, kw_only=kw_only)
        if "__repr__" not in vars(cls):
            made.__repr__ = _show
        if eq and "__eq__" not in vars(cls):
            _compare_by_value(made, frozen)
        return made


def _compare_by_value(cls: Any, frozen: bool) -> None:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    if len(names) == 1:
        names *= 2  # a tuple even so: tuples take one value for equal to itself, also where it is not a number
    values = attrgetter(*names) if names else (lambda record: ())

    def equal(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_values(self: object) -> int:
        return hash(values(self))

    cls.__eq__ = equal
    cls.__hash__ = hash_values if frozen else None


def _show(record: Any) -> str:
    shown = (f"{field.name}={getattr(record, field.name)!r}" for field in dataclasses.fields(record) if field.repr)
    return f"{type(record).__qualname__}({', '.join(shown)})"
