"""Real processes, a real journal and a folder for bundles."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.evidence.known import Asked
from supervisor.evidence.scene import Scene
from supervisor.journal.journal import Journal
from supervisor.process.survivors import Process, look_at
from tests.core.world import World

SPINS = (
    "import sys\nprint('up', flush=True)\ndef spin_in_the_optimizer():\n    while True: pass\nspin_in_the_optimizer()"
)
WAITS = "import sys, time\nprint('up', flush=True)\ndef wait_for_a_batch():\n    time.sleep(600)\nwait_for_a_batch()"


@contextlib.contextmanager
def running(*programs: str, argv: Sequence[str] = (), env: dict[str, str] | None = None) -> Iterator[list[Process]]:
    """Python processes that run these programs, each up when this begins, and gone when it ends."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, *argv], stdout=subprocess.PIPE, env={**os.environ, **(env or {})}
        )
        for program in programs
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
        yield [process for child in children if (process := look_at(child.pid)) is not None]
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def journal_with_an_incident(folder: Path, *, title: str = "", text: str = "CUDA error", over: bool = False) -> str:
    """A journal of a run that made steps and crashed, and with ``over`` went on; returns the journal's identity."""
    world = World()
    world.running_at(12)
    world.see(f.ProcessSeen(1, "trainer", 555, 9, title=title or "PRIME-RL::Trainer", key=False))
    world.see(f.GpuLook((f.Gpu("GPU-0", 0, 70 << 30, 80 << 30, "inference"),)))
    world.see(f.ErrorSeen("trainer", "cuda-oom", text))
    world.see(f.ComponentExited(1, "launcher", 1))
    if over:
        world.after(30)
        world.job_up()
        for step in (11, 12, 13):
            world.step(step)
    (folder / "attempts" / "0001").mkdir(parents=True, exist_ok=True)
    journal = Journal(folder)
    state = State()
    for observation in world.log:
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
    identity = journal.identity()
    journal.close()
    return identity


def scene(folder: Path, living: Sequence[Process] = (), **more: Any) -> Scene:
    """Incident 1 of attempt 1, with roles by the order of the processes."""
    roles = ("trainer", "inference", "orchestrator", "env")
    programs = more.pop("stack_programs", [])
    asked: dict[str, Any] = {
        "run": "practice",
        "attempt": 1,
        "incident": 1,
        "reason": "The trainer is stuck.",
        "state_dir": str(folder),
        "until": 0.0,
        "explain": {},
        "processes": [(one.pid, role, "") for one, role in zip(living, roles, strict=False)],
        "engine_page": None,
        "journal": "",
        "trees": (),
        "seen": (),
        "logs": {},
        "engine_url": None,
        "folders": (),
        "py_spy": None,
        "secrets": (),
    }
    return Scene(Asked(**{**asked, **more}), lambda: list(living), stack_programs=lambda: programs)


def manifest(bundle: Path) -> dict[str, Any]:
    return dict(json.loads((bundle / "bundle.json").read_text()))


def part(bundle: Path, name: str) -> dict[str, Any]:
    (found,) = [one for one in manifest(bundle)["parts"] if one["name"] == name]
    return dict(found)


def every_byte(folder: Path) -> dict[str, bytes]:
    """All files with their bytes, and what is packed in them."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found[path.name] = data + (gzip.decompress(data) if path.suffix == ".gz" else b"")
    return found


def until(condition: Any, what: str, timeout_s: float = 15) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.01)
    return found
