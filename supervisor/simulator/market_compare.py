"""All policies in the same market, a bound that knows the future, and one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from supervisor.simulator.clockwork import NEVER
from supervisor.simulator.compare import PERCENT, columns, run_side_by_side
from supervisor.simulator.market import HOUR_S, Market, job_times
from supervisor.simulator.market_policies import BID_FACTOR, POLICIES, Ours
from supervisor.simulator.market_world import MarketWorld

ORACLE = "oracle"
SOURCE = (
    "Modelled, not measured on a real account. Spot runs: V100 on AWS, 2023 (skypilot-org/spot-traces). Server\n"
    "faults: InfiniteHBD, 2025. Prices, lies, slow boots, outages of provider and store: assumed (simulator/market.py)."
)


@dataclass(frozen=True)
class MarketScore:
    """One policy in one market, or in several together. Hours of one run, dollars."""

    policy: str
    hours: float
    useful_h: float  # of training that stayed
    lost_h: float  # of training that had to be done again
    dollars: float
    pods: int
    twice_h: float  # two pods were paid
    false: int  # replaced, and would have gone on by itself
    trouble: tuple[str, ...] = ()  # promises that ours broke

    @property
    def useful(self) -> float:
        """Percent of all hours."""
        return PERCENT * self.useful_h / self.hours

    @property
    def per_useful_hour(self) -> float:
        """Dollars; NEVER where no hour was useful."""
        return self.dollars / self.useful_h if self.useful_h else NEVER

    def as_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        found = asdict(self) | {"useful_percent": self.useful, "dollars_per_useful_hour": self.per_useful_hour}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def simulate_market(market: Market, policy: type) -> tuple[MarketScore, MarketWorld]:
    """One policy through all hours of a market."""
    world = MarketWorld(market)
    watcher = policy(world)
    end_s = market.hours * HOUR_S
    while world.now < end_s:
        watcher.tick()
        world.sleep(watcher.every_s)
    holder = world.holder()
    step = max(world.held.published or 0, 0 if holder is None else holder.step)
    useful_s = step * world.times.step_s
    for pod in list(world.living.values()):
        world.die(pod)
    lost_s = world.trained_s - useful_s
    figures = (useful_s / HOUR_S, lost_s / HOUR_S, world.dollars, len(world.pods), world.twice_s / HOUR_S)
    trouble = tuple(world.trouble) if isinstance(watcher, Ours) else ()
    return MarketScore(watcher.name, world.now / HOUR_S, *figures, world.false_replacements, trouble), world


def plan_with_foresight(market: Market) -> MarketScore:
    """The bound: it knows each run, boot and lie in advance, and plans with one pod at a time.

    It has the most useful hours that pods on spot machines can have, and on demand where no spot machine is up, if
    each loses nothing but its boot and load. Of plans with as many it takes the cheapest. Requests never fail.
    """
    end, load_s = market.hours * HOUR_S, job_times().load_s
    runs = [(one, run) for one in market.machines if not one.lies for run in one.runs if run.boot_s != NEVER]
    times = sorted({0.0, end, *(run.begin for _, run in runs), *(min(run.end, end) for _, run in runs)})
    spot_begins = [run.begin for one, run in runs if one.spot]
    best: dict[float, tuple[float, float, int]] = {end: (0.0, 0.0, 0)}  # from then on: useful s, -dollars, -pods
    for at, later in zip(times[-2::-1], times[:0:-1], strict=True):
        here = [(one, run) for one, run in runs if run.begin <= at < min(run.end, end)]
        is_spot = any(one.spot for one, _ in here)
        options = [best[later]]
        for one, run in here:
            if one.spot == is_spot:
                until = min([run.end, end, *(t for t in spot_begins if t > at and not is_spot)])
                useful_s, dollars, pods = best[until]
                hours = (until - at) / HOUR_S
                useful_s += max(0.0, until - at - run.boot_s - load_s)
                dollars -= hours * one.price_at(at) * (BID_FACTOR if is_spot else 1.0)
                options.append((useful_s, dollars, pods - 1))
        best[at] = max(options)
    useful_s, negative_dollars, pods = best[0.0]
    return MarketScore(ORACLE, market.hours, useful_s / HOUR_S, 0.0, -negative_dollars, -pods, 0.0, 0)


def compare_policies(markets: Sequence[Market], workers: int | None = None) -> list[MarketScore]:
    """Every policy in every market, added up, and the oracle last. In ``workers`` processes (default: one a core)."""
    jobs = [(market, number) for number in range(len(POLICIES)) for market in markets]
    found = [*run_side_by_side(_run_job, jobs, workers), *(plan_with_foresight(market) for market in markets)]
    return [add_scores(found[at : at + len(markets)]) for at in range(0, len(found), len(markets))]


def _run_job(job: tuple[Market, int]) -> MarketScore:
    return simulate_market(job[0], POLICIES[job[1]])[0]


def add_scores(scores: Sequence[MarketScore]) -> MarketScore:
    """One policy's figures in all markets together."""
    names = ("hours", "useful_h", "lost_h", "dollars", "pods", "twice_h", "false")
    sums = {name: sum(getattr(one, name) for one in scores) for name in names}
    return MarketScore(scores[0].policy, **sums, trouble=tuple(word for one in scores for word in one.trouble))


def table(scores: Sequence[MarketScore]) -> str:
    """One line a policy, and what the figures are."""
    head = ["policy", "useful", "h lost", "$/useful h", "pods", "h paid twice", "false replacements"]
    rows = [
        [
            one.policy,
            f"{one.useful:.2f} %",
            f"{one.lost_h:.1f}",
            f"{one.per_useful_hour:.2f}",
            str(one.pods),
            f"{one.twice_h:.1f}",
            str(one.false),
        ]
        for one in scores
    ]
    return "\n".join([*columns([head, *rows]), "", SOURCE])
