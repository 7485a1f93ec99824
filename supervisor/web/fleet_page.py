"""What the page shows of a fleet, as JSON values: money against limits, runs, pods, places, offers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from supervisor.base.secrets import mask_value
from supervisor.core.words import span
from supervisor.fleet.book import Orders, Page
from supervisor.fleet.fleet_file import PlaceTable
from supervisor.fleet.model import Rented
from supervisor.fleet.observe import (
    count_creates,
    find_useful_share,
    name_machine,
    sum_dollars,
    sum_price_now,
    sum_useful_s,
)
from supervisor.web.fleet_source import FleetSeen
from supervisor.web.page import make_plain

MOST_ENDED = 100
SILENT_S = 1800.0
"""A controller that has not written for so long is named: a workflow of GitHub is late by a quarter of an hour."""
HOUR_S = 3600.0
WORDS = {
    "needs a person": ("needs a person", "need a person"),
    "on a pod": ("is on a pod", "are on pods"),
    "starts": ("starts", "start"),
    "no pod": ("has no pod", "have no pod"),
    "down": ("is down", "are down"),
    "over": ("is over", "are over"),
}
"""State of a run, and how many are in it: one, several."""


def page_of_fleet(seen: FleetSeen) -> dict[str, Any]:
    """fleet, at, sentence, written_at, money, runs, pods, ended, places, offers, faults, notes. Times are Unix time."""
    runs = _list_runs(seen)
    money = _count_money(seen)
    page = {
        "fleet": seen.file.fleet.name,
        "at": seen.at,
        "sentence": _sentence_of_fleet(runs, money),
        "written_at": seen.written_at,
        "money": money,
        "runs": runs,
        "pods": list(_list_pods(seen)),
        "ended": list(_list_ended(seen)),
        "places": [_place(name, table, seen) for name, table in seen.file.place.items()],
        "offers": list(_list_offers(seen)),
        "faults": _list_faults(seen),
        "notes": list(_list_notes(seen)),
    }
    return dict(make_plain(mask_value(page)))


def lines_of_fleet(seen: FleetSeen) -> list[dict[str, Any]]:
    """A line for each run of the file, as ``page.line_of_run`` has it; no run's own store is asked."""
    return [
        dict(make_plain(mask_value({name: one[name] for name in ("run", "state", "sentence", "step")})))
        for one in _list_runs(seen)
        if one["in_file"]
    ]


def _list_runs(seen: FleetSeen) -> list[dict[str, Any]]:
    """Those of the file in its order, then those that left it."""
    names = {**seen.runs, **{run: run for run in sorted(seen.pages) if run not in seen.runs}}
    found = []
    for run, name in names.items():
        page, orders = seen.pages.get(run, Page()), seen.orders.get(run, Orders())
        living = page.state.living_pods
        if run not in seen.runs and not living:
            continue
        useful_h = sum_useful_s(page.state.rented) / HOUR_S
        dollars = sum_dollars(page.state)
        last = page.said[-1] if page.said else None
        found.append(
            {
                "run": run,
                "name": name,
                "in_file": run in seen.runs,
                "state": _word_of_run(page, orders, living),
                "sentence": last.sentence if last else "No controller has looked at it yet.",
                "said_at": last.at if last else None,
                "step": max((one.step for one in living if one.step is not None), default=None),
                "dollars": round(dollars, 2),
                "per_useful_hour": round(dollars / useful_h, 2) if useful_h else None,
            }
        )
    return found


def _word_of_run(page: Page, orders: Orders, living: Sequence[Rented]) -> str:
    if page.verdict == "person":
        return "needs a person"
    if not orders.wanted:
        return "down"
    if any(one.held for one in living):
        return "on a pod"
    if living or page.state.intent is not None:
        return "starts"
    return "over" if page.verdict == "done" else "no pod"


def _sentence_of_fleet(runs: list[dict[str, Any]], money: Mapping[str, Any]) -> str:
    count: dict[str, int] = {}
    for one in runs:
        count[one["state"]] = count.get(one["state"], 0) + 1
    told = [f"{number} {WORDS[word][number > 1]}" for word, number in count.items()]
    left = f"${money['spent']:.2f} of ${money['total']:.2f} are spent, ${money['per_hour']:.2f} an hour now."
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}: {', '.join(told) or 'none'}. {left}"


def _count_money(seen: FleetSeen) -> dict[str, Any]:
    """Dollars. ``lasts_s``: until the total is spent, at the present price; None where nothing is rented."""
    states = [page.state for page in seen.pages.values()]
    limits = seen.file.limits
    spent, per_hour = sum(map(sum_dollars, states)), sum(map(sum_price_now, states))
    left = max(0.0, limits.total - spent)
    return {
        "spent": round(spent, 2),
        "total": limits.total,
        "per_hour": round(per_hour, 2),
        "most_per_hour": limits.per_hour,
        "creates": sum(count_creates(state, seen.at) for state in states),
        "most_creates": limits.creates_per_hour,
        "until": limits.until_unix,
        "lasts_s": round(left / per_hour * HOUR_S) if per_hour else None,
    }


def _list_pods(seen: FleetSeen) -> Iterator[dict[str, Any]]:
    """What is rented now, and what was asked for and is not listed yet."""
    for run, page in seen.pages.items():
        for intent in (page.state.intent, *page.state.given_up):
            if intent is not None:
                yield {
                    "run": run,
                    "pod": f"{intent.provider}/?",
                    "phase": "asked for",
                    "place": intent.place,
                    "since": intent.at,
                    "per_hour": intent.per_hour,
                    "machine": intent.machine,
                }
        for one in page.state.living_pods:
            yield _pod(run, one) | {
                "phase": one.pod.instance.phase,
                "seen_at": one.seen_at,
                "per_hour": one.per_hour,
                "bid": _say_bid(one),
                "step": one.step,
                "unpublished": None if one.unpublished is None else list(one.unpublished),
            }


def _pod(run: str, one: Rented) -> dict[str, Any]:
    instance = one.pod.instance
    return {
        "run": run,
        "pod": one.pod.full_id,
        "place": one.place,
        "gpus": f"{instance.gpus or '?'} x {instance.gpu}" if instance.gpu else "",
        "machine": name_machine(one.pod.provider, instance.machine),
        "spot": instance.spot,
        "since": one.since,
        "dollars": round(one.dollars, 2),
    }


def _say_bid(one: Rented) -> str:
    """Of a spot pod: what is bid for it, and the lowest that keeps it or wakes it."""
    if not one.pod.instance.spot:
        return ""
    lowest = one.pod.instance.lowest_bid
    asked = f"lowest ${lowest:.2f}" if lowest is not None else ""
    raised = f"raised to ${one.bid:.2f}" if one.bid else "refused" if one.bid == 0 else ""
    return ", ".join(part for part in (raised, asked) if part)


def _list_ended(seen: FleetSeen) -> list[dict[str, Any]]:
    """Newest first."""
    found = [
        _pod(run, one) | {"ended": one.ended, "how": one.how or ""}
        for run, page in seen.pages.items()
        for one in page.state.rented
        if one.ended is not None
    ]
    return sorted(found, key=lambda one: -float(one["ended"]))[:MOST_ENDED]


def _place(name: str, table: PlaceTable, seen: FleetSeen) -> dict[str, Any]:
    states = [page.state for page in seen.pages.values()]
    share = find_useful_share(states, name)
    closed = [one for state in states if (one := state.closed.get(name)) is not None and one.until > seen.at]
    newest = max(closed, key=lambda one: one.at, default=None)
    return {
        "place": name,
        "at": table.account,
        "gpus": f"{table.gpus} x {table.gpu}" if table.gpu else "",
        "spot": table.want.spot,
        "most_per_hour": table.most_per_hour or None,
        "useful": None if share is None else round(share, 3),
        "pods": sum(one.place == name for state in states for one in state.living_pods),
        "closed": "" if newest is None else f"{newest.why} Asked again in {span(newest.until - seen.at)}.",
    }


def _list_offers(seen: FleetSeen) -> list[dict[str, Any]]:
    """The cheapest that the newest search of any run found in each place, the cheapest first."""
    states = sorted((page.state for page in seen.pages.values()), key=lambda state: state.searched_at)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    newest: dict[str, float] = {}
    for state in states:
        newest |= dict.fromkeys({one.place for one in state.cheapest}, state.searched_at)
        for one in state.cheapest:
            table = seen.file.place.get(one.place)
            machine = name_machine(table.account if table else "", one.offer.machine)
            found[one.place, one.offer.id] = {
                "place": one.place,
                "gpus": f"{one.offer.gpus} x {one.offer.gpu}",
                "per_hour": round(one.offer.per_hour, 2),
                "spot": one.offer.spot,
                "machine": machine,
                "region": one.offer.region,
                "since": state.offered.get(machine),
                "seen_at": state.searched_at,
            }
    there = [one for one in found.values() if one["seen_at"] == newest[one["place"]]]
    return sorted(there, key=lambda one: one["per_hour"])


def _list_faults(seen: FleetSeen) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {}
    for page in seen.pages.values():
        for machine, at in page.state.faults.items():
            times.setdefault(machine, []).extend(at)
    return [{"machine": one, "count": len(at), "last": max(at)} for one, at in sorted(times.items()) if at]


def _list_notes(seen: FleetSeen) -> Iterator[str]:
    yield from seen.notes
    if seen.written_at is None:
        yield "No controller has tended this fleet yet: rl-supervisor fleet run"
    elif seen.at - seen.written_at > SILENT_S:
        yield f"No controller has written for {span(seen.at - seen.written_at)}: nothing is decided meanwhile."
    for run, page in seen.pages.items():
        if run not in seen.runs and page.state.living_pods:
            yield f"{run} is in fleet.toml no more, and a pod of it is billed."
