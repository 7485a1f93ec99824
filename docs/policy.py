"""Writes the recovery policy's table in docs/decisions.md from the core's own, so that the two cannot differ.

python docs/policy.py           print it
python docs/policy.py --write   put it into docs/decisions.md
"""

from __future__ import annotations

from pathlib import Path

from pages import main

from supervisor.core.table import TABLE

PAGE = Path(__file__).with_name("decisions.md")
PLACES = {"any": "", "start": "before an attempt's first step", "run": "after it"}


def table() -> str:
    """Markdown: one row of the policy a line, in the order in which they are tried."""
    rows = [
        f"| {', '.join(f'`{cause}`' for cause in row.causes)} | {PLACES[row.place]} | {_history(row.history)} | "
        f"**{row.do}** | {row.why} |"
        for row in TABLE
    ]
    return "\n".join(
        ["| cause | place | history | what follows | said with it |", "| --- | --- | --- | --- | --- |", *rows]
    )


def _history(name: str) -> str:
    return "" if name == "any" else name


def parts() -> dict[str, str]:
    """What stands between which marks of the page."""
    return {"policy": table()}


if __name__ == "__main__":
    main(PAGE, parts())
