"""What the engine's HTTP side answers, on real sockets: well, ill, hung, gone, and not HTTP at all."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.base.errors import ConfigError
from supervisor.core.facts import EngineCount, EngineLook, Observation
from supervisor.core.observe import observe
from supervisor.core.state import State
from supervisor.jobs.base import Engine
from supervisor.sensors.engine import EngineSensor
from supervisor.sensors.engine_answer import ask, endpoint
from supervisor.sensors.vllm_metrics import EngineCounters, parse
from tests.sensors.servers import Vllm, raw, vllm
from tests.sensors.support import FakeClock, until


@pytest.fixture
def server() -> Iterator[Vllm]:
    with vllm() as state:
        yield state


def look(sensor: EngineSensor) -> EngineLook:
    (fact,) = sensor.look()
    assert isinstance(fact, EngineLook)
    return fact


def look_until(sensor: EngineSensor, true: Callable[[EngineLook], bool], what: str) -> EngineLook:
    looks: list[EngineLook] = []

    def found() -> bool:
        looks.append(look(sensor))
        return true(looks[-1])

    until(found, what)
    return looks[-1]


def test_a_well_engine_at_work(server: Vllm) -> None:
    server.running, server.waiting = 3, 2
    sensor = EngineSensor(Engine(server.url, liveness=True))
    first = look(sensor)
    assert first == EngineLook(
        server.url,
        health="ok",
        liveness="unknown",
        generation_tokens=100,
        iterations=50,
        running=3,
        waiting=2,
        connections=first.connections,
    )
    assert first.connections is not None
    later = look_until(sensor, lambda fact: fact.liveness != "unknown", "the answer of /liveness")
    assert later.liveness == "ok" and later.reason == ""


def test_a_refused_port_is_reported_as_that_and_says_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    fact = look(EngineSensor(Engine(url, liveness=True)))
    assert (fact.health, fact.liveness, fact.running) == ("refused", "unknown", None)
    assert fact.reason == f"nothing listens on {url}"


def test_the_engine_errored_and_health_says_503(server: Vllm) -> None:
    server.health = 503
    fact = look(EngineSensor(Engine(server.url, liveness=False)))
    assert (fact.health, fact.liveness, fact.reason) == ("bad", "absent", "/health answered with status 503")
    assert fact.generation_tokens == 100, "the counters are still read"


def test_an_era_without_liveness_is_asked_for_it_once_in_a_process_life(server: Vllm) -> None:
    server.liveness = 404
    clock = FakeClock()
    sensor = EngineSensor(Engine(server.url, liveness=True), clock=clock)
    look_until(sensor, lambda fact: fact.liveness == "absent", "the 404 is understood")
    for _ in range(5):
        clock.now += 60
        assert look(sensor).liveness == "absent"
    assert server.asked.count("/liveness") == 1


@pytest.mark.parametrize("status", [401, 403, 405])
def test_a_liveness_that_we_may_not_ask_is_no_miss(server: Vllm, status: int) -> None:
    server.liveness = status
    sensor = EngineSensor(Engine(server.url, liveness=True))
    fact = look_until(sensor, lambda fact: fact.liveness != "unknown", "the refusal is understood")
    assert (fact.liveness, fact.reason) == ("absent", "")


def test_liveness_is_missed_three_times_however_often_one_looks(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(Engine(server.url, liveness=True), liveness_timeout_s=0.1, liveness_every_s=15, clock=clock)
    server.liveness = 503
    state = State()
    for misses in (1, 2, 3):

        def missed(misses: int = misses) -> bool:
            nonlocal state
            state = observe(state, Observation(clock.now, 0.0, look(sensor)))
            return state.engine.liveness_misses >= misses

        until(missed, f"miss {misses}")
        for _ in range(5):
            state = observe(state, Observation(clock.now, 0.0, look(sensor)))
        assert state.engine.liveness_misses == misses == server.asked.count("/liveness")
        clock.now += 15
    server.liveness = 200
    until(lambda: look(sensor).liveness == "ok", "the engine is well again")
    state = observe(state, Observation(clock.now, 0.0, EngineLook(server.url, "ok", liveness="ok")))
    assert state.engine.liveness_misses == 0


def test_an_engine_that_hangs_is_asked_for_one_liveness_at_a_time(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(Engine(server.url, liveness=True), liveness_timeout_s=20, clock=clock)
    server.liveness = None
    look(sensor)
    until(lambda: "/liveness" in server.asked, "the question arrives")
    for _ in range(10):
        clock.now += 60
        assert look(sensor).liveness == "unknown"
    assert server.asked.count("/liveness") == 1


def test_one_of_two_engines_stands_still_while_the_sum_moves(server: Vllm) -> None:
    server.engines = [(100, 3, 0), (500, 2, 7)]
    sensor = EngineSensor(Engine(server.url, liveness=False))
    first = look(sensor)
    assert (first.generation_tokens, first.iterations, first.running, first.waiting) == (600, 300, 5, 7)
    assert first.engines == (EngineCount(0, 50, 3, 0), EngineCount(1, 250, 2, 7))
    server.engines[1] = (600, 2, 7)
    later = look(sensor)
    assert later.iterations == 350
    assert [engine.iterations for engine in later.engines] == [50, 300]


def test_one_engine_alone_is_not_told_twice(server: Vllm) -> None:
    assert look(EngineSensor(Engine(server.url, liveness=False))).engines == ()


def test_a_new_engine_on_the_port_is_asked_for_liveness_again() -> None:
    with vllm() as old:
        old.liveness = 404
        sensor = EngineSensor(Engine(old.url, liveness=True))
        look_until(sensor, lambda fact: fact.liveness == "absent", "the 404 is understood")
    assert look(sensor).health == "refused"
    with vllm(old.port):
        fact = look_until(sensor, lambda fact: fact.liveness == "ok", "the new engine's /liveness")
        assert fact.health == "ok"


def test_the_engine_hangs_while_health_answers_and_liveness_and_the_canary_tell(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(
        Engine(server.url, liveness=True),
        liveness_timeout_s=0.2,
        canary_timeout_s=0.2,
        canary_after_s=30,
        clock=clock,
    )
    server.liveness, server.completion, server.running = None, None, 4
    looks = [look(sensor)]
    for _ in range(2):
        clock.now += 10
        looks.append(look(sensor))
    assert server.bodies == [], "20 s are not 30 s"

    clock.now += 20

    def both_told() -> bool:
        looks.append(look(sensor))
        return any(fact.liveness == "timeout" for fact in looks) and any(fact.canary == "timeout" for fact in looks)

    until(both_told, "both are said to have timed out")
    assert {fact.health for fact in looks} == {"ok"}
    assert sum(fact.canary != "" for fact in looks) == 1, "one canary is one miss, however often one looks"
    assert {fact.liveness for fact in looks} == {"unknown", "timeout"}
    assert sum(fact.liveness == "timeout" for fact in looks) <= server.asked.count("/liveness")
    said = next(fact for fact in looks if fact.canary)
    assert "/v1/completions did not answer for 0.2 s" in said.reason
    assert json.loads(server.bodies[0]) == {
        "model": "Qwen/Qwen3-0.6B",
        "prompt": [1],
        "max_tokens": 1,
        "temperature": 0,
    }

    clock.now += 31
    look(sensor)
    until(lambda: len(server.bodies) == 2, "the second canary")
    assert server.asked.count("/v1/models") == 1


def test_never_two_canaries_at_a_time(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(
        Engine(server.url, liveness=False, model="m"), canary_timeout_s=60, canary_after_s=1, clock=clock
    )
    server.completion, server.waiting = None, 1
    look(sensor)
    for _ in range(10):
        clock.now += 5
        assert look(sensor).canary == ""
    until(lambda: server.open_completions == 1, "the canary arrives")
    assert server.most_open_completions == 1
    assert json.loads(server.bodies[0])["model"] == "m" and "/v1/models" not in server.asked


def test_no_canary_while_counters_move_or_nothing_waits(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(Engine(server.url, liveness=False), canary_after_s=30, clock=clock)
    for _ in range(10):
        clock.now += 20
        look(sensor)  # idle
    server.running = 1
    for _ in range(10):
        clock.now += 20
        server.tokens += 1
        look(sensor)  # at work
    assert "/v1/completions" not in server.asked


def test_work_that_only_the_orchestrator_knows_of_brings_a_canary(server: Vllm) -> None:
    clock = FakeClock()
    waits = threading.Event()
    sensor = EngineSensor(Engine(server.url, liveness=False), canary_after_s=30, work_waits=waits.is_set, clock=clock)
    look(sensor)
    waits.set()
    clock.now += 10
    look(sensor)
    clock.now += 40
    fact = look_until(sensor, lambda fact: fact.canary != "", "the canary's answer")
    assert fact.canary == "ok"


@pytest.mark.parametrize("status", [401, 404])
def test_an_engine_that_does_not_let_us_ask_is_not_held_to_be_hung(server: Vllm, status: int) -> None:
    clock = FakeClock()
    sensor = EngineSensor(Engine(server.url, liveness=False), canary_after_s=1, clock=clock)
    server.completion, server.running = status, 1
    look(sensor)
    clock.now += 2
    fact = look_until(sensor, lambda fact: bool(fact.reason), "the refusal")
    assert fact.canary == ""
    assert fact.reason == f"no one-token completion can be asked for: /v1/completions answered with status {status}"
    clock.now += 100
    look(sensor)
    assert len(server.bodies) == 1


def test_connections_of_others_count_and_our_own_do_not(server: Vllm) -> None:
    clock = FakeClock()
    sensor = EngineSensor(
        Engine(server.url, liveness=True), liveness_timeout_s=20, canary_timeout_s=20, canary_after_s=1, clock=clock
    )
    server.liveness = server.completion = None
    with socket.create_connection(("127.0.0.1", server.port)):
        look_until(sensor, lambda fact: fact.connections == 1, "the orchestrator's connection")
        clock.now += 5
        look(sensor)
        until(lambda: server.open_completions == 1 and "/liveness" in server.asked, "both long questions are open")
        look_until(sensor, lambda fact: fact.connections == 1, "only the orchestrator's connection is counted")
    look_until(sensor, lambda fact: fact.connections == 0, "nobody but us is connected")


def test_metrics_that_cannot_be_read_are_unknown_and_not_zero(server: Vllm) -> None:
    server.metrics = 404
    fact = look(EngineSensor(Engine(server.url, liveness=False)))
    assert fact.health == "ok"
    assert (fact.generation_tokens, fact.iterations, fact.running, fact.waiting) == (None, None, None, None)
    assert fact.reason == "/metrics answered with status 404"


# ---------------------------------------------------------------- answers that are none


def silent(connection: socket.socket, ended: threading.Event) -> None:
    ended.wait(20)


def drip(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def drip_head(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def flood(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not ended.is_set():
        connection.sendall(b"x" * 65536)


def endless_continue(connection: socket.socket, ended: threading.Event) -> None:
    while not ended.is_set():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def says(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    return lambda connection, ended: connection.sendall(data)


@pytest.mark.parametrize(
    ("speak", "word", "reason"),
    [
        (silent, "timeout", "/health did not answer for 0.5 s"),
        (drip, "timeout", "/health did not answer for 0.5 s"),
        (drip_head, "timeout", "/health did not answer for 0.5 s"),
        (flood, "bad", "the answer to /health is larger than 65,536 bytes"),
        (endless_continue, "", ""),
        (
            says(b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\n\r\n"),
            "bad",
            "/health answered with status 307",
        ),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "bad", "/health did not answer in HTTP: BadStatusLine"),
        (says(b"\x00\xff" * 50), "bad", "/health did not answer in HTTP"),
        (says(b""), "bad", "/health did not answer in HTTP: RemoteDisconnected"),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), "bad", "/health did not answer in HTTP: Incompl"),
        (says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "bad", "/health did not answer in HTTP"),
        (says(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70000), "bad", "/health did not answer in HTTP: LineTooLong"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_garbage_never_holds_the_sensor_up(
    speak: Callable[[socket.socket, threading.Event], None], word: str, reason: str
) -> None:
    # Only where the time-out is what is tried is it short: a busy machine must not make others time out.
    timeout_s = 0.5 if word in ("timeout", "") else 10
    with raw(speak) as url:
        begun = time.monotonic()
        answer = ask(endpoint(url), "/health", timeout_s=timeout_s)
        assert time.monotonic() - begun < 9
        assert answer.word == word or (not word and answer.word in ("timeout", "bad"))
        assert answer.reason.startswith(reason)
        assert answer.body == b""


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_of_some_kind(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, said))
        thread.start()
        port = listener.getsockname()[1]
        answer = ask(endpoint(f"http://127.0.0.1:{port}"), "/x", timeout_s=5)
        thread.join()
    assert answer.word in ("ok", "bad")
    assert bool(answer.reason) == (answer.word != "ok")


def _answer_once(listener: socket.socket, said: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(said)


@pytest.mark.parametrize("url", ["https://127.0.0.1:8000", "127.0.0.1:8000", "http://", "http://x:99999"])
def test_an_address_that_is_no_plain_http_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match=r"write http://127\.0\.0\.1:8000"):
        EngineSensor(Engine(url, liveness=True))


def test_addresses_that_people_write() -> None:
    assert endpoint("http://0.0.0.0:8100").text == "http://127.0.0.1:8100"
    assert endpoint("http://[::1]:8100/v2/").text == "http://[::1]:8100/v2"


# ---------------------------------------------------------------- the metrics page


def test_counters_are_summed_over_engines_and_names_without_total_are_taken() -> None:
    page = (
        b'vllm:generation_tokens{engine="0",model_name="a} 9 {"} 10.0\n'
        b'vllm:generation_tokens{engine="1",model_name="a"} 5.0 1700000000000\n'
        b"vllm:iteration_tokens_count 3\n"
        b'vllm:num_requests_running{engine="0"} NaN\n'
        b'vllm:num_requests_running{engine="1"} 2\n'
        b"vllm:num_requests_waiting{engine=\n"
    )
    each = (EngineCount(0, None, None, None), EngineCount(1, None, 2, None))
    assert parse(page) == EngineCounters(generation_tokens=15, iterations=3, running=2, waiting=None, engines=each)
    assert parse(b"vllm:generation_tokens 1\nvllm:generation_tokens_total 7\n").generation_tokens == 7


def test_each_engine_is_told_apart_by_its_label_and_by_nothing_that_looks_like_it() -> None:
    page = (
        b'vllm:generation_tokens_total{engine="10",model_name="a"} 10\n'
        b'vllm:generation_tokens_total{engine="2",model_name="a{engine=\\"7\\""} 20\n'
        b'vllm:generation_tokens_total{model_name="a",engine="2"} 1\n'
        b'vllm:generation_tokens_total{my_engine="3",engine="",model_name="a"} 5\n'
        b'vllm:num_requests_waiting{engine="10",model_name="a"} 4\n'
    )
    assert parse(page).engines == (EngineCount(2, 21, None, None), EngineCount(10, 10, None, 4))


NUMBERS = st.floats(min_value=0, max_value=1e12, allow_nan=False)
LABELS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(LABELS, NUMBERS), min_size=1, max_size=5), st.lists(st.binary(max_size=60), max_size=8))
def test_whatever_stands_around_them_the_numbers_are_read(engines: list[tuple[str, float]], noise: list[bytes]) -> None:
    lines = [f'vllm:num_requests_running{{a="{label}"}} {value!r}'.encode() for label, value in engines]
    # Noise that is a line of the very same name would be read, and rightly so.
    harmless = [line for line in noise if b"vllm:num_requests_running" not in line]
    page = b"\n".join([*harmless, *lines, *harmless])
    assert parse(page).running == pytest.approx(sum(value for _, value in engines))
