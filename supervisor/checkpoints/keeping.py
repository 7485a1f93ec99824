"""What keeps a step in the store: a pin, a hold, a restore under way, the pointer, and being one of two.

``{run}/pins.json`` holds the pins of people, and the steps that the supervisor holds while training is worth nothing;
both survive pods. ``{run}/readers/`` holds a small object for each restore under
way: a restore says so first, so that no pod deletes the step under it. One that a dead pod left counts for
twelve hours and is then deleted.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

from supervisor.base.records import dataclass
from supervisor.checkpoints.manifest import MANIFEST, run_folder, step_folder
from supervisor.checkpoints.records import (
    by_step,
    delete_old,
    get_listed,
    put_and_read_back,
    read_latest,
    read_manifest,
    until,
    versions_of,
)
from supervisor.storage.base import Store, StoredFile, StoreError

PINS = "pins.json"
PINS_LIMIT = 64 << 10  # bytes
MOST_PINS = 1000
MOST_HOLDS = 20
LONGEST_WHY = 300
FINDING = re.compile(r"[a-z][a-z0-9-]{0,39}")
READERS = "readers/"
READER = re.compile(r"step_([0-9]{1,9})\.[0-9a-f]{16}\.json")
READING_S = 12 * 3600.0
LEAST_GOOD = 2
FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """Steps that may not go now. ``problem``: why the pins cannot be read; then nothing may go."""

    pinned: tuple[int, ...] = ()
    reading: tuple[int, ...] = ()
    problem: str = ""
    held: tuple[int, ...] = ()
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True)
class Hold:
    """Training is worth nothing since step ``bad``. The fields are those of ``supervisor.core.records.Hold``."""

    finding: str
    bad: int
    why: str = ""
    lifted: int | None = None


@dataclass(frozen=True)
class PinsFile:
    """What ``pins.json`` says, all ascending."""

    steps: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    holds: tuple[Hold, ...] = ()

    def to_bytes(self) -> bytes:
        value: dict[str, object] = {"format": FORMAT, "steps": self.steps}
        if self.held or self.holds:  # an earlier version reads past it
            value |= {"held": self.held, "holds": [asdict(one) for one in self.holds]}
        return json.dumps(value).encode() + b"\n"


def read_kept_steps(store: Store, run_id: str) -> Kept:
    """What keeps steps, as the store tells it. Some small requests. Raises StoreError when it cannot tell."""
    reading = tuple(sorted({step for step, _, over in _steps_being_read(store, run_id) if not over}))
    try:
        pins = read_pins(store, run_id)
        return Kept(pins.steps, reading, held=pins.held, holds=pins.holds)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        return Kept((), reading, str(error))


# ---------------------------------------------------------------- pins


def read_pins(store: Store, run_id: str) -> PinsFile:
    """The pinned steps. Raises kind "damaged" when the file is not one of ours."""
    name = run_folder(run_id) + PINS
    try:
        data = get_listed(store, name, PINS_LIMIT)
    except StoreError as error:
        if error.kind == "missing":
            return PinsFile()
        raise
    where = f"{store.url}/{name} is damaged"
    advice = "Nothing is deleted from the store until it is mended: pin the steps again, or delete that file"
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError("damaged", f"{where}: it is no JSON. {advice}") from error
    ours = value if isinstance(value, dict) and value.get("format") == FORMAT else {}
    steps, held = _parse_steps(ours.get("steps")), _parse_steps(ours.get("held", []))
    if steps is None or held is None:
        raise StoreError("damaged", f"{where}: it holds no list of at most {MOST_PINS} steps. {advice}")
    holds = holds_of(ours.get("holds", []))
    if holds is None:
        raise StoreError("damaged", f"{where}: why steps are held is not told as it should be. {advice}")
    return PinsFile(steps, held, holds)


def _parse_steps(value: object) -> tuple[int, ...] | None:
    """Steps of a list from JSON, ascending; None when it is no such list."""
    if not isinstance(value, list) or len(value) > MOST_PINS or not all(_is_step(step) for step in value):
        return None
    return tuple(sorted(set(value)))


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 10**9


def holds_of(value: object) -> tuple[Hold, ...] | None:
    """Holds from JSON; None when it is no list of some. Their words are shown to people, so they are only words."""
    if not isinstance(value, list) or len(value) > MOST_HOLDS:
        return None
    found = []
    for one in value:
        finding, bad, why, lifted = (
            (one.get(name) for name in ("finding", "bad", "why", "lifted")) if isinstance(one, dict) else [None] * 4
        )
        if not isinstance(finding, str) or not FINDING.fullmatch(finding) or not isinstance(why, str):
            return None
        if not isinstance(bad, int) or not _is_step(bad) or not (lifted is None or _is_step(lifted)):
            return None
        if len(why) > LONGEST_WHY or not why.isprintable():
            return None
        found.append(Hold(finding, bad, why, lifted))
    return tuple(found)


def set_pin(store: Store, run_id: str, step: int, *, pinned: bool) -> tuple[int, ...]:
    """Pin or unpin a step; returns all pins. A file that cannot be read is replaced by pinning, not by unpinning."""
    earlier = versions_of(store, run_folder(run_id) + PINS)
    try:
        before = read_pins(store, run_id)
    except StoreError as error:
        if error.kind != "damaged" or not pinned:
            raise
        before = PinsFile()  # the pod that trains writes what it holds anew
    steps = {*before.steps, step} if pinned else {*before.steps} - {step}
    if len(steps) > MOST_PINS:
        raise StoreError("permanent", f"{run_id} has {len(before.steps)} pinned steps already: unpin some first")
    return _write_list(store, run_id, before, replace(before, steps=tuple(sorted(steps))), earlier).steps


def set_holds(store: Store, run_id: str, held: Sequence[int], holds: Sequence[Hold]) -> None:
    """Write down which steps are held while training is worth nothing, and why; pins stay as they are."""
    earlier = versions_of(store, run_folder(run_id) + PINS)
    before = read_pins(store, run_id)
    _write_list(store, run_id, before, replace(before, held=tuple(sorted(held)), holds=tuple(holds)), earlier)


def _write_list(store: Store, run_id: str, before: PinsFile, now: PinsFile, earlier: Sequence[StoredFile]) -> PinsFile:
    if now == before:
        return now
    name = run_folder(run_id) + PINS
    stored = put_and_read_back(store, name, now.to_bytes(), PINS_LIMIT)
    # Not left to ``tidy``: had the store's clock gone back, an earlier version would count as the newer one.
    delete_old(store, [file for file in earlier if file.file_id != stored.file_id])
    until(  # or the next pin would be added to the pins without this one
        lambda: read_pins(store, run_id) == now,
        f"{store.url}/{name} does not show the pins that were just written; try again",
    )
    return now


# ---------------------------------------------------------------- readers


@contextmanager
def announce_restore(store: Store, run_id: str, step: int) -> Iterator[None]:
    """Say that this step is being restored. A key that may only read still restores, unprotected."""
    name = f"{run_folder(run_id)}{READERS}step_{step}.{secrets.token_hex(8)}.json"
    said: StoredFile | None = None
    with suppress(StoreError):
        said = store.put_bytes(name, json.dumps({"step": step}).encode() + b"\n")
    try:
        yield
    finally:
        if said is not None:
            with suppress(StoreError):  # it ends by itself after READING_S
                store.delete(said)


def _steps_being_read(store: Store, run_id: str) -> list[tuple[int, StoredFile, bool]]:
    """The step that is being restored, the object that says so, and whether it is so old that its pod must be dead.

    How old is told by the store's clock alone, which need not agree with this pod's: by the newest that the run has
    there (its holder's heartbeat, as a rule).
    """
    folder = run_folder(run_id) + READERS
    matches = [(READER.fullmatch(file.name.removeprefix(folder)), file) for file in store.list(folder)]
    found = [(int(match[1]), file) for match, file in matches if match]
    if not found:
        return []
    newest = max((file.uploaded_at for file in store.list(run_folder(run_id))), default=0.0)
    return [(step, file, newest - file.uploaded_at > READING_S) for step, file in found]


# ---------------------------------------------------------------- before a delete


def refuse_to_delete(store: Store, run_id: str, step: int) -> None:
    """Raises kind "permanent" with the reason when ``step`` has to stay; looks at the store anew."""
    try:
        latest = read_latest(store, run_id)
    except StoreError as error:
        if error.kind != "damaged":
            raise
        raise StoreError(
            "permanent", f"step {step} is not deleted while latest.json cannot be read: {error}"
        ) from error
    if latest is not None and latest.step == step:
        raise StoreError("permanent", f"step {step} of {run_id} is not deleted: latest.json names it")
    keeps = read_kept_steps(store, run_id)
    if keeps.problem:
        raise StoreError("permanent", f"step {step} is not deleted while the pins are unknown: {keeps.problem}")
    if step in keeps.pinned:
        raise StoreError(
            "permanent", f"step {step} of {run_id} is not deleted: it is pinned (supervisorctl unpin {step})"
        )
    if step in keeps.held:
        why = "; ".join(one.why.rstrip(".") for one in keeps.holds if one.why)
        raise StoreError(
            "permanent",
            f"step {step} of {run_id} is not deleted: it is from before training became worthless{why and f' ({why})'}",
        )
    if step in keeps.reading:
        raise StoreError("permanent", f"step {step} of {run_id} is not deleted: it is being restored")
    good = [number for number, files in by_step(store.list(run_folder(run_id)), run_id).items() if MANIFEST in files]
    if step in good and len(good) <= LEAST_GOOD:
        raise StoreError(
            "permanent", f"step {step} of {run_id} is not deleted: it is one of the last {LEAST_GOOD} good steps"
        )


def tidy(store: Store, run_id: str, steps: Iterable[int] = (), fence: Callable[[], None] = lambda: None) -> int:
    """Delete versions that newer ones hide, and what dead readers left. Returns freed bytes.

    Of records the newest version stays. Of a committed step's files every version stays that a manifest of it names,
    and the newest; no pod may be publishing one of ``steps``. The pointer is ``settle_pointer``'s.
    """
    folder = run_folder(run_id)
    freed = 0
    delete_old(store, [file for _, file, over in _steps_being_read(store, run_id) if over])
    for prefix in (PINS, "run/", "records/", "logs/"):
        freed += _delete_versions(store, _hidden_versions(store.list_versions(folder + prefix)), fence)
    for step in steps:
        of_step = store.list_versions(step_folder(run_id, step))
        hidden = _hidden_versions(of_step)
        manifests = [file for file in of_step if file.name == f"{step_folder(run_id, step)}{MANIFEST}"]
        if not hidden or len({file.sha1 or file.file_id for file in manifests}) != 1:
            continue  # which of several commits the step is the publisher's to settle; equal ones a lost answer left
        manifest, _ = read_manifest(store, run_id, step, manifests[0].file_id)
        named = {file.file_id for file in manifest.files}
        freed += _delete_versions(store, [file for file in hidden if file.file_id not in named], fence)
    return freed


def _hidden_versions(versions: Sequence[StoredFile]) -> list[StoredFile]:
    """All but the newest version of each name (they come newest first)."""
    seen: set[str] = set()
    hidden = []
    for file in versions:
        if file.name in seen:
            hidden.append(file)
        seen.add(file.name)
    return hidden


def _delete_versions(store: Store, files: Sequence[StoredFile], fence: Callable[[], None]) -> int:
    if files:
        fence()
    return delete_old(store, files)
