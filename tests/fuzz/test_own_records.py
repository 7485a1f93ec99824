"""Our own files after a bad disk, half a write or a person's editor: each is a value or its own error."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.base.errors import SupervisorError
from supervisor.checkpoints.completeness import check_dcp, check_zip
from supervisor.checkpoints.dcp_metadata import MetadataError, needed_bytes
from supervisor.cli import incidents as pages
from supervisor.core import facts as f
from supervisor.core.decide import decide
from supervisor.core.state import State
from supervisor.journal import attempt_folders, attempt_logs
from supervisor.journal.clock import Clock
from supervisor.journal.journal import Journal, identity_in
from supervisor.process import attached, launch, shim
from supervisor.process.attempts import read_snapshot
from supervisor.process.survivors import read_record
from supervisor.sensors.follow import Position
from supervisor.sensors.leaving import MOST_WITHIN_S, within
from supervisor.views import incidents
from tests.core.world import World
from tests.fuzz.given import altered, damaged, dumped, junk, scalars, texts, values
from tests.fuzz.profiles import fuzzed

GOLDEN = Path(__file__).parents[1] / "checkpoints" / "golden"
METADATA = [path.read_bytes() for path in sorted(GOLDEN.rglob(".metadata"))]
ENDLESS = b'{"child_pid": Infinity, "pid": 1e999, "exit_code": 1e999, "signal": null, "wall": 1}'


def of(whole: Any) -> st.SearchStrategy[bytes]:
    """The file with other values, with other bytes, or anything."""
    return altered(whole).map(dumped) | damaged(dumped(whole)) | junk


# ---------------------------------------------------------------- a checkpoint's files


@fuzzed(4)
@given(damaged(METADATA))
def test_any_metadata_that_was_damaged_says_sizes_or_why_not(data: bytes) -> None:
    try:
        sizes = needed_bytes(data)
    except MetadataError as error:
        assert len(str(error)) < 400
    else:
        assert all(isinstance(name, str) and 0 <= size < 2**63 for name, size in sizes.items())


@fuzzed()
@given(data=damaged(METADATA))
def test_any_metadata_in_a_folder_is_looked_at_without_leaving_it(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "trainer"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / ".metadata").write_bytes(data)
    result = check_dcp(folder, times=False)
    assert not result.ok, "its shards are not there"
    assert str(folder) in result.reason


def zipped(method: int) -> bytes:
    held = BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        archive.writestr("progress/data.pkl", b"x" * 500)
        archive.writestr("progress/version", b"3\n")
    return held.getvalue()


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
ZIPS = [zipped(method) for method in METHODS]


@pytest.mark.soak
@fuzzed(4)
@given(data=damaged(ZIPS) | junk)
def test_any_progress_file_is_whole_or_gives_a_reason(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "progress.pt"
    path.write_bytes(data)
    result = check_zip(path)
    assert result.ok or str(path) in result.reason


# ---------------------------------------------------------------- the shim's files and the attempt's folder

RECORD = {
    "shim_pid": 100, "shim_start_ticks": 5, "child_pid": 101, "child_start_ticks": 6, "boot_id": "b",
    "started_wall": 1.0, "how": "fork", "unit": None, "notes": ["a"], "cgroup": None, "forks": 5, "init_start_ticks": 1,
}  # fmt: skip
EXIT = {"exit_code": 1, "signal": None, "wall": 1.79e9, "child_pid": 101}
ATTACHED = {"pid": 101, "start_ticks": 6, "boot_id": "b", "started_wall": 1.0, "title": "python"}
INDEX = {"at": 1.79e9, "sources": [{"path": "/x/*.log", "kind": "text", "fate": "moved", "role": "trainer"}],
         "before": [{"path": "/x", "size": "5", "mark": "00"}], "left": [{"path": "/x/a.log", "role": "env"}],
         "waiting": ["/x"]}  # fmt: skip
SNAPSHOT = {"/etc/rl.toml": "0-rl.toml"}


@fuzzed(2)
@given(data=of(RECORD))
@example(data=ENDLESS)
@example(data=dumped({**RECORD, "shim_pid": float("inf")}))
@example(data=b"[" * 100_000)
def test_any_record_of_a_shim_is_read_or_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "job.shim.json").write_bytes(data)
    try:
        found = read_record(tmp_path, "job")
    except ValueError as error:
        assert "is not a record of a shim" in str(error)
    else:
        assert found is not None
        assert isinstance(found.of_these_pids, bool)


@fuzzed(2)
@given(data=of(EXIT))
@example(data=ENDLESS)
@example(data=dumped({**EXIT, "exit_code": "x"}))
@example(data=dumped({**EXIT, "signal": []}))
@example(data=dumped({**EXIT, "exit_code": float("nan")}))
@example(data=b"[" * 100_000)
def test_any_exit_record_is_an_end_or_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "job.exit.json").write_bytes(data)
    found = launch.read_end(tmp_path, "job", None)
    if found is not None:
        shim.name_of_end(found.exit_code, found.signal)


@fuzzed()
@given(record=of(RECORD), end=of(EXIT))
@example(record=ENDLESS, end=dumped(EXIT))
def test_what_became_of_a_component_is_told_whatever_its_files_hold(tmp_path: Path, record: bytes, end: bytes) -> None:
    (tmp_path / "job.shim.json").write_bytes(record)
    (tmp_path / "job.exit.json").write_bytes(end)
    assert launch.look_at_component(tmp_path, "job").state in ("absent", "running", "exited", "lost")


@fuzzed()
@given(data=of(ATTACHED))
@example(data=ENDLESS)
@example(data=b"[" * 100_000)
def test_any_record_of_an_attached_process_is_read_or_left_out(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"job{attached.ENDING}").write_bytes(data)
    assert len(attached.read_records(tmp_path)) in (0, 1)
    attached.find_living(tmp_path)


@fuzzed()
@given(data=of(INDEX))
@example(data=b"[" * 100_000)
@example(data=dumped({**INDEX, "at": 10**400}))
@example(data=dumped({**INDEX, "left": [{"path": "\0"}], "waiting": ["\0", 5]}))
def test_any_index_of_an_attempts_logs_is_read_or_empty(tmp_path: Path, data: bytes) -> None:
    folder = attempt_folders.folder_of(tmp_path, 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / attempt_folders.INDEX).write_bytes(data)
    (folder / "job.log").write_bytes(b"a line\n")
    assert any(log.role == "job" for log in attempt_logs.logs_of(tmp_path, 1))


@fuzzed()
@given(data=of(SNAPSHOT))
@example(data=b"[1]")
@example(data=b'{"/x": "../../../etc/passwd"}')
@example(data=b'{"/x": 5}')
@example(data=b"[" * 100_000)
def test_any_index_of_a_snapshot_names_files_of_the_snapshot(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    for copy in read_snapshot(tmp_path).values():
        assert copy.resolve().is_relative_to((tmp_path / "config").resolve())


@fuzzed()
@given(values)
@example({"mark": "00", "path": "x", "inode": "1" * 5000, "offset": 1})
@example([1])
def test_any_position_is_one_or_the_file_is_read_anew(value: Any) -> None:
    found = Position.from_json(value)
    if found is not None:
        assert Position.from_json(found.as_json()) == found


# ---------------------------------------------------------------- what says that the pod goes


@fuzzed(2)
@given(texts | of({"within_s": 30, "time": "2026-01-06T03:00:00Z"}).map(lambda data: data.decode(errors="replace")))
@example('{"time": "9999-12-31T23:59:59-23:59"}')
@example('{"within_s": ' + "9" * 4000 + "}")
@example('{"within_s": NaN}')
@example("[" * 4000)
@example("٣٠")
def test_any_words_of_a_leave_notice_leave_a_time(words: str) -> None:
    for default in (None, 120.0):
        found = within(words, default, 1.79e9)
        assert found is default or found == default or (found is not None and 0 <= found <= MOST_WITHIN_S)


# ---------------------------------------------------------------- the journal


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a journal with a snapshot, a tail, events and an incident."""
    folder = tmp_path_factory.mktemp("recorded")
    world = World()
    world.running_at(12)
    world.gpus(inference=0)
    world.engine_process_dies()
    world.after(4)
    journal = Journal(folder)
    state = State()
    for number, observation in enumerate(world.log):
        decision = decide(state, observation)
        journal.record(observation, state, decision.state, decision.actions)
        state = decision.state
        if number == len(world.log) // 2:
            journal.snapshot(state)
    journal.identity()
    journal.close()
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


def reopened(folder: Path) -> State:
    """As a daemon does, and what people ask of it then."""
    identity_in(folder)
    journal = Journal(folder)
    try:
        state, _ = journal.rebuild()
        clock = Clock(journal)
        seen = f.Observation(max(clock.now(), state.now), 1.8e9, f.Tick())
        after = decide(state, seen)
        journal.record(seen, state, after.state, after.actions)
        for event in journal.events(-1, 100):
            json.dumps([event.id, event.wall, event.level, event.event, event.sentence, event.fields])
        assert isinstance(journal.get_json("log_positions"), dict)
    finally:
        journal.close()
    try:
        for item in incidents.read_incidents(folder):
            pages.one(item)
    except SupervisorError as error:
        assert str(error).endswith(".")
    return after.state


COLUMNS = {
    "observations": ("t", "wall", "source", "fact"),
    "snapshots": ("state",),
    "events": ("wall", "level", "event", "sentence", "fields"),
    "incidents": ("opened", "closed", "attempt", "cause", "sentence"),
    "meta": ("value",),
    "actions": ("action",),
}
CELLS = st.sampled_from(
    [
        "null", "[]", "{}", '"x"', "x", "", "[" * 5000, '{"@": "State"}', '{"@": []}', '{"@": "Nobody"}',
        '{"@": "StepDone"}',
        '{"@":"State","progress":5}', '{"@":"State","now":"x"}', '{"@":"Tick"}', '{"@":"StepDone","role":5,"step":"x"}',
        b"\xff", 10**15, -1.5, float("inf"), "1e999",
    ]
) | scalars.filter(lambda one: not isinstance(one, int) or abs(one) < 2**62)  # fmt: skip


@pytest.mark.soak
@fuzzed(1.5)
@given(
    edits=st.lists(
        st.sampled_from([(table, column) for table, names in COLUMNS.items() for column in names]).flatmap(
            lambda at: st.tuples(st.just(at), CELLS, st.booleans())
        ),
        min_size=1,
        max_size=3,
    )
)
@example(edits=[(("snapshots", "state"), "null", True)])
@example(edits=[(("snapshots", "state"), '{"@":"Tick"}', True)])
@example(edits=[(("snapshots", "state"), '{"@":"State","progress":5}', True)])
@example(edits=[(("observations", "fact"), "x", True)])
@example(edits=[(("observations", "fact"), '{"@":"State"}', False)])
@example(edits=[(("observations", "t"), "x", True)])
@example(edits=[(("events", "fields"), "x", True)])
@example(edits=[(("events", "wall"), "x", True)])
@example(edits=[(("incidents", "opened"), "x", True)])
@example(edits=[(("meta", "value"), "x", True)])
@example(edits=[(("meta", "value"), "[" * 5000, True)])
def test_a_journal_that_somebody_edited_costs_at_most_what_it_told(
    recorded: Path, tmp_path: Path, edits: list[tuple[tuple[str, str], Any, bool]]
) -> None:
    folder = tmp_path / "state"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(recorded / "journal.db", folder / "journal.db")
    with closing(sqlite3.connect(folder / "journal.db")) as db, db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('log_positions', '{\"attempt\": 1, \"positions\": []}')")
        for (table, column), value, everywhere in edits:
            where = "" if everywhere else f" WHERE rowid = (SELECT MAX(rowid) FROM {table})"
            try:
                db.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))
            except (sqlite3.IntegrityError, UnicodeEncodeError, OverflowError):
                return  # SQLite itself does not take it
    reopened(folder)


@fuzzed(0.5)
@given(data=st.data())
def test_a_journal_with_flipped_bytes_is_read_or_set_aside(recorded: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "state"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    content = data.draw(damaged((recorded / "journal.db").read_bytes()))
    (folder / "journal.db").write_bytes(content)
    reopened(folder)


# ---------------------------------------------------------------- the bundles of evidence

MANIFEST = {
    "incident": 1, "attempt": 1, "collected": 1.79e9, "seconds": 1.5, "size_bytes": 100, "journal": "",
    "parts": [{"name": "stacks", "state": "ok", "seconds": 0.5, "files": ["stacks.txt"], "notes": ["a note"]}],
}  # fmt: skip
EXPLAIN = {"verdict": {"signals": [{"sentence": "It is gone."}]}}


@fuzzed(1.5)
@given(manifest=of(MANIFEST), explain=of(EXPLAIN))
@example(manifest=dumped({**MANIFEST, "seconds": "x"}), explain=b"")
@example(manifest=dumped({**MANIFEST, "parts": [5]}), explain=b"")
@example(manifest=dumped({**MANIFEST, "parts": [{"name": "a"}]}), explain=b"")
@example(manifest=dumped({**MANIFEST, "size_bytes": 10**400}), explain=b"")
@example(manifest=dumped({**MANIFEST, "parts": {"a": 1}}), explain=dumped({"verdict": {"signals": 5}}))
@example(manifest=dumped({**MANIFEST, "parts": [{**MANIFEST["parts"][0], "files": 5}]}), explain=b"[" * 9999)
def test_any_bundle_is_shown_as_far_as_it_can_be_read(
    recorded: Path, tmp_path: Path, manifest: bytes, explain: bytes
) -> None:
    folder = tmp_path / "state"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(recorded / "journal.db", folder / "journal.db")
    bundle = incidents.bundles_dir(folder) / "1-attempt-1"
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / incidents_manifest()).write_bytes(manifest)
    (bundle / "explain.json").write_bytes(explain)
    (item,) = incidents.read_incidents(folder, 1)
    lines = pages.one(json.loads(json.dumps(item)))
    # One of another journal belongs to another incident of this number.
    assert any(line.startswith(("Evidence: ", "There is no evidence")) for line in lines)
    pages.describe_incidents([item], only_open=False)


def incidents_manifest() -> str:
    from supervisor.evidence.known import MANIFEST as name

    return name
