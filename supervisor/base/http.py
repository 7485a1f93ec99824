"""One small question to a web server, http or https, with one deadline and one limit in memory for all of it.

The library's own time-outs count from the last byte: a server that drips would hold us for ever. Redirects are not
followed, and nothing of a URL is ever put in a message: it may be a secret.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from supervisor.base.records import dataclass

LIMIT_BYTES = 64 << 10


@dataclass(frozen=True)
class Page:
    """What a server answered: its status, and the beginning of what came with it."""

    status: int
    body: bytes
    is_cut: bool = False
    """There was more than the limit."""
    retry_after_s: float | None = None
    """So many seconds the server asks us to wait (Retry-After); None where it does not, or names a date."""

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class NoAnswerError(Exception):
    """Why there was no answer, a clause for people without the address. ``cause``: what the library raised.

    ``connected``: did the server take the connection?
    """

    def __init__(self, clause: str, cause: Exception | None = None, *, connected: bool = False) -> None:
        super().__init__(clause)
        self.cause, self.connected = cause, connected


def problem_of(url: str) -> str:
    """Why ``url`` cannot be asked, a clause that does not hold it; "" when it can."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not parts.hostname:
        return "names no host"
    if parts.username or parts.password:
        return "holds a user's name or password, which no page here needs"
    if not url.isascii() or any(character.isspace() or not character.isprintable() for character in url):
        return "holds a character that no URL has; write it as %XX"
    return ""


def ask(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 10.0,
    body: bytes | None = None,
    limit_bytes: int = LIMIT_BYTES,
    opened: Callable[[int], None] = lambda port: None,
    is_stream: bool = False,
) -> Page:
    """Ask once. ``opened`` is given the local port once the connection stands.

    ``is_stream``: the answer may have no end; what came of it within ``timeout_s`` is the page.

    Raises NoAnswerError when no answer has come whole within ``timeout_s`` seconds. Of an answer outside 200 to 299
    the status is enough.
    """
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    stream: _Stream | None = None
    try:
        connection.connect()
        stream = _Stream(connection.sock, deadline)
        opened(connection.sock.getsockname()[1])
        connection.sock = cast(socket.socket, stream)
        said = {"User-Agent": "rl-supervisor", "Connection": "close", **(headers or {})}
        connection.request(method, target, body=body, headers=said)
        answer = connection.getresponse()
        with answer:
            return _read_page(answer, limit_bytes, is_stream=is_stream)
    except TimeoutError as error:
        whole = "whole " if stream is not None and stream.began else ""
        raise NoAnswerError(f"no {whole}answer within {timeout_s:g} s", error, connected=stream is not None) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # http.client raises ValueError for a status or a chunk size that is no number.
        raise NoAnswerError(_clause_of_error(error), error, connected=stream is not None) from None
    finally:
        connection.close()
        if stream is not None:
            stream.connection.close()


def _read_page(answer: http.client.HTTPResponse, limit_bytes: int, *, is_stream: bool) -> Page:
    try:
        data = _read_stream(answer, limit_bytes) if is_stream else answer.read(limit_bytes + 1)
        # The library takes an answer that was cut for a short one.
        if not is_stream and len(data) <= limit_bytes and answer.length:
            raise http.client.IncompleteRead(data, answer.length)
    except (OSError, http.client.HTTPException, ValueError):
        if 200 <= answer.status < 300:
            raise
        data = b""
    wait = (answer.getheader("Retry-After") or "").strip()
    seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 10 else None
    return Page(answer.status, data[:limit_bytes], len(data) > limit_bytes, seconds)


def _read_stream(answer: http.client.HTTPResponse, limit_bytes: int) -> bytes:
    data = b""
    try:
        while len(data) <= limit_bytes and (part := answer.read1(limit_bytes)):
            data += part
    except TimeoutError:
        pass
    return data


class _Stream(io.RawIOBase):
    """A connection with one deadline for all of it: what http.client takes for a socket."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self.began = False
        """A byte of the answer has come."""
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """http.client closes its socket when the answer's head is read; the body is still to come."""

    def sendall(self, data: bytes) -> None:
        self._set_timeout()
        self.connection.sendall(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._set_timeout()
        count = self.connection.recv_into(buffer)
        self.began = True
        return count

    def _set_timeout(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.connection.settimeout(left_s)


def _clause_of_error(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "its host's name is not known here"
    text = getattr(error, "strerror", None) or type(error).__name__
    return f"no answer in HTTP ({text[:80]})"
