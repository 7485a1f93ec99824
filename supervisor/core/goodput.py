"""Where the run's time went: a ledger whose parts add up to all of it, in the names of Google's goodput library."""

from __future__ import annotations

from dataclasses import dataclass, field

# Names of ml-goodput-measurement; what it has no name for goes below CUSTOM_BADPUT_EVENTS.
PRODUCTIVE = "GOODPUT"
STARTUP = "PROGRAM_STARTUP"
SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
RESTORE = "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
WASTED = "WASTED_PROGRESS_FROM_DISRUPTION"
INFRASTRUCTURE = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
DETECTION = "CUSTOM_BADPUT_EVENTS.DETECTION"
STOPPING = "CUSTOM_BADPUT_EVENTS.STOPPING"
WAITING = "CUSTOM_BADPUT_EVENTS.WAITING"
STOPPED = "CUSTOM_BADPUT_EVENTS.STOPPED_BY_A_PERSON"
OTHER = "OTHER"
CATEGORIES = (
    PRODUCTIVE,
    STARTUP,
    SAVE,
    RESTORE,
    WASTED,
    INFRASTRUCTURE,
    DETECTION,
    STOPPING,
    WAITING,
    STOPPED,
    OTHER,
)


@dataclass(frozen=True)
class Ledger:
    """Seconds by category of one journal (one pod's part of the run)."""

    seconds: dict[str, float] = field(default_factory=dict)
