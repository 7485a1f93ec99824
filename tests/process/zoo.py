"""A job with every bad habit, stopped at any moment, and observers who know nothing of how a stop finds processes.

Every process of the job holds the writing end of one FIFO, which it got from its parent and gives to its children: when
nobody holds it any more, reading it says "end of file", and all are dead, whatever they called themselves, whose
children they were, and wherever they hid. No part of a stop knows of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.core import actions as a
from supervisor.core import facts as f
from supervisor.jobs.base import StopRules
from supervisor.process import own_cgroup, survivors
from supervisor.process.attempts import attempt_dir
from supervisor.process.survivors import Identity
from supervisor.sensors.processes import Identity as Seen
from supervisor.sensors.processes import process_sensors
from tests.process.conftest import PRELUDE, Attempt, PlainHands, kill, next_number, wait_for

CLOSED_WITHIN_S = 5.0
ROLES = ("launcher", "trainer", "engine", "washed", "retitled", "regrouped", "stopped", "forker")
VICTIMS = ("nobody", "launcher", "trainer", "engine", "shim", "daemon")
HASTY = StopRules(((signal.SIGTERM, 0.05),))
FIFO = "alive.fifo"
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

# HOME: the folder of notes, FIFO and /dev/shm names; given as the job's folder or, under a daemon, as its attempt's.
ANIMALS = """
role = sys.argv[1] if len(sys.argv) > 1 else "launcher"
script = os.path.abspath(sys.argv[0])
home = os.environ.get("RL_SUPERVISOR_ATTEMPT") or sys.argv[2]
os.chdir(home)
until = time.monotonic() + 300  # a chain whose test was killed does not fork for ever

def become(role, env):
    # A program of its own, with another command line and maybe no environment, as an engine's workers are.
    os.execve(sys.executable, [sys.executable, "-I", "-S", script, role, home], env)

def child(role, env=None):
    if os.fork() == 0:
        become(role, dict(os.environ) if env is None else env)

def escaped(role, env=None):
    # A double fork into a session of its own.
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        become(role, dict(os.environ) if env is None else env)

def segment(name):
    # Made, held, and never removed. Named after this folder: another test may be given the same process numbers.
    import zlib
    named = "/dev/shm/%szoo-%d-%d" % (name, zlib.crc32(os.getcwd().encode()), os.getpid())
    return os.open(named, os.O_RDWR | os.O_CREAT, 0o600)

if role == "innocent":
    tell("innocent-%d" % os.getpid()); sleep()
if role != "launcher":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if role == "launcher":
    # What an earlier attempt left, found before anything else is done.
    for path in sorted(os.listdir("..")):
        fifo = "../%s/alive.fifo" % path
        if os.path.exists(fifo) and not os.path.samefile("../" + path, "."):
            fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.read(fd, 1)
            except BlockingIOError:
                tell("left-over-of-" + path)
            os.close(fd)
    if not os.path.exists("alive.fifo"):
        os.mkfifo("alive.fifo")
    os.set_inheritable(os.open("alive.fifo", os.O_RDWR), True)  # never blocks; each child holds it, too
    child("trainer"); escaped("engine"); escaped("washed", {}); child("retitled"); escaped("regrouped")
    child("stopped"); child("forker")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    tell("launcher"); sleep()
elif role == "stopped":
    tell(role)
    os.kill(os.getpid(), signal.SIGSTOP)
elif role == "forker":
    tell(role)
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
elif role == "retitled":
    # As setproctitle does it: written over what proc shows of command line and environment, in the living process.
    import ctypes
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    first, last = int(fields[45]), int(fields[48])
    ctypes.memset(first, 0, last - first)
    ctypes.memmove(first, b"VLLM::EngineCore_DP0", 20)
    tell(role); sleep()
elif role == "regrouped":
    # A worker that leaves for a process group of its own each few milliseconds, with one child that goes along.
    if os.fork() == 0:
        tell(role)
    while time.monotonic() < until:
        os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None
        if os.fork():
            os._exit(0)
        time.sleep(0.02)
elif role == "engine":
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    held = segment("psm_"), segment("vllm-")
    tell("port", server.getsockname()[1]); tell(role); sleep()
else:
    held = segment("nccl-")
    tell(role); sleep()
"""


@dataclass
class Count:
    """What was seen over many stops. ``left``: processes that lived on, by any observer; all lists should be empty."""

    stops: int = 0
    seed: int | None = None
    ways: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)  # of what lived on, by its open files
    segments: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    innocents: list[str] = field(default_factory=list)
    recycled: int = 0  # processes that were given the number of one that had been the job's, and lived on
    longest_s: float = 0.0

    def clean(self) -> bool:
        """Nothing left, and nobody else hurt."""
        return not (self.left or self.segments or self.ports or self.innocents)


# ---------------------------------------------------------------- observers


def held(folder: Path) -> bool:
    """Does anybody still hold the FIFO of the job that ran in the folder?"""
    try:
        fd = os.open(folder / FIFO, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        os.read(fd, 1)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders(folder: Path) -> list[str]:
    """Who holds it, and what the kernel tells of each: what a failure is to be understood by."""
    found = []
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if file.samefile(folder / FIFO) and int(file.parts[2]) != os.getpid():
                home = file.parent.parent
                status = (home / "status").read_text().splitlines()
                wanted = [
                    line.replace("\t", " ") for line in status if line.startswith(("Name", "State", "PPid", "NSsid"))
                ]
                found.append(
                    f"{home.name}: {wanted} {(home / 'cmdline').read_bytes()!r} {(home / 'wchan').read_text()}"
                )
    return sorted(set(found))


def alive_in(folder: Path) -> list[str]:
    """Living processes whose command line names the folder, innocents left out."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                state = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"{folder}" in words and "job.py" in words and "innocent" not in words and state not in "ZX":
                found.append(f"{name} {state} {words}")
    return found


def segments_of(folder: Path) -> list[str]:
    """What the job that ran in the folder left in /dev/shm."""
    return [str(path) for path in Path("/dev/shm").glob(f"*zoo-{zlib.crc32(os.fsencode(folder.resolve()))}-*")]


def taken(port: int) -> bool:
    """Is the port still somebody's?"""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def look_behind(count: Count, folder: Path, way: str) -> None:
    """All observers, right after a stop: what do they see of the job that ran in the folder?"""
    count.stops += 1
    count.ways[way] += 1
    # One that was killed loses its memory, command line and name before it closes its files (do_exit in kernel/exit.c).
    until = time.monotonic() + CLOSED_WITHIN_S
    while held(folder) and time.monotonic() < until:
        time.sleep(0.02)
    if held(folder):
        count.left.append(f"{way}: somebody holds {folder / FIFO}")
        count.holders += holders(folder)
    count.left += [f"{way}: {one}" for one in alive_in(folder)]
    count.segments += segments_of(folder)
    with contextlib.suppress(OSError, ValueError):
        if taken(port := int((folder / "port").read_text())):
            count.ports.append(port)


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    spinning = [subprocess.Popen([sys.executable, "-I", "-S", "-c", SPIN]) for _ in range(cores)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


class Innocents:
    """Processes of the same user and name, one of them in another run's job, that no stop may touch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.neighbour = Attempt(folder, f"neighbour-{os.getpid()}")
        # One of the two tells: both, and the slower one would die of the other's rename.
        self.neighbour.start("tell('up'); os.mkdir('inner'); inner = os.fork(); inner and tell('down', inner); sleep()")
        self.theirs = [self.neighbour.told("up"), *self.neighbour.mine]
        self.others: list[subprocess.Popen[bytes]] = []

    def same_name(self, folder: Path) -> None:
        """A person's own process with the job's program and folder in its command line, and no marker."""
        argv = [sys.executable, "-I", "-S", str(folder / "job.py"), "innocent", str(folder)]
        self.others.append(subprocess.Popen(argv, cwd=folder, env={"RL_SUPERVISOR_RUN": "another"}))

    def hurt(self) -> list[str]:
        """Who does not live any more; those of one stop are then ended."""
        found = [f"{pid} of the neighbour" for pid, ticks in self.theirs if not survivors.alive((pid, ticks))]
        found += [f"{one.pid} with the same name" for one in self.others if one.poll() is not None]
        for one in self.others:
            one.kill()
            one.wait()
        self.others.clear()
        return found

    def close(self) -> None:
        """End them."""
        self.hurt()
        kill([one for one in self.neighbour.mine if survivors.alive(one)])
        with contextlib.suppress(OSError):
            kill(
                [
                    p.identity
                    for p in survivors.Belongings(self.neighbour.folder, [], self.neighbour.run_id).list_living()
                ]
            )


def recycled(pid: int) -> subprocess.Popen[bytes] | None:
    """A stranger that is given this number, which was another's before; None where that cannot be had."""
    for _ in range(20):
        try:
            with next_number(pid):
                found = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
        except OSError:
            return None
        if found.pid == pid:
            return found
        found.kill()
        found.wait()
    return None


# ---------------------------------------------------------------- one stop, by a stop's own function


def ticks_of(pid: int) -> int:
    """Start ticks, 0 when there is no such process."""
    found = survivors.look_at(pid)
    return found.start_ticks if found else 0


def one_stop(
    attempt: Attempt, victim: str, chance: random.Random, count: Count, them: Innocents, *, grouped: bool
) -> None:
    """One attempt: it comes up, something of it (or of us) dies, it is stopped, and all observers look."""
    launched = attempt.start(ANIMALS, argv=command(attempt.folder / "job.py", attempt.folder))
    them.same_name(attempt.folder)
    shim = (launched.shim_pid, ticks_of(launched.shim_pid))
    if grouped and victim != "shim":
        time.sleep(chance.uniform(0, 0.25))  # it may be anywhere on its way
    else:
        # Without a group, only what was seen once can be told from a stranger later.
        wait_for(lambda: all((attempt.folder / role).exists() for role in ROLES), "all of it is up", 60)
    watcher, scanner = process_sensors(1, [Seen(*shim)], lambda *_: None, lambda: ())
    scanner.look()
    known = [(one.pid, one.start_ticks) for one in scanner.identities()]
    watcher.close()
    if victim == "daemon":
        _stop_and_die(attempt, chance)
    elif victim != "nobody":
        _kill(attempt, victim, launched.shim_pid)
    report = attempt.stop(HASTY, budget_s=30.0, known=known)
    look_behind(count, attempt.folder, f"{victim} dies, {'own group' if grouped else 'no group'}")
    count.longest_s = max(count.longest_s, report.seconds)
    count.left += report.survivors
    if survivors.alive(shim):
        count.left.append(f"the shim {shim[0]}")
    if count.stops % 5 == 0 and (stranger := recycled(launched.child_pid)) is not None:
        attempt.stop(HASTY, budget_s=30.0, known=known)
        count.recycled += 1
        if stranger.poll() is not None:
            count.innocents.append(f"{stranger.pid}, which had been the job's number before")
        stranger.kill()
        stranger.wait()
    count.innocents += them.hurt()


def command(script: Path, home: Path) -> list[str]:
    """The zoo's command line."""
    return [sys.executable, "-I", "-S", str(script), "launcher", str(home)]


def _kill(attempt: Attempt, victim: str, shim: int) -> None:
    try:
        pid = shim if victim == "shim" else int((attempt.folder / victim).read_text())
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it had not come so far


def _stop_and_die(attempt: Attempt, chance: random.Random) -> None:
    """Another daemon begins the stop and is killed in the middle of it."""
    source = (
        "from pathlib import Path; from supervisor.process.stop import stop_attempt\n"
        "from supervisor.jobs.base import StopRules\n"
        "print('begun', flush=True)\n"
        f"stop_attempt(Path({str(attempt.folder)!r}), [], {attempt.run_id!r}, StopRules(((15, 0.3),)), 30.0,"
        " lambda: True, 1.0)"
    )
    other = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()
    time.sleep(chance.uniform(0, 0.6))
    other.kill()
    other.wait()
    other.stdout.close()


def can_group(folder: Path) -> bool:
    """May this user make control groups (version 2, Linux 5.14) here?"""
    made = own_cgroup.make_group("probe", folder, "probe")
    if made is not None:
        own_cgroup.remove_group(made)
    return made is not None


def stops(folder: Path, number: int, seed: int, count: Count, *, grouped: bool, patch: pytest.MonkeyPatch) -> None:
    """``number`` stops of one attempt each."""
    count.seed = seed
    if not grouped:
        patch.setattr(own_cgroup, "make_group", lambda *_: None)
    chance = random.Random(seed)
    them = Innocents(folder / "innocents")
    try:
        for turn in range(number):
            home = folder / f"attempt-{turn}"
            home.mkdir()
            attempt = Attempt(home, f"orphans-{os.getpid()}")
            victim = VICTIMS[turn % len(VICTIMS)]
            try:
                one_stop(attempt, victim, chance, count, them, grouped=grouped)
            except BaseException as error:
                error.add_note(f"stop {turn} of seed {seed}: {victim}, {'with' if grouped else 'without'} a group")
                raise
            finally:
                left: list[Identity] = [
                    p.identity for p in survivors.Belongings(home, [], attempt.run_id).list_living()
                ]
                left += [(pid, ticks_of(pid)) for pid in (int(one.split()[0]) for one in alive_in(home))]
                kill(left)
    finally:
        them.close()


# ---------------------------------------------------------------- many stops in a row, by a daemon's hands


class Hands(PlainHands):
    """The effects of a real daemon on the zoo as a plain command: evidence, stop, next start, as the core orders."""

    def __init__(self, folder: Path, name: str) -> None:
        # All but the launcher ignore SIGTERM: of a minute's patience they would take all that a stop has.
        patience = {"stop_grace_s": HASTY.signals[0][1]}
        super().__init__(folder, name, PRELUDE + ANIMALS, "launcher", "{step}", **patience)

    def home(self, attempt: int) -> Path:
        """The attempt's folder, which is also the zoo's."""
        return attempt_dir(self.run_file.state_dir, attempt)

    def start(self, attempt: int) -> Identity:
        """Start it, and wait until its shim runs; returns the shim."""
        self.effects.do(a.Start(attempt, None))
        told = self._wait((f.AttemptStarted, f.StartFailed), attempt)
        assert isinstance(told, f.AttemptStarted), told
        (record,) = survivors.read_records(self.home(attempt))
        return record.shim

    def incident(self, attempt: int) -> f.AttemptStopped:
        """What the core orders at a verdict: evidence first, then the stop."""
        self.effects.do(a.CollectEvidence(attempt, attempt, "the trainer died"))
        self.effects.do(a.Stop(attempt, "the trainer died", 30.0))
        told = self._wait((f.AttemptStopped,), attempt)
        assert isinstance(told, f.AttemptStopped)
        return told

    def _wait(self, kinds: tuple[type[f.Fact], ...], attempt: int) -> f.Fact:
        return wait_for(
            lambda: next((x for x in self.facts if isinstance(x, kinds) and getattr(x, "attempt", 0) == attempt), None),
            f"{kinds} of attempt {attempt}",
            90,
        )

    def close(self) -> None:
        """End all that runs."""
        self.effects.close()
        for folder in (self.run_file.state_dir / "attempts").glob("*"):
            kill([p.identity for p in survivors.Belongings(folder, [], self.run_file.run.id).list_living()])


def incidents(folder: Path, number: int, seed: int, count: Count, *, grouped: bool, patch: pytest.MonkeyPatch) -> None:
    """``number`` incidents in a row: something of the job dies, it is stopped, and the next attempt starts at once."""
    count.seed = seed
    if not grouped:
        patch.setattr(own_cgroup, "make_group", lambda *_: None)
    chance = random.Random(seed)
    them = Innocents(folder / "innocents")
    hands = Hands(folder / "daemon", f"zoo-{os.getpid()}")
    try:
        for attempt in range(1, number + 1):
            shim = hands.start(attempt)
            home = hands.home(attempt)
            wait_for(lambda home=home: all((home / role).exists() for role in ROLES), "all of it is up", 60)
            watcher, scanner = process_sensors(1, [Seen(*shim)], lambda *_: None, lambda: ())
            scanner.look()
            hands.seen.processes = [(one.pid, one.start_ticks) for one in scanner.identities()]
            watcher.close()
            victim = ("trainer", "engine", "launcher")[attempt % 3]
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((home / victim).read_text()), signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.1))
            told = hands.incident(attempt)
            look_behind(count, home, f"incident: {victim} dies, {'own group' if grouped else 'no group'}")
            count.left += told.survivors
            count.longest_s = max(count.longest_s, told.seconds)
            count.left += [f"seen by attempt {attempt}: {one.name}" for one in home.glob("left-over-of-*")]
            count.innocents += them.hurt()
    except BaseException as error:
        error.add_note(f"after {count.stops} stops: {number} incidents of seed {seed}, own groups: {grouped}")
        raise
    finally:
        hands.close()
        them.close()
