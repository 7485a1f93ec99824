"""The HTTP face of the server: routes, bodies, ranges, and the faults that only a socket can have."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.b2server.operations import OPERATIONS, authorized
from tests.b2server.state import Bucket, Fault, Key, Refusal, State, sha1_hex

PIECE = 64 << 10


class Cut(Exception):
    """The connection is to be closed now, without an answer."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listener

    @property
    def state(self) -> State:
        return self.server.state

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read the journal instead."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((timestamp or time.time()) + self.state.skew_s, usegmt=True)

    def do_POST(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    # ------------------------------------------------------------ one request

    def _serve(self) -> None:
        self.entry: dict[str, Any] = {"op": "?", "name": "", "status": 0}
        self.unread = int(self.headers.get("Content-Length") or 0)
        with self.server.counted():
            try:
                self._moment("asked")
                self._route()
            except Refusal as refusal:
                self._refuse(refusal)
            except Cut:
                self.close_connection = True
            except (BrokenPipeError, ConnectionResetError):
                self.entry["status"] = self.entry["status"] or "gone"
                self.close_connection = True
            finally:
                self.state.write_journal(self.entry)

    def _moment(self, which: str) -> None:
        """A test may end its client here: "asked" before anything is done, "done" before the answer goes out."""
        watch = self.state.watch
        if watch is not None and not self.path.startswith("/_test/") and watch(which, self.entry):
            self.entry["status"] = self.entry["status"] or f"client ended, {which}"
            raise Cut

    def _route(self) -> None:
        url = urlsplit(self.path)
        if url.path.startswith("/_test/"):
            self._test(url.path.removeprefix("/_test/"))
        elif url.path.startswith("/file/"):
            bucket, _, name = url.path.removeprefix("/file/").partition("/")
            self._download(bucket, unquote(name), None)
        elif match := re.fullmatch(r"/b2api/v\d+/b2_download_file_by_id", url.path):
            self._download(None, None, parse_qs(url.query)["fileId"][0])
        elif match := re.fullmatch(r"/b2api/v\d+/(b2_upload_file|b2_upload_part)/([^/]+)/\d+", url.path):
            self._upload(match[1])
        elif match := re.fullmatch(r"/b2api/(v\d+)/(b2_\w+)", url.path):
            self._json(match[1], match[2])
        else:
            raise Refusal(404, "not_found", f"no such route {url.path}")

    def _json(self, version: str, op: str) -> None:
        self.entry["op"] = op
        body = b"".join(self._body())
        ask = json.loads(body) if body else {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
        held = self.state.versions.get(str(ask.get("fileId") or ask.get("largeFileId")))
        self.entry["name"] = (
            ask.get("fileName") or ask.get("prefix") or ask.get("namePrefix") or (held.name if held else "")
        )
        self.entry["file_id"] = ask.get("fileId")
        if "partNumber" in ask:
            self.entry["part"] = ask["partNumber"]
        self._early_faults(op)
        base = self.server.url
        if op == "b2_authorize_account":
            key_id, _, secret = (
                base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")
            )
            with self.state.lock:
                answer = authorized(self.state, version, base, key_id, secret)
        else:
            operation = OPERATIONS.get(op)
            if operation is None:
                raise Refusal(400, "bad_request", f"this server does not know {op}")
            with self.state.lock:
                answer = operation(self.state, self.state.key_of(self.headers.get("Authorization", "")), ask, base)
            self.entry["file_id"] = answer.get("fileId", ask.get("fileId"))
        if self.state.fault(op, self.entry["name"], lambda fault: fault.lose_answer):
            self.entry["status"] = "answer lost"
            raise Cut
        self._answer(answer)

    def _upload(self, op: str) -> None:
        self.entry["op"] = op
        state = self.state
        token = self.headers.get("Authorization", "")
        with state.lock:
            if token not in state.upload_tokens:
                raise Refusal(401, "bad_auth_token", "upload token is not valid (any more)")
            key, target = state.upload_tokens.pop(token)  # comes back only when all went well: clients want a new URL
        part = self.headers.get("X-Bz-Part-Number")
        if op == "b2_upload_part":
            name = state.unfinished(target).name
            self.entry.update(file_id=target, part=int(part or 0))
        else:
            name = unquote(self.headers["X-Bz-File-Name"])
        self.entry["name"] = name
        self._early_faults(op)
        cut = state.fault(op, name, lambda fault: fault.cut_upload_after is not None)
        data = b"".join(self._body(cut, self._drip(op, name)))
        claimed = self.headers["X-Bz-Content-Sha1"]
        if claimed == "hex_digits_at_end":
            data, claimed = data[:-40], data[-40:].decode()
        if claimed != "do_not_verify" and sha1_hex(data) != claimed:
            raise Refusal(400, "bad_request", "Sha1 did not match data received")
        with state.lock:
            if op == "b2_upload_part":
                state.add_part(target, int(part or 0), data)
                answer: dict[str, Any] = {
                    "fileId": target,
                    "partNumber": int(part or 0),
                    "contentLength": len(data),
                    "contentSha1": sha1_hex(data),
                    "uploadTimestamp": 0,
                }
            else:
                bucket = state.bucket_by_id(target)
                state.need(key, "writeFiles", bucket, name)
                info = {
                    header[len("x-bz-info-") :]: unquote(value)
                    for header, value in self.headers.items()
                    if header.lower().startswith("x-bz-info-")
                }
                answer = state.store(bucket, name, data, self.headers["Content-Type"], info).as_json()
            self.entry.update(size=len(data), sha1=sha1_hex(data), file_id=answer["fileId"], accepted=True)
        if state.fault(op, name, lambda fault: fault.lose_answer):
            self.entry["status"] = "answer lost"
            raise Cut
        with state.lock:
            state.upload_tokens[token] = (key, target)
        self._answer(answer)

    def _download(self, bucket_name: str | None, name: str | None, file_id: str | None) -> None:
        self.entry["op"] = op = "download"
        state = self.state
        with state.lock:
            key = state.key_of(self.headers.get("Authorization", ""))
            if file_id is not None:
                version = state.version(file_id)
            else:
                if bucket_name not in state.buckets:
                    raise Refusal(404, "not_found", f"Bucket does not exist: {bucket_name}")
                state.need(key, "readFiles", state.buckets[bucket_name], name)
                version = state.named(state.buckets[bucket_name], name or "")
            self.entry.update(name=version.name, file_id=version.file_id)
            state.need(key, "readFiles", version.bucket, version.name)
            if version.action != "upload":
                raise Refusal(404, "not_found", "not a finished file")
            data = version.data
        self._early_faults(op)
        first, last, status = 0, len(data) - 1, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last, status = int(asked[1]), min(int(asked[2] or last), last), 206
            if first > last:
                raise Refusal(416, "range_not_satisfiable", "outside the file")
        body = data[first : last + 1]
        self.entry.update(range=(first, len(body)))
        if fault := state.fault(op, version.name, lambda fault: fault.flip is not None and first <= fault.flip <= last):
            at = (fault.flip or 0) - first
            body = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
        cut = state.fault(op, version.name, lambda fault: fault.cut_download_after is not None)
        self._moment("done")
        self.entry["status"] = status
        self.state.write_journal(self.entry)
        self.send_response(status)
        self.send_header("Content-Type", version.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Bz-Content-Sha1", version.sha1 or "none")
        self.send_header("X-Bz-File-Id", version.file_id)
        self.send_header("X-Bz-File-Name", quote(version.name))
        self.send_header("X-Bz-Upload-Timestamp", str(version.timestamp))
        for info, value in version.info.items():
            self.send_header(f"X-Bz-Info-{info}", quote(value))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if self.command != "HEAD":
            self._send(body[: cut.cut_download_after] if cut else body, self._drip(op, version.name))
        if cut:
            self.entry["status"] = "cut"
            raise Cut

    def _test(self, what: str) -> None:
        """For tests in other processes: GET journal; POST faults (fields of ``Fault``) or settings of the state."""
        self.entry["op"] = f"_test/{what}"
        ask = json.loads(b"".join(self._body()) or b"{}")
        if what == "journal":
            with self.state.lock:
                self._answer({"journal": list(self.state.journal)})
        elif what == "faults":
            with self.state.lock:
                self.state.faults.append(Fault(**ask))
            self._answer({})
        elif what == "settings":
            for name, value in ask.items():
                setattr(self.state, name, value)
            self._answer({})
        else:
            raise Refusal(404, "not_found", what)

    # ------------------------------------------------------------ bytes

    def _early_faults(self, op: str) -> None:
        name = self.entry["name"]
        if fault := self.state.fault(op, name, lambda fault: fault.delay_s > 0):
            time.sleep(fault.delay_s)
        if (fault := self.state.fault(op, name, lambda fault: fault.hold is not None)) and fault.hold is not None:
            fault.held.set()
            fault.hold.wait(60)
        if fault := self.state.fault(op, name, lambda fault: fault.status > 0):
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            raise Refusal(fault.status, fault.code, "as the test wished", headers)

    def _body(self, cut: Fault | None = None, drip: float = 0.0) -> Iterator[bytes]:
        got = 0
        while self.unread:
            want = min(PIECE if not drip else 1000, self.unread)
            if cut is not None:
                want = min(want, (cut.cut_upload_after or 0) - got)
                if want <= 0:
                    self.entry["status"] = "cut"
                    raise Cut
            piece = self.rfile.read(want)
            if not piece:
                raise ConnectionResetError
            self.unread -= len(piece)
            got += len(piece)
            self._pace(len(piece), drip)
            yield piece

    def _send(self, body: bytes, drip: float = 0.0) -> None:
        size = PIECE if not drip else 1000
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            self.wfile.write(piece)
            self.wfile.flush()
            self._pace(len(piece), drip)

    def _drip(self, op: str, name: str) -> float:
        fault = self.state.fault(op, name, lambda fault: fault.drip > 0)
        return fault.drip if fault else 0.0

    def _pace(self, size: int, drip: float = 0.0) -> None:
        if drip or self.state.bytes_per_s:
            time.sleep(size / (drip or self.state.bytes_per_s))

    def _answer(self, answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> None:
        if status == 200:
            self._moment("done")
        self.entry["status"] = status
        self.state.write_journal(self.entry)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json;charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _refuse(self, refusal: Refusal) -> None:
        for _ in self._body():  # an unread body would be taken for the next request
            pass
        self._answer(
            {"status": refusal.status, "code": refusal.code, "message": refusal.message},
            refusal.status,
            refusal.headers,
        )


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, state: State) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.state = state
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.busy = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients are killed in tests; a real error of the server shows as a missing answer in the journal."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.state.lock:
            self.busy += 1
        try:
            yield
        finally:
            with self.state.lock:
                self.busy -= 1


class B2Server:
    """A B2 with one account, its master key and one bucket, on a free port of 127.0.0.1. Use as a context manager.

    ``state.journal`` lists the requests in the order of their answers; entries with ``accepted`` brought bytes.
    """

    KEY = Key("0000master01", "K000mastersecret")

    def __init__(
        self, bucket: str = "the-bucket", part_size: int = 100_000, minimum_part_size: int = 5_000, port: int = 0
    ) -> None:
        self.state = State(part_size, minimum_part_size)
        self.state.keys[self.KEY.key_id] = self.KEY
        self.bucket = Bucket("bucket00000001", bucket)
        self.state.buckets[bucket] = self.bucket
        self._listener = _Listener(port, self.state)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self.url = self._listener.url

    def __enter__(self) -> B2Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    def environ(self, key: Key | None = None) -> dict[str, str]:
        """The variables that hold a key (default: the master key)."""
        key = key or self.KEY
        return {"B2_APPLICATION_KEY_ID": key.key_id, "B2_APPLICATION_KEY": key.secret}

    def add_key(self, key: Key) -> Key:
        self.state.keys[key.key_id] = key
        return key

    def fail(self, op: str, **fault: Any) -> Fault:
        """Inject a ``Fault``."""
        made = Fault(op, **fault)
        with self.state.lock:
            self.state.faults.append(made)
        return made

    def journal(self, op: str = ".*", name: str = "") -> list[dict[str, Any]]:
        """Entries so far whose operation matches and whose object name holds ``name``."""
        with self.state.lock:
            return [e for e in self.state.journal if re.fullmatch(op, e["op"]) and name in str(e["name"])]

    def put(self, name: str, data: bytes) -> str:
        """Place a small object, as another tool would have; returns its id."""
        return self.state.store(self.bucket, name, data, "application/octet-stream", {}).file_id

    def objects(self) -> dict[str, bytes]:
        """Names and bytes of what a listing would show, staleness aside."""
        with self.state.lock:
            stale, self.state.stale_s = self.state.stale_s, 0.0
            found = {version.name: version.data for version in self.state.current(self.bucket, "")}
            self.state.stale_s = stale
            return found

    def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Until no request is being served (a killed client's last bytes are still being read)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self.state.lock:
                if self._listener.busy == 0:
                    return
            time.sleep(0.01)
        raise TimeoutError("the B2 server stayed busy")
