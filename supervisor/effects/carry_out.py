"""Carry out the core's actions, and report what came of each as a fact.

One lane a kind (start, stop and evidence share one, in order). Every action is idempotent: a daemon that died in the
middle asks for it again, and what was done already is found done.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.checkpoints.log_files import pack
from supervisor.config import RunFile
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.records import Happened
from supervisor.effects import aside, observing, run_records
from supervisor.effects.attempts import attempt_dir, digest, last_attempt, read_snapshot, take_snapshot
from supervisor.effects.claiming import Claiming
from supervisor.effects.described import describe
from supervisor.effects.evidence import collect, tail_of, trace_command
from supervisor.effects.lanes import Lanes
from supervisor.effects.launch import launch, look
from supervisor.effects.own_engine import OwnEngine
from supervisor.effects.stop import stop_attempt
from supervisor.effects.survivors import Belongings, Identity, records
from supervisor.effects.transfers import Transfers, request
from supervisor.errors import ConfigError, PodUnfitError, SupervisorError, TryAgainError, UnknownDialectError
from supervisor.jobs.base import Job, StartRequest
from supervisor.secrets import masked
from supervisor.storage.base import StoreError

Post = Callable[[f.Fact], None]
CATALOGUE_FRESH_S = 60.0
CATALOGUE_STALL_S = 120.0
CHECK_AGAIN_S = 20.0
MOST_BUNDLES = 5  # of one attempt's incidents that go to the store
MISSING_LOOKS = 3
MOST_NAMED = 12  # folders in a sentence
LAST_RECORDS_S = 10.0  # how long the end waits for records that are on their way
KEPT = "-whole"  # ending of the set-aside folders that hold complete steps: those are a person's to delete
NO_SECRETS = ("B2_", "AWS_", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")


class Effects:
    """The hands of one daemon. ``job`` is None until the trainer is installed (``[setup]`` on a fresh pod)."""

    def __init__(
        self,
        run_file: RunFile,
        post: Post,
        *,
        environ: Mapping[str, str],
        gpu_free: Callable[[], bool | None],
        wandb_id: Callable[[], str],
        explain: Callable[[], dict[str, Any]],
        log_files: Callable[[], dict[str, Path]],
        known: Callable[[], list[tuple[int, int]]],
        opened: Callable[[], Job],
        observed: Callable[[], str] = lambda: "",
        engine_gpu_free: Callable[[], bool | None] = lambda: None,
        engine_known: Callable[[], list[Identity]] = list,
    ) -> None:
        """``post`` takes facts for the core; ``opened`` opens the job anew (after ``[setup]``), raising ConfigError;
        ``known`` are pid and start ticks of the attempt's processes, for those that left the shim's tree; ``observed``
        says why the run is only looked at, "" where it is acted upon.
        """
        self.run_file = run_file
        self.job: Job | None = None
        self.journal = ""  # identity of this daemon's journal
        self.transfers = Transfers(environ, run_file.store.stall_s)
        self._post = post
        self._environ = dict(environ)
        self._gpu_free = gpu_free
        self._wandb_id = wandb_id
        self._explain = explain
        self._log_files = log_files
        self._known = known
        self._opened = opened
        self._observed = observed
        self._lanes = Lanes(self._crashed)
        self._hurry = threading.Event()
        self._catalogue_t = 0.0
        self._records_read = False
        self._kept = threading.Event()
        self._kept.set()
        self._opening = threading.Lock()
        self._setup_runs = False
        self._missing: dict[int, int] = {}  # step -> how often it was listed and could not be found
        self._described = ""  # digest of the run's files that are in the store
        self._state_dir = run_file.state_dir
        self._unswept = False  # is there something half-sent of other pods in the store?
        self._unkept = ""  # why the store does not know yet which steps are left
        self._given_back = threading.Event()
        self._given_back.set()
        self._logged = threading.Event()
        self._logged.set()
        self.claiming = Claiming(
            lambda do, more: self.transfers.run(self._ask(do, **more), stall_s=CATALOGUE_STALL_S),
            post,
            self._lanes.put,
            run_file.store.take_over_after,
            needed=run_file.store.url is not None,  # the embedded store is this machine's own
            listed=lambda: self.catalogue(force=True),
        )
        self.engine = OwnEngine(
            lambda: self.run_file,
            post,
            job=self._need_job,
            gpu_free=engine_gpu_free,
            wandb_id=wandb_id,
            known=engine_known,
            hurry=self._hurry,
        )

    # ------------------------------------------------------------ dispatch

    def do(self, action: a.Action) -> None:
        """Queue an action; returns at once. Where the run is only observed nothing is touched: ``Suppressed`` comes."""
        why = self._observed()
        if why and (suppressed := observing.held_back(action, why)) is not None:
            self._post(suppressed)
            return
        match action:
            case a.Survey():
                self._lanes.put("scan", self.scan)
                self.catalogue()
            case a.Start():
                self.engine.forget_weights()  # the job hands them over itself, once it is up
                self._lanes.put("job", lambda: self._start(action))
            case a.StartEngine():
                alone = self._job_runs()  # before a Start that follows has launched anything
                self._lanes.put("engine", lambda: self.engine.start(action, alone=alone))
            case a.StopEngine():
                self._lanes.put("engine", lambda: self.engine.stop(action))
            case a.Stop():
                self._hurry.clear()
                self._lanes.put("job", lambda: self._stop(action))
            case a.CollectEvidence():
                self._lanes.put("job", lambda: self._evidence(action))
            case a.Claim():
                self.claiming.journal = self.journal
                self.claiming.want(take_over=action.take_over)
            case a.Release():
                self._given_back.clear()
                self._lanes.put("claims", self._release)
            case a.Sweep():
                self._lanes.put("publish", self._sweep)  # no upload of our own is under way on this lane
            case a.KeepLineage():
                self._lanes.put("publish", lambda: self._keep_lineage(action))
            case a.Publish():
                self._lanes.put("publish", lambda: self._publish(action))
            case a.PruneLocal():
                self._lanes.put("prune", lambda: self._prune_local(action))
            case a.PruneStale():
                self._lanes.put("prune", lambda: self._prune_stale(action))
            case a.PruneStore():
                self._lanes.put("prune-store", lambda: self._prune_store(action))
            case a.Pin():
                self._lanes.put("pin", lambda: self._pin(action))
            case a.Restore():
                # A trainer that [setup] still installs decides where the step belongs: its lane comes first.
                self._lanes.put("setup" if self.job is None else "restore", lambda: self._restore(action))
            case a.RunHook():
                self._lanes.put("hook", lambda: self._hook(action))
            case a.KeepRecords():
                self._kept.clear()
                self._lanes.put("records", lambda: self._keep_records(action))
            case a.Setup():
                self._setup_runs = True
                self._lanes.put("setup", self._setup)

    def _job_runs(self) -> bool:
        folder = attempt_dir(self._state_dir, last_attempt(self._state_dir))
        return any(look(folder, record.component).state == "running" for record in records(folder))

    def hurry(self) -> None:
        """A second request to stop: no more patience."""
        self._hurry.set()

    def close(self) -> None:
        """End transfers (they resume where they were) and let each lane finish what it does."""
        self._kept.wait(LAST_RECORDS_S)
        self._given_back.wait(LAST_RECORDS_S)
        self._logged.wait(LAST_RECORDS_S)
        self.transfers.close()
        self._lanes.close(timeout_s=2.0)

    def _crashed(self, lane: str, error: BaseException) -> None:
        self._post(f.EffectCrashed(lane, f"{type(error).__name__}: {error}"))

    # ------------------------------------------------------------ looks that need the disk or the network

    def upload_logs(self, attempt: int) -> None:
        """Queue an upload of the ends of the attempt's logs: the next pod's owner wants to know how this one ended."""
        if self._lanes.idle("logs"):
            self._lanes.put("logs", lambda: self._upload_logs(attempt))

    def _last_logs(self, attempt: int) -> None:
        """Queue an upload of how the attempt ended; ``close`` waits a little for it."""
        with contextlib.suppress(OSError):
            texts = self._log_texts(attempt)
            self._logged.clear()
            self._lanes.put("logs", lambda: self._send_last_logs(attempt, texts))

    def _send_last_logs(self, attempt: int, texts: Mapping[str, bytes]) -> None:
        try:
            self._send_logs(attempt, texts)
        finally:
            self._logged.set()

    def _upload_logs(self, attempt: int) -> None:
        self._send_logs(attempt, self._log_texts(attempt))

    def _log_texts(self, attempt: int) -> dict[str, bytes]:
        """Ends of the logs and the evidence of the attempt's incidents."""
        texts = {f"{role}.log": tail_of(path) for role, path in self._log_files().items()}
        for bundle in sorted(attempt_dir(self._state_dir, attempt).glob("incident-*"))[-MOST_BUNDLES:]:
            for name in ("reason.txt", "explain.json", "processes.txt"):
                if (bundle / name).is_file():
                    texts[f"{bundle.name}-{name}"] = tail_of(bundle / name)
        return texts

    def _send_logs(self, attempt: int, texts: Mapping[str, bytes]) -> None:
        """Without secrets, packed."""
        if not texts or not self.journal:
            return
        packed = {
            name: base64.b64encode(pack(masked(data.decode(errors="replace")))).decode() for name, data in texts.items()
        }
        # No two pods write the same log; but the oldest ones go, and they may be another pod's.
        with contextlib.suppress(StoreError):  # a courtesy: the publish tells when the store is away
            self._write("put-logs", journal=self.journal, attempt=attempt, logs=packed)

    def _put(self, texts: Mapping[str, str]) -> None:
        files = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        self._write("put-run-files", files=files)

    def _need_job(self) -> Job:
        """The job, opened when it was not yet. Raises SupervisorError."""
        with self._opening:
            if self.job is None:
                self.job = self._opened()
            return self.job

    def scan(self) -> None:
        """List the local steps before a start or after the end: nobody writes, so quiet time is not waited for."""
        try:
            if self.job is None and self._setup_runs:
                raise TryAgainError("the trainer is not installed yet")  # half of an install would be misread
            job = self._need_job()
        except SupervisorError as error:
            empty = not self.run_file.output_dir.exists()
            self._post(f.LocalSteps((), reason="" if empty else str(error).rstrip("."), settled=True))
            return
        try:
            steps = [(step, job.check_step(step, settled=True)) for step in job.steps()]
        except OSError as error:
            self._post(f.LocalSteps(reason=f"{job.output_dir} cannot be read: {error.strerror}", settled=True))
            return
        found = tuple(f.LocalStep(step, c.state, c.reason, c.size_bytes, c.changed_wall) for step, c in steps)
        self._post(f.LocalSteps(found, settled=True))

    def catalogue(self, *, force: bool = False) -> None:
        """List the store, unless that was done a moment ago."""
        if not force and time.monotonic() - self._catalogue_t < CATALOGUE_FRESH_S:
            return
        if self._lanes.idle("catalogue"):
            self._lanes.put("catalogue", self._catalogue)

    def check_store(self) -> None:
        """Compare the store's listing with its manifests; what is damaged is told and remembered, never deleted."""
        if self._lanes.idle("check"):
            self._lanes.put("check", self._check_store)

    def _check_store(self) -> None:
        try:
            answer = self.transfers.run(self._ask("verify"), stall_s=CATALOGUE_STALL_S)
            if any(one["problems"] for one in answer["steps"] if one["committed"]) or answer["problems"]:
                # A listing may be seconds old, and a person is called for what it says: it has to say so twice.
                time.sleep(CHECK_AGAIN_S)
                answer = self.transfers.run(self._ask("verify"), stall_s=CATALOGUE_STALL_S)
        except StoreError:
            return  # the look at the store says so when it is away
        looked = [one for one in answer["steps"] if one["committed"]]
        damaged = {str(one["step"]): f"{one['problems'][0]}." for one in looked if one["problems"]}
        if looked:
            self._post(f.StoreChecked(tuple(int(one["step"]) for one in looked if not one["problems"]), damaged))
        for problem in answer["problems"]:
            self._post(f.Remark("store-damaged", f"{problem[:1].upper()}{problem[1:]}."))

    def _catalogue(self) -> None:
        try:
            answer = self.transfers.run(self._ask("catalogue"), stall_s=CATALOGUE_STALL_S)
        except StoreError as error:
            self._catalogue_t = 0.0
            self._post(f.StoreSteps(reason=str(error), permanent=error.kind in ("permanent", "quota")))
            return
        self._catalogue_t = time.monotonic()
        steps = tuple(
            f.StoredStep(
                int(s["step"]),
                bool(s["committed"]),
                int(s["size_bytes"]),
                left=str(s.get("left", "")),
                manifest=str(s.get("manifest", "")),
                legacy=bool(s.get("legacy")),
                problem=str(s.get("problem", "")),
            )
            for s in answer["steps"]
        )
        happened = tuple(Happened(e["kind"], e["step"], e["wall"], e["why"]) for e in answer.get("happened", ()))
        latest = answer.get("latest") or {}
        self._post(
            f.StoreSteps(
                steps,
                latest.get("step"),
                wandb_id=str(latest.get("wandb_run_id") or ""),
                happened=happened,
                pinned=tuple(answer.get("pinned", ())),
                reading=tuple(answer.get("reading", ())),
                pins_reason=str(answer.get("pins_problem", "")),
            )
        )
        if not self._records_read:
            self._read_records()

    def _read_records(self) -> None:
        """Tell the core, once, what other pods left about this run."""
        try:
            answer = self.transfers.run(self._ask("get-records"), stall_s=CATALOGUE_STALL_S)
        except StoreError:
            return  # the next look at the store tries again, and says so when the store is away
        self._records_read = True
        found = {str(name): base64.b64decode(text) for name, text in answer["records"].items()}
        learned, ledgers = run_records.of_others(found, self.journal, time.time())
        if learned is not None:
            self._post(f.StoreRecords(learned, ledgers))

    def _keep_records(self, action: a.KeepRecords) -> None:
        record = run_records.Record(action.journal, action.learned, action.ledger)
        try:
            text = base64.b64encode(run_records.to_bytes(record)).decode()
            # Not signed: one object a journal, so no other pod's is ever replaced; and the last one is written while
            # the run is being given back.
            asked = self._ask("put-record", journal=action.journal, record=text)
            with contextlib.suppress(StoreError):  # the publish tells when the store is away, and more records follow
                self.transfers.run(asked, stall_s=CATALOGUE_STALL_S)
        finally:
            if self._lanes.idle("records"):
                self._kept.set()

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        return request(self.run_file, do, **more)

    def _write(self, do: str, **more: Any) -> dict[str, Any]:
        """One small request that writes to the store or deletes there: signed, and the core hears when it is fenced."""
        return self.claiming.write(
            lambda signed: self.transfers.run(self._ask(do, **more, **signed), stall_s=CATALOGUE_STALL_S)
        )

    # ------------------------------------------------------------ the job

    def _start(self, action: a.Start) -> None:
        try:
            self._post(self._launch(action))
        except PodUnfitError as error:
            self._post(f.StartFailed(action.attempt, str(error), unfit=True))
        except (ConfigError, UnknownDialectError) as error:
            self._post(f.StartFailed(action.attempt, str(error), permanent=True))
        except (SupervisorError, OSError) as error:
            self._post(f.StartFailed(action.attempt, str(error)))

    def _launch(self, action: a.Start) -> f.Fact:
        if action.snapshot is None and action.attempt > 1:
            self.job = None  # the files as they are now: what is known of them is read anew
        job = self._need_job()
        problems = job.problems()
        if problems:
            raise ConfigError(" ".join(problems))
        folder = attempt_dir(self._state_dir, action.attempt)
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        left = Belongings(folder, (), self.run_file.run.id).living()
        if left:
            # A journal that was lost, or a start that died half-way: what runs is the run's own, and in the way.
            self._stop_processes(action.attempt)
        if action.step is not None:
            check = job.check_step(action.step, settled=True)
            if check.state != "complete":
                raise SupervisorError(f"Step {action.step} is no longer complete: {check.reason}")
        elif self.run_file.recovery.inference == "own-role" and self.engine.served_before():
            raise SupervisorError(
                "A fresh start needs a fresh inference server: the one that runs has been given the weights of an "
                "attempt before this one, and not every version of prime-rl takes them back"
            )
        moved = self._set_aside(job, action)
        earlier = attempt_dir(self._state_dir, action.snapshot) if action.snapshot else None
        configs = take_snapshot(folder, job.config_files(), earlier)
        request = StartRequest(self.run_file.run.id, action.attempt, action.step, configs, self._wandb_id(), folder)
        first: tuple[int, str] | None = None
        for component in job.components(request):
            try:
                launched = launch(component, folder, self.run_file.supervision.shim, self.run_file.run.id)
            except (SupervisorError, OSError):
                if first is not None:
                    self._stop_processes(action.attempt)  # half a job would hold the GPUs that the next start needs
                raise
            first = first or (launched.child_pid, " ".join(component.argv))
            for note in launched.notes:
                self._post(f.Remark("launch", f"{note[:1].upper()}{note[1:].rstrip('.')}."))
        if first is None:
            raise ConfigError("The job has no component to start.")
        if moved:
            # Rollouts and broadcasts are called step_N too: with their folder's name, none is taken for the checkpoint.
            names = sorted({f"{path.parent.name}/{path.name}" for path in moved})
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            told = f"Set aside under {job.output_dir / aside.ASIDE}: {', '.join(names[:MOST_NAMED])}{more}."
            self._post(f.Remark("set-aside", told))
        return f.AttemptStarted(action.attempt, action.step, first[0], first[1])

    @staticmethod
    def _set_aside(job: Job, action: a.Start) -> list[Path]:
        """Move everything above the resume step out of the job's sight; whole steps are kept apart from the rest."""
        label = f"attempt-{action.attempt:04d}"
        whole_steps = [
            step
            for step in job.steps()
            if (action.step is None or step > action.step) and job.check_step(step, settled=True).state == "complete"
        ]
        trees = [tree for step in whole_steps for tree in job.step_trees(step)]
        moved = aside.move_aside(trees, job.output_dir, label + KEPT) if trees else []
        return [*moved, *aside.move_aside(job.above_trees(action.step), job.output_dir, label)]

    def _stop(self, action: a.Stop) -> None:
        stopped = self._stop_processes(action.attempt, action.budget_s)
        self._last_logs(action.attempt)  # before the next attempt's logs take their place
        self._post(stopped)

    def _stop_processes(self, attempt: int, budget_s: float = 60.0) -> f.AttemptStopped:
        folder = attempt_dir(self._state_dir, attempt)
        job = self._need_job()
        report = stop_attempt(
            folder,
            [path.name.removesuffix(".shim.json") for path in sorted(folder.glob("*.shim.json"))],
            self.run_file.run.id,
            job.stop_rules(),
            budget_s,
            self._gpu_free,
            self.run_file.supervision.gpu_free,
            hurry=self._hurry,
            known=self._known(),
        )
        return f.AttemptStopped(attempt, report.seconds, report.survivors, report.gpu_free)

    def _evidence(self, action: a.CollectEvidence) -> None:
        folder = attempt_dir(self._state_dir, action.attempt)
        pids = [process.pid for process in Belongings(folder, (), self.run_file.run.id).living()]
        pids += sorted(pid for pid, _ in self.engine.living())
        target = folder / f"incident-{action.incident}"
        with contextlib.suppress(OSError):  # a full disk must not keep a dead job from its restart
            how = trace_command(self._state_dir / "journal.db", action.incident)
            collect(target, action.reason, self._log_files(), self._explain(), pids, trace=how)
            self._post(f.Remark("evidence", f"What the job said and did until then is kept in {target}."))

    # ------------------------------------------------------------ checkpoints

    def _publish(self, action: a.Publish) -> None:
        job, began = self.job, time.monotonic()
        if job is None:
            self._post(f.PublishFailed(action.step, "the trainer is not installed.", step_changed=True))
            return
        try:
            if self._unkept:
                raise StoreError("transient", f"the store does not know yet which steps are left: {self._unkept}")
            if self._unswept:
                self._sweep()
            check = job.check_step(action.step, settled=True)
            if check.state != "complete":
                raise StoreError("changed", f"step {action.step} is no longer complete: {check.reason}")
            self._describe(job)
            facts = job.facts()
            more = {
                "step": action.step,
                "files": [{"source": str(file.source), "name": file.name} for file in job.step_files(action.step)],
                "wandb_run_id": self._wandb_id(),
                "allow_back": action.back,
                "state_dir": str(self._state_dir / "publish"),
                "extra": {
                    "dialect": facts.name,
                    "revision": facts.revision,
                    "config_sha256": self._described.split("/")[0],
                    "step_base": facts.first_step,
                    "reward": action.reward,
                },
            }
            answer = self.claiming.write(
                lambda signed: self.transfers.run(self._ask("publish", **more, **signed), what="publish")
            )
        except StoreError as error:
            changed = error.kind == "changed"
            permanent = error.kind in ("permanent", "quota")
            self._post(f.PublishFailed(action.step, str(error), permanent=permanent, step_changed=changed))
            return
        except OSError as error:
            self._post(f.PublishFailed(action.step, f"{error.filename}: {error.strerror}.", step_changed=True))
            return
        if left := str(answer.get("left", "")):
            told = f"the store has the very same bytes, and {left}. So nobody resumes at it here, either."
            self._post(f.PublishFailed(action.step, told, step_changed=True, left=True))
            return
        seconds = time.monotonic() - began
        sent = int(answer.get("sent_bytes", 0))
        self._post(f.Published(action.step, int(answer["size_bytes"]), seconds, sent))

    def _describe(self, job: Job) -> None:
        """Put the run's settings and the trainer's configuration beside its steps, so that the next pod has them."""
        newest = sorted((self._state_dir / "attempts").glob("[0-9]*/config.json"))
        configs = read_snapshot(newest[-1].parent) if newest else {path: path for path in job.config_files()}
        mark = f"{digest(configs)}/{self.run_file.model_dump_json()}"
        if mark == self._described:
            return
        texts, hiding = describe(self.run_file, configs)
        self._put(texts)
        self._described = mark
        for path in hiding:
            told = f"{path} holds what looks like a secret: the store's copy of it has *** there, so no other pod can"
            self._post(f.Remark("masked", f"{told} use that copy. Give each pod its own, or name a variable there."))

    def _prune_local(self, action: a.PruneLocal) -> None:
        def delete(job: Job) -> int:
            return aside.delete_trees(job.step_trees(action.step), job.output_dir)

        self._delete(action.step, delete, stale_below=action.step + 1)

    def _prune_stale(self, action: a.PruneStale) -> None:
        self._delete(-1, lambda job: aside.delete_set_aside(job.output_dir, KEPT), stale_below=action.below)

    def _delete(self, step: int, delete: Callable[[Job], int], stale_below: int) -> None:
        """Delete, and tell in any case how it went: the core waits for that before it prunes again."""
        try:
            job = self._need_job()  # which a start on the other lane may just be opening anew
            freed = delete(job)
            kept = [number for number in job.steps() if number != step]
            freed += aside.delete_trees(job.stale_trees(kept, stale_below), job.output_dir)
        except (OSError, SupervisorError) as error:
            self._post(f.PruneFailed(step, "local", str(error)))
            return
        self._post(f.Pruned(step, "local", freed))

    def _prune_store(self, action: a.PruneStore) -> None:
        try:
            answer = self._write("delete", step=action.step)
        except StoreError as error:
            self._post(f.PruneFailed(action.step, "store", str(error)))
            return
        self._post(f.Pruned(action.step, "store", int(answer.get("freed_bytes", 0))))

    def _pin(self, action: a.Pin) -> None:
        try:
            self._write("pin", step=action.step, pinned=action.pinned)
        except StoreError as error:
            permanent = error.kind in ("permanent", "damaged")
            self._post(f.PinKept(action.step, action.pinned, str(error), permanent))
            return
        self._post(f.PinKept(action.step, action.pinned))

    def _keep_lineage(self, action: a.KeepLineage) -> None:
        happened = [vars(one) for one in action.happened]
        try:
            answer = self._write("lineage", happened=happened)
        except StoreError as error:
            self._unkept = str(error)
            self._post(f.LineageFailed(str(error)))
            return
        self._unkept = ""
        self._post(f.LineageKept(len(happened), answer.get("pointer")))
        self.catalogue(force=True)

    def _sweep(self) -> None:
        """What other pods left half-sent is billed and nobody will finish it. Tried again before the next publish."""
        self._unswept = True
        try:
            answer = self._write("sweep")
        except StoreError:
            return  # the publish tells when the store is away
        self._unswept = False
        self._post(f.Swept(int(answer["cancelled"])))

    def _release(self) -> None:
        try:
            self.claiming.give_back()
        finally:
            self._given_back.set()

    def _restore(self, action: a.Restore) -> None:
        began = time.monotonic()
        try:
            job = self._need_job()
            primary = job.place(action.step, "x").parent
            asked = self._ask(
                "restore",
                step=action.step,
                output_dir=str(job.output_dir),
                place={"primary": primary.as_posix()},
            )
            job.output_dir.mkdir(parents=True, exist_ok=True)
            answer = self.transfers.run(asked, what="restore")
            check = job.check_step(action.step, settled=True)
            aside.move_aside([Path(path) for path in answer.get("moved_aside", [])], job.output_dir, "replaced")
        except StoreError as error:
            damaged = error.kind == "damaged" or (error.kind == "missing" and self._still_missing(action.step))
            self._post(f.RestoreFailed(action.step, str(error), damaged=damaged, permanent=error.kind == "permanent"))
            return
        except (SupervisorError, OSError) as error:
            permanent = isinstance(error, (ConfigError, UnknownDialectError))
            self._post(f.RestoreFailed(action.step, str(error), permanent=permanent))
            return
        if check.state != "complete":
            reason = f"it came whole from the store and is not loadable: {check.reason}"
            self._post(f.RestoreFailed(action.step, reason, damaged=True))
            return
        seconds = time.monotonic() - began
        self._post(f.Restored(action.step, int(answer["size_bytes"]), seconds, bool(answer.get("verified", True))))

    def _still_missing(self, step: int) -> bool:
        """Is a listed step missing again and again? One look proves nothing: listings may be seconds old, or gone."""
        self._catalogue_t = float("-inf")  # the next look at the checkpoints lists the store anew
        self._missing[step] = self._missing.get(step, 0) + 1
        return self._missing[step] >= MISSING_LOOKS

    # ------------------------------------------------------------ people's own commands

    def _hook(self, action: a.RunHook) -> None:
        command = getattr(self.run_file.hooks, action.hook) or "true"
        reason = self._shell(command, self.run_file.hooks.timeout, dict(self._environ), f"hook-{action.hook}")
        self._post(f.HookDone(action.hook, reason))

    def _setup(self) -> None:
        env = {name: value for name, value in self._environ.items() if not name.startswith(NO_SECRETS)}
        deadline = time.monotonic() + self.run_file.setup.timeout
        reason = ""
        for command in self.run_file.setup.commands:
            reason = self._shell(command, max(1.0, deadline - time.monotonic()), env, "setup")
            if reason:
                break
        self._setup_runs = False
        if not reason:
            try:
                self._need_job()
            except TryAgainError as error:
                self._post(f.Remark("next-pod", str(error)))  # each look at the checkpoints tries again
            except SupervisorError as error:
                reason = str(error)
        self._post(f.SetupDone(reason))

    def _shell(self, command: str, timeout_s: float, env: dict[str, str], name: str) -> str:
        """Run a person's shell command with its output in a log; returns why it failed, or ""."""
        log = self._state_dir / f"{name}.log"
        shell = shutil.which("bash") or "/bin/sh"
        home = env.get("HOME") or "/"
        with log.open("ab") as output:
            child = subprocess.Popen(
                [shell, "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=home if Path(home).is_dir() else "/",
                start_new_session=True,
            )
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)  # its own session, and it is our child: the number cannot be another's
                child.wait()
                return f"{command!r} took longer than {timeout_s:.0f} s; its output is in {log}."
        return "" if code == 0 else f"{command!r} ended with exit code {code}; its output is in {log}."


def whole(step: Mapping[str, Any], latest: Mapping[str, Any]) -> bool:
    """Was this stored step published to its end? The original scripts left no manifest, but moved the pointer last."""
    if step["committed"]:
        return True
    return bool(step.get("legacy") and latest.get("legacy") and int(step["step"]) <= int(latest["step"]))
