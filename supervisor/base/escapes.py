"""What terminals are sent beside text: colours, movements of the cursor, links. A log is read without them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

# Colours and movements (CSI), titles and links (OSC), character sets, and those of two characters.
_SEQUENCE: Final = r"\x1b(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b\n]{0,400}(?:\x07|\x1b\\)|[()#][A-Z0-9]|[=>A-Z\\])"
# Of Docker's stream of a container without a terminal: eight bytes before what was written at once.
_OF_DOCKER: Final = re.compile(rb"(?:^|(?<=\n))[\0-\2]\0{3}[\s\S]{4}")
_CONTROLS: Final = bytes([*range(9), 11, 12, *range(14, 27), *range(28, 32), 127])  # not tab, newline, return, escape
_TEXT: Final = re.compile(_SEQUENCE)
_BYTES: Final = re.compile(_SEQUENCE.encode())
# What a logger sends before each of its lines again and again. It is looked for with the one blank that it stands
# around: fewer and longer texts are found faster.
_RUN: Final = re.compile(rb"%b(?:[ \n]?%b)*" % (_BYTES.pattern, _BYTES.pattern))
_IN_JSON: Final = re.compile(rb"\\u001b\[[0-9;:?]{0,32}[A-Za-z]")
SAMPLE_BYTES: Final = 8192
USUAL_SHARE: Final = 0.05  # of the runs in a sample: more of its kind are worth a search of their own


def plain(text: str) -> str:
    """The text without them. A sequence that is cut in the middle stays."""
    return _TEXT.sub("", text) if "\x1b" in text else text


def plain_bytes(data: bytes) -> bytes:
    """The same for many lines at once, also where JSON holds them, and without control characters of other kinds."""
    # One letter is looked for ten times as fast as several.
    if b"\0" in data and b"\0\0\0" in data:
        data = _OF_DOCKER.sub(b"", data)
    if b"\\" in data and b"\\u001b" in data:
        data = _IN_JSON.sub(b"", data)
    if b"\x1b" in data:
        runs = Counter(_RUN.findall(data, 0, SAMPLE_BYTES))
        usual = [run for run, count in runs.items() if count >= USUAL_SHARE * runs.total()]
        for run in sorted(usual, key=len, reverse=True):  # a short one may begin a long one
            data = data.replace(run, _BYTES.sub(b"", run))
    if b"\x1b" in data:
        data = _BYTES.sub(b"", data)
    return data.translate(None, _CONTROLS)
