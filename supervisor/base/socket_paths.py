"""Where the sockets of this machine's runs are, and what a killed daemon left there.

A client needs no more; ``supervisor.base.unix_socket`` is the daemon's side.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import socket
import stat
from pathlib import Path

SYSTEM_DIR = Path("/run/rl-supervisor")
PROBE_S = 2.0


def socket_dir() -> Path:
    """Folder of all runs' sockets on this machine: /run/rl-supervisor as root, else below XDG_RUNTIME_DIR.

    Where that is not set, is another user's (sudo keeps it) or is gone: /tmp/rl-supervisor-UID.
    RL_SUPERVISOR_SOCKET_DIR overrules all, for the daemon and for supervisorctl alike.
    """
    if chosen := os.environ.get("RL_SUPERVISOR_SOCKET_DIR"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SYSTEM_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / "rl-supervisor"
    return _temporary_dir()


def socket_dirs() -> tuple[Path, ...]:
    """Where daemons may be found: a login may have an XDG_RUNTIME_DIR that the on-start script did not have."""
    if "RL_SUPERVISOR_SOCKET_DIR" in os.environ:
        return (socket_dir(),)
    last = _temporary_dir()
    try:
        ours = last.lstat().st_uid == os.geteuid()
    except OSError:
        ours = False
    return tuple(dict.fromkeys((SYSTEM_DIR, *((last,) if ours else ()), socket_dir())))


def _temporary_dir() -> Path:
    return Path(f"/tmp/rl-supervisor-{os.getuid()}")  # noqa: S108


def remove_if_dead(path: Path) -> None:
    """Remove the socket of ours that a killed daemon left at ``path``; whatever else is there stays.

    It is a dead daemon's when its lock, which each daemon of this user makes beside it, is held by none, and it refuses
    connections. The lock is held meanwhile: a daemon that starts takes it before it binds.
    """
    try:
        fd = os.open(lock_beside(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid == os.geteuid() and try_to_lock(fd) and _refuses(path):
            path.unlink()
    except OSError:
        pass  # a folder that cannot be written keeps it
    finally:
        os.close(fd)


def _refuses(path: Path) -> bool:
    """Is it a socket at which no process listens any more?"""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def lock_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def try_to_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def login_name(uid: int) -> str:
    """The user's name, its number where it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_name(uid: int) -> str:
    """The user's name, ``user 54321`` for one without."""
    name = login_name(uid)
    return f"user {name}" if name.isdigit() else name
