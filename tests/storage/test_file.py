"""The folder as a store: what only a file system can do to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.storage.parts import hash_parts


def test_a_volume_that_is_not_mounted_is_not_an_empty_store(tmp_path: Path) -> None:
    store = open_store((tmp_path / "volume" / "store").as_uri(), None, {})
    with pytest.raises(StoreError, match=r"volume does not exist\. Mount the volume") as caught:
        store.list("run/")
    assert caught.value.kind == "permanent"
    with pytest.raises(StoreError, match="Mount the volume"):
        store.put_bytes("run/x", b"x")
    with pytest.raises(StoreError, match="Mount the volume"):
        store.get_bytes("run/latest.json")
    assert not (tmp_path / "volume").exists()


def test_a_link_inside_the_store_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (tmp_path / "store/run").mkdir(parents=True)
    (tmp_path / "store/run/step_1").symlink_to(outside)
    (tmp_path / "store/run/file").symlink_to(outside / "secret")
    store = open_store((tmp_path / "store").as_uri(), None, {})
    for act in (
        lambda: store.get_bytes("run/step_1/secret"),
        lambda: store.get_bytes("run/file"),
        lambda: store.put_bytes("run/step_1/secret", b"changed"),
    ):
        with pytest.raises(StoreError, match="symbolic link"):
            act()
    assert list(store.list("run/")) == []
    assert (outside / "secret").read_text() == "secret"


def test_a_file_that_is_already_there_is_not_written_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(50_000))
    parts = hash_parts(source, 50_000, 20_000)
    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=20_000)
    first = store.put_file("run/x", source, 50_000, parts, lambda _: None)
    told: list[int] = []
    again = store.put_file("run/x", source, 50_000, parts, told.append)
    assert again.file_id == first.file_id
    assert sum(told) == 50_000
    assert store.sent_bytes() == 50_000


def test_a_folder_that_may_not_be_written_is_a_permanent_error() -> None:
    store = open_store("file:///sys/rl-supervisor", None, {})  # nobody makes folders there, root included
    assert list(store.list("run/")) == []
    with pytest.raises(StoreError, match="Give this user the right") as caught:
        store.put_bytes("run/x", b"x")
    assert caught.value.kind == "permanent"


def test_a_full_disk_is_a_question_of_quota() -> None:
    with pytest.raises(StoreError, match="Free space on that disk") as caught:
        _full_store().put_bytes("x", b"x" * 4096)
    assert caught.value.kind == "quota"


def _full_store() -> Store:
    """/dev/full answers ENOSPC to every write; the store's own path to it is the descriptor it writes to."""
    from supervisor.storage.file import FileStore

    class OnFullDisk(FileStore):
        def _open_for_writing(self, target: Path):  # type: ignore[no-untyped-def]
            import contextlib

            @contextlib.contextmanager
            def full():  # type: ignore[no-untyped-def]
                descriptor = os.open("/dev/full", os.O_WRONLY)
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)

            return full()

    return OnFullDisk(Path("/nowhere-in-particular"))


@pytest.mark.parametrize("url", ["file://host/folder", "file:relative", "gs://bucket", "nonsense", "b2://"])
def test_a_url_that_is_no_store_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(StoreError, match=r"file:///|b2://bucket") as caught:
        open_store(url, None, {})
    assert caught.value.kind == "permanent"
