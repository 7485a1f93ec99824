"""Stores that are slow to list, whose clock goes back, or that let nothing be deleted; and disks that are slow to read.

Nothing that was confirmed is lost by it, and nothing that is good is called bad.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.checkpoints import claims, keeping, lineage, reuse
from supervisor.checkpoints.catalogue import delete_step, keep_lineage, list_steps
from supervisor.checkpoints.delta import Span
from supervisor.checkpoints.lineage import Entry, Lineage
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.progress import Meter, Moved
from supervisor.checkpoints.publish import Published, publish
from supervisor.checkpoints.records import read_latest
from supervisor.checkpoints.restore import restore
from supervisor.checkpoints.sources import LocalFile
from supervisor.storage import open_store
from supervisor.storage.base import Part, Store, StoreError
from supervisor.storage.hashing import sha1
from tests.b2server import B2Server, Key
from tests.b2server.state import Bucket, State, Version
from tests.checkpoints_store.conftest import QUICK, RUN, Step, b2_store, quiet, tree, until

HOUR_MS = 3600_000
WRITER = "pod-a/aaaaaaaaaaaaaaaa/bbbbbbbb"
STALE_S = 0.7


def send(store: Store, folder: Path, number: int, seed: int = 0, happened: Lineage | None = None) -> Published:
    step = Step(folder / f"{number}-{seed}", number).fill(seed, shard=900)
    return publish(store, step.plan(folder / "state", happened=happened or Lineage()), quiet)


def keep(store: Store, *entries: Entry) -> int | None:
    return keep_lineage(store, RUN, entries, generation=0, writer="pod-a", fence=lambda: None)[1]


def claim(store: Store) -> claims.Standing:
    return claims.claim(store, RUN, WRITER, 60.0, sleep=lambda seconds: None)


def committed(store: Store) -> dict[int, bool]:
    return {info.step: info.committed for info in list_steps(store, RUN).steps.values()}


# ---------------------------------------------------------------- a fenced pod's last request


@pytest.mark.parametrize("late", [b"of another size", random.Random(3).randbytes(300)], ids=["another size", "same"])
def test_a_late_file_of_a_fenced_pod_hides_no_committed_step(b2: B2Server, tmp_path: Path, late: bytes) -> None:
    store = b2_store(b2)
    send(store, tmp_path, 20)
    name = "step_20/.run/run_default/checkpoints/step_20/orchestrator/progress.pt"
    store.put_bytes(f"{RUN}/{name}", late)
    assert committed(store) == {20: True}
    assert restore(store, RUN, 20, Place("checkpoints/step_20"), tmp_path / "back", quiet).verified
    assert tree(tmp_path / "back") == Step(tmp_path / "20-0", 20).fill(shard=900).content()


def test_a_file_that_is_gone_and_was_replaced_by_another_one_is_still_a_problem(b2: B2Server, tmp_path: Path) -> None:
    store = b2_store(b2)
    send(store, tmp_path, 20)
    [file] = [file for file in store.list(f"{RUN}/step_20/") if file.name.endswith("trainer/.metadata")]
    store.put_bytes(file.name, b"of another size")
    store.delete(file)
    assert list_steps(store, RUN).steps[20].problem == "trainer/.metadata of step 20 has another size"


# ---------------------------------------------------------------- listings that are old


@pytest.fixture
def stale(b2: B2Server) -> Iterator[Callable[[], None]]:
    def begin() -> None:
        newest = max((version.visible_at for version in b2.state.versions.values()), default=0.0)
        until(lambda: time.monotonic() > newest + STALE_S, "all that was written before is listed")
        b2.state.stale_s = STALE_S

    yield begin
    b2.state.stale_s = 0.0


@pytest.mark.soak
def test_the_pointer_leaves_a_quarantined_step_however_old_the_listing_is(
    b2: B2Server, tmp_path: Path, stale: Callable[[], None]
) -> None:
    store = b2_store(b2)
    for number in (10, 20):
        send(store, tmp_path, number)
    stale()
    assert keep(store, Entry("quarantine", 20, 1.7e9, "poisoned")) == 10
    assert json.loads(b2.objects()[f"team/{RUN}/latest.json"])["step"] == "step_10"


def test_the_second_entry_is_added_to_the_first_however_old_the_listing_is(
    b2: B2Server, stale: Callable[[], None]
) -> None:
    store = b2_store(b2)
    stale()
    for step in (20, 10):
        lineage.keep(store, RUN, [Entry("quarantine", step, 1.7e9)], generation=0, writer="pod-a", least=0)
        assert step in [entry.step for entry in lineage.read(store, RUN).entries], "the next publish is told at once"
    b2.state.stale_s = 0.0
    assert [entry.step for entry in lineage.read(store, RUN).entries] == [20, 10]


def test_the_second_pin_is_added_to_the_first_however_old_a_reading_is(b2: B2Server, stale: Callable[[], None]) -> None:
    store = b2_store(b2)
    stale()
    keeping.set_pin(store, RUN, 10, pinned=True)
    assert keeping.set_pin(store, RUN, 20, pinned=True) == (10, 20)
    b2.state.stale_s = 0.0
    assert keeping.read_pins(store, RUN).steps == (10, 20)


def test_what_is_never_listed_is_no_success(b2: B2Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.checkpoints.records.SETTLE_S", 0.001)
    store = b2_store(b2)
    b2.state.stale_s = 600.0
    with pytest.raises(StoreError, match="does not show the pins") as caught:
        keeping.set_pin(store, RUN, 10, pinned=True)
    assert caught.value.kind == "transient"
    with pytest.raises(StoreError, match="does not list") as caught:
        lineage.keep(store, RUN, [Entry("rollback", 10, 1.7e9)], generation=0, writer="pod-a", least=0)
    assert caught.value.kind == "transient"


# ---------------------------------------------------------------- a key that may delete nothing


@pytest.fixture
def undeleting(b2: B2Server) -> Store:
    may = ("listBuckets", "listFiles", "readFiles", "writeFiles")
    key = b2.add_key(Key("0000nodelete", "K000n", may, ("the-bucket",), "team/"))
    return open_store("b2://the-bucket/team", b2.url, b2.environ(key), streams=4, retry=QUICK)


def test_a_key_that_may_delete_nothing_publishes_step_after_step(undeleting: Store, tmp_path: Path) -> None:
    for number in (10, 20, 30):
        assert send(undeleting, tmp_path, number).pointer_moved
    assert committed(undeleting) == {10: True, 20: True, 30: True}
    keeping.tidy(undeleting, RUN, (30,))


def test_a_key_that_may_delete_nothing_holds_a_run_and_goes_back(
    undeleting: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "KEPT_GENERATIONS", 1)
    for generation in (1, 2, 3):
        assert claim(undeleting).generation == generation
        for count in (1, 2, 3):
            claims.beat(undeleting, RUN, generation, WRITER, count)
        claims.release(undeleting, RUN, generation, WRITER)
    for number in (10, 20, 30):
        send(undeleting, tmp_path, number)
    assert keep(undeleting, Entry("quarantine", 30, 1.7e9)) == 20
    assert keep(undeleting, Entry("quarantine", 20, 1.8e9)) == 10
    for step in (10, 20):
        keeping.set_pin(undeleting, RUN, step, pinned=True)
    assert keeping.read_pins(undeleting, RUN).steps == (10, 20)


def test_other_bytes_are_not_committed_over_a_step_by_a_key_that_may_delete_nothing(
    undeleting: Store, tmp_path: Path
) -> None:
    send(undeleting, tmp_path, 20)
    with pytest.raises(StoreError, match="deleteFiles") as caught:
        send(undeleting, tmp_path, 20, seed=1)
    assert caught.value.kind == "permanent"
    assert committed(undeleting) == {20: True}


# ---------------------------------------------------------------- a store whose clock is not ours


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes the store's clock differ from ours by so many hours, from now on."""
    behind = [0.0]

    def add(  # noqa: PLR0917
        state: State, bucket: Bucket, name: str, action: str, content_type: str, info: dict[str, str]
    ) -> Version:
        with state.lock:
            number = state.number()
            stamp = int(time.time() * 1000 + behind[0] * HOUR_MS) + number  # in order, were they of one millisecond
            version = Version(f"4_z{bucket.bucket_id}_f{number:08d}", bucket, name, action, stamp, content_type, info)
            version.visible_at = time.monotonic()
            state.versions[version.file_id] = version
            return version

    monkeypatch.setattr(State, "add", add)

    def set_it(hours: float) -> None:
        behind[0] = hours

    return set_it


def test_a_pin_lasts_when_the_stores_clock_went_back(b2: B2Server, set_clock: Callable[[float], None]) -> None:
    store = b2_store(b2)
    keeping.set_pin(store, RUN, 10, pinned=True)
    set_clock(-3)
    assert keeping.set_pin(store, RUN, 20, pinned=True) == (10, 20)
    keeping.tidy(store, RUN)
    assert keeping.read_pins(store, RUN).steps == (10, 20)


def test_a_step_that_is_reached_anew_is_sent_once_when_the_stores_clock_went_back(
    b2: B2Server, tmp_path: Path, set_clock: Callable[[float], None]
) -> None:
    store = b2_store(b2)
    for number in (10, 20):
        send(store, tmp_path, number)
    keep(store, Entry("rollback", 10, 1.7e9))
    set_clock(-3)
    assert send(store, tmp_path, 20, seed=1, happened=lineage.read(store, RUN)).pointer_moved
    latest = read_latest(store, RUN)
    assert (committed(store), latest and latest.step) == ({10: True, 20: True}, 20)
    for name, path in Step(tmp_path / "20-1", 20).fill(1, shard=900).files.items():
        assert b2.objects()[f"team/{RUN}/step_20/{name}"] == path.read_bytes(), "also for who reads it by its name"


@pytest.mark.parametrize("hours", [-13.0, 13.0])
def test_who_restores_is_heard_however_far_the_stores_clock_is_from_ours(
    b2: B2Server, tmp_path: Path, set_clock: Callable[[float], None], hours: float
) -> None:
    store = b2_store(b2)
    set_clock(hours)
    for number in (10, 20, 30):
        send(store, tmp_path, number)
    with keeping.announce_restore(store, RUN, 10), pytest.raises(StoreError, match="it is being restored"):
        delete_step(store, RUN, 10)
    store.put_bytes(f"{RUN}/readers/step_10.{'0' * 16}.json", b"{}")  # its pod died
    set_clock(hours + 13)
    claim(store)
    claims.beat(store, RUN, 1, WRITER, 1)
    assert keeping.read_kept_steps(store, RUN).reading == ()
    assert delete_step(store, RUN, 10) > 0


# ---------------------------------------------------------------- a slow disk


class Cut(list[Part]):
    """What ``_pieces`` needs of a local file: its parts, and where it is."""

    def __init__(self, source: Path, parts: list[Part]) -> None:
        super().__init__(parts)
        self.source = source


def test_what_is_read_again_to_be_copied_counts_as_progress(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(9000)
    path = tmp_path / "large"
    path.write_bytes(data)
    file = Cut(path, [Part(0, 4000, sha1(data[:4000])), Part(4000, 5000, sha1(data[4000:]))])
    spans = [Span(0, 4000, True), Span(4000, 2500, False), Span(6500, 2500, True)]
    seen: list[Moved] = []
    meter = Meter(seen.append)
    meter.phase("sending", 9000)
    pieces = reuse._hash_pieces(_as_local(file), spans, meter)
    assert [piece.part.sha1 for piece in pieces] == [sha1(data[s.offset : s.offset + s.size]) for s in spans]
    assert [piece.copied for piece in pieces] == [True, False, True]
    assert (seen[-1].bytes, seen[-1].total) == (5000, 14000)
    assert len({moved.bytes for moved in seen}) >= 3, "not only when all is read"


def _as_local(file: Cut) -> LocalFile:
    return file  # type: ignore[return-value]
