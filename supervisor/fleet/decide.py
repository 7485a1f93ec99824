"""What to do next for a run that is watched from outside. Pure: no clock, no network; the claim alone says who trains.

A provider's word is only a signal, and so is silence. A holder is convicted when no beat has come for three periods
*and* two looks found its instance stopped or gone, or by silence alone after the whole patience. The next pod is given
the convicted standing, and claims the run only while the store still shows exactly that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from supervisor.base.errors import EXIT_FINISHED, EXIT_PERSON_NEEDED, EXIT_POD_UNFIT
from supervisor.core.words import span
from supervisor.fleet.model import (
    Claim,
    Closed,
    Create,
    Decision,
    Destroy,
    FindOffers,
    How,
    Intent,
    Offered,
    RaiseBid,
    Rented,
    Rules,
    Seen,
    State,
)
from supervisor.fleet.observe import (
    CONFIRMED_BY_S,
    HOUR_S,
    SECOND_LOOK_S,
    blame_once,
    doubt_old_listing,
    end,
    find_holder,
    is_missing,
    name_host,
    name_machine,
    note_bid,
    observe,
    price_now,
    sum_price_now,
)
from supervisor.fleet.places.base import WAITING, ErrorKind, Offer, PlaceError, label_of

BEATS = 3
"""So many beats may be missing before a second signal counts."""
FRESH_S = 180.0
"""A beat is of now."""
MOST_UNSEEN = 2
"""Creates that a provider confirmed and never listed, before a person is asked: what they bill is unknown."""
MOST_FRUITLESS = 3
"""Pods in a row that never held the run before a person is asked: the image, the keys, or the run file are wrong."""
BANNED_S = (24 * 3600.0, 7 * 24 * 3600.0, 30 * 24 * 3600.0)
"""For how long a machine is left out after one fault, two, and three or more. In an open trace of 400 GPU servers the
same one fails again within a day in 21 % of the cases, within thirty in 43 % (InfiniteHBD)."""
DESTROY_AGAIN_S = 300.0
"""A provider that did not end a pod is asked again after this."""
STUCK_S = 3600.0
"""A pod that could not be destroyed for so long is told as a person's business."""
WAKES_WITHIN_S = 180.0
"""A pod that was outbid runs again so soon after a bid that is high enough; else another one is rented."""
SEARCH_EVERY_S = 1800.0
"""While a pod trains, the places are searched so often: to know then which machines have lasted."""
STEADY_S = 4 * 3600.0
ROUNDING = 1e-6
"""Of a sum of prices in dollars."""
MOST_SHOWN = 10
"""Offers that are remembered for people."""
TAKEN_S = 600.0
"""An offer that was taken, or a bid that was too low, is left out for so long."""
AGAIN_S: Mapping[ErrorKind, float] = {
    "key": 3600.0,
    "credit": 1800.0,
    "refused": 3600.0,
    "rate": 60.0,
    "away": 30.0,
    "taken": 30.0,
    "unsure": 30.0,
}
"""A place is asked again after so many seconds; after creates in a row that met "rate" or "away", after more."""
LONGEST_AGAIN_S = 900.0
LONGEST_RETRY_S = 24 * 3600.0
"""However long a provider asks to be left alone."""


def decide(state: State, rules: Rules, seen: Seen) -> Decision:
    """One look at one run: a new state, one sentence, and at most one action."""
    seen = doubt_old_listing(state, seen)
    state = _note_offers(observe(state, seen), rules, seen)
    obeyed = _obey(state, seen)
    if obeyed is not None:
        return obeyed
    if seen.claim is None:
        sentence = f"It is unknown who trains, so nothing is changed: {seen.no_answer}"
        return Decision(state, sentence, person=seen.store_needs_person)
    for rule in _RULES:
        found = rule(state, rules, seen, seen.claim)
        if found is not None:
            break
    else:
        found = _rent(state, rules, seen, seen.claim)
    refused = sorted(seen.keyless & set(rules.places.values()))
    if refused and not found.done:
        told = " ".join(f"{name} refuses the account's key: {seen.away[name]}" for name in refused)
        return replace(found, sentence=f"{found.sentence} {told}", person=True)
    return found


def decide_removed(state: State, run_id: str, seen: Seen) -> Decision:
    """The same of a run that ``fleet.toml`` names no more: what is rented for it is told, and goes if a person agrees.

    ``seen`` has no claim: where the run's store is stands in no file any more.
    """
    state = replace(observe(state, seen), store_is_away=state.store_is_away)  # it was not asked
    obeyed = _obey(state, seen)
    if obeyed is not None:
        return obeyed
    pods = [one.pod.full_id for one in state.living_pods]
    if not pods:
        return _end(state, f"{run_id} is in fleet.toml no more, and nothing is rented for it.")
    sentence = (
        f"{run_id} is in fleet.toml no more, and {', '.join(pods)} is still billed for it. Put the run back, and type "
        f"`rl-supervisor fleet down`; or lose what is on the pod: rl-supervisor fleet destroy {pods[0]}"
    )
    return Decision(state, sentence, person=True)


def _obey(state: State, seen: Seen) -> Decision | None:
    """A person let a pod go with all that is on it, also one that trains."""
    for one in state.living_pods:
        if _is_agreed(state, one):
            found = _drop(state, one, "down", seen, f"Pod {one.id} is destroyed, as a person agreed.")
            if found is not None:
                return found
    return None


def _is_agreed(state: State, one: Rented) -> bool:
    """Did a person let it go? Orders of older versions name an id alone: that of the only pod that had it."""
    is_only = [other for other in state.rented if other.id == one.id] == [one]
    return one.pod.full_id in state.agreed or (one.id in state.agreed and is_only)


# ---------------------------------------------------------------- rules, the first that applies decides


def _end_finished(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if not _has_ended(state, claim, EXIT_FINISHED):
        return None
    why = f"The run has ended: {claim.reason or 'its pod gave it back with code 0'}"
    return _clear(state, seen, "finished", why) or _end(state, why)


def _end(state: State, why: str) -> Decision:
    """Nothing is rented, unless a pod that was asked for comes yet."""
    if state.intent is None and not state.given_up:
        return Decision(state, why, done=True)
    asked = state.intent.label if state.intent is not None else state.given_up[0].label
    return Decision(state, f"{why.rstrip('.')}. A pod that was asked for ({asked}) may come yet.")


def _take_down(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if state.wanted:
        return None
    return _clear(state, seen, "down", "The run is down.") or _end(state, "The run is down.")


def _ask_a_person(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if not _has_ended(state, claim, EXIT_PERSON_NEEDED):
        return None
    why = (claim.reason or "its pod ended with code 93").rstrip(".")
    billed = "".join(f" Pod {one.id} is still rented." for one in state.living_pods)
    return Decision(state, f"The run needs a person: {why}.{billed} Then type: rl-supervisor fleet up", person=True)


def _has_ended(state: State, claim: Claim, code: int) -> bool:
    """Did its last holder end with ``code``, and has no person typed ``fleet up`` since?"""
    return claim.released and claim.code == code and claim.beat_at > state.up_at


def _raise_bid(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """A holder that was outbid keeps its disk, and on it what is not published: no other pod goes on as soon."""
    holder = find_holder(state, claim)
    if holder is None or _is_agreed(state, holder) or (claim.released and claim.code == EXIT_POD_UNFIT):
        return None
    if state.living_pods != (holder,) or state.intent is not None or not rules.rents:
        return None  # the next pod comes
    stopped_at = holder.missing_since if holder.pod.instance.phase == "stopped" else None
    if stopped_at is None or claim.beat_at > stopped_at or not is_missing(holder):
        return None
    age_s = seen.now - holder.bid_at
    if holder.bid:
        told = f"${holder.bid:.2f} an hour was bid for pod {holder.id} {span(age_s)} ago: it may wake."
        return Decision(state, told) if age_s < WAKES_WITHIN_S else None
    if holder.bid == 0 and state.up_at <= holder.bid_at:
        return None
    if holder.bid is None and holder.bid_at > stopped_at:  # the last bid met no answer
        if seen.now - stopped_at >= WAKES_WITHIN_S:
            return None
        if age_s < SECOND_LOOK_S:
            return Decision(state, f"The bid for pod {holder.id} met no answer {span(age_s)} ago; bidding again.")
    bidding, lowest = rules.bids.get(holder.place), holder.pod.instance.lowest_bid
    if bidding is None or lowest is None or lowest + holder.disk_per_hour > bidding.most or _limit_reached(rules, seen):
        return None
    bid = min(lowest * bidding.factor, bidding.most - holder.disk_per_hour)
    if not _is_within(rules, seen.money.per_hour - price_now(holder) + bid + holder.disk_per_hour):
        return None
    sentence = f"Pod {holder.id} was outbid. Bidding ${bid:.2f} an hour for it: the lowest is ${lowest:.2f}."
    return Decision(note_bid(state, holder.pod, bid, seen.now), sentence, RaiseBid(holder.pod, bid))


def _let_it_train(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """A holder that beats keeps the run. What else is rented for it is of no use, or is a pod that was replaced."""
    silent_s = seen.now - claim.beat_at
    if claim.is_free or silent_s >= BEATS * rules.beat_s:
        return None
    holder = find_holder(state, claim)
    notes = ""
    for one in state.living_pods:
        if one is holder:
            continue
        if holder is not None and one.pod.instance.label == claim.label:
            notes += f" Pods {holder.id} and {one.id} have one label, and one of them trains: end the other by hand."
            continue
        how: How = "replaced" if one.held else "duplicate"
        what = "was replaced" if one.held else "does not hold the run"
        found = _drop(state, one, how, seen, f"Pod {one.id} {what}: it is destroyed.")
        if found is not None:
            return found
        notes += f" {_say_kept(state, one, seen)}"
    notes += _say_given_up(state)
    if not _is_within(rules, seen.money.per_hour):
        notes += (
            f" ${seen.money.per_hour:.2f} an hour are billed, and ${rules.per_hour:.2f} are allowed (limits.per_hour): "
            "what trains is not stopped for that."
        )
    limit = _limit_reached(rules, seen)
    if limit:
        notes += f" No pod is rented after this one: {limit}"
    where = f"pod {holder.id} ({holder.pod.provider})" if holder is not None else "a pod that this fleet did not rent"
    trains = f"trains at step {claim.step}" if claim.step is not None else "holds the run, and has trained no step yet"
    search = None
    if seen.now - state.searched_at >= SEARCH_EVERY_S and seen.offers is None and rules.rents and not limit:
        search = FindOffers(tuple(place for place in rules.places if _find_closed(state, rules, seen, place) is None))
    return Decision(state, f"{where[0].upper()}{where[1:]} {trains}.{notes}", search, person=bool(notes))


def _leave_unfit_pod(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """94: the pod itself says that it must be another one. It gave the run back, so it writes no more."""
    holder = find_holder(state, claim)
    if not (claim.released and claim.code == EXIT_POD_UNFIT) or holder is None or not holder.is_living:
        return None
    why = f"Pod {holder.id}: {claim.reason or 'it ended with code 94, unfit.'}"
    return _drop(state, holder, "unfit", seen, why)


def _await_intent(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if state.intent is None:
        return None
    age_s, provider = seen.now - state.intent.at, state.intent.provider
    why = f": {seen.away[provider]}" if provider in seen.away else "."
    if provider in seen.away and age_s >= rules.boot_s:
        return None  # it may not exist; the run goes on elsewhere, and one that is listed later is a duplicate
    return Decision(
        state, f"Pod {state.intent.label} was asked for {span(age_s)} ago; waiting until {provider} lists it{why}"
    )


def _await_boot(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """Pods that never held the run, or are started again by their queue, and may claim it soon: one is waited for."""
    holder = find_holder(state, claim)
    others = (one for one in state.living_pods if _may_claim(one, holder, claim))
    new = sorted(others, key=lambda one: (one.pod.instance.phase in WAITING, one.since, one.id))
    how: How
    for one in new:
        if one.missing_since is None:
            continue
        if not is_missing(one):
            what = f"Pod {one.id} is stopped or not listed before it began"
            return Decision(state, f"{what}; looking again.", again_s=SECOND_LOOK_S)
        how, what = ("outbid", "was outbid") if one.pod.instance.spot else ("failed", "ended")
        found = _drop(state, one, how, seen, f"Pod {one.id} {what} before it began: it is destroyed.")
        if found is not None:
            return found
    new = [one for one in new if one.missing_since is None]
    # One that is overdue and may hold a step is neither waited for nor in the way of another.
    new = [one for one in new if _age(one, seen) < rules.boot_s or _may_end(state, one, seen)]
    # Nor one at a provider that does not answer: the run goes on elsewhere, and the claim decides.
    new = [one for one in new if _age(one, seen) < rules.boot_s or one.pod.provider not in seen.away]
    for one in reversed(new[1:]):
        found = _drop(state, one, "duplicate", seen, f"Pod {one.id} is a second one for the same run: it is destroyed.")
        if found is not None:
            return found
    if not new:
        return None
    first = new[0]
    age_s = _age(first, seen)
    if first.pod.provider in seen.away:
        return Decision(
            state, f"Pod {first.id} may start; {first.pod.provider} does not answer: {seen.away[first.pod.provider]}"
        )
    if age_s >= rules.boot_s:
        why = f"Pod {first.id} has not claimed the run within {span(rules.boot_s)}: it is destroyed."
        return _drop(blame_once(state, first, seen.now), first, "no-boot", seen, why)
    who, says = f"Pod {first.id} ({first.pod.provider})", first.pod.instance.says
    if first.pod.instance.phase in WAITING:
        waits = "waits in the queue again" if first.held else f"waits in the queue since {span(seen.now - first.since)}"
        return Decision(state, f"{who} {waits}: {says}", person=first.pod.instance.phase == "held")
    return Decision(state, f"{who} starts since {span(age_s)}: {says}")


def _may_claim(one: Rented, holder: Rented | None, claim: Claim) -> bool:
    """May it claim the run soon? Also a job that held it, and is in the queue again since, or starts anew."""
    if one.queued_at > claim.beat_at:
        return True
    return one is not holder and not one.held and (holder is None or one.pod.instance.label != claim.label)


def _age(one: Rented, seen: Seen) -> float:
    """Seconds since it was asked for, or left a queue, in which it could claim the run."""
    return seen.now - max(one.since, one.queued_at) - one.unheard_s


def _await_conviction(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    holder = find_holder(state, claim)
    silent_s = seen.now - claim.beat_at - state.unheard_s
    is_silent = silent_s >= rules.patience_s and (holder is None or seen.now - holder.woke_at >= rules.patience_s)
    lives = holder is not None and holder.is_living and holder.missing_since is None
    if claim.is_free:
        # Code 75, or none: the pod's own starter begins again there, and claims without waiting.
        if claim.code == EXIT_POD_UNFIT or holder is None or not lives:
            return None
        given = f"The run was given back {span(silent_s)} ago"
        # A person may have mended the pod, and while the store is away it claims nothing.
        if not is_silent or seen.now - max(state.up_at, state.patient_from) < rules.patience_s:
            return Decision(state, f"{given}; its pod may start it again.")
        return _drop(
            state, holder, "failed", seen, f"{given}, and pod {holder.id} has not started it again: it is destroyed."
        )
    if is_silent:
        return None
    who = f"pod {holder.id}" if holder is not None else "its pod"
    said = f"No beat of {who} for {span(seen.now - claim.beat_at)}"
    if state.unheard_s:
        said += f", and for {span(state.unheard_s)} of it the store was away"
    is_gone = holder is not None and (is_missing(holder) or _is_destroyed(holder, seen))
    if holder is None or (holder.missing_since is None and not is_gone):
        return Decision(state, f"{said}. It is convicted after {span(rules.patience_s)}, or when its instance is gone.")
    if not is_gone:
        return Decision(state, f"{said}, and its instance is stopped or gone; looking again.", again_s=SECOND_LOOK_S)
    if silent_s < BEATS * rules.beat_s:
        wait_s = BEATS * rules.beat_s - silent_s
        return Decision(state, f"{said}, and its instance is stopped or gone: {span(wait_s)} more.", again_s=wait_s)
    return None


def _end_again(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """A pod that could not be destroyed, and may take the room of the next one."""
    holder = find_holder(state, claim)
    for one in state.living_pods:
        if one.stuck_since and one is not holder:
            since = span(seen.now - one.stuck_since)
            why = f"Pod {one.id} could not be destroyed for {since}: {one.pod.provider} is asked again."
            found = _drop(state, one, one.how or "replaced", seen, why)
            if found is not None:
                return found
    return None


def _is_destroyed(one: Rented, seen: Seen) -> bool:
    """Did its provider confirm that it ends, and list it no more? These are two looks, too."""
    is_listed = any(pod.key == one.pod.key for pod in seen.pods)
    return not one.is_living and not is_listed and one.pod.provider not in seen.away


_Rule = Callable[[State, Rules, Seen, Claim], Decision | None]
_RULES: tuple[_Rule, ...] = (
    _end_finished,
    _take_down,
    _ask_a_person,
    _raise_bid,
    _let_it_train,
    _leave_unfit_pod,
    _await_intent,
    _await_boot,
    _await_conviction,
    _end_again,
)


# ---------------------------------------------------------------- renting


def _rent(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision:
    if state.intent is not None:  # its provider is away for long
        state = replace(state, intent=None, given_up=(*state.given_up, state.intent))
    if not rules.rents:
        why = "This command rents for another run only; `fleet run` and `fleet tick` rent for this one."
        return Decision(state, f"{_say_none(state)}. {why}{_say_billed(state, seen)}")
    reason = _limit_reached(rules, seen)
    if (fruitless := count_fruitless(state)) >= MOST_FRUITLESS:
        reason = (
            f"{fruitless:g} pods in a row ended or fell silent before they trained (an outbid or an unfit one counts "
            f"half). Look at "
            f"`rl-supervisor fleet history` and at what they printed, mend it, and type: rl-supervisor fleet up"
        )
    if len(unseen := _list_unseen(state, seen)) >= MOST_UNSEEN:
        reason = (
            f"{len(unseen)} pods were confirmed and never listed ({', '.join(one.label for one in unseen)}), so what "
            f"they bill is unknown. Look at the account at {unseen[-1].provider}, end them there, and type: "
            "rl-supervisor fleet up"
        )
    none = _say_none(state)
    if reason:
        return Decision(state, f"{none}, and none is rented: {reason}{_say_billed(state, seen)}", person=True)
    closed = {place: one for place in rules.places if (one := _find_closed(state, rules, seen, place)) is not None}
    open_places = tuple(place for place in rules.places if place not in closed)
    if not open_places:
        told = "; ".join(f"{place}: {one.why.rstrip('.')}{_say_when(one, seen)}" for place, one in closed.items())
        lasting = all(one.kind in ("key", "credit", "refused") for one in closed.values())
        return Decision(state, f"{none}, and no place can be asked: {told}.{_say_billed(state, seen)}", person=lasting)
    if seen.offers is None:
        return Decision(state, f"{none}. Looking for one.", FindOffers(open_places))
    chosen = _choose(state, rules, seen, open_places)
    if chosen is None:
        left_out, person = _say_left_out(state, rules, seen)
        where = ", ".join(open_places)
        return Decision(
            state,
            f"{none}, and nothing fits in {where}{left_out}; asking again.{_say_billed(state, seen)}",
            person=person,
        )
    generation = claim.generation + 1
    # S3's clock counts whole seconds, in which one create may be refused and another one follow.
    token = hashlib.sha256(f"{rules.run_id} {generation} {seen.now} {len(state.asked)}".encode()).hexdigest()[:6]
    label = label_of(rules.run_id, generation, token)
    provider = rules.places[chosen.place]
    machine = name_machine(provider, chosen.offer.machine)
    offer = chosen.offer
    if offer.is_job:
        faults = (state.faults, *seen.faults)
        banned = {name for one in faults for name, times in one.items() if _is_banned(times, seen)}
        own = (name.removeprefix(f"{provider}/") for name in banned if name.startswith(f"{provider}/"))
        offer = replace(offer, without=tuple(sorted(own)))
        chosen = replace(chosen, offer=offer)
    intent = Intent(label, chosen.place, provider, generation, seen.now, offer.per_hour, machine, offer.disk_per_hour)
    state = replace(state, intent=intent, asked={**state.asked, label: intent})
    convicted = "" if claim.is_free else f"{claim.generation}:{claim.mark}"
    sentence = f"{_say_offer(chosen.place, offer)}{_say_why(state, claim, seen)}."
    return Decision(state, sentence, Create(chosen, label, generation, convicted))


def _say_offer(place: str, offer: Offer) -> str:
    if not offer.is_job:
        return f"Renting {offer.gpus} x {offer.gpu} in {place} at ${offer.per_hour:.2f} an hour"
    price = f"${offer.per_hour:.2f} an hour while it runs" if offer.per_hour else "no price, so limits do not count it"
    without = f", without {', '.join(offer.without)}" if offer.without else ""
    return f"Submitting a job in {place} ({offer.gpus} GPUs, {price}){without}"


def note_created(state: State, label: str, made: str) -> State:
    """The provider confirmed a create, of instance ``made``. The list will show it; until then the intent stands."""
    intent = state.intent
    if intent is None or intent.label != label:
        return state
    intent = replace(intent, made=True, id=made)
    state = replace(state, intent=intent, asked={**state.asked, label: intent})
    return replace(state, closed={place: one for place, one in state.closed.items() if place != intent.place})


def note_not_created(state: State, label: str, error: PlaceError, now: float) -> State:
    """A create failed. One that may have worked (``unsure``) is waited for in the list."""
    intent = state.intent
    if intent is None or intent.label != label or error.kind == "unsure":
        return state
    asked = {**state.asked, label: replace(state.asked.get(label, intent), refused=True)}
    state = replace(state, intent=None, asked=asked)
    if error.kind == "taken":
        return replace(state, taken={**state.taken, intent.machine or intent.place: now + TAKEN_S})
    return _close(state, intent.place, error, now, 1)


def note_not_found(state: State, place: str, error: PlaceError, now: float) -> State:
    """A place could not be asked for its offers."""
    return _close(state, place, error, now, 0)


def _close(state: State, place: str, error: PlaceError, now: float, creates: int) -> State:
    """``creates``: so many failed by this."""
    count = creates + (state.closed[place].count if place in state.closed else 0)
    asked_s, pause_s = min(error.retry_after_s, LONGEST_RETRY_S), AGAIN_S[error.kind]
    if error.kind in ("rate", "away"):
        pause_s = min(LONGEST_AGAIN_S, pause_s * 2 ** min(max(0, count - 1), 8))
    closed = Closed(now + max(asked_s, pause_s), error.kind, str(error), count, now)
    return replace(state, closed={**state.closed, place: closed})


def count_fruitless(state: State) -> float:
    """How many pods ended, one after the other, before they trained, since a person wanted the run.

    One that claimed the run and then fell silent is such a pod, too. One that was outbid or unfit counts half: a wrong
    image looks like the one at some providers, and a wrong run file like the other.
    """
    count = 0.0
    for one in sorted(state.rented, key=lambda one: one.since, reverse=True):
        if _has_trained(one) or one.since < state.up_at:
            break
        is_lost = one.how in ("failed", "no-boot", "gone") or (one.held and one.how is None)
        count += 1.0 if is_lost else 0.5 if one.how in ("outbid", "unfit") else 0.0
    return count


def _has_trained(one: Rented) -> bool:
    """Did it show that the image and the run's file are right, and was it not unfit after that?"""
    return one.trained is not None and one.how != "unfit"


def _list_unseen(state: State, seen: Seen) -> list[Intent]:
    """Creates since a person wanted the run that were confirmed, and that no list has shown in the time for it."""
    told = {one.pod.instance.label for one in state.rented}  # by its claim alone
    trained = max((one.since for one in state.rented if _has_trained(one)), default=0.0)
    made = [one for one in state.asked.values() if one.made and one.at >= state.up_at]
    made = [one for one in made if one.label not in told or one.at >= trained]
    return [one for one in made if seen.now - one.at >= CONFIRMED_BY_S]


def _limit_reached(rules: Rules, seen: Seen) -> str:
    if rules.until is not None and seen.now >= rules.until:
        return "its time (until) is over."
    if seen.money.spent is None:
        return "what the fleet has spent is unknown while a part of its memory cannot be read."
    if rules.total is not None and seen.money.spent >= rules.total:
        return f"${seen.money.spent:.2f} are spent, and ${rules.total:.2f} are allowed (limits.total)."
    if seen.money.creates >= rules.creates_per_hour:
        return f"{seen.money.creates} pods were made within the last hour (limits.creates_per_hour)."
    return ""


def _choose(state: State, rules: Rules, seen: Seen, places: tuple[str, ...]) -> Offered | None:
    """The cheapest of the first place that has one."""
    for place in places:
        fits = [
            one
            for one in seen.offers or ()
            if one.place == place and not _is_left_out(state, rules, seen, one) and _is_paid_for(rules, seen, one)
        ]
        if fits:
            return min(
                fits, key=lambda one: (not _is_steady(state, rules, seen, one), one.offer.per_hour, one.offer.id)
            )
    return None


def _is_steady(state: State, rules: Rules, seen: Seen, offered: Offered) -> bool:
    """Was the machine offered for hours? Where spot machines last for hours in the mean and minutes in the median, one
    that has lasted lasts longer."""
    machine = name_machine(rules.places[offered.place], offered.offer.machine)
    return seen.now - state.offered.get(machine, seen.now) >= STEADY_S


def _note_offers(state: State, rules: Rules, seen: Seen) -> State:
    if seen.offers is None:
        return state
    machines = {name_machine(rules.places[one.place], one.offer.machine) for one in seen.offers}
    # What a place that did not answer had is not gone.
    silent = {provider for place, provider in rules.places.items() if _find_closed(state, rules, seen, place)}
    machines |= {one for one in state.offered if one.partition("/")[0] in silent}
    offered = {machine: state.offered.get(machine, seen.now) for machine in machines if machine}
    shown = [*seen.offers, *(one for one in state.cheapest if rules.places.get(one.place) in silent)]
    shown.sort(key=lambda one: one.offer.per_hour)
    return replace(state, offered=offered, searched_at=seen.now, cheapest=tuple(shown[:MOST_SHOWN]))


def _say_left_out(state: State, rules: Rules, seen: Seen) -> tuple[str, bool]:
    """Which offers are not taken, and why; and whether that is so until a person changes a limit, or ends a pod."""
    offers = seen.offers or ()
    bad = [one for one in offers if _is_left_out(state, rules, seen, one)]
    dear = [one for one in offers if one not in bad and not _is_paid_for(rules, seen, one)]
    told, person = [], False
    if bad:
        why = "the machine had a fault, was just taken, or has a pod of this fleet"
        told.append(f"{len(bad)} of {len(offers)} offers are left out: {why}")
    if dear and rules.per_hour is not None:
        least = min(one.offer.per_hour for one in dear)
        told.append(
            f"{len(dear)} of {len(offers)} cost ${least:.2f} an hour or more, ${seen.money.per_hour:.2f} are spent "
            f"now, and ${rules.per_hour:.2f} are allowed (limits.per_hour)"
        )
        never = least > rules.per_hour and not bad
        kept = tuple(one for one in state.living_pods if _is_for_person(state, one, seen))
        hidden = tuple(one for one in state.given_up if seen.now - one.at >= HOUR_S)  # their provider is away
        room = sum_price_now(replace(state, intent=None, given_up=hidden, rented=kept))
        person = never or (bool(kept or hidden) and _is_within(rules, seen.money.per_hour - room + least))
    return "".join(f"; {one}" for one in told), person


def _is_left_out(state: State, rules: Rules, seen: Seen, offered: Offered) -> bool:
    machine = name_machine(rules.places[offered.place], offered.offer.machine)
    if state.taken.get(machine or offered.place, 0.0) > seen.now:
        return True
    if not offered.offer.is_kind and machine in (seen.occupied if offered.offer.spot else seen.has_spot_pod):
        return True  # a higher bid would stop our own pod, and a pod on demand stops one that has bid
    host = name_host(rules.places[offered.place], offered.offer.host)
    # One bad machine says little of the others of its host, and two say more. Two runs may have met the same one, so
    # what they remember is not added up.
    return any(
        _is_banned(one.get(machine, ()), seen) or _is_banned(one.get(host, ())[1:], seen)
        for one in (state.faults, *seen.faults)
    )


def _is_banned(faults: tuple[float, ...], seen: Seen) -> bool:
    return bool(faults) and seen.now < faults[-1] + BANNED_S[min(len(faults), len(BANNED_S)) - 1]


def _is_paid_for(rules: Rules, seen: Seen, offered: Offered) -> bool:
    return _is_within(rules, seen.money.per_hour + offered.offer.per_hour)


def _is_within(rules: Rules, per_hour: float) -> bool:
    return rules.per_hour is None or per_hour <= rules.per_hour + ROUNDING


def _find_closed(state: State, rules: Rules, seen: Seen, place: str) -> Closed | None:
    """Why a place cannot be asked now."""
    one = state.closed.get(place)
    mended = one is not None and one.kind in ("key", "credit", "refused") and state.up_at > one.at
    if one is not None and one.until > seen.now and not mended:
        return one
    why = seen.away.get(rules.places[place])
    return None if why is None else Closed(seen.now, "away", why)


def _say_when(one: Closed, seen: Seen) -> str:
    return f" (asked again in {span(one.until - seen.now)})" if one.until > seen.now else ""


def _say_why(state: State, claim: Claim, seen: Seen) -> str:
    if claim.generation == 0:
        return ": the run has not begun"
    last = find_holder(state, claim)
    told = ""
    if last is not None and last.pod.instance.is_job and last.pod.instance.phase == "stopped":
        told = f". Job {last.id} is {last.pod.instance.says}"
    if claim.released:
        return f": its pod gave the run back ({claim.reason.rstrip('.') or 'without a reason'}){told}"
    return f": no beat for {span(seen.now - claim.beat_at)}{told}"


# ---------------------------------------------------------------- destroying


def _may_end(state: State, one: Rented, seen: Seen) -> bool:
    """Can it be destroyed now? A provider that failed to is left alone for a while, and the run goes on."""
    return _may_lose(state, one, seen) and seen.now - one.not_destroyed_at >= DESTROY_AGAIN_S


def _may_lose(state: State, one: Rented, seen: Seen) -> bool:
    """Is nothing on it that is nowhere else? Or has another pod published a newer step, or a person agreed?

    A pod that held the run may have saved a step after its last beat, unless it gave the run back. Where a person wants
    the run down, a beat of now is enough.
    """
    if _is_agreed(state, one):
        return True
    claim = seen.claim
    if one.place and claim is not None and _is_published_whole(state, seen, claim):
        return True  # without a record of its place it may be another fleet's, with a run of the same id
    own = claim if claim is not None and one is find_holder(state, claim) else None
    gave_back = own is not None and own.released
    fresh = own is not None and seen.now - own.beat_at < FRESH_S and not state.unheard_s
    if one.unpublished == () and (gave_back or not one.held or (fresh and not state.wanted)):
        return True
    known = [*(one.unpublished or ()), *(() if one.step is None else (one.step,))]
    if one.unpublished == () and one.held and not known:  # it named no step, so it began from what was published then
        known = [one.published + 1]
    return bool(known) and seen.published is not None and seen.published >= max(known)


def _is_published_whole(state: State, seen: Seen, claim: Claim) -> bool:
    """Is the run finished and published to its last step? Then nothing newer can be anywhere."""
    finished = _has_ended(state, claim, EXIT_FINISHED) and claim.unpublished == () and claim.step is not None
    return finished and seen.published is not None and seen.published >= (claim.step or 0)


def _clear(state: State, seen: Seen, how: How, why: str) -> Decision | None:
    """Destroy what is rented for the run, one at a time; None when nothing is left."""
    kept, person = "", False
    for one in state.living_pods:
        found = _drop(state, one, how, seen, f"{why.rstrip('.')}. Pod {one.id} is destroyed.")
        if found is not None:
            return found
        kept += f" {_say_kept(state, one, seen)}"
        person = person or _is_for_person(state, one, seen)
    return Decision(state, f"{why.rstrip('.')}.{kept}", person=person) if kept else None


def _is_for_person(state: State, one: Rented, seen: Seen) -> bool:
    """Does only a person end it, or has its provider failed to for long?"""
    return not _is_asked_again(state, one, seen) or seen.now - one.stuck_since >= STUCK_S


def _is_asked_again(state: State, one: Rented, seen: Seen) -> bool:
    """Is its provider asked again and again to end it? Not where it holds a run that is wanted: it may train yet."""
    claim = seen.claim
    holds = claim is not None and not claim.is_free and one is find_holder(state, claim)
    ends = not (holds and state.wanted) or _is_agreed(state, one)
    return bool(one.stuck_since) and ends and _may_lose(state, one, seen)


def _say_given_up(state: State) -> str:
    told = (f" A pod {one.label} may be rented at {one.provider}, which does not list it." for one in state.given_up)
    return "".join(told)


def _say_none(state: State) -> str:
    return "No pod trains" if state.living_pods else "The run has no pod"


def _say_billed(state: State, seen: Seen) -> str:
    return "".join(f" {_say_kept(state, one, seen)}" for one in state.living_pods) + _say_given_up(state)


def _say_kept(state: State, one: Rented, seen: Seen) -> str:
    if _is_asked_again(state, one, seen):
        since = span(seen.now - one.stuck_since)
        return f"Pod {one.id} could not be destroyed for {since}, and is billed: {one.pod.provider} is asked again."
    if _may_lose(state, one, seen):
        return f"Pod {one.id} is billed. To end it: rl-supervisor fleet destroy {one.pod.full_id}"
    what = f"step {max(one.unpublished)}" if one.unpublished else "what it has not published, which is unknown,"
    why = f"{what} may be nowhere else"
    if not one.place and not one.held:
        why = "this fleet has no record of it, and another fleet may have a run of this id"
    return f"Pod {one.id} is kept, and billed: {why}. To lose it: rl-supervisor fleet destroy {one.pod.full_id}"


def _drop(state: State, one: Rented, how: How, seen: Seen, sentence: str) -> Decision | None:
    """Destroy a pod; None where it may hold the only copy of a step."""
    if not _may_end(state, one, seen):
        return None
    return Decision(end(state, one.pod, how, seen.now), sentence, Destroy(one.pod))
