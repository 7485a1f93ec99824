"""The page about diagnosis shows the signatures that there are, and its example of one is one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from supervisor.signatures import parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diagnosis.md"


def test_the_example_on_the_page_is_a_signature() -> None:
    block = re.search(r"(?s)```toml\n(.*?)```", PAGE.read_text())
    assert block is not None
    (table,) = tomllib.loads(block[1])["signature"]
    signature = parse(table, "the page")
    assert signature.pattern.match(signature.examples[0][1])
