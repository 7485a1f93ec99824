"""The components of a small job over several machines, as processes of their own.

``job.py ROLE FOLDER [STEP]``. The trainer makes a step as soon as all engines have answered it (a file that each
touches again and again), saves every second one, and takes a lock for its whole life: a second writer is written down.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEP_S = 0.2
FRESH_S = 1.5  # an engine that has not beaten for so long does not answer


def train(folder: Path, step: int, last: int, engines: int) -> int:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "two-writers").write_text(f"{os.getpid()}\n")
        return 1
    with (folder / "starts").open("a") as file:
        file.write(f"{step} {time.time()}\n")
    while step < last:
        while not all_answer(folder, engines):
            time.sleep(0.05)
        time.sleep(STEP_S)
        step += 1
        with (folder / "trained").open("a") as file:
            file.write(f"{step}\n")
        if step % 2 == 0:
            target = folder / "checkpoints" / f"step_{step}"
            target.mkdir(parents=True, exist_ok=True)
            (target / "optimizer.pt").write_text("x" * 1000)
        print(f"step {step} done", flush=True)
    print("training finished", flush=True)
    return 0


def all_answer(folder: Path, engines: int) -> bool:
    now = time.time()
    found = [path.stat().st_mtime for path in folder.glob("engine-*")]
    return sum(now - t < FRESH_S for t in found) >= engines


class Vllm(BaseHTTPRequestHandler):
    """vLLM's HTTP side: with ``frozen`` it answers, has requests, and makes nothing."""

    frozen = Path()
    began = time.monotonic()
    stood: float | None = None

    def do_GET(self) -> None:
        if not self.frozen.exists():
            Vllm.stood = None
        elif Vllm.stood is None:
            Vllm.stood = time.monotonic()
        count = int(100 * ((Vllm.stood or time.monotonic()) - Vllm.began))
        status = 503 if self.path == "/liveness" and Vllm.stood else 200
        text = f"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:generation_tokens_total {count}\n"
        self.answer(status, text if self.path == "/metrics" else json.dumps({"data": [{"id": "a-model"}]}))

    def do_POST(self) -> None:
        self.answer(503 if Vllm.stood else 200, "{}")

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: object) -> None:
        pass


def serve(folder: Path, number: int, port: int) -> int:
    """An engine: beats until it is told to end, in silence, by a file with the exit code. ``port`` 0: no HTTP."""
    if port:
        Vllm.frozen = folder / f"freeze-{number}"
        threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", port), Vllm).serve_forever, daemon=True).start()
    order = folder / f"end-{number}"
    while not order.exists():
        (folder / f"engine-{number}").touch()
        time.sleep(0.1)
    code = int(order.read_text() or 0)
    order.unlink()
    return code


def main() -> int:
    role, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    if role == "trainer":
        return train(folder, int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    return serve(folder, int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    sys.exit(main())
