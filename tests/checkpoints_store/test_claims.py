"""Two pods, one run, one writer: who holds it is settled in the store, and the loser hurts nothing afterwards."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import claims, lineage
from supervisor.checkpoints.catalogue import delete_step, keep_lineage, list_steps
from supervisor.checkpoints.claims import Fence, beat, check, claim, look, mark_leaving, release
from supervisor.checkpoints.lineage import Entry
from supervisor.checkpoints.manifest import Latest
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.records import read_latest
from supervisor.checkpoints.writers import FencedError, host_of, writer_name
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from supervisor.storage.file import FileStore
from tests.b2server import B2Server

from .conftest import QUICK, RUN, Lasting, Served, Step, Transfers, b2_store, quiet

SETTLE_S = 1.0
A, B, C = (writer_name(f"pod-{name}", name * 16, "0001") for name in "abc")
WRITERS = f"{RUN}/writers/"


def pod(letter: str, session: int = 1, place: str = "7" * 32) -> str:
    return writer_name(f"pod-{letter}", letter * 16, f"{session:04x}", place)


def no_wait(seconds: float) -> None:
    """One pod claims at a time: there is nothing to wait for, however slow the machine is."""


def held(store: Store, writer: str, **more: Any) -> int:
    """Claim, and the generation that it came to; it has to be ours."""
    found = claim(store, RUN, writer, 60.0, sleep=no_wait, **more)
    assert found.writer == writer
    return found.generation


def current(store: Store, name: str) -> dict[str, Any]:
    """What a reader by name sees, the original scripts among them."""
    return dict(json.loads(store.get_bytes(f"{RUN}/{name}")))


# ---------------------------------------------------------------- claiming


def test_the_first_pod_holds_the_run_and_the_second_is_told_by_whom(store: Store) -> None:
    assert look(store, RUN).generation == 0
    assert held(store, A) == 1
    found = claim(store, RUN, B, 60.0, sleep=no_wait)
    assert (found.generation, found.writer, found.released) == (1, A, False)
    assert [file.name for file in store.list(WRITERS)] == [f"{WRITERS}gen_00001.json"], "it wrote nothing"
    check(store, RUN, 1, A)
    with pytest.raises(FencedError, match="pod pod-a holds run bs4-rl-7 now"):
        check(store, RUN, 1, B)  # of two that claimed one generation, the look before each act tells the other


def test_a_released_run_is_claimed_at_once_and_its_holder_of_before_is_fenced(store: Store) -> None:
    held(store, A)
    release(store, RUN, 1, A)
    assert held(store, B) == 2
    with pytest.raises(FencedError, match=r"pod pod-b holds run bs4-rl-7 now \(generation 2, this pod had 1\)") as told:
        check(store, RUN, 1, A)
    assert (told.value.kind, told.value.by, told.value.generation) == ("fenced", "pod-b", 2)
    with pytest.raises(FencedError):
        beat(store, RUN, 1, A, 1)
    with pytest.raises(FencedError):
        release(store, RUN, 1, A)


def test_a_pod_that_gave_the_run_back_writes_and_deletes_nothing_more(store: Store, tmp_path: Path) -> None:
    """What it still had under way comes too late: the next pod waits for nothing, and may have begun to read."""
    held(store, A)
    for number in (5, 10, 15):
        publish(store, Step(tmp_path / "a", number).fill(shard=900).plan(tmp_path / "s", writer=A, generation=1), quiet)
    release(store, RUN, 1, A)
    before = {(file.name, file.file_id) for file in store.list_versions(f"{RUN}/")}
    fence = Fence(store, RUN, 1, A)
    late = Step(tmp_path / "a20", 20).fill(seed=1).plan(tmp_path / "s", writer=A, generation=1, fence=fence)
    for act in (
        lambda: publish(store, late, quiet),
        lambda: delete_step(store, RUN, 10, fence),
        lambda: beat(store, RUN, 1, A, 1),
        lambda: mark_leaving(store, RUN, 1, A),
        lambda: release(store, RUN, 1, A),
    ):
        with pytest.raises(FencedError, match=r"this pod has released run bs4-rl-7 \(generation 1\)"):
            act()
    assert {(file.name, file.file_id) for file in store.list_versions(f"{RUN}/")} == before
    assert held(store, B) == 2


def test_a_heartbeat_moves_the_mark_and_leaves_one_version(store: Store) -> None:
    held(store, A)
    marks = {look(store, RUN).mark}
    for count in range(3):
        assert beat(store, RUN, 1, A, count).mark == look(store, RUN).mark
        marks.add(look(store, RUN).mark)
    assert len(marks) == 4
    assert len(store.list_versions(f"{WRITERS}gen_00001.beat.json")) == 1


def test_only_a_heartbeat_that_stood_still_lets_another_pod_in(store: Store) -> None:
    held(store, A)
    seen = claim(store, RUN, B, 60.0, sleep=no_wait)
    beat(store, RUN, 1, A, 1)
    assert claim(store, RUN, B, 60.0, sleep=no_wait, over=seen).writer == A, "it moved since"
    seen = look(store, RUN)
    assert held(store, B, over=seen) == 2


def test_a_pod_that_is_about_to_go_still_holds_the_run_until_its_heartbeat_stands_still(store: Store) -> None:
    held(store, A)
    assert mark_leaving(store, RUN, 1, A).leaving
    seen = claim(store, RUN, B, 60.0, sleep=no_wait)
    assert (seen.writer, seen.leaving, seen.free) == (A, True, False), "no word of its own lets another pod in"
    assert beat(store, RUN, 1, A, 1) == look(store, RUN), "it still beats, and the mark stays"
    assert claim(store, RUN, B, 60.0, sleep=no_wait, over=seen).writer == A, "it moved since"
    mark_leaving(store, RUN, 1, A)
    assert len(store.list_versions(f"{WRITERS}gen_00001.leave.json")) == 1
    check(store, RUN, 1, A)  # its last manifest
    assert held(store, B, over=look(store, RUN)) == 2
    assert not look(store, RUN).leaving, "who comes after it does not leave"
    for late in (lambda: check(store, RUN, 1, A), lambda: mark_leaving(store, RUN, 1, A)):
        with pytest.raises(FencedError):
            late()


def test_take_over_asks_nobody(store: Store) -> None:
    held(store, A)
    assert held(store, B, take_over=True) == 2
    with pytest.raises(FencedError):
        check(store, RUN, 1, A)


def test_the_next_daemon_of_the_same_pod_goes_on_at_once_and_fences_what_the_one_before_left(store: Store) -> None:
    held(store, pod("a", 1))
    assert held(store, pod("a", 2)) == 2
    with pytest.raises(FencedError):
        check(store, RUN, 1, pod("a", 1))


INSTANCE, BOOT, UNKNOWN = "1" * 16, "2" * 16, "0" * 16


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (INSTANCE + BOOT, INSTANCE + "3" * 16),  # a machine that was started anew, a container made anew
        (UNKNOWN + BOOT, UNKNOWN + BOOT),  # a daemon that was killed where nobody knows the instance
        (INSTANCE + BOOT, UNKNOWN + BOOT),  # the same over ssh, without the container's variables
        (INSTANCE + UNKNOWN, INSTANCE + UNKNOWN),
    ],
)
def test_the_same_place_goes_on_at_once(store: Store, before: str, now: str) -> None:
    held(store, pod("a", 1, before))
    assert held(store, pod("a", 2, now)) == 2


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (INSTANCE + BOOT, "4" * 16 + "5" * 16),  # another machine
        (INSTANCE + BOOT, "4" * 16 + BOOT),  # two containers that seem to be one
        (UNKNOWN + BOOT, UNKNOWN + "5" * 16),  # started anew or copied: nobody can say
        (UNKNOWN * 2, UNKNOWN * 2),
        (INSTANCE + BOOT, UNKNOWN + "5" * 16),
        ("", INSTANCE + BOOT),  # the claim of an older version
        (INSTANCE + BOOT, ""),
    ],
)
def test_a_copied_disk_does_not_steal_a_living_run(store: Store, before: str, now: str) -> None:
    """State and outputs were copied to another machine: the journal is the same, and no pod is."""
    original, copy = pod("a", 1, before), pod("a", 2, now)
    held(store, original)
    seen = claim(store, RUN, copy, 60.0, sleep=no_wait)
    assert seen.writer == original, "it is watched"
    beat(store, RUN, 1, original, 1)
    assert claim(store, RUN, copy, 60.0, sleep=no_wait, over=seen).writer == original, "the original lives"
    check(store, RUN, 1, original)
    assert held(store, copy, over=look(store, RUN)) == 2, "it does not any more"


def test_a_claim_that_was_killed_before_it_could_tell_is_found_again(store: Store) -> None:
    held(store, A)
    assert held(store, A) == 1, "no new generation"


def test_claims_that_were_deleted_by_hand_do_not_begin_again_below_the_pointer(store: Store) -> None:
    pointer = Latest(20, RUN, generation=7, writer=A, manifest_file_id="x", manifest_sha256="0" * 64)
    store.put_bytes(f"{RUN}/latest.json", pointer.to_bytes())
    assert held(store, B) == 8


def test_a_volume_that_is_not_mounted_is_no_store_without_claims(tmp_path: Path) -> None:
    """The mount point is an empty folder, on the pod's own disk: what is published there is lost with it."""
    store = FileStore(tmp_path / "volume" / "store")
    (tmp_path / "volume").mkdir()
    with pytest.raises(StoreError, match="is its volume mounted") as caught:
        claim(store, RUN, A, 60.0, sleep=no_wait, held=7)
    assert caught.value.kind == "transient"
    assert not list((tmp_path / "volume").iterdir()), "nothing is written there"
    assert held(store, A, held=7, take_over=True) == 1, "a person says that it is another store"
    assert held(store, A, held=7) == 1, "which is known now"


def test_a_pointer_that_rotted_keeps_no_pod_from_claiming_the_run(b2: B2Server) -> None:
    """Bytes that their SHA-1 denies are read five times, which takes longer than half of what a claim settles in."""
    store = b2_store(b2)
    pointer = Latest(20, RUN, generation=7, writer=A, manifest_file_id="x", manifest_sha256="0" * 64)
    store.put_bytes(f"{RUN}/latest.json", pointer.to_bytes())
    (stored,) = (version for version in b2.state.versions.values() if version.name.endswith("latest.json"))
    stored.data = stored.data.replace(b"step_20", b"step_21")
    b2.fail("download", name="latest.json", times=1 << 30, delay_s=0.15)
    found = claim(store, RUN, B, 1.2)
    assert (found.writer, found.generation) == (B, 1)


def test_old_generations_are_cleaned_away(store: Store) -> None:
    for number in range(1, 14):
        assert held(store, pod("a", number)) == number
        beat(store, RUN, number, pod("a", number), 0)
    kept = {file.name.removeprefix(WRITERS)[:9] for file in store.list_versions(WRITERS)}
    assert kept == {f"gen_{number:05d}" for number in range(6, 14)}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"writer": 7}', b'{"writer": "../x"}', b"[" * 3000, b"x" * 9000])
def test_a_claim_that_nobody_understands_is_somebodys_all_the_same(store: Store, data: bytes) -> None:
    store.put_bytes(f"{WRITERS}gen_00004.json", data)
    store.put_bytes(f"{WRITERS}gen_x.json", b"")
    store.put_bytes(f"{WRITERS}gen_99999999999999999999.json", b"")
    found = claim(store, RUN, A, 60.0, sleep=no_wait)
    assert (found.generation, found.writer) == (4, "")
    assert host_of(found.writer) == "an unknown pod"
    assert held(store, A, over=found) == 5


# ---------------------------------------------------------------- races


@pytest.mark.parametrize("racers", [2, 8])
def test_of_racing_pods_exactly_one_holds_the_run(store: Store, racers: int, b2: B2Server) -> None:
    together = threading.Barrier(racers)

    def race(number: int) -> claims.Standing:
        together.wait()
        return claim(store, RUN, pod("abcdef01"[number]), SETTLE_S)

    for _ in range(3):
        with ThreadPoolExecutor(racers) as pool:
            told = list(pool.map(race, range(racers)))
        winners = {found.writer for found in told}
        assert len(winners) == 1, told
        now = look(store, RUN)
        assert {now.writer} == winners
        assert len(store.list_versions(f"{WRITERS}gen_{now.generation:05d}.json")) == 1, "the others' are cleaned"
        release(store, RUN, now.generation, now.writer)


def test_racing_pods_over_a_listing_that_is_old_by_tenths_of_a_second(b2: B2Server) -> None:
    b2.state.stale_s = 0.3
    store = b2_store(b2)
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda n: claim(store, RUN, pod("abcd"[n]), SETTLE_S), range(4)))
    assert len({found.writer for found in told}) == 1, told


@pytest.mark.soak
def test_a_listing_that_is_older_than_the_settle_time_still_ends_with_one_writer(b2: B2Server) -> None:
    """Two may believe it for a moment: the look before each record that counts tells one of them."""
    b2.state.stale_s = 2.5
    store = b2_store(b2)
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda n: claim(store, RUN, pod("ab"[n]), 0.4), range(2)))
    b2.state.stale_s = 0
    may_write = []
    for letter, found in zip("ab", told, strict=True):
        try:
            check(store, RUN, found.generation, pod(letter))
            may_write.append(letter)
        except FencedError:
            pass
    assert len(may_write) == 1, told


def test_a_claim_that_was_too_slow_to_be_seen_is_withdrawn_and_tried_again(b2: B2Server) -> None:
    b2.fail("b2_upload_file", name="gen_00001", times=1, delay_s=1.2)
    assert claim(b2_store(b2), RUN, A, SETTLE_S).writer == A
    assert len(b2.journal("b2_upload_file", "gen_00001.json")) == 2
    assert len(b2.journal("b2_delete_file_version", "gen_00001.json")) == 1


@pytest.mark.soak
def test_eight_real_processes_race_and_one_wins(b2: B2Server, transfers: Transfers) -> None:
    where = {"store": {"url": "b2://the-bucket/team", "realm": b2.url, "streams": 4, "part_size": None}, "run_id": RUN}
    started = [
        transfers.start({"do": "claim", "writer": pod(letter), "settle_s": 6.0, **where}, b2.environ())
        for letter in "abcdef01"
    ]
    ends = [one.end() for one in started]
    told = [last["ok"] for code, last, _, err in ends if (code, err) == (0, "")]
    assert len(told) == 8, ends
    assert len({(found["generation"], found["writer"]) for found in told}) == 1, told


# ---------------------------------------------------------------- a pod that wakes up in the middle


class AsleepBefore:
    """A store whose pod falls asleep right before its ``number``-th look at the claims; meanwhile ``then`` happens."""

    def __init__(self, store: Store, number: int, then: Any) -> None:
        self._store, self._number, self._then = store, number, then
        self.after: list[str] = []
        self.awake = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in ("put_bytes", "put_file", "delete"):
            return real

        def act(what: Any, *rest: Any) -> Any:
            target = what if isinstance(what, str) else what.name
            if self.awake:
                self.after.append(f"{name} {target}")
            return real(what, *rest)

        return act

    def fence(self, generation: int, writer: str) -> Any:
        """What looks at the claims before each act."""
        zombie, fence = self, Fence(self._store, RUN, generation, writer)

        class Sleeping:
            looks = 0

            def __call__(self) -> None:
                self.looks += 1
                if self.looks == zombie._number:
                    zombie._then()
                    zombie.awake = True
                fence()

            def lately(self, within_s: float = 0.0) -> None:
                return

        return Sleeping()


@pytest.mark.parametrize(("look_number", "before"), [(1, "the files"), (2, "the manifest"), (3, "the pointer")])
def test_a_pod_that_wakes_up_in_the_middle_of_a_publish_writes_and_deletes_nothing_more(
    store: Store, tmp_path: Path, look_number: int, before: str
) -> None:
    held(store, A)
    publish(store, Step(tmp_path / "a10", 10).fill(shard=900).plan(tmp_path / "s", writer=A, generation=1), quiet)
    other = Step(tmp_path / "b20", 20).fill(seed=2)

    def meanwhile() -> None:
        assert held(store, B, over=look(store, RUN)) == 2
        publish(store, other.plan(tmp_path / "sb", writer=B, generation=2, fence=Fence(store, RUN, 2, B)), quiet)

    zombie = AsleepBefore(store, look_number, meanwhile)
    mine = Step(tmp_path / "a20", 20).fill(seed=1)
    fence = zombie.fence(1, A)
    with pytest.raises(FencedError, match="pod pod-b holds run"):
        publish(zombie, mine.plan(tmp_path / "s", writer=A, generation=1, fence=fence), quiet)  # type: ignore[arg-type]
    assert zombie.awake, before
    assert zombie.after == [], "not one write or delete after it woke up"
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.generation, latest.writer) == (20, 2, B)
    assert current(store, "step_20/manifest.json")["writer"] == B
    assert list_steps(store, RUN).steps[20].committed


class AsleepOnceSent(AsleepBefore):
    """One whose pod falls asleep when all files of a step are sent and listed."""

    sent = False

    def put_file(self, *what: Any) -> Any:
        self.sent = True
        return self._store.put_file(*what)

    def list(self, prefix: str) -> Any:
        found = self._store.list(prefix)
        if self.sent and not self.awake:
            self._then()
            self.awake = True
        return found


def test_a_pod_that_wakes_up_when_its_files_are_confirmed_commits_nothing(store: Store, tmp_path: Path) -> None:
    """Between the last file and the manifest lie a listing or forty, and any of them may take long."""
    held(store, A)
    publish(store, Step(tmp_path / "a10", 10).fill(shard=900).plan(tmp_path / "s", writer=A, generation=1), quiet)
    zombie = AsleepOnceSent(store, 0, lambda: held(store, B, over=look(store, RUN)))
    plan = (
        Step(tmp_path / "a20", 20)
        .fill(seed=1)
        .plan(tmp_path / "s", writer=A, generation=1, fence=Fence(store, RUN, 1, A))
    )
    with pytest.raises(FencedError, match="pod pod-b holds run"):
        publish(zombie, plan, quiet)  # type: ignore[arg-type]
    assert (zombie.awake, zombie.after) == (True, [])
    assert not list_steps(store, RUN).steps[20].committed


def test_a_fenced_pod_deletes_no_step(store: Store, tmp_path: Path) -> None:
    held(store, A)
    for number in (10, 20, 30):
        step = Step(tmp_path / f"a{number}", number).fill(shard=900)
        publish(store, step.plan(tmp_path / "s", writer=A, generation=1), quiet)
    held(store, B, take_over=True)
    before = {file.name for file in store.list(f"{RUN}/")}
    with pytest.raises(FencedError, match="nothing more is written to or deleted from"):
        delete_step(store, RUN, 10, Fence(store, RUN, 1, A))
    assert {file.name for file in store.list(f"{RUN}/")} == before


def test_a_zombies_late_pointer_counts_for_nothing_and_is_healed_by_the_holders_heartbeat(
    b2: B2Server, tmp_path: Path, served: Served
) -> None:
    store = b2_store(b2)
    held(store, A)
    publish(store, Step(tmp_path / "a30", 30).fill(shard=900).plan(tmp_path / "s", writer=A, generation=1), quiet)
    late = store.get_bytes(f"{RUN}/latest.json")
    held(store, B, take_over=True)
    step = Step(tmp_path / "b20", 20).fill(seed=2, shard=900)
    publish(store, step.plan(tmp_path / "sb", writer=B, generation=2, allow_back=True), quiet)
    store.put_bytes(f"{RUN}/latest.json", late)  # the request that was on its way while the pod slept
    assert current(store, "latest.json")["step"] == "step_30", "a reader by name is deceived for a moment"
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.generation) == (20, 2), "we are not"
    where = {"store": {"url": store.url, "realm": b2.url, "streams": 4, "part_size": None}, "run_id": RUN}
    served.ok({"do": "beat", "generation": 2, "writer": B, "count": 1, **where}, b2.environ())
    assert current(store, "latest.json")["step"] == "step_20"


def test_a_pointer_from_before_a_rollback_that_arrives_late_does_not_undo_it(b2: B2Server, tmp_path: Path) -> None:
    """It is of the same pod: its transfer was killed, and the last request was on its way."""
    store = b2_store(b2)
    held(store, A)
    steps = {number: Step(tmp_path / f"a{number}", number).fill(shard=900) for number in (10, 20)}
    for step in steps.values():
        publish(store, step.plan(tmp_path / "s", writer=A, generation=1), quiet)
    late = store.get_bytes(f"{RUN}/latest.json")
    publish(store, steps[10].plan(tmp_path / "s", writer=A, generation=1, allow_back=True), quiet)
    store.put_bytes(f"{RUN}/latest.json", late)
    latest = read_latest(store, RUN)
    assert latest is not None and latest.step == 10


def test_a_zombies_late_manifest_does_not_stand_for_the_step_of_the_holder(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    mine = Step(tmp_path / "a20", 20).fill(seed=1, shard=900)
    publish(store, mine.plan(tmp_path / "s", writer=A, generation=1), quiet)
    late = store.get_bytes(f"{RUN}/step_20/manifest.json")
    step = Step(tmp_path / "b20", 20).fill(seed=2, shard=900)
    publish(store, step.plan(tmp_path / "sb", writer=B, generation=2), quiet)
    store.put_bytes(f"{RUN}/step_20/manifest.json", late)
    found = list_steps(store, RUN).steps[20]
    assert (found.committed, found.problem) == (True, "")
    from supervisor.checkpoints.records import read_manifest

    assert read_manifest(store, RUN, 20)[0].generation == 2


# ---------------------------------------------------------------- which steps are left


def published(store: Store, tmp_path: Path, *numbers: int, **more: Any) -> None:
    for number in numbers:
        step = Step(tmp_path / f"p{number}-{len(more)}", number).fill(seed=len(more), shard=900)
        publish(store, step.plan(tmp_path / "state", happened=lineage.read(store, RUN), **more), quiet)


def good(store: Store) -> list[int]:
    return [info.step for info in list_steps(store, RUN).steps.values() if info.committed and not info.left]


def kept(store: Store, *entries: Entry, **more: Any) -> int | None:
    options = {"generation": 0, "writer": A, "fence": lambda: None, **more}
    return keep_lineage(store, RUN, entries, **options)[1]


def test_a_step_that_is_reached_anew_with_the_same_bytes_is_good_again_and_not_sent(
    store: Store, tmp_path: Path
) -> None:
    published(store, tmp_path, 10, 20)
    kept(store, Entry("rollback", 10, 1.7e9, "a person"))
    assert good(store) == [10]
    before = store.sent_bytes()
    published(store, tmp_path, 20)
    assert good(store) == [10, 20]
    assert current(store, "latest.json")["step"] == "step_20"
    assert store.sent_bytes() - before < 20_000, "records, and no file"


def test_a_quarantined_step_that_comes_again_with_the_same_bytes_stays_quarantined(
    store: Store, tmp_path: Path
) -> None:
    published(store, tmp_path, 10, 20)
    kept(store, Entry("quarantine", 20, 1.7e9, "it failed twice"), Entry("rollback", 10, 1.7e9 + 1, "and back"))
    published(store, tmp_path, 20)
    assert good(store) == [10]
    assert current(store, "latest.json")["step"] == "step_10"


def test_a_quarantined_step_is_left_and_the_pointer_goes_back_at_once(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 10, 20)
    assert kept(store, Entry("quarantine", 20, 1.7e9, "it failed twice")) == 10
    found = list_steps(store, RUN)
    assert found.steps[20].left == "it is quarantined: it failed twice"
    assert found.steps[20].committed, "it is not deleted for that"
    assert current(store, "latest.json")["step"] == "step_10", "for old readers too"
    assert good(store) == [10]


def test_a_rollback_leaves_all_higher_steps_until_they_are_reached_anew(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 10, 20, 30)
    assert kept(store, Entry("rollback", 10, 1.7e9)) == 10
    assert good(store) == [10]
    assert list_steps(store, RUN).steps[30].left == "the run went back to step 10"
    published(store, tmp_path, 20, writer=B)
    assert good(store) == [10, 20], "of the new lineage"
    latest = read_latest(store, RUN)
    assert latest is not None and (latest.step, latest.lineage) == (20, 1)


def test_a_fresh_start_leaves_everything_and_a_person_may_take_a_step_back(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 10, 20)
    assert kept(store, Entry("rollback", lineage.BEFORE_THE_FIRST, 1.7e9)) is None, "there is no good step"
    assert good(store) == []
    kept(store, Entry("take", 20, 1.8e9))
    assert good(store) == [20]


def test_the_same_thing_told_again_after_a_crash_is_kept_once(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 10, 20)
    kept(store, Entry("rollback", 10, 1.7e9))
    published(store, tmp_path, 20, writer=B)
    kept(store, Entry("rollback", 10, 1.7e9))
    assert good(store) == [10, 20]
    assert lineage.read(store, RUN).number == 1


def test_what_a_fenced_pod_tells_is_not_kept(store: Store, tmp_path: Path) -> None:
    published(store, tmp_path, 10, 20)
    held(store, A)
    held(store, B, take_over=True)
    with pytest.raises(FencedError):
        kept(store, Entry("rollback", 10, 1.7e9), generation=1, fence=Fence(store, RUN, 1, A))
    assert good(store) == [10, 20]


BAD = [
    b"{",
    b"[" * 100_000,
    b"{}",
    json.dumps({"format": 1, "run_id": "other", "generation": 1, "entries": []}).encode(),
    json.dumps({"format": 1, "run_id": RUN, "generation": 1, "entries": [{}] * 2001}).encode(),
    json.dumps({"format": 1, "run_id": RUN, "generation": 1, "entries": [{"kind": "rm", "step": 1}]}).encode(),
    json.dumps({"format": 1, "run_id": RUN, "generation": -1, "entries": []}).encode(),
    json.dumps(
        {
            "format": 1,
            "run_id": RUN,
            "generation": 1,
            "entries": [{"lineage": 1, "kind": "rollback", "step": 1e3, "wall": "now", "why": ""}],
        }
    ).encode(),
]


@pytest.mark.parametrize("data", BAD)
def test_a_lineage_that_nobody_understands_is_a_sentence_and_never_an_empty_one(store: Store, data: bytes) -> None:
    store.put_bytes(f"{RUN}/lineage.json", data)
    with pytest.raises(StoreError, match="is damaged, so it is unknown which steps may be resumed from") as told:
        list_steps(store, RUN)
    assert told.value.kind == "damaged"


def test_standing_claim_beat_release_and_lineage_go_through_the_process(tmp_path: Path, lasting: Lasting) -> None:
    url = (tmp_path / "store").as_uri()
    where = {"store": {"url": url, "realm": None, "streams": 4, "part_size": None}, "run_id": RUN}
    store = open_store(url, None, {}, retry=QUICK)
    first = lasting.ok({"do": "claim", "writer": A, "settle_s": 0.2, **where})
    assert (first["generation"], first["writer"], first["released"]) == (1, A, False)
    assert lasting.ok({"do": "standing", **where}) == first == asdict(look(store, RUN))
    second = lasting.ok({"do": "claim", "writer": B, "settle_s": 0.2, **where})
    assert second["writer"] == A
    assert lasting.ok({"do": "claim", "writer": B, "settle_s": 0.2, "over": second, **where})["writer"] == B
    with pytest.raises(FencedError) as late:
        lasting.ok({"do": "beat", "generation": 1, "writer": A, "count": 1, **where})
    assert (late.value.by, late.value.generation) == ("pod-b", 2)
    step = Step(tmp_path / "a20", 20).fill()
    asked = step.request(tmp_path / "s") | where | {"generation": 1, "writer": A}
    kind, sentence = lasting.error(asked)
    assert (kind, sentence.split(" (")[0]) == ("fenced", f"pod pod-b holds run {RUN} now")
    assert not store.list(f"{RUN}/step_20/"), "nothing was sent"
    lasting.ok(asked | {"generation": 2, "writer": B})
    happened = [{"kind": "quarantine", "step": 20, "wall": 1.7e9, "why": ""}]
    told = lasting.ok({"do": "lineage", "happened": happened, "generation": 2, "writer": B, **where})
    assert told == {"lineage": 1, "pointer": None}
    assert lasting.ok({"do": "catalogue", **where})["steps"][0]["left"] == "it is quarantined"
    assert lasting.ok({"do": "release", "generation": 2, "writer": B, **where}) == {}
    assert lasting.ok({"do": "claim", "writer": A, "settle_s": 0.2, **where})["generation"] == 3
