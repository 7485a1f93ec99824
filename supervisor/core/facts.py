"""Every fact that a sensor, an effect or a person can tell the core. Frozen, JSON-serialisable, no behaviour.

A fact says what was seen, never what it means. Times (``t``) live in the envelope ``Observation``: float seconds of
the journal's clock (boot time, which counts suspends, plus an epoch carried across boots). ``wall`` is Unix time and
only a label. *Unknown* is a fact of its own (``reason`` set, values ``None``): it is not zero and not dead.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from supervisor.base.records import dataclass
from supervisor.core.goodput import Ledger
from supervisor.core.records import Happened, Hold, Learned
from supervisor.core.settings import Settings as Settings  # noqa: PLC0414 - with DaemonStarted a part of this protocol

Role = Literal["launcher", "trainer", "orchestrator", "inference", "env", "job"]
"""``job`` is the whole of a plain command, which has no roles we could tell apart."""


@dataclass(frozen=True)
class Fact:
    """Base of all facts."""


# ---------------------------------------------------------------- sensors


@dataclass(frozen=True)
class Tick(Fact):
    """Time passed and nothing else."""


@dataclass(frozen=True)
class ProcessSeen(Fact):
    """A process of the run's job was seen for the first time (identity is pid and kernel start time)."""

    attempt: int
    role: Role
    pid: int
    start_ticks: int  # /proc/PID/stat field 22, clock ticks since boot
    title: str = ""  # command line or title, cut to 200 characters
    key: bool = True  # False for helpers (a log tail, an API worker): their end proves nothing
    host: str = ""  # the machine, where the run has several
    index: int = 0  # which of several of this role


@dataclass(frozen=True)
class ProcessGone(Fact):
    """A process reported by ``ProcessSeen`` is no longer there. Proof, not a signal."""

    attempt: int
    role: Role
    pid: int
    start_ticks: int
    key: bool = True
    host: str = ""
    index: int = 0
    age_s: float = 0.0  # for so long it was known on that machine when it was heard here


@dataclass(frozen=True)
class ComponentExited(Fact):
    """The shim reports the end of a component's own process (for prime-rl: the launcher)."""

    attempt: int
    component: str
    exit_code: int | None  # None when a signal ended it or when the status was lost
    signal: int | None = None
    lost: bool = False  # True when the shim itself vanished: the status will never be known
    host: str = ""  # the machine, where the run has several: then it is one of many components
    role: Role | None = None
    index: int = 0
    age_s: float = 0.0


@dataclass(frozen=True)
class MachineLook(Fact):
    """What is heard of one machine of a run over several. A machine that is silent is unknown, not dead."""

    host: str
    silent_s: float | None = None  # for so long its agent has said nothing; None: it speaks
    seat: str = ""  # where machines are made anew: what its successor has in common with it, and no other


@dataclass(frozen=True)
class MachineDown(Fact):
    """What the engine that gave a machine says against it; "": nothing any more. Alone it proves nothing."""

    host: str
    why: str = ""


EMPTY_BYTES = 1 << 30  # a GPU without tenants shows 0 to about 600 MiB, by driver and persistence mode
EMPTY_PART = 0.02  # of its total: a large GPU's driver takes more


def is_gpu_empty(used_bytes: int, total_bytes: int) -> bool:
    """The one rule for "nothing but the driver is on this GPU": no more than 1 GiB, or 2 % of its memory."""
    return used_bytes <= max(EMPTY_BYTES, EMPTY_PART * total_bytes)


@dataclass(frozen=True)
class Gpu:
    """One GPU in one look. Sizes in bytes as NVML reports them ("used" includes what the driver reserves)."""

    uuid: str
    index: int
    used_bytes: int
    total_bytes: int
    role: Literal["inference", "trainer", "shared", "other"] = "other"
    pids: tuple[int, ...] | None = None  # None where the driver hides them (containers)
    slowed: str | None = None  # "91 C, HW thermal slowdown, 900 of 1980 MHz"; "" while nothing slows it, None: unknown
    power_w: float | None = None  # the most that it drew since the look before, None where the driver does not say
    load: float | None = None  # percent of the last second or so in which a kernel ran: one that only waits counts, too
    host: str = ""  # the machine, where the run has several

    @property
    def name(self) -> str:
        """For people."""
        return f"GPU {self.index} of {self.host}" if self.host else f"GPU {self.index}"

    @property
    def is_empty(self) -> bool:
        """Does nothing but the driver hold its memory?"""
        return is_gpu_empty(self.used_bytes, self.total_bytes)


@dataclass(frozen=True)
class GpuLook(Fact):
    """Memory of all GPUs of the run, or ``reason`` why it is unknown (driver missing, hanging, error)."""

    gpus: tuple[Gpu, ...] = ()
    reason: str = ""
    lost: tuple[str, ...] = ()  # GPUs of the run about which the driver answers no more: "GPU 1: GPU is lost"
    host: str = ""  # the machine, where the run has several: then its GPUs alone


@dataclass(frozen=True)
class GpuFault(Fact):
    """The driver reported a fault (an Xid event) of a GPU. A signal with a name; its meaning is the core's business."""

    gpu: str  # "GPU 1", as people know it
    xid: int  # NVIDIA's number; 0: the driver answers no more about it
    text: str = ""
    host: str = ""  # the machine, where the run has several
    age_s: float = 0.0


@dataclass(frozen=True)
class HostLook(Fact):
    """The host, or the container's share of it, in one look; ``None`` where it cannot be known."""

    memory_total_bytes: int | None = None  # the cgroup's limit where it has one, else the machine's
    memory_available_bytes: int | None = None
    memory_pressure: float | None = None  # percent of the last 10 s in which some task waited for memory (PSI some)
    oom_kills: int | None = None  # kernel's counter, of the job's cgroup where it can be seen, else the machine's
    open_files: int | None = None  # of the run's process that is nearest to its limit
    open_files_limit: int | None = None
    open_files_of: str = ""  # that process, for people: "trainer (pid 4711)"
    shm_total_bytes: int | None = None  # /dev/shm
    shm_free_bytes: int | None = None
    reason: str = ""
    host: str = ""  # the machine, where the run has several
    age_s: float = 0.0


@dataclass(frozen=True)
class Effort:
    """What the processes of one role did since the look before: CPU cores used by all of them, and by the laziest.

    ``waits``: "pid 4711 in nfs4_wait_bit_killable", where one sits in a call that no signal ends (state D).
    """

    role: Role
    cores: float
    least_cores: float
    waits: str = ""


@dataclass(frozen=True)
class EffortLook(Fact):
    """What the job's processes do, the key ones by role; ``reason`` where it is unknown. A rate is None where it is."""

    efforts: tuple[Effort, ...] = ()
    reason: str = ""
    helper_cores: float | None = None  # CPU cores that its other processes use: workers of environments, compilers
    file_bytes_s: float | None = None  # bytes a second that its processes read and write
    net_bytes_s: float | None = None  # bytes a second that the machine receives, loopback left out, InfiniBand included
    flushed_bytes_s: float | None = None  # bytes a second that the kernel writes back or sends, for all programs


@dataclass(frozen=True)
class EngineCount:
    """Counters of one of several data-parallel engines behind one endpoint (label ``engine`` of vLLM's metrics)."""

    index: int
    iterations: float | None = None  # else generated tokens
    running: float | None = None
    waiting: float | None = None


@dataclass(frozen=True)
class EngineLook(Fact):
    """What the engine's HTTP side answered in one look.

    ``health``: "ok" (200), "bad" (any other status, normally 503), "refused" (no listener), "timeout", "unknown".
    ``liveness``: the same words, or "absent" where the engine has no such endpoint (404).
    Counters are vLLM's, summed over engines; ``None`` when /metrics could not be read.

    ``host``, ``index``: the machine and the number of the engine, in a run over several: each is told of by itself.
    """

    endpoint: str
    health: str
    liveness: str = "absent"
    generation_tokens: float | None = None
    iterations: float | None = None
    running: float | None = None
    waiting: float | None = None
    connections: int | None = None  # established TCP connections to the engine port, None if unknown
    canary: str = ""  # "", "ok", "timeout", "bad": a one-token completion, only asked for when counters stand still
    reason: str = ""
    engines: tuple[EngineCount, ...] = ()  # each engine's own, where there is more than one
    host: str = ""
    index: int = 0

    @property
    def place(self) -> str:
        """Which of several engines it is of, in ``State.engines``."""
        return f"{self.host}/{self.index}"


@dataclass(frozen=True)
class StepDone(Fact):
    """A role's own log (or metrics.jsonl) says that it finished a training step."""

    role: Role
    step: int
    duration_s: float | None = None
    reward: float | None = None
    loss: float | None = None  # may be NaN: that is news
    throughput: float | None = None  # tokens per second
    error_rate: float | None = None  # 0 to 1, rollouts that ended in an error
    trainable: float | None = None  # 0 to 1, samples that carry a gradient


@dataclass(frozen=True)
class PhaseSeen(Fact):
    """A role said what it is doing. Names are in ``supervisor.jobs.base.PHASES``."""

    role: Role
    phase: str
    step: int | None = None
    text: str = ""


@dataclass(frozen=True)
class WorkSeen(Fact):
    """The orchestrator's count of rollouts under way; progress is ``done`` moving."""

    inflight: int
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class Growing(Fact):
    """Files of a phase grow: a download, rollouts being written, a checkpoint being saved. Sub-step progress."""

    what: Literal["download", "rollouts", "checkpoint"]
    size_bytes: int


@dataclass(frozen=True)
class FinishSeen(Fact):
    """A role's own log holds its line of success. Alone it proves nothing (promise 6)."""

    role: Role
    text: str


@dataclass(frozen=True)
class ErrorSeen(Fact):
    """A known error line. A signal with a name, never proof."""

    role: Role
    signature: str  # a short stable name: "engine-dead", "cuda-oom", "config-invalid", "connection-error"
    text: str  # the line, cut to 300 characters
    deterministic: bool = False  # a restart cannot cure it (a configuration error, a missing key)
    sentence: str = ""  # what it means, for people
    remedy: str = ""  # what people did about it


@dataclass(frozen=True)
class FreshStartSeen(Fact):
    """The job says that it starts from scratch although a resume step was given. An alarm."""

    role: Role
    text: str


@dataclass(frozen=True)
class LinesMissed(Fact):
    """A daemon that took over a living job could not read all lines that were written while none watched."""


@dataclass(frozen=True)
class DiskLook(Fact):
    """The checkpoint volume, in bytes; ``reason`` set and sizes None when ``statvfs`` failed or hung."""

    path: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    reason: str = ""
    host: str = ""  # the machine, where those of the run have disks of their own: the fullest is told of
    part: float = 1.0  # of each step's bytes, what is written to this disk


@dataclass(frozen=True)
class TierLook(Fact):
    """The folder on a faster file system where the trainer saves ("" where none is used), told on change.

    ``waiting``: whole steps there that the run's own volume does not have yet: a lost host loses them. ``failed``: why
    they do not get there. ``over``: why no further start uses the folder.
    """

    folder: str = ""
    waiting: tuple[int, ...] = ()
    in_memory: bool = False
    failed: str = ""
    over: str = ""


@dataclass(frozen=True)
class LocalStep:
    """One step's folders on the local disk. ``state``: "complete", "writing" (may still change), "incomplete"."""

    step: int
    state: Literal["complete", "writing", "incomplete"]
    reason: str
    size_bytes: int
    changed_wall: float = 0.0  # newest mtime of its files, Unix time


@dataclass(frozen=True)
class LocalSteps(Fact):
    """All step folders of the run on the local disk; ``reason`` set when they could not be listed."""

    steps: tuple[LocalStep, ...] = ()
    reason: str = ""
    settled: bool = False  # the answer to a ``Survey``: no process writes, so a whole step counts without quiet time


@dataclass(frozen=True)
class StoredStep:
    """One step in the store. ``committed``: it has a manifest, or ``latest.json`` names it (the original scripts)."""

    step: int
    committed: bool
    size_bytes: int
    damaged: str = ""  # why this pod will not restore it, when a restore already failed
    left: str = ""  # why no run resumes at it: it is of a lineage that was left, or quarantined
    manifest: str = ""  # the store's id of its manifest: another one is another checkpoint
    legacy: bool = False  # of the original scripts: it has no manifest, and their pointer is its only proof
    problem: str = ""  # why it is not committed


@dataclass(frozen=True)
class StoreSteps(Fact):
    """All steps of the run in the store; ``reason`` set when the store could not be listed (never an empty store)."""

    steps: tuple[StoredStep, ...] = ()
    latest: int | None = None
    reason: str = ""
    permanent: bool = False  # wrong key, missing bucket: waiting cannot cure it
    wandb_id: str = ""  # what latest.json names
    happened: tuple[Happened, ...] = ()  # all that ever left steps of this run, oldest first
    pinned: tuple[int, ...] = ()  # a person keeps these
    reading: tuple[int, ...] = ()  # a pod is restoring these
    pins_reason: str = ""  # why the pins cannot be read; then nothing is deleted from the store
    held: tuple[int, ...] = ()  # kept while training is worth nothing: from before the first bad step
    holds: tuple[Hold, ...] = ()  # why they are


@dataclass(frozen=True)
class StoreBack(Fact):
    """A request to the store succeeded after one that did not: what waits for the store need wait no longer."""


@dataclass(frozen=True)
class ConfigChanged(Fact):
    """A file of the run's configuration on disk differs from the snapshot that runs; ``same``: no longer. Reported, not
    picked up.
    """

    path: str
    same: bool = False


@dataclass(frozen=True)
class ClockJumped(Fact):
    """The host was paused or its clock stepped by ``seconds``: no deadline counts them."""

    seconds: float


# ---------------------------------------------------------------- effects report back


@dataclass(frozen=True)
class AttemptStarted(Fact):
    """The job was launched. ``step`` is the resume step, None for a fresh start."""

    attempt: int
    step: int | None
    pid: int
    command: str = ""  # for people, secrets never in it
    machines: tuple[str, ...] = ()  # on which it runs, where the run has several


@dataclass(frozen=True)
class AttemptAdopted(Fact):
    """A new daemon found the job of ``attempt`` alive under its shim and took over."""

    attempt: int
    step: int | None
    pid: int


@dataclass(frozen=True)
class StartFailed(Fact):
    """Not launched. ``permanent``: a person has to act; ``unfit``: the pod has to go, or its machine ``host``."""

    attempt: int
    reason: str
    permanent: bool = False
    unfit: bool = False
    no_room: bool = False  # a disk is full
    host: str = ""  # of several machines, the one on which it failed


@dataclass(frozen=True)
class AttemptStopped(Fact):
    """Nothing of the attempt is alive any more, or ``survivors`` names what is (then ``unfit`` is likely).

    ``gpu_holders``: where the GPUs' memory is not back, the processes on them that are not the run's.
    """

    attempt: int
    seconds: float
    survivors: tuple[str, ...] = ()
    gpu_free: bool | None = None  # None: unknown
    gpu_holders: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()  # machines that did not answer: what ran there ends with its agent's lease


@dataclass(frozen=True)
class Suppressed(Fact):
    """An effect was not carried out: the run is only observed. Comes back so that beliefs stay true.

    ``action`` is the class name of the action ("Start", "Stop", "PruneLocal", ...), ``number`` its attempt, step or
    engine.
    """

    action: str
    number: int | None
    why: str


@dataclass(frozen=True)
class EngineStarted(Fact):
    """The inference server that we start as a role of its own was launched, for the ``engine``-th time."""

    engine: int
    pid: int
    command: str = ""


@dataclass(frozen=True)
class EngineStartFailed(Fact):
    """It could not be launched. ``permanent``: a person has to act."""

    engine: int
    reason: str
    permanent: bool = False


@dataclass(frozen=True)
class EngineExited(Fact):
    """The shim of our own inference server reports its end."""

    engine: int
    exit_code: int | None
    signal: int | None = None
    lost: bool = False


@dataclass(frozen=True)
class EngineStopped(Fact):
    """Nothing of our own inference server is alive any more, or ``survivors`` names what is."""

    engine: int
    seconds: float
    survivors: tuple[str, ...] = ()
    gpu_free: bool | None = None


@dataclass(frozen=True)
class StoreRecords(Fact):
    """What other pods left in the store about this run: what it learned, and their parts of the ledger by journal."""

    learned: Learned | None = None
    ledgers: dict[str, Ledger] = field(default_factory=dict)


@dataclass(frozen=True)
class Published(Fact):
    """A step is in the store, every part's hash confirmed, listing and manifest re-read, pointer moved."""

    step: int
    size_bytes: int
    seconds: float
    sent_bytes: int = 0


@dataclass(frozen=True)
class PublishFailed(Fact):
    """A publish did not end well. ``permanent``: retrying without a person is pointless (key, bucket, quota)."""

    step: int
    reason: str
    permanent: bool = False
    step_changed: bool = False  # the local step vanished or changed under the transfer: choose anew
    left: bool = False  # the very same bytes are in the store and no run resumes at them: nor are they good here


@dataclass(frozen=True)
class Pruned(Fact):
    """A step's trees were deleted ``where`` ("local" or "store")."""

    step: int
    where: Literal["local", "store"]
    freed_bytes: int


@dataclass(frozen=True)
class PruneFailed(Fact):
    """A step could not be deleted."""

    step: int
    where: Literal["local", "store"]
    reason: str


@dataclass(frozen=True)
class Restored(Fact):
    """A step came from the store to the local disk, every byte verified."""

    step: int
    size_bytes: int
    seconds: float
    verified: bool = True  # False: no manifest (the original scripts), only sizes and loadability were checked


@dataclass(frozen=True)
class RestoreFailed(Fact):
    """A step could not be restored. ``damaged``: the one before is next; ``no_room``: the local disk is full."""

    step: int
    reason: str
    damaged: bool = False
    permanent: bool = False
    no_room: bool = False


@dataclass(frozen=True)
class PinKept(Fact):
    """A person's pin (or its end) is written down in the store, or ``reason`` says why it is not."""

    step: int
    pinned: bool
    reason: str = ""
    permanent: bool = False


@dataclass(frozen=True)
class HoldsKept(Fact):
    """Which steps are held, and why, is written down in the store, or ``reason`` says why it is not."""

    steps: tuple[int, ...]
    holds: tuple[Hold, ...]
    reason: str = ""
    permanent: bool = False  # trying again cannot help soon


@dataclass(frozen=True)
class StoreChecked(Fact):
    """The store was compared with its manifests: good steps, and what is wrong with the others, by step."""

    good: tuple[int, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    deep: bool = False  # True: bytes were read again, too


@dataclass(frozen=True)
class Claimed(Fact):
    """This pod holds the run from now on: it alone publishes to the store, and deletes there."""

    generation: int
    watched: bool = False  # over a holder with a still heartbeat: what that one did since is not known here
    unfit: str = ""  # why this host is not what its offer promised, in sentences


@dataclass(frozen=True)
class ClaimHeld(Fact):
    """Another pod holds the run. Comes again with each look."""

    by: str  # its host name
    generation: int
    age_s: float  # since its heartbeat was last seen to move, on this pod's clock
    patience_s: float  # for so long it may stand still
    copied: bool = False  # it has this very journal: one of the two disks is a copy, or this machine was started anew


@dataclass(frozen=True)
class ClaimFailed(Fact):
    """The store could not be asked who holds the run. ``permanent``: waiting cannot cure it."""

    reason: str
    permanent: bool = False


@dataclass(frozen=True)
class Fenced(Fact):
    """Another pod has taken the run over from this one."""

    by: str
    generation: int


@dataclass(frozen=True)
class LeaveSoon(Fact):
    """This pod is about to go: a signal, or a trigger of ``[leaving]``. ``within_s`` None: how soon is unknown."""

    within_s: float | None
    why: str  # who says so, for people: "SIGTERM", "/run/preempted appeared"


@dataclass(frozen=True)
class PublishMoves(Fact):
    """How far the publish under way is. Looked at only while this pod is about to go."""

    step: int
    phase: str  # "hashing", "sending", "checking"; "" before the first word
    moved_bytes: int
    total_bytes: int
    rate: float  # bytes a second over about the last half minute; 0 while unknown


@dataclass(frozen=True)
class LineageKept(Fact):
    """What left steps of the run is written down in the store; ``pointer`` is where latest.json was moved back to."""

    count: int  # of the entries that were asked for
    pointer: int | None = None


@dataclass(frozen=True)
class Swept(Fact):
    """What pods before this one left half-sent in the store is cancelled."""

    cancelled: int


@dataclass(frozen=True)
class LineageFailed(Fact):
    """It is not written down yet."""

    reason: str


@dataclass(frozen=True)
class StartWaits(Fact):
    """The start that is under way cannot go on yet, since a machine is not there; "" when it goes on."""

    sentence: str


@dataclass(frozen=True)
class Remark(Fact):
    """Something an effect did or noticed that a person should be able to read later; nothing follows from it."""

    event: str
    sentence: str
    level: str = "info"  # or "warning": a person has to mend it


@dataclass(frozen=True)
class RootSeen(Fact):
    """What `diagnose` names as the root cause of a failed attempt, from the incident's evidence."""

    incident: int
    attempt: int
    name: str  # of the signature; "unknown" where the error is none that is known by name
    role: str
    text: str  # the job's own line
    remedy: str = ""


@dataclass(frozen=True)
class EffectCrashed(Fact):
    """A defect: an effect let an exception escape. Its slot is free again, and what it did is asked for anew."""

    lane: str
    reason: str


@dataclass(frozen=True)
class SettingsChanged(Fact):
    """The job could be opened only now (after ``[setup]``): these settings replace those of ``DaemonStarted``."""

    settings: Settings


@dataclass(frozen=True)
class SetupPart(Fact):
    """One of the things that a fresh pod's ``[setup]`` does side by side began, or ended.

    ``name``: "commands", or a command of ``setup.beside``. ``reason`` says why it failed, empty when it did not.
    """

    name: str
    ended: bool = False
    reason: str = ""


@dataclass(frozen=True)
class SetupDone(Fact):
    """The pod's ``[setup]`` commands ended; ``reason`` says why they failed, empty when they did not."""

    reason: str = ""


@dataclass(frozen=True)
class HookDone(Fact):
    """A hook command ended; ``reason`` is empty when it succeeded."""

    hook: str
    reason: str = ""


# ---------------------------------------------------------------- people


@dataclass(frozen=True)
class Command(Fact):
    """A person (or systemd) asked for something: start, stop, restart, pause, resume, shutdown."""

    verb: str
    who: str = ""
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class DaemonStarted(Fact):
    """The first fact of each daemon. ``settings`` is everything the core needs of the run file."""

    version: str
    settings: Settings
    boot_id: str = ""
    adopted: int | None = None  # attempt with a shim's record: it lives, or how it ended follows
    setup: bool = False  # the pod's [setup] commands are to be run first
    journal: str = ""  # identity of this journal, one for each pod (or lost journal) of the run
    engine_adopted: int | None = None  # our own inference server (by number), if its shim left a record
    lost: str = ""  # what the journal lacks that it once had, a sentence


@dataclass(frozen=True)
class Observation:
    """The envelope: one fact and when it was seen."""

    t: float
    wall: float
    fact: Fact
    source: str = field(default="", compare=False)
