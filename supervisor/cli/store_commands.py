"""`rl-supervisor publish|prune|verify|logs`: what the daemon does by itself, done once by a person.

``--dry-run`` says what would happen and changes nothing. Nothing here touches a folder that a living daemon watches.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from supervisor.base.errors import SupervisorError, TryAgainError
from supervisor.checkpoints.claims import Standing
from supervisor.checkpoints.writers import host_of, same_pod, writer_name
from supervisor.config.settings import RunFile
from supervisor.core import facts as f
from supervisor.core.interval import count
from supervisor.core.retention import safe_locally
from supervisor.core.state import Local, Pins, State, Store
from supervisor.core.words import numbers, size
from supervisor.daemon.witness import claimant
from supervisor.effects import move_aside
from supervisor.effects.claiming import STALL_S, beat_time, claim_once, not_given_back
from supervisor.effects.patient_transfers import PatientTransfers, on_stderr
from supervisor.effects.transfers import Transfers, request
from supervisor.jobs.base import Job
from supervisor.journal.journal import Journal
from supervisor.primerl import open_job
from supervisor.process import pod_identity
from supervisor.storage.base import StoreError

MOST_REASONS = 5


def publish(
    run_file: RunFile, step: int | None, *, dry_run: bool, transfers: Transfers | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Send a complete local step (None: the newest) to the store; returns what was done and what to tell."""
    transfers = transfers or PatientTransfers(os.environ, run_file.store.stall_s)
    job = open_job(run_file, os.environ)
    checks = {number: job.check_step(number) for number in job.steps()}
    complete = [number for number, check in checks.items() if check.state == "complete"]
    if not complete or (step is not None and step not in complete):
        raise SupervisorError(_nothing_to_publish(job, step, {n: check.reason for n, check in checks.items()}))
    wanted = step if step is not None else complete[-1]
    files = job.step_files(wanted)
    total = sum(file.source.stat().st_size for file in files)
    if dry_run:
        told = f"Would publish step {wanted}: {count(len(files), 'file')}, {size(total)}, to {run_file.store_url}."
        return {"step": wanted, "size_bytes": total, "files": len(files), "done": False}, [told]
    facts = job.facts()
    order = request(
        run_file,
        "publish",
        step=wanted,
        files=[{"source": str(file.source), "name": file.name} for file in files],
        wandb_run_id=run_file.wandb.id or "",
        allow_back=False,
        reread=step is not None,  # a step that is named is perhaps to be mended; the newest one is perhaps sent by cron
        state_dir=str(run_file.state_dir / "publish"),
        extra={"dialect": facts.name, "revision": facts.revision, "config_sha256": "", "step_base": facts.first_step},
    )
    with alone(run_file, "publishes by itself"), hold_run(run_file) as signed:
        answer = transfers.run({**order, **signed}, what="publish")
    sent = size(int(answer.get("sent_bytes", 0)))
    told = f"Published step {wanted}: {size(int(answer['size_bytes']))}, {sent} sent, to {run_file.store_url}."
    if answer.get("already"):
        proven = ": every byte there was read again, and is good" if step is not None else ""
        told = f"Step {wanted} ({size(int(answer['size_bytes']))}) is published already, in {run_file.store_url}"
        told += f"{proven}."
    note = str(answer.get("note") or "").rstrip(".")
    return answer | {"done": True}, [told, *([_as_sentence(note)] if note else [])]


def _nothing_to_publish(job: Job, step: int | None, reasons: Mapping[int, str]) -> str:
    if not reasons:
        return f"There is no step under {job.output_dir}."
    if step is not None and step in reasons:
        return f"Step {step} under {job.output_dir} is not complete and cannot be published: {reasons[step]}."
    asked = f"step {step}" if step is not None else "complete step"
    complete = [number for number, reason in reasons.items() if not reason]
    rest = [f"{number}: {reason}" for number, reason in reasons.items() if reason][-MOST_REASONS:]
    others = f"; not complete are {'; '.join(rest)}" if rest else ""
    return f"There is no {asked} to publish under {job.output_dir}: complete are {numbers(complete)}{others}."


def prune(run_file: RunFile, *, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
    """Delete the local steps that are safe to delete now, whatever the disk's threshold says.

    Returns what was done and what to tell.
    """
    job = open_job(run_file, os.environ)
    _not_anothers(run_file)
    catalogue = PatientTransfers(os.environ, run_file.store.stall_s).run(request(run_file, "catalogue"))
    state = State(
        settings=f.Settings(run_id=run_file.run.id),
        local=Local(steps=tuple(_local_step(job, number) for number in job.steps())),
        store=Store(
            steps=tuple(
                f.StoredStep(
                    int(s["step"]),
                    bool(s["committed"]),
                    int(s["size_bytes"]),
                    left=str(s.get("left", "")),  # a step that no run resumes at makes nothing safe
                    legacy=bool(s.get("legacy")),
                )
                for s in catalogue["steps"]
            ),
            latest=(catalogue.get("latest") or {}).get("step"),
        ),
        pins=Pins(steps=tuple(job.steps() if catalogue["pins_problem"] else catalogue["pinned"])),
    )
    victims = safe_locally(state, run_file.disk.keep_local)
    done: dict[str, Any] = {"steps": victims, "freed_bytes": 0, "done": not dry_run}
    if not victims:
        return done, [f"Nothing under {job.output_dir} is safe to delete: unpublished, pinned and newest steps stay."]
    told = []
    if dry_run:
        sizes = {s.step: s.size_bytes for s in state.local.steps}
        return done, [f"Would delete step {step} ({size(sizes[step])})." for step in victims]
    with alone(run_file, "prunes by itself"):
        for step in victims:
            freed = move_aside.delete_trees(job.step_trees(step), job.output_dir)
            kept = [number for number in job.steps() if number != step]
            freed += move_aside.delete_trees(job.stale_trees(kept, step + 1), job.output_dir)
            told.append(f"Deleted step {step}, {size(freed)} free again.")
            done["freed_bytes"] += freed
    return done, told


def verify(
    run_file: RunFile,
    step: int | None,
    deep: float,
    seed: int,
    transfers: Transfers | None = None,
    *,
    has_job: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Compare the store with its manifests, and ``deep`` percent of its parts with their hashes. Changes nothing.

    ``has_job``: the run file tells where the job's steps lie on this disk. Returns what was found and what to tell; its
    field ``damaged`` says whether something that was published is not as it was. Raises SupervisorError when there is
    no step at all.
    """
    asked = request(run_file, "verify", deep=deep, seed=seed, **({} if step is None else {"step": step}))
    transfers = transfers or PatientTransfers(os.environ, run_file.store.stall_s)
    found = transfers.run(asked, what="verify")
    told = []
    for one in found["steps"]:
        name, amount = f"Step {one['step']}", size(int(one["size_bytes"]))
        if not one["committed"]:
            told.append(f"{name}: {one['problems'][0]}. It is no checkpoint, and nothing was looked at in it.")
        elif one["problems"]:
            told += [f"{name} is damaged: {problem}." for problem in one["problems"]]
        else:
            by_size = ", by names and sizes (--deep 100 reads all bytes)"
            read = f", {size(int(one['read_bytes']))} of it read again" if one["read_bytes"] else by_size
            told.append(f"{name} is good: {count(int(one['files']), 'file')}, {amount}{read}.")
    told += [_as_sentence(str(problem)) for problem in found["problems"]]
    whole = [int(one["step"]) for one in found["steps"] if one["committed"] and not one["problems"]]
    good = len(whole)
    if found["damaged"]:
        others = "" if step is not None else f" {good} good step{' is' if good == 1 else 's are'} there;"
        told.append(
            f"Something in {run_file.store_url} is damaged.{others or ' Nothing else was looked at, and'} nothing was "
            "deleted."
        )
        if found["problems"] and whole:
            told.append(
                f"The next publish writes latest.json anew: `rl-supervisor publish RUN.toml --step {max(whole)}`."
            )
        rotten = [int(one["step"]) for one in found["steps"] if one["committed"] and one["problems"]]
        if rotten and whole and max(rotten) > max(whole):
            newest = max(whole)
            told.append(f"The newest step that was found good is {newest}. Keep it: `supervisorctl pin {newest}`.")
        told += _how_to_mend(rotten, _complete_here(run_file) if has_job else None)
        if rotten and deep and (deep < 100 or step is not None):
            told.append("Other steps may hold the same bytes, rotten too: `--deep 100` without --step reads them all.")
    elif not found["steps"]:
        raise SupervisorError(
            f"There is no step of run {run_file.run.id} in {run_file.store_url}. Are the URL and the run's name right?"
        )
    return found, told


def _complete_here(run_file: RunFile) -> set[int] | None:
    """Steps that are complete on this disk; None where the job cannot be looked at."""
    try:
        job = open_job(run_file, os.environ)
    except SupervisorError:
        return None
    return {number for number in job.steps() if job.check_step(number).state == "complete"}


def _how_to_mend(damaged: list[int], here: set[int] | None) -> list[str]:
    """What a person does about damaged steps. ``here``: those that are complete on this disk, where that is known."""
    if not damaged:
        return []
    safe = (
        "A restore compares every byte: no pod resumes at a damaged step, each takes the good one before. `b2 sync` "
        "does not compare large files."
    )
    publish_it = "`rl-supervisor publish RUN.toml --step"
    if here is None:
        return [f"If the damaged step is still complete on a pod, {publish_it} N` mends it there.", safe]
    told = [
        f"Step {step} is complete on this disk. While no daemon runs here, {publish_it} {step}` sends anew what is "
        "damaged."
        for step in damaged
        if step in here
    ]
    if gone := [step for step in damaged if step not in here]:
        subject = f"Step {gone[0]} is" if len(gone) == 1 else f"Steps {numbers(gone)} are"
        told.append(
            f"{subject} not complete on this disk, and cannot be mended from here. {publish_it} N` mends a step on a "
            "pod that still has it."
        )
    return [*told, safe]


def logs(run_file: RunFile, attempt: int | None) -> dict[str, Any]:
    """What is in the store of all attempts' logs, or the texts of one attempt. Raises SupervisorError."""
    transfers = PatientTransfers(os.environ, run_file.store.stall_s)
    if attempt is None:
        return transfers.run(request(run_file, "list-logs"))
    found = transfers.run(request(run_file, "get-logs", attempt=attempt))
    if not found["logs"]:
        raise SupervisorError(
            f"There is no log of attempt {attempt} in {run_file.store_url}; without --attempt all are listed."
        )
    return found


@contextmanager
def alone(run_file: RunFile, does: str, instead: str = "") -> Iterator[None]:
    """Hold the run's lock, so that no daemon acts on the same folders meanwhile. Raises TryAgainError.

    ``does`` completes "A daemon watches the run and ...", ``instead`` "Stop it first, or ...".
    """
    folder = run_file.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        opened = (folder / "lock").open("a")  # the holder's name stays in it
    except OSError as error:
        raise SupervisorError(
            f"The state folder {folder} cannot be used: {error.strerror}. See that this user may write there, or name "
            "another with run.state_dir."
        ) from error
    with opened as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TryAgainError(
                f"A daemon watches run {run_file.run.id} and {does}. Stop it first (supervisorctl shutdown)"
                f"{f', or {instead}' if instead else ''}."
            ) from error
        yield


@contextmanager
def hold_run(run_file: RunFile) -> Iterator[dict[str, Any]]:
    """Hold the run in the store meanwhile; yields what a request says of its writer.

    Raises SupervisorError when another pod holds it.
    """
    if run_file.store.url is None:  # the embedded store is this machine's own
        yield {}
        return
    transfers = PatientTransfers(os.environ, run_file.store.stall_s)
    journal = Journal(run_file.state_dir)
    try:
        identity = claimant(run_file.state_dir) or journal.identity()
    finally:
        journal.close()
    place = pod_identity.place_of_pod(os.environ, run_file.state_dir)
    writer = writer_name(socket.gethostname(), identity, secrets.token_hex(4), place)
    patience_s = run_file.store.take_over_after
    found = claim_once(lambda do, more: transfers.run(request(run_file, do, **more)), writer, patience_s, on_stderr)
    if found["writer"] != writer:
        raise SupervisorError(
            f"Pod {host_of(str(found['writer']))} holds run {run_file.run.id} (generation {found['generation']}), and "
            "one pod alone writes to its store. End that one first; if it is gone for good, take the run over with: "
            "rl-supervisor run RUN.toml --take-over"
        )
    signed = {"writer": writer, "generation": int(found["generation"])}
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: the run is given back
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores a SIGHUP
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with _keep_beating(run_file, signed):
            yield signed
    finally:
        _give_back(run_file, signed)


def _give_back(run_file: RunFile, signed: Mapping[str, Any]) -> None:
    """Once other pods would go on by themselves, no release is of use any more: for so long it is tried."""
    patience_s = run_file.store.take_over_after
    transfers = PatientTransfers(os.environ, run_file.store.stall_s, patience_s=patience_s)
    try:
        transfers.run(request(run_file, "release", **signed))
    except StoreError as error:
        if error.kind != "fenced":  # else it is another pod's already
            on_stderr(not_given_back(patience_s, str(error)))


@contextmanager
def _keep_beating(run_file: RunFile, signed: Mapping[str, Any]) -> Iterator[None]:
    """Keep the heartbeat moving, as the daemon does: an upload may take longer than others are patient."""
    over = threading.Event()
    transfers = Transfers(os.environ, STALL_S)
    state_dir = str(run_file.state_dir / "publish")

    def beat() -> None:
        beats = 0
        while not over.wait(beat_time(run_file.store.take_over_after)):
            beats += 1
            with suppress(StoreError):  # what it means that the run was lost is told to the publish
                transfers.run(request(run_file, "beat", count=beats, state_dir=state_dir, **signed))

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        over.set()
        transfers.close()
        thread.join()


def _not_anothers(run_file: RunFile) -> None:
    """Raises SupervisorError when another pod holds the run: what it published makes nothing here superfluous."""
    if run_file.store.url is None:
        return
    found = Standing(**PatientTransfers(os.environ, run_file.store.stall_s).run(request(run_file, "standing")))
    place = pod_identity.place_of_pod(os.environ, run_file.state_dir)
    here = writer_name(socket.gethostname(), claimant(run_file.state_dir) or "", "0000", place)
    if not found.free and not same_pod(found.writer, here):
        raise SupervisorError(
            f"Pod {host_of(found.writer)} holds run {run_file.run.id} (generation {found.generation}), and what it "
            "published may be other steps than those of the same numbers here: nothing was deleted. If it is gone for "
            "good, take the run over with: rl-supervisor run RUN.toml --take-over"
        )


def _as_sentence(problem: str) -> str:
    """A clause as a sentence; a file's name stays as it is written."""
    first = problem.split(" ", 1)[0]
    return f"{problem if '.' in first else problem[:1].upper() + problem[1:]}."


def _local_step(job: Job, step: int) -> f.LocalStep:
    check = job.check_step(step)
    return f.LocalStep(step, check.state, check.reason, check.size_bytes, check.changed_wall)
