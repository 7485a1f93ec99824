"""What is handed on to other people: without secrets, and without the names and addresses of machines."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.base.errors import UsageError
from supervisor.base.escapes import plain
from supervisor.base.secrets import mask_secrets, printable

HOST = "(host)"
_LOCAL = re.compile(r"127\.\d+\.\d+\.\d+|0\.0\.0\.0|localhost|\[?::1?\]?")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]|\.\d)")
_GROUPS = r"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})"
_ADDRESS_6 = re.compile(rf"(?<![\w:.])\[?(?:{_GROUPS}{{7}}|(?:{_GROUPS}{{0,6}})?::(?:{_GROUPS}{{0,6}})?)\]?(?![\w:])")
_OF_URL = re.compile(r"(?<=\bhttp://)[^\s/:\"'<>]+|(?<=\bhttps://)[^\s/:\"'<>]+|(?<=\btcp://)[^\s/:\"'<>]+")
# How sentences of ours name another pod: ``core.fencing``, ``effects.claiming``.
_POD = re.compile(r"(?<=\b[Pp]od )(?!(?:is|has|that)\b)[\w.-]+(?= (?:holds|held|has taken|claimed|gone|\())")


def check_place(path: Path) -> None:
    """Before the work for a file: can it be written at ``path``? Raises UsageError."""
    with _report_write_errors(path):
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()


def write_file(path: Path, text: str | bytes) -> None:
    """Raises UsageError where it cannot be written."""
    with _report_write_errors(path):
        path.write_bytes(text.encode() if isinstance(text, str) else text)


@contextmanager
def _report_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def hide_hosts(value: Any, names: Iterable[str] = ()) -> Any:
    """JSON values whose texts name no machine: not this one, none of ``names``, no address but loopback's."""
    known = {name for name in (*names, socket.gethostname()) if len(name) > 1 and not _LOCAL.fullmatch(name)}
    patterns = [_OF_URL, _POD, _ADDRESS, _ADDRESS_6]
    if known:
        longest_first = sorted(known, key=len, reverse=True)
        patterns.append(re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, longest_first))})(?:\.[\w-]+)*(?![\w-])"))
    return _map_texts(value, patterns)


def clean_texts(value: Any) -> Any:
    """JSON values without secrets, and without what a terminal would obey."""
    return _map_texts(value, ())


def _map_texts(value: Any, patterns: Iterable[re.Pattern[str]]) -> Any:
    if isinstance(value, str):
        text = printable(plain(mask_secrets(value)))
        for pattern in patterns:
            text = pattern.sub(lambda found: found[0] if _LOCAL.fullmatch(found[0]) else HOST, text)
        return text
    if isinstance(value, dict):
        return {key: _map_texts(part, patterns) for key, part in value.items()}
    return [_map_texts(part, patterns) for part in value] if isinstance(value, list | tuple) else value
