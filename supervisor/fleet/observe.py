"""Fold one look into what is remembered: which pods there are, since when one is missing, what each has cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from supervisor.base.errors import EXIT_POD_UNFIT
from supervisor.core.words import span
from supervisor.fleet.model import Claim, How, Intent, Pod, Rented, Seen, State, Trained
from supervisor.fleet.places.base import WAITING, Instance

SECOND_LOOK_S = 30.0
"""A list that lacks an instance once may be late or cut. Two looks this far apart say that it is gone."""
OLDER_S = 10.0
"""Upload times of the same store may be so far out of order. What is older than that is an old listing."""
OLD_LISTING_S = 600.0
"""A store that shows what is old for so long will not mend it by itself."""
SHOWN_BY_S = 120.0
"""A create that worked is listed by then."""
ENDS_WITHIN_S = 300.0
"""A pod that was destroyed may be listed for so long: it publishes what is whole. Told again, it would hurry."""
CONFIRMED_BY_S = 600.0
"""One whose id the provider told may be listed later."""
ASKED_KEPT_S = 7 * 24 * 3600.0
MOST_PRICE = 10_000.0
"""Dollars an hour that are believed."""
HOUR_S = 3600.0
KEPT = 200
"""Pods that are over, and are still remembered."""


def doubt_old_listing(state: State, seen: Seen) -> Seen:
    """A claim or a beat from before the last look is no answer: who holds the run now would be a pod too many.

    Until ``fleet up``: a person may have deleted the claims, or begun the run anew.
    """
    claim = seen.claim
    if claim is None or state.up_at > state.heard_at or not state.heard_at:
        return seen
    if claim.generation < state.generation:
        why = f"of generation {claim.generation}, and showed one of generation {state.generation} before"
    elif claim.generation == state.generation and claim.beat_at < state.beat_at - OLDER_S:
        why = f"that is {span(state.beat_at - claim.beat_at)} older than the last one it showed"
    else:
        return seen
    told = f"its store shows a heartbeat {why}. Where its claims were deleted on purpose: rl-supervisor fleet up"
    return replace(
        seen, claim=None, published=None, no_answer=told, store_needs_person=seen.now - state.heard_at >= OLD_LISTING_S
    )


def observe(state: State, seen: Seen) -> State:
    """The state after a look."""
    listed = {pod.key: pod for pod in seen.pods}
    known = {one.pod.key for one in state.rented}
    rented = [_look_at(one, listed.get(one.pod.key), seen) for one in state.rented]
    rented += [_meet(pod, state, seen) for key, pod in listed.items() if key not in known]
    rented += _find_unlisted(state, rented, seen)
    lost = [one for one, before in zip(rented, state.rented, strict=False) if one.how == "gone" and before.is_living]
    labels = {pod.instance.label for pod in seen.pods}
    intent = state.intent
    if intent is not None:
        shown, is_known = intent.label in labels, any(one.pod.instance.label == intent.label for one in rented)
        patience_s = CONFIRMED_BY_S if intent.made else SHOWN_BY_S
        is_overdue = intent.provider not in seen.away and seen.now - intent.at >= patience_s
        if not shown and (is_known or is_overdue):
            state = replace(state, given_up=(*state.given_up, intent))
        if shown or intent in state.given_up:
            intent = None
    over = [one for one in rented if not one.is_living]
    forgotten = over[:-KEPT]
    state = replace(
        state,
        intent=intent,
        given_up=tuple(one for one in state.given_up if one.label not in labels and _may_come(one, seen)),
        rented=(*over[-KEPT:], *(one for one in rented if one.is_living)),
        asked=_note_asked(state, seen, labels),
        forgotten_dollars=state.forgotten_dollars + sum(one.dollars for one in forgotten),
    )
    for one in lost:
        state = note_fault(state, one.pod, seen.now)
    return replace(state, store_is_away=True) if seen.claim is None else _observe_claim(state, seen, seen.claim)


def _find_unlisted(state: State, rented: list[Rented], seen: Seen) -> list[Rented]:
    """A pod that was unfit, and may have ended itself before a list showed it: its claim alone tells of it.

    It is over for the run. What was asked for still counts against the limits, since the pod may rest and be billed.
    """
    claim = seen.claim
    asked = state.asked.get(claim.label) if claim is not None and _is_unfit(claim) else None
    if claim is None or asked is None or not asked.id or any(one.pod.instance.label == asked.label for one in rented):
        return []
    machine = asked.machine.removeprefix(f"{asked.provider}/")
    instance = Instance(asked.id, asked.label, "running", asked.per_hour, machine=machine)
    pod, at = Pod(asked.provider, asked.generation, instance), claim.beat_at
    one = Rented(pod, asked.at, at, asked.per_hour, asked.place, asked.disk_per_hour, ended=at, how="unfit")
    return [replace(one, dollars=max(0.0, at - asked.at) / HOUR_S * asked.per_hour)]


def _is_unfit(claim: Claim) -> bool:
    """Did its holder end with the words that its machine is unfit?"""
    return claim.released and claim.code == EXIT_POD_UNFIT


def _may_come(one: Intent, seen: Seen) -> bool:
    """May a create that was waited for in vain be listed yet? So long it counts as rented."""
    return one.provider in seen.away or seen.now - one.at < (HOUR_S if one.made else CONFIRMED_BY_S)


def _note_asked(state: State, seen: Seen, labels: set[str]) -> dict[str, Intent]:
    """Those that were refused are many, and are forgotten within the hour; of one that is listed both is settled."""
    asked = {
        label: replace(one, refused=False, made=False) if label in labels else one for label, one in state.asked.items()
    }
    return {label: one for label, one in asked.items() if seen.now - one.at < (HOUR_S if one.refused else ASKED_KEPT_S)}


def _observe_claim(state: State, seen: Seen, claim: Claim) -> State:
    if claim.beat_at != state.beat_at:  # also by one from before the outage that ends with this look
        state = replace(state, beat_at=claim.beat_at, unheard_s=0.0)
    if state.store_is_away or seen.store_was_away:
        state = _note_outage(replace(state, store_is_away=False), seen.now)
    state = replace(state, heard_at=seen.now)
    holder = find_holder(state, claim)
    # A pod between the last holder and this one held the run between two looks. Which, and what it saved, is unknown.
    skipped = claim.generation - state.generation > 1
    rented = []
    for one in state.rented:
        if one is holder:
            trained = _note_trained(one.trained, claim, seen.published)
            one = replace(
                one,
                held=True,
                step=claim.step,
                unpublished=claim.unpublished,
                trained=trained,
                published=seen.published or 0,
            )
            if claim.beat_at > one.bid_at:
                one = replace(one, bid=None)
        elif skipped and one.is_living:
            one = replace(one, step=None, unpublished=None)
        elif one.unpublished is None and one.pod.instance.label in state.asked and _never_held(one.pod, claim):
            one = replace(one, unpublished=())  # the store was away when it was met
        rented.append(one)
    state = replace(state, generation=claim.generation, rented=tuple(rented))
    if holder is not None and _is_unfit(claim):
        state = blame_once(state, holder, seen.now)
    return state


def _note_outage(state: State, now: float) -> State:
    """The store answers again: what no pod could say meanwhile is no silence."""
    away_s = max(0.0, now - state.heard_at) if state.heard_at else 0.0
    rented = (replace(one, unheard_s=one.unheard_s + min(away_s, max(0.0, now - one.since))) for one in state.rented)
    unheard_s = state.unheard_s + min(away_s, max(0.0, now - state.beat_at))
    since = max(state.patient_from, state.up_at)
    patient_from = since + min(away_s, max(0.0, now - since))
    return replace(state, unheard_s=unheard_s, patient_from=patient_from, rented=tuple(rented))


def _note_trained(last: Trained | None, claim: Claim, published: int | None) -> Trained | None:
    if claim.step is None:
        return last
    if last is None or claim.step < last.last:
        before_s = 0.0 if last is None else last.useful_s
        return Trained(claim.step, claim.beat_at, claim.step, claim.beat_at, published or 0, before_s)
    return replace(last, last=claim.step, last_at=claim.beat_at, kept=published or 0)


def find_useful_share(states: Iterable[State], place: str) -> float | None:
    """The part of the hours paid for pods of a place that was training which is kept; None before there is any."""
    pods = [one for state in states for one in state.rented if one.place == place]
    paid_s = sum(one.seen_at - one.since for one in pods)
    useful_s = sum_useful_s(pods)
    return useful_s / paid_s if useful_s and paid_s else None


def sum_useful_s(pods: Iterable[Rented]) -> float:
    """Seconds of training that are kept, of all these pods."""
    return sum(one.trained.useful_s for one in pods if one.trained is not None)


def sum_dollars(state: State) -> float:
    """What the run's pods have cost so far."""
    return state.forgotten_dollars + sum(one.dollars for one in state.rented)


def price_now(one: Rented) -> float:
    """Dollars an hour for it as it was listed last: of one that is stopped, for its disk; of one in a queue, none."""
    if one.pod.instance.phase in WAITING:
        return 0.0
    if one.pod.instance.phase != "stopped":
        return one.per_hour or 0.0
    told = one.pod.instance.stopped_per_hour
    return one.disk_per_hour if told is None else min(told, one.per_hour or told, MOST_PRICE)


def sum_price_now(state: State) -> float:
    """Dollars an hour for what is billed for one run, and for what was just asked for."""
    asked = sum(one.per_hour for one in (state.intent, *state.given_up) if one is not None)
    for one in state.living_pods:
        if one.bid and one.pod.instance.phase == "stopped":
            asked += one.bid + one.disk_per_hour  # it may run at any moment
        elif one.pod.instance.phase in WAITING:
            asked += one.per_hour or 0.0  # so may this one
        else:
            asked += price_now(one)
    return asked


def count_creates(state: State, now: float) -> int:
    """Pods that were asked for within the last hour, and not refused."""
    return sum(now - one.at < HOUR_S and not one.refused for one in state.asked.values())


def find_holder(state: State, claim: Claim) -> Rented | None:
    """The pod that holds the run, or held it last; None where it is none of ours, or the claim names no pod."""
    if claim.generation == 0 or not claim.label:
        return None
    return next((one for one in state.rented if one.pod.instance.label == claim.label), None)


def end(state: State, pod: Pod, how: How, now: float) -> State:
    """The pod is over, and how. One that is listed again later lives on, and then ends when it is listed no more."""

    def change(one: Rented) -> Rented:
        if not one.is_living:
            return one
        if one.stuck_since and not _is_in_records(one.pod):  # its provider's word was wrong
            return replace(one, destroyed_at=now, not_destroyed_at=now, how=how)
        return replace(one, ended=now, destroyed_at=now, how=how)

    return _change_pod(state, pod, change)


def _is_in_records(pod: Pod) -> bool:
    """A queue lists a job that has ended for a while, as stopped. Any other pod that is stopped is billed."""
    return pod.instance.is_job and pod.instance.phase == "stopped"


def note_not_destroyed(state: State, pod: Pod, now: float) -> State:
    """The provider did not confirm it: the pod lives on until it is not listed any more."""
    return _change_pod(
        state,
        pod,
        lambda one: replace(
            one, ended=None, destroyed_at=0.0, not_destroyed_at=now, stuck_since=one.stuck_since or now
        ),
    )


def note_bid(state: State, pod: Pod, bid: float | None, at: float) -> State:
    """The pod's bid is raised; 0 where its provider refused that, None where it gave no answer."""
    return _change_pod(state, pod, lambda one: replace(one, bid=bid, bid_at=at))


def _change_pod(state: State, pod: Pod, change: Callable[[Rented], Rented]) -> State:
    rented = (change(one) if one.pod.key == pod.key else one for one in state.rented)
    return replace(state, rented=tuple(rented))


def note_fault(state: State, pod: Pod, now: float) -> State:
    """Remember that a machine did not do what it was rented for; and once for each machine, who lets it."""
    faults, host = dict(state.faults), name_host(pod.provider, pod.instance.host)
    for machine in _list_machines(pod):
        before = faults.get(machine, ())
        faults[machine] = (*before, now)
        if host and not before:
            faults[host] = (*faults.get(host, ()), now)
    return replace(state, faults=faults)


def _list_machines(pod: Pod) -> list[str]:
    """What a fault of the pod is remembered by: of a job over several machines those that it named itself."""
    named = pod.instance.unfit or (pod.instance.machine,)
    return [machine for one in named if (machine := name_machine(pod.provider, one))]


def blame_once(state: State, one: Rented, now: float) -> State:
    """A machine is at fault once for each pod."""
    known = [last[-1] for machine in _list_machines(one.pod) if (last := state.faults.get(machine, ()))]
    return state if known and max(known) >= one.since else note_fault(state, one.pod, now)


def name_machine(provider: str, machine: str) -> str:
    """By what a machine is remembered; "" where the provider does not name it."""
    return f"{provider}/{machine}" if machine else ""


def name_host(provider: str, host: str) -> str:
    """By what is remembered who lets machines; "" where the provider does not name them."""
    return f"{provider}/host {host}" if host else ""


def _meet(pod: Pod, state: State, seen: Seen) -> Rented:
    """An instance under our label that was not known: one that was asked for, or one that is forgotten."""
    label, intent = pod.instance.label, state.intent
    if intent is not None and intent.label == label:
        one = Rented(pod, intent.at, intent.at, intent.per_hour, intent.place, intent.disk_per_hour)
    elif (late := state.asked.get(label)) is not None:  # listed later than a pod should be
        unpublished = () if _never_held(pod, seen.claim) else None
        one = Rented(pod, late.at, late.at, late.per_hour, late.place, late.disk_per_hour, unpublished=unpublished)
    else:  # it may have trained before this controller knew of it
        one = Rented(pod, seen.now, seen.now, None, unpublished=None)
    return _look_at(one, pod, seen)


def _never_held(pod: Pod, claim: Claim | None) -> bool:
    """Is it certain that the run went from before this pod to now without it?"""
    if claim is None or claim.generation > pod.generation:
        return False
    return claim.generation < pod.generation or claim.label not in ("", pod.instance.label)


def _look_at(one: Rented, pod: Pod | None, seen: Seen) -> Rented:
    lives = pod is None and _has_beaten(one, seen)
    if not one.is_living:
        # One that has stopped since is to be destroyed for good; one that stays as it was is waited for.
        has_stopped = pod is not None and pod.instance.phase == "stopped" and one.pod.instance.phase != "stopped"
        if (pod is None and not lives) or (seen.now - one.destroyed_at < ENDS_WITHIN_S and not has_stopped):
            return one
        has_obeyed = has_stopped or (pod is not None and _is_in_records(pod))
        stuck_since = one.stuck_since if has_obeyed else one.stuck_since or one.destroyed_at
        one = replace(one, ended=None, how=None, missing_since=None, stuck_since=stuck_since)
    if pod is None and one.pod.provider in seen.away:
        return one  # the provider does not answer: that says nothing of the pod
    if lives:  # whatever the provider lists: it is billed, and its end has to be seen anew
        one = replace(one, missing_since=None)
    if pod is not None or one.missing_since is None:
        # Until this look, as the last one found it: when a pod that is gone went is not told.
        hours = max(0.0, seen.now - one.seen_at) / HOUR_S
        one = replace(one, seen_at=seen.now, dollars=one.dollars + hours * price_now(one))
    if pod is not None:
        if not pod.instance.machine:  # a job in the queue again: a fault is that of its last one
            pod = replace(pod, instance=replace(pod.instance, machine=one.pod.instance.machine))
        if pod.instance.phase in WAITING:  # the time in which it has to start begins with its end
            one = replace(one, queued_at=seen.now, unheard_s=0.0)
        price, woke = pod.instance.per_hour, _has_woken(one, seen)
        # A machine that is just made, or stopped, may be listed without a price or with 0.
        one = replace(one, pod=pod, per_hour=price if price and 0 < price < MOST_PRICE else one.per_hour)
        if pod.instance.phase != "stopped":
            return replace(one, missing_since=None, woke_at=seen.now if woke else one.woke_at)
    elif lives:
        return one
    one = replace(one, missing_at=seen.now)
    if one.missing_since is None:
        return replace(one, missing_since=seen.now)
    if pod is None and is_missing(one):
        instance = one.pod.instance
        vanished: How = "outbid" if instance.spot else "failed" if instance.is_job else "gone"
        return replace(one, ended=seen.now, how=one.how or vanished)
    return one


def _has_woken(one: Rented, seen: Seen) -> bool:
    """Was it stopped at the last look? Once between two beats: a list that says both by turns wakes nothing."""
    beat_at = 0.0 if seen.claim is None else seen.claim.beat_at
    return one.pod.instance.phase == "stopped" and one.woke_at <= beat_at


def _has_beaten(one: Rented, seen: Seen) -> bool:
    """Has it beaten, or said its last words, since the first look that missed it, and since it was to be destroyed?"""
    claim = seen.claim
    if claim is None or claim.label != one.pod.instance.label:
        return False
    if one.missing_since is None:  # nor does one that was destroyed, and that published what was whole, beat for long
        is_over = bool(one.destroyed_at) and not claim.released
        return is_over and claim.beat_at > one.destroyed_at + ENDS_WITHIN_S
    return claim.beat_at > max(one.missing_since, one.destroyed_at)


def is_missing(one: Rented) -> bool:
    """Have two looks, far enough apart, found it stopped or not listed?"""
    return one.missing_since is not None and one.missing_at - one.missing_since >= SECOND_LOOK_S
