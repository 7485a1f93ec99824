"""What the core knows and means to do, as one immutable value. Built from facts alone, so a journal rebuilds it."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core.evolve import replace
from supervisor.core.facts import Effort, EngineLook, Gpu, HostLook, LocalStep, PublishMoves, Role, Settings, StoredStep
from supervisor.core.goodput import Ledger
from supervisor.core.pace import Pace
from supervisor.core.phases import learn
from supervisor.core.records import Happened, Hold, Learned
from supervisor.core.repeats import Said
from supervisor.core.training_health import Worth

Mode = Literal[
    "new",  # no daemon has told its settings yet
    "stopped",  # a person stopped the run; survives reboots
    "surveying",  # waiting to know which checkpoints exist here and in the store
    "restoring",
    "backing-off",
    "starting",  # launched, no new step yet
    "running",
    "stopping",
    "disk-full",  # stopped cleanly, waits for room
    "publishing",  # training is over, the last step is on its way
    "finishing",  # the finish hook runs
    "leaving",  # the daemon was told to end
    "finished",
    "gave-up",
    "unfit",
]
LIVE: tuple[Mode, ...] = ("starting", "running")
ENDED: tuple[Mode, ...] = ("finished", "gave-up", "unfit")
BEING_LISTED = "being listed"
"""``local_reason`` between a ``Survey`` and its answer."""
NOT_LISTED = "not listed yet"
NOT_SINCE = "not listed since this pod holds the run"
UNANSWERED = (NOT_LISTED, NOT_SINCE)
"""``store_reason`` until the store has answered: whether it can be listed is not known yet."""
Next = Literal["restart", "stop", "give-up", "unfit", "finish", "shutdown", "disk-full"]


NO_SETTINGS = Settings(run_id="")


@dataclass(frozen=True)
class Process:
    """A process of the attempt that was alive when last seen."""

    role: Role
    pid: int
    start_ticks: int
    key: bool
    title: str = ""
    host: str = ""  # the machine, where the run has several
    index: int = 0


@dataclass(frozen=True)
class Gone:
    """A key process that ended while the attempt was live."""

    role: Role
    pid: int
    t: float
    host: str = ""
    index: int = 0
    how: str = ""  # how it ended, where its shim told


@dataclass(frozen=True)
class Host:
    """The machine, and what was said of it."""

    look: HostLook | None = None
    oom_kills: int | None = None  # the kernel's counter
    oom_t: float | None = None  # when it last rose
    warned: tuple[str, ...] = ()  # what was said about the host and is still so
    peak_bytes: int | None = None  # memory that was used at most, while no checkpoint lay in it


@dataclass(frozen=True)
class Machine:
    """One machine of a run over several, as its agent is heard."""

    speaks: bool = False  # its agent has greeted this daemon
    silent_since: float | None = None
    seat: str = ""  # see ``MachineLook``
    down: str = ""  # what the engine that gave it says against it
    deaths: int = 0  # of what ran on it, itself included
    failed_starts: int = 0  # since the last start that went well on it
    bad: bool = False  # a GPU of it needs a reset
    sees_gpus: bool = False  # its GPUs are known at present
    gpus: tuple[str, ...] = ()  # their UUIDs, as of the last look
    attempt: int = 0  # the last one of which something was started on it
    host: Host = field(default_factory=Host)


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory over time. ``plateau_bytes`` is the highest level that stood for some seconds."""

    gpu: Gpu
    plateau_bytes: int = 0
    look_t: float = 0.0
    fallen_since: float | None = None
    power_high_w: float = 0.0  # the most that it was seen to draw
    rests_since: float | None = None  # since when it has drawn little, without a break; None: it works, or unknown
    loaded_since: float | None = None  # since when a kernel has run on it all the time, which may be one that waits
    slowed_since: float | None = None  # since when the driver has held its clocks down at each look
    power_low_w: float | None = None  # the least that it was seen to draw


@dataclass(frozen=True)
class RoleEffort:
    """What a role's processes do, and since when without a break."""

    last: Effort
    busy_since: float | None = None  # each of them has used a whole core
    waits_since: float | None = None  # one has sat in a call that no signal ends


@dataclass(frozen=True)
class Activity:
    """When it was last seen what the job's processes do, and when environments, helpers, files or network moved."""

    seen_t: float
    moved_t: float
    moves: bool = False  # at the last look
    shows: str = ""  # what the trainer showed at the last look (``pictures.Name``)
    picture: str = ""  # the same at two looks in a row, which is what counts


@dataclass(frozen=True)
class EngineMemory:
    """The engine's answers over time, of the present attempt."""

    look: EngineLook | None = None
    look_t: float = 0.0
    ever_ok: bool = False
    bad_since: float | None = None  # since when /health has been refused or answered with an error, without a break
    bad_looks: int = 0
    slow_since: float | None = None  # since when /health has only timed out: a saturated engine does that, too
    count: float | None = None  # iterations, else generated tokens
    counted_t: float = 0.0  # last time a counter could be read
    moved_t: float = 0.0  # last time a counter moved (or was re-based)
    worked_t: float = 0.0  # last time it moved by more than our own canary explains
    ours: float = 0.0  # what our own canaries moved it by
    liveness_misses: int = 0
    lively_t: float = 0.0  # last time that /liveness, which goes through the engine itself, was answered
    canary_misses: int = 0
    work_since: float | None = None  # since when work has been waiting without a break
    units: dict[str, EngineUnit] = field(default_factory=dict)  # by index, where there are several


@dataclass(frozen=True)
class EngineUnit:
    """One of several engines behind the endpoint."""

    count: float | None
    moved_t: float  # last time its counter moved
    t: float  # last time it could be read
    busy_since: float | None = None  # since when it has had requests without a break


@dataclass(frozen=True)
class Growth:
    """Files that grow: their size, when they last did, and for how many seconds they have been doing so in all."""

    size_bytes: int
    t: float
    grown_s: float = 0.0


@dataclass(frozen=True)
class GpuTrouble:
    """What the driver said of a GPU: lost, or a fault (Xid)."""

    gpu: str
    text: str
    t: float
    fatal: bool
    xid: int = 0  # NVIDIA's number; 0: the driver does not answer about it
    uuid: str = ""  # "" where it is not known which GPU that is
    host: str = ""  # the machine, where the run has several

    @property
    def cause(self) -> str:
        """Another machine may do where the run has several; else only another pod helps."""
        return "machine-gpu-lost" if self.host else "gpu-lost"


@dataclass(frozen=True)
class OwnEngine:
    """The inference server that we start as a role of its own; ``number`` counts its starts."""

    number: int = 0
    alive: bool = False
    pid: int | None = None
    asked: str = ""  # "start" or "stop" while an effect is under way
    wanted: bool = False  # a job runs, or is about to, that needs it
    alone: bool = False  # it is being restarted by itself, the job lives on
    stop_after: float = 0.0  # stopping it came to nothing: it is asked for again then


@dataclass(frozen=True)
class Would:
    """What observing kept us from doing, and how it went on without us. Times are Unix time."""

    wall: float
    cause: str
    sentence: str
    step: int | None = None  # the last one done before it
    outcome: str = ""
    outcome_wall: float | None = None


@dataclass(frozen=True)
class Work:
    """The orchestrator's own count of rollouts."""

    inflight: int
    done: int | None
    t: float  # last report
    moved_t: float  # last time that a number in it moved


@dataclass(frozen=True)
class Phase:
    """What a role last said it is doing."""

    phase: str
    step: int | None
    t: float
    text: str = ""
    timed: bool = True  # False when its beginning was not seen at its time: its length teaches nothing
    over: bool = False  # the role has said since then that it did a step
    until: float | None = None  # of an update of weights: the engine made tokens


@dataclass(frozen=True)
class Error:
    """The last error line of one signature."""

    role: Role
    signature: str
    text: str
    t: float
    deterministic: bool
    count: int = 1
    first_t: float = 0.0
    sentence: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Progress:
    """Steps done."""

    step: int | None = None  # last trainer step of this attempt
    t: float = 0.0  # when it was done, or when the attempt started
    done_wall: float | None = None  # Unix time at which the newest step of the whole run was done, as seen here
    highest: int | None = None  # highest trainer step of the whole run
    timed: bool = True  # False when the time since ``t`` is not this step's alone (another daemon, a paused host)
    interval_s: float | None = None  # seconds between the last two steps, as seen here
    reward: float | None = None
    reward_step: int | None = None
    rewards: tuple[tuple[int, float], ...] = ()  # (step, reward) of the newest: they come ahead of the trainer's steps
    loss: float | None = None
    duration_s: float | None = None
    refused: tuple[int, ...] = ()  # numbers in a row that cannot be: too far ahead for the time that has passed
    refused_t: float = 0.0  # when the first of them came


@dataclass(frozen=True)
class Ended:
    """How the attempt's own process ended."""

    exit_code: int | None
    signal: int | None
    lost: bool
    t: float


@dataclass(frozen=True)
class Root:
    """What the logs of a failed attempt show as its root cause."""

    attempt: int
    name: str
    role: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Incident:
    """From the first suspicious observation to the first new step after recovery. Times in ``t`` and Unix time."""

    id: int
    cause: str
    sentence: str
    opened: float
    opened_wall: float
    attempt: int
    step: int | None  # last step before it
    decided: float = 0.0
    stopped: float | None = None
    relaunched: float | None = None
    resume_step: int | None = None
    closed: float | None = None
    closed_wall: float | None = None
    closed_step: int | None = None
    roots: tuple[Root, ...] = ()  # what began it and, where that differs, what its newest attempt failed of


@dataclass(frozen=True)
class Failure:
    """One ended attempt: what ended it and where. The recovery policy counts these."""

    signature: str
    step: int | None
    resume_step: int | None
    suspect: int | None = None  # the good step that can have caused it (``blame``): the newest one before it
    shown: dict[str, float] = field(default_factory=dict)  # how far a start came that made no step (``starts``)
    lasted_s: float = 0.0  # of such a start, downloads apart


@dataclass(frozen=True)
class Crash:
    """A failure as it is remembered beyond new complete steps (``recurring``)."""

    t: float
    cause: str
    step: int | None
    resume_step: int | None
    gpus: tuple[str, ...] = ()  # UUIDs of those that reported a fault before it
    link: bool = False  # it was a fault of a link between GPUs


@dataclass(frozen=True)
class Fence:
    """Which pod holds the run: this one while ``generation`` is set and not ``lost``."""

    asked: bool = False
    generation: int | None = None  # claimed by this daemon
    once: int | None = None  # the highest that this journal ever held
    lost: bool = False  # another pod took it over
    by: str = ""  # the other pod, by its host name
    by_generation: int = 0
    reason: str = ""  # why it is not claimed, a sentence
    permanent: bool = False
    unswept: bool = False  # another pod wrote before this one, and what it left half-sent is still there
    own_stands_s: float | None = None  # ``by`` is this very state folder's claim, and has stood still for so long


@dataclass(frozen=True)
class Leave:
    """This pod is about to go. ``until`` is when, ``exit_at`` when the daemon has to be through; None: unknown."""

    asked: bool = False
    why: str = ""
    since: float = 0.0
    until: float | None = None
    exit_at: float | None = None
    save: int | None = None  # the step that was just being saved then
    moves: PublishMoves | None = None  # how far the publish under way is
    told: str = ""  # what was said of that publish: "in time", "late", "hopeless"
    stays_at: float | None = None  # from when on a pod that was left in the midst of a stop counts as one that stays


@dataclass(frozen=True)
class Reminder:
    """What costs money and does not go on (``reminders``), since when, and how often that was said."""

    what: str
    since: float
    times: int = 0


@dataclass(frozen=True)
class Left:
    """Ages as the daemon before knew them (``adoption``), to be put back where nothing has moved ``since`` it came."""

    since: float
    step: int | None
    progress_t: float
    started: float
    phases: dict[str, Phase] = field(default_factory=dict)
    update: Phase | None = None
    count: float | None = None  # the engine's counter
    worked_t: float = 0.0
    work: Work | None = None


@dataclass(frozen=True)
class SetupTimes:
    """One of the things that ``[setup]`` does side by side; ``took_s`` None: it runs."""

    since: float
    took_s: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Busy:
    """Effects under way, one of a kind. Numbers are of steps or attempts."""

    start: int | None = None
    waits: str = ""  # what the start that is under way waits for, in a sentence
    stop: int | None = None
    publish: int | None = None
    prune_local: int | None = None
    prune_store: int | None = None
    restore: int | None = None
    hook: str | None = None
    lineage: int | None = None  # number of entries that are being written down
    holds: bool = False  # the steps that are held are being written down


@dataclass(frozen=True)
class Orders:
    """What a person wants of the run, and the step that it is to go back to."""

    wanted: bool = True
    paused: bool = False
    paused_t: float = 0.0  # since when
    new_config: bool = False
    config_changed: tuple[str, ...] = ()
    override: bool = False  # --fresh or --step was given and not acted upon yet
    asked_step: int | None = None  # the step of a rollback that was not acted upon yet
    asked_why: str = ""  # why it goes back, where no person asked for it
    left_higher: bool = False  # what is above it is left already, and it is being restored


@dataclass(frozen=True)
class Attempt:
    """The present attempt: its number, how it was started, and what follows its end."""

    number: int = 0
    resume_step: int | None = None
    started: float = 0.0
    pid: int | None = None
    snapshot: int | None = None  # attempt with the configuration that last made progress
    began_fresh: bool = False  # this journal's run was started from scratch by us
    after_stop: Next = "restart"
    stop_reason: str = ""
    stop_at_once: bool = False  # it is stopped because it failed
    interval: int | None = None  # steps between two checkpoints, where the core chose them


@dataclass(frozen=True)
class Job:
    """What is seen of the present attempt's processes, files and logs."""

    ended: Ended | None = None
    processes: dict[str, Process] = field(default_factory=dict)  # "pid:start_ticks", "host:pid:start_ticks" elsewhere
    gone: tuple[Gone, ...] = ()
    growth: dict[str, Growth] = field(default_factory=dict)
    efforts: dict[str, RoleEffort] = field(default_factory=dict)  # by role, of the present attempt
    activity: Activity | None = None  # None: unknown
    pictures: dict[str, float] = field(default_factory=dict)  # for how long each stood in this step, at most (s)
    work: Work | None = None
    phases: dict[str, Phase] = field(default_factory=dict)  # by role
    update: Phase | None = None  # the newest update of weights, whatever its role has said since
    explained: tuple[tuple[float, float], ...] = ()  # from when to when known reasons explained silence, in this step
    errors: dict[str, Error] = field(default_factory=dict)  # by signature
    finishes: dict[str, float] = field(default_factory=dict)  # role -> t
    scratch: str = ""  # the line with which a role said that it starts from scratch

    def processes_here(self) -> list[Process]:
        """Those on this machine."""
        return [one for one in self.processes.values() if not one.host]


@dataclass(frozen=True)
class Gpus:
    """The run's GPUs over time."""

    by_uuid: dict[str, GpuMemory] = field(default_factory=dict)  # by UUID
    reason: str = "no look yet"
    unseen_since: float | None = None
    trouble: tuple[GpuTrouble, ...] = ()  # of the run's GPUs, newest last


@dataclass(frozen=True)
class Suspicion:
    """What the run is suspected of at the moment."""

    sentence: str = ""  # the last suspect sentence that was said
    since: float | None = None


@dataclass(frozen=True)
class Books:
    """What is learned and what it cost, over all attempts."""

    learned: Learned = field(default_factory=Learned)
    ledger: Ledger = field(default_factory=Ledger)
    others: dict[str, Ledger] = field(default_factory=dict)  # of the journals of other pods
    records_t: float = -1e9  # when they were last put in the store

    def with_time(self, name: str, seconds: float) -> Books:
        """One more time of phase ``name`` is learned."""
        return replace(self, learned=learn(self.learned, name, seconds))


@dataclass(frozen=True)
class Disk:
    """Room on the disk of the checkpoints, and when something there is deleted next."""

    total: int | None = None
    free: int | None = None
    reason: str = "no look yet"
    t: float = -1.0
    host: str = ""  # its machine, where the run has several
    part: float = 1.0  # of a step's bytes that lies there
    nothing_said: bool = False
    prune_after: float = 0.0
    prune_t: float = 0.0  # when the deletion under way was asked for
    stale_attempt: int = -1  # leftovers were last deleted in this attempt; -1: not yet
    stale_t: float = 0.0


@dataclass(frozen=True)
class Tier:
    """The faster file system where the trainer saves, as it was last seen (``TierLook``)."""

    folder: str = ""
    waiting: tuple[int, ...] = ()
    in_memory: bool = False
    failed: str = ""
    over: str = ""  # why no further start on this pod uses one


@dataclass(frozen=True)
class Local:
    """The steps on this disk."""

    steps: tuple[LocalStep, ...] = ()
    reason: str = NOT_LISTED
    outdated: tuple[int, ...] = ()  # steps that were reached anew: the store's copy is of a lineage that was left
    asked: float | None = None
    left: dict[str, float] = field(default_factory=dict)  # step of a lineage that was left -> Unix time since when
    restored: tuple[int, str] = (-1, "")  # fetched last, and its manifest: the store's, whatever the clocks say
    writing: tuple[int, float] = (-1, 0.0)  # a step saved without a log line, and when its files came


@dataclass(frozen=True)
class Store:
    """The steps in the store, and what is known against them."""

    steps: tuple[StoredStep, ...] = ()
    latest: int | None = None
    unlisted_since: float | None = None  # the first of the listings in a row that lack that step
    reason: str = NOT_LISTED
    permanent: bool = False
    t: float = -1.0
    prune_after: float = 0.0
    published: int | None = None  # highest step this run is known to have in the store
    quarantined: dict[str, float] = field(default_factory=dict)  # step -> Unix time since when
    rolled_back: tuple[int, float] | None = None  # (step, Unix time) of a rollback that had to go without the store
    damaged: dict[str, str] = field(default_factory=dict)  # stored step -> why it cannot be restored
    doubted: tuple[int, ...] = ()  # those of them that only a listing says so: a later one may know better
    verified: tuple[int, ...] = ()  # stored steps with bytes that were seen to be right, newest last, few
    begun: tuple[int, ...] = ()  # steps that this run's own publishes or deletes touched, newest last, few
    reading: tuple[int, ...] = ()  # stored steps that a pod was restoring at the last look


@dataclass(frozen=True)
class Pins:
    """Stored steps that a person pins, and those that are held because training became worthless after them."""

    steps: tuple[int, ...] = ()  # steps that a person keeps in the store
    wishes: dict[str, bool] = field(default_factory=dict)  # step -> pinned or not: not in the store yet
    reason: str = ""  # why the store's pins cannot be read
    held: tuple[int, ...] = ()  # steps from before training became worthless, as the store has them
    holds: tuple[Hold, ...] = ()  # and why, as the store has it
    holds_read: bool = False  # what pods before this one wrote of that is known
    holds_after: float = 0.0
    holds_reason: str = ""  # why it could not be written down


@dataclass(frozen=True)
class Lineage:
    """Which steps the run has left behind."""

    known: tuple[Happened, ...] = ()  # what left steps of the run, as the store tells it
    unwritten: tuple[Happened, ...] = ()  # what is not written down in the store yet
    after: float = 0.0


@dataclass(frozen=True)
class Publishing:
    """How publishing goes."""

    after: float = 0.0
    failures: int = 0
    permanent: bool = False  # the last failure needs a person
    reason: str = ""
    held: str = ""  # why a step could not be published since the last one that was
    took_s: float | None = None  # the last one that had something to send


@dataclass(frozen=True)
class Recovery:
    """What the budget of restarts has left, and what used it up."""

    restarts: int = 0  # all restarts of this journal
    barren: int = 0  # restarts since the last new complete step
    best_complete: int | None = None
    failures: tuple[Failure, ...] = ()
    crashes: tuple[Crash, ...] = ()  # of the last day, whatever was completed in between
    stepped_back: bool = False
    left_step: int | None = None  # the newest one that was left because crashes followed it
    waits: int = 0  # for the network, since the last progress
    backoff_until: float = 0.0
    backoff_outside: bool = False  # it waits for the network, the store or room, not after crashes of the job
    full_since: float | None = None  # it waits for room, start by start
    draws: int = 0  # random numbers drawn so far


@dataclass(frozen=True)
class Incidents:
    """The incident that is open, and those that are closed."""

    open: Incident | None = None
    closed: tuple[Incident, ...] = ()  # closed ones, newest last, twenty at most
    count: int = 0


@dataclass(frozen=True)
class Ending:
    """With which code the daemon ends."""

    code: int | None = None
    said: bool = False


@dataclass(frozen=True)
class Observing:
    """What observing kept us from doing."""

    spared: str = ""  # the cause that observing kept us from acting on
    would: tuple[Would, ...] = ()  # newest last, fifty at most


@dataclass(frozen=True)
class State:
    """All that the core knows."""

    settings: Settings = NO_SETTINGS
    mode: Mode = "new"
    since: float = 0.0
    since_wall: float = 0.0
    now: float = 0.0
    wall: float = 0.0
    why: str = ""  # the sentence of the present mode
    engine: EngineMemory = field(default_factory=EngineMemory)
    engines: dict[str, EngineMemory] = field(default_factory=dict)  # where the run has several machines: "HOST/INDEX"
    progress: Progress = field(default_factory=Progress)
    left: Left | None = None
    own: OwnEngine = field(default_factory=OwnEngine)
    worth: Worth = field(default_factory=Worth)
    pace: Pace = field(default_factory=Pace)
    journal: str = ""
    began: float = 0.0  # this daemon
    fence: Fence = field(default_factory=Fence)
    leave: Leave = field(default_factory=Leave)
    setup_pending: bool = False
    setup: dict[str, SetupTimes] = field(default_factory=dict)  # by name
    busy: Busy = field(default_factory=Busy)
    said: dict[str, Said] = field(default_factory=dict)  # what must not be said again word for word (``repeats``)
    reminder: Reminder | None = None
    calm_until: float = 0.0  # until then nothing can be concluded from facts that only say that all goes on
    orders: Orders = field(default_factory=Orders)
    attempt: Attempt = field(default_factory=Attempt)
    job: Job = field(default_factory=Job)
    gpus: Gpus = field(default_factory=Gpus)
    host: Host = field(default_factory=Host)
    suspicion: Suspicion = field(default_factory=Suspicion)
    books: Books = field(default_factory=Books)
    disk: Disk = field(default_factory=Disk)
    local: Local = field(default_factory=Local)
    tier: Tier = field(default_factory=Tier)
    store: Store = field(default_factory=Store)
    pins: Pins = field(default_factory=Pins)
    lineage: Lineage = field(default_factory=Lineage)
    publishing: Publishing = field(default_factory=Publishing)
    recovery: Recovery = field(default_factory=Recovery)
    incidents: Incidents = field(default_factory=Incidents)
    ending: Ending = field(default_factory=Ending)
    observing: Observing = field(default_factory=Observing)
    machines: dict[str, Machine] = field(default_factory=dict)  # by name, where the run has several

    @property
    def live(self) -> bool:
        """True while an attempt should be running."""
        return self.mode in LIVE

    @property
    def holds_a_job(self) -> bool:
        """True while an attempt should be running, or is being stopped."""
        return self.live or self.mode == "stopping"

    @property
    def is_being_stopped(self) -> bool:
        """True from the order to stop an attempt until nothing of it is left."""
        return self.mode == "stopping" and self.busy.stop is not None

    @property
    def last_good(self) -> int | None:
        """The highest step that is complete here or committed in the store, and not quarantined or damaged."""
        return max(self.good_local() + self.good_stored(), default=None)

    def machines_used(self) -> list[str]:
        """Those on which the present attempt runs, where the run has several."""
        return [name for name, one in self.machines.items() if one.attempt == self.attempt.number]

    def good_local(self) -> list[int]:
        """Complete local steps that may be resumed from, ascending."""
        bad = self.set_aside()
        return sorted(s.step for s in self.local.steps if s.state == "complete" and str(s.step) not in bad)

    def set_aside(self) -> set[str]:
        """Steps that no start takes from this disk, though they are complete: quarantined, or of a lineage left."""
        return self.store.quarantined.keys() | self.local.left.keys()

    def wall_after(self, step: int | None) -> float:
        """Unix time now, or that of the step's files on this disk where the clock that dates them is ahead of ours."""
        return max([self.wall, *(one.changed_wall for one in self.local.steps if one.step == step)])

    def list_spoiled_steps(self) -> dict[int, str]:
        """Stored steps that have a manifest and, as the listing shows, not all that it names: what is wrong, by step.

        They were published once. No run resumes from them, and they are no reason to believe that nothing was.
        """
        return {
            s.step: s.problem or "its files are not those of its manifest"
            for s in self.store.steps
            if s.manifest and not s.committed and not self._is_ruled_out(s)
        }

    def good_stored(self) -> list[int]:
        """Committed stored steps that may be resumed from, ascending."""
        # A publish may have died between manifest and pointer, so a step above the pointer counts; those that the run
        # went back behind are left by name. Only the original scripts know no other way back than their pointer.
        limit = next((s.step for s in self.store.steps if s.legacy and s.step == self.store.latest), None)
        return sorted(
            s.step
            for s in self.store.steps
            if s.committed and not self._is_ruled_out(s) and (limit is None or s.step <= limit)
        )

    def _is_ruled_out(self, step: StoredStep) -> bool:
        name = str(step.step)
        return bool(step.left) or name in self.store.quarantined or name in self.store.damaged
