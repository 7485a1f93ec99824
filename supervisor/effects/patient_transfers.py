"""Patience of a command that a person started: while the store is away it waits, as the daemon does, and says so.

Each request of the transfers' child may be made again after a failure and goes on where it was, so waiting is all there
is to do. What waiting cannot cure (a refused key, a missing bucket or step, a crash of the child) is told at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from supervisor.base.errors import EXIT_TRY_AGAIN, StoreError
from supervisor.base.retry import Retry
from supervisor.base.secrets import mask_secrets
from supervisor.core.words import span
from supervisor.effects.transfers import ChildCrashedError, Transfers

PATIENCE_S = 1800.0
"""Since the store last did something for us. A script or a person has to learn at some time that it stays away."""
TELL_EVERY_S = 300.0
CLEAR = "\r\x1b[K"
FOR_EVER = 1 << 30  # tries: the clock ends them


def on_stderr(sentence: str) -> None:
    """Tell a person; over the line of a transfer's progress, if there is one."""
    with suppress(OSError):  # no reader is left
        sys.stderr.write(f"{CLEAR if sys.stderr.isatty() else ''}{mask_secrets(sentence)}\n")
        sys.stderr.flush()


class StoreAwayError(StoreError):
    """The store did not answer for longer than a command by hand is patient."""

    exit_code = EXIT_TRY_AGAIN
    holds_by_hand = True

    def __init__(self, sentence: str) -> None:
        super().__init__("transient", sentence)


class PatientTransfers(Transfers):
    """As ``Transfers``; a request that fails because the store is away is made again, up to its patience later."""

    def __init__(self, environ: Mapping[str, str], stall_s: float, *, patience_s: float | None = None) -> None:
        """``patience_s``: another patience than PATIENCE_S."""
        super().__init__(environ, stall_s)
        self._patience_s = PATIENCE_S if patience_s is None else patience_s

    def run(self, asked: Mapping[str, Any], what: str = "", stall_s: float | None = None) -> dict[str, Any]:
        """As ``Transfers.run``. Raises StoreAwayError when the patience is over."""
        outage = _Outage(lambda: self.moved_t, self._patience_s)

        def attempt() -> dict[str, Any]:
            try:
                answer = super(PatientTransfers, self).run(asked, what, stall_s)
            except ChildCrashedError as error:
                raise StoreError("permanent", str(error)) from error
            except StoreError as error:
                outage.reason = str(error).rstrip(".")
                raise
            outage.over()
            return answer

        return Retry(tries=FOR_EVER, base_s=1.0, cap_s=30.0, sleep=outage.wait).call(attempt)


class _Outage:
    """One request's waiting: since when, and when a person heard of it."""

    def __init__(self, moved: Callable[[], float], patience_s: float) -> None:
        self.reason = ""
        self._patience_s = patience_s
        self._moved = moved
        self._since: float | None = None
        self._told = float("-inf")

    def wait(self, seconds: float) -> None:
        """Wait before the next try. Raises StoreAwayError when that would be too long."""
        now = time.monotonic()
        self._since = now if self._since is None else max(self._since, self._moved())
        away_s = now - self._since
        if away_s + seconds > self._patience_s:
            raise StoreAwayError(
                f"The store was away for {span(away_s)}, and nothing more is tried ({self.reason}). Run the same "
                "command again later: it goes on where it was"
            )
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            left = span(self._patience_s - away_s)
            reason = self.reason[:1].upper() + self.reason[1:]
            on_stderr(f"{reason}. It is tried again for up to {left} (Ctrl-C ends that; nothing is lost).")
        time.sleep(seconds)

    def over(self) -> None:
        """The store answers."""
        if self._since is not None:
            on_stderr(f"The store answers again after {span(time.monotonic() - self._since)}.")
