"""The practice EngineCore: the process below the API server that holds the GPU memory, makes the tokens and meets
the engine's faults."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.practice import gpus
from tests.practice.era import Era
from tests.practice.knobs import Knobs, State, read_knobs
from tests.practice.logs import VllmLog
from tests.practice.processes import die, set_title

COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


class EngineCore:
    """The engine process: takes requests from its standard input, a thread each, and meets the engine's faults."""

    def __init__(self, era: Era, knobs: Knobs, home: Path) -> None:
        self.era, self.knobs, self.home = era, knobs, home
        self.weights = "base"  # or the folder of the last update
        self._going = threading.Event()  # cleared by /pause, which freezes what is under way
        self._going.set()
        self.log = VllmLog("EngineCore_DP0")
        self.counters: dict[str, float] = dict.fromkeys((*COUNTERS, *GAUGES), 0.0)
        self._lock = threading.Lock()
        self._output = os.fdopen(os.dup(1), "wb", buffering=0)
        sys.stdout.flush()
        os.dup2(2, 1)

    def run(self) -> None:
        self._hold_memory(self.knobs.engine_memory_bytes)
        time.sleep(self.knobs.start_s)
        self.log.line("INFO", "core.py:93", f"Initializing a V1 LLM engine (v{self.era.vllm})")
        self._send_answer({"number": 0})
        for line in sys.stdin.buffer:
            threading.Thread(target=self._serve_request, args=(json.loads(line),), daemon=True).start()

    def _hold_memory(self, size: int) -> None:
        gpus.hold_memory(dict.fromkeys(gpus.visible_gpus(), size))

    def _serve_request(self, request: dict[str, Any]) -> None:
        if request["kind"] == "admin":
            self._obey(request["path"], request.get("body") or {})
            self._send_answer({"number": request["number"]})
            return
        step = int(request["user"].removeprefix("step ")) if request["user"].startswith("step ") else -1
        self._meet_faults(step)
        tokens = int(request["tokens"])
        self._count_requests({"vllm:num_requests_running": 1, "vllm:prompt_tokens_total": 32})
        self._generate_tokens(self.knobs.step_s / 2)
        self._note_answer(step)
        self._count_requests({"vllm:num_requests_running": -1, "vllm:generation_tokens_total": tokens})
        self._send_answer({"number": request["number"], "tokens": tokens, "text": f"The answer of step {step}."})

    def _obey(self, path: str, body: dict[str, Any]) -> None:
        if path == "/pause":
            self._going.clear()
        elif path == "/resume":
            self._going.set()
        elif path == "/update_weights":
            self.weights = Path(str(body.get("weight_dir"))).name
        elif path == "/reload_weights":
            self.weights = "base"

    def _generate_tokens(self, seconds: float) -> None:
        """Takes ``seconds`` of the time in which the engine is not paused."""
        slices = 10
        for _ in range(slices):
            self._going.wait()
            time.sleep(seconds / slices)
        self._going.wait()

    def _note_answer(self, step: int) -> None:
        """Which weights ended this answer: it cannot be seen from outside, and a test wants to know."""
        if step >= 0 and self.state is not None and self.state.folder.exists():
            entry = {"step": step, "weights": self.weights, "pid": os.getpid()}
            with (self.state.folder / "answers.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(entry) + "\n")

    @functools.cached_property
    def state(self) -> State | None:
        """The run folder's, once it is known: a server that is started by itself is up before any launcher."""
        named = os.environ.get("PRACTICE_RUN_DIR")
        if named is None:
            with contextlib.suppress(OSError):
                named = (self.home / ".practice" / "run-dir").read_text(encoding="utf-8")
        return State(self.home, Path(named)) if named else None

    def _meet_faults(self, step: int) -> None:
        if step < 0 or self.state is None:
            return
        if self.state.strikes(self.knobs, "memory-fell", step):
            self._hold_memory(0)
        if self.state.strikes(self.knobs, "engine-exit-0", step):
            die()
        hang = self.state.strikes(self.knobs, "engine-hang", step)
        if hang and hang.how == "block":
            with self._lock:
                time.sleep(3600 * 24)
        if hang:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _count_requests(self, changes: dict[str, float]) -> None:
        with self._lock:
            for name, change in changes.items():
                self.counters[name] += change

    def _send_answer(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._output.write(json.dumps({**answer, "counters": self.counters}).encode() + b"\n")


def core(era: Era, home: Path) -> int:
    """The EngineCore process. It dies with its API server, unless it is stopped."""
    set_title("VLLM::EngineCore")
    knobs = read_knobs()
    engine = EngineCore(era, knobs, home)
    state = engine.state if os.environ.get("PRACTICE_RUN_DIR") else None
    if state is not None and state.strikes(knobs, "ignores-sigterm", era.first_step, "engine"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    engine.run()
    gpus.release()
    return 0
