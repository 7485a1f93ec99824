"""From ``fleet.toml`` and the environment to a controller with its stores and providers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from supervisor.base.errors import ConfigError, StoreError
from supervisor.base.promised import Promised
from supervisor.config.settings import RunFile
from supervisor.effects.claiming import CONVICTED, LABEL, PROMISED, beat_time
from supervisor.fleet.book import Orders, StoreBook
from supervisor.fleet.controller import Controller, Place, Run, RunLook
from supervisor.fleet.fleet_file import (
    ACCOUNT_KEYS,
    BOOT,
    RUN_FILE,
    FleetFile,
    PlaceTable,
    load,
    load_run,
    pod_environment,
)
from supervisor.fleet.keys import B2Keys, Keys, choose_keys
from supervisor.fleet.model import Bidding, Rules, State
from supervisor.fleet.place_run import adapt_run_file
from supervisor.fleet.places import prime, runpod, vast
from supervisor.fleet.places.base import Instance, Offer, Order, Provider
from supervisor.fleet.places.ssh import Ssh
from supervisor.fleet.run_look import look_at_run, read_ranks
from supervisor.fleet.side_by_side import ask_for_each
from supervisor.storage import open_store
from supervisor.storage.base import Store

if TYPE_CHECKING:  # pre-flight takes 6 MiB, which a look at the runs does not need, and few fleets are on a cluster
    from supervisor.fleet.slurm_job import SlurmJob
    from supervisor.preflight.finding import Finding


@dataclass
class Assembly:
    """All of a fleet that commands need. Stores and providers are opened when they are asked for first."""

    path: Path
    file: FleetFile
    files: Mapping[str, RunFile]  # run of fleet.toml -> its run file
    environ: Mapping[str, str]
    at_places: Mapping[str, Mapping[str, tuple[RunFile, bytes]]]  # run -> place -> its run file there
    texts: Mapping[Path, bytes | None]  # of all these files, from just before they were read
    _stores: dict[tuple[str, str | None], Store] = field(default_factory=dict)
    _providers: dict[str, Provider] = field(default_factory=dict)
    _keys: dict[str, Keys] = field(default_factory=dict)
    _jobs: dict[str, SlurmJob] = field(default_factory=dict)
    _opening: Lock = field(default_factory=Lock)

    def is_stale(self) -> bool:
        """Has one of the files changed since?"""
        return any(_read_text(path) != text for path, text in self.texts.items())

    def renew(self) -> Assembly:
        """The same fleet by its files as they are now. Raises ConfigError where they cannot be used."""
        newer = assemble(self.path, self.environ)
        if newer.file.fleet != self.file.fleet:
            raise ConfigError(f"{self.path}: [fleet] is not the same: restart `rl-supervisor fleet run`.")
        newer._providers.update(self._providers)  # they know when they were asked last
        return newer

    def book(self, supposed: Mapping[str, Orders] | None = None) -> StoreBook:
        """The controller's memory. Raises StoreError."""
        return StoreBook(self._open(self.file.fleet.store, self.file.fleet.realm), self.file.fleet.name, supposed)

    def controller(
        self, book: StoreBook, sleep: Callable[[float], None], *, only: str | None = None, dry: bool = False
    ) -> Controller:
        """A controller of all runs, which rents for all or for ``only`` one (an id).

        Raises ConfigError when the environment lacks a key.
        """
        runs = {self.files[name].run.id: self.run(name) for name in self.file.run}
        if only is not None:
            runs = {name: replace(run, rules=replace(run.rules, rents=name == only)) for name, run in runs.items()}
        return Controller(runs, self.places(), book, sleep=sleep, sweep=partial(self._sweep_keys, book), dry=dry)

    def key_notes(self) -> dict[str, str]:
        """What a person should know of the keys that pods get: run of the file -> sentences."""
        return {name: keys.note for name, keys in self._keys.items() if keys.note}

    def places(self) -> dict[str, Place]:
        """All places that a run names."""
        used = {place for run in self.file.run.values() for place in run.places}
        return {
            name: Place(name, self.provider(table), table.want, table.bid_factor)
            for name, table in self.file.place.items()
            if name in used
        }

    def run(self, name: str) -> Run:
        """One run of the file, as the controller sees it."""
        table, file, limits = self.file.run[name], self.files[name], self.file.limits
        rules = Rules(
            run_id=file.run.id,
            places={place: self.file.place[place].account for place in table.places},
            bids={
                name: Bidding(one.bid_factor, one.most_per_hour) for name, one in self.file.place.items() if one.spot
            },
            beat_s=beat_time(file.store.take_over_after),
            patience_s=file.store.take_over_after,
            boot_s=table.boot_s,
            per_hour=limits.per_hour,
            total=limits.total,
            creates_per_hour=limits.creates_per_hour,
            until=limits.until_unix,
        )
        env = pod_environment(self.path, table, file.run.id, self.environ)
        if any(self.file.place[place].provider == "slurm" for place in table.places):
            self.slurm_job(name)  # a mistake is told now

        def order(place: Place, offer: Offer, label: str, convicted: str) -> Order:
            wants = self.file.place[place.name]
            if offer.is_job:
                told = env | keys.make_key(label) | {LABEL: label, CONVICTED: convicted}
                return Order(label, "", 0, self.slurm_job(name).make_script(offer), told)
            text = base64.b64encode(self.at_places[name][place.name][1]).decode()
            told = {RUN_FILE: text, LABEL: label, CONVICTED: convicted, PROMISED: promised_by(offer, wants).as_json()}
            told = env | keys.make_key(label) | {name: value for name, value in told.items() if value}
            return Order(label, wants.image, wants.disk_gb, BOOT, told)

        def open_run_store() -> Store:
            return self._open(file.store_url, file.store.service, file.store.region)

        def look() -> RunLook:
            return look_at_run(open_run_store(), file.run.id)

        # Kept from tick to tick: they remember what they made and swept.
        made = B2Keys(name, rules, open_run_store, look)
        keys = self._keys.setdefault(name, choose_keys(file.store_url, table.env, made))
        return Run(rules, look, order, partial(self.fit, name))

    def fit(self, name: str, place: Place, offer: Offer) -> Offer:
        """What a place offers, for a run of the file."""
        return self.slurm_job(name).fit(offer, self.file.place[place.name].per_gpu_hour) if offer.is_job else offer

    def slurm_job(self, name: str) -> SlurmJob:
        """The job of a run of the file. Raises ConfigError where the run cannot go to a cluster."""
        from supervisor.fleet.slurm_job import SlurmJob

        if name not in self._jobs:
            self._jobs[name] = SlurmJob(self.path.parent / self.file.run[name].file, self.files[name], self.environ)
        return self._jobs[name]

    def _sweep_keys(
        self, book: StoreBook, states: Mapping[str, State], instances: Mapping[str, list[Instance]]
    ) -> None:
        def sweep(name: str) -> None:
            run_id = self.files[name].run.id
            if run_id in states:  # else its state is damaged
                self._keys[name].sweep(states[run_id], instances, partial(book.read_state, run_id))

        for swept in ask_for_each(self._keys, sweep).values():
            swept()

    def find_misfits(self, name: str, place: str, gpu: str = "") -> list[Finding]:
        """What keeps a run of the file from a place; ``gpu``: if its machines had these."""
        from supervisor.fleet.place_check import find_misfits, site_of_place
        from supervisor.preflight.gather import gather_run

        table, run_table = self.file.place[place], self.file.run[name]
        file = self.at_places[name][place][0]
        table = table.model_copy(update={"gpu": gpu}) if gpu else table
        if table.provider == "slurm":
            self.slurm_job(name)
        path = self.path.parent / run_table.file
        subject, _ = gather_run(path, environ={}, site=site_of_place(table), run_file=file)
        try:
            store = self._open(file.store_url, file.store.service, file.store.region)
            ranks = read_ranks(store, file.run.id)
        except (StoreError, ConfigError):
            ranks = None  # unknown; who wants the run hears of the store from the first look at it
        return find_misfits(subject, table, (self.path, place), ranks)

    def provider(self, table: PlaceTable) -> Provider:
        """The account at a provider, or a host. Raises ConfigError without its key."""
        if table.account not in self._providers:
            self._providers[table.account] = self._open_provider(table)
        return self._providers[table.account]

    def _open_provider(self, table: PlaceTable) -> Provider:
        if table.provider == "ssh":
            return Ssh(table.host)
        if table.provider == "slurm":
            from supervisor.fleet.places.slurm import Slurm

            return Slurm(self.path.absolute().parent, self.environ)
        name = ACCOUNT_KEYS[table.provider]
        if not (key := self.environ.get(name)):
            raise ConfigError(f"{name} is not set: put the account's key into this environment.")
        if table.provider == "prime":
            return prime.Prime(key, self.environ.get("PRIME_API_BASE_URL", prime.URL))
        if table.provider == "runpod":
            return runpod.Runpod(key, self.environ.get("RUNPOD_API_BASE_URL", runpod.URL))
        return vast.Vast(key, self.environ.get("VAST_URL", vast.URL))

    def _open(self, url: str, realm: str | None, region: str | None = None) -> Store:
        with self._opening:  # runs are looked at side by side, and many are in one store
            if (url, realm) not in self._stores:
                self._stores[url, realm] = open_store(url, realm, self.environ, region=region)
            return self._stores[url, realm]


def promised_by(offer: Offer, wants: PlaceTable) -> Promised:
    """What the next pod holds against its host. Of a machine of your own you know the GPUs, if you wrote them down."""
    return Promised(
        gpu=offer.gpu,
        gpus=offer.gpus if offer.gpu else None,
        disk_gb=None if wants.is_own else wants.disk_gb,
        down_mbit=offer.down_mbit,
        up_mbit=offer.up_mbit,
        least_down_mbit=wants.least_down_mbit,
        least_up_mbit=wants.least_up_mbit,
    )


def assemble(path: Path, environ: Mapping[str, str]) -> Assembly:
    """Read ``fleet.toml`` and its run files. Raises ConfigError."""
    text = _read_text(path)
    file = load(path)
    run_files = {path.parent / table.file for table in file.run.values()}
    texts = {path: text, **{one: _read_text(one) for one in run_files}}
    files = {name: load_run(path, name, table, file.fleet) for name, table in file.run.items()}
    for name, run_file in files.items():
        _check_label(path, file, name, run_file.run.id)
    ids = [one.run.id for one in files.values()]
    for one in ids:
        if ids.count(one) > 1:
            raise ConfigError(f"{path}: two runs have the id {one}.")
    at_places = {
        name: {one: adapt_run_file(path.parent / table.file, files[name], file.place[one]) for one in table.places}
        for name, table in file.run.items()
    }
    return Assembly(path, file, files, environ, at_places, texts)


def _read_text(path: Path) -> bytes | None:
    """None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _check_label(path: Path, file: FleetFile, name: str, run_id: str) -> None:
    """Raises ConfigError where a place could not name a pod of the run."""
    for place in file.run[name].places:
        if file.place[place].provider == "prime" and not prime.RUN_ID.fullmatch(run_id):
            raise ConfigError(
                f"{path}: run.{name} cannot be in {place}: names of pods at Prime Intellect have letters, digits and "
                f"dashes only, and the run's id is {run_id}. Take another id, or leave that place out."
            )
