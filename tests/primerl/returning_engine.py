"""What the trial of a returning inference server runs beside itself: the server, and prime-rl's orchestrator.

Run as a program, by an interpreter that has httpx, tenacity and loguru: ``engine PORT`` or ``orchestrator ROOT OUTPUT
PORT STEP``. The server is a fake that speaks the endpoints of prime-rl's inference/vllm/server.py and knows which
weights it holds. Of the orchestrator the modules in ``REAL`` are the real ones below ROOT, and so are
``LIBRARIES``; anything else that they import is an empty stand-in. Both print one JSON object a line.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

REAL = (
    *("utils.client", "utils.async_utils", "utils.logger", "utils.pathing", "utils.utils"),
    *("orchestrator.watcher", "orchestrator.scheduler", "orchestrator.orchestrator"),
)

LIBRARIES = ("httpx", "httpcore", "anyio", "anyio._backends._asyncio", "h11", "idna", "certifi", "tenacity", "loguru")


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


# ---------------------------------------------------------------- the server


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    weights = "base"

    def __init__(self, port: int) -> None:
        self.running = threading.Event()
        self.running.set()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "ok"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/pause":
            self.server.running.clear()
        elif path == "/resume":
            self.server.running.set()
        elif path == "/update_weights":
            self.server.weights = Path(json.loads(body)["weight_dir"]).name
        elif path == "/v1/completions":
            self.server.running.wait()
        tell(path=path, weights=self.server.weights)
        self._answer({"weights": self.server.weights})

    def _answer(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        pass


# ---------------------------------------------------------------- the orchestrator


class _StandIn(ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = (
            type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)}) if name[0].isupper() else MagicMock()
        )
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty module for all that is neither in ``REAL`` nor loaded by now."""

    def __init__(self) -> None:
        self.installed = {name.partition(".")[0] for name in sys.modules}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top, _, inside = name.partition(".")
        if top == "prime_rl":
            real = any(f"{one}.".startswith(f"{inside}.") or not inside for one in REAL)
        else:
            real = top in sys.stdlib_module_names or top in self.installed
        return None if real else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(name: str) -> Any:
    return importlib.import_module(f"prime_rl.{name}")


class Told:
    """What the watcher tells of each update (VersionObserver)."""

    async def on_version_pending(self, step: int) -> None:
        pass

    async def on_new_version(self, step: int) -> None:
        tell(updated=step)


async def orchestrate(output: Path, port: int, step: int) -> None:
    """The real loop that hands weights over and, from June 2026 on, the real main loop beside it."""
    client = load("utils.client")
    where = f"http://127.0.0.1:{port}/v1"
    config = SimpleNamespace(
        base_url=where, admin_base_url=[where], headers={}, headers_from_env={}, api_key_var="NONE"
    )
    if not hasattr(client, "InferencePool"):
        config.base_url, config.timeout = [where], 1200
        await _orchestrate_of_january(client.setup_admin_clients(config), output, step)
    kind = getattr(client, "StaticInferencePool", client.InferencePool)
    pool = kind.__new__(kind)
    pool._admin_clients = client.setup_admin_clients(config)
    settings = SimpleNamespace(output_dir=output, max_steps=None)
    policy = SimpleNamespace(version=step, model_name="m")
    watcher = load("orchestrator.watcher").WeightWatcher(
        settings, policy=policy, inference=pool, observers=[Told()], lora_name=None, ckpt_step=step
    )
    main = load("orchestrator.orchestrator").Orchestrator
    one = main.__new__(main)
    one.stopped, one.draining = asyncio.Event(), False
    one.dispatcher = SimpleNamespace(out_q=asyncio.Queue(), is_idle=False)
    one.component_tasks = [asyncio.create_task(watcher.start(), name="watcher")]
    tell(ready=[module.__file__ for name, module in sys.modules.items() if name[9:] in REAL])
    await one.main_loop()


async def _orchestrate_of_january(clients: list[Any], output: Path, step: int) -> NoReturn:
    load("utils.logger").setup_logger("info")
    kind = load("orchestrator.scheduler").Scheduler
    scheduler = kind.__new__(kind)
    scheduler.__dict__.update(
        admin_clients=clients,
        logger=MagicMock(),
        config=SimpleNamespace(output_dir=output),
        step=step,
        ckpt_step=step,
        max_async_level=2,
        max_off_policy_steps=8,
        strict_async_level=False,
        lora_name=None,
        workers={},
        inflight_group_rollouts={},
        checkpoint_ready=asyncio.Event(),
        cancelled_rollouts_count=0,
    )
    # Kept, and never looked at, as in its orchestrator.py.
    scheduler.task = asyncio.create_task(scheduler.update_policy_loop())
    tell(ready=[module.__file__ for name, module in sys.modules.items() if name[9:] in REAL])
    while True:
        if scheduler.ckpt_step > step:
            step = scheduler.ckpt_step
            tell(updated=step)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        Server(int(sys.argv[2])).serve_forever()
    else:
        sys.path[:0] = [f"{sys.argv[2]}/src", f"{sys.argv[2]}/packages/prime-rl-configs/src"]
        for library in LIBRARIES:
            importlib.import_module(library)
        sys.meta_path.insert(0, StandIns())
        asyncio.run(orchestrate(Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
