"""The virtual world of one run: pods that come and go, a store that stays, faults at their times, and the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.time_kinds import (
    DETECTION,
    INFRASTRUCTURE,
    OTHER,
    PRODUCTIVE,
    RESTORE,
    SAVE,
    STARTUP,
    STOPPED,
    STOPPING,
    WAITING,
)
from supervisor.simulator.attendant import Attendant
from supervisor.simulator.chance import Chance
from supervisor.simulator.clockwork import Clockwork, Owner
from supervisor.simulator.faults import KINDS, NotNowError, draw_parameters
from supervisor.simulator.job import Job
from supervisor.simulator.ledger import Account, FalseRestart, Strike
from supervisor.simulator.link import Store
from supervisor.simulator.pod import Pod
from supervisor.simulator.policy import PolicyFactory
from supervisor.simulator.scenario import Scenario

START_T = 1000.0
EXIT_FINISHED, EXIT_AGAIN, EXIT_PERSON, EXIT_UNFIT = 0, 75, 93, 94
AGAIN_S = 30.0
START_FAILS_S = 40.0  # after the launch


@dataclass(frozen=True)
class Planned:
    """A fault that is to strike ``at`` seconds after the beginning."""

    at: float
    kind: str
    parameters: dict[str, Any]
    host_of: float | None = None  # only if the run is still on the pod that it was on then


@dataclass(frozen=True)
class Said:
    """One sentence of the policy, with the time at which it was said."""

    t: float
    event: str
    sentence: str


class World:
    """Everything. ``run_until`` lets it happen; ``account`` is the truth about it."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        factory: PolicyFactory,
        *,
        planned: Sequence[Planned] = (),
        trace: Callable[[f.Observation], None] | None = None,
    ) -> None:
        self.scenario, self.factory, self.trace = scenario, factory, trace
        self.clock = Clockwork(START_T)
        self.physics = scenario.physics
        self.chance = Chance(seed)
        # What costs no policy any time: how noisy curves are, and when a look is due.
        self.physics_random = Random(f"{seed}/physics")
        self.fault_random = Random(f"{seed}/faults")
        self._sensor_random = Random(f"{seed}/sensors")
        self._no_pod_until = 0.0  # the market has none before that
        self.store = Store()
        self.account = Account(START_T)
        self.said_sentences: list[Said] = []
        self.not_struck: list[tuple[Planned, str]] = []
        self.observations = 0
        self.pod: Pod | None = None
        self.attendant: Attendant | None = None
        self.finished = False
        self.gone_for_a_person = False
        self.poison_told: Callable[[], None] | None = None
        self._pods = 0
        self._open: list[Strike] = []  # faults that need an answer and have none yet
        self._sent_bytes: dict[tuple[int, float], float] = {}
        self.policy = factory()
        # What strikes at the next resume, or start, on this pod or on the one that is awaited.
        self.jam_next_resume: Callable[[], None] | None = None
        self.failing_starts: list[Callable[[], None]] = []
        for fault in planned:
            self.clock.at(START_T + fault.at, self._call_that_strikes(fault))
        self._new_pod()

    # ------------------------------------------------------------ time

    def run_until(self, t: float) -> None:
        """Let everything happen until ``t`` seconds after the beginning, or until the run is finished."""
        end = START_T + t
        clock = self.clock
        while not self.finished:
            event_t = clock.next_t()
            attendant = self.attendant
            paused = self.pod is None or self.pod.paused
            deadline = attendant.deadline if attendant is not None and not paused else math.inf
            if min(event_t, deadline) > end:
                clock.now = end
                break
            if deadline < event_t and attendant is not None:
                clock.now = deadline
                attendant.tick()
            else:
                clock.step()
        if self.pod is None or self.pod.job is None:
            best = max((*self.store.steps, *(self.pod.folders if self.pod else ())), default=None)
            self.account.goes_on_from(clock.now, best)
        self.account.close(clock.now)

    # ------------------------------------------------------------ pods

    def here(self) -> Pod:
        """The present pod. Raises NotNowError when there is none, or when it stands still."""
        if self.pod is None or self.pod.paused:
            raise NotNowError("there is no pod just now")
        return self.pod

    def _new_pod(self) -> None:
        if self.clock.now < self._no_pod_until:
            self.clock.at(self._no_pod_until, self._new_pod)
            return
        self._pods += 1
        self.account.pods = self._pods
        self.pod = Pod(
            self._pods,
            self.clock,
            physics=self.physics,
            physics_random=self.physics_random,
            chance=self.chance,
            tier=self.policy.tier,
            store=self.store,
            world=self,
        )
        if self._pods > 1:
            self.policy = self.factory()
        self._sent_bytes = {}
        self._boot_daemon()

    def _boot_daemon(self) -> None:
        if self.pod is None or self.finished:
            return
        self.gone_for_a_person = False
        self.attendant = Attendant(
            self,
            self.pod,
            self.policy,
            self.scenario.settings,
            sensor_random=self._sensor_random,
            sent_bytes=self._sent_bytes,
        )
        self.recount()
        self.attendant.begin()

    def lose_pod(self, *, unnoticed_s: float = 0.0) -> None:
        """The pod is gone with its disk; another one comes after a while."""
        pod = self.pod
        if pod is None:
            return
        self._end_daemon()
        if pod.job is not None:
            pod.job.end()
        pod.alive = False
        pod.job = None
        self.pod = None
        now = self.clock.now
        for open_strike in self._open:
            open_strike.natural = open_strike.natural or now
        self._open.clear()
        self.account.abandon_step(now)
        self.recount()
        self.clock.at(self._pod_comes(now + unnoticed_s), self._new_pod)

    def _pod_comes(self, asked: float) -> float:
        """When the pod that is asked for then is there."""
        physics = self.physics
        wait_s = self.chance.around_at(asked, physics.replacement_s, physics.replacement_sigma, "replacement")
        return max(asked + wait_s, self._no_pod_until)

    def take_pods_away(self, strike: Strike, *, unnoticed_s: float = 0.0) -> None:
        """The market takes every pod, and has none for as long as another one takes from now on.

        Also who waits for a pod just then waits on: else a policy gained by having none when it is taken.
        """
        self._no_pod_until = self._pod_comes(self.clock.now + unnoticed_s)
        strike.natural = self.clock.now
        self.lose_pod(unnoticed_s=unnoticed_s)

    def reboot(self, seconds: float, strike: Strike) -> None:
        """The machine boots anew: all processes and what lay in memory are gone, the disk stays."""
        pod = self.here()
        self._end_daemon()
        if pod.job is not None:
            self.account.abandon_step(self.clock.now)
            pod.end_job()
        pod.lose_memory()
        self._open.clear()
        self.policy = self.factory()  # the clock of the journal begins anew, and it is read as another pod's
        self._boot_daemon_after(seconds, strike)

    def warn(self) -> None:
        """The provider says that the pod will be taken away: the daemon gets SIGTERM."""
        if self.pod is None or self.pod.paused:
            return
        self.pod.doomed = True
        if self.attendant is not None:
            self.attendant.see(f.Command("shutdown", "SIGTERM"), "signal")

    def pause_host(self, seconds: float, strike: Strike) -> None:
        """Nothing on the pod moves for a while; its clocks then show that."""
        pod = self.here()
        pod.paused = True
        job, attendant = pod.job, self.attendant
        parts: list[Owner | None] = [pod, job, attendant]
        parts += [attendant.hands, attendant.sensing] if attendant else []
        self.clock.postpone(seconds, lambda owner: owner in parts)
        if attendant is not None:
            attendant.deadline += seconds
        self.recount()

        def over() -> None:
            pod.paused = False
            strike.natural = self.clock.now
            self.recount()
            if job is not None:
                job.slept(seconds)
            pod.link.slept(seconds)
            if attendant is not None and attendant.alive:
                attendant.see(f.ClockJumped(seconds), "clock")

        # Before anything that was postponed to that moment or later: the loop notices first that it was away.
        self.clock.at(self.clock.now + seconds - 1e-6, over)

    def link_changed(self) -> None:
        """The store went or came back: transfers stall or go on."""
        if self.pod is not None:
            self.pod.link.refresh()

    # ------------------------------------------------------------ daemon and people

    def kill_daemon(self, seconds: float, strike: Strike) -> None:
        """The daemon is gone and comes back on the same pod, with its journal."""
        if self.attendant is None:
            raise NotNowError("no daemon runs")
        self._end_daemon()
        self._boot_daemon_after(seconds, strike)

    def _end_daemon(self) -> None:
        if self.attendant is not None:
            self.attendant.close()
            self.attendant = None

    def _boot_daemon_after(self, seconds: float, strike: Strike) -> None:
        def back() -> None:
            strike.natural = self.clock.now
            self._boot_daemon()

        self.recount()
        self.clock.after(seconds, back, self.pod)

    def daemon_exits(self, code: int, reason: str) -> None:
        """The policy ends its daemon with a code of the exit contract."""
        pod = self.pod
        if pod is None or self.attendant is None:
            return
        self._end_daemon()
        if code == EXIT_UNFIT:
            self._close_open_strikes("unfit: " + reason)
            self.lose_pod()
            return
        last = self.physics.max_steps
        if code == EXIT_FINISHED and last and last in self.store.steps:
            self.finished = True
        elif code == EXIT_AGAIN:
            self.clock.after(AGAIN_S, self._boot_daemon, pod)
        elif not pod.doomed:
            self._close_open_strikes(reason)
            self.account.gave_up += 1 if code == EXIT_PERSON else 0
            self.gone_for_a_person = True
            after_s = self.chance.around_at(self.clock.now, self.physics.person_s, 0.5, "person")
            self.clock.after(after_s, self._person_comes, pod)
        self.recount()

    def _person_comes(self) -> None:
        """A person looks, mends what a person can mend, and starts the daemon again."""
        pod = self.here()
        if any(card.lost for card in pod.cards):
            self.lose_pod()
            return
        pod.end_job()
        pod.set_foreign(0.0)
        pod.mend()
        self._boot_daemon()

    def keep_sentence(self, action: a.Say) -> None:
        """Keep what the policy says, for tests and for the curious."""
        self.said_sentences.append(Said(self.clock.now - START_T, action.event, action.sentence))

    # ------------------------------------------------------------ faults

    def _call_that_strikes(self, fault: Planned) -> Callable[[], None]:
        def strike() -> None:
            kind = KINDS[fault.kind]
            self.fault_random = self.chance.of("fault", fault.kind, fault.at)
            try:
                if fault.host_of is not None and self.here().started_at > START_T + fault.host_of:
                    raise NotNowError("the run left that host")
                kind.strike(self, draw_parameters(fault.parameters, kind.parameters, self.fault_random))
            except NotNowError as why:
                self.not_struck.append((fault, str(why)))

        return strike

    def struck(self, kind: str) -> Strike:
        """A fault changes the world now. Only a policy that knows everything is told."""
        strike = self.account.struck(kind, self.clock.now, KINDS[kind].needs)
        if strike.asks_for_an_act:
            self._open.append(strike)
            if self.policy.omniscient and self.pod is not None:
                self.clock.after(0.0, lambda: self._tell_oracle(kind), self.pod)
        return strike

    def _tell_oracle(self, kind: str) -> None:
        if self.attendant is not None:
            self.policy.learn_fault(self.clock.now, kind)
            self.attendant.tick()

    def poison_strikes(self) -> None:
        """A poisoned lineage reached its end."""
        told, self.poison_told = self.poison_told, None
        if told is not None:
            told()
        elif self.policy.omniscient and self.pod is not None:
            self.clock.after(0.0, lambda: self._tell_oracle("poison-step"), self.pod)

    # ------------------------------------------------------------ what the policy does, judged by the truth

    def policy_stops(self, reason: str) -> None:
        """The policy acts upon what it believes."""
        self.account.stops += 1
        pod, now = self.pod, self.clock.now
        job = pod.job if pod is not None else None
        needed = self._close_open_strikes(reason)
        if needed or pod is None or job is None or job.exit is not None or job.ending or pod.doomed:
            return
        if pod.foreign_bytes > 0:
            return  # to stop before the disk is full is no mistake
        odd = sorted({s.kind for s in self.account.strikes[-10:] if not s.asks_for_an_act and now - s.t < 7200.0})
        self.account.false_restarts.append(FalseRestart(now - START_T, reason, ", ".join(odd)))

    def policy_starts(self, step: int | None) -> None:
        """The run goes on from ``step``."""
        self.account.starts += 1
        self._close_open_strikes("started anew")
        self.account.goes_on_from(self.clock.now, step)
        if self.failing_starts:
            self.clock.after(START_FAILS_S, self._fail_start, self.pod)

    def _fail_start(self) -> None:
        job = self.pod.job if self.pod is not None else None
        if self.failing_starts and job is not None and job.exit is None and not job.ending:
            self.failing_starts.pop(0)()
            job.crash("inference", 1, "fatal-error", "OSError: the model could not be read: Connection reset by peer")

    def _close_open_strikes(self, sentence: str) -> bool:
        """Close the books on every fault that was open; were there any that a restart answers?"""
        needed = False
        for strike in self._open:
            needed = True
            if strike.detected is None:
                strike.detected, strike.sentence = self.clock.now, sentence
        self._open.clear()
        return needed

    # ------------------------------------------------------------ what a pod and its job tell

    def resumes(self, job: Job) -> None:
        """The trainer loads its checkpoint now."""
        told, self.jam_next_resume = self.jam_next_resume, None
        if told is not None:
            told()
            job.jam("trainer")

    def recount(self) -> None:
        """What is time spent on from now?"""
        category = self._present_category()
        if category != self.account.category:
            self.account.turn(self.clock.now, category)

    def _present_category(self) -> str:
        pod = self.pod
        if pod is None or pod.paused:
            return INFRASTRUCTURE
        doing = self.attendant.hands.busy_with if self.attendant is not None else ""
        if doing == "stop":
            return STOPPING
        job = pod.job
        if job is None and self.attendant is None and not self.gone_for_a_person:
            return INFRASTRUCTURE
        if job is None:
            if self.gone_for_a_person:
                return STOPPED if self.account.gave_up == 0 else WAITING
            return {"restore": RESTORE, "start": STARTUP, "survey": OTHER}.get(doing, WAITING)
        if job.exit is not None or job.is_blocked:
            return DETECTION
        if job.phase in ("load", "resume"):
            return STARTUP
        return SAVE if job.phase == "checkpoint" else PRODUCTIVE

    def step_done(self, step: int) -> None:
        self.account.step_done(self.clock.now, step)

    def job_over(self, job: Job) -> None:
        self.account.abandon_step(self.clock.now)
        self.recount()
