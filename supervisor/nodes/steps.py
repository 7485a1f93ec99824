"""Steps on disks of the single machines, as the head has them: the parts of all machines put together.

A step far away looks like one here, as a component does: below ``state_dir/disks`` lies a **mirror** of what the
machines have, each file with its size and time and without its bytes, but for the few that a check reads. So the job's
own rules say what is whole. What is done to a step is ordered of the machines, and their next look shows it.

- Only machines of the present attempt count: another one may still have a step of the same number that was left.
- A machine that is silent, or its disk, makes what only it has unknown, never missing.
- A rank may need what any other rank saved (torch keeps a value that all have once, with the rank that has least to
  write), so a start brings *all* of a step to each machine it takes: what lies there with the right bytes stays.
"""

from __future__ import annotations

import base64
import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from supervisor.base.errors import ConfigError, StoreError, TryAgainError
from supervisor.checkpoints.completeness import check_dcp
from supervisor.checkpoints.writers import FencedError
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.effects.move_aside import ASIDE
from supervisor.effects.transfers import Transfers
from supervisor.jobs.base import Job, StepCheck, StepFile
from supervisor.jobs.steps import safe_name
from supervisor.nodes.disk import READ_BY_CHECKS
from supervisor.nodes.room import RoomSensor
from supervisor.nodes.wire import Message, now

if TYPE_CHECKING:
    from supervisor.nodes.head import Head, Request

DISK_SILENT_S = 30.0  # without a look for so long, a disk hangs
SLACK_S = 5.0  # times of two machines are put on one clock, and are not exact
SAME = ("size", "part_size", "part_sha1")


@dataclass(frozen=True)
class RemoteFile:
    """One file of one machine; ``mtime`` on the head's clock."""

    size: int
    mtime: float
    identity: str


class StepsOfAll:
    """A job with the steps of all its machines. Everything else is the job's own."""

    def __init__(self, job: Job, mirrored: Job, disks: Disks) -> None:
        self._job, self._mirrored, self._disks = job, mirrored, disks
        self.steps, self.step_files, self.step_trees = mirrored.steps, mirrored.step_files, mirrored.step_trees
        self.stale_trees, self.above_trees = mirrored.stale_trees, mirrored.above_trees

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def check_step(self, step: int, *, settled: bool = False, on_tier: bool = False) -> StepCheck:
        check = self._mirrored.check_step(step, settled=settled)
        files = self._mirrored.step_files(step)
        if check.state == "complete":
            for file in files:
                # Also where the job's own rules ask for less: they were made for one disk.
                if file.source.name == ".metadata" and not (found := check_dcp(file.source.parent)).ok:
                    check = replace(check, state="incomplete", reason=found.reason)
        if why := self._disks.why_unknown_of(files, whole=check.state == "complete"):
            state: Any = "incomplete" if settled else "writing"
            return replace(check, state=state, reason=f"its parts are unknown: {why}")
        return check


class Disks:
    """Implements ``supervisor.effects.machines.Disks``. ``hear`` and ``tick`` are for the thread that hears."""

    def __init__(self, head: Head, folder: Path) -> None:
        self._head, self._folder, self.mirror = head, folder, folder / "mirror"
        self.room = RoomSensor(self.mirror)
        shutil.rmtree(folder, ignore_errors=True)  # a cache: the machines tell it anew
        self.mirror.mkdir(parents=True)
        self._files: dict[str, dict[str, RemoteFile]] = {}  # by machine and path
        self._job: Job | None = None
        self._looked: dict[str, float] = {}
        self._reasons: dict[str, str] = {}
        self._rooms: dict[str, tuple[int, int]] = {}  # by machine, bytes in all and free
        self._content: dict[tuple[str, str], str] = {}  # by machine and path, of which file the content is here
        self._mirrored: dict[str, tuple[str, RemoteFile]] = {}
        self._used: tuple[str, ...] = ()
        self._mirrored_for: tuple[str, ...] = ()
        self._hidden: set[str] = set()  # of which was said that they are unknown
        self._fresh: set[str] = set()  # machines that were looked at for this start, and did all that was ordered since
        self._whole: dict[
            str, tuple[int, frozenset[str]]
        ] = {}  # by machine, the step that is whole there, file by file
        self._leaving: dict[str, Request] = {}  # what machines are to do that the run does not use now
        self._wanted: Message | None = None  # what the next start restores on each machine
        self._untold: set[str] = set()  # machines of which a file's content could not be kept here
        self._problem = ""  # why the mirror is not as the machines told
        self._epoch = time.time() - now()  # a clock that is set meanwhile must not part the files of one step
        self._stall_s = 0.0
        self._publishing, self._lock = threading.Lock(), threading.RLock()

    def see(self, job: Job, run_file: RunFile, environ: Mapping[str, str]) -> Job:
        """The job with the steps of all machines."""
        from supervisor.primerl import open_job

        self._stall_s = run_file.store.stall_s
        self.room.reserve_bytes = run_file.disk.stop_below_mb << 20
        table = run_file.job.model_copy(update={"output_dir": self.mirror})
        mirrored = open_job(run_file.model_copy(update={"job": table}), environ)
        self._job = cast("Job", StepsOfAll(job, mirrored, self))
        return self._job

    # ------------------------------------------------------------ what is heard

    def hear(self, host: str, message: Message) -> None:
        """A look at a machine's disk, or a piece of a file there. Raises ValueError for what cannot be."""
        with self._lock:
            if message["t"] == "content":
                try:
                    self._keep_content(host, message)
                except OSError as error:
                    self._problem = self._describe_problem(error)
                    self._untold.add(host)
                return
            reason = str(message.get("reason", ""))
            self._reasons[host] = reason
            if message.get("total") is not None:
                self._rooms[host] = int(message["total"]), int(message["free"])
            else:
                self._rooms.pop(host, None)
            if "files" in message:
                said = self._epoch + now() - float(message.get("age", 0.0))
                before = self._files.get(host, {})
                self._files[host] = {
                    str(safe_name(path)): before[path]
                    if path in before and before[path].identity == identity
                    else RemoteFile(int(size), said - float(age), str(identity))
                    for path, size, age, identity in message["files"]
                }
                for of, path in [key for key in self._content if key[0] == host and key[1] not in self._files[host]]:
                    del self._content[of, path]
                    self._content_of(of, path).unlink(missing_ok=True)
            if "files" in message or self._problem:
                self._update_mirror()
            if not reason and host in self._files:
                self._looked[host] = now() - float(message.get("age", 0.0))
        self._ask_anew()

    def _ask_anew(self) -> None:
        """Without the lock: the head holds its own while it asks for ours."""
        with self._lock:
            hosts = () if self._problem else tuple(self._untold)
            self._untold.difference_update(hosts)
        for host in hosts:
            self._head.ask(host, {"do": "look", "anew": True})

    def _keep_content(self, host: str, message: Message) -> None:
        path = str(safe_name(str(message["path"])))
        place = self._content_of(host, path)
        part = place.with_name(f"{place.name}.part")
        if int(message["at"]) == 0:
            place.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(b"")
        if not part.is_file() or part.stat().st_size != int(message["at"]):
            return  # the rest of what an earlier connection began
        with part.open("ab") as file:
            file.write(base64.b64decode(str(message["data"])))
        if message["end"]:
            part.rename(place)
            self._content[host, path] = str(message["identity"])
            self._update_mirror()

    def _content_of(self, host: str, path: str) -> Path:
        return self._folder / "content" / host / path

    def tick(self) -> None:
        """Machines may have come into the run, or left it; a disk may have fallen silent."""
        with self._lock:
            if self._list_used() != self._mirrored_for:
                self._update_mirror()
            hidden = {host for host in self._used if self._looked.get(host) and self._why_unknown(host)}
            there = [host for host in self._used if host in self._rooms and not self._why_unknown(host)]
            all_there = len(there) == len(self._used) and not self._problem
            files = {host: self._files[host] for host in there} if all_there else None
            self.room.hear({host: self._rooms[host] for host in there}, files, self._job)
        self._ask_anew()
        for host in sorted(hidden - self._hidden):
            told = f"Parts of steps are unknown: {self._why_unknown(host)}."
            self._head.post(f.Remark("disks", told, "warning"))
        self._hidden = hidden

    def _list_used(self) -> tuple[str, ...]:
        """The machines that count: those of the newest attempt that has any, else all that were heard."""
        used = self._head.list_used()
        if used:
            self._used = tuple(used)
        return self._used or tuple(self._files)

    def _in_order(self, hosts: Iterable[str]) -> list[str]:
        return sorted(hosts, key=lambda host: (self._head.rank_of(host), host))

    def _update_mirror(self) -> None:
        """A full disk here is no fault of the machine that tells: its steps are unknown until there is room."""
        self._mirrored_for = self._list_used()
        try:
            self._write_mirror()
            self._problem = ""
        except OSError as error:
            self._problem = self._describe_problem(error)

    def _describe_problem(self, error: OSError) -> str:
        return f"{self.mirror} of the head cannot be written: {error.strerror}"

    def _write_mirror(self) -> None:
        wanted: dict[str, tuple[str, RemoteFile]] = {}
        for host in self._in_order(self._list_used()):
            for path, file in self._files.get(host, {}).items():
                name = path.rpartition("/")[2]
                if name in READ_BY_CHECKS and self._content.get((host, path)) != file.identity:
                    continue  # it is on its way
                wanted.setdefault(path, (host, file))
        for path in self._mirrored.keys() - wanted.keys():
            (self.mirror / path).unlink(missing_ok=True)
            for folder in (self.mirror / path).parents:
                if folder == self.mirror or any(folder.iterdir()):
                    break
                folder.rmdir()
        for path, (host, file) in wanted.items():
            if self._mirrored.get(path) != (host, file):
                self._write_mirrored(path, host, file)
        self._mirrored = wanted

    def _write_mirrored(self, path: str, host: str, file: RemoteFile) -> None:
        new, place = self._folder / "new", self.mirror / path
        mtime = file.mtime
        if path.rpartition("/")[2] in READ_BY_CHECKS:
            shutil.copyfile(self._content_of(host, path), new)
            mtime += SLACK_S  # it is written last, on whichever machine
        else:
            with new.open("wb") as sparse:
                sparse.truncate(file.size)
        os.utime(new, (mtime, mtime))
        place.parent.mkdir(parents=True, exist_ok=True)
        new.rename(place)

    # ------------------------------------------------------------ what is unknown

    def _why_unknown(self, host: str) -> str:
        if self._head.is_silent(host):
            return f"{host} is not heard"
        if reason := self._reasons.get(host):
            return f"on {host} {reason}"
        looked = self._looked.get(host)
        if looked is None:
            return f"the disk of {host} was not looked at yet"
        if now() - looked > DISK_SILENT_S:
            return f"the disk of {host} does not answer for {now() - looked:.0f} s"
        return ""

    def is_there(self, host: str) -> bool:
        """Does the machine's disk answer?"""
        with self._lock:
            return not self._why_unknown(host)

    def why_unknown_of(self, files: Sequence[StepFile], *, whole: bool) -> str:
        """Why a step of these files may be other than the mirror shows it; "" where it is as that says."""
        with self._lock:
            if self._problem:
                return self._problem
            unknown = {host: why for host in self._list_used() if (why := self._why_unknown(host))}
            there = [self._files.get(host, {}) for host in self._list_used() if host not in unknown]
            paths = [file.source.relative_to(self.mirror).as_posix() for file in files]
            if not unknown or (whole and all(any(path in one for one in there) for path in paths)):
                return ""
            return "; ".join(unknown.values())

    # ------------------------------------------------------------ orders

    def _order(self, orders: Mapping[str, Message]) -> dict[str, Message]:
        """Have machines do something, all at once; returns what each answered.

        Raises StoreError, and TryAgainError where a machine is silent or fails otherwise.
        """
        answers, silent = self._collect(orders)
        if len(answers) < len(orders):
            raise TryAgainError(f"Not all machines did what was asked of them: {'; '.join(silent)}")
        for host, answer in answers.items():
            if "sentence" in answer:
                told, kind = f"{host}: {answer['sentence']}", answer["kind"]
                if kind == "fenced":
                    raise FencedError(told, str(answer["by"]), int(answer["generation"]))
                raise StoreError(kind, told)
            if "error" in answer:
                raise TryAgainError(f"{host}: {answer['error']}")
        return {host: dict(answer.get("ok") or {}) for host, answer in answers.items()}

    def _collect(self, orders: Mapping[str, Message], *, patient: bool = False) -> tuple[dict[str, Message], list[str]]:
        """What each machine answered, and why others do not; ``patient``: those end no wait for the rest."""
        requests = [self._head.ask(host, order) for host, order in orders.items()]
        silent: list[str] = []

        def is_over(late: Sequence[Request]) -> bool:
            silent[:] = [why for one in late if (why := self._why_unknown(one.host))]
            return len(silent) == len(late) or (bool(silent) and not patient) or self._head.is_ended

        self._head.await_answers(requests, is_over)
        return {one.host: one.answer for one in requests if one.answer is not None}, silent

    def _list_there(self) -> list[str]:
        with self._lock:
            return [host for host in self._in_order(self._list_used()) if not self._why_unknown(host)]

    def look(self) -> None:
        """Have all machines look anew, before a start; those that are silent are not waited for long."""
        until = now() + self._head.nodes.wait
        while not self._head.is_ended and now() < until:
            used = self._head.list_used()
            waited = [host for host in used if not self._head.is_silent(host) and not self.is_there(host)]
            there = [host for host in self._head.list_speaking() if self.is_there(host)]
            if (used and not waited) or (not used and len(there) >= self._head.machines_wanted):
                break
            if used and now() > until - self._head.nodes.wait + DISK_SILENT_S:
                break
            self._head.wait(0.25)
        there = [host for host in self._head.list_speaking() if self.is_there(host)]
        self._fresh = set(self._collect({host: {"do": "look"} for host in there}, patient=True)[0])

    def _change_trees(self, order: Message) -> int:
        there = self._list_there()
        self._fresh.difference_update({*self._list_used()} - {*there})
        answers = self._order(dict.fromkeys(there, order))
        return sum(int(answer.get("freed", 0)) for answer in answers.values())

    def _paths_of(self, trees: Sequence[Path]) -> list[str]:
        return [tree.relative_to(self.mirror).as_posix() for tree in trees]

    def move_aside(self, trees: Sequence[Path], output_dir: Path, label: str) -> list[Path]:
        """As of ``move_aside``, on every machine; returns where they are there."""
        if paths := self._paths_of(trees):
            self._change_trees({"do": "aside", "trees": paths, "label": label})
        return [output_dir / ASIDE / label / path for path in paths]

    def delete_trees(self, trees: Sequence[Path], output_dir: Path) -> int:
        """As of ``move_aside``, on every machine."""
        paths = self._paths_of(trees)
        return self._change_trees({"do": "delete", "trees": paths}) if paths else 0

    def delete_set_aside(self, output_dir: Path, keep: str) -> int:
        """As of ``move_aside``, on every machine."""
        return self._change_trees({"do": "delete-aside", "keep": keep})

    # ------------------------------------------------------------ steps to and from the store

    def run(self, transfers: Transfers, asked: Message, what: str) -> Message:
        """Publish or restore a step: each machine moves its own files. Raises StoreError."""
        try:
            if asked["do"] == "publish":
                with self._publishing:
                    return self._publish(transfers, asked, what)
            return self._fetch(self._list_there(), asked)
        except (TryAgainError, ConfigError) as error:
            raise StoreError("transient", f"{error}.") from error

    def _publish(self, transfers: Transfers, asked: Message, what: str) -> Message:
        names = {Path(file["source"]).relative_to(self.mirror).as_posix(): file["name"] for file in asked["files"]}
        orders, sizes = self._share_out(names, asked)
        parts = self._order(orders)
        every = {**asked, "files": [{"source": "", "name": name} for name in names.values()]}
        if any(part.get("other") for part in parts.values()):
            transfers.run({**every, "do": "publish-open"}, what=what)
            parts = self._order(orders)
        sent: dict[str, Message] = {}
        for host in self._in_order(parts):
            for file in parts[host].get("files", ()):
                first = sent.setdefault(file["path"], {**file, "host": host})
                if any(file[key] != first[key] for key in SAME):
                    raise _differs(asked["step"], file["path"], first["host"], host)
        if {path: file["size"] for path, file in sent.items()} != sizes:
            raise StoreError("changed", f"step {asked['step']} changed while it was being published")
        entries = [{key: value for key, value in file.items() if key != "host"} for file in sent.values()]
        answer = transfers.run({**every, "do": "publish-parts", "sent": entries}, what=what)
        more = sum(int(part["sent_bytes"]) for part in parts.values())
        return {**answer, "sent_bytes": int(answer["sent_bytes"]) + more}

    def _share_out(self, names: Mapping[str, str], asked: Message) -> tuple[dict[str, Message], dict[str, int]]:
        """What each machine sends, and the sizes of all files: one that several have is sent by the first of them."""
        files: dict[str, list[Message]] = {}
        known: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        with self._lock:
            there = self._list_there()
            for path, name in names.items():
                holders = [host for host in there if path in self._files[host]]
                if not holders:
                    raise StoreError("transient", f"no machine that answers has {path}")
                sizes[name] = self._files[holders[0]][path].size
                for host in holders:
                    if self._files[host][path].size != sizes[name]:
                        raise _differs(asked["step"], name, holders[0], host)
                    identity = self._files[host][path].identity
                    files.setdefault(host, []).append({"source": path, "name": name, "identity": identity})
                    known.setdefault(host, []).extend([name] if host != holders[0] else [])
        orders: dict[str, Message] = {}
        for host, own in files.items():
            part = {**asked, "do": "publish-part", "files": own, "known": known[host]}
            orders[host] = {"do": "send", "asked": part, "stall_s": self._stall_s}
        return orders, sizes

    def _fetch(self, hosts: Sequence[str], asked: Message) -> Message:
        if not hosts:
            raise TryAgainError("No machine's disk answers")
        order = {"do": "fetch", "asked": {**asked, "in_part": True}, "stall_s": self._stall_s}
        answers = self._order(dict.fromkeys(hosts, order))
        self._note_whole(answers, asked)
        fetched = sum(int(answer["fetched_bytes"]) for answer in answers.values())
        return {**next(iter(answers.values())), "fetched_bytes": fetched, "moved_aside": []}

    def _note_whole(self, hosts: Iterable[str], asked: Message) -> None:
        with self._lock:
            for host in hosts:
                self._whole[host] = (int(asked["step"]), self._identities(host, asked))

    def _identities(self, host: str, asked: Message) -> frozenset[str]:
        """All files below the step's own folder on a machine, as they are now."""
        folder = f"{asked['place']['primary']}/"
        found = self._files.get(host, {}).items()
        return frozenset(f"{path} {file.identity}" for path, file in found if path.startswith(folder))

    def _is_whole(self, host: str, asked: Message) -> bool:
        known = self._whole.get(host)
        return known is not None and known == (int(asked["step"]), self._identities(host, asked))

    def lacks(self, asked: Message) -> bool:
        """Is there a machine in use that answers and was not brought all of this step?"""
        with self._lock:
            return any(not self._is_whole(host, asked) for host in self._list_there())

    def bring_step(self, asked: Message | None) -> None:
        """The next start needs all of this step on each machine it takes; None: nothing of any step."""
        self._wanted = asked

    def prepare(self, hosts: Sequence[str]) -> None:
        """Before a launch: nothing but the run's steps lies on these machines, and of the resume step everything."""
        orders: dict[str, Message] = {}
        asked = self._wanted
        used = self._list_used()
        with self._lock:
            for host in hosts:
                whole = asked is not None and self._is_whole(host, asked)
                clean = host in self._fresh and host in used
                order: Message = {"do": "fetch", "stall_s": self._stall_s}
                if not clean:  # it may have steps that the run has left since; of this one each byte is compared
                    order |= {"aside": "joined", "keep": [asked["place"]["primary"]] if asked else []}
                if asked is not None and not whole:
                    order["asked"] = {**asked, "in_part": True}
                if "asked" in order or "aside" in order:
                    orders[host] = order
        self._have_others_leave(hosts)
        self._order(orders)
        if asked is not None:
            self._note_whole(hosts, asked)
        self._used = tuple(hosts)

    def _have_others_leave(self, hosts: Sequence[str]) -> None:
        """A machine that is not taken sets its steps aside, now or when it is heard: no later head counts them."""
        self._head.withdraw([self._leaving.pop(host) for host in hosts if host in self._leaving])
        for host in self._files.keys() - {*hosts} - self._leaving.keys():
            self._leaving[host] = self._head.ask(host, {"do": "fetch", "aside": "left", "stall_s": self._stall_s})
        for host, order in list(self._leaving.items()):
            if order.answer is not None:
                self._head.withdraw([self._leaving.pop(host)])


def _differs(step: object, name: str, one: str, other: str) -> StoreError:
    return StoreError(
        "permanent",
        f"{one} and {other} each have a file {name} of step {step}, and their bytes differ: the step is not published. "
        "Have the job write it on one of them, or under two names",
    )
