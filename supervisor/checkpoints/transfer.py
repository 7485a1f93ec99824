"""The child process that talks to the store: ``python -m supervisor.checkpoints.transfer``.

It may be killed at any moment without loss; calling it again with the same request goes on where it was. It keeps
b2sdk and its threads out of the daemon. It reads ONE JSON object on stdin and writes JSON lines on stdout; stderr holds
only the traceback of a real crash.

Request
    {"do": ACTION, "store": {"url": str, "realm": str|null, "region": str|null, "streams": int, "part_size": int|null},
     "run_id": str, ...}

    The keys come from the environment (B2_APPLICATION_KEY_ID, B2_APPLICATION_KEY; for S3 AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) or from the systemd credentials in $CREDENTIALS_DIRECTORY, never from the
    request.

    ACTION          further fields                                  answer in "ok"
    publish         step, files [{"source", "name"}], state_dir,    step, size_bytes, sent_bytes, files, already,
                    generation?, writer?, wandb_run_id?,            pointer_moved, note, seconds, left
                    allow_back?, reread?,
                    extra? {"dialect", "revision",
                    "config_sha256", "step_base", "reward"}
    restore         step, output_dir, place {"primary"},            step, size_bytes, fetched_bytes, files, verified,
                    allow_unverified?                               already, moved_aside [], dialect, revision, seconds
    catalogue       -                                               steps [{"step", "committed", "size_bytes", "files",
                                                                    "legacy", "problem", "left"}] ascending, latest
                                                                    {"step", "run_id", "wandb_run_id", "timestamp",
                                                                    "generation", "lineage", "writer",
                                                                    "manifest_file_id", "manifest_sha256",
                                                                    "legacy"} | null, latest_problem, happened
                                                                    [{"lineage", "kind", "step", "wall", "why"}]
                                                                    pinned [step], reading [step], pins_problem,
                                                                    held [step], holds [{"finding", "bad", "why",
                                                                    "lifted"}]
    delete          step, generation?, writer?                      freed_bytes
    put-logs        journal, attempt, logs {NAME: base64 of gzip},  sent
                    generation?, writer?
    list-logs       -                                               logs [{"journal", "attempt", "name", "size_bytes",
                                                                    "uploaded_at"}]
    get-logs        attempt                                         logs {"JOURNAL/NAME": text}
    verify          step?, deep? (percent), seed?                   damaged, problems [], read_bytes, seconds,
                                                                    steps [{"step", "committed", "problems" [], "files",
                                                                    "size_bytes", "read_bytes"}]
    pin             step, pinned, generation?, writer?              pinned [step]
    hold            steps [step], holds as "catalogue" answers,     -
                    generation?, writer?
    standing        -                                               generation, writer, released, mark, leaving
    claim           writer, settle_s, take_over?, over? {as         as "standing"
                    "standing" answers}
    beat            generation, writer, count, urgent?, state_dir?  as "standing"
    leave           generation, writer, urgent?                     as "standing"
    put-heartbeat   heartbeat {...}, generation?, writer?           -
    release         generation, writer                              -
    lineage         happened [{"kind", "step", "wall", "why"}],     lineage, pointer (the step that it was moved to)
                    generation?, writer?                            | null
    put-run-files   files {NAME: base64}, generation?, writer?      sent
    get-run-files   -                                               files {NAME: base64}
    put-record      journal, record base64                          -
    get-records     -                                               records {JOURNAL: base64}
    sweep           step? or spare? [step], generation?, writer?    cancelled

Answers, one JSON object a line
    {"progress": {"phase": str, "bytes": int, "total": int, "files": int}}   at most two a second; any change counts
    {"entry": {"field": str, "name": str, "value": str}}                     belongs into that field of "ok": of logs
                                                                             and files each has a line of its own
    {"ok": {...}}                                                            the last line; exit code 0
    {"error": {"kind": KIND, "sentence": str}}                               the last line; exit code 1
        of kind "fenced" also "by": str, "generation": int: the pod that holds the run now

    KIND is that of supervisor.storage.base.StoreError: transient (call again later), permanent (a person must act),
    quota (likewise: store or local disk full), missing, damaged (take the step before), changed (choose a local step
    anew), fenced (another pod holds the run: write and delete nothing more).
    With "generation" it is looked whether ``writer`` still holds that, right before each manifest, pointer and delete.
    A process that ends without a last line was killed or crashed: treat it as transient.
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
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from supervisor.checkpoints import catalogue, claims, keeping, lineage, log_files, record_files
from supervisor.checkpoints.manifest import step_folder
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import PublishPlan, Source, publish
from supervisor.checkpoints.records import settle_files, settled_pointer
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.scrub import scrub
from supervisor.checkpoints.writers import FencedError
from supervisor.storage import DEFAULT_STREAMS, open_store
from supervisor.storage.base import Store, StoreError

PROGRESS_EVERY_S = 0.5
PR_SET_PDEATHSIG = 1
NICE = 10
UNUSED = ("pydantic", "tqdm")
URGENT = ("leave", "release")
"""These are asked for when a pod goes, perhaps in seconds: training does not come first then."""
EXTRA = ("dialect", "revision", "config_sha256", "step_base", "reward")

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


class _Request:
    """Typed access to the request; what is wrong in it is our own mistake, and says so."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str, kind: type | tuple[type, ...], default: object = ...) -> Any:
        value = self._values.get(name, default)
        if value is default and default is not ...:
            return value
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise StoreError("permanent", f"the request's field {name!r} is missing or of a wrong type")
        return value

    def part(self, name: str) -> _Request:
        return _Request(self.get(name, dict))


def _fence(store: Store, request: _Request) -> claims.Fence:
    generation, writer = request.get("generation", int, None), request.get("writer", str, "")
    return claims.Fence(store, request.get("run_id", str), generation, writer)


def _publish(store: Store, request: _Request, lines: _Lines) -> Answer:
    extra = request.get("extra", dict, {})
    fence = _fence(store, request)
    fence()  # before a byte is read or sent
    plan = PublishPlan(
        generation=request.get("generation", int, None) or 0,
        happened=lineage.read(store, request.get("run_id", str)),
        fence=fence,
        run_id=request.get("run_id", str),
        step=request.get("step", int),
        files=[Source(Path(file["source"]), str(file["name"])) for file in request.get("files", list)],
        state_dir=Path(request.get("state_dir", str)),
        writer=request.get("writer", str, ""),
        wandb_run_id=request.get("wandb_run_id", str, "") or "",
        allow_back=request.get("allow_back", bool, False),
        reread=request.get("reread", bool, False),
        **{name: extra[name] for name in EXTRA if extra.get(name) is not None},
    )
    with _publishing(plan.state_dir, plan.run_id, wait=True):
        done = publish(store, plan, lines.progress)
        # What stays behind is billed until this step is published again or deleted, and nothing worse. Steps before it
        # are not looked at: that would be a listing of each after every publish, for what a failed delete leaves.
        with contextlib.suppress(StoreError):
            fence()
            keeping.tidy(store, plan.run_id, (plan.step,), fence)
            settle_files(store, plan.run_id, fence)
    return asdict(done)


@contextlib.contextmanager
def _publishing(state_dir: Path, run_id: str, *, wait: bool) -> Iterator[bool]:
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


def _restore(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, step = request.get("run_id", str), request.get("step", int)
    with keeping.reading(store, run_id, step):
        done = restore(
            store,
            run_id,
            step,
            Place(request.part("place").get("primary", str)),
            Path(request.get("output_dir", str)),
            lines.progress,
            allow_unverified=request.get("allow_unverified", bool, False),
        )
    return asdict(done)


def _catalogue(store: Store, request: _Request, lines: _Lines) -> Answer:
    found = catalogue.list_steps(store, request.get("run_id", str))
    keeps = keeping.kept(store, request.get("run_id", str))
    return {
        "pinned": list(keeps.pinned),
        "reading": list(keeps.reading),
        "pins_problem": keeps.problem,
        "held": list(keeps.held),
        "holds": [asdict(one) for one in keeps.holds],
        "steps": [asdict(info) for info in found.steps.values()],
        "latest": asdict(found.latest) | {"legacy": found.latest.legacy} if found.latest else None,
        "latest_problem": found.latest_problem,
        "happened": [asdict(entry) for entry in found.happened.entries],
    }


def _delete(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, step = request.get("run_id", str), request.get("step", int)
    return {"freed_bytes": catalogue.delete_step(store, run_id, step, _fence(store, request))}


def _put_logs(store: Store, request: _Request, lines: _Lines) -> Answer:
    try:
        packed = {name: base64.b64decode(data, validate=True) for name, data in request.get("logs", dict).items()}
    except (binascii.Error, TypeError) as error:
        raise StoreError("permanent", f"the request's logs are not base64: {error}") from error
    run_id, journal = request.get("run_id", str), request.get("journal", str)
    _fence(store, request)()
    return {"sent": log_files.put_logs(store, run_id, journal, request.get("attempt", int), packed)}


def _list_logs(store: Store, request: _Request, lines: _Lines) -> Answer:
    return {"logs": [asdict(log) for log in log_files.list_logs(store, request.get("run_id", str))]}


def _get_logs(store: Store, request: _Request, lines: _Lines) -> Answer:
    lines.entries("logs", log_files.get_logs(store, request.get("run_id", str), request.get("attempt", int)))
    return {"logs": {}}


def _verify(store: Store, request: _Request, lines: _Lines) -> Answer:
    found = scrub(
        store,
        request.get("run_id", str),
        lines.progress,
        request.get("step", int, None),
        float(request.get("deep", (int, float), 0.0)),
        request.get("seed", int, 0),
    )
    return asdict(found) | {"damaged": found.damaged}


def _pin(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, step = request.get("run_id", str), request.get("step", int)
    _fence(store, request)()
    return {"pinned": list(keeping.set_pin(store, run_id, step, pinned=request.get("pinned", bool)))}


def _hold(store: Store, request: _Request, lines: _Lines) -> Answer:
    holds = keeping.holds_of(request.get("holds", list))
    if holds is None:
        raise StoreError("permanent", "why steps are held is not told as it should be")
    _fence(store, request)()
    keeping.set_holds(store, request.get("run_id", str), request.get("steps", list), holds)
    return {}


def _standing(store: Store, request: _Request, lines: _Lines) -> Answer:
    return asdict(claims.look(store, request.get("run_id", str)))


def _claim(store: Store, request: _Request, lines: _Lines) -> Answer:
    over = request.get("over", dict, None)
    held = claims.claim(
        store,
        request.get("run_id", str),
        request.get("writer", str),
        request.get("settle_s", (int, float)),
        over=claims.Standing(**over) if over is not None else None,
        take_over=request.get("take_over", bool, False),
    )
    return asdict(held)


def _beat(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, writer = request.get("run_id", str), request.get("writer", str)
    held = claims.beat(store, run_id, request.get("generation", int), writer, request.get("count", int))
    with contextlib.suppress(StoreError):  # a courtesy to those who read by names
        latest, _ = settled_pointer(store, run_id)
        if latest is not None and request.get("urgent", bool, False) is False:
            _settle_step(store, request, latest.step)
    return asdict(held)


def _settle_step(store: Store, request: _Request, step: int) -> None:
    """Clear away what a fenced pod's late requests brought into a step, unless this pod is publishing."""
    run_id, state_dir = request.get("run_id", str), request.get("state_dir", str, None)
    alone = _publishing(Path(state_dir), run_id, wait=False) if state_dir else contextlib.nullcontext(True)
    with alone as may:
        if may:
            settle_files(store, run_id, _fence(store, request), step)


def _leave(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, writer = request.get("run_id", str), request.get("writer", str)
    return asdict(claims.mark_leaving(store, run_id, request.get("generation", int), writer))


def _put_heartbeat(store: Store, request: _Request, lines: _Lines) -> Answer:
    _fence(store, request)()
    record_files.put_heartbeat(store, request.get("run_id", str), request.get("heartbeat", dict))
    return {}


def _release(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, writer = request.get("run_id", str), request.get("writer", str)
    claims.release(store, run_id, request.get("generation", int), writer)
    return {}


def _lineage(store: Store, request: _Request, lines: _Lines) -> Answer:
    happened = [lineage.entry_of(value) for value in request.get("happened", list)]
    if None in happened:
        raise StoreError("permanent", "what happened to the run is not told as it should be")
    known, pointer = catalogue.keep_lineage(
        store,
        request.get("run_id", str),
        [entry for entry in happened if entry is not None],
        generation=request.get("generation", int, None) or 0,
        writer=request.get("writer", str, ""),
        fence=_fence(store, request),
    )
    return {"lineage": known.number, "pointer": pointer}


def _put_run_files(store: Store, request: _Request, lines: _Lines) -> Answer:
    try:
        files = {name: base64.b64decode(data, validate=True) for name, data in request.get("files", dict).items()}
    except (binascii.Error, TypeError) as error:
        raise StoreError("permanent", f"the request's files are not base64: {error}") from error
    _fence(store, request)()
    return {"sent": catalogue.put_run_files(store, request.get("run_id", str), files)}


def _get_run_files(store: Store, request: _Request, lines: _Lines) -> Answer:
    files = catalogue.get_run_files(store, request.get("run_id", str))
    lines.entries("files", {name: base64.b64encode(data).decode() for name, data in files.items()})
    return {"files": {}}


def _put_record(store: Store, request: _Request, lines: _Lines) -> Answer:
    try:
        data = base64.b64decode(request.get("record", str), validate=True)
    except binascii.Error as error:
        raise StoreError("permanent", f"the request's record is not base64: {error}") from error
    record_files.put_record(store, request.get("run_id", str), request.get("journal", str), data)
    return {}


def _get_records(store: Store, request: _Request, lines: _Lines) -> Answer:
    found = record_files.get_records(store, request.get("run_id", str))
    return {"records": {journal: base64.b64encode(data).decode() for journal, data in found.items()}}


def _sweep(store: Store, request: _Request, lines: _Lines) -> Answer:
    run_id, step, fence = request.get("run_id", str), request.get("step", int, None), _fence(store, request)
    fence()
    if step is None:
        spare = [number for number in request.get("spare", list, []) if type(number) is int]
        return {"cancelled": catalogue.sweep_run(store, run_id, spare.__contains__, fence)}
    return {"cancelled": store.sweep(step_folder(run_id, step), fence=fence)}


ACTIONS: Mapping[str, Callable[[Store, _Request, _Lines], Answer]] = {
    "publish": _publish,
    "restore": _restore,
    "catalogue": _catalogue,
    "delete": _delete,
    "put-logs": _put_logs,
    "list-logs": _list_logs,
    "get-logs": _get_logs,
    "verify": _verify,
    "pin": _pin,
    "hold": _hold,
    "standing": _standing,
    "claim": _claim,
    "beat": _beat,
    "leave": _leave,
    "put-heartbeat": _put_heartbeat,
    "release": _release,
    "lineage": _lineage,
    "put-run-files": _put_run_files,
    "get-run-files": _get_run_files,
    "put-record": _put_record,
    "get-records": _get_records,
    "sweep": _sweep,
}


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
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)
    except (OSError, psutil.Error, AttributeError):  # a container may forbid it; the transfer works without
        pass


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
        gc.freeze()
        gc.enable()


def serve(request: Mapping[str, Any], environ: Mapping[str, str], lines: _Lines) -> Answer:
    """Carry out one request. Raises StoreError."""
    asked = _Request(request)
    act = ACTIONS.get(asked.get("do", str))
    if act is None:
        raise StoreError("permanent", f"the request asks for {request['do']!r}, which is none of {', '.join(ACTIONS)}")
    where = asked.part("store")
    with light_imports():
        store = open_store(
            where.get("url", str),
            where.get("realm", str, None),
            environ,
            where.get("streams", int, DEFAULT_STREAMS),
            where.get("part_size", int, None),
            limit_mbit=where.get("limit_mbit", (int, float), None),
            region=where.get("region", str, None),
        )
    return act(store, asked, lines)


def _read_request() -> dict[str, Any]:
    try:
        request = json.load(sys.stdin)
    except ValueError as error:
        raise StoreError("permanent", f"the request cannot be read: {error}") from error
    if not isinstance(request, dict):
        raise StoreError("permanent", "the request is no JSON object")
    return request


def main() -> None:
    """Read the request, answer, and leave without waiting for threads that may still be sending."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is lost, so nothing needs to be said
    os.umask(0o022)  # a restored step has the modes with which the job would have written it
    die_with_parent()
    lines = _Lines()
    code = 0
    try:
        request = _read_request()
        if request.get("do") not in URGENT and request.get("urgent") is not True:
            step_back()
        lines.write({"ok": serve(request, os.environ, lines)})
    except StoreError as error:
        by = {"by": error.by, "generation": error.generation} if isinstance(error, FencedError) else {}
        lines.write({"error": {"kind": error.kind, "sentence": str(error), **by}})
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
