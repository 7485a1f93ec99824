"""Exports of systemd's journal (``journalctl -o export``, ``json``, ``json-pretty``) as ``-o short-iso`` prints them.

Formats: systemd.io/JOURNAL_EXPORT_FORMATS. A message with a colour in it is binary there, or a list of numbers.
"""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from io import BufferedReader
from typing import Any, Final

LONGEST: Final = 1 << 20  # bytes of one field
_EXPORT = re.compile(rb"\s{0,8}(?:__CURSOR|__REALTIME_TIMESTAMP|__MONOTONIC_TIMESTAMP)=")
_JSON = re.compile(rb'(?:\x1e|data: )?\{[^\n]{0,4000}"__(?:REALTIME_TIMESTAMP|CURSOR)"')
_PRETTY = re.compile(rb'\x1e?\{\n\s{1,8}"[^{}]{0,4000}?"(?:__REALTIME_TIMESTAMP|__CURSOR|_BOOT_ID|MESSAGE)" ?:')
MOST_FIELDS: Final = 4000  # lines of one pretty entry: a message with a colour may have a number in each


def is_export(start: bytes) -> bool:
    """Is it the beginning of one?"""
    return any(one.match(start) is not None for one in (_EXPORT, _JSON, _PRETTY))


class Exported:
    """An export as lines of text. Each entry keeps the number of its first line."""

    def __init__(self, file: BufferedReader | gzip.GzipFile) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """About so many bytes; none at the end. Raises what reading the file does."""
        made = b""
        while len(made) < size and (entry := self._read_entry()):
            made += entry
        return made

    read1 = read

    def close(self) -> None:
        self._file.close()

    def _read_entry(self) -> bytes:
        first = self._file.readline(LONGEST)
        text = first.removeprefix(b"data: ").lstrip(b"\x1e")
        if text.rstrip() == b"{":
            return self._read_pretty_json(first)
        if text.startswith(b"{"):
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                return first
            return _lines_of_record(record) + b"\n" if isinstance(record, dict) else first
        return self._fields_of_json(first) if first else b""

    def _read_pretty_json(self, first: bytes) -> bytes:
        lines = [first]
        while len(lines) < MOST_FIELDS and (line := self._file.readline(LONGEST)):
            lines.append(line)
            if line.startswith(b"}"):
                break
        whole = b"".join(lines)
        try:
            said = _lines_of_record(json.loads(whole.lstrip(b"\x1e")))
        except (ValueError, RecursionError):
            return whole
        return said + b"\n" * max(1, len(lines) - said.count(b"\n"))

    def _fields_of_json(self, line: bytes) -> bytes:
        record: dict[str, Any] = {}
        ends = 0
        cut = False
        while line:
            ends += 1
            cut = not line.endswith(b"\n")
            if not line.strip():
                break
            name, told, value = line.rstrip(b"\n").partition(b"=")
            if not told:
                head = self._file.read(8)
                size = int.from_bytes(head, "little")
                if len(head) < 8 or size > LONGEST:
                    return line + head  # damaged: what comes next begins anew with a line
                value = self._file.read(size)
                cut = len(value) < size
                ends += head.count(b"\n") + value.count(b"\n") + self._file.read(1).count(b"\n")
            record.setdefault(name.decode(errors="replace"), value)
            line = self._file.readline(LONGEST)
        said = _lines_of_record(record)
        return said if cut else said + b"\n" * max(1, ends - said.count(b"\n"))


def _lines_of_record(record: dict[str, Any]) -> bytes:
    message = _field_as_bytes(record.get("MESSAGE"))
    who = _field_as_bytes(record.get("SYSLOG_IDENTIFIER") or record.get("_COMM")).replace(b" ", b"_") or b"unknown"
    pid = _field_as_bytes(record.get("_PID") or record.get("SYSLOG_PID"))
    host = _field_as_bytes(record.get("_HOSTNAME")) or b"localhost"
    try:
        at = datetime.fromtimestamp(int(_field_as_bytes(record.get("__REALTIME_TIMESTAMP"))) / 1e6).astimezone()
        head = at.strftime("%Y-%m-%dT%H:%M:%S%z ").encode()
    except (ValueError, OverflowError, OSError):
        head = b""
    head += b"%s %s[%s]: " % (host, who, pid) if pid else b"%s %s: " % (host, who)
    return b"\n".join(head + line for line in message.split(b"\n"))


def _field_as_bytes(value: object) -> bytes:
    """A field as it was: a text, bytes, a list of bytes as numbers, or several values, of which the first counts."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        if all(isinstance(one, int) and 0 <= one < 256 for one in value):
            return bytes(value)
        return _field_as_bytes(value[0])
    return value.encode(errors="replace") if isinstance(value, str) else b""
