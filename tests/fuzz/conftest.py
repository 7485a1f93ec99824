"""Says which examples are tried, so that a failure of many can be had again."""

from __future__ import annotations

import pytest

from tests.fuzz.profiles import CHOSEN, MANY, SEED


def pytest_report_header(config: pytest.Config) -> str:
    """Above the first test."""
    if CHOSEN == MANY:
        return f"fuzz: many examples, from seed {SEED}; again with FUZZ=soak FUZZ_SEED={SEED}"
    return "fuzz: a few examples, always the same; many with FUZZ=soak"
