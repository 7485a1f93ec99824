"""The policy names causes that exist, and each of them is held against a checkpoint, or not."""

from __future__ import annotations

import pytest

from supervisor.core.blame import CRASHED, ELSEWHERE, NOISE, UNREADABLE, WEIGHTS, is_elsewhere, is_one_of
from supervisor.core.table import NETWORK
from supervisor.core.verdicts import GPU_ERRORS
from supervisor.primerl.logs import SIGNATURES

KNOWN = {signature.name for signature in SIGNATURES.signatures}


def test_causes_that_the_policy_waits_for_are_signatures_that_are_found() -> None:
    assert {*NETWORK, *UNREADABLE, *GPU_ERRORS} < KNOWN


def test_each_known_error_is_a_checkpoints_or_lies_elsewhere_or_says_nothing() -> None:
    """A new signature has to be sorted into one of the lists: which of them decides whether a step is quarantined."""
    unsorted = [name for name in sorted(KNOWN) if not is_one_of(name, (*WEIGHTS, *CRASHED, *NOISE, *ELSEWHERE))]
    assert not unsorted


@pytest.mark.parametrize("patterns", [WEIGHTS, CRASHED, NOISE, ELSEWHERE])
def test_no_list_names_what_does_not_exist(patterns: tuple[str, ...]) -> None:
    ours = {"exit-1", "host-oom", "gpu-lost", "engine-gone", "start-failed"}  # causes that no line gives
    assert [one for one in patterns if not any(is_one_of(name, (one,)) for name in KNOWN | ours)] == []


@pytest.mark.parametrize("cause", ["host-oom", "killed", "port-in-use", "engine-gone", "hub-unreachable", "disk-full"])
def test_this_pods_own_troubles_lie_elsewhere(cause: str) -> None:
    assert is_elsewhere(cause)


@pytest.mark.parametrize("cause", ["loss-not-finite", "exit-1", "fatal-error", "engine-weights-differ", "aborted"])
def test_what_weights_can_cause_does_not(cause: str) -> None:
    assert not is_elsewhere(cause)
