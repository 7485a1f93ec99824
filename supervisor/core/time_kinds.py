"""What the run's time is spent on: names for machines, and for people."""

from __future__ import annotations

# Members of ``BadputType`` in AI-Hypercomputer/ml-goodput-measurement (src/goodput_utils.py), which calls productive
# time "goodput" and has no name of its own for it; what it has no name for goes below CUSTOM_BADPUT_EVENTS, as there.
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
CATEGORIES = (PRODUCTIVE, STARTUP, SAVE, RESTORE, WASTED, INFRASTRUCTURE, DETECTION, STOPPING, WAITING, STOPPED, OTHER)
WORDS = {
    PRODUCTIVE: "training: steps that stayed",
    STARTUP: "starting the job, to its first step",
    SAVE: "saving checkpoints",
    RESTORE: "fetching a checkpoint",
    WASTED: "steps that were lost or cut off",
    INFRASTRUCTURE: "no pod: lost, replaced or set up",
    DETECTION: "noticing that something was wrong",
    STOPPING: "ending what was left of the job",
    WAITING: "waiting: back-off, store, disk, a person",
    STOPPED: "stopped by a person, or finished",
    OTHER: "everything else",
}
"""The categories for people."""
