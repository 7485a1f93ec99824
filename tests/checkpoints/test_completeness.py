"""A step's files are whole, still being written, or damaged; the fixture is a real checkpoint of torch 2.13.0."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.checkpoints.completeness import (
    Result,
    check_dcp,
    check_jsonl,
    check_markers,
    check_zip,
    folder_size,
)
from tests.fuzz.profiles import tries

GOLDEN = Path(__file__).parent / "golden"
MAKE_DCP = GOLDEN / "make_dcp.py"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A whole trainer part, its .metadata the newest file, as torch leaves it."""
    return whole(tmp_path / "trainer")


def whole(folder: Path) -> Path:
    shutil.copytree(GOLDEN / "dcp_2_ranks", folder)
    for shard in folder.glob("*.distcp"):
        os.utime(shard, (1000, 1000))
    os.utime(folder / ".metadata", (1001, 1001))
    return folder


def test_a_real_checkpoint_of_two_ranks_is_complete(step: Path) -> None:
    assert check_dcp(step) == Result(True)


def test_a_truncated_shard_is_named_with_both_sizes(step: Path) -> None:
    shard = step / "__1_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    os.utime(shard, (1000, 1000))

    assert check_dcp(step) == Result(False, f"{step}: __1_0.distcp has {size - 1:,} bytes and .metadata needs {size:,}")


def test_a_size_that_nfs_remembers_is_asked_for_anew_before_a_shard_is_called_short(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes are kept for up to a minute on a machine that did not write (nfs(5), acregmax); an open asks anew."""
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        look = list(real(path))
        if path.name == "__1_0.distcp":
            look[6] = 0  # st_size, as it was when this machine looked for the first time
        return os.stat_result(look)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert check_dcp(step, times=False) == Result(True)


def test_a_stale_handle_says_nothing_of_a_step(step: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_stale(*words: object, **more: object) -> int:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_stale)
        for check in (lambda: check_dcp(step), lambda: check_zip(step / ".metadata")):
            with pytest.raises(OSError, match="Stale file handle"):
                check()
    assert check_dcp(step) == Result(True)


def test_a_missing_shard_is_named(step: Path) -> None:
    (step / "__0_0.distcp").unlink()
    assert check_dcp(step) == Result(False, f"{step}: __0_0.distcp is missing")


def test_a_shard_that_is_a_symlink_is_refused_although_its_target_is_whole(step: Path) -> None:
    shard = step / "__0_0.distcp"
    shard.rename(step / "elsewhere")
    shard.symlink_to("elsewhere")
    assert check_dcp(step) == Result(False, f"{step}: __0_0.distcp is not a regular file")


def test_metadata_that_is_a_symlink_or_a_pipe_is_refused_and_does_not_block(step: Path) -> None:
    metadata = step / ".metadata"
    metadata.rename(step / "real")
    metadata.symlink_to("real")
    assert not check_dcp(step).ok
    metadata.unlink()
    os.mkfifo(metadata)
    assert check_dcp(step) == Result(False, f"{metadata} is unusable: it is not a regular file")


def test_shards_without_metadata_are_still_being_written(step: Path) -> None:
    (step / ".metadata").unlink()
    assert check_dcp(step) == Result(False, f"{step} has no .metadata, which is written last", writing=True)


def test_metadata_tmp_means_that_the_save_is_not_over(step: Path) -> None:
    shutil.copy(step / ".metadata", step / ".metadata.tmp")
    assert check_dcp(step) == Result(False, f"{step} is being written: it holds .metadata.tmp", writing=True)


def test_a_step_that_is_saved_again_in_place_is_not_complete_until_its_metadata_is_new(step: Path) -> None:
    os.utime(step / "__0_0.distcp", (1002, 1002))
    result = check_dcp(step)
    assert (result.ok, result.writing) == (False, True)
    assert "__0_0.distcp is newer than .metadata" in result.reason
    assert result.reason.endswith("If it was copied, or the clock set back: touch .metadata")

    os.utime(step / ".metadata", (1002, 1002))
    assert check_dcp(step).ok


def test_a_shard_that_is_short_because_it_is_rewritten_counts_as_writing_not_as_damaged(step: Path) -> None:
    os.truncate(step / "__1_0.distcp", 10)  # its time is now
    assert check_dcp(step).writing


def test_a_restored_step_is_judged_without_times(step: Path) -> None:
    os.utime(step / "__0_0.distcp", (1002, 1002))
    assert check_dcp(step, times=False).ok


def test_shards_of_an_older_larger_world_are_ignored(step: Path) -> None:
    (step / "__7_0.distcp").write_bytes(b"stale")
    assert check_dcp(step).ok


@pytest.mark.parametrize("missing", ["folder", "file"])
def test_a_part_that_is_not_there_gives_a_sentence(tmp_path: Path, missing: str) -> None:
    place = tmp_path / "trainer"
    if missing == "file":
        place.write_text("x")
    assert check_dcp(place).reason == (f"{place} does not exist" if missing == "folder" else f"{place} is not a folder")


@given(cut=st.integers(0, 10_000_000), which=st.sampled_from([".metadata", "__0_0.distcp", "__1_0.distcp"]))
@tries(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_truncated_at_any_byte_it_is_never_complete(tmp_path: Path, cut: int, which: str) -> None:
    folder = tmp_path / "trainer"
    shutil.rmtree(folder, ignore_errors=True)
    file = whole(folder) / which
    os.truncate(file, cut % file.stat().st_size)
    result = check_dcp(folder, times=False)
    assert not result.ok
    assert str(folder) in result.reason


@given(data=st.data())
@tries(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes_in_metadata_never_raise_and_never_hide_a_shard_that_is_gone(
    tmp_path: Path, data: st.DataObject
) -> None:
    folder = tmp_path / "trainer"
    shutil.rmtree(folder, ignore_errors=True)
    metadata = whole(folder) / ".metadata"
    content = bytearray(metadata.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    metadata.write_bytes(content)
    result = check_dcp(folder, times=False)
    assert result.ok or str(folder) in result.reason

    for shard in folder.glob("*.distcp"):
        os.truncate(shard, 0)
    assert not check_dcp(folder, times=False).ok


# ---------------------------------------------------------------- progress.pt


def progress(folder: Path) -> Path:
    path = folder / "progress.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("progress/data.pkl", b"\x80\x02}q\x00." * 40)
        archive.writestr("progress/version", b"3\n")
    return path


def test_a_whole_progress_file_is_ok_and_truncated_anywhere_it_is_not(tmp_path: Path) -> None:
    path = progress(tmp_path)
    assert check_zip(path).ok
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        result = check_zip(path)
        assert not result.ok
        assert result.reason.startswith(f"{path} is truncated or damaged")


def test_a_flipped_byte_in_progress_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = progress(tmp_path)
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    assert check_zip(path).reason == f"{path} is damaged: the checksum of its member 'progress/data.pkl' is wrong"


def test_a_newer_tmp_beside_progress_means_writing_and_an_older_one_is_debris(tmp_path: Path) -> None:
    path = progress(tmp_path)
    half = tmp_path / "progress.pt.12345.tmp"
    half.write_bytes(b"half")
    os.utime(path, (1000, 1000))
    assert check_zip(path) == Result(False, f"{path} is being written: {half.name} is newer", writing=True)
    os.utime(half, (999, 999))
    assert check_zip(path).ok
    path.unlink()
    assert check_zip(path).writing


def test_a_zip_bomb_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "progress.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("progress/data.pkl", b"\0" * 1000)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (0xFFFFFFF0).to_bytes(4, "little")  # the size that the directory announces
    path.write_bytes(content)
    assert "unpacks to more than" in check_zip(path).reason


def test_progress_that_is_missing_a_folder_or_a_symlink_is_not_ok(tmp_path: Path) -> None:
    path = tmp_path / "progress.pt"
    assert check_zip(path) == Result(False, f"{path} does not exist")
    assert check_zip(tmp_path / "gone" / "progress.pt").reason == f"{tmp_path / 'gone'} does not exist"
    path.mkdir()
    assert check_zip(path) == Result(False, f"{path} is not a regular file")
    path.rmdir()
    other = tmp_path / "other"
    other.mkdir()
    path.symlink_to(progress(other))
    assert check_zip(path) == Result(False, f"{path} is not a regular file")


@given(content=st.binary(max_size=400))
@tries(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_at_all_make_check_zip_raise(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "progress.pt"
    path.write_bytes(content)
    assert check_zip(path).reason


# ---------------------------------------------------------------- buffers, markers, sizes


@pytest.mark.parametrize(
    ("content", "ok"),
    [
        (b"", True),
        (b'{"a": 1}\n', True),
        (b'{"a": 1}\n{"b": [1, 2]}', True),
        (b'{"a": 1}\n{"b": [1, 2\n', False),
        (b'{"a": 1}\n{"b"', False),
        (b"\xff\xfe\x00", False),
        (b"[" * 200_000, False),
        (b'{"a": "' + b"x" * 3_000_000 + b'"}\n', True),
        (b'{"a": 1}\n{"a": "' + b"x" * 3_000_000, False),
    ],
)
def test_a_rollout_buffer_is_whole_when_its_last_line_is(tmp_path: Path, content: bytes, ok: bool) -> None:
    path = tmp_path / "rollout_buffer.jsonl"
    path.write_bytes(content)
    result = check_jsonl(path)
    assert result.ok is ok
    assert ok or "ends in half a line" in result.reason


def test_markers_need_a_regular_file_that_is_not_empty_for_each_pattern(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    assert check_markers(tmp_path, ["*.pt"]).ok
    assert check_markers(tmp_path, ["*.pt", "metadata.json"]) == Result(
        False, f"{tmp_path} has no metadata.json yet", writing=True
    )
    (tmp_path / "metadata.json").touch()
    assert check_markers(tmp_path, ["metadata.json"]).reason == f"{tmp_path}: metadata.json is empty so far"
    (tmp_path / "optimizer.pt").symlink_to("model.pt")
    assert not check_markers(tmp_path, ["optimizer.pt"]).ok
    assert check_markers(tmp_path / "gone", ["*"]).reason == f"{tmp_path / 'gone'} does not exist"
    assert "no pattern" in check_markers(tmp_path, ["/etc/*"]).reason
    assert "no pattern" in check_markers(tmp_path, [""]).reason


def test_sizes_count_files_once_and_never_what_a_symlink_points_to(tmp_path: Path) -> None:
    inner = tmp_path / "step_5" / "trainer"
    inner.mkdir(parents=True)
    (inner / "a").write_bytes(b"x" * 10)
    (tmp_path / "big").write_bytes(b"x" * 1000)
    (inner / "link").symlink_to(tmp_path / "big")
    (inner / "loop").symlink_to(tmp_path)
    os.utime(inner / "a", (1234.5, 1234.5))
    assert folder_size([tmp_path / "step_5", tmp_path / "absent"]) == (10, 1234.5)
    assert folder_size([]) == (0, 0.0)


# ---------------------------------------------------------------- with the real torch


@pytest.mark.optin
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_installed_torch_saves_is_complete_and_truncated_it_is_not(tmp_path: Path, ranks: int) -> None:
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.skip("set TORCH_PYTHON to an interpreter that has torch")
    folder = tmp_path / "trainer"
    for saves in ("1", "2"):  # the second time over the first
        subprocess.run([python, str(MAKE_DCP), str(folder), str(ranks), saves], check=True, timeout=200)
        assert check_dcp(folder) == Result(True)
    for shard in folder.glob("*.distcp"):
        content = shard.read_bytes()
        shard.write_bytes(content[:-1])
        assert not check_dcp(folder, times=False).ok
        shard.write_bytes(content)
    assert check_dcp(folder, times=False).ok
