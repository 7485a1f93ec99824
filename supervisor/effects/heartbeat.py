"""The dead-man heartbeat: a page and an object in the store hear that all is well, and nothing while it is not.

Whether all is well says the core (``supervisor.core.wellness``), from its state as it is and the clock as it is: a loop
that hangs is not well either. Each outlet has a thread of its own, so none delays another, or the loop.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from supervisor.base import http, secrets
from supervisor.base.errors import StoreError
from supervisor.base.records import dataclass
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.state import State
from supervisor.core.wellness import Tolerance, troubles
from supervisor.core.words import span

LOOK_S = 10.0  # at most, between two looks at how the run is
TIMEOUT_S = 10.0
VARIABLE = "RL_HEARTBEAT_URL"


class SilentError(Exception):
    """A heartbeat did not get through: why, a clause for people."""


@dataclass(frozen=True)
class Outlet:
    """Where it goes, for people, and how it gets there; ``send`` raises SilentError, and is called while ``may``."""

    name: str
    send: Callable[[State], None]
    may: Callable[[], bool] = lambda: True


class Heartbeat:
    """The heartbeat of one daemon. Without an outlet it does nothing."""

    def __init__(
        self,
        run_file: RunFile,
        post: Callable[[f.Fact], None],
        state: Callable[[], State],
        now: Callable[[], float],
        write: Callable[[dict[str, Any]], None],
        *,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """``now`` is the core's clock; ``write`` puts the object in the store, raising StoreError, and may do so once
        this daemon ``holds`` the run: one that goes on with a run that the state knows as ours has still to claim it.
        """
        about = run_file.heartbeat
        self._interval_s = about.interval_s
        self._tolerance = Tolerance(about.behind_s, about.behind_steps, run_file.job.saves_every)
        self._post, self._state, self._now = post, state, now
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._clauses: tuple[str, ...] = ()
        self._was_well = False
        self._failed: dict[str, tuple[str, float]] = {}  # by outlet: why, and since when on the core's clock
        self._odd = ""
        url = about.url or secrets.secret(VARIABLE)
        self._outlets: list[Outlet] = []
        if url is not None and (problem := http.problem_of(url)):
            # From the environment; what the run file says was looked at when it was read.
            self._odd = f"The dead-man heartbeat does not go out: what {VARIABLE} holds {problem}."
            post(f.Remark("heartbeat-failed", self._odd, "warning"))
        elif url is not None:
            secrets.remember_url(url)
            named = "[heartbeat] url" if about.url else VARIABLE
            self._outlets.append(Outlet(f"the page of {named}", lambda state: _ask_page(url)))
        if about.object:
            self._outlets.append(Outlet("the store", lambda state: _write_state(write, state), holds))

    def start(self) -> None:
        """Begin; nothing goes out before the run makes steps."""
        for outlet in self._outlets:
            threading.Thread(target=self._run_outlet, args=(outlet,), name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """End; what is under way ends by itself."""
        self._over.set()

    @property
    def note(self) -> str:
        """For ``status``: why it is silent, in sentences; "" while it goes out, or where none is wanted."""
        clauses = self._clauses
        told = [self._odd] if self._odd else []
        if clauses and self._outlets:
            told.append(f"The dead-man heartbeat is silent: {'; '.join(clauses)}.")
        for name, (why, since) in sorted(self._failed.copy().items()):
            told.append(f"The dead-man heartbeat has not reached {name} for {span(self._now() - since)}: {why}.")
        return " ".join(told)

    # ------------------------------------------------------------ each outlet's thread

    def _run_outlet(self, outlet: Outlet) -> None:
        due = 0.0
        while not self._over.wait(min(self._interval_s, LOOK_S) if due else 0.0):
            state = self._state_when_well()
            due = due or time.monotonic()
            if state is None or time.monotonic() < due or not outlet.may():
                continue
            due = time.monotonic() + self._interval_s - 0.05  # a wait that ends a moment early is no beat less
            try:
                outlet.send(state)
            except SilentError as error:
                why, since = self._failed.get(outlet.name, ("", self._now()))
                self._failed[outlet.name] = (str(error), since)
                if str(error) != why:
                    told = f"The dead-man heartbeat does not reach {outlet.name}: {error}. It is tried again."
                    self._post(f.Remark("heartbeat-failed", told, "warning"))
                continue
            if self._failed.pop(outlet.name, None):
                self._post(f.Remark("heartbeat", f"The dead-man heartbeat reaches {outlet.name} again."))

    def _state_when_well(self) -> State | None:
        """The state when all is well. What changes is told once, by whichever thread sees it first."""
        state = self._state()
        clauses = troubles(state, self._now(), time.time(), self._tolerance)
        with self._lock:
            well_before, self._was_well, self._clauses = self._was_well, not clauses, clauses
        if clauses and well_before:
            told = f"The dead-man heartbeat stops: {'; '.join(clauses)}."
            self._post(f.Remark("heartbeat-stopped", told, "warning"))
        if not clauses and not well_before:
            self._post(f.Remark("heartbeat", "The dead-man heartbeat goes out: training and publishing are well."))
        return None if clauses else state


def _ask_page(url: str) -> None:
    try:
        page = http.ask(url, timeout_s=TIMEOUT_S)
    except http.NoAnswerError as error:
        raise SilentError(str(error)) from error
    if not 200 <= page.status < 300:
        raise SilentError(f"it answers with status {page.status}")


def _write_state(write: Callable[[dict[str, Any]], None], state: State) -> None:
    value = {
        "format": 1,
        "wall": round(time.time(), 1),
        "pod": socket.gethostname(),
        "step": state.progress.step,
        "published": state.store.published,
    }
    try:
        write(value)
    except StoreError as error:
        raise SilentError(str(error).rstrip(".")) from error
