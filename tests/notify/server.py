"""Services that take messages, on loopback: of ntfy's and of Slack's shape, slow, refusing and lying ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Service:
    """Use as a context manager. ``answer`` may change while it runs."""

    def __init__(self, kind: str = "plain") -> None:
        self.kind = kind
        self.got: list[tuple[str, Any, float]] = []  # path, value, monotonic time
        self.status, self.body, self.wait_s = 200, self._whole_answer(), 0.0
        self.released = threading.Event()

    def _whole_answer(self) -> bytes:
        return {"ntfy": b'{"id": "abc", "event": "message"}', "slack": b"ok"}.get(self.kind, b"{}")

    def heal(self) -> None:
        self.status, self.body, self.wait_s = 200, self._whole_answer(), 0.0

    def __enter__(self) -> Self:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    value = json.loads(data)
                except ValueError:
                    value = data.decode()
                service.released.wait(service.wait_s)
                if service.status == 200 and service.body == service._whole_answer():
                    service.got.append((self.path, value, time.monotonic()))
                self.send_response(service.status)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def texts(self) -> list[str]:
        return [value["text"] if "text" in value else value["message"] for _, value, _ in self.got]


def until(is_so: Callable[[], object], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
