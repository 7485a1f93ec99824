"""A network between the head and one agent that a test can cut: a proxy on loopback."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from pathlib import Path


class Proxy:
    """``address`` leads to the head that the shared folder names. While ``cut`` is set nothing passes."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = False
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._ended = True
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError, KeyError):
            host, _, port = json.loads((self.shared / "head.json").read_text())["address"].rpartition(":")
            with socket.create_connection((host, int(port)), 5) as head:
                other = {client: head, head: client}
                while not self._ended:
                    if self.cut.is_set():
                        self.cut.wait(0.05)
                        threading.Event().wait(0.05)
                        continue
                    for side in select.select([client, head], [], [], 0.1)[0]:
                        if self.cut.is_set():
                            break
                        data = side.recv(1 << 16)
                        if not data:
                            return
                        other[side].sendall(data)
