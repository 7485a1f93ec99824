"""The practice `vllm-router`: passes connections on to the engine, and stays up when the engine is dead (since
2026-07-29)."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading


def route(arguments: list[str]) -> int:
    """`vllm-router --port P --worker-urls URL`: passes bytes on to the engine; up even when the engine is dead."""
    options = dict(itertools.pairwise(arguments))
    target = ("127.0.0.1", int(options["--worker-urls"].rpartition(":")[2]))
    listener = socket.create_server(("127.0.0.1", int(options["--port"])), backlog=128)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_route_one, args=(client, target), daemon=True).start()


def _route_one(client: socket.socket, target: tuple[str, int]) -> None:
    with client:
        try:
            worker = socket.create_connection(target, timeout=5)
        except OSError:
            client.recv(65536)
            body = b"No available workers"
            client.sendall(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (len(body), body)
            )
            return
        worker.settimeout(None)
        with worker:
            back = threading.Thread(target=_pump_bytes, args=(worker, client), daemon=True)
            back.start()
            _pump_bytes(client, worker)
            back.join()


def _pump_bytes(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
