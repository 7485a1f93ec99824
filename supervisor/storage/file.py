"""A folder as a store: the embedded default, and any mounted volume.

Every object is a plain file that appears whole or not at all: written beside its place, hashed on the way, fsynced,
renamed, and the folder fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from supervisor.base.durable import sync_folder
from supervisor.storage import hashing, source
from supervisor.storage.base import Finishing, Part, Progress, Sink, StoredFile, StoreError, unheard
from supervisor.storage.common import CountingStore
from supervisor.storage.names import name_problem
from supervisor.storage.opening import Opening

INCOMING = ".incoming-"  # files that are not objects yet, locked by their writer
ABANDONED_S = 3600.0
"""Where locks do not work: one that was not written to for so long is a dead writer's."""
PART_BYTES = 64 << 20
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What file systems without hard links say (vfat, some FUSE volumes)."""
SYNC_BYTES = 8 << 20
"""Parts from this size on are brought to the disk one by one: one fsync of 40 GB at the end would look like a stall."""


def open_at(asked: Opening) -> FileStore:
    """file:///folder."""
    parts = urlsplit(asked.url)
    folder = unquote(parts.path)
    if parts.netloc or not folder.startswith("/") or "\0" in folder:
        raise StoreError("permanent", f"the store {asked.url!r} is no local folder: write file:///absolute/folder")
    return FileStore(Path(folder), streams=asked.streams, part_size=asked.part_size)


class FileStore(CountingStore):
    """The store below ``root``. ``file_id`` is a file's identity (mtime, inode, size): a rewrite is another version.

    The root folder is made with the first object; its parent has to exist, so that a volume that is not mounted is
    never taken for an empty store.
    """

    def __init__(self, root: Path, streams: int = 16, part_size: int | None = None) -> None:
        super().__init__(root.as_uri(), streams, part_size or PART_BYTES)
        self.root = root

    def list(self, prefix: str) -> Sequence[StoredFile]:
        with self._explain("list", prefix):
            if not self._exists():
                return []
            folder = self._path(prefix.rstrip("/")) if prefix else self.root
            found = []
            for place, folders, files in os.walk(folder, onerror=_raise_unless_gone):
                folders.sort()
                for name in files:
                    path = Path(place, name)
                    if name.startswith(INCOMING):
                        continue
                    try:
                        status = path.lstat()
                    except FileNotFoundError:  # deleted or replaced since the folder was read
                        continue
                    if stat.S_ISREG(status.st_mode):
                        found.append(_file_of_status(path.relative_to(self.root).as_posix(), status))
            return sorted(found, key=lambda file: file.name)

    def list_versions(self, prefix: str) -> Sequence[StoredFile]:
        if not prefix or prefix.endswith("/"):
            return self.list(prefix)
        with self._explain("list", prefix):
            try:
                status = self._path(prefix).lstat() if self._exists() else None
            except (FileNotFoundError, NotADirectoryError):
                status = None
            return [_file_of_status(prefix, status)] if status is not None and stat.S_ISREG(status.st_mode) else []

    def list_hidden(self, prefix: str) -> tuple[Sequence[StoredFile], Sequence[StoredFile]]:
        return (), ()

    def claim(self, name: str, data: bytes) -> bool | None:
        """By a hard link, which no file system makes over a name that is taken, and which NFS makes atomically."""
        target = self._path(name)
        with self._explain("write", name):
            try:
                with self._open_for_writing(target, claim=True) as incoming:
                    _write_all(incoming, data)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                return None
        self._count_sent(len(data))
        return True

    def put_file(  # noqa: PLR0917
        self,
        name: str,
        path: Path,
        size: int,
        parts: Sequence[Part],
        progress: Progress,
        finishing: Finishing = unheard,
    ) -> StoredFile:
        target = self._path(name)
        if self._holds(target, size, parts):
            progress(size)
            return self._current(name)
        descriptor = source.open_source(path)
        try:
            if os.fstat(descriptor).st_size != size:
                raise StoreError("changed", f"{path} has another size than when its hashes were taken")
            with self._explain("write", name), self._open_for_writing(target, finishing=finishing) as incoming:
                for part in parts:
                    digest = hashlib.sha1(usedforsecurity=False)
                    for piece in source.read_pieces(descriptor, path, part.offset, part.size):
                        digest.update(piece)
                        _write_all(incoming, piece)
                        progress(len(piece))
                    if digest.hexdigest() != part.sha1:
                        raise StoreError("changed", f"{path} changed after it was hashed (byte {part.offset} on)")
                    if part.size >= SYNC_BYTES:
                        os.fdatasync(incoming)
                    self._count_sent(part.size)
        finally:
            os.close(descriptor)
        stored = self._current(name)
        if stored.size != size:
            raise StoreError("transient", f"{self.url} holds {stored.size} bytes of {name} after {size} were written")
        return stored

    def put_bytes(self, name: str, data: bytes) -> StoredFile:
        target = self._path(name)
        with self._explain("write", name), self._open_for_writing(target) as incoming:
            _write_all(incoming, data)
        self._count_sent(len(data))
        return self._current(name)

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        with self._explain("read", name), self._open_for_reading(name, file_id) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise StoreError("damaged", f"{name} in {self.url} has {size} bytes, more than the {limit} it may have")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(size)

    def read_range(self, file: StoredFile, offset: int, size: int, sink: Sink) -> None:
        end = offset + size
        with self._open_for_reading(file.name, file.file_id) as descriptor:
            while offset < end:
                with self._explain("read", file.name):
                    piece = os.pread(descriptor, min(hashing.CHUNK_BYTES, end - offset), offset)
                if not piece:
                    raise StoreError("damaged", f"{file.name} in {self.url} ends before byte {end}")
                offset += len(piece)
                sink(piece)

    def delete(self, file: StoredFile) -> None:
        path = self._path(file.name)
        with self._explain("delete", file.name):
            try:
                if _identity(path.lstat()) != file.file_id:
                    return  # this version is gone; another one has its name
                path.unlink()
                sync_folder(path.parent)
            except FileNotFoundError:  # the file, or with its last file the folder: another thread was faster
                return
            for folder in path.parents:
                if folder == self.root:
                    break
                try:
                    folder.rmdir()
                except OSError:  # not empty, or another writer is about to fill it
                    break

    def composer(self) -> None:
        """Nothing to save: bytes only go from one disk to another, and all of them are read either way."""

    def sweep(
        self, prefix: str, spare: Callable[[str], bool] = lambda name: False, fence: Callable[[], None] = lambda: None
    ) -> int:
        with self._explain("clean", prefix):
            if not self._exists():
                return 0
            folders = os.walk(self._path(prefix.rstrip("/")) if prefix else self.root)
            found = [Path(place, name) for place, _, names in folders for name in names if name.startswith(INCOMING)]
            found = [path for path in found if not spare(path.relative_to(self.root).as_posix())]
            if found:
                fence()
            return sum(_drop_if_dead(path) for path in found)

    # ------------------------------------------------------------ paths

    def _path(self, name: str) -> Path:
        """Where ``name`` lives. Refuses bad names, and links on the way: nothing here may lead out of the root."""
        problem = name_problem(name)
        if problem or any(segment.startswith(INCOMING) for segment in name.split("/")):
            raise StoreError("permanent", f"{name!r} cannot be a name in {self.url}: {problem or 'it is reserved'}")
        path = self.root
        for segment in name.split("/"):
            path = path / segment
            try:
                if stat.S_ISLNK(path.lstat().st_mode):
                    raise StoreError(
                        "permanent",
                        f"{path} is a symbolic link, and a store follows none: put the real files there",
                    )
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError as error:
                raise self._error("reach", name, error) from error
        return self.root / name

    def _exists(self) -> bool:
        try:
            if not stat.S_ISDIR(self.root.stat().st_mode):
                raise StoreError("permanent", f"the store {self.url} is not a folder: name another one")
        except FileNotFoundError:
            if not self.root.parent.is_dir():
                raise StoreError(
                    "permanent",
                    f"the store {self.url} cannot be reached: {self.root.parent} does not exist. Mount the volume, or "
                    f"make the folder",
                ) from None
            return False
        return True

    def _current(self, name: str) -> StoredFile:
        with self._explain("read", name):
            return _file_of_status(name, self._path(name).lstat())

    def _holds(self, target: Path, size: int, parts: Sequence[Part]) -> bool:
        """Is the very file there already? (A killed transfer finished this file, and its memory of it was lost.)"""
        try:
            status = target.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                return False
            return all(source.hash_range(target, part.offset, part.size) == part.sha1 for part in parts)
        except (OSError, StoreError):
            return False

    # ------------------------------------------------------------ reading and writing

    @contextlib.contextmanager
    def _open_for_writing(self, target: Path, *, claim: bool = False, finishing: Finishing = unheard) -> Iterator[int]:
        """A descriptor to write to; becomes ``target`` when the block ends well, and ``finishing`` does.

        Where there was no ``target`` at first, it does not replace one that came meanwhile: that is another writer's,
        who holds the run now. Raises kind "transient" then; with ``claim`` FileExistsError, also for an older one, and
        OSError where the file system has no links.
        """
        fresh = claim or not os.path.lexists(target)
        if not self._exists():
            self.root.mkdir(exist_ok=True)
            sync_folder(self.root.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _begin(target.parent)
        try:
            yield descriptor
            os.fsync(descriptor)
            finishing("")
            if not (fresh and _link(temporary, target, claim=claim)):
                temporary.rename(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)  # not before it has its name: the lock goes with it
        for folder in target.parents:
            sync_folder(folder)
            if folder == self.root:
                break

    @contextlib.contextmanager
    def _open_for_reading(self, name: str, file_id: str | None) -> Iterator[int]:
        self._exists()
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise StoreError("missing", f"there is no {name} in {self.url}") from error
        except OSError as error:
            raise self._error("read", name, error) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError("missing", f"there is no {name} in {self.url}")
            if file_id is not None and _identity(status) != file_id:
                raise StoreError("missing", f"{name} in {self.url} is no longer the version that is asked for")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _explain(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(verb, name, error) from error

    def _error(self, verb: str, name: str, error: OSError) -> StoreError:
        tried = f"the store {self.url} did not let us {verb} {name or 'it'}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError("quota", f"{tried}. Free space on that disk, or keep fewer steps (store.keep_last)")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreError("permanent", f"{tried}. Give this user the right to write there, or name another folder")
        return StoreError("transient", tried)


def _link(temporary: Path, target: Path, *, claim: bool) -> bool:
    """Give it a name that nothing has; False where the file system has no links. Raises as ``_open_for_writing``."""
    try:
        os.link(temporary, target, follow_symlinks=False)
    except FileExistsError as error:
        if claim:
            raise
        raise StoreError(
            "transient", f"{target} came from another writer while it was written (does another pod have this run?)"
        ) from error
    except OSError as error:
        if claim or error.errno not in NO_LINKS:
            raise
        return False
    temporary.unlink()
    return True


def _begin(folder: Path) -> tuple[Path, int]:
    """A new file to write to, locked as long as this process lives and has it open, and its descriptor."""
    while True:
        path = folder / f"{INCOMING}{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # swept before it was locked


def _drop_if_dead(path: Path) -> bool:
    """Delete what a dead process left unfinished; was it one? The lock of a living one is in the way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # it is whole by now, or was swept
        return False
    try:
        if not _is_dead(descriptor):
            return False
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        return True
    finally:
        os.close(descriptor)


def _is_dead(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # NFS grants this one to a descriptor that only reads
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - os.fstat(descriptor).st_mtime > ABANDONED_S
    return True


def _file_of_status(name: str, status: os.stat_result) -> StoredFile:
    return StoredFile(name=name, size=status.st_size, file_id=_identity(status), uploaded_at=status.st_mtime)


def _identity(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}.{status.st_ino:x}.{status.st_size:x}"


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
