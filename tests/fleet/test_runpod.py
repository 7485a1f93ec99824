"""The client of RunPod against a service of our own on loopback; by choice, the vendor's client against it, too.

The vendor's: ``RUNPOD_PYTHON=/path/to/python pytest -m optin tests/fleet/test_runpod.py`` (it has runpod==1.11.0).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.fleet.places.base import Phase, Provider, Want
from supervisor.fleet.places.runpod import Runpod
from tests.fleet.conformance import ORDER, Clock, ProviderConformance, Rig
from tests.fleet.fake_runpod import GPU, KEY, FakeRunpod

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

    def __init__(self, fake: FakeRunpod, clock: Clock) -> None:
        self.fake, self.clock = fake, clock
        self.provider = self.with_key(KEY)

    def with_key(self, key: str) -> Runpod:
        return Runpod(key, self.fake.url, timeout_s=0.4, clock=self.clock, sleep=self.clock.sleep)

    def with_wrong_key(self) -> Provider:
        return self.with_key("revoked-" + KEY)

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2) -> str:
        each = (per_hour - DISK) / 2
        prices = (None, each) if spot else (each, None)
        region = REGIONS[len(self.fake.machines) % len(REGIONS)]
        self.fake.add_machine(*prices, gpus, region=region)
        return f"SECURE/{region}/{GPU}/2/{'spot' if spot else 'on demand'}"

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
