"""A pod that behaves at random beside the real core: whatever comes, in whatever order, the promises hold.

The model knows the truth (what lies on the disk and in the store, of which lineage; whether a job lives) and judges
each action by it. Effects wait on lanes, as they do in the daemon, and answer late, badly or never.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State

from . import checks

GIB = 1 << 30
LAST = 26
SETTINGS = f.Settings(
    run_id="model",
    max_steps=LAST,
    first_step_at=1,
    keep_local=2,
    keep_last=2,
    stop_below_bytes=2 * GIB,
    hooks=("finish",),
)
LANES: dict[type[a.Action], str] = {
    a.Survey: "scan",
    a.Start: "job",
    a.Stop: "job",
    a.Publish: "publish",
    a.PruneLocal: "prune",
    a.PruneStale: "prune",
    a.PruneStore: "prune-store",
    a.Restore: "restore",
    a.RunHook: "hook",
    a.Setup: "setup",
    a.StartEngine: "engine",
    a.StopEngine: "engine",
}
ONE_OF_A_KIND = (
    a.Start,
    a.Stop,
    a.StartEngine,
    a.StopEngine,
    a.Publish,
    a.PruneLocal,
    a.PruneStale,
    a.PruneStore,
    a.Restore,
    a.RunHook,
)
HEALTHY_HOURS = 8


class Pod(RuleBasedStateMachine):
    """One run on one pod, with people, daemons that die, and a store that comes and goes."""

    KINDS: ClassVar[tuple[f.Settings, ...]] = (SETTINGS,)

    def __init__(self) -> None:
        super().__init__()
        self.t = 1000.0
        self.settings = SETTINGS
        self.state = State()
        self.consumed: list[f.Observation] = []
        self.idle: list[f.Observation] = []  # the last tick that changed nothing
        self.up = False
        self.lanes: dict[str, list[a.Action]] = {}
        self.crashed: list[a.Action] = []
        self.job: int | None = None  # attempt that lives
        self.launched: set[int] = set()
        self.step_now = 0
        self.versions = 0
        self.local: dict[int, int] = {}  # step -> version of its bytes
        self.torn: set[int] = set()
        self.written: dict[int, float] = {}
        self.store: dict[int, int] = {}
        self.pointer: int | None = None
        self.left: set[int] = set()  # versions of lineages that were left
        self.store_up = True
        self.disk_free = 100 * GIB
        self.asked_fresh = False
        self.asked_step: int | None = None
        self.shut = False
        self.began: float | None = None  # first observation of this journal
        self.kind = SETTINGS

    # ------------------------------------------------------------ the loop

    def see(self, fact: f.Fact) -> None:
        if not self.up:
            return
        before = self.state
        observation = f.Observation(self.t, 1.7e9 + self.t, fact)
        decision = decide(before, observation)
        self.state = decision.state
        self.began = self.t if self.began is None else self.began
        checks.decision(before, observation, decision, self.began)
        # As the journal does it: of ticks that changed nothing the last is kept, and a replay has to come out the same.
        idle = replace(self.state, now=before.now, wall=before.wall, calm_until=before.calm_until) == before
        if isinstance(fact, f.Tick) and not decision.actions and idle:
            self.idle = [observation]
        else:
            self.consumed += [*self.idle, observation]
            self.idle = []
        for action in decision.actions:
            if isinstance(action, a.Exit):
                assert action.code in {0, 93, 94}
                self.left_behind()
                self.up = False
                self.lanes.clear()
                return
            self.asked(action)

    def asked(self, action: a.Action) -> None:
        self.judge(action)
        if type(action) in LANES:
            self.lanes.setdefault(LANES[type(action)], []).append(action)

    def left_behind(self) -> None:
        """The daemon ends now."""
        assert not any(isinstance(x, a.Start) for x in self.pending()), "a job would be left without a daemon"

    def pending(self) -> list[a.Action]:
        return [action for lane in self.lanes.values() for action in lane]

    def judge(self, action: a.Action) -> None:
        if isinstance(action, ONE_OF_A_KIND):
            kinds = (a.PruneLocal, a.PruneStale) if isinstance(action, a.PruneLocal | a.PruneStale) else (type(action),)
            again = isinstance(action, a.Stop) and any(isinstance(x, a.Start) for x in self.crashed)
            assert again or not any(isinstance(x, kinds) for x in self.pending()), f"two of a kind: {action}"
        match action:
            case a.Start():
                self.judge_start(action)
            case a.Stop():
                assert action.attempt == self.state.attempt.number
            case a.PruneLocal():
                safe = [s for s, v in self.store.items() if v not in self.left and s <= (self.pointer or 0)]
                assert max(safe, default=-1) >= action.step, f"step {action.step} is not safe: {self.store}"
                whole = [s for s in self.local if s not in self.torn and self.local[s] not in self.left]
                assert action.step != max(whole, default=-1), "the newest one"
            case a.PruneStore():
                good = [s for s, v in self.store.items() if v not in self.left and s <= (self.pointer or 0)]
                assert action.step not in sorted(good)[-2:]
                assert action.step != self.pointer
            case a.Publish():
                assert action.step in self.state.good_local()

    def judge_start(self, start: a.Start) -> None:
        assert not self.state.orders.paused
        assert self.state.orders.wanted
        assert not self.shut, "a start after a shutdown"
        assert self.job is None, f"attempt {self.job} still lives"
        assert not any(isinstance(x, a.Stop | a.Restore) for x in self.pending())
        if start.step is None:
            whole = [s for s in self.local if self.local[s] not in self.left]
            kept = whole + [s for s, v in self.store.items() if v not in self.left]
            assert self.asked_fresh or not kept, f"a silent fresh start beside {kept}"
        else:
            assert start.step in self.local, f"step {start.step} is not here"
            assert start.step not in self.torn
            assert self.local[start.step] not in self.left or start.step == self.asked_step
            self.left.discard(self.local[start.step])
        floor = -1 if start.step is None else start.step
        if self.asked_fresh or self.asked_step is not None or str(floor) not in self.state.store.quarantined:
            self.left |= {v for s, v in {**self.store}.items() if s > floor}
            self.left |= {v for s, v in self.local.items() if s > floor}
        self.asked_fresh, self.asked_step = False, None

    # ------------------------------------------------------------ effects answer

    def listing(self, *, settled: bool = False) -> None:
        steps = tuple(
            f.LocalStep(s, "incomplete" if s in self.torn else "complete", "short", GIB, 1.7e9 + self.written.get(s, 0))
            for s in sorted(self.local)
        )
        self.see(f.LocalSteps(steps, settled=settled))

    def catalogue(self) -> None:
        if self.store_up:
            self.see(f.StoreSteps(tuple(f.StoredStep(s, True, GIB) for s in sorted(self.store)), self.pointer))
        else:
            self.see(f.StoreSteps(reason="the link is down."))

    def done(self, action: a.Action, ok: bool, damaged: bool = False) -> None:
        match action:
            case a.Survey():
                self.listing(settled=True)
                self.catalogue()
            case a.Setup():
                self.see(f.SetupDone())
            case a.Start():
                if not ok:
                    self.see(f.StartFailed(action.attempt, "no shim."))
                    return
                self.launch(action)
                self.see(f.AttemptStarted(action.attempt, action.step, 100 + action.attempt, "rl"))
                self.see(f.ProcessSeen(action.attempt, "trainer", 100 + action.attempt, 7))
            case a.Stop():
                if self.job == action.attempt:
                    self.job = None
                self.see(f.AttemptStopped(action.attempt, 3.0, gpu_free=True))
            case a.Publish():
                if ok and self.store_up and action.step in self.local and action.step not in self.torn:
                    self.store[action.step] = self.local[action.step]
                    if action.back or self.store.get(self.pointer or -1) in {None, *self.left}:
                        self.pointer = action.step
                    self.pointer = max(self.pointer or 0, action.step)  # else it only goes on
                    self.see(f.Published(action.step, GIB, 60.0, GIB))
                else:
                    gone = action.step not in self.local or action.step in self.torn
                    self.see(f.PublishFailed(action.step, "no.", step_changed=gone))
            case a.PruneLocal():
                if ok:
                    self.local.pop(action.step, None)
                    self.see(f.Pruned(action.step, "local", GIB))
                else:
                    self.see(f.PruneFailed(action.step, "local", "busy."))
            case a.PruneStale():
                self.see(f.Pruned(-1, "local", 0))
            case a.PruneStore():
                if ok and self.store_up:
                    self.store.pop(action.step, None)
                    self.see(f.Pruned(action.step, "store", GIB))
                else:
                    self.see(f.PruneFailed(action.step, "store", "away."))
            case a.Restore():
                if ok and self.store_up and action.step in self.store:
                    self.local[action.step] = self.store[action.step]
                    self.torn.discard(action.step)
                    self.see(f.Restored(action.step, GIB, 30.0))
                else:
                    self.see(f.RestoreFailed(action.step, "no.", damaged=damaged))
            case a.RunHook():
                self.see(f.HookDone(action.hook, "" if ok else "exit code 1."))

    def launch(self, start: a.Start) -> None:
        self.job = start.attempt
        self.launched.add(start.attempt)
        self.step_now = start.step or 0
        floor = -1 if start.step is None else start.step
        for step in [s for s in self.local if s > floor]:
            del self.local[step]
            self.torn.discard(step)

    @rule(lane=st.sampled_from(sorted(set(LANES.values()))), ok=st.booleans(), damaged=st.booleans())
    def an_effect_answers(self, lane: str, ok: bool, damaged: bool) -> None:
        if self.lanes.get(lane):
            self.t += 2
            self.done(self.lanes[lane].pop(0), ok, damaged)

    @rule()
    def every_effect_answers_well(self) -> None:
        for _ in range(30):
            busy = [lane for lane, waiting in self.lanes.items() if waiting]
            if not busy or not self.up:
                return
            self.t += 1
            self.done(self.lanes[busy[0]].pop(0), True)

    @rule(lane=st.sampled_from(sorted(set(LANES.values()))))
    def an_effect_crashes(self, lane: str) -> None:
        if self.lanes.get(lane):
            # A start that crashes while its stop waits behind it looks like a stop that crashed: two do no harm.
            self.crashed.append(self.lanes[lane].pop(0))
            self.see(f.EffectCrashed(lane, "ValueError: a defect"))

    # ------------------------------------------------------------ the job

    @precondition(lambda self: self.job is not None and self.up)
    @rule(count=st.integers(1, 3), save=st.booleans(), seen=st.booleans())
    def the_job_makes_steps(self, count: int, save: bool, seen: bool) -> None:
        for _ in range(count):
            if self.step_now >= LAST or self.job is None:
                return
            self.t += 100
            self.step_now += 1
            self.see(f.StepDone("trainer", self.step_now))
        if save and self.job is not None:
            self.versions += 1
            self.local[self.step_now], self.written[self.step_now] = self.versions, self.t
            if seen:
                self.listing()

    @precondition(lambda self: self.job is not None and self.up)
    @rule(code=st.sampled_from([0, 1]), how=st.sampled_from(["exit", "gone", "finish"]))
    def the_job_dies(self, code: int, how: str) -> None:
        attempt = self.job or 0
        if how == "gone":
            self.see(f.ProcessGone(attempt, "trainer", 100 + attempt, 7))
            return
        if how == "finish" and self.step_now >= LAST:
            self.see(f.FinishSeen("trainer", "RL trainer finished!"))
        self.job = None
        self.see(f.ComponentExited(attempt, "launcher", code))

    @rule(kind=st.sampled_from([f.ComponentExited, f.AttemptStopped, f.StartFailed, f.AttemptStarted]))
    def news_of_an_older_attempt(self, kind: type[f.Fact]) -> None:
        old = self.state.attempt.number - 1
        facts: dict[type[f.Fact], f.Fact] = {
            f.ComponentExited: f.ComponentExited(old, "launcher", 1),
            f.AttemptStopped: f.AttemptStopped(old, 1.0, ("trainer",)),
            f.StartFailed: f.StartFailed(old, "late", permanent=True),
            f.AttemptStarted: f.AttemptStarted(old, None, 1),
        }
        self.see(facts[kind])

    # ------------------------------------------------------------ pod and store

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(4):
            self.t += seconds / 4
            self.see(f.Tick())

    @rule()
    def the_clock_jumps(self) -> None:
        self.t += 5000
        self.see(f.ClockJumped(5000))

    @rule(free=st.sampled_from([1, 2, 10, 100]))
    def the_disk_is_looked_at(self, free: int) -> None:
        self.see(f.DiskLook("/ckpt", 100 * GIB, free * GIB))

    @rule(up=st.booleans())
    def the_store_comes_or_goes(self, up: bool) -> None:
        self.store_up = up
        self.catalogue()

    @rule()
    def a_scan(self) -> None:
        self.listing()

    # ------------------------------------------------------------ people and daemons

    @precondition(lambda self: self.up)
    @rule(verb=st.sampled_from(["start", "stop", "restart", "pause", "resume", "resume", "shutdown"]))
    def a_person_asks(self, verb: str) -> None:
        self.shut = self.shut or verb == "shutdown"
        self.see(f.Command(verb, "kim"))

    @initialize(
        stored=st.sets(st.sampled_from([10, 20, 24]), max_size=2),
        here=st.sampled_from([None, 5, 20]),
        kind=st.integers(0, 11),
    )
    def begin(self, stored: set[int], here: int | None, kind: int) -> None:
        self.kind = self.KINDS[kind % len(self.KINDS)]
        for step in stored:
            self.versions += 1
            self.store[step] = self.versions
        self.pointer = max(stored, default=None)
        if here is not None:
            self.versions += 1
            self.local[here] = self.store.get(here, self.versions)
        self.boot(None)

    @rule(
        launched=st.booleans(),
        how=st.sampled_from(["plain", "plain", "plain", "fresh", "step"]),
        setup=st.booleans(),
    )
    def the_daemon_dies_and_another_begins(self, launched: bool, how: str, setup: bool) -> None:
        if self.up and launched and (jobs := self.lanes.get("job")) and isinstance(jobs[0], a.Start):
            self.launch(jobs[0])  # it died between the launch and its report
        self.lanes.clear()
        self.up = False
        checks.survives_the_codec(self.state)
        whole = sorted(s for s in self.local if s not in self.torn)
        step = whole[0] if how == "step" and whole and self.job is None else None
        self.boot(step, fresh=how == "fresh" and self.job is None, setup=setup)

    @precondition(lambda self: not any(version in self.left for version in self.store.values()))
    @rule()
    def the_pod_is_lost_and_the_next_one_takes_over(self) -> None:
        self.lanes.clear()
        self.the_pod_is_lost()
        self.boot(None)

    def the_pod_is_lost(self) -> None:
        self.state, self.consumed, self.idle, self.began = State(), [], [], None
        self.local, self.torn, self.job, self.launched = {}, set(), None, set()

    def boot(self, step: int | None, *, fresh: bool = False, setup: bool = False) -> None:
        """As ``Daemon._take_over`` does it."""
        self.up, self.shut = True, False
        state = self.state
        adopted, after = None, []
        if state.attempt.number and (state.live or state.mode == "stopping" or state.busy.start is not None):
            if state.attempt.number in self.launched:
                adopted = state.attempt.number
                if self.job == state.attempt.number:
                    after.append(
                        f.AttemptAdopted(state.attempt.number, state.attempt.resume_step, 100 + state.attempt.number)
                    )
                else:
                    after.append(f.ComponentExited(state.attempt.number, "launcher", 1))
            elif state.live and state.busy.start is None:
                adopted = state.attempt.number
                after.append(f.ComponentExited(state.attempt.number, "launcher", None, None, lost=True))
        if adopted is None and (fresh or step is not None):
            self.asked_fresh, self.asked_step = fresh, None if fresh else step
        self.settings = replace(self.kind, fresh=fresh, pin_step=None if fresh else step)
        engine = self.engine_left()
        wanted = setup and self.job is None
        self.see(f.DaemonStarted("test", self.settings, "boot", adopted, wanted, "journal", engine))
        for fact in after:
            self.see(fact)

    def engine_left(self) -> int | None:
        return None

    # ------------------------------------------------------------ always, and in the end

    @invariant()
    def a_job_lives_only_where_somebody_cares_for_it(self) -> None:
        if self.up and self.job is not None and not self.pending():
            assert self.state.mode in {"starting", "running", "stopping"}, self.state.mode

    def teardown(self) -> None:
        """A replay gives the same; and with all well again the run goes on, or it has ended and said why."""
        state = State()
        for observation in [*self.consumed, *self.idle]:
            state = decide(state, observation).state
        checks.the_same(replace(state, calm_until=0.0), replace(self.state, calm_until=0.0))
        self.store_up, self.shut = True, False
        if self.up:
            self.see(f.Command("resume"))
        self.see(f.DiskLook("/ckpt", 1000 * GIB, 900 * GIB))
        end = self.t + HEALTHY_HOURS * 3600
        while self.up and self.t < end and not self.settled():
            self.every_effect_answers_well()
            self.t += 20
            self.see(f.Tick())
            self.all_is_well()
            if self.t % 60 < 20:
                self.listing()
                self.catalogue()
            if self.job is not None and self.job == self.state.attempt.number and self.state.live:
                self.the_job_goes_on()
        assert not self.up or self.settled(), f"stuck in {self.state.mode}: {self.state.why}"

    def settled(self) -> bool:
        state = self.state
        return state.mode == "stopped" or (
            state.mode == "running" and state.incidents.open is None and not state.job.gone
        )

    def all_is_well(self) -> None:
        """What sensors see of a healthy pod."""

    def the_job_goes_on(self) -> None:
        if self.step_now < LAST:
            self.step_now += 1
            self.see(f.StepDone("trainer", self.step_now))
            self.versions += 1
            self.local[self.step_now], self.written[self.step_now] = self.versions, self.t
        elif self.job is not None:
            attempt, self.job = self.job, None
            self.see(f.FinishSeen("trainer", "RL trainer finished!"))
            self.see(f.ComponentExited(attempt, "launcher", 0))
