"""What a person should hear of a fleet: a run that needs one, and money that is nearly spent.

Sent by the same outbox as a daemon's messages (``supervisor.effects.notify``), whose memory lies in the fleet's folder
of the store: a controller that runs as a cron begins anew with each tick. No tick waits for a message.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from supervisor.base.errors import StoreError
from supervisor.core.messages import Message
from supervisor.core.words import span
from supervisor.effects.notify import Outbox
from supervisor.fleet.book import StoreBook
from supervisor.fleet.controller import Told
from supervisor.fleet.fleet_file import FleetFile, Limits
from supervisor.fleet.model import Money, State

NEAR_SHARE, NEAR_H = 0.1, 3.0
"""The money is nearly spent when a tenth of ``limits.total`` is left, or three hours at ``limits.per_hour``; never
before half of it is spent."""
STATUS = "rl-supervisor fleet status"


class FleetOutbox(Outbox):
    """The messages of one controller. ``names``: id of each run of the file -> its name there."""

    def __init__(self, file: FleetFile, names: Mapping[str, str], book: StoreBook, say: Callable[[str], None]) -> None:
        """Raises StoreError where it cannot be read what was told already."""
        self._limits, self._names, self._book = file.limits, names, book
        self._unwritten = ""
        name = file.fleet.name if file.fleet.name == "fleet" else f"fleet {file.fleet.name}"
        super().__init__(name, file.notify, lambda event, sentence, level: say(sentence), STATUS)

    def note(self, tolds: Sequence[Told], money: Money | None) -> None:
        """One tick."""
        if self.targets:
            self.put(list_messages(tolds, money, self._limits, self._names, frozenset(self.told)))

    def read_kept(self) -> Any:
        """From the fleet's folder."""
        return self._book.read_messages()

    def keep(self, kept: Mapping[str, object]) -> None:
        """The thread writes it."""
        self._unwritten = json.dumps(kept)

    def tend(self) -> None:
        """What cannot be written now is written at the next look."""
        kept = self._unwritten
        if not kept:
            return
        with contextlib.suppress(StoreError):
            self._book.write_messages(kept)
            if self._unwritten is kept:  # else there is more
                self._unwritten = ""


def list_messages(
    tolds: Sequence[Told], money: Money | None, limits: Limits, names: Mapping[str, str], open_: Collection[str]
) -> list[Message]:
    """What one tick gave reason to tell. ``open_``: threads that were told and are not over."""
    found = [one for told in tolds if (one := _message_of_run(told, names)) is not None]
    known = {f"person-{told.run_id}" for told in tolds}
    found += [
        Message(thread, "info", f"{thread.removeprefix('person-')} is no run of the fleet any more.", is_over=True)
        for thread in sorted(open_)
        if thread.startswith("person-") and thread not in known
    ]
    return found if money is None or money.spent is None else [*found, _message_of_money(money, money.spent, limits)]


def _message_of_run(told: Told, names: Mapping[str, str]) -> Message | None:
    """A run that needs a person; and that it is over, once it trains or is finished: a look that merely could not tell
    ends nothing.
    """
    name, trains = names.get(told.run_id, told.run_id), _is_on_pod(told.decision.state)
    thread, sentence = f"person-{told.run_id}", f"{name}: {told.failed or told.decision.sentence}"
    if told.decision.person:
        command = f"rl-supervisor fleet explain {name}" if told.run_id in names else STATUS
        return Message(thread, "warning" if trains else "error", sentence, command)
    return Message(thread, "info", sentence, is_over=True) if trains or told.decision.done else None


def _is_on_pod(state: State) -> bool:
    return any(one.held and one.missing_since is None for one in state.living_pods)


def _message_of_money(money: Money, spent: float, limits: Limits) -> Message:
    left = limits.total - spent
    told = f"${spent:.2f} of ${limits.total:.2f} are spent (limits.total)."
    if left > min(max(NEAR_SHARE * limits.total, NEAR_H * limits.per_hour), limits.total / 2):
        return Message("money", "info", f"{told} The limit is not near any more.", is_over=True)
    if left <= 0:
        return Message("money", "warning", f"{told} No pod is rented any more; one that trains is not stopped.", STATUS)
    lasts = (
        f" The rest lasts {span(left / money.per_hour * 3600)} at ${money.per_hour:.2f} an hour."
        if money.per_hour
        else ""
    )
    after = " No pod is rented after that; one that trains is not stopped."
    return Message("money", "warning", f"{told}{lasts}{after}", STATUS)
