"""Python stacks of the run's processes through py-spy, where it is installed: where a hung or spinning trainer is.

py-spy reads another process's memory; with ``--nonblocking`` it does not stop it for that, so that a run which is only
observed never stands still for our curiosity (py-spy's README, "Can I dump without pausing"). It needs the right to
trace: the same user and kernel.yama.ptrace_scope = 0, or CAP_SYS_PTRACE; containers often have neither.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCONT

from supervisor.evidence.collecting import Sink, output_of
from supervisor.evidence.scene import Scene, executable
from supervisor.process.survivors import Process, look_at, send_signal

PROGRAM = "py-spy"
EACH_S = 4.0
EACH_BYTES = 192 << 10
MOST_DUMPED = 24
AT_A_TIME = 4
STOPPED = "Tt"
SETTLE_S = 0.3  # a tracer that was just killed leaves its process in state t for a moment
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?$")
_FIRST = ("trainer", "inference", "orchestrator", "env", "launcher", "job")
_FORBIDDEN = re.compile(r"(?i)permission denied|operation not permitted|EPERM|ptrace|as root|sudo")


def programs(path: str, job_bins: Sequence[Path], own: Path) -> list[Path]:
    """Where py-spy is: on PATH, beside our own interpreter, in the job's environment. The first that is there."""
    there = [Path(found)] if (found := shutil.which(PROGRAM, path=path)) else []
    for folder in (own, *job_bins):
        candidate = folder / PROGRAM
        if candidate.is_file() and os.access(candidate, os.X_OK):
            there.append(candidate)
    return there


def dump(scene: Scene, living: Sequence[Process], sink: Sink, *, each_s: float = EACH_S) -> None:
    """``stacks.txt``: one section a Python process, the key ones first; sentences where there is none."""
    there = scene.stack_programs()
    if not there:
        sink.put(
            "stacks.txt",
            "No Python stacks: py-spy is not installed, or evidence.py_spy is off. `pip install py-spy` into the "
            "supervisor's own environment is enough.\n",
        )
        return
    shims = scene.shims()
    targets = [p for p in living if p.identity not in shims and _PYTHON.search(Path(executable(p.pid)).name)]
    targets.sort(key=lambda p: (_rank_of_role(scene.role(p.pid)), p.start_ticks))
    lock = threading.Lock()
    ahead = iter(targets[:MOST_DUMPED])
    if not targets:
        sink.put("stacks.txt", "No Python process of the run is alive.\n")
    if len(targets) > MOST_DUMPED:
        sink.note(f"{len(targets) - MOST_DUMPED} more Python processes were not asked")

    def work() -> None:
        while not sink.is_closed:
            with lock:
                target = next(ahead, None)
            if target is None:
                return
            text = _stack_of(scene, target, there[0], sink, each_s)
            with lock:  # added one by one: what hangs later must not cost what is known
                sink.add("stacks.txt", text)

    workers = [threading.Thread(target=work, name="evidence-py-spy", daemon=True) for _ in range(AT_A_TIME)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _rank_of_role(role: str) -> int:
    return _FIRST.index(role) if role in _FIRST else len(_FIRST)


def _stack_of(scene: Scene, target: Process, program: Path, sink: Sink, each_s: float) -> str:
    head = f"== {target.pid} {scene.role(target.pid) or target.name} =="
    before = look_at(target.pid)
    if before is None or before.identity != target.identity:
        return f"{head}\nended before it could be asked\n"
    if before.state == "D":
        return f"{head}\nis in state D: reading its memory could hang\n"
    try:
        # Nothing of our own environment: what is run may come from the job's, where models' code can write.
        text, trouble = output_of(
            [str(program), "dump", "--nonblocking", "--pid", str(target.pid)],
            timeout_s=each_s,
            limit_bytes=EACH_BYTES,
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "NO_COLOR": "1", "RUST_BACKTRACE": "0"},
        )
    except OSError as error:
        text, trouble = "", f"{program} cannot be run: {error.strerror}"
    woken = _go_on(target, before.state)
    if woken:
        sink.note(woken)
    if trouble and _FORBIDDEN.search(text):
        why = " ".join(text.split())[:300]
        sink.note(f"py-spy may not look into process {target.pid}: {why}")
        text = (
            f"py-spy may not look into this process: {why}\nIt needs CAP_SYS_PTRACE, or the same user and "
            "kernel.yama.ptrace_scope = 0.\n"
        )
    elif trouble:
        sink.note(f"process {target.pid}: {trouble}")
        text = f"{text.rstrip()}\n{trouble}\n".lstrip()
    return "\n".join([head, text.rstrip(), *([woken] if woken else []), "", ""])


def _go_on(target: Process, state: str) -> str:
    """Was the process stopped while it was asked? Then it is told to go on. A sentence, "" when all is as it was."""
    if state in STOPPED:
        return ""
    until = time.monotonic() + SETTLE_S
    while True:
        now = look_at(target.pid)
        if now is None or now.identity != target.identity or now.state not in STOPPED:
            return ""
        if now.state == "T" or time.monotonic() > until:
            send_signal(target.identity, SIGCONT)
            return f"process {target.pid} was found stopped after py-spy had asked it, and was told to go on"
        time.sleep(0.02)
