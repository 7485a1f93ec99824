"""The dead-man heartbeat: a page and an object in the store hear that all is well, and nothing while it is not.

Whether all is well says the core (``supervisor.core.wellness``), from its state as it is and the clock as it is: a loop
that hangs is not well either. Each outlet has a thread of its own, so none delays another, or the loop.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor import secrets, web
from supervisor.config import RunFile
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.core.wellness import Tolerance, troubles
from supervisor.storage.base import StoreError

LOOK_S = 10.0  # at most, between two looks at how the run is
TIMEOUT_S = 10.0
VARIABLE = "RL_HEARTBEAT_URL"


class SilentError(Exception):
    """A heartbeat did not get through: why, a clause for people."""


@dataclass(frozen=True)
class Outlet:
    """Where it goes, for people, and how it gets there; ``send`` raises SilentError."""

    name: str
    send: Callable[[State], None]


class Heartbeat:
    """The heartbeat of one daemon. Without an outlet it does nothing."""

    def __init__(
        self,
        run_file: RunFile,
        post: Callable[[f.Fact], None],
        state: Callable[[], State],
        now: Callable[[], float],
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        """``now`` is the core's clock; ``write`` puts the object in the store, raising StoreError."""
        about = run_file.heartbeat
        self._interval_s = about.interval_s
        self._tolerance = Tolerance(about.behind_s, about.behind_steps)
        self._post, self._state, self._now = post, state, now
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._clauses: tuple[str, ...] = ()
        self._was_well = False
        url = about.url or secrets.secret(VARIABLE)
        self._outlets: list[Outlet] = []
        if url is not None and (problem := web.problem_of(url)):
            # From the environment; what the run file says was looked at when it was read.
            told = f"The dead-man heartbeat does not go out: what {VARIABLE} holds {problem}."
            post(f.Remark("heartbeat", told))
        elif url is not None:
            secrets.remember_url(url)
            self._outlets.append(Outlet("its page", lambda state: _ask(url)))
        if about.object:
            self._outlets.append(Outlet("the store", lambda state: _write(write, state)))

    def start(self) -> None:
        """Begin; nothing goes out before the run makes steps."""
        for outlet in self._outlets:
            threading.Thread(target=self._run, args=(outlet,), name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """End; what is under way ends by itself."""
        self._over.set()

    @property
    def note(self) -> str:
        """For ``status``: why it is silent, a sentence; "" while it goes out, or where none is wanted."""
        clauses = self._clauses
        return f"The dead-man heartbeat is silent: {'; '.join(clauses)}." if clauses and self._outlets else ""

    # ------------------------------------------------------------ each outlet's thread

    def _run(self, outlet: Outlet) -> None:
        due, failed = 0.0, ""
        while not self._over.wait(min(self._interval_s, LOOK_S) if due else 0.0):
            state = self._well()
            due = due or time.monotonic()
            if state is None or time.monotonic() < due:
                continue
            due = time.monotonic() + self._interval_s - 0.05  # a wait that ends a moment early is no beat less
            try:
                outlet.send(state)
            except SilentError as error:
                if str(error) != failed:
                    failed = str(error)
                    told = f"The dead-man heartbeat does not reach {outlet.name}: {failed}. It is tried again."
                    self._post(f.Remark("heartbeat-failed", told))
                continue
            if failed:
                failed = ""
                self._post(f.Remark("heartbeat", f"The dead-man heartbeat reaches {outlet.name} again."))

    def _well(self) -> State | None:
        """The state when all is well. What changes is told once, by whichever thread sees it first."""
        state = self._state()
        clauses = troubles(state, self._now(), time.time(), self._tolerance)
        with self._lock:
            well_before, self._was_well, self._clauses = self._was_well, not clauses, clauses
        if clauses and well_before:
            self._post(f.Remark("heartbeat-stopped", f"The dead-man heartbeat stops: {'; '.join(clauses)}."))
        if not clauses and not well_before:
            self._post(f.Remark("heartbeat", "The dead-man heartbeat goes out: training and publishing are well."))
        return None if clauses else state


def _ask(url: str) -> None:
    try:
        page = web.ask(url, timeout_s=TIMEOUT_S)
    except web.NoAnswerError as error:
        raise SilentError(str(error)) from error
    if not 200 <= page.status < 300:
        raise SilentError(f"it answers with status {page.status}")


def _write(write: Callable[[dict[str, Any]], None], state: State) -> None:
    value = {
        "format": 1,
        "wall": round(time.time(), 1),
        "pod": socket.gethostname(),
        "step": state.progress.step,
        "published": state.published,
    }
    try:
        write(value)
    except StoreError as error:
        raise SilentError(str(error).rstrip(".")) from error
