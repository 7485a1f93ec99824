"""One HTTP question with a bounded answer: never longer than its timeout, never more than its limit in memory.

The standard library's timeouts count from the last byte, so that a server that drips one byte a second holds a reader
for ever; here the whole exchange has one deadline. Redirects are not followed: an engine that redirects is not the
engine that was asked.
"""

from __future__ import annotations

import errno
import http.client
import io
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from supervisor.base.errors import ConfigError

Word = Literal["ok", "bad", "refused", "timeout", "unknown"]

LOCAL_TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)


@dataclass(frozen=True)
class Answer:
    """``ok``: status 200 to 299; ``bad``: another status, or something that is not HTTP; ``unknown``: our own trouble.

    ``body`` is empty unless ``ok``; ``reason`` is a sentence unless ``ok``.
    """

    word: Word
    status: int | None = None
    body: bytes = b""
    reason: str = ""


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens: plain HTTP, and what stands before each path."""

    host: str
    port: int
    prefix: str = ""

    @property
    def text(self) -> str:
        """For people, and as ``EngineLook.endpoint``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"


def endpoint(url: str) -> Endpoint:
    """``url`` taken apart; ConfigError when it is not of the form http://host[:port][/prefix]."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"engine_url {url!r} is no URL ({error}); write http://127.0.0.1:8000") from None
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"engine_url {url!r} is not plain HTTP; write http://127.0.0.1:8000")
    # An engine that listens on all addresses is asked on this machine's own.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(parts.hostname, parts.hostname)  # noqa: S104
    return Endpoint(host, port or 80, parts.path.rstrip("/"))


def ask(
    server: Endpoint,
    method: str,
    path: str,
    *,
    timeout_s: float,
    limit_bytes: int = 64 << 10,
    body: bytes | None = None,
    opened: Callable[[int], None] = lambda port: None,
) -> Answer:
    """Ask once, on a connection of its own. ``opened`` is told the local port once the connection stands."""
    deadline = time.monotonic() + timeout_s
    try:
        connection = socket.create_connection((server.host, server.port), timeout=timeout_s)
    except OSError as error:
        return _no_connection(error, server, timeout_s)
    try:
        opened(connection.getsockname()[1])
        request = _request(server, method, path, body)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(request)
        return _answer(connection, deadline, method, path, limit_bytes)
    except TimeoutError:
        return Answer("timeout", reason=f"{path} did not answer for {timeout_s:g} s")
    except (http.client.HTTPException, OSError, ValueError) as error:
        # http.client raises ValueError for a status or a chunk size that is no number.
        return Answer("bad", reason=f"{path} did not answer in HTTP: {_short(error)}")
    finally:
        connection.close()


def _request(server: Endpoint, method: str, path: str, body: bytes | None) -> bytes:
    head = [
        f"{method} {server.prefix}{path} HTTP/1.1",
        f"Host: {server.host}:{server.port}",
        "User-Agent: rl-supervisor",
        "Accept-Encoding: identity",
        "Connection: close",
    ]
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode("ascii", "replace") + (body or b"")


def _answer(connection: socket.socket, deadline: float, method: str, path: str, limit_bytes: int) -> Answer:
    response = http.client.HTTPResponse(cast(socket.socket, _Reader(connection, deadline)), method=method)
    try:
        response.begin()
        if not 200 <= response.status < 300:
            return Answer("bad", response.status, reason=f"{path} answered with status {response.status}")
        data = response.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            return Answer("bad", response.status, reason=f"the answer to {path} is larger than {limit_bytes:,} bytes")
        if response.length:
            raise http.client.IncompleteRead(data, response.length)
    finally:
        response.close()
    return Answer("ok", response.status, data)


class _Reader(io.RawIOBase):
    """The receiving side of a connection, with one deadline for all of it; what HTTPResponse takes for a socket."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = 1 << 26  # an endless stream of "100 Continue" and the like ends somewhere

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise http.client.HTTPException("more than 64 MiB")
        return count


def _no_connection(error: OSError, server: Endpoint, timeout_s: float) -> Answer:
    if isinstance(error, TimeoutError):
        return Answer("timeout", reason=f"{server.text} did not take a connection for {timeout_s:g} s")
    if isinstance(error, ConnectionRefusedError):
        return Answer("refused", reason=f"nothing listens on {server.text}")
    if error.errno in LOCAL_TROUBLE:
        return Answer("unknown", reason=f"{server.text} could not be asked, this machine is short of it: {error}")
    return Answer("unknown", reason=f"{server.text} could not be reached: {_short(error)}")


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:120]
