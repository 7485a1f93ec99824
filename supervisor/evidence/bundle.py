"""One bundle of evidence for an incident, taken at the moment of the verdict and before anything is killed.

Bounded in time: whatever hangs is left behind. Bounded in size: each file, each
part and the whole, and never more than an eighth of what is free on the disk. Without secrets (``base.secrets``).
``bundle.json`` in it says what was collected, how long each part took, and what failed and why.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.base.secrets import mask_value, remember_processes
from supervisor.evidence import machine, processes, recorded, stacks
from supervisor.evidence.collecting import Collector, Part, Sink, gather, within
from supervisor.evidence.ends import tail_of
from supervisor.evidence.known import MANIFEST, NO_JOURNAL
from supervisor.evidence.scene import Scene
from supervisor.process.survivors import Process

FORMAT = "rl-supervisor-evidence"
VERSION = 1
BUNDLE_BYTES = 16 << 20
LEAST_BYTES = 64 << 10  # with less room than that for it, only the manifest is tried
FREE_SHARE = 8  # a bundle takes an eighth of what is free, no more
LIVING_S, SECRETS_S = 2.0, 1.0
_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Bundle:
    """What came of it. ``folder`` is None when nothing could be written; ``sentence`` is for people."""

    folder: Path | None
    sentence: str


def folder_name(incident: int, attempt: int) -> str:
    """By which a bundle's folder is called; a second one of the same gets ``-2`` behind it."""
    return f"{incident:04d}-attempt-{attempt:04d}"


def collect(
    scene: Scene,
    parent: Path,
    *,
    budget_s: float,
    hurry: threading.Event | None = None,
    more: Sequence[Collector] = (),
    made_folder: Callable[[Path], object] = lambda folder: None,
    made_room: Callable[[], object] = lambda: None,
) -> Bundle:
    """Make a bundle in a new folder below ``parent``, within about ``budget_s``; raises nothing.

    ``hurry``: when set, it ends with what there is. ``more``: further collectors. ``made_folder`` hears of the folder
    once it is there; ``made_room`` deletes old bundles when the disk is full.
    """
    return _Work(scene, parent, budget_s, hurry or threading.Event(), more, made_folder, made_room).run()


@dataclass
class _Work:
    """One collecting."""

    scene: Scene
    parent: Path
    budget_s: float
    cut: threading.Event
    more: Sequence[Collector]
    made_folder: Callable[[Path], object]
    made_room: Callable[[], object]
    begun: float = field(default_factory=time.monotonic)
    folder: Path | None = None
    left_bytes: int = 0
    written: int = 0
    trouble: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> Bundle:
        """Collect, write, and say what came of it."""
        try:
            self._run(time.time())
        except OSError as error:
            self.trouble = f"{error.filename or self.parent}: {error.strerror}"
        return Bundle(self.folder, self._sentence(time.monotonic() - self.begun))

    def _run(self, wall: float) -> None:
        scene = self.scene
        none: Sequence[Process] = ()
        look_s = min(LIVING_S, self.budget_s / 2)
        living = within(look_s, scene.living, none)
        known = within(min(SECRETS_S, self.budget_s / 4), lambda: _remember(living), default=False)
        self.folder = self._make_folder()
        self.made_folder(self.folder)
        self.left_bytes = self._room()
        if not known:
            note = "the environments of the processes were not readable in time: masked is by name and shape alone"
            self.parts.append({"name": "secrets", "state": "late", "seconds": SECRETS_S, "files": {}, "notes": [note]})
        if scene.asked.logs is None:
            note = "where the job's logs are could not be seen in time"
            self.parts.append({"name": "logs", "state": "late", "seconds": 0.0, "files": {}, "notes": [note]})
        collectors = [*_collectors(scene, living, self.budget_s), *self.more]
        gather(collectors, until=self.begun + 0.9 * self.budget_s, cut=self.cut, ready=self._keep)
        self._finish(wall)

    # ------------------------------------------------------------ the folder

    def _make_folder(self) -> Path:
        self.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        asked = self.scene.asked
        name = folder_name(asked.incident, asked.attempt)
        for number in range(1, 100):
            folder = self.parent / (name if number == 1 else f"{name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o750)
                return folder
        raise OSError(17, "there are a hundred bundles of this incident", str(self.parent))

    def _room(self) -> int:
        look = os.statvfs(self.parent)
        room = min(BUNDLE_BYTES, look.f_bavail * look.f_frsize // FREE_SHARE)
        if room < LEAST_BYTES:
            self.made_room()
            look = os.statvfs(self.parent)
            room = min(BUNDLE_BYTES, look.f_bavail * look.f_frsize // FREE_SHARE)
        return room

    def _keep(self, part: Part) -> None:
        """Write one part, as soon as it is there."""
        notes, sizes = list(part.notes), {}
        for name, data in part.files.items():
            if len(data) > self.left_bytes:
                notes.append(f"{name} is left out: a bundle takes {_mb(BUNDLE_BYTES)} at most, and less on a full disk")
                continue
            if trouble := self._write(name, data):
                notes.append(trouble)
                continue
            sizes[name] = len(data)
            self.left_bytes -= len(data)
            self.written += len(data)
        word = part.word if sizes or part.word != "collected" else "failed"
        self.parts.append(
            {"name": part.name, "state": word, "seconds": round(part.seconds, 3), "files": sizes, "notes": notes}
        )

    def _write(self, name: str, data: bytes) -> str:
        """A sentence when it cannot be written, once more after room was made."""
        assert self.folder is not None  # noqa: S101 - for the type checker
        path = self.folder / _NAME.sub("_", name)
        for last in (False, True):
            try:
                path.write_bytes(data)
            except OSError as error:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)  # half a file says less than none
                if last or error.errno not in (28, 122):  # ENOSPC, EDQUOT
                    return f"{name} could not be written: {error.strerror}"
                self.made_room()
            else:
                return ""
        return ""

    def _finish(self, wall: float) -> None:
        asked = self.scene.asked
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "by": __version__,
            "run": asked.run,
            "journal": asked.journal,
            "incident": asked.incident,
            "attempt": asked.attempt,
            "reason": asked.reason,
            "collected": wall,
            "seconds": round(time.monotonic() - self.begun, 3),
            "budget_s": round(self.budget_s, 3),
            "ended_early": self.cut.is_set(),
            "size_bytes": self.written,
            "parts": self.parts,
        }
        text = json.dumps(mask_value(manifest), indent=1).encode()
        assert self.folder is not None  # noqa: S101 - for the type checker
        if trouble := self._write(f"{MANIFEST}.new", text):
            self.trouble = trouble
            return
        (self.folder / f"{MANIFEST}.new").replace(self.folder / MANIFEST)

    # ------------------------------------------------------------ what is said

    def _names(self, word: str) -> list[str]:
        return [str(part["name"]) for part in self.parts if part["state"] == word]

    def _sentence(self, seconds: float) -> str:
        number = self.scene.asked.incident
        if self.folder is None or (self.trouble and not self.written):
            return f"The evidence of incident {number} could not be kept: {self.trouble}."
        told = f"What the job said and did until then is kept in {self.folder}, after {seconds:.1f} s."
        if late := self._names("late"):
            told += f" Left behind, since it took too long: {', '.join(late)}."
        if failed := self._names("failed"):
            told += f" Could not be collected: {', '.join(failed)}."
        return f"{told} {self.trouble}." if self.trouble else told


def _mb(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MB"


def _remember(living: Sequence[Process]) -> bool:
    remember_processes(process.pid for process in living if process.state != "D")
    return True


def _collectors(scene: Scene, living: Sequence[Process], budget_s: float) -> list[Collector]:
    """All parts, those first that matter most where room is scarce."""
    asked, most, some = scene.asked, 0.85 * budget_s, 0.5 * budget_s
    return [
        Collector("reason", lambda sink: _reason(scene, sink), most),
        # Each by itself: one that lies on a dead mount must not cost the others.
        *(Collector(f"log-{role}", partial(_log, role, Path(path)), most) for role, path in (asked.logs or {}).items()),
        Collector("processes", lambda sink: processes.tree(scene, living, sink), most),
        Collector("commands", lambda sink: processes.commands(scene, living, sink), some),
        Collector("files", lambda sink: processes.open_files(scene, living, sink), some),
        Collector("stacks", lambda sink: stacks.dump(scene, living, sink, each_s=min(stacks.EACH_S, some)), most),
        Collector("gpu", lambda sink: machine.gpus(scene, sink), some),
        Collector("engine", lambda sink: machine.engine(scene, sink), some),
        Collector("kernel", lambda sink: machine.kernel(scene, sink), some),
        Collector("disk", lambda sink: machine.disks(scene, sink), some),
        Collector("memory", lambda sink: machine.memory(scene, living, sink), some),
        Collector("sockets", lambda sink: machine.sockets(scene, living, sink), some),
        *([] if asked.journal == NO_JOURNAL else [Collector("trace", lambda s: recorded.trace(scene, s), most)]),
    ]


def _reason(scene: Scene, sink: Sink) -> None:
    """``reason.txt`` and ``explain.json``: the verdict, and what was believed then."""
    asked = scene.asked
    later = (
        f"What was observed around it: rl-supervisor trace {scene.journal_path} --incident {asked.incident} "
        f"-o incident-{asked.incident}.jsonl.gz\n"
    )
    sink.put("reason.txt", f"{asked.reason}\n{later}")
    sink.put("explain.json", json.dumps(mask_value(asked.explain), indent=1))


def _log(role: str, path: Path, sink: Sink) -> None:
    """``ROLE.log``: the last lines."""
    sink.put(f"{_NAME.sub('_', role)}.log", tail_of(path).decode(errors="replace"), end=True)
