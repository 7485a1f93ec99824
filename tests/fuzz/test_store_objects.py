"""Whatever lies in the store: a value within its limits or kind "damaged", and nothing is written outside the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.checkpoints import claims, keeping, lineage, log_files, log_packing, record_files
from supervisor.checkpoints.catalogue import get_run_files, list_steps
from supervisor.checkpoints.manifest import (
    Latest,
    Manifest,
    ManifestFile,
    check_paths,
    parse_latest,
    parse_manifest,
)
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.records import read_latest, read_manifest
from supervisor.checkpoints.restore import restore
from supervisor.core import goodput as g
from supervisor.core import time_kinds as k
from supervisor.core.records import Learned, PhaseTimes
from supervisor.effects import run_records
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoredFile, StoreError
from supervisor.storage.hashing import sha1
from supervisor.storage.names import name_problem
from tests.fuzz.given import TEXTS, altered, damaged, dumped, junk, texts
from tests.fuzz.profiles import fuzzed

RUN = "run"
NOW = 1.79e9
JOURNAL = "0123456789abcdef"
DATA = b"weights" * 10
FILE = ManifestFile("trainer/x", len(DATA), "id1", 100, (sha1(DATA),), sha1(DATA))
MANIFEST = Manifest(RUN, 20, "pod/0123456789abcdef/0123", (FILE,), reward=0.5)
LATEST = Latest(20, RUN, "abcd1234", manifest_file_id="id1", manifest_sha256="0" * 64, writer="pod")
LEGACY = {"step": "step_20", "run_id": RUN, "wandb_run_id": "abcd1234", "timestamp": "2026-01-06T03:00:00"}
ENTRY = lineage.Entry("rollback", 10, NOW, "a person", 1, 1)
LINEAGE = lineage.to_bytes(lineage.Lineage((ENTRY, replace(ENTRY, kind="quarantine", lineage=2)), 1), RUN, "pod")
CLAIM = {"format": 1, "generation": 7, "writer": "pod/0123456789abcdef/0123"}
RECORD = run_records.to_bytes(
    run_records.Record(
        JOURNAL,
        Learned({"startup": PhaseTimes(seconds=(1.0, 2.0), count=2, longest_s=2.0, median_s=1.5)}),
        g.Ledger(
            seconds={k.PRODUCTIVE: 100.0},
            began_wall=NOW - 200,
            wall=NOW - 1,
            last=k.PRODUCTIVE,
            spans=((1, 3, 50.0),),
            starts=((NOW - 200, 0),),
            outages=(g.Outage(1, "engine-gone", NOW - 100, 2, 1, recovered=True),),
        ),
    )
)


@contextmanager
def only_damaged() -> Iterator[None]:
    """The one way in which an object of a stranger is refused."""
    try:
        yield
    except StoreError as error:
        assert error.kind == "damaged", error
        assert len(str(error)) < 3000


def of(whole: bytes) -> st.SearchStrategy[bytes]:
    """The object with other values in it, with other bytes in it, or anything."""
    return altered(json.loads(whole)).map(dumped) | damaged(whole) | junk


@pytest.mark.soak
@fuzzed(3)
@given(of(MANIFEST.to_bytes()))
def test_any_manifest_is_read_within_its_limits_or_damaged(data: bytes) -> None:
    with only_damaged():
        found = parse_manifest(data, RUN, 20)
        for file in found.files:
            assert name_problem(file.path) is None
            assert sum(part.size for part in file.parts()) == file.size
        assert parse_manifest(found.to_bytes(), RUN, 20) == found


@fuzzed(3)
@given(of(LATEST.to_bytes()) | of(dumped(LEGACY)))
@example(dumped({**LEGACY, "timestamp": 10**400}))
@example(dumped({**LEGACY, "timestamp": [1]}))
@example(dumped({**LEGACY, "step": "step_٣"}))
def test_any_pointer_names_a_step_or_is_damaged(data: bytes) -> None:
    with only_damaged():
        found = parse_latest(data, RUN)
        assert 0 <= found.step < 10**9
        found.to_bytes()


@fuzzed(2)
@given(of(LINEAGE))
def test_any_lineage_is_read_or_nobody_resumes_by_guess(data: bytes) -> None:
    with only_damaged():
        found = lineage.parse(data, RUN)
        assert lineage.parse(lineage.to_bytes(found, RUN, "pod"), RUN) == found
        for step in (0, 10, 10**9):
            found.reason_against_step(step, 0)


@fuzzed(2)
@given(of(RECORD))
def test_any_record_of_another_pod_is_taken_within_its_limits_or_left_out(data: bytes) -> None:
    found = run_records.parse(JOURNAL, data, NOW)
    if found is not None:
        run = g.sum_ledgers({JOURNAL: found.ledger})
        assert 0 <= run.total_s < 1e11
    assert run_records.parse(JOURNAL, RECORD, NOW) is not None


class Strangers:
    """A store that holds whatever strangers put there, under any names: not every server has a file system's limits."""

    url = "test://bucket"
    streams = 2

    def __init__(self, held: dict[str, bytes], listed: dict[str, int] | None = None) -> None:
        self.held = held
        self.listed = listed or {}
        self.deleted: list[str] = []

    def _file(self, name: str) -> StoredFile:
        size = self.listed.get(name, len(self.held[name]))
        return StoredFile(name, size, f"id-{name}", None, NOW)

    def list(self, prefix: str) -> list[StoredFile]:
        return [self._file(name) for name in sorted(self.held) if name.startswith(prefix)]

    def list_versions(self, prefix: str) -> list[StoredFile]:
        return self.list(prefix)

    def get_bytes(self, name: str, file_id: str | None = None, limit: int = 16 << 20) -> bytes:
        data = self.held.get(name)
        if data is None:
            raise StoreError("missing", f"{name} is missing")
        if len(data) > limit:
            raise StoreError("damaged", f"{name} is too large")
        return data

    def delete(self, file: StoredFile) -> None:
        self.deleted.append(file.name)


NAMES = (
    "step_20/manifest.json", "step_٣/manifest.json", "step_0020/manifest.json", "STEP_20/manifest.json", "step_-1/x",
    "step_20/../x", "step_20//x", "step_99999999999/manifest.json", "step_20", "step_20/", "latest.json", "Latest.json",
    "lineage.json", "pins.json", "pins.json/x", "writers/gen_00007.json", "writers/gen_٠٠٠٠٩.json",
    "writers/gen_00007.beat.json", "writers/gen_000000000000000000.json", "writers/gen_999999999999999.json",
    "writers/gen_00008.end.json", "readers/step_20.0123456789abcdef.json", "readers/step_٣.0123456789abcdef.json",
    f"records/{JOURNAL}.json", f"records/../{JOURNAL}.json", f"records/{JOURNAL.upper()}.json", "run/run.json",
    "run/../../x", "run/\0", "run/a/b", f"logs/{JOURNAL}/0001-trainer.log.gz", f"logs/{JOURNAL}/٠٠٠١-x.gz",
    "", "/", "..", "\0", "\ud800", "é", "e\u0301", "\u202e",
)  # fmt: skip
CONTENTS = (
    MANIFEST.to_bytes(), LATEST.to_bytes(), dumped(LEGACY), LINEAGE, dumped(CLAIM), RECORD, b"", b"{}", b"null",
    dumped({"format": 1, "steps": [1, 20]}), dumped({"format": 1, "steps": [True, -1]}), log_packing.pack("a log\n"),
    log_packing.pack("x" * 3_000_000)[:-9], b"[" * 50_000, b"9" * 5000, b'{"writer": 1e999}',
)  # fmt: skip

LOOKS: dict[str, Callable[[Store], object]] = {
    "steps": lambda store: list_steps(store, RUN),
    "pointer": lambda store: read_latest(store, RUN),
    "manifest": lambda store: read_manifest(store, RUN, 20),
    "lineage": lambda store: lineage.read(store, RUN),
    "claims": lambda store: claims.look(store, RUN),
    "kept": lambda store: keeping.read_kept_steps(store, RUN),
    "records": lambda store: run_records.of_others(record_files.get_records(store, RUN), "f" * 16, NOW),
    "run files": lambda store: get_run_files(store, RUN),
    "logs": lambda store: [log_files.get_logs(store, RUN, log.attempt) for log in log_files.list_logs(store, RUN)],
}


@pytest.mark.soak
@fuzzed(4)
@given(
    st.dictionaries(
        st.sampled_from(NAMES) | texts, st.sampled_from(CONTENTS) | of(MANIFEST.to_bytes()) | junk, max_size=8
    ),
    st.sampled_from([-1, 0, 5, 2**63]),
)
@example(dict.fromkeys(NAMES, b""), 0)
def test_any_listing_is_looked_at_without_another_error(held: dict[str, bytes], odd_size: int) -> None:
    store = Strangers({f"{RUN}/{name}": data for name, data in held.items()})
    if held:
        store.listed[f"{RUN}/{min(held)}"] = odd_size
    for name, look in LOOKS.items():
        try:
            look(store)  # type: ignore[arg-type]  # only what looking needs
        except StoreError as error:
            assert error.kind in ("damaged", "missing", "permanent", "transient"), name
    assert store.deleted == []


def test_a_step_and_a_generation_have_one_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another object than the one that we would write and delete counts as the step's, or as the claim."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    odd = {f"{RUN}/step_٣/manifest.json": b"{}", f"{RUN}/step_0003/manifest.json": b"{}"}
    assert list_steps(Strangers(odd), RUN).steps == {}  # type: ignore[arg-type]
    good = {f"{RUN}/step_{step}/manifest.json": b"{}" for step in (1, 2)}
    with pytest.raises(StoreError, match="one of the last 2 good steps"):
        keeping.refuse_to_delete(Strangers({**odd, **good}), RUN, 1)  # type: ignore[arg-type]
    claimed = {f"{RUN}/writers/gen_00007.json": dumped(CLAIM), f"{RUN}/writers/gen_٠٠٠٠٩.json": dumped(CLAIM)}
    assert claims.look(Strangers(claimed), RUN).generation == 7  # type: ignore[arg-type]
    reading = {f"{RUN}/readers/step_٣.0123456789abcdef.json": b"{}"}
    assert keeping.read_kept_steps(Strangers(reading), RUN).reading == ()  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="damaged"):
        parse_latest(dumped({**LEGACY, "step": "step_٣"}), RUN)


# ---------------------------------------------------------------- names become paths


NASTY = st.sampled_from([name for name in TEXTS if name]) | st.text(max_size=20)
paths = st.lists(NASTY | st.sampled_from(["a", "A", "b", "trainer", "x"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.soak
@fuzzed(3)
@given(st.lists(paths, max_size=5))
@example(["a/b", "a"])
@example(["x/../../y"])
def test_names_that_pass_stay_below_their_folder_and_can_stand_beside_each_other(names: list[str]) -> None:
    with only_damaged():
        check_paths(names, "a manifest")
        root = Path("/run/step_1")
        for name in names:
            path = root / name
            assert ".." not in path.parts
            assert path.is_relative_to(root)
            assert path != root
            assert "\0" not in name
        assert len({root / name for name in names}) == len(names)


@fuzzed(0.4)
@given(st.lists(st.tuples(paths, st.binary(max_size=40)), min_size=1, max_size=4), of(MANIFEST.to_bytes()))
@example([("../../outside", b"x")], b"")
@example([("/tmp/fuzz-outside", b"x")], b"")
@example([("trainer/x", b"x"), ("trainer/X", b"y")], b"")
def test_restoring_what_strangers_published_writes_nothing_outside(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, bytes]], manifest: bytes
) -> None:
    folder = tmp_path_factory.mktemp("pod")
    store_folder = folder / "store"
    store = open_store(store_folder.as_uri(), None, {})
    entries = []
    for name, data in files:
        try:
            stored = store.put_bytes(f"{RUN}/step_20/{name}", data)
        except (StoreError, ValueError):  # a server would take it: the manifest names it all the same
            entries.append(ManifestFile(name, len(data), "id", 100, (sha1(data),)))
            continue
        entries.append(ManifestFile(name, len(data), stored.file_id, 100, (sha1(data),)))
    try:
        data = manifest or replace(MANIFEST, files=tuple(entries)).to_bytes()
    except UnicodeEncodeError:
        return  # nobody can write such a manifest with our writer; the JSON spelling of it is in ``of``
    store.put_bytes(f"{RUN}/step_20/manifest.json", data)
    before = outside(folder)
    with_ = folder / "output" / "run"
    try:
        restore(store, RUN, 20, Place("checkpoints/step_20"), with_, lambda moved: None)
    except StoreError as error:
        assert error.kind in ("damaged", "missing", "permanent", "transient", "changed")
    assert outside(folder) == before


def outside(folder: Path) -> dict[str, bytes]:
    """Everything that no restore may touch."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and (folder / "output" / "run") not in path.parents
    }


def test_a_number_of_any_length_in_an_object_is_no_harm() -> None:
    for text in (b"9" * 100_000, b"1e" + b"9" * 100, b"-0", b"1E400"):
        data: Any = b'{"format": ' + text + b"}"
        with pytest.raises(StoreError):
            parse_manifest(data, RUN, 20)
        with pytest.raises(StoreError):
            lineage.parse(data, RUN)
        assert run_records.parse(JOURNAL, data, NOW) is None
