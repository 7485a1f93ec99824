"""One small question to a web server, http or https, with one limit for all of it.

For what people name in the run file: a page that tells when the pod goes, a page that wants to hear that all is well.
Redirects are not followed, and nothing of a URL is ever put in a message: it may be a secret.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

LIMIT_BYTES = 64 << 10


@dataclass(frozen=True)
class Page:
    """What a server answered: its status, and the beginning of what came with it."""

    status: int
    text: str


class NoAnswerError(Exception):
    """Why there was no answer, a clause for people without the address."""


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
) -> Page:
    """Ask once. Raises NoAnswerError when no answer has come whole within ``timeout_s`` seconds."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    late = threading.Event()
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    said = {"User-Agent": "rl-supervisor", "Connection": "close", **(headers or {})}
    timer: threading.Timer | None = None
    try:
        connection.connect()
        # The library's own time-outs count from the last byte: a server that drips would hold us for ever.
        timer = threading.Timer(timeout_s, _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        connection.request(method, target, body=body, headers=said)
        answer = connection.getresponse()
        data = answer.read(LIMIT_BYTES)
        if len(data) < LIMIT_BYTES and answer.length:  # the library takes an answer that was cut for a short one
            raise http.client.IncompleteRead(data, answer.length)
        return Page(answer.status, data.decode(errors="replace"))
    except TimeoutError:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if late.is_set():
            raise NoAnswerError(f"no whole answer within {timeout_s:g} s") from None
        raise NoAnswerError(_clause(error)) from None
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _clause(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "its host's name is not known here"
    text = getattr(error, "strerror", None) or type(error).__name__
    return f"no answer in HTTP ({text[:80]})"
