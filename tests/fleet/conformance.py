"""What every provider has to do. A provider's test module subclasses ``ProviderConformance`` and gives a ``rig``."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from supervisor.fleet.places.base import Offer, Order, Phase, PlaceError, Provider, Want, label_of, read_label

SECRET = "hf_a-token-that-belongs-to-the-run"
ORDER = Order(
    label=label_of("sober-otter", 7, "0a1b2c"),
    image="ghcr.io/example/trainer:1",
    disk_gb=100.0,
    onstart="/opt/start.sh",
    env={"HF_TOKEN": SECRET, "RUN": "sober-otter"},
)


class Clock:
    """Time that passes only where a client sleeps."""

    def __init__(self) -> None:
        self.now_s = 5000.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now_s += seconds


class Rig(Protocol):
    """A provider's client, and the service on loopback that it asks. Each ``fail_*`` holds for one request."""

    provider: Provider
    want: Want
    key: str
    other_gpu: str
    stopped_per_hour: float  # of what ``add_offer`` offers, dollars

    def add_offer(self, per_hour: float, *, spot: bool = False, gpus: int = 2, gpu: str = "") -> str: ...
    def rent_by_hand(self, label: str) -> str: ...
    def enter(self, instance_id: str, phase: Phase) -> None: ...
    def rented(self) -> list[str]:
        """The labels of all that bills now."""
        ...

    def bid_of(self, instance_id: str) -> float | None: ...
    def print_log(self, instance_id: str, text: str) -> None: ...
    def with_wrong_key(self) -> Provider: ...
    def fail_list(self, how: str) -> None:
        """``key``, ``rate``, ``server``, ``silence``, ``nonsense``."""
        ...

    def fail_create(self, how: str) -> None:
        """``credit``, ``taken``, ``rate``, ``server``, ``late``, ``lost``."""
        ...

    def fail_destroy(self, how: str) -> None:
        """``server``, ``late``."""
        ...


class PlaceConformance:
    """Of any place: what is made is found by its label, and what failed is told as what it is."""

    first_phase: Phase = "starting"

    def test_what_is_made_is_listed_under_its_label_through_its_life(self, rig: Rig) -> None:
        made = self.rent(rig)
        (listed,) = rig.provider.list_instances()
        assert (listed.id, listed.label, listed.phase) == (made, ORDER.label, self.first_phase)
        assert read_label(listed.label) == ("sober-otter", 7)
        for phase in ("running", "unknown", "stopped", "running"):
            rig.enter(made, phase)
            assert [one.phase for one in rig.provider.list_instances()] == [phase]

    def test_instances_of_a_person_are_listed_without_a_label_of_ours(self, rig: Rig) -> None:
        theirs = {rig.rent_by_hand(label) for label in ("", "my notebook", "rls-notebook", "rls-run-g7-0a1b2c")}
        made = self.rent(rig)
        listed = {one.id: one.label for one in rig.provider.list_instances()}
        assert listed == dict.fromkeys(theirs, "") | {made: ORDER.label}
        assert len(rig.rented()) == 5

    def test_what_is_destroyed_bills_no_more_and_once_more_is_no_error(self, rig: Rig) -> None:
        self.rent(rig)
        (listed,) = rig.provider.list_instances()
        rig.provider.destroy(listed)
        assert rig.rented() == []
        assert rig.provider.list_instances() == []
        rig.provider.destroy(listed)

    def test_two_instances_with_one_label_are_both_listed(self, rig: Rig) -> None:
        made = {self.rent(rig), self.rent(rig)}
        assert len(made) == 2
        assert {one.id for one in rig.provider.list_instances()} == made
        assert rig.rented() == [ORDER.label] * 2

    def test_a_destroy_without_an_answer_is_unsure_and_may_be_repeated(self, rig: Rig) -> None:
        self.rent(rig)
        (listed,) = rig.provider.list_instances()
        rig.fail_destroy("server")
        assert self.error_of(rig, lambda: rig.provider.destroy(listed)).kind == "unsure"
        rig.fail_destroy("late")
        assert self.error_of(rig, lambda: rig.provider.destroy(listed)).kind == "unsure"
        assert rig.rented() == []
        rig.provider.destroy(listed)

    @pytest.mark.parametrize("how", ["late", "lost"])
    def test_a_create_without_an_answer_is_unsure_made_once_and_found_by_its_label(self, rig: Rig, how: str) -> None:
        offer = self.offer(rig)
        rig.fail_create(how)
        error = self.error_of(rig, lambda: rig.provider.create(offer, ORDER))
        assert error.kind == "unsure"
        assert rig.rented() == [ORDER.label]
        assert [one.label for one in rig.provider.list_instances()] == [ORDER.label]

    def test_the_log_is_read(self, rig: Rig) -> None:
        rig.print_log(self.rent(rig), "pulling the image\nno space left on device\n")
        (listed,) = rig.provider.list_instances()
        assert rig.provider.read_log(listed).endswith("no space left on device\n")

    def test_no_secret_is_in_what_is_shown_of_an_order(self) -> None:
        assert SECRET not in repr(ORDER)

    # ------------------------------------------------------------ helpers

    def offer(self, rig: Rig) -> Offer:
        rig.add_offer(4.0)
        return rig.provider.find_offers(rig.want)[0]

    def rent(self, rig: Rig) -> str:
        return rig.provider.create(self.offer(rig), ORDER)

    def error_of(self, rig: Rig, call: object) -> PlaceError:
        """The error that ``call`` raises, once it is clear that a person may read it."""
        with pytest.raises(PlaceError) as caught:
            call()  # type: ignore[operator]
        sentence = str(caught.value)
        assert sentence.endswith(".")
        assert sentence[0].isupper()
        assert rig.key not in sentence
        assert SECRET not in sentence
        return caught.value


class ProviderConformance(PlaceConformance):
    """Of a place that lets machines."""

    def test_an_empty_account_and_an_empty_market_are_no_errors(self, rig: Rig) -> None:
        assert rig.provider.list_instances() == []
        assert rig.provider.find_offers(rig.want) == []

    def test_offers_come_cheapest_first_and_only_those_that_fit(self, rig: Rig) -> None:
        dear, cheap, middle = rig.add_offer(5.5), rig.add_offer(3.5), rig.add_offer(4.5)
        rig.add_offer(rig.want.most_per_hour + 1)
        rig.add_offer(3.0, gpus=1)
        found = rig.provider.find_offers(rig.want)
        assert [offer.id for offer in found] == [cheap, middle, dear]
        assert [offer.per_hour for offer in found] == pytest.approx([3.5, 4.5, 5.5])
        assert {(offer.gpus, offer.spot) for offer in found} == {(2, False)}

    def test_other_kinds_of_gpus_are_found_where_any_is_asked_for(self, rig: Rig) -> None:
        ours, other = rig.add_offer(4.0), rig.add_offer(3.0, gpu=rig.other_gpu)
        assert [one.id for one in rig.provider.find_offers(rig.want)] == [ours]
        found = rig.provider.find_offers(replace(rig.want, gpu=""))
        assert [(one.id, one.gpu) for one in found] == [(other, rig.other_gpu), (ours, rig.want.gpu)]

    def test_what_is_rented_is_listed_with_its_price(self, rig: Rig) -> None:
        self.rent(rig)
        assert [one.per_hour for one in rig.provider.list_instances()] == pytest.approx([4.0])

    def test_what_a_stopped_one_costs_is_told_and_is_less_than_a_running_one(self, rig: Rig) -> None:
        rig.enter(self.rent(rig), "stopped")
        (listed,) = rig.provider.list_instances()
        assert listed.stopped_per_hour == pytest.approx(rig.stopped_per_hour)

    @pytest.mark.parametrize(
        ("how", "kind"), [("credit", "credit"), ("taken", "taken"), ("rate", "rate"), ("server", "unsure")]
    )
    def test_a_create_that_failed_rents_nothing_and_says_why(self, rig: Rig, how: str, kind: str) -> None:
        offer = self.offer(rig)
        rig.fail_create(how)
        error = self.error_of(rig, lambda: rig.provider.create(offer, ORDER))
        assert error.kind == kind
        assert rig.rented() == []

    def test_an_offer_that_another_took_is_taken(self, rig: Rig) -> None:
        offer = self.offer(rig)
        rig.provider.create(offer, replace(ORDER, label=label_of("other", 1, "aaaaaa")))
        assert self.error_of(rig, lambda: rig.provider.create(offer, ORDER)).kind == "taken"
        assert len(rig.rented()) == 1

    @pytest.mark.parametrize(
        ("how", "kind"),
        [("key", "key"), ("rate", "rate"), ("server", "away"), ("silence", "away"), ("nonsense", "away")],
    )
    def test_a_list_that_failed_is_never_an_empty_one(self, rig: Rig, how: str, kind: str) -> None:
        self.rent(rig)
        rig.fail_list(how)
        error = self.error_of(rig, rig.provider.list_instances)
        assert error.kind == kind
        assert (error.retry_after_s > 0) == (kind == "rate")
        assert len(rig.provider.list_instances()) == 1

    def test_a_wrong_key_is_told_by_each_method(self, rig: Rig) -> None:
        offer, made = self.offer(rig), self.rent(rig)
        (listed,) = rig.provider.list_instances()
        wrong = rig.with_wrong_key()
        for call in (
            wrong.list_instances,
            lambda: wrong.find_offers(rig.want),
            lambda: wrong.create(offer, ORDER),
            lambda: wrong.raise_bid(listed, 3.0),
            lambda: wrong.destroy(listed),
            lambda: wrong.read_log(listed),
            wrong.read_credit,
        ):
            assert self.error_of(rig, call).kind == "key"
        assert [one.id for one in rig.provider.list_instances()] == [made]

    def test_a_bid_is_for_the_whole_machine_and_can_be_raised(self, rig: Rig) -> None:
        rig.add_offer(2.0, spot=True)
        (offer,) = rig.provider.find_offers(replace(rig.want, spot=True))
        assert offer.spot
        assert offer.per_hour == pytest.approx(2.0)
        bid = offer.per_hour - offer.disk_per_hour
        made = rig.provider.create(offer, replace(ORDER, bid=bid))
        assert rig.bid_of(made) == pytest.approx(bid)
        (listed,) = rig.provider.list_instances()
        assert listed.spot
        rig.provider.raise_bid(listed, 3.25)
        assert rig.bid_of(made) == pytest.approx(3.25)

    def test_on_demand_has_no_bid(self, rig: Rig) -> None:
        made = self.rent(rig)
        assert rig.bid_of(made) is None
        assert [one.spot for one in rig.provider.list_instances()] == [False]

    def test_the_credit_is_a_number_of_dollars(self, rig: Rig) -> None:
        assert rig.provider.read_credit() == pytest.approx(25.5)
