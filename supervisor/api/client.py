"""Talks to a running daemon over its unix socket, and finds the daemons of this machine."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from supervisor.base.errors import SupervisorError
from supervisor.base.socket_paths import remove_if_dead, socket_dirs, user_name

TIMEOUT_S = 15.0


class NotThereError(SupervisorError):
    """No daemon answers at this socket."""


class UnclearError(SupervisorError):
    """Something is there, but what it says is no answer."""


class RefusedError(SupervisorError):
    """The daemon answered that it will not do that."""


class Client:
    """One daemon. Each call is a connection of its own."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S, *, run: str = "", advice: str = "") -> None:
        """``run``: id of the run, for sentences; ``advice``: what to do when no daemon answers."""
        self.path = path
        self.run = run or (path.stem if path.suffix == ".sock" else "")
        self._who = self.run or "the daemon"
        self.named = self.run or f"--socket {path}"  # as a word of supervisorctl
        self._advice = f" {advice}" if advice else ""
        self._timeout_s = timeout_s

    def get(self, page: str, **query: object) -> dict[str, Any]:
        """GET a JSON page. Raises NotThereError, UnclearError or RefusedError."""
        wait = query.get("wait")
        extra = float(wait) if isinstance(wait, (int, float)) else 0.0
        asked = f"{page}?{urlencode(query)}" if query else page
        return self._exchange_messages("GET", asked, None, self._timeout_s + extra)

    def command(self, verb: str, args: list[str]) -> tuple[bool, str]:
        """Give an order: (taken or not, what happens now or why not)."""
        body = json.dumps({"verb": verb, "args": args}).encode()
        answer = self._exchange_messages("POST", "/v1/command", body, self._timeout_s)
        return bool(answer.get("ok")), str(answer.get("sentence", ""))

    def _exchange_messages(self, method: str, page: str, body: bytes | None, timeout_s: float) -> dict[str, Any]:
        connection = _UnixConnection(self.path, timeout_s)
        try:
            connection.request(method, page, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            status, data = response.status, response.read()
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            place = f"for {self.run} ({self.path})" if self.run else f"at {self.path}"
            raise NotThereError(f"No daemon answers {place}.{self._advice}") from None
        except PermissionError:
            raise UnclearError(_not_let_in(self._who, self.path)) from None
        except TimeoutError:
            unsure = f". It may still obey this order: look at `supervisorctl status {self.named}`."
            told = unsure if body else f" ({self.path})."
            raise UnclearError(f"{self.run or 'The daemon'} gave no answer in {timeout_s:g} s{told}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise UnclearError(f"The connection to {self._who} broke ({self.path}): {reason}.") from None
        finally:
            connection.close()
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise UnclearError(f"{self.path} answered, but not as rl-supervisor does.")
        if status >= 500:
            raise UnclearError(f"{self.run or 'The daemon'} could not answer: {answer.get('error', status)}")
        if status >= 400 and "error" in answer:
            raise RefusedError(str(answer["error"]))
        return answer


def _not_let_in(name: str, path: Path) -> str:
    """The file's mode refuses us before the daemon can."""
    try:
        owner = user_name(path.lstat().st_uid)
    except OSError:  # not even its folder can be entered
        owner = ""
    those = "root" if owner == "root" else f"its owner {owner} and root" if owner else "its owner and root"
    return (
        f"{user_name(os.geteuid())} may not talk to {name}: {path} is open to {those}. Try sudo, or ask for a group of "
        'yours to be let in: [api] group = "NAME" in the run file.'
    )


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
    """The sockets of this machine that we can see, by their names, in alphabetical order.

    What a killed daemon left is cleared away: it would be taken for a daemon that does not answer.
    """
    found: dict[str, Path] = {}
    for folder in socket_dirs():
        try:
            for entry in folder.glob("*.sock"):
                remove_if_dead(entry)
            entries = [entry for entry in folder.glob("*.sock") if entry.is_socket()]
        except OSError:  # a folder that this user may not enter
            continue
        found.update({entry.stem: entry for entry in entries})
    return dict(sorted(found.items()))
