"""A run that is only observed: a person starts, attaches and ends the job; the core looks and publishes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.observe_only import held_back
from supervisor.core.step_done import STEPS_UNDER_WAY

from .news import NewsPod
from .pod import SETTINGS

OBSERVE = replace(SETTINGS, mode="observe")
MOST_AT_ONCE = 8  # held-back actions that one fact may lead to
MOST_AN_HOUR = 4  # of one kind, while nothing happens but the usual looks


class ObservedPod(NewsPod):
    """The job is somebody else's, and nothing that is asked for is done."""

    KINDS: ClassVar[tuple[f.Settings, ...]] = (
        OBSERVE,
        replace(OBSERVE, inference="own-role"),
        replace(OBSERVE, hooks=()),
    )

    def __init__(self) -> None:
        super().__init__()
        self.held: list[f.Fact] = []
        self.slow = False  # what comes back waits behind the next fact
        self.asked_for: Counter[str] = Counter()

    # ------------------------------------------------------------ nothing is done

    def asked(self, action: a.Action) -> None:
        back = held_back(action, "the run is only observed.")
        if back is None:
            super().asked(action)
            return
        self.asked_for[back.action] += 1
        self.held.append(back)

    def judge(self, action: a.Action) -> None:
        if isinstance(action, a.Publish):
            super().judge(action)

    def see(self, fact: f.Fact) -> None:
        waiting, self.held = self.held, []
        step, known, live = self.state.progress.step, len(self.state.observing.would), self.state.live
        super().see(fact)
        if not self.slow:
            waiting, self.held = [*waiting, *self.held], []
        for back in waiting:
            super().see(back)
        count = 0
        while self.held and not self.slow and self.up:
            back, *self.held = self.held
            count += 1
            assert count <= MOST_AT_ONCE, f"asked for again and again: {back}"
            super().see(back)
        # A stop that is not known yet to be left undone is no time to say that the run went on.
        if isinstance(fact, f.StepDone) and self.up and live and self.state.live and self.state.progress.step != step:
            for one in self.state.observing.would[:known]:
                # Without one of its processes a run may still do the steps that are under way.
                under_way = STEPS_UNDER_WAY if one.cause.endswith("-gone") or one.cause.startswith("engine-") else 1
                since = (self.state.progress.step or 0) - (-1 if one.step is None else one.step)
                assert one.outcome or since < under_way, self.state.observing.would

    @rule(slow=st.booleans())
    def what_comes_back_takes_its_time(self, slow: bool) -> None:
        self.slow = slow
        self.see(f.Tick())

    def left_behind(self) -> None:
        self.held.clear()

    # ------------------------------------------------------------ the job is a person's

    @precondition(
        lambda self: self.job is None and self.up and self.state.mode not in ("leaving", "finished", "finishing")
    )
    @rule(pause=st.sampled_from([0.0, 600.0]))
    def a_person_starts_and_attaches(self, pause: float) -> None:
        state = self.state
        if state.live and state.job.ended is None and state.attempt.pid is not None:
            return
        self.t += pause
        number = max([state.attempt.number, *self.launched]) + 1
        self.launched.add(number)
        self.job, self.step_now = number, max(self.local, default=0)
        self.see(f.AttemptAdopted(number, None, 100 + number))
        self.see(f.ProcessSeen(number, "trainer", 100 + number, 7))

    @precondition(lambda self: self.job is not None and self.up)
    @rule(told=st.sampled_from(["lost", "gone", "finish", "alone"]))
    def the_job_dies(self, told: str) -> None:
        attempt = self.job or 0
        if told in ("gone", "alone"):
            self.see(f.ProcessGone(attempt, "trainer", 100 + attempt, 7))
        if told == "alone":
            return
        if told == "finish" and self.step_now >= 26:
            self.see(f.FinishSeen("trainer", "RL trainer finished!"))
        self.job = None
        self.see(f.ComponentExited(attempt, "launcher", None, None, lost=True))

    @precondition(lambda self: self.up)
    @rule(verb=st.sampled_from(["pause", "resume", "resume", "shutdown"]))
    def a_person_asks(self, verb: str) -> None:
        self.see(f.Command(verb, "kim"))

    def news_of_an_older_attempt(self) -> None:
        """Nobody starts or stops one."""

    def boot(self, step: int | None, *, fresh: bool = False, setup: bool = False) -> None:
        self.held.clear()
        state = self.state
        taken = self.job if self.job is not None and not state.live else None
        if taken is None:
            super().boot(None, setup=setup)
            return
        self.up = True
        self.settings = self.kind
        self.see(f.DaemonStarted("test", self.settings, "boot", None, setup=False, journal="journal"))
        self.see(f.AttemptAdopted(taken, None, 100 + taken))

    # ------------------------------------------------------------ always, and in the end

    @invariant()
    def what_is_believed_of_the_job_is_true(self) -> None:
        state = self.state
        if not self.up or self.held or state.orders.paused:
            return
        if self.job is None:
            assert not state.live, f"{state.mode}, and no job lives: {state.why}"
        else:
            assert state.live or state.mode in ("leaving", "publishing", "finishing", "finished"), (
                f"{state.mode}, and attempt {self.job} lives: {state.why}"
            )

    def teardown(self) -> None:
        self.slow = False
        self.see(f.Tick())
        for _ in range(2):
            self.asked_for.clear()
            for _ in range(20):
                self.t += 180
                self.see(f.Tick())
                self.all_is_well()
                self.every_effect_answers_well()
                self.listing()
            assert not self.asked_for or max(self.asked_for.values()) <= MOST_AN_HOUR, self.asked_for
        super().teardown()

    def settled(self) -> bool:
        return self.state.mode == "stopped" or self.state.live
