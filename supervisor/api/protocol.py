"""What a running daemon tells and takes from people: JSON over HTTP on a unix socket, and three pages for Prometheus.

GET  /v1/status /v1/checkpoints /v1/explain /v1/events?after=&limit=&wait= /v1/log?role=&lines=|offset=&inode=
GET  /v1/incidents?id=|open=
POST /v1/command {"verb": "stop", "args": []}
GET  /metrics /healthz /readyz    (these three also on TCP, when the run file asks for it; nothing else ever is)
"""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlsplit

from supervisor.api.log_window import NoLogError, last_lines, next_piece
from supervisor.api.server import Handler, HttpServer, RefusedError
from supervisor.base.errors import SupervisorError
from supervisor.base.logs import say
from supervisor.base.records import dataclass
from supervisor.base.unix_socket import Claim, door, peer_name

VERBS: Mapping[str, frozenset[str]] = {
    "start": frozenset({"--take-over"}),
    "stop": frozenset(),
    "restart": frozenset({"--new-config"}),
    "pause": frozenset(),
    "resume": frozenset(),
    "shutdown": frozenset(),
    "pin": frozenset(),
    "unpin": frozenset(),
    "rollback": frozenset(),
    "attach": frozenset(),
    "upgrade": frozenset(),
}
"""Each verb with the arguments it knows, besides the one that it must have (``WANTED``)."""
_STEP = re.compile(r"[0-9]{1,9}", re.ASCII), "one step, as a number"
_PROCESS = re.compile(r"[0-9]{1,9}:[0-9]{1,18}", re.ASCII), "one process, as PID:START_TICKS"
WANTED = {"pin": _STEP, "unpin": _STEP, "rollback": _STEP, "attach": _PROCESS}
"""``attach`` is an order of ``rl-supervisor attach``."""

LONGEST_WAIT_S = 30
MOST_EVENTS = 1000
MOST_LINES = 10_000
_POLL_S = 0.2
_TCP_RETRY_S = 30.0


@dataclass(frozen=True)
class Reply:
    """The answer to a command: done or not, and one sentence that says what happens now or why not."""

    ok: bool
    sentence: str


class Desk(Protocol):
    """The daemon, as people meet it. Every method is called from other threads, answers at once and never blocks."""

    def status(self) -> dict[str, Any]:
        """Everything `supervisorctl status` shows, each key where it is made: ``views/status.py`` and
        ``daemon/api_backend.py``. Sizes in bytes, times in Unix time; what ends in ``_s`` and ``seconds`` is seconds.
        """

    def metrics(self) -> str:
        """The page for Prometheus (``api.metrics``)."""

    def command(self, verb: str, args: list[str], who: str) -> Reply:
        """Take an order (one of VERBS) from ``who``; it is carried out afterwards."""

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Events with an id above ``after``, oldest first, ``limit`` at most; ``after`` below 0: the newest ``limit``.

        Each is {id, wall (Unix time), level, event, sentence, fields}.
        """

    def incidents(self, number: int | None, *, only_open: bool) -> list[dict[str, Any]]:
        """Incidents as ``supervisor.views.incidents`` tells them, newest first; one with its story when it is named.

        Raises SupervisorError when there is none of that number.
        """

    def log_files(self) -> dict[str, Path]:
        """Role to its newest log file."""

    def explain(self) -> dict[str, Any]:
        """Why the core thinks what it thinks, in the keys of ``views/status.py`` and ``views/belief.py``."""

    def health(self) -> tuple[bool, str]:
        """Does the daemon work?"""

    def ready(self) -> tuple[bool, str]:
        """Is the run under way (or over, as it should be)?"""


class Api:
    """Serves one Desk. ``start`` claims the socket, ``close`` gives it back."""

    def __init__(
        self, desk: Desk, socket_path: Path, mode: int = 0o600, tcp: str | None = None, group: str | None = None
    ) -> None:
        """``mode`` and ``group``: who gets an answer besides the owner and root (``unix_socket.Door``)."""
        self._desk = desk
        self._path = socket_path
        self._mode, self._group = mode, group
        self._tcp = tcp
        self._claim: Claim | None = None
        self._servers: list[HttpServer] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.tcp_address: tuple[str, int] | None = None

    def start(self) -> None:
        """Begin to answer. Raises TryAgainError when another daemon serves this run, ConfigError on a bad path."""
        let_in = door(self._mode, self._group)
        self._claim = Claim(self._path, let_in)
        server = HttpServer(self._claim.socket, _SocketPages, 32, self._desk, self._closing, refusal=let_in.refusal)
        self._servers.append(server)
        self._thread("api", lambda: server.serve_forever(poll_interval=_POLL_S))
        if self._tcp:
            self._thread("api-tcp", self._serve_tcp)

    def close(self) -> None:
        """Stop answering; long polls end at once."""
        with self._lock:  # after this no further server appears
            self._closing.set()
        for server in self._servers:
            server.shutdown()
        for thread in self._threads:
            thread.join(timeout=5)
        for server in self._servers:
            server.server_close()
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve_tcp(self) -> None:
        """Metrics must never cost the run: a taken port is reported and tried again."""
        told = ""
        while not self._closing.is_set():
            try:
                listener = _listen(self._tcp or "")
            except (OSError, ValueError, OverflowError) as error:
                sentence = f"Metrics cannot be served on {self._tcp}: {error}. Trying again every {_TCP_RETRY_S:g} s."
                if sentence != told:
                    say("warning", "metrics-port", sentence)
                told = sentence
                self._closing.wait(_TCP_RETRY_S)
                continue
            host, port = listener.getsockname()[:2]
            server = HttpServer(listener, _OpenPages, 8, self._desk, self._closing)
            with self._lock:
                if self._closing.is_set():
                    server.server_close()
                    return
                self._servers.append(server)
            self.tcp_address = (str(host), int(port))
            server.serve_forever(poll_interval=_POLL_S)
            return


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family, backlog=16)


class _OpenPages(Handler):
    """The pages that show nothing private and change nothing."""

    pages: ClassVar[Mapping[tuple[str, str], str]] = {
        ("GET", "/metrics"): "metrics",
        ("GET", "/healthz"): "healthz",
        ("GET", "/readyz"): "readyz",
    }

    @property
    def desk(self) -> Desk:
        desk: Desk = self.server.desk
        return desk

    def answer(self, method: str) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:  # the address of a host, in brackets that do not fit
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{self.path[:40]!r} is no page's name.") from None
        page = self.pages.get((method, parts.path))
        if page is None:
            methods = sorted(known for known, path in self.pages if path == parts.path)
            if methods:
                raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{parts.path} wants {' or '.join(methods)}.")
            known = ", ".join(sorted({path for _, path in self.pages}))
            raise RefusedError(HTTPStatus.NOT_FOUND, f"There is no {parts.path} here; there are {known}.")
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            getattr(self, "page_" + page)()
        except SupervisorError as error:
            raise RefusedError(HTTPStatus.CONFLICT, str(error)) from None

    def page_metrics(self) -> None:
        self.send(HTTPStatus.OK, self.desk.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def page_healthz(self) -> None:
        self._verdict(self.desk.health())

    def page_readyz(self) -> None:
        self._verdict(self.desk.ready())

    def _verdict(self, verdict: tuple[bool, str]) -> None:
        good, sentence = verdict
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        self.send(status, (sentence + "\n").encode("utf-8", "replace"), "text/plain; charset=utf-8")

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query, brought between its limits."""
        given = self.query.get(name, str(default))
        if not re.fullmatch(r"-?[0-9]{1,20}", given, re.ASCII):
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number, not {given[:40]!r}.")
        return min(max(int(given), least), most)


class _SocketPages(_OpenPages):
    """Everything, for those who are let in (``unix_socket.Door``)."""

    pages: ClassVar[Mapping[tuple[str, str], str]] = {
        **_OpenPages.pages,
        ("GET", "/v1/status"): "status",
        ("GET", "/v1/checkpoints"): "checkpoints",
        ("GET", "/v1/explain"): "explain",
        ("GET", "/v1/events"): "events",
        ("GET", "/v1/incidents"): "incidents",
        ("GET", "/v1/log"): "log",
        ("POST", "/v1/command"): "command",
    }

    def page_status(self) -> None:
        self.send_json(self.desk.status())

    def page_checkpoints(self) -> None:
        status = self.desk.status()
        names = ("run", "last_good_step", "published_step", "local_steps", "stored_steps", "store", "store_reason")
        self.send_json({name: status.get(name) for name in (*names, "pinned", "held", "damaged", "publishing")})

    def page_explain(self) -> None:
        self.send_json(self.desk.explain())

    def page_incidents(self) -> None:
        number = self.integer("id", 0, 1, 10**9) if "id" in self.query else None
        only_open = self.integer("open", 0, 0, 1) == 1
        self.send_json({"incidents": self.desk.incidents(number, only_open=only_open)})

    def page_events(self) -> None:
        after = self.integer("after", 0, -1, 2**62)
        limit = self.integer("limit", 100, 1, MOST_EVENTS)
        deadline = time.monotonic() + self.integer("wait", 0, 0, LONGEST_WAIT_S)
        events = self.desk.events(after, limit)
        if not events and self.server.may_wait():
            try:
                while not events and time.monotonic() < deadline and not self._has_hung_up():
                    if self.server.closing.wait(_POLL_S):
                        break
                    events = self.desk.events(after, limit)
            finally:
                self.server.give_place_back()
        self.send_json({"events": events})

    def page_log(self) -> None:
        files = self.desk.log_files()
        role = self.query.get("role") or next((name for name in ("launcher", "job") if name in files), "")
        role = role or min(files, default="")
        if role not in files:
            known = f"there are {', '.join(sorted(files))}" if files else "there is none yet"
            asked = f"There is no log of {role!r}" if role else "There is no log"
            raise RefusedError(HTTPStatus.NOT_FOUND, f"{asked}; {known}.")
        path = files[role]
        try:
            if "offset" in self.query:
                offset, inode = self.integer("offset", 0, 0, 2**62), self.integer("inode", 0, 0, 2**64)
                window = next_piece(path, offset, inode)
            else:
                window = last_lines(path, self.integer("lines", 20, 0, MOST_LINES))
        except NoLogError as error:
            raise RefusedError(HTTPStatus.NOT_FOUND, str(error)) from None
        # An inode may be larger than JavaScript's numbers (and jq's): it travels as text.
        found = asdict(window) | {"inode": str(window.inode)}
        self.send_json({"role": role, "path": str(path), "roles": sorted(files), **found})

    def page_command(self) -> None:
        try:
            order = json.loads(self.body())
        except (ValueError, RecursionError):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "The body of a command must be JSON.") from None
        verb = str(order.get("verb")) if isinstance(order, dict) else ""
        args = order.get("args", []) if isinstance(order, dict) else None
        if verb not in VERBS:
            known = ", ".join(VERBS)
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"There is no command {verb[:40]!r}; there are {known}.")
        if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "args must be a list of words.")
        form, wanted = WANTED.get(verb, (None, ""))
        is_given = form is not None and len(args) == 1 and form.fullmatch(args[0])
        unknown = [] if is_given else [word for word in args if word not in VERBS[verb]]
        if unknown:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{verb} does not know {unknown[0][:40]!r}.")
        if wanted and not is_given:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{verb} wants {wanted}.")
        reply = self.desk.command(verb, args, peer_name(self.connection))
        self.send_json(asdict(reply), HTTPStatus.OK if reply.ok else HTTPStatus.CONFLICT)

    def _has_hung_up(self) -> bool:
        """Did the client hang up? A follower that was interrupted must not keep its thread."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True
