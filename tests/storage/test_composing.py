"""Objects made of others on the server: what every store with a composer has to do, whichever it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.storage.base import Composer, Part, Piece, Store, StoredFile, StoreError
from supervisor.storage.source import hash_range
from tests.storage.parts import hash_parts

PART = 20_000


@pytest.fixture
def composer(store: Store) -> Composer:
    found = store.composer()
    if found is None:
        pytest.skip("this store makes no objects of others")
    return found


def put(store: Store, name: str, path: Path) -> StoredFile:
    size = path.stat().st_size
    return store.put_file(name, path, size, hash_parts(path, size, PART), lambda _: None)


def changed(big: Path) -> Path:
    """The same file but for the bytes from 30,000 to 40,000."""
    path = big.with_name("changed")
    data = big.read_bytes()
    path.write_bytes(data[:30_000] + os.urandom(10_000) + data[40_000:])
    return path


def pieces(path: Path) -> list[Piece]:
    cut = [(0, 30_000, True), (30_000, 10_000, False), (40_000, path.stat().st_size - 40_000, True)]
    return [Piece(Part(offset, size, hash_range(path, offset, size)), copied) for offset, size, copied in cut]


def compose(composer: Composer, path: Path, base: StoredFile, wanted: list[Piece]) -> tuple[StoredFile, int]:
    told: list[int] = []
    return composer.compose("run/new", path, wanted, base, told.append), sum(told)


def test_a_composed_object_has_the_new_bytes_and_only_the_sent_ones_travelled(
    store: Store, composer: Composer, big: Path
) -> None:
    base, path = put(store, "run/old", big), changed(big)
    before = store.sent_bytes()
    stored, told = compose(composer, path, base, pieces(path))
    assert store.get_range(stored, 0, stored.size) == path.read_bytes()
    assert (stored.name, stored.size, told) == ("run/new", path.stat().st_size, path.stat().st_size)
    assert store.sent_bytes() - before == 10_000
    store.delete(base)
    assert store.get_range(stored, 0, stored.size) == path.read_bytes()


def test_pieces_that_are_not_in_the_base_are_sent_whoever_said_that_they_were(
    store: Store, composer: Composer, big: Path
) -> None:
    other = big.with_name("other")
    other.write_bytes(os.urandom(big.stat().st_size))
    base = put(store, "run/old", other)
    stored, _ = compose(composer, big, base, pieces(big))
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()


def test_without_the_base_everything_is_sent(store: Store, composer: Composer, big: Path) -> None:
    base = put(store, "run/old", big)
    store.delete(base)
    stored, _ = compose(composer, big, base, pieces(big))
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()
    assert store.sweep("run/") == 0


def test_a_base_that_is_shorter_than_was_thought_is_no_harm(store: Store, composer: Composer, big: Path) -> None:
    short = big.with_name("short")
    short.write_bytes(big.read_bytes()[:50_000])
    base = put(store, "run/old", short)
    stored, _ = compose(composer, big, base, pieces(big))
    assert store.get_range(stored, 0, stored.size) == big.read_bytes()


def test_a_source_that_changes_under_our_hands_makes_no_object(store: Store, composer: Composer, big: Path) -> None:
    base, path = put(store, "run/old", big), changed(big)
    wanted = pieces(path)
    path.write_bytes(os.urandom(path.stat().st_size))
    with pytest.raises(StoreError) as caught:
        composer.compose("run/new", path, wanted, base, lambda _: None)
    assert caught.value.kind == "changed"
    assert [file.name for file in store.list("run/")] == ["run/old"]


def test_a_whole_small_object_is_copied_and_checked(store: Store, composer: Composer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}" * 500)
    (part,) = hash_parts(path, 1000, PART)
    base = put(store, "run/old", path)
    before = store.sent_bytes()
    stored = composer.copy("run/new", path, part, base, lambda _: None)
    assert store.get_bytes("run/new", stored.file_id) == path.read_bytes()
    assert store.sent_bytes() == before
    path.write_bytes(b"[]" * 500)
    (part,) = hash_parts(path, 1000, PART)
    stored = composer.copy("run/new", path, part, base, lambda _: None)
    assert store.get_bytes("run/new") == store.get_bytes("run/new", stored.file_id) == path.read_bytes()
    store.delete(base)
    assert composer.copy("run/newer", path, part, base, lambda _: None).size == 1000
