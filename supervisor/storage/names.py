"""What may be an object's name: a relative POSIX path that no store and no file system reads in another way.

Limits are B2's (1024 bytes, 250 a segment, no control characters: b2sdk 2.13.1 ``check_b2_filename``); they fit
file systems too.
"""

from __future__ import annotations

import re
import unicodedata

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def name_problem(name: str) -> str | None:
    """Why ``name`` is refused, or None. Nothing that comes from a store is used as a path before this said None."""
    if not name:
        return "it is empty"
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > 1024:
        return "it is longer than 1024 bytes"
    if not name.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in name):
        return "it holds control characters"
    if name.startswith("/"):
        return "it is absolute"
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            return "it holds an empty, '.' or '..' part"
        if len(segment.encode("utf-8")) > 250:
            return "a part of it is longer than 250 bytes"
    return None
