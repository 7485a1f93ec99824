"""The policy names causes that exist."""

from __future__ import annotations

from supervisor.core.table import DAMAGED, NETWORK
from supervisor.core.verdicts import GPU_ERRORS
from supervisor.primerl.logs import SIGNATURES


def test_causes_that_the_policy_waits_for_are_signatures_that_are_found() -> None:
    known = {signature.name for signature in SIGNATURES.signatures}
    assert known > {*NETWORK, *DAMAGED, *GPU_ERRORS}
