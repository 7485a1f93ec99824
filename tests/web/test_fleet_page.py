"""The page of a fleet: what its controller remembers, read and nothing else, over HTTP and in a real browser."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.base import secrets
from supervisor.base.errors import StoreError
from supervisor.fleet.assemble import assemble
from supervisor.fleet.book import Orders, Page, Said, StoreBook
from supervisor.fleet.fleet_file import FleetFile
from supervisor.fleet.model import Closed, Intent, Offered, Pod, Rented, State, Trained
from supervisor.fleet.places.base import Instance, Offer
from supervisor.web import fleet_source
from supervisor.web.fleet_page import lines_of_fleet, page_of_fleet
from supervisor.web.fleet_source import FleetSeen, FleetSource
from tests.fleet.fake_vast import KEY, FakeVast
from tests.fleet.test_commands import ask_without_gaps, write_fleet
from tests.web.served import NOW, SCRIPT, Told, seen, serve
from tests.web.test_app import TOKEN, ask
from tests.web.test_browser import CHROMIUM, Tab, browser, can_be_read  # noqa: F401 (a fixture)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
FILE = FleetFile.model_validate(
    {
        "fleet": {"store": "file:///nowhere"},
        "limits": {"per_hour": 8.0, "total": 400.0, "until": "2099-12-31"},
        "place": {
            "spot": {"provider": "vast", "gpu": "H100 SXM", "gpus": 2, "most_per_hour": 4.0, "image": "me/image:1"},
            "own": {"provider": "ssh", "host": "box1"},
        },
        "run": {name: {"file": f"{name}.toml", "places": ["spot", "own"]} for name in ("swe", "math", "code", "old")},
    }
)


def pod(number: int, **more: Any) -> Rented:
    words = {"gpu": "H100 SXM", "gpus": 2, "machine": f"m{number}", "says": SCRIPT, "lowest_bid": 1.9, "spot": True}
    instance = Instance(str(number), f"rls-swe-g00001-00000{number}", "running", 2.5, **words)
    begun = {"since": NOW - 7200.0, "seen_at": NOW - 20, "per_hour": 2.5, "place": "spot", "dollars": 5.0}
    return Rented(Pod("vast", 1, instance), **{**begun, **more})


def fleet_seen(**more: Any) -> FleetSeen:
    """Four runs: one trains, one needs a person, one is down, one is over; and one that left the file."""
    trained = Trained(first=10, first_at=NOW - 7000, last=70, last_at=NOW - 100, kept=60)
    trains = pod(7, held=True, step=70, unpublished=(65, 70), trained=trained)
    ended = pod(6, ended=NOW - 7300.0, since=NOW - 9000.0, how="outbid", dollars=1.25)
    offers = tuple(
        Offered("spot", Offer(f"o{n}", "H100 SXM", 2, 2.0 + n / 4, spot=True, machine=f"m{n}", region=f"SE {SCRIPT}"))
        for n in (1, 2)
    )
    intent = Intent("rls-math-g00001-0a1b2c", "spot", "vast", 1, NOW - 30, 3.0, "vast/m9")
    closed = Closed(NOW + 600, "rate", "vast: asked too often.", 2, NOW - 60)
    pages = {
        "swe": Page(
            State(
                rented=(ended, trains), cheapest=offers, searched_at=NOW - 900, faults={"vast/m3": (NOW - 99.0,)},
                offered={"vast/m1": NOW - 9999.0}, asked={intent.label: intent}, closed={"own": closed},
            ),
            (Said(NOW - 200, f"Pod 7 (vast) trains at step 70. {SCRIPT}"),),
        ),
        "math": Page(State(intent=intent), (Said(NOW - 100, "Renting 2 x H100."),)),
        "code": Page(State(), (Said(NOW - 50, "No pod trains, and none is rented: the limit."),), "person"),
        "old": Page(State(forgotten_dollars=100.0), (Said(NOW - 9e5, "The run has ended: finished."),), "done"),
        "gone": Page(State(rented=(pod(8),)), (Said(NOW - 10, "gone is in fleet.toml no more."),), "person"),
    }  # fmt: skip
    names = {run: run for run in FILE.run}
    words = {"at": NOW, "pages": pages, "orders": {"swe": Orders()}, "written_at": NOW - 12}
    return FleetSeen(FILE, names, **{**words, **more})


class ToldFleet:
    """Stands for a ``FleetSource``."""

    def __init__(self, found: FleetSeen) -> None:
        self.seen = found

    def look(self) -> FleetSeen:
        return self.seen


# ---------------------------------------------------------------- what it says


def test_runs_pods_money_places_and_offers_are_told() -> None:
    told = page_of_fleet(fleet_seen())
    assert [(one["run"], one["state"], one["dollars"]) for one in told["runs"]] == [
        ("swe", "on a pod", 6.25),
        ("math", "starts", 0.0),
        ("code", "needs a person", 0.0),
        ("old", "over", 100.0),
        ("gone", "needs a person", 5.0),
    ]
    assert told["sentence"] == (
        "5 runs: 1 is on a pod, 1 starts, 2 need a person, 1 is over. $111.25 of $400.00 are spent, $8.00 an hour now."
    )
    assert told["runs"][0]["per_useful_hour"] == pytest.approx(6.25 / (6900 * 50 / 60 / 3600), abs=0.01)
    money = told["money"]
    assert (money["spent"], money["total"], money["per_hour"], money["most_per_hour"]) == (111.25, 400.0, 8.0, 8.0)
    assert (money["creates"], money["most_creates"], money["lasts_s"]) == (1, 6, round(288.75 / 8 * 3600))
    pods = {one["pod"]: one for one in told["pods"]}
    assert list(pods) == ["vast/7", "vast/?", "vast/8"]
    assert pods["vast/7"] | {"gpus": "2 x H100 SXM", "bid": "lowest $1.90", "unpublished": [65, 70]} == pods["vast/7"]
    assert pods["vast/?"]["phase"] == "asked for"
    assert [(one["pod"], one["how"]) for one in told["ended"]] == [("vast/6", "outbid")]
    spot, own = told["places"]
    assert (spot["at"], spot["gpus"], spot["pods"], spot["closed"]) == ("vast", "2 x H100 SXM", 2, "")
    assert (own["at"], own["closed"]) == ("ssh/box1", "vast: asked too often. Asked again in 10 min.")
    assert [(one["machine"], one["per_hour"], one["since"]) for one in told["offers"]] == [
        ("vast/m1", 2.25, NOW - 9999.0),
        ("vast/m2", 2.5, None),
    ]
    assert told["faults"] == [{"machine": "vast/m3", "count": 1, "last": NOW - 99.0}]
    assert told["notes"] == ["gone is in fleet.toml no more, and a pod of it is billed."]


def test_a_controller_that_is_silent_or_never_came_is_named() -> None:
    assert "No controller has written for 2 h" in page_of_fleet(fleet_seen(written_at=NOW - 7200))["notes"][0]
    empty = page_of_fleet(fleet_seen(written_at=None, pages={}))
    assert empty["notes"] == ["No controller has tended this fleet yet: rl-supervisor fleet run"]
    assert [one["state"] for one in empty["runs"]] == ["no pod"] * 4
    assert page_of_fleet(fleet_seen(orders={"swe": Orders(wanted=False)}))["runs"][0]["state"] == "down"


def test_a_raised_bid_and_one_that_was_refused_are_told() -> None:
    for bid, words in ((3.5, "raised to $3.50, lowest $1.90"), (0.0, "refused, lowest $1.90")):
        pages = {"swe": Page(State(rented=(pod(7, bid=bid),)))}
        assert page_of_fleet(fleet_seen(pages=pages))["pods"][0]["bid"] == words


def test_secrets_are_masked_and_nothing_a_terminal_obeys_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.remember("hunter2-hunter2-hunter2")
    pages = {"swe": Page(State(), (Said(NOW, "The key hunter2-hunter2-hunter2 was \x1b[31mrefused\x1b[0m."),))}
    text = json.dumps([page_of_fleet(fleet_seen(pages=pages)), lines_of_fleet(fleet_seen(pages=pages))])
    assert "hunter2" not in text and "\\u001b" not in text and "refused" in text


# ---------------------------------------------------------------- where it reads


@pytest.fixture
def vast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeVast]:
    monkeypatch.setattr("supervisor.fleet.book.settle_time", lambda _: 0.0)
    ask_without_gaps(monkeypatch)
    monkeypatch.setattr(fleet_source, "FRESH_S", 0.0)
    write_fleet(tmp_path, "swe", "math")
    with FakeVast(runs_at_once=True) as fake:
        fake.add_offer()
        monkeypatch.setenv("VAST_API_KEY", KEY)
        monkeypatch.setenv("VAST_URL", fake.url)
        yield fake


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_it_reads_the_memory_alone_and_only_what_changed(
    vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from supervisor.cli.main import main

    file = str(tmp_path / "fleet.toml")
    main(["fleet", "tick", "--file", file])
    main(["fleet", "down", "math", "--file", file])
    before = tree_of(tmp_path / "store")
    vast.keys_seen.clear()
    monkeypatch.delenv("VAST_API_KEY")  # a machine that may read the store needs no account
    reads: list[str] = []
    read_page = StoreBook.read_page
    monkeypatch.setattr(StoreBook, "read_page", lambda book, run: (reads.append(run), read_page(book, run))[1])
    source = FleetSource(assemble(tmp_path / "fleet.toml", os.environ))
    told = page_of_fleet(source.look())
    assert [(one["name"], one["run"], one["state"]) for one in told["runs"]] == [
        ("swe", "swe-id", "starts"),
        ("math", "math-id", "down"),
    ]
    assert told["pods"][0]["pod"].startswith("vast/")
    assert told["offers"][0]["gpus"] == "2 x H100 SXM"
    assert abs(told["written_at"] - told["at"]) < 60
    source.look()
    assert sorted(reads) == ["math-id", "swe-id"]  # nothing changed
    assert vast.keys_seen == []
    assert tree_of(tmp_path / "store") == before


def test_a_store_that_is_away_and_a_damaged_record_are_told_and_the_rest_stays(
    vast: FakeVast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from supervisor.cli.main import main

    main(["fleet", "tick", "--file", str(tmp_path / "fleet.toml")])
    source = FleetSource(assemble(tmp_path / "fleet.toml", os.environ))
    assert [one["state"] for one in page_of_fleet(source.look())["runs"]].count("starts") >= 1
    [record] = (tmp_path / "store/fleet/state").glob("math-id.json*")
    record.write_text('{"state": 7}')
    told = page_of_fleet(source.look())
    assert any("math-id.json is no record of this controller" in one for one in told["notes"])
    assert told["runs"][0]["run"] == "swe-id" and told["runs"][0]["sentence"] != ""

    def fail(book: StoreBook) -> None:
        raise StoreError("transient", "it answers with status 503")

    monkeypatch.setattr(StoreBook, "list_records", fail)
    told = page_of_fleet(source.look())
    assert any("so this may be old: it answers with status 503." in one for one in told["notes"])
    assert told["pods"][0]["run"] == "swe-id"


# ---------------------------------------------------------------- over HTTP


def test_a_fleet_is_served_with_the_same_care_as_a_run() -> None:
    fleet = ToldFleet(fleet_seen())
    run = Told(seen(), {"trainer": "x"})
    with serve({"swe": run}, TOKEN, fleet=fleet) as address:
        for path in ("/fleet.json", "/runs.json", "/static/fleet.js"):
            assert ask(address, path)[0] == 403
        cookie = ask(address, f"/?t={TOKEN}")[1]["set-cookie"].partition(";")[0]
        status, headers, body = ask(address, "/fleet.json", Cookie=cookie)
        assert status == 200 and json.loads(body)["fleet"] == "fleet"
        assert "script-src 'self';" in headers["content-security-policy"]
        assert ask(address, "/fleet.json", Cookie=cookie, If_None_Match=headers["etag"])[0] == 304
        assert ask(address, "/fleet.json", "POST", Cookie=cookie)[0] == 405
        lines = json.loads(ask(address, "/runs.json", Cookie=cookie)[2])
        assert (lines["fleet"], [one["run"] for one in lines["runs"]]) == ("fleet", ["swe", "math", "code", "old"])
        assert run.looks == 0  # no run's own store is asked for the list
        assert json.loads(ask(address, "/run.json?run=swe", Cookie=cookie)[2])["run"] == "swe"
    with serve({"swe": run}) as address:
        assert ask(address, "/fleet.json")[0] == 404


@pytest.mark.soak
def test_the_command_serves_a_fleet_by_its_file(vast: FakeVast, tmp_path: Path) -> None:
    from supervisor.cli.main import main

    main(["fleet", "tick", "--file", str(tmp_path / "fleet.toml")])
    words = [
        sys.executable,
        "-m",
        "supervisor.cli.main",
        "web",
        str(tmp_path / "fleet.toml"),
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("The page of the fleet fleet: http://127.0.0.1:")
        with urllib.request.urlopen(f"{line.split()[-1]}fleet.json", timeout=30) as answer:
            told = json.load(answer)
        assert [one["run"] for one in told["runs"]] == ["swe-id", "math-id"]
        server.send_signal(signal.SIGTERM)
    done = subprocess.run([*words, "--store", "b2://a", "--run-id", "b"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "leave --store and --run-id out" in done.stderr


# ---------------------------------------------------------------- in a browser


@pytest.mark.soak
@needs_chromium
def test_it_fits_a_phone_and_a_wall_and_hostile_text_stays_text(browser: Any) -> None:  # noqa: F811
    with serve({"swe": Told(seen())}, fleet=ToldFleet(fleet_seen())) as address:
        tab = Tab(browser, address, viewport={"width": 400, "height": 900})
        tab.page.wait_for_selector("#fleet-runs tbody tr")
        assert tab.text("#fleet-sentence").startswith("5 runs: 1 is on a pod")
        assert tab.page.locator("#fleet-runs tbody tr").count() == 5
        assert SCRIPT in tab.text("#fleet-runs") and SCRIPT in tab.text("#fleet-offers")
        assert tab.page.locator("img").count() == 0
        assert tab.page.title() == "fleet fleet"
        assert not tab.page.locator("#run").is_visible()
        for width in (400, 1600):
            tab.page.set_viewport_size({"width": width, "height": 900})
            for scheme in ("light", "dark"):
                tab.page.emulate_media(color_scheme=scheme)
                assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                can_be_read(tab, scheme)
                tab.keep_shot(f"fleet-{width}-{scheme}.png")
        assert [url for url in tab.asked if not url.startswith(address)] == []
        assert tab.wrong == []
        tab.page.close()


@pytest.mark.soak
@needs_chromium
def test_one_click_leads_into_a_run_and_one_back(browser: Any) -> None:  # noqa: F811
    with serve({"swe": Told(seen(), {"trainer": "a line"})}, fleet=ToldFleet(fleet_seen())) as address:
        tab = Tab(browser, address, charts=False)
        tab.page.click("#fleet-runs a >> text=swe")
        tab.page.wait_for_selector("#incidents summary")
        assert tab.text("#name") == "swe"
        assert tab.text("#runs") == "← fleet fleet"
        assert not tab.page.locator("#fleet").is_visible()
        tab.page.click("#runs a")
        tab.page.wait_for_selector("#fleet-runs tbody tr")
        assert tab.page.locator("#fleet-runs a").count() == 4  # one of five left the file
        assert tab.wrong == []
        tab.page.close()
