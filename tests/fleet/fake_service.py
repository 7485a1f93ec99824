"""What the fake providers share: a service on loopback that goes wrong where a test says so."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass
class Fault:
    """What goes wrong ``times`` times at the route ``at``: a name of the service's STATUS_FAULTS, or

    ``late``: it is done and not answered. ``reset``: nothing is done, and the connection is reset. ``lost``: it is
    done, and the connection is reset. ``drip``: it is done, and answered a byte at a time. ``nulls``: each field of
    each row is null. A service may know more of them.
    """

    name: str
    at: str
    times: int = 1
    retry_after: str = ""


class FakeService:
    """Use as a context manager; ``url`` is where it listens. ``released`` ends what hangs."""

    faults: list[Fault]

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.released = threading.Event()

    def handler(self) -> type[ServiceHandler]:
        """What answers requests."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler(),), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def take_fault(self, route: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.at == route and fault.times > 0:
                    fault.times -= 1
                    return fault
            return None


class ServiceHandler(BaseHTTPRequestHandler):
    """One request. A subclass answers it in ``serve``."""

    protocol_version = "HTTP/1.1"
    service: FakeService

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        with suppress(OSError):  # a client that gave up
            self.serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def serve(self) -> None:
        raise NotImplementedError

    def drip(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + 100_000))
        self.end_headers()
        for byte in data + b" " * 100_000:
            self.wfile.write(bytes([byte]))
            if self.service.released.wait(0.02):
                return

    def reset(self) -> None:
        """With time-out 0 the kernel sends RST in place of FIN."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
