"""A small HTTP/1.1 server that no client can hang or exhaust: bounded requests, bounded threads, bounded time."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from supervisor.base.logs import say
from supervisor.base.secrets import mask_value

LARGEST_BODY = 64 << 10
LONGEST_LENGTH = 20  # digits; Python refuses to read a number of thousands
REQUEST_S = 10.0  # a request must have arrived whole after this
EXCHANGE_S = 90.0  # and its answer must be gone after this, the longest poll included
MOST_REFUSED = 2  # connections at a time of those who are not let in: they only hear that


class RefusedError(Exception):
    """The request gets an error page instead of an answer."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves a socket that listens already, with at most ``threads`` connections at a time."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        handler: type[Handler],
        threads: int,
        desk: Any,
        closing: threading.Event,
        *,
        refusal: Callable[[socket.socket], Callable[[], str] | None] = lambda connection: None,
    ) -> None:
        """``refusal``: for a connection that is not let in, a function that makes the sentence for its other end.

        It is asked in the loop that accepts, and must not wait; the sentence is made in a thread.
        """
        # Not TCPServer's own __init__: it would make a socket of its own.
        socketserver.BaseServer.__init__(self, ("", 0), handler)
        self.socket = listener
        self.desk = desk
        self.closing = closing
        self._slots = threading.BoundedSemaphore(threads)
        # Long polls may take half of the places: followers never keep a `stop` from getting in.
        self._waiting = threading.BoundedSemaphore(max(1, threads // 2))
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        self._refusal = refusal
        self._strangers = threading.BoundedSemaphore(MOST_REFUSED)
        self._refused: dict[socket.socket, Callable[[], str]] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        if refused := self._refusal(request):
            if not self._strangers.acquire(blocking=False):
                self.shutdown_request(request)  # no place of the others is spent on him, and no time of this loop
                return
            self._refused[request] = refused
        elif not self._slots.acquire(blocking=False):
            self._send_busy(request)
            return
        self.allow(request, REQUEST_S)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self._send_busy(request)
            self._free_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_request(request)

    def allow(self, request: socket.socket, seconds: float) -> None:
        """The connection is cut when it is still there after ``seconds``."""
        with self._lock:
            self._deadlines[request] = time.monotonic() + seconds

    def refusal_of(self, request: socket.socket) -> str:
        """Why this connection gets no answer; "" when it does."""
        refusal = self._refused.get(request)
        return refusal() if refusal else ""

    def may_wait(self) -> bool:
        """True when one more request may wait for news; ``give_place_back`` ends that."""
        return self._waiting.acquire(blocking=False)

    def give_place_back(self) -> None:
        """The wait is over."""
        self._waiting.release()

    def service_actions(self) -> None:
        """Called by serve_forever a few times a second: cut what takes too long."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._deadlines.items() if deadline < now]
            for request in late:
                del self._deadlines[request]
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it ended at this very moment

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is no error; the handler has said anything else."""

    def _free_request(self, request: socket.socket) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        (self._slots if self._refused.pop(request, None) is None else self._strangers).release()

    def _send_busy(self, request: socket.socket) -> None:
        body = b'{"error": "Too many connections: try again in a moment."}\n'
        head = f"HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            request.settimeout(0.1)
            request.recv(LARGEST_BODY)  # closing with unread data would reset the connection, answer and all
            request.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
        except OSError:
            pass  # it did not wait for the bad news
        self.shutdown_request(request)


class Handler(BaseHTTPRequestHandler):
    """One request on one connection. Subclasses implement ``answer``."""

    server: HttpServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server_version = "rl-supervisor"
    sys_version = ""
    _headers_gone = False
    _body_read = False

    def answer(self, method: str) -> None:
        """Send a page, or raise RefusedError."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer_request("GET")

    def do_HEAD(self) -> None:
        self._answer_request("GET")

    def do_POST(self) -> None:
        self._answer_request("POST")

    def _answer_request(self, method: str) -> None:
        self.server.allow(self.connection, EXCHANGE_S)
        self.close_connection = True  # no thread is spent on an idle connection
        try:
            if sentence := self.server.refusal_of(self.connection):
                raise RefusedError(HTTPStatus.FORBIDDEN, sentence)
            self.answer(method)
        except RefusedError as refused:
            self._read_the_rest()
            self.send_json({"error": str(refused)}, refused.status)
        except OSError:
            return  # the client went away
        except Exception as error:  # the edge of the thread: whatever it was, the daemon lives on and says so
            sentence = f"The page {self.path[:100]} failed: {type(error).__name__}: {error}"
            say("error", "api-error", sentence)
            if not self._headers_gone:
                self.send_json({"error": sentence}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def body(self) -> bytes:
        """The request's body, 64 KiB at most."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "The request needs a Content-Length.")
        if len(length) > LONGEST_LENGTH or int(length) > LARGEST_BODY:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request may have {LARGEST_BODY >> 10} KiB, this one has more."
            )
        self.server.allow(self.connection, REQUEST_S)
        self._body_read = True
        data = self.rfile.read(int(length))
        self.server.allow(self.connection, EXCHANGE_S)
        return data

    def _read_the_rest(self) -> None:
        """A connection that is closed on an unread body is reset, and the answer is lost with it."""
        if not self._body_read:
            with contextlib.suppress(OSError, RefusedError):
                self.body()

    def send_json(self, data: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send ``data`` as JSON, secrets masked: a sentence may quote a command line or a job's own log."""
        text = json.dumps(_finite_numbers(mask_value(data)), ensure_ascii=False, allow_nan=False) + "\n"
        self.send(status, text.encode("utf-8", "replace"), "application/json")

    def send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        """Send a whole answer."""
        self._headers_gone = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors that http.server finds by itself (a line too long, an unknown method), as JSON too."""
        self.close_connection = True
        status = HTTPStatus(code)
        self.command = getattr(self, "command", None) or "GET"
        self.send_json({"error": f"{message or status.phrase}."}, status)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not news."""


def _finite_numbers(value: object) -> object:
    """The same with null for what is no number: a loss may be NaN, which JSON cannot say."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite_numbers(inner) for inner in value]
    return value
