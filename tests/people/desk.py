"""A daemon's desk without a daemon: a status to change, events to add, orders that are written down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from supervisor.api import metrics
from supervisor.api.protocol import Api, Reply

GIB = 1 << 30


class FakeDesk:
    """Implements ``supervisor.api.protocol.Desk``."""

    def __init__(self, run: str = "bs4-qwen3", **changes: Any) -> None:
        opened = time.time() - 3600
        vllm = "vLLM died silently: process 4711 is gone and GPU 0 fell to 0 MiB."
        self.now: dict[str, Any] = {
            "run": run,
            "state": "running",
            "paused": False,
            "sentence": "step 412 of 1000, 212 s a step, reward 0.41; published step 410; "
            f"last incident: {vllm.rstrip('.')}; back after 3 min 41 s",
            "since": opened + 221,
            "step": 412,
            "max_steps": 1000,
            "step_seconds": 212.0,
            "reward": 0.41,
            "loss": None,
            "attempt": 2,
            "restarts": 1,
            "pid": 5001,
            "last_good_step": 410,
            "published_step": 410,
            "local_steps": [
                {"step": 400, "state": "complete", "reason": "", "size_bytes": 31 * GIB},
                {"step": 410, "state": "complete", "reason": "", "size_bytes": 31 * GIB},
                {"step": 420, "state": "writing", "reason": "its files still change", "size_bytes": GIB},
            ],
            "stored_steps": [
                {"step": 410, "committed": True, "size_bytes": 31 * GIB},
                {"step": 415, "committed": False, "size_bytes": GIB},
            ],
            "store": "b2://bucket/prefix",
            "store_reason": "",
            "disk": {"path": "/workspace", "total_bytes": 200 * GIB, "free_bytes": 80 * GIB, "reason": ""},
            "gpus": [
                {
                    "index": 0,
                    "uuid": "GPU-a",
                    "used_bytes": 70 * GIB,
                    "total_bytes": 80 * GIB,
                    "role": "inference",
                }
            ],
            "gpu_reason": "",
            "engine": {"health": "ok", "liveness": "absent", "running": 12.0, "waiting": 0.0},
            "incident": None,
            "last_incident": {
                "id": 1,
                "opened": opened,
                "cause": "engine-gone",
                "sentence": vllm,
                "seconds": 221.0,
                "closed": opened + 221,
                "recovered_step": 401,
            },
            "publishing": None,
            "config_changed": [],
            "wandb_id": "abcd1234",
            "version": "0.1.0",
            "daemon_pid": 4000,
            "uptime_s": 7200.0,
            "job": "prime-rl, as of 2026-06-22 (v0.6)",
            "notes": [],
            "exit_code": None,
            **changes,
        }
        self.said: list[dict[str, Any]] = []
        self.orders: list[tuple[str, list[str], str]] = []
        self.files: dict[str, Path] = {}
        self.broken: Exception | None = None
        self.refuses = ""
        self.asked_events = threading.Event()

    def metrics(self) -> str:
        return metrics.render(self.status())

    def status(self) -> dict[str, Any]:
        if self.broken:
            raise self.broken
        return self.now

    def command(self, verb: str, args: list[str], who: str) -> Reply:
        self.orders.append((verb, args, who))
        return Reply(not self.refuses, self.refuses or f"The order to {verb} is taken.")

    def say(self, sentence: str, level: str = "info", **fields: Any) -> None:
        number = len(self.said) + 1
        event = {"id": number, "wall": 1767668531.0 + number, "level": level, "event": "step"}
        self.said.append({**event, "sentence": sentence, "fields": fields})

    def events(self, after: int, limit: int) -> list[dict[str, Any]]:
        self.asked_events.set()
        return self.said[-limit:] if after < 0 else [item for item in self.said if item["id"] > after][:limit]

    def incidents(self, number: int | None, *, only_open: bool) -> list[dict[str, Any]]:
        return []

    def log_files(self) -> dict[str, Path]:
        return self.files

    def explain(self) -> dict[str, Any]:
        return {
            "sentence": "Healthy: step 412 of 1000.",
            "evidence": [{"name": "engine", "sentence": "/health ok", "age_s": 3.0}],
            "deadline": {"sentence": "A new step: three times the median of 212 s.", "seconds_left": 500.0},
            "history": ["vLLM died silently."],
        }

    def health(self) -> tuple[bool, str]:
        return True, "the loop turned 0.1 s ago"

    def ready(self) -> tuple[bool, str]:
        return self.now["state"] == "running", f"the run is {self.now['state']}"


def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    """Poll until ``true()``, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@contextmanager
def serving(folder: Path) -> Iterator[Callable[..., Api]]:
    """Gives what answers for a desk at FOLDER/RUN.sock, until the end."""
    with ExitStack() as served:

        def begin(desk: FakeDesk, **more: Any) -> Api:
            api = Api(desk, folder / f"{desk.now['run']}.sock", **more)
            served.callback(api.close)
            api.start()
            return api

        yield begin
