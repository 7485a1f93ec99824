"""Stands between a client and the S3 server: keeps a journal of requests, and makes the faults that tests ask for."""

from __future__ import annotations

import http.client
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PAGES = {
    "ListObjectsV2": "max-keys",
    "ListObjectVersions": "max-keys",
    "ListMultipartUploads": "max-uploads",
    "ListParts": "max-parts",
}
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


@dataclass
class Fault:
    """What happens to requests whose operation matches: ``times`` of them, after the first ``after``."""

    operation: str
    times: int = 1
    after: int = 0
    header: str | None = None  # only requests that have it
    status: int = 0  # answer this instead of asking the server
    code: str = "InternalError"
    message: str = "made by the test"
    body: bytes | None = None  # of that answer, instead of an error's
    retry_after: int | None = None
    flip_sent: bool = False  # one byte of the body is another one when it reaches the server
    flip_answer: bool = False
    cut_answer: int | None = None  # the connection ends after so many bytes of the body
    lose_answer: bool = False  # the server has done it, the client never hears
    without: tuple[str, ...] = ()  # headers that the server never sees, as if it ignored them
    hidden: tuple[str, ...] = ()  # headers of the answer that the client never sees
    page: int = 0  # so many entries, and no more, are on a page of a listing
    hold: threading.Event | None = None  # wait for this before asking the server


@dataclass
class Journal:
    entries: list[dict[str, Any]] = field(default_factory=list)

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if re.fullmatch(operation, entry["op"])]


class Proxy:
    """``with Proxy(port) as proxy``: the same server at ``proxy.url``."""

    def __init__(self, port: int, access_key: str, secret_key: str) -> None:
        self.upstream = port
        self.journal = Journal()
        self.faults: list[Fault] = []
        self.lock = threading.Lock()
        self.credentials = Credentials(access_key, secret_key)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, operation: str, **what: Any) -> Fault:
        fault = Fault(operation, **what)
        with self.lock:
            self.faults.append(fault)
        return fault

    def take(self, operation: str, headers: Any) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if not re.fullmatch(fault.operation, operation) or fault.times <= 0:
                    continue
                if fault.header and fault.header not in headers:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def __enter__(self) -> Proxy:
        self._server = _Listener(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    proxy: Proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read the journal instead."""

    def handle_expect_100(self) -> bool:
        told = super().handle_expect_100()
        self.wfile.flush()  # else the client waits its second, and sends then
        return told

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        operation = operation_of(self.command, key, query)
        entry = {"op": operation, "key": key, "query": query, "size": len(body), "status": 0}
        entry["part"] = int(query.get("partNumber", ["0"])[0])
        entry["headers"] = {name.lower(): value for name, value in self.headers.items()}
        with proxy.lock:
            proxy.journal.entries.append(entry)
        fault = proxy.take(operation, self.headers) or Fault(operation)
        if fault.hold:
            fault.hold.wait(30)
        try:
            if fault.status:
                entry["status"] = fault.status
                self._answer(fault.status, _error_headers(fault), self._error(fault))
                return
            if fault.flip_sent and body:
                body = body[:-1] + bytes([body[-1] ^ 1])
            status, headers, data = self._ask(body, fault)
            entry["status"] = status
            if fault.lose_answer:
                self.close_connection = True
                return
            headers = [(name, value) for name, value in headers if name.lower() not in fault.hidden]
            if fault.flip_answer and data:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self._answer(status, headers, data, fault.cut_answer)
        except OSError:  # the client is gone
            self.close_connection = True

    def _ask(self, body: bytes, fault: Fault) -> tuple[int, list[tuple[str, str]], bytes]:
        proxy = self.server.proxy
        skip = {"expect", "connection", "proxy-connection", *fault.without}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skip}
        path = f"{self.path}&{PAGES[fault.operation]}={fault.page}" if fault.page else self.path
        if fault.without or fault.page:
            for name in list(headers):
                if name.lower() in ("authorization", "x-amz-date", "x-amz-content-sha256"):
                    del headers[name]
            request = AWSRequest(self.command, f"http://{self.headers['Host']}{path}", headers, body)
            S3SigV4Auth(proxy.credentials, "s3", "us-east-1").add_auth(request)
            headers = dict(request.headers.items())
        connection = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
        try:
            connection.request(self.command, path, body or None, headers)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, answer.getheaders(), data
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int | None = None) -> None:
        self.send_response_only(status)
        told = False
        for name, value in headers:
            if name.lower() in ("transfer-encoding", "connection"):
                continue
            told = told or name.lower() == "content-length"
            self.send_header(name, value)
        if not told and status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if cut is None else data[:cut])
        self.wfile.flush()
        if cut is not None:
            self.close_connection = True

    def _error(self, fault: Fault) -> bytes:
        if fault.body is not None:
            return fault.body
        return b"" if self.command == "HEAD" else ERROR.format(code=fault.code, message=fault.message).encode()


def _error_headers(fault: Fault) -> list[tuple[str, str]]:
    return [("Retry-After", str(fault.retry_after))] if fault.retry_after is not None else []


def operation_of(method: str, key: str, query: dict[str, list[str]]) -> str:
    """S3's name of a request."""
    if not key:
        for word in ("versioning", "versions", "uploads"):
            if word in query:
                return {"versioning": "GetBucketVersioning", "versions": "ListObjectVersions"}.get(
                    word, "ListMultipartUploads"
                )
        return {"GET": "ListObjectsV2", "PUT": "CreateBucket"}.get(method, method)
    if "uploads" in query:
        return "CreateMultipartUpload"
    if "uploadId" in query:
        names = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
        return names.get(method, "ListParts")
    return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}.get(method, method)
