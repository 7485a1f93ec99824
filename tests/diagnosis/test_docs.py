"""The page about diagnosis shows the signatures that there are, and its example of one is one."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

from supervisor.signatures import parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diagnosis.md"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_diagnosis", ROOT / "docs" / "diagnosis.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_data() -> None:
    text = PAGE.read_text()
    assert script().replaced(text) == text, "run: python docs/diagnosis.py --write"


def test_the_example_on_the_page_is_a_signature() -> None:
    block = re.search(r"(?s)```toml\n(.*?)```", PAGE.read_text())
    assert block is not None
    (table,) = tomllib.loads(block[1])["signature"]
    signature = parse(table, "the page")
    assert signature.pattern.match(signature.examples[0][1])
