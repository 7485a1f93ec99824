"""Whatever comes, in whatever order, the promises hold: pods that behave at random, judged by the truth they know.

Committed runs are few and the same each time. For a long one: ``POD_EXAMPLES=20000 pytest -n0 --hypothesis-seed=1``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .model.engine import EnginePod
from .model.news import NewsPod
from .model.observed import ObservedPod
from .model.pod import Pod

EXAMPLES = int(os.environ.get("POD_EXAMPLES", "0"))
LONG = EXAMPLES > 0


@pytest.mark.parametrize(("pod", "examples"), [(Pod, 40), (NewsPod, 40), (EnginePod, 50), (ObservedPod, 30)])
def test_a_pod_that_behaves_at_random(pod: Any, examples: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        pod,
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=60 if LONG else 40,
            deadline=None,
            derandomize=not LONG,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
