"""What a pod does with the store, as scenes that may be cut at any point: what is there, what is done, what holds.

``act`` is done again after a cut, by a new process; then everything has to be as if nothing had happened.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from supervisor.checkpoints import log_files, log_packing, record_files
from supervisor.checkpoints.catalogue import (
    delete_step,
    get_run_files,
    keep_lineage,
    list_steps,
    put_run_files,
    sweep_run,
)
from supervisor.checkpoints.claims import Fence, Standing, beat, claim, look, mark_leaving, release
from supervisor.checkpoints.keeping import announce_restore, read_pins, set_pin, tidy
from supervisor.checkpoints.lineage import Entry
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage.base import StoreError
from tests.checkpoints_store.conftest import quiet
from tests.vault.machine import Machine, PowerCut
from tests.vault.pod import NAMES, RUN, Content, Pod

A, B = (writer_name(f"pod-{name}", name * 16, "0001") for name in "ab")
JOURNAL = "ab" * 8


def nothing(pod: Pod) -> None:
    """Nothing more is looked at."""


@dataclass(frozen=True)
class Scene:
    """What is there before, what is done, what may be lost on the way, and what must be there in the end."""

    before: Callable[[Pod], None]
    act: Callable[[Pod], None]
    afterwards: Callable[[Pod], None]
    safe: tuple[int, ...] = (20,)  # steps that stay restorable with their bytes at any moment
    pointers: tuple[int, ...] = (20,)  # what latest.json may name at any moment
    between: Callable[[Pod], None] = nothing
    least: int = 3  # points at which it can be cut


def published(*steps: int) -> Callable[[Pod], None]:
    def before(pod: Pod) -> None:
        for step in steps:
            pod.expected[step] = pod.save(step)
            publish(pod.open(), pod.plan(step), quiet)

    return before


# ---------------------------------------------------------------- publish


def publish_a_further_step(pod: Pod) -> None:
    publish(pod.open(), pod.plan(40), quiet)


def before_a_further_step(pod: Pod) -> None:
    published(20)(pod)
    pod.expected[40] = pod.save(40)


def after_a_further_step(pod: Pod) -> None:
    assert pod.pointer() == 40 and pod.committed() == {20: "", 40: ""}
    assert pod.holds(40, pod.expected[40])


def before_the_first_step(pod: Pod) -> None:
    pod.expected[20] = pod.save(20)


def publish_the_first_step(pod: Pod) -> None:
    publish(pod.open(), pod.plan(20), quiet)


def after_the_first_step(pod: Pod) -> None:
    assert pod.pointer() == 20 and pod.committed() == {20: ""}


def before_a_step_is_reached_again(pod: Pod) -> None:
    published(20, 40)(pod)
    for name in NAMES:
        pod.local(40, name).unlink()
    pod.expected[40] = pod.save(40, seed=1)


def held(pod: Pod, writer: str = A, *, over: bool = False) -> Standing:
    """Claim the run; its claims settle at once here."""
    return claim(pod.open(), RUN, writer, 0.0, take_over=over, sleep=lambda _: None, clock=lambda: 0.0)


def before_the_holder_publishes(pod: Pod) -> None:
    held(pod)
    before_a_further_step(pod)


def publish_as_the_transfer_process_does(pod: Pod) -> None:
    store = pod.open()
    fence = Fence(store, RUN, 1, A)
    fence()
    publish(store, pod.plan(40, writer=A, generation=1, fence=fence), quiet)
    tidy(store, RUN, (40,), fence)


# ---------------------------------------------------------------- prune, sweep, tidy


def prune(pod: Pod) -> None:
    try:
        delete_step(pod.open(), RUN, 20)
    except StoreError as error:
        if error.kind != "missing":
            raise


def after_pruning(pod: Pod) -> None:
    assert pod.pointer() == 60 and pod.committed() == {40: "", 60: ""}
    assert not [name for name in pod.objects() if name.startswith("step_20/")]


def before_sweeping(pod: Pod) -> None:
    """A pod died while it published two further steps."""
    published(20)(pod)
    for step in (40, 60):
        pod.save(step)
        for cut in range(20, 60):
            with Machine(pod.home, cut), suppress(PowerCut):
                publish(pod.open(), pod.plan(step), quiet)
            if any(f"step_{step}/" in one for one in pod.garbage()):
                break
    assert len(pod.garbage()) == 2 and pod.committed() == {20: ""}
    shutil.rmtree(pod.state)  # it is gone for good: another one cleans


def sweep(pod: Pod) -> None:
    sweep_run(pod.open(), RUN)


def after_sweeping(pod: Pod) -> None:
    assert pod.garbage() == [] and pod.pointer() == 20 and pod.committed() == {20: ""}


def before_tidying(pod: Pod) -> None:
    """Step 40 was published twice, and pins and records were replaced."""
    before_a_step_is_reached_again(pod)
    publish_a_further_step(pod)
    set_pin(pod.open(), RUN, 20, pinned=True)
    set_pin(pod.open(), RUN, 40, pinned=True)
    for data in (b"1", b"2"):
        pod.open().put_bytes(f"{RUN}/run/run.toml", data)


def tidy_up(pod: Pod) -> None:
    tidy(pod.open(), RUN, (20, 40))


def after_tidying(pod: Pod) -> None:
    after_a_further_step(pod)
    assert pod.garbage() == [] and read_pins(pod.open(), RUN).steps == (20, 40)
    assert get_run_files(pod.open(), RUN) == {"run.toml": b"2"}


# ---------------------------------------------------------------- restore


def empty_disk(pod: Pod) -> None:
    published(20, 40)(pod)
    shutil.rmtree(pod.output)
    pod.output.mkdir()


def another_lineage_on_disk(pod: Pod) -> None:
    published(20, 40)(pod)
    pod.save(40, seed=5)


def restore_step_40(pod: Pod) -> None:
    restore(pod.open(), RUN, 40, Place("checkpoints/step_40"), pod.output, quiet)


def restore_and_say_so(pod: Pod) -> None:
    store = pod.open()
    with announce_restore(store, RUN, 40):
        restore(store, RUN, 40, Place("checkpoints/step_40"), pod.output, quiet)


def the_target_is_whole_or_not_there(pod: Pod) -> None:
    """What has the step's name holds every byte of it."""
    if (pod.output / "checkpoints/step_40").exists():
        here = {name: pod.local(40, name) for name in NAMES[:-1]}
        assert all(path.exists() for path in here.values())
        assert {name: path.read_bytes() for name, path in here.items()} == {n: pod.expected[40][n] for n in here}


def after_restoring(pod: Pod) -> None:
    assert {name: pod.local(40, name).read_bytes() for name in NAMES} == pod.expected[40]
    assert not list(pod.output.rglob(".restoring-*"))


# ---------------------------------------------------------------- who holds the run


def nobody_or_we_hold_the_run(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert (found.generation, found.writer) in ((0, ""), (1, A)), f"promise 9: {found}"


def we_hold_the_run(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert (found.generation, found.writer, found.released) == (1, A, False)


def another_holds_the_run(pod: Pod) -> None:
    published(20)(pod)
    held(pod, B)
    beat(pod.open(), RUN, 1, B, 0)


def one_of_both_holds_the_run(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert (found.generation, found.writer) in ((1, B), (2, A)), f"promise 9: {found}"
    if found.writer == A:
        the_other_is_fenced(pod)


def the_other_is_fenced(pod: Pod) -> None:
    try:
        Fence(pod.open(), RUN, 1, B)()
    except FencedError as error:
        assert error.by == "pod-a"
    else:
        raise AssertionError("promise 9: both may write")


def after_taking_over(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert (found.generation, found.writer, found.released) == (2, A, False)
    the_other_is_fenced(pod)


def before_a_beat(pod: Pod) -> None:
    published(20)(pod)
    held(pod)
    beat(pod.open(), RUN, 1, A, 0)


def after_a_beat(pod: Pod) -> None:
    we_hold_the_run(pod)
    assert len([name for name in pod.objects() if name.endswith(".beat.json")]) == 1


def after_the_mark(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert found.leaving and not found.free, "it still writes"
    we_hold_the_run(pod)


def give_the_run_back(pod: Pod) -> None:
    with suppress(FencedError):  # it was given back already
        release(pod.open(), RUN, 1, A)


def still_ours_or_free(pod: Pod) -> None:
    found = look(pod.open(), RUN)
    assert (found.generation, found.writer) == (1, A)


def after_giving_back(pod: Pod) -> None:
    assert look(pod.open(), RUN).free


# ---------------------------------------------------------------- pins, lineage


def pins_are(*allowed: tuple[int, ...]) -> Callable[[Pod], None]:
    def between(pod: Pod) -> None:
        assert read_pins(pod.open(), RUN).steps in allowed

    return between


def before_unpinning(pod: Pod) -> None:
    published(20, 40)(pod)
    for step in (20, 40):
        set_pin(pod.open(), RUN, step, pinned=True)


def went_back(pod: Pod, entry: Entry) -> None:
    keep_lineage(pod.open(), RUN, [entry], generation=0, writer=A, fence=lambda: None)


def a_pointer_that_went_back_was_told_to(pod: Pod) -> None:
    """Promise 2: it goes back only by what is recorded in the store."""
    pointer = pod.pointer()
    assert pointer is not None
    left = {info.step for info in list_steps(pod.open(), RUN).steps.values() if info.left}
    assert all(step in left for step in (20, 40, 60) if step > pointer)


def steps_left(pointer: int, *steps: int) -> Callable[[Pod], None]:
    def afterwards(pod: Pod) -> None:
        found = list_steps(pod.open(), RUN)
        assert {info.step for info in found.steps.values() if info.left} == set(steps)
        assert pod.pointer() == pointer and pod.committed() == {20: "", 40: "", 60: ""}
        assert len(found.happened.entries) == 1

    return afterwards


# ---------------------------------------------------------------- small files of the run


def put_run(pod: Pod) -> None:
    put_run_files(pod.open(), RUN, {"run.toml": b"new", "same.toml": b"same", "more.toml": b"more"})


def before_run_files(pod: Pod) -> None:
    published(20)(pod)
    put_run_files(pod.open(), RUN, {"run.toml": b"old", "same.toml": b"same"})


def run_files_are_old_or_new(pod: Pod) -> None:
    found = get_run_files(pod.open(), RUN)
    assert found["run.toml"] in (b"old", b"new") and found["same.toml"] == b"same"
    assert found.get("more.toml", b"more") == b"more"


def after_run_files(pod: Pod) -> None:
    assert get_run_files(pod.open(), RUN) == {"run.toml": b"new", "same.toml": b"same", "more.toml": b"more"}


def before_a_record(pod: Pod) -> None:
    published(20)(pod)
    record_files.put_record(pod.open(), RUN, JOURNAL, b"old")


def the_record_is_old_or_new(pod: Pod) -> None:
    assert record_files.get_records(pod.open(), RUN)[JOURNAL] in (b"old", b"new")


def after_a_record(pod: Pod) -> None:
    assert record_files.get_records(pod.open(), RUN) == {JOURNAL: b"new"}


def put_logs(pod: Pod, text: str) -> None:
    packed = {"trainer": log_packing.pack(text), "orchestrator": log_packing.pack("steady")}
    log_files.put_logs(pod.open(), RUN, JOURNAL, 1, packed)


def before_logs(pod: Pod) -> None:
    published(20)(pod)
    put_logs(pod, "old")


def logs_are_old_or_new(pod: Pod) -> None:
    found = log_files.get_logs(pod.open(), RUN, 1)
    assert found[f"{JOURNAL[:8]}/trainer"] in ("old", "new") and found[f"{JOURNAL[:8]}/orchestrator"] == "steady"


def after_logs(pod: Pod) -> None:
    assert log_files.get_logs(pod.open(), RUN, 1)[f"{JOURNAL[:8]}/trainer"] == "new"


# ---------------------------------------------------------------- a step made of the one before


def lora(step: int, seed: int = 0) -> Content:
    """Of two large files some islands change from step to step; one small file is the same in all."""
    import random

    frozen, trained = random.Random("frozen"), random.Random(f"{seed}/{step}")
    first, second = bytearray(frozen.randbytes(70_000)), bytearray(frozen.randbytes(41_000))
    for file, at, size in ((first, 20_000, 700), (first, 61_000, 2_000), (second, 0, 900)):
        file[at : at + size] = trained.randbytes(size)
    small = frozen.randbytes(300)
    return dict(zip(NAMES, (trained.randbytes(300), bytes(first), bytes(second), b"", small), strict=True))


def after_composing(pod: Pod) -> None:
    after_a_further_step(pod)
    assert pod.server is not None
    assert pod.server.journal("b2_copy_part"), "it was made of the step before"


SCENES = {
    "first": Scene(before_the_first_step, publish_the_first_step, after_the_first_step, safe=(), pointers=()),
    "further": Scene(before_a_further_step, publish_a_further_step, after_a_further_step, (20,), (20, 40)),
    "again": Scene(
        before_a_step_is_reached_again, publish_a_further_step, after_a_further_step, (20,), (20, 40)
    ),
    "held": Scene(
        before_the_holder_publishes, publish_as_the_transfer_process_does, after_a_further_step, (20,), (20, 40)
    ),
    "prune": Scene(published(20, 40, 60), prune, after_pruning, (40, 60), (60,)),
    "sweep": Scene(before_sweeping, sweep, after_sweeping, least=2),
    "tidy": Scene(before_tidying, tidy_up, after_tidying, (20, 40), (40,), least=0),
    "restore": Scene(
        empty_disk, restore_and_say_so, after_restoring, (20, 40), (40,), the_target_is_whole_or_not_there
    ),
    "replace": Scene(another_lineage_on_disk, restore_step_40, after_restoring, (20, 40), (40,)),
    "claim": Scene(nothing, lambda pod: _ours(held(pod)), we_hold_the_run, (), (), nobody_or_we_hold_the_run),
    "take over": Scene(
        another_holds_the_run, lambda pod: _ours(held(pod, over=True)), after_taking_over,
        between=one_of_both_holds_the_run,
    ),
    "beat": Scene(
        before_a_beat, lambda pod: _ours(beat(pod.open(), RUN, 1, A, 1)), after_a_beat, between=we_hold_the_run
    ),
    "leave": Scene(
        before_a_beat, lambda pod: _ours(mark_leaving(pod.open(), RUN, 1, A)), after_the_mark, between=we_hold_the_run,
        least=2,
    ),
    "release": Scene(before_a_beat, give_the_run_back, after_giving_back, between=still_ours_or_free),
    "pin": Scene(
        published(20), lambda pod: _pinned(pod, 20, True), pins_are((20,)), between=pins_are((), (20,))
    ),
    "unpin": Scene(
        before_unpinning, lambda pod: _pinned(pod, 20, False), pins_are((40,)), (20, 40), (40,),
        pins_are((20, 40), (40,)),
    ),
    "rollback": Scene(
        published(20, 40, 60), lambda pod: went_back(pod, Entry("rollback", 20, 1.0, "a person")),
        steps_left(20, 40, 60), (20, 40, 60), (20, 60), a_pointer_that_went_back_was_told_to,
    ),
    "quarantine": Scene(
        published(20, 40, 60), lambda pod: went_back(pod, Entry("quarantine", 60, 1.0, "NaN")),
        steps_left(40, 60), (20, 40, 60), (40, 60), a_pointer_that_went_back_was_told_to,
    ),
    "run files": Scene(before_run_files, put_run, after_run_files, between=run_files_are_old_or_new),
    "record": Scene(
        before_a_record, lambda pod: record_files.put_record(pod.open(), RUN, JOURNAL, b"new"), after_a_record,
        between=the_record_is_old_or_new,
    ),
    "logs": Scene(before_logs, lambda pod: put_logs(pod, "new"), after_logs, between=logs_are_old_or_new),
}  # fmt: skip
COMPOSE = Scene(before_a_further_step, publish_a_further_step, after_composing, (20,), (20, 40), least=60)
"""B2 only: the second step is made of the first on the server."""


def _ours(standing: Standing) -> None:
    assert standing.writer == A


def _pinned(pod: Pod, step: int, pinned: bool) -> None:
    set_pin(pod.open(), RUN, step, pinned=pinned)
