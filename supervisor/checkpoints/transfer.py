"""The child process that talks to the store: ``python -m supervisor.checkpoints.transfer``.

It may be killed at any moment without loss; calling it again with the same request goes on where it was. It keeps
b2sdk and its threads out of the daemon. It reads JSON lines on stdin, the next one once it has answered, and writes
JSON lines on stdout; stderr holds only the traceback of a real crash. It ends where none comes for LINGER_S seconds,
and where stdin ends.

A request is what ``supervisor.checkpoints.verbs`` says. The keys come from the environment (B2_APPLICATION_KEY_ID,
B2_APPLICATION_KEY; for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) or from the systemd credentials
in $CREDENTIALS_DIRECTORY, never from the request.

Answers, one JSON object a line
    {"progress": {"phase": str, "bytes": int, "total": int, "files": int}}   at most two a second; any change counts
    {"entry": {"field": str, "name": str, "value": str}}                     belongs into that field of "ok": of logs
                                                                             and files each has a line of its own
    {"ok": {...}}                                                            the last line of an answer; exit code 0
    {"error": {"kind": KIND, "sentence": str}}                               the very last line; exit code 1
        of kind "fenced" also "by": str, "generation": int: the pod that holds the run now

    KIND is that of supervisor.storage.base.StoreError: transient (call again later), permanent (a person must act),
    quota (likewise: store or local disk full), missing, damaged (take the step before), changed (choose a local step
    anew), fenced (another pod holds the run: write and delete nothing more).
    A process that ends without a last line was killed or crashed: treat it as transient. With exit code 0 it had not
    begun with the request.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import singledispatch
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from supervisor.base.records import dataclass
from supervisor.checkpoints import catalogue, claims, keeping, lineage, part_verbs, record_files, verbs
from supervisor.checkpoints.manifest import step_folder
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.read_request import read_request
from supervisor.checkpoints.records import settle_files, settle_pointer
from supervisor.checkpoints.writers import FencedError
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError

if TYPE_CHECKING:  # what one verb alone needs is imported when that is asked: most children are a heartbeat or a look
    from supervisor.checkpoints.publish import Published, PublishPlan

PROGRESS_EVERY_S = 0.5
LINGER_S = 3.0
LAST_THREADS_S = 0.5
PR_SET_PDEATHSIG = 1
NICE = 10
UNUSED = ("pydantic", "tqdm")
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""ioprio_set(2) is no function of the C library. psutil has it, and was a tenth of what this process takes to start."""

Answer = dict[str, Any]


class _Lines:
    """The answer channel: a copy of stdout, so that nothing a library prints can get between the lines."""

    def __init__(self) -> None:
        self._file: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._said: tuple[float, str] = (float("-inf"), "")

    def write(self, line: Mapping[str, object]) -> None:
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except BrokenPipeError:  # the reader is gone
            os._exit(1)

    def progress(self, moved: Moved) -> None:
        """Called often and from many threads, always under the meter's lock."""
        at, phase = self._said
        now = time.monotonic()
        if now - at >= PROGRESS_EVERY_S or (moved.phase != phase and now - at >= PROGRESS_EVERY_S / 10):
            self._said = (now, moved.phase)
            self.write({"progress": asdict(moved)})

    def entries(self, field: str, values: Mapping[str, str]) -> None:
        """One line each of what may be too much for one line."""
        for name, value in values.items():
            self.write({"entry": {"field": field, "name": name, "value": value}})


@dataclass(frozen=True)
class _Run:
    """The run that is asked about, in its store."""

    id: str
    store: Store
    lines: _Lines

    def fence(self, verb: verbs.Signed | verbs.Beat) -> claims.Fence:
        return claims.Fence(self.store, self.id, verb.generation, verb.writer)


@singledispatch
def _carry_out(verb: verbs.Verb, run: _Run) -> Answer:
    raise StoreError("permanent", f"the request asks for {verb.name!r}, which is not carried out here")


def _plan(verb: verbs.Publish, run: _Run) -> PublishPlan:
    from supervisor.checkpoints.publish import PublishPlan, Source

    fence = run.fence(verb)
    fence()  # before a byte is read or sent
    extra: dict[str, Any] = {name: value for name, value in (verb.extra or {}).items() if value is not None}
    return PublishPlan(
        generation=verb.generation or 0,
        happened=lineage.read(run.store, run.id),
        fence=fence,
        run_id=run.id,
        step=verb.step,
        files=[Source(Path(file["source"]), file["name"]) for file in verb.files],
        state_dir=Path(verb.state_dir),
        writer=verb.writer,
        wandb_run_id=verb.wandb_run_id,
        allow_back=verb.allow_back,
        reread=verb.reread,
        **extra,
    )


def _commit(verb: verbs.Publish, run: _Run, act: Callable[[PublishPlan], Published]) -> Answer:
    plan = _plan(verb, run)
    fence = run.fence(verb)
    with _hold_publish_lock(plan.state_dir, run.id, wait=True):
        done = act(plan)
        # What stays behind is billed until this step is published again or deleted, and nothing worse. Steps before it
        # are not looked at: that would be a listing of each after every publish, for what a failed delete leaves.
        with contextlib.suppress(StoreError):
            fence()
            keeping.tidy(run.store, run.id, (plan.step,), fence)
            settle_files(run.store, run.id, fence)
    return asdict(done)


@_carry_out.register
def _publish(verb: verbs.Publish, run: _Run) -> Answer:
    from supervisor.checkpoints.publish import publish

    return _commit(verb, run, lambda plan: publish(run.store, plan, run.lines.progress))


@_carry_out.register
def _commit_parts(verb: part_verbs.CommitParts, run: _Run) -> Answer:
    from supervisor.checkpoints import parts

    return _commit(verb, run, lambda plan: parts.commit_parts(run.store, plan, verb.sent, run.lines.progress))


@_carry_out.register
def _open_step(verb: part_verbs.OpenStep, run: _Run) -> Answer:
    from supervisor.checkpoints import parts

    parts.open_step(run.store, _plan(verb, run), run.lines.progress)
    return {}


@_carry_out.register
def _send_part(verb: part_verbs.SendPart, run: _Run) -> Answer:
    from supervisor.checkpoints import parts

    with _hold_publish_lock(Path(verb.state_dir), run.id, wait=True):
        return parts.send_part(run.store, _plan(verb, run), verb.known, run.lines.progress)


@contextlib.contextmanager
def _hold_publish_lock(state_dir: Path, run_id: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of this pod's publishes of the run; False where another process has it, and ``wait`` is not set.

    It keeps the heartbeat from taking a publish's new files for a stranger's. A disk that takes no file stops neither.
    """
    path = state_dir / f"publishing-{run_id}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError:
        yield wait
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield wait  # a file system without locks, or (without waiting) a publish under way
            return
        yield True


@_carry_out.register
def _restore(verb: verbs.Restore, run: _Run) -> Answer:
    from supervisor.checkpoints.placement import Place
    from supervisor.checkpoints.restore import restore

    with keeping.announce_restore(run.store, run.id, verb.step):
        done = restore(
            run.store,
            run.id,
            verb.step,
            Place(verb.place["primary"]),
            Path(verb.output_dir),
            run.lines.progress,
            in_part=verb.in_part,
        )
    return asdict(done)


@_carry_out.register
def _catalogue(verb: verbs.Catalogue, run: _Run) -> Answer:
    found = catalogue.list_steps(run.store, run.id)
    keeps = asdict(keeping.read_kept_steps(run.store, run.id))
    return {
        "pins_problem": keeps.pop("problem"),
        **keeps,
        "steps": [asdict(info) for info in found.steps.values()],
        "latest": asdict(found.latest) | {"legacy": found.latest.legacy} if found.latest else None,
        "latest_problem": found.latest_problem,
        "happened": [asdict(entry) for entry in found.happened.entries],
    }


@_carry_out.register
def _delete(verb: verbs.Delete, run: _Run) -> Answer:
    return {"freed_bytes": catalogue.delete_step(run.store, run.id, verb.step, run.fence(verb))}


@_carry_out.register
def _put_logs(verb: verbs.PutLogs, run: _Run) -> Answer:
    from supervisor.checkpoints import log_files

    packed = {name: _from_base64(text, "logs are") for name, text in verb.logs.items()}
    run.fence(verb)()
    return {"sent": log_files.put_logs(run.store, run.id, verb.journal, verb.attempt, packed)}


@_carry_out.register
def _list_logs(verb: verbs.ListLogs, run: _Run) -> Answer:
    from supervisor.checkpoints import log_files

    return {"logs": [asdict(log) for log in log_files.list_logs(run.store, run.id)]}


@_carry_out.register
def _get_logs(verb: verbs.GetLogs, run: _Run) -> Answer:
    from supervisor.checkpoints import log_files

    run.lines.entries("logs", log_files.get_logs(run.store, run.id, verb.attempt, verb.only))
    return {"logs": {}}


@_carry_out.register
def _verify(verb: verbs.Verify, run: _Run) -> Answer:
    from supervisor.checkpoints.scrub import scrub

    found = scrub(run.store, run.id, run.lines.progress, verb.step, float(verb.deep), verb.seed)
    return asdict(found) | {"damaged": found.is_damaged}


@_carry_out.register
def _pin(verb: verbs.Pin, run: _Run) -> Answer:
    run.fence(verb)()
    return {"pinned": list(keeping.set_pin(run.store, run.id, verb.step, pinned=verb.pinned))}


@_carry_out.register
def _hold(verb: verbs.HoldSteps, run: _Run) -> Answer:
    holds = keeping.holds_of(verb.holds)
    if holds is None:
        raise StoreError("permanent", "why steps are held is not told as it should be")
    run.fence(verb)()
    keeping.set_holds(run.store, run.id, verb.steps, holds)
    return {}


@_carry_out.register
def _look_at_claim(verb: verbs.LookAtClaim, run: _Run) -> Answer:
    return asdict(claims.look(run.store, run.id))


@_carry_out.register
def _claim(verb: verbs.Claim, run: _Run) -> Answer:
    over = claims.Standing(**verb.over) if verb.over is not None else None
    found = claims.claim(
        run.store,
        run.id,
        verb.writer,
        verb.settle_s,
        label=verb.label,
        over=over,
        take_over=verb.take_over,
        held=verb.held,
    )
    return asdict(found)


@_carry_out.register
def _beat(verb: verbs.Beat, run: _Run) -> Answer:
    held = claims.beat(run.store, run.id, verb.generation, verb.writer, verb.count, about=verb.about)
    with contextlib.suppress(StoreError):  # a courtesy to those who read by names
        latest, _ = settle_pointer(run.store, run.id)
        if latest is not None and not verb.urgent:
            # Clear away what a fenced pod's late requests brought into the step, unless this pod is publishing.
            alone = contextlib.nullcontext(True)
            with _hold_publish_lock(Path(verb.state_dir), run.id, wait=False) if verb.state_dir else alone as may:
                if may:
                    settle_files(run.store, run.id, run.fence(verb), latest.step)
    return asdict(held)


@_carry_out.register
def _leave(verb: verbs.Leave, run: _Run) -> Answer:
    return asdict(claims.mark_leaving(run.store, run.id, verb.generation, verb.writer))


@_carry_out.register
def _put_heartbeat(verb: verbs.PutHeartbeat, run: _Run) -> Answer:
    run.fence(verb)()
    record_files.put_heartbeat(run.store, run.id, verb.heartbeat)
    return {}


@_carry_out.register
def _release(verb: verbs.Release, run: _Run) -> Answer:
    claims.release(
        run.store, run.id, verb.generation, verb.writer, code=verb.code, reason=verb.reason, about=verb.about
    )
    return {}


@_carry_out.register
def _keep_lineage(verb: verbs.KeepLineage, run: _Run) -> Answer:
    happened = [lineage.entry_of(value) for value in verb.happened]
    if None in happened:
        raise StoreError("permanent", "what happened to the run is not told as it should be")
    known, pointer = catalogue.keep_lineage(
        run.store,
        run.id,
        [entry for entry in happened if entry is not None],
        generation=verb.generation or 0,
        writer=verb.writer,
        fence=run.fence(verb),
    )
    return {"lineage": known.number, "pointer": pointer}


@_carry_out.register
def _put_run_files(verb: verbs.PutRunFiles, run: _Run) -> Answer:
    files = {name: _from_base64(text, "files are") for name, text in verb.files.items()}
    run.fence(verb)()
    return {"sent": catalogue.put_run_files(run.store, run.id, files)}


@_carry_out.register
def _get_run_files(verb: verbs.GetRunFiles, run: _Run) -> Answer:
    run.lines.entries("files", _in_base64(catalogue.get_run_files(run.store, run.id)))
    return {"files": {}}


@_carry_out.register
def _put_record(verb: verbs.PutRecord, run: _Run) -> Answer:
    record_files.put_record(run.store, run.id, verb.journal, _from_base64(verb.record, "record is"))
    return {}


@_carry_out.register
def _get_records(verb: verbs.GetRecords, run: _Run) -> Answer:
    return {"records": _in_base64(record_files.get_records(run.store, run.id))}


@_carry_out.register
def _sweep(verb: verbs.Sweep, run: _Run) -> Answer:
    fence = run.fence(verb)
    fence()
    if verb.step is None:
        return {"cancelled": catalogue.sweep_run(run.store, run.id, (verb.spare or []).__contains__, fence)}
    return {"cancelled": run.store.sweep(step_folder(run.id, verb.step), fence=fence)}


def _from_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise StoreError("permanent", f"the request's {what} not base64: {error}") from error


def _in_base64(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent.

    The kernel sends the signal already when the *thread* that started us ends (prctl(2)), which in a daemon is no
    reason to stop; so the signal only makes us look whether the parent is still the same.
    """
    parent = os.getppid()

    def look(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os._exit(1)

    signal.signal(signal.SIGUSR1, look)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    look(0, None)


def step_back() -> None:
    """Training comes first: lower CPU and I/O priority as far as the system lets us."""
    try:
        os.nice(NICE)
    except OSError:  # a container may forbid it; the transfer works without
        pass
    if number := IOPRIO_SET.get(os.uname().machine):
        ctypes.CDLL(None).syscall(number, 1, 0, 2 << 13 | 7)  # this process, best effort, last of eight


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Import a store's library without what it takes only where it is there, and without looking for garbage.

    b2sdk 2.13.1 (``_internal/types.py``, ``_internal/progress.py``) does without pydantic and tqdm, and needs neither
    for what is asked of it here. It is a fifth of the time that this process takes to start, and on a busy machine each
    child (a heartbeat, a catalogue) waits for that several times as long. Not from two threads at a time.
    """
    hidden = [name for name in UNUSED if name not in sys.modules]
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
        if not gc.get_freeze_count():  # what a later request leaves behind, its connections, is garbage
            gc.freeze()
        gc.enable()


def _read_request(line: bytes) -> verbs.Request:
    try:
        return read_request(json.loads(line))
    except ValueError as error:
        raise StoreError("permanent", f"the request cannot be read: {error}") from error


def serve(request: verbs.Request, environ: Mapping[str, str], lines: _Lines) -> Answer:
    """Carry out one request. Raises StoreError."""
    if isinstance(verb := request.verb, verbs.Drain):
        from supervisor.checkpoints.drain import drain

        places = Path(verb.source), Path(verb.target), Path(verb.staging)
        return asdict(drain(*places, lines.progress, keep_cached=verb.urgent))
    where = request.store
    with light_imports():
        store = open_store(
            where.url,
            where.realm,
            environ,
            where.streams,
            where.part_size,
            limit_mbit=where.limit_mbit,
            region=where.region,
        )
    answer = _carry_out(request.verb, _Run(request.run_id, store, lines))
    store.close()
    return answer


def _answer_line(line: bytes, lines: _Lines, *, is_first: bool) -> int:
    """Carry out a request and answer it; returns the exit code."""
    try:
        request = _read_request(line)
        if is_first and not request.verb.urgent:
            step_back()
        lines.write({"ok": serve(request, os.environ, lines)})
    except StoreError as error:
        by = {"by": error.by, "generation": error.generation} if isinstance(error, FencedError) else {}
        lines.write({"error": {"kind": error.kind, "sentence": str(error), **by}})
        return 1
    return 0


def _wait_for_line() -> bytes:
    """The next request, b"" where none comes. A thread that may still be sending must not work beside it."""
    line = sys.stdin.buffer.readline() if select.select([sys.stdin], [], [], LINGER_S)[0] else b""
    until = time.monotonic() + LAST_THREADS_S
    while line and threading.active_count() > 1:
        if time.monotonic() > until:
            return b""
        time.sleep(0.005)
    return line


def main() -> None:
    """Answer what is asked, and leave without waiting for threads that may still be sending."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is lost, so nothing needs to be said
    os.umask(0o022)  # a restored step has the modes with which the job would have written it
    die_with_parent()
    lines = _Lines()
    code = _answer_line(sys.stdin.buffer.readline(), lines, is_first=True)
    while code == 0 and (line := _wait_for_line()):
        gc.collect()
        code = _answer_line(line, lines, is_first=False)
    os._exit(code)


if __name__ == "__main__":
    main()
