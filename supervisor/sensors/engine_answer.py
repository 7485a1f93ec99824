"""One question to the inference engine, and in one word what its answer, or its silence, says of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

from supervisor.base import http
from supervisor.base.errors import ConfigError
from supervisor.base.records import dataclass

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
    path: str,
    *,
    timeout_s: float,
    limit_bytes: int = http.LIMIT_BYTES,
    body: bytes | None = None,
    opened: Callable[[int], None] = lambda port: None,
) -> Answer:
    """GET ``path``, or POST ``body`` to it, once. An engine that redirects is not the engine that was asked."""
    method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": "application/json"})
    try:
        page = http.ask(
            *(server.text + path, method, headers),
            timeout_s=timeout_s,
            body=body,
            limit_bytes=limit_bytes,
            opened=opened,
        )
    except http.NoAnswerError as error:
        return _no_answer(error, server, path, timeout_s)
    if not 200 <= page.status < 300:
        return Answer("bad", page.status, reason=f"{path} answered with status {page.status}")
    if page.is_cut:
        return Answer("bad", page.status, reason=f"the answer to {path} is larger than {limit_bytes:,} bytes")
    return Answer("ok", page.status, page.body)


def _no_answer(error: http.NoAnswerError, server: Endpoint, path: str, timeout_s: float) -> Answer:
    cause = error.cause
    short = (f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__)[:120]
    if isinstance(cause, TimeoutError):
        late = f"{path} did not answer" if error.connected else f"{server.text} did not take a connection"
        return Answer("timeout", reason=f"{late} for {timeout_s:g} s")
    if error.connected:
        return Answer("bad", reason=f"{path} did not answer in HTTP: {short}")
    if isinstance(cause, ConnectionRefusedError):
        return Answer("refused", reason=f"nothing listens on {server.text}")
    if isinstance(cause, OSError) and cause.errno in LOCAL_TROUBLE:
        return Answer("unknown", reason=f"{server.text} could not be asked, this machine is short of it: {cause}")
    return Answer("unknown", reason=f"{server.text} could not be reached: {short}")
