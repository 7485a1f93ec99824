"""A computer that loses its power at the n-th thing it asks of its disk or of the network.

What it has asked is counted where Python calls the system: each request that is about to leave, each answer that has
arrived, each file that is made, written, synced, renamed or deleted below its ``root``. At the n-th of them every
thread of it stops for good. ``lose`` then does to the disk what a power cut does: bytes that were not fsynced are
lost or torn, names that were made, moved or deleted in a folder that was not fsynced since are as before.

The model is stricter than ext4: an fsync of a file says nothing of its name, and an fsync of a folder speaks for that
folder's own entries alone.
"""
# Below pathlib, which it must not go through itself:
# ruff: noqa: PTH100, PTH112, PTH113, PTH114, PTH115, PTH116, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import builtins
import contextlib
import http.client
import io
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Fate = Literal["kept", "lost", "torn"]
"""``kept``: only the process died (SIGKILL); ``lost``: nothing that was not fsynced is left; ``torn``: some of it."""


class PowerCut(BaseException):
    """The machine is off. Nobody's ``except Exception`` sees it."""


@dataclass
class _Change:
    """A change of names in a folder: not on the disk before the folder is fsynced."""

    folder: str
    undo: Callable[[], None]
    durable: bool = False


class Machine:
    """Everything below ``root`` is its disk. Use as a context manager around the code that runs on it."""

    def __init__(
        self,
        root: Path,
        cut_at: int | None = None,
        *,
        network: bool = True,
        instead: Callable[[], None] | None = None,
    ) -> None:
        self.root = os.fspath(root.resolve())
        self.cut_at = cut_at
        self.network = network
        self.instead = instead  # happens at the cut, elsewhere, and this machine goes on as if it had been asleep
        self._asleep = False
        self.labels: list[str] = []
        self.off = False
        self._lock = threading.RLock()
        self._dirty: dict[int, bytes] = {}  # inode -> its bytes on the disk
        self._changes: list[_Change] = []
        self._grave = Path(f"{self.root}.grave")
        self._stack = contextlib.ExitStack()

    # ------------------------------------------------------------ the cut

    def _ask(self, label: str) -> None:
        with self._lock:
            if self.off:
                raise PowerCut
            if self._asleep:
                return  # asked by what happens elsewhere
            self.labels.append(label)
            if self.cut_at is None or len(self.labels) != self.cut_at:
                return
            if self.instead is None:
                self.off = True
                raise PowerCut
            self._asleep = True
        try:
            self.instead()
        finally:
            self._asleep = False

    def lose(self, fate: Fate, seed: int = 0) -> None:
        """What the disk holds when the power is back."""
        if fate == "kept":
            return
        dice = random.Random(seed)
        pending = [change for change in self._changes if not change.durable]
        kept = 0 if fate == "lost" else dice.randint(0, len(pending))
        for change in reversed(pending[kept:]):
            with contextlib.suppress(OSError):  # a later change that is on the disk moved it away
                change.undo()
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                inode = os.lstat(path).st_ino
                if inode not in self._dirty or os.path.islink(path):
                    continue
                with open(path, "rb") as file:
                    now = file.read()
                before = self._dirty[inode]
                choices = [before] if fate == "lost" else [before, now, now[: len(now) // 2], bytes(len(now))]
                with open(path, "wb") as file:
                    file.write(dice.choice(choices))

    # ------------------------------------------------------------ patches

    def __enter__(self) -> Machine:
        shutil.rmtree(self._grave, ignore_errors=True)
        self._grave.mkdir()
        for owner, name, make in (
            (os, "open", self._open),
            (os, "write", self._writing),
            (os, "pwrite", self._writing),
            (os, "ftruncate", self._writing),
            (os, "posix_fallocate", self._writing),
            (os, "fsync", self._syncing),
            (os, "fdatasync", self._syncing),
            (os, "rename", self._renaming),
            (os, "replace", self._renaming),
            (os, "unlink", self._unlinking),
            (os, "remove", self._unlinking),
            (os, "rmdir", self._rmdir),
            (os, "mkdir", self._mkdir),
            (os, "link", self._link),
            (io, "open", self._file),
            (builtins, "open", self._file),
            (http.client.HTTPConnection, "putrequest", self._request),
            (http.client.HTTPResponse, "begin", self._answer),
        ):
            real = getattr(owner, name)
            setattr(owner, name, make(real))
            self._stack.callback(setattr, owner, name, real)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _ours(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The absolute path when it is on this machine's disk."""
        if isinstance(path, int):
            try:
                text = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return None
        else:
            text = os.fsdecode(path)
            if dir_fd is not None and not text.startswith("/"):
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
            text = os.path.abspath(text)
        return text if text.startswith(self.root + "/") or text == self.root else None

    def _dirties(self, path: str) -> None:
        with self._lock:
            status = os.stat(path)
            if status.st_ino not in self._dirty:
                self._dirty[status.st_ino] = _slurp(path)

    def _changed(self, path: str, undo: Callable[[], None]) -> None:
        with self._lock:
            self._changes.append(_Change(os.path.dirname(path), undo))

    def _bury(self, path: str) -> str:
        """Keep a second name for what is about to lose its own."""
        grave = os.fspath(self._grave / f"{len(self._changes)}-{len(os.listdir(self._grave))}")
        _real_link(path, grave)
        return grave

    def _open(self, real: Any) -> Any:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            ours = self._ours(path, dir_fd)
            if ours is None or not flags & (os.O_CREAT | os.O_TRUNC):
                return int(real(path, flags, mode, dir_fd=dir_fd))
            there = os.path.lexists(ours)
            self._ask(f"open {ours}")
            if there and flags & os.O_TRUNC:
                self._dirties(ours)
            descriptor = int(real(path, flags, mode, dir_fd=dir_fd))
            if not there:
                self._created(ours)
            return descriptor

        return opened

    def _created(self, path: str) -> None:
        with self._lock:
            self._dirty[os.lstat(path).st_ino] = b""
        self._changed(path, lambda: _real_unlink(path))

    def _file(self, real: Any) -> Any:
        def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            ours = None if isinstance(file, int) or not set(mode) & set("wax+") else self._ours(file)
            if ours is None:
                return real(file, mode, *more, **options)
            there = os.path.lexists(ours)
            self._ask(f"open {ours}")
            if there:
                self._dirties(ours)
            result = real(file, mode, *more, **options)
            if not there:
                self._created(ours)
            return result

        return opened

    def _writing(self, real: Any) -> Any:
        def write(descriptor: int, *more: Any) -> Any:
            ours = self._ours(descriptor)
            if ours is None:
                return real(descriptor, *more)
            self._ask(f"{real.__name__} {ours}")
            with contextlib.suppress(FileNotFoundError):  # deleted while open
                self._dirties(ours)
            return real(descriptor, *more)

        return write

    def _syncing(self, real: Any) -> Any:
        def sync(descriptor: int) -> None:
            ours = self._ours(descriptor)
            if ours is None:
                real(descriptor)
                return
            self._ask(f"fsync {ours}")
            with self._lock:
                if os.path.isdir(ours):
                    for change in self._changes:
                        change.durable = change.durable or change.folder == ours
                else:
                    self._dirty.pop(os.fstat(descriptor).st_ino, None)

        return sync  # the real fsync is not called: only the model loses anything, and a test disk is slow

    def _renaming(self, real: Any) -> Any:
        def rename(source: Any, target: Any, **options: Any) -> None:
            old, new = self._ours(source), self._ours(target)
            if old is None or new is None:
                real(source, target, **options)
                return
            self._ask(f"rename {old} {new}")
            grave = self._bury(new) if os.path.isfile(new) else None
            real(source, target, **options)

            def undo() -> None:
                _real_rename(new, old)
                if grave is not None:
                    _real_rename(grave, new)

            self._changed(new, undo)

        return rename

    def _unlinking(self, real: Any) -> Any:
        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            ours = self._ours(path, dir_fd)
            if ours is None or not os.path.lexists(ours):
                real(path, dir_fd=dir_fd)
                return
            self._ask(f"unlink {ours}")
            grave = self._bury(ours)
            real(path, dir_fd=dir_fd)
            self._changed(ours, lambda: _real_rename(grave, ours))

        return unlink

    def _rmdir(self, real: Any) -> Any:
        def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
            ours = self._ours(path, dir_fd)
            if ours is not None:
                self._ask(f"rmdir {ours}")
            real(path, dir_fd=dir_fd)
            if ours is not None:
                self._changed(ours, lambda: _real_mkdir(ours))

        return rmdir

    def _mkdir(self, real: Any) -> Any:
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            ours = self._ours(path, dir_fd)
            if ours is not None:
                self._ask(f"mkdir {ours}")
            real(path, mode, dir_fd=dir_fd)
            if ours is not None:
                self._changed(ours, lambda: shutil.rmtree(ours))

        return mkdir

    def _link(self, real: Any) -> Any:
        def link(source: Any, target: Any, **options: Any) -> None:
            new = self._ours(target)
            if new is not None:
                self._ask(f"link {new}")
            real(source, target, **options)
            if new is not None:
                self._changed(new, lambda: _real_unlink(new))

        return link

    def _request(self, real: Any) -> Any:
        machine = self

        def putrequest(connection: Any, method: str, url: str, *more: Any, **options: Any) -> None:
            if machine.network:
                machine._ask(f"ask {method} {url.partition('?')[0]}")
            real(connection, method, url, *more, **options)

        return putrequest

    def _answer(self, real: Any) -> Any:
        machine = self

        def begin(response: Any) -> None:
            real(response)
            if machine.network:
                machine._ask("answer")  # the work was done over there, and nobody here will know

        return begin


_real_rename, _real_unlink, _real_mkdir, _real_link = os.rename, os.unlink, os.mkdir, os.link
_real_os_open, _real_read, _real_close = os.open, os.read, os.close


def _slurp(path: str) -> bytes:
    descriptor = _real_os_open(path, os.O_RDONLY)
    try:
        pieces = []
        while piece := _real_read(descriptor, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        _real_close(descriptor)
