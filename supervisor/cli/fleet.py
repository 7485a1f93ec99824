"""``rl-supervisor fleet``: the next pod of a run comes up by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from supervisor.base import secrets, trim_memory
from supervisor.base.errors import (
    EXIT_PERSON_NEEDED,
    ConfigError,
    StoreError,
    TryAgainError,
    UsageError,
)
from supervisor.cli.render import Paint, table, wrap
from supervisor.core.messages import VARIABLE
from supervisor.core.words import span
from supervisor.fleet.assemble import Assembly, assemble
from supervisor.fleet.book import Orders, Page, StoreBook
from supervisor.fleet.controller import Controller, Place, Told
from supervisor.fleet.fleet_file import PlaceTable
from supervisor.fleet.model import Rented, State
from supervisor.fleet.observe import find_useful_share, sum_dollars, sum_useful_s
from supervisor.fleet.places.base import Offer, PlaceError

if TYPE_CHECKING:  # a fleet that tells no one needs no part of it
    from supervisor.fleet.messages import FleetOutbox

TICK_S = 30.0


def offers(file: Path, run: str | None) -> int:
    """What could be rented now, in the order in which it would be."""
    fleet = assemble(file, os.environ)
    names = _runs_of(fleet, run)
    wanted = list(dict.fromkeys(place for name in names for place in fleet.file.run[name].places))
    rows = [("place", "GPUs", "$/hour", "$/useful hour", "spot", "machine", "region", "down", "up")]
    states = _read_states(fleet)
    cheaper: list[str] = []
    for place in (fleet.places()[name] for name in wanted):
        share = find_useful_share(states, place.name)
        first = next(name for name in names if place.name in fleet.file.run[name].places)
        try:
            found = [fleet.fit(first, place, one) for one in place.provider.find_offers(place.want)]
            cheaper += _find_cheaper_kinds(fleet, names[0], place, found) if len(names) == 1 else []
        except PlaceError as error:
            print(*wrap(f"{place.name}: {error}"), sep="\n")
            continue
        rows += [
            (
                place.name,
                f"{one.gpus} x {one.gpu}" if one.gpu else f"{one.gpus} GPUs",
                f"{one.per_hour:.2f}",
                "?" if share is None else f"{one.per_hour / share:.2f}",
                "yes" if one.spot else "no",
                one.machine or "?",
                one.region or "?",
                _link(one.down_mbit),
                _link(one.up_mbit),
            )
            for one in found
        ]
    if len(rows) == 1:
        print("Nothing that fits is offered now.")
    else:
        print("\n".join(table(rows)))
    print(*(line for one in cheaper for line in wrap(one)), sep="\n", end="\n" if cheaper else "")
    return 1 if len(rows) == 1 else 0


def _find_cheaper_kinds(fleet: Assembly, run: str, place: Place, found: Sequence[Offer]) -> list[str]:
    """A sentence for each other kind of GPU with a machine that costs less, on which the run is estimated to fit."""
    from supervisor.fleet.place_check import gpu_gib
    from supervisor.preflight.gpu_memory import MEMORY_FITS

    if not place.want.gpu or fleet.file.place[place.name].is_own:
        return []
    cheapest: dict[str, Offer] = {}
    for one in place.provider.find_offers(replace(place.want, gpu="")):
        if not found or one.per_hour < found[0].per_hour:
            cheapest.setdefault(one.gpu, one)
    told = []
    for one in cheapest.values():
        if one.gpu != place.want.gpu and gpu_gib(one.gpu):
            misfits = fleet.find_misfits(run, place.name, one.gpu)
            if any(one.id == MEMORY_FITS for one in misfits) and all(one.weight == "note" for one in misfits):
                fits = (
                    f"{run} is estimated to fit on {one.gpus} x {one.gpu}: ${one.per_hour:.2f} an hour in {place.name}."
                )
                told.append(f'{fits} To rent these: gpu = "{one.gpu}".')
    return told


def check(file: Path, run: str | None) -> int:
    """Whether each run fits into each of its places, before anything is rented; 1 where one does not."""
    from supervisor.cli import findings
    from supervisor.preflight.gate import find_stopping_errors

    fleet = assemble(file, os.environ)
    wrong = False
    for name in _runs_of(fleet, run):
        overruled = fleet.files[name].check.overrule
        for place in fleet.file.run[name].places:
            found = [one for one in fleet.find_misfits(name, place) if one.weight != "note"]
            wrong = wrong or bool(find_stopping_errors(found, overruled))
            print(f"{name} in {place}: {'' if found else 'nothing known is in the way.'}".rstrip())
            told = findings.lines(found, overruled, paint=Paint.for_stdout(), columns=findings.width())
            print(*(f"{line}\n" for line in told), sep="", end="")
    return 1 if wrong else 0


def up(file: Path, run: str, dry_run: bool) -> int:
    """Want the run, and take the first step at once."""
    fleet = assemble(file, os.environ)
    [name] = _runs_of(fleet, run)
    _refuse_misfits(fleet, name)
    dearest: dict[str, PlaceTable] = {}
    for one in sorted(
        (fleet.file.place[one] for one in fleet.file.run[name].places), key=lambda one: one.most_per_hour
    ):
        dearest[one.account] = one
    for account, one in dearest.items():
        try:
            credit, price = fleet.provider(one).read_credit(), one.most_per_hour
        except PlaceError as error:
            print(*wrap(f"How long the credit lasts is unknown. {error}"), sep="\n")
            continue
        if credit is not None and price:
            lasts = f"{credit / price:.1f} h at ${price:.2f} (most_per_hour)"
            print(*wrap(f"The account at {account} has ${credit:.2f}: {lasts}."), sep="\n")
    up_at = fleet.book().read_clock()
    run_id = fleet.files[name].run.id
    return _order(fleet, run_id, lambda orders: replace(orders, wanted=True, up_at=up_at), dry_run=dry_run)


def down(file: Path, run: str, dry_run: bool) -> int:
    """Rent no more pods for the run, and destroy those that hold nothing which is nowhere else."""
    fleet = assemble(file, os.environ)
    [name] = _runs_of(fleet, run)
    run_id = fleet.files[name].run.id
    return _order(fleet, run_id, lambda orders: replace(orders, wanted=False), dry_run=dry_run)


def destroy(file: Path, pod: str, dry_run: bool) -> int:
    """Agree that a pod goes with all that is on it."""
    fleet = assemble(file, os.environ)
    book = fleet.book()
    damaged: list[str] = []
    for run_id, _, page in _read_pages(fleet, book, damaged):
        if page is not None and any(one.pod.full_id == pod and one.is_living for one in page.state.rented):
            return _order(
                fleet,
                run_id,
                lambda orders: replace(orders, agreed=(*orders.agreed, pod)),
                dry_run=dry_run,
            )
    told = [f"No run of {file} has a pod {pod}. `rl-supervisor fleet history` lists them.", *damaged]
    raise UsageError("\n".join(told))


def tick(file: Path, dry_run: bool) -> int:
    """One pass over all runs, for a cron. 93 when a run needs a person."""
    trim_memory.few_arenas()
    fleet = assemble(file, os.environ)
    return _pass(fleet, fleet.book(), dry_run=dry_run)


def run(file: Path, observe: bool) -> int:
    """Pass after pass until SIGTERM or Ctrl-C. ``observe``: say what would be done."""
    trim_memory.few_arenas()
    fleet = assemble(file, os.environ)
    ended = Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: ended.set())

    def wait(seconds: float) -> None:
        ended.wait(seconds)

    book = fleet.book()
    said: dict[str, str] = {}
    controller = fleet.controller(book, wait, dry=observe)
    outbox: FleetOutbox | None = None
    try:
        while not ended.is_set():
            try:
                if (newer := _renew(fleet, book, wait, said, dry=observe)) is not None:
                    _close_outbox(outbox)
                    newer[1].store_was_away = controller.store_was_away
                    (fleet, controller), outbox = newer, None
                if not observe:
                    book.begin()
                    outbox = outbox or _open_outbox(fleet, book, said)
                tolds = controller.tick()
                for told in tolds:
                    _say_news(told, said)
                if outbox is not None:
                    outbox.note(tolds, controller.money)
                _say_notes(fleet, said)
            except (StoreError, TryAgainError, OSError) as error:
                _say(said, "", str(error))
            trim_memory.trim()
            ended.wait(TICK_S)
    finally:
        _close_outbox(outbox)
        book.end()
    return 0


def status(file: Path) -> int:
    """One line a run: where, since when, dollars, and what was said last."""
    fleet = assemble(file, os.environ)
    book = fleet.book()
    rows = [("run", "pod", "since", "$/hour", "$ so far", "$/useful hour", "step")]
    notes: list[str] = []
    damaged: list[str] = []
    in_file = {run_file.run.id for run_file in fleet.files.values()}
    for run_id, name, page in _read_pages(fleet, book, damaged):
        if page is None:
            rows.append((name, "unknown", "", "", "?", "?", ""))
            continue
        living = [one for one in page.state.rented if one.is_living]
        dollars, each = sum_dollars(page.state), _price_useful_hour(page.state)
        if not living and run_id not in in_file:
            continue
        for one in living:
            rows.append((name, *_pod_cells(one), f"{dollars:.2f}", each, "" if one.step is None else str(one.step)))
        if not living:
            rows.append((name, "none", "", "", f"{dollars:.2f}", each, ""))
        if page.said:
            notes += wrap(f"{name}: {page.said[-1].sentence} ({_at(page.said[-1].at)})")
    print("\n".join([*table(rows), "", *notes, *(line for one in damaged for line in wrap(one))]))
    return 0


def explain(file: Path, run: str) -> int:
    """What was said of a run, the newest last."""
    fleet = assemble(file, os.environ)
    [name] = _runs_of(fleet, run)
    said = fleet.book().read_page(fleet.files[name].run.id).said
    for one in said:
        print(*wrap(f"{_at(one.at)} {one.sentence}", hang="    "), sep="\n")
    if not said:
        print(f"No controller has looked at {name} yet: rl-supervisor fleet run {file}")
    return 0


def history(file: Path) -> int:
    """All pods that were rented, how each ended, and the machines that are left out."""
    fleet = assemble(file, os.environ)
    book = fleet.book()
    rows = [("run", "pod", "machine", "from", "to", "$", "how it ended")]
    faults: list[str] = []
    sums: list[str] = []
    for _, name, page in _read_pages(fleet, book, sums):
        if page is None:
            continue
        state = page.state
        for one in state.rented:
            rows.append(
                (
                    name,
                    one.pod.full_id,
                    one.pod.instance.machine or "?",
                    _at(one.since),
                    _at(one.ended) if one.ended is not None else "",
                    f"{one.dollars:.2f}",
                    (one.how or "") if one.ended is not None else "lives",
                )
            )
        each = _price_useful_hour(state)
        useful = "no hour of useful training yet" if each == "?" else f"${each} for an hour of useful training"
        sums.append(f"{name}: ${sum_dollars(state):.2f} in all, {useful}")
        faults += [f"{machine}: {len(times)}" for machine, times in state.faults.items()]
    heading = "Faults of machines, and bad machines of hosts"
    print("\n".join([*table(rows), "", *sums, *(["", heading, *sorted(faults)] if faults else [])]))
    return 0


# ---------------------------------------------------------------- parts


def _refuse_misfits(fleet: Assembly, name: str) -> None:
    """Raises ConfigError with each error of the run's places that nothing overrules."""
    from supervisor.preflight.gate import find_stopping_errors

    told = []
    for place in fleet.file.run[name].places:
        for one in find_stopping_errors(fleet.find_misfits(name, place), fleet.files[name].check.overrule):
            told.append(f"{place}: [{one.id}] {one.where}: {one.sentence}")
    if told:
        more = f"More: rl-supervisor fleet check {name}. To rent it anyway: [check] overrule in its run file."
        raise ConfigError("\n".join([*told, more]))


def _renew(
    fleet: Assembly, book: StoreBook, wait: Callable[[float], None], said: dict[str, str], *, dry: bool
) -> tuple[Assembly, Controller] | None:
    """The fleet and its controller by the files as they are now. None where none changed, or they cannot be used."""
    if not fleet.is_stale():
        said.pop(str(fleet.path), None)
        return None
    try:
        newer = fleet.renew()
        controller = newer.controller(book, wait, dry=dry)
    except ConfigError as error:
        _say(said, str(fleet.path), f"The files changed and cannot be used, so the old ones hold. {error}")
        return None
    _say(said, str(fleet.path), "The files changed, and are read anew.")
    return newer, controller


def _order(fleet: Assembly, run_id: str, change: Callable[[Orders], Orders], *, dry_run: bool) -> int:
    book = fleet.book()
    orders = change(book.read_orders(run_id))
    if dry_run:
        return _pass(fleet, fleet.book({run_id: orders}), only=run_id, dry_run=True)
    fleet.controller(book, time.sleep)  # where a key is missing nothing is written down
    book.write_orders(run_id, orders)
    try:
        return _pass(fleet, book, only=run_id, dry_run=False)
    except TryAgainError as error:
        print(*wrap(f"It is written down. {error}"), sep="\n")
        return 0


def _pass(fleet: Assembly, book: StoreBook, *, only: str | None = None, dry_run: bool) -> int:
    """One look at all runs. ``only``: the id of the one for which pods may be rented."""
    if not dry_run:
        book.begin()
    said: dict[str, str] = {}
    outbox: FleetOutbox | None = None
    try:
        outbox = None if dry_run else _open_outbox(fleet, book, said)
        controller = fleet.controller(book, time.sleep, only=only, dry=dry_run)
        tolds = controller.tick()
        for told in tolds:
            _say_news(told, said)
        if outbox is not None:
            outbox.note(tolds, controller.money)
    finally:
        _close_outbox(outbox)
        book.end()
    _say_notes(fleet, said)
    return EXIT_PERSON_NEEDED if any(told.decision.person for told in tolds) else 0


def _open_outbox(fleet: Assembly, book: StoreBook, said: dict[str, str]) -> FleetOutbox | None:
    """None where no address is named. Raises StoreError."""
    if not secrets.secret(VARIABLE):
        return None
    from supervisor.fleet.messages import FleetOutbox

    names = {run_file.run.id: name for name, run_file in fleet.files.items()}
    outbox = FleetOutbox(fleet.file, names, book, lambda sentence: _say(said, "messages", sentence))
    outbox.start()
    return outbox


def _close_outbox(outbox: FleetOutbox | None) -> None:
    """What waits stays in the store, for the next controller."""
    if outbox is not None:
        outbox.close(all_at_end=False)


def _say_news(told: Told, said: dict[str, str]) -> None:
    for sentence in told.did:
        _say(said, told.run_id, sentence)
    if told.failed:
        _say(said, told.run_id, told.failed)
    if told.decision.action is None or not (told.did or told.failed):  # else it was said what became of it
        _say(said, told.run_id, told.decision.sentence)


def _say_notes(fleet: Assembly, said: dict[str, str]) -> None:
    for name, note in fleet.key_notes().items():
        _say(said, f"keys of {name}", note)


def _say(said: dict[str, str], name: str, sentence: str) -> None:
    if said.get(name) != sentence:
        said[name] = sentence
        print(*wrap(f"{name}: {sentence}" if name else sentence, hang="    "), sep="\n", flush=True)


def _read_states(fleet: Assembly) -> list[State]:
    """What is remembered of the runs; nothing where the store does not answer, since offers are shown without it."""
    try:
        book = fleet.book()
        return [book.read_page(run_id).state for run_id in _known_runs(fleet, book)]
    except StoreError as error:
        print(*wrap(f"What pods have trained so far is unknown: {error}."), sep="\n")
        return []


def _known_runs(fleet: Assembly, book: StoreBook) -> dict[str, str]:
    """Names of the runs of the file, and ids of those that left it: id -> name."""
    known = {run_file.run.id: name for name, run_file in fleet.files.items()}
    return known | {run_id: run_id for run_id in book.list_runs() if run_id not in known}


def _read_pages(fleet: Assembly, book: StoreBook, damaged: list[str]) -> Iterator[tuple[str, str, Page | None]]:
    """Id, name and page of each run. A page that is damaged hides no other run: None, and ``damaged`` gets why."""
    for run_id, name in _known_runs(fleet, book).items():
        try:
            yield run_id, name, book.read_page(run_id)
        except StoreError as error:
            if error.kind != "damaged":
                raise
            damaged.append(f"{name}: {error}.")
            yield run_id, name, None


def _runs_of(fleet: Assembly, name: str | None) -> list[str]:
    if name is not None and name not in fleet.file.run:
        raise ConfigError(f"{fleet.path} has no [run.{name}]; it has {', '.join(fleet.file.run)}.")
    return list(fleet.file.run) if name is None else [name]


def _pod_cells(one: Rented) -> tuple[str, str, str]:
    instance, price = one.pod.instance, one.per_hour
    where = f"{one.pod.full_id} {instance.phase}"
    return where, span(one.seen_at - one.since), "?" if price is None else f"{price:.2f}"


def _price_useful_hour(state: State) -> str:
    useful_h = sum_useful_s(state.rented) / 3600
    return f"{sum_dollars(state) / useful_h:.2f}" if useful_h else "?"


def _link(mbit: float | None) -> str:
    return "?" if mbit is None else f"{mbit:.0f} Mbit/s"


def _at(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%m-%d %H:%M:%S")
