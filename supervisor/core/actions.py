"""Everything the core can ask for. Each action names what it acts on; effects carry it out and report a fact back."""

from __future__ import annotations

from dataclasses import field

from supervisor.base.records import dataclass
from supervisor.core.goodput import Ledger
from supervisor.core.records import Happened, Hold, Learned


@dataclass(frozen=True)
class Action:
    """Base of all actions."""


@dataclass(frozen=True)
class Survey(Action):
    """List the local step folders and the store now (``LocalSteps``, ``StoreSteps`` follow)."""


@dataclass(frozen=True)
class Setup(Action):
    """Run the pod's ``[setup]`` commands once (``SetupDone`` follows)."""


@dataclass(frozen=True)
class Start(Action):
    """Move aside every step folder above ``step``, then launch attempt ``attempt`` resuming at ``step``.

    ``step`` None is a fresh start, which the effect refuses when any step folder exists and ``fresh`` is False.
    ``snapshot``: the configuration snapshot of this attempt is reused; None takes the files as they are on disk.
    """

    attempt: int
    step: int | None
    snapshot: int | None = None
    fresh: bool = False
    avoid: tuple[str, ...] = ()  # machines that are taken only where there is no other
    interval: int | None = None  # steps between two checkpoints; None: as the run file says
    no_tier: str = ""  # why the trainer must not save on a faster file system, "" where it may


@dataclass(frozen=True)
class Stop(Action):
    """Stop attempt ``attempt`` by the dialect's rules, take the whole tree with it, wait for its GPU memory.

    ``at_once``: it has failed, so all of it is told in one moment. Before that, the checkpoint of step ``saving`` gets
    ``save_s`` seconds to become whole, as long as each of ``writers`` (pid, start ticks) lives.
    """

    attempt: int
    reason: str
    budget_s: float
    brief: bool = False  # this pod is about to go: no wait for its GPUs
    at_once: bool = False
    saving: int | None = None
    writers: tuple[tuple[int, int], ...] = ()
    save_s: float = 0.0


@dataclass(frozen=True)
class Hurry(Action):
    """What is being stopped is ended now: there is less time than was thought."""


@dataclass(frozen=True)
class CollectEvidence(Action):
    """Save what a person needs in the morning (log tails, processes, GPUs, last observations) for an incident."""

    attempt: int
    incident: int
    reason: str


@dataclass(frozen=True)
class Publish(Action):
    """Send a complete step to the store, then its manifest, then the pointer.

    ``back``: the pointer may go back, because the step that it names is quarantined. ``reward``: of that step, where
    it is known.
    """

    step: int
    back: bool = False
    reward: float | None = None


@dataclass(frozen=True)
class PruneLocal(Action):
    """Delete every folder of ``step`` on the local disk, and rollouts and broadcasts below it that nothing needs."""

    step: int


@dataclass(frozen=True)
class PruneStore(Action):
    """Delete ``step`` from the store: manifest first, then its files."""

    step: int


@dataclass(frozen=True)
class Pin(Action):
    """Write down in the store that ``step`` is kept for good, or no longer (``PinKept`` follows)."""

    step: int
    pinned: bool


@dataclass(frozen=True)
class KeepHolds(Action):
    """Write down in the store which steps are held while training is worth nothing, and why (``HoldsKept`` follows)."""

    steps: tuple[int, ...]
    holds: tuple[Hold, ...]


@dataclass(frozen=True)
class Restore(Action):
    """Fetch ``step`` from the store, verify every byte, put it in place by rename."""

    step: int


@dataclass(frozen=True)
class RunHook(Action):
    """Run a hook command of the run file (``finish``)."""

    hook: str


@dataclass(frozen=True)
class Exit(Action):
    """The daemon's work is over; end with this code of the exit contract."""

    code: int
    reason: str


@dataclass(frozen=True)
class Say(Action):
    """One sentence for people. ``level``: info, warning, error; ``event``: a stable name; fields are for journalctl."""

    level: str
    event: str
    sentence: str
    fields: tuple[tuple[str, str | int | float | None], ...] = ()


@dataclass(frozen=True)
class PruneStale(Action):
    """Delete rollouts and broadcasts of steps below ``below`` that no kept step needs (``Pruned`` with step -1)."""

    below: int


@dataclass(frozen=True)
class StartEngine(Action):
    """Launch the inference server as a role of its own (``EngineStarted`` follows), for the ``engine``-th time.

    The run goes on with the weights of ``step`` (None: the base model), ``snapshot`` as in ``Start``.
    """

    engine: int
    step: int | None
    snapshot: int | None = None


@dataclass(frozen=True)
class StopEngine(Action):
    """Stop our own inference server and nothing else (``EngineStopped`` follows)."""

    engine: int
    reason: str
    budget_s: float


@dataclass(frozen=True)
class KeepRecords(Action):
    """Put what the run learned, and this journal's part of its ledger, beside its steps in the store."""

    learned: Learned
    journal: str
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class Claim(Action):
    """Claim the run for this pod, and keep trying while another one holds it.

    ``Claimed``, ``ClaimHeld`` (again and again) or ``ClaimFailed`` follow, and later perhaps ``Fenced``.
    ``held``: the highest generation that this journal held, 0 for none.
    """

    take_over: bool = False
    held: int = 0


@dataclass(frozen=True)
class Release(Action):
    """Give the run back in the store, so that the next pod need not wait: nothing of it runs here any more.

    ``brief``: this pod's time is over, so that nothing else is waited for before. ``code`` and ``reason`` are the last
    words, for a look from outside: how the daemon ends, but 75 where it only leaves and the run goes on.
    """

    generation: int
    brief: bool = False
    code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class MarkLeaving(Action):
    """Tell in the store that this pod is about to go, and beat often until it is gone (see ``Release``)."""

    generation: int


@dataclass(frozen=True)
class Sweep(Action):
    """Cancel what pods before this one left half-sent in the store (``Swept`` follows)."""


@dataclass(frozen=True)
class KeepLineage(Action):
    """Write down in the store which steps are left, and move the pointer back to a good one, before any publish."""

    happened: tuple[Happened, ...]
