"""`rl-supervisor restore|publish|prune`: what the daemon does by itself, done once by a person.

``--dry-run`` says what would happen and changes nothing. Nothing here touches a folder that a living daemon watches.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from supervisor.checkpoints.claims import host_of, settle_time, writer_name
from supervisor.config import RunFile
from supervisor.core import facts as f
from supervisor.core.retention import safe_locally
from supervisor.core.state import State
from supervisor.core.words import size
from supervisor.effects import aside
from supervisor.effects.carry_out import whole
from supervisor.effects.transfers import Transfers, request
from supervisor.errors import SupervisorError, TryAgainError
from supervisor.jobs.base import Job
from supervisor.journal import Journal
from supervisor.primerl import open_job
from supervisor.storage.base import StoreError


def restore(run_file: RunFile, step: int | Literal["best"] | None, to: Path | None, *, dry_run: bool) -> list[str]:
    """Fetch a step to the job's folders, or below ``to``; returns what to tell.

    ``step`` None: the newest good one, "best": the one of the highest reward; neither takes a step that was left.
    Raises SupervisorError when there is no such step, it is damaged, or a daemon watches the target.
    """
    transfers = Transfers(os.environ, run_file.store.stall_s)
    catalogue = transfers.run(request(run_file, "catalogue"))
    pointer = catalogue.get("latest") or {}
    committed = sorted(int(s["step"]) for s in catalogue["steps"] if whole(s, pointer))
    if not committed:
        raise SupervisorError(f"There is no step of run {run_file.run.id} in {run_file.store_url}.")
    latest = pointer.get("step")
    left = {int(s["step"]) for s in catalogue["steps"] if s.get("left")}
    good = [number for number in committed if number not in left] or committed
    if step == "best":
        step = _best(catalogue["steps"], good, run_file)
    wanted = step if step is not None else (latest if latest in good else good[-1])
    if wanted not in committed:
        there = ", ".join(map(str, committed))
        raise SupervisorError(f"Step {wanted} is not in {run_file.store_url}; there are {there}.")
    where = to.absolute() if to else run_file.output_dir
    bytes_ = next(int(s["size_bytes"]) for s in catalogue["steps"] if int(s["step"]) == wanted)
    if dry_run:
        return [f"Would restore step {wanted} ({size(bytes_)}) from {run_file.store_url} to {where}."]
    if to:
        primary = f"step_{wanted}"
        where.mkdir(parents=True, exist_ok=True)
        answer = transfers.run(_restore(run_file, wanted, where, primary))
        return [_restored(wanted, answer, where / primary)]
    with alone(run_file):
        job = open_job(run_file, os.environ)
        job.output_dir.mkdir(parents=True, exist_ok=True)
        primary = job.place(wanted, "x").parent.as_posix()
        answer = transfers.run(_restore(run_file, wanted, job.output_dir, primary))
        check = job.check_step(wanted, settled=True)
    told = [_restored(wanted, answer, job.output_dir / primary)]
    if check.state != "complete":
        raise SupervisorError(f"Step {wanted} came from the store and cannot be loaded: {check.reason}")
    return told


def publish(run_file: RunFile, step: int | None, *, dry_run: bool) -> list[str]:
    """Send a complete local step (None: the newest) to the store."""
    job = open_job(run_file, os.environ)
    complete = [number for number in job.steps() if job.check_step(number).state == "complete"]
    if not complete or (step is not None and step not in complete):
        states = ", ".join(f"{n} ({job.check_step(n).reason or 'complete'})" for n in job.steps()) or "none at all"
        asked = f"step {step}" if step is not None else "a complete step"
        raise SupervisorError(f"There is no {asked} to publish under {job.output_dir}: there are {states}.")
    wanted = step if step is not None else complete[-1]
    files = job.step_files(wanted)
    total = sum(file.source.stat().st_size for file in files)
    if dry_run:
        return [f"Would publish step {wanted}: {len(files)} files, {size(total)}, to {run_file.store_url}."]
    facts = job.facts()
    order = request(
        run_file,
        "publish",
        step=wanted,
        files=[{"source": str(file.source), "name": file.name} for file in files],
        wandb_run_id=run_file.wandb.id or "",
        allow_back=False,
        state_dir=str(run_file.state_dir / "publish"),
        extra={"dialect": facts.name, "revision": facts.revision, "config_sha256": "", "step_base": facts.first_step},
    )
    with alone(run_file), held(run_file) as signed:
        answer = Transfers(os.environ, run_file.store.stall_s).run({**order, **signed})
    sent = size(int(answer.get("sent_bytes", 0)))
    return [f"Published step {wanted}: {size(int(answer['size_bytes']))}, {sent} sent, to {run_file.store_url}."]


def prune(run_file: RunFile, *, dry_run: bool) -> list[str]:
    """Delete the local steps that are safe to delete now, whatever the disk's threshold says."""
    job = open_job(run_file, os.environ)
    catalogue = Transfers(os.environ, run_file.store.stall_s).run(request(run_file, "catalogue"))
    state = State(
        settings=f.Settings(run_id=run_file.run.id),
        local=tuple(_local(job, number) for number in job.steps()),
        store=tuple(
            f.StoredStep(int(s["step"]), bool(s["committed"]), int(s["size_bytes"])) for s in catalogue["steps"]
        ),
        store_latest=(catalogue.get("latest") or {}).get("step"),  # what lies above the pointer makes nothing safe
    )
    victims = safe_locally(state, run_file.disk.keep_local)
    if not victims:
        return [f"Nothing under {job.output_dir} is safe to delete: unpublished and newest steps stay."]
    told = []
    if dry_run:
        sizes = {s.step: s.size_bytes for s in state.local}
        return [f"Would delete step {step} ({size(sizes[step])})." for step in victims]
    with alone(run_file):
        for step in victims:
            freed = aside.delete_trees(job.step_trees(step), job.output_dir)
            kept = [number for number in job.steps() if number != step]
            freed += aside.delete_trees(job.stale_trees(kept, step + 1), job.output_dir)
            told.append(f"Deleted step {step}, {size(freed)} free again.")
    return told


def verify(run_file: RunFile, step: int | None, deep: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Compare the store with its manifests, and ``deep`` percent of its parts with their hashes. Changes nothing.

    Returns what was found and what to tell; its field ``damaged`` says whether something that was published is not
    as it was.
    """
    asked = request(run_file, "verify", deep=deep, seed=seed, **({} if step is None else {"step": step}))
    found = Transfers(os.environ, run_file.store.stall_s).run(asked)
    told = []
    for one in found["steps"]:
        name, amount = f"Step {one['step']}", size(int(one["size_bytes"]))
        if not one["committed"]:
            told.append(f"{name}: {one['problems'][0]}. It is no checkpoint, and nothing was looked at in it.")
        elif one["problems"]:
            told += [f"{name} is damaged: {problem}." for problem in one["problems"]]
        else:
            read = f", {size(int(one['read_bytes']))} of it read again" if one["read_bytes"] else ""
            told.append(f"{name} is good: {one['files']} files, {amount}{read}.")
    told += [f"{problem[:1].upper()}{problem[1:]}." for problem in found["problems"]]
    good = sum(1 for one in found["steps"] if one["committed"] and not one["problems"])
    if found["damaged"]:
        told.append(
            f"Something in {run_file.store_url} is damaged. {good} good steps are there; nothing was deleted. If the "
            "damaged step is still complete on a pod, `rl-supervisor publish --step N` mends it."
        )
    elif not found["steps"]:
        told.append(f"There is nothing of run {run_file.run.id} in {run_file.store_url}.")
    return found, told


def logs(run_file: RunFile, attempt: int | None) -> dict[str, Any]:
    """What is in the store of all attempts' logs, or the texts of one attempt. Raises SupervisorError."""
    transfers = Transfers(os.environ, run_file.store.stall_s)
    if attempt is None:
        return transfers.run(request(run_file, "list-logs"))
    found = transfers.run(request(run_file, "get-logs", attempt=attempt))
    if not found["logs"]:
        raise SupervisorError(
            f"There is no log of attempt {attempt} in {run_file.store_url}; without --attempt all are listed."
        )
    return found


def _best(steps: list[dict[str, Any]], committed: list[int], run_file: RunFile) -> int:
    """The whole step with the highest reward; of equal ones the newest."""
    rewards = {int(s["step"]): s["reward"] for s in steps if s.get("reward") is not None}
    known = [(rewards[step], step) for step in committed if step in rewards]
    if not known:
        there = ", ".join(map(str, committed))
        raise SupervisorError(
            f"No step of run {run_file.run.id} in {run_file.store_url} says what its reward was, so none is the best. "
            f"Name one with --step; there are {there}."
        )
    return max(known)[1]


@contextmanager
def alone(run_file: RunFile) -> Iterator[None]:
    """Hold the run's lock, so that no daemon acts on the same folders meanwhile. Raises TryAgainError."""
    folder = run_file.state_dir
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TryAgainError(
                f"A daemon watches run {run_file.run.id} and does this by itself. Stop it first (supervisorctl "
                "shutdown), or restore to another folder with --to."
            ) from error
        yield


@contextmanager
def held(run_file: RunFile) -> Iterator[dict[str, Any]]:
    """Hold the run in the store meanwhile; yields what a request says of its writer.

    Raises SupervisorError when another pod holds it.
    """
    if run_file.store.url is None:  # the embedded store is this machine's own
        yield {}
        return
    transfers = Transfers(os.environ, run_file.store.stall_s)
    journal = Journal(run_file.state_dir)
    try:
        identity = journal.identity()
    finally:
        journal.close()
    writer = writer_name(socket.gethostname(), identity, secrets.token_hex(4))
    settle_s = settle_time(run_file.store.take_over_after)
    found = transfers.run(request(run_file, "claim", writer=writer, settle_s=settle_s))
    if found["writer"] != writer:
        raise SupervisorError(
            f"Pod {host_of(str(found['writer']))} holds run {run_file.run.id} (generation {found['generation']}), and "
            "one pod alone writes to its store. End that one first; if it is gone for good, take the run over with: "
            "rl-supervisor run --take-over"
        )
    signed = {"writer": writer, "generation": int(found["generation"])}
    try:
        yield signed
    finally:
        with suppress(StoreError):  # then the next pod waits until it is sure
            transfers.run(request(run_file, "release", **signed))


def _local(job: Job, step: int) -> f.LocalStep:
    check = job.check_step(step)
    return f.LocalStep(step, check.state, check.reason, check.size_bytes, check.changed_wall)


def _restore(run_file: RunFile, step: int, where: Path, primary: str) -> dict[str, Any]:
    return request(run_file, "restore", step=step, output_dir=str(where), place={"primary": primary})


def _restored(step: int, answer: dict[str, Any], where: Path) -> str:
    how = "every byte verified" if answer.get("verified", True) else "it has no manifest: sizes were checked only"
    return f"Restored step {step} ({size(int(answer['size_bytes']))}) to {where}, {how}."
