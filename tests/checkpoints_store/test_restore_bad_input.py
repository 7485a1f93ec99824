"""Restoring what nobody should trust: each ends in one sentence, loses nothing and leaves no half-made step."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.placement import Place
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.restore import restore
from supervisor.storage import open_store
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server, Key
from tests.checkpoints_store.conftest import IN_A_FOLDER, QUICK, RUN, Step, b2_store, quiet, tree

MANIFEST = f"{RUN}/step_20/manifest.json"
Change = Callable[[dict[str, Any]], object]


def fetch(store: Store, output: Path, number: int = 20) -> None:
    restore(store, RUN, number, Place(f"checkpoints/step_{number}"), output, quiet)


def refused(store: Store, output: Path) -> StoreError:
    """The restore of step 20 fails in one short sentence, and nothing of it is where a trainer would look."""
    with pytest.raises(StoreError) as caught:
        fetch(store, output)
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 600 and "Traceback" not in sentence, sentence
    assert not (output / "checkpoints/step_20").exists()
    return caught.value


@pytest.fixture
def published(store: Store, tmp_path: Path) -> Store:
    """Steps 10 and 20."""
    for number, shard in ((10, 900), (20, 90_001)):
        publish(store, Step(tmp_path / "pod-a", number).fill(shard=shard).plan(tmp_path / "state"), quiet)
    return store


@pytest.mark.parametrize("name", [".restoring-step_20/a", ".Restoring-step_20.journal", ".replaced-step_20-1/a"])
def test_a_step_cannot_put_a_file_among_a_restores_own(store: Store, tmp_path: Path, name: str) -> None:
    """As a folder of its own, `.restoring-step_20` would be what the step itself is fetched into."""
    step = Step(tmp_path / "pod-a", 20).fill()
    step.files[f".run/checkpoints/{name}"] = next(iter(step.files.values()))
    publish(store, step.plan(tmp_path / "state"), quiet)
    error = refused(store, tmp_path / "pod-b")
    assert (error.kind, "among a restore's own files" in str(error)) == ("damaged", True)
    assert not (tmp_path / "pod-b").exists()


# ---------------------------------------------------------------- manifests


def _deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


MANIFESTS: dict[str, Change] = {
    "a name that climbs": lambda m: m["files"][0].update(path="../../outside"),
    "an absolute name": lambda m: m["files"][0].update(path="/etc/cron.d/evil"),
    "a name that climbs from the run's folder": lambda m: m["files"][0].update(path=".run/../../outside"),
    "a name in a higher step": lambda m: m["files"][0].update(path=".run/weights/step_30/w"),
    "a name twice": lambda m: m["files"][0].update(path=m["files"][1]["path"]),
    "a file that is a folder": lambda m: m["files"][0].update(path=m["files"][1]["path"] + "/x"),
    "a negative size": lambda m: m["files"][0].update(size=-1),
    "a size that no disk has": lambda m: m["files"][0].update(size=1 << 60),
    "a size that is no number": lambda m: m["files"][0].update(size="900"),
    "a size that is a truth": lambda m: m["files"][0].update(size=True),
    "a size that is not a number": lambda m: m["files"][0].update(size=float("nan")),
    "a sum that is wrong": lambda m: m.update(total_bytes=m["total_bytes"] + 1),
    "a part size of nothing": lambda m: m["files"][0].update(part_size=0),
    "hashes that are missing": lambda m: m["files"][0].update(part_sha1=[]),
    "a hash that is none": lambda m: m["files"][0].update(part_sha1=["z" * 40]),
    "another run": lambda m: m.update(run_id="another-run"),
    "another step's number": lambda m: m.update(step=21),
    "a format from the future": lambda m: m.update(format=99),
    "no format": lambda m: m.pop("format"),
    "no files": lambda m: m.update(files=[]),
    "files that are no list": lambda m: m.update(files={"a": 1}),
    "files nested deeply": lambda m: m.update(files=_deep(300)),
    "a writer of a megabyte": lambda m: m.update(writer="x" * 1_000_000),
    "half a letter": lambda m: m.update(writer="\ud800"),
}


@IN_A_FOLDER
@pytest.mark.parametrize("change", MANIFESTS.values(), ids=[name.replace(" ", "-") for name in MANIFESTS])
def test_a_manifest_that_nobody_should_trust_damages_its_step_and_no_other(
    published: Store, tmp_path: Path, change: Change
) -> None:
    manifest = json.loads(published.get_bytes(MANIFEST))
    change(manifest)
    published.put_bytes(MANIFEST, json.dumps(manifest).encode())
    assert refused(published, tmp_path / "pod-b").kind == "damaged"
    assert tree(tmp_path / "pod-b") == {} and not (tmp_path / "outside").exists()
    found = list_steps(published, RUN).steps
    assert not found[20].committed and found[10].committed
    fetch(published, tmp_path / "pod-b", 10)


BOMBS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "noise": lambda: bytes(range(256)) * 40,
    "a list without end": lambda: b"[" * 2_000_000,
    "objects without end": lambda: b'{"files":' * 500_000,
    "ten megabytes of digits": lambda: b'{"format": ' + b"9" * 10_000_000 + b"}",
    "ten megabytes of digits behind a point": lambda: b'{"format": 1, "step": 0.' + b"9" * 10_000_000 + b"}",
    "an exponent without end": lambda: b'{"format": 1, "step": 1e' + b"9" * 1_000_000 + b"}",
    "half a million files": lambda: b'{"format":1,"files":[' + b"{}," * 500_000 + b"{}]}",
    "half of it": lambda: b'{"format": 1, "run_id": "bs4',
}


def test_a_manifest_that_is_not_the_one_that_the_pointer_vouches_for_damages_its_step(
    b2: B2Server, step: Step, tmp_path: Path
) -> None:
    """It reads well and has the id that the pointer names, and its bytes are others."""
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    (stored,) = (one for one in b2.state.versions.values() if one.name.endswith("step_20/manifest.json"))
    stored.data = stored.data.replace(b'"pod-a"', b'"pod-x"')
    stored.sha1 = hashlib.sha1(stored.data).hexdigest()
    with pytest.raises(StoreError, match=r"manifest\.json of step 20 is not the one that latest\.json vouches for"):
        restore(store, RUN, 20, Place(step.primary), tmp_path / "pod-b", quiet)
    assert not (tmp_path / "pod-b/checkpoints/step_20").exists()


@pytest.mark.soak
@IN_A_FOLDER
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=[name.replace(" ", "-") for name in BOMBS])
def test_a_bomb_in_the_manifests_place_is_damaged_in_a_moment(
    published: Store, tmp_path: Path, bomb: Callable[[], bytes]
) -> None:
    published.put_bytes(MANIFEST, bomb())
    began = time.process_time()
    assert refused(published, tmp_path / "pod-b").kind == "damaged"
    assert time.process_time() - began < 10
    assert list_steps(published, RUN).steps[10].committed


def test_a_manifest_larger_than_any_is_not_read(b2: B2Server, step: Step, tmp_path: Path) -> None:
    store = b2_store(b2)
    publish(store, step.plan(tmp_path / "state"), quiet)
    b2.put(f"team/{MANIFEST}", bytes((64 << 20) + 1))
    assert "has more than the 67108864 bytes it may have" in str(refused(store, tmp_path / "pod-b"))


def test_an_object_shorter_than_the_manifest_says_is_damaged_and_not_asked_for_for_ever(
    published: Store, tmp_path: Path
) -> None:
    manifest = json.loads(published.get_bytes(MANIFEST))
    for file in manifest["files"]:
        if file["path"] == "trainer/.metadata":
            file.update(size=1200, part_size=20_000)
    manifest["total_bytes"] = sum(file["size"] for file in manifest["files"])
    published.put_bytes(MANIFEST, json.dumps(manifest).encode())
    error = refused(published, tmp_path / "pod-b")
    assert error.kind == "damaged" and "trainer/.metadata" in str(error)


def test_a_part_behind_the_end_of_its_object_is_damaged(published: Store, tmp_path: Path) -> None:
    manifest = json.loads(published.get_bytes(MANIFEST))
    for file in manifest["files"]:
        if file["path"] == "trainer/.metadata":
            file.update(size=1800, part_size=900, part_sha1=file["part_sha1"] * 2, sha1=None)
    manifest["total_bytes"] = sum(file["size"] for file in manifest["files"])
    published.put_bytes(MANIFEST, json.dumps(manifest).encode())
    error = refused(published, tmp_path / "pod-b")
    assert error.kind == "damaged" and "trainer/.metadata" in str(error)


# ---------------------------------------------------------------- names and links on this machine


@pytest.mark.parametrize(("one", "other"), [("Shard", "shard"), ("caf\u00e9", "cafe\u0301"), ("\ufb01le", "file")])
def test_names_that_differ_in_case_or_unicode_form_are_two_files_where_the_disk_says_so(
    store: Store, tmp_path: Path, one: str, other: str
) -> None:
    step = Step(tmp_path / "pod-a")
    step.write(one, b"one")
    step.write(other, b"the other")
    if len(list((step.output / step.primary).iterdir())) < 2:
        pytest.skip("this disk takes the two names for one")
    publish(store, step.plan(tmp_path / "state"), quiet)
    fetch(store, tmp_path / "pod-b")
    assert tree(tmp_path / "pod-b") == step.content()


def plug_pulled(store: Store, output: Path) -> Path:
    """Half a restore; returns its staging folder."""

    def pull(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 80_000:
            raise StoreError("transient", "the plug was pulled")

    with pytest.raises(StoreError, match="plug"):
        restore(store, RUN, 20, Place("checkpoints/step_20"), output, pull)
    return output / "checkpoints/.restoring-step_20"


def test_two_names_that_are_one_file_on_the_disk_never_overwrite_each_other(published: Store, tmp_path: Path) -> None:
    staging = plug_pulled(published, tmp_path / "pod-b")
    one, other = staging / "trainer/__0_0.distcp", staging / "trainer/__1_0.distcp"
    other.unlink(missing_ok=True)
    other.hardlink_to(one)  # as a disk does that knows no difference between them
    error = refused(published, tmp_path / "pod-b")
    assert error.kind == "permanent" and "are one file there" in str(error)
    shutil.rmtree(staging)
    fetch(published, tmp_path / "pod-b")


@pytest.mark.parametrize("what", ["file", "folder", "staging"])
def test_a_link_left_in_the_staging_folder_is_not_written_through(published: Store, tmp_path: Path, what: str) -> None:
    staging = plug_pulled(published, tmp_path / "pod-b")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = {"file": staging / "trainer/__0_0.distcp", "folder": staging / "trainer", "staging": staging}[what]
    target = elsewhere / "precious" if what == "file" else elsewhere
    if what == "file":
        target.write_bytes(b"precious")
        victim.unlink()
    else:
        shutil.rmtree(victim)
    victim.symlink_to(target)
    error = refused(published, tmp_path / "pod-b")
    assert error.kind == "permanent" and "holds a symbolic link; delete that folder" in str(error)
    assert tree(elsewhere) == ({"precious": b"precious"} if what == "file" else {})


def test_a_link_in_the_steps_own_place_is_moved_aside_and_what_it_names_is_left_alone(
    published: Store, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"precious")
    place = tmp_path / "pod-b/checkpoints/step_20"
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere)
    fetch(published, tmp_path / "pod-b")
    assert not place.is_symlink() and (place / "trainer/.metadata").is_file()
    assert (place.parent / ".replaced-step_20-1").is_symlink()
    assert tree(elsewhere) == {"precious": b"precious"}


# ---------------------------------------------------------------- pointers


@pytest.mark.soak
@IN_A_FOLDER
@pytest.mark.parametrize(
    "pointer",
    [
        b"",
        b"no JSON",
        b"[" * 60_000,
        b"null",
        b'"step_20"',
        b'{"step": "step_99", "run_id": "bs4-rl-7"}',
        b'{"step": "step_15", "run_id": "bs4-rl-7"}',
        b'{"step": "step_20", "run_id": "another"}',
        b'{"step": "../../etc", "run_id": "bs4-rl-7"}',
        b'{"step": NaN}',
        b'{"step": "step_20", "step_number": ' + b"9" * 60_000 + b"}",
    ],
    ids=lambda pointer: pointer[:24].decode(),
)
def test_whatever_the_pointer_says_committed_steps_are_found_and_restored(
    published: Store, tmp_path: Path, pointer: bytes
) -> None:
    published.put_bytes(f"{RUN}/step_15/shard", b"never committed")
    published.put_bytes(f"{RUN}/latest.json", pointer)
    found = list_steps(published, RUN)
    assert [info.step for info in found.steps.values() if info.committed and not info.legacy] == [10, 20]
    fetch(published, tmp_path / "pod-b")
    with pytest.raises(StoreError) as caught:
        fetch(published, tmp_path / "pod-b", 99)
    assert caught.value.kind == "missing"


# ---------------------------------------------------------------- keys and buckets


@pytest.mark.parametrize(
    ("key", "url", "words"),
    [
        (Key("0000narrow01", "K0n", B2Server.KEY.capabilities, ("the-bucket",), "other/"), "b2://the-bucket/team",
         "only reaches names that start with 'other/'"),
        (Key("0000narrow01", "K0n", B2Server.KEY.capabilities, ("the-bucket",), f"team/{RUN}"), "b2://the-bucket/tea",
         f"only reaches names that start with 'team/{RUN}'"),
        (B2Server.KEY, "b2://no-such-bucket/team", "the bucket no-such-bucket does not exist"),
        (Key("0000gone0001", "K0gone"), "b2://the-bucket/team", "B2 refuses the application key ...0001"),
    ],
    ids=["another prefix", "half the prefix", "no such bucket", "no such key"],
)  # fmt: skip
def test_a_key_or_bucket_that_does_not_fit_is_said_in_one_sentence(  # noqa: PLR0917
    b2: B2Server, step: Step, tmp_path: Path, key: Key, url: str, words: str
) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    if key.prefix:
        b2.add_key(key)
    with pytest.raises(StoreError) as caught:
        fetch(open_store(url, b2.url, b2.environ(key), streams=2, retry=QUICK), tmp_path / "pod-b")
    assert caught.value.kind == "permanent" and words in str(caught.value)
    assert "K0" not in str(caught.value) and not (tmp_path / "pod-b").exists()


def test_a_key_limited_to_the_run_restores_it(b2: B2Server, step: Step, tmp_path: Path) -> None:
    publish(b2_store(b2), step.plan(tmp_path / "state"), quiet)
    key = b2.add_key(Key("0000narrow01", "K0n", ("listFiles", "readFiles"), ("the-bucket",), f"team/{RUN}/"))
    fetch(open_store("b2://the-bucket/team", b2.url, b2.environ(key), streams=2, retry=QUICK), tmp_path / "pod-b")
    assert tree(tmp_path / "pod-b") == step.content()


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 24 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_step_that_the_disk_has_no_room_for_is_refused_before_a_byte_is_fetched(
    b2: B2Server, tmp_path: Path, small_disk: Path
) -> None:
    b2.state.part_size = 1_000_000  # else it has 600 parts
    store = b2_store(b2)
    publish(store, Step(tmp_path / "pod-a").fill(shard=8_000_000).plan(tmp_path / "state"), quiet)
    error = refused(store, small_disk)
    assert error.kind == "no-room" and re.search(
        r"needs [0-9.]+ MB more at .*, where [0-9.]+ MB are free", str(error)
    ), error
    assert not b2.journal("download", "distcp")


def test_a_disk_that_somebody_else_fills_meanwhile_is_said_and_the_restore_goes_on_when_there_is_room(
    b2: B2Server, tmp_path: Path, small_disk: Path
) -> None:
    b2.state.part_size = 200_000
    store = b2_store(b2)
    step = Step(tmp_path / "pod-a").fill(shard=2_000_000)
    publish(store, step.plan(tmp_path / "state"), quiet)
    filler = small_disk / "somebody-elses"

    def fill(moved: Moved) -> None:
        if moved.phase == "fetching" and moved.bytes > 500_000 and not filler.exists():
            with filler.open("wb") as file, pytest.raises(OSError):
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()

    with pytest.raises(StoreError, match="First delete something there") as caught:
        restore(store, RUN, 20, Place("checkpoints/step_20"), small_disk, fill)
    assert caught.value.kind == "no-room"
    assert not (small_disk / "checkpoints/step_20").exists()
    filler.unlink()
    fetch(store, small_disk)
    assert tree(small_disk / "checkpoints/step_20") == tree(step.output / "checkpoints/step_20")


# ---------------------------------------------------------------- a source that does not stand still


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("change", [_grow, _shrink, Path.unlink], ids=["grows", "shrinks", "vanishes"])
def test_a_file_that_does_not_stand_still_while_it_is_sent_makes_no_step(
    store: Store, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    publish(store, Step(tmp_path / "pod-a", 10).fill().plan(tmp_path / "state"), quiet)
    step = Step(tmp_path / "pod-a").fill()
    victim, done = step.files["trainer/__1_0.distcp"], []

    def strike(moved: Moved) -> None:
        if moved.phase == "sending" and moved.bytes > 20_000 and not done:
            done.append(1)
            change(victim)

    with pytest.raises(StoreError, match=r"__1_0\.distcp") as caught:
        publish(store, step.plan(tmp_path / "state"), strike)
    assert done and caught.value.kind == "changed" and "\n" not in str(caught.value)
    found = list_steps(store, RUN)
    assert found.latest is not None and found.latest.step == 10
    assert found.steps[10].committed and not (20 in found.steps and found.steps[20].committed)
