"""Which bundles stay, and what of them leaves the pod."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from supervisor.checkpoints.log_packing import LOG_LIMIT, UNPACKED_LIMIT, pack
from supervisor.evidence.keeping import bundles, forget_bundles, to_send


def bundle(
    parent: Path, incident: int, attempt: int, *, size: int = 1000, number: int = 1, journal: str = "j1"
) -> Path:
    folder = parent / (f"{incident:04d}-attempt-{attempt:04d}" + (f"-{number}" if number > 1 else ""))
    folder.mkdir(parents=True)
    (folder / "trainer.log").write_bytes(b"x" * size)
    (folder / "bundle.json").write_text(json.dumps({"journal": journal, "incident": incident}))
    os.utime(folder, (1e9 + 100 * attempt + number, 1e9 + 100 * attempt + number))
    return folder


def names(parent: Path) -> list[str]:
    return [one.folder.name for one in bundles(parent)]


def test_the_oldest_go_first_by_number_and_by_size(tmp_path: Path) -> None:
    for number in range(1, 7):
        bundle(tmp_path, number, number, size=1000 * number)
    (tmp_path / "notes-of-a-person").mkdir()
    forget_bundles(tmp_path, 4, 10**9, None)
    assert names(tmp_path) == [f"{n:04d}-attempt-{n:04d}" for n in (3, 4, 5, 6)]
    forget_bundles(tmp_path, 4, 12_000, None)
    assert names(tmp_path) == ["0005-attempt-0005", "0006-attempt-0006"]
    assert (tmp_path / "notes-of-a-person").exists(), "what is not ours stays"


def test_those_of_the_open_incident_stay_though_they_are_the_oldest(tmp_path: Path) -> None:
    bundle(tmp_path, 1, 1, size=50_000)
    bundle(tmp_path, 1, 2, size=50_000)
    for number in (2, 3):
        bundle(tmp_path, number, number + 1)
    forget_bundles(tmp_path, 1, 1000, open_incident=1, journal="j1")
    assert names(tmp_path) == ["0001-attempt-0001", "0001-attempt-0002"]


def test_an_incident_that_goes_on_for_ever_keeps_its_first_evidence_and_its_newest(tmp_path: Path) -> None:
    for attempt in range(1, 11):
        bundle(tmp_path, 1, attempt)
    forget_bundles(tmp_path, 4, 10**9, open_incident=1, journal="j1")
    assert names(tmp_path) == [f"0001-attempt-{n:04d}" for n in (1, 8, 9, 10)]


def test_an_incident_of_the_same_number_in_a_lost_journal_is_another_one(tmp_path: Path) -> None:
    bundle(tmp_path, 1, 1, journal="lost")
    bundle(tmp_path, 1, 2)
    forget_bundles(tmp_path, 1, 10**9, open_incident=1, journal="j1")
    assert names(tmp_path) == ["0001-attempt-0002"]


def test_a_link_in_the_folder_is_no_bundle_and_nothing_behind_it_is_deleted(tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.mkdir()
    (other / "a").write_text("a")
    parent = tmp_path / "incidents"
    bundle(parent, 2, 2)
    (parent / "0001-attempt-0001").symlink_to(other)
    forget_bundles(parent, 1, 1, None)
    assert (other / "a").exists()


def test_what_is_sent_is_one_text_a_bundle_and_its_trace_within_the_stores_limits(tmp_path: Path) -> None:
    folder = bundle(tmp_path, 3, 7, size=2_000_000)
    (folder / "reason.txt").write_text("The engine is gone.\n")
    (folder / "stacks.txt").write_text("in forward\n")
    (folder / "noise.txt").write_bytes(os.urandom(1 << 20).hex().encode())
    (folder / "trace.jsonl.gz").write_bytes(gzip.compress(b'{"format": "rl-supervisor-trace"}\n'))
    bundle(tmp_path, 4, 8)
    texts = to_send(tmp_path, 7)
    assert set(texts) == {"incident-3.txt", "incident-3-trace.jsonl"}
    text = texts["incident-3.txt"]
    assert text.startswith("==> reason.txt <==\nThe engine is gone.\n\n==> stacks.txt <==\nin forward\n")
    assert len(text.encode()) < UNPACKED_LIMIT
    assert len(pack(text)) < LOG_LIMIT
    assert to_send(tmp_path, 7, {"incident-3.txt"}) == {}


def test_a_trace_that_is_too_long_for_the_store_stays_here_whole(tmp_path: Path) -> None:
    folder = bundle(tmp_path, 3, 7)
    (folder / "trace.jsonl.gz").write_bytes(gzip.compress(b"x\n" * UNPACKED_LIMIT))
    assert set(to_send(tmp_path, 7)) == {"incident-3.txt"}
    (folder / "trace.jsonl.gz").write_bytes(b"not a gzip file")
    assert set(to_send(tmp_path, 7)) == {"incident-3.txt"}


def test_many_parts_that_would_be_too_much_are_named_and_left_out(tmp_path: Path) -> None:
    folder = bundle(tmp_path, 3, 7)
    for number in range(9):
        (folder / f"part-{number}.txt").write_bytes(os.urandom(200_000).hex().encode()[: 250 << 10])
    text = to_send(tmp_path, 7)["incident-3.txt"]
    assert len(pack(text)) < LOG_LIMIT
    assert "Left out, since a log in the store has its limits: part-" in text
