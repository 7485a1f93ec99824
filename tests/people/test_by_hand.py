"""`restore`, `verify` and `logs` on a machine that has nothing but the store, its keys and this program."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from supervisor.checkpoints import lineage, log_files, log_packing
from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.publish import PublishPlan, Source, publish
from supervisor.checkpoints.records import newest_manifest
from supervisor.cli import moving
from supervisor.cli.main import main
from supervisor.effects import transfers
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


@pytest.mark.soak
def test_the_newest_step_comes_to_a_machine_without_a_run_file(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    assert capsys.readouterr().out.startswith("Restored step 40 (")
    assert (tmp_path / "to/step_40/trainer/.metadata").is_file()
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    assert "is in" in capsys.readouterr().out, "what is there already is not fetched again"


@pytest.mark.soak
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


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_damaged_step_that_was_named_is_an_error(store: Store, tmp_path: Path, capsys: Told) -> None:
    damage(tmp_path, 30)
    assert run(store, "restore", "--step", "30", "--to", str(tmp_path / "to")) == 1
    assert "is damaged: trainer" in capsys.readouterr().err


@pytest.mark.soak
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


@pytest.mark.soak
def test_verify_and_logs_need_no_run_file_either(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert run(store, "verify", "--deep", "100") == 0
    assert capsys.readouterr().out.count(" is good: ") == 4
    assert run(store, "verify") == 0
    assert capsys.readouterr().out.count("by names and sizes (--deep 100 reads all bytes)") == 4
    damage(tmp_path, 30)
    assert run(store, "verify", "--deep", "100") == 1
    told = capsys.readouterr().out
    assert "Step 30 is damaged: trainer/.metadata" in told
    assert "3 good steps are there; nothing was deleted." in told
    assert run(store, "verify", "--step", "30", "--deep", "100") == 1
    told = capsys.readouterr().out
    assert "good step" not in told, "the others were not looked at"
    assert "`rl-supervisor publish RUN.toml --step N` mends it there." in told
    assert run(store, "logs") == 0
    assert capsys.readouterr().out == "No attempt has left a log in the store yet.\n"
    assert run(store, "logs", "--attempt", "7") == 1


@pytest.mark.soak
def test_the_logs_of_an_attempt_that_many_pods_had_are_all_shown(
    store: Store, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than any one line of the transfer's answer may hold: JSON makes six bytes of each of these."""
    monkeypatch.setattr(transfers, "LINE_LIMIT", 1 << 20)
    text = "\x01" * (1 << 15)
    pods = [f"{pod:x}" * 16 for pod in range(6)]
    for pod in pods:
        log_files.put_logs(store, RUN, pod, 1, {"trainer.log": log_packing.pack(text)})
    assert run(store, "logs", "--attempt", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {f"{pod[:8]}/trainer.log": text for pod in pods}


@pytest.mark.parametrize("run_id", ["another-run", "bs4-rl"])
def test_verify_of_a_run_that_is_not_there_is_no_success(store: Store, capsys: Told, run_id: str) -> None:
    assert main(["verify", "--store", store.url, "--run-id", run_id]) == 1
    told = f"There is no step of run {run_id} in {store.url}. Are the URL and the run's name right?\n"
    assert capsys.readouterr().err == told


def test_a_step_that_is_listed_and_not_whole_is_not_denied(store: Store, tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "store" / RUN / "step_30" / "trainer" / ".metadata").unlink()
    assert run(store, "restore", "--step", "30", "--to", str(tmp_path / "to")) == 1
    told = f"Step 30 of run {RUN} in {store.url} is damaged: step 30 lacks trainer/.metadata. Whole are 10, 20, 40.\n"
    assert capsys.readouterr().err == told


def test_it_is_told_where_the_files_are_that_do_not_lie_in_the_steps_folder(
    store: Store, tmp_path: Path, capsys: Told
) -> None:
    assert run(store, "restore", "--to", str(tmp_path / "to")) == 0
    named = re.search(r", 2 of its files to (\S+) and (\S+), every byte verified", capsys.readouterr().out)
    assert named is not None
    assert all(Path(folder).is_dir() and Path(folder).name == "step_40" for folder in named.groups())


PLAIN = """\
run = {{ id = "{run}", state_dir = "{state}" }}
job = {{ kind = "command", dir = "{here}", output_dir = "{output}", plain = {{ start = ["true"], resume = ["true"] }} }}
store = {{ url = "{store}" }}
supervision = {{ quiet = 0 }}
"""


def run_file(tmp_path: Path, store: Store, **more: str) -> str:
    path = tmp_path / "run.toml"
    words = {"run": RUN, "state": str(tmp_path / "state"), "here": str(tmp_path), "output": "out", "store": store.url}
    path.write_text(PLAIN.format(**words | more))
    return str(path)


@pytest.mark.soak
def test_a_step_that_is_mended_by_hand_keeps_what_was_known_of_it(tmp_path: Path, capsys: Told) -> None:
    store = open_store((tmp_path / "store").as_uri(), None, {})
    primary = tmp_path / "out/checkpoints/step_20"
    primary.mkdir(parents=True)
    for name in ("optimizer.pt", "model.pt"):
        (primary / name).write_bytes(name.encode())
    sources = [Source(path, path.name) for path in primary.iterdir()]
    publish(store, PublishPlan(RUN, 20, sources, tmp_path / "s", config_sha256="c" * 64, reward=0.8277), quiet)
    (tmp_path / "store" / RUN / "step_20/model.pt").unlink()
    words = [run_file(tmp_path, store), "--step", "20"]
    assert main(["publish", *words]) == 0, capsys.readouterr().err
    assert list_steps(store, RUN).steps[20].reward == 0.8277
    _, manifest, _ = newest_manifest(store, RUN, 20, store.list_versions(f"{RUN}/step_20/manifest.json"))
    assert manifest.config_sha256 == "c" * 64
    (primary / "model.pt").write_bytes(b"others")
    assert main(["publish", *words]) == 0, capsys.readouterr().err
    assert list_steps(store, RUN).steps[20].reward is None, "of other bytes nothing is known"


def test_folders_that_cannot_be_made_are_sentences(store: Store, tmp_path: Path, capsys: Told) -> None:
    assert main(["restore", run_file(tmp_path, store, state="/proc/nope")]) == 1
    assert capsys.readouterr().err.startswith("The state folder /proc/nope cannot be used: No such file or directory.")
    assert main(["restore", run_file(tmp_path, store, output="/proc/nope")]) == 1
    assert capsys.readouterr().err.startswith("The folder /proc/nope cannot be made: No such file or directory.")


@pytest.mark.parametrize("words", [["verify", "--seed", "abc"], ["logs", "--attempt", "x"]])
def test_a_number_that_is_none_is_not_called_a_step(capsys: Told, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"a whole number is wanted, not '{words[2]}'" in capsys.readouterr().err


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
        (["--store", "file:///s", "--run-id", "r", "--region", "x"], "--store: has `region`, which works"),
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
    with moving.show_transfers(transfers):
        while "fetching" not in terminal.getvalue():
            pass
    assert "fetching 1.0 MiB of 4.0 MiB (25 %)" in terminal.getvalue()
    assert terminal.getvalue().endswith(moving.CLEAR)
    with moving.show_transfers(transfers, quiet=True):
        pass


@pytest.mark.soak
def test_what_rotted_in_the_store_is_mended_as_verify_says(tmp_path: Path, capsys: Told) -> None:
    """Its size, time and id are those of the file that was published: only its bytes tell."""
    store = open_store((tmp_path / "store").as_uri(), None, {})
    words = run_file(tmp_path, store)
    for number in (10, 20):
        primary = tmp_path / f"out/checkpoints/step_{number}"
        primary.mkdir(parents=True)
        for name in ("optimizer.pt", "model.pt"):
            (primary / name).write_bytes(name.encode() * number)
        assert main(["publish", words, "--step", str(number)]) == 0, capsys.readouterr().err
    for number in (10, 20):
        stored = tmp_path / "store" / RUN / f"step_{number}/model.pt"
        status, data = stored.stat(), bytearray(stored.read_bytes())
        data[3] ^= 1
        with stored.open("r+b") as file:
            file.write(data)
        os.utime(stored, ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "out/checkpoints/step_10/model.pt").unlink()
    shutil.rmtree(tmp_path / "out/checkpoints/step_10")
    capsys.readouterr()
    assert main(["verify", words, "--deep", "100"]) == 1
    told = capsys.readouterr().out
    assert "`rl-supervisor publish RUN.toml --step 20` sends anew what is damaged." in told
    assert "Step 10 is not complete on this disk, and cannot be mended from here." in told
    assert "no pod resumes at a damaged step" in told
    assert main(["publish", words, "--step", "20"]) == 0
    told = capsys.readouterr().out
    assert "The store's bytes of model.pt were no longer those that were published: sent anew." in told
    assert main(["verify", words, "--deep", "100", "--step", "20"]) == 0, capsys.readouterr().out
    assert main(["publish", words, "--step", "20"]) == 0
    assert "is published already" in (told := capsys.readouterr().out) and "every byte there was read again" in told


@pytest.mark.soak
def test_a_pointer_that_rotted_is_mended_as_verify_says(tmp_path: Path, capsys: Told) -> None:
    store = open_store((tmp_path / "store").as_uri(), None, {})
    words = run_file(tmp_path, store)
    for number in (10, 20):
        primary = tmp_path / f"out/checkpoints/step_{number}"
        primary.mkdir(parents=True)
        for name in ("optimizer.pt", "model.pt"):
            (primary / name).write_bytes(name.encode() * number)
        assert main(["publish", words, "--step", str(number)]) == 0, capsys.readouterr().err
    pointer = tmp_path / "store" / RUN / "latest.json"
    pointer.write_text(pointer.read_text().replace("step_20", "step_21"))
    assert main(["verify", words]) == 1
    told = capsys.readouterr().out
    assert told.endswith("The next publish writes latest.json anew: `rl-supervisor publish RUN.toml --step 20`.\n")
    assert main(["publish", words, "--step", "20"]) == 0
    assert f"\nlatest.json of {RUN} is damaged" in (told := capsys.readouterr().out), "a name stays as it is"
    assert main(["verify", words]) == 0, told
