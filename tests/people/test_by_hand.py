"""`restore`, `verify` and `logs` on a machine that has nothing but the store, its keys and this program."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import lineage
from supervisor.checkpoints.publish import publish
from supervisor.cli import moving
from supervisor.cli.main import main
from supervisor.effects.transfers import Moving, Transfers
from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.checkpoints_store.conftest import PART, RUN, Step, quiet

REWARDS = {10: 0.25, 20: 0.75, 30: 0.5, 40: None}
Told = pytest.CaptureFixture[str]
Nonsense = tuple[list[str], int, str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Four published steps; the best is step 20."""
    made = open_store((tmp_path / "store").as_uri(), None, {}, part_size=PART)
    for number, reward in REWARDS.items():
        publish(made, Step(tmp_path / str(number), number).fill().plan(tmp_path / "state", reward=reward), quiet)
    return made


def run(store: Store, verb: str, *words: str) -> int:
    return main([verb, "--store", store.url, "--run-id", RUN, *words])


def damage(tmp_path: Path, step: int) -> None:
    path = tmp_path / "store" / RUN / f"step_{step}" / "trainer" / ".metadata"
    path.write_bytes(bytes(len(path.read_bytes())))


def test_the_newest_step_comes_to_a_machine_without_a_run_file(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    assert capsys.readouterr().out.startswith("Restored step 40 (")
    assert (tmp_path / "to/step_40/trainer/.metadata").is_file()
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    assert "is in" in capsys.readouterr().out, "what is there already is not fetched again"


def test_the_best_says_why_it_is(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "restore", "--step", "best", "--to", str(tmp_path / "to")) == 0
    why, what, *_ = capsys.readouterr().out.splitlines()
    assert why == "Step 20 is the best: its reward of 0.75 is the highest of 3 good steps; 1 more do not say theirs."
    assert what.startswith("Restored step 20 (")


@pytest.mark.parametrize("case", [("latest", 40, 30), ("best", 20, 30)])
def test_of_a_damaged_step_the_next_one_is_taken(
    store: Store, tmp_path: Path, capsys: Told, case: tuple[str, int, int]
) -> None:
    asked, damaged, comes = case
    damage(tmp_path, damaged)
    before = sorted(path for path in (tmp_path / "store").rglob("*"))
    assert run(store, "restore", "--step", asked, "--to", str(tmp_path / "to")) == 0
    told = capsys.readouterr().out
    assert f"Step {damaged} is damaged and left as it is (" in told
    assert f"Restored step {comes} (" in told
    assert not (tmp_path / f"to/step_{damaged}").exists()
    assert sorted(path for path in (tmp_path / "store").rglob("*")) == before


def test_the_latest_is_the_newest_whole_step_also_where_the_pointer_is_behind(
    store: Store, tmp_path: Path, capsys: Told
) -> None:
    pointer = tmp_path / "store" / RUN / "latest.json"
    behind = pointer.read_bytes()
    publish(store, Step(tmp_path / "50", 50).fill().plan(tmp_path / "state"), quiet)
    pointer.write_bytes(behind)  # the pod was lost between manifest and pointer
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    why, what, *_ = capsys.readouterr().out.splitlines()
    assert why == "latest.json is behind: it names step 40, and step 50 is whole."
    assert what.startswith("Restored step 50 (")


def test_a_damaged_step_that_was_named_is_an_error(store: Store, tmp_path: Path, capsys: Told) -> None:
    damage(tmp_path, 30)
    assert run(store, "restore", "--step", "30", "--to", str(tmp_path / "to")) == 1
    assert "tep 30 is damaged" in capsys.readouterr().err


def test_a_step_that_was_left_comes_only_by_its_name(store: Store, tmp_path: Path, capsys: Told) -> None:
    entry = lineage.Entry("rollback", 10, 5.0, "by a person")
    lineage.keep(store, RUN, [entry], generation=0, writer="a", least=1)
    assert run(store, "restore", "--dry-run", "--to", str(tmp_path / "to")) == 0
    assert capsys.readouterr().out.startswith("Would restore step 10 (")
    assert run(store, "restore", "--step", "best", "--dry-run", "--to", str(tmp_path / "to")) == 0
    assert "Would restore step 10 (" in capsys.readouterr().out
    assert run(store, "restore", "--step", "20", "--to", str(tmp_path / "to")) == 0
    assert "Step 20 was left (the run went back to step 10); it is taken since you named it." in capsys.readouterr().out


def test_as_json(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "restore", "--step", "20", "--to", str(tmp_path / "to"), "--json") == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (answer["step"], answer["done"], answer["verified"], answer["reward"]) == (20, True, True, 0.75)
    assert answer["to"] == str(tmp_path / "to/step_20")
    assert answer["sentences"][0].startswith("Restored step 20 (")


def test_verify_and_logs_need_no_run_file_either(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "verify", "--deep", "100") == 0
    assert capsys.readouterr().out.count(" is good: ") == 4
    damage(tmp_path, 30)
    assert run(store, "verify", "--deep", "100") == 1
    assert "Step 30 is damaged: trainer/.metadata" in capsys.readouterr().out
    assert run(store, "logs") == 0
    assert capsys.readouterr().out == "No attempt has left a log in the store yet.\n"
    assert run(store, "logs", "--attempt", "7") == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        (["--step", "25", "--to", "TO"], 1, "Step 25 is not in run {run} in {url}; there are 10, 20, 30, 40."),
        (["--to", "FILE"], 1, "{file} is a file, and a folder is wanted: name another with --to."),
        (["--to", "/proc/nowhere"], 1, "The folder /proc/nowhere cannot be made: "),
        ([], 2, "Name the folder with --to: only a RUN.toml knows where the job's own is."),
    ],
)
def test_nonsense_ends_in_a_sentence(store: Store, tmp_path: Path, capsys: Told, nonsense: Nonsense) -> None:
    words, code, told = nonsense
    file = tmp_path / "a-file"
    file.write_text("mine")
    places = {"TO": str(tmp_path / "to"), "FILE": str(file)}
    assert run(store, "restore", *(places.get(word, word) for word in words)) == code
    assert told.format(run=RUN, url=store.url, file=file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Name a RUN.toml, or the run in its store: --store b2://my-bucket/runs --run-id my-run"),
        (["--store", "file:///s"], "Name a RUN.toml, or the run in its store"),
        (["--store", "gs://s", "--run-id", "r"], "--store: 'gs://s' is none of b2://bucket[/prefix], s3://"),
        (["--store", "file:///s", "--run-id", "../r"], "--run-id '../r' is no name of a run: "),
        (["--store", "file:///s", "--run-id", "r", "--region", "x"], "--store: has `endpoint` or `region`, which are"),
        (["run.toml", "--store", "file:///s"], "RUN.toml names the store already: leave --store out, or RUN.toml."),
    ],
)
def test_a_store_is_named_once_and_whole(capsys: Told, words: list[str], told: str) -> None:
    assert main(["verify", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_store_that_cannot_be_reached_is_one_sentence(tmp_path: Path, capsys: Told) -> None:
    gone = (tmp_path / "not/mounted/store").as_uri()
    assert main(["restore", "--store", gone, "--run-id", "r", "--to", str(tmp_path / "to")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"The store {gone} cannot be reached: ")
    assert said.endswith("Mount the volume, or make the folder.\n")


def test_an_empty_store_is_told_as_one(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri(), None, {})
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 1
    assert f"There is no step of run {RUN} in {store.url}. Are the URL" in capsys.readouterr().err


def test_on_a_terminal_it_is_shown_how_far_a_transfer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    transfers, terminal = Transfers({}, 1.0), Terminal()
    transfers.moving["restore"] = Moving("restore", 1 << 20, 4 << 20, "fetching")
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(moving, "LOOK_S", 0.001)
    with moving.shown(transfers):
        while "fetching" not in terminal.getvalue():
            pass
    assert "fetching 1.0 MiB of 4.0 MiB (25 %)" in terminal.getvalue()
    assert terminal.getvalue().endswith(moving.CLEAR)
    with moving.shown(transfers, quiet=True):
        pass
