"""Carry out a policy's actions in the virtual pod, with the durations of the real effects, and report what came of it.

One lane a kind, as in the daemon (start, stop and evidence share one, in order). An action that this module does not
know is an error at once: a policy must never believe that something was done which was not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.choose import STORE_FRESH_S
from supervisor.core.observe_only import held_back
from supervisor.simulator.clockwork import Event, Owner
from supervisor.simulator.job import COMMAND
from supervisor.simulator.link import Checkpoint, Transfer
from supervisor.simulator.pod import Folder
from supervisor.simulator.sensing import local_steps

if TYPE_CHECKING:
    from supervisor.simulator.attendant import Attendant

CATALOGUE_S, CATALOGUE_AGAIN_S = 900.0, 60.0  # between two listings, and after one that failed
OBSERVING = "The run is only observed (recovery.mode = observe)."
NO_STORE = "the store did not answer: 503 service unavailable."
Work = Generator[float | None, bool | None, f.Fact | Callable[[], f.Fact] | None]
"""Something that a lane does. It yields the seconds that it takes, or None where a transfer ends its wait, and hears
whether all of that moved. It returns the fact to tell; a call is made for the fact when the lane has gone on.
"""


class Hands(Owner):
    """The effects of one daemon."""

    def __init__(self, attendant: Attendant) -> None:
        self.attendant, self.pod, self.world = attendant, attendant.pod, attendant.world
        self.clock = attendant.pod.clock
        self.observe = attendant.settings.mode == "observe"
        self.busy_with = ""  # for the ledger: "stop", "start", "restore", "survey" or ""
        self._lanes: dict[str, list[Work]] = {}
        self._transfers: list[Transfer] = []
        self._catalogue_t = -STORE_FRESH_S
        self._listing = False
        self._next_listing: Event | None = None
        self._told_records = False

    # ------------------------------------------------------------ dispatch

    def do(self, action: a.Action) -> None:
        """Queue one action. Raises NotImplementedError for one that is not known here."""
        if self.observe and (suppressed := held_back(action, OBSERVING)) is not None:
            self.clock.after(0.01, lambda: self._tell_fact(suppressed), self)
            return
        match action:
            case a.Say():
                self.world.keep_sentence(action)
            case a.Exit():
                self.world.daemon_exits(action.code, action.reason)
            case a.Survey():
                self._queue_work("scan", self._scan_disk())
                self.catalogue()
            case a.Start():
                self._queue_work("job", self._start_job(action))
            case a.Stop():
                self.world.policy_stops(action.reason)
                self._queue_work("job", self._stop_job(action))
            case a.CollectEvidence():
                self._queue_work("job", self._keep_evidence())
            case a.Publish():
                self._queue_work("publish", self._publish_step(action))
            case a.Restore():
                self._queue_work("restore", self._restore_step(action))
            case a.PruneLocal():
                self._queue_work("prune", self._prune_local(action.step))
            case a.PruneStale():
                self._queue_work("prune", self._prune_stale())
            case a.PruneStore():
                self._queue_work("prune-store", self._prune_store(action.step))
            case a.KeepRecords():
                self._queue_work("records", self._keep_records(action))
            case a.KeepLineage():
                self._queue_work("publish", self._tell_after(1.0, f.LineageKept(len(action.happened))))
            case a.KeepHolds():
                self._queue_work("pin", self._keep_holds(action))
            case a.RunHook():
                self._queue_work("hook", self._tell_after(1.0, f.HookDone(action.hook)))
            case a.Setup():
                self._queue_work("setup", self._tell_after(60.0, f.SetupDone()))
            case _:
                raise NotImplementedError(f"the virtual pod has no hands for {type(action).__name__}: {action}")

    def _queue_work(self, lane: str, work: Work) -> None:
        waiting = self._lanes.setdefault(lane, [])
        waiting.append(work)
        if len(waiting) == 1:
            self._go_on(lane)

    def _go_on(self, lane: str, whole: bool | None = None) -> None:
        """Let a lane's first work go on until it waits, or ends: then the next one begins before the fact is told."""
        waiting = self._lanes[lane]
        try:
            seconds = waiting[0].send(whole)
        except StopIteration as end:
            told = end.value
        else:
            if seconds is not None:
                self.clock.after(seconds, lambda: self._go_on(lane), self)
            return
        waiting.pop(0)
        if waiting:
            self._go_on(lane)
        fact = told() if callable(told) else told
        if fact is not None:
            self._tell_fact(fact)

    def _draw_between(self, low: float, high: float) -> float:
        return self.pod.chance.between_at(self.clock.now, low, high, f"{low}-{high}")

    def _tell_fact(self, fact: f.Fact) -> None:
        self.attendant.see(fact, "effects")

    @staticmethod
    def _tell_after(seconds: float, fact: f.Fact) -> Work:
        yield seconds
        return fact

    def _set_busy(self, what: str) -> None:
        self.busy_with = what
        self.world.recount()

    # ------------------------------------------------------------ looking

    def _scan_disk(self) -> Work:
        self._set_busy(self.busy_with or "survey")
        yield self._draw_between(0.3, 1.5)
        if self.busy_with == "survey":
            self._set_busy("")
        return local_steps(self.pod, settled=True)

    def catalogue(self, *, force: bool = False) -> None:
        """List the store, unless that was done a moment ago."""
        if self._listing or (not force and self.clock.now - self._catalogue_t < STORE_FRESH_S):
            return
        self._listing = True
        seconds = self._draw_between(20.0, 60.0) if self._is_store_down() else self._draw_between(0.5, 3.0)
        self.clock.after(seconds, self._tell_listing, self)

    def _tell_listing(self) -> None:
        self._listing = False
        store, down = self.pod.store, self._is_store_down()
        again_s = CATALOGUE_AGAIN_S if down else CATALOGUE_S
        if self._next_listing is not None:
            self._next_listing.cancel()
        self._next_listing = self.clock.after(again_s, lambda: self.catalogue(force=True), self)
        if down:
            self._catalogue_t = -STORE_FRESH_S
            self._tell_fact(f.StoreSteps(reason=NO_STORE))
            return
        self._catalogue_t = self.clock.now
        if not self._told_records and (store.learned is not None or store.ledgers):
            self._told_records = True
            self._tell_fact(f.StoreRecords(store.learned, dict(store.ledgers)))
        steps = tuple(f.StoredStep(step, True, c.size_bytes) for step, c in sorted(store.steps.items()))
        self._tell_fact(f.StoreSteps(steps, store.latest, held=store.held, holds=store.holds))

    # ------------------------------------------------------------ the job

    def _keep_evidence(self) -> Work:
        yield self._draw_between(0.5, 2.0)
        return None

    def _start_job(self, action: a.Start) -> Work:
        self._set_busy("start")
        yield self._draw_between(1.0, 4.0)
        self._set_busy("")
        return lambda: self._launch_job(action)

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

    def _stop_job(self, action: a.Stop) -> Work:
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
        yield seconds
        self.pod.end_job()
        self._set_busy("")
        return f.AttemptStopped(action.attempt, seconds, gpu_free=None if self.pod.nvml_hangs else back)

    # ------------------------------------------------------------ checkpoints

    def _publish_step(self, action: a.Publish) -> Work:
        pod, step, began = self.pod, action.step, self.clock.now
        folder = pod.folders.get(step)
        if folder is None or folder.state != "complete":
            yield self._draw_between(0.5, 2.0)
            return f.PublishFailed(step, f"step {step} is no longer complete.", step_changed=True)
        size, key = folder.checkpoint.size_bytes, (step, folder.changed)
        left = max(0.0, size - self.attendant.sent_bytes.get(key, 0.0))
        transfer = self._begin_transfer(left, "publish")
        whole = yield None
        self.attendant.sent_bytes[key] = size - transfer.left
        if not whole:
            return f.PublishFailed(step, f"nothing moved for 120 s, {transfer.left / 1e9:.1f} GB are left.")
        if pod.folders.get(step) is not folder:
            return f.PublishFailed(step, f"step {step} vanished under the transfer.", step_changed=True)
        yield self._draw_between(2.0, 6.0)
        if self._is_store_down():
            return f.PublishFailed(step, "the manifest could not be written: 503 service unavailable.")
        pod.store.steps[step] = folder.checkpoint
        pod.store.latest = step
        return f.Published(step, size, self.clock.now - began, int(left))

    def _restore_step(self, action: a.Restore) -> Work:
        self._set_busy("restore")
        fact = yield from self._download_step(action.step)
        self._set_busy("")
        return fact

    def _download_step(self, step: int) -> Work:
        pod, began = self.pod, self.clock.now
        stored = pod.store.steps.get(step)
        if self._is_store_down() or stored is None:
            reason = "the store did not answer." if stored is not None else f"step {step} is not in the store."
            yield self._draw_between(5.0, 30.0)
            return f.RestoreFailed(step, reason, damaged=stored is None)
        key, size = (step, -1.0), stored.size_bytes
        transfer = self._begin_transfer(max(0.0, size - self.attendant.sent_bytes.get(key, 0.0)), "restore")
        whole = yield None
        self.attendant.sent_bytes[key] = size - transfer.left
        if not whole:
            return f.RestoreFailed(step, f"nothing moved for 120 s, {transfer.left / 1e9:.1f} GB are left.")
        if stored.damaged:
            return f.RestoreFailed(step, "a part has another hash than the manifest says.", damaged=True)
        if pod.disk_free() < size and step not in pod.folders:
            return f.RestoreFailed(step, "No space left on device.")
        self.attendant.sent_bytes.pop(key, None)
        pod.folders[step] = Folder(stored, "complete", self.clock.now, size)
        pod.watcher.steps_changed()
        return f.Restored(step, size, self.clock.now - began)

    def _begin_transfer(self, left: float, lane: str) -> Transfer:
        def go_on_if_alive(whole: bool) -> None:
            if self.alive:
                self._go_on(lane, whole)

        transfer = self.pod.link.begin(left, go_on_if_alive)
        self._transfers.append(transfer)
        return transfer

    def _prune_local(self, step: int) -> Work:
        yield self._draw_between(1.0, 6.0)
        folder = self.pod.folders.get(step)
        if folder is not None and folder.state == "writing":
            return f.PruneFailed(step, "local", f"step {step} is being written.")
        freed = int(self.pod.folders.pop(step).written_bytes) if folder is not None else 0
        self.pod.watcher.steps_changed()
        return f.Pruned(step, "local", freed)

    def _prune_stale(self) -> Work:
        yield self._draw_between(0.5, 3.0)
        freed, self.pod.aside_bytes = int(self.pod.aside_bytes), 0.0
        self.pod.watcher.disk_changed()
        return f.Pruned(-1, "local", freed)

    def _prune_store(self, step: int) -> Work:
        yield self._draw_between(1.0, 4.0)
        if self._is_store_down():
            return f.PruneFailed(step, "store", NO_STORE)
        gone: Checkpoint | None = self.pod.store.steps.pop(step, None)
        return f.Pruned(step, "store", gone.size_bytes if gone else 0)

    def _keep_records(self, action: a.KeepRecords) -> Work:
        yield self._draw_between(0.5, 2.0)
        if not self._is_store_down():
            self.pod.store.learned = action.learned
            self.pod.store.ledgers[action.journal] = action.ledger
        return None

    def _keep_holds(self, action: a.KeepHolds) -> Work:
        yield self._draw_between(0.5, 2.0)
        if self._is_store_down():
            return f.HoldsKept(action.steps, action.holds, "the store did not answer.")
        self.pod.store.held, self.pod.store.holds = action.steps, action.holds
        return f.HoldsKept(action.steps, action.holds)

    def _is_store_down(self) -> bool:
        return self.clock.now < self.pod.store.down_until

    def close(self) -> None:
        """The daemon ends: transfers stop where they are, and resume there."""
        self.alive = False
        for transfer in self._transfers:
            self.pod.link.drop(transfer)
        self._transfers.clear()
