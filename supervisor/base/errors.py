"""Errors that a person reads: each says what was tried, on what, and what to do next."""

from __future__ import annotations

from typing import Literal

# Exit codes are a contract with systemd, onstart scripts and schedulers (docs/architecture.md, "Exit contract").
EXIT_FINISHED = 0
EXIT_TRY_AGAIN = 75  # sysexits.h EX_TEMPFAIL: start me again on this pod
EXIT_PERSON_NEEDED = 93  # do not restart; the number NVRx uses for "do not restart this job"
EXIT_POD_UNFIT = 94  # go to another pod
EXIT_USAGE = 2


class SupervisorError(Exception):
    """A condition that the supervisor explains instead of crashing.

    ``str(error)`` is one sentence (or a few) for a person; ``exit_code`` is what the process returns for it.
    """

    exit_code = EXIT_PERSON_NEEDED
    is_clause = False
    """Its text is a clause, since other sentences quote it; alone, it is made a sentence."""
    holds_by_hand = False
    """``exit_code`` is also that of a command by hand, which else ends with 1 (2 for wrong usage)."""
    host = ""
    """The machine of several on which it is so."""


class UsageError(SupervisorError):
    """The command line does not say enough, too much, or names what is not there."""

    exit_code = EXIT_USAGE


class ConfigError(SupervisorError):
    """The run file, or the environment it names, is wrong. Restarting cannot cure it."""


class UnknownDialectError(SupervisorError):
    """An installed prime-rl speaks in no way we know; starting it would be a guess."""


class TryAgainError(SupervisorError):
    """Something outside is not there at present (network, store); the same call may work later."""

    exit_code = EXIT_TRY_AGAIN


class PodUnfitError(SupervisorError):
    """This pod cannot run the job (GPU memory that nothing frees, a process in D state)."""

    exit_code = EXIT_POD_UNFIT


Kind = Literal["transient", "permanent", "quota", "no-room", "missing", "damaged", "changed", "fenced"]


class StoreError(SupervisorError):
    """An operation on the store failed. ``kind`` decides what happens next.

    transient: back off and try again; permanent: a person must act (key, bucket); quota: likewise, after cleaning;
    no-room: this pod's own disk is full;
    missing: no such object, an expected answer; damaged: bytes that came back are not those that were sent;
    changed: the local source vanished or changed during the transfer; fenced: another pod holds the run now, so
    nothing more is written or deleted by this one.
    """

    is_clause = True

    def __init__(self, kind: Kind, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.kind: Kind = kind
        self.retry_after_s = retry_after_s
