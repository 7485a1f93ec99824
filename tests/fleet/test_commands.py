"""What a person sees of a fleet: the commands by their words, over a fake Vast.ai and a store in a folder."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.base.errors import StoreError
from supervisor.cli.main import main
from supervisor.config.run_file import parse_toml
from supervisor.fleet.book import Orders, StoreBook
from supervisor.fleet.controller import Controller, Told
from supervisor.fleet.model import Trained
from supervisor.fleet.places import vast as client
from supervisor.fleet.places.rest import Endpoint
from supervisor.storage import open_store
from tests.fleet.fake_vast import KEY, FakeVast

RUN = """
[run]
id = "{run}-id"
[job]
kind = "command"
[job.plain]
start = ["a"]
resume = ["b"]
[store]
url = "{store}"
"""
FLEET = """
[fleet]
store = "{store}"
[limits]
per_hour = 8
total = 100
[place.spot]
provider = "vast"
gpu = "H100 SXM"
gpus = 2
most_per_hour = 4.0
image = "me/image:1"
"""
IN_FILE = '[run.{run}]\nfile = "{run}.toml"\nplaces = ["spot"]\n'


def ask_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our client waits seconds between two requests of a kind, as test_vast.py tries. Here it does not."""
    for name, found in list(vars(client).items()):
        if isinstance(found, Endpoint):
            monkeypatch.setattr(client, name, replace(found, gap_s=0.0))


@pytest.fixture
def vast(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVast]:
    monkeypatch.setattr("supervisor.fleet.book.settle_time", lambda _: 0.0)
    ask_without_gaps(monkeypatch)
    with FakeVast(runs_at_once=True) as fake:
        fake.add_offer()
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", fake.url)
        yield fake


Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, vast: FakeVast, capsys: pytest.CaptureFixture[str]) -> Say:
    """A command of the fleet, and what it printed in one line."""
    write_fleet(tmp_path, "swe")

    def run(*words: str) -> tuple[int, str]:
        code = main(["fleet", *words, "--file", str(tmp_path / "fleet.toml")])
        told = capsys.readouterr()
        return code, " ".join((told.out + told.err).split())

    return run


def write_fleet(folder: Path, *runs: str) -> None:
    store = (folder / "store").as_uri()
    (folder / "store").mkdir(exist_ok=True)
    for run in runs:
        (folder / f"{run}.toml").write_text(RUN.format(run=run, store=store))
    (folder / "fleet.toml").write_text(FLEET.format(store=store) + "".join(IN_FILE.format(run=run) for run in runs))
    for one in (folder, *folder.iterdir()):
        one.chmod(0o700)


def test_status_history_and_explain_tell_of_the_pod_and_of_an_hour_that_was_useful(
    say: Say, vast: FakeVast, tmp_path: Path
) -> None:
    assert say("explain", "swe")[1].startswith("No controller has looked at swe yet")
    assert "swe none 0.00 ?" in say("status")[1]
    code, said = say("tick")
    assert code == 0
    assert "Renting 2 x H100 SXM in spot at $1.90 an hour: the run has not begun. It is instance 1002." in said
    book = StoreBook(open_store((tmp_path / "store").as_uri(), None, {}), "fleet")
    book.begin()
    state = book.read_state("swe-id")
    trained = Trained(first=10, first_at=0.0, last=20, last_at=7200.0, kept=15)
    [pod] = state.rented
    pod = replace(pod, trained=trained, dollars=5.0, step=20, seen_at=pod.since + 2 * 3600.0)
    book.write_state("swe-id", replace(state, rented=(pod,)), "Pod 1002 (vast) trains at step 20.")
    book.end()
    said = say("status")[1]
    assert "swe vast/1002 running 2 h 1.90 5.00 5.00 20" in said
    assert "swe: Pod 1002 (vast) trains at step 20." in said
    said = say("history")[1]
    assert "swe vast/1002 10010" in said
    assert "5.00 lives" in said
    assert "swe: $5.00 in all, $5.00 for an hour of useful training" in said
    assert "Pod 1002 (vast) trains at step 20." in say("explain", "swe")[1]
    said = say("offers")[1]  # half of the paid hours were useful, and the machine is not let on demand
    assert "spot 2 x H100 SXM 1.60 3.20 yes 10010 SE 2000 Mbit/s 1500 Mbit/s" in said


def test_a_record_that_is_damaged_hides_no_other_run(say: Say, vast: FakeVast, tmp_path: Path) -> None:
    write_fleet(tmp_path, "other", "swe")
    say("tick")
    open_store((tmp_path / "store").as_uri(), None, {}).put_bytes("fleet/state/other-id.json", b"{")
    code, said = say("status")
    assert code == 0
    assert "other unknown ? ?" in said and "other: " in said and "is no record of this controller" in said
    assert "swe none" in said


def test_a_pod_is_destroyed_by_its_name_also_when_its_run_left_the_file(
    say: Say, vast: FakeVast, tmp_path: Path
) -> None:
    say("tick")
    [pod] = vast.living()
    assert say("destroy", "vast/999")[0] == 2
    assert "has a pod vast/999" in say("destroy", "vast/999")[1]
    assert say("destroy", f"runpod/{pod.instance}")[0] == 2, "two providers may give one id"
    write_fleet(tmp_path, "other")
    code, said = say("tick")
    assert code == 93
    assert f"swe-id is in fleet.toml no more, and vast/{pod.instance} is still billed for it." in said
    assert f"swe-id vast/{pod.instance} running" in say("status")[1]
    assert vast.ledger[0].until_s is None
    code, said = say("destroy", f"vast/{pod.instance}")
    assert f"swe-id: Pod {pod.instance} is destroyed, as a person agreed." in said
    assert vast.ledger[0].until_s is not None
    assert "swe-id vast" not in say("status")[1]
    assert f"swe-id vast/{pod.instance} 10010" in say("history")[1]


def test_down_ends_what_is_rented_and_up_wants_it_again(say: Say, vast: FakeVast) -> None:
    say("tick")
    assert "is destroyed" in say("down", "swe")[1]
    assert vast.living() == []
    assert "The run is down." in say("tick")[1]
    code, said = say("up", "swe")
    assert code == 0
    assert "The account at vast has $25.50: 6.4 h at $4.00 (most_per_hour)." in said
    assert len(vast.living()) == 1


def test_an_order_for_one_run_rents_nothing_for_another(say: Say, vast: FakeVast, tmp_path: Path) -> None:
    vast.add_offer()
    write_fleet(tmp_path, "swe", "other")
    waits = "other-id: The run has no pod. This command rents for another run only; `fleet run` and `fleet tick` rent"
    code, said = say("up", "swe", "--dry-run")
    assert (code, waits in said) == (0, True)
    code, said = say("up", "swe")
    assert (code, waits in said) == (0, True)
    [pod] = vast.living()
    assert "swe-id: Renting 2 x H100 SXM in spot" in said
    assert waits in say("destroy", f"vast/{pod.instance}")[1]
    assert waits in say("down", "swe")[1]
    assert vast.living() == []
    assert "other-id: Renting 2 x H100 SXM in spot" in say("tick")[1]  # it is in the file, and so it is wanted


class Script:
    """In place of the event that ends ``fleet run``: a step before each look, and then the end."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def is_set(self) -> bool:
        if self._steps:
            self._steps.pop(0)()
            return False
        return True

    def wait(self, seconds: float) -> None:
        """No time passes."""


def test_files_that_change_count_at_the_next_look_and_those_that_cannot_be_used_do_not(
    say: Say, vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vast.add_offer()
    fleet, run = tmp_path / "fleet.toml", tmp_path / "other.toml"

    def edit(file: Path, old: str, new: str) -> None:
        file.write_text(file.read_text().replace(old, new))

    def add_a_run() -> None:
        write_fleet(tmp_path, "swe", "other")
        edit(fleet, "me/image:1", "me/image:2")

    def end_the_second() -> None:
        edit(run, 'start = ["a"]', 'start = ["mended"]')
        book = StoreBook(open_store((tmp_path / "store").as_uri(), None, {}), "fleet")
        book.write_orders("other-id", Orders(agreed=(f"vast/{vast.ledger[1].instance}",)))

    steps = (
        lambda: None,
        lambda: edit(fleet, "gpus = 2", "gpus = "),
        lambda: None,
        add_a_run,
        end_the_second,
        lambda: edit(fleet, "[fleet]", '[fleet]\nname = "another"'),
    )
    monkeypatch.setattr("supervisor.cli.fleet.Event", lambda: Script(*steps))
    monkeypatch.setattr("supervisor.cli.fleet.signal.signal", lambda *_: None)
    said = say("run")[1]
    assert said.count("cannot be used, so the old ones hold") == 2
    assert "fleet.toml: The files changed, and are read anew." in said
    assert "[fleet] is not the same: restart `rl-supervisor fleet run`" in said
    images = [body["image"] for route, body in vast.asked if route == "create"]
    assert images == ["me/image:1", "me/image:2", "me/image:2"]
    text = base64.b64decode(vast.ledger[-1].env["RL_SUPERVISOR_RUN_FILE_B64"]).decode()
    assert 'start = ["mended"]' in text


def test_files_that_change_while_the_store_is_away_do_not_make_the_outage_a_silence(
    say: Say, vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[tuple[Controller, bool]] = []
    look = Controller._tick

    def tick(controller: Controller) -> list[Told]:
        known.append((controller, controller.store_was_away))
        if len(known) == 1:
            raise StoreError("transient", "the store is away")
        return look(controller)

    steps = (lambda: None, lambda: (tmp_path / "swe.toml").open("a").write("# edited\n"), lambda: None)
    monkeypatch.setattr(Controller, "_tick", tick)
    monkeypatch.setattr("supervisor.cli.fleet.Event", lambda: Script(*steps))
    monkeypatch.setattr("supervisor.cli.fleet.signal.signal", lambda *_: None)
    assert "The files changed, and are read anew." in say("run")[1]
    assert known[0][0] is not known[1][0]
    assert [was for _, was in known] == [False, True, False]


def test_a_pod_gets_the_run_file_as_its_place_has_it(say: Say, vast: FakeVast, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        file.read_text().replace("gpus = 2", 'gpus = 2\ninference = [0]\ntrainer = [1]\nargs = ["--small"]')
    )
    say("tick")
    text = base64.b64decode(vast.ledger[0].env["RL_SUPERVISOR_RUN_FILE_B64"]).decode()
    got, own = parse_toml(text), parse_toml((tmp_path / "swe.toml").read_text())
    assert got.pop("gpus") == {"inference": [0], "trainer": [1]}
    assert got["job"].pop("args") == ["--small"]
    assert got == own


def test_a_dry_run_says_the_same_and_does_nothing(say: Say, vast: FakeVast, tmp_path: Path) -> None:
    for words in (["tick"], ["up", "swe"]):
        assert "Renting 2 x H100 SXM in spot" in say(*words, "--dry-run")[1]
    assert "The run is down." in say("down", "swe", "--dry-run")[1]
    assert vast.ledger == []
    assert not list((tmp_path / "store/fleet").glob("state/*"))
    say("tick")
    pod = vast.ledger[0].instance
    for words in (["down", "swe"], ["destroy", f"vast/{pod}"]):
        assert f"Pod {pod} is destroyed" in say(*words, "--dry-run")[1]
    assert "starts since" in say("tick", "--dry-run")[1]
    assert vast.ledger[0].until_s is None
    assert not list((tmp_path / "store/fleet").glob("orders/*"))


@pytest.mark.parametrize("words", [("down", "swe"), ("up", "swe")])
def test_an_order_that_ends_for_want_of_a_key_is_not_written_down(
    say: Say, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with an error, and the next controller destroyed the pods all the same."""
    monkeypatch.delenv("VAST_API_KEY")
    code, said = say(*words)
    assert (code, "VAST_API_KEY is not set" in said) == (1, True)
    assert not list((tmp_path / "store").rglob("orders/*"))


def test_a_record_that_is_damaged_keeps_no_other_run_from_history_and_destroy(
    say: Say, vast: FakeVast, tmp_path: Path
) -> None:
    vast.add_offer()
    write_fleet(tmp_path, "other", "swe")
    say("tick")
    lost, pod = vast.living()
    open_store((tmp_path / "store").as_uri(), None, {}).put_bytes("fleet/state/other-id.json", b"{")
    code, said = say("history")
    assert code == 0
    assert f"swe vast/{pod.instance} 10020" in said and "other: file:" in said
    code, said = say("destroy", f"vast/{lost.instance}")
    assert code == 2
    assert f"has a pod vast/{lost.instance}" in said and "is no record of this controller" in said
    assert f"Pod {pod.instance} is destroyed, as a person agreed." in say("destroy", f"vast/{pod.instance}")[1]


def test_a_run_that_gets_a_new_id_is_shown_beside_what_its_old_id_still_has(
    say: Say, vast: FakeVast, tmp_path: Path
) -> None:
    vast.add_offer()
    file = tmp_path / "swe.toml"
    file.write_text(file.read_text().replace("swe-id", "swe"))
    say("tick")
    file.write_text(file.read_text().replace('"swe"', '"swe-2"'))
    say("tick")
    old, new = vast.living()
    for said in (say("status")[1], say("history")[1]):
        assert f"swe vast/{old.instance}" in said and f"swe vast/{new.instance}" in said
    assert f"Pod {new.instance} is destroyed" in say("destroy", f"vast/{new.instance}")[1]
    assert f"Pod {old.instance} is destroyed" in say("destroy", f"vast/{old.instance}")[1]
    assert say("status")[1].count("swe vast/") == 1, "nothing is rented under the old id"
