"""An OpenTelemetry collector on loopback: it takes OTLP over HTTP as protobuf, and keeps what it understood."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """``status``: with which it answers. ``hangs``: it does not answer at all while that is set."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.metrics: list[Any] = []  # ResourceMetrics of opentelemetry.proto
        self.spans: list[Any] = []  # Span
        self.resources: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.asked = 0
        self.status = 200
        self.hangs = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, data: bytes) -> int:
        """Status of the answer."""
        if path == "/v1/metrics":
            self.metrics += ExportMetricsServiceRequest.FromString(data).resource_metrics
        elif path == "/v1/traces":
            for one in ExportTraceServiceRequest.FromString(data).resource_spans:
                self.resources.append(one.resource)
                self.spans += [span for scope in one.scope_spans for span in scope.spans]
        else:
            return 404
        return 200

    def newest(self, name: str) -> list[tuple[dict[str, str], float]]:
        """The samples of a metric as it came last; [] where it never came."""
        for resource in reversed(self.metrics):
            for one in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                if one.name == name:
                    points = (one.sum if one.HasField("sum") else one.gauge).data_points
                    return [({tag.key: tag.value.string_value for tag in p.attributes}, p.as_double) for p in points]
        return []


class _Handler(BaseHTTPRequestHandler):
    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked += 1
        if self.server.hangs.is_set():
            threading.Event().wait(300)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        assert self.headers["Content-Type"] == "application/x-protobuf"
        status = self.server.status if self.server.status != 200 else self.server.take(self.path, data)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not news."""


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector until the end."""
    with Collector(port) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
