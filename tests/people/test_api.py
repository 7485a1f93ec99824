"""The API over real unix and TCP sockets: what it answers, whom it lets in, and who cannot hang it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.api import server
from supervisor.api.client import Client, NotThereError, RefusedError, UnclearError
from supervisor.api.protocol import VERBS, Api
from supervisor.base.errors import ConfigError, TryAgainError
from tests.people.desk import FakeDesk, until

Serve = Callable[..., Api]


def raw(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        try:
            connection.sendall(request)
        except BrokenPipeError:
            pass  # refused before all of it was read
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def fetch(address: tuple[str, int], page: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.request(method, page)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


# ---------------------------------------------------------------- pages


def test_a_loss_that_is_no_number_is_null_for_json_has_no_other_word(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    desk.now |= {"loss": float("nan"), "reward": float("-inf"), "gpus": [{"index": 0, "share": float("nan")}]}
    serve(desk)
    answer = raw(sockets / "bs4-qwen3.sock", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"NaN" not in answer
    assert b"Infinity" not in answer
    status = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (status["loss"], status["reward"], status["gpus"][0]["share"]) == (None, None, None)
    assert status["step"] == 412


def test_status_explain_and_checkpoints_are_the_desks_own_words(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    client = Client(sockets / "bs4-qwen3.sock")
    assert client.get("/v1/status") == desk.now
    assert client.get("/v1/explain")["sentence"] == "Healthy: step 412 of 1000."
    listed = client.get("/v1/checkpoints")
    assert [step["step"] for step in listed["local_steps"]] == [400, 410, 420]
    assert listed["store"] == "b2://bucket/prefix"


def test_an_order_carries_who_gave_it(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    assert Client(sockets / "bs4-qwen3.sock").command("restart", ["--new-config"]) == (
        True,
        "The order to restart is taken.",
    )
    [(verb, args, who)] = desk.orders
    assert (verb, args) == ("restart", ["--new-config"])
    assert who.endswith(f"(pid {os.getpid()})")


def test_a_refused_order_says_why(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    desk.refuses = "The run is finished."
    serve(desk)
    assert Client(sockets / "bs4-qwen3.sock").command("start", []) == (False, "The run is finished.")


@pytest.mark.parametrize(
    ("verb", "args", "sentence"),
    [
        ("explode", [], "There is no command 'explode'; there are " + ", ".join(VERBS)),
        ("stop", ["--new-config"], "stop does not know '--new-config'."),
        ("attach", [], "attach wants one process, as PID:START_TICKS."),
        ("attach", ["4711"], "attach does not know '4711'."),
        ("attach", ["1:2", "3:4"], "attach does not know '1:2'."),
        ("stop", [1], "args must be a list of words."),
        ("stop", "now", "args must be a list of words."),
        (["stop"], [], "There is no command"),
    ],
)
def test_an_order_that_is_none_is_refused_and_not_passed_on(
    serve: Serve, sockets: Path, verb: object, args: object, sentence: str
) -> None:
    desk = FakeDesk()
    serve(desk)
    with pytest.raises(RefusedError, match="^" + re.escape(sentence)):
        Client(sockets / "bs4-qwen3.sock").command(verb, args)  # type: ignore[arg-type]
    assert desk.orders == []


def test_events_wait_until_there_is_one(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    desk.say("step 1")
    serve(desk)
    client = Client(sockets / "bs4-qwen3.sock")
    assert [event["sentence"] for event in client.get("/v1/events", after=-1)["events"]] == ["step 1"]
    desk.asked_events.clear()
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(client.get("/v1/events", after=1, wait=20)["events"]))
    waiter.start()
    assert desk.asked_events.wait(10)
    assert got == []
    desk.say("step 2")
    waiter.join(10)
    assert [[event["sentence"] for event in events] for events in got] == [["step 2"]]  # type: ignore[attr-defined]


def test_closing_ends_a_long_poll_at_once(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    api = serve(desk)
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(Client(sockets / "bs4-qwen3.sock").get("/v1/events", after=0, wait=30))
        except UnclearError as error:
            answers.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert desk.asked_events.wait(10)
    began = time.monotonic()
    api.close()
    waiter.join(10)
    assert len(answers) == 1
    assert time.monotonic() - began < 5


def test_followers_never_keep_an_order_out(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    path = sockets / "bs4-qwen3.sock"
    held = []
    for _ in range(40):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        until(lambda connection=connection: connection.connect_ex(str(path)) == 0)
        connection.sendall(b"GET /v1/events?after=0&wait=30 HTTP/1.1\r\nHost: x\r\n\r\n")
        held.append(connection)
    assert desk.asked_events.wait(10)
    assert Client(path).command("stop", [])[0]
    for connection in held:
        connection.close()


def test_a_page_that_fails_is_an_answer_and_the_server_lives(serve: Serve, sockets: Path) -> None:
    desk = FakeDesk()
    serve(desk)
    client = Client(sockets / "bs4-qwen3.sock")
    desk.broken = RuntimeError("the state is odd")
    with pytest.raises(UnclearError, match=r"could not answer: .*RuntimeError: the state is odd"):
        client.get("/v1/status")
    desk.broken = None
    assert client.get("/v1/status")["step"] == 412


# ---------------------------------------------------------------- logs


def test_a_log_is_followed_through_growth_truncation_and_replacement(
    serve: Serve, sockets: Path, tmp_path: Path
) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("one\ntwo\nthree\n")
    desk = FakeDesk()
    desk.files = {"trainer": log, "launcher": tmp_path / "gone.log"}
    serve(desk)
    client = Client(sockets / "bs4-qwen3.sock")

    first = client.get("/v1/log", role="trainer", lines=2)
    assert (first["text"], first["roles"]) == ("two\nthree\n", ["launcher", "trainer"])

    def more(last: dict[str, object]) -> dict[str, object]:
        return client.get("/v1/log", role="trainer", offset=last["offset"], inode=last["inode"])

    with log.open("a") as file:
        file.write("four\nhalf")
    second = more(first)
    assert second["text"] == "four\n"  # the half line waits for its end
    log.write_text("new\n")
    third = more(second)
    assert (third["text"], third["anew"]) == ("new\n", True)
    other = tmp_path / "other.log"
    other.write_text("swapped in\n")
    other.replace(log)
    assert more(third)["text"] == "swapped in\n"


def test_a_huge_binary_line_a_fifo_and_a_missing_log_hang_nobody(serve: Serve, sockets: Path, tmp_path: Path) -> None:
    huge, fifo = tmp_path / "huge.log", tmp_path / "fifo.log"
    huge.write_bytes(b"\xff\x00" * 3_000_000)
    os.mkfifo(fifo)
    desk = FakeDesk()
    desk.files = {"trainer": huge, "env": fifo, "launcher": tmp_path / "gone.log"}
    serve(desk)
    client = Client(sockets / "bs4-qwen3.sock")
    assert len(client.get("/v1/log", role="trainer", lines=5)["text"]) == 256 << 10
    inode = huge.stat().st_ino
    assert client.get("/v1/log", role="trainer", offset=0, inode=inode)["offset"] == 256 << 10
    with pytest.raises(RefusedError, match=r"fifo\.log is not a plain file"):
        client.get("/v1/log", role="env")
    with pytest.raises(RefusedError, match=r"gone\.log cannot be read: No such file"):
        client.get("/v1/log")
    with pytest.raises(RefusedError, match="no log of 'engine'; there are env, launcher, trainer"):
        client.get("/v1/log", role="engine")


def test_secrets_in_the_jobs_log_do_not_leave_by_the_api(serve: Serve, sockets: Path, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("using B2_APPLICATION_KEY=K004abcdefghijklmnopqrstuvwxyz1 now\n")
    desk = FakeDesk()
    desk.files = {"job": log}
    serve(desk)
    assert Client(sockets / "bs4-qwen3.sock").get("/v1/log")["text"] == "using B2_APPLICATION_KEY=*** now\n"


# ---------------------------------------------------------------- hostile and broken clients


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /v1/nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /v1/status HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"POST /v1/status HTTP/1.1\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60000, 405),  # not reset unread
        (b"GET /v1/command HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /v1/status HTTP/1.1\r\n\r\n", 501),
        (b"POST /v1/command HTTP/1.1\r\n\r\n", 411),
        (b"POST /v1/command HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 411),
        (b"POST /v1/command HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/command HTTP/1.1\r\nContent-Length: 4\r\n\r\nnull", 400),
        (b"POST /v1/command HTTP/1.1\r\nContent-Length: 9\r\n\r\n{not json", 400),
        (b"POST /v1/command HTTP/1.1\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60000, 400),
        (b"GET /v1/events?after=x HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/events?wait=nan HTTP/1.1\r\n\r\n", 400),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /v1/status HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
    ],
)
def test_a_bad_request_gets_its_own_status_and_a_sentence(
    serve: Serve, sockets: Path, request_: bytes, status: int
) -> None:
    desk = FakeDesk()
    serve(desk)
    answer = raw(sockets / "bs4-qwen3.sock", request_)
    if answer.startswith(b"HTTP/"):
        head, body = answer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 %d " % status)
    else:
        body = answer  # to a client that speaks HTTP/0.9 only the body is sent
        assert status == 400
    assert json.loads(body)["error"].endswith(".")
    assert desk.orders == []


def test_a_client_that_never_finishes_its_request_is_cut_off(
    serve: Serve, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    serve(FakeDesk())
    with socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(10)
        slow.connect(str(sockets / "bs4-qwen3.sock"))
        slow.sendall(b"GET /v1/sta")
        deadline = time.monotonic() + 10
        try:
            while time.monotonic() < deadline:  # a byte now and then keeps a plain socket time-out from firing
                slow.sendall(b"t")
                time.sleep(0.02)
        except OSError:
            pass
        assert time.monotonic() < deadline


def test_too_many_connections_are_told_so_and_the_next_one_is_served(serve: Serve, sockets: Path) -> None:
    serve(FakeDesk())
    path = sockets / "bs4-qwen3.sock"
    held = []
    for _ in range(32):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))  # and says nothing
        held.append(connection)
    until(lambda: raw(path, b"GET /v1/status HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503"))
    for connection in held:
        connection.close()
    until(lambda: raw(path, b"GET /v1/status HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200"))


# ---------------------------------------------------------------- TCP


def test_tcp_serves_metrics_and_health_and_nothing_else(serve: Serve) -> None:
    desk = FakeDesk()
    api = serve(desk, tcp="127.0.0.1:0")
    until(lambda: api.tcp_address)
    assert api.tcp_address
    status, text = fetch(api.tcp_address, "/metrics")
    assert status == 200
    assert 'rl_supervisor_step{run="bs4-qwen3"} 412' in text
    assert fetch(api.tcp_address, "/healthz") == (200, "the loop turned 0.1 s ago\n")
    assert fetch(api.tcp_address, "/readyz")[0] == 200
    assert fetch(api.tcp_address, "/healthz", "HEAD") == (200, "")
    desk.now["state"] = "recovering"
    assert fetch(api.tcp_address, "/readyz") == (503, "the run is recovering\n")
    for page, method in (("/v1/status", "GET"), ("/v1/command", "POST"), ("/v1/log", "GET")):
        status, text = fetch(api.tcp_address, page, method)
        assert (status, text) == (
            404,
            f'{{"error": "There is no {page} here; there are /healthz, /metrics, /readyz."}}\n',
        )
    assert desk.orders == []


def test_a_taken_metrics_port_costs_the_metrics_and_not_the_daemon(
    serve: Serve, sockets: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from supervisor.base import logs

    logs.configure("json")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serve(FakeDesk(), tcp=f"127.0.0.1:{port}")
        said = ""

        def told() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return f"Metrics cannot be served on 127.0.0.1:{port}" in said

        until(told)
        assert Client(sockets / "bs4-qwen3.sock").get("/v1/status")["step"] == 412


# ---------------------------------------------------------------- the socket itself


def test_the_socket_has_its_permissions_and_its_folder_can_be_entered(sockets: Path) -> None:
    path = sockets / "new" / "x.sock"
    old = os.umask(0o077)
    try:
        api = Api(FakeDesk(), path, 0o640)
        api.start()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert [entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".lock")] == ["x.sock"]
    api.close()
    assert not path.exists()


def test_a_second_daemon_is_refused_with_a_sentence(serve: Serve, sockets: Path) -> None:
    serve(FakeDesk())
    second = Api(FakeDesk(), sockets / "bs4-qwen3.sock")
    with pytest.raises(TryAgainError, match=rf"Another daemon \(process {os.getpid()}\) already serves .*one daemon"):
        second.start()
    second.close()
    assert Client(sockets / "bs4-qwen3.sock").get("/v1/status")["step"] == 412


def test_a_daemon_without_its_lock_file_is_still_seen_to_be_alive(serve: Serve, sockets: Path) -> None:
    serve(FakeDesk())
    (sockets / ".bs4-qwen3.sock.lock").unlink()
    with pytest.raises(TryAgainError, match=rf"process {os.getpid()}"):
        Api(FakeDesk(), sockets / "bs4-qwen3.sock").start()


def test_the_socket_of_a_killed_daemon_is_taken_over(serve: Serve, sockets: Path) -> None:
    path = sockets / "bs4-qwen3.sock"
    code = (
        "import sys, time; from pathlib import Path; from supervisor.api.protocol import Api;"
        "from tests.people.desk import FakeDesk; Api(FakeDesk(), Path(sys.argv[1])).start(); print('up', flush=True);"
        "time.sleep(60)"
    )
    first = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout
    assert first.stdout.readline() == "up\n"
    assert Client(path).get("/v1/status")["step"] == 412
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert path.is_socket()
    with pytest.raises(NotThereError, match="No daemon answers for bs4-qwen3"):
        Client(path).get("/v1/status")
    serve(FakeDesk(step=7))
    assert Client(path).get("/v1/status")["step"] == 7


def test_paths_that_cannot_be_a_socket_are_explained(sockets: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 1\d\d bytes, and Linux allows 107: .*\[api\] socket"):
        Api(FakeDesk(), sockets / ("x" * 100) / "run.sock").start()
    in_the_way = sockets / "file.sock"
    in_the_way.write_text("precious")
    with pytest.raises(ConfigError, match=r"file.sock exists and is not a socket: move it away"):
        Api(FakeDesk(), in_the_way).start()
    assert in_the_way.read_text() == "precious"
    with pytest.raises(ConfigError, match=r"folder .*cannot be made|is not a folder"):
        Api(FakeDesk(), in_the_way / "run.sock").start()


def test_the_longest_path_that_linux_allows_works(sockets: Path) -> None:
    path = sockets / ("x" * (107 - len(str(sockets)) - 1 - 5) + ".sock")
    assert len(str(path)) == 107
    api = Api(FakeDesk(), path)
    api.start()
    assert Client(path).get("/v1/status")["step"] == 412
    api.close()


def test_something_else_behind_the_socket_is_no_daemon(sockets: Path) -> None:
    path = sockets / "odd.sock"
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(path))
        odd.listen()

        def answer() -> None:
            connection, _ = odd.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnclearError, match="connection to odd broke"):
            Client(path).get("/v1/status")
        thread.join()
