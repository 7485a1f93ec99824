"""Carry out a policy's actions in the virtual pod, with the durations of the real effects, and report what came of it.

One lane a kind, as in the daemon (start, stop and evidence share one, in order). An action that this module does not
know is an error at once: a policy must never believe that something was done which was not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.choose import STORE_FRESH_S
from supervisor.simulator.clockwork import Event, Owner
from supervisor.simulator.job import COMMAND
from supervisor.simulator.link import Checkpoint, Transfer
from supervisor.simulator.pod import Folder
from supervisor.simulator.sensing import local_steps

if TYPE_CHECKING:
    from supervisor.simulator.attendant import Attendant

CATALOGUE_S, CATALOGUE_AGAIN_S = 900.0, 60.0  # between two listings, and after one that failed
SUPPRESSED = (a.Start, a.Stop, a.PruneLocal, a.PruneStore, a.PruneStale, a.Restore, a.StartEngine, a.StopEngine)
OBSERVING = "The run is only observed (recovery.mode = observe)."
Work = Callable[[Callable[[], None]], None]
"""Something that a lane does; it calls what it is given when it is done."""


class Hands(Owner):
    """The effects of one daemon."""

    def __init__(self, attendant: Attendant) -> None:
        self.attendant, self.pod, self.world = attendant, attendant.pod, attendant.world
        self.clock = attendant.pod.clock
        self.observe = attendant.settings.mode == "observe"
        self.busy_with = ""  # for the ledger: "stop", "start", "restore", "survey" or ""
        self._lanes: dict[str, list[Work]] = {}
        self._catalogue_t = -STORE_FRESH_S
        self._listing = False
        self._next_listing: Event | None = None
        self._told_records = False

    # ------------------------------------------------------------ dispatch

    def do(self, action: a.Action) -> None:
        """Queue one action. Raises NotImplementedError for one that is not known here."""
        if self.observe and isinstance(action, SUPPRESSED):
            number = next(
                (getattr(action, n) for n in ("attempt", "step", "engine", "below") if hasattr(action, n)), None
            )
            fact = f.Suppressed(type(action).__name__, number, OBSERVING)
            self.clock.after(0.01, lambda: self._tell_fact(fact), self)
            return
        match action:
            case a.Say():
                self.world.keep_sentence(action)
            case a.Exit():
                self.world.daemon_exits(action.code, action.reason)
            case a.Survey():
                self._queue_work("scan", self._scan_disk)
                self.catalogue()
            case a.Start():
                self._queue_work("job", lambda done: self._start_job(action, done))
            case a.Stop():
                self.world.policy_stops(action.reason)
                self._queue_work("job", lambda done: self._stop_job(action, done))
            case a.CollectEvidence():
                self._queue_work("job", lambda done: self._call_in(self._draw_between(0.5, 2.0), done))
            case a.Publish():
                self._queue_work("publish", lambda done: self._publish_step(action, done))
            case a.Restore():
                self._queue_work("restore", lambda done: self._restore_step(action, done))
            case a.PruneLocal():
                self._queue_work("prune", lambda done: self._prune_local(action.step, done))
            case a.PruneStale():
                self._queue_work("prune", self._prune_stale)
            case a.PruneStore():
                self._queue_work("prune-store", lambda done: self._prune_store(action.step, done))
            case a.KeepRecords():
                self._queue_work("records", lambda done: self._keep_records(action, done))
            case a.KeepLineage():
                self._queue_work(
                    "publish", lambda done: self._tell_after(1.0, f.LineageKept(len(action.happened)), done)
                )
            case a.KeepHolds():
                self._queue_work("pin", lambda done: self._keep_holds(action, done))
            case a.RunHook():
                self._queue_work("hook", lambda done: self._tell_after(1.0, f.HookDone(action.hook), done))
            case a.Setup():
                self._queue_work("setup", lambda done: self._tell_after(60.0, f.SetupDone(), done))
            case _:
                raise NotImplementedError(f"the virtual pod has no hands for {type(action).__name__}: {action}")

    def _queue_work(self, lane: str, work: Work) -> None:
        waiting = self._lanes.setdefault(lane, [])
        waiting.append(work)
        if len(waiting) == 1:
            self._begin_next(lane)

    def _begin_next(self, lane: str) -> None:
        waiting = self._lanes[lane]
        if waiting:
            waiting[0](lambda: self._end_work(lane))

    def _end_work(self, lane: str) -> None:
        self._lanes[lane].pop(0)
        self._begin_next(lane)

    def _draw_between(self, low: float, high: float) -> float:
        return self.pod.chance.between_at(self.clock.now, low, high, f"{low}-{high}")

    def _call_in(self, seconds: float, call: Callable[[], None]) -> None:
        self.clock.after(seconds, call, self)

    def _tell_fact(self, fact: f.Fact) -> None:
        self.attendant.see(fact, "effects")

    def _tell_after(self, seconds: float, fact: f.Fact, done: Callable[[], None]) -> None:
        def end() -> None:
            done()
            self._tell_fact(fact)

        self._call_in(seconds, end)

    def _set_busy(self, what: str) -> None:
        self.busy_with = what
        self.world.recount()

    # ------------------------------------------------------------ looking

    def _scan_disk(self, done: Callable[[], None]) -> None:
        self._set_busy(self.busy_with or "survey")

        def end() -> None:
            if self.busy_with == "survey":
                self._set_busy("")
            done()
            self._tell_fact(local_steps(self.pod, settled=True))

        self._call_in(self._draw_between(0.3, 1.5), end)

    def catalogue(self, *, force: bool = False) -> None:
        """List the store, unless that was done a moment ago."""
        if self._listing or (not force and self.clock.now - self._catalogue_t < STORE_FRESH_S):
            return
        self._listing = True
        down = self.clock.now < self.pod.store.down_until
        self._call_in(self._draw_between(20.0, 60.0) if down else self._draw_between(0.5, 3.0), self._tell_listing)

    def _tell_listing(self) -> None:
        self._listing = False
        store = self.pod.store
        again_s = CATALOGUE_AGAIN_S if store_down(self) else CATALOGUE_S
        if self._next_listing is not None:
            self._next_listing.cancel()
        self._next_listing = self.clock.after(again_s, lambda: self.catalogue(force=True), self)
        if self.clock.now < store.down_until:
            self._catalogue_t = -STORE_FRESH_S
            self._tell_fact(f.StoreSteps(reason="the store did not answer: 503 service unavailable."))
            return
        self._catalogue_t = self.clock.now
        if not self._told_records and (store.learned is not None or store.ledgers):
            self._told_records = True
            self._tell_fact(f.StoreRecords(store.learned, dict(store.ledgers)))
        steps = tuple(f.StoredStep(step, True, c.size_bytes) for step, c in sorted(store.steps.items()))
        self._tell_fact(f.StoreSteps(steps, store.latest, held=store.held, holds=store.holds))

    # ------------------------------------------------------------ the job

    def _start_job(self, action: a.Start, done: Callable[[], None]) -> None:
        self._set_busy("start")

        def end() -> None:
            self._set_busy("")
            done()
            fact = self._launch_job(action)
            self._tell_fact(fact)

        self._call_in(self._draw_between(1.0, 4.0), end)

    def _launch_job(self, action: a.Start) -> f.Fact:
        pod, step = self.pod, action.step
        folder = pod.folders.get(step) if step is not None else None
        if step is not None and (folder is None or folder.state != "complete"):
            return f.StartFailed(action.attempt, f"Step {step} is no longer complete.")
        if step is None and pod.folders and not action.fresh:
            return f.StartFailed(action.attempt, "There are step folders, and a fresh start was not asked for.")
        if pod.job is not None:
            self.world.policy_stops("a start while the job lives")
            pod.end_job()
        pod.set_aside_above(step)
        self.world.policy_starts(step)
        job = pod.launch(action.attempt, step, action.interval)
        return f.AttemptStarted(action.attempt, step, job.processes[0].pid, COMMAND)

    def _stop_job(self, action: a.Stop, done: Callable[[], None]) -> None:
        job = self.pod.job
        self._set_busy("stop")
        seconds = self._draw_between(3.0, 12.0)
        if job is None or job.exit is not None:
            seconds = self._draw_between(0.5, 2.0)  # only what is left has to be looked for
        elif job.hung_for_good:
            seconds += 5.0 if action.at_once else 60.0  # it does not listen: SIGKILL after the era's patience
        # A stop waits for the GPU memory of what it ended, within its budget, as the daemon's does.
        late = self.pod.slow_stop_s + self.pod.memory_stays_s
        self.pod.slow_stop_s = self.pod.memory_stays_s = 0.0
        back = seconds + late <= action.budget_s
        seconds = min(seconds + late, action.budget_s)

        def end() -> None:
            self.pod.end_job()
            self._set_busy("")
            done()
            self._tell_fact(f.AttemptStopped(action.attempt, seconds, gpu_free=None if self.pod.nvml_hangs else back))

        self._call_in(seconds, end)

    # ------------------------------------------------------------ checkpoints

    def _publish_step(self, action: a.Publish, done: Callable[[], None]) -> None:
        pod, step, began = self.pod, action.step, self.clock.now
        folder = pod.folders.get(step)
        if folder is None or folder.state != "complete":
            failed = f.PublishFailed(step, f"step {step} is no longer complete.", step_changed=True)
            self._tell_after(self._draw_between(0.5, 2.0), failed, done)
            return
        sent = self.attendant.sent_bytes.get((step, folder.changed), 0.0)
        left = max(0.0, folder.checkpoint.size_bytes - sent)

        def end_transfer(whole: bool) -> None:
            self.attendant.sent_bytes[step, folder.changed] = folder.checkpoint.size_bytes - transfer.left
            if not whole:
                done()
                self._tell_fact(
                    f.PublishFailed(step, f"nothing moved for 120 s, {transfer.left / 1e9:.1f} GB are left.")
                )
            elif pod.folders.get(step) is not folder:
                done()
                self._tell_fact(f.PublishFailed(step, f"step {step} vanished under the transfer.", step_changed=True))
            else:
                self._call_in(self._draw_between(2.0, 6.0), confirm)

        def confirm() -> None:
            done()
            if self.clock.now < pod.store.down_until:
                self._tell_fact(f.PublishFailed(step, "the manifest could not be written: 503 service unavailable."))
                return
            pod.store.steps[step] = folder.checkpoint
            pod.store.latest = step
            self._tell_fact(f.Published(step, folder.checkpoint.size_bytes, self.clock.now - began, int(left)))

        transfer = self._begin_transfer(left, end_transfer)

    def _restore_step(self, action: a.Restore, done: Callable[[], None]) -> None:
        pod, step, began = self.pod, action.step, self.clock.now
        stored = pod.store.steps.get(step)
        self._set_busy("restore")

        def fail(reason: str, *, damaged: bool = False) -> None:
            self._set_busy("")
            done()
            self._tell_fact(f.RestoreFailed(step, reason, damaged=damaged))

        if store_down(self) or stored is None:
            reason = "the store did not answer." if stored is not None else f"step {step} is not in the store."
            self._call_in(self._draw_between(5.0, 30.0), lambda: fail(reason, damaged=stored is None))
            return
        key = (step, -1.0)
        size = stored.size_bytes
        left = max(0.0, size - self.attendant.sent_bytes.get(key, 0.0))

        def end_transfer(whole: bool) -> None:
            self.attendant.sent_bytes[key] = size - transfer.left
            if not whole:
                fail(f"nothing moved for 120 s, {transfer.left / 1e9:.1f} GB are left.")
            elif stored.damaged:
                fail("a part has another hash than the manifest says.", damaged=True)
            elif pod.disk_free() < size and step not in pod.folders:
                fail("No space left on device.")
            else:
                self._set_busy("")
                done()
                self.attendant.sent_bytes.pop(key, None)
                pod.folders[step] = Folder(stored, "complete", self.clock.now, size)
                pod.watcher.steps_changed()
                self._tell_fact(f.Restored(step, size, self.clock.now - began))

        transfer = self._begin_transfer(left, end_transfer)

    def _begin_transfer(self, left: float, end_transfer: Callable[[bool], None]) -> Transfer:
        def if_alive(whole: bool) -> None:
            if self.alive:
                end_transfer(whole)

        transfer = self.pod.link.begin(left, if_alive)
        self.attendant.transfers.append(transfer)
        return transfer

    def _prune_local(self, step: int, done: Callable[[], None]) -> None:
        def end() -> None:
            folder = self.pod.folders.get(step)
            done()
            if folder is not None and folder.state == "writing":
                self._tell_fact(f.PruneFailed(step, "local", f"step {step} is being written."))
                return
            freed = int(self.pod.folders.pop(step).written_bytes) if folder is not None else 0
            self.pod.watcher.steps_changed()
            self._tell_fact(f.Pruned(step, "local", freed))

        self._call_in(self._draw_between(1.0, 6.0), end)

    def _prune_stale(self, done: Callable[[], None]) -> None:
        def end() -> None:
            freed, self.pod.aside_bytes = int(self.pod.aside_bytes), 0.0
            self.pod.watcher.disk_changed()
            done()
            self._tell_fact(f.Pruned(-1, "local", freed))

        self._call_in(self._draw_between(0.5, 3.0), end)

    def _prune_store(self, step: int, done: Callable[[], None]) -> None:
        def end() -> None:
            done()
            if store_down(self):
                self._tell_fact(f.PruneFailed(step, "store", "the store did not answer: 503 service unavailable."))
                return
            gone: Checkpoint | None = self.pod.store.steps.pop(step, None)
            self._tell_fact(f.Pruned(step, "store", gone.size_bytes if gone else 0))

        self._call_in(self._draw_between(1.0, 4.0), end)

    def _keep_records(self, action: a.KeepRecords, done: Callable[[], None]) -> None:
        def end() -> None:
            done()
            if not store_down(self):
                self.pod.store.learned = action.learned
                self.pod.store.ledgers[action.journal] = action.ledger

        self._call_in(self._draw_between(0.5, 2.0), end)

    def _keep_holds(self, action: a.KeepHolds, done: Callable[[], None]) -> None:
        def end() -> None:
            done()
            if store_down(self):
                self._tell_fact(f.HoldsKept(action.steps, action.holds, "the store did not answer."))
                return
            self.pod.store.held, self.pod.store.holds = action.steps, action.holds
            self._tell_fact(f.HoldsKept(action.steps, action.holds))

        self._call_in(self._draw_between(0.5, 2.0), end)

    def close(self) -> None:
        """The daemon ends: transfers stop where they are, and resume there."""
        self.alive = False
        for transfer in self.attendant.transfers:
            self.pod.link.drop(transfer)
        self.attendant.transfers.clear()


def store_down(hands: Hands) -> bool:
    """Is the store away now?"""
    return hands.clock.now < hands.pod.store.down_until
