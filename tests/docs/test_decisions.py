"""docs/decisions.md shows the policy as it is, and the policy names causes that exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from supervisor.core.table import DAMAGED, NETWORK
from supervisor.core.verdicts import GPU_ERRORS
from supervisor.primerl.logs import SIGNATURES

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_table_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("docs_policy", ROOT / "docs" / "policy.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "decisions.md").read_text()
    assert script.with_table(page) == page, "run: python docs/policy.py --write"
    assert "| **restart** |" in page


def test_causes_that_the_policy_waits_for_are_signatures_that_are_found() -> None:
    known = {signature.name for signature in SIGNATURES.signatures}
    assert known > {*NETWORK, *DAMAGED, *GPU_ERRORS}
