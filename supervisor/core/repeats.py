"""The same sentence again and again is said once, then with a count: what fails in a loop fills no log.

Word for word the same (but for when the next try is), in the same attempt, with less than ``FORGOTTEN_S`` in between:
the second one tells nothing that the first did not. What is true of the machine is the same in each attempt. While it
goes on it is said once an hour, with how often it came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from supervisor.base.records import dataclass
from supervisor.core.actions import Action, Say
from supervisor.core.evolve import replace
from supervisor.core.words import span

FORGOTTEN_S = 1200.0  # longer than any back-off: a sentence that comes again after it is news
REMIND_S = 3600.0
MOST = 50
LONGEST = 400  # of a sentence, as it is remembered
ALSO = ("restoring", "cleared", "skipped")  # no complaints, and each comes with one
OF_THE_MACHINE = ("launch",)  # true of each attempt on it, however long after the last: said once, then counted
_NEXT_TRY = re.compile(r"(?i)\bnext try in [^:;.]*(?:\.\d[^:;.]*)?")


@dataclass(frozen=True)
class Said:
    """A sentence as it was said last. ``count``: how often it came since, with the first time."""

    first_t: float
    last_t: float
    told_t: float
    count: int = 1


def once(said: Mapping[str, Said], key: str, sentence: str, now: float) -> tuple[dict[str, Said], str]:
    """What is remembered from now on, and the sentence as it is to be said; "" where it is a repetition."""
    known = {
        name: one for name, one in said.items() if now - one.last_t < FORGOTTEN_S or name.startswith(OF_THE_MACHINE)
    }
    name = f"{key} {_NEXT_TRY.sub('', sentence)[:LONGEST]}"
    before = known.pop(name, None)  # what is heard again moves to the end
    if before is None:
        one, told = Said(now, now, now), sentence
    else:
        one = Said(before.first_t, now, before.told_t, before.count + 1)
        told = ""
        if now - before.told_t >= REMIND_S:
            one = replace(one, told_t=now)
            told = f"{sentence.rstrip('.')}. This came {one.count} times in {span(now - one.first_t)}."
    kept = {**known, name: one}
    return dict(list(kept.items())[-MOST:]), told


def without_repeats(
    said: Mapping[str, Said], actions: Sequence[Action], attempt: int, now: float
) -> tuple[dict[str, Said], tuple[Action, ...]]:
    """``actions`` without the sentences that were said just so a moment ago."""
    left: list[Action] = []
    known = dict(said)
    for action in actions:
        if isinstance(action, Say) and (action.level != "info" or action.event in (*ALSO, *OF_THE_MACHINE)):
            key = action.event if action.event in OF_THE_MACHINE else f"{attempt} {action.event}"
            known, sentence = once(known, key, action.sentence, now)
            if not sentence:
                continue
            action = action if sentence == action.sentence else replace(action, sentence=sentence)
        left.append(action)
    return known, tuple(left)
