"""Rules that say whether a checkpoint's files are whole: each looks at one folder or file and gives one sentence.

They read names, sizes, times and small files, import no torch, execute no pickle, follow no symlink, and never raise
for what a checkpoint holds, but OSError for a stale handle of NFS. Which rules make a step complete is the job's
business (``Job.check_step``).
"""

from __future__ import annotations

import errno
import json
import lzma
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Generic, TypeVar

from supervisor.base.records import dataclass
from supervisor.checkpoints.dcp_metadata import MAX_BYTES, MetadataError, needed_bytes

MAX_UNPACKED_BYTES: Final = 1 << 30  # of a zip file; progress.pt has a few KB
MAX_LINE_BYTES: Final = 64 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """``ok``: whole and loadable. Otherwise ``reason`` is a sentence; ``writing``: it may still become ok."""

    ok: bool
    reason: str = ""
    writing: bool = False


OK = Result(True)


def check_dcp(folder: Path, *, times: bool = True) -> Result:
    """Is ``folder`` a whole torch distributed checkpoint (``.metadata`` and the ``__R_I.distcp`` files it names)?

    torch writes all data files, then ``.metadata.tmp``, then renames it to ``.metadata`` (2.8 and 2.13, straced), so
    ``.metadata`` is the last file of a first save. When a step is saved again, the data files are rewritten in place
    under the old ``.metadata``: with ``times``, a data file newer than ``.metadata`` means that. Files restored from
    a store have other times; give ``times=False``, or set them so that ``.metadata`` is the newest.
    """
    metadata = folder / ".metadata"
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return Result(False, f"{folder} is not a folder")
        if _lstat_path(folder / ".metadata.tmp"):
            return Result(False, f"{folder} is being written: it holds .metadata.tmp", writing=True)
        if _lstat_path(metadata) is None:
            return Result(False, f"{folder} has no .metadata, which is written last", writing=True)
        needed, saved_ns = _read_metadata(metadata)
    except MetadataError as error:
        return Result(False, f"{metadata} is unusable: {error}")
    except OSError as error:
        return _why_unreadable(folder, error)

    problem = OK
    for name, size_bytes in needed.items():
        look = _look_at_file(folder, name)
        if isinstance(look, str):
            problem = Result(False, f"{folder}: {name} {look}")
        elif times and look.st_mtime_ns > saved_ns:
            told = f"{folder}: {name} is newer than .metadata, so the step is being saved again, or was cut off in that"
            return Result(False, f"{told}. If it was copied, or the clock set back: touch .metadata", writing=True)
        elif look.st_size < size_bytes and (size := _ask_for_size(folder / name)) < size_bytes:
            reason = f"{folder}: {name} has {size:,} bytes and .metadata needs {size_bytes:,}"
            problem = Result(False, reason)
    return problem


def check_zip(path: Path) -> Result:
    """Is ``path`` a whole zip file, as ``torch.save`` writes ``progress.pt``? Reads it all and checks each CRC.

    A newer ``NAME.*.tmp`` beside it means that a save is under way (prime-rl@b127f0375).
    """
    try:
        look = _lstat_path(path)
        if look is not None and not stat.S_ISREG(look.st_mode):
            return Result(False, f"{path} is not a regular file")
        saved_ns = look.st_mtime_ns if look else -1
        for other in path.parent.iterdir():
            if other.name.startswith(f"{path.name}.") and other.name.endswith(".tmp"):
                half = _lstat_path(other)
                if half and half.st_mtime_ns > saved_ns:
                    return Result(False, f"{path} is being written: {other.name} is newer", writing=True)
        with _open_file(path) as file:
            defect = _zip_defects.get(os.fstat(file.fileno()), lambda: _zip_defect(file))
    except OSError as error:
        return _why_unreadable(path, error)
    return Result(False, f"{path} {defect}") if defect else OK


def check_jsonl(path: Path) -> Result:
    """Is ``path`` a file of JSON lines with a whole last line? An empty file is."""
    try:
        look = path.lstat()
        if not stat.S_ISREG(look.st_mode):
            return Result(False, f"{path} is not a regular file")
        with _open_file(path) as file:
            line = _last_line(file, look.st_size)
    except OSError as error:
        return _why_unreadable(path, error)
    if line is None:
        return Result(False, f"{path} ends in a line of more than {MAX_LINE_BYTES:,} bytes")
    if not line:
        return OK
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return Result(False, f"{path} ends in half a line: {line[-60:]!r} is the end of no JSON record")
    return OK


def check_markers(folder: Path, globs: Sequence[str]) -> Result:
    """Does each glob match at least one regular, non-empty file below ``folder``?"""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return Result(False, f"{folder} is not a folder")
        for glob in globs:
            sizes = [
                look.st_size for look in map(_lstat_path, folder.glob(glob)) if look and stat.S_ISREG(look.st_mode)
            ]
            if not sizes:
                return Result(False, f"{folder} has no {glob} yet", writing=True)
            if not any(sizes):
                return Result(False, f"{folder}: {glob} is empty so far", writing=True)
    except (ValueError, NotImplementedError) as error:
        return Result(False, f"{glob!r} is no pattern for files below a step's folder: {error}")
    except OSError as error:
        return _why_unreadable(folder, error)
    return OK


def folder_size(paths: Iterable[Path]) -> tuple[int, float]:
    """Bytes of all regular files in ``paths`` (files or folders), and the newest of their times (Unix, 0.0 if none).

    Symlinks are neither followed nor counted; what vanishes meanwhile is not counted either.
    """
    size_bytes, newest = 0, 0.0
    todo = [str(path) for path in paths]
    while todo:
        path = todo.pop()
        try:
            look = os.lstat(path)
            if stat.S_ISDIR(look.st_mode):
                with os.scandir(path) as entries:
                    todo.extend(entry.path for entry in entries)
            elif stat.S_ISREG(look.st_mode):
                size_bytes += look.st_size
                newest = max(newest, look.st_mtime)
        except OSError:
            continue  # gone, or not ours to read: a look, not a promise
    return size_bytes, newest


# ---------------------------------------------------------------- reading

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Seen(Generic[T]):
    """What one version of a file said, by its identity: a look every 15 s need not read the same bytes again."""

    def __init__(self, room: int = 64) -> None:
        self.room = room
        self.known: dict[tuple[int, ...], T] = {}
        self.lock = threading.Lock()

    def get(self, look: os.stat_result, read: Callable[[], T]) -> T:
        key = (look.st_dev, look.st_ino, look.st_size, look.st_mtime_ns, look.st_ctime_ns)
        with self.lock:
            if key in self.known:
                return self.known[key]
        value = read()
        with self.lock:
            self.known[key] = value
            while len(self.known) > self.room:
                del self.known[next(iter(self.known))]
        return value


_needs: _Seen[Mapping[str, int] | str] = _Seen()
_zip_defects: _Seen[str] = _Seen()


def _read_metadata(path: Path) -> tuple[Mapping[str, int], int]:
    with _open_file(path) as file:
        look = os.fstat(file.fileno())
        if not stat.S_ISREG(look.st_mode):
            raise MetadataError("it is not a regular file")

        def read() -> Mapping[str, int] | str:
            try:
                return needed_bytes(file.read(MAX_BYTES + 1))
            except MetadataError as error:
                return str(error)  # not the error itself: its traceback would keep all that was read

        needed = _needs.get(look, read)
    if isinstance(needed, str):
        raise MetadataError(needed)
    return needed, look.st_mtime_ns


def _look_at_file(folder: Path, name: str) -> os.stat_result | str:
    """The file ``name`` below ``folder``, or what is wrong with it."""
    parts = PurePosixPath(name).parts
    if "\0" in name or name.startswith("/") or ".." in parts or not parts:
        return "lies outside the folder"
    path = folder
    for part in parts[:-1]:
        path = path / part
        look = _lstat_path(path)
        if look is None or not stat.S_ISDIR(look.st_mode):
            return "is missing"
    look = _lstat_path(path / parts[-1])
    if look is None:
        return "is missing"
    return look if stat.S_ISREG(look.st_mode) else "is not a regular file"


def _zip_defect(file: BinaryIO) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_UNPACKED_BYTES:
                return f"unpacks to more than the {MAX_UNPACKED_BYTES:,} bytes we check"
            bad = archive.testzip()
            return f"is damaged: the checksum of its member {bad!r} is wrong" if bad is not None else ""
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        return f"is truncated or damaged: {error}"
    except (RuntimeError, ValueError, OverflowError, LookupError, lzma.LZMAError) as error:
        return f"is no zip file that torch writes: {error}"  # encrypted, an unknown method, an impossible name


def _last_line(file: BinaryIO, size_bytes: int) -> bytes | None:
    """The last line that is not blank; None when it is longer than MAX_LINE_BYTES."""
    tail = b""
    for reach in (1 << 16, 1 << 20, MAX_LINE_BYTES):
        start = max(size_bytes - reach, 0)
        file.seek(start)
        tail = file.read(size_bytes - start).rstrip()
        if start == 0 or b"\n" in tail:
            return tail.rpartition(b"\n")[2]
    return None


def _open_file(path: Path) -> BinaryIO:
    """Open for reading; a symlink is refused and a pipe does not block."""
    return os.fdopen(os.open(path, _FLAGS), "rb")


def _lstat_path(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _ask_for_size(path: Path) -> int:
    """The size as the server has it: NFS keeps attributes for up to a minute, and asks anew when a file is opened."""
    with _open_file(path) as file:
        return os.fstat(file.fileno()).st_size


def _why_unreadable(path: Path, error: OSError) -> Result:
    """A file that vanished may be in the writer's hands; anything else is for a person.

    Raises a stale handle of NFS again: it says nothing of the file, and the next look by name gets another.
    """
    if error.errno == errno.ESTALE:
        raise error
    if isinstance(error, FileNotFoundError):
        return Result(False, f"{error.filename or path} does not exist")
    return Result(False, f"{error.filename or path} cannot be read: {error.strerror or error}")
