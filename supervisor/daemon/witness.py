"""The second witness beside the journal: what must be known even where that is lost, in one small file.

``STATE/witness.json`` says that there was a journal and how far it had come, what persons ordered (stopped, paused),
that the run is finished, and by which name this state folder claims the run. A journal that holds less than this file
knows has lost something. Pins, rollbacks and quarantined steps have their own witness: the store.

Written whenever an order changes, beside the loop every few seconds, and by rename: all of it or nothing.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from supervisor.base import logs
from supervisor.base.records import dataclass
from supervisor.core.journal_lost import OldOrders
from supervisor.core.state import State
from supervisor.journal.journal import Journal, identity_in
from supervisor.process.attempts import last_attempt
from supervisor.process.shim_records import write_atomically

NAME = "witness.json"
LARGEST = 1 << 16
_Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
_Count = Annotated[int, Field(ge=0, lt=1 << 53)]


@dataclass(frozen=True)
class Known:
    """What the file says. ``row`` and ``wall`` (Unix time): the newest entry that the journal had."""

    claimant: _Identity
    journal: _Identity
    row: _Count = 0
    wall: Annotated[float, Field(ge=0, lt=1 << 53)] = 0.0
    attempt: _Count = 0
    orders: OldOrders = field(default_factory=OldOrders)


_KNOWN = TypeAdapter(Known)


def read(state_dir: Path) -> Known | None:
    """The witness of this state folder; None where there is none, or where it is damaged itself."""
    try:
        with (state_dir / NAME).open("rb") as file:
            return _KNOWN.validate_json(file.read(LARGEST), strict=True)
    except (OSError, ValueError):
        return None


def claimant(state_dir: Path) -> str | None:
    """The name by which this state folder claims the run; None where it never had a journal."""
    known = read(state_dir)
    return known.claimant if known is not None else identity_in(state_dir)


class Witness:
    """Keeps the file of one daemon. ``note`` is the loop's, ``keep`` may be called beside it."""

    def __init__(self, state_dir: Path, journal: Journal) -> None:
        """Read what was kept, and compare the journal with it: ``lost`` says what it lacks, a sentence's beginning."""
        self._path = state_dir / NAME
        self._lock = threading.Lock()
        self.before = read(state_dir)
        self.last_attempt = max(last_attempt(state_dir), self.before.attempt if self.before else 0)
        self.lost = _what_is_lost(journal, self.before, self.last_attempt)
        identity = journal.identity()
        self._known = Known(self.before.claimant if self.before else identity, identity)
        self._kept: Known | None = None
        self._failed = False

    @property
    def claimant(self) -> str:
        """The name by which this state folder claims the run. A lost journal has another one, its records too."""
        return self._known.claimant

    def note(self, state: State, journal: Journal) -> None:
        """The state after one turn of the loop. What a person ordered is written at once."""
        finished = state.mode == "finished"
        orders = OldOrders(
            state.orders.wanted, state.orders.paused, finished, state.settings.max_steps if finished else None
        )
        known = Known(self._known.claimant, self._known.journal, journal.row, state.wall, state.attempt.number, orders)
        ordered = self._kept is None or self._known.orders != orders
        self._known = known
        if ordered:
            self.keep()

    def keep(self) -> None:
        """Write down what is known by now. A full disk is told once; the next call tries again."""
        with self._lock:
            known = self._known
            if known == self._kept:
                return
            try:
                write_atomically(str(self._path), {"format": 1, **asdict(known)})
            except OSError as error:
                if not self._failed:
                    told = (
                        f"{self._path} cannot be written: {error.strerror}. Make room on its disk: should the journal"
                    )
                    logs.say("warning", "journal", f"{told} be lost meanwhile, a person's orders are lost with it.")
                self._failed = True
            else:
                self._kept, self._failed = known, False


def _what_is_lost(journal: Journal, before: Known | None, last: int) -> str:
    """What the journal lacks; "" where it has all that there ever was, or where it is the first."""
    if journal.set_aside is not None:
        return f"The journal {journal.path} was damaged, and is kept as {journal.set_aside.name}"
    if journal.born and (before is not None or last > 0):
        return f"The journal {journal.path} is missing"
    if before is not None and before.journal != journal.identity():
        return f"The journal {journal.path} is another one than before"
    if before is not None and journal.row < before.row:
        lacks = before.row - journal.row
        return f"The journal {journal.path} lacks its newest {lacks} entr{'y' if lacks == 1 else 'ies'}"
    if journal.unread:
        return f"Of the journal {journal.path} {journal.unread} entries cannot be read"
    return ""


def sentence(lost: str, before: Known | None, since: float | None, attempt: int) -> str:
    """The loss in one sentence, and with what the run goes on. ``since``: the journal's newest entry, in Unix time."""
    gone = f" after {_parse_clock(since)}" if since else ""
    until = f" until {_parse_clock(before.wall)}" if before is not None and before.wall > (since or 0) else ""
    told = f"{lost}: what was decided{gone}{until} is lost."
    if before is None:
        told += " Whether a person had stopped or paused the run is not known."
    elif before.orders.finished:
        told += " The run is finished, as was known."
    elif not before.orders.wanted:
        told += " The run stays stopped, as a person ordered."
    elif before.orders.paused:
        told += " The run stays paused, as a person ordered."
    return f"{told} It goes on from attempt {attempt} and from the checkpoints that are found."


def _parse_clock(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
