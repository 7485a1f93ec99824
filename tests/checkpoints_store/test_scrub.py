"""Damage in the store is found and told, and nothing is changed by looking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.checkpoints.publish import publish
from supervisor.checkpoints.scrub import scrub
from supervisor.cli.main import main
from supervisor.storage.base import Store, StoreError
from tests.b2server import B2Server
from tests.checkpoints_store.conftest import PART, RUN, Step, b2_store, quiet


@pytest.fixture
def published(b2: B2Server, tmp_path: Path) -> Store:
    store = b2_store(b2)
    for number in (10, 20):
        publish(store, Step(tmp_path / str(number), number).fill().plan(tmp_path / "state"), quiet)
    return store


def version(b2: B2Server, name: str):  # type: ignore[no-untyped-def]
    return next(v for v in b2.state.versions.values() if v.name == f"team/{RUN}/{name}" and v.action == "upload")


def test_a_whole_store_is_good_and_looking_changes_nothing(store: Store, tmp_path: Path) -> None:
    for number in (10, 20):
        publish(store, Step(tmp_path / str(number), number).fill().plan(tmp_path / "state"), quiet)
    before = store.list(f"{RUN}/")
    found = scrub(store, RUN, quiet, deep=100)
    assert not found.is_damaged and [(one.step, one.problems) for one in found.steps] == [(10, ()), (20, ())]
    assert found.read_bytes == sum(one.size_bytes for one in found.steps)
    assert store.list(f"{RUN}/") == before


def test_a_pointer_that_moves_on_while_the_store_is_looked_at_is_no_damage(
    published: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [published.list_versions(f"{RUN}/")]
    publish(published, Step(tmp_path / "30", 30).fill().plan(tmp_path / "state"), quiet)
    really = published.list_versions
    monkeypatch.setattr(published, "list_versions", lambda prefix: before.pop() if before else really(prefix))
    found = scrub(published, RUN, quiet)
    assert [one.step for one in found.steps] == [10, 20], "step 30 came after the look at the steps"
    assert found.problems == ()


Break = Callable[[B2Server], object]


def _truncate(b2: B2Server) -> None:
    found = version(b2, "step_10/trainer/__0_0.distcp")
    found.data = found.data[:-1]


def _flip_small(b2: B2Server) -> None:
    b2.state.versions[version(b2, "step_10/trainer/.metadata").file_id].sha1 = "0" * 40


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda b2: b2.state.versions.pop(version(b2, "step_10/trainer/empty").file_id), "trainer/empty is missing"),
        (_truncate, "trainer/__0_0.distcp has 90000 bytes, and 90001 were published"),
        (_flip_small, "trainer/.metadata has another SHA-1 than was published"),
        (lambda b2: b2.put(f"team/{RUN}/step_10/manifest.json", b"{"), "it is no JSON"),
    ],
)
def test_the_cheap_look_finds_what_a_listing_shows(b2: B2Server, published: Store, damage: Break, words: str) -> None:
    damage(b2)
    found = scrub(published, RUN, quiet)
    assert found.is_damaged and found.read_bytes == 0
    (problem,) = found.steps[0].problems
    assert words in problem and not found.steps[1].problems


def test_a_flipped_byte_is_found_by_reading_and_healthy_data_that_came_wrong_once_is_not_accused(
    b2: B2Server, published: Store
) -> None:
    b2.fail("download", name="step_20/trainer/__0_0", flip=3)
    assert not scrub(published, RUN, quiet, deep=100).is_damaged
    found = version(b2, "step_10/trainer/__0_0.distcp")
    found.data = found.data[:50_000] + bytes([found.data[50_000] ^ 1]) + found.data[50_001:]
    assert not scrub(published, RUN, quiet).is_damaged, "no listing can tell"
    (problem,) = scrub(published, RUN, quiet, deep=100).steps[0].problems
    assert problem.endswith(f"with other bytes than were published (bytes {2 * PART} to {3 * PART})")


def test_a_sample_is_as_large_as_asked_for_and_the_same_for_a_seed(b2: B2Server, published: Store) -> None:
    def ranges(seed: int) -> list[object]:
        start = len(b2.state.journal)
        scrub(published, RUN, quiet, step=10, deep=30, seed=seed)
        read = [entry for entry in b2.journal("download", "step_10/") if entry["n"] >= start and "range" in entry]
        return sorted((entry["name"], entry["range"]) for entry in read)

    first = [entry for entry in ranges(1) if "manifest" not in str(entry)]
    assert len(first) == 3  # of the ten parts that are not empty: five, three, and two small files
    assert ranges(1) == ranges(1) and any(ranges(1) != ranges(seed) for seed in range(2, 6))


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        (b"nonsense", "is damaged: it is no JSON"),
        (
            json.dumps({"step": "step_77", "run_id": RUN}).encode(),
            "latest.json names step 77, and there is no such step",
        ),
    ],
)
def test_a_pointer_to_nothing_is_told(b2: B2Server, published: Store, pointer: bytes, words: str) -> None:
    b2.put(f"team/{RUN}/latest.json", pointer)
    found = scrub(published, RUN, quiet)
    assert found.is_damaged and words in found.problems[0]


def test_a_step_that_was_never_published_to_its_end_is_no_damage(b2: B2Server, published: Store) -> None:
    b2.put(f"team/{RUN}/step_30/trainer/x", b"x")
    found = scrub(published, RUN, quiet)
    assert not found.is_damaged and found.steps[2].problems == (
        "it has no manifest.json: it was never published to its end",
    )


def test_a_step_that_is_not_there_is_said(published: Store) -> None:
    with pytest.raises(StoreError, match=r"there is no step 30 of .*; there are 10, 20"):
        scrub(published, RUN, quiet, step=30)


@pytest.mark.soak
def test_by_hand_damage_is_told_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from supervisor.storage import open_store

    store = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    for number in (10, 20):
        publish(store, Step(tmp_path / str(number), number).fill().plan(tmp_path / "state"), quiet)
    (tmp_path / "run.toml").write_text(
        f'[run]\nid = "{RUN}"\n[job]\nkind = "command"\noutput_dir = "{tmp_path}/out"\n'
        f'[job.plain]\nstart = ["true"]\nresume = ["true"]\n[store]\nurl = "{store.url}"\n'
    )
    assert main(["verify", str(tmp_path / "run.toml"), "--deep", "10%"]) == 0
    told = capsys.readouterr().out
    assert "Step 10 is good: 6 files" in told and "read again" in told
    (tmp_path / "store" / RUN / "step_10/trainer/.metadata").unlink()
    assert main(["verify", str(tmp_path / "run.toml")]) == 1
    told = capsys.readouterr().out
    assert "Step 10 is damaged: trainer/.metadata is missing." in told and "nothing was deleted" in told
    assert main(["verify", str(tmp_path / "run.toml"), "--step", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["step"] == 20
