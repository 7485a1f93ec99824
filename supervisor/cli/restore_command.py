"""`rl-supervisor restore`: which step a person means, where it goes, and what they are told of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from supervisor.base.errors import SupervisorError
from supervisor.config.settings import RunFile
from supervisor.core.words import numbers, size
from supervisor.effects.move_aside import make_for_job
from supervisor.effects.patient_transfers import PatientTransfers
from supervisor.effects.transfers import Transfers, request
from supervisor.storage.base import StoreError

Wanted = int | Literal["latest", "best"]


@dataclass(frozen=True)
class Choice:
    """Steps to try, best first, and why the first one is. ``rewards`` by step, of those that tell theirs.

    ``damaged``: why a step cannot be chosen that was published once.
    """

    steps: tuple[int, ...]
    why: str
    sizes: dict[int, int] = field(default_factory=dict)
    rewards: dict[int, float] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)


def choose(run_file: RunFile, catalogue: dict[str, Any], wanted: Wanted) -> Choice:
    """Which steps are meant. Raises SupervisorError when there is none.

    "latest" is the newest good step, "best" the one of the highest reward (of equal ones the newest); neither takes a
    step that was left by a rollback or a quarantine, or that is not whole. A number is taken as it is.
    """
    pointer = catalogue.get("latest") or {}
    listed = [step for step in catalogue["steps"] if whole(step, pointer)]
    sizes = {int(step["step"]): int(step["size_bytes"]) for step in listed}
    left = {int(step["step"]): str(step["left"]) for step in listed if step.get("left")}
    rewards = {int(step["step"]): float(step["reward"]) for step in listed if step.get("reward") is not None}
    where = f"run {run_file.run.id} in {run_file.store_url}"
    asked = next((step for step in catalogue["steps"] if step["step"] == wanted), None)
    damaged = {
        int(step["step"]): str(step["problem"]).rstrip(".")
        for step in catalogue["steps"]
        if step.get("manifest") and step.get("problem") and int(step["step"]) not in sizes
    }
    if asked is not None and wanted not in sizes:
        problem = str(asked.get("problem") or "it was never published to its end").rstrip(".")
        how = "damaged" if wanted in damaged else "not whole"
        raise SupervisorError(f"Step {wanted} of {where} is {how}: {problem}. Whole are {numbers(sizes)}.")
    if not sizes:
        if damaged:
            told = "; ".join(damaged.values())
            raise SupervisorError(f"Every step of {where} that was published is damaged: {told}. Nothing was restored.")
        unfinished = [int(step["step"]) for step in catalogue["steps"]]
        more = (
            f": step{'' if len(unfinished) == 1 else 's'} {numbers(unfinished)} never got there whole"
            if unfinished
            else ""
        )
        raise SupervisorError(f"There is no step of {where}{more}. Are the URL and the run's name right?")
    if isinstance(wanted, int):
        if wanted not in sizes:
            raise SupervisorError(f"Step {wanted} is not in {where}; there are {numbers(sizes)}.")
        told = f"Step {wanted} was left ({left[wanted]}); it is taken since you named it." if wanted in left else ""
        return Choice((wanted,), told, sizes, rewards)
    good = sorted(set(sizes) - set(left), reverse=True)
    if not good:
        raise SupervisorError(
            f"Every step of {where} was left by a rollback or a quarantine: {numbers(sizes)}. To take one anyway, "
            "name it with --step."
        )
    if wanted == "latest":
        newest = pointer.get("step")
        if pointer.get("legacy") and newest in good:  # the original scripts know no other way back than their pointer
            return Choice(tuple(step for step in good if step <= newest), "", sizes, rewards, damaged)
        behind = newest is not None and newest < good[0]
        told = f"latest.json is behind: it names step {newest}, and step {good[0]} is whole." if behind else ""
        newer = {step: problem for step, problem in damaged.items() if step > good[0]}
        return Choice(tuple(good), told, sizes, rewards, newer)
    known = [step for step in good if step in rewards]
    if not known:
        raise SupervisorError(
            f"No step of {where} says what its reward was, so none is the best. Name one with --step; there are "
            f"{numbers(good)}."
        )
    best = sorted(known, key=lambda step: (rewards[step], step), reverse=True)
    silent = len(good) - len(known)
    why = f"Step {best[0]} is the best: its reward of {rewards[best[0]]:.4g} is the highest of {len(known)} good steps"
    why += f"; {silent} more do not say theirs." if silent else "."
    return Choice(tuple(best), why, sizes, rewards, damaged)


def whole(step: dict[str, Any], latest: dict[str, Any]) -> bool:
    """Was this stored step published to its end? The original scripts left no manifest, but moved the pointer last."""
    if step["committed"]:
        return True
    return bool(step.get("legacy") and latest.get("legacy") and int(step["step"]) <= int(latest["step"]))


def restore(
    run_file: RunFile, wanted: Wanted, to: Path | None, *, dry_run: bool, transfers: Transfers | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Fetch a step to the job's folders, or below ``to``; returns what was done and what to tell.

    A damaged step is told and left as it is, and of "latest" and "best" the next one is taken. Raises SupervisorError
    when there is no such step, all are damaged, the disk is too small or a daemon watches the target.
    """
    transfers = transfers or PatientTransfers(os.environ, run_file.store.stall_s)
    if to is not None and not dry_run:
        _make_folder(to)
    choice = choose(run_file, transfers.run(request(run_file, "catalogue")), wanted)
    told = [f"Step {step} is damaged and left as it is ({problem})." for step, problem in choice.damaged.items()]
    told += [choice.why] if choice.why else []
    step = choice.steps[0]
    where = to.absolute() if to else run_file.output_dir
    if dry_run:
        amount = size(choice.sizes[step])
        told.append(f"Would restore step {step} ({amount}) from {run_file.store_url} to {where}.")
        return {"step": step, "size_bytes": choice.sizes[step], "to": str(where), "done": False}, told
    if to is not None:
        answer, primary = _first_whole(choice, told, lambda step: _fetch_step(run_file, transfers, step, where))
    else:
        answer, primary = _to_the_job(run_file, transfers, choice, told)
    told += _tell_restored(answer, primary)
    return answer | {"to": str(primary), "reward": choice.rewards.get(int(answer["step"])), "done": True}, told


def _to_the_job(
    run_file: RunFile, transfers: Transfers, choice: Choice, told: list[str]
) -> tuple[dict[str, Any], Path]:
    from supervisor.cli.store_commands import alone
    from supervisor.primerl import open_job

    with alone(run_file, "restores by itself", "restore to another folder with --to"):
        job = open_job(run_file, os.environ)
        try:
            make_for_job(job.output_dir)
        except OSError as error:
            raise SupervisorError(
                f"The folder {job.output_dir} cannot be made: {error.strerror}. Mend job.output_dir, or restore to "
                "another folder with --to."
            ) from error

        def fetch(step: int) -> tuple[dict[str, Any], Path]:
            primary = job.place(step, "x").parent.as_posix()
            return _fetch_step(run_file, transfers, step, job.output_dir, primary)

        answer, primary = _first_whole(choice, told, fetch)
        check = job.check_step(int(answer["step"]), settled=True)
    if check.state != "complete":
        raise SupervisorError(f"Step {answer['step']} came from the store and cannot be loaded: {check.reason}")
    return answer, primary


def _fetch_step(
    run_file: RunFile, transfers: Transfers, step: int, where: Path, primary: str = ""
) -> tuple[dict[str, Any], Path]:
    primary = primary or f"step_{step}"
    asked = request(run_file, "restore", step=step, output_dir=str(where), place={"primary": primary})
    return transfers.run(asked, what="restore"), where / primary


def _first_whole(choice: Choice, told: list[str], fetch: Any) -> tuple[dict[str, Any], Path]:
    """The first step of the choice that comes whole; ``told`` learns of those that did not."""
    for step in choice.steps:
        try:
            found: tuple[dict[str, Any], Path] = fetch(step)
        except StoreError as error:
            if error.kind not in ("damaged", "missing") or step == choice.steps[-1]:
                raise
            told.append(f"Step {step} is damaged and left as it is ({error}). The next one is taken.")
            continue
        return found
    raise SupervisorError("There is no step to restore.")  # a choice has at least one


def _make_folder(to: Path) -> None:
    """Make the folder. Raises SupervisorError when it cannot be one."""
    if to.exists() and not to.is_dir():
        raise SupervisorError(f"{to} is a file, and a folder is wanted: name another with --to.")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SupervisorError(f"The folder {to} cannot be made: {error.strerror}. Name another with --to.") from error
    if not os.access(to, os.W_OK | os.X_OK):
        raise SupervisorError(f"Nothing may be written to {to}: name another folder with --to.")


def _tell_restored(answer: dict[str, Any], primary: Path) -> list[str]:
    how = "every byte verified" if answer.get("verified", True) else "it has no manifest: sizes were checked only"
    step, amount = answer["step"], size(int(answer["size_bytes"]))
    if answer.get("already"):
        return [f"Step {step} ({amount}) is in {primary} already, {how}."]
    beside = int(answer["files"]) - sum(1 for path in primary.rglob("*") if path.is_file())
    folders = " and ".join(map(str, answer["beside"]))
    files = f", {beside} of its files to {folders}" if beside > 0 else ""
    told = [f"Restored step {step} ({amount}) to {primary}{files}, {how}."]
    if aside := answer.get("moved_aside"):
        told.append(f"What was there is kept: {', '.join(map(str, aside))}.")
    return told
