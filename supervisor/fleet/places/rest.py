"""What places that are asked over HTTP share: one request with its gap, and the sentence for each way to fail.

Each place reads its own answers, and says of which kind a refusal is.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from supervisor.base import http
from supervisor.fleet.places.base import ErrorKind, PlaceError
from supervisor.fleet.places.fields import Row, read_object

ANSWER_BYTES = 8 << 20
MOST_SLEEP_S = 10.0
"""What must not be asked for longer than that is not waited for."""
MOST_QUIET_S = 900.0
"""For so long at most nothing is asked because a server wants that (Retry-After)."""
KINDS_BY_STATUS: Mapping[int, ErrorKind] = {401: "key", 403: "key", 402: "credit", 429: "rate"}
SENTENCES: Mapping[ErrorKind, str] = {
    "key": "{name} refused the API key and did not {task} ({clause}). Check the key.",
    "credit": "The {name} account has no credit to {task} ({clause}). Add credit.",
    "rate": "{name} was asked too often to {task} ({clause}). Retry in {wait_s:g} s.",
    "taken": "{name} did not rent the offer: it is gone ({clause}).",
    "refused": "{name} refused to {task} ({clause}).",
    "away": "{name} did not {task}: {clause}.",
    "unsure": "It is unknown if {name} did {task}: {clause}.",
}


@dataclass(frozen=True)
class Endpoint:
    """``task``: what it does, for a sentence. ``gap_s``: seconds between two requests.

    ``no_answer``: the kind of an error that leaves open what was done.
    """

    task: str
    gap_s: float
    no_answer: ErrorKind = "away"


class Rest:
    """One account behind a bearer key. For one thread: it waits between requests."""

    title: ClassVar[str]
    """The provider's name, for sentences."""

    def __init__(
        self,
        key: str,
        url: str,
        *,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``key`` as it comes from a file or a variable."""
        self.key = key.strip()
        self._url, self._timeout_s = url.rstrip("/"), timeout_s
        self._clock, self._sleep = clock, sleep
        self._asked_at: dict[Endpoint, float] = {}
        self._quiet_until: dict[Endpoint, float] = {}

    def ask(
        self, endpoint: Endpoint, method: str, path: str, body: Row | None = None, *, listen_s: float | None = None
    ) -> http.Page:
        """The answer, of any status. Raises PlaceError where there is none, or where the server asked for a pause.

        ``listen_s``: it is a stream of events, and what comes within so many seconds is enough.
        """
        accept = "application/json" if listen_s is None else "text/event-stream"
        headers = {"Authorization": f"Bearer {self.key}", "Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/json"
        quiet_s = self._quiet_until.get(endpoint, -math.inf) - self._clock()
        if quiet_s > MOST_SLEEP_S:
            raise self.failure(endpoint, "rate", "it asked for a pause", round(quiet_s))
        early_s = max(quiet_s, self._asked_at.get(endpoint, -math.inf) + endpoint.gap_s - self._clock())
        if early_s > 0:
            self._sleep(early_s)
        try:
            page = http.ask(
                self._url + path,
                method,
                headers,
                timeout_s=self._timeout_s if listen_s is None else min(listen_s, self._timeout_s),
                body=None if body is None else json.dumps(body).encode(),
                limit_bytes=ANSWER_BYTES,
                is_stream=listen_s is not None,
            )
            if page.status in (429, 503) and page.retry_after_s:
                self._quiet_until[endpoint] = self._clock() + min(page.retry_after_s, MOST_QUIET_S)
            return page
        except http.NoAnswerError as error:
            raise self.failure(endpoint, endpoint.no_answer if error.connected else "away", str(error)) from None
        finally:
            self._asked_at[endpoint] = self._clock()

    def read_object(self, endpoint: Endpoint, page: http.Page) -> Row:
        """The JSON object that was answered. Raises PlaceError where it is none."""
        answer = read_object(page.text)
        if answer is None:
            raise self.unread(endpoint, "it is no JSON object")
        return answer

    def rows_of(self, endpoint: Endpoint, answer: Row, name: str) -> list[Row]:
        """Raises where one is missing or no object: a machine that is overlooked would be rented once more."""
        rows = answer.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.unread(endpoint, f"it holds no list of {name}")
        return rows

    def failure(self, endpoint: Endpoint, kind: ErrorKind, clause: str, wait_s: float = 0.0) -> PlaceError:
        """The error with its sentence. ``clause`` holds no secret."""
        words = {"name": self.title, "task": endpoint.task, "clause": clause, "wait_s": wait_s}
        return PlaceError(kind, SENTENCES[kind].format(**words), wait_s)

    def unread(self, endpoint: Endpoint, clause: str) -> PlaceError:
        """The error for an answer that came and cannot be understood."""
        return self.failure(endpoint, endpoint.no_answer, f"cannot read its answer, {clause}")
