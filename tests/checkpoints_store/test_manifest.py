"""The records: what is written is read back, and nothing else is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.checkpoints.manifest import Latest, Manifest, ManifestFile, parse_latest, parse_manifest
from supervisor.storage.base import StoreError
from tests.fuzz.profiles import tries

A, B = "a" * 40, "b" * 40
GOOD = Manifest(
    "run",
    20,
    "pod-a",
    (ManifestFile("trainer/x", 150, "id1", 100, (A, B)), ManifestFile("empty", 0, "id2", 100, (A,), A)),
    dialect="prime-rl",
    revision="abc",
    config_sha256="0" * 64,
    step_base=1,
)


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(GOOD.to_bytes()) | fields).encode()


def with_file(**fields: Any) -> bytes:
    document = json.loads(GOOD.to_bytes())
    document["files"][0] |= fields
    return json.dumps(document).encode()


def test_what_is_written_is_read_back() -> None:
    assert parse_manifest(GOOD.to_bytes(), "run", 20) == GOOD
    latest = Latest(20, "run", "w", generation=3, writer="pod", manifest_file_id="id", manifest_sha256="0" * 64)
    assert parse_latest(latest.to_bytes(), "run") == latest


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (changed(format=2), "has format 2, and this version reads format 1"),
        (changed(format=True), "format is missing or no whole number"),
        (changed(run_id="other"), "another run or step"),
        (changed(step=21), "another run or step"),
        (changed(step=20.0), "step is missing or no whole number"),
        (changed(files=[]), "no list of a sensible length"),
        (changed(files={"a": 1}), "no list of a sensible length"),
        (changed(files=[7]), "a file is no object"),
        (changed(total_bytes=151), "not the sum"),
        (changed(writer="x" * 513), "writer"),
        (changed(writer="\ud800"), "writer"),
        (with_file(path="../x"), "'..' part"),
        (with_file(path="/etc/passwd"), "absolute"),
        (with_file(path="a/\u0000"), "control characters"),
        (with_file(path="empty"), "names 'empty' twice"),
        (with_file(path="empty/x"), "a file and a folder at once"),
        (with_file(path=None), "path is missing"),
        (with_file(size=-1), "size is missing"),
        (with_file(size=1 << 60), "size is missing"),
        (with_file(part_size=0), "part_size is missing"),
        (with_file(part_sha1=[A]), "needs 2 part hashes"),
        (with_file(part_sha1=[A, B, A]), "needs 2 part hashes"),
        (with_file(part_sha1=[A, "b" * 39]), "no SHA-1"),
        (with_file(part_sha1=[A, "B" * 40]), "no SHA-1"),
        (with_file(part_sha1=[A, 7]), "no SHA-1"),
        (with_file(sha1="x"), "sha1 is no SHA-1"),
        (with_file(file_id=None), "file_id is missing"),
    ],
)
def test_a_manifest_that_is_not_quite_right_is_damaged(data: bytes, sentence: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_manifest(data, "run", 20)
    assert caught.value.kind == "damaged"
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "step", "wandb"),
    [
        ({"step": "step_20", "run_id": "run", "wandb_run_id": "abc", "timestamp": "2026-01-06T03:14:15Z"}, 20, "abc"),
        ({"step": "step_100", "run_id": "run", "wandb_run_id": None, "timestamp": 1767669255}, 100, ""),
        ({"step": "step_0", "wandb_run_id": "; rm -rf /"}, 0, ""),
    ],
)
def test_the_pointer_of_the_original_scripts_is_understood(fields: dict[str, Any], step: int, wandb: str) -> None:
    latest = parse_latest(json.dumps(fields).encode(), "run")
    assert (latest.step, latest.wandb_run_id, latest.legacy) == (step, wandb, True)


@pytest.mark.parametrize("step", ["20", "step_", "step_-1", "step_20/../..", "step_20\n", "Step_20", 20, None])
def test_a_pointer_to_no_step_is_damaged(step: object) -> None:
    with pytest.raises(StoreError) as caught:
        parse_latest(json.dumps({"step": step, "run_id": "run"}).encode(), "run")
    assert caught.value.kind == "damaged"


def test_a_pointer_of_another_run_or_with_two_minds_is_damaged() -> None:
    ours = json.loads(Latest(20, "run", manifest_sha256="0" * 64).to_bytes())
    for fields in ({"run_id": "other"}, {"step_number": 21}, {"manifest_sha256": "zz"}, {"generation": -1}):
        with pytest.raises(StoreError) as caught:
            parse_latest(json.dumps(ours | fields).encode(), "run")
        assert caught.value.kind == "damaged"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(json.loads(GOOD.to_bytes()))
FILE_FIELDS = sorted(json.loads(GOOD.to_bytes())["files"][0])


@pytest.mark.soak
@tries(300)
@given(st.sampled_from(FIELDS + [f"file.{name}" for name in FILE_FIELDS]), json_values)
def test_any_value_in_any_field_is_either_read_or_damaged(name: str, value: object) -> None:
    data = with_file(**{name[5:]: value}) if name.startswith("file.") else changed(**{name: value})
    try:
        manifest = parse_manifest(data, "run", 20)
    except StoreError as error:
        assert error.kind == "damaged"
    else:
        assert all(".." not in file.path.split("/") and not file.path.startswith("/") for file in manifest.files)
        assert all(sum(part.size for part in file.parts()) == file.size for file in manifest.files)


@tries(200)
@given(st.binary(max_size=200))
def test_noise_is_damaged(data: bytes) -> None:
    for parse in (lambda: parse_manifest(data, "run", 20), lambda: parse_latest(data, "run")):
        with pytest.raises(StoreError) as caught:
            parse()
        assert caught.value.kind == "damaged"
