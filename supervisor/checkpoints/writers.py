"""Who writes a run's objects: the names of writers, and what they are told when another pod holds the run."""

from __future__ import annotations

import re

from supervisor.base.errors import StoreError

WRITER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})/([0-9a-f]{8,64})/([0-9a-f]{4,64})")
PLACE = re.compile(r"([0-9a-f]{16})([0-9a-f]{16})[0-9a-f]{4,32}")
UNKNOWN = "0" * 16
LONGEST_SETTLE_S = 8.0


class FencedError(StoreError):
    """Another pod holds the run: this one writes and deletes nothing any more. ``by`` is that pod's host name."""

    def __init__(self, sentence: str, by: str, generation: int) -> None:
        super().__init__("fenced", sentence)
        self.by = by
        self.generation = generation


def writer_name(host: str, journal: str, session: str, place: str = "") -> str:
    """Who writes: the host for people, the journal, and one start of its daemon, behind the ``place`` that it is at.

    ``place`` is ``pod_identity.place_of_pod``; "" where it is not known, as in the claims of older versions.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:100].lstrip("._-") or "pod"
    return f"{plain}/{journal}/{place}{session}"


def host_of(writer: str) -> str:
    """The host of a writer, for people."""
    return writer.partition("/")[0] or "an unknown pod"


def same_journal(one: str, other: str) -> bool:
    """Have both the same journal? One of them may be a copy of the other's disk."""
    first, second = WRITER.fullmatch(one), WRITER.fullmatch(other)
    return first is not None and second is not None and first[2] == second[2]


def same_pod(one: str, other: str) -> bool:
    """Have both the same journal at the same place? Then no pod has written in between, and the later one goes on.

    The instance decides where both know theirs, else the boot.
    """
    first, second = (PLACE.fullmatch(writer.rpartition("/")[2]) for writer in (one, other))
    if first is None or second is None or not same_journal(one, other):
        return False
    if UNKNOWN not in (first[1], second[1]):
        return first[1] == second[1]
    return first[2] == second[2] != UNKNOWN


def settle_time(patience_s: float) -> float:
    """How long a claim settles where the store cannot claim atomically, for a run with this patience (seconds)."""
    return min(LONGEST_SETTLE_S, patience_s / 4)
