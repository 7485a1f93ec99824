"""Training that runs but is worthless: a warning for people, and a reason to keep the last healthy step.

Each kind of worthlessness is a row of bad steps. A warning is said once, when the row is long enough in steps and in
time, and taken back when as many good steps as its rule asks for follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field
from statistics import median
from typing import Final

from supervisor.base.records import dataclass
from supervisor.core.evolve import replace
from supervisor.core.facts import ErrorSeen, StepDone
from supervisor.core.records import Hold

FLAT: Final = 5e-5  # prime-rl writes rewards with four decimals: less than this reads 0.0000
ERRORS_HIGH: Final = 0.9  # share of rollouts that ended in an error
SLOW: Final = 1 / 3  # of the learned median of tokens per second
FAST: Final = 1 / 2  # from here on a warning is taken back
KEEP_SPEEDS: Final = 32  # steps that the median is taken of; slow ones are not learned
LEARNED_AFTER: Final = 8  # steps: a median of fewer says little, and the first compile and warm up

# What prime-rl and vLLM say of it, by the names of supervisor/signatures.
EMPTY: Final = frozenset({"batch-dropped", "batch-empty"})
MASKED: Final = "empty-loss-mask"
REFUSED: Final = frozenset({"max-tokens-too-large", "prompt-too-long", "tool-parser-off"})
_TELLING: Final = EMPTY | REFUSED | {MASKED}


@dataclass(frozen=True)
class Patience:
    """When a row of bad steps is worth a warning, and when it is over."""

    steps: int
    seconds: float
    clear: int  # good steps in a row that take the warning back


RULES: Final[dict[str, Patience]] = {
    # One NaN may be a batch that was left out; after the second the weights are most likely gone.
    "loss-nan": Patience(2, 0.0, 2),
    # Zero is where many a run begins, so this one is patient.
    "reward-flat": Patience(10, 1800.0, 1),
    # A small batch has equal rewards in all its groups by chance; prime-rl gives up after ten batches (559b44772).
    "all-masked": Patience(6, 0.0, 2),
    "rollouts-failing": Patience(3, 0.0, 2),
    # A checkpoint, an evaluation or a few long rollouts make some steps slow.
    "throughput-fell": Patience(5, 600.0, 2),
    # Lines, not steps, and only before the first step: later on, some requests of a healthy run are too long.
    "requests-refused": Patience(20, 600.0, 1),
}


HOLDING: Final = ("loss-nan", "reward-flat")
"""What may have ruined the weights: steps from before it are kept (promise 13)."""


@dataclass(frozen=True)
class Streak:
    """Bad steps in a row, and whether people were told. ``since`` is the time of the first of them, ``last`` of the
    last.
    """

    bad: int = 0
    since: float = 0.0
    last: float = 0.0
    good: int = 0
    said: str = ""  # the sentence, while the warning stands
    said_wall: float = 0.0  # when it was said, Unix time


@dataclass(frozen=True)
class Worth:
    """What the last steps said of themselves."""

    rows: dict[str, Streak] = field(default_factory=dict)  # by the names in RULES, only those that had a bad step
    speeds: tuple[float, ...] = ()  # tokens per second of the newest steps that were not slow
    rewarded: bool = False  # the reward was above zero at least once
    stepped: bool = False  # a step was done at least once
    newest: dict[str, int] = field(default_factory=dict)  # this attempt's last step judged, by what it said of itself
    holds: dict[str, Hold] = field(default_factory=dict)  # by the names in HOLDING; they outlive their rows


@dataclass(frozen=True)
class Finding:
    """News for people. ``name`` is stable; ``cleared`` takes an earlier one back."""

    name: str
    sentence: str
    cleared: bool = False


def judge_fact(worth: Worth, fact: StepDone | ErrorSeen, t: float, wall: float) -> tuple[Worth, tuple[Finding, ...]]:
    """Take in one fact, seen at ``t`` (seconds of the core's clock; ``wall`` is Unix time), and say what is new.

    A fact that says nothing of worth gives back ``worth`` itself.
    """
    if isinstance(fact, ErrorSeen) and fact.signature not in _TELLING:
        return worth, ()
    judge = _Judge(worth, t, wall)
    if isinstance(fact, ErrorSeen):
        _error(judge, fact)
    else:
        _step(judge, fact)
    return judge.worth, tuple(judge.findings)


def standing_findings(worth: Worth) -> dict[str, str]:
    """The sentences of the warnings that stand, by name, in the order of ``RULES``."""
    return {name: row.said for name in RULES if (row := worth.rows.get(name)) is not None and row.said}


def find_ruin(worth: Worth, since: float) -> Hold | None:
    """What has been found bad, and was at a step seen after ``since``, up to the newest; None where nothing is."""
    for name in HOLDING:
        row, hold = worth.rows.get(name), worth.holds.get(name)
        if row is not None and hold is not None and row.said and row.bad and row.last >= since:
            return hold
    return None


def to_record(worth: Worth) -> tuple[Hold, ...]:
    """What the next pod has to know. A bad step or two of many are no news for it."""

    def is_feared(name: str) -> bool:
        return name in worth.rows and 2 * worth.rows[name].bad >= RULES[name].steps

    return tuple(hold for name, hold in sorted(worth.holds.items()) if hold.why or is_feared(name))


def inherit_holds(worth: Worth, holds: tuple[Hold, ...], t: float) -> Worth:
    """With what pods before this one knew; what was seen here goes before it."""
    new = {hold.finding: hold for hold in holds if hold.finding not in worth.holds}
    if not new:
        return worth
    rows = {
        name: Streak(RULES[name].steps if hold.why else RULES[name].steps // 2, t, said=hold.why)
        for name, hold in new.items()
        if name in HOLDING and hold.lifted is None
    }
    return replace(worth, rows={**rows, **worth.rows}, holds={**worth.holds, **new})


def without(worth: Worth, names: Collection[str]) -> Worth:
    """These holds are over."""
    holds = {name: hold for name, hold in worth.holds.items() if name not in names}
    return replace(worth, holds=holds)


def gone_back(worth: Worth, step: int | None) -> Worth:
    """The run goes on at ``step`` (None: from scratch): what was bad after it is not of this run any more."""
    over = [name for name, hold in worth.holds.items() if step is None or hold.bad > step]
    if not over:
        return worth
    rows = {name: row for name, row in worth.rows.items() if name not in over}
    return without(replace(worth, rows=rows), over)


class _Judge:
    """One call of ``judge_fact``: the worth so far, and what it found."""

    def __init__(self, worth: Worth, t: float, wall: float) -> None:
        self.worth = worth
        self.t = t
        self.wall = wall
        self.findings: list[Finding] = []

    def new(self, what: str, step: int) -> bool:
        """Is ``what`` of this step not judged yet? A log and metrics.jsonl both tell of it, and a daemon that comes
        back reads the last lines once more.
        """
        if step <= self.worth.newest.get(what, step - 1):
            return False
        self.worth = replace(self.worth, newest={**self.worth.newest, what: step})
        return True

    def bad(self, name: str, step: int | None = None) -> Streak | None:
        """Count a bad step; the row where it is now long enough and not reported yet. ``step``: what came before it is
        held from now on.
        """
        old = self.worth.rows.get(name, Streak())
        row = replace(old, bad=old.bad + 1, since=self.t if old.bad == 0 else old.since, last=self.t, good=0)
        self._keep(name, row)
        if step is not None:
            hold = self.worth.holds.get(name, Hold(name, step))
            self._hold(name, replace(hold, bad=min(hold.bad, step), lifted=None))
        rule = RULES[name]
        # A clock that stepped back gives a negative time, which is no reason to warn early.
        return row if not row.said and row.bad >= rule.steps and self.t - row.since >= rule.seconds else None

    def say(self, name: str, row: Streak, sentence: str) -> None:
        self._keep(name, replace(row, said=sentence, said_wall=self.wall))
        if name in self.worth.holds:
            self._hold(name, replace(self.worth.holds[name], why=sentence))
        self.findings.append(Finding(name, sentence))

    def good(self, name: str, sentence: str, step: int | None = None) -> None:
        """Count a good step; ``sentence`` is said where it ends a warning. ``step``: of a finding that holds."""
        old = self.worth.rows.get(name)
        if old is None:
            return
        row = replace(old, bad=0, good=old.good + 1)
        if not row.said or row.good >= RULES[name].clear:
            self.worth = replace(self.worth, rows={k: v for k, v in self.worth.rows.items() if k != name})
            if step is not None and name in self.worth.holds:
                self._lift(name, step)
            if row.said:
                self.findings.append(Finding(name, sentence, cleared=True))
            return
        self._keep(name, row)

    def _lift(self, name: str, step: int) -> None:
        """Well again. What people were told of is held until that has lasted (``supervisor.core.pinned_steps``)."""
        hold = self.worth.holds[name]
        if hold.why:
            self._hold(name, replace(hold, lifted=step))
        else:
            self.worth = without(self.worth, (name,))

    def _hold(self, name: str, hold: Hold) -> None:
        self.worth = replace(self.worth, holds={**self.worth.holds, name: hold})

    def _keep(self, name: str, row: Streak) -> None:
        self.worth = replace(self.worth, rows={**self.worth.rows, name: row})


def _step(judge: _Judge, fact: StepDone) -> None:
    if not judge.worth.stepped:
        judge.worth = replace(judge.worth, stepped=True)
        judge.good("requests-refused", f"Step {fact.step} is done, so requests are served after all.")
    if fact.role == "orchestrator":
        if fact.trainable is not None and judge.new("trainable", fact.step):
            _trainable(judge, fact.step, fact.trainable)
        if fact.error_rate is not None and judge.new("errors", fact.step):
            _error_rate(judge, fact.step, fact.error_rate)
    else:
        before = judge.worth.newest.get("loss")
        if fact.loss is not None and judge.new("loss", fact.step):
            _loss(judge, fact.step, before, fact.loss)
        if fact.throughput is not None and fact.throughput > 0 and judge.new("throughput", fact.step):
            _throughput(judge, fact.step, fact.throughput)
        silent = "trainable" not in judge.worth.newest  # an early prime-rl does not say how many samples counted
        if silent and "all-masked" in judge.worth.rows and judge.new("step", fact.step):
            judge.good("all-masked", f"The trainer did step {fact.step}, so its samples are trained on again.")
    before = judge.worth.newest.get("reward")
    if fact.reward is not None and judge.new("reward", fact.step):
        _reward(judge, fact.step, before, fact.reward)


def _first_bad(step: int, before: int | None) -> int:
    """Where ``step`` is bad, and ``before`` was the last one that told: those between may have been bad as well."""
    return step if before is None else min(step, before + 1)


def _loss(judge: _Judge, step: int, before: int | None, loss: float) -> None:
    if math.isfinite(loss):
        judge.good("loss-nan", f"The loss is a number again at step {step} ({loss:.4g}).", step)
    elif row := judge.bad("loss-nan", _first_bad(step, before)):
        sentence = f"The loss is {loss} for {row.bad} steps, up to step {step}: the weights are most likely lost."
        judge.say("loss-nan", row, sentence)


def _reward(judge: _Judge, step: int, before: int | None, reward: float) -> None:
    # A batch without any reward (NaN) teaches as little as one of zeros.
    if not math.isnan(reward) and abs(reward) >= FLAT:
        judge.good("reward-flat", f"The reward moves again: {reward:.4g} at step {step}.", step)
        if reward > 0 and not judge.worth.rewarded:
            judge.worth = replace(judge.worth, rewarded=True)
        return
    if row := judge.bad("reward-flat", _first_bad(step, before)):
        what = "no number" if math.isnan(reward) else "zero"
        ever = "it was above zero before" if judge.worth.rewarded else "it was never above zero"
        judge.say(
            "reward-flat",
            row,
            f"The reward is {what} for {row.bad} steps in {_minutes(judge.t - row.since)}, up to step {step}; {ever}. "
            "Look at some answers, at the parser and at the reward function.",
        )


def _trainable(judge: _Judge, step: int, trainable: float) -> None:
    if trainable > 0:
        judge.good("all-masked", f"Samples are trained on again: {trainable:.0%} of them at step {step}.")
    elif row := judge.bad("all-masked"):
        judge.say(
            "all-masked",
            row,
            f"No sample of the last {row.bad} batches, up to step {step}, carried a gradient: either all rewards of a "
            "group are equal, or the environment marks no token as trainable.",
        )


def _error_rate(judge: _Judge, step: int, rate: float) -> None:
    if rate < ERRORS_HIGH:
        judge.good("rollouts-failing", f"Rollouts end well again: {rate:.0%} failed at step {step}.")
    elif row := judge.bad("rollouts-failing"):
        judge.say(
            "rollouts-failing",
            row,
            f"{rate:.0%} of the rollouts end in an error, for {row.bad} steps up to step {step}. "
            "The orchestrator's warnings name the error.",
        )


def _throughput(judge: _Judge, step: int, speed: float) -> None:
    worth = judge.worth
    learned = median(worth.speeds) if len(worth.speeds) >= LEARNED_AFTER else None
    stands = "throughput-fell" in standing_findings(worth)
    if learned is None or speed >= learned * (FAST if stands else SLOW):
        judge.worth = replace(worth, speeds=(*worth.speeds, speed)[-KEEP_SPEEDS:])
        judge.good("throughput-fell", f"The trainer is fast again: {speed:.0f} tokens/s at step {step}.")
        return
    if row := judge.bad("throughput-fell"):
        judge.say(
            "throughput-fell",
            row,
            f"The trainer makes {speed:.0f} tokens/s, less than a third of its usual {learned:.0f}, for {row.bad} "
            f"steps in {_minutes(judge.t - row.since)}, up to step {step}. Look at the GPU's clocks, at what "
            "else runs on it, and at the network between the GPUs.",
        )


def _error(judge: _Judge, fact: ErrorSeen) -> None:
    if fact.signature == MASKED:
        # The trainer dies of it, so there is no row of steps to wait for.
        row = judge.bad("all-masked") or judge.worth.rows["all-masked"]
        if not row.said:
            judge.say(
                "all-masked", row, f"All samples of a batch are masked; the trainer logs: {_quote_text(fact.text)}."
            )
    elif fact.signature in EMPTY:
        if row_now := judge.bad("all-masked"):
            judge.say(
                "all-masked",
                row_now,
                f"{row_now.bad} batches held no sample to train on; the {fact.role} logs: {_quote_text(fact.text)}.",
            )
    elif fact.signature in REFUSED and not judge.worth.stepped and (row_now := judge.bad("requests-refused")):
        judge.say(
            "requests-refused",
            row_now,
            f"No step is done, and the engine refused {row_now.bad} requests in {_minutes(judge.t - row_now.since)} "
            f"({fact.signature}): {_quote_text(fact.text)}. {fact.remedy}".rstrip(),
        )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"


def _quote_text(text: str) -> str:
    return text[:200].rstrip(". ")
