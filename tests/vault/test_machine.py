"""The machine that loses its power: what it must lose, and what it must not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.vault.machine import Machine, PowerCut


def synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_bytes_that_were_not_fsynced_are_lost_and_synced_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"before")
    with Machine(tmp_path) as machine:
        synced(tmp_path / "safe", b"safe")
        (tmp_path / "unsafe").write_bytes(b"unsafe")
        (tmp_path / "old").write_bytes(b"after")
        sync_folder(tmp_path)
    machine.lose("lost")
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"safe": b"safe", "unsafe": b"", "old": b"before"}


def test_names_in_a_folder_that_was_not_fsynced_are_as_before(tmp_path: Path) -> None:
    (tmp_path / "latest").write_bytes(b"1")
    (tmp_path / "gone").write_bytes(b"needed")
    with Machine(tmp_path) as machine:
        synced(tmp_path / "new", b"2")
        (tmp_path / "new").rename(tmp_path / "latest")
        (tmp_path / "gone").unlink()
        (tmp_path / "folder").mkdir()
    machine.lose("lost")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"latest": b"1", "gone": b"needed"}


def test_a_rename_over_a_file_that_was_not_fsynced_leaves_an_empty_one(tmp_path: Path) -> None:
    """The classic mistake, and the reason for this harness."""
    (tmp_path / "latest").write_bytes(b"1")
    with Machine(tmp_path) as machine:
        (tmp_path / "new").write_bytes(b"2")
        (tmp_path / "new").rename(tmp_path / "latest")
        sync_folder(tmp_path)
    machine.lose("lost")
    assert (tmp_path / "latest").read_bytes() == b""


def test_after_the_cut_nothing_happens_any_more(tmp_path: Path) -> None:
    with Machine(tmp_path, 3) as machine, pytest.raises(PowerCut):
        try:
            (tmp_path / "one").write_bytes(b"")
            (tmp_path / "two").write_bytes(b"")
            (tmp_path / "three").write_bytes(b"")
        finally:
            (tmp_path / "one").unlink()
    assert machine.off and {path.name for path in tmp_path.iterdir()} == {"one", "two"}


def test_what_only_dies_loses_nothing_that_it_wrote(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        (tmp_path / "one").write_bytes(b"1")
    machine.lose("kept")
    assert (tmp_path / "one").read_bytes() == b"1"
