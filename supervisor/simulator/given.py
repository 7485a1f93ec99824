"""What every other policy is given for free, so that a comparison is of detection and recovery alone.

The tools that we compare with do not know checkpoints: they would start the job with the command of the first time.
Here each gets our publishing, our pruning, an explicit resume step, a restore of the highest good step on a fresh pod,
a clean stop of what is left of the job, and the same replacement pods. After ten restarts without a new checkpoint it
even gets a person's help at once: another pod where the driver has lost a GPU, else one step back, since the originals
would crash at a poisoned step for ever and be out of any comparison. What differs is when it restarts, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.simulator.policy import FOREVER

LOOK_AGAIN_S = 20.0
STALE_AGAIN_S = 600.0
HELPED_AFTER = 10
LEAVE_S = 60.0
EXIT_OK, EXIT_PERSON, EXIT_UNFIT = 0, 93, 94

Stage = Literal["idle", "surveying", "restoring", "starting", "live", "stopping", "waiting", "leaving", "over"]


class Given:
    """Keeps a job at its last good step, and leaves it to a subclass to say when it has failed (``reason_to_restart``).

    ``restart_delay_s``: pause between the end of the job and its next start. Restarts have no limit and no back-off,
    unless the original gives up (``gives_up``): then a person is called, as the core's exit code 93 calls one.
    """

    name = "given"
    omniscient = False
    tier = False
    restart_delay_s = 0.0
    retry_s, publish_retry_cap_s = 30.0, 600.0

    def __init__(self) -> None:
        self.t = 0.0
        self.wall = 0.0
        self.settings = f.Settings(run_id="")
        self.stage: Stage = "idle"
        self.wanted = True
        self.attempt = 0
        self.started = 0.0  # when the living attempt was launched
        self.step: int | None = None  # its last trainer step
        self.step_t: float | None = None
        self.ended: f.ComponentExited | None = None
        self.resume_step: int | None = None
        self.wait_until = FOREVER  # of the stages that wait for nothing but time
        self._local: dict[int, f.LocalStep] | None = None
        self._stored: dict[int, f.StoredStep] | None = None
        self._latest: int | None = None
        self._damaged: set[int] = set()
        self._bad: set[int] = set()  # local steps that are not resumed from, until they are reached anew
        self._bad_stored: set[int] = set()  # the store's, until they are published anew
        self._skip_newest = False
        self._leaves_pod = False
        self._lost_gpu = ""
        self._barren = 0  # restarts since the last new complete step
        self._best = -1  # that step
        self._settled = False
        self._listed = False
        self._disk: f.DiskLook | None = None
        self._publishing: int | None = None
        self._publish_after = 0.0
        self._publish_wait = 0.0
        self._pruning = False
        self._pruning_store = False
        self._stale_after = 0.0

    # ------------------------------------------------------------ what a subclass says

    def reason_to_restart(self) -> str:
        """Why the living job has to be restarted now; empty while this policy sees nothing wrong."""
        return ""

    def look_at(self) -> float:
        """When ``reason_to_restart`` is to be asked again although nothing was observed."""
        return FOREVER

    def gives_up(self) -> bool:
        """Asked before each restart: does the original stop trying now?"""
        return False

    def notice_fact(self, fact: f.Fact) -> None:
        """Any fact, before it is acted upon."""

    def learn_fault(self, t: float, fault: str) -> None:
        raise NotImplementedError(f"{self.name} is told of no fault")

    # ------------------------------------------------------------ the policy's entrance

    def see(self, observation: f.Observation) -> tuple[Sequence[a.Action], float]:
        """As ``Policy.see``."""
        self.t, self.wall = observation.t, observation.wall
        self.notice_fact(observation.fact)
        acts = self._learn_fact(observation.fact)
        acts += self._act_in_stage()
        acts += self._keep_house()
        return acts, self._next_deadline()

    # ------------------------------------------------------------ facts

    def _learn_fact(self, fact: f.Fact) -> list[a.Action]:
        match fact:
            case f.DaemonStarted():
                return self._learn_boot(fact)
            case f.Command(verb="shutdown" | "stop"):
                return self._told_to_stop()
            case f.Command(verb="start" | "restart") if self.stage in ("idle", "over"):
                self.wanted = True
                return self._begin_survey()
            case f.LocalSteps():
                if not fact.reason:
                    self._local = {s.step: s for s in fact.steps}
                    self._count_new()
                    self._settled = self._settled or fact.settled
            case f.StoreSteps():
                self._stored = None if fact.reason else {s.step: s for s in fact.steps if s.committed}
                self._latest = self._latest if fact.reason else fact.latest
                self._listed = True
            case f.AttemptStarted() if fact.attempt == self.attempt and self.stage == "starting":
                self.stage, self.started = "live", self.t
            case f.StartFailed() if fact.attempt == self.attempt and self.stage == "starting":
                self.stage, self.wait_until = "waiting", self.t + self.retry_s
                if fact.unfit or fact.permanent:
                    return self._exit_with(EXIT_UNFIT, fact.reason)
            case f.StepDone(role="trainer" | "job") if self.stage == "live":
                self.step, self.step_t = fact.step, self.t
                self._bad.discard(fact.step)
            case f.ComponentExited() if fact.attempt == self.attempt:
                self.ended = fact
            case f.AttemptStopped() if fact.attempt == self.attempt and self.stage == "stopping":
                return self._after_stop(fact)
            case f.Restored() if self.stage == "restoring":
                return self._start_at(fact.step)
            case f.RestoreFailed() if self.stage == "restoring":
                self._damaged |= {fact.step} if fact.damaged else set()
                self.stage, self.wait_until = "waiting", self.t + (0.0 if fact.damaged else self.retry_s)
            case _:
                self._housekeeper_learns(fact)
        return []

    def _housekeeper_learns(self, fact: f.Fact) -> None:
        match fact:
            case f.GpuLook() if not fact.reason:
                self._lost_gpu = ", ".join(fact.lost)
            case f.DiskLook() if fact.free_bytes is not None:
                self._disk = fact
            case f.Published():
                self._publishing, self._publish_wait = None, 0.0
                if self._stored is not None:
                    self._stored[fact.step] = f.StoredStep(fact.step, True, fact.size_bytes)
                self._latest = fact.step
                self._bad_stored.discard(fact.step)
                self._damaged.discard(fact.step)
            case f.PublishFailed():
                first = self.settings.publish_retry_s
                self._publish_wait = min(self.publish_retry_cap_s, 2 * self._publish_wait or first)
                self._publishing = None
                self._publish_after = self.t + (0.0 if fact.step_changed else self._publish_wait)
                if fact.step_changed and self._local is not None:
                    self._local.pop(fact.step, None)
            case f.Pruned() | f.PruneFailed():
                known = self._local if fact.where == "local" else self._stored
                if known is not None and isinstance(fact, f.Pruned):
                    known.pop(fact.step, None)
                if fact.where == "local":
                    self._pruning = False
                else:
                    self._pruning_store = False
            case f.EffectCrashed():
                self._publishing, self._pruning, self._pruning_store = None, False, False

    def _learn_boot(self, fact: f.DaemonStarted) -> list[a.Action]:
        self.settings, self.wanted = fact.settings, True
        self._publishing, self._pruning, self._pruning_store = None, False, False
        if fact.adopted is not None and fact.adopted == self.attempt and self.stage in ("live", "starting"):
            self.stage = "live"
            return [a.Survey()]
        if fact.adopted is not None:
            self.attempt = max(self.attempt, fact.adopted)
            return self._stop_job("The daemon before left it while it was stopping it.")
        return self._begin_survey()

    def _told_to_stop(self) -> list[a.Action]:
        self.wanted = False
        if self.stage == "stopping":
            return []
        if self.stage in ("live", "starting"):
            return self._stop_job("The daemon is told to end.")
        self.stage, self.wait_until = "leaving", self.t + LEAVE_S
        self._settled = self._listed = True
        return []

    def _after_stop(self, fact: f.AttemptStopped) -> list[a.Action]:
        if not self.wanted or self._is_finished():
            self.stage, self.wait_until = "leaving", self.t + LEAVE_S
            self._ask_anew()  # a step that was completed just now is published first
            return [a.Survey()]
        if self._leaves_pod or fact.survivors or fact.gpu_free is False:
            # Given for free as well: a start beside them fails for the same reason for ever.
            return self._exit_with(EXIT_UNFIT, "The pod has to be replaced.")
        self.stage, self.wait_until = "waiting", self.t + self.restart_delay_s
        return []

    # ------------------------------------------------------------ what follows

    def _act_in_stage(self) -> list[a.Action]:
        if self.stage == "live":
            if self._is_finished():
                return self._stop_job("The job finished.")
            reason = self.reason_to_restart()
            if reason and self.gives_up():
                return self._exit_with(EXIT_PERSON, f"{self.name} does not try again: {reason}")
            return self._stop_job(reason) if reason else []
        if self.stage == "surveying" and self._settled and self._listed:
            return self._choose_step()
        if self.stage in ("waiting", "surveying") and self.t >= self.wait_until:
            return self._begin_survey()
        known = self._settled and self._listed
        if self.stage == "leaving" and (self.t >= self.wait_until or (known and self._nothing_to_publish())):
            return self._exit_with(EXIT_OK, "Nothing is left to do.")
        return []

    def _is_finished(self) -> bool:
        ended, last = self.ended, self.settings.max_steps
        return (
            ended is not None
            and ended.exit_code == 0
            and last is not None
            and self.step is not None
            and self.step >= last - 1 + min(1, self.settings.first_step_at)
        )

    def _count_new(self) -> None:
        highest = max((s for s, what in (self._local or {}).items() if what.state == "complete"), default=-1)
        if highest > self._best:
            self._best, self._barren = highest, 0

    def _begin_survey(self) -> list[a.Action]:
        self.stage, self.wait_until = "surveying", self.t + LOOK_AGAIN_S
        self._ask_anew()
        return [a.Survey()]

    def _ask_anew(self) -> None:
        # A store that was listed a moment ago is not listed again: what is known of it then counts.
        self._settled, self._listed = False, self._stored is not None

    def good_steps(self) -> list[int]:
        """Steps that may be resumed from, here or in the store, ascending."""
        return sorted(self._good_here() | self._good_there())

    def _good_here(self) -> set[int]:
        return {step for step, local in (self._local or {}).items() if local.state == "complete"} - self._bad

    def _good_there(self) -> set[int]:
        return set(self._stored or {}) - self._damaged - self._bad_stored

    def one_step_back(self) -> None:
        """The next start is not at the newest good step but at the one before."""
        self._skip_newest = True

    def another_pod(self) -> None:
        """What runs here is stopped, and the run goes on elsewhere."""
        self._leaves_pod = True

    def _choose_step(self) -> list[a.Action]:
        if self._barren > HELPED_AFTER and self._lost_gpu:
            return self._exit_with(EXIT_UNFIT, f"A person sends the run elsewhere: {self._lost_gpu}.")
        good = self.good_steps()
        if (self._skip_newest or self._barren > HELPED_AFTER) and len(good) > 1:
            self._bad.add(good[-1])
            self._bad_stored.add(good[-1])
            self._barren, self._best = 0, -1
            good.pop()
        self._skip_newest = False
        here = self._good_here()
        if self._stored is None and not here:
            self._ask_anew()  # asked again when ``wait_until`` passed: never a silent fresh start
            return []
        if not good:
            return self._start_at(None)
        if good[-1] in here:
            return self._start_at(good[-1])
        self.stage = "restoring"
        return [a.Restore(good[-1])]

    def _start_at(self, step: int | None) -> list[a.Action]:
        self.attempt += 1
        self._barren += 1
        self.stage, self.resume_step, self.started = "starting", step, self.t
        self.step, self.step_t, self.ended = None, None, None
        return [a.Start(self.attempt, step, None, fresh=step is None)]

    def _stop_job(self, reason: str) -> list[a.Action]:
        self.stage = "stopping"
        verdict = a.Say("error", "verdict", reason)
        return [verdict, a.Stop(self.attempt, reason, self.settings.stop_budget_s)]

    def _exit_with(self, code: int, reason: str) -> list[a.Action]:
        self.stage = "over"
        return [a.Exit(code, reason)]

    # ------------------------------------------------------------ publishing and pruning, as the core does it

    def _newest_unpublished(self) -> int | None:
        newest = max(self._good_here(), default=None)
        if newest is None or self._stored is None:
            return None
        return newest if newest > max(self._good_there(), default=-1) else None

    def _nothing_to_publish(self) -> bool:
        return self._publishing is None and self._newest_unpublished() is None

    def _keep_house(self) -> list[a.Action]:
        if self.stage == "over":
            return []
        acts: list[a.Action] = []
        step = self._newest_unpublished()
        if self._publishing is None and step is not None and self.t >= self._publish_after:
            self._publishing = step
            acts.append(a.Publish(step, back=self._latest in self._bad_stored))
        if not self._pruning and self._too_full():
            acts += self._prune_oldest()
        stored = sorted(self._good_there())
        victims = [s for s in stored[: -max(2, self.settings.keep_last)] if s not in (self._latest, self.resume_step)]
        if victims and self._publishing is None and not self._pruning_store:
            self._pruning_store = True
            acts.append(a.PruneStore(victims[0]))
        return acts

    def _too_full(self) -> bool:
        disk = self._disk
        if disk is None or not disk.total_bytes or disk.free_bytes is None:
            return False
        used = 1 - disk.free_bytes / disk.total_bytes
        return used > self.settings.prune_above or disk.free_bytes < self.settings.stop_below_bytes

    def _prune_oldest(self) -> list[a.Action]:
        local, stored = self._local or {}, self._good_there()
        newest_stored, good = max(stored, default=-1), sorted(s for s, w in local.items() if w.state == "complete")
        critical = self._disk is not None and (self._disk.free_bytes or 0) < self.settings.stop_below_bytes
        kept = set(good[-(1 if critical else self.settings.keep_local) :]) | {self._publishing}
        if self.step is None:
            kept.add(self.resume_step)  # a job that is loading it still reads it
        last = max(good, default=-1)
        safe = [
            step
            for step, what in sorted(local.items())
            if step not in kept
            and (step in stored or step < newest_stored)
            and (what.state == "complete" or step < last)
        ]
        self._pruning = bool(safe) or self.t >= self._stale_after
        if self.t >= self._stale_after:
            self._stale_after = self.t + STALE_AGAIN_S
            return [a.PruneStale(min((s for s in local if s not in safe), default=0))]
        return [a.PruneLocal(safe[0])] if safe else []

    # ------------------------------------------------------------ time

    def _next_deadline(self) -> float:
        wake = FOREVER
        if self.stage == "live":
            wake = self.look_at()
        elif self.stage in ("waiting", "surveying", "leaving"):
            wake = self.wait_until
        if self._publishing is None and self._publish_after > self.t and self._newest_unpublished() is not None:
            wake = min(wake, self._publish_after)
        return wake
