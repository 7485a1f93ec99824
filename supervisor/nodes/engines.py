"""All engines of a run over several machines, as one look for the core: their agents ask them, each on its machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from supervisor.core import facts as f

EACH_S = 5.0
OLD_S = 20.0  # what was heard of an engine longer ago says nothing of now
WRONG = {"bad": 3, "refused": 3, "timeout": 2, "unknown": 1, "ok": 0}
GONE = ("bad", "refused")
MISSES = ("bad", "timeout")

Place = tuple[str, int]
"""A machine, and the engine's number among all."""


@dataclass
class _Engine:
    look: f.EngineLook
    heard: float
    count: float | None = None  # as it was read last
    counted: float = float("-inf")
    merged: float | None = None  # what the last look at all engines counted of it
    # Each is answered less often than it is looked: what was answered since the last look at all engines, if anything.
    liveness: str = "unknown"
    canary: str = ""
    misses: bool = False  # one of them was bad, and nothing good came since

    def take(self, look: f.EngineLook, t: float) -> None:
        self.look, self.heard = look, t
        count = look.iterations if look.iterations is not None else look.generation_tokens
        moved = count is not None and count != self.count
        if count is not None:
            self.count, self.counted = count, t
        self.liveness = look.liveness if look.liveness != "unknown" else self.liveness
        self.canary = look.canary or self.canary
        if look.liveness in MISSES or look.canary in MISSES:
            self.misses = True
        elif look.liveness == "ok" or look.canary == "ok" or moved:
            self.misses = False

    def health(self, t: float) -> str:
        return self.look.health if t - self.heard <= OLD_S else "unknown"

    def rank(self, t: float) -> int:
        return max(WRONG.get(self.health(t), 1), WRONG["timeout"] if self.misses else 0)

    def is_counted(self, t: float) -> bool:
        """Is it known how many tokens it has made? One whose server is gone makes no more."""
        return self.count is not None and (t - self.counted <= OLD_S or self.health(t) in GONE)


class Engines:
    """What was last heard of each engine of the present attempt."""

    def __init__(self) -> None:
        self._attempt = 0
        self._engines: dict[Place, _Engine] = {}
        self._wrong: Place | None = None
        self._merged = float("-inf")

    def hear(self, attempt: int, place: Place, look: f.EngineLook, t: float) -> None:
        """One engine's answers, ``t`` in seconds of ``wire.now``."""
        if attempt > self._attempt:
            self._attempt, self._engines, self._wrong, self._merged = attempt, {}, None, t
        if attempt == self._attempt:
            self._engines.setdefault(place, _Engine(look, t)).take(look, t)

    def merge(self, attempt: int, used: Collection[str], t: float, *, all_speak: bool) -> f.EngineLook | None:
        """One look at all, each few seconds; None in between, and while none was heard.

        ``all_speak``: every machine of the attempt is heard. Else what its engines do is unknown, and so are all sums.
        What is wrong is told of one engine at a time, until it is well or another is worse.
        """
        there = {place: one for place, one in sorted(self._engines.items()) if place[0] in used}
        if attempt != self._attempt or not there or t - self._merged < EACH_S:
            return None
        self._merged = t
        worst = max(there, key=lambda place: (there[place].rank(t), place == self._wrong))
        self._wrong = worst if there[worst].rank(t) else None
        asked = [there[self._wrong]] if self._wrong is not None else list(there.values())
        known = all_speak and all(one.is_counted(t) for one in there.values())
        living = [one.look for one in there.values() if one.health(t) not in GONE] if all_speak else []
        connections = _sum(look.connections for look in living)
        host, index = self._wrong or ("", None)
        found = f.EngineLook(
            endpoint=f"{len(there)} engines",
            health=asked[0].health(t) if self._wrong is not None else "ok",
            liveness=next((one.liveness for one in asked if one.liveness != "unknown"), "unknown"),
            iterations=sum(one.count or 0.0 for one in there.values()) if known else None,
            running=_sum(look.running for look in living),
            waiting=_sum(look.waiting for look in living),
            connections=None if connections is None else int(connections),
            canary=next((one.canary for one in asked if one.canary), ""),
            reason=asked[0].look.reason if self._wrong is not None else "",
            engines=tuple(_list_still(there, t)),
            host=host,
            index=index,
        )
        for one in there.values():
            one.merged, one.liveness, one.canary = one.count, "unknown", ""
        return found


def _list_still(there: dict[Place, _Engine], t: float) -> Iterable[f.EngineCount]:
    """Those that have requests and made nothing since the last look at all: of hundreds, the others are not news."""
    for (host, index), one in there.items():
        look = one.look
        busy = (look.running or 0) > 0 or (look.waiting or 0) > 0
        if busy and one.count is not None and one.count == one.merged and t - one.counted <= 2 * EACH_S:
            yield f.EngineCount(index, one.count, look.running, look.waiting, host)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown where there is none, or one of them is."""
    known = list(values)
    return sum(one for one in known if one is not None) if known and None not in known else None
