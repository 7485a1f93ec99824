"""Copies a whole trainer's part of a step from a faster file system to the run's own volume, so that it is safe there.

The copy is made beside its place, synced, compared with what it was made from, and renamed: the volume has all of a
step's part or nothing. A drain that was killed goes on with the files that it had finished.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from supervisor.base.durable import exchange_names, sync_folder
from supervisor.base.errors import Kind, StoreError
from supervisor.base.records import dataclass
from supervisor.checkpoints.completeness import check_dcp
from supervisor.checkpoints.progress import Meter, Report

BLOCK_BYTES = 4 << 20
SYNC_EVERY_BYTES = 64 << 20
"""No more of the copy than this waits in the page cache: it would count against the memory of the container in which
the job trains, beside the same bytes on a tmpfs."""

Files = dict[str, tuple[int, int]]
"""Path below the folder -> size in bytes, time of the last change in ns."""


@dataclass(frozen=True)
class Drained:
    """``copied_bytes`` is 0 where the volume already had the same files, or those of a later save."""

    size_bytes: int
    copied_bytes: int


def list_files(folder: Path) -> Files:
    """Every regular file below ``folder``; empty where it does not exist. Raises OSError otherwise."""
    return {
        path.relative_to(folder).as_posix(): (look.st_size, look.st_mtime_ns)
        for path in _walk(folder)
        if stat.S_ISREG((look := path.lstat()).st_mode)
    }


def _walk(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name)
        else:
            yield folder / entry.name


def drain(source: Path, target: Path, staging: Path, report: Report, *, keep_cached: bool = False) -> Drained:
    """Bring the whole torch checkpoint ``source`` to ``target``; ``staging`` lies on the same file system as that.

    ``keep_cached``: no job runs, and a publish reads the copy next: on a network volume that takes as long again.

    Raises StoreError: "changed" where the source is not whole, or changes meanwhile; "no-room" where the volume is
    full; "transient" for what the volume refuses otherwise.
    """
    meter = Meter(report)
    try:
        files = _list_whole(source)
        size_bytes = sum(size for size, _ in files.values())
        if list_files(target) == files or _has_later_save(target, source):
            shutil.rmtree(staging, ignore_errors=True)
            return Drained(size_bytes, 0)
        _refuse_without_room(staging, files)
        meter.phase("draining", size_bytes)
        copied = sum(
            _copy_file(source / name, staging / name, *files[name], meter, keep_cached=keep_cached) for name in files
        )
        for name in list_files(staging).keys() - files.keys():
            (staging / name).unlink()  # of an earlier save of this step
        _sync_tree(staging)
        if _list_whole(source) != files or list_files(staging) != files or not check_dcp(staging).ok:
            raise StoreError("changed", f"{source} was saved anew while it was copied: it is copied again")
        _put_in_place(staging, target)
    except OSError as error:
        kind: Kind = "no-room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "transient"
        raise StoreError(kind, f"{source} could not be copied to {target}: {error.strerror}") from error
    return Drained(size_bytes, copied)


def _has_later_save(target: Path, source: Path) -> bool:
    """Another pod went on with the run on the same volume, and came by this step again."""
    there = target / ".metadata"
    return check_dcp(target).ok and there.stat().st_mtime_ns > (source / ".metadata").stat().st_mtime_ns


def _list_whole(source: Path) -> Files:
    check = check_dcp(source)
    if not check.ok:
        raise StoreError("changed", f"{source} is not whole: {check.reason}")
    return list_files(source)


def _refuse_without_room(staging: Path, files: Files) -> None:
    staging.mkdir(parents=True, exist_ok=True)
    done = list_files(staging)
    needed = sum(size for name, (size, changed) in files.items() if done.get(name) != (size, changed))
    room = os.statvfs(staging)
    free = room.f_bavail * room.f_frsize + sum(
        size for name, (size, _) in done.items() if done[name] != files.get(name)
    )
    if room.f_blocks and needed > free:  # some file systems tell no size: 0 of 0
        raise StoreError("no-room", f"{staging.parent} has {free:,} bytes free, and the step needs {needed:,}")


def _copy_file(source: Path, target: Path, size: int, changed_ns: int, meter: Meter, *, keep_cached: bool) -> int:
    """Copy one file; returns the bytes copied: none where an earlier drain had finished it."""
    try:
        look = target.stat()
        if (look.st_size, look.st_mtime_ns) == (size, changed_ns):
            meter.add(size, files=1)
            return 0
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
    block = memoryview(bytearray(BLOCK_BYTES))
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        at = synced = 0
        while got := reader.readinto(block):
            for_writing = block[:got]
            while for_writing:
                for_writing = for_writing[writer.write(for_writing) :]
            at += got
            meter.add(got)
            if at - synced >= SYNC_EVERY_BYTES:
                _sync(reader.fileno(), writer.fileno(), keep_cached=keep_cached)
                synced = at
        _sync(reader.fileno(), writer.fileno(), keep_cached=keep_cached)
        # Last, and after its bytes are synced: a file with this time is whole, whenever this process is killed.
        os.utime(writer.fileno(), ns=(changed_ns, changed_ns))
        os.fsync(writer.fileno())
    meter.add(0, files=1)
    return at


def _sync(reader: int, writer: int, *, keep_cached: bool) -> None:
    """Only what is on the disk can be dropped. Of a source on a tmpfs nothing is, and nothing is lost."""
    os.fdatasync(writer)
    for descriptor in () if keep_cached else (reader, writer):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_tree(folder: Path) -> None:
    for place, _, _ in os.walk(folder):
        _sync_folder(Path(place))


def _put_in_place(staging: Path, target: Path) -> None:
    """Rename, and durably. A part that is there is of an earlier save of this step, which this whole one replaces."""
    old = staging.with_name(f"{staging.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and exchange_names(staging, target):
        staging.rename(old)  # the host may be lost now, and the tier with it: one of the two is always in place
    else:
        if target.exists():
            target.rename(old)
        staging.rename(target)
    _sync_folder(target.parent)
    _sync_folder(target.parent.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):  # a volume that syncs no folders
            raise
