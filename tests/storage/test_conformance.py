"""What every store has to do. Runs over each backend; nothing here knows which one it is."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from b2sdk.v3 import B2Api, InMemoryAccountInfo

from supervisor.storage.base import Store, StoredFile, StoreError
from tests.storage.parts import hash_parts


def put(store: Store, name: str, path: Path, part_size: int | None = None) -> tuple[StoredFile, int]:
    """Send a whole file; returns what is stored and the bytes that progress was told of."""
    size = path.stat().st_size
    told: list[int] = []
    stored = store.put_file(name, path, size, hash_parts(path, size, part_size or store.part_size()), told.append)
    return stored, sum(told)


def everything(store: Store) -> dict[str, bytes]:
    return {file.name: store.get_range(file, 0, file.size) for file in store.list("run/")}


def test_a_file_of_many_parts_comes_back_byte_for_byte(store: Store, big: Path) -> None:
    stored, told = put(store, "run/step_20/trainer/__0_0.distcp", big)
    data = big.read_bytes()
    assert stored.name == "run/step_20/trainer/__0_0.distcp"
    assert stored.size == told == store.sent_bytes() == len(data)
    assert store.get_range(stored, 0, len(data)) == data
    assert store.get_range(stored, 19_990, 20_020) == data[19_990:40_010]
    pieces: list[bytes] = []
    store.read_range(stored, len(data) - 5_123, 5_123, lambda piece: pieces.append(bytes(piece)))
    assert b"".join(pieces) == data[-5_123:]


def test_a_reader_that_gives_up_is_not_asked_again(store: Store, big: Path) -> None:
    stored, _ = put(store, "run/big", big)
    taken: list[int] = []

    def give_up(piece: bytes) -> None:
        taken.append(len(piece))
        raise StoreError("transient", "given up by the test")

    with pytest.raises(StoreError, match="given up"):
        store.read_range(stored, 0, 20_000, give_up)
    assert len(taken) == 1


@pytest.mark.parametrize(("parts", "bytes_more"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_sizes_around_one_part_and_the_empty_file(store: Store, tmp_path: Path, parts: int, bytes_more: int) -> None:
    path = tmp_path / "source"
    size = parts * store.part_size() + bytes_more
    path.write_bytes(os.urandom(size))
    stored, told = put(store, "run/file", path)
    assert stored.size == told == size
    assert store.get_range(stored, 0, size) == path.read_bytes()
    assert store.get_bytes("run/file") == path.read_bytes()


def test_the_listing_shows_current_objects_below_a_prefix_and_no_others(store: Store) -> None:
    assert list(store.list("run/")) == []
    names = ["run/a", "run/step_2/x", "run/step_20/x", "run/step_20/y/z", "runner/a"]
    for name in names:
        store.put_bytes(name, name.encode())
    assert [file.name for file in store.list("run/step_2/")] == ["run/step_2/x"]
    assert sorted(file.name for file in store.list("run/")) == names[:4]
    assert all(file.size == len(file.name) and file.file_id and file.uploaded_at > 1e9 for file in store.list("run/"))


@pytest.mark.soak
def test_a_listing_longer_than_any_page(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put_bytes(f"run/{n:05d}", b"x"), range(1050)))
    assert len({file.name for file in store.list("run/")}) == 1050


def test_the_newest_bytes_of_a_name_are_current_and_a_version_is_never_mistaken_for_another(store: Store) -> None:
    old = store.put_bytes("run/latest.json", b"old")
    new = store.put_bytes("run/latest.json", b"newer")
    assert old.file_id != new.file_id
    assert store.get_bytes("run/latest.json") == b"newer"
    assert store.get_bytes("run/latest.json", new.file_id) == b"newer"
    assert [file.file_id for file in store.list("run/")] == [new.file_id]
    try:
        assert store.get_bytes("run/latest.json", old.file_id) == b"old"
    except StoreError as error:
        assert error.kind == "missing"


def test_what_is_not_there_is_missing_and_not_an_error_of_another_kind(store: Store) -> None:
    with pytest.raises(StoreError, match=r"latest\.json") as caught:
        store.get_bytes("run/latest.json")
    assert caught.value.kind == "missing"
    stored = store.put_bytes("run/x", b"abc")
    store.delete(stored)
    with pytest.raises(StoreError) as caught:
        store.get_range(stored, 0, 3)
    assert caught.value.kind == "missing"


def test_an_object_larger_than_the_limit_is_damaged_and_is_not_read_whole(store: Store) -> None:
    store.put_bytes("run/latest.json", b"x" * 1001)
    with pytest.raises(StoreError, match="1000") as caught:
        store.get_bytes("run/latest.json", limit=1000)
    assert caught.value.kind == "damaged"


def test_delete_removes_one_version_and_twice_is_success(store: Store) -> None:
    keep, gone = store.put_bytes("run/keep", b"1"), store.put_bytes("run/gone", b"2")
    store.delete(gone)
    store.delete(gone)
    assert [file.name for file in store.list("run/")] == ["run/keep"]
    replaced = store.put_bytes("run/keep", b"22")
    store.delete(keep)
    assert store.get_bytes("run/keep", replaced.file_id) == b"22"


def test_a_source_that_changed_after_it_was_hashed_is_refused(store: Store, big: Path) -> None:
    size = big.stat().st_size
    parts = hash_parts(big, size, store.part_size())
    with big.open("r+b") as file:
        file.seek(50_000)
        file.write(b"other bytes")
    with pytest.raises(StoreError, match=r"big\.distcp changed") as caught:
        store.put_file("run/big", big, size, parts, lambda _: None)
    assert caught.value.kind == "changed"
    assert list(store.list("run/")) == []


def test_a_source_that_vanished_or_shrank_or_is_a_link_is_refused(store: Store, big: Path, tmp_path: Path) -> None:
    size = big.stat().st_size
    parts = hash_parts(big, size, store.part_size())
    link = tmp_path / "link"
    link.symlink_to(big)
    for source in (tmp_path / "gone", link):
        with pytest.raises(StoreError, match="no plain file") as caught:
            store.put_file("run/big", source, size, parts, lambda _: None)
        assert caught.value.kind == "changed"
    os.truncate(big, 30_000)
    with pytest.raises(StoreError) as caught:
        store.put_file("run/big", big, size, parts, lambda _: None)
    assert caught.value.kind == "changed"
    assert list(store.list("run/")) == []


def test_a_transfer_that_was_abandoned_goes_on_and_sends_no_confirmed_part_again(store: Store, big: Path) -> None:
    size = big.stat().st_size
    parts = hash_parts(big, size, store.part_size())
    told: list[int] = []

    def give_up(count: int) -> None:
        told.append(count)
        if sum(told) > 40_000:
            raise StoreError("transient", "given up by the test")

    with pytest.raises(StoreError, match="given up"):
        store.put_file("run/big", big, size, parts, give_up)
    assert list(store.list("run/")) == []
    stored, told_again = put(store, "run/big", big)
    assert told_again == size
    assert store.get_range(stored, 0, size) == big.read_bytes()


def test_sweep_cancels_what_was_left_unfinished_and_nothing_else(store: Store, big: Path) -> None:
    def give_up(count: int) -> None:
        if count:
            raise StoreError("transient", "given up by the test")

    kept = store.put_bytes("run/step_1/kept", b"kept")
    size = big.stat().st_size
    with pytest.raises(StoreError, match="given up"):
        store.put_file("run/step_1/big", big, size, hash_parts(big, size, store.part_size()), give_up)
    assert store.sweep("run/step_2/") == 0
    assert store.sweep("run/step_1/") in (0, 1)
    assert store.sweep("run/step_1/") == 0
    assert [file.file_id for file in store.list("run/")] == [kept.file_id]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a//b", "a/./b", "a/\0b", "", "a/", "x" * 300, "a\nb"])
def test_names_that_could_lead_elsewhere_are_refused(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="cannot be a name") as caught:
        store.put_bytes(name, b"x")
    assert caught.value.kind == "permanent"


def test_names_with_spaces_signs_and_umlauts_survive(store: Store) -> None:
    names = ["run/a b+c%20d", "run/größe/Δ?&=#", "run/.metadata", "run/.run/run_default/x"]
    for name in names:
        store.put_bytes(name, name.encode())
    assert {name: data.decode() for name, data in everything(store).items()} == {name: name for name in names}
    assert store.get_bytes(names[0]) == names[0].encode()


def test_versions_of_a_name_come_newest_first_and_each_can_be_read_and_deleted(store: Store) -> None:
    assert store.list_versions("run/writers/gen_00007.json") == []
    assert store.list_versions("run/writers/") == []
    older = store.put_bytes("run/writers/gen_00007.json", b"one")
    newer = store.put_bytes("run/writers/gen_00007.json", b"another")
    store.put_bytes("run/writers/gen_00007.json.beat", b"x")
    store.put_bytes("run/latest.json", b"{}")
    of_name = [f for f in store.list_versions("run/writers/gen_00007.json") if f.name == newer.name]
    assert of_name[0].file_id == newer.file_id
    assert of_name[0].size == 7
    assert {file.file_id for file in of_name[1:]} <= {older.file_id}
    of_folder = store.list_versions("run/writers/")
    assert {file.name for file in of_folder} == {newer.name, "run/writers/gen_00007.json.beat"}
    assert [file.name for file in of_folder] == sorted(file.name for file in of_folder)
    for file in of_name:
        assert store.get_bytes(file.name, file.file_id) in (b"one", b"another")
        store.delete(file)
    assert not [f for f in store.list_versions("run/writers/gen_00007.json") if f.name == newer.name]


@pytest.mark.soak
def test_a_name_that_a_person_deletes_hides_its_older_versions(
    store: Store, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in ("run/step_1/manifest.json", "run/step_2/manifest.json", "run/step_3/manifest.json"):
        store.put_bytes(name, name.encode())
    another_second(store)
    delete_as_people_do(store, "run/step_2/manifest.json", request, tmp_path)
    delete_as_people_do(store, "run/step_3/manifest.json", request, tmp_path)
    another_second(store)
    anew = store.put_bytes("run/step_3/manifest.json", b"anew")
    assert [file.name for file in store.list_versions("run/")] == ["run/step_1/manifest.json", anew.name]
    assert [file.file_id for file in store.list_versions(anew.name)] == [anew.file_id]
    assert [file.name for file in store.list("run/")] == ["run/step_1/manifest.json", anew.name]
    versions, markers = store.list_hidden("run/")
    deleted = ["run/step_2/manifest.json", anew.name]
    assert ([file.name for file in versions], sorted(file.name for file in markers)) in ((deleted, deleted), ([], []))
    for file in [*versions, *markers]:
        store.delete(file)
    assert [*map(list, store.list_hidden("run/"))] == [[], []]
    assert [file.name for file in store.list_versions("run/")] == ["run/step_1/manifest.json", anew.name]


def another_second(store: Store) -> None:
    """S3 tells times in whole seconds: what is younger has to be seen to be."""
    if store.url.startswith("s3:"):
        time.sleep(1.1)


def delete_as_people_do(store: Store, name: str, request: pytest.FixtureRequest, folder: Path) -> None:
    """By name, as the services' own tools delete: where there are versions, those stay behind a marker."""
    place = urlsplit(store.url)
    key = f"{place.path}/{name}".lstrip("/")
    if place.scheme == "file":
        (folder / "store" / name).unlink()
    elif place.scheme == "s3":
        request.getfixturevalue("seaweed").admin().delete_object(Bucket=place.netloc, Key=key)
    else:
        server = request.getfixturevalue("b2")
        api = B2Api(InMemoryAccountInfo())
        environ = server.environ()
        api.authorize_account(environ["B2_APPLICATION_KEY_ID"], environ["B2_APPLICATION_KEY"], realm=server.url)
        api.get_bucket_by_name(place.netloc).hide_file(key)


def test_of_eight_that_claim_a_name_at_once_one_wins_or_the_store_says_that_it_cannot(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: store.claim("run/writers/gen_00001.json", b"pod %d" % n), range(8)))
    if None in answers:
        assert answers == [None] * 8
        assert store.list_versions("run/writers/gen_00001.json") == []
        return
    assert answers.count(True) == 1
    assert store.get_bytes("run/writers/gen_00001.json") == b"pod %d" % answers.index(True)
    assert store.claim("run/writers/gen_00001.json", b"late") is False
    assert [file.name for file in store.list("run/")] == ["run/writers/gen_00001.json"], "nothing is left beside it"
