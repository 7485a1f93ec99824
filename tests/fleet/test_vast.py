"""The client of Vast.ai against a service of our own on loopback; by choice, the vendor's client against it, too.

The vendor's: ``VAST_PYTHON=/path/to/python pytest -m optin tests/fleet/test_vast.py`` (that Python has vastai==1.9.1).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.fleet.places import vast as module
from supervisor.fleet.places.base import Phase, PlaceError, Provider, Want, label_of
from supervisor.fleet.places.vast import Vast
from tests.fleet.conformance import ORDER, SECRET, Clock, ProviderConformance
from tests.fleet.fake_vast import KEY, FakeVast

WANT = Want(gpu="H100 SXM", gpus=2, spot=False, disk_gb=100.0, most_per_hour=6.0)
SPOT = replace(WANT, spot=True)
FAULTS = {"key": "401", "credit": "402", "rate": "429", "server": "500", "silence": "late", "nonsense": "malformed"}
VAST_PYTHON = os.environ.get("VAST_PYTHON", "")


class VastRig:
    """See ``conformance.Rig``."""

    want = WANT
    key = KEY
    other_gpu = "RTX 4090"
    stopped_per_hour = 0.1

    def __init__(self, fake: FakeVast, clock: Clock) -> None:
        self.fake, self.clock = fake, clock
        self.provider = self.with_key(KEY)

    def with_key(self, key: str) -> Vast:
        return Vast(key, self.fake.url, timeout_s=0.8, clock=self.clock, sleep=self.clock.sleep)

    def with_wrong_key(self) -> Provider:
        return self.with_key("revoked-" + KEY)

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2, gpu: str = "") -> str:
        base = per_hour - 0.1
        prices = {"min_bid": base} if spot else {"dph_base": base, "dph_total": per_hour}
        return str(self.fake.add_offer(gpu_name=gpu or WANT.gpu, num_gpus=gpus, storage_total_cost=0.1, **prices))

    def rent_by_hand(self, label: str) -> str:
        offer = self.fake.add_offer(gpu_name="RTX 4090")
        _, answer = self.fake._rent(offer, {"image": "x", "label": label or None}, wins=True)  # type: ignore[misc]
        return str(answer["new_contract"])

    def enter(self, instance_id: str, phase: Phase) -> None:
        words = {"starting": "loading", "running": "running", "stopped": "exited", "unknown": "offline"}
        self.fake.set_state(int(instance_id), words[phase], "stopped" if phase == "stopped" else "running")

    def rented(self) -> list[str]:
        return [rental.label for rental in self.fake.living()]

    def bid_of(self, instance_id: str) -> float | None:
        return next(rental.bid for rental in self.fake.ledger if rental.instance == int(instance_id))

    def print_log(self, instance_id: str, text: str) -> None:
        self.fake.logs[int(instance_id)] = text

    def fail_list(self, how: str) -> None:
        self.fake.fail(FAULTS[how], "list")

    def fail_create(self, how: str) -> None:
        self.fake.fail({**FAULTS, "taken": "410"}.get(how, how), "create")

    def fail_destroy(self, how: str) -> None:
        self.fake.fail(FAULTS.get(how, how), "destroy")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(clock: Clock) -> Iterator[FakeVast]:
    with FakeVast(clock=clock, keeps_gaps=True) as service:
        yield service


@pytest.fixture
def rig(fake: FakeVast, clock: Clock) -> VastRig:
    return VastRig(fake, clock)


@pytest.fixture
def vast(rig: VastRig) -> Vast:
    return rig.provider


class TestConformance(ProviderConformance):
    """Vast's turn."""


def rent(vast: Vast, fake: FakeVast, bid: float | None = None) -> int:
    fake.add_offer()
    offer = vast.find_offers(SPOT if bid else WANT)[0]
    return int(vast.create(offer, replace(ORDER, bid=bid)))


def error_of(call: Any) -> PlaceError:
    with pytest.raises(PlaceError) as caught:
        call()
    return caught.value


# ---------------------------------------------------------------- what is sent


def test_the_search_asks_for_what_the_place_wants(vast: Vast, fake: FakeVast) -> None:
    vast.find_offers(
        replace(SPOT, gpu="H100_SXM", region="SE, NO", least_down_mbit=500, least_up_mbit=100, disk_gb=200)
    )
    ((route, body),) = fake.asked
    assert route == "search"
    assert body == {
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "gpu_name": {"eq": "H100 SXM"},
        "num_gpus": {"eq": 2},
        "disk_space": {"gte": 200},
        "min_bid": {"lte": 6.0},
        "inet_down": {"gte": 500},
        "inet_up": {"gte": 100},
        "geolocation": {"in": ["SE", "NO"]},
        "type": "bid",
        "allocated_storage": 200,
        "order": [["min_bid", "asc"]],
        "limit": 100,
    }


@pytest.mark.parametrize("bid", [None, 2.5])
def test_a_create_has_a_price_only_for_a_bid_and_leaves_nothing_where_there_is_no_machine(
    vast: Vast, fake: FakeVast, bid: float | None
) -> None:
    rent(vast, fake, bid)
    body = dict(fake.asked)["create"]
    assert body.get("price") == bid
    assert ("price" in body) == (bid is not None)
    assert body["cancel_unavail"] is True
    assert (body["label"], body["env"], body["disk"]) == (ORDER.label, ORDER.env, 100.0)


def test_the_key_goes_to_vast_and_never_to_the_server_that_has_the_log(vast: Vast, fake: FakeVast) -> None:
    made = rent(vast, fake)
    fake.logs[made] = "hello"
    (listed,) = vast.list_instances()
    assert vast.read_log(listed) == "hello"
    assert dict(fake.asked)["log"] == {"tail": "300"}
    routes = dict(fake.keys_seen)
    assert routes.pop("page") == ""
    assert set(routes.values()) == {f"Bearer {KEY}"}


def test_a_start_script_that_is_too_long_is_not_sent(vast: Vast, fake: FakeVast) -> None:
    fake.add_offer()
    (offer,) = vast.find_offers(WANT)
    error = error_of(lambda: vast.create(offer, replace(ORDER, onstart="é" * 2001)))
    assert error.kind == "refused"
    assert str(error) == "Vast refused to rent the offer (the start script has 4002 bytes, more than 4000)."
    assert "create" not in dict(fake.asked)


def test_requests_to_one_endpoint_keep_their_documented_gap(vast: Vast, fake: FakeVast, clock: Clock) -> None:
    for _ in range(2):
        vast.list_instances()
    assert clock.naps == [1.0]
    for _ in range(2):
        vast.find_offers(WANT)
    assert clock.naps == [1.0, 6.0]
    clock.now_s += 4.0
    vast.find_offers(WANT)
    assert clock.naps == [1.0, 6.0, 2.0]
    fake.add_offer(), fake.add_offer()
    for number, offer in enumerate(vast.find_offers(SPOT)):
        vast.create(offer, replace(ORDER, bid=2.0, label=label_of("run", number, "abcdef")))
    assert clock.naps[-1] == 4.5
    for one in vast.list_instances():
        vast.raise_bid(one, 3.0)
    assert clock.naps[-1] == 5.5
    for one in vast.list_instances():
        vast.destroy(one)
    assert clock.naps[-1] == 3.0
    assert len(fake.ledger) == 2
    assert not fake.living()


def test_the_gap_is_kept_after_a_failure_too(vast: Vast, fake: FakeVast, clock: Clock) -> None:
    fake.fail("502", "list")
    assert error_of(vast.list_instances).kind == "away"
    vast.list_instances()
    assert clock.naps == [1.0]


# ---------------------------------------------------------------- instances


@pytest.mark.parametrize(
    ("actual", "scheduled", "phase"),
    [
        (None, "running", "starting"),
        ("created", "running", "starting"),
        ("loading", "running", "starting"),
        ("running", "running", "running"),
        (" running ", "running", "running"),
        ("exited", "running", "stopped"),
        ("stopped", "running", "stopped"),
        ("frozen", "running", "stopped"),
        ("running", "stopped", "stopped"),
        (None, "stopped", "stopped"),
        ("offline", "running", "unknown"),
        ("unknown", "running", "unknown"),
        ("rebooting", "running", "unknown"),
        ("a word of next year", "running", "unknown"),
        (7, "running", "unknown"),
        (["running"], "running", "unknown"),
    ],
)
def test_states(vast: Vast, fake: FakeVast, actual: Any, scheduled: str, phase: str) -> None:
    made = rent(vast, fake)
    fake.set_state(made, actual, scheduled)
    assert [one.phase for one in vast.list_instances()] == [phase]


def test_a_state_that_is_missing_is_unknown_where_null_is_a_start(vast: Vast, fake: FakeVast) -> None:
    made = rent(vast, fake)
    del fake.instances[made]["actual_status"]
    assert [one.phase for one in vast.list_instances()] == ["unknown"]


def test_an_outbid_machine_stops_and_comes_back_when_its_bid_is_raised(
    vast: Vast, fake: FakeVast, clock: Clock
) -> None:
    made = rent(vast, fake, 2.0)
    fake.wake(made)
    clock.now_s += 100
    fake.set_lowest_bid(fake.ledger[0].offer, 3.0)
    (listed,) = vast.list_instances()
    assert (listed.phase, listed.says) == ("stopped", "exited")
    clock.now_s += 1000
    vast.raise_bid(listed, 3.5)
    (listed,) = vast.list_instances()
    assert listed.phase == "running"
    fake.set_lowest_bid(fake.ledger[0].offer, 9.0)
    fake.set_lowest_bid(fake.ledger[0].offer, 1.0)  # and it comes back with no word of ours
    assert [one.phase for one in vast.list_instances()] == ["running"]
    clock.now_s += 50
    vast.destroy(listed)
    (rental,) = fake.ledger
    assert rental.until_s == clock.now_s
    assert 150 <= rental.ran_s < 170


def test_all_pages_are_read(vast: Vast, fake: FakeVast, rig: VastRig) -> None:
    fake.page_size = 2
    labels = [label_of("run", number, "abcdef") for number in range(1, 6)]
    for label in labels:
        rig.rent_by_hand(label)
    assert [one.label for one in vast.list_instances()] == labels
    assert [query.get("after_token") for _, query in fake.asked] == [None, "1004", "1008"]


def test_a_second_page_that_fails_is_no_short_list(vast: Vast, fake: FakeVast, rig: VastRig) -> None:
    fake.page_size = 2
    for number in range(1, 4):
        rig.rent_by_hand(label_of("run", number, "abcdef"))
    answer = fake._answer_list

    def answer_first(which: int, query: dict[str, str], body: dict[str, Any]) -> Any:
        fake.fail("500", "list")
        return answer(which, query, body)

    fake._answer_list = answer_first  # type: ignore[method-assign]
    assert error_of(vast.list_instances).kind == "away"


def test_pages_that_do_not_end_are_an_error(vast: Vast, fake: FakeVast) -> None:
    fake._answer_list = lambda *_: (200, {"instances": [], "next_token": "again"})  # type: ignore[method-assign]
    assert str(error_of(vast.list_instances)).endswith("its pages do not end.")
    assert len(fake.asked) == 2


@pytest.mark.parametrize("fault", ["malformed", "html", "array", "empty", "failed", "nulls", "drip", "reset", "502"])
def test_an_answer_without_a_list_is_no_empty_list(vast: Vast, fake: FakeVast, fault: str) -> None:
    rent(vast, fake)
    fake.fail(fault, "list")
    error = error_of(vast.list_instances)
    assert error.kind == "away"
    assert str(error).startswith("Vast did not list the instances: ")
    assert "<" not in str(error)


@pytest.mark.parametrize(
    "rows", [None, {}, "text", [None], [[]], [{"label": "x"}], [{"id": 5}], [{"id": 0, "label": 1}]]
)
def test_rows_that_cannot_be_read_are_an_error(vast: Vast, fake: FakeVast, rows: Any) -> None:
    fake._answer_list = lambda *_: (200, {"instances": rows})  # type: ignore[method-assign]
    assert error_of(vast.list_instances).kind == "away"


@pytest.mark.parametrize(
    ("fields", "per_hour", "gpus"),
    [
        ({}, 4.1, 2),
        ({"dph_total": "2.5", "num_gpus": "8", "id": "1002"}, 2.5, 8),
        ({"dph_total": None, "num_gpus": None, "gpu_name": None, "machine_id": None, "status_msg": None}, None, 0),
        ({"dph_total": -1, "num_gpus": -1, "host_id": -5, "is_bid": "yes"}, None, 0),
        ({"dph_total": float("nan"), "num_gpus": True, "machine_id": {}, "gpu_name": 4}, None, 0),
        ({"dph_total": "free", "num_gpus": [], "status_msg": 8}, None, 0),
    ],
)
def test_an_unknown_price_is_not_zero(
    vast: Vast, fake: FakeVast, fields: dict[str, Any], per_hour: float | None, gpus: int
) -> None:
    made = rent(vast, fake)
    fake.instances[made] |= fields
    (listed,) = vast.list_instances()
    assert (listed.id, listed.gpus, listed.spot) == (str(made), gpus, False)
    assert listed.per_hour == (None if per_hour is None else pytest.approx(per_hour))


def test_what_vast_says_of_a_machine_is_one_short_line(vast: Vast, fake: FakeVast) -> None:
    made = rent(vast, fake)
    fake.instances[made] |= {"actual_status": "created", "status_msg": "Error:\x1b[31m\n\tno such image " + "x" * 500}
    (listed,) = vast.list_instances()
    assert listed.says.startswith("created, Error: [31m no such image xxx")
    assert len(listed.says) < 220
    assert listed.says.isprintable()


# ---------------------------------------------------------------- offers


def test_an_offer_without_a_price_is_left_out(vast: Vast, fake: FakeVast) -> None:
    good = fake.add_offer(dph_total="4.25", inet_down=None, host_id=None)
    rows = [{**fake.offers[good], "dph_total": price} for price in (None, -1, 0, "none", True, [])]
    rows += [{**fake.offers[good], "id": None}, {**fake.offers[good], "num_gpus": 1}, fake.offers[good]]
    rows += [{**fake.offers[good], "id": "77", "dph_total": 4.0}]
    fake._answer_search = lambda *_: (200, {"offers": rows})  # type: ignore[method-assign]
    cheaper, offer = vast.find_offers(WANT)
    assert cheaper.id == "77"
    assert (offer.id, offer.per_hour, offer.down_mbit, offer.host) == (str(good), 4.25, None, "")


@pytest.mark.parametrize(
    ("fields", "price"),
    [
        ({"min_bid": 1.5, "storage_total_cost": 0.25}, 1.75),
        ({"min_bid": 1.5, "storage_total_cost": None, "storage_cost": 0.72}, 1.6),  # 100 GB at $0.72 a month
        ({"min_bid": 1.5, "storage_total_cost": None, "storage_cost": None}, None),
        ({"min_bid": None}, None),
        ({"min_bid": -2, "dph_total": 1.0}, None),
        ({"min_bid": 5.9, "storage_total_cost": 0.25}, None),  # with its disk it costs more than the place allows
    ],
)
def test_a_spot_offer_costs_its_lowest_bid_and_its_disk(
    vast: Vast, fake: FakeVast, fields: dict[str, Any], price: float | None
) -> None:
    offer = fake.add_offer()
    fake._answer_search = lambda *_: (200, {"offers": [fake.offers[offer] | fields]})  # type: ignore[method-assign]
    found = vast.find_offers(SPOT)
    assert [one.per_hour for one in found] == ([] if price is None else [pytest.approx(price)])
    assert [one.per_hour - one.disk_per_hour for one in found] == ([] if price is None else [pytest.approx(1.5)])


# ---------------------------------------------------------------- create


def test_a_bid_that_is_too_low_leaves_no_machine(vast: Vast, fake: FakeVast) -> None:
    error = error_of(lambda: rent(vast, fake, 1.0))
    assert (error.kind, fake.ledger) == ("taken", [])
    assert "HTTP 400, invalid_price" in str(error)


def test_a_machine_that_was_made_and_does_not_start_is_destroyed(vast: Vast, fake: FakeVast) -> None:
    fake.fail("half", "create")
    error = error_of(lambda: rent(vast, fake))
    assert error.kind == "taken"
    assert len(fake.ledger) == 1
    assert fake.living() == []


def test_a_machine_that_does_not_start_and_cannot_be_destroyed_is_told(vast: Vast, fake: FakeVast) -> None:
    fake.fail("half", "create")
    fake.fail("500", "destroy")
    error = error_of(lambda: rent(vast, fake))
    (left,) = fake.living()
    assert error.kind == "unsure"
    assert str(error).startswith(f"Vast did not start instance {left.instance} and may bill its disk. It is unknown if")
    assert [one.label for one in vast.list_instances()] == [ORDER.label]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("401", "key"),
        ("403", "key"),
        ("auth", "key"),
        ("402", "credit"),
        ("404", "taken"),
        ("410", "taken"),
        ("retired", "refused"),
        ("429", "rate"),
        ("500", "unsure"),
        ("502", "unsure"),
        ("reset", "unsure"),
        ("drip", "unsure"),
        ("malformed", "unsure"),
        ("html", "unsure"),
        ("empty", "unsure"),
        ("nulls", "unsure"),
        ("failed", "unsure"),
    ],
)
def test_faults_of_a_create(vast: Vast, fake: FakeVast, fault: str, kind: str) -> None:
    fake.fail(fault, "create")
    error = error_of(lambda: rent(vast, fake))
    assert error.kind == kind
    assert error.retry_after_s == (4.5 if kind == "rate" else 0)


def test_a_refusal_that_repeats_what_was_sent_shows_no_secret_of_the_run(vast: Vast, fake: FakeVast) -> None:
    fake.add_offer()
    (offer,) = vast.find_offers(WANT)
    error = error_of(lambda: vast.create(offer, replace(ORDER, image="")))
    assert error.kind == "refused"
    assert str(error) == "Vast refused to rent the offer (HTTP 400, invalid_args)."
    assert SECRET not in repr(error)


@pytest.mark.parametrize(
    ("status", "word", "kind", "clause"),
    [
        (400, "insufficient_credit", "credit", "HTTP 400, insufficient_credit"),  # what is answered is not documented
        (409, "conflict", "taken", "HTTP 409, conflict"),
        (422, f"env has {SECRET}", "refused", "HTTP 422"),
        (408, "", "unsure", "HTTP 408"),
        (302, "", "unsure", "HTTP 302"),
        (503, "busy", "unsure", "HTTP 503, busy"),
    ],
)
def test_other_answers_to_a_create(
    vast: Vast, fake: FakeVast, *, status: int, word: str, kind: str, clause: str
) -> None:
    fake._answer_create = lambda *_: (status, {"error": word, "msg": SECRET})  # type: ignore[method-assign]
    error = error_of(lambda: rent(vast, fake))
    assert error.kind == kind
    assert clause in str(error)
    assert SECRET not in str(error)


def test_no_server_is_away_also_for_a_create_since_nothing_was_asked(vast: Vast, fake: FakeVast, rig: VastRig) -> None:
    fake.add_offer()
    (offer,) = vast.find_offers(WANT)
    nowhere = Vast(KEY, "http://127.0.0.1:1", timeout_s=0.4, clock=rig.clock, sleep=rig.clock.sleep)
    error = error_of(lambda: nowhere.create(offer, ORDER))
    assert (error.kind, str(error)) == ("away", "Vast did not rent the offer: nothing listens there.")


def test_a_key_that_no_header_can_hold_is_not_shown(fake: FakeVast) -> None:
    error = error_of(Vast("secret\nkey", fake.url).read_credit)
    assert (error.kind, "secret" in str(error)) == ("away", False)
    assert Vast(f" {KEY}\n", fake.url).read_credit() == 25.5  # as it comes from a file


# ---------------------------------------------------------------- bids, destroys, waits


@pytest.mark.parametrize("bid", [0.0001, 64.5, -1.0])
def test_a_bid_outside_of_what_vast_takes_is_refused(vast: Vast, fake: FakeVast, bid: float) -> None:
    rent(vast, fake, 2.0)
    (listed,) = vast.list_instances()
    assert error_of(lambda: vast.raise_bid(listed, bid)).kind == "refused"
    assert fake.ledger[0].bid == 2.0


def test_a_bid_for_a_machine_that_is_gone_is_refused(vast: Vast, fake: FakeVast) -> None:
    rent(vast, fake, 2.0)
    (listed,) = vast.list_instances()
    vast.destroy(listed)
    error = error_of(lambda: vast.raise_bid(listed, 3.0))
    assert str(error) == "Vast refused to change the bid (HTTP 404, no_such_instance, Instance not found)."


@pytest.mark.parametrize("answer", [{}, {"success": None}, {"success": False}, {"success": "yes"}])
def test_a_change_that_does_not_say_that_it_worked_is_unsure(vast: Vast, fake: FakeVast, answer: object) -> None:
    rent(vast, fake, 2.0)
    (listed,) = vast.list_instances()
    fake._answer_destroy = fake._answer_bid = lambda *_: (200, answer)  # type: ignore[method-assign]
    assert error_of(lambda: vast.destroy(listed)).kind == "unsure"
    assert error_of(lambda: vast.raise_bid(listed, 3.0)).kind == "unsure"


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("answer", [{"success": False, "error": "no_such_instance"}, {}, "gone"])
def test_what_is_gone_needs_no_destroy(vast: Vast, fake: FakeVast, status: int, answer: object) -> None:
    rent(vast, fake)
    (listed,) = vast.list_instances()
    fake._answer_destroy = lambda *_: (status, answer)  # type: ignore[method-assign]
    vast.destroy(listed)
    assert [route for route, _ in fake.asked].count("destroy") == 1


@pytest.mark.parametrize(("fault", "kind"), [("auth", "key"), ("retired", "refused")])
def test_a_revoked_key_or_a_retired_endpoint_does_not_mean_that_the_machine_is_gone(
    vast: Vast, fake: FakeVast, fault: str, kind: str
) -> None:
    rent(vast, fake)
    (listed,) = vast.list_instances()
    fake.fail(fault, "destroy")
    assert error_of(lambda: vast.destroy(listed)).kind == kind
    assert len(fake.living()) == 1


@pytest.mark.parametrize(("header", "wait_s"), [("", 5.5), ("17", 17.0), ("soon", 5.5), ("-3", 5.5), ("0", 5.5)])
def test_how_long_to_wait_after_a_429(vast: Vast, fake: FakeVast, header: str, wait_s: float) -> None:
    rent(vast, fake, 2.0)
    (listed,) = vast.list_instances()
    fake.fail("429", "bid", retry_after=header)
    error = error_of(lambda: vast.raise_bid(listed, 3.0))
    assert (error.kind, error.retry_after_s) == ("rate", wait_s)
    assert str(error) == f"Vast was asked too often to change the bid (HTTP 429). Retry in {wait_s:g} s."


def test_a_quota_of_a_day_is_not_asked_again_at_once(vast: Vast, fake: FakeVast) -> None:
    fake.fail("quota", "search")
    error = error_of(lambda: vast.find_offers(WANT))
    assert (error.kind, error.retry_after_s) == ("rate", 3600.0)


# ---------------------------------------------------------------- logs, credit


def test_a_log_that_is_not_there_yet_is_waited_for(vast: Vast, fake: FakeVast, clock: Clock) -> None:
    made = rent(vast, fake)
    (listed,) = vast.list_instances()
    fake.logs[made] = "late, but here"
    fake.fail("404", "page", times=3)
    assert vast.read_log(listed) == "late, but here"
    assert clock.naps[-3:] == [1.0, 1.0, 1.0]


def test_a_log_that_never_comes_ends_with_its_deadline(vast: Vast, fake: FakeVast, clock: Clock) -> None:
    rent(vast, fake)
    (listed,) = vast.list_instances()
    before = clock.now_s
    error = error_of(lambda: vast.read_log(listed))
    assert (error.kind, str(error)) == ("away", "Vast did not fetch the log: it was not there after 20 s.")
    assert clock.now_s - before == module.LOG_WAIT_S


@pytest.mark.parametrize("url", [None, 5, "", "file:///etc/passwd", "/relative", "http://user:word@host/"])
def test_a_log_at_no_usable_address_is_told(vast: Vast, fake: FakeVast, url: Any) -> None:
    rent(vast, fake)
    (listed,) = vast.list_instances()
    fake._answer_log = lambda *_: (200, {"success": True, "result_url": url})  # type: ignore[method-assign]
    assert str(error_of(lambda: vast.read_log(listed))).endswith("it names no page with the log.")


@pytest.mark.parametrize(
    ("said", "credit"), [(12.25, 12.25), ("3.5", 3.5), (-2, -2.0), (None, None), ("", None), (True, None), ({}, None)]
)
def test_credit(vast: Vast, fake: FakeVast, said: object, credit: float | None) -> None:
    fake.credit = said
    assert vast.read_credit() == credit


# ---------------------------------------------------------------- the fake itself


def test_the_fake_refuses_what_is_asked_too_fast_and_without_a_key(fake: FakeVast, clock: Clock) -> None:
    hasty = Vast(KEY, fake.url, clock=clock, sleep=lambda seconds: None)
    hasty.list_instances()
    assert error_of(hasty.list_instances).kind == "rate"
    assert error_of(Vast("", fake.url, clock=clock).list_instances).kind == "key"


@pytest.mark.optin
@pytest.mark.skipif(not VAST_PYTHON, reason="VAST_PYTHON names no interpreter with vastai==1.9.1")
def test_the_vendors_own_client_works_with_the_fake(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VAST_API_KEY": KEY}
    with FakeVast(runs_at_once=True) as fake:

        def vastai(*words: str) -> str:
            done = subprocess.run(
                [str(Path(VAST_PYTHON).with_name("vastai")), *words],
                env=environ | {"VAST_URL": fake.url},
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            return done.stdout

        cheap = fake.add_offer(min_bid=2.0, dph_total=2.1)
        fake.add_offer(min_bid=3.0, dph_total=3.1)
        fake.add_offer(num_gpus=8)
        query = ("gpu_name=H100_SXM num_gpus=2", "--interruptible", "-o", "dph_total")
        found = json.loads(vastai("search", "offers", *query, "--raw"))
        assert [offer["min_bid"] for offer in found] == [2.0, 3.0]
        order = ("--image", "x", "--disk", "50", "--label", ORDER.label, "--bid_price", "2.5")
        made = json.loads(vastai("create", "instance", str(cheap), *order, "--raw"))
        number = str(made["new_contract"])
        assert made["success"] is True
        shown = json.loads(vastai("show", "instances", "--raw"))
        assert [(str(row["id"]), row["label"], row["is_bid"]) for row in shown] == [(number, ORDER.label, True)]
        (listed,) = Vast(KEY, fake.url).list_instances()
        assert (listed.id, listed.label, listed.phase, listed.spot) == (number, ORDER.label, "running", True)
        assert "changed" in vastai("change", "bid", number, "--price", "4")
        assert fake.ledger[0].bid == 4.0
        fake.logs[int(number)] = "a line of the log"
        assert "a line of the log" in vastai("logs", number)
        vastai("destroy", "instance", number, "-y")
        assert fake.living() == []
        for route, body in fake.asked:
            print(route, json.dumps(body))
