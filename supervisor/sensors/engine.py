"""What the inference engine answers over HTTP: is it there, does it move, does work wait, does it still make a token.

Every look is posted: the core counts misses in a row, and a counter that stands still is news too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from supervisor.base.beside import Beside
from supervisor.core.facts import EngineLook, Fact
from supervisor.jobs.base import Engine
from supervisor.sensors.base import Clock
from supervisor.sensors.engine_answer import Answer, Endpoint, ask, endpoint
from supervisor.sensors.processes import connections_to
from supervisor.sensors.vllm_metrics import EngineCounters, parse

METRICS_LIMIT_BYTES = 4 << 20
MODELS_LIMIT_BYTES = 1 << 20
LOCAL_HOSTS = ("localhost", "::1")


class EngineSensor:
    """Posts one ``EngineLook`` a look for ``engine``.

    - /health and /metrics are asked in the look itself, each with ``timeout_s``.
    - /liveness goes through the engine and may take long (prime-rl@a87badd65 gives it 30 s), so it is asked beside
      the looks, every ``liveness_every_s``. Its answer is in the first look after it came; the looks between say
      "unknown", which counts neither for nor against the engine. An engine that answers 404 has no such endpoint:
      "absent" until another process answers on the port. So does one that does not let us ask (any other 4xx: a proxy
      that wants a key); only what it says of itself, 503 above all, or its silence is a miss.
    - A one-token completion (the canary) is asked only when the counters have stood still for ``canary_after_s``
      while work waits: requests that run or wait, open connections, or ``work_waits()`` (the orchestrator's count).
      Never two at a time; its answer is in one look, too. An engine that does not let us ask (no such model, a key
      is needed) is not held to be hung for that.

    "refused" before the engine was ever up is nothing but that; the core knows that it is starting.
    """

    name = "engine"

    def __init__(
        self,
        engine: Engine,
        *,
        timeout_s: float = 5.0,
        liveness_timeout_s: float = 15.0,
        liveness_every_s: float = 15.0,
        canary_after_s: float = 30.0,
        canary_timeout_s: float = 30.0,
        work_waits: Callable[[], bool] = lambda: False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._server: Endpoint = endpoint(engine.url)
        self._liveness_known = engine.liveness
        self._configured_model = engine.model
        self._timeout_s = timeout_s
        self._liveness_every_s = liveness_every_s
        self._canary_after_s = canary_after_s
        self._work_waits = work_waits
        self._clock = clock
        self.page: tuple[float, bytes] | None = None  # /metrics as it was last read (Unix time), also of a dead engine
        self._own_ports = _Ports()
        self._liveness = _Question(lambda: self._ask("/liveness", liveness_timeout_s))
        self._canary = _Question(lambda: self._ask_canary(canary_timeout_s))
        self._forget_process()

    def look(self) -> Sequence[Fact]:
        now = self._clock()
        health = self._ask("/health", self._timeout_s)
        if health.word == "refused":
            self._forget_process()
        counters, metrics_reason = EngineCounters(), ""
        if health.word in ("ok", "bad"):
            page = self._ask("/metrics", self._timeout_s, METRICS_LIMIT_BYTES)
            counters, metrics_reason = (parse(page.body), "") if page.word == "ok" else (counters, page.reason)
            if page.word == "ok":
                self.page = (time.time(), page.body)
        connections = self._connections()
        liveness, liveness_reason = self._look_at_liveness(health, now)
        waits = bool(counters.running or counters.waiting or connections) or self._work_waits()
        canary, canary_reason = self._look_at_canary(health, counters, waits, now)
        reasons = (health.reason, liveness_reason, canary_reason, metrics_reason)
        return (
            EngineLook(
                endpoint=self._server.text,
                health=health.word,
                liveness=liveness,
                generation_tokens=counters.generation_tokens,
                iterations=counters.iterations,
                running=counters.running,
                waiting=counters.waiting,
                connections=connections,
                canary=canary,
                reason="; ".join(reason for reason in reasons if reason),
                engines=counters.engines,
            ),
        )

    def unknown(self, reason: str) -> Sequence[Fact]:
        return (EngineLook(self._server.text, health="unknown", liveness="unknown", reason=reason),)

    # ------------------------------------------------------------ parts of a look

    def _forget_process(self) -> None:
        """Nothing listens: the next to answer is another process, and what the last one was asked is void."""
        self._liveness.drop()
        self._canary.drop()
        self._liveness_absent = not self._liveness_known
        self._liveness_at = float("-inf")
        self._model = self._configured_model
        self._canary_refused = ""
        self._canary_at = float("-inf")
        self._count: float | None = None
        self._still_since = self._clock()

    def _look_at_liveness(self, health: Answer, now: float) -> tuple[str, str]:
        answer = self._liveness.take()
        if answer is not None and answer.status is not None and 400 <= answer.status < 500:
            self._liveness_absent = True
        if self._liveness_absent:
            return "absent", ""
        if health.word == "ok" and now - self._liveness_at >= self._liveness_every_s and self._liveness.begin():
            self._liveness_at = now
        return (answer.word, answer.reason) if answer is not None else ("unknown", "")

    def _look_at_canary(self, health: Answer, counters: EngineCounters, waits: bool, now: float) -> tuple[str, str]:
        answer = self._canary.take()
        count = counters.iterations if counters.iterations is not None else counters.generation_tokens
        if count is None or count != self._count or not waits:
            self._still_since = now
        if count is not None:
            self._count = count
        still_s = now - self._still_since
        pause_s = now - self._canary_at
        if (
            health.word == "ok"
            and still_s >= self._canary_after_s
            and pause_s >= self._canary_after_s
            and not self._canary_refused
            and answer is None
            and self._canary.begin()
        ):
            self._canary_at = now
        if answer is None or answer.word == "refused":
            return "", ""
        if answer.status is not None and 400 <= answer.status < 500:
            self._canary_refused = f"no one-token completion can be asked for: {answer.reason}"
        if self._canary_refused:
            return "", self._canary_refused
        return (answer.word if answer.word in ("ok", "timeout", "bad") else ""), answer.reason

    # ------------------------------------------------------------ questions

    def _ask(self, path: str, timeout_s: float, limit_bytes: int = 64 << 10, body: bytes | None = None) -> Answer:
        with self._own_ports.one() as opened:
            return ask(self._server, path, timeout_s=timeout_s, limit_bytes=limit_bytes, body=body, opened=opened)

    def _ask_canary(self, timeout_s: float) -> Answer:
        model = self._model
        if model is None:
            listing = self._ask("/v1/models", self._timeout_s, MODELS_LIMIT_BYTES)
            model = _first_model(listing.body)
            if model is None:
                # A list of models is made without the engine: that it fails says nothing about the engine.
                reason = listing.reason or "/v1/models names no model"
                return Answer("unknown", listing.status, reason=reason)
            self._model = model
        # The prompt is a token, not a text, so that it also works with an engine that loaded no tokenizer.
        body = json.dumps({"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0}).encode()
        return self._ask("/v1/completions", timeout_s, 1 << 20, body)

    def _connections(self) -> int | None:
        host = self._server.host
        if host not in LOCAL_HOSTS and not host.startswith("127."):
            return None
        return connections_to(self._server.port, self._own_ports.all())


class _Question:
    """A question that is asked beside the looks, one at a time, because its answer may take long."""

    def __init__(self, ask_it: Callable[[], Answer]) -> None:
        self._ask_it = ask_it
        self._asked: Beside[Answer] | None = None
        self._dropped = False

    def begin(self) -> bool:
        """Ask, unless the last question is still open."""
        if self._asked is not None and self._asked.hangs:
            return False
        self._asked, self._dropped = Beside(self._ask_it), False
        return True

    def take(self) -> Answer | None:
        """The answer, once; None while there is none."""
        if self._asked is None or self._asked.hangs:
            return None
        asked, self._asked = self._asked, None
        return None if self._dropped else asked.result(None)

    def drop(self) -> None:
        """The answer to an open question is of no interest any more."""
        self._dropped = True


class _Ports:
    """Local ports of our own open connections, so that they are not taken for the orchestrator's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[object, int] = {}

    def all(self) -> set[int]:
        with self._lock:
            return set(self._open.values())

    @contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """Takes the port of a connection, which counts until the end of the context."""
        connection = object()

        def take_port(port: int) -> None:
            with self._lock:
                self._open[connection] = port

        try:
            yield take_port
        finally:
            with self._lock:
                self._open.pop(connection, None)


def _first_model(listing: bytes) -> str | None:
    try:
        name = json.loads(listing)["data"][0]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
