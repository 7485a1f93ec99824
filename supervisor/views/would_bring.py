"""What another way to save, or another pod, would have brought this run: from its own ledger, in seconds.

Each is a bound, not a promise: what the ledger booked there is the most that can come back. What it does not know (how
large a smaller checkpoint is, how fast a tier) is said as a rate, never guessed.
"""

from __future__ import annotations

from typing import NamedTuple

from supervisor.core import time_kinds as k
from supervisor.core.goodput import Ledger
from supervisor.core.words import span
from supervisor.views.engine_idle import EngineIdle
from supervisor.views.interval_advice import Advice

LEAST_S = 60.0  # less than that is not worth a line


class Change(NamedTuple):
    """One change, the seconds that it would have brought at most (None: not known), and why."""

    name: str
    seconds: float | None
    sentence: str


def would_bring(run: Ledger, advice: Advice, lost_pods: int, idle: EngineIdle | None, *, on_tier: bool) -> list[Change]:
    """The changes that this run's figures speak for, the greatest first; what is not known comes last.

    ``on_tier``: it saves on a tier already.
    """
    saved, restored = run.seconds.get(k.SAVE, 0.0), run.seconds.get(k.RESTORE, 0.0)
    away = run.seconds.get(k.INFRASTRUCTURE, 0.0)
    found = []
    if saved:
        waited = f"the trainer waited {span(saved)} for {run.saves} saves"
        found += [
            Change("asynchronous save", saved, f"An asynchronous save: at most {span(saved)}, since {waited}."),
            Change(
                "smaller optimizer state",
                (saved + restored) / 2,
                f"A checkpoint of half the size (a smaller optimizer state): {span((saved + restored) / 2)}.",
            ),
            Change("LoRA", saved + restored, f"A LoRA, whose checkpoints are small: at most {span(saved + restored)}."),
        ]
    if saved and not on_tier:
        found.append(
            Change("tier", saved / 2, f"A tier twice as fast as the volume: {span(saved / 2)} of those saves.")
        )
    if advice.steps and advice.loss is not None and advice.present_loss is not None:
        gain = max(0.0, advice.present_loss - advice.loss) * run.total_s
        found.append(Change("interval", gain, f"A checkpoint every {advice.steps} steps: about {span(gain)}."))
    if lost_pods and away + restored:
        gain = away + restored
        sentence = f"A pod that is not spot: at most {span(gain)} of waiting for pods and fetching steps"
        found.append(Change("not spot", gain, f"{sentence} ({lost_pods} lost), besides the steps that went with them."))
    if idle is not None:
        waited = "in which rollouts waited for them and the engine had no request"
        share = f"{idle.idle_s / idle.seen_s:.0%} of the last {span(idle.seen_s)} seen"
        sentence = f"Faster tools and environments: at most {span(idle.idle_s)}, {waited} ({share})."
        found.append(Change("tools", idle.idle_s, sentence))
    found = sorted((one for one in found if (one.seconds or 0.0) >= LEAST_S), key=lambda one: -(one.seconds or 0.0))
    if not saved:
        found.append(Change("save", None, "What saves cost is not known: this run's log does not tell of them."))
    if idle is None:
        told = "How long the engine idled while rollouts waited for tools is not known: this journal does not tell."
        found.append(Change("tools", None, told))
    return found
