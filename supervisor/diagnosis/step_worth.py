"""Is what a step tells of itself worth anything: a loss that is a number, a reward above zero?"""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from supervisor.core.facts import StepDone
from supervisor.diagnosis.seen import Event, Log, Place, Steps
from supervisor.primerl.logs import SIGNATURES

LEAST: Final = 3  # last steps that must be so
SLOW_S: Final = 300.0  # that the last one takes
SLOWER: Final = 2.0  # times as long as the first of them
_LOSS: Final = re.compile(r"(?i)(?:loss|grad_?norm)['\"]?[:= ]{1,3}'?([-+]?(?:nan|inf\w{0,5}|\d))")
# verl's and TRL's names first; "reward/mean" of a part of it is no reward of the step.
_REWARD: Final = re.compile(
    r"(?i)(?:critic/(?:rewards|score)/mean|(?<![\w/])reward)['\"]?[:= ]{1,3}'?(-?\d{1,9}(?:\.\d{1,20})?)"
)


def read_step(text: str) -> tuple[float | None, float | None]:
    """Loss (0.0 where it is some number) and reward in the line of a step; None: the line does not tell."""
    losses = [found[1].lstrip("+-").lower() for found in _LOSS.finditer(text[:8000])]
    loss = None if not losses else math.nan if any(one.startswith(("nan", "inf")) for one in losses) else 0.0
    reward = _REWARD.search(text[:8000])
    return loss, float(reward[1]) if reward else None


def takes_longer(steps: Steps) -> bool:
    """Did each of the last steps take longer than the one before, and the last one much longer?"""
    times = [t for t in steps.times[-LEAST - 1 :] if math.isfinite(t)]
    took = [after - before for before, after in itertools.pairwise(times)]
    grows = all(before < after for before, after in itertools.pairwise(took))
    return len(took) == LEAST and grows and took[-1] >= max(SLOW_S, SLOWER * took[0])


def note_worth(log: Log, step: StepDone, place: Place, text: str) -> None:
    """Take one step into account: since when the loss is no number, or the reward zero."""
    if step.loss is not None and math.isfinite(step.loss):
        log.nan = None
    elif step.loss is not None and log.nan is None:
        log.nan = Event(SIGNATURES.get("loss-not-finite"), step.role, text, place, place)
    elif step.loss is not None and log.nan is not None:
        log.nan.count, log.nan.last = log.nan.count + 1, place
    if step.reward is not None:
        since = log.unrewarded or (0, place)
        log.unrewarded = (since[0] + 1, since[1]) if step.reward == 0 else None
