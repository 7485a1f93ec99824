"""``base.records.dataclass`` is held against the standard library's: the same classes, made by both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field, replace
from functools import cached_property
from itertools import product
from typing import Any

import pytest

from supervisor.base import records


def _classes(dataclass: Any) -> list[type]:
    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class One:
        """One value."""

        a: int

    @dataclass(frozen=True)
    class Longer(One):
        b: tuple[int, ...] = ()
        at: float = field(default=0.0, compare=False)
        key: str = field(default="k", repr=False)

        @cached_property
        def total(self) -> int:
            return self.a + sum(self.b)

    @dataclass(frozen=True, kw_only=True)
    class Named(One):
        c: int = 0

    @dataclass
    class Written:
        items: list[int] = field(default_factory=list)
        a: int = 0

        def __post_init__(self) -> None:
            self.a += 1

    @dataclass(eq=False)
    class Itself:
        a: int = 0

    return [Empty, One, Longer, Named, Written, Itself]


OURS, THEIRS = _classes(records.dataclass), _classes(dataclasses.dataclass)
ARGUMENTS: list[list[dict[str, Any]]] = [
    [{}],
    [{"a": 1}, {"a": 2}],
    [{"a": 1}, {"a": 1, "at": 5.0}, {"a": 1, "b": (2,)}, {"a": 1, "key": "other"}],
    [{"a": 1}, {"a": 1, "c": 2}],
    [{}, {"items": [1]}, {"a": 3}],
    [{}],
]
MADE = [
    [(ours(**words), theirs(**words)) for words in each for _ in range(2)]
    for ours, theirs, each in zip(OURS, THEIRS, ARGUMENTS, strict=True)
]


@pytest.mark.parametrize("made", MADE, ids=[cls.__name__ for cls in OURS])
def test_is_equal_hashed_and_shown_as_the_standard_librarys(made: list[tuple[Any, Any]]) -> None:
    for (a, theirs_a), (b, theirs_b) in product(made, made):
        assert (a == b) is (theirs_a == theirs_b)
        assert a != theirs_a
    for ours, theirs in made:
        if ours.__class__.__eq__ is not object.__eq__:
            assert repr(ours) == repr(theirs)
        assert vars(ours) == vars(theirs)
        assert [(f.name, f.kw_only) for f in dataclasses.fields(ours)] == [
            (f.name, f.kw_only) for f in dataclasses.fields(theirs)
        ]
        assert (ours.__class__.__hash__ is None) is (theirs.__class__.__hash__ is None)
        assert copy.deepcopy(ours) == ours or ours.__class__.__eq__ is object.__eq__


def test_equal_ones_have_one_hash_whatever_was_worked_out_meanwhile() -> None:
    longer = OURS[2]
    one, other = longer(a=1, b=(2, 3), at=1.0), longer(a=1, b=(2, 3), at=2.0)
    assert one.total == 6
    assert one == other
    assert len({one, other, replace(one, a=2)}) == 2


def test_what_is_not_a_number_is_equal_to_itself() -> None:
    """In each Python. The standard library's ask the values themselves from 3.13 on."""
    one = OURS[1]
    nan = float("nan")
    assert one(a=nan) == one(a=nan)
    assert one(a=nan) != one(a=float("nan"))


def test_what_a_class_says_of_itself_stays() -> None:
    @records.dataclass(frozen=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), Own(1) == Own(2), hash(Own(1))) == ("own", True, 7)


def test_another_class_with_the_same_values_is_another_thing() -> None:
    one, named = OURS[1], OURS[3]
    assert one(a=1) != named(a=1)
    assert named(a=1) != one(a=1)
    with pytest.raises(TypeError):
        named(1, 2)


@records.dataclass(frozen=True)
class Sent:
    a: int


def test_goes_through_pickle() -> None:
    assert pickle.loads(pickle.dumps(Sent(3))) == Sent(3)
