"""Carry out the core's actions, and report what came of each as a fact: here, what concerns this machine.

What concerns the store is in ``store_work``, an inference server of its own in ``own_engine``. One lane a kind (start,
stop and evidence share one, in order). Every action is idempotent: a daemon that died in the middle asks for it again,
and what was done already is found done.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.base.errors import ConfigError, PodUnfitError, SupervisorError, TryAgainError, UnknownDialectError
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core import observe_only
from supervisor.effects import kept_logs, move_aside
from supervisor.effects.before_start import NO_CHECK, BeforeStart
from supervisor.effects.before_stop import wait_for_what_is_kept
from supervisor.effects.incident_evidence import IncidentEvidence
from supervisor.effects.lanes import Lanes
from supervisor.effects.log_upkeep import LogUpkeep
from supervisor.effects.own_engine import OwnEngine
from supervisor.effects.pod_setup import PodSetup, end_commands, forget_early, run_shell
from supervisor.effects.root_cause import RootCause
from supervisor.effects.run_context import RunContext, Sights
from supervisor.effects.store_work import LAST_RECORDS_S, StoreWork
from supervisor.jobs.base import Component, Job, StartRequest
from supervisor.process import ask_program
from supervisor.process.attached import component_names, look_at_component
from supervisor.process.attempts import attempt_dir, describe_full_disk, last_attempt, take_snapshot
from supervisor.process.launch import Launched, launch
from supervisor.process.stop import stop_attempt
from supervisor.process.survivors import Belongings

if TYPE_CHECKING:
    from supervisor.effects.tier import Tier

MOST_NAMED = 12  # folders in a sentence
KEPT = "-whole"  # ending of the set-aside folders that hold complete steps: those are a person's to delete


class Effects:
    """The hands of one daemon."""

    def __init__(self, run: RunContext, sights: Sights, start_check: BeforeStart = NO_CHECK) -> None:
        """``start_check`` is asked before each start."""
        self.run = run
        self._sights = sights
        self._start_check = start_check
        self._lanes = Lanes(lambda lane, error: run.post(f.EffectCrashed(lane, f"{type(error).__name__}: {error}")))
        self._hurry = threading.Event()
        self._unwanted = threading.Event()  # set: the start that is under way is followed by a stop
        self.setup = PodSetup(run)
        kept, quiet_s = run.run_file.logs, run.run_file.supervision.quiet
        self.store = StoreWork(run, sights, self._lanes)
        self.logs = LogUpkeep(
            run.state_dir, kept.keep_attempts, kept.max_mb, quiet_s, lambda told: run.post(f.Remark("logs", told))
        )
        self.engine = OwnEngine(run, sights, self._hurry, start_check)
        self.evidence = IncidentEvidence(run, sights, self._hurry)
        self.root_cause = RootCause(run.post, run.environ)
        self._tier: Tier | None = None
        if run.run_file.tier_dir is not None or (run.state_dir / "tier.json").exists():
            from supervisor.effects.tier import Tier  # of no use to a run that has none

            self._tier = Tier(run, self.store.transfers, sights.peak_memory)

    # ------------------------------------------------------------ dispatch

    def do(self, action: a.Action) -> None:
        """Queue an action; returns at once. Where the run is only observed nothing is touched: ``Suppressed`` comes."""
        why = self.run.observed
        if why and (suppressed := observe_only.held_back(action, why)) is not None:
            if isinstance(action, a.Start):
                self._lanes.put("job", self._start_check.say)
            self.run.post(suppressed)
            return
        match action:
            case a.Survey():
                self._lanes.put("scan", self.scan)
                self.store.catalogue()
            case a.Start():
                self.engine.forget_weights()  # the job hands them over itself, once it is up
                self._unwanted.clear()
                self._lanes.put("job", lambda: self._start_attempt(action))
            case a.StartEngine():
                alone = self._job_runs()  # before a Start that follows has launched anything
                self.engine.unwanted.clear()
                self._lanes.put("engine", lambda: self.engine.start(action, alone=alone))
            case a.StopEngine():
                self.engine.unwanted.set()
                self._lanes.put("engine", lambda: self._stop_engine(action))
            case a.Stop():
                self._hurry.clear()
                self._unwanted.set()
                self._lanes.put("job", lambda: self._stop_attempt(action))
            case a.CollectEvidence():
                collect = self.evidence.take_order(action)
                self.root_cause.expect()
                self._lanes.put("job", lambda: self._collect_evidence(action, collect))
            case a.Claim():
                self.store.claim(action, idle=not self._job_runs())
            case a.Release():
                self.store.release(action)
            case a.MarkLeaving():
                self.store.claiming.leave()
                if self._tier is not None:
                    self._lanes.put("tier", self._tier.hurry)
            case a.Hurry():
                self.hurry()
            case a.Sweep():
                self._lanes.put("publish", self.store.sweep)  # no upload of our own is under way on this lane
            case a.KeepLineage():
                self.store.end_left_publish(action)
                self._lanes.put("publish", lambda: self.store.keep_lineage(action))
            case a.Publish():
                self.store.ask_to_publish(action)
            case a.PruneLocal():
                self._lanes.put("prune", lambda: self._prune(action.step, action.step + 1))
            case a.PruneStale():
                self._lanes.put("prune", lambda: self._prune(-1, action.below))
            case a.PruneStore():
                self._lanes.put("prune-store", lambda: self.store.prune(action))
            case a.Pin():
                self._lanes.put("pin", lambda: self.store.pin(action))
            case a.KeepHolds():
                self._lanes.put("pin", lambda: self.store.keep_holds(action))  # pins are in the same object
            case a.Restore():
                # A trainer that [setup] still installs decides where the step belongs: its lane comes first.
                if self.run.job is None:
                    fetched = self.store.fetch_ahead(action.step)
                    self._lanes.put("setup", lambda: self.store.restore(action, fetched))
                else:
                    self._lanes.put("restore", lambda: self.store.restore(action))
            case a.RunHook():
                self._lanes.put("hook", lambda: self._run_hook(action))
            case a.KeepRecords():
                self.store.keep_records(action)
            case a.Setup():
                for number, part in enumerate(self.setup.begin()):
                    self._lanes.put(f"setup-{number}" if number else "setup", part)

    def _job_runs(self) -> bool:
        folder = attempt_dir(self.run.state_dir, last_attempt(self.run.state_dir))
        return any(look_at_component(folder, name).state in ("running", "unknown") for name in component_names(folder))

    def finish_deletions(self, output_dir: Path) -> None:
        """What an interrupted prune left goes beside the start, which a slow volume must not hold up."""
        self._lanes.put("prune", lambda: move_aside.finish_deletions(output_dir))

    def hurry(self) -> None:
        """A second request to stop: no more patience."""
        self._hurry.set()

    def close(self, within_s: float | None = None, release_s: float = LAST_RECORDS_S) -> None:
        """End transfers (they resume where they were) and let each lane finish what it does.

        ``within_s``: so many seconds are left for all of it; ``release_s``: and for giving the run back.
        """
        end_commands(self.run.state_dir.glob("setup*.pid"))  # a download beside [setup] commands that have failed
        self.store.close(within_s, release_s)
        self.logs.close()
        self.root_cause.close()
        if self._tier is not None:
            self._tier.close(job_runs=self._job_runs())
        self._lanes.close(timeout_s=2.0 if within_s is None else 0.0)

    def scan(self) -> None:
        """List the local steps before a start or after the end.

        No process writes then, so quiet time is not needed; only an observed job may live on.
        """
        try:
            if self.run.job is None and self.setup.installs:
                raise TryAgainError("the trainer is not installed yet")  # half of an install would be misread
            self.run.choose_again()
            job = self.run.need_job()
            if self.run.disks is not None:
                self.run.disks.look()
            if self._tier is not None and not self.run.observed:
                self._tier.settle(job)
        except SupervisorError as error:
            empty = not self.run.run_file.output_dir.exists()
            self.run.post(f.LocalSteps((), reason="" if empty else str(error).rstrip("."), settled=True))
            return
        try:
            steps = [(step, job.check_step(step, settled=not self.run.observed)) for step in job.steps()]
        except OSError as error:
            self.run.post(f.LocalSteps(reason=f"{job.output_dir} cannot be read: {error.strerror}", settled=True))
            return
        found = tuple(f.LocalStep(step, c.state, c.reason, c.size_bytes, c.changed_wall) for step, c in steps)
        self.run.post(f.LocalSteps(found, settled=True))

    # ------------------------------------------------------------ the job

    def _start_attempt(self, action: a.Start) -> None:
        try:
            self.run.post(self._launch_attempt(action))
        except PodUnfitError as error:
            self.run.post(f.StartFailed(action.attempt, str(error), unfit=True, host=error.host))
        except (ConfigError, UnknownDialectError) as error:
            self.run.post(f.StartFailed(action.attempt, str(error), permanent=True))
        except (SupervisorError, OSError) as error:
            full = describe_full_disk(error, self.run.state_dir)
            folder = attempt_dir(self.run.state_dir, action.attempt)
            if full and not any(folder.glob("*.shim.json")):  # an hour of such folders would drive out those with logs
                shutil.rmtree(folder, ignore_errors=True)
            reason = f"{str(error).rstrip('.')}. {full}" if full else str(error)
            self.run.post(f.StartFailed(action.attempt, reason, no_room=bool(full), host=getattr(error, "host", "")))

    def _launch_attempt(self, action: a.Start) -> f.Fact:
        job = self.run.need_job(anew=action.snapshot is None and action.attempt > 1)  # the files as they are now
        problems = job.problems()
        if problems:
            raise ConfigError(" ".join(problems))
        self._start_check.before_start(job, action.step, action.snapshot, self._unwanted)
        folder = attempt_dir(self.run.state_dir, action.attempt)
        earlier_ones = [path for path in self.run.state_dir.glob("attempts/[0-9]*") if path != folder]
        if Belongings(folder, (), self.run.run_file.run.id, also=earlier_ones).list_living():
            # A journal that was lost, or a start that died half-way: what runs is the run's own, and in the way.
            stopped = self._stop_processes(action.attempt, also=earlier_ones)
            if stopped.survivors:
                raise PodUnfitError(f"Something of an earlier attempt cannot be ended: {'; '.join(stopped.survivors)}")
        if action.step is not None:
            check = job.check_step(action.step, settled=True)
            if check.state != "complete":
                raise SupervisorError(f"Step {action.step} is no longer complete: {check.reason}")
        elif self.run.run_file.recovery.inference == "own-role" and self.engine.served_before():
            raise SupervisorError(
                "A fresh start needs a fresh inference server: the one that runs has been given the weights of an "
                "attempt before this one, and not every version of prime-rl takes them back"
            )
        for problem in kept_logs.keep_earlier(self.run.state_dir, action.attempt, job.above_trees(action.step)):
            self.run.post(f.Remark("logs", problem))
        if self.run.machines is not None:  # what a silent machine writes on would lie among what is set aside here
            self.run.machines.settle(action.attempt, job.stop_rules(), self._unwanted)
        self.store.bring_step(job, action.step)
        forget_early(self.run.run_file)  # of a daemon that was killed while it fetched ahead
        # Before anything is written: where the disk is full, what is set aside is deleted for room.
        if moved := self._set_aside(job, action):
            # Rollouts and broadcasts are called step_N too: with their folder's name, none is taken for the checkpoint.
            names = sorted({f"{path.parent.name}/{path.name}" for path in moved})
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            told = f"Set aside under {job.output_dir / move_aside.ASIDE}: {', '.join(names[:MOST_NAMED])}{more}."
            self.run.post(f.Remark("set-aside", told))
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        self._lanes.put("prune", lambda: move_aside.forget_killed_restores(job.output_dir, job.place(0, "x")))
        earlier = attempt_dir(self.run.state_dir, action.snapshot) if action.snapshot else None
        configs = take_snapshot(folder, job.config_files(), earlier)
        tier = None if self._tier is None else self._tier.place(job, action)
        request = StartRequest(
            self.run.run_file.run.id,
            action.attempt,
            action.step,
            configs,
            self._sights.wandb_id(),
            folder,
            self._sights.wandb_notes(),
            self._ask,
            action.interval,
            tier,
        )
        kept_logs.begin(folder, job.log_sources(folder))
        components: Sequence[Component] = job.components(request)
        hosts: Sequence[str] = ()
        if self.run.machines is not None:
            components, hosts = self.run.machines.choose(components, action.avoid, self._unwanted)
        launched = self._launch_all(job, components, folder, action.attempt)
        if not launched:
            raise ConfigError("The job has no component to start.")
        for note in [note for one in launched for note in one.notes]:
            self.run.post(f.Remark("launch", f"{note[:1].upper()}{note[1:].rstrip('.')}."))
        command = " ".join(components[0].argv)
        return f.AttemptStarted(action.attempt, action.step, launched[0].child_pid, command, tuple(hosts))

    def _ask(self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> tuple[int | None, str]:
        answer = ask_program.ask(words, cwd=cwd, env=env, timeout_s=timeout_s, unwanted=self._unwanted)
        return answer.code, answer.text

    def _launch_all(self, job: Job, components: Sequence[Component], folder: Path, attempt: int) -> list[Launched]:
        """All of them, or none."""
        machines, how, run_id = self.run.machines, self.run.run_file.supervision.shim, self.run.run_file.run.id
        launched: list[Launched] = []
        try:
            if machines is not None:
                return machines.launch(components, folder, job.stop_rules(), self._unwanted)
            for component in components:
                launched.append(launch(component, folder, how, run_id, self._unwanted))
        except (SupervisorError, OSError):
            if launched or machines is not None:
                self._stop_processes(attempt)  # half a job would hold the GPUs that the next start needs
            raise
        return launched

    def _set_aside(self, job: Job, action: a.Start) -> list[Path]:
        """Move everything above the resume step out of the job's sight; whole steps are kept apart from the rest."""
        label = f"attempt-{action.attempt:04d}"
        whole_steps = [
            step
            for step in job.steps()
            if (action.step is None or step > action.step) and job.check_step(step, settled=True).state == "complete"
        ]
        trees = [tree for step in whole_steps for tree in job.step_trees(step)]
        there = self.run.disks or move_aside
        moved = there.move_aside(trees, job.output_dir, label + KEPT) if trees else []
        return [*moved, *there.move_aside(job.above_trees(action.step), job.output_dir, label)]

    def _stop_attempt(self, action: a.Stop) -> None:
        folder, run_id = attempt_dir(self.run.state_dir, action.attempt), self.run.run_file.run.id
        if unseen := wait_for_what_is_kept(action, self.run.need_job(), folder, run_id, self._hurry):
            self.run.post(f.Remark("stop", f"No look at the checkpoints before the stop: {unseen}."))
        stopped = self._stop_processes(action.attempt, action.budget_s, brief=action.brief, at_once=action.at_once)
        self.store.last_logs(action.attempt)  # before the next attempt's logs take their place
        self.run.post(stopped)

    def _stop_processes(
        self,
        attempt: int,
        budget_s: float = 60.0,
        also: Iterable[Path] = (),
        *,
        brief: bool = False,
        at_once: bool = False,
    ) -> f.AttemptStopped:
        folder = attempt_dir(self.run.state_dir, attempt)
        job = self.run.need_job()
        gpu_wait_s = 0.0 if brief else self.run.run_file.supervision.gpu_free
        if self.run.machines is not None:
            how = {"brief": brief, "at_once": at_once}
            return self.run.machines.stop(attempt, job.stop_rules(), budget_s, gpu_wait_s, self._hurry, **how)
        report = stop_attempt(
            folder,
            [path.name.removesuffix(".shim.json") for path in sorted(folder.glob("*.shim.json"))],
            self.run.run_file.run.id,
            job.stop_rules(),
            budget_s,
            self._sights.gpu_free,
            gpu_wait_s,
            hurry=self._hurry,
            known=self._sights.job_processes(),
            also=also,
            gpu_pids=self._sights.gpu_pids,
            brief=brief,
            at_once=at_once,
        )
        return f.AttemptStopped(attempt, report.seconds, report.survivors, report.gpu_free, report.gpu_holders)

    def _collect_evidence(self, action: a.CollectEvidence, collect: Callable[[], Path | None]) -> None:
        folder = collect()
        self._lanes.put("root-cause", lambda: self._look_at_evidence(action, folder))

    def _look_at_evidence(self, action: a.CollectEvidence, folder: Path | None) -> None:
        self.evidence.forget_old_bundles(action.incident)
        self.root_cause.look(action, folder, self._sights.log_files)

    def _stop_engine(self, action: a.StopEngine) -> None:
        self.evidence.wait()  # which is collected on the job's lane
        self.engine.stop(action)

    # ------------------------------------------------------------ local checkpoints

    def _prune(self, step: int, stale_below: int) -> None:
        """Delete a step (-1: what was set aside) and stale trees, and tell in any case how it went: the core waits for
        that before it prunes again.
        """
        there = self.run.disks or move_aside
        try:
            job = self.run.need_job()  # which a start on the other lane may just be opening anew
            if step < 0:
                freed = there.delete_set_aside(job.output_dir, KEPT)
            else:
                freed = there.delete_trees(job.step_trees(step), job.output_dir)
            kept = [number for number in job.steps() if number != step]
            freed += there.delete_trees(job.stale_trees(kept, stale_below), job.output_dir)
        except (OSError, SupervisorError) as error:
            self.run.post(f.PruneFailed(step, "local", str(error)))
            return
        self.run.post(f.Pruned(step, "local", freed))

    # ------------------------------------------------------------ people's own commands

    def _run_hook(self, action: a.RunHook) -> None:
        command = getattr(self.run.run_file.hooks, action.hook) or "true"
        log = self.run.state_dir / f"hook-{action.hook}.log"
        reason = run_shell(command, self.run.run_file.hooks.timeout, self.run.environ, log)
        self.run.post(f.HookDone(action.hook, reason))
