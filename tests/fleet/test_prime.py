"""The client of Prime Intellect against a service of our own on loopback; by choice, the vendor's client, too.

The vendor's: ``PRIME_PYTHON=/path/to/python pytest -m optin tests/fleet/test_prime.py`` (it has prime==0.18.0).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.errors import ConfigError
from supervisor.fleet.assemble import assemble
from supervisor.fleet.controller import Controller, Place, Run, RunLook
from supervisor.fleet.fleet_file import BOOT
from supervisor.fleet.model import Claim, Rules, State, Verdict
from supervisor.fleet.places.base import Instance, Offer, Order, Phase, PlaceError, Provider, Want, label_of
from supervisor.fleet.places.prime import ONSTART, Prime
from tests.fleet.conformance import ORDER, SECRET, Clock, ProviderConformance, Rig
from tests.fleet.fake_prime import KEY, OFFER, TEMPLATE, FakePrime

WANT = Want(gpu="H100_80GB", gpus=2, spot=False, disk_gb=100.0, most_per_hour=6.0)
FAULTS = {"key": "401", "credit": "402", "rate": "429", "server": "500", "silence": "late", "nonsense": "malformed"}
STATES: dict[Phase, tuple[str, str]] = {
    "starting": ("PROVISIONING", "PENDING"),
    "running": ("ACTIVE", "FINISHED"),
    "stopped": ("STOPPED", "FINISHED"),
    "unknown": ("UNKNOWN", "FINISHED"),
}
PRIME_PYTHON = os.environ.get("PRIME_PYTHON", "")
# What docs/fleet.md says that the image of a custom template ends with.
ENTRYPOINT = ["bash", "-c", 'exec bash <(base64 -d <<<"$RL_SUPERVISOR_ONSTART_B64") --foreground']


class PrimeRig:
    """See ``conformance.Rig``."""

    want = WANT
    key = KEY
    other_gpu = "RTX4090_24GB"
    stopped_per_hour = 0.005

    def __init__(self, fake: FakePrime, clock: Clock) -> None:
        self.fake, self.clock = fake, clock
        self.provider = self.with_key(KEY)

    def with_key(self, key: str) -> Prime:
        return Prime(key, self.fake.url, timeout_s=0.8, clock=self.clock, sleep=self.clock.sleep)

    def with_wrong_key(self) -> Provider:
        return self.with_key("revoked-" + KEY)

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2, gpu: str = "") -> str:
        prices = OFFER["prices"] | {"onDemand": per_hour - 0.1}  # and 100 GB at $0.001
        row = self.fake.add_offer(gpuType=gpu or WANT.gpu, gpuCount=gpus, prices=prices, isSpot=spot or None)
        return f"hyperstack/{row['cloudId']}/SXM5/CANADA-1/CA/secure_cloud/60/360"

    def rent_by_hand(self, label: str) -> str:
        return self.fake.add_pod(label or None)

    def enter(self, instance_id: str, phase: Phase) -> None:
        self.fake.set_state(instance_id, *STATES[phase])

    def rented(self) -> list[str]:
        return [rental.label for rental in self.fake.living()]

    def bid_of(self, instance_id: str) -> float | None:
        return None

    def print_log(self, instance_id: str, text: str) -> None:
        self.fake.logs[instance_id] = text

    def fail_list(self, how: str) -> None:
        self.fake.fail(FAULTS[how], "list")

    def fail_create(self, how: str) -> None:
        self.fake.fail({**FAULTS, "taken": "409"}.get(how, how), "create")

    def fail_destroy(self, how: str) -> None:
        self.fake.fail(FAULTS.get(how, how), "destroy")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(clock: Clock) -> Iterator[FakePrime]:
    with FakePrime(clock=clock, templates=(ORDER.image,)) as service:
        yield service


@pytest.fixture
def rig(fake: FakePrime, clock: Clock) -> PrimeRig:
    return PrimeRig(fake, clock)


@pytest.fixture
def prime(rig: PrimeRig) -> Prime:
    return rig.provider


class TestConformance(ProviderConformance):
    """Prime's turn. It has no bids, and says so without a request."""

    def test_a_bid_is_for_the_whole_machine_and_can_be_raised(self, rig: Rig) -> None:
        rig.add_offer(2.0, spot=True)
        (offer,) = rig.provider.find_offers(replace(rig.want, spot=True))
        assert (offer.spot, offer.per_hour, offer.disk_per_hour) == (True, 2.0, 2.0)  # a bid on top of it is $0
        made = rig.provider.create(offer, replace(ORDER, bid=0.0))
        (listed,) = rig.provider.list_instances()
        assert (listed.id, listed.spot, listed.per_hour) == (made, True, 2.0)
        error = self.error_of(rig, lambda: rig.provider.raise_bid(listed, 3.25))
        assert error.kind == "refused"
        assert str(error) == f"Prime has no bids: the price of pod {made} is fixed by its provider."

    def test_a_wrong_key_is_told_by_each_method(self, rig: Rig) -> None:
        offer, made = self.offer(rig), self.rent(rig)
        (listed,) = rig.provider.list_instances()
        wrong = rig.with_wrong_key()
        for call in (
            wrong.list_instances,
            lambda: wrong.find_offers(rig.want),
            lambda: wrong.create(offer, ORDER),
            lambda: wrong.destroy(listed),
            lambda: wrong.read_log(listed),
            wrong.read_credit,
        ):
            assert self.error_of(rig, call).kind == "key"
        assert [one.id for one in rig.provider.list_instances()] == [made]


def rent(prime: Prime, fake: FakePrime, **fields: Any) -> str:
    fake.add_offer(**fields)
    return prime.create(prime.find_offers(WANT)[0], ORDER)


def sent(fake: FakePrime) -> dict[str, Any]:
    return dict(fake.asked)["create"]


def error_of(call: Any) -> PlaceError:
    with pytest.raises(PlaceError) as caught:
        call()
    return caught.value


def offers_of(prime: Prime, fake: FakePrime, want: Want = WANT, **fields: Any) -> list[Offer]:
    fake.offers.clear()
    fake.add_offer(**fields)
    return prime.find_offers(want)


# ---------------------------------------------------------------- what is sent


def test_a_create_sends_what_the_offer_is_and_what_starts_there(prime: Prime, fake: FakePrime) -> None:
    rent(prime, fake, cloudId="NVIDIA H100/80", dataCenter=None, vcpu={"defaultCount": 60, "minCount": 8})
    pod = sent(fake)["pod"]
    env = {one["key"]: one["value"] for one in pod.pop("envVars")}
    assert base64.b64decode(env.pop(ONSTART)).decode() == ORDER.onstart
    assert env == ORDER.env
    assert sent(fake)["provider"] == {"type": "hyperstack"}
    assert pod == {
        "name": ORDER.label,
        "cloudId": "NVIDIA H100/80",
        "gpuType": "H100_80GB",
        "socket": "SXM5",
        "gpuCount": 2,
        "vcpus": 60,
        "memory": 360,
        "diskSize": 100,
        "image": "custom_template",
        "customTemplateId": ORDER.image,
        "dataCenterId": None,
        "country": "CA",
        "security": "secure_cloud",
        "maxPrice": pytest.approx(4.1),
        "autoRestart": False,
    }


def test_the_disk_is_as_large_as_the_machine_wants_it(prime: Prime, fake: FakePrime) -> None:
    rent(prime, fake, disk=OFFER["disk"] | {"minCount": 60, "step": 25})
    assert sent(fake)["pod"]["diskSize"] == 110


def test_a_provider_that_wants_a_highest_price_is_told_one(prime: Prime, fake: FakePrime) -> None:
    assert rent(prime, fake, provider="massedcompute")
    assert sent(fake)["pod"]["maxPrice"] == pytest.approx(4.1)


def test_the_entrypoint_of_the_template_runs_the_start_script(prime: Prime, fake: FakePrime, tmp_path: Path) -> None:
    """With what the pod gets as its environment, and nothing else of this machine."""
    script = 'echo "begun $1 for $RUN"; exit 94'
    fake.add_offer()
    made = prime.create(prime.find_offers(WANT)[0], replace(ORDER, onstart=script))
    env = {"PATH": os.environ["PATH"], **fake.rental(made).env}
    done = subprocess.run(ENTRYPOINT, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (94, "begun --foreground for sober-otter\n")
    assert "$@" in BOOT  # which hands it on to onstart.sh
    page = Path(__file__).parents[2] / "docs" / "fleet.md"
    assert json.dumps(ENTRYPOINT) in page.read_text()


def test_requests_to_one_endpoint_keep_a_gap(prime: Prime, clock: Clock) -> None:
    for _ in range(2):
        prime.list_instances()
    prime.find_offers(WANT)
    assert clock.naps == [1.0]


@pytest.mark.parametrize("ending", ["", "/", "/api/v1", "/api/v1/"])
def test_the_address_is_read_as_the_vendors_client_reads_it(fake: FakePrime, ending: str) -> None:
    assert Prime(KEY, fake.url + ending).read_credit() == 25.5


# ---------------------------------------------------------------- instances


@pytest.mark.parametrize(
    ("status", "installation", "phase"),
    [
        ("PROVISIONING", "PENDING", "starting"),
        ("PENDING", None, "starting"),
        ("ACTIVE", "PENDING", "starting"),
        ("ACTIVE", "ACTIVE", "starting"),
        ("ACTIVE", None, "starting"),
        ("ACTIVE", "FINISHED", "running"),
        ("ACTIVE", "ERROR", "stopped"),
        ("ACTIVE", "TERMINATED", "stopped"),
        ("ERROR", "PENDING", "stopped"),
        ("ERROR", "FINISHED", "unknown"),
        ("STOPPED", "FINISHED", "stopped"),
        ("STOPPED", "PENDING", "stopped"),
        ("UNKNOWN", "FINISHED", "unknown"),
        ("a word of next year", "FINISHED", "unknown"),
        (None, "FINISHED", "unknown"),
        (7, ["FINISHED"], "unknown"),
    ],
)
def test_states(prime: Prime, fake: FakePrime, status: Any, installation: Any, phase: str) -> None:
    made = rent(prime, fake)
    fake.set_state(made, status, installation)
    assert [one.phase for one in prime.list_instances()] == [phase]


def test_a_start_that_failed_is_told_in_one_line(prime: Prime, fake: FakePrime) -> None:
    made = rent(prime, fake)
    fake.set_state(made, "ACTIVE", "ERROR", "pull access denied:\n\x1b[31mno such image " + "x" * 500)
    (listed,) = prime.list_instances()
    assert listed.says.startswith("ACTIVE, installation ERROR, pull access denied: [31mno such image xxx")
    assert len(listed.says) < 240
    assert listed.says.isprintable()


@pytest.mark.parametrize("status", ["DELETING", "TERMINATED"])
def test_what_is_over_is_not_listed_though_prime_lists_it(prime: Prime, fake: FakePrime, status: str) -> None:
    made = rent(prime, fake)
    fake.set_state(made, status)
    assert prime.list_instances() == []
    prime.destroy(Instance(made, ORDER.label, "unknown", None))


def test_all_pages_are_read(prime: Prime, fake: FakePrime) -> None:
    fake.page_size = 3
    for number in range(7):
        fake.add_pod(label_of("sober-otter", number, "abcdef"))
    assert len(prime.list_instances()) == 7
    assert [query["offset"] for route, query in fake.asked if route == "list"] == [["0"], ["3"], ["6"]]


def test_pods_that_went_between_two_pages_make_no_short_list(prime: Prime, fake: FakePrime) -> None:
    """One that left the first page moves all others up: the second page would begin behind a pod that trains."""
    fake.page_size = 3
    made = [fake.add_pod(label_of("sober-otter", number, "abcdef")) for number in range(5)]
    answer = fake._answer_list

    def lose_one(*words: Any) -> object:
        found = answer(*words)
        fake.pods.pop(made[0], None)
        return found

    fake._answer_list = lose_one  # type: ignore[method-assign]
    assert error_of(prime.list_instances).kind == "away"
    assert len(prime.list_instances()) == 4


@pytest.mark.parametrize("fault", ["empty", "nulls", "array", "html", "502", "reset", "drip"])
def test_an_answer_that_cannot_be_read_is_never_an_empty_list(prime: Prime, fake: FakePrime, fault: str) -> None:
    rent(prime, fake)
    fake.fail(fault, "list")
    error = error_of(prime.list_instances)
    assert error.kind == "away"
    assert str(error).startswith("Prime did not list the pods: ")
    assert "<" not in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [], "total_count": 1},
        {"data": [], "total_count": None},
        {"data": None, "total_count": 0},
        {"data": [None], "total_count": 1},
        {"data": [{"name": "x"}], "total_count": 1},
        {"data": [{"id": 5, "name": "x"}], "total_count": 1},
    ],
)
def test_rows_that_cannot_be_read_are_an_error(prime: Prime, fake: FakePrime, answer: Any) -> None:
    fake._answer_list = lambda *_: answer  # type: ignore[method-assign]
    assert error_of(prime.list_instances).kind == "away"


@pytest.mark.parametrize(
    ("fields", "per_hour", "gpus"),
    [
        ({}, 4.1, 2),
        ({"priceHr": "2.5", "gpuCount": "8"}, 2.5, 8),
        ({"priceHr": None, "gpuCount": None, "gpuName": None, "providerType": None}, None, 0),
        ({"priceHr": -1, "gpuCount": -1, "isSpot": "yes"}, None, 0),
        ({"priceHr": float("nan"), "gpuCount": True, "gpuName": 4, "installationFailure": {}}, None, 0),
    ],
)
def test_an_unknown_price_is_not_zero(
    prime: Prime, fake: FakePrime, fields: dict[str, Any], per_hour: float | None, gpus: int
) -> None:
    made = rent(prime, fake)
    fake.pods[made] |= fields
    (listed,) = prime.list_instances()
    assert (listed.id, listed.gpus, listed.spot) == (made, gpus, False)
    assert listed.per_hour == (None if per_hour is None else pytest.approx(per_hour))


# ---------------------------------------------------------------- offers


def test_the_search_asks_for_what_the_place_wants_and_reads_all_pages(prime: Prime, fake: FakePrime) -> None:
    fake.page_size = 2
    for _ in range(5):
        fake.add_offer()
    assert len(prime.find_offers(replace(WANT, region="canada, eu_north"))) == 5
    queries = [query for route, query in fake.asked if route == "search"]
    assert [query.pop("page") for query in queries] == [["1"], ["2"], ["3"]]
    assert queries[0] == {
        "gpu_type": ["H100_80GB"],
        "gpu_count": ["2"],
        "page_size": ["100"],
        "regions": ["canada", "eu_north"],
    }


@pytest.mark.parametrize(("wants", "param"), [({"gpu": "H100"}, "gpu_type"), ({"region": "mars"}, "regions")])
def test_a_word_that_prime_does_not_know_is_named(prime: Prime, wants: dict[str, str], param: str) -> None:
    error = error_of(lambda: prime.find_offers(replace(WANT, **wants)))  # type: ignore[arg-type]
    assert error.kind == "refused"
    assert str(error).startswith(f"Prime refused to search for offers (HTTP 422, {param}: ")


PER_UNIT = {"defaultCount": 60, "pricePerUnit": 0.01}


@pytest.mark.parametrize(
    ("fields", "price"),
    [
        ({}, 4.1),
        ({"disk": {"defaultCount": 725}}, 4.0),
        ({"disk": {"defaultCount": 725, "minCount": None, "maxCount": None, "pricePerUnit": None}}, 4.0),
        ({"disk": OFFER["disk"] | {"defaultIncludedInPrice": True}}, 4.0),
        ({"disk": OFFER["disk"] | {"defaultIncludedInPrice": True, "defaultCount": 80}}, 4.02),
        ({"disk": OFFER["disk"] | {"minCount": 300}}, 4.3),
        ({"disk": OFFER["disk"] | {"step": 70}}, 4.12),  # 50, and one step more
        ({"vcpu": PER_UNIT}, 4.7),
        ({"vcpu": PER_UNIT | {"defaultIncludedInPrice": True}}, 4.1),
        ({"memory": {"defaultCount": 10, "pricePerUnit": "0.02"}}, 4.3),
        ({"prices": {"onDemand": None, "communityPrice": 3.0, "currency": "USD"}}, 3.1),
    ],
)
def test_a_price_is_of_the_whole_machine_with_all_that_is_paid_by_the_unit(
    prime: Prime, fake: FakePrime, fields: dict[str, Any], price: float
) -> None:
    (offer,) = offers_of(prime, fake, **fields)
    assert offer.per_hour == pytest.approx(price)


@pytest.mark.parametrize(
    "fields",
    [
        {"stockStatus": "Unavailable"},
        {"stockStatus": "ComingSoon"},
        {"stockStatus": None},
        {"isSpot": True},
        {"provider": "runpod"},
        {"provider": None},
        {"cloudId": None},
        {"images": ["ubuntu_22_cuda_12"]},
        {"images": None},
        {"prepaidTime": 24},
        {"disk": {}},
        {"disk": None},
        {"disk": {"defaultCount": 80}},
        {"disk": OFFER["disk"] | {"maxCount": 90}},
        {"disk": OFFER["disk"] | {"minCount": 90, "maxCount": 130, "step": 50}},  # 90 or 140
        {"disk": OFFER["disk"] | {"pricePerUnit": "cheap"}},
        {"vcpu": {"pricePerUnit": 0.1}},
        {"prices": {"onDemand": 1.0, "communityPrice": None, "currency": "EUR"}},
        {"prices": {"onDemand": None, "communityPrice": None, "currency": "USD"}},
        {"prices": {"onDemand": 0, "communityPrice": None, "currency": "USD"}, "disk": {"defaultCount": 100}},
        {"prices": {"onDemand": -1, "communityPrice": None, "currency": "USD"}},
        {"prices": {"onDemand": 5.95, "communityPrice": None, "currency": "USD"}},  # with its disk it is too dear
        {"prices": None},
    ],
)
def test_what_is_gone_does_not_fit_or_has_no_price_is_left_out(
    prime: Prime, fake: FakePrime, fields: dict[str, Any]
) -> None:
    assert offers_of(prime, fake, **fields) == []


def test_a_row_of_another_gpu_is_left_out_whatever_was_asked_for(prime: Prime, fake: FakePrime) -> None:
    rows = [OFFER | {"gpuCount": 8}, OFFER | {"gpuType": "A100_80GB"}, OFFER | {"gpuCount": None}]
    fake._answer_search = lambda *_: {"items": rows, "totalCount": 3}  # type: ignore[method-assign]
    assert prime.find_offers(WANT) == []


def test_a_link_that_is_not_told_is_too_slow_where_a_floor_is_set(prime: Prime, fake: FakePrime) -> None:
    for speed, found in ((None, 0), (400, 0), (500, 1)):
        assert len(offers_of(prime, fake, replace(WANT, least_up_mbit=500), internetSpeed=speed)) == found
    (offer,) = offers_of(prime, fake, internetSpeed=None)
    assert (offer.down_mbit, offer.up_mbit) == (None, None)


def test_machines_that_take_custom_templates_come_alone_where_any_says_so(prime: Prime, fake: FakePrime) -> None:
    fake.add_offer(images=["cuda_12_6_pytorch_2_7"], provider="dc_gnu")
    assert [offer.host for offer in prime.find_offers(WANT)] == ["dc_gnu"]
    fake.add_offer(prices=OFFER["prices"] | {"onDemand": 5.0})
    assert [offer.host for offer in prime.find_offers(WANT)] == ["hyperstack"]


def test_an_offer_that_is_gone_is_told_apart_from_the_others(prime: Prime, fake: FakePrime) -> None:
    """So that the controller leaves out this one for a while, and not the whole place."""
    fake.add_offer(), fake.add_offer()
    one, other = prime.find_offers(WANT)
    assert one.machine != other.machine
    prime.create(one, ORDER)
    assert error_of(lambda: prime.create(one, ORDER)).kind == "taken"
    assert [listed.machine for listed in prime.list_instances()] == [""]


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("401", "key"),
        ("403", "key"),
        ("402", "credit"),
        ("404", "taken"),
        ("408", "unsure"),
        ("409", "taken"),
        ("stock", "taken"),
        ("422", "refused"),
        ("429", "rate"),
        ("500", "unsure"),
        ("502", "unsure"),
        ("reset", "unsure"),
        ("drip", "unsure"),
        ("malformed", "unsure"),
        ("html", "unsure"),
        ("array", "unsure"),
        ("empty", "unsure"),
        ("nulls", "unsure"),
    ],
)
def test_faults_of_a_create(prime: Prime, fake: FakePrime, fault: str, kind: str) -> None:
    fake.fail(fault, "create")
    error = error_of(lambda: rent(prime, fake))
    assert error.kind == kind
    assert error.retry_after_s == (60.0 if kind == "rate" else 0)
    done = fault in ("drip", "nulls")
    assert [rental.label for rental in fake.living()] == [ORDER.label] * done


def test_a_lost_answer_and_then_a_list_that_fails_do_not_make_a_second_pod_unseen(
    prime: Prime, fake: FakePrime
) -> None:
    fake.fail("lost", "create")
    fake.fail("502", "list")
    assert error_of(lambda: rent(prime, fake)).kind == "unsure"
    assert error_of(prime.list_instances).kind == "away"
    assert [one.label for one in prime.list_instances()] == [ORDER.label]


def test_a_refusal_that_repeats_what_was_sent_shows_no_secret_of_the_run(prime: Prime, fake: FakePrime) -> None:
    fake.add_offer()
    (offer,) = prime.find_offers(WANT)
    fake._answer_create = lambda _, __, body: fake._check(body["pod"] | {"image": json.dumps(body)})  # type: ignore[method-assign]
    error = error_of(lambda: prime.create(offer, ORDER))
    assert (error.kind, str(error)) == ("refused", "Prime refused to rent the offer (HTTP 422).")
    assert SECRET not in repr(error)


def test_a_template_that_does_not_exist_is_refused(prime: Prime, fake: FakePrime) -> None:
    fake.add_offer()
    (offer,) = prime.find_offers(WANT)
    assert error_of(lambda: prime.create(offer, replace(ORDER, image="ghcr.io/me/other:1"))).kind == "refused"
    assert fake.ledger == []


@pytest.mark.parametrize("fault", ["empty", "malformed", "reset", "html", "nulls"])
def test_a_destroy_that_does_not_say_that_it_worked_is_unsure(prime: Prime, fake: FakePrime, fault: str) -> None:
    rent(prime, fake)
    (listed,) = prime.list_instances()
    fake.fail(fault, "destroy")
    assert error_of(lambda: prime.destroy(listed)).kind == "unsure"


@pytest.mark.parametrize(
    ("fault", "kind"), [("401", "key"), ("403", "key"), ("404 page", "refused"), ("409", "refused"), ("429", "rate")]
)
def test_a_destroy_that_is_refused_leaves_the_pod(prime: Prime, fake: FakePrime, fault: str, kind: str) -> None:
    rent(prime, fake)
    (listed,) = prime.list_instances()
    fake.fail(fault, "destroy")
    assert error_of(lambda: prime.destroy(listed)).kind == kind
    assert len(fake.living()) == 1


def test_a_pod_that_prime_does_not_know_needs_no_destroy_and_a_page_that_is_missing_proves_nothing(
    prime: Prime, fake: FakePrime
) -> None:
    rent(prime, fake)
    (listed,) = prime.list_instances()
    prime.destroy(replace(listed, id="f" * 32))
    error = error_of(lambda: Prime(KEY, f"{fake.url}/elsewhere").list_instances())
    assert (error.kind, str(error)) == ("refused", "Prime refused to list the pods (HTTP 404, Not Found).")
    assert len(fake.living()) == 1


@pytest.mark.parametrize(("header", "wait_s"), [("", 60.0), ("17", 17.0), ("soon", 60.0), ("0", 60.0)])
def test_how_long_to_wait_after_a_429(prime: Prime, fake: FakePrime, header: str, wait_s: float) -> None:
    fake.fail("429", "list", retry_after=header)
    error = error_of(prime.list_instances)
    assert (error.kind, error.retry_after_s) == ("rate", wait_s)
    assert str(error).startswith("Prime was asked too often to list the pods (HTTP 429")


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ("pulling\nno space left\n", "pulling\nno space left\n"),
        ("", ""),
        ({"logs": ["a", "b"]}, '{"logs": ["a", "b"]}'),
        (["a", "b"], '["a", "b"]'),
    ],
)
def test_a_log_is_shown_as_it_is_answered(prime: Prime, fake: FakePrime, told: object, text: str) -> None:
    made = rent(prime, fake)
    fake.logs[made] = told
    (listed,) = prime.list_instances()
    assert prime.read_log(listed) == text
    assert dict(fake.asked)["log"] == {"tail": ["300"]}
    assert prime.read_log(replace(listed, id="f" * 32)) == ""


@pytest.mark.parametrize(
    ("said", "credit"), [(12.25, 12.25), ("3.5", 3.5), (-2, -2.0), (None, None), ("", None), (True, None), ({}, None)]
)
def test_credit(prime: Prime, fake: FakePrime, said: object, credit: float | None) -> None:
    fake.credit = said
    assert prime.read_credit() == credit


def test_an_account_without_money_rents_nothing(prime: Prime, fake: FakePrime) -> None:
    fake.credit = 0.0
    error = error_of(lambda: rent(prime, fake))
    assert (error.kind, fake.ledger) == ("credit", [])
    assert str(error) == "The Prime account has no credit to rent the offer (HTTP 402). Add credit."


# ---------------------------------------------------------------- with the controller


@dataclass
class Memory:
    """The controller's book, in memory. Its clock is the one of the test."""

    clock: Clock
    state: State = field(default_factory=State)

    def list_runs(self) -> list[str]:
        return []

    def read_state(self, run_id: str) -> State:
        return self.state

    def write_state(self, run_id: str, state: State, sentence: str, *, verdict: Verdict = "") -> None:
        self.state = state

    def read_clock(self) -> float:
        return self.clock()


def test_a_lost_answer_a_failed_start_and_a_list_that_is_away_end_with_one_pod(
    prime: Prime, fake: FakePrime, clock: Clock
) -> None:
    """The first pod's create is not answered, then its image cannot be pulled while Prime itself is away."""

    def order(place: Place, offer: Offer, label: str, convicted: str) -> Order:
        return replace(ORDER, label=label)

    def tick() -> str:
        clock.sleep(30)
        (told,) = controller.tick()
        assert len(fake.living()) <= 1
        return f"{told.decision.sentence} | {' '.join(told.did)} | {told.failed}"

    run = Run(Rules("sober-otter", {"market": "prime"}), lambda: RunLook(Claim(), None), order)
    place = Place("market", prime, WANT)
    controller = Controller({"sober-otter": run}, {"market": place}, Memory(clock), sleep=clock.sleep)
    fake.add_offer()
    fake.add_offer(provider="dc_gnu", prices=OFFER["prices"] | {"onDemand": 5.0})
    fake.fail("lost", "create")
    assert "It is unknown if Prime did rent the offer" in tick()
    (first,) = fake.living()
    assert "starts since" in tick()
    fake.set_state(first.pod, "ACTIVE", "ERROR", "pull access denied")
    fake.fail("502", "list", times=1)
    assert "prime does not answer: Prime did not list the pods: HTTP 502" in tick()
    said = tick()
    assert f"Pod {first.pod} ended before it began: it is destroyed." in said
    assert "Renting 2 x H100_80GB in market at $5.10 an hour" in said
    (second,) = fake.living()
    assert second.pod != first.pod
    assert len(fake.ledger) == 2


# ---------------------------------------------------------------- fleet.toml


FLEET = """
[fleet]
store = "b2://bucket/fleet"
[limits]
per_hour = 8
total = 400
[place.market]
provider = "prime"
gpu = "H100_80GB"
gpus = 2
most_per_hour = 6
image = "cm2szl4a20001tl3pyq7ua6o7"
[run.otter]
file = "otter.toml"
places = ["market"]
"""
RUN_FILE = '[run]\nid = "{}"\n[job]\ndir = "/opt/prime-rl"\nconfig = ["/r.toml"]\n[store]\nurl = "b2://bucket/runs"\n'


@pytest.mark.parametrize(("run_id", "fits"), [("Sober-otter-2", True), ("sober_otter", False), ("v1.5", False)])
def test_a_run_whose_label_is_no_name_there_is_refused_when_the_file_is_read(
    tmp_path: Path, run_id: str, fits: bool
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "otter.toml").write_text(RUN_FILE.format(run_id))
    if fits:
        (place,) = assemble(tmp_path / "fleet.toml", {"PRIME_API_KEY": KEY}).places().values()
        assert place.provider.name == "prime"
        return
    with pytest.raises(ConfigError) as caught:
        assemble(tmp_path / "fleet.toml", {})
    assert f"the run's id is {run_id}. Take another id, or leave that place out." in str(caught.value)


def test_the_key_comes_from_the_environment_and_so_does_the_address(tmp_path: Path, fake: FakePrime) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    (tmp_path / "otter.toml").write_text(RUN_FILE.format("otter"))
    with pytest.raises(ConfigError, match="PRIME_API_KEY is not set"):
        assemble(tmp_path / "fleet.toml", {}).places()
    environ = {"PRIME_API_KEY": f"{KEY}\n", "PRIME_API_BASE_URL": fake.url}
    (place,) = assemble(tmp_path / "fleet.toml", environ).places().values()
    assert place.provider.read_credit() == 25.5


# ---------------------------------------------------------------- the vendor's own client


@pytest.mark.optin
@pytest.mark.skipif(not PRIME_PYTHON, reason="PRIME_PYTHON names no interpreter with prime==0.18.0")
def test_the_vendors_own_client_works_with_the_fake(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PRIME_API_KEY": KEY, "COLUMNS": "200"}
    with FakePrime() as fake:

        def prime(*words: str) -> Any:
            done = subprocess.run(
                [str(Path(PRIME_PYTHON).with_name("prime")), *words],
                env=environ | {"PRIME_API_BASE_URL": fake.url, "PRIME_DISABLE_VERSION_CHECK": "1"},
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
                stdin=subprocess.DEVNULL,
            )
            return json.loads(done.stdout) if "--output" in words else done.stdout

        fake.add_offer(provider="massedcompute")
        dear = fake.add_offer(prices=OFFER["prices"] | {"onDemand": 5.0})
        found = prime("availability", "list", "--gpu-type", "H100_80GB", "--output", "json")
        assert sorted(row["cloud_id"] for row in found["gpu_resources"]) == sorted(
            row["cloudId"] for row in fake.offers
        )
        words = ("--name", ORDER.label, "--disk-size", "100", "--vcpus", "60", "--memory", "360", "--yes")
        template = ("--image", "custom_template", "--custom-template-id", TEMPLATE, "--env", "A=b")
        prime("pods", "create", "--cloud-id", dear["cloudId"], *words, *template)
        theirs = sent(fake)
        assert fake.ledger[0].env == {"A": "b"}
        (shown,) = prime("pods", "list", "--output", "json")["pods"]
        (listed,) = Prime(KEY, fake.url).list_instances()
        assert (shown["id"], shown["name"], shown["status"]) == (listed.id, listed.label, "PROVISIONING")
        fake.set_state(listed.id, "ACTIVE", "PENDING")
        (shown,) = prime("pods", "list", "--output", "json")["pods"]
        assert shown["status"] == "INSTALLING"  # as our "starting"
        assert prime("pods", "status", listed.id, "--output", "json")["cost_per_hour"] == pytest.approx(5.1)
        assert prime("wallet", "--output", "json")["balance_usd"] == 25.5
        prime("pods", "terminate", listed.id, "--yes")
        assert fake.living() == []
        assert Prime(KEY, fake.url).list_instances() == []

        (offer,) = Prime(KEY, fake.url).find_offers(WANT)
        Prime(KEY, fake.url).create(offer, replace(ORDER, image=TEMPLATE))
        ours = sent(fake)
        assert set(ours["pod"]) <= set(theirs["pod"])
        assert theirs["pod"]["image"] == ours["pod"]["image"]
        for route, body in fake.asked:
            print(route, json.dumps(body))
