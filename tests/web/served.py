"""The page on loopback, over a look that a test wrote down."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import uvicorn

from supervisor.base.errors import SupervisorError
from supervisor.web.app import make_app
from supervisor.web.history import Piece
from supervisor.web.sources import RunSource, Seen

NOW = 1_763_950_000.0
GIB = 1 << 30
SCRIPT = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"


class Told:
    """Stands for a ``RunSource``."""

    price = 2.0

    def __init__(self, seen: Seen, logs: Mapping[str, str] | None = None) -> None:
        self.seen, self.logs, self.looks = seen, dict(logs or {}), 0

    def look(self, store_s: float = 0.0) -> Seen:
        self.looks += 1
        return self.seen

    def read_log(self, name: str) -> str:
        if name not in self.logs:
            raise SupervisorError(f"There is no log {name}.")
        return self.logs[name]


@contextmanager
def serve(told: Mapping[str, Told], token: str | None = None, fleet: Any = None) -> Iterator[str]:
    """The address of the page."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = make_app(cast(Mapping[str, RunSource], told), token, fleet)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", server_header=False))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def until(is_so: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def seen(**more: Any) -> Seen:
    """A run that was rolled back once and had two incidents, of which one is open; its texts are hostile."""
    first = [
        {"t": NOW - 4000 + 60 * n, "step": n, "role": "trainer", "reward": n / 50, "loss": 1 / n, "s": 60.0}
        for n in range(1, 31)
    ]
    second = [
        {"t": NOW - 2000 + 60 * n, "step": n + 20, "role": "trainer", "reward": 0.5 + n / 50, "loss": 0.1, "s": 60.0}
        for n in range(1, 31)
    ]
    samples = [
        {
            "t": NOW - 4000 + 30 * n,
            "disk": 9e11 - 1e9 * n,
            "gpu": {"0": [60 * GIB, 61 * GIB, 90], "1": [0, 40 * GIB, 50]},
        }
        for n in range(60)
    ]
    roles = {"t": NOW - 4000, "roles": {"0": ["inference", 80 * GIB], "1": ["trainer", 80 * GIB]}}
    said = {"t": NOW - 2100, "event": "verdict", "level": "error", "sentence": f"vLLM died. {SCRIPT}"}
    rows = sorted([*first, *samples, roles, said], key=lambda row: cast(float, row["t"]))
    status = {
        "state": "running",
        "sentence": f"step 50 of 100, 60 s {SCRIPT}",
        "since": NOW - 2000,
        "step": 50,
        "max_steps": 100,
        "step_seconds": 60.0,
        "published_step": 40,
        "attempt": 2,
        "engine": {"health": "ok"},
        "disk": {"free_bytes": 9e11},
        "local_steps": [{"step": 50, "state": "complete", "size_bytes": 47e9}],
        "stored_steps": [{"step": 40, "committed": True, "size_bytes": 47e9, "problem": "", "left": ""}],
        "quarantined": [40],
        "notes": [f"A note {SCRIPT}"],
    }
    incident = {"attempt": 1, "cause": "engine-gone", "signals": ["GPU 0 at 600 MiB"], "done": ["The job was stopped."]}
    root = {"name": "engine-dead", "role": "inference server", "text": SCRIPT, "remedy": ""}
    closed = incident | {"id": 1, "opened": NOW - 2100, "closed": NOW - 1990, "down_s": 110.0, "recovered_step": 21}
    opened = incident | {"id": 2, "opened": NOW - 60, "closed": None, "sentence": "The trainer is stuck."}
    report = {
        "seconds": 4000.0,
        "ettr": 0.9,
        "categories": {"GOODPUT": 3600.0, "STARTUP": 300.0, "RESTORE": 100.0},
        "pods": [{"journal": "a" * 32, "began": NOW - 4000, "until": NOW}],
        "notes": [],
        "incidents": [],
    }
    words = {
        "status": status,
        "report": report,
        "incidents": [opened, closed | {"sentence": f"vLLM died silently. {SCRIPT}", "roots": [root]}],
        "pieces": [Piece("aaaaaaaa", 1, rows), Piece("aaaaaaaa", 2, second)],
        "logs": ["trainer"],
    }
    return Seen("swe", NOW, **(words | more))
