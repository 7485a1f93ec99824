"""Which logs there are in what a person names: a file, a folder of logs of any era, folders of ours, a bundle."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, Protocol, get_args

from supervisor.base.errors import SupervisorError
from supervisor.core.facts import Role
from supervisor.journal import attempt_logs
from supervisor.journal.attempt_folders import attempts
from supervisor.views import incidents

MOST_FILES: Final = 2000  # of a folder; the newest count
MOST_NAMED: Final = 3
DEEPEST: Final = 9
BUNDLE: Final = "bundle.json"

_SKIPPED: Final = frozenset({
    "checkpoints", "weights", "broadcasts", "rollouts", "wandb", "node_modules", "site-packages", "__pycache__",
    ".venv", ".git", ".cache", "configs",
})  # fmt: skip
_LOG = re.compile(
    r"(?:.{0,200}\.(?:log|stdout|stderr|out|err)(?:\.\d{1,4})?(?:\.\d{4}-\d{1,20})?|stdout|stderr|dmesg|syslog|"
    r"messages|kern\.log|nohup\.out|[\w.-]{0,80}(?:log|dmesg|kern|journal|output|std|console|terminal|event|describe|kubectl|slurm)[\w.-]{0,40}\.txt)"
    r"(?:\.gz)?",
    re.I,
)
_PERHAPS: Final = ("", ".txt")  # suffixes: what a person saves from a notebook, or a browser
_KERNEL = re.compile(r"(?:kernel|kern|dmesg|syslog|messages|(?:[\w-]{1,40}[.-])?journal(?:ctl)?)(?:\b|-k\b)", re.I)
_OF_THE_CLUSTER = re.compile(
    r"(?:kubectl|k8s)?[-_.]?(?:get[-_.]?)?(?:describe|events?)\b|(?:kubectl|k8s)[-_.](?:get|describe|event)", re.I
)
_OF_ROLES: Final[tuple[tuple[re.Pattern[str], Role], ...]] = (
    (re.compile(r"(?:^|[/._-])envs?(?:[/._-]|$)|env_server|envserver", re.I), "env"),
    (re.compile(r"inference|vllm|engine|router", re.I), "inference"),
    (re.compile(r"orchestrator|(?:^|[/._-])orch(?:[/._-]|$)", re.I), "orchestrator"),
    (re.compile(r"trainer|torchrun|(?:^|[/._-])train(?:[/._-]|$)|rank_?\d{1,6}(?:[/._-]|$)", re.I), "trainer"),
    (
        re.compile(r"launcher|(?:^|[/._-])(?:rl|sft)(?:[._-]|$)|nohup|slurm|(?:^|/)job_\d|tmux|terminal|console", re.I),
        "launcher",
    ),
)
_ATTEMPT = re.compile(
    r"(?:^|/)logs/(attempt_\d{1,6})(?:/|$)|(?:^|/)attempts/(\d{4,9})(?:/|$)|(?:^|/)(\d{4,9}-attempt-\d{4,9}(?:-\d+)?)(?:/|$)"
)

_REFUSED: Final = {
    b"\xfd7zXZ\0": "it is packed with xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "it is packed with zstd: unpack it first",
    b"\x04\x22\x4d\x18": "it is packed with lz4: unpack it first",
    b"BZh": "it is packed with bzip2: unpack it first",
    b"PK\3\4": "it is packed with zip: unpack it first",
    b"\xff\xfe": "it is UTF-16: make it UTF-8 first (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "it is UTF-16: make it UTF-8 first (iconv -f UTF-16 -t UTF-8)",
}
_EXPORT = re.compile(
    rb"\s{0,8}__(?:CURSOR|REALTIME_TIMESTAMP)="
    rb'|(?:\x1e|data: )?\{(?:[^\n]*?|\n(?:[^\n]*\n)*?\s{0,8})"__(?:CURSOR|REALTIME_TIMESTAMP)"'  # in a line, or pretty
)
_NO_TEXT = re.compile("[\x01-\x07\x0e-\x1a\x1c-\x1f\ufffd]")
_SOME_TEXT = re.compile(rb"(?:[\x20-\x7e\t\x1b]{12,}\r?\n){3}")  # lines in the middle of what is none
JUNK_BYTES: Final = 64 << 20  # of a log's beginning in which text is looked for


@dataclass(frozen=True)
class Source:
    """One log to read. ``path`` None is standard input; ``pieces`` are read one after the other."""

    name: str
    pieces: tuple[Path, ...] = ()
    role: Role | None = None
    attempt: str = ""
    kernel: bool = False


class _Stream(Protocol):
    """What is needed of a file to read it to its end."""

    def read(self, size: int, /) -> bytes: ...

    def read1(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Sources(list[Source]):
    """The logs of one place."""

    left_out = ""  # what was passed over there, in a sentence

    def __init__(
        self,
        found: Iterable[Source] = (),
        seen: Mapping[str, str] = MappingProxyType({}),
        orders: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(found)
        self.orders = orders  # by attempt: who told the supervisor to end it
        self.seen = seen  # by attempt: why the supervisor ended it or collected evidence, as it saw it from outside


def sources(path: Path) -> Sources:
    """The logs in a file or a folder, those of one attempt together. Raises OSError."""
    if not path.is_dir():
        os.stat(path)  # noqa: PTH116 - for its error
        role, kernel = identify_log(path.name)
        if role is None and not kernel:
            role, kernel = identify_log(f"{path.parent.name}/{path.name}")
        return Sources([Source(str(path), (path,), role, kernel=kernel)])
    if (path / BUNDLE).is_file():
        return Sources(_logs_of_bundle(path), {"": _reason_of_bundle(path / BUNDLE)})
    is_attempt = path.parent.name == "attempts" and path.name.isdigit()
    if is_attempt or (path / "attempts").is_dir():
        state_dir = path.parent.parent if is_attempt else path
        numbers = [int(path.name)] if is_attempt else attempts(state_dir)
        if ours := _logs_of_own_attempts(state_dir, numbers):
            orders = {f"attempt {number}": told for number, told in incidents.ending_orders(state_dir).items()}
            return Sources(ours, _reasons_by_attempt(state_dir), orders)
    return _logs_below(path)


def _logs_of_own_attempts(state_dir: Path, numbers: Iterable[int]) -> list[Source]:
    """The logs of our own attempts, wherever they lie by now."""
    found = []
    for number in numbers:
        for log in attempt_logs.logs_of(state_dir, number):
            role: Role | None = log.role if log.role in get_args(Role) else None  # type: ignore[assignment]
            if log.name.endswith(".jsonl"):
                continue
            name = _relative_name(log.pieces[-1], state_dir)
            found.append(Source(name, log.pieces, role, f"attempt {number}"))
    return found


def _reasons_by_attempt(state_dir: Path) -> dict[str, str]:
    """What went wrong in each attempt, by the journal; nothing of those that were ended from outside."""
    try:
        told = incidents.read_incidents(state_dir)
    except SupervisorError:
        return {}  # the logs are read anyway
    return {f"attempt {one['attempt']}": one["sentence"] for one in told if one["cause"] != "ended-from-outside"}


def _logs_of_bundle(folder: Path) -> list[Source]:
    """What an incident's evidence holds of logs: their ends, and the kernel's messages."""
    found = []
    for file in sorted(folder.iterdir()):
        if file.suffix == ".log" and file.is_file():
            role: Role | None = file.stem if file.stem in get_args(Role) else identify_log(file.name)[0]  # type: ignore[assignment]
            found.append(Source(file.name, (file,), role))
        elif file.name == "kernel.txt":
            found.append(Source(file.name, (file,), None, kernel=True))
    return found


def _reason_of_bundle(bundle: Path) -> str:
    try:
        said = json.loads(bundle.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""  # its logs are read anyway
    reason = said.get("reason") if isinstance(said, dict) else None
    return reason if isinstance(reason, str) else ""


def _logs_below(root: Path) -> Sources:
    found: list[tuple[float, Source]] = []  # and when it was last written
    texts: list[tuple[float, Source]] = []  # the same of what may be one, where nothing is called a log
    odd: dict[str, str] = {}  # what is passed over, and why
    seen: set[tuple[int, int]] = set()

    def note_closed_folder(error: OSError) -> None:
        odd[_relative_name(Path(error.filename), root)] = error.strerror or "it cannot be opened"

    for folder, folders, files in os.walk(root, onerror=note_closed_folder):
        here = Path(folder)
        depth = len(here.relative_to(root).parts)
        folders[:] = sorted(one for one in folders if one not in _SKIPPED and depth < DEEPEST)
        if here != root and (here / BUNDLE).is_file():
            for one in _logs_of_bundle(here):
                name = f"{here.parent.relative_to(root)}/{one.name}".removeprefix("./")
                found.append((one.pieces[0].stat().st_mtime, replace(one, name=name, attempt=here.name)))
            folders[:] = []
            continue
        for file in sorted(files):
            path = here / file
            is_log = _LOG.fullmatch(file) is not None
            if not is_log and path.suffix not in _PERHAPS:
                continue
            try:
                look = path.stat()
            except OSError as error:
                odd[_relative_name(path, root)] = error.strerror or "it cannot be looked at"
                continue
            if not stat.S_ISREG(look.st_mode):
                odd[_relative_name(path, root)] = "a pipe" if stat.S_ISFIFO(look.st_mode) else "no plain file"
                continue
            if (look.st_dev, look.st_ino) in seen or look.st_size == 0:
                continue
            seen.add((look.st_dev, look.st_ino))
            name = _relative_name(path, root)
            role, kernel = identify_log(name)
            match = _ATTEMPT.search(path.resolve().as_posix())
            attempt = match[match.lastindex or 0] if match else ""
            (found if is_log else texts).append((look.st_mtime, Source(name, (path,), role, attempt, kernel)))
    return _keep_newest(found or texts, root, odd)


def _keep_newest(found: list[tuple[float, Source]], root: Path, odd: Mapping[str, str]) -> Sources:
    older = len(found) - MOST_FILES
    if older > 0:
        kept = {id(one) for _, one in sorted(found, key=lambda pair: pair[0])[older:]}
        found = [pair for pair in found if id(pair[1]) in kept]
    told = Sources(one for _, one in found)
    left = []
    if odd:
        names = [f"{name} ({why})" for name, why in list(odd.items())[:MOST_NAMED]]
        more = [f"{len(odd) - MOST_NAMED} more of this kind"] if len(odd) > MOST_NAMED else []
        left.append(", ".join([*names, *more]))
    if older > 0:
        left.append(f"{older} older logs, all but the newest {MOST_FILES}")
    if left:
        told.left_out = f"Left out of {root}: {'; '.join(left)}. Name a file, or a smaller folder, to have it read."
    return told


def identify_log(name: str) -> tuple[Role | None, bool]:
    """Which role's log a name (or the end of a path) means, and whether it is the kernel's."""
    last = name.rpartition("/")[2]
    if _KERNEL.match(last):
        return None, True
    if _OF_THE_CLUSTER.match(last):
        return None, False
    for text in (last, name):
        for pattern, role in _OF_ROLES:
            if pattern.search(text):
                return role, False
    return None, False


def _relative_name(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return str(path)


@contextmanager
def open_unpacked(source: Source, stdin: BinaryIO) -> Iterator[BinaryIO]:
    """Its bytes, unpacked, piece after piece. Raises OSError, also of what is no text (here or in ``read``)."""
    if not source.pieces:
        yield _unpack(stdin) if isinstance(stdin, BufferedReader) else stdin  # type: ignore[misc]  # as below
        return
    pieces = _Pieces(source.pieces)
    try:
        yield pieces  # type: ignore[misc]  # it has the one method that is needed
    finally:
        pieces.close()


class _Pieces:
    """Several files as one stream, of which each may be compressed."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._left = list(paths)
        self._file: _Stream | None = None

    def read(self, size: int) -> bytes:
        while True:
            if self._file is None:
                if not self._left:
                    return b""
                self._file = _open_file(self._left.pop(0))
            data = self._file.read1(size)  # what could be unpacked before a damaged place
            if data:
                return data
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _open_file(path: Path) -> _Stream:
    file = path.open("rb")
    try:
        return _unpack(file)
    except OSError:
        file.close()
        raise


def _unpack(file: BufferedReader | gzip.GzipFile) -> _Stream:
    start = file.peek(4096)[:4096]  # seeks nothing: it may be a pipe
    packed = start.startswith(b"\x1f\x8b")
    if packed:
        file = gzip.GzipFile(fileobj=file)
        try:
            start = file.peek(4096)[:4096]
        except (EOFError, zlib.error):
            return file  # it is read as far as it goes
    for begins, why in _REFUSED.items():
        if start.startswith(begins):
            raise OSError(why)
    if _EXPORT.match(start):
        raise OSError("it is an export of systemd's journal: give it as text (journalctl -o short-iso)")
    # Blanks of a sparse file (what logrotate's copytruncate leaves) are no sign; nor is a letter cut in two at the end.
    text = start.replace(b"\0", b"").decode(errors="replace")
    return _BehindJunk(file) if not packed and len(_NO_TEXT.findall(text)) > len(text) // 5 else file


class _BehindJunk:
    """A file that begins with something else than text, from its first lines on; their numbers stay."""

    def __init__(self, file: BufferedReader | gzip.GzipFile) -> None:
        self._file = file
        self._found = False

    def read(self, size: int) -> bytes:
        """Raises OSError where no text follows."""
        passed = ends = 0
        rest = b""
        while not self._found:
            data = self._file.read1(size)
            passed += len(data)
            if not data or passed > JUNK_BYTES:
                raise OSError("it is no text")
            data = rest + data
            if found := _SOME_TEXT.search(data):
                self._found = True
                return b"\n" * (ends + data.count(b"\n", 0, found.start())) + data[found.start() :]
            rest = data[-(1 << 12) :]
            ends += data.count(b"\n", 0, len(data) - len(rest))
        return self._file.read1(size)

    read1 = read

    def close(self) -> None:
        self._file.close()
