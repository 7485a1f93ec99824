"""The practice inference server: an API server that speaks HTTP, and below it an EngineCore process that does the work.

Behaviour from vLLM's V1 architecture as prime-rl runs it. A dead EngineCore: requests fail with 500, `/health` turns
503, and within seconds the API server ends by itself with exit 0. A stopped EngineCore: `/health` stays 200, requests
wait, the counters stand still at their last value (seen on vLLM 0.32 with the engine stopped: `num_requests_running`
stays 0), `/liveness` times out with 503.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from tests.practice.command_line import CommandLine, get
from tests.practice.engine_core import COUNTERS, GAUGES
from tests.practice.era import Era
from tests.practice.knobs import Knobs, read_knobs
from tests.practice.logs import Log, VllmLog
from tests.practice.processes import set_title, spawn

STATS = (
    "Engine 000: Avg prompt throughput: 12.8 tokens/s, Avg generation throughput: 512.0 tokens/s, "
    "Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 0.0%"
)
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDeadError(Exception):
    """vLLM's own: the EngineCore process is gone."""


class EngineClient:
    """The API server's side of the EngineCore: requests go down a pipe, answers and counters come back on another."""

    def __init__(self, command: list[str]) -> None:
        self.process: subprocess.Popen[bytes] = spawn(command, pipe_in=True, output=None, pipe_out=True)
        self.dead = threading.Event()
        self.ready = threading.Event()
        self.counters: dict[str, float] = dict.fromkeys((*COUNTERS, *GAUGES), 0.0)
        self._answers: dict[int, queue.Queue[dict[str, Any] | None]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        threading.Thread(target=self._read_answers, daemon=True).start()

    def ask(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Raises EngineDeadError when the engine is or turns dead, TimeoutError when it does not answer in time."""
        number = next(self._numbers)
        answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers[number] = answers
        assert self.process.stdin is not None
        try:
            if self.dead.is_set():
                raise EngineDeadError
            with self._lock:
                self.process.stdin.write(json.dumps({**request, "number": number}).encode() + b"\n")
                self.process.stdin.flush()
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        except OSError:
            raise EngineDeadError from None
        finally:
            self._answers.pop(number, None)
        if answer is None:
            raise EngineDeadError
        return answer

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self.counters.update(message.get("counters", {}))
            if message["number"] == 0:
                self.ready.set()
            elif (answers := self._answers.get(message["number"])) is not None:
                answers.put(message)
        self.process.wait()
        self.dead.set()
        for answers in list(self._answers.values()):
            answers.put(None)


class ApiServer(ThreadingHTTPServer):
    """One vLLM API server."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, *, era: Era, knobs: Knobs, model: str, engine: EngineClient, log: VllmLog) -> None:
        self.era, self.knobs, self.model, self.engine, self.log = era, knobs, model, engine, log
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        """As ThreadingHTTPServer's, without its reverse DNS look-up."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error."""


class Handler(BaseHTTPRequestHandler):
    """The endpoints that prime-rl and a supervisor use."""

    protocol_version = "HTTP/1.1"
    server: ApiServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        engine = self.server.engine
        if path == "/health":
            self._send_response(503 if engine.dead.is_set() else 200, b"", log=False)
        elif path == "/metrics":
            self._send_response(
                200, self._metrics_page().encode(), "text/plain; version=0.0.4; charset=utf-8", log=False
            )
        elif path == "/v1/models":
            self._send_json(
                200, {"object": "list", "data": [{"id": self.server.model, "object": "model", "owned_by": "vllm"}]}
            )
        elif path == "/liveness" and self.server.era.engine["liveness"]:
            self._answer_liveness()
        else:
            self._send_json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        kind = "generate" if path in ("/v1/completions", "/v1/chat/completions") else "admin"
        known = {
            word.partition("?")[0]
            for word in (*self.server.era.engine["update_paths"], *self.server.era.engine["admin_paths"])
        }
        if kind == "admin" and path not in known:
            self._send_json(404, {"detail": "Not Found"})
            return
        try:
            answer = self.server.engine.ask(
                {
                    "kind": kind,
                    "path": path,
                    "tokens": body.get("max_tokens", 16),
                    "user": body.get("user", ""),
                    "body": body if kind == "admin" else {},
                }
            )
        except EngineDeadError:
            self._send_json(
                500,
                {
                    "error": {
                        "message": ENGINE_DEAD,
                        "type": "InternalServerError",
                        "code": 500,
                    }
                },
            )
            return
        if kind == "admin":
            self._send_json(200, {"status": "ok"})
            return
        usage = {"prompt_tokens": 32, "completion_tokens": answer["tokens"], "total_tokens": 32 + answer["tokens"]}
        choice = {
            "index": 0,
            "text": answer["text"],
            "message": {"role": "assistant", "content": answer["text"]},
            "finish_reason": "stop",
        }
        self._send_json(
            200,
            {
                "id": f"cmpl-{answer['number']}",
                "object": "text_completion",
                "model": self.server.model,
                "choices": [choice],
                "usage": usage,
            },
        )

    def _answer_liveness(self) -> None:
        try:
            self.server.engine.ask(
                {"kind": "admin", "path": "liveness_probe"}, timeout_s=self.server.knobs.liveness_timeout_s
            )
        except TimeoutError:
            self._send_json(503, {"status": "engine_unresponsive"})
        except EngineDeadError:
            self._send_json(500, {"detail": "Internal Server Error"})
        else:
            self._send_json(200, {"status": "ok"})

    def _metrics_page(self) -> str:
        label = f'{{engine="0",model_name="{self.server.model}"}}'
        lines = []
        for name, value in self.server.engine.counters.items():
            kind = "counter" if name in COUNTERS else "gauge"
            lines += [f"# HELP {name} practice", f"# TYPE {name} {kind}", f"{name}{label} {value}"]
        return "\n".join(lines) + "\n"

    def _send_json(self, status: int, value: object) -> None:
        self._send_response(status, json.dumps(value).encode(), "application/json")

    def _send_response(self, status: int, body: bytes, kind: str = "text/plain", *, log: bool = True) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        if log:
            host, port = self.client_address[:2]
            reason = {200: "OK", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}[status]
            self.server.log.uvicorn(f'{host}:{port} - "{self.command} {self.path} HTTP/1.1" {status} {reason}')

    def log_message(self, format: str, *arguments: object) -> None:
        """The access lines are written in uvicorn's shape instead."""


def serve(era: Era, home: Path, arguments: list[str]) -> int:
    """`inference @ FILE`: the API server. Since 2026-07-29 it starts a router on the configured port and moves to
    port + 100."""
    if era.titles:
        set_title("PRIME-RL::Inference")
    config = CommandLine(era, "inference").parse(arguments)
    knobs = read_knobs()
    model = str(get(config, "model.name", get(config, "vllm.model", "Qwen/Qwen3-0.6B")))
    public = int(get(config, "server.port", 8000))
    port = public + (int(era.engine["port_offset"]) if era.engine["router"] else 0)
    if era.titles:
        Log().write("INFO", era.line("inference", "starting", host="0.0.0.0", port=public, engine_port=port))
    signal.signal(signal.SIGTERM, _on_sigterm)
    log = VllmLog("APIServer")
    log.line("INFO", "api_server.py:1977", f"vLLM API server version {era.vllm}")
    router = (
        spawn(
            [
                str(home / ".venv" / "bin" / "vllm-router"),
                "--port",
                str(public),
                "--worker-urls",
                f"http://localhost:{port}",
            ]
        )
        if era.engine["router"]
        else None
    )
    engine = EngineClient(
        [
            sys.executable,
            "-c",
            "from tests.practice.entry import main; main()",
            "engine-core",
            era.name,
            str(home),
        ]
    )
    try:
        while not engine.ready.wait(0.05):
            if engine.dead.is_set():
                log.line("ERROR", "core_client.py:600", "Engine core initialization failed. See root cause above.")
                return 1
        with ApiServer(port, era=era, knobs=knobs, model=model, engine=engine, log=log) as server:
            return _run_server(server, knobs, log)
    except KeyboardInterrupt:
        log.uvicorn("Shutting down")
        return 0
    finally:
        _end_process(engine.process)
        if router is not None:
            _end_process(router)


def _run_server(server: ApiServer, knobs: Knobs, log: VllmLog) -> int:
    log.uvicorn(f"Started server process [{os.getpid()}]")
    log.uvicorn("Waiting for application startup.")
    log.uvicorn("Application startup complete.")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    quiet = 0.0
    while not server.engine.dead.wait(0.2):
        quiet += 0.2
        if quiet >= 20 * knobs.pipeline_log_s and server.engine.counters["vllm:num_requests_running"]:
            quiet = 0.0
            log.line(
                "INFO",
                "loggers.py:236",
                STATS,
            )
    log.line("ERROR", "core_client.py:600", "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.")
    log.line("ERROR", "async_llm.py:546", "AsyncLLM output_handler failed.")
    log.line(
        "ERROR",
        "async_llm.py:546",
        f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}",
    )
    time.sleep(knobs.engine_exit_delay_s)
    log.uvicorn("Shutting down")
    log.uvicorn("Waiting for application shutdown.")
    log.uvicorn("Application shutdown complete.")
    log.uvicorn(f"Finished server process [{os.getpid()}]")
    return 0


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
