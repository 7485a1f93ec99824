"""What to do next for a run that is watched from outside. Pure: no clock, no network; the claim alone says who trains.

A provider's word is only a signal, and so is silence. A holder is convicted when no beat has come for three periods
*and* two looks found its instance stopped or gone, or by silence alone after the whole patience. The next pod is given
the convicted standing, and claims the run only while the store still shows exactly that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

from supervisor.base.errors import EXIT_FINISHED, EXIT_PERSON_NEEDED, EXIT_POD_UNFIT
from supervisor.core.words import span
from supervisor.fleet.model import (
    Claim,
    Create,
    Decision,
    Destroy,
    FindOffers,
    How,
    Intent,
    Offered,
    Rented,
    Rules,
    Seen,
    State,
)
from supervisor.fleet.observe import (
    SECOND_LOOK_S,
    end,
    find_holder,
    is_missing,
    name_machine,
    note_fault,
    observe,
)
from supervisor.fleet.places.base import ErrorKind, label_of

BEATS = 3
"""So many beats may be missing before a second signal counts."""
MOST_FRUITLESS = 3
"""Pods in a row that never held the run before a person is asked: the image, the keys, or the run file are wrong."""
BANNED_S = (24 * 3600.0, 7 * 24 * 3600.0, 30 * 24 * 3600.0)
"""For how long a machine is left out after one fault, two, and three or more. In an open trace of 400 GPU servers the
same one fails again within a day in 21 % of the cases, within thirty in 43 % (InfiniteHBD)."""
TAKEN_S = 600.0
"""An offer that somebody else took, or a bid that was too low, is left out for so long."""
AGAIN_S = {"key": 3600.0, "credit": 1800.0, "refused": 3600.0, "rate": 60.0, "away": 30.0}
LONGEST_AGAIN_S = 900.0


def decide(state: State, rules: Rules, seen: Seen) -> Decision:
    """One look at one run: a new state, one sentence, and at most one action."""
    state = observe(state, seen)
    if seen.claim is None:
        return Decision(state, "The store does not answer, so it is unknown who trains. Nothing is changed.")
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


# ---------------------------------------------------------------- rules, the first that applies decides


def _obey(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """A person let a pod go with all that is on it, also one that trains."""
    for one in _list_living(state):
        if one.id in state.agreed:
            return _drop(state, one, "down", seen, f"Pod {one.id} is destroyed, as a person agreed.")
    return None


def _end_finished(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if not _has_ended(state, claim, EXIT_FINISHED):
        return None
    why = f"The run has ended: {claim.reason or 'its pod gave it back with code 0'}"
    return _clear(state, seen, "finished", why) or Decision(state, why, done=True)


def _take_down(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if state.wanted:
        return None
    if state.intent is not None:
        return Decision(state, f"The run is to be down; a pod that was just asked for ({state.intent.label}) may come.")
    return _clear(state, seen, "down", "The run is down.") or Decision(state, "The run is down.", done=True)


def _let_it_train(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """A holder that beats keeps the run. What else is rented for it is of no use, or is a pod that was replaced."""
    silent_s = seen.now - claim.beat_at
    if claim.is_free or silent_s >= BEATS * rules.beat_s:
        return None
    holder = find_holder(list(state.rented), claim)
    notes = ""
    for one in _list_living(state):
        if one is holder:
            continue
        how: How = "replaced" if one.held else "duplicate"
        what = "was replaced" if one.held else "does not hold the run"
        found = _drop(state, one, how, seen, f"Pod {one.id} {what}: it is destroyed.")
        if found is not None:
            return found
        notes += f" {_say_kept(one)}"
    limit = _limit_reached(rules, seen)
    if limit:
        notes += f" No pod is rented after this one: {limit}"
    where = f"pod {holder.id} ({holder.pod.provider})" if holder is not None else "a pod that this fleet did not rent"
    at = f" at step {claim.step}" if claim.step is not None else ""
    return Decision(state, f"{where[0].upper()}{where[1:]} trains{at}.{notes}", person=bool(notes))


def _ask_a_person(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if not _has_ended(state, claim, EXIT_PERSON_NEEDED):
        return None
    why = (claim.reason or "its pod ended with code 93").rstrip(".")
    billed = "".join(f" Pod {one.id} is still rented." for one in _list_living(state))
    return Decision(state, f"The run needs a person: {why}.{billed} Then type: rl-supervisor fleet up", person=True)


def _has_ended(state: State, claim: Claim, code: int) -> bool:
    """Did its last holder end with ``code``, and has no person typed ``fleet up`` since?"""
    return claim.released and claim.code == code and claim.beat_at > state.up_at


def _leave_unfit_pod(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """94: the pod itself says that it must be another one. It gave the run back, so it writes no more."""
    holder = find_holder(list(state.rented), claim)
    if not (claim.released and claim.code == EXIT_POD_UNFIT) or holder is None or not holder.is_living:
        return None
    why = f"Pod {holder.id} is unfit: {claim.reason or 'it ended with code 94'}"
    return _drop(_blame_once(state, holder, seen), holder, "unfit", seen, why)


def _await_intent(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    if state.intent is None:
        return None
    age_s = seen.now - state.intent.at
    return Decision(
        state,
        f"Pod {state.intent.label} was asked for {span(age_s)} ago; waiting until {state.intent.provider} lists it.",
    )


def _await_boot(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    """Pods that never held the run, and may claim it soon: one is waited for."""
    holder = find_holder(list(state.rented), claim)
    new = sorted(
        (one for one in _list_living(state) if one is not holder and not one.held), key=lambda one: (one.since, one.id)
    )
    how: How
    for one in new:
        if one.missing_since is None:
            continue
        if not is_missing(one, seen.now):
            what = f"Pod {one.id} is stopped or not listed before it began"
            return Decision(state, f"{what}; looking again.", again_s=SECOND_LOOK_S)
        how, what = ("outbid", "was outbid") if one.pod.instance.spot else ("failed", "ended")
        found = _drop(state, one, how, seen, f"Pod {one.id} {what} before it began: it is destroyed.")
        if found is not None:
            return found
    new = [one for one in new if one.missing_since is None]
    # One that is overdue and may hold a step is neither waited for nor in the way of another.
    new = [one for one in new if seen.now - one.since < rules.boot_s or _may_lose(state, one, seen)]
    for one in reversed(new[1:]):
        found = _drop(state, one, "duplicate", seen, f"Pod {one.id} is a second one for the same run: it is destroyed.")
        if found is not None:
            return found
    if not new:
        return None
    first = new[0]
    age_s = seen.now - first.since
    if first.pod.provider in seen.away:
        return Decision(
            state, f"Pod {first.id} may start; {first.pod.provider} does not answer: {seen.away[first.pod.provider]}"
        )
    if age_s >= rules.boot_s:
        why = f"Pod {first.id} has not claimed the run within {span(rules.boot_s)}: it is destroyed."
        return _drop(_blame_once(state, first, seen), first, "no-boot", seen, why)
    return Decision(
        state, f"Pod {first.id} ({first.pod.provider}) starts since {span(age_s)}: {first.pod.instance.says}"
    )


def _await_conviction(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision | None:
    holder = find_holder(list(state.rented), claim)
    silent_s = seen.now - claim.beat_at
    lives = holder is not None and holder.is_living and holder.missing_since is None
    if claim.is_free:
        # Code 75, or none: the pod's own starter begins again there, and claims without waiting.
        if claim.generation and claim.code != EXIT_POD_UNFIT and lives and silent_s < rules.patience_s:
            return Decision(state, f"The run was given back {span(silent_s)} ago; its pod may start it again.")
        return None
    if silent_s >= rules.patience_s:
        return None
    who = f"pod {holder.id}" if holder is not None else "its pod"
    said = f"No beat of {who} for {span(silent_s)}"
    if holder is None or holder.missing_since is None:
        return Decision(state, f"{said}. It is convicted after {span(rules.patience_s)}, or when its instance is gone.")
    if not is_missing(holder, seen.now):
        return Decision(state, f"{said}, and its instance is stopped or gone; looking again.", again_s=SECOND_LOOK_S)
    if silent_s < BEATS * rules.beat_s:
        wait_s = BEATS * rules.beat_s - silent_s
        return Decision(state, f"{said}, and its instance is stopped or gone: {span(wait_s)} more.", again_s=wait_s)
    return None


_Rule = Callable[[State, Rules, Seen, Claim], Decision | None]
_RULES: tuple[_Rule, ...] = (
    _obey,
    _end_finished,
    _take_down,
    _let_it_train,
    _ask_a_person,
    _leave_unfit_pod,
    _await_intent,
    _await_boot,
    _await_conviction,
)


# ---------------------------------------------------------------- renting


def _rent(state: State, rules: Rules, seen: Seen, claim: Claim) -> Decision:
    reason = _limit_reached(rules, seen)
    if (fruitless := _count_fruitless(state)) >= MOST_FRUITLESS:
        reason = (
            f"{fruitless:g} pods in a row ended before they trained (an outbid or an unfit one counts half). Look at "
            f"`rl-supervisor fleet history` and at what they printed, mend it, and type: rl-supervisor fleet up"
        )
    if reason:
        return Decision(state, f"The run has no pod, and none is rented: {reason}", person=True)
    open_places = tuple(
        place for place in rules.places if _opens_at(state, place) <= seen.now and rules.places[place] not in seen.away
    )
    if not open_places:
        opens = min((_opens_at(state, place) for place in rules.places), default=seen.now)
        away = "; ".join(f"{place}: {why}" for place, why in sorted(seen.away.items()))
        when = f"the first is asked again in {span(opens - seen.now)}" if opens > seen.now else away
        return Decision(state, f"The run has no pod, and no place can be asked: {when}")
    if seen.offers is None:
        return Decision(state, "The run has no pod. Looking for one.", FindOffers(open_places))
    chosen = _choose(state, rules, seen, open_places)
    if chosen is None:
        return Decision(state, f"The run has no pod, and nothing fits in {', '.join(open_places)}; asking again.")
    generation = claim.generation + 1
    token = hashlib.sha256(f"{rules.run_id} {generation} {seen.now}".encode()).hexdigest()[:6]
    label = label_of(rules.run_id, generation, token)
    provider = rules.places[chosen.place]
    machine = name_machine(provider, chosen.offer.machine)
    intent = Intent(label, chosen.place, provider, generation, seen.now, chosen.offer.per_hour, machine)
    state = replace(state, intent=intent, creates=(*state.creates, seen.now))
    convicted = "" if claim.is_free else f"{claim.generation}:{claim.mark}"
    sentence = (
        f"Renting {chosen.offer.gpus} x {chosen.offer.gpu} in {chosen.place} at ${chosen.offer.per_hour:.2f} an hour"
        f"{_say_why(claim, seen)}."
    )
    return Decision(state, sentence, Create(chosen, label, generation, convicted))


def note_created(state: State, label: str) -> State:
    """The provider confirmed a create. The list will show it; until then the intent stands."""
    intent = state.intent
    if intent is None or intent.label != label:
        return state
    return replace(state, troubles={**state.troubles, intent.place: 0})


def note_not_created(state: State, label: str, kind: ErrorKind, retry_after_s: float, now: float) -> State:
    """A create failed. One that may have worked all the same (``unsure``) is waited for in the list."""
    intent = state.intent
    if intent is None or intent.label != label or kind == "unsure":
        return state
    state = replace(state, intent=None)
    if kind == "taken":
        return replace(state, not_before={**state.not_before, intent.machine or intent.place: now + TAKEN_S})
    count = state.troubles.get(intent.place, 0) + 1
    pause_s = max(retry_after_s, min(LONGEST_AGAIN_S, AGAIN_S[kind] * 2 ** min(count - 1, 8)))
    if kind in ("key", "credit", "refused"):
        pause_s = AGAIN_S[kind]
    return replace(
        state,
        troubles={**state.troubles, intent.place: count},
        not_before={**state.not_before, intent.place: now + pause_s},
    )


def _count_fruitless(state: State) -> float:
    """How many pods ended, one after the other, before they trained, since a person wanted the run.

    One that was outbid or unfit counts half: a wrong image looks like the one at some providers, and a wrong run file
    like the other.
    """
    count = 0.0
    for one in sorted(state.rented, key=lambda one: one.since, reverse=True):
        if (one.held and one.how != "unfit") or one.since < state.up_at:
            break
        count += 1.0 if one.how in ("failed", "no-boot", "gone") else 0.5 if one.how in ("outbid", "unfit") else 0.0
    return count


def _limit_reached(rules: Rules, seen: Seen) -> str:
    if rules.until is not None and seen.now >= rules.until:
        return "its time (until) is over."
    if rules.total is not None and seen.spent >= rules.total:
        return f"${seen.spent:.2f} are spent, and ${rules.total:.2f} are allowed (limits.total)."
    if seen.creates >= rules.creates_per_hour:
        return f"{seen.creates} pods were made within the last hour (limits.creates_per_hour)."
    return ""


def _choose(state: State, rules: Rules, seen: Seen, places: tuple[str, ...]) -> Offered | None:
    """The cheapest of the first place that has one."""
    for place in places:
        fits = [
            one
            for one in seen.offers or ()
            if one.place == place
            and not _is_banned(state, name_machine(rules.places[place], one.offer.machine), seen.now)
            and (rules.per_hour is None or seen.spending + one.offer.per_hour <= rules.per_hour)
        ]
        if fits:
            return min(fits, key=lambda one: (one.offer.per_hour, one.offer.id))
    return None


def _is_banned(state: State, machine: str, now: float) -> bool:
    if not machine:
        return False
    if state.not_before.get(machine, 0.0) > now:
        return True
    faults = state.faults.get(machine, ())
    return bool(faults) and now < faults[-1] + BANNED_S[min(len(faults), len(BANNED_S)) - 1]


def _opens_at(state: State, place: str) -> float:
    return state.not_before.get(place, 0.0)


def _say_why(claim: Claim, seen: Seen) -> str:
    if claim.generation == 0:
        return ": the run has not begun"
    if claim.released:
        return f": its pod gave the run back ({claim.reason.rstrip('.') or 'without a reason'})"
    return f": no beat for {span(seen.now - claim.beat_at)}"


# ---------------------------------------------------------------- destroying


def _list_living(state: State) -> list[Rented]:
    return [one for one in state.rented if one.is_living]


def _may_lose(state: State, one: Rented, seen: Seen) -> bool:
    """Is nothing on it that is nowhere else? Or has another pod published a newer step, or a person agreed?

    A pod that held the run may have saved a step after its last beat, unless it gave the run back. Where a person wants
    the run down, the beat is enough.
    """
    if one.id in state.agreed:
        return True
    claim = seen.claim
    gave_back = claim is not None and claim.released and one is find_holder(list(state.rented), claim)
    if one.unpublished == () and (gave_back or not one.held or not state.wanted):
        return True
    known = [*(one.unpublished or ()), *(() if one.step is None else (one.step,))]
    return bool(known) and seen.published is not None and seen.published >= max(known)


def _blame_once(state: State, one: Rented, seen: Seen) -> State:
    """A machine is at fault once for each pod."""
    last = state.faults.get(name_machine(one.pod.provider, one.pod.instance.machine), ())
    return state if last and last[-1] >= one.since else note_fault(state, one.pod, seen.now)


def _clear(state: State, seen: Seen, how: How, why: str) -> Decision | None:
    """Destroy what is rented for the run, one at a time; None when nothing is left."""
    kept = ""
    for one in _list_living(state):
        found = _drop(state, one, how, seen, f"{why.rstrip('.')}. Pod {one.id} is destroyed.")
        if found is not None:
            return found
        kept += f" {_say_kept(one)}"
    return Decision(state, f"{why}{kept}", person=True) if kept else None


def _say_kept(one: Rented) -> str:
    what = f"step {max(one.unpublished)}" if one.unpublished else "what it has not published, which is unknown,"
    return (
        f"Pod {one.id} is kept, and billed: {what} may be nowhere else. "
        f"To lose it: rl-supervisor fleet destroy {one.pod.provider}/{one.id}"
    )


def _drop(state: State, one: Rented, how: How, seen: Seen, sentence: str) -> Decision | None:
    """Destroy a pod; None where it may hold the only copy of a step."""
    if not _may_lose(state, one, seen):
        return None
    return Decision(end(state, one.pod, how, seen.now), sentence, Destroy(one.pod))
