"""Folders that are still there after a power cut."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def sync_folder(folder: Path) -> None:
    """Bring to the disk what was made, renamed or removed in it. Raises OSError, also on volumes that cannot."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """The folder with all above it that are missing: what lies in it does not outlive the loss of one of them."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes that do so out. Raises BlockingIOError while one is in; where the file system cannot lock a
    folder (NFS), none is kept out. The lock is the folder's own, so that no file of it stays behind.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        yield
    finally:
        os.close(opened)


def exchange_names(one: Path, other: Path) -> bool:
    """Swap two names at once (renameat2(2), Linux 3.15, glibc 2.28); False where the system cannot (NFS, for one)."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    found = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(found == 0)
