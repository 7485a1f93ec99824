"""What people hear of a fleet: a run that needs one, money that is nearly spent; once, and no tick waits for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.core.messages import Message
from supervisor.effects import notify
from supervisor.fleet.book import StoreBook
from supervisor.fleet.controller import Told
from supervisor.fleet.fleet_file import Limits
from supervisor.fleet.messages import list_messages
from supervisor.fleet.model import Decision, Money, Pod, Rented, State
from supervisor.fleet.places.base import Instance
from supervisor.storage import open_store
from tests.fleet.fake_vast import KEY, FakeVast
from tests.fleet.test_commands import ask_without_gaps, write_fleet
from tests.notify.server import Service, until

TOPIC = "a-topic-that-is-hard-to-guess-2c41"
LIMITS = Limits(per_hour=4.0, total=100.0)
POD = Rented(Pod("vast", 1, Instance("7", "rls-swe-id-g00001-0a1b2c", "running", 2.0)), 1.0, 2.0, 2.0, held=True)
TRAINS, WITHOUT = State(rented=(POD,)), State()


def told(sentence: str, state: State = WITHOUT, *, person: bool = False, done: bool = False) -> Told:
    return Told("swe-id", Decision(state, sentence, person=person, done=done))


def of_run(one: Told, *threads: str) -> Message | None:
    found = list_messages([one], None, LIMITS, {"swe-id": "swe"}, threads)
    assert len(found) <= 1
    return found[0] if found else None


def test_a_run_that_needs_a_person_is_urgent_only_where_it_does_not_train() -> None:
    urgent = of_run(told("No pod trains, and none is rented: the limit.", person=True))
    assert urgent == Message(
        "person-swe-id",
        "error",
        "swe: No pod trains, and none is rented: the limit.",
        "rl-supervisor fleet explain swe",
    )
    calm = of_run(told("Pod 7 trains. Pod 6 is kept, and billed.", TRAINS, person=True))
    assert calm is not None and (calm.severity, calm.is_over) == ("warning", False)


def test_it_is_over_when_the_run_trains_or_ended_and_not_when_a_look_could_not_tell() -> None:
    assert of_run(told("It is unknown who trains."), "person-swe-id") is None
    missing = State(rented=(replace(POD, missing_since=3.0),))
    assert of_run(told("No beat of pod 7 for 40 s.", missing), "person-swe-id") is None
    for one in (told("Pod 7 trains.", TRAINS), told("The run is down.", done=True)):
        over = of_run(one, "person-swe-id")
        assert over is not None and (over.thread, over.is_over) == ("person-swe-id", True)
    [gone] = list_messages([], None, LIMITS, {}, ["person-old", "money"])
    assert (gone.thread, gone.is_over) == ("person-old", True)


@pytest.mark.parametrize(
    ("spent", "limits", "near"),
    [
        (87.9, LIMITS, False),
        (88.1, LIMITS, True),  # three hours at $4
        (899.0, Limits(per_hour=4.0, total=1000.0), False),
        (901.0, Limits(per_hour=4.0, total=1000.0), True),  # a tenth
        (4.9, Limits(per_hour=8.0, total=10.0), False),
        (5.1, Limits(per_hour=8.0, total=10.0), True),  # half of it
        (120.0, LIMITS, True),
    ],
)
def test_money_is_near_its_limit(spent: float, limits: Limits, *, near: bool) -> None:
    [found] = list_messages([], Money(spent, 2.0, 0), limits, {}, ())
    assert (found.thread, found.is_over) == ("money", not near)
    assert f"${spent:.2f} of ${limits.total:.2f} are spent" in found.sentence


def test_how_long_the_rest_lasts_is_told_and_what_is_unknown_is_no_news() -> None:
    [found] = list_messages([], Money(90.0, 2.0, 0), LIMITS, {}, ())
    assert "The rest lasts 5 h at $2.00 an hour. No pod is rented after that" in found.sentence
    assert "lasts" not in list_messages([], Money(90.0, 0.0, 0), LIMITS, {}, ())[0].sentence
    assert list_messages([], Money(None, 2.0, 0), LIMITS, {}, ()) == []


# ---------------------------------------------------------------- really sent

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def vast(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVast]:
    monkeypatch.setattr("supervisor.fleet.book.settle_time", lambda _: 0.0)
    ask_without_gaps(monkeypatch)
    with FakeVast(runs_at_once=True) as fake:
        fake.add_offer()
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", fake.url)
        yield fake


@pytest.fixture
def say(tmp_path: Path, vast: FakeVast, capsys: pytest.CaptureFixture[str]) -> Say:
    write_fleet(tmp_path, "swe")

    def run(*words: str) -> tuple[int, str]:
        code = main(["fleet", *words, "--file", str(tmp_path / "fleet.toml")])
        found = capsys.readouterr()
        return code, " ".join((found.out + found.err).split())

    return run


def open_book(folder: Path) -> StoreBook:
    return StoreBook(open_store((folder / "store").as_uri(), None, {}), "fleet")


def test_a_cron_tells_a_run_that_needs_a_person_once_and_its_end_once(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAST_API_KEY", "not-the-key-of-the-account")
    with Service() as hook:
        monkeypatch.setenv("RL_NOTIFY_URLS", f"http://{hook.place}/{TOPIC}")
        say("tick", "--dry-run")
        assert hook.got == []
        for _ in range(3):
            code, said = say("tick")
            assert code == 93
            assert TOPIC not in said
        assert len(hook.got) == 1
        told = hook.got[0][1]
        assert (told["run"], told["severity"], told["over"]) == ("fleet", "error", False)
        assert told["text"].startswith("ERROR: fleet\nswe: ") and "key" in told["text"]
        assert told["command"] == "rl-supervisor fleet explain swe"
        say("down", "swe")
        say("tick")
        assert [value["over"] for _, value, _ in hook.got] == [False, True]
        kept = (tmp_path / "store/fleet/messages.json").read_text()
        assert json.loads(kept)["open"] == []
        assert TOPIC not in kept


def test_money_that_is_nearly_spent_is_told_once_and_again_when_the_limit_was_raised(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Service("ntfy") as ntfy:
        monkeypatch.setenv("RL_NOTIFY_URLS", f"ntfy://{ntfy.place}/{TOPIC}")
        say("tick")
        assert ntfy.got == []
        book = open_book(tmp_path)
        book.begin()
        state = book.read_state("swe-id")
        book.write_state("swe-id", replace(state, forgotten_dollars=93.0), "Spent.")
        book.end()
        for _ in range(2):
            say("tick")
        [(_, found, _)] = ntfy.got
        assert found["title"] == "warning: fleet"
        assert "$93.00 of $100.00 are spent (limits.total)" in found["message"]
        file = tmp_path / "fleet.toml"
        file.write_text(file.read_text().replace("total = 100", "total = 900"))
        say("tick")
        assert [value["title"] for _, value, _ in ntfy.got] == ["warning: fleet", "resolved: fleet"]
        assert len({value["sequence_id"] for _, value, _ in ntfy.got}) == 1


def test_a_target_that_does_not_answer_costs_a_tick_nothing_and_gets_it_with_a_later_one(
    say: Say, vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LAST_S", 1.0)
    monkeypatch.setenv("VAST_API_KEY", "not-the-key-of-the-account")
    with Service() as hook:
        hook.wait_s = 600.0
        monkeypatch.setenv("RL_NOTIFY_URLS", f"http://{hook.place}/{TOPIC}")
        began = time.monotonic()
        assert say("tick")[0] == 93
        assert time.monotonic() - began < 20.0
        hook.heal()
        hook.released.set()
        until(lambda: say("tick")[0] == 93 and hook.got)
        kept = json.loads((tmp_path / "store/fleet/messages.json").read_text())
        assert kept["open"] == ["person-swe-id"]


def test_the_limit_an_hour_holds_over_many_ticks_of_a_cron(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(file.read_text() + "[notify]\nper_hour = 1\n")
    with Service() as hook:
        monkeypatch.setenv("RL_NOTIFY_URLS", f"http://{hook.place}/{TOPIC}")
        for spent in (95.0, 0.0, 96.0, 0.0, 97.0):
            book = open_book(tmp_path)
            book.begin()
            state = book.read_state("swe-id")
            book.write_state("swe-id", replace(state, forgotten_dollars=spent), f"Spent {spent}.")
            book.end()
            say("tick")
        assert len(hook.got) == 1
        [waiting] = json.loads((tmp_path / "store/fleet/messages.json").read_text())["waiting"].values()
        assert len(waiting) == 1  # of one thread, the newest


@pytest.mark.soak
def test_a_controller_that_goes_on_tells_it_while_it_runs(
    vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path, "swe")
    with Service() as hook:
        more = {"VAST_API_KEY": "not-the-key", "VAST_URL": vast.url, "RL_NOTIFY_URLS": f"http://{hook.place}/{TOPIC}"}
        words = [sys.executable, "-m", "supervisor.cli.main", "fleet", "run", "--file", str(tmp_path / "fleet.toml")]
        with subprocess.Popen(words, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True) as controller:
            until(lambda: hook.got, 60.0)
            controller.send_signal(signal.SIGTERM)
            said, _ = controller.communicate(timeout=90)
        assert controller.returncode == 0
        assert len(hook.got) == 1
        assert TOPIC not in said
        assert json.loads((tmp_path / "store/fleet/messages.json").read_text())["open"] == ["person-swe-id"]


def test_the_addresses_can_be_tried(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "fleet.toml")
    with Service() as hook:
        monkeypatch.setenv("RL_NOTIFY_URLS", f"http://{hook.place}/{TOPIC}")
        assert main(["notify", "--test", file]) == 0
        assert hook.got[0][1]["run"] == "fleet"
        hook.status = 500
        assert main(["notify", "--test", file]) == 1
