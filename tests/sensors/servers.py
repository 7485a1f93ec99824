"""Servers for the engine sensor's tests: one that speaks like vLLM, and one that says whatever bytes a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Vllm:
    """What a test sets, and the server reads when it is asked."""

    def __init__(self) -> None:
        self.health = 200
        self.liveness: int | None = 200  # None: hangs
        self.completion: int | None = 200
        self.metrics = 200
        self.tokens = 100.0
        self.running = 0.0
        self.waiting = 0.0
        self.models = '{"object": "list", "data": [{"id": "Qwen/Qwen3-0.6B"}]}'
        self.asked: list[str] = []
        self.bodies: list[str] = []
        self.released = threading.Event()
        self.engines: list[
            tuple[float, float, float]
        ] = []  # (tokens, running, waiting) of each where there are several
        self.open_completions = 0
        self.most_open_completions = 0
        self.url = ""
        self.port = 0

    def page(self) -> str:
        engines = self.engines or [(self.tokens, self.running, self.waiting)]
        return "".join(self._engine(index, *engine) for index, engine in enumerate(engines))

    def _engine(self, index: int, tokens: float, running: float, waiting: float) -> str:
        # Golden lines: vllm 0.10 to 0.26, one API server, cut to what matters here.
        labels = f'engine="{index}",model_name="Qwen/Qwen3-0.6B"'
        return (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{{{labels}}} {running}\n"
            f"vllm:num_requests_waiting{{{labels}}} {waiting}\n"
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 77.0\n'
            f"vllm:generation_tokens_total{{{labels}}} {tokens}\n"
            f"vllm:generation_tokens_created{{{labels}}} 1.7e+09\n"
            f'vllm:iteration_tokens_total_bucket{{{labels},le="1.0"}} 3.0\n'
            f"vllm:iteration_tokens_total_sum{{{labels}}} 99.0\n"
            f"vllm:iteration_tokens_total_count{{{labels}}} {tokens / 2}\n"
        )


@contextlib.contextmanager
def vllm(port: int = 0) -> Iterator[Vllm]:
    """A server that speaks like vLLM, on ``port``."""
    state = Vllm()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int | None, text: str = "") -> None:
            if status is None:
                state.released.wait(20)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            state.asked.append(self.path)
            status = {"/health": state.health, "/liveness": state.liveness, "/metrics": state.metrics}
            text = {"/metrics": state.page(), "/v1/models": state.models}
            self.answer(status.get(self.path, 200), text.get(self.path, ""))

        def do_POST(self) -> None:
            state.asked.append(self.path)
            state.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            state.open_completions += 1
            state.most_open_completions = max(state.most_open_completions, state.open_completions)
            self.answer(state.completion, '{"choices": [{"text": "a"}]}')
            state.open_completions -= 1

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", port), Handler)
    state.port = server.server_address[1]
    state.url = f"http://127.0.0.1:{state.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def raw(speak: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that calls ``speak(connection, ended)`` for each connection; gives its URL."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    speak(connection, ended)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
