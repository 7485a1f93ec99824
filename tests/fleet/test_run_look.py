"""What a controller reads in a run's store, on a real store, written by the pod's own side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.checkpoints import claims
from supervisor.fleet.run_look import look_at_run
from supervisor.storage.base import StoredFile
from supervisor.storage.file import FileStore

WRITER = "pod-a/0123456789abcdef/00ff00ff"


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_a_run_that_no_pod_ever_held(store: FileStore) -> None:
    looked = look_at_run(store, "swe")
    assert looked.claim.is_free and looked.claim.generation == 0
    assert looked.published is None


def test_the_beat_and_the_last_words(store: FileStore) -> None:
    held = claims.claim(store, "swe", WRITER, 0.0)
    first = look_at_run(store, "swe").claim
    assert (first.generation, first.mark, first.step, first.unpublished) == (1, held.mark, None, None)
    about = {"label": "rls-swe-g00001-0a1b2c", "step": 120, "unpublished": [110, 120], "beat": 99, "generation": 99}
    beat = claims.beat(store, "swe", 1, WRITER, 1, about=about)
    second = look_at_run(store, "swe").claim
    assert (second.mark, second.label, second.step, second.unpublished) == (
        beat.mark,
        "rls-swe-g00001-0a1b2c",
        120,
        (110, 120),
    )
    assert second.beat_at >= first.beat_at > 0
    assert second.code is None and not second.is_free
    claims.release(store, "swe", 1, WRITER, code=94, reason="the host has 1 GPU")
    last = look_at_run(store, "swe").claim
    assert (last.released, last.code, last.reason, last.step) == (True, 94, "the host has 1 GPU", 120)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 3000,
        json.dumps({"step": True, "unpublished": "all", "label": 7, "code": "0"}).encode(),
        json.dumps({"step": -5, "unpublished": [1e300, None, "x", -1], "label": ["x"]}).encode(),
        b"{" + b" " * 9000 + b"}",
    ],
    ids=["empty", "a list", "no text", "deep", "other types", "impossible numbers", "too long"],
)
def test_a_beat_of_a_hostile_pod_is_one_that_says_nothing(store: FileStore, tmp_path: Path, text: bytes) -> None:
    claims.claim(store, "swe", WRITER, 0.0)
    store.put_bytes("swe/writers/gen_00001.beat.json", text)
    claim = look_at_run(store, "swe").claim
    assert (claim.generation, claim.step, claim.label, claim.code) == (1, None, "", None)
    assert claim.unpublished is None, "unknown is not empty"


def test_escapes_in_last_words_do_not_reach_a_terminal(store: FileStore) -> None:
    claims.claim(store, "swe", WRITER, 0.0)
    claims.release(store, "swe", 1, WRITER, code=93, reason="\x1b[2Jgone " + "x" * 400)
    reason = look_at_run(store, "swe").claim.reason
    assert "\x1b" not in reason
    assert len(reason) <= 300


def test_a_look_is_one_list_of_the_claims_so_that_a_beat_meanwhile_does_not_mix_with_the_last(store: FileStore) -> None:
    claims.claim(store, "swe", WRITER, 0.0)
    beat = claims.beat(store, "swe", 1, WRITER, 1, about={"step": 1})
    list_versions, listed = store.list_versions, []

    def list_and_count(prefix: str) -> Sequence[StoredFile]:
        listed.append(prefix)
        return list_versions(prefix)

    store.list_versions = list_and_count  # type: ignore[method-assign]
    claim = look_at_run(store, "swe").claim
    assert (claim.mark, claim.step) == (beat.mark, 1)
    assert listed == ["swe/latest.json", "swe/writers/"]
