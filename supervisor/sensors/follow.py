"""Follow many growing files by inode: every complete line once, in order, whatever is done to the files' names.

Nothing here waits or watches: ``Follower.read`` is called once a second by the log sensor. Reading at a fixed rhythm,
instead of on each write, is what keeps a hundred lines a second cheap: one ``fstat`` a file and one read of what came,
where an event for each write would wake the daemon a hundred times. A step takes seconds to hours; a second is no loss.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import signal
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from supervisor.base.records import dataclass
from supervisor.jobs.base import LogSource

LINE_CAP_BYTES = {"text": 4 << 10, "jsonl": 256 << 10}
CHUNK_BYTES = 64 << 10
FILE_BUDGET_BYTES = 512 << 10  # of one file in one call, so that a backlog in one does not hide news in another
BUDGET_BYTES = 2 << 20  # of all files in one call
BACKLOG_BYTES = 32 << 20  # more than this unread, and of it only the last RECENT_BYTES are read: the rest is history
RECENT_BYTES = 8 << 20
LATE_BYTES = 128 << 10  # of a file's end, for a reader that comes late and does not know what was read before it
MARK_BYTES = 32
LINGER_S = 10.0  # how long a file without a name is read on after its last line, at least
LONGEST_LINGER_S = 3600.0  # and at most: NFS says of each file that it has a writer
MAX_FILES = 400  # each costs a descriptor, of which a service has 1024 by default
CLOCK_SLACK_S = 2.0  # a network volume stamps files with its server's clock


@dataclass(frozen=True)
class Position:
    """How far a file was read: to ``offset``, the start of a line, and ``mark``, the bytes just before it.

    The inode finds the file again after a rename, the mark tells whether it is still the same content.
    """

    path: str
    inode: int
    offset: int
    mark: bytes = b""

    def as_json(self) -> dict[str, str | int]:
        """For the journal."""
        return {"path": self.path, "inode": self.inode, "offset": self.offset, "mark": self.mark.hex()}

    @staticmethod
    def from_json(data: object) -> Position | None:
        """None when ``data`` is not what ``as_json`` gave: the file is then read from its start."""
        if not isinstance(data, Mapping):
            return None
        try:
            mark = bytes.fromhex(str(data["mark"]))
            position = Position(str(data["path"]), int(str(data["inode"])), int(str(data["offset"])), mark)
        except (KeyError, ValueError):
            return None
        return position if position.offset >= len(mark) else None


class Tail:
    """One open file and how far it has been read."""

    def __init__(self, path: str, fd: int, look: os.stat_result, source: LogSource, position: Position | None) -> None:
        self.path = path
        self.source = source
        self.fd = fd
        self.key = (look.st_dev, look.st_ino)
        self.nameless = False  # no source's pattern leads to it any more
        self.deleted = False  # it cannot be opened again, and its inode may soon be another file's
        self.last_wanted = 0.0  # when it last had a name, or brought something
        self.passed_over = 0  # bytes that were too many to be read
        self.behind = False  # the last read was ended by its budget
        self._cap = LINE_CAP_BYTES[source.kind]
        self._changed_ns = -1
        self._restart()
        if position is not None and position.offset <= look.st_size:
            before = os.pread(fd, len(position.mark), position.offset - len(position.mark))
            if before == position.mark:
                self._offset = self._line_start = position.offset
                self._mark = self._recent = position.mark
        if self._offset == 0:
            self._skip_hole()

    def _restart(self) -> None:
        self._offset = 0  # up to which bytes were read
        self._line_start = 0  # where the line begins that has not been read to its end
        self._mark = b""  # the bytes before _line_start
        self._recent = b""  # the bytes before _offset
        self._partial = bytearray()  # the beginning of that line, at most _cap of it

    def has_writer(self) -> bool:
        """Does a process write to it? Where the file system cannot say, one that was moved may have one.

        The kernel gives a read lease only of a file that is open to no writer (fcntl(2), "Leases").
        """
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGURG)  # nothing happens to us if one opens it this moment
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN or not self.deleted
        return False

    def position(self) -> Position:
        """Where another reader would go on."""
        return Position(self.path, self.key[1], self._line_start, self._mark)

    def read(self, budget_bytes: int, backlog_bytes: int) -> tuple[list[bytes], int]:
        """Complete lines that came since, without their ends and without empty ones, and how many bytes were read.

        A line longer than the cap is given as its beginning; the rest is read and thrown away. Where more than
        ``backlog_bytes`` are unread, all but the last ``RECENT_BYTES`` are passed over.
        """
        look = os.fstat(self.fd)
        self.deleted = look.st_nlink == 0
        if look.st_mtime_ns == self._changed_ns and look.st_size == self._offset:
            self.behind = False
            return [], 0
        self._changed_ns = look.st_mtime_ns
        if look.st_size < self._offset or not self._same_content():
            self._restart()  # truncated in place (copytruncate, or a new start that writes over the old log)
            self._skip_hole()
        if look.st_size - self._offset > backlog_bytes:
            self._skip_to(look.st_size - RECENT_BYTES)
        lines: list[bytes] = []
        read_bytes = 0
        while read_bytes < budget_bytes:
            data = os.pread(self.fd, min(CHUNK_BYTES, budget_bytes - read_bytes), self._offset)
            if not data:
                break
            read_bytes += len(data)
            self._feed(data, lines)
        else:
            self._changed_ns = -1  # there may be more: look again, also when nothing is written any more
        self.behind = self._changed_ns == -1
        return lines, read_bytes

    def _same_content(self) -> bool:
        # A file that was truncated and has grown past the old offset between two looks is no shorter than it was.
        return os.pread(self.fd, len(self._recent), self._offset - len(self._recent)) == self._recent

    def _skip_hole(self) -> None:
        # A writer that does not append goes on at its old offset after a copytruncate: gigabytes of nothing before it.
        # Of a long log of ours the older part is compressed and given back to the file system in the same way.
        try:
            start = os.lseek(self.fd, 0, os.SEEK_DATA)
        except OSError:
            start = 0
        if start:
            block = os.pread(self.fd, CHUNK_BYTES, start)
            start += len(block) - len(block.lstrip(b"\0"))  # the rest of the hole's last block
        self._offset = self._line_start = start

    def end_only(self, size_bytes: int) -> None:
        """Begin ``LATE_BYTES`` before the end, which is at ``size_bytes``."""
        if size_bytes - self._offset > LATE_BYTES:
            self._skip_to(size_bytes - LATE_BYTES)

    def _skip_to(self, offset: int) -> None:
        """Go on with the first line that begins behind ``offset``, or at it where none does for 64 KiB."""
        data = os.pread(self.fd, CHUNK_BYTES, offset)
        offset += data.find(b"\n") + 1
        self.passed_over += offset - self._offset
        self._restart()
        self._offset = self._line_start = offset
        self._mark = self._recent = os.pread(self.fd, MARK_BYTES, offset - MARK_BYTES)

    def _feed(self, data: bytes, lines: list[bytes]) -> None:
        # Progress bars end their "lines" with a carriage return; what a library logs after one is a line of its own.
        # Of the same length as before, so that offsets stay true; the empty line within "\r\n" is passed over.
        *complete, rest = data.replace(b"\r", b"\n").split(b"\n")
        for piece in complete:
            line = bytes(self._partial) + piece if self._partial else piece
            self._partial.clear()
            line = line[: self._cap].lstrip(b"\0")  # of a hole's last block
            if line:
                lines.append(line)
        if complete:
            end = len(data) - len(rest)
            self._mark = (self._recent + data[:end])[-MARK_BYTES:]
            self._line_start = self._offset + end
        self._offset += len(data)
        self._recent = (self._recent + data)[-MARK_BYTES:]
        self._partial += rest[: self._cap - len(self._partial)]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)


class Follower:
    """Follows all files of ``sources``; see the module's text. Not thread-safe.

    ``positions``: where a reader before this one stopped (the same job, another daemon), or what ``ends`` gave just
    before the job was started. Files without a position and with a last change before ``since_wall`` (Unix time)
    belong to an attempt before: what they hold is passed over, what is appended to them from now on is read.
    ``late``: of files without a position that are there already only the end is read (``LATE_BYTES``).
    """

    def __init__(
        self,
        sources: Sequence[LogSource],
        positions: Iterable[Position] = (),
        since_wall: float | None = None,
        *,
        late: bool = False,
    ) -> None:
        self._sources = list(sources)
        self._since_wall = since_wall
        self._tails: dict[tuple[int, int], Tail] = {}
        self._orphans = list(positions)
        self._places = {position.inode: position for position in self._orphans}
        self.behind = False  # the last read left something unread
        self.ended = False  # no process writes any more, and what the last lines say is waited for
        self._late = late

    def discover(self) -> None:
        """Look for files that came, moved or went. Costs a glob for each source."""
        now = time.monotonic()
        named: set[tuple[int, int]] = set()
        for source in self._sources:
            for path in sorted(glob.glob(source.path, recursive=True)):  # noqa: PTH207  (Path.glob takes no absolute one)
                tail = self._open(path, source)
                if tail is not None:
                    named.add(tail.key)
                    tail.path = path
        for position in self._orphans:
            self._find_renamed(position, now)
        self._orphans.clear()
        self._late = False  # what comes from now on is new
        for key, tail in self._tails.items():
            tail.nameless = key not in named
            if not tail.nameless:
                tail.last_wanted = now

    def read(self) -> list[tuple[LogSource, bytes]]:
        """Complete lines that came since the last call, in order for each file."""
        found: list[tuple[LogSource, bytes]] = []
        left = BUDGET_BYTES
        # What was rotated away before what came after it; then those that waited longest, so that a budget that was
        # used up by some goes to the others the next time.
        self.behind = False
        for key, tail in sorted(self._tails.items(), key=lambda item: not item[1].nameless):
            if left <= 0:
                self.behind = True
                break
            try:
                lines, read_bytes = tail.read(
                    min(left, FILE_BUDGET_BYTES), RECENT_BYTES if self.ended else BACKLOG_BYTES
                )
            except OSError:
                self._drop(tail)  # a stale handle, a bad block: opened again, where it was, by the next discover()
                continue
            left -= read_bytes
            self.behind = self.behind or tail.behind
            if read_bytes:
                found += [(tail.source, line) for line in lines]
                tail.last_wanted = time.monotonic()
                self._tails[key] = self._tails.pop(key)
            elif (
                tail.nameless
                and (silent_s := time.monotonic() - tail.last_wanted) > LINGER_S
                and (silent_s > LONGEST_LINGER_S or not tail.has_writer())
            ):
                self._drop(tail)
                self._places.pop(key[1], None)
        return found

    def passed_over(self) -> list[tuple[str, int]]:
        """Files of which too much was unread: the path, and how many bytes were left out. Each time is told once."""
        found = [(tail.path, tail.passed_over) for tail in self._tails.values() if tail.passed_over]
        for tail in self._tails.values():
            tail.passed_over = 0
        return found

    def positions(self) -> list[Position]:
        """How far every file has been read by now, those included that cannot be opened at present."""
        places = dict(self._places)
        for tail in self._tails.values():
            places.pop(tail.key[1], None)
            if not tail.deleted:
                places[tail.key[1]] = tail.position()
        return list(places.values())

    def folders(self) -> set[str]:
        """Folders in which a file could come, go or be renamed, symlinks on the way included."""
        found = {str(Path(os.path.realpath(tail.path)).parent) for tail in self._tails.values()}
        for source in self._sources:
            folder = Path(source.path).parent
            while glob.has_magic(str(folder)) or not folder.is_dir():
                folder = folder.parent
            found.add(os.path.realpath(folder))
            links = [part for part in (folder, *folder.parents) if part.is_symlink()]
            found |= {os.path.realpath(link.parent) for link in links}
        return found

    def close(self) -> None:
        """Let go of all files."""
        for tail in list(self._tails.values()):
            self._drop(tail)

    # ------------------------------------------------------------

    def _open(self, path: str, source: LogSource) -> Tail | None:
        try:
            look = os.stat(path)  # noqa: PTH116
            known = self._tails.get((look.st_dev, look.st_ino))
            if known is not None:
                return known
            if not stat.S_ISREG(look.st_mode):
                return None
            if len(self._tails) >= MAX_FILES:
                return None
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # another could have put a FIFO there
        except OSError:
            return None  # gone between listing and opening, or not ours to read
        try:
            look = os.fstat(fd)
            position = self._places.get(look.st_ino)
            if position is None and look.st_mtime < (self._since_wall or 0.0) - CLOCK_SLACK_S:
                position = _end(path, fd, look)
            tail = Tail(path, fd, look, source, position)
            if self._late and position is None:
                tail.end_only(look.st_size)
        except OSError:
            os.close(fd)
            return None  # a stale handle, a bad block
        self._tails[tail.key] = tail
        return tail

    def _find_renamed(self, position: Position, now: float) -> None:
        """A file that was rotated while no daemon read it: its last lines are under a name that no source knows."""
        # fnmatch's "*" takes in slashes: enough to tell which of the sources a path came from.
        source = next((source for source in self._sources if fnmatch(position.path, source.path)), None)
        if source is None or any(inode == position.inode for _, inode in self._tails):
            return
        try:
            with os.scandir(Path(position.path).parent) as entries:
                found = next((entry.path for entry in entries if entry.inode() == position.inode), None)
        except OSError:
            return
        if found is None:
            self._places.pop(position.inode, None)  # deleted: its inode may soon be another file's
            return
        tail = self._open(found, source)
        if tail is not None:
            tail.last_wanted = now

    def _drop(self, tail: Tail) -> None:
        self._places[tail.key[1]] = tail.position()
        del self._tails[tail.key]
        tail.close()


def ends(sources: Sequence[LogSource]) -> list[Position]:
    """Where the files of ``sources`` end now. Called before a job starts, it keeps the last attempt's lines out of this
    one's: trainers append to their logs and to metrics.jsonl when they resume."""
    follower = Follower(sources, since_wall=float("inf"))
    try:
        follower.discover()
        return follower.positions()
    finally:
        follower.close()


def _end(path: str, fd: int, look: os.stat_result) -> Position:
    start = max(0, look.st_size - MARK_BYTES)
    mark = os.pread(fd, look.st_size - start, start)
    return Position(path, look.st_ino, start + len(mark), mark)
