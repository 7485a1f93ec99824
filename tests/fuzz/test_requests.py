"""Any bytes on the daemon's socket: an answer of its own or none, and the next one who asks is answered at once.

The server is a real one on a real unix socket. Behind it stands the desk of the people's tests, which knows no order
that an API should have refused.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.api.protocol import VERBS, Api
from tests.fuzz.given import TEXTS, dumped, texts, values
from tests.fuzz.profiles import fuzzed
from tests.people.desk import FakeDesk

AT_ONCE_S = 5.0  # a second on a machine that does nothing else
PAGES = (
    "/v1/status", "/v1/checkpoints", "/v1/explain", "/v1/events", "/v1/log", "/v1/incidents", "/v1/command", "/metrics",
    "/healthz", "/readyz", "/", "//", "*", "http://[", "http://[::1]/v1/status", "/v1/../etc/passwd", "/%00", "/\x7f",
)  # fmt: skip
QUERIES = ("after", "limit", "wait", "role", "lines", "offset", "inode", "id", "open")
METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "get", "_answer", "")
GOOD = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Served:
    """A server, what stands behind it, and where it is asked."""

    desk: FakeDesk
    path: Path


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    folder = Path(tempfile.mkdtemp(prefix="rlf"))
    desk = FakeDesk()
    log = folder / "job.log"
    log.write_bytes(b"a line\n" * 50)
    desk.files = {"job": log}
    api = Api(desk, folder / "fuzz.sock")
    api.start()
    yield Served(desk, folder / "fuzz.sock")
    api.close()
    shutil.rmtree(folder)


def sent(path: Path, pieces: list[bytes], pause_s: float = 0.0) -> bytes:
    """Send the pieces, then nothing more; returns what came back."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))  # before the time limit: with one, a full queue is an error and not a wait
        connection.settimeout(30)
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        except OSError as error:
            if error.errno != 107:  # not connected any more, for the same reason
                raise
    return answer


def judge(served: Served, pieces: list[bytes], pause_s: float = 0.0) -> bytes:
    """The property."""
    served.desk.orders.clear()
    answer = sent(served.path, pieces, pause_s)
    head = answer.partition(b"\r\n\r\n")[0]
    assert not re.match(rb"HTTP/1\.[01] 5(?!01|03|05)", head), head + answer[:500]
    assert b"Traceback" not in answer
    if b"application/json" in head and answer.partition(b"\r\n\r\n")[2]:
        json.loads(answer.partition(b"\r\n\r\n")[2].split(b"HTTP/1.1 ")[0])
    for verb, args, _ in served.desk.orders:
        assert verb in VERBS
        assert all(word in VERBS[verb] or (word.isascii() and len(word) < 40) for word in args)
        assert (verb in ("pin", "unpin", "rollback")) == (len(args) == 1 and args[0].isdigit())
    begun = time.monotonic()
    assert sent(served.path, [GOOD]).startswith(b"HTTP/1.1 200 ")
    assert time.monotonic() - begun < AT_ONCE_S
    return answer


wild = st.sampled_from(TEXTS) | st.text(max_size=30)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request that is nearly one."""
    page = draw(st.sampled_from(PAGES) | wild)
    asked = draw(st.lists(st.tuples(st.sampled_from(QUERIES), wild | st.integers().map(str)), max_size=3))
    # A long poll for news is right to wait: it is left out, or this would take its half minute.
    query = "&".join(f"{name}={value}" for name, value in asked if name != "wait")
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.²", "HTTP/", "", "x"]))
    line = f"{draw(st.sampled_from(METHODS))} {page}{'?' if query else ''}{query} {version}"
    names = st.sampled_from(["Content-Length", "Transfer-Encoding", "Expect", "Connection", "Host", "X", ""])
    said = st.sampled_from(["0", "5", "-1", "99999999999", "9" * 5000, "٣", "chunked", "100-continue", "close"])
    headers = draw(st.lists(st.tuples(names, said | wild), max_size=4))
    end = draw(st.sampled_from(["\r\n", "\n", "\r", "\n\r\n"]))
    text = end.join([line, *(f"{name}: {value}" for name, value in headers)]) + end + end
    return text.encode("utf-8", "surrogatepass") + draw(st.binary(max_size=40))


@fuzzed()
@given(pieces=st.lists(requests() | st.binary(max_size=200), min_size=1, max_size=3))
@example(pieces=[b"GET http://[ HTTP/1.1\r\n\r\n"])
@example(pieces=[b"GET //[::1 HTTP/1.1\r\n\r\n"])
@example(pieces=[b"POST /v1/command HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"])
@example(pieces=[b"POST /v1/command HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnull\r\n0\r\n\r\n"])
@example(pieces=[b"POST /v1/command HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nnull"])
@example(pieces=[GOOD * 50])
@example(pieces=[b"G" * 200_000])
@example(pieces=[b"GET / HTTP/1.1\r\n" + b"a" * 200_000])
@example(pieces=[b"GET /v1/log?role=%ff%00&lines=" + b"9" * 5000 + b" HTTP/1.1\r\n\r\n"])
@example(pieces=[b"GET /v1/events?" + b"a=1&" * 10_000 + b" HTTP/1.1\r\n\r\n"])
@example(pieces=[])
def test_any_bytes_get_an_answer_or_none_and_the_next_one_is_served(served: Served, pieces: list[bytes]) -> None:
    judge(served, pieces)


bodies = (
    st.fixed_dictionaries(
        {}, optional={"verb": st.sampled_from(sorted(VERBS)) | values, "args": values, "more": values}
    )
    | st.builds(
        lambda verb, args: {"verb": verb, "args": args},
        st.sampled_from(sorted(VERBS)),
        st.lists(
            texts | st.sampled_from(["5", "٣", "²", "-1", "1e3", "9" * 400, "1:2", "--new-config", "--take-over"])
        ),
    )
    | values
)


@fuzzed(2)
@given(body=bodies)
@example(body={"verb": "pin", "args": ["٣"]})
@example(body={"verb": "rollback", "args": ["9" * 400]})
@example(body={"verb": "stop", "args": ["\ud800"]})
@example(body={"verb": "\ud800", "args": []})
@example(body={"verb": {"a": [1]}, "args": {}})
@example(body={"verb": "attach", "args": ["1:2\n"]})
def test_any_body_of_a_command_is_an_order_or_is_refused(served: Served, body: Any) -> None:
    data = dumped(body)
    answer = judge(served, [b"POST /v1/command HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data), data])
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ", b"HTTP/1.1 413 "))


@fuzzed(0.3)
@given(
    data=st.binary(max_size=200) | st.sampled_from([b"[" * 60_000, b"9" * 60_000, b'"\\ud800"']),
    less=st.integers(-5, 5),
)
def test_a_body_of_another_length_than_was_said_is_refused(served: Served, data: bytes, less: int) -> None:
    length = max(0, len(data) + less)
    answer = judge(served, [b"POST /v1/command HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length, data])
    assert not answer.startswith(b"HTTP/1.1 200 ")


@fuzzed(0.2)
@given(request=requests(), cut=st.integers(1, 60))
def test_a_request_that_comes_in_pieces_is_answered_as_the_whole_one(served: Served, request: bytes, cut: int) -> None:
    pieces = [request[at : at + cut] for at in range(0, min(len(request), cut * 6), cut)]
    judge(served, [*pieces, request[cut * 6 :]], pause_s=0.002)


def test_a_hundred_clients_that_say_nothing_and_go_leave_room_for_the_next(served: Served) -> None:
    for _ in range(100):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(served.path))
            connection.sendall(b"GET /v1/sta")
    judge(served, [b""])
