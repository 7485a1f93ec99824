"""What a launcher that refused its configuration said, taken apart: places and sentences.

Three parsers, as they print with a wide terminal and without colours (each was run for its text):
pydantic-settings (up to 2 Mar 2026) ends in a traceback with pydantic's own list; pydantic_config on tyro (up to
19 May 2026) puts that list into a box and wraps it; prime-pydantic-config puts one flag and one sentence a line there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["value", "words", "file", "import", "error"]
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EDGE = re.compile(r"^\s*[│|]\s?|\s*[│|]\s*$")
_HEADER = re.compile(r"\b(\d+)\s+validation\s+errors?\s+for\s+(\w+)")
_END = re.compile(
    # pydantic cuts the value to some fifty characters
    r"\[type=\w{1,80}, input_value=.{0,400}?, input_type=\w{1,80}\](?: For further information visit \S{1,200})?"
)
_PLACE = re.compile(r"[a-z_0-9][\w.\-\[\],()]*\Z")
_FLAG = re.compile(r"(?:--[a-z][\w.\-\[\]]*|<root>)\Z")
_WORDS = re.compile(r"^\S*: error: (?P<told>.+)$", re.MULTILINE)
_UNKNOWN = re.compile(r"^(?:Unrecognized|Error parsing|Missing|Required).*$", re.MULTILINE)
_TITLE = re.compile(r"^[╭┌]─+\s*(?P<title>[^─╮]*?)\s*─")
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Exit|NotFound)): ?(?P<told>.*)$", re.MULTILINE)
_IMPORTS = ("ModuleNotFoundError", "ImportError")


@dataclass(frozen=True)
class Refusal:
    """One thing that was refused. ``path``: names of keys from the top, without list indices; empty where unknown.

    ``kind``: a value; the command line's words; a file that cannot be read; an import; any other error that it raised,
    of the type ``error``.
    """

    kind: Kind
    path: tuple[str | int, ...]
    told: str
    error: str = ""


def refusals(text: str) -> list[Refusal]:
    """Everything that was refused, in the order in which it was said; empty where nothing is understood."""
    plain = _ANSI.sub("", text)
    boxed = "\n".join(
        _EDGE.sub("", line) for line in plain.splitlines() if not re.match(r"^\s*[│|]?\s*─+\s*[│|]?$", line)
    )
    headers = list(_HEADER.finditer(boxed))
    header = headers[-1] if headers else None  # earlier ones may be of what was tried before
    if header is not None:
        body = re.split(r"^\s*[╰└]", boxed[header.end() :], maxsplit=1, flags=re.MULTILINE)[0]
        found = list(_split_pydantic(body) if "[type=" in body else _split_flags(body))
        if found:
            return found
    return list(_split_others(plain, boxed))


def _split_pydantic(body: str) -> Iterator[Refusal]:
    """``PLACE MESSAGE [type=..., input_value=..., input_type=...]``, wrapped or not; a root error has no place."""
    start, body = 0, " ".join(body.split())
    for end in _END.finditer(body):
        words = body[start : end.start()].split()
        start = end.end()
        # Every message of pydantic begins with a capital letter, and no key of prime-rl does.
        place = words.pop(0) if words and _PLACE.match(words[0]) else ""
        if words:
            yield Refusal("value", _parts_of_place(place), _sentence_of_refusal(" ".join(words)))


def _split_flags(body: str) -> Iterator[Refusal]:
    place = ""
    told: list[str] = []
    for line in [*body.splitlines(), "<root>"]:
        text = line.strip()
        if _FLAG.match(text):
            if told:
                yield Refusal("value", _parts_of_place(place), _sentence_of_refusal(" ".join(told)))
            place, told = text.removeprefix("--").removeprefix("<root>").replace("-", "_"), []
        elif text:
            told.append(text)


def _split_others(plain: str, boxed: str) -> Iterator[Refusal]:
    usage = _WORDS.search(plain)
    if usage is not None:
        yield Refusal("words", (), _sentence_of_refusal(usage["told"].strip()))
        return
    title = next((found["title"] for line in plain.splitlines() if (found := _TITLE.match(line.strip()))), "")
    if title:
        inside = re.split(r"^\s*[╰└].*$", boxed, maxsplit=1, flags=re.MULTILINE)[0]
        lines = [line.strip() for line in inside.splitlines() if line.strip() and not _TITLE.match(line.strip())]
        told = " ".join(lines)
        unknown = _UNKNOWN.search("\n".join(lines))
        if unknown is not None:
            yield Refusal("words", (), _sentence_of_refusal(told if title == "Config file error" else unknown[0]))
        elif told:
            yield Refusal("file", (), _sentence_of_refusal(told))
        return
    raised = list(_RAISED.finditer(plain))
    if raised:
        last = raised[-1]
        error = last["type"].rpartition(".")[2]
        # A message of several lines goes on below.
        told = last["told"].strip() or plain[last.end() :].strip().partition("\n")[0]
        yield Refusal("import" if error in _IMPORTS else "error", (), _sentence_of_refusal(told), error)


def _parts_of_place(place: str) -> tuple[str | int, ...]:
    """``orchestrator.env[1].id`` and ``orchestrator.env.1.id`` are the same."""
    words = re.sub(r"\[(\d+)\]", r".\1", place).split(".")
    return tuple(int(word) if word.isdigit() else word for word in words if word)


def _sentence_of_refusal(told: str) -> str:
    text = " ".join(told.split())
    text = re.sub(r"^(?:Value error|Assertion failed), ", "", text)
    return (text if len(text) <= 600 else f"{text[:600]}...").rstrip(".")
