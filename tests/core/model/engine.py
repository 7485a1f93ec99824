"""A run whose inference server is a role of its own: it may die at any time, and never lives for nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.proof import is_about_to_end

from .news import NewsPod
from .pod import SETTINGS

OWN = replace(SETTINGS, inference="own-role")
FEWEST_S = 60.0  # the shortest that a daemon waits, before it ends, for an engine that does not
LONELY_S = 900.0  # a job whose engine is known to be gone is not left alone for longer


class EnginePod(NewsPod):
    """Two halves: each may die, be stopped, be started, beside the other."""

    KINDS: ClassVar[tuple[f.Settings, ...]] = (
        OWN,
        replace(OWN, engine_alone=False),
        replace(OWN, engine_warm=False),
        replace(OWN, engine_alone=False, engine_warm=False, hooks=()),
    )

    def __init__(self) -> None:
        super().__init__()
        self.engine: int | None = None  # start that lives
        self.broken = False  # it lives on without one of its processes
        self.engines: set[int] = set()  # starts that were launched
        self.numbers = 0  # highest start that was asked for
        self.untold: list[f.Fact] = []  # how it ended, on its way to the core
        self.alone_since: float | None = None

    # ------------------------------------------------------------ what may be asked for

    def judge(self, action: a.Action) -> None:
        super().judge(action)
        waiting = [x for x in self.pending() if isinstance(x, a.StartEngine | a.StopEngine)]
        match action:
            case a.StartEngine():
                assert not waiting, f"{action} beside {waiting}"
                assert self.engine is None or self.untold, f"{action}, and {self.engine} lives"
                assert action.engine > self.numbers
                self.numbers = action.engine
                assert not self.state.orders.paused
            case a.StopEngine():
                assert not waiting, f"{action} beside {waiting}"
                assert 0 < action.engine <= self.numbers, f"{action} was never asked for"
                assert self.engine in (None, action.engine)

    def judge_start(self, start: a.Start) -> None:
        super().judge_start(start)
        waiting = [x for x in self.pending() if isinstance(x, a.StartEngine | a.StopEngine)]
        assert not any(isinstance(x, a.StopEngine) for x in waiting), "its engine is being stopped"
        assert waiting or self.engine is not None or self.untold, "a job without an engine"

    def left_behind(self) -> None:
        super().left_behind()
        busy = any(isinstance(x, a.StopEngine | a.StartEngine) for x in [*self.pending(), *self.crashed])
        waited = self.t - self.state.since >= FEWEST_S
        assert self.engine is None or (busy and waited), f"engine {self.engine} is left alive: {self.state.why}"

    # ------------------------------------------------------------ effects answer

    def done(self, action: a.Action, ok: bool, damaged: bool = False) -> None:
        match action:
            case a.StartEngine():
                if not ok:
                    self.see(f.EngineStartFailed(action.engine, "the port is taken.", permanent=damaged))
                    return
                self.engine_up(action.engine)
                self.see(f.EngineStarted(action.engine, 5000 + action.engine, "inference"))
                self.engine_seen()
            case a.StopEngine():
                self.untold = [x for x in self.untold if not isinstance(x, f.EngineExited)]
                if self.engine == action.engine:
                    self.engine = None
                    self.see(self.gone(action.engine))
                    for _ in range(3):  # until the memory is back
                        self.t += 2
                        self.see(f.Tick())
                survivors = ("vllm (pid 9)",) if damaged and not ok else ()
                self.see(f.EngineStopped(action.engine, 6.0, survivors, gpu_free=not survivors))
            case a.Start():
                super().done(action, ok, damaged)
                if ok:
                    self.engine_seen()
            case _:
                super().done(action, ok, damaged)

    def engine_up(self, number: int) -> None:
        assert self.engine is None
        self.engine, self.broken, self.untold = number, False, []
        self.engines.add(number)

    def gone(self, number: int) -> f.ProcessGone:
        return f.ProcessGone(self.state.attempt.number, "inference", 5000 + number, 9)

    def engine_seen(self) -> None:
        if self.engine is not None and self.job is not None:
            self.see(f.ProcessSeen(self.job, "inference", 5000 + self.engine, 9))

    # ------------------------------------------------------------ it dies

    @precondition(lambda self: self.engine is not None)
    @rule(how=st.sampled_from(["told", "told", "gone", "later", "part"]), first=st.booleans())
    def the_engine_dies(self, how: str, first: bool) -> None:
        number = self.engine or 0
        if how == "part":
            self.broken = True
            self.see(self.gone(number))
            return
        self.engine = None
        self.untold = [f.EngineExited(number, None, 9), self.gone(number)]
        if first:
            self.untold.reverse()
        if how == "gone":
            self.see(self.gone(number))
        elif how == "told":
            self.the_end_of_the_engine_is_told()

    @rule()
    def the_end_of_the_engine_is_told(self) -> None:
        while self.untold and self.up:
            fact, *self.untold = self.untold
            self.see(fact)

    @rule(kind=st.sampled_from([f.EngineStarted, f.EngineStartFailed, f.EngineExited, f.EngineStopped]))
    def news_of_an_older_engine(self, kind: type[f.Fact]) -> None:
        old = self.state.own.number - 1
        facts: dict[type[f.Fact], f.Fact] = {
            f.EngineStarted: f.EngineStarted(old, 1),
            f.EngineStartFailed: f.EngineStartFailed(old, "late", permanent=True),
            f.EngineExited: f.EngineExited(old, 1),
            f.EngineStopped: f.EngineStopped(old, 1.0, ("vllm",)),
        }
        self.see(facts[kind])

    # ------------------------------------------------------------ daemons

    @rule(launched=st.booleans())
    def the_daemon_dies_while_it_starts_the_engine(self, launched: bool) -> None:
        waiting = self.lanes.get("engine")
        if self.up and waiting and isinstance(waiting[0], a.StartEngine) and launched:
            self.engine_up(waiting[0].engine)
        jobs = self.lanes.get("job")
        self.the_daemon_dies_and_another_begins(bool(jobs), "plain", setup=False)

    def the_pod_is_lost(self) -> None:
        super().the_pod_is_lost()
        self.engine, self.engines, self.numbers, self.untold = None, set(), 0, []

    def engine_left(self) -> int | None:
        """As ``Daemon._engine_left`` does it."""
        own, self.alone_since = self.state.own, None
        if own.number == 0:
            return None
        if self.engine == own.number:
            return own.number
        if own.number in self.engines and (own.alive or own.asked == "start"):
            self.untold = [f.EngineExited(own.number, None, 9)]
            return own.number
        self.untold = []
        return None

    # ------------------------------------------------------------ always, and in the end

    def see(self, fact: f.Fact) -> None:
        super().see(fact)
        state = self.state
        lonely = (
            self.up
            and self.job is not None
            and self.engine is None
            and not self.untold
            and not self.pending()
            and state.live
            and not state.orders.paused
            and not is_about_to_end(state)
        )
        if not lonely or isinstance(fact, f.ClockJumped | f.DaemonStarted):
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = self.t
        else:
            assert self.t - self.alone_since < LONELY_S, "a job without an engine, and nobody minds"

    @invariant()
    def the_core_believes_what_it_was_told(self) -> None:
        if self.up and not self.untold and not self.pending():
            assert self.state.own.alive == (self.engine is not None), self.state.own
            assert not self.state.own.asked or self.crashed

    def settled(self) -> bool:
        if self.pending() or self.untold or not super().settled():
            return False
        if self.state.mode == "stopped":
            assert self.engine is None, "an engine for nobody"
            return True
        return self.engine is not None and not self.broken

    def all_is_well(self) -> None:
        self.the_end_of_the_engine_is_told()
        super().all_is_well()
