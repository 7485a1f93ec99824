"""The disk of one machine, where the machines of a run have disks of their own: what its agent sees and does there.

It tells which files of steps lie below the output folder, each with its size and its age, so that clocks that differ
do no harm; and of the few files that say what a step consists of, their content. It moves and deletes steps, sends its
part of one to the store and fetches one, as the head says. Nothing here runs in the agent's own thread: a disk that
hangs makes no machine silent, and the head takes its files for unknown.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from supervisor.base.errors import ConfigError, StoreError
from supervisor.checkpoints.placement import REPLACED, STEP_NAME
from supervisor.checkpoints.verbs import RESTORING
from supervisor.checkpoints.writers import FencedError
from supervisor.effects import move_aside
from supervisor.effects.transfers import Transfers
from supervisor.jobs.steps import safe_name
from supervisor.nodes.wire import Message
from supervisor.sensors.disk import DiskSensor

LOOK_S = 2.0
MOST_FILES = 8_000  # so that what is said of them fits a line
READ_BY_CHECKS = (".metadata", "progress.pt")
"""Files of which a check of completeness reads more than name, size and time."""
MOST_READ = 64 << 20
PIECE = 256 << 10
NOT_OURS = (RESTORING, REPLACED, move_aside.ASIDE, move_aside.DELETING)
LANES = (("send",), ("look", "aside", "delete", "delete-aside", "fetch"))
"""What the head may order here, by the lane in which it is done: a start does not wait until a step is sent."""


def find_step_files(output_dir: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each regular file below a folder with a step's name: its path below ``output_dir``. Raises OSError.

    What vanishes meanwhile is left out; links are not followed.
    """
    todo = [("", False)]
    while todo:
        inner, in_step = todo.pop()
        try:
            with os.scandir(output_dir / inner) as found:
                entries = list(found)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            path = f"{inner}/{entry.name}".lstrip("/")
            if entry.name.startswith(NOT_OURS):
                continue
            if entry.is_dir(follow_symlinks=False):
                todo.append((path, in_step or STEP_NAME.fullmatch(entry.name) is not None))
            elif in_step and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield path, entry.stat(follow_symlinks=False)


def identify(look: os.stat_result) -> str:
    """What tells a file from one that was written in its place."""
    return f"{look.st_ino}-{look.st_size}-{look.st_mtime_ns}"


class Disk:
    """The output folder on this machine."""

    def __init__(
        self,
        output_dir: Path,
        state_dir: Path,
        environ: Mapping[str, str],
        say: Callable[[Message], None],
        capacity_bytes: int | None = None,
    ) -> None:
        """``environ`` holds the store's keys; ``say`` hands a message to the agent, from any thread."""
        self.output_dir, self._state_dir, self._environ = output_dir, state_dir, environ
        self._say = say
        self._told: dict[str, str] | None = None  # by path, what the head knows of the files
        self._read: set[tuple[str, str]] = set()  # files of which it has the content
        self._looking, self._forget = threading.Lock(), threading.Event()
        self._held = 0  # bytes of steps
        self._room = DiskSensor(output_dir, capacity_bytes=capacity_bytes, used_bytes=lambda: self._held)

    def watch(self) -> None:
        """Look again and again; for a thread of its own."""
        move_aside.finish_deletions(self.output_dir)
        while True:
            self.look()
            time.sleep(LOOK_S)

    def forget_told(self) -> None:
        """There is another connection: everything is told anew."""
        self._forget.set()  # a look that is under way would keep what it told

    def look(self) -> None:
        """Tell the head what is there, or why that is unknown: a stale handle (ESTALE) may be good at the next look."""
        with self._looking:
            if self._forget.is_set():
                self._forget.clear()
                self._told = None
            try:
                found = dict(find_step_files(self.output_dir))
                if len(found) > MOST_FILES:
                    raise OSError(errno.EFBIG, f"it has more than {MOST_FILES:,} files of steps")
            except OSError as error:
                self._told = None
                reason = f"{error.filename or self.output_dir} cannot be read: {error.strerror}"
                self._say({"t": "disk", "reason": reason})
                return
            known = {path: identify(look) for path, look in found.items()}
            self._held = sum(look.st_size for look in found.values())
            room = self._room.measure()
            told: Message = {"t": "disk", "total": room.total_bytes, "free": room.free_bytes}
            if known == self._told:
                self._say(told)
                return
            if self._told is None:
                self._read.clear()
            now = time.time()
            files = [[path, look.st_size, now - look.st_mtime, known[path]] for path, look in found.items()]
            self._told = known
            self._say({**told, "files": files})
            self._read &= set(known.items())
            for path, identity in known.items():
                if path.rpartition("/")[2] in READ_BY_CHECKS and (path, identity) not in self._read:
                    self._tell_content(path, identity)

    def _tell_content(self, path: str, identity: str) -> None:
        try:
            with (self.output_dir / path).open("rb") as file:
                data = file.read(MOST_READ)
                if identify(os.fstat(file.fileno())) != identity:
                    return  # it is being written: the next look sees another file
        except OSError:
            self._told = None  # a look that did not end well
            return
        self._read.add((path, identity))
        for at in range(0, max(len(data), 1), PIECE):
            piece = base64.b64encode(data[at : at + PIECE]).decode()
            message: Message = {"t": "content", "path": path, "identity": identity, "at": at, "data": piece}
            self._say({**message, "end": at + PIECE >= len(data)})

    # ------------------------------------------------------------ orders

    def carry_out(self, message: Message) -> Message:
        """Do what the head wants; returns the answer. Raises SupervisorError and OSError."""
        do = str(message["do"])
        if do == "look":
            if message.get("anew"):
                self.forget_told()
            self.look()
            return {}
        try:
            if do == "send":
                return {"ok": self._send(message)}
            answer = self._fetch(message) if do == "fetch" else self._change_trees(do, message)
        except FencedError as error:
            return {"kind": error.kind, "sentence": str(error), "by": error.by, "generation": error.generation}
        except StoreError as error:
            return {"kind": error.kind, "sentence": str(error)}
        self.look()  # the head hears what is there now before it hears that this is done
        return {"ok": answer}

    def _change_trees(self, do: str, message: Message) -> Message:
        if do == "delete-aside":
            return {"freed": move_aside.delete_set_aside(self.output_dir, str(message["keep"]))}
        trees = [self._place_of(path) for path in message["trees"]]
        if do == "delete":
            return {"freed": move_aside.delete_trees(trees, self.output_dir)}
        return {"moved": len(move_aside.move_aside(trees, self.output_dir, str(message["label"])))}

    def _place_of(self, path: object) -> Path:
        try:
            return self.output_dir / safe_name(str(path))
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _list_trees(self) -> list[Path]:
        """All folders of steps, the outermost of each."""
        found = set()
        for path, _ in find_step_files(self.output_dir):
            parts = path.split("/")
            end = next(at for at, part in enumerate(parts) if STEP_NAME.fullmatch(part))
            found.add(self.output_dir.joinpath(*parts[: end + 1]))
        return sorted(found)

    def _send(self, message: Message) -> Message:
        asked, own = message["asked"], message["asked"]["files"]
        files = [{"source": str(self._place_of(file["source"])), "name": file["name"]} for file in own]
        self._check_unchanged(asked)
        answer = self._transfer({**asked, "files": files, "state_dir": str(self._state_dir / "publish")}, message)
        self._check_unchanged(asked)
        return answer

    def _check_unchanged(self, asked: Message) -> None:
        """Machines send at other times: each must send the files that the head saw, or two saves would be mixed."""
        for file in asked["files"]:
            try:
                same = identify(self._place_of(file["source"]).stat()) == file["identity"]
            except FileNotFoundError:
                same = False
            if not same:
                told = f"step {asked['step']} changed while it was being published: {file['source']} is another file"
                raise StoreError("changed", told)

    def _fetch(self, message: Message) -> Message:
        """Bring a step here, after what is none of the run's steps was moved out of the way."""
        move_aside.make_for_job(self.output_dir)
        if label := str(message.get("aside", "")):
            kept = [self._place_of(path) for path in message.get("keep", ())]
            move_aside.move_aside([tree for tree in self._list_trees() if tree not in kept], self.output_dir, label)
        if (asked := message.get("asked")) is None:
            return {}
        answer = self._transfer({**asked, "output_dir": str(self.output_dir)}, message)
        moved = [Path(path) for path in answer.get("moved_aside", [])]
        move_aside.move_aside(moved, self.output_dir, "replaced")
        return answer

    def _transfer(self, asked: Message, message: Message) -> Message:
        return Transfers(self._environ, float(message["stall_s"])).run(asked)
