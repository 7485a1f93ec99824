"""The client of RunPod against a service of our own on loopback; by choice, the vendor's client against it, too.

The vendor's: ``RUNPOD_PYTHON=/path/to/python pytest -m optin tests/fleet/test_runpod.py`` (it has runpod==1.11.0).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.fleet.assemble import assemble
from supervisor.fleet.controller import Controller, Place, Run, RunLook
from supervisor.fleet.model import Claim, Rules, State, Verdict
from supervisor.fleet.places import runpod as module
from supervisor.fleet.places.base import Offer, Order, Phase, PlaceError, Provider, Want, label_of
from supervisor.fleet.places.runpod import Runpod
from tests.fleet.conformance import ORDER, SECRET, Clock, ProviderConformance, Rig
from tests.fleet.fake_runpod import GPU, KEY, SOLD, FakeRunpod, problem

REGIONS = [f"EU-RO-{number}" for number in range(1, 9)]
WANT = Want(gpu=GPU, gpus=2, spot=False, disk_gb=100.0, most_per_hour=6.0, region=", ".join(REGIONS))
SPOT = replace(WANT, spot=True)
ANYWHERE = replace(WANT, region="")
DISK = 100.0 * 0.1 / 720
FAULTS = {"key": "401", "credit": "402", "rate": "429", "server": "500", "silence": "late", "nonsense": "malformed"}
STATES: dict[Phase, str] = {"starting": "STARTING", "running": "RUNNING", "stopped": "EXITED", "unknown": "ERROR"}
RUNPOD_PYTHON = os.environ.get("RUNPOD_PYTHON", "")


class RunpodRig:
    """See ``conformance.Rig``. One machine in each region; its price is for one GPU."""

    want = WANT
    key = KEY
    other_gpu = "NVIDIA L4"
    stopped_per_hour = 0.0

    def __init__(self, fake: FakeRunpod, clock: Clock) -> None:
        self.fake, self.clock = fake, clock
        self.provider = self.with_key(KEY)

    def with_key(self, key: str) -> Runpod:
        return Runpod(key, self.fake.url, timeout_s=0.8, clock=self.clock, sleep=self.clock.sleep)

    def with_wrong_key(self) -> Provider:
        return self.with_key("revoked-" + KEY)

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2, gpu: str = "") -> str:
        each = (per_hour - DISK) / 2
        prices = (None, each) if spot else (each, None)
        region = REGIONS[len(self.fake.machines) % len(REGIONS)]
        self.fake.add_machine(*prices, gpus, region=region, gpu=gpu or GPU)
        return f"SECURE/{region}/{gpu or GPU}/2/{'spot' if spot else 'on demand'}"

    def rent_by_hand(self, label: str) -> str:
        return self.fake.add_pod(self.fake.add_machine(1.0, gpu="NVIDIA L4"), name=label)

    def enter(self, instance_id: str, phase: Phase) -> None:
        self.fake.set_state(instance_id, STATES[phase])

    def rented(self) -> list[str]:
        return [rental.label for rental in self.fake.living()]

    def bid_of(self, instance_id: str) -> float | None:
        pod = self.fake.pods[instance_id]
        return None if pod["bid"] is None else float(pod["bid"] * pod["count"])

    def print_log(self, instance_id: str, text: str) -> None:
        self.fake.logs[instance_id] = text

    def fail_list(self, how: str) -> None:
        self.fake.fail(FAULTS[how], "list")

    def fail_create(self, how: str) -> None:
        self.fake.fail({**FAULTS, "taken": "400"}.get(how, how), "create")

    def fail_destroy(self, how: str) -> None:
        self.fake.fail(FAULTS.get(how, how), "destroy")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(clock: Clock) -> Iterator[FakeRunpod]:
    with FakeRunpod(clock=clock) as service:
        yield service


@pytest.fixture
def rig(fake: FakeRunpod, clock: Clock) -> RunpodRig:
    return RunpodRig(fake, clock)


@pytest.fixture
def runpod(rig: RunpodRig) -> Runpod:
    return rig.provider


class TestConformance(ProviderConformance):
    """RunPod's turn. A bid is changed only where the pod was outbid."""

    def test_a_bid_is_for_the_whole_machine_and_can_be_raised(self, rig: Rig) -> None:
        rig.add_offer(2.0, spot=True)
        (offer,) = rig.provider.find_offers(replace(rig.want, spot=True))
        assert (offer.spot, offer.per_hour) == (True, pytest.approx(2.0))
        bid = offer.per_hour - offer.disk_per_hour
        made = rig.provider.create(offer, replace(ORDER, bid=bid))
        assert rig.bid_of(made) == pytest.approx(bid)
        (listed,) = rig.provider.list_instances()
        assert listed.spot
        error = self.error_of(rig, lambda: rig.provider.raise_bid(listed, 3.25))
        assert error.kind == "refused"
        assert "Cannot resume a pod that is not in exited state" in str(error)
        rig.enter(made, "stopped")
        rig.provider.raise_bid(listed, 3.25)
        assert rig.bid_of(made) == pytest.approx(3.25)
        assert [one.phase for one in rig.provider.list_instances()] == ["running"]


def rent(runpod: Runpod, fake: FakeRunpod, *, spot: bool = False) -> str:
    """A pod of a machine at $2 for each of its two GPUs, or at a bid of $1.50 with $1 as the lowest."""
    fake.add_machine(2.0, 1.0)
    offer = runpod.find_offers(replace(ANYWHERE, spot=spot))[0]
    return runpod.create(offer, replace(ORDER, bid=3.0 if spot else None))


def sent(fake: FakeRunpod, route: str) -> Any:
    return dict(fake.asked)[route]


def error_of(call: Any) -> PlaceError:
    with pytest.raises(PlaceError) as caught:
        call()
    sentence = str(caught.value)
    assert SECRET not in sentence
    assert KEY not in sentence
    assert "<h" not in sentence
    return caught.value


# ---------------------------------------------------------------- what is sent


@pytest.mark.parametrize("spot", [False, True])
def test_what_is_asked_for_is_what_the_offer_and_the_order_say(runpod: Runpod, fake: FakeRunpod, spot: bool) -> None:
    want = replace(WANT, spot=spot, region="EU-SE-1", disk_gb=99.5, least_down_mbit=500.5, least_up_mbit=100)
    fake.add_machine(2.0, 1.0, region="EU-SE-1")
    (offer,) = runpod.find_offers(want)
    made = runpod.create(offer, replace(ORDER, disk_gb=99.5, bid=3.0 if spot else None))
    body = sent(fake, "rent" if spot else "create")
    command = body.pop("dockerArgs" if spot else "args")
    assert body == (
        {
            "name": ORDER.label,
            "imageName": ORDER.image,
            "gpuTypeId": GPU,
            "gpuCount": 2,
            "bidPerGpu": 1.5,  # ours is for the whole machine
            "cloudType": "SECURE",
            "dataCenterId": "EU-SE-1",
            "containerDiskInGb": 100,
            "volumeInGb": 0,
            "minDownload": 501,
            "minUpload": 100,
            "env": [{"key": "HF_TOKEN", "value": SECRET}, {"key": "RUN", "value": "sober-otter"}],
        }
        if spot
        else {
            "name": ORDER.label,
            "image": ORDER.image,
            "gpu": {"id": GPU, "count": 2},
            "cloud": "SECURE",
            "dataCenterIds": ["EU-SE-1"],
            "disk": 100,
            "env": ORDER.env,
        }
    )
    assert fake.pods[made]["args"] == command
    assert fake.pods[made]["env"] == ORDER.env
    assert fake.keys_seen == {f"Bearer {KEY}"}


@pytest.mark.parametrize("spot", [False, True])
def test_the_start_script_runs_as_process_1_whatever_is_in_it(
    runpod: Runpod, fake: FakeRunpod, *, spot: bool, tmp_path: Path
) -> None:
    script = '#!/bin/bash\n# it\'s "ours": $HOME `x`\nprintf \'%s,\' $$ "$@"\n' + "# é\n" * 3000
    fake.add_machine(2.0, 1.0)
    (offer,) = runpod.find_offers(replace(ANYWHERE, spot=spot))
    runpod.create(offer, replace(ORDER, onstart=script, bid=3.0 if spot else None))
    command = shlex.split(sent(fake, "rent" if spot else "create")["dockerArgs" if spot else "args"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    said, _ = process.communicate(timeout=20)
    assert said == f"{process.pid},--,sleep,infinity,"


def test_a_name_that_might_be_cut_is_not_asked_for(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.add_machine(2.0)
    (offer,) = runpod.find_offers(ANYWHERE)
    label = label_of("a" * 43, 1, "abcdef")
    error = error_of(lambda: runpod.create(offer, replace(ORDER, label=label)))
    assert error.kind == "refused"
    assert "is longer than 60 characters: take a shorter id for the run" in str(error)
    assert not fake.ledger
    runpod.create(offer, replace(ORDER, label=label_of("a" * 42, 1, "abcdef")))


def test_requests_to_one_endpoint_have_a_second_between_them(runpod: Runpod, fake: FakeRunpod, clock: Clock) -> None:
    fake.quota = 60
    for _ in range(50):
        runpod.list_instances()
    assert clock.naps == [1.0] * 49


# ---------------------------------------------------------------- offers


@pytest.mark.parametrize(
    ("region", "found"),
    [
        ("", ["COMMUNITY/", "SECURE/"]),
        ("secure", ["SECURE/"]),
        ("Community", ["COMMUNITY/"]),
        ("EU-SE-1", ["SECURE/EU-SE-1"]),
        ("US-KS-2 , EU-SE-1,COMMUNITY", ["COMMUNITY/", "SECURE/US-KS-2", "SECURE/EU-SE-1"]),
        ("US-TX-3", []),
    ],
)
def test_a_region_is_a_cloud_or_a_data_center(runpod: Runpod, fake: FakeRunpod, region: str, found: list[str]) -> None:
    fake.add_machine(2.1, region="EU-SE-1")
    fake.add_machine(2.0, region="US-KS-2")
    fake.add_machine(1.5, region="SE", cloud="COMMUNITY")
    offers = runpod.find_offers(replace(WANT, region=region))
    assert ["/".join(one.id.split("/")[:2]) for one in offers] == found
    assert all(one.machine == one.id for one in offers)
    for offer in offers:
        made = fake.pods[runpod.create(offer, ORDER)]["machine"]
        assert offer.id.startswith(f"{made.cloud}/")
        assert offer.id.split("/")[1] in ("", made.region)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("spot", [True, False])
def test_a_price_is_right_if_the_live_one_is_for_one_gpu_or_for_all(
    runpod: Runpod, fake: FakeRunpod, *, whole: bool, spot: bool
) -> None:
    fake.whole_price = whole
    fake.add_machine(1.8, 0.9, region="EU-SE-1")
    fake.add_machine(2.2, 1.1, region="US-KS-2")
    (offer,) = runpod.find_offers(replace(WANT, spot=spot, region="US-KS-2"))
    assert offer.per_hour == pytest.approx((2.2 if spot else 4.4) + DISK)
    assert offer.per_hour - offer.disk_per_hour == pytest.approx(2.2 if spot else 4.4)


@pytest.mark.parametrize(
    ("fields", "price"),
    [
        ({}, 2.0),
        ({"stockStatus": None}, None),
        ({"stockStatus": "None"}, None),
        ({"stockStatus": 3}, None),
        ({"stockStatus": "A word of next year"}, 2.0),
        ({"minimumBidPrice": None}, 2.0),  # the list price
        ({"minimumBidPrice": -3}, 2.0),
        ({"minimumBidPrice": 0}, 2.0),
        ({"minimumBidPrice": "2.5"}, 2.5),
        ({"secureSpotPrice": None, "minimumBidPrice": 1.25}, 2.5),  # for one GPU, as far as is known
        ({"secureSpotPrice": 0, "minimumBidPrice": None}, None),
        ({"id": "NVIDIA H100 NVL"}, None),
    ],
)
def test_an_offer_without_a_price_or_a_machine_is_left_out(
    runpod: Runpod, fake: FakeRunpod, fields: dict[str, Any], price: float | None
) -> None:
    row: dict[str, Any] = {"id": GPU, "securePrice": 3.0, "secureSpotPrice": 1.0}
    live = {"stockStatus": "High", "minimumBidPrice": 2.0, "uninterruptablePrice": 6.0}
    row["lowestPrice"] = lambda given: {name: fields.get(name, value) for name, value in live.items()}
    fake._do_gpuTypes = lambda given: [row | {k: v for k, v in fields.items() if k in row}]  # type: ignore[method-assign]
    found = runpod.find_offers(replace(SPOT, region="secure"))
    assert [one.per_hour - one.disk_per_hour for one in found] == ([] if price is None else [pytest.approx(price)])


def test_a_slow_link_is_no_offer_for_a_spot_pod(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.add_machine(2.0, 1.0, region="EU-SE-1", down=400.0)
    fast = fake.add_machine(2.0, 1.2, region="US-KS-2")
    want = replace(ANYWHERE, spot=True, least_down_mbit=500)
    (offer,) = runpod.find_offers(want)
    assert (offer.down_mbit, offer.up_mbit) == (500, None)
    made = runpod.create(offer, replace(ORDER, bid=offer.per_hour - offer.disk_per_hour))
    assert fake.pods[made]["machine"] is fast


@pytest.mark.parametrize(
    "fault", ["malformed", "html", "array", "empty", "null", "anonymous", "internal", "502", "reset"]
)
def test_a_search_that_failed_is_no_empty_market(runpod: Runpod, fake: FakeRunpod, fault: str) -> None:
    fake.add_machine(2.0)
    fake.fail(fault, "search")
    assert error_of(lambda: runpod.find_offers(ANYWHERE)).kind == "away"


# ---------------------------------------------------------------- pods


@pytest.mark.parametrize(
    ("actual", "wanted", "phase", "says"),
    [
        ("PROVISIONING", "RUNNING", "starting", "PROVISIONING, to be RUNNING"),
        ("STARTING", "RUNNING", "starting", "STARTING, to be RUNNING"),
        ("RUNNING", "RUNNING", "running", "RUNNING"),
        ("EXITED", "EXITED", "stopped", "EXITED"),
        ("EXITED", "RUNNING", "unknown", "EXITED, to be RUNNING"),  # a container that is started again
        ("RUNNING", "EXITED", "unknown", "RUNNING, to be EXITED"),
        ("ERROR", "RUNNING", "unknown", "ERROR, to be RUNNING"),
        ("ERROR", "EXITED", "unknown", "ERROR, to be EXITED"),
        ("EXITED", "DEAD", "unknown", "EXITED, to be DEAD"),
        ("A word of next year", "RUNNING", "unknown", "A word of next year, to be RUNNING"),
        (None, "RUNNING", "unknown", "RUNNING"),
        (7, "EXITED", "unknown", "EXITED"),
        ("TERMINATED", "EXITED", "stopped", "EXITED"),
        ("EXITED", "TERMINATED", "stopped", "EXITED"),
    ],
)
def test_states(runpod: Runpod, fake: FakeRunpod, *, actual: Any, wanted: str, phase: str, says: str) -> None:
    fake.set_state(rent(runpod, fake), actual, wanted)
    (listed,) = runpod.list_instances()
    assert (listed.phase, listed.says) == (phase, says)


@pytest.mark.parametrize(
    ("status", "desired", "phase"),
    [
        ("PROVISIONING", "CREATED", "starting"),
        ("STARTING", "RUNNING", "starting"),
        ("RUNNING", "RUNNING", "running"),
        ("EXITED", "EXITED", "stopped"),
        ("RUNNING", "RESTARTING", "unknown"),
        ("RUNNING", "PAUSED", "unknown"),
        ("EXITED", "DEAD", "unknown"),
    ],
)
def test_a_pod_that_one_list_lacks_is_known_by_the_other(
    runpod: Runpod, fake: FakeRunpod, *, status: str, desired: str, phase: str
) -> None:
    """It is not documented that v2 lists spot pods."""
    made = rent(runpod, fake, spot=True)
    fake.set_state(made, status, desired)
    fake.hidden = {("list", made)}
    (listed,) = runpod.list_instances()
    assert (listed.id, listed.label, listed.phase, listed.spot) == (made, ORDER.label, phase, True)
    assert (listed.gpu, listed.gpus, listed.machine) == ("H100 80GB HBM3", 2, "m1")
    fake.hidden = {("pods", made)}
    (listed,) = runpod.list_instances()
    assert (listed.id, listed.label, listed.spot, listed.gpu) == (made, ORDER.label, False, GPU)
    runpod.destroy(listed)  # over v2, since it is unknown to be spot
    assert not fake.living()


def test_a_pod_that_is_over_in_both_lists_is_gone(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.set_state(rent(runpod, fake), "TERMINATED")
    assert runpod.list_instances() == []


@pytest.mark.parametrize("at", ["list", "pods"])
@pytest.mark.parametrize(
    "fault", ["malformed", "html", "array", "empty", "nulls", "drip", "reset", "lost", "502", "null"]
)
def test_a_list_that_failed_is_never_a_short_one(runpod: Runpod, fake: FakeRunpod, at: str, fault: str) -> None:
    rent(runpod, fake, spot=True)
    fake.fail(fault, at)
    error = error_of(runpod.list_instances)
    assert error.kind == "away"
    assert str(error).startswith("RunPod did not list the pods")
    assert len(runpod.list_instances()) == 1


@pytest.mark.parametrize(
    ("fault", "kind", "clause"),
    [
        ("anonymous", "away", "it holds no list of pods"),  # what a query without a session once answered
        ("partial", "away", "HTTP 200: a resolver failed"),
        ("internal", "away", "HTTP 200, INTERNAL_SERVER_ERROR: Something went wrong."),
        ("no session", "key", "HTTP 200, UNAUTHENTICATED: Context creation failed"),
        ("hasty", "rate", "Retry in 60 s"),
        ("unknown", "refused", "HTTP 200, RUNPOD: A sentence of next year"),
        ("no code", "away", "HTTP 200: A sentence of next year"),
        ("410", "refused", "HTTP 410"),  # GraphQL has ended
        ("404 page", "refused", "HTTP 404"),
        ("403", "key", "HTTP 403"),
    ],
)
def test_errors_of_graphql(runpod: Runpod, fake: FakeRunpod, fault: str, kind: str, clause: str) -> None:
    rent(runpod, fake, spot=True)
    fake.fail(fault, "pods")
    error = error_of(runpod.list_instances)
    assert error.kind == kind
    assert clause in str(error)


@pytest.mark.parametrize(
    "rows", [None, {}, "text", [None], [[]], [{"name": "x"}], [{"id": "a"}], [{"id": 5, "name": "x"}]]
)
def test_pods_that_cannot_be_read_are_an_error(runpod: Runpod, fake: FakeRunpod, rows: Any) -> None:
    fake._answer_list = lambda *_: (200, {"pods": rows})  # type: ignore[method-assign]
    assert error_of(runpod.list_instances).kind == "away"


@pytest.mark.parametrize(
    ("cost", "wanted_cost", "per_hour"),
    [(4.1, 4.0, 4.1), (None, 4.0, 4.0), (0.0, "4.5", 4.5), (0.0, 0, None), (-1, None, None), (True, "free", None)],
)
def test_an_unknown_price_is_not_zero(
    runpod: Runpod, fake: FakeRunpod, cost: Any, wanted_cost: Any, per_hour: float | None
) -> None:
    rent(runpod, fake)
    show, describe = fake._show, fake._describe
    fake._show = lambda pod: show(pod) | {"cost": cost}  # type: ignore[method-assign]
    fake._describe = lambda pod: describe(pod) | {"costPerHr": wanted_cost}  # type: ignore[method-assign]
    (listed,) = runpod.list_instances()
    assert listed.per_hour == per_hour


# ---------------------------------------------------------------- create


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("401", "key"),
        ("403", "refused"),  # by its documents, of one cloud
        ("402", "credit"),
        ("400", "taken"),
        ("404", "refused"),
        ("409", "taken"),
        ("410", "refused"),
        ("422", "refused"),
        ("429", "rate"),
        ("500", "unsure"),
        ("502", "unsure"),
        ("reset", "unsure"),
        ("lost", "unsure"),
        ("drip", "unsure"),
        ("malformed", "unsure"),
        ("html", "unsure"),
        ("empty", "unsure"),
        ("nulls", "unsure"),
    ],
)
@pytest.mark.parametrize("spot", [False, True])
def test_faults_of_a_create(runpod: Runpod, fake: FakeRunpod, *, fault: str, kind: str, spot: bool) -> None:
    fake.fail(fault, "rent" if spot else "create")
    error = error_of(lambda: rent(runpod, fake, spot=spot))
    assert error.kind == ("refused" if spot and fault == "400" else kind)  # of GraphQL it is no answer of the market
    assert error.retry_after_s == (60.0 if kind == "rate" else 0)
    assert len(runpod.list_instances()) == len(fake.living()) == (fault in ("lost", "drip", "nulls"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("sold", "taken"),
        ("low bid", "taken"),
        ("poor", "credit"),
        ("unknown", "refused"),
        ("internal", "unsure"),
        ("no code", "unsure"),
        ("no session", "key"),
        ("hasty", "rate"),
        ("null", "unsure"),
    ],
)
def test_errors_with_http_200_of_a_create(runpod: Runpod, fake: FakeRunpod, fault: str, kind: str) -> None:
    fake.fail(fault, "rent")
    assert error_of(lambda: rent(runpod, fake, spot=True)).kind == kind
    assert not fake.ledger


@pytest.mark.parametrize(("detail", "kind"), [("a rule of next year", "taken"), ("Balance too low", "credit")])
def test_a_create_that_breaks_a_rule_looks_as_one_without_a_machine(
    runpod: Runpod, fake: FakeRunpod, detail: str, kind: str
) -> None:
    fake._answer_create = lambda *_: problem(400, "Bad Request", f"{detail} {SECRET}")  # type: ignore[method-assign]
    assert error_of(lambda: rent(runpod, fake)).kind == kind


def test_what_is_said_of_a_create(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.fail("400", "create")
    assert str(error_of(lambda: rent(runpod, fake))) == (
        "RunPod did not rent the offer: it is gone (HTTP 400: no machine is free, or the request breaks a rule)."
    )
    fake.fail("low bid", "rent")
    assert str(error_of(lambda: rent(runpod, fake, spot=True))) == (
        "RunPod did not rent the offer: it is gone (HTTP 200, RUNPOD)."
    )
    fake.fail("429", "create", retry_after="17")
    assert str(error_of(lambda: rent(runpod, fake))) == (
        "RunPod was asked too often to rent the offer (HTTP 429). Retry in 17 s."
    )


@pytest.mark.parametrize("spot", [False, True])
def test_a_refusal_that_repeats_what_was_sent_shows_no_secret(runpod: Runpod, fake: FakeRunpod, spot: bool) -> None:
    fake.add_machine(2.0, 1.0)
    (offer,) = runpod.find_offers(replace(ANYWHERE, spot=spot))
    fake._do_podRentInterruptable = lambda given: {}[str(given)]  # type: ignore[method-assign]
    order = replace(ORDER, image="", bid=3.0 if spot else None)
    error = error_of(lambda: runpod.create(offer, order))
    assert SECRET not in repr(error)
    assert error.kind == ("unsure" if spot else "refused")


def test_an_offer_of_a_moved_market_is_taken_and_leaves_nothing(runpod: Runpod, fake: FakeRunpod) -> None:
    machine = fake.add_machine(2.0, 1.0)
    (offer,) = runpod.find_offers(replace(ANYWHERE, spot=True))
    machine.bid = 5.0
    assert error_of(lambda: runpod.create(offer, replace(ORDER, bid=3.0))).kind == "taken"
    assert not fake.ledger


def test_no_server_is_away_also_for_a_create_since_nothing_was_asked(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.add_machine(2.0)
    (offer,) = runpod.find_offers(ANYWHERE)
    error = error_of(lambda: Runpod(KEY, "http://127.0.0.1:1", timeout_s=0.4).create(offer, ORDER))
    assert (error.kind, str(error)) == ("away", "RunPod did not rent the offer: nothing listens there.")


# ---------------------------------------------------------------- bids, destroys


def test_an_outbid_pod_stops_and_may_come_back(runpod: Runpod, fake: FakeRunpod) -> None:
    made = rent(runpod, fake, spot=True)
    fake.set_state(made, "RUNNING")
    machine = fake.pods[made]["machine"]
    fake.set_lowest_bid(machine, 1.6)
    (listed,) = runpod.list_instances()
    assert (listed.phase, listed.spot, listed.per_hour) == ("stopped", True, pytest.approx(3.0 + DISK))
    error = error_of(lambda: runpod.raise_bid(listed, 3.1))
    assert (error.kind, str(error)) == (
        "refused",
        "RunPod refused to change the bid (HTTP 200, RUNPOD: You have been outbid.).",
    )
    runpod.raise_bid(listed, 3.5)
    (listed,) = runpod.list_instances()
    assert (listed.phase, fake.pods[made]["bid"]) == ("running", 1.75)
    fake.wakes = True
    fake.set_lowest_bid(machine, 9.0)
    fake.set_lowest_bid(machine, 1.0)  # and it comes back with no word of ours
    assert [one.phase for one in runpod.list_instances()] == ["running"]


def test_a_bid_for_an_unknown_number_of_gpus_is_not_sent(runpod: Runpod, fake: FakeRunpod) -> None:
    rent(runpod, fake, spot=True)
    (listed,) = runpod.list_instances()
    error = error_of(lambda: runpod.raise_bid(replace(listed, gpus=0), 3.0))
    assert error.kind == "refused"
    assert "bid" not in dict(fake.asked)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("401", "key"),
        ("403", "key"),
        ("404 page", "refused"),  # a retired path: it says nothing of the pod
        ("409", "refused"),
        ("410", "refused"),
        ("429", "rate"),
        ("500", "unsure"),
        ("reset", "unsure"),
    ],
)
@pytest.mark.parametrize("spot", [False, True])
def test_faults_of_a_destroy(runpod: Runpod, fake: FakeRunpod, *, fault: str, kind: str, spot: bool) -> None:
    rent(runpod, fake, spot=spot)
    (listed,) = runpod.list_instances()
    fake.fail(fault, "terminate" if spot else "destroy")
    assert error_of(lambda: runpod.destroy(listed)).kind == kind
    assert len(fake.living()) == 1


@pytest.mark.parametrize(
    ("fault", "kind"), [("internal", "unsure"), ("unknown", "refused"), ("null", "unsure"), ("empty", "unsure")]
)
def test_a_destroy_that_does_not_say_that_it_worked(runpod: Runpod, fake: FakeRunpod, fault: str, kind: str) -> None:
    rent(runpod, fake, spot=True)
    (listed,) = runpod.list_instances()
    fake.fail(fault, "terminate")
    assert error_of(lambda: runpod.destroy(listed)).kind == kind
    assert len(fake.living()) == 1
    runpod.destroy(listed)
    runpod.destroy(listed)  # "pod not found to terminate"
    assert not fake.living()


def test_an_id_is_one_part_of_a_path_whatever_is_in_it(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.pods["a/b c"] = fake.pods.pop(rent(runpod, fake)) | {"id": "a/b c"}
    fake.ledger[0].pod = "a/b c"
    (listed,) = runpod.list_instances()
    runpod.destroy(listed)
    assert not fake.living()


# ---------------------------------------------------------------- logs, credit


def test_a_log_that_does_not_end_is_read_as_far_as_it_came(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.logs[rent(runpod, fake)] = "é one\nline: two\n"
    (listed,) = runpod.list_instances()
    assert runpod.read_log(listed) == "é one\nline: two\n"
    assert sent(fake, "log") == {"tail": "300"}


def test_no_log_and_lines_that_cannot_be_read(runpod: Runpod, fake: FakeRunpod) -> None:
    made = rent(runpod, fake)
    (listed,) = runpod.list_instances()
    assert runpod.read_log(listed) == ""
    events = ["data: {", "data: [1]", 'data: {"line": 7}', "", ": a comment", 'data:{"line": "good \u2028 line"}\r']
    fake._answer_log = lambda *_: (200, [f"{event}\n" for event in events])  # type: ignore[method-assign]
    assert runpod.read_log(listed) == "good \u2028 line\n"
    fake.fail("500", "log")
    assert error_of(lambda: runpod.read_log(listed)).kind == "away"
    fake.fail("reset", "log")
    assert error_of(lambda: runpod.read_log(listed)).kind == "away"
    fake._end(made)
    assert runpod.read_log(listed) == ""


@pytest.mark.parametrize(
    ("said", "credit"), [(12.25, 12.25), ("3.5", 3.5), (-2, -2.0), (None, None), ("", None), (True, None), ({}, None)]
)
def test_credit(runpod: Runpod, fake: FakeRunpod, said: object, credit: float | None) -> None:
    fake.credit = said
    assert runpod.read_credit() == credit


def test_the_quota_of_v2_is_told_with_its_wait(runpod: Runpod, fake: FakeRunpod) -> None:
    fake.quota = 0
    error = error_of(runpod.list_instances)
    assert (error.kind, error.retry_after_s) == ("rate", 12.0)


# ---------------------------------------------------------------- the fake itself


@pytest.mark.parametrize(
    "query",
    [
        "query { myself { pods { id colour } } }",
        "query { myself { pods } }",
        "query { myself { pods { id { x } } } }",
        "query ($a: GpuTypeFilter) { gpuTypes(input: $b) { id } }",
        'mutation { podTerminate(input: {id: "x"}) }',
        "query { myself { pods { id } }",
        "query { myself { pods { id } } } }",
        "query { myself; }",
    ],
)
def test_the_fake_refuses_a_query_that_is_not_sound(runpod: Runpod, fake: FakeRunpod, query: str) -> None:
    error = error_of(lambda: runpod._query(module.CREDIT, query, "myself"))
    assert error.kind == "refused"
    assert "HTTP 400, GRAPHQL_VALIDATION_FAILED" in str(error)


def test_the_fake_refuses_a_field_that_v2_does_not_have(runpod: Runpod) -> None:
    error = error_of(lambda: runpod._ask(module.CREATE, "POST", "/v2/pods", {"name": "a", "image": "b", "gpuCount": 2}))
    assert error.kind == "refused"


# ---------------------------------------------------------------- with the controller


@dataclass
class Fleet:
    """The real controller over the fake, and a run whose claim the test writes as pods would."""

    runpod: Runpod
    fake: FakeRunpod
    clock: Clock
    claim: Claim = field(default_factory=Claim)
    published: int | None = None
    state: State = field(default_factory=State)

    def __post_init__(self) -> None:
        run = Run(Rules("sober-otter", {"spot": "runpod"}), lambda: RunLook(self.claim, self.published), self.order)
        place = Place("spot", self.runpod, replace(ANYWHERE, spot=True))
        self.controller = Controller({"sober-otter": run}, {"spot": place}, self, sleep=self.clock.sleep)

    def order(self, place: Place, offer: Offer, label: str, convicted: str) -> Order:
        return replace(ORDER, label=label, env={**ORDER.env, "CONVICTED": convicted})

    def list_runs(self) -> list[str]:
        return []

    def read_state(self, run_id: str) -> State:
        return self.state

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        self.state = state

    def read_clock(self) -> float:
        return self.clock()

    def tick(self) -> str:
        self.clock.sleep(30)
        (told,) = self.controller.tick()
        return f"{told.decision.sentence} | {' '.join(told.did)} | {told.failed}"

    def hold(self, label: str, generation: int, **more: Any) -> None:
        """The pod runs and holds the run, with a beat just now."""
        (pod,) = [pod for pod in self.fake.pods.values() if pod["name"] == label]
        self.fake.set_state(pod["id"], "RUNNING")
        self.claim = Claim(generation, f"mark{self.clock()}", self.clock(), label=label, **more)


@pytest.fixture
def fleet(runpod: Runpod, fake: FakeRunpod, clock: Clock) -> Fleet:
    return Fleet(runpod, fake, clock)


@pytest.mark.parametrize("wakes", [False, True])
def test_an_outbid_pod_is_followed_by_the_next_and_destroyed(fleet: Fleet, fake: FakeRunpod, *, wakes: bool) -> None:
    fake.wakes = wakes
    near = fake.add_machine(2.0, 1.0, region="EU-SE-1")
    far = fake.add_machine(2.0, 1.2, region="US-KS-2")
    assert f"Renting 2 x {GPU} in spot at $2.41 an hour: the run has not begun. It is instance" in fleet.tick()
    (first,) = fake.living()
    assert (fake.pods[first.pod]["machine"], fake.pods[first.pod]["bid"]) == (near, pytest.approx(1.2))
    assert "starts since 32 s: PROVISIONING, to be RUNNING" in fleet.tick()
    fleet.hold(first.label, 1, step=10, unpublished=(10,))
    assert fleet.tick().startswith(f"Pod {first.pod} (runpod) trains at step 10.")

    near.free = 0  # whoever bid more has the GPUs
    fake.set_lowest_bid(near, 1.5)
    fleet.clock.sleep(200)
    fake.fail("502", "list")  # and RunPod is away at that moment
    assert "It is convicted after" in fleet.tick()
    assert len(fake.ledger) == 1
    said = fleet.tick()
    assert f"Renting 2 x {GPU} in spot at $2.89 an hour: no beat for" in said
    (kept, second) = fake.living()
    assert (kept.pod, fake.pods[second.pod]["machine"]) == (first.pod, far)
    assert second.env["CONVICTED"] == f"1:{fleet.claim.mark}"

    fake.set_lowest_bid(near, 1.0)  # the old one may come back now, and the claim keeps it from writing
    fleet.hold(second.label, 2, step=9, unpublished=())
    fleet.published = 8
    assert f"Pod {first.pod} is kept, and billed: step 10 may be nowhere else." in fleet.tick()
    fleet.published = 12
    fleet.hold(second.label, 2, step=14, unpublished=(13,))
    fake.fail("lost", "terminate")  # it is done, and not answered
    assert "It is unknown if RunPod did destroy the pod" in fleet.tick()
    fleet.tick()
    fleet.clock.sleep(40)
    assert fleet.tick().startswith(f"Pod {second.pod} (runpod) trains at step 14. |")
    assert [rental.pod for rental in fake.living()] == [second.pod]
    assert len(fake.ledger) == 2


def test_a_lost_answer_while_one_list_is_away_ends_with_one_pod(fleet: Fleet, fake: FakeRunpod) -> None:
    fake.add_machine(2.0, 1.0)
    fake.add_machine(2.0, 1.1)
    fake.fail("lost", "rent")
    assert "It is unknown if RunPod did rent the offer" in fleet.tick()
    fake.fail("internal", "pods", times=3)
    for _ in range(3):
        assert "may start; runpod does not answer" in fleet.tick()
    (made,) = fake.living()
    assert f"Pod {made.pod} (runpod) starts" in fleet.tick()
    assert len(fake.ledger) == 1


def test_a_bid_that_the_market_has_left_behind_is_left_out_for_ten_minutes(fleet: Fleet, fake: FakeRunpod) -> None:
    machine = fake.add_machine(2.0, 1.0)
    rents = fake._do_podRentInterruptable

    def move_the_market(given: dict[str, Any]) -> Any:
        machine.bid = 2.0
        return rents(given)

    fake._do_podRentInterruptable = move_the_market  # type: ignore[method-assign]
    assert "RunPod did not rent the offer: it is gone" in fleet.tick()
    asked = len([route for route, _ in fake.asked if route == "rent"])
    assert "nothing fits in spot" in fleet.tick()
    fleet.clock.sleep(600)
    assert "It is instance" in fleet.tick()
    assert (asked, len(fake.ledger)) == (1, 1)


# ---------------------------------------------------------------- fleet.toml

FLEET = """
[fleet]
store = "file:///{folder}/store"
[limits]
per_hour = 8
total = 400
[place.spot]
provider = "runpod"
gpu = "NVIDIA H100 80GB HBM3"
gpus = 2
most_per_hour = 6.0
image = "ghcr.io/me/prime-rl:1"
{more}
[run.swe]
file = "swe.toml"
places = ["spot"]
"""


def write_fleet(folder: Path, more: str = "") -> Path:
    job = "kind = 'command'\ndir = '/'\n[job.plain]\nstart = ['a']\nresume = ['a', '{checkpoint}']\nmarkers = ['m']"
    (folder / "swe.toml").write_text(f"[run]\nid = 'swe'\n[job]\n{job}\n[store]\nurl = 'file:///tmp/none'\n")
    (folder / "fleet.toml").write_text(FLEET.format(folder=folder, more=more))
    return folder / "fleet.toml"


def test_the_key_and_the_address_are_taken_from_the_environment(tmp_path: Path, fake: FakeRunpod) -> None:
    path = write_fleet(tmp_path)
    with pytest.raises(ConfigError, match="RUNPOD_API_KEY is not set"):
        assemble(path, {}).places()
    place = assemble(path, {"RUNPOD_API_KEY": KEY, "RUNPOD_API_BASE_URL": fake.url}).places()["spot"]
    assert (place.provider.name, place.provider.read_credit(), place.want.spot) == ("runpod", 25.5, True)


def test_a_link_can_be_asked_for_with_spot_pods_alone(tmp_path: Path) -> None:
    assemble(write_fleet(tmp_path, "least_down_mbit = 500"), {})
    with pytest.raises(ConfigError, match="RunPod takes these for spot pods only"):
        assemble(write_fleet(tmp_path, "least_down_mbit = 500\nspot = false"), {})


# ---------------------------------------------------------------- the vendor's client

VENDOR = """
import json, runpod
from runpod.error import AuthenticationError, QueryError
gpu, runpod.api_key = "NVIDIA H100 80GB HBM3", KEY
print(json.dumps([one["id"] for one in runpod.get_gpus()]))
print(json.dumps(runpod.get_gpu(gpu, 2)["lowestPrice"]))
made = runpod.create_pod(LABEL, "image:1", gpu, cloud_type="SECURE", gpu_count=2, docker_args="sleep 1", env={"A": "b"})
print(json.dumps([made["id"], made["env"]]))
print(json.dumps([(one["id"], one["name"], one["podType"], one["desiredStatus"]) for one in runpod.get_pods()]))
print(json.dumps(runpod.get_pod(SPOT)["podType"]))
try:
    runpod.create_pod(LABEL, "image:1", gpu, gpu_count=8)
except QueryError as error:
    print(json.dumps(str(error)))
print(json.dumps(runpod.stop_pod(made["id"])))
runpod.terminate_pod(made["id"])
runpod.terminate_pod(SPOT)
runpod.api_key = "wrong"
try:
    runpod.get_pods()
except AuthenticationError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.optin
@pytest.mark.skipif(not RUNPOD_PYTHON, reason="RUNPOD_PYTHON names no interpreter with runpod==1.11.0")
def test_the_vendors_own_client_works_with_the_fake(tmp_path: Path) -> None:
    """It cannot rent spot pods, so ours does."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with FakeRunpod(runs_at_once=True) as fake:
        runpod = Runpod(KEY, fake.url)
        spot = rent(runpod, fake, spot=True)
        fake.add_machine(2.0)
        script = f"LABEL, SPOT, KEY = {ORDER.label!r}, {spot!r}, {KEY!r}\n{VENDOR}"
        done = subprocess.run(
            [RUNPOD_PYTHON, "-c", script],
            env=environ | {"RUNPOD_API_BASE_URL": fake.url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        gpus, live, (made, env), pods, kind, sold, stopped, wrong = map(json.loads, done.stdout.splitlines())
        assert GPU in gpus
        assert live == {"minimumBidPrice": None, "uninterruptablePrice": 4.0}
        assert env == ["A=b"]
        assert sorted(pods) == sorted(
            [[spot, ORDER.label, "INTERRUPTABLE", "RUNNING"], [made, ORDER.label, "RESERVED", "RUNNING"]]
        )
        assert (kind, sold) == ("INTERRUPTABLE", SOLD)
        assert stopped == {"id": made, "desiredStatus": "EXITED"}
        assert wrong.startswith("Unauthorized request")
        assert not fake.living()
        for route, asked in fake.asked:
            print(route, json.dumps(asked))
