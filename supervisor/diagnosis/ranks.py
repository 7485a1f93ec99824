"""Which rank of a collective operation was the root, and which only waited for it.

NCCL's time-outs are told by the ranks that waited. The one that they waited for says nothing of the kind: it died
before, or it is somewhere else in the program. What each rank says of its own work tells which.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Final

MOST: Final = 4096  # ranks that are remembered

_TIMEOUT = re.compile(
    r"\[(?:PG [^\]]{1,80})?[Rr]ank (\d{1,6})\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,40})"
)
_STATUS = re.compile(
    r"\[PG (?:ID )?(\S{1,20}).{0,60}?[Rr]ank (\d{1,6})\].{0,120}?last enqueued(?: NCCL)? work: (-?\d{1,18}), "
    r"last completed(?: NCCL)? work: (-?\d{1,18})",
    re.I,
)
_FROM = re.compile(r"dump signal due to a collective timeout from {1,2}rank (\d{1,6})\b")
_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,6})")
_WORLD = re.compile(r"World\(world_size=(\d{1,6})\b")
_IN_NAME = re.compile(r"(?:^|[/._-])rank_?(\d{1,6})(?=[/._-]|$)")
_FIRST = "Root Cause (first observed failure)"
_RANK = re.compile(r"\s{0,8}rank {1,8}: (\d{1,6})")
_CODE = re.compile(r"\s{0,8}exitcode {1,8}: (-?\d{1,4})")
_STOPPED: Final = (-15, -6)  # SIGTERM and SIGABRT: a rank that was ended, or that ended itself over a time-out


@dataclass
class Ranks:
    """What the ranks of one attempt said. ``feed`` takes messages in any order."""

    seen: set[int] = field(default_factory=set)
    world: int | None = None  # how many there are, where that is told
    timed_out: dict[int, tuple[int, str]] = field(default_factory=dict)  # rank -> operation's number and kind
    enqueued: dict[str, dict[int, int]] = field(default_factory=dict)  # process group -> rank -> newest number
    named: set[int] = field(default_factory=set)  # by others, as the one that timed out first
    exits: dict[int, int] = field(default_factory=dict)  # local rank -> exit code
    first: tuple[int, int] | None = None  # torchrun's first observed failure: rank and exit code
    _summary: int = 0
    _rank: int | None = None

    def see(self, rank: int | None) -> None:
        """There is such a rank."""
        if rank is not None and len(self.seen) < MOST:
            self.seen.add(rank)

    def see_name(self, name: str) -> None:
        """The name of a log, which may be of one rank."""
        if found := _IN_NAME.search(name):
            self.see(int(found[1]))

    def size(self, text: str) -> None:
        """A trainer's first line, which tells how many there are."""
        if found := _WORLD.search(text[:200]):
            self.world = int(found[1])

    def feed(self, text: str) -> None:
        """A message that may tell of ranks."""
        if not (self._summary > 0 or "NCCL" in text or "exitcode" in text or "enqueued" in text or _FIRST in text):
            return
        if found := _TIMEOUT.search(text[:600]):
            self.timed_out.setdefault(int(found[1]), (int(found[2]), found[3]))
            self.see(int(found[1]))
        if found := _STATUS.search(text[:900]):
            group = self.enqueued.setdefault(found[1], {}) if len(self.enqueued) < 64 else {}
            group[int(found[2])] = max(int(found[3]), group.get(int(found[2]), -1))
            self.see(int(found[2]))
        if found := _FROM.search(text[:600]):
            self.named.add(int(found[1]))
        if found := _TORCHRUN.search(text[:600]):
            self.exits.setdefault(int(found[2]), int(found[1]))
        self._feed_torchrun_summary(text)

    def _feed_torchrun_summary(self, text: str) -> None:
        if _FIRST in text[:200]:
            self._summary, self._rank = 12, None
            return
        if self._summary <= 0:
            return
        self._summary -= 1
        if found := _RANK.match(text):
            self._rank = int(found[1])
        elif (found := _CODE.match(text)) and self._rank is not None and self.first is None:
            self.first, self._summary = (self._rank, int(found[1])), 0

    @property
    def is_in_summary(self) -> bool:
        """Are more lines of torchrun's summary expected?"""
        return self._summary > 0

    def add(self, other: Ranks) -> None:
        """What another file of the same attempt said."""
        self.seen |= other.seen
        self.world = self.world or other.world
        self.named |= other.named
        for rank, operation in other.timed_out.items():
            self.timed_out.setdefault(rank, operation)
        for group, numbers in other.enqueued.items():
            mine = self.enqueued.setdefault(group, {})
            for rank, number in numbers.items():
                mine[rank] = max(number, mine.get(rank, -1))
        for rank, code in other.exits.items():
            self.exits.setdefault(rank, code)
        self.first = self.first or other.first

    def root(self) -> tuple[list[int], str]:
        """The ranks that the others waited for, and a sentence on how that is known; "" where nothing is told."""
        if self.first is not None and self.first[1] not in _STOPPED:
            rank, code = self.first
            how = _exit_code_in_words(code)
            return [rank], f"Rank {rank} was the first to fail, with {how} (torchrun); the others only followed."
        died = sorted(rank for rank, code in self.exits.items() if code not in (*_STOPPED, 0))
        if died and len(died) < max(len(self.seen), 2):
            which = ranks_in_words(died)
            codes = _exit_code_in_words(self.exits[died[0]])
            return died, f"{which} ended first, with {codes}; the others waited for {_ranks_as_object(died)}."
        if not self.timed_out:
            return [], ""
        silent = sorted(self.seen - set(self.timed_out))
        operations = sorted(set(self.timed_out.values()))
        number, kind = operations[0]
        waited = f"{ranks_in_words(sorted(self.timed_out))} waited in {kind} number {number}"
        if silent:
            return silent, (
                f"{waited}; {ranks_in_words(silent, small=True)} did not time out there: the others waited for "
                f"{_ranks_as_object(silent)}."
            )
        for group, numbers in sorted(self.enqueued.items()):
            least, most = min(numbers.values()), max(numbers.values())
            behind = sorted(rank for rank, number in numbers.items() if number == least)
            if least < most and len(behind) < len(numbers):
                return behind, (
                    f"{ranks_in_words(behind)} had started {least} operations of group {group} and the others {most}: "
                    f"the others waited for {_ranks_as_object(behind)}."
                )
        if len(operations) > 1:
            least_number = operations[0][0]
            behind = sorted(rank for rank, (number, _) in self.timed_out.items() if number == least_number)
            if len(behind) < len(self.timed_out):
                return behind, f"{ranks_in_words(behind)} stood at operation {least_number}, behind the others."
        unheard = self._silent_ranks()
        if unheard and len(unheard) < len(self.timed_out):
            return unheard, (
                f"{waited}; nothing of {ranks_in_words(unheard, small=True)} is in these logs: if none is missing, "
                f"the others waited for {_ranks_as_object(unheard)}."
            )
        if len(self.timed_out) == 1 or unheard:
            return (
                [],
                f"{waited}. The other ranks' logs would say which rank {_ranks_as_subject(self.timed_out)} waited for.",
            )
        return [], (
            f"All {len(self.timed_out)} ranks{'' if self.world else ' in these logs'} timed out in the same operation "
            f"({kind} number {number}): rather the link between them, or a GPU, than one rank's program."
        )

    def _silent_ranks(self) -> list[int]:
        """Ranks that there must be, and that say nothing."""
        return sorted(set(range(min(self.world or max(self.seen) + 1, MOST))) - self.seen)


def ranks_in_words(ranks: list[int], *, small: bool = False) -> str:
    """As in "Rank 3", "Ranks 0, 1 and 2"; many are counted."""
    if len(ranks) > 8:
        words = f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    elif len(ranks) == 1:
        words = f"Rank {ranks[0]}"
    else:
        words = f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return words[0].lower() + words[1:] if small else words


def _ranks_as_object(ranks: Sized) -> str:
    return "it" if len(ranks) == 1 else "them"


def _ranks_as_subject(ranks: Sized) -> str:
    return "it" if len(ranks) == 1 else "they"


def _exit_code_in_words(code: int) -> str:
    signals = {-9: "SIGKILL", -11: "SIGSEGV", -7: "SIGBUS", -6: "SIGABRT", -15: "SIGTERM", -4: "SIGILL", -8: "SIGFPE"}
    return f"{signals[code]} (exit code {code})" if code in signals else f"exit code {code}"
