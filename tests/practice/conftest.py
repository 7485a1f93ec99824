"""Practice runs for the tests of the practice job itself: each ends with nothing left alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.practice.run import Practice, make_practice


def soak(*values: object) -> object:
    """A case that only the soaks have."""
    return pytest.param(*values, marks=pytest.mark.soak)


ERAS = ["2025-09-30", "2026-01-06", "v0.6", "2026-08-21"]
LONG = [era if era in ("2026-01-06", "2026-08-21") else soak(era) for era in ERAS]
"""Of what takes seconds, the two eras that differ most in each run of the tests; the others are soaks."""

Make = Callable[..., Practice]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Practice] = []

    def one(era: str, **options: object) -> Practice:
        options = {"step_s": 0.06, "patience": 0.02, **options}
        made.append(make_practice(tmp_path / str(len(made)), era, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for practice in made:
        practice.end_all()
