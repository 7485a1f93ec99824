"""What a person who is elsewhere should hear of: one message an incident, and one when it is over. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core.moves import EXIT_OK, EXIT_PERSON, EXIT_UNFIT
from supervisor.core.pinned_steps import findings
from supervisor.core.state import State
from supervisor.core.wellness import Tolerance, publish_lag
from supervisor.core.words import span

Severity = Literal["info", "warning", "error"]
VARIABLE = "RL_NOTIFY_URLS"
"""The secret that holds the addresses."""
END = "end"
"""The thread of the daemon's own end."""


@dataclass(frozen=True)
class Message:
    """``thread``: messages of one thread are about the same thing, and the last of them says that it ``is_over``."""

    thread: str
    severity: Severity
    sentence: str
    command: str = ""  # to type next
    is_over: bool = False


def list_messages(before: State, after: State) -> list[Message]:
    """What one turn of the loop gave reason to tell."""
    told = []
    opened, known = after.incidents.open, {one.id for one in before.incidents.closed}
    if opened is not None and (before.incidents.open is None or before.incidents.open.id != opened.id):
        command = f"supervisorctl incidents {opened.id} {after.settings.run_id}".rstrip()
        told.append(Message(f"incident-{opened.id}", "warning", opened.sentence, command))
    for one in after.incidents.closed:
        if one.id not in known and one.closed is not None:
            over = f"Trains again after {span(one.closed - one.opened)}, at step {one.closed_step}"
            over = over if one.closed_step is not None else "Open until the run was ended"
            told.append(Message(f"incident-{one.id}", "info", f"{over}. {one.sentence}", is_over=True))
    old, new = findings(before), findings(after)
    for name in new.keys() - old.keys():
        told.append(Message(f"worth-{name}", "warning", new[name], "supervisorctl status"))
    for name in old.keys() - new.keys():
        told.append(Message(f"worth-{name}", "info", f"Over: {old[name]}", is_over=True))
    return told


def message_of_end(code: int, reason: str) -> Message | None:
    """What the daemon's end means for a person; None where the daemon will be started again."""
    if code == EXIT_OK:
        return Message(END, "info", reason, is_over=True)
    if code == EXIT_PERSON:
        return Message(END, "error", f"A person is needed: {reason}", "supervisorctl status")
    if code == EXIT_UNFIT:
        return Message(END, "error", f"This pod is unfit, and the run needs another one: {reason}")
    return None


def message_of_lag(state: State, wall: float, tolerance: Tolerance, *, told: bool) -> Message | None:
    """When nothing has been published for too long, and when that is over. ``told``: it was said already."""
    lag = publish_lag(state, wall, tolerance)
    if lag and not told:
        return Message("publish", "warning", f"{lag[0].upper()}{lag[1:]}.", "supervisorctl checkpoints")
    if not lag and told:
        return Message("publish", "info", "Publishing is well again.", is_over=True)
    return None


def join_messages(older: Message, newer: Message) -> Message:
    """Two of one thread that were not told yet are one."""
    if newer.is_over and not older.is_over:
        return replace(newer, severity=older.severity)
    return newer
