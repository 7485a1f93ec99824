"""Providers that do not show what they rented, or keep what they were told to end; and limits to the cent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.fleet.controller import Controller, Place, Run, RunLook
from supervisor.fleet.decide import _list_unseen
from supervisor.fleet.keys import _name_keys, name_key
from supervisor.fleet.messages import list_messages
from supervisor.fleet.model import Claim, Seen
from supervisor.fleet.places.base import Instance, Offer, PlaceError
from supervisor.simulator.virtual_fleet import JobTimes, VirtualPod
from tests.fleet.test_combined_faults import WANT, TwoPlaces, TwoRuns, order
from tests.fleet.test_controller import run_until, train_world, trains
from tests.fleet.world import RUN, VirtualBook, World, default_rules

ALL = type("All", (set,), {"__contains__": lambda *_: True})()


def go(world: World, book: VirtualBook, hours: float, tick: Callable[[], Any] | None = None) -> None:
    end = world.now + 3600 * hours
    while world.now < end:
        (tick or (lambda: world.controller(book).tick()))()
        world.sleep(30)


def change(book: VirtualBook, **what: Any) -> None:
    book.states[RUN] = replace(book.states[RUN], **what)


def machines(world: World) -> None:
    world.find_machines = lambda: [Offer(f"o{n}", "H100", 2, 2.0, True, f"m{n}") for n in range(500)]  # type: ignore[method-assign]


def let_unfit_pods_end_themselves(world: World) -> None:
    """As hooks.end_billing has them do."""
    release = world.release

    def end(pod: VirtualPod, code: int, reason: str) -> None:
        release(pod, code, reason)
        if code == 94:
            world.die(pod)

    world.release = end  # type: ignore[method-assign]


def be_away_after_the_first_create(world: TwoPlaces, seconds: float) -> None:
    """The provider of place a lists nothing for so long."""
    real = world.a.create

    def create(offer: Offer, wanted: Any) -> str:
        made = real(offer, wanted)
        if len(world.pods) == 1:
            world.a.list_away_until = world.now + seconds
        return made

    world.a.create = create  # type: ignore[method-assign]


@pytest.mark.soak
def test_a_pod_whose_label_is_never_shown_is_known_by_its_id() -> None:
    world = World(1, finish=2000)
    world.listed_after_s, world.without_label = [0.0], ALL
    book = VirtualBook(world)
    run_until(world, book, lambda: world.held.code == 0 and not world.paid(), 48)
    assert len(world.pods) == 1 and world.trouble == []


@pytest.mark.soak
def test_pods_that_are_confirmed_and_never_listed_are_two_and_then_a_persons_business() -> None:
    world = World(1, finish=2000)
    machines(world)
    book = VirtualBook(world)
    world.provider.list_instances = list  # type: ignore[method-assign]
    world.provider.create = lambda offer, wanted: f"x{len(book.said)}"  # type: ignore[method-assign]
    tolds = []
    go(world, book, 12, lambda: tolds.append(world.controller(book).tick()[0]))
    assert sum("It is instance" in did for told in tolds for did in told.did) == 2
    last = tolds[-1].decision
    assert last.person and "2 pods were confirmed and never listed" in last.sentence, last.sentence
    change(book, up_at=world.now)
    assert "Renting" in world.controller(book).tick()[0].did[0]


def test_down_after_an_outage_waits_for_a_beat_of_now() -> None:
    world, book, pod = train_world(3)
    run_until(world, book, lambda: pod.unpublished == () == world.held.unpublished and bool(world.held.published))
    world.machines, pod.online = [], False  # it saves on, and nobody hears of it
    go(world, book, 2)
    change(book, wanted=False)
    go(world, book, 2)
    assert pod.destroyed is None
    told = world.controller(book).tick()[0].decision
    assert told.person and "may be nowhere else" in told.sentence, told.sentence


def test_a_stopped_pod_that_stays_listed_after_its_destroy_holds_up_nothing() -> None:
    world = World(1, finish=10**5)
    world.listed_after_s = [0.0]
    book, real, asked = VirtualBook(world), world.provider.destroy, []

    def destroy(instance: Instance) -> None:
        asked.append(instance.id)
        if instance.id != "i0":
            real(instance)

    world.provider.destroy = destroy  # type: ignore[method-assign]
    world.controller(book).tick()
    world.outbid(world.pods["i0"])
    run_until(world, book, lambda: len(world.pods) > 1 and world.holder() is world.pods["i1"], 2)
    change(book, wanted=False)
    go(world, book, 1)
    assert [one.id for one in world.paid()] == ["i0"], "the other one is ended"
    assert asked.count("i0") < 30


def test_a_pod_that_wakes_in_the_look_that_would_rent_counts() -> None:
    two = TwoRuns(61, per_hour=4.0)
    two.one.machines = []
    two.until(lambda: two.two.holder() is not None and two.two.holder().step > 20)
    pod = two.two.holder()
    two.two.machines = []
    two.two.outbid(pod)
    for _ in range(20):
        two.tick()
    two.two.wake(pod)
    two.one.machines = ["m0"]
    two.controller().tick()
    assert two.paid_per_hour() <= 4.0


def test_a_limit_holds_to_the_cent_and_a_bill_above_it_is_told() -> None:
    world = World(1)
    book = VirtualBook(world)
    world.controller(book, replace(default_rules(), per_hour=2.39)).tick()
    assert not world.pods, "2.40 are asked"
    world = World(1, finish=10**5)
    world.listed_after_s = [0.0]
    book, rent = VirtualBook(world), world.rent

    def dear(offer: Offer, wanted: Any, *, boots: bool = True) -> Any:
        pod = rent(offer, wanted, boots=boots)
        pod.per_hour = 6.0
        return pod

    world.rent = dear  # type: ignore[method-assign]
    rules = replace(default_rules(), per_hour=3.0)
    go(world, book, 1, lambda: world.controller(book, rules).tick())
    assert "$6.00 an hour are billed, and $3.00 are allowed (limits.per_hour)" in book.said[-1]


def test_a_cron_whose_file_lacks_the_run_excuses_no_silence() -> None:
    world, book, pod = train_world(1)
    pod.online = False
    look = lambda: RunLook(Claim(released=True, generation=1, code=0, beat_at=1.0), None)  # noqa: E731
    other = {"other": Run(replace(default_rules(), run_id="other"), look, order)}
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks % 2:
            world.controller(book).tick()
        else:
            Controller(other, {"spot": Place("spot", world.provider, WANT)}, book, sleep=world.sleep).tick()

    go(world, book, 1, tick)
    assert len(world.pods) > 1


def test_a_destroy_that_is_refused_for_ever_is_told_to_a_person() -> None:
    world, book, _ = train_world(10)

    def refuse(instance: Instance) -> None:
        raise PlaceError("rate", "429")

    world.provider.destroy = refuse  # type: ignore[method-assign]
    run_until(world, book, lambda: world.held.code == 0)
    told = world.controller(book).tick()
    go(world, book, 2, lambda: told.append(world.controller(book).tick()[0]))
    last = [one for one in told if not one.failed][-1]
    assert last.decision.person and not last.decision.done
    assert "finished. Pod i0 could not be destroyed for " in last.decision.sentence
    [message] = list_messages([last], None, None, {}, ())  # type: ignore[arg-type]
    assert not message.is_over and message.severity == "warning"


def test_nothing_is_done_while_a_create_may_still_come_and_its_key_stays() -> None:
    world = TwoPlaces(4)
    book, real = VirtualBook(world), world.a.create

    def create(offer: Offer, wanted: Any) -> str:
        real(offer, wanted)
        world.a.list_away_until = world.now + 86400
        raise PlaceError("unsure", "no answer")

    world.a.create = create
    world.controller(book).tick()
    world.stop_processes(world.pods["i0"])
    run_until(world, book, lambda: len(world.pods) > 1)
    change(book, wanted=False)
    tolds: list[Any] = []
    go(world, book, 1, lambda: tolds.append(world.controller(book).tick()[0]))
    last = tolds[-1].decision
    assert not last.done and "may come yet" in last.sentence, last.sentence
    assert name_key(last.state.given_up[0].label) in _name_keys(last.state)


@pytest.mark.soak
def test_a_pod_that_beats_on_after_its_confirmed_destroy_is_counted() -> None:
    world = World(5, finish=10**6)
    book = VirtualBook(world)
    run_until(world, book, lambda: world.holder() is not None and world.holder().step > 20)
    gone: set[str] = set()
    real = world.provider.list_instances
    world.provider.list_instances = lambda: [one for one in real() if one.id not in gone]  # type: ignore[method-assign]
    world.provider.destroy = lambda instance: gone.add(instance.id)  # type: ignore[method-assign]
    change(book, wanted=False)
    controllers = []

    def tick() -> None:
        controllers.append(world.controller(book))
        controllers[-1].tick()

    go(world, book, 12, tick)
    world.settle()
    money = controllers[-1].money
    assert money is not None and money.spent is not None and money.spent > 0.8 * world.dollars


def test_a_pod_that_was_listed_once_is_never_one_that_no_list_has_shown() -> None:
    world, book, _ = train_world(1)
    forgotten = replace(book.states[RUN], rented=())  # as after hundreds of pods
    assert forgotten.asked and not _list_unseen(forgotten, Seen(world.now + 1e5, None))


FOR_ONE = replace(default_rules(), per_hour=3.5)
"""A limit with room for one pod."""


def test_a_pod_that_hangs_and_leaves_no_room_for_another_below_the_limit_is_told_to_a_person() -> None:
    world, book, pod = train_world(9)
    pod.online = False
    tolds: list[Any] = []
    go(world, book, 1, lambda: tolds.append(world.controller(book, FOR_ONE).tick()[0].decision))
    last = tolds[-1]
    assert len(world.pods) == 1
    assert last.person and "To lose it: rl-supervisor fleet destroy virtual/i0" in last.sentence, last.sentence
    pod.online = True
    world.sleep(60)
    assert not world.controller(book, FOR_ONE).tick()[0].decision.person


def test_a_pod_that_hangs_with_all_of_it_published_and_leaves_no_room_is_told_to_a_person() -> None:
    world = World(9)
    world.times, world.listed_after_s = JobTimes(step_s=200.0, save_every=1, publish_s=40.0, finish=400), [0.0]
    book = VirtualBook(world)
    run_until(world, book, lambda: (world.held.published or 0) > 3)
    while world.held.unpublished != () or world.held.step != world.held.published:
        world.sleep(5)
    next(iter(world.paid())).online = False
    go(world, book, 0.5, lambda: world.controller(book, FOR_ONE).tick())
    told = world.controller(book, FOR_ONE).tick()[0].decision
    assert len(world.pods) == 1
    assert told.person and "To end it: rl-supervisor fleet destroy virtual/i0" in told.sentence, told.sentence


def test_an_outbid_pod_that_no_bid_wakes_and_that_leaves_no_room_is_told_to_a_person() -> None:
    world, book, pod = train_world(9)
    pod.publishing = True  # for ever
    pod.complete.append(240)
    world.sleep(61)
    pod.lowest_bid = 3.0
    world.provider.faults["bid"] = ["sleeps"]
    world.outbid(pod)
    rules = replace(default_rules(), per_hour=4.5)
    go(world, book, 0.5, lambda: world.controller(book, rules).tick())
    told = world.controller(book, rules).tick()[0].decision
    assert len(world.pods) == 1
    assert told.person and "To lose it: rl-supervisor fleet destroy virtual/i0" in told.sentence, told.sentence


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "does_nothing"])
def test_a_pod_that_could_not_be_destroyed_and_takes_the_room_of_the_next_is_asked_again(fails: bool) -> None:
    world = World(11, finish=10**9)
    world.listed_after_s = [0.0]
    book, real, until = VirtualBook(world), world.provider.destroy, 10.0**9

    def destroy(instance: Instance) -> None:
        if world.now >= until:
            real(instance)
        elif fails:
            raise PlaceError("away", "503")

    world.provider.destroy = destroy  # type: ignore[method-assign]
    run_until(world, book, trains(world))
    world.pods["i0"].online = False
    run_until(world, book, lambda: world.holder() is world.pods.get("i1", ""))
    go(world, book, 0.4)
    world.die(world.pods["i1"])
    until = world.now
    tolds: list[Any] = []
    go(world, book, 0.25, lambda: tolds.append(world.controller(book, FOR_ONE).tick()[0].decision))
    assert [one.id for one in world.paid()] == ["i2"], book.said[-1]
    assert any("Pod i0 could not be destroyed for " in said and "virtual is asked again." in said for said in book.said)


def test_a_run_whose_own_pod_is_not_in_the_way_waits_for_the_pods_of_other_runs() -> None:
    two = TwoRuns(61, per_hour=4.0)
    two.two.machines = []
    two.until(lambda: two.one.holder() is not None and two.one.holder().step > 20)
    pod = two.one.holder()
    pod.publishing = True  # for ever
    pod.complete.append(120)
    two.sleep(61)
    two.one.outbid(pod)  # its disk is kept, and billed
    two.one.machines, two.two.machines = [], ["m0"]
    two.until(lambda: two.two.holder() is not None and two.two.holder().step > 20)
    two.one.machines = ["m1"]
    told = two.tick()[0].decision
    assert "(limits.per_hour)" in told.sentence and "Pod i0 is kept" in told.sentence, told.sentence
    assert not told.person


@pytest.mark.parametrize("code", [75, 93, None])
def test_a_pod_that_gave_the_run_back_and_rests_makes_room_for_the_next(code: int | None) -> None:
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, code, "the trainer's key is wrong")
    go(world, book, 0.15, lambda: world.controller(book, FOR_ONE).tick())
    assert pod.destroyed is None, "its own starter has ten minutes"
    change(book, up_at=world.now)
    go(world, book, 0.2, lambda: world.controller(book, FOR_ONE).tick())
    assert pod.destroyed is not None and len(world.paid()) == 1
    assert any("pod i0 has not started it again: it is destroyed." in said for said in book.said)


@pytest.mark.soak
def test_a_pod_that_a_person_mended_after_93_has_the_whole_patience_from_fleet_up() -> None:
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, 93, "WANDB_API_KEY is missing")
    go(world, book, 8)
    change(book, up_at=world.now)
    go(world, book, 0.15)
    assert pod.destroyed is None, book.said[-1]
    go(world, book, 0.05)
    assert pod.destroyed is not None


def test_a_pod_that_gave_the_run_back_and_is_woken_has_the_whole_patience_to_start() -> None:
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, 75, "SIGTERM")
    world.outbid(pod)
    world.machines, pod.boot_s = [], 500.0
    go(world, book, 1)
    world.wake(pod)
    run_until(world, book, lambda: world.holder() is pod)
    assert pod.destroyed is None


def test_a_pod_that_lives_on_after_a_confirmed_destroy_is_told_and_counted_until_it_is_listed_no_more() -> None:
    world = World(11, finish=10**9)
    world.listed_after_s, world.bad = [0.0], {"m0"}
    book, real = VirtualBook(world), world.provider.destroy
    world.provider.destroy = lambda one: None if one.id == "i0" else real(one)  # type: ignore[method-assign]
    run_until(world, book, lambda: world.holder() is world.pods.get("i1", ""))
    go(world, book, 0.2)
    seen = []
    for _ in range(30):
        controller = world.controller(book, FOR_ONE)
        seen.append((controller.tick()[0].decision, controller.money))
        world.sleep(30)
    for told, money in seen:
        assert told.person and "Pod i0 could not be destroyed for " in told.sentence, told.sentence
        assert money is not None and money.per_hour == pytest.approx(sum(one.per_hour for one in world.paid()))
    world.die(world.pods["i0"])
    go(world, book, 0.02)
    told = world.controller(book, FOR_ONE).tick()[0].decision
    assert not told.person and [one.how for one in told.state.rented if one.id == "i0"] == ["replaced"]


@pytest.mark.parametrize("failures", [0, 1])
def test_a_job_that_its_queue_lists_for_an_hour_after_it_has_ended_is_over(failures: int) -> None:
    world, book, pod = train_world(12)
    real, left = world.provider.list_instances, failures

    def destroy(instance: Instance) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise PlaceError("unsure", "slurmctld did not answer")
        world.outbid(world.pods[instance.id])

    world.provider.list_instances = lambda: [replace(one, is_job=True, spot=False) for one in real()]  # type: ignore[method-assign]
    world.provider.destroy = destroy  # type: ignore[method-assign]
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, 75, "SIGTERM")
    change(book, wanted=False)
    go(world, book, 0.2)
    told: list[Any] = []
    go(world, book, 1, lambda: told.append(world.controller(book).tick()[0].decision))
    assert pod.phase == "stopped"
    assert {(one.person, one.done) for one in told if not one.action} == {(False, True)}, book.said[-1]
    assert not [one for one in told if "could not be destroyed" in one.sentence]


def test_a_stopped_pod_that_stays_listed_after_its_destroy_is_billed_and_told() -> None:
    world, book, pod = train_world(2)
    real = world.provider.destroy
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.outbid(pod)
    world.provider.destroy = lambda one: None if one.id == "i0" else real(one)  # type: ignore[method-assign]
    run_until(world, book, lambda: world.held.generation == 2)
    go(world, book, 0.2)
    for _ in range(30):
        controller = world.controller(book)
        told = controller.tick()[0].decision
        assert told.person and "Pod i0 could not be destroyed for " in told.sentence, told.sentence
        assert controller.money is not None and controller.money.per_hour == pytest.approx(0.25 + 2.52)
        world.sleep(30)


def test_a_pod_that_its_provider_lists_as_stopped_before_it_is_gone_is_not_told() -> None:
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)

    def destroy(instance: Instance) -> None:
        if pod.phase != "stopped":
            world.outbid(pod)
            world.clock.after(100.0, lambda: world.die(pod))

    world.provider.destroy = destroy  # type: ignore[method-assign]
    change(book, wanted=False)
    tolds: list[Any] = []
    go(world, book, 0.5, lambda: tolds.append(world.controller(book).tick()[0].decision))
    assert pod.destroyed is not None and tolds[-1].done
    assert not [said for said in book.said if "could not be destroyed" in said]


def test_a_run_that_left_the_file_while_a_create_is_open_is_not_done() -> None:
    world = World(8)
    world.listed_after_s = [60.0]
    book = VirtualBook(world)
    world.provider.faults["create"] = ["worked"]
    world.controller(book).tick()
    controller = Controller({}, {"spot": Place("spot", world.provider, WANT)}, book, sleep=world.sleep)
    [told] = controller.tick()
    assert "A pod that was asked for (rls-swe-g00001-" in told.decision.sentence and not told.decision.done
    world.sleep(90)
    assert "virtual/i0 is still billed for it." in controller.tick()[0].decision.sentence


@pytest.mark.parametrize(("late_s", "gap_s"), [(45.0, 600.0), (150.0, 30.0)])
@pytest.mark.parametrize("ends", [True, False], ids=["ends_itself", "rests"])
def test_a_pod_that_is_unfit_before_it_is_listed_is_remembered_and_not_waited_for(
    late_s: float, gap_s: float, ends: bool
) -> None:
    world = World(1)
    world.listed_after_s, world.bad = [late_s], {"m0"}
    book, prepare = VirtualBook(world), world.prepare_pod

    def prepare_fast(pod: VirtualPod) -> None:
        prepare(pod)
        pod.boot_s = 60.0

    world.prepare_pod = prepare_fast  # type: ignore[method-assign]
    if ends:
        let_unfit_pods_end_themselves(world)
    began = world.now
    while len(world.pods) == 1 or not world.pods:
        world.controller(book).tick()
        world.sleep(gap_s)
    assert world.now - began <= 2 * gap_s + 100
    run_until(world, book, lambda: world.held.code == 0 and not world.paid())
    assert [pod.machine for pod in world.pods.values()] == ["m0", "m1"]
    first = book.states[RUN].rented[0]
    assert first.id == "i0" and first.how in ("unfit", "replaced") and first.dollars > 0
    assert len(book.states[RUN].faults["virtual/m0"]) == 1


@pytest.mark.soak
@pytest.mark.parametrize("late_s", [150.0, 600.0, 1e6])
@pytest.mark.parametrize("answers", [True, False], ids=["listed_late", "no_list_for_an_hour"])
def test_an_unfit_pod_that_rests_and_that_no_list_has_shown_counts_against_the_limits(
    late_s: float, answers: bool
) -> None:
    world = TwoPlaces(1, finish=10**9)
    world.listed_after_s, world.bad = [late_s], {"a0"}
    book, prepare = VirtualBook(world), world.prepare_pod

    def prepare_fast(pod: VirtualPod) -> None:
        prepare(pod)
        pod.boot_s, world.listed_after_s = 60.0, [0.0]

    world.prepare_pod = prepare_fast  # type: ignore[method-assign]
    if not answers:
        be_away_after_the_first_create(world, 3600.0)
    rules, began = replace(world.rules(), per_hour=3.5), world.now
    while world.now < began + 4500:
        controller = world.controller(book, rules)
        told = controller.tick()[0].decision
        if world.now < began + 3600:  # what is hidden for longer is told, and not counted any more
            assert sum(one.per_hour for one in world.paid()) <= 3.5, told.sentence
        world.sleep(30)
    assert len(world.pods) == 2 and world.holder() is world.pods["i1"], told.sentence


@pytest.mark.parametrize("ends", [True, False], ids=["end_themselves", "rest"])
def test_unfit_pods_that_are_never_listed_are_not_rented_for_ever(ends: bool) -> None:
    world = World(1)
    machines(world)
    book, world.listed_after_s = VirtualBook(world), [10**6]
    if ends:
        let_unfit_pods_end_themselves(world)
    world.bad = {f"m{number}" for number in range(500)}
    go(world, book, 0.4)
    controller = world.controller(book)
    told = controller.tick()[0].decision
    assert told.person and "4 pods were confirmed and never listed" in told.sentence, told.sentence
    assert len(world.pods) == 4 and controller.money is not None and controller.money.per_hour == pytest.approx(9.6)
    go(world, book, 4)
    assert len(world.pods) == 4


@pytest.mark.soak
def test_the_time_in_which_the_store_was_away_after_fleet_up_is_no_time_to_start() -> None:
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, 93, "WANDB_API_KEY is missing")
    go(world, book, 8)
    change(book, up_at=world.now)
    world.controller(book).tick()
    world.sleep(30)
    world.store_away_until = world.now + 700
    go(world, book, 0.25)
    assert world.now > world.store_away_until and pod.destroyed is None


@pytest.mark.parametrize("code", [75, 93])
def test_a_store_that_misses_a_look_now_and_then_frees_no_idle_pod_for_ever(code: int) -> None:
    """Each outage of 40 s began the ten minutes anew, and nothing was trained for as long as they came."""
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, code, "the job ended")
    if code == 93:
        change(book, up_at=world.now)
    given_back = world.now
    while pod.destroyed is None and world.now < given_back + 2 * 3600:
        world.store_away_until = world.now + 40.0
        go(world, book, 300 / 3600)
    assert pod.destroyed is not None and world.now - given_back < 1800, book.said[-1]


@pytest.mark.parametrize("off_h", [8, 60])
def test_an_outage_before_fleet_up_is_no_excuse_after_it(off_h: float) -> None:
    """A laptop that slept for days has no network in its first look: to it the store was away for all that time."""
    world, book, pod = train_world(2)
    run_until(world, book, lambda: world.held.unpublished == () and max(pod.complete) == world.held.published)
    world.release(pod, 93, "WANDB_API_KEY is missing")
    go(world, book, 0.2)
    world.sleep(off_h * 3600.0)
    world.store_away_until = world.now + 20.0
    go(world, book, 0.1)
    change(book, up_at=world.now)
    go(world, book, 0.15)
    assert pod.destroyed is None
    go(world, book, 0.1)
    assert pod.destroyed is not None, book.said[-1]


@pytest.mark.parametrize("answer", ["made", "none"])
def test_a_create_that_stays_open_while_its_provider_is_away_and_takes_the_room_is_told(answer: str) -> None:
    world = TwoPlaces(1, finish=10**9)
    book, plain, create = VirtualBook(world), world.prepare_pod, world.a.create

    def prepare(pod: VirtualPod) -> None:
        plain(pod)
        pod.boot_s = 1e12

    def hide(offer: Offer, wanted: Any) -> str:
        world.a.list_away_until = world.now + 36_000.0
        if answer == "none":
            raise PlaceError("unsure", "no answer within 30 s")
        return create(offer, wanted)

    world.prepare_pod, world.a.create = prepare, hide  # type: ignore[method-assign]
    rules, told = replace(world.rules(), per_hour=3.5), []
    go(world, book, 3, lambda: told.append(world.controller(book, rules).tick()[0].decision))
    assert len(world.pods) == (1 if answer == "made" else 0) and not any(one.person for one in told[:60])
    assert all(one.person for one in told[-100:]), told[-1].sentence
    assert "may be rented at" in told[-1].sentence


def test_a_create_that_a_provider_hides_for_hours_and_that_takes_the_room_is_told_to_a_person() -> None:
    """Of a pod that was unfit before it was listed: nothing could be rented in the other place, without a word."""
    world = TwoPlaces(1, finish=10**9)
    world.listed_after_s, world.bad = [150.0], {"a0"}
    book, plain = VirtualBook(world), world.prepare_pod

    def prepare(pod: VirtualPod) -> None:
        plain(pod)
        pod.boot_s, world.listed_after_s = 60.0, [0.0]

    world.prepare_pod = prepare  # type: ignore[method-assign]
    be_away_after_the_first_create(world, 36_000.0)
    rules, told = replace(world.rules(), per_hour=3.5), []
    go(world, book, 3, lambda: told.append(world.controller(book, rules).tick()[0].decision))
    assert len(world.pods) == 1 and not any(one.person for one in told[:60])
    assert all(one.person for one in told[-100:]), told[-1].sentence


def test_a_kept_pod_that_would_not_make_enough_room_is_no_persons_business() -> None:
    """A create that was never listed took the room: the advice was to lose the only copy of a step, for nothing."""
    world, book, pod = train_world(9)
    pod.publishing = True
    pod.complete.append(240)
    world.sleep(61)
    world.outbid(pod)
    plain = world.prepare_pod

    def prepare(other: VirtualPod) -> None:
        plain(other)
        other.unfit, other.boot_s, other.listed_from = True, 60.0, world.now + 1e9

    world.prepare_pod = prepare  # type: ignore[method-assign]
    let_unfit_pods_end_themselves(world)
    told: list[Any] = []
    go(world, book, 0.9, lambda: told.append(world.controller(book, FOR_ONE).tick()[0].decision))
    assert len(world.pods) == 2 and not any(one.person for one in told), [one.sentence for one in told if one.person][
        :1
    ]


def test_unfit_pods_that_ended_themselves_unseen_are_counted_since_the_last_one_that_trained() -> None:
    world = World(1, finish=10**9)
    world.machines, world.listed_after_s, world.bad = [f"m{number}" for number in range(8)], [0.0], {"m0", "m3"}
    plain = world.prepare_pod

    def prepare(pod: VirtualPod) -> None:
        plain(pod)
        if pod.unfit:
            pod.boot_s, pod.listed_from = 60.0, world.now + 100

    world.prepare_pod = prepare  # type: ignore[method-assign]
    let_unfit_pods_end_themselves(world)
    book = VirtualBook(world)
    for offered in (world.machines, ["m3", "m4"], ["m5"]):
        world.machines = offered
        run_until(world, book, trains(world))
        holder = world.holder()
        assert holder is not None
        go(world, book, 1)
        world.die(holder)
    assert [pod.machine for pod in world.pods.values()] == ["m0", "m1", "m3", "m4", "m5"]


def test_a_holder_whose_destroy_failed_once_before_it_claimed_is_not_told_as_asked_again() -> None:
    world = World(9)
    world.times, world.listed_after_s = JobTimes(step_s=200.0, save_every=1, publish_s=40.0, finish=400), [0.0]
    plain, destroy = world.prepare_pod, world.provider.destroy
    asked: list[str] = []

    def prepare(pod: VirtualPod) -> None:
        plain(pod)
        pod.boot_s = 1900.0

    def destroy_late(instance: Instance) -> None:
        asked.append(instance.id)
        if len(asked) == 1:
            raise PlaceError("unsure", "no answer within 30 s")
        destroy(instance)

    world.prepare_pod, world.provider.destroy = prepare, destroy_late  # type: ignore[method-assign]
    book = VirtualBook(world)
    run_until(world, book, lambda: (world.held.published or 0) > 3)
    while not (world.held.unpublished == () and world.held.step == world.held.published):
        world.sleep(5)
    world.pods["i0"].online = False
    told: list[Any] = []
    go(world, book, 2, lambda: told.append(world.controller(book, FOR_ONE).tick()[0].decision))
    full = next(one for one in told if "nothing fits" in one.sentence)
    assert full.person and "is asked again" not in full.sentence and "fleet destroy virtual/i0" in full.sentence
