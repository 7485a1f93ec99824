"""A B2 server that costs as little as Python allows, so that a bench measures clients: `python -m bench.b2_lean`.

It speaks with the operations of ``tests/b2server`` and differs in the bytes: bodies are read into memory that was
touched before, and the SHA-1s that clients claim are compared when the bench asks (``/_test/check``), outside of the
time that is measured. A link can be modelled: so many bytes a second for each connection, a delay before each answer.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import mmap
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.b2server import B2Server
from tests.b2server.operations import OPERATIONS, authorized
from tests.b2server.state import Bucket, Refusal, State, Version

BLOCK = 1 << 20
PACED_BLOCK = 64 << 10
PAGE = 4096
Spans = list[tuple[int, int]]


class Bytes:
    """The bytes of a part or a file: spans of the arena. Only their length and ranges are ever asked for."""

    def __init__(self, arena: memoryview, spans: Spans) -> None:
        self.arena, self.spans = arena, spans
        self.claimed = ""

    def __len__(self) -> int:
        return sum(size for _, size in self.spans)

    def views(self, first: int, last: int) -> Iterator[memoryview]:
        """The range from ``first`` to ``last``, both counted in."""
        for start, size in self.spans:
            low, high = max(first, 0), min(last + 1, size)
            if low < high:
                yield self.arena[start + low : start + high]
            first, last = first - size, last - size

    def sha1(self) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for view in self.views(0, len(self) - 1):
            digest.update(view)
        return digest.hexdigest()


class LeanState(State):
    """As the test server's, with bytes in an arena and hashes believed until ``check``."""

    def __init__(self, arena_bytes: int, part_size: int, minimum_part_size: int) -> None:
        super().__init__(part_size, minimum_part_size)
        self.arena = memoryview(mmap.mmap(-1, arena_bytes))
        for start in range(0, arena_bytes, PAGE):  # so that no client waits for the kernel to clear pages
            self.arena[start] = 1
        self.latency_s = 0.0
        self.sent_first: float | None = None
        self.body_bytes = 0
        self.requests: dict[str, int] = {}
        self._used = 0
        self.parts_claimed: list[Bytes] = []

    def room(self, size: int) -> int:
        with self.lock:
            start = self._used
            if start + size > len(self.arena):
                raise Refusal(403, "storage_cap_exceeded", "the arena is full: start the server with a larger one")
            self._used += -(-size // PAGE) * PAGE
            return start

    def begin(self) -> None:
        """Forget the counters, not the files."""
        with self.lock:
            self.sent_first, self.body_bytes, self.requests = None, 0, {}

    def clear(self) -> None:
        with self.lock:
            self.versions.clear()
            self.parts_claimed.clear()
            self._used = 0

    def check(self) -> int:
        """How many of the bodies that came differ from the SHA-1 that was claimed for them."""
        return sum(body.sha1() != body.claimed for body in self.parts_claimed)

    def finish(self, file_id: str, sha1s: list[str]) -> Version:
        with self.lock:
            version = self.unfinished(file_id)
            if sorted(version.parts) != list(range(1, len(sha1s) + 1)):
                raise Refusal(400, "missing_part", "parts are missing")
            parts: list[Any] = [version.parts[number] for number in sorted(version.parts)]
            if [part.claimed for part in parts] != sha1s:
                raise Refusal(400, "part_sha1_mismatch", "parts differ")
            spans = [span for part in parts for span in part.spans]
            version.data, version.parts, version.action = Bytes(self.arena, spans), {}, "upload"  # type: ignore[assignment]
            return version


class Connection:
    """One client's connection, requests one after the other."""

    def __init__(self, server: LeanServer, link: socket.socket) -> None:
        self.server, self.state, self.link = server, server.state, link
        self.head = b""
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        with self.link:
            try:
                while self._request():
                    pass
            except OSError:  # the client went away
                return

    def _request(self) -> bool:
        while b"\r\n\r\n" not in self.head:
            piece = self.link.recv(1 << 16)
            if not piece:
                return False
            self.head += piece
        head, _, self.head = self.head.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.unread = int(self.headers.get("content-length") or 0)
        if self.headers.get("expect", "").lower() == "100-continue":
            self.link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            self._route(target)
        except Refusal as refusal:
            while self.unread:
                self._body(bytearray(min(self.unread, BLOCK)))
            self._json({"status": refusal.status, "code": refusal.code, "message": str(refusal)}, refusal.status)
        return self.headers.get("connection", "").lower() != "close"

    def _route(self, target: str) -> None:
        url = urlsplit(target)
        op = url.path.rsplit("/", 1)[-1]
        if url.path.startswith("/_test/"):
            self._control(op)
        elif url.path.startswith("/file/"):
            bucket, _, name = unquote(url.path.removeprefix("/file/")).partition("/")
            self._count("download")
            self._download(self.state.named(self.state.buckets[bucket], name))
        elif op == "b2_download_file_by_id":
            self._count(op)
            self._download(self.state.version(parse_qs(url.query)["fileId"][0]))
        elif match := re.fullmatch(r"/b2api/v\d+/(b2_upload_file|b2_upload_part)/([^/]+)/\d+", url.path):
            self._count(match[1])
            self._upload(match[1], match[2])
        else:
            self._count(op)
            self._operation(url.path.split("/")[2], op, url.query)

    def _count(self, op: str) -> None:
        with self.state.lock:
            self.state.requests[op] = self.state.requests.get(op, 0) + 1

    def _operation(self, version: str, op: str, query: str) -> None:
        body = bytearray(self.unread)
        self._body(body)
        ask = json.loads(body) if body else {name: value[0] for name, value in parse_qs(query).items()}
        token = self.headers.get("authorization", "")
        with self.state.lock:
            if op == "b2_authorize_account":
                key_id, _, secret = base64.b64decode(token.removeprefix("Basic ")).decode().partition(":")
                answer = authorized(self.state, version, self.server.url, key_id, secret)
            elif op in OPERATIONS:
                delimiter = ask.pop("delimiter", None)
                answer = OPERATIONS[op](self.state, self.state.key_of(token), ask, self.server.url)
                if delimiter:  # which rclone lists with, a folder at a time
                    answer["files"] = folded(answer["files"], ask.get("prefix") or "", delimiter)
            else:
                raise Refusal(400, "bad_request", f"this server does not know {op}")
        self._json(answer)

    def _upload(self, op: str, target: str) -> None:
        claimed = self.headers["x-bz-content-sha1"]
        at_end = claimed == "hex_digits_at_end"
        size = self.unread - (40 if at_end else 0)
        start = self.state.room(size)
        if self.state.sent_first is None and size:
            if not self.head:
                select.select([self.link], [], [])
            self.state.sent_first = time.monotonic()
        self._body(self.state.arena[start : start + size])
        if at_end:
            tail = bytearray(40)
            self._body(tail)
            claimed = tail.decode()
        body: Any = Bytes(self.state.arena, [(start, size)])
        body.claimed = claimed
        number = int(self.headers.get("x-bz-part-number") or 0)
        with self.state.lock:
            self.state.body_bytes += size
            self.state.parts_claimed.append(body)
            if op == "b2_upload_part":
                self.state.add_part(target, number, body)
                answer = {
                    "fileId": target, "partNumber": number, "contentLength": size, "contentSha1": claimed,
                    "uploadTimestamp": 0,
                }  # fmt: skip
            else:
                info = {
                    name[len("x-bz-info-") :]: unquote(value)
                    for name, value in self.headers.items()
                    if name.startswith("x-bz-info-")
                }
                name = unquote(self.headers["x-bz-file-name"])
                version = self.state.add(
                    self.state.bucket_by_id(target), name, "upload", self.headers["content-type"], info
                )
                version.data, version.sha1 = body, claimed
                answer = version.as_json()
        self._json(answer)

    def _download(self, version: Version) -> None:
        size = len(version.data)
        first, last, status = 0, size - 1, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")):
            first, last, status = int(asked[1]), min(int(asked[2] or last), last), 206
        lines = [
            f"HTTP/1.1 {status} OK",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {version.content_type}",
            f"Content-Length: {last + 1 - first}",
            "Accept-Ranges: bytes",
            f"X-Bz-Content-Sha1: {version.sha1 or 'none'}",
            f"X-Bz-File-Id: {version.file_id}",
            f"X-Bz-File-Name: {quote(version.name)}",
            f"X-Bz-Upload-Timestamp: {version.timestamp}",
            *(f"X-Bz-Info-{name}: {quote(value)}" for name, value in version.info.items()),
        ]
        if status == 206:
            lines.append(f"Content-Range: bytes {first}-{last}/{size}")
        self._wait()
        self.link.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        if self.method != "HEAD" and last >= first:
            data: Any = version.data
            for view in data.views(first, last):
                self._send(view)

    def _control(self, what: str) -> None:
        body = bytearray(self.unread)
        self._body(body)
        ask = json.loads(body or b"{}")
        state = self.state
        answer: dict[str, Any] = {}
        if what == "begin":
            state.begin()
        elif what == "clear":
            state.clear()
        elif what == "link":
            state.bytes_per_s, state.latency_s = ask["bytes_per_s"], ask["latency_s"]
        elif what == "check":
            answer = {"wrong": state.check()}
        elif what == "counters":
            answer = {"first": state.sent_first, "bytes": state.body_bytes, "requests": state.requests}
        self._json(answer)

    # ------------------------------------------------------------ bytes

    def _body(self, into: bytearray | memoryview) -> None:
        """Fill ``into`` from the request's body, at the link's pace."""
        view = memoryview(into)
        taken = min(len(self.head), len(view))
        if taken:
            view[:taken] = self.head[:taken]
            self.head = self.head[taken:]
        self.unread -= len(view)
        begun, done = time.monotonic(), 0
        block = PACED_BLOCK if self.state.bytes_per_s else BLOCK
        view = view[taken:]
        while done < len(view):
            got = self.link.recv_into(view[done : done + block], 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionResetError
            done += got
            self._pace(begun, done)

    def _send(self, view: memoryview) -> None:
        begun = time.monotonic()
        if not self.state.bytes_per_s:
            self.link.sendall(view)
            return
        for start in range(0, len(view), PACED_BLOCK):
            self.link.sendall(view[start : start + PACED_BLOCK])
            self._pace(begun, start + PACED_BLOCK)

    def _pace(self, begun: float, done: int) -> None:
        if self.state.bytes_per_s and done > PACED_BLOCK:
            time.sleep(max(0.0, begun + done / self.state.bytes_per_s - time.monotonic()))

    def _wait(self) -> None:
        if self.state.latency_s:
            time.sleep(self.state.latency_s)

    def _json(self, answer: dict[str, Any], status: int = 200) -> None:
        self._wait()
        body = json.dumps(answer).encode()
        lines = [
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}",
            f"Date: {formatdate(usegmt=True)}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self.link.sendall(head if self.method == "HEAD" else head + body)


def folded(files: list[dict[str, Any]], prefix: str, delimiter: str) -> list[dict[str, Any]]:
    """A listing with what lies below a folder shown as that folder, once."""
    shown: dict[str, dict[str, Any]] = {}
    for file in files:
        head, found, _ = file["fileName"][len(prefix) :].partition(delimiter)
        name = prefix + head + found
        shown.setdefault(name, file if not found else file | {"fileName": name, "action": "folder", "fileId": None})
    return list(shown.values())


class LeanServer:
    """Listens on a free port of 127.0.0.1, a thread a connection."""

    def __init__(self, arena_bytes: int, part_size: int, minimum_part_size: int) -> None:
        self.state = LeanState(arena_bytes, part_size, minimum_part_size)
        self.state.keys[B2Server.KEY.key_id] = B2Server.KEY
        self.state.buckets["the-bucket"] = Bucket("bucket00000001", "the-bucket")
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            link, _ = self.listener.accept()
            threading.Thread(target=Connection(self, link).serve, daemon=True).start()


def main() -> None:
    """Print the URL, and serve until stdin closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arena-mb", type=int, default=700, help="memory for all files")
    parser.add_argument("--part-size", type=int, default=100_000_000)
    parser.add_argument("--minimum-part-size", type=int, default=5_000_000)
    options = parser.parse_args()
    server = LeanServer(options.arena_mb * 1_000_000, options.part_size, options.minimum_part_size)
    threading.Thread(target=server.serve, daemon=True).start()
    print(server.url, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
