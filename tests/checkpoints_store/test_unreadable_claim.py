"""The holder's own claim cannot be read for a while: that is no other pod's claim."""

from __future__ import annotations

import pytest

from supervisor.checkpoints.claims import beat, check, claim, look, release
from supervisor.checkpoints.writers import FencedError, writer_name
from supervisor.storage.base import Store, StoreError

from .conftest import RUN

A, B = (writer_name(f"pod-{name}", name * 16, "0001") for name in "ab")
NAME = f"{RUN}/writers/gen_00001.json"


def put_anew(store: Store, data: bytes) -> None:
    for file in store.list_versions(NAME):
        if file.name == NAME:
            store.delete(file)
    store.put_bytes(NAME, data)


def test_a_claim_that_its_own_holder_cannot_read_fences_it_not(store: Store) -> None:
    assert claim(store, RUN, A, 60.0, sleep=lambda _: None).writer == A
    data = store.get_bytes(NAME)
    put_anew(store, b"<html>Back soon</html>")
    for ask in (
        lambda: check(store, RUN, 1, A),
        lambda: beat(store, RUN, 1, A, 1),
        lambda: release(store, RUN, 1, A),
    ):
        with pytest.raises(
            StoreError, match=r"generation 1 of run bs4-rl-7 .*, which this pod holds, cannot be"
        ) as told:
            ask()
        assert told.value.kind == "transient"
    put_anew(store, data)
    assert beat(store, RUN, 1, A, 2).writer == A


def test_another_pod_that_took_the_run_over_fences_also_with_a_claim_that_cannot_be_read(store: Store) -> None:
    assert claim(store, RUN, A, 60.0, sleep=lambda _: None).writer == A
    store.put_bytes(NAME.replace("1", "2"), b"<html>Back soon</html>")
    with pytest.raises(FencedError, match="an unknown pod holds run bs4-rl-7 now"):
        check(store, RUN, 1, A)
    put_anew(store, b"")
    assert claim(store, RUN, B, 60.0, sleep=lambda _: None, over=look(store, RUN)).generation == 3
