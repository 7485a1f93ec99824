"""The local side of a restore: staging folders, a journal of what arrived, room on the disk, and the final renames."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from supervisor.base.durable import lock_folder, make_folders, sync_folder
from supervisor.checkpoints.placement import REPLACED, Spot, Tree
from supervisor.checkpoints.verbs import JOURNAL, RESTORING
from supervisor.storage.base import Kind, StoreError

MARGIN_BYTES = 16 << 20
SYNCED_TOGETHER = 64  # files that a thread has open at a time


class Staging:
    """What one restore keeps beside the step's primary folder until all of it is there."""

    def __init__(self, primary: Path, step: int) -> None:
        self.step = step
        self.journal = primary.with_name(f"{RESTORING}{primary.name}{JOURNAL}")
        self._noting: int | None = None  # descriptor of the journal, once something is noted

    # ------------------------------------------------------------ the journal

    def begin(self, fingerprint: str) -> None:
        """Start a journal for the content that ``fingerprint`` stands for."""
        make_folders(self.journal.parent)
        self.note(fingerprint)

    def read_journal(self, fingerprint: str) -> list[tuple[str, int, str]] | None:
        """(file, part number, SHA-1) of what an earlier restore fetched; None when there was none of this content."""
        try:
            text = self.journal.read_text()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        head, *lines = text.split("\n")
        if head != json.dumps([fingerprint]):
            return None
        if lines and lines[-1]:  # torn by the kill; the next line must not be glued to it
            with self.journal.open("a") as file:
                file.write("\n")
        noted = []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, list) and len(entry) == 3 and type(entry[1]) is int:
                noted.append((str(entry[0]), entry[1], str(entry[2])))
        return noted

    def note(self, *entry: object) -> None:
        """One line, one write: a kill leaves at most the last one torn. Not from two threads at a time."""
        if self._noting is None:
            self._noting = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(self._noting, json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        """Note nothing more for now."""
        descriptor, self._noting = self._noting, None
        if descriptor is not None:
            os.close(descriptor)

    def discard(self, trees: Iterable[Tree]) -> None:
        """Forget everything that was fetched."""
        for tree in trees:
            remove(tree.staging_folder)
        self.close()
        self.journal.unlink(missing_ok=True)

    def delete_journal(self) -> None:
        """Nothing of the fetching is left, not even after a loss of power."""
        self.close()
        self.journal.unlink(missing_ok=True)
        sync_folder(self.journal.parent)

    def clear_others(self) -> None:
        """Half-fetched other steps beside ours would only fill the disk. What has no journal is a person's own."""
        for journal in self.journal.parent.glob(f"{RESTORING}*{JOURNAL}"):
            if journal != self.journal and journal.is_file():
                remove(journal.with_name(journal.name.removesuffix(JOURNAL)))
                journal.unlink(missing_ok=True)

    # ------------------------------------------------------------ room

    def make_room(self, files: Sequence[tuple[Spot, int]], told: Callable[[], None] = lambda: None) -> None:
        """Make every file with its size, where there is room for all: a full disk shows here, and not in the middle.

        Claiming the bytes is left to who fetches them (``claim``): where that costs as much as writing (in memory, or
        where the file system has no such call), all streams do it at once instead of waiting for one of them.
        """
        needed: dict[int, tuple[Path, int]] = {}
        devices: dict[Path, int] = {}  # of each folder, once it was looked at and made
        for spot, expected in files:
            folder = spot.staging_path.parent
            if folder not in devices:
                _refuse_links(spot.tree, folder)
                make_folders(spot.tree.target.parent)
                folder.mkdir(parents=True, exist_ok=True)
                devices[folder] = folder.stat().st_dev
            held = min(expected, _bytes_held(spot))
            path, size = needed.get(devices[folder], (folder, 0))
            needed[devices[folder]] = (path, size + expected - held)
        for path, size in needed.values():
            status = os.statvfs(path)
            free = status.f_bavail * status.f_frsize
            if size and status.f_blocks and free < size + MARGIN_BYTES:  # some file systems tell no size: 0 of 0
                raise StoreError(
                    "no-room",
                    f"step {self.step} needs {_amount_in_words(size + MARGIN_BYTES)} more at {path}, where "
                    f"{_amount_in_words(free)} are free: delete something there, or restore to a larger disk",
                )
        made: dict[tuple[int, int], Spot] = {}
        for spot, expected in files:
            descriptor = os.open(spot.staging_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                file = os.fstat(descriptor)
                other = made.setdefault((file.st_dev, file.st_ino), spot)
                if other != spot:
                    raise StoreError(
                        "permanent",
                        f"step {self.step} cannot be restored below {spot.tree.target.parent}: "
                        f"{str(other.inside)!r} and {str(spot.inside)!r} are one file there. Delete "
                        f"{spot.tree.staging_folder}, or take a file system that tells such names apart",
                    )
                if file.st_size != expected:
                    os.ftruncate(descriptor, expected)
            finally:
                os.close(descriptor)
            told()

    # ------------------------------------------------------------ into place

    def sync(self, paths: Sequence[Path], streams: int, told: Callable[[], None] = lambda: None) -> None:
        """Bring many files to the disk; nothing of them is renamed before that.

        An fsync of each as it came made the file system write its own journal as often, for one after the other.
        """
        pieces = [paths[start : start + SYNCED_TOGETHER] for start in range(0, len(paths), SYNCED_TOGETHER)]
        with ThreadPoolExecutor(max(1, min(streams, len(pieces))), thread_name_prefix="sync") as pool:
            for _ in pool.map(sync_files, pieces):
                told()

    def rename(self, trees: Sequence[Tree], told: Callable[[], None] = lambda: None) -> list[Path]:
        """The primary folder last: a step that has it has everything."""
        aside = []
        for primary in (False, True):
            of_kind = [tree for tree in trees if tree.primary == primary]
            for tree in of_kind:
                aside += _into_place(tree)
                told()
            for folder in {tree.target.parent for tree in of_kind}:  # once, however many files it has
                sync_folder(folder)
                told()
        return aside


def _into_place(tree: Tree) -> list[Path]:
    """Rename one tree. Returns where what stood in its way is now."""
    aside = []
    if tree.staging_folder.is_dir():
        _commit_records_last(tree.staging_folder)
        for folder, _, _ in os.walk(tree.staging_folder):
            sync_folder(Path(folder))
    if tree.target.is_symlink() or tree.target.exists():
        number = 1
        while (free := tree.target.with_name(f"{REPLACED}{tree.target.name}-{number}")).exists():
            number += 1
        tree.target.rename(free)
        aside.append(free)
    tree.staging_folder.rename(tree.target)
    return aside


def _commit_records_last(folder: Path) -> None:
    """Make each `.metadata` newer than its shards, as torch leaves them: a shard that is newer was written again.

    The parts arrive in any order, and the times of the original are not kept in the store.
    """
    now = time.time_ns()
    for place, _, names in os.walk(folder):
        for name in names:
            late = 1_000_000_000 if name == ".metadata" else 0
            os.utime(f"{place}/{name}", ns=(now + late, now + late), follow_symlinks=False)


def _refuse_links(tree: Tree, folder: Path) -> None:
    """What was left in a staging folder may be another user's: nothing is written through a link in it."""
    parent = tree.target.parent
    if folder.resolve() != parent.resolve() / folder.relative_to(parent):
        raise _link_in(tree)


def _bytes_held(spot: Spot) -> int:
    """Bytes of the disk that a staged file has already."""
    try:
        look = os.lstat(spot.staging_path)
    except FileNotFoundError:
        return 0
    if stat.S_ISLNK(look.st_mode):
        raise _link_in(spot.tree)
    return look.st_blocks * 512 if stat.S_ISREG(look.st_mode) else 0


def _link_in(tree: Tree) -> StoreError:
    return StoreError("permanent", f"{tree.staging_folder} holds a symbolic link; delete that folder and try again")


def sync_files(paths: Iterable[Path]) -> None:
    """Bring files to the disk together: all begin to be written before the first is waited for."""
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
            begin_to_write(descriptors[-1], 0, 0)
        for descriptor in descriptors:
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def alone_in(output_dir: Path, step: int) -> Iterator[None]:
    """Keep other restores out of this folder: what they fetch there would be taken for what a dead one left.

    Raises kind "transient" while there is one.
    """
    make_folders(output_dir)
    with ExitStack() as lock:
        try:
            lock.enter_context(lock_folder(output_dir))
        except BlockingIOError as error:
            raise StoreError(
                "transient",
                f"step {step} is not restored to {output_dir} while another restore to that folder is under way. Wait "
                "for it, or name another folder",
            ) from error
        yield


@contextmanager
def local_disk(tried: str) -> Iterator[None]:
    """Errors of the local disk as sentences."""
    try:
        yield
    except OSError as error:
        kind: Kind = "no-room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "permanent"
        advice = "delete something there" if kind == "no-room" else "see that this user may write there"
        raise StoreError(
            kind,
            f"could not {tried}: {error.strerror or error} ({error.filename or 'local disk'}). First {advice}",
        ) from error


def claim(descriptor: int, offset: int, size: int) -> None:
    """Have the file system promise these bytes, where it can. Only for who writes them, before he does.

    Where the file system has no such call, glibc reads and writes a byte of each block (posix_fallocate(3), "BUGS"),
    which would undo what another thread writes there meanwhile.
    """
    if size == 0:
        return
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def begin_to_write(descriptor: int, offset: int, size: int) -> None:
    """Have the kernel begin to write a range to the disk (Linux starts that on POSIX_FADV_DONTNEED, mm/fadvise.c).

    No stream waits for the disk, and the fsync at the end finds little left to do.
    """
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def remove(path: Path) -> None:
    """Delete a file or a whole folder; gone already is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _amount_in_words(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
