"""What the daemon does with the run's store: look into it, publish, restore, prune, and leave records and logs there.

Each piece of work is one request to the transfers' child process, or a few. What writes or deletes is signed by the
claim, and the core is told what came of it as a fact.
"""

from __future__ import annotations

import base64
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.base.errors import ConfigError, StoreError, SupervisorError, TryAgainError, UnknownDialectError
from supervisor.base.logs import say
from supervisor.base.own_child import OwnChild
from supervisor.base.secrets import mask_secrets
from supervisor.checkpoints.log_packing import SERIES, pack
from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.core.choose import STORE_FRESH_S
from supervisor.core.records import Happened, Hold
from supervisor.core.words import span
from supervisor.effects import move_aside, pod_setup, run_records
from supervisor.effects.claiming import CONVICTED, LABEL, LEAVING_STALL_S, LONGEST_LAST_WORDS, PROMISED, Claiming
from supervisor.effects.lanes import Lanes
from supervisor.effects.run_context import RunContext, Sights
from supervisor.effects.run_files import describe
from supervisor.effects.transfers import Transfers, request
from supervisor.evidence.ends import log_ends
from supervisor.evidence.keeping import to_send
from supervisor.evidence.known import bundles_dir
from supervisor.jobs.base import Job
from supervisor.journal.series import path_of
from supervisor.process import pod_identity
from supervisor.process.attempts import digest, read_snapshot

SMALL_STALL_S = 120.0  # patience with a request that moves no step
CHECK_AGAIN_S = 20.0
MISSING_LOOKS = 3
HOST_S = 60.0  # patience with the look at the host
LAST_RECORDS_S = 10.0  # how long the end waits for records that are on their way
TOLD_S = 5.0  # the end says what it waits for
LAST_LOGS_S = 3.0  # how long the next pod waits for the run so that this one's last words come first


def look_at_host(settings: bytes, environ: Mapping[str, str], limit_s: float = HOST_S) -> str:
    """Why the run, of these settings, cannot be on this host; "" where it can. Raises OSError.

    The claim waits for this. A look that fails or takes too long says nothing of the host, and one that its driver
    holds in the kernel is not waited for.
    """
    words = [sys.executable, "-P", "-m", "supervisor.preflight.host_check"]
    with OwnChild(words, environ=environ, given=settings) as child:
        code = child.wait(time.monotonic() + limit_s)
        child.kill()
        return child.answer().decode(errors="replace").strip() if code == 0 else ""


class StoreWork:
    """The store of one daemon's run.

    ``claim``, ``release``, ``catalogue``, ``check``, ``keep_records``, ``upload_logs`` and ``last_logs`` queue what is
    to be done and return at once; the others block: they are a lane's work.
    """

    def __init__(self, run: RunContext, sights: Sights, lanes: Lanes) -> None:
        store = run.run_file.store
        self.transfers = Transfers(run.environ, store.stall_s, more_follow=True)
        self._run = run
        self._sights = sights
        self._lanes = lanes
        self._catalogue_t = 0.0
        self._away = False  # did the last small request fail?
        self._records_read = False
        self._sent: set[tuple[int, str]] = set()  # bundles of evidence: (attempt, name)
        self._owed: set[int] = set()  # the logs of these attempts did not reach the store at the last try
        self._missing: dict[int, int] = {}  # step -> how often it was listed and could not be found
        self._early: Path | None = None  # where a whole step is that was fetched before its place was known
        self._described = ""  # digest of the run's files that are in the store
        self._unswept = False  # is there something half-sent of other pods in the store?
        self._unkept = ""  # why the store does not know yet which steps are left
        self._publishing = -1  # the step that was asked for last
        self._left = -1  # that step, once the run has left it
        nothing_under_way = threading.Event()
        nothing_under_way.set()
        self._kept = self._given_back = self._logged = nothing_under_way  # what the end waits for
        self._looked = PROMISED not in run.environ
        self._unfit = ""
        self.claiming = Claiming(
            self._of_the_claim,
            run.post,
            lanes.put,
            store.take_over_after,
            needed=store.url is not None,  # the embedded store is this machine's own
            listed=lambda: self.catalogue(force=True),
            lost=lambda error: self.transfers.cancel("publish", str(error)),
            cancel=lambda: self.transfers.cancel("heartbeat", "This pod is about to go."),
            about=sights.beat,
            label=run.environ.get(LABEL, ""),
            convicted=run.environ.get(CONVICTED, ""),
            unfit=lambda: self._unfit,
        )
        self.claiming.place = pod_identity.place_of_pod(run.environ, run.state_dir)
        self.claiming.marks_leaving = run.run_file.nodes is None

    def close(self, within_s: float | None = None, release_s: float = LAST_RECORDS_S) -> None:
        """Wait for what tells other pods how it ended, then end transfers (they resume where they were).

        ``within_s``: so many seconds are left for all of it; ``release_s``: and for giving the run back.
        """
        until = float("inf") if within_s is None else time.monotonic() + within_s
        left_s = release_s if within_s is None else within_s
        if not self._given_back.wait(min(TOLD_S, left_s)) and left_s > TOLD_S:
            why = self.claiming.unreturned or "The run is not given back in the store yet."
            say("warning", "release", f"{why} It is tried for {span(left_s - TOLD_S)} more.")
            self._given_back.wait(left_s - TOLD_S)
        self.claiming.ended.set()
        for done in (self._kept, self._logged):
            done.wait(min(LAST_RECORDS_S, max(0.0, until - time.monotonic())))
        self.transfers.close()

    def _put_awaited(self, lane: str, work: Callable[[], None]) -> threading.Event:
        """Queue work. The event is set once it has ended, however it ended."""
        ended = threading.Event()

        def do() -> None:
            try:
                work()
            finally:
                ended.set()

        self._lanes.put(lane, do)
        return ended

    # ------------------------------------------------------------ requests

    def _ask_store(self, do: str, **more: Any) -> dict[str, Any]:
        return request(self._run.run_file, do, **more)

    def _ask_briefly(self, do: str, **more: Any) -> dict[str, Any]:
        """Carry out one small request. Raises StoreError."""
        return self._carry_out_small(self._ask_store(do, **more), "", SMALL_STALL_S)

    def _carry_out_small(self, asked: dict[str, Any], what: str, stall_s: float) -> dict[str, Any]:
        """Carry out one request that moves no step, and tell the core when it is the first to succeed after others."""
        try:
            answer = self.transfers.run(asked, what=what, stall_s=stall_s)
        except StoreError as error:
            # Not a publish's: should that fail for a reason of its own, each heartbeat would wake it.
            self._away = self._away or error.kind in ("transient", "permanent", "quota")
            raise
        if self._away:
            self._away = False
            self._run.post(f.StoreBack())
            if (
                not self._catalogue_t and asked["do"] != "catalogue"
            ):  # it could not be listed, and nothing is published before it can
                self.catalogue()
        return answer

    def _of_the_claim(self, do: str, more: dict[str, Any]) -> dict[str, Any]:
        """A request of the claim. On a pod that is about to go one that hangs is tried again soon."""
        stall_s = LEAVING_STALL_S if more.get("urgent") else SMALL_STALL_S
        what = "heartbeat" if do in ("beat", "leave") else ""
        if do == "beat":
            more = {**more, "state_dir": str(self._run.state_dir / "publish")}
        return self._carry_out_small(self._ask_store(do, **more), what, stall_s)

    def _write_to_store(self, do: str, **more: Any) -> dict[str, Any]:
        """One small request that writes to the store or deletes there: signed, and the core hears when it is fenced."""
        return self.claiming.write(lambda signed: self._ask_briefly(do, **more, **signed))

    # ------------------------------------------------------------ the claim

    def claim(self, action: a.Claim, *, idle: bool) -> None:
        """Claim the run for this pod, and go on trying. ``idle``: nothing of the run lives here."""
        if idle and not self._looked:
            self._lanes.put("catalogue", self._look_at_host)  # the claim waits for it there
        self._looked = True
        self.claiming.want(take_over=action.take_over, held=action.held)

    def _look_at_host(self) -> None:
        settings = self._run.run_file.model_dump_json(exclude_unset=True)
        with contextlib.suppress(OSError):
            self._unfit = look_at_host(settings.encode(), self._run.environ)

    def release(self, action: a.Release) -> None:
        """Give the run back; ``close`` waits a little for it. ``brief``: at once, whatever the logs still lack."""
        # Nothing is under way then, unless this pod's time is over: no manifest of ours comes after the release.
        self.transfers.cancel("publish", "This pod's time is over.")
        self.claiming.rest()
        self._given_back = self._put_awaited("claims", lambda: self._release_run(action))

    def _release_run(self, action: a.Release) -> None:
        self._logged.wait(0.0 if action.brief else LAST_LOGS_S)  # afterwards nothing of ours is written
        self.claiming.give_back(action.code, mask_secrets(action.reason)[:LONGEST_LAST_WORDS])

    def put_heartbeat(self, value: dict[str, Any]) -> None:
        """Put a sign of life beside the steps. Blocks for one request; raises StoreError."""
        self._write_to_store("put-heartbeat", heartbeat=value)

    # ------------------------------------------------------------ look

    def catalogue(self, *, force: bool = False) -> None:
        """List the store, unless that was done a moment ago."""
        if not force and time.monotonic() - self._catalogue_t < STORE_FRESH_S:
            return
        if self._lanes.idle("catalogue"):
            self._lanes.put("catalogue", self._read_catalogue)

    def check(self) -> None:
        """Compare the store's listing with its manifests; what is damaged is told and remembered, never deleted."""
        if self._lanes.idle("check"):
            self._lanes.put("check", self._check_store)

    def _check_store(self) -> None:
        try:
            answer = self._ask_briefly("verify")
            if any(one["problems"] for one in answer["steps"] if one["committed"]) or answer["problems"]:
                # A listing may be seconds old, and a person is called for what it says: it has to say so twice.
                time.sleep(CHECK_AGAIN_S)
                answer = self._ask_briefly("verify")
        except StoreError:
            return  # the look at the store says so when it is away
        looked = [one for one in answer["steps"] if one["committed"]]
        damaged = {str(one["step"]): f"{one['problems'][0]}." for one in looked if one["problems"]}
        if looked:
            self._run.post(f.StoreChecked(tuple(int(one["step"]) for one in looked if not one["problems"]), damaged))
        for problem in answer["problems"]:
            self._run.post(f.Remark("store-damaged", f"{problem[:1].upper()}{problem[1:]}."))

    def _read_catalogue(self) -> None:
        try:
            answer = self._ask_briefly("catalogue")
        except StoreError as error:
            self._catalogue_t = 0.0
            self._run.post(f.StoreSteps(reason=str(error), permanent=error.kind in ("permanent", "quota")))
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
        self._run.post(
            f.StoreSteps(
                steps,
                latest.get("step"),
                wandb_id=str(latest.get("wandb_run_id") or ""),
                happened=happened,
                pinned=tuple(answer.get("pinned", ())),
                reading=tuple(answer.get("reading", ())),
                pins_reason=str(answer.get("pins_problem", "")),
                held=tuple(answer.get("held", ())),
                holds=tuple(Hold(**one) for one in answer.get("holds", ())),
            )
        )
        if not self._records_read:
            self._read_records()

    # ------------------------------------------------------------ steps

    def ask_to_publish(self, action: a.Publish) -> None:
        """Send a step once what is under way on that lane is done."""
        self._publishing, self._left = action.step, -1
        self._lanes.put("publish", lambda: self.publish(action))

    def publish(self, action: a.Publish) -> bool:
        """Send a step, and the run's files beside it, once nothing that comes before any step is left to do there.

        Is it in the store now?
        """
        job, began = self._run.job, time.monotonic()
        if job is None:
            self._run.post(f.PublishFailed(action.step, "the trainer is not installed.", step_changed=True))
            return False
        try:
            if self._unkept:
                raise StoreError("transient", f"the store does not know yet which steps are left: {self._unkept}")
            if self._unswept:
                self.sweep()
            check = job.check_step(action.step, settled=True)
            if check.state != "complete":
                raise StoreError("changed", f"step {action.step} is no longer complete: {check.reason}")
            self._describe_run(job)
            facts = job.facts()
            more = {
                "step": action.step,
                "files": [{"source": str(file.source), "name": file.name} for file in job.step_files(action.step)],
                "wandb_run_id": self._sights.wandb_id(),
                "allow_back": action.back,
                "state_dir": str(self._run.state_dir / "publish"),
                "extra": {
                    "dialect": facts.name,
                    "revision": facts.revision,
                    "config_sha256": self._described.split("/")[0],
                    "step_base": facts.first_step,
                    "reward": action.reward,
                },
            }
            if self._left == action.step:
                raise StoreError("changed", "The run has left that step.")
            answer = self.claiming.write(
                lambda signed: self._move_step(self._ask_store("publish", **more, **signed), "publish")
            )
        except StoreError as error:
            changed = error.kind == "changed"
            permanent = error.kind in ("permanent", "quota")
            self._run.post(f.PublishFailed(action.step, str(error), permanent=permanent, step_changed=changed))
            return False
        except OSError as error:
            self._run.post(f.PublishFailed(action.step, f"{error.filename}: {error.strerror}.", step_changed=True))
            return False
        if left := str(answer.get("left", "")):
            told = f"the store has the same bytes, and {left}. So no pod resumes at it here, either."
            self._run.post(f.PublishFailed(action.step, told, step_changed=True, left=True))
            return False
        seconds = time.monotonic() - began
        sent = int(answer.get("sent_bytes", 0))
        self._run.post(f.Published(action.step, int(answer["size_bytes"]), seconds, sent))
        return True

    def _describe_run(self, job: Job) -> None:
        """Put the run's settings and the trainer's configuration beside its steps, so that the next pod has them."""
        newest = sorted((self._run.state_dir / "attempts").glob("[0-9]*/config.json"))
        configs = read_snapshot(newest[-1].parent) if newest else {path: path for path in job.config_files()}
        run_file = self._run.run_file
        mark = f"{digest(configs)}/{run_file.model_dump_json()}"
        if mark == self._described:
            return
        texts, hiding = describe(run_file, configs)
        self._write_to_store("put-run-files", files={name: _in_base64(text.encode()) for name, text in texts.items()})
        self._described = mark
        for path in hiding:
            told = f"{path} holds what looks like a secret: the store's copy of it has *** there, so no other pod can"
            self._run.post(
                f.Remark("masked", f"{told} use that copy. Give each pod its own, or name a variable there.")
            )

    def fetch_ahead(self, step: int) -> threading.Event:
        """Fetch a step while the trainer that says where it belongs is being installed; ``restore`` puts it there.

        The event is set once it is here, or not to be had: then ``restore`` says why.
        """
        run_file = self._run.run_file

        def fetch() -> None:
            with contextlib.suppress(SupervisorError, OSError):
                early = None if self._run.disks is not None else pod_setup.early_folder(run_file, step)
                if early is not None:
                    place = {"primary": f"step_{step}"}
                    asked = self._ask_store("restore", step=step, output_dir=str(early), place=place)
                    self.transfers.run(asked, what="restore")
                    self._early = early

        return self._put_awaited("restore", fetch)

    def restore(self, action: a.Restore, fetched: threading.Event | None = None) -> None:
        """Fetch a step to where the job looks for it, or put it there once ``fetched`` is set."""
        began = time.monotonic()
        if fetched is not None:
            fetched.wait()
        try:
            job = self._run.need_job()
            move_aside.make_for_job(job.output_dir)
            early, self._early = self._early, None
            if early is not None and early.name == str(action.step):
                with contextlib.suppress(OSError, ValueError):  # what is not in its place is fetched again
                    pod_setup.place_early(early, job, action.step)
            pod_setup.forget_early(self._run.run_file)  # it would take the room that is needed now
            answer = self._move_step(self._ask_to_restore(job, action.step), "restore")
            check = job.check_step(action.step, settled=True)
            move_aside.move_aside([Path(path) for path in answer.get("moved_aside", [])], job.output_dir, "replaced")
        except StoreError as error:
            damaged = error.kind == "damaged" or (error.kind == "missing" and self._still_missing(action.step))
            self._run.post(
                f.RestoreFailed(action.step, str(error), damaged, error.kind == "permanent", error.kind == "no-room")
            )
            return
        except (SupervisorError, OSError) as error:
            permanent = isinstance(error, (ConfigError, UnknownDialectError))
            self._run.post(f.RestoreFailed(action.step, str(error), permanent=permanent))
            return
        if check.state != "complete":
            reason = f"it came whole from the store and is not loadable: {check.reason}"
            self._run.post(f.RestoreFailed(action.step, reason, damaged=True))
            return
        seconds = time.monotonic() - began
        self._run.post(f.Restored(action.step, int(answer["size_bytes"]), seconds, bool(answer.get("verified", True))))

    def bring_step(self, job: Job, step: int | None) -> None:
        """Have the start bring a step to each machine that it takes, where they have disks of their own.

        A step that is whole over them is published before: a rank may need what another one saved.
        """
        if (disks := self._run.disks) is None:
            return
        asked = None if step is None else self._ask_to_restore(job, step)
        if step is not None and asked is not None and disks.lacks(asked) and not self.publish(a.Publish(step)):
            # What the store has of that number may be of a lineage that the run has left.
            raise TryAgainError(f"Step {step} is not published, so it cannot be brought to all machines")
        disks.bring_step(asked)

    def _ask_to_restore(self, job: Job, step: int) -> dict[str, Any]:
        place = {"primary": job.place(step, "x").parent.as_posix()}
        return self._ask_store("restore", step=step, output_dir=str(job.output_dir), place=place)

    def _move_step(self, asked: dict[str, Any], what: str) -> dict[str, Any]:
        disks = self._run.disks
        return self.transfers.run(asked, what=what) if disks is None else disks.run(self.transfers, asked, what)

    def _still_missing(self, step: int) -> bool:
        """Is a listed step missing again and again? One look proves nothing: listings may be seconds old, or gone."""
        self._catalogue_t = float("-inf")  # the next look at the checkpoints lists the store anew
        self._missing[step] = self._missing.get(step, 0) + 1
        return self._missing[step] >= MISSING_LOOKS

    def prune(self, action: a.PruneStore) -> None:
        """Delete a step there."""
        try:
            answer = self._write_to_store("delete", step=action.step)
        except StoreError as error:
            self._run.post(f.PruneFailed(action.step, "store", str(error)))
            return
        self._run.post(f.Pruned(action.step, "store", int(answer.get("freed_bytes", 0))))

    def pin(self, action: a.Pin) -> None:
        """Write down that a step is pinned, or no longer."""
        reason, permanent = self._try_to_write("pin", step=action.step, pinned=action.pinned)
        self._run.post(f.PinKept(action.step, action.pinned, reason, permanent))

    def keep_holds(self, action: a.KeepHolds) -> None:
        """Write down which steps are held while training is worth nothing, and why."""
        holds = [vars(one) for one in action.holds]
        reason, permanent = self._try_to_write("hold", steps=list(action.steps), holds=holds)
        self._run.post(f.HoldsKept(action.steps, action.holds, reason, permanent))

    def _try_to_write(self, do: str, **more: Any) -> tuple[str, bool]:
        """As ``_write_to_store``, of ``pins.json``: why that failed, "" where it did not; and is it no use to go on?"""
        try:
            self._write_to_store(do, **more)
        except StoreError as error:
            return str(error), error.kind in ("permanent", "damaged")
        return "", False

    def end_left_publish(self, action: a.KeepLineage) -> None:
        """End the publish of a step that the run leaves: a pod that vanishes meanwhile would leave it as the newest."""
        step, happened = self._publishing, [(one.kind, one.step) for one in action.happened]
        if ("quarantine", step) in happened or any(kind == "rollback" and step > last for kind, last in happened):
            self._left = step  # it may still wait for its turn
            self.transfers.cancel("publish", "The run has left that step.")

    def keep_lineage(self, action: a.KeepLineage) -> None:
        """Write down which steps were left, and why; no step is published before that is known there."""
        happened = [vars(one) for one in action.happened]
        try:
            answer = self._write_to_store("lineage", happened=happened)
        except StoreError as error:
            self._unkept = str(error)
            self._run.post(f.LineageFailed(str(error)))
            return
        self._unkept = ""
        self._run.post(f.LineageKept(len(happened), answer.get("pointer")))
        self.catalogue(force=True)

    def sweep(self) -> None:
        """What other pods left half-sent is billed, and no pod will finish it. Tried again before the next publish."""
        self._unswept = True
        try:
            answer = self._write_to_store("sweep")
        except StoreError:
            return  # the publish tells when the store is away
        self._unswept = False
        self._run.post(f.Swept(int(answer["cancelled"])))

    # ------------------------------------------------------------ records and logs

    def _read_records(self) -> None:
        """Tell the core, once, what other pods left about this run."""
        try:
            answer = self._ask_briefly("get-records")
        except StoreError:
            return  # the next look at the store tries again, and says so when the store is away
        self._records_read = True
        found = {str(name): base64.b64decode(text) for name, text in answer["records"].items()}
        learned, ledgers = run_records.of_others(found, self._run.journal, time.time())
        if learned is not None:
            self._run.post(f.StoreRecords(learned, ledgers))

    def keep_records(self, action: a.KeepRecords) -> None:
        """Queue this pod's records; ``close`` waits a little for them."""
        self._kept = self._put_awaited("records", lambda: self._keep_records(action))

    def _keep_records(self, action: a.KeepRecords) -> None:
        record = run_records.Record(action.journal, action.learned, action.ledger)
        text = _in_base64(run_records.to_bytes(record))
        with contextlib.suppress(StoreError):  # the publish tells when the store is away, and more records follow
            # Not signed: one object a journal, so no other pod's is ever replaced; and the last one is written
            # while the run is being given back.
            self._ask_briefly("put-record", journal=action.journal, record=text)

    def upload_logs(self, attempt: int) -> None:
        """Queue an upload of the ends of the attempt's logs: the next pod's owner wants to know how this one ended."""
        if self._lanes.idle("logs"):
            self._lanes.put("logs", lambda: self._upload_logs(attempt))

    def last_logs(self, attempt: int) -> None:
        """Queue an upload of how the attempt ended; ``close`` waits a little for it."""
        with contextlib.suppress(OSError):
            texts = log_ends(self._sights.log_files())
            self._logged = self._put_awaited("logs", lambda: self._send_logs(attempt, texts))

    def _upload_logs(self, attempt: int) -> None:
        self._send_logs(attempt, log_ends(self._sights.log_files()))
        for owed in sorted(self._owed - {attempt}):
            self._send_logs(owed, {})  # its logs are another attempt's by now, its evidence is its own

    def _send_logs(self, attempt: int, texts: Mapping[str, bytes]) -> None:
        """Without secrets, packed; and the bundles of evidence that are not there yet, which hold none."""
        texts = {**texts, **_read_series(self._run.state_dir, attempt)}
        bundles = to_send(bundles_dir(self._run.state_dir), attempt, {name for of, name in self._sent if of == attempt})
        if not (texts or bundles) or not self._run.journal:
            self._owed.discard(attempt)
            return
        packed = {name: _in_base64(pack(mask_secrets(data.decode(errors="replace")))) for name, data in texts.items()}
        packed |= {name: _in_base64(pack(text)) for name, text in bundles.items()}
        # No two pods write the same log; but the oldest ones go, and they may be another pod's.
        self._owed.add(attempt)
        with contextlib.suppress(StoreError):  # a courtesy: the publish tells when the store is away
            self._write_to_store("put-logs", journal=self._run.journal, attempt=attempt, logs=packed)
            self._sent.update((attempt, name) for name in bundles)
            self._owed.discard(attempt)


def _read_series(state_dir: Path, attempt: int) -> dict[str, bytes]:
    try:
        return {SERIES: path_of(state_dir, attempt).read_bytes()}
    except OSError:
        return {}


def _in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
