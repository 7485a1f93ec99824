"""The store and the line to it: transfers share the bandwidth, stall in an outage, and resume where they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.core.goodput import Ledger
from supervisor.core.records import Hold, Learned
from supervisor.simulator.clockwork import Clockwork, Event, Owner

STALL_S = 120.0  # a transfer that moves nothing for so long is given up (the daemon's own limit is of this order)


@dataclass(frozen=True)
class Checkpoint:
    """One step's files. ``poison``: a job that resumes from it crashes at that step; ``ruined``: it holds NaN."""

    step: int
    size_bytes: int
    poison: int | None = None
    damaged: bool = False
    ruined: bool = False


class Store:
    """The bucket: what it holds, whether it answers. It outlives pods."""

    def __init__(self) -> None:
        self.steps: dict[int, Checkpoint] = {}
        self.latest: int | None = None
        self.down_until = 0.0
        self.learned: Learned | None = None
        self.held: tuple[int, ...] = ()
        self.holds: tuple[Hold, ...] = ()
        self.ledgers: dict[str, Ledger] = {}

    def damage(self, step: int) -> None:
        """Bytes of a stored step are wrong from now on."""
        self.steps[step] = replace(self.steps[step], damaged=True)


class Transfer(Owner):
    """One upload or download."""

    def __init__(self, link: Link, size_bytes: float, done: Callable[[bool], None]) -> None:
        self.link = link
        self.left = size_bytes
        self.done = done
        self.rate = 0.0
        self.since = link.clock.now
        self.event: Event | None = None
        self.stalled: Event | None = None


class Link:
    """A pod's line: ``gbit`` for all transfers together, in both directions."""

    def __init__(self, clock: Clockwork, gbit: float, owner: Owner, up: Callable[[], bool]) -> None:
        self.clock = clock
        self._bytes_per_s = gbit * 1e9 / 8
        self._owner = owner
        self._up = up
        self._factor = 1.0
        self._transfers: list[Transfer] = []

    def begin(self, size_bytes: float, done: Callable[[bool], None]) -> Transfer:
        """Move so many bytes; ``done(True)`` at the end, ``done(False)`` after a stall. ``left`` says what is left."""
        transfer = Transfer(self, size_bytes, done)
        self._transfers.append(transfer)
        self.refresh()
        return transfer

    def drop(self, transfer: Transfer) -> None:
        """End a transfer that is no longer waited for."""
        self._forget_transfer(transfer)
        self.refresh()

    def slow_down(self, factor: float) -> None:
        """Only ``factor`` of the bandwidth is left (1.0: all of it again)."""
        self._factor = factor
        self.refresh()

    def slept(self, seconds: float) -> None:
        """The host stood still: nothing moved in that time."""
        for transfer in self._transfers:
            transfer.since += seconds

    def refresh(self) -> None:
        """The number of transfers, the bandwidth or the store's state has changed."""
        now = self.clock.now
        each = self._bytes_per_s * self._factor / max(1, len(self._transfers)) if self._up() else 0.0
        for transfer in self._transfers:
            transfer.left = max(0.0, transfer.left - (now - transfer.since) * transfer.rate)
            transfer.since, transfer.rate = now, each
            if transfer.event is not None:
                transfer.event.cancel()
                transfer.event = None
            if each > 0:
                if transfer.stalled is not None:
                    transfer.stalled.cancel()
                    transfer.stalled = None
                transfer.event = self.clock.after(transfer.left / each, self._call_at_end(transfer, True), self._owner)
            elif transfer.stalled is None:
                transfer.stalled = self.clock.after(STALL_S, self._call_at_end(transfer, False), self._owner)

    def _call_at_end(self, transfer: Transfer, whole: bool) -> Callable[[], None]:
        def end() -> None:
            if transfer not in self._transfers:
                return
            if whole:
                transfer.left = 0.0
            self.drop(transfer)
            transfer.done(whole)

        return end

    def _forget_transfer(self, transfer: Transfer) -> None:
        for event in (transfer.event, transfer.stalled):
            if event is not None:
                event.cancel()
        if transfer in self._transfers:
            self._transfers.remove(transfer)
