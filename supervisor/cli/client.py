"""Talks to a running daemon over its unix socket, and finds the daemons of this machine."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from supervisor.errors import SupervisorError
from supervisor.homes import state_home
from supervisor.unix_socket import socket_dirs

TIMEOUT_S = 15.0


class NotThereError(SupervisorError):
    """No daemon answers at this socket."""


class UnclearError(SupervisorError):
    """Something is there, but what it says is no answer."""


class RefusedError(SupervisorError):
    """The daemon answered that it will not do that."""


class Client:
    """One daemon. Each call is a connection of its own."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self.name = path.name.removesuffix(".sock")
        self._timeout_s = timeout_s

    def get(self, page: str, **query: object) -> dict[str, Any]:
        """GET a JSON page. Raises NotThereError, UnclearError or RefusedError."""
        wait = query.get("wait")
        extra = float(wait) if isinstance(wait, (int, float)) else 0.0
        asked = f"{page}?{urlencode(query)}" if query else page
        return self._exchange("GET", asked, None, self._timeout_s + extra)

    def command(self, verb: str, args: list[str]) -> tuple[bool, str]:
        """Give an order: (taken or not, what happens now or why not)."""
        body = json.dumps({"verb": verb, "args": args}).encode()
        answer = self._exchange("POST", "/v1/command", body, self._timeout_s)
        return bool(answer.get("ok")), str(answer.get("sentence", ""))

    def _exchange(self, method: str, page: str, body: bytes | None, timeout_s: float) -> dict[str, Any]:
        connection = _UnixConnection(self.path, timeout_s)
        try:
            connection.request(method, page, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise NotThereError(f"No daemon answers for {self.name} ({self.path}).") from None
        except PermissionError:
            raise UnclearError(f"You may not talk to {self.name}: {self.path} is not open to you. Try sudo.") from None
        except TimeoutError:
            raise UnclearError(f"{self.name} gave no answer in {timeout_s:g} s ({self.path}).") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise UnclearError(f"The connection to {self.name} broke ({self.path}): {reason}.") from None
        finally:
            connection.close()
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise UnclearError(f"{self.path} answered, but not as rl-supervisor does.")
        if status >= 500:
            raise UnclearError(f"{self.name} could not answer: {answer.get('error', status)}")
        if status >= 400 and "error" in answer:
            raise RefusedError(str(answer["error"]))
        return answer


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        deadline = time.monotonic() + (self.timeout or TIMEOUT_S)
        while True:
            try:
                return self.sock.connect(os.fspath(self._path))
            except BlockingIOError:  # the daemon's queue is full for a moment
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                time.sleep(0.02)
            except OSError as error:
                if "too long" not in str(error):
                    raise
                raise FileNotFoundError(str(error)) from None


def sockets() -> dict[str, Path]:
    """The runs of this machine that we can see: name to socket, in alphabetical order."""
    found: dict[str, Path] = {}
    for folder in socket_dirs():
        try:
            entries = sorted(folder.glob("*.sock"))
        except OSError:
            continue
        found.update({entry.name.removesuffix(".sock"): entry for entry in entries if entry.is_socket()})
    return dict(sorted(found.items()))


def known_run(name: str, env: Mapping[str, str] = os.environ) -> bool:
    """Has a run of this name ever lived on this machine?"""
    places = (
        Path("/etc/rl-supervisor") / f"{name}.toml",
        Path("/var/lib/rl-supervisor") / name,
        state_home(env) / "rl-supervisor" / name,
    )
    return "/" not in name and any(os.path.lexists(place) for place in places)
