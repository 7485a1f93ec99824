"""A B2 key for each pod: one bucket, the run's folder, what a daemon needs and no more, and an end.

The controller makes it right before it rents the pod, and deletes it when the pod is gone. A key carries the pod's
label as its name, so one that a killed controller left behind is found again and swept. Its secret goes to the pod
alone. What B2 issued for a key (tokens) lives on for up to 24 h: a deleted key is no fence, the claim in the store is.

About keys: Backblaze's documentation of b2_create_key, b2_list_keys and b2_delete_key (API v4, which b2sdk speaks).
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from supervisor.base import secrets
from supervisor.base.errors import EXIT_TRY_AGAIN, StoreError
from supervisor.checkpoints.manifest import run_folder
from supervisor.fleet.controller import RunLook
from supervisor.fleet.model import Rented, Rules, State
from supervisor.fleet.observe import HOUR_S, find_holder
from supervisor.fleet.places.base import LABEL, ErrorKind, Instance, PlaceError
from supervisor.storage.backends import keys_of
from supervisor.storage.base import Store
from supervisor.storage.keys import NEEDED

if TYPE_CHECKING:
    from supervisor.storage.b2 import B2Store
    from supervisor.storage.b2client import B2Client

DAY_S = 86_400
LONGEST_S = 999 * DAY_S
"""B2 takes less than 1,000 days."""
TO_MAKE = ("writeKeys", "listKeys", "deleteKeys")
"""Capabilities that the controller's own key needs for this. B2 gives them only to a key of all buckets."""
AFTER_STEM = re.compile(r"[0-9]{5,15}-[0-9a-f]{6}")


class Keys(Protocol):
    """How pods of one run get a key for its store. ``note``: what a person should know of it; "" for nothing."""

    note: str

    def make_key(self, label: str) -> dict[str, str]:
        """Variables for the pod that is about to be made under ``label``. Raises PlaceError."""

    def sweep(self, state: State, instances: Mapping[str, list[Instance]], read_state: Callable[[], State]) -> None:
        """Delete the keys of pods that are gone. A provider that is not in ``instances`` did not answer.

        ``state`` is that of the last look; ``read_state`` reads it again from the store.
        """


@dataclass
class GivenKeys:
    """Pods get the keys that ``[run.NAME.env]`` holds, and none is made."""

    note: str = ""

    def make_key(self, label: str) -> dict[str, str]:
        return {}

    def sweep(self, state: State, instances: Mapping[str, list[Instance]], read_state: Callable[[], State]) -> None:
        """There is nothing of ours."""


@dataclass
class B2Keys:
    """Keys that the controller makes. ``name``: of the run in ``fleet.toml``; ``now``: seconds since 1970."""

    name: str
    rules: Rules
    open_store: Callable[[], Store]
    look: Callable[[], RunLook]
    now: Callable[[], float] = time.time  # a clock that is a day wrong reaches no server over TLS
    note: str = ""
    _made: dict[str, str] = field(default_factory=dict)  # name -> id, of the keys that this process made
    _ends: dict[str, float] = field(default_factory=dict)  # name -> when it ends
    _settled: tuple[frozenset[str], frozenset[str]] | None = None

    def make_key(self, label: str) -> dict[str, str]:
        name, now = name_key(label), self.now()
        until = now + LONGEST_S if self.rules.until is None else self.rules.until + DAY_S
        valid_s = int(min(max(until - now, DAY_S), LONGEST_S))
        try:
            client = self._sign_in()
            if client is None:
                return {}
            made = self._ask(
                client,
                f"make a key for pod {label}",
                lambda: client.api.create_key(
                    list(NEEDED), name, valid_s, [client.bucket_id], self._prefix_of_names(client)
                ),
            )
        except StoreError as error:
            kind: ErrorKind = "key" if error.kind == "permanent" else "away"
            raise PlaceError(
                kind, f"No pod is rented, since it has no key: {error}", error.retry_after_s or 0
            ) from None
        secrets.remember(made.application_key)
        self._made[name], self._ends[name] = made.id_, now + valid_s
        return dict(zip(keys_of("b2://"), (made.id_, made.application_key), strict=True))

    def sweep(self, state: State, instances: Mapping[str, list[Instance]], read_state: Callable[[], State]) -> None:
        listed = frozenset(name_key(one.label) for found in instances.values() for one in found)
        kept = listed | _name_keys(state)
        answered = frozenset(instances)
        if (kept, answered) != self._settled:
            try:
                client = self._sign_in()
                if client is None:
                    return
                self._settled = (kept, answered) if self._delete_keys(client, kept, answered, read_state) else None
                self.note = ""
            except StoreError as error:
                self.note = f"Keys of pods that are gone may be left; trying again: {error}"
                return
        for one in state.living_pods:
            ends_at = self._ends.get(name_key(one.pod.instance.label))
            if ends_at is not None and ends_at - self.now() < DAY_S:
                self.note = (
                    f"The key of pod {one.id} ends in {(ends_at - self.now()) / 3600:.0f} h, and the pod publishes "
                    f"nothing after that. To go on, set a later limits.until, and let a new pod with a new key take "
                    f"over: rl-supervisor fleet destroy {one.pod.full_id}"
                )

    def _delete_keys(
        self, client: B2Client, kept: frozenset[str], answered: frozenset[str], read_state: Callable[[], State]
    ) -> bool:
        """Is none left that has to be looked at again?"""
        keys = self._ask(client, f"list the keys of run {self.name}", lambda: list(client.api.list_keys()))
        ours = [key for key in keys if self._is_ours(client, key)]
        self._ends = {key.key_name: (key.expiration_timestamp_millis or math.inf) / 1000 for key in ours}
        # Read after the list. A key is made after its create was written down, so none that another controller made
        # meanwhile is taken for one of a pod that is gone, however long this controller was paused.
        state = read_state()
        kept |= _name_keys(state)
        over = {key.key_name for key in ours} - kept
        provider_of = {name_key(one.pod.instance.label): one.pod.provider for one in state.rented}
        # Of a pod that was never listed it is unknown where it is: any provider that is away may have it.
        anywhere = {*self.rules.places.values(), *(one.pod.provider for one in state.living_pods)}
        unknown = {name for name in over if not ({provider_of[name]} if name in provider_of else anywhere) <= answered}
        spared = unknown | ({self._name_holder(state)} if over else set())
        for key in ours:
            is_twin = key.id_ != self._made.get(key.key_name, key.id_)  # made, and the answer was lost
            if is_twin or key.key_name in over - spared:
                self._ask(client, f"delete the key {key.key_name}", partial(client.api.delete_key_by_id, key.id_))
        return not over & spared

    def _name_holder(self, state: State) -> str:
        """The key of the pod that holds the run: a provider's list may lack it while it trains."""
        claim = self.look().claim
        starts_again = claim.released and claim.code in (None, EXIT_TRY_AGAIN) and claim.unpublished
        if not state.wanted or (claim.is_free and not starts_again):
            return ""
        holder = find_holder(state, claim)
        return name_key(claim.label or (holder.pod.instance.label if holder is not None else ""))

    def _is_ours(self, client: B2Client, key: Any) -> bool:
        """By its name, and by what it reaches: another fleet may have a run of the same id in another bucket."""
        stem = _stem_of_names(self.rules.run_id)
        return (
            key.key_name.startswith(stem)
            and AFTER_STEM.fullmatch(key.key_name, len(stem)) is not None
            and key.bucket_ids == [client.bucket_id]
            and key.name_prefix == self._prefix_of_names(client)
        )

    def _prefix_of_names(self, client: B2Client) -> str:
        return client.prefix + run_folder(self.rules.run_id)

    def _sign_in(self) -> B2Client | None:
        """None, with a note, where the controller's key may not make keys. Raises StoreError."""
        client = cast("B2Store", self.open_store()).client
        lacking = [one for one in TO_MAKE if one not in client.capabilities]
        if not lacking:
            return client
        self.note = (
            f"No key is made for each pod: the controller's key ...{client.key_id[-4:]} lacks {', '.join(lacking)}. "
            f"Pods get the keys of [run.{self.name}.env]."
        )
        return None

    def _ask(self, client: B2Client, tried: str, call: Callable[[], Any]) -> Any:
        from supervisor.storage.b2client import retry_when_expired

        with client.explain_errors(tried):
            return retry_when_expired(client.retry, call)()


def choose_keys(store_url: str, given: Mapping[str, str], made: B2Keys) -> Keys:
    """``made``, where the store is on B2 and ``[run.NAME.env]`` (``given``) has no key for it."""
    if store_url.startswith("file:"):
        return GivenKeys(f"{store_url} is a folder: a pod has these steps only where it shares that very folder.")
    if not store_url.startswith("b2:"):
        told = f"Only B2 lets a controller make a key for each pod. Pods get the keys of [run.{made.name}.env]."
        return GivenKeys(told)
    return GivenKeys() if keys_of("b2://")[1] in given else made


def name_key(label: str) -> str:
    """The name of a pod's key; "" where the label is none of ours.

    A key's name has at most 100 letters, digits and dashes, and a run's id may have others: so it is told by a digest.
    """
    found = LABEL.fullmatch(label)
    return f"{_stem_of_names(found[1])}{found[2]}-{found[3]}" if found else ""


def _name_keys(state: State) -> frozenset[str]:
    """The keys of pods that live, and of those that were asked for and may come, or vanished before they began."""
    labels = {one.pod.instance.label for one in state.rented if one.is_living or _may_come_back(one, state)}
    asked = {one.label for one in (state.intent, *state.given_up) if one is not None}
    return frozenset(map(name_key, labels | asked))


def _may_come_back(one: Rented, state: State) -> bool:
    """Did it vanish while it booted, within the last hour? A list that was empty twice may have been wrong."""
    if one.ended is None or one.destroyed_at or one.held:
        return False
    return state.heard_at - one.ended < HOUR_S


def _stem_of_names(run_id: str) -> str:
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:8]
    return f"rls-{re.sub('[^A-Za-z0-9-]', '-', run_id)[:50]}-{digest}-g"
