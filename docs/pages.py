"""Puts what the code says of itself between two marks of a page, so that the two cannot differ.

Each script beside this one says which page and which parts: `python docs/facts.py` prints them, and with `--write` they
are put into the page. The tests fail while a page is not as it would be written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def written(page: str, parts: Mapping[str, str]) -> str:
    """The page with each part between its marks. Raises ValueError when a mark is missing."""
    for name, text in parts.items():
        marks = re.compile(rf"(<!-- {name}: written by [^>]* -->\n).*(<!-- end of {name} -->)", re.S)
        if not marks.search(page):
            raise ValueError(f"the page lacks <!-- {name}: written by ... --> or <!-- end of {name} --> after it")
        page = marks.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, count=1)
    return page


def main(page: Path, parts: Mapping[str, str]) -> None:
    """Prints the parts, or writes them into the page."""
    if sys.argv[1:] == ["--write"]:
        page.write_text(written(page.read_text(), parts))
    else:
        sys.stdout.write("\n".join((*parts.values(), "")))
