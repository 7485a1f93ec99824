"""Bodies on the wire: parts go out and come in over plain HTTP connections of our own, everything else is b2sdk's.

b2sdk sends a body through requests and urllib3 in pieces of 16 KiB and hashes it once more; that costs more CPU than
SHA-1 itself. Here the kernel sends the file (sendfile), or TLS takes it from one reused buffer, and what comes in is
read into one too. Tokens, upload URLs, renewed authorization and the classes of errors stay b2sdk's: ``PartApi`` takes
the place of its lowest layer (b2sdk 2.13.1, ``B2HttpApiConfig``) for these three calls alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import mmap
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import certifi
import requests
from b2sdk.v3 import B2RawHTTPApi
from b2sdk.v3.exception import interpret_b2_error

from supervisor.storage.b2errors import NO_JSON
from supervisor.storage.limit import Throttle
from supervisor.storage.source import SourceRange

FILLED_BYTES = 256 << 10
"""From so many bytes on it pays to have the kernel fill whole blocks, which takes four calls to begin and to end."""
BLOCK_BYTES = 1 << 20  # less would be in a core's cache, and cost more in threads that wait for the interpreter
SENDFILE_BYTES = 1 << 20
ANSWER_BYTES = 1 << 20
CONNECT_S = 46.0
ANSWER_S = 128.0
STALL_S = 60.0
STALL_BYTES = 64 << 10
"""A stream that moves fewer than STALL_BYTES in STALL_S is given up: the part is sent or fetched again elsewhere."""

Address = tuple[str, str, int]


class Pace:
    """Watches one stream: a connection that drips is as bad as one that is silent, and no socket timeout sees it."""

    def __init__(self, stall_s: float, now: float) -> None:
        self._stall_s = stall_s
        self._since = now
        self._moved = 0

    def count_moved_bytes(self, size: int, now: float) -> None:
        """``size`` bytes moved. Raises TimeoutError when the last window had too few."""
        self._moved += size
        if now - self._since < self._stall_s:
            return
        if self._moved < STALL_BYTES:
            raise TimeoutError(f"the connection moved {self._moved} bytes in {now - self._since:.0f} s")
        self._since, self._moved = now, 0


class Download:
    """An answer with a body that is read in blocks of one reused buffer. Use as a context manager."""

    def __init__(self, transport: Transport, address: Address, connection: http.client.HTTPConnection) -> None:
        self._transport, self._address, self._connection = transport, address, connection
        self._response = connection.getresponse()
        self.status_code = self._response.status
        self.headers = self._response.headers
        self._clean = False

    def blocks(self) -> Iterator[memoryview]:
        """The body in order. A block is good only until the next one is asked for."""
        buffer = self._transport.buffer()
        throttle = self._transport.throttle
        pace = Pace(self._transport.stall_s, time.monotonic())
        if "Content-Length" not in self.headers:
            raise ConnectionResetError("the server did not say how long its answer is")
        left = int(self.headers["Content-Length"])
        with self._body_reader() as readinto:
            while left:
                wanted = min(throttle.block(len(buffer)), left)
                throttle.pass_(wanted)
                got = 0
                while got < wanted:
                    count = readinto(buffer[got:wanted])
                    if not count:
                        missing = left - got
                        raise ConnectionResetError(f"the connection ended {missing} bytes before the end of the answer")
                    got += count
                    pace.count_moved_bytes(count, time.monotonic())
                left -= got
                yield buffer[:got]
        self._clean = True

    @contextlib.contextmanager
    def _body_reader(self) -> Iterator[Callable[[memoryview], int]]:
        """How to read the body: from the socket, once what came with the head is taken. http.client's own reading
        returns it in many small pieces, each of which costs two calls.

        From a plain socket the kernel fills a block in one call. TLS gives a record of 16 KiB at a time, and a small
        body is there at once.
        """
        stream: Any = self._response.fp
        link = self._connection.sock
        if link is None:
            yield stream.readinto1
            return
        length = int(self.headers["Content-Length"])
        early = len(stream.peek(1)) if length else 0
        filled = length >= FILLED_BYTES and not isinstance(link, ssl.SSLSocket)

        def readinto(view: memoryview) -> int:
            nonlocal early
            if early:
                count = int(stream.readinto1(view[: min(early, len(view))]))
                early -= count
                return count
            try:
                return link.recv_into(view, len(view), socket.MSG_WAITALL if filled else 0)
            except BlockingIOError:
                raise TimeoutError(f"the connection brought no byte for {self._transport.stall_s:.0f} s") from None

        if not filled:
            yield readinto
            return
        stall_s = self._transport.stall_s
        link.settimeout(None)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _pack_timeval(stall_s))
        try:
            yield readinto
        finally:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _pack_timeval(0))
            link.settimeout(stall_s)

    def error(self) -> Exception:
        """What b2sdk makes of an answer that is no success."""
        body = self._response.read(ANSWER_BYTES)
        self._clean = self._response.isclosed()
        return _refused_error(self.status_code, dict(self.headers.items()), body)

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._clean:
            self._response.close()
            self._transport.give_back(self._address, self._connection)
        else:
            self._connection.close()


class Transport:
    """Connections to B2's hosts, kept open and handed from part to part. Safe to use from several threads."""

    def __init__(self, user_agent: str, throttle: Throttle, stall_s: float = STALL_S) -> None:
        self.throttle = throttle
        self.stall_s = stall_s
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._idle: dict[Address, list[http.client.HTTPConnection]] = {}
        self._tls: ssl.SSLContext | None = None
        self._local = threading.local()
        self._through_proxy: dict[Address, bool] = {}

    def has_proxy(self, url: str) -> bool:
        """Does the environment name a proxy for this host? Asked once for each: requests looks at every variable of it,
        which cost as much as all else that a small file costs.
        """
        address, _ = _split_url(url)
        if address not in self._through_proxy:
            self._through_proxy[address] = bool(requests.utils.get_environ_proxies(url, no_proxy=None))
        return self._through_proxy[address]

    def buffer(self) -> memoryview:
        """This thread's block."""
        if not hasattr(self._local, "block"):
            # Memory that is only there once it is used: small files take a page of it, in each of many threads.
            self._local.block = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        block: memoryview = self._local.block
        return block

    # ------------------------------------------------------------ out

    def send(self, url: str, headers: dict[str, str], source: SourceRange) -> Any:
        """POST the range and return B2's JSON. Raises b2sdk's errors, StoreError of the source, and OSError.

        A range without a known SHA-1 is hashed from the very blocks that are sent; B2 takes the hash after them.
        """
        address, target = _split_url(url)
        size = len(source)
        late = not source.sha1
        headers = headers | {
            "User-Agent": self._user_agent,
            "Content-Length": str(size + 40 if late else size),
            "Accept-Encoding": "identity",
        }
        if late:
            headers["X-Bz-Content-Sha1"] = "hex_digits_at_end"
        with self._take_connection(address) as connection:
            connection.putrequest("POST", target, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            broken: OSError | None = None
            try:
                self._send_body(connection.sock, source, size, late=late)
            except (BrokenPipeError, ConnectionResetError) as error:
                broken = error  # it may have answered first, and then hung up: that answer says why
            connection.sock.settimeout(max(ANSWER_S, self.stall_s) if self.stall_s >= STALL_S else self.stall_s)
            try:
                response = connection.getresponse()
                body = response.read(ANSWER_BYTES)
            except (OSError, http.client.HTTPException):
                if broken:
                    raise broken from None
                raise
            if response.status != 200:
                raise _refused_error(response.status, dict(response.headers.items()), body)
            framed = response.chunked or "Content-Length" in response.headers
            if broken or not response.isclosed() or not framed:  # without a length, a cut looks like the end
                raise broken or ConnectionResetError("the connection ended before the end of the answer")
            try:
                told = json.loads(body)
            except ValueError as error:  # a hotel's login page answers 200, too
                raise ConnectionResetError("the server answered 200 with something that is not B2's JSON") from error
        self.give_back(address, connection)
        return told

    def _send_body(self, link: socket.socket, source: SourceRange, size: int, *, late: bool) -> None:
        pace = Pace(self.stall_s, time.monotonic())
        source.from_the_beginning()
        if late or isinstance(link, ssl.SSLSocket):
            digest = source.hasher() if late else None
            buffer = self.buffer()
            while block := source.readinto(buffer[: self.throttle.block(len(buffer))]):
                self.throttle.pass_(block)
                if digest is not None:
                    digest.update(buffer[:block])
                sent = 0
                while sent < block:
                    count = link.send(buffer[sent:block])
                    sent += count
                    pace.count_moved_bytes(count, time.monotonic())
                    source.on_its_way(count)
            if digest is not None:
                source.sha1 = digest.hexdigest()
                link.sendall(source.sha1.encode())
            return
        sent = 0
        while sent < size:
            wanted = min(self.throttle.block(SENDFILE_BYTES), size - sent)
            self.throttle.pass_(wanted)
            block_end = sent + wanted
            while sent < block_end:
                try:
                    count = os.sendfile(link.fileno(), source.fileno(), source.offset + sent, block_end - sent)
                except BlockingIOError:
                    _wait_writable(link, self.stall_s)
                    continue
                if count == 0:
                    source.fail_short(sent)
                sent += count
                pace.count_moved_bytes(count, time.monotonic())
                source.on_its_way(count)

    # ------------------------------------------------------------ in

    def fetch(self, url: str, headers: dict[str, str]) -> Download:
        """GET; the answer's head has arrived. Raises b2sdk's errors and OSError."""
        address, target = _split_url(url)
        with self._take_connection(address) as connection:
            connection.request("GET", target, headers=headers | {"User-Agent": self._user_agent})
            answer = Download(self, address, connection)
        if answer.status_code not in (200, 206):
            with answer:
                raise answer.error()
        return answer

    # ------------------------------------------------------------ connections

    @contextlib.contextmanager
    def _take_connection(self, address: Address) -> Iterator[http.client.HTTPConnection]:
        """A connection that is closed when the block does not end well."""
        connection = self._find_connection(address)
        try:
            yield connection
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionResetError(f"the server gave no proper answer ({type(error).__name__})") from error
        except BaseException:
            connection.close()
            raise

    def _find_connection(self, address: Address) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                connection = idle.pop() if idle else None
            if connection is None:
                return self._open_connection(address)
            if not select.select([connection.sock], [], [], 0)[0]:  # readable means closed by the other side
                if connection.sock.gettimeout() != self.stall_s:
                    connection.sock.settimeout(self.stall_s)
                return connection
            connection.close()

    def give_back(self, address: Address, connection: http.client.HTTPConnection) -> None:
        """Keep a connection after its last answer was read to its end."""
        if connection.sock is None:  # the server asked to close it
            return
        with self._lock:
            self._idle.setdefault(address, []).append(connection)

    def _open_connection(self, address: Address) -> http.client.HTTPConnection:
        scheme, host, port = address
        if scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=CONNECT_S, context=self._tls_context()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        connection.connect()  # which sets TCP_NODELAY
        connection.sock.settimeout(self.stall_s)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        """One for all connections, with the certificates that requests would use for b2sdk's own calls."""
        with self._lock:
            if self._tls is None:
                chosen = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
                bundle = chosen or certifi.where()
                folder = bundle if os.path.isdir(bundle) else None  # noqa: PTH112
                self._tls = ssl.create_default_context(cafile=None if folder else bundle, capath=folder)
            return self._tls


class PartApi(B2RawHTTPApi):  # type: ignore[misc]
    """b2sdk's lowest layer with our transport under the three calls that move bodies.

    Where the environment names a proxy, b2sdk's own way is taken: requests knows proxies, http.client does not.
    """

    transport: Transport

    def upload_part(  # noqa: PLR0917
        self, upload_url: str, upload_auth_token: str, part_number: int, content_length: int, content_sha1: str,
        data_stream: SourceRange, *rest: Any,
    ) -> Any:  # fmt: skip
        if self.transport.has_proxy(upload_url):
            sha1 = data_stream.find_sha1()
            return super().upload_part(
                upload_url, upload_auth_token, part_number, content_length, sha1, data_stream, *rest
            )
        headers = {
            "Authorization": upload_auth_token,
            "X-Bz-Part-Number": str(part_number),
            "X-Bz-Content-Sha1": data_stream.sha1,
        }
        data_stream.seek(0)
        return self.transport.send(upload_url, headers, data_stream)

    def upload_file(  # noqa: PLR0917
        self, upload_url: str, upload_auth_token: str, file_name: str, content_length: int, content_type: str,
        content_sha1: str, file_info: dict[str, str], data_stream: Any, *rest: Any, **more: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(data_stream, SourceRange) or self.transport.has_proxy(upload_url):
            sha1 = data_stream.find_sha1() if isinstance(data_stream, SourceRange) else content_sha1
            return super().upload_file(
                upload_url, upload_auth_token, file_name, content_length, content_type, sha1, file_info,
                data_stream, *rest, **more,
            )  # fmt: skip
        self.check_b2_filename(file_name)
        headers = self.get_upload_file_headers(
            upload_auth_token=upload_auth_token,
            file_name=file_name,
            content_length=content_length,
            content_type=content_type,
            content_sha1=data_stream.sha1,
            file_info=file_info,
            server_side_encryption=None,
            file_retention=None,
            legal_hold=None,
            custom_upload_timestamp=None,
        )
        data_stream.seek(0)
        return self.transport.send(upload_url, headers, data_stream)

    def download_file_from_url(
        self,
        account_auth_token_or_none: str | None,
        url: str,
        range_: tuple[int, int] | None = None,
        encryption: Any = None,
    ) -> Download | Proxied:
        if self.transport.has_proxy(url):
            return Proxied(super().download_file_from_url(account_auth_token_or_none, url, range_, encryption))
        headers = {"Accept-Encoding": "identity"}
        if range_ is not None:
            headers["Range"] = f"bytes={range_[0]}-{range_[1]}"
        if account_auth_token_or_none is not None:
            headers["Authorization"] = account_auth_token_or_none
        return self.transport.fetch(url, headers)


class Proxied:
    """An answer that came through requests, with the face of ``Download``."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._response: requests.Response = manager.__enter__()
        self.status_code = self._response.status_code
        self.headers = self._response.headers

    def blocks(self) -> Iterator[memoryview]:
        for piece in self._response.iter_content(BLOCK_BYTES):
            yield memoryview(piece)

    def __enter__(self) -> Proxied:
        return self

    def __exit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
        self._response.close()


def _split_url(url: str) -> tuple[Address, str]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (parts.scheme, parts.hostname or "", port), parts.path + (f"?{parts.query}" if parts.query else "")


def _refused_error(status: int, headers: dict[str, str], body: bytes) -> Exception:
    try:
        said = json.loads(body)
        code, message = str(said["code"]), str(said.get("message"))
    except (ValueError, LookupError, TypeError):
        code, message = NO_JSON, ""
    lower = {name.lower(): value for name, value in headers.items()}
    error: Exception = interpret_b2_error(status, code, message, lower)
    return error


def _pack_timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _wait_writable(link: socket.socket, stall_s: float) -> None:
    poll = select.poll()
    poll.register(link, select.POLLOUT)
    if not poll.poll(stall_s * 1000):
        raise TimeoutError(f"the connection took no byte for {stall_s:.0f} s")
