"""The orchestrator's HTTP client of the inference server: no time-out, as the real one's since 2026-08-08."""

from __future__ import annotations

import http.client
import json
from typing import Any


class EngineHttp:
    """Talks to the server behind one base URL (`http://HOST:PORT/v1`)."""

    def __init__(self, base_url: str) -> None:
        address = base_url.partition("//")[2].partition("/")[0]
        host, _, port = address.partition(":")
        self.url = f"http://{address}"
        self._host = "127.0.0.1" if host in ("localhost", "") else host
        self._port = int(port or 80)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises OSError when the server can't be reached, HTTPException when it answers anything but 200."""
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"Error code: {response.status}")
            answer: dict[str, Any] = json.loads(data)
            return answer
        finally:
            connection.close()

    def healthy(self) -> bool:
        """Raises OSError when the server can't be reached."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        finally:
            connection.close()
