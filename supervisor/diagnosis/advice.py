"""What mostly helps against an error that has no entry, by what it says itself: ``advice.toml``."""

from __future__ import annotations

import re
from typing import Final

from supervisor.diagnosis.frames import Raised
from supervisor.diagnosis.own_words import DATA, name_settings

_ADVICE: Final = [(re.compile(one["match"]), one["says"]) for one in DATA["advice"]]
_READ = re.compile(r"\b(?:config|args|cfg|settings|self\.config)((?:\.[a-z]\w{0,60}){1,5})\b(?!\()")
"""A setting that a line of a program reads."""


def where_to_look(raised: Raised | None, text: str) -> str:
    """What a person can do about an error that has no entry. ``text``: its line."""
    package = raised.package if raised else ""
    own = raised.place if raised else None
    look = f"Look at {own} first. " if own else "Read the lines around it. "
    said = raised.text if raised is not None else text
    look += next((advice + " " for pattern, advice in _ADVICE if pattern.match(said)), "")
    if names := name_settings(said):
        look += names + " "
    elif raised is not None and raised.last is not None and (read := _READ.search(raised.last.code)):
        look += f"That line reads {read[1][1:]}: compare this setting. "
    if raised is not None and raised.trainer and raised.trainer != package:
        look += f"It came through {raised.trainer}: upgrade {raised.trainer}, too. "
    if package:
        package = package.replace("_", "-")
        look += (
            f"It was raised inside {package}: look for this line among its issues, and upgrade {package}, or take the "
            "version that the trainer was made for (uv sync). "
        )
    return look + "When you know what helps, add an entry to a data file: docs/diagnosis.md says how."
