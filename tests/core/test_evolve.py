"""The core's own ``replace`` does what the standard library's does, for every dataclass that it is used on."""

from __future__ import annotations

import dataclasses

from supervisor.core import facts as f
from supervisor.core.codec import CLASSES
from supervisor.core.evolve import replace
from supervisor.core.state import Attempt, State


def test_no_dataclass_of_the_core_has_what_a_copied_dictionary_would_miss() -> None:
    assert len(CLASSES) > 60
    for name, cls in CLASSES.items():
        assert not hasattr(cls, "__slots__"), name
        assert not hasattr(cls, "__post_init__"), name
        assert all(field.init for field in dataclasses.fields(cls)), name


def test_it_gives_what_the_standard_library_gives_and_leaves_the_original_alone() -> None:
    state = State(settings=f.Settings(run_id="bs4"), attempt=Attempt(number=3))
    changed = replace(state, why="because", attempt=replace(state.attempt, number=4))
    assert changed == dataclasses.replace(state, why="because", attempt=replace(state.attempt, number=4))
    assert (state.attempt.number, state.why) == (3, "")
    assert type(changed) is State
