"""A run's unix socket, from the daemon's side: one daemon, no stale file, and it answers only those let in."""

from __future__ import annotations

import grp
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from supervisor.base.errors import ConfigError, TryAgainError
from supervisor.base.records import dataclass
from supervisor.base.socket_paths import PROBE_S, lock_beside, remove_if_dead, try_to_lock, user_name

LONGEST = 107  # bytes of a path in sockaddr_un, without the closing NUL (unix(7))
_LOCK_S = 0.5  # who clears a dead daemon's socket away holds the lock for a moment
_SO_PEERGROUPS = 59  # asm-generic/socket.h, Linux 4.13; Python has no name for it
_MOST_OPTION_BYTES = 1024  # that Python's getsockopt takes: 256 groups


@dataclass(frozen=True)
class Door:
    """Who gets an answer at a socket: its owner, root, and those that the bits of ``mode`` let in.

    ``group``: the group that the socket is given, None: that of the daemon. The file's mode keeps the others from
    connecting; the same rule is kept for each connection by what the kernel says of its other end, since a mode can be
    changed behind our back, and some file systems keep none.
    """

    mode: int = 0o600
    group: int | None = None

    def refusal(self, connection: socket.socket) -> Callable[[], str] | None:
        """None for those who are let in; for others what makes the sentence that they are told.

        Only the kernel is asked before the answer: names come from a directory service that may hang, and the caller
        has the connections of all others waiting behind it.
        """
        pid, uid, gid = _credentials(connection)
        if uid in (0, os.geteuid()) or self.mode & 0o006:
            return None
        ours = os.getegid() if self.group is None else self.group
        if self.mode & 0o060 and ours in (gid, *_groups(connection)):
            return None
        return partial(self._sentence, pid, uid, ours)

    def _sentence(self, pid: int, uid: int, ours: int) -> str:
        owner = user_name(os.geteuid())
        may = "root" if os.geteuid() == 0 else f"{owner}, who runs the daemon, and root"
        may += f", and the members of group {_group_name(ours)}" if self.mode & 0o060 else ""
        return (
            f"{user_name(uid)} (pid {pid}) is not let in: this run answers {may}. Use sudo, or ask {owner} to let a "
            'group of yours in: [api] group = "NAME" in the run file, and a new start of the daemon.'
        )


def door(mode: int, group: str | None) -> Door:
    """The door that the run file asks for. A group that is not on this machine lets no one in, with a warning."""
    if group is None:
        return Door(mode)
    try:
        return Door(mode | 0o060, int(group) if group.isdigit() else grp.getgrnam(group).gr_gid)
    except KeyError:
        _warn(f"[api] group: there is no group {group} on this machine, so only the owner and root are let in.")
        return Door(mode)


class Claim:
    """A listening socket at ``path``, and the lock that makes it ours until ``release``."""

    def __init__(self, path: Path, door: Door) -> None:
        """Bind and listen.

        Raises TryAgainError when another daemon serves this run, ConfigError when the path cannot be used at all.
        """
        self.path = path
        if len(os.fsencode(path)) > LONGEST:
            raise ConfigError(
                f"The socket's path has {len(os.fsencode(path))} bytes, and Linux allows {LONGEST}: {path}. "
                f'Set a shorter one in the run file: [api] socket = "/run/NAME.sock".'
            )
        _make_folder(path.parent)
        self._lock = self._take_lock()
        try:
            self._refuse_living_daemon()
            self.socket = self._bind(door)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"No socket can be made at {path}: {error.strerror or error}.") from None
        except BaseException:
            os.close(self._lock)
            raise
        self._inode = path.lstat().st_ino
        for other in path.parent.glob("*.sock"):
            remove_if_dead(other)

    def release(self) -> None:
        """Stop listening and remove the socket, unless another one has taken its place."""
        self.socket.close()
        try:
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            pass  # the socket or its folder is gone already: no client finds us any more
        os.close(self._lock)

    def _take_lock(self) -> int:
        """An advisory lock beside the socket: two daemons that start at the same moment cannot both win."""
        lock = lock_beside(self.path)
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                f"{lock} cannot be made: {error.strerror}. Run as a user who may write in {lock.parent}, or set "
                f"[api] socket in the run file."
            ) from None
        deadline = time.monotonic() + _LOCK_S
        while not try_to_lock(fd):
            if time.monotonic() > deadline:
                holder = os.read(fd, 32).decode("ascii", "replace").strip()
                os.close(fd)
                raise self._already_served_error(f" (process {holder})" if holder else "")
            time.sleep(_LOCK_S / 50)
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        return fd

    def _refuse_living_daemon(self) -> None:
        """A daemon that answers at the old socket is alive, lock or no lock; a dead one refuses the connection."""
        try:
            kind = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(kind):
            raise ConfigError(
                f"{self.path} exists and is not a socket: move it away, or set [api] socket in the run file."
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_S)
            try:
                probe.connect(str(self.path))
                pid = peer(probe)[0]
            except (ConnectionRefusedError, FileNotFoundError):
                return
            except OSError:  # a full backlog or no permission: something lives there
                pid = 0
        raise self._already_served_error(f" (process {pid})" if pid else "")

    def _already_served_error(self, holder: str) -> TryAgainError:
        return TryAgainError(
            f"Another daemon{holder} already serves {self.path}: one run has one daemon. Stop that one first "
            f"(`supervisorctl shutdown {self.path.stem}`), or give this run another id."
        )

    def _bind(self, door: Door) -> socket.socket:
        """Bind in a private folder, set the mode, listen, and only then move the socket to its name."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with tempfile.TemporaryDirectory(prefix=".", dir=self.path.parent) as folder:
                fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    # Through the descriptor, since the folder's own path may be too long for sockaddr_un.
                    listener.bind(f"/proc/self/fd/{fd}/s")
                finally:
                    os.close(fd)
                private = Path(folder) / "s"
                if door.group is not None:
                    _give_to(private, door.group)
                private.chmod(door.mode)
                listener.listen(32)
                private.replace(self.path)
        except BaseException:
            listener.close()
            raise
        return listener


def _make_folder(folder: Path) -> None:
    """The sockets' folder, which others may enter but not write to."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        found = folder.stat()
    except OSError as error:
        raise ConfigError(
            f"The socket's folder {folder} cannot be made: {error.strerror}. Set [api] socket in the run file."
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder} is not a folder: set [api] socket in the run file.")
    if found.st_uid not in (0, os.geteuid()):  # another user made our folder in /tmp first
        raise ConfigError(f"{folder} belongs to user id {found.st_uid}, not to us: set [api] socket in the run file.")


def _give_to(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group)
    except OSError as error:
        _warn(
            f"[api] group: the socket cannot be given to {_group_name(group)} ({error.strerror}); its members are not "
            "let in: the daemon has to be root or a member itself."
        )


def _warn(sentence: str) -> None:
    from supervisor.base.logs import say  # a whole library, which supervisorctl does without

    say("warning", "api-group", sentence)


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group id of the other end of a unix socket when it connected (SO_PEERCRED, unix(7))."""
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid, gid


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Its further groups; none where the kernel does not say."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_OPTION_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(data) // 4}I", data)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other end of a unix socket."""
    return _credentials(connection)[:2]


def peer_name(connection: socket.socket) -> str:
    """``alice (pid 4711)``: who is at the other end, for people."""
    pid, uid = peer(connection)
    return f"{user_name(uid)} (pid {pid})"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
