"""What may still be done for a run that is only observed: look, publish, keep evidence, speak. Nothing else.

The list names what is allowed, so an action that is added later does nothing here until a developer lists it.
The core knows the mode as well; this is the net below it, which holds whatever the core asks for.
"""

from __future__ import annotations

from supervisor.core import actions as a
from supervisor.core import facts as f

ALLOWED = (
    a.Claim,
    a.Release,
    a.MarkLeaving,
    a.Hurry,
    a.Sweep,
    a.Survey,
    a.Publish,
    a.KeepRecords,
    a.CollectEvidence,
    a.Pin,
    a.KeepHolds,
    a.Say,
    a.Exit,
)
"""None of these signals a process, or moves or deletes a file of the job."""
_NUMBERS = ("attempt", "step", "engine")


def held_back(action: a.Action, why: str) -> f.Suppressed | None:
    """What comes back instead of ``action`` being carried out; None when it may be. ``why``: a sentence."""
    if isinstance(action, ALLOWED):
        return None
    numbers = (getattr(action, name) for name in _NUMBERS if hasattr(action, name))
    return f.Suppressed(type(action).__name__, next(numbers, None), why)
