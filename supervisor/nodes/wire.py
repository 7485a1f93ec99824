"""What agent and head say to each other: JSON, a line a message, over one TCP connection that the agent opens.

Both prove that they know the run's token (HMAC-SHA256 over the nonces of both) before anything else is read, so an
agent obeys no stranger and a head believes none. What follows is neither encrypted nor signed: on a network that is
not trusted it belongs into a tunnel (docs/many-machines.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supervisor.base.beside import Beside
from supervisor.base.errors import ConfigError

VERSION = 1
LONGEST_LINE = 4 << 20  # an environment and a command line; output travels in pieces that are far smaller
LONGEST_GREETING = 4096
LONGEST_FILE = 64 << 10
MOST_UNSENT = 32 << 20
RECEIVED = 1 << 15  # bytes at once: to make room for much more cost as much as all else of a message
GREETING_S = 5.0
TOKEN = "RL_SUPERVISOR_NODE_TOKEN"  # noqa: S105 - the name of the variable
BEAT_S = 1.0
SILENCE_S = 10.0  # after so long without a word a connection is given up; on a busy machine seconds pass

Message = dict[str, Any]


class WireError(Exception):
    """The other side is not who it should be, says what cannot be, or is gone."""


def now() -> float:
    """Seconds of the clock that also counts a machine's sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ---------------------------------------------------------------- the shared folder


def write_private(path: Path, text: str) -> None:
    """Put a file of our user alone in place, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> str:
    """What a file says that only its owner, who is us or root, may read and change. ConfigError for any other."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, errors="replace") as file:
        found = os.fstat(fd)
        if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(f"{path} is not ours alone: chown it to user {os.geteuid()} and `chmod 600 {path}`.")
        return file.read(LONGEST_FILE).strip()


def find_token(folder: Path, environ: Mapping[str, str]) -> str:
    """The run's token: of the launcher's environment, else of the shared folder; "" while there is none."""
    if given := environ.get(TOKEN, ""):
        return given
    try:
        return read_private(folder / "token")
    except FileNotFoundError:
        return ""


def need_token(folder: Path, environ: Mapping[str, str]) -> str:
    """The same for the head, which makes one where there is none."""
    if not (found := find_token(folder, environ)):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "token", secrets.token_urlsafe(32) + "\n")
        found = read_private(folder / "token")
    return found


class SharedFolder:
    """What the shared folder says to an agent, read in a thread of its own: while it hangs, its last word counts."""

    def __init__(self, folder: Path, environ: Mapping[str, str], run_id: str) -> None:
        self.token, self.left = "", Message()  # the run's token, and what head.json says
        self._folder, self._environ, self._run_id = folder, environ, run_id
        self._reader: Beside[None] | None = None

    def read(self, limit_s: float) -> bool:
        """Read it anew, for so long at most; False where it hangs. Raises OSError, and ConfigError of its modes."""
        if self._reader is None or not self._reader.hangs:
            self._reader = Beside(self._read_all)
        self._reader.wait(time.monotonic() + limit_s)
        if self._reader.hangs:
            return False
        self._reader.result(None)
        return True

    def _read_all(self) -> None:
        try:
            self.token = find_token(self._folder, self._environ)
        except OSError:
            if not self.token:
                raise
        finally:
            self._read_head()

    def _read_head(self) -> None:
        try:
            left = json.loads(read_private(self._folder / "head.json"))
            self.left = left if isinstance(left, dict) and left.get("run") == self._run_id else {}
        except (FileNotFoundError, ConfigError):
            self.left = {}
        except (OSError, ValueError, RecursionError):
            return  # a stale handle, or half a file: it says nothing new


# ---------------------------------------------------------------- who is there


def find_job(environ: Mapping[str, str]) -> str:
    """Which start of which job of Slurm this is; "" in none. An agent that an earlier start left is none of ours."""
    job = environ.get("SLURM_JOB_ID", "")
    return f"{job}.{environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""


def prove(token: str, who: str, *said: str) -> str:
    """The proof that ``who`` knows the token, over all that was said."""
    text = json.dumps([VERSION, who, *said]).encode()
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def is_proof(found: object, expected: str) -> bool:
    """Compared in constant time."""
    return isinstance(found, str) and hmac.compare_digest(found.encode(), expected.encode())


# ---------------------------------------------------------------- lines


class Line:
    """One connection, without blocking: what comes is put together to messages, what goes waits until there is room."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.longest = LONGEST_GREETING  # until it is known who speaks
        self._sending = threading.Lock()  # any thread may say something
        self._came = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """For a selector."""
        return self.socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait."""
        return len(self._unsent)

    def put(self, message: Message) -> None:
        """Say it as soon as there is room. WireError where the other side reads nothing any more."""
        text = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            if len(self._unsent) > MOST_UNSENT:
                raise WireError("it does not read what it is told")
            self._unsent += text
            self._send()

    def flush(self) -> None:
        """Send what can be sent now. WireError when the other side is gone."""
        with self._sending:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent[: 1 << 18])
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError as error:
            raise WireError(f"the connection is gone ({error.strerror or error})") from error

    def take(self) -> Iterator[Message]:
        """Every whole message that has come. WireError at the end of the connection and for what is none."""
        ended = False
        try:
            while len(self._came) <= 2 * self.longest:
                self._came += (data := self.socket.recv(RECEIVED))
                ended = not data
                if len(data) < RECEIVED:
                    break  # nothing more is there, most likely; where it is, the selector says so again
        except BlockingIOError:
            pass
        except OSError as error:
            raise WireError(f"the connection is gone ({error.strerror or error})") from error
        while (end := self._came.find(b"\n")) >= 0:
            if end > self.longest:
                break
            line = bytes(self._came[:end])
            del self._came[: end + 1]
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WireError("it says what is no JSON") from error
            if not isinstance(message, dict):
                raise WireError("it says what is no message")
            yield message
        if len(self._came) > self.longest:
            raise WireError("it says too much at once")
        if ended:
            raise WireError("it has closed the connection")

    def wait_for_one(self, limit_s: float) -> Message:
        """The next message; what came behind it stays to be taken. WireError where there is none in time."""
        until = now() + limit_s
        while True:
            for message in self.take():
                return message
            if (left := until - now()) <= 0:
                raise WireError(f"it has said nothing for {limit_s:.0f} s")
            select.select([self], [], [], left)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self.socket.close()
