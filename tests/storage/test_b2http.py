"""Bodies on our own connections: what a server may do to a stream, and what becomes of the part."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from b2sdk.v3 import exception as b2errors

from supervisor.storage import b2http, open_store
from supervisor.storage.b2http import STALL_BYTES, Pace, Transport
from supervisor.storage.base import Part, StoreError
from supervisor.storage.limit import Throttle
from supervisor.storage.source import SourceRange
from tests.b2server import B2Server
from tests.storage.conftest import QUICK
from tests.storage.parts import hash_parts

Script = Callable[[socket.socket], None]


class Scripted:
    """A server that does with each connection what the next script says."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted = 0
        self._scripts, self._tls = list(scripts), tls
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            with self._tls.wrap_socket(link, server_side=True) if self._tls else link as found:
                try:
                    script(found)
                except OSError:
                    continue

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake whoever waits in accept()
        self.listener.close()
        self._thread.join(5)


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*scripts: Script, tls: ssl.SSLContext | None = None) -> Scripted:
        made.append(Scripted(*scripts, tls=tls))
        return made[-1]

    yield make
    for server in made:
        server.close()


def read_some(link: socket.socket) -> bytes:
    """The next bytes. Raises ConnectionError at the end: who reads on there reads nothing, for ever."""
    if not (data := link.recv(65536)):
        raise ConnectionResetError("the client has closed the connection")
    return data


def read_request(link: socket.socket, received: list[bytes] | None = None) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += read_some(link)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(lines.get(b"Content-Length", b"0")):
        body += read_some(link)
    if received is not None:
        received.append(body)
    return head


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def part(tmp_path: Path) -> SourceRange:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(3_000_000))
    data = path.read_bytes()[500_000:2_500_000]
    return SourceRange(path, Part(500_000, len(data), hashlib.sha1(data).hexdigest()))


def transport(stall_s: float = 60.0) -> Transport:
    return Transport("test", Throttle(), stall_s)


def test_a_stream_that_drips_is_cancelled_though_it_is_never_silent() -> None:
    pace = Pace(60, now=0.0)
    with pytest.raises(TimeoutError, match="moved 61 bytes in 60 s"):
        for second in range(200):
            pace.count_moved_bytes(1, float(second))


def test_a_slow_stream_that_goes_on_is_left_alone() -> None:
    pace = Pace(60, now=0.0)
    for second in range(600):
        pace.count_moved_bytes(STALL_BYTES // 30, float(second))


def test_a_server_that_takes_no_byte_is_given_up(scripted: Callable[..., Scripted], part: SourceRange) -> None:
    gate = threading.Event()
    server = scripted(lambda link: gate.wait(20) and None)
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        transport(stall_s=0.3).send(f"http://127.0.0.1:{server.port}/x", {}, part)
    gate.set()
    assert time.monotonic() - begun < 10


def test_a_download_that_falls_silent_is_given_up(scripted: Callable[..., Scripted]) -> None:
    gate = threading.Event()

    def silent(link: socket.socket) -> None:
        read_request(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome")
        gate.wait(20)

    server = scripted(silent)
    with pytest.raises(TimeoutError), transport(stall_s=0.3).fetch(f"http://127.0.0.1:{server.port}/x", {}) as got:
        list(got.blocks())
    gate.set()


def test_a_refusal_before_the_end_of_the_body_is_heard(scripted: Callable[..., Scripted], part: SourceRange) -> None:
    def refuse(link: socket.socket) -> None:
        link.recv(1000)
        body = b'{"status": 503, "code": "service_unavailable", "message": "busy"}'
        link.sendall(answer("503 Busy", body, "Retry-After: 7"))
        link.shutdown(socket.SHUT_WR)
        while link.recv(1 << 20):
            pass

    server = scripted(refuse)
    with pytest.raises(b2errors.ServiceError, match="busy") as caught:
        transport().send(f"http://127.0.0.1:{server.port}/x", {}, part)
    assert int(caught.value.retry_after_seconds) == 7


def test_a_connection_is_used_again_and_one_that_was_closed_meanwhile_is_not(
    scripted: Callable[..., Scripted], part: SourceRange
) -> None:
    def twice(link: socket.socket) -> None:
        for _ in range(2):
            read_request(link)
            link.sendall(answer("200 OK", b"{}"))

    server = scripted(twice, twice)
    carrier = transport()
    for number in range(3):
        part.seek(0)
        assert carrier.send(f"http://127.0.0.1:{server.port}/{number}", {}, part) == {}
        if number == 1:
            assert server.accepted == 1
            deadline = time.monotonic() + 5  # until the other side's end has arrived here
            connection = next(iter(carrier._idle.values()))[0]
            connection.sock.settimeout(5)
            while connection.sock.recv(1, socket.MSG_PEEK):
                assert time.monotonic() < deadline
    assert server.accepted == 2


def test_a_body_that_ends_early_is_an_error_and_its_connection_is_not_kept(scripted: Callable[..., Scripted]) -> None:
    def short(link: socket.socket) -> None:
        read_request(link)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome")

    server = scripted(short)
    carrier = transport()
    with (
        pytest.raises(ConnectionResetError, match="996 bytes before the end"),
        carrier.fetch(f"http://127.0.0.1:{server.port}/x", {}) as got,
    ):
        for _ in got.blocks():
            pass
    assert not carrier._idle


def test_an_answer_that_is_no_http_is_an_error_of_the_network(scripted: Callable[..., Scripted]) -> None:
    server = scripted(lambda link: link.sendall(b"220 mail.example ESMTP\r\n"))
    with pytest.raises(ConnectionResetError, match="no proper answer"):
        transport().fetch(f"http://127.0.0.1:{server.port}/x", {})


def test_a_range_whose_hash_is_not_known_is_hashed_while_it_is_sent(b2: B2Server, part: SourceRange) -> None:
    store = open_store("b2://the-bucket", b2.url, b2.environ(), retry=QUICK)
    known, part.sha1 = part.sha1, ""
    store._client.session.upload_file(store._client.bucket_id, "run/x", len(part), "a/b", "", {}, part)  # type: ignore[attr-defined]
    assert part.sha1 == known
    assert hashlib.sha1(b2.objects()["run/x"]).hexdigest() == known


def test_parts_travel_over_tls_and_a_stranger_is_refused(
    scripted: Callable[..., Scripted], part: SourceRange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl cannot make a certificate here: {error}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    received: list[bytes] = []

    def take(link: socket.socket) -> None:
        read_request(link, received)
        link.sendall(answer("200 OK", b'{"contentSha1": "x"}'))

    server = scripted(take, tls=context)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert transport().send(f"https://localhost:{server.port}/x", {}, part) == {"contentSha1": "x"}
    assert hashlib.sha1(received[0]).hexdigest() == part.sha1

    bodies = [os.urandom(size) for size in (0, 1, 100_000, 3_000_001)]

    def give(link: socket.socket) -> None:
        for body in bodies:
            read_request(link)
            link.sendall(answer("200 OK", body))

    carrier = transport()
    giver = scripted(give, tls=context)
    for body in bodies:  # over one connection: what is left of one answer would spoil the next
        with carrier.fetch(f"https://localhost:{giver.port}/x", {}) as download:
            assert b"".join(map(bytes, download.blocks())) == body
    assert giver.accepted == 1

    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.setattr(b2http, "CONNECT_S", 1.0)
    stranger = Scripted(take)
    try:
        with pytest.raises(OSError):
            transport(stall_s=2).send(f"https://localhost:{stranger.port}/x", {}, part)
    finally:
        stranger.close()


def test_where_a_proxy_is_named_bodies_go_through_it(
    b2: B2Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(90_000))
    store = open_store("b2://the-bucket", b2.url, b2.environ(), retry=type(QUICK)(tries=1))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("http_proxy", nobody)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # b2sdk tries again by itself
    with pytest.raises(StoreError, match="could not send") as caught:
        store.put_file("run/x", path, 90_000, hash_parts(path, 90_000, 100_000), lambda _: None)
    assert caught.value.kind == "transient"
    assert not b2.journal("b2_upload_file")
