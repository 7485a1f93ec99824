"""The real controller on virtual pods: one writer, no step lost, no pod too many, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.base.errors import StoreError
from supervisor.base.secrets import remember
from supervisor.fleet.controller import RunLook
from supervisor.fleet.decide import decide
from supervisor.fleet.model import Claim, Create, Destroy, Intent, Offered, Pod, Rented, Seen, State
from supervisor.fleet.observe import count_creates, find_useful_share, note_fault, observe, sum_dollars, sum_useful_s
from supervisor.fleet.places.base import Instance, Offer, Order, PlaceError, Want, label_of
from supervisor.simulator.virtual_fleet import VirtualPod
from tests.fleet.world import RUN, KilledError, VirtualBook, VirtualProvider, World, default_rules


def run_until(world: World, book: VirtualBook, over: Callable[[], bool], hours: float = 12.0) -> None:
    """Tick each 30 s until ``over``."""
    until = world.now + hours * 3600
    while not over():
        assert world.now < until, (book.said[-5:], world.held, world.paid())
        world.controller(book).tick()
        world.sleep(30)


def trains(world: World) -> Callable[[], bool]:
    def is_so() -> bool:
        holder = world.holder()
        return holder is not None and holder.step > 20

    return is_so


def train_world(seed: int) -> tuple[World, VirtualBook, VirtualPod]:
    """A world, the controller's memory, and the pod that trains there."""
    world = World(seed)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    first = world.holder()
    assert first is not None
    return world, book, first


def is_over(world: World) -> Callable[[], bool]:
    return lambda: world.held.code == 0 and not world.paid()


def test_a_run_without_a_pod_gets_one_and_is_finished() -> None:
    world = World(1)
    book = VirtualBook(world)
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1
    assert world.trouble == []
    assert book.said[-1].startswith("The run has ended: finished")


def test_an_outbid_pod_is_replaced_within_minutes_and_destroyed() -> None:
    world, book, first = train_world(2)
    world.outbid(first)
    began = world.now
    run_until(world, book, lambda: world.held.generation == 2)
    second = world.holder()
    assert second is not None
    assert world.now - began - second.boot_s <= 240  # 180 s of silence, and two looks
    run_until(world, book, is_over(world))
    assert world.trouble == []
    assert len(world.pods) == 2
    assert first.destroyed is not None


def outbid_at(world: World, pod: VirtualPod, lowest: float) -> None:
    pod.lowest_bid = lowest
    world.outbid(pod)


def test_an_outbid_pod_wakes_by_a_higher_bid_with_all_that_is_on_its_disk() -> None:
    world, book, first = train_world(60)
    first.complete.append(120)  # not published
    outbid_at(world, first, 3.0)
    run_until(world, book, trains_again(world, first))
    assert world.provider.bids == [(first.id, pytest.approx(3.6))]
    assert world.held.step is not None and world.held.step >= 120
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1
    assert "Pod i0 was outbid. Bidding $3.60 an hour for it: the lowest is $3.00." in book.said
    assert book.states[RUN].rented[0].bid is None


def trains_again(world: World, pod: VirtualPod) -> Callable[[], bool]:
    return lambda: world.holder() is pod and world.held.generation == 2 and pod.trains_from < world.now


@pytest.mark.parametrize(("lowest", "bid"), [(8.0, 9.6), (9.0, 10.0), (10.0, 10.0), (10.1, None), (None, None)])
def test_a_bid_is_never_above_what_the_place_allows(lowest: float | None, bid: float | None) -> None:
    world, book, first = train_world(61)
    first.lowest_bid = lowest
    world.outbid(first)
    run_until(world, book, lambda: world.held.generation == 2)
    assert [one for _, one in world.provider.bids] == ([] if bid is None else [pytest.approx(bid)])
    assert len(world.pods) == (2 if bid is None else 1)


@pytest.mark.parametrize(
    "limits", [{"per_hour": 3.5}, {"total": 0.01}, {"until": 1.0}, {"creates_per_hour": 1}, {"bids": {}}]
)
def test_no_bid_is_raised_above_a_limit(limits: dict[str, Any]) -> None:
    world, book, first = train_world(62)
    outbid_at(world, first, 3.0)
    for _ in range(4):
        world.controller(book, replace(default_rules(), **limits)).tick()
        world.sleep(30)
    assert world.provider.bids == []


@pytest.mark.parametrize("fault", ["refused", "sleeps", "worked"])
def test_a_bid_that_does_not_wake_the_pod_costs_minutes_and_the_next_pod_comes(fault: str) -> None:
    world, book, first = train_world(63)
    world.provider.faults["bid"] = [fault]
    outbid_at(world, first, 3.0)
    began = world.now
    run_until(world, book, lambda: len(world.pods) == 2 or world.held.generation == 2)
    assert len(world.pods) == (1 if fault == "worked" else 2)
    if fault != "worked":
        assert world.now - began <= 240 + 60
        assert len(world.provider.bids) == (fault == "sleeps")
    run_until(world, book, is_over(world))
    assert world.trouble == []


@pytest.mark.parametrize("fault", ["rate", "away"])
def test_a_bid_that_met_no_answer_is_made_again_for_three_minutes(fault: str) -> None:
    world, book, first = train_world(66)
    world.provider.faults["bid"] = [fault]
    outbid_at(world, first, 3.0)
    run_until(world, book, trains_again(world, first))
    assert len(world.pods) == 1
    assert [one for one, _ in world.provider.bids] == [first.id]
    assert f"virtual: Vast was asked for a bid: {fault}" in book.said
    world.provider.faults["bid"] = [fault] * 100
    outbid_at(world, first, 4.0)
    began = world.now
    run_until(world, book, lambda: len(world.pods) == 2)
    assert world.now - began <= 240 + 60
    assert 3 <= 100 - len(world.provider.faults["bid"]) <= 6  # once a look, though a tick may look more often


def test_a_bid_that_met_an_empty_account_is_made_again_after_fleet_up() -> None:
    world, book, first = train_world(67)
    world.provider.faults |= {"bid": ["credit"], "create": ["credit"]}
    outbid_at(world, first, 3.0)
    for _ in range(10):
        world.controller(book).tick()
        world.sleep(30)
    assert not world.provider.faults["create"]  # other places are tried at once
    book.states[RUN] = replace(book.states[RUN], up_at=world.now)
    run_until(world, book, trains_again(world, first))
    assert len(world.pods) == 1


def test_a_pod_that_is_outbid_again_and_again_is_bid_for_until_it_is_too_dear() -> None:
    world, book, first = train_world(64)
    for generation, lowest in enumerate((3.0, 5.0, 8.0), 2):
        outbid_at(world, first, lowest)
        run_until(world, book, lambda at=generation: world.held.generation == at)  # type: ignore[misc]
        world.sleep(60)
    outbid_at(world, first, 11.0)
    run_until(world, book, is_over(world))
    assert [one for _, one in world.provider.bids] == pytest.approx([3.6, 6.0, 9.6])
    assert len(world.pods) == 2


def test_no_bid_is_raised_for_a_pod_that_beats_though_it_is_listed_as_stopped() -> None:
    world, book, first = train_world(66)
    first.phase, first.lowest_bid = "stopped", 3.0
    run_until(world, book, is_over(world))
    assert world.provider.bids == []


def test_no_bid_is_raised_while_the_next_pod_starts() -> None:
    world, book, first = train_world(67)
    outbid_at(world, first, 50.0)
    run_until(world, book, lambda: len(world.pods) == 2)
    first.lowest_bid = 2.0
    run_until(world, book, is_over(world))
    assert world.provider.bids == []


def test_a_pod_that_woke_has_the_whole_patience_to_start() -> None:
    world, book, first = train_world(65)
    first.boot_s = 595.0  # more than the patience since its last beat
    outbid_at(world, first, 3.0)
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_a_pod_that_is_cut_off_keeps_the_run_when_it_comes_back_within_the_patience() -> None:
    world, book, first = train_world(3)
    first.online = False
    for _ in range(16):
        world.controller(book).tick()
        world.sleep(30)
    first.online = True
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


@pytest.mark.parametrize("seed", range(4, 10))
def test_silence_alone_convicts_after_the_whole_patience(seed: int) -> None:
    world, book, first = train_world(seed)
    first.online, silent_since = False, world.held.beat_at
    run_until(world, book, lambda: len(world.pods) == 2)
    [asked] = [one for one in book.states[RUN].asked.values() if one.generation == 2]
    assert 600 <= asked.at - silent_since <= 660
    second = world.pods["i1"]
    run_until(world, book, lambda: world.holder() is second)
    assert world.held.beat_at - asked.at - second.boot_s <= 60  # it claims at once
    run_until(world, book, is_over(world))
    assert first.destroyed is not None
    assert world.trouble == []


def test_a_holder_that_comes_back_while_the_next_pod_boots_keeps_the_run() -> None:
    world, book, first = train_world(5)
    first.online = False
    run_until(world, book, lambda: len(world.pods) == 2)
    first.online = True
    run_until(world, book, is_over(world))
    assert world.held.generation == 1
    assert world.pods["i1"].destroyed is not None
    assert world.pods["i1"].generation is None


def test_an_outbid_pod_that_wakes_later_is_destroyed_and_never_writes() -> None:
    world, book, first = train_world(6)
    world.outbid(first)
    run_until(world, book, lambda: world.held.generation == 2)
    world.wake(first)
    run_until(world, book, is_over(world))
    assert first.destroyed is not None
    assert world.held.generation == 2
    assert world.trouble == []


def test_a_pod_with_an_unpublished_step_is_kept_until_a_newer_one_is_published() -> None:
    world, book, first = train_world(7)
    world.held.unpublished = (120,)
    first.complete.append(120)
    world.outbid(first)
    run_until(world, book, lambda: world.held.generation == 2 and world.now - world.held.beat_at < 60)
    world.controller(book).tick()
    assert first.destroyed is None
    assert "step 120 may be nowhere else" in book.said[-1]
    run_until(world, book, lambda: first.destroyed is not None)
    assert (world.held.published or 0) >= 120


def test_an_unfit_host_is_left_and_not_rented_again() -> None:
    world = World(8)
    book = VirtualBook(world)
    world.bad = {"m0", "m1"}
    run_until(world, book, is_over(world))
    assert [pod.machine for pod in world.pods.values()] == ["m0", "m1", "m2"]
    assert any("the host has 1 GPU" in said for said in book.said)


def test_a_host_is_left_out_once_two_of_its_machines_were_bad() -> None:
    world = World(74)
    book = VirtualBook(world)
    hosts = {"m0": "bad", "m1": "other", "m2": "bad", "m3": "bad", "m4": "other", "m5": "other"}
    world.hosts = hosts
    world.bad = {"m0", "m1", "m2"}
    run_until(world, book, is_over(world))
    assert [pod.machine for pod in world.pods.values()] == ["m0", "m1", "m2", "m4"]
    faults = {name: len(times) for name, times in book.states[RUN].faults.items() if "host" in name}
    assert faults == {"virtual/host bad": 2, "virtual/host other": 1}


def test_one_machine_that_is_bad_twice_says_nothing_of_its_host() -> None:
    pod = Pod("vast", 1, Instance("i0", label_of(RUN, 1, "abcdef"), "running", 2.0, machine="7", host="9"))
    state = note_fault(note_fault(State(), pod, 10.0), pod, 20.0)
    assert state.faults == {"vast/7": (10.0, 20.0), "vast/host 9": (10.0,)}
    offers = tuple(Offered("v", Offer(name, "H100", 2, 2.0, True, name, host="9")) for name in ("7", "8"))
    decision = decide(state, replace(default_rules(), places={"v": "vast"}), Seen(30.0, Claim(), offers=offers))
    assert isinstance(decision.action, Create)
    assert decision.action.offered.offer.machine == "8"


def test_a_boot_that_never_ends_is_given_up_and_its_host_remembered() -> None:
    world = World(9)
    book = VirtualBook(world)
    world.provider.faults["create"] = ["no-boot"]
    run_until(world, book, is_over(world))
    assert [pod.machine for pod in world.pods.values()] == ["m0", "m1"]
    assert world.pods["i0"].destroyed is not None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("pulling\nno space \x1b[31mleft on device\n\n", "The last line that it printed: no space left on device"),
        ("key K-of-the-run-0123456789 is wrong", "The last line that it printed: key *** is wrong"),
        ("x" * 1000, f"The last line that it printed: {'x' * 200}"),
        (" \n", "It printed nothing."),
        (PlaceError("away", "Vast did not fetch the log."), "Vast did not fetch the log."),
    ],
)
def test_what_a_pod_printed_that_never_began_is_told_before_it_goes(printed: str | PlaceError, said: str) -> None:
    remember("K-of-the-run-0123456789")
    world = World(72)
    book = VirtualBook(world)
    world.provider.faults["create"] = ["no-boot"]
    world.provider.printed = printed
    run_until(world, book, lambda: len(world.pods) == 2)
    assert world.pods["i0"].destroyed is not None
    [told] = [one for one in book.said if one.startswith("Pod i0 has not claimed the run within 30 min")]
    assert told.endswith(f"it is destroyed. {said}")
    run_until(world, book, is_over(world))
    assert len([one for one in book.said if "printed" in one]) <= 1  # one that trained is destroyed without a word


def test_after_three_pods_that_never_began_a_person_is_asked_and_up_tries_again() -> None:
    world = World(20)
    book = VirtualBook(world)
    world.provider.faults["create"] = ["no-boot"] * 4
    told = None
    while told is None or not told.decision.person:
        told = world.controller(book).tick()[0]
        world.sleep(60)
        assert world.now < 1_000_000 + 4 * 3600
    assert "3 pods in a row" in told.decision.sentence
    assert len(world.pods) == 3
    book.states[RUN] = replace(book.states[RUN], up_at=world.now)
    world.provider.faults.clear()
    run_until(world, book, is_over(world))
    assert len(world.pods) == 4


@pytest.mark.parametrize("fault", ["worked", "lost", "taken", "credit", "rate"])
def test_a_create_that_fails_makes_no_second_pod(fault: str) -> None:
    world = World(10)
    book = VirtualBook(world)
    world.provider.faults["create"] = [fault]
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1
    assert world.most_alive == 1


def test_one_list_that_is_empty_convicts_nobody() -> None:
    world = World(11)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    for _ in range(5):
        world.provider.faults["list"] = ["flap"]
        world.controller(book).tick()
        world.sleep(30)
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_one_empty_list_is_no_second_signal_for_a_pod_that_is_cut_off() -> None:
    world, book, first = train_world(16)
    first.online = False
    world.sleep(200)
    world.provider.faults["list"] = ["flap"]
    world.controller(book).tick()
    first.online = True
    world.sleep(70)
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_a_provider_that_is_away_is_no_second_signal() -> None:
    world, book, first = train_world(17)
    first.online, world.provider.away_until = False, world.now + 450
    while world.now < world.provider.away_until:
        told = world.controller(book).tick()[0]
        world.sleep(30)
        assert told.decision.action is None
    assert "It is convicted after 10 min" in told.decision.sentence
    assert all(one.is_living and one.missing_since is None for one in book.states[RUN].rented)


def test_a_pod_that_another_controller_made_meanwhile_is_seen_right_before_the_create() -> None:
    world = World(18)
    book, other = VirtualBook(world), VirtualBook(world)
    look = world.provider.find_offers

    def find_offers(want: Want) -> list[Offer]:
        found = look(want)
        world.provider.find_offers = look  # type: ignore[method-assign]
        world.controller(other).tick()
        for pod in world.pods.values():
            pod.listed_from = 0.0
        return found

    world.provider.find_offers = find_offers  # type: ignore[method-assign]
    told = world.controller(book).tick()[0]
    assert "lists i0 for this run already" in told.failed
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_a_create_that_is_listed_after_the_next_one_was_made_is_a_duplicate_that_goes() -> None:
    world = World(40)
    book = VirtualBook(world)
    world.listed_after_s = [1300.0]
    world.provider.faults["create"] = ["no-boot"]
    world.controller(book).tick()
    world.listed_after_s = [0.0]
    run_until(world, book, is_over(world))
    assert len(world.pods) == 2
    assert world.most_alive == 2


def test_a_create_that_is_listed_late_is_waited_for() -> None:
    world = World(19)
    book = VirtualBook(world)
    world.listed_after_s = [100.0]
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_a_store_that_is_away_changes_nothing() -> None:
    world = World(12)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    world.store_away_until = world.now + 3600
    for _ in range(100):
        world.controller(book).tick()
        world.sleep(30)
    assert "It is unknown who trains, so nothing is changed: the store is away." in book.said[-1]
    assert len(world.pods) == 1


def test_a_store_that_was_away_gives_a_pod_that_boots_its_time_again() -> None:
    world = World(41)
    book = VirtualBook(world)
    world.controller(book).tick()
    world.store_away_until = world.now + 3600
    while world.now < world.store_away_until + 300:
        with contextlib.suppress(StoreError):
            world.controller(book).tick()
        world.sleep(30)
    run_until(world, book, is_over(world))
    assert len(world.pods) == 1


def test_a_pod_of_which_little_is_known_is_waited_for_when_the_store_is_back() -> None:
    world = World(53)
    book = VirtualBook(world)
    world.controller(book).tick()
    book.states.clear()
    for away_s in (0.0, 3600.0, 0.0):
        world.store_away_until = world.now + away_s
        while world.now <= world.store_away_until:
            world.controller(book).tick()
            world.sleep(30)
    assert "starts since" in book.said[-1] or "trains" in book.said[-1]
    assert len(world.pods) == 1


@pytest.mark.parametrize(
    ("generation", "label", "holds_nothing"),
    [(0, "", True), (1, "another", True), (1, "", False), (2, "another", False), (1, "its own", False)],
)
def test_a_pod_that_is_listed_late_holds_nothing_only_if_it_never_held_the_run(
    generation: int, label: str, holds_nothing: bool
) -> None:
    own = label_of(RUN, 1, "abcdef")
    pod = Pod("virtual", 1, Instance("i7", own, "running", 2.0))
    claim = Claim(generation, "m", 900.0, label=own if label == "its own" else label)
    state = observe(State(asked={own: Intent(own, "spot", "virtual", 1, 500.0, 2.0)}), Seen(1000.0, claim, pods=(pod,)))
    assert (state.rented[0].unpublished == ()) is holds_nothing


def test_silence_counts_from_when_the_store_of_the_memory_answered_again() -> None:
    """Then nothing could be written down: the controller that goes on is the one that knows."""
    world, book, first = train_world(42)
    controller = world.controller(book)
    controller.tick()
    world.store_away_until = began = world.now + 700
    book.away_until = began
    first.online = False
    while world.now < began:
        with contextlib.suppress(StoreError):
            controller.tick()
        world.sleep(30)
    told = controller.tick()[0]
    assert told.decision.action is None
    assert "of it the store was away" in told.decision.sentence
    while len(world.pods) == 1:
        controller.tick()
        world.sleep(30)
    assert 590 <= world.now - began <= 700


@pytest.mark.parametrize("beat_after_s", [0.0, 15.0])
def test_an_outage_is_no_silence_also_when_a_beat_came_between_the_last_look_and_it(beat_after_s: float) -> None:
    world = World(4, finish=10**9)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    mark = world.held.mark
    while world.held.mark == mark:
        world.sleep(1)
    world.sleep(50)
    world.controller(book).tick()
    world.sleep(beat_after_s)
    world.store_away_until = world.now + 720
    world.beats_late_until = world.store_away_until + 50
    while world.now < world.store_away_until + 300:
        world.sleep(30)
        world.controller(book).tick()
    assert len(world.pods) == 1


def test_a_pod_that_beat_once_more_before_an_outage_and_hangs_is_convicted_after_the_patience() -> None:
    world, book, first = train_world(42)
    world.controller(book).tick()
    world.sleep(61)
    first.online = False
    world.store_away_until = began = world.now + 700
    run_until(world, book, lambda: len(world.pods) == 2)
    assert 540 <= world.now - began <= 660


def test_a_store_that_refuses_the_key_is_for_a_person() -> None:
    world, book, first = train_world(43)
    controller = world.controller(book)

    def look() -> RunLook:
        raise StoreError("permanent", "B2 refuses the key k1 (401): make a new one")

    controller._runs = {RUN: replace(controller._runs[RUN], look=look)}
    told = controller.tick()[0]
    assert told.decision.person
    assert "B2 refuses the key k1 (401): make a new one." in told.decision.sentence
    book.states[RUN] = replace(book.states[RUN], agreed=(f"virtual/{first.id}",))
    controller.tick()
    assert first.destroyed is not None  # a person's word needs no store


def test_limits_stop_renting_and_not_a_pod_that_trains() -> None:
    world = World(13)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    rules = replace(default_rules(), total=0.01)
    told = world.controller(book, rules).tick()
    assert "are allowed (limits.total)" in told[0].decision.sentence
    assert told[0].decision.person
    assert len(world.paid()) == 1
    first = world.holder()
    assert first is not None
    world.outbid(first)
    for _ in range(40):
        world.controller(book, rules).tick()
        world.sleep(30)
    assert len(world.pods) == 1


def test_two_runs_in_one_tick_stay_below_the_limit_together() -> None:
    world = World(21)
    book = VirtualBook(world)
    rules = replace(default_rules(), per_hour=4.0)  # one pod is 2.40
    one = world.controller(book, rules)
    one._runs["other"] = replace(one._runs[RUN], rules=replace(rules, run_id="other"))  # type: ignore[index]
    first, second = one.tick()
    assert first.did and not second.did
    assert "nothing fits" in second.decision.sentence
    assert "cost $2.52 an hour or more, $2.40 are spent now, and $4.00 are allowed" in second.decision.sentence
    assert not second.decision.person
    assert len(world.pods) == 1


def test_a_limit_below_each_offer_is_for_a_person() -> None:
    world = World(44)
    book = VirtualBook(world)
    dear = replace(default_rules(), per_hour=1.0)
    told = world.controller(book, dear).tick()[0]
    assert told.decision.person
    assert "6 of 6 cost $2.40 an hour or more, $0.00 are spent now, and $1.00 are allowed" in told.decision.sentence
    book.states[RUN] = replace(book.states[RUN], faults={"virtual/m0": (world.now,)})  # it may be cheaper tomorrow
    told = world.controller(book, dear).tick()[0]
    assert not told.decision.person
    assert "1 of 6 offers are left out" in told.decision.sentence


def test_a_machine_that_was_offered_for_hours_is_taken_before_a_cheaper_one_that_is_new() -> None:
    world, book, first = train_world(54)
    searches = []
    find_offers = world.provider.find_offers

    def count(want: Want) -> list[Offer]:
        searches.append(world.now)
        return find_offers(want)

    world.provider.find_offers = count  # type: ignore[method-assign]
    world.times = first.times = replace(first.times, finish=100_000)
    world.machines = ["m0", "m3", "m4"]
    for number in range(600):
        if number == 300:
            world.machines.insert(1, "m1")  # cheaper than m3, and there for 2.5 h
        world.controller(book).tick()
        world.sleep(30)
    assert len(searches) == 10  # in five hours
    world.die(first)
    world.machines.remove("m0")
    run_until(world, book, lambda: len(world.pods) == 2)
    assert world.pods["i1"].machine == "m3"
    book.states[RUN] = replace(book.states[RUN], offered={})
    world.die(world.pods["i1"])
    run_until(world, book, lambda: len(world.pods) == 3)
    assert world.pods["i2"].machine == "m1"


def test_two_runs_do_not_outbid_each_other_on_one_machine() -> None:
    world = World(55)
    world.machines = ["m0"]
    world.provider.find_offers = lambda want: world.find_machines()  # type: ignore[method-assign]
    controller = world.controller(VirtualBook(world))
    controller._runs = {
        name: replace(controller._runs[RUN], rules=replace(default_rules(), run_id=name)) for name in (RUN, "other")
    }
    first, second = controller.tick()
    assert first.did and not second.did
    assert "1 of 1 offers are left out: the machine had a fault, was just taken, or has a pod" in (
        second.decision.sentence
    )


def test_no_machine_is_rented_on_demand_where_a_spot_pod_of_the_fleet_lives() -> None:
    """Vast.ai stops the spot pod for it, also one of another run."""
    world, book, first = train_world(65)
    on_demand = [replace(one, spot=False) for one in world.find_machines() if one.machine in (first.machine, "m4")]
    world.provider.find_offers = lambda want: on_demand  # type: ignore[method-assign]
    controller = world.controller(book)
    controller._runs = {
        name: replace(controller._runs[RUN], rules=replace(default_rules(), run_id=name)) for name in (RUN, "other")
    }
    world.held.beat_at -= 700.0  # its pod is silent, and listed as running
    controller.tick()
    assert first.destroyed is None
    rented = [one.machine for one in world.paid() if one is not first]
    assert rented and set(rented) == {"m4"}


def test_a_pod_without_a_record_is_not_destroyed_because_the_run_has_ended() -> None:
    """Another fleet with a run of this id trains there, on the same account."""
    theirs = Pod("virtual", 7, Instance("555", label_of(RUN, 7, "aaaaaa"), "running", 6.0, True))
    own = label_of(RUN, 3, "bbbbbb")
    ended = Claim(3, "m", 900.0, True, 0, "finished", own, 400, ())
    state = State(generation=3, heard_at=950.0, beat_at=900.0)
    decision = decide(state, default_rules(), Seen(1000.0, ended, published=400, pods=(theirs,)))
    assert decision.action is None and decision.person
    assert decision.sentence == (
        "The run has ended: finished. Pod 555 is kept, and billed: this fleet has no record of it, and another fleet "
        "may have a run of this id. To lose it: rl-supervisor fleet destroy virtual/555"
    )
    holder = Pod("virtual", 3, Instance("444", own, "running", 6.0, True))  # the claim says that it was this run's
    decision = decide(state, default_rules(), Seen(1000.0, ended, published=400, pods=(holder,)))
    assert decision.action == Destroy(holder)


def test_an_own_machine_is_used_again_where_a_pod_that_ended_is_kept() -> None:
    kept = Pod("ssh/box1", 1, Instance("1", label_of(RUN, 1, "aaaaaa"), "stopped", 0.0, machine="box1"))
    state = State(rented=(Rented(kept, 0.0, 0.0, 0.0, "own", held=True, unpublished=(12,)),))
    offered = Offered("own", Offer("box1", "H100", 2, 0.0, False, "box1"))
    seen = Seen(1000.0, Claim(), offers=(offered,), occupied=frozenset({"ssh/box1"}), pods=(kept,))
    rules = replace(default_rules(), places={"own": "ssh/box1"})
    assert isinstance(decide(state, rules, seen).action, Create)


def test_a_search_that_is_refused_says_why_also_in_the_hour_after() -> None:
    world = World(45)
    book = VirtualBook(world)
    refusal = PlaceError("refused", "Vast.ai was asked for offers: there is no GPU H1000.")

    def find_offers(want: Want) -> list[Offer]:
        raise refusal

    world.provider.find_offers = find_offers  # type: ignore[method-assign]
    for left in ("60 min", "59 min"):
        told = world.controller(book).tick()[0]
        assert told.decision.person
        assert f"spot: Vast.ai was asked for offers: there is no GPU H1000 (asked again in {left})" in (
            told.decision.sentence
        )
        world.sleep(60)


def test_creates_that_made_nothing_do_not_count_and_one_without_an_answer_does() -> None:
    for fault, counted in (("taken", 0), ("credit", 0), ("lost", 1)):
        world = World(46)
        book = VirtualBook(world)
        world.provider.faults["create"] = [fault]
        world.controller(book).tick()
        assert count_creates(book.states[RUN], world.now) - len(world.pods) == counted, fault


def test_hours_are_useful_from_the_first_step_to_the_newest_that_is_published() -> None:
    world = World(56)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    first = world.holder()
    assert first is not None
    run_until(world, book, lambda: (world.held.step or 0) >= 60)
    world.die(first)
    run_until(world, book, is_over(world))
    one, two = (pod.trained.useful_s for pod in book.states[RUN].rented if pod.trained is not None)
    kept = world.pods["i1"].complete and min(world.pods["i1"].complete) - 12  # where the second one began
    assert one == pytest.approx(10.0 * kept, abs=75)  # a beat a minute
    assert two == pytest.approx(10.0 * (400 - kept), abs=75)
    paid = sum(pod.seen_at - pod.since for pod in book.states[RUN].rented)
    assert find_useful_share([book.states[RUN]], "spot") == pytest.approx((one + two) / paid)
    assert find_useful_share([book.states[RUN]], "elsewhere") is None


def test_a_pod_that_goes_on_at_an_older_step_keeps_what_was_useful_before() -> None:
    state = State(
        rented=(Rented(Pod("virtual", 1, Instance("i0", label_of(RUN, 1, "abcdef"), "running", 2.0)), 0, 0, 2.0),)
    )
    for at, step, published in ((100, 10, 0), (200, 20, 15), (300, 15, 15), (400, 25, 25)):
        claim = Claim(1, f"m{at}", at, label=label_of(RUN, 1, "abcdef"), step=step)
        seen = Seen(at, claim, published=published, pods=(state.rented[0].pod,))
        state = observe(state, seen)
    assert sum_useful_s(state.rented) == pytest.approx(50 + 100)


def test_dollars_of_pods_that_are_forgotten_stay_in_the_sum() -> None:
    world, book, _ = train_world(47)
    [one] = book.states[RUN].rented
    old = tuple(
        replace(one, pod=replace(one.pod, instance=replace(one.pod.instance, id=f"old{n}")), dollars=1.0, ended=1.0)
        for n in range(250)
    )
    book.states[RUN] = replace(book.states[RUN], rented=(*old, one))
    told = world.controller(book, replace(default_rules(), total=250.5)).tick()[0]
    assert len(book.states[RUN].rented) == 201
    assert sum_dollars(book.states[RUN]) == pytest.approx(250 + one.dollars, abs=0.1)
    told = world.controller(book, replace(default_rules(), total=250.0)).tick()[0]
    assert "$250.00 are allowed (limits.total)" in told.decision.sentence


def test_a_state_that_is_damaged_stops_renting_and_not_the_other_runs() -> None:
    world, book, first = train_world(48)
    book.damaged = {"other"}
    book.states["other"] = book.states[RUN]
    told, other = sorted(world.controller(book).tick(), key=lambda told: told.run_id != RUN)
    assert "trains" in told.decision.sentence
    assert other.decision.person
    assert "no record of this controller" in other.decision.sentence
    world.die(first)
    for _ in range(30):
        told = world.controller(book).tick()[-1]
        world.sleep(30)
    assert "what the fleet has spent is unknown" in told.decision.sentence
    assert len(world.pods) == 1


def test_a_run_that_left_the_file_is_counted_and_told_and_its_pod_goes_when_a_person_agrees() -> None:
    world, book, first = train_world(49)
    book.states["old"] = book.states.pop(RUN)
    first.label = first.label.replace(RUN, "old")
    world.sleep(3600)
    rules = replace(default_rules(), total=2.0)
    for _ in range(2):
        told, old = world.controller(book, rules).tick()
        assert (told.run_id, old.run_id) == (RUN, "old")
        assert old.decision.person
        assert "virtual/i0 is still billed for it" in old.decision.sentence
        world.sleep(60)
    assert "are allowed (limits.total)" in told.decision.sentence
    assert first.destroyed is None
    book.states["old"] = replace(book.states["old"], agreed=("virtual/i0",))
    world.controller(book, rules).tick()
    assert first.destroyed is not None
    assert [told.run_id for told in world.controller(book, rules).tick()] == [RUN]


def test_a_pod_that_held_the_run_between_two_looks_may_hold_a_step() -> None:
    world, book, _ = train_world(50)
    state = book.states[RUN]
    second = replace(state.rented[0].pod.instance, id="i9", label=state.rented[0].pod.instance.label[:-6] + "abcdef")
    listed = (state.rented[0].pod, Pod("virtual", 1, second))
    world.sleep(60)
    claim = world.look().claim
    for generation, action in ((1, Destroy), (3, None)):
        met = Rented(listed[1], world.now, world.now, 2.0)
        seen = Seen(world.now, replace(claim, generation=generation), pods=listed)
        decision = decide(replace(state, rented=(*state.rented, met)), default_rules(), seen)
        assert type(decision.action) is (action or type(None)), decision.sentence
        assert decision.person is (action is None)


def test_a_hundred_pods_that_are_gone_take_one_second_look_and_not_a_hundred() -> None:
    world, book, first = train_world(51)
    world.die(first)
    controller = world.controller(book, replace(default_rules(), creates_per_hour=0))
    state, run = book.states[RUN], controller._runs[RUN]
    runs = {f"run{n}": replace(run, rules=replace(run.rules, run_id=f"run{n}")) for n in range(100)}
    book.states = dict.fromkeys(runs, state)
    controller._runs = runs
    world.sleep(200)
    began, listed = world.now, world.provider.requests
    tolds = controller.tick()
    assert len(tolds) == 100
    assert all("within the last hour (limits.creates_per_hour)" in told.decision.sentence for told in tolds)
    assert world.now - began <= 60
    assert world.provider.requests - listed < 100 * 4  # each look is written down, and few lists are asked for


def test_who_only_observes_remembers_the_first_look_that_missed_a_pod() -> None:
    world, book, first = train_world(52)
    world.die(first)
    world.sleep(200)
    observer = world.controller(book, dry=True)
    sentences = []
    for _ in range(3):
        sentences.append(observer.tick()[0].decision.sentence)
        world.sleep(30)
    assert "looking again" in sentences[0]
    assert sentences[1].startswith("Renting 2 x H100")
    assert len(world.pods) == 1
    assert book.states[RUN].rented[0].missing_since is None  # nothing is written


def test_a_pod_at_a_place_that_is_no_more_in_the_file_is_unknown_and_not_gone() -> None:
    world, book, first = train_world(22)
    other = VirtualProvider(World(99))  # which lists none of them
    other.name = "elsewhere"
    rules = replace(default_rules(), places={"spot": "elsewhere"})
    first.online = False
    for _ in range(12):
        controller = world.controller(book, rules)
        controller._places = {"spot": replace(controller._places["spot"], provider=other)}
        told = controller.tick()[0]
        world.sleep(30)
        assert told.decision.action is None
    assert "It is convicted after 10 min" in told.decision.sentence
    assert [one.is_living for one in book.states[RUN].rented] == [True]


def test_what_a_pod_cost_is_counted_until_the_look_that_missed_it() -> None:
    world, book, first = train_world(23)
    world.sleep(5 * 3600)  # no controller looks, and the pod dies in the last minute
    world.die(first)
    world.controller(book).tick()
    [one] = [one for one in book.states[RUN].rented if one.id == first.id]
    assert one.dollars >= 5 * first.per_hour


def test_dollars_are_those_that_are_billed_also_for_the_disk_of_a_pod_that_is_stopped() -> None:
    world, book, first = train_world(68)
    world.disk_per_hour = 1.0
    world.provider.faults["destroy"] = ["lost"] * 200
    first.complete.append(10**6)  # kept for long
    world.held.unpublished = (10**6,)
    world.outbid(first)
    for _ in range(120):
        world.controller(book).tick()
        world.sleep(30)
    world.settle()
    assert first.destroyed is None
    assert sum_dollars(book.states[RUN]) == pytest.approx(world.dollars, rel=0.02)


def test_the_disk_of_a_pod_that_is_stopped_counts_for_what_may_be_rented_beside_it() -> None:
    world, book, first = train_world(71)
    world.disk_per_hour = 1.0
    world.held.unpublished = (10**6,)
    world.outbid(first)
    rules = replace(default_rules(), per_hour=3.5)  # the next machine is 2.52
    for _ in range(12):
        told = world.controller(book, rules).tick()[0]
        world.sleep(30)
    assert len(world.pods) == 1
    assert "$1.00 are spent now, and $3.50 are allowed (limits.per_hour)" in told.decision.sentence


@pytest.mark.parametrize("trouble", ["none", "outbid", "gone"])
def test_a_pod_whose_label_the_provider_lost_is_known_by_its_id(trouble: str) -> None:
    world, book, first = train_world(69)
    world.without_label = {first.id}
    for _ in range(20):
        world.controller(book).tick()
        world.sleep(30)
    assert world.holder() is first and len(world.pods) == 1
    if trouble == "outbid":
        world.outbid(first)
    elif trouble == "gone":
        world.die(first)
    run_until(world, book, is_over(world))
    assert world.trouble == []
    assert len(world.pods) == (1 if trouble == "none" else 2)


def test_a_pod_that_trains_is_billed_also_while_its_provider_does_not_list_it() -> None:
    world, book, first = train_world(73)
    first.listed_from = world.now + 10**6
    run_until(world, book, lambda: world.held.code == 0)
    world.settle()
    assert len(world.pods) == 1
    told = world.controller(book).tick()[0]
    assert told.did == ("The run has ended: finished. Pod i0 is destroyed.",)
    assert first.destroyed is not None
    assert sum_dollars(book.states[RUN]) == pytest.approx(world.dollars, rel=0.05)


def test_an_instance_that_a_person_made_is_never_touched() -> None:
    world, book, first = train_world(70)
    theirs = world.rent(world.find_machines()[5], Order(label_of("other", 1, "abcdef"), "x", 1, "x", {}), boots=False)
    world.without_label = {theirs.id}
    run_until(world, book, lambda: world.held.code == 0 and world.paid() == [theirs])
    for _ in range(5):
        world.controller(book).tick()
        world.sleep(30)
    assert theirs.destroyed is None
    assert [one.id for one in book.states[RUN].rented] == [first.id]


def test_down_destroys_what_is_rented_and_rents_no_more() -> None:
    world = World(14)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    run_until(world, book, lambda: world.held.unpublished == ())
    book.states[RUN] = replace(book.states[RUN], wanted=False)
    run_until(world, book, lambda: not world.paid())
    assert world.trouble == [] or "while it holds the run" in world.trouble[0]
    for _ in range(5):
        assert world.controller(book).tick()[0].decision.done
        world.sleep(30)
    assert len(world.pods) == 1


@pytest.mark.soak
@pytest.mark.parametrize("kill_at", range(1, 41))
def test_a_controller_that_is_killed_at_any_request_rents_nothing_twice(kill_at: int) -> None:
    world, book, first = train_world(15)
    world.outbid(first)
    world.provider.kill_at = world.provider.requests + kill_at
    killed = False
    while world.held.generation < 2 or (kill_at > 20 and not killed):
        try:
            world.controller(book).tick()
        except KilledError:
            killed = True
        world.sleep(30)
        assert world.now < 1_100_000, book.said[-3:]
    run_until(world, book, is_over(world))
    assert killed
    assert len(world.pods) == 2
    assert world.trouble == []


@pytest.mark.parametrize("seed", [*range(100), *(pytest.param(n, marks=pytest.mark.soak) for n in range(100, 500))])
def test_random_faults_in_combination(seed: int) -> None:
    """Promises, whatever comes: no step lost, no pod left, the run ends, never more than two pods for long."""
    world = World(1000 + seed, finish=500)
    book = VirtualBook(world)
    luck = random.Random(seed)
    until = world.now + 72 * 3600
    while not is_over(world)():
        assert world.now < until, (book.said[-5:], world.held, world.paid())
        happen(world, luck)
        with contextlib.suppress(KilledError):
            world.controller(book).tick()
        world.sleep(luck.choice([20, 30, 45, 30, 30, 400]))
    assert world.trouble == []
    assert world.most_alive <= 3


def happen(world: World, luck: random.Random) -> None:
    """At most one thing more goes wrong, now and then; several may last at once."""
    if luck.random() > 0.06:
        return
    pods = world.paid()
    pod = luck.choice(pods) if pods else None
    what = luck.randrange(14)
    if what == 0 and pod is not None:
        pod.lowest_bid = luck.choice([None, 2.0, 4.0, 9.0, 20.0])
        world.outbid(pod)
    elif what == 1 and pod is not None:
        world.wake(pod)
    elif what == 2 and pod is not None:
        world.die(pod)
    elif what == 3 and pod is not None:
        pod.online = not pod.online
    elif what == 4:
        world.store_away_until = world.now + luck.uniform(30, 1500)
    elif what == 5:
        world.provider.away_until = world.now + luck.uniform(30, 1500)
    elif what == 6:
        world.provider.faults["list"] = ["flap"]
    elif what == 7:
        world.provider.faults["create"] = [luck.choice(["worked", "lost", "taken", "credit", "rate", "no-boot"])]
    elif what == 8:
        world.provider.faults["destroy"] = [luck.choice(["lost", "worked"])]
        world.provider.faults["bid"] = [luck.choice(["refused", "sleeps", "worked"])]
    elif what == 9:
        world.provider.kill_at = world.provider.requests + luck.randrange(1, 12)
    elif what == 10:
        world.bad = {luck.choice(world.machines)}
    elif what == 11:
        for cut in world.pods.values():
            cut.online = True
    elif what == 12:
        world.listed_after_s = luck.choice([[0.0, 100.0], [0.0, 300.0]])
    elif what == 13 and pod is not None and now_known(pod):
        world.without_label.add(pod.id)


def now_known(pod: VirtualPod) -> bool:
    """One that the fleet never saw with its label is another's for ever."""
    return pod.generation is not None


# ---------------------------------------------------------------- what a person says, and what a provider refuses


def test_a_pod_that_trains_is_destroyed_when_a_person_agreed_and_the_next_one_goes_on() -> None:
    world, book, first = train_world(30)
    book.states[RUN] = replace(book.states[RUN], agreed=(f"virtual/{first.id}",))
    began = world.now
    world.controller(book).tick()
    assert first.destroyed is not None
    world.trouble.clear()
    run_until(world, book, lambda: len(world.pods) == 2)
    assert world.now - began <= 240  # as after any other loss
    run_until(world, book, is_over(world))
    assert len(world.pods) == 2


def test_a_pod_whose_destroy_was_confirmed_and_that_is_listed_on_has_the_whole_patience() -> None:
    world, book, first = train_world(30)
    book.states[RUN] = replace(book.states[RUN], agreed=(f"virtual/{first.id}",))
    world.provider.destroy = lambda one: world.stop_processes(world.pods[one.id])  # type: ignore[method-assign]
    began = world.now
    run_until(world, book, lambda: len(world.pods) == 2)
    assert 570 <= world.now - began <= 660


def test_who_let_one_pod_go_has_not_agreed_to_lose_another_provider_s_of_that_id() -> None:
    label = label_of(RUN, 9, "abcdef")
    pod = Pod("slurm", 9, Instance("1003", label, "running", 0.0, is_job=True))
    job = Rented(pod, 0.0, 100.0, 0.0, "cluster", held=True, step=500, unpublished=(500,))
    claim = Claim(9, "m", 990.0, label=label, step=500, unpublished=(500,))
    for agreed, action in (("vast/1003", None), ("slurm/1003", Destroy(pod))):
        state = State(agreed=(agreed,), generation=9, rented=(job,))
        assert decide(state, default_rules(), Seen(1000.0, claim, pods=(pod,))).action == action


def test_an_order_of_an_older_version_names_an_id_alone_and_means_the_only_pod_that_had_it() -> None:
    label = label_of(RUN, 9, "abcdef")
    pod = Pod("slurm", 9, Instance("1003", label, "running", 0.0, is_job=True))
    job = Rented(pod, 0.0, 100.0, 0.0, "cluster", held=True, step=500, unpublished=(500,))
    over = Rented(replace(pod, provider="vast"), 0.0, 50.0, 2.0, "spot", ended=50.0)
    claim = Claim(9, "m", 990.0, label=label, step=500, unpublished=(500,))
    for rented, action in (((job,), Destroy(pod)), ((over, job), None)):
        state = State(agreed=("1003",), generation=9, rented=rented)
        assert decide(state, default_rules(), Seen(1000.0, claim, pods=(pod,))).action == action


def test_up_starts_a_run_again_that_needed_a_person() -> None:
    world = World(31)
    book = VirtualBook(world)
    run_until(world, book, trains(world))
    held = world.held
    held.released, held.code, held.reason, held.beat_at = True, 93, "the key of W&B is wrong", world.now
    first = next(iter(world.pods.values()))
    first.on = False
    for _ in range(40):
        [told] = world.controller(book).tick()
        world.sleep(30)
    assert told.decision.person
    assert "the key of W&B is wrong. Pod i0 is still rented." in told.decision.sentence
    assert len(world.pods) == 1
    book.states[RUN] = replace(book.states[RUN], up_at=world.now)
    for _ in range(40):
        world.controller(book).tick()
        world.sleep(30)
    assert len(world.pods) == 2


def test_a_destroy_that_is_refused_is_asked_for_again_and_the_pod_is_not_recorded_as_over() -> None:
    world, book, first = train_world(32)
    world.outbid(first)
    run_until(world, book, lambda: world.held.generation == 2)
    world.provider.faults["destroy"] = ["lost"] * 3
    until = world.now + 300
    while world.now < until and not world.controller(book).tick()[0].failed:
        world.sleep(30)
    [one] = [one for one in book.states[RUN].rented if one.id == first.id]
    assert one.is_living and first.destroyed is None
    run_until(world, book, is_over(world))
    assert first.destroyed is not None


def test_a_pod_that_takes_its_time_to_end_is_told_once() -> None:
    world, book, first = train_world(33)
    told: list[str] = []
    world.provider.destroy = lambda instance: told.append(instance.id)  # type: ignore[method-assign]
    book.states[RUN] = replace(book.states[RUN], agreed=(f"virtual/{first.id}",))
    for _ in range(8):
        world.controller(book).tick()
        world.sleep(30)
    assert told == [first.id]
    world.sleep(120)
    world.controller(book).tick()
    assert told == [first.id] * 2


def test_a_key_that_the_provider_refuses_is_for_a_person_while_the_pod_trains() -> None:
    world = World(34)
    book = VirtualBook(world)
    run_until(world, book, trains(world))

    def refuse() -> list[Instance]:
        raise PlaceError("key", "HTTP 401.")

    world.provider.list_instances = refuse  # type: ignore[method-assign]
    [told] = world.controller(book).tick()
    assert told.decision.person
    assert "trains" in told.decision.sentence
    assert "virtual refuses the account's key: HTTP 401." in told.decision.sentence


def test_hosts_that_are_all_unfit_are_not_rented_for_ever() -> None:
    world = World(35)
    book = VirtualBook(world)
    world.machines = [f"m{number}" for number in range(20)]
    world.bad = set(world.machines)
    for _ in range(400):
        [told] = world.controller(book).tick()
        world.sleep(30)
    assert told.decision.person
    assert len(world.pods) == 6
    assert not world.paid()


def test_a_pod_that_may_hold_a_step_and_never_began_is_not_in_the_way_of_the_next() -> None:
    world = World(36)
    book = VirtualBook(world)
    world.provider.faults["create"] = ["no-boot"]
    world.controller(book).tick()
    book.states.clear()  # a controller that knows nothing of it
    run_until(world, book, lambda: world.held.code == 0)
    assert world.pods["i0"].destroyed is None
    told = world.controller(book).tick()[0]
    assert told.decision.person and "Pod i0 is kept, and billed: this fleet has no record" in told.decision.sentence
    book.states[RUN] = replace(book.states[RUN], agreed=("virtual/i0",))
    run_until(world, book, is_over(world))
    assert len(world.pods) == 2
