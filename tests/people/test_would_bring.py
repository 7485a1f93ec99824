"""What another way to save, another pod or faster tools would have brought, by figures that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.core import facts as f
from supervisor.core import time_kinds as k
from supervisor.core.goodput import Ledger
from supervisor.core.interval import measure_run
from supervisor.views.engine_idle import EngineIdle, measure_idle
from supervisor.views.interval_advice import advise
from supervisor.views.would_bring import Change, would_bring

from .test_report import Kept

# 1000 steps of 60 s, a save of 30 s every five, one pod lost and 10 min to fetch its step again: 19 h in all.
RUN = Ledger(
    {k.PRODUCTIVE: 60_000.0, k.SAVE: 6_000.0, k.RESTORE: 600.0, k.INFRASTRUCTURE: 1_800.0},
    steps=1000,
    timed=1000,
    timed_s=60_000.0,
    saves=200,
    incidents=1,
)


def changes(run: Ledger = RUN, lost: int = 1, idle: EngineIdle | None = None, **more: Any) -> list[Change]:
    advice = advise(measure_run(run, lost_pods=lost))
    return would_bring(run, advice, lost, idle, **{"on_tier": False, **more})


def test_each_change_is_worth_what_the_ledger_booked_there_and_the_greatest_comes_first() -> None:
    """The interval: (68,400 + 86,400) / 3 = 51,600 s between failures; sqrt(2 * 51,600 * 30 + 900) = 1,760 s, 29 steps.

    At 29 steps 30/1770 + 900/51,600 = 3.44 % of all time goes, at 5 steps 30/330 + 180/51,600 = 9.44 %: 6.00 % of 19 h.
    """
    found = changes(idle=EngineIdle(2_700.0, 18_000.0))
    assert [(one.name, round(one.seconds or 0)) for one in found] == [
        ("LoRA", 6_600),
        ("asynchronous save", 6_000),
        ("interval", 4_104),
        ("smaller optimizer state", 3_300),
        ("tier", 3_000),
        ("tools", 2_700),
        ("not spot", 2_400),
    ]
    told = {one.name: one.sentence for one in found}
    assert told["asynchronous save"] == (
        "An asynchronous save: at most 100 min, since the trainer waited 100 min for 200 saves."
    )
    assert told["interval"] == "A checkpoint every 29 steps: about 68 min 24 s."
    assert told["tools"] == (
        "Faster tools and environments: at most 45 min, in which rollouts waited for them and the engine had no "
        "request (15% of the last 5 h seen)."
    )
    assert "(1 lost), besides the steps that went with them." in told["not spot"]

    assert "tier" not in [one.name for one in changes(on_tier=True)], "it has one"
    assert "not spot" not in [one.name for one in changes(lost=0)]
    silent = replace(RUN, seconds={k.PRODUCTIVE: 60_000.0}, saves=0)
    assert [(one.name, one.seconds) for one in changes(silent, 0)] == [("save", None), ("tools", None)]
    assert [one.name for one in changes(silent, 0, EngineIdle(59.0, 18_000.0))] == ["save"], "less than a minute"


def test_the_engine_idles_only_where_it_has_no_request_and_rollouts_are_out(tmp_path: Path) -> None:
    """Looks 5 s apart. By hand: 45 + 20 + 25 + 10 s idle of 350 s seen."""
    assert measure_idle(tmp_path / "journal.db") is None
    world = Kept(tmp_path)
    world.boot()
    count = 0.0

    def look(seconds: int, *, busy: bool = False, moves: bool = False, **what: Any) -> None:
        nonlocal count
        for _ in range(seconds // 5):
            count += busy or moves
            told = {"running": 8.0 * busy, "waiting": 0.0, "iterations": count, **what}
            world.see(f.EngineLook("http://127.0.0.1:8000", "ok", **told))
            world.t += 5

    def phase(name: str) -> None:
        world.see(f.PhaseSeen("orchestrator", name, 7))

    look(50)  # 45 seen: nothing was said of rollouts yet
    phase("rollouts")
    look(50)  # 50 seen, 45 idle: the first five are from before
    look(50, busy=True)  # 50 seen
    look(50, moves=True)  # 50 seen: requests came and went between the looks
    look(20)  # 20 seen and idle: the counter stands still from the last of those before on
    phase("barrier")
    look(30)  # 30 seen: it waits for the trainer
    phase("rollouts")
    look(30)  # 30 seen, 25 idle
    phase("weight-update")
    look(75)  # 75 seen, 10 idle: 60 s are the weights' own
    world.see(f.StepDone("orchestrator", 7))
    look(10, running=None)  # nothing seen: the counters could not be read
    look(20, host="n1")  # nothing either: of several engines, one may be idle at any time
    world.journal.close()
    assert measure_idle(tmp_path / "journal.db") == EngineIdle(100.0, 350.0)
