"""How many examples a test takes that is given them by chance: a few, or many with FUZZ=soak, as `make soak` does.

The few of a fuzz test are always the same; its many come from FUZZ_SEED.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, seed, settings

FEW: Final = "fuzz"
MANY: Final = "fuzz-soak"
CHOSEN: Final = MANY if os.environ.get("FUZZ") == "soak" else FEW
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))

# No deadline for one example: a busy machine is slow, and what may take how long is asked where it matters.
_CHECKS: Final = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large)
settings.register_profile(
    FEW, max_examples=15, derandomize=True, deadline=None, database=None, suppress_health_check=_CHECKS
)
settings.register_profile(MANY, max_examples=100, deadline=None, database=None, suppress_health_check=_CHECKS)


def fuzzed(share: float = 1.0) -> Callable[[Any], Any]:
    """Decorates a test that is ``given`` examples; ``share`` of the profile's number where one example is dear.

    No profile is loaded for the whole process: the other tests' numbers are their own.
    """
    profile = settings.get_profile(CHOSEN)
    chosen = settings(profile, max_examples=max(5, round(profile.max_examples * share)))

    def decorate(test: Any) -> Any:
        return pytest.mark.fuzz(chosen(seed(SEED)(test) if CHOSEN == MANY else test))

    return decorate


def tries(many: int, **more: Any) -> Callable[[Any], Any]:
    """Decorates a test of a property: ``many`` examples in the soaks, and a quarter of them in `make test`."""
    chosen = settings(max_examples=many if CHOSEN == MANY else max(5, many // 4), deadline=None, **more)
    return lambda test: pytest.mark.fuzz(chosen(test))
