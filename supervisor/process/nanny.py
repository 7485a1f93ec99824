"""The daemon's parent where no systemd is: a tiny program that starts the daemon again and collects what has ended.

Run as ``python -I -S -X utf8 PATH/process/nanny.py [--once N] -- COMMAND...``; ``rl-supervisor run --restart``
turns itself into this, keeping its pid, and does so by itself when it is process 1. Like the shim it uses the standard
library only and imports everything at its start: an upgrade that replaces the files under it does it no harm.

What it promises
- COMMAND runs as its child, in a session of its own, with default signals and nothing open but 0, 1 and 2. Its last N
  words (``--fresh``, ``--step N``, ``--take-over``) count once: they are left out when a daemon has lived for a minute.
- 0 (finished), 93 (a person is needed) and 94 (this pod is unfit) end it, with that code. After everything else, and
  after 93 while the job lives (a run file that is bad for a moment), the daemon is started again: after 5 s, then 10 s
  ... 300 s, and from 5 s anew once a daemon has lived for ten minutes. SIGHUP meanwhile starts it at once.
- The job is not its business. The job's shim is a child of init or of us only (we are a subreaper, so that a
  container does not fill up with zombies if its process 1 reaps nothing), and a daemon that dies leaves it alone.
- SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGPWR are handed on, but only once the daemon listens to
  them: before its handlers stand, each of them would merely kill it. SIGTERM and SIGINT also mean that it is the last
  one, and that the job ends. Who has not ended with 0 by then, or had died before, may have left one behind: one more
  is started, once, and told the same. Does that one fail, too, the shims below us are told. Then the end is 0; 75 only
  where something of the job lives on even so.
- A daemon that hangs is killed, and nothing else is: as under systemd it says so with each turn, in the
  same words (sd_notify(3)) on a socket of ours, from when it is up, and 120 s of silence are enough. Counted is only
  time in which we ran ourselves: a machine or a container that sleeps is no silence.

Environment, all optional and taken out before the daemon sees it: ``RL_SUPERVISOR_BACKOFF`` and
``RL_SUPERVISOR_LONGEST_BACKOFF`` (the first wait and the longest, seconds),
``RL_SUPERVISOR_WATCHDOG`` (seconds of silence, 10 at least; 0: it is not watched),
``RL_SUPERVISOR_PID_FILE`` (removed at the end), ``RL_SUPERVISOR_CUT_LOG`` (the file that stderr goes to: above 50 MB it
is copied to FILE.1 and emptied). The daemon is given ``RL_SUPERVISOR_NANNY``: our pid and start time. Where another
program's ``NOTIFY_SOCKET`` is set it speaks to that one, and we do not watch.
"""
# ruff: noqa: PTH102, PTH106, PTH108, PTH110, PTH116, PTH123, PTH208
# (pathlib would cost a third of this program's memory and start-up time)

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time

FINISHED, TRY_AGAIN, PERSON_NEEDED, POD_UNFIT = 0, 75, 93, 94  # supervisor.base.errors, which is not imported here
ENDING = (signal.SIGTERM, signal.SIGINT)
FORWARDED = (*ENDING, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPWR)
HANDLED = (*FORWARDED, signal.SIGCHLD)
NANNY = "RL_SUPERVISOR_NANNY"
"""Set for the daemon: who is its nanny, "PID-TICKS"."""
SHIMS = ("rl-shim", "rl-exit", "rl-signal")
"""Names of our own shims: what lives under one is ours."""
SCM_CREDENTIALS = 2  # linux/socket.h
PR_SET_NAME = 15  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 300.0
LEAST_WAIT_S = 0.05  # of a first wait: 0 doubled stays 0, and a daemon that dies at its start would spin
HEALTHY_S = 600.0  # who has lived for so long did not die of its start
ONCE_S = 60.0
HEAR_S = 20.0  # a daemon that has no handlers by now will get none
POLL_S = 0.05  # only while a signal waits to be handed on
LOOK_S = 30.0  # at the log's size
WATCH_S = 120.0  # WatchdogSec= of the unit
LEAST_WATCH_S = 10.0  # the loop turns every five seconds at least
END_S = 420.0  # TimeoutStopSec= of the unit: for who says that it ends, or that another takes its place
ABORT_S = 10.0  # from SIGABRT, at which a daemon can still tell where it hangs, to SIGKILL
CUT_ABOVE_BYTES = 50_000_000


# ---------------------------------------------------------------- small parts


def next_wait(wait_s: float, lived_s: float, first_s: float) -> float:
    """Seconds to wait before the next start, after a daemon that lived for ``lived_s``; ``wait_s`` was the turn's."""
    return first_s if lived_s >= HEALTHY_S else wait_s


def seconds(text: str) -> float:
    """The first wait that is asked for, 0.05 to 300 s; the usual one for what is no number."""
    try:
        wished = float(text)
    except ValueError:
        return FIRST_WAIT_S
    return min(max(wished, LEAST_WAIT_S), LONGEST_WAIT_S) if wished == wished else FIRST_WAIT_S  # noqa: PLR0124 (nan)


def watch_of(text: str) -> float:
    """For how long a daemon may be silent at most, in seconds; 0 when it is not to be watched."""
    try:
        wished = float(text)
    except ValueError:
        return WATCH_S
    if wished == 0:
        return 0.0
    return max(wished, LEAST_WATCH_S) if wished > 0 else WATCH_S


def words_of(command: list[str], once: int, *, first: bool) -> list[str]:
    """The command line of a start: without its last ``once`` words unless it is the ``first``."""
    return command if first or not once else command[:-once]


def end_of(status: int) -> int:
    """Exit code of a wait status; 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def describe_exit(code: int) -> str:
    """How a daemon ended, for people."""
    if code <= 128:
        return f"ended with {code}"
    try:
        return f"was killed ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"was killed (signal {code - 128})"


def masks(pid: int) -> tuple[int, int]:
    """Which signals a process catches, and which it ignores, as bit masks (proc(5), SigCgt and SigIgn); 0 when gone."""
    caught = ignored = 0
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "SigCgt":
                    caught = int(value, 16)
                elif name == "SigIgn":
                    ignored = int(value, 16)
    except (OSError, ValueError):
        pass
    return caught, ignored


def bit(signum: int) -> int:
    """A signal's bit in those masks."""
    return 1 << (signum - 1)


def identity(pid: int) -> str:
    """A process that is told from any later one with its pid: "PID-TICKS", field 22 of proc(5)'s stat."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return f"{pid}-{file.read().rpartition(')')[2].split()[19]}"


def holds(pid: int, variable: str) -> bool:
    """Was the process started with ``NAME=value`` in its environment?"""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable.encode() in file.read().split(b"\0")
    except OSError:
        return False


def shims_below(parent: int, variable: str, names: tuple[str, ...] = SHIMS) -> list[int]:
    """The job's shims that are ``parent``'s children: by their process names (``rl-shim``, later ``rl-exit N``), which
    any process may take, and by the variable that our daemon gives them and neither their jobs nor another run's have.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                head, _, tail = file.read().rpartition(")")
        except OSError:
            continue
        state, ppid = tail.split()[:2]
        title = head.partition("(")[2]
        if ppid == str(parent) and state != "Z" and title.startswith(names) and holds(int(name), variable):
            found.append(int(name))
    return found


class Voice:
    """Sentences on stderr: JSON lines as the daemon writes them, text on a terminal. Waits a second at most, once."""

    def __init__(self) -> None:
        self.patience_ms = 1000

    def say(self, level: str, sentence: str) -> None:
        """Say it, or drop it."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}+00:00"
        record = {"time": stamp, "level": level, "event": "nanny", "sentence": sentence}
        try:
            text = f"{time.strftime('%H:%M:%S')}  {sentence}" if os.isatty(2) else json.dumps(record)
            poller = select.poll()
            poller.register(2, select.POLLOUT)
            ready = poller.poll(self.patience_ms)
            self.patience_ms = 1000 if ready else 0
            if ready and ready[0][1] & select.POLLOUT:
                os.write(2, (text + "\n").encode())
        except OSError:
            pass  # closed, or a full disk: no reason to end


def cut(path: str, limit: int = CUT_ABOVE_BYTES) -> bool:
    """Keep one old part of the log that stderr is appended to, and empty it above ``limit`` bytes; was it done?

    Copied, not renamed, since the daemon has the same file open. A few lines in between may be lost.
    """
    try:
        mine, named = os.fstat(2), os.stat(path)
        if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino) or mine.st_size < limit:
            return False
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    old = f"{path}.1"
    try:
        target = os.open(old, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            while data := os.read(source, 1 << 20):
                os.write(target, data)
        finally:
            os.close(target)
    except OSError:
        try:
            os.unlink(old)  # no room for an old part: a log must not fill the disk that the checkpoints need
        except OSError:
            pass
    finally:
        os.close(source)
    os.ftruncate(2, 0)
    return True


def forget(folder: str) -> None:
    """Remove the folder of the socket."""
    try:
        os.unlink(f"{folder}/notify")
        os.rmdir(folder)
    except OSError:
        pass  # /tmp was tidied


def sweep(prefix: str) -> None:
    """Remove the folders of those that were killed. Each had its socket bound: only then does the kernel refuse.

    Who merely sleeps still has it, and is not refused.
    """
    for name in os.listdir("/tmp"):  # noqa: S108
        folder = f"/tmp/{name}"  # noqa: S108
        try:
            if name.startswith(prefix) and os.lstat(folder).st_uid == os.getuid():
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
                    one.connect(f"{folder}/notify")
        except ConnectionRefusedError:
            forget(folder)
        except OSError:
            pass  # not bound yet, or going just now


class Beat:
    """What the daemon says of itself, as a service manager hears it: a socket, and a thread that reads it."""

    def __init__(self, limit_s: float) -> None:
        """Raises OSError where there are no such sockets."""
        self.limit_s = limit_s
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = self.bind()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.pid = 0  # who is listened to
        self.count = 0  # of its words
        self.allowed_s: float | None = None  # how long it may be silent; None: for ever
        self.seen, self.silent_s, self.looked = 0, 0.0, time.monotonic()

    def bind(self) -> str:
        """In a folder of our own: who else may send could fill the short queue, and the daemon would seem silent."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                # Where machines share /tmp, the kernel refuses another machine's living socket as well.
                prefix = f"rl-nanny-{os.getuid()}-{file.read(8)}-"
            sweep(prefix)
            folder = f"/tmp/{prefix}{os.urandom(6).hex()}"  # noqa: S108
            os.mkdir(folder, 0o700)
            self.socket.bind(f"{folder}/notify")
        except OSError:
            self.socket.bind("")  # a name that the kernel chooses, in no folder (unix(7), "Autobind")
            return f"@{self.socket.getsockname()[1:].decode()}"
        atexit.register(forget, folder)
        return f"{folder}/notify"

    def start(self) -> None:
        """Listen from now on; with our signals blocked, which this thread must not take."""
        threading.Thread(target=self.listen, daemon=True).start()

    def begin(self, pid: int) -> None:
        """Another daemon: nothing is asked of it before it is up."""
        self.pid, self.allowed_s, self.silent_s = pid, None, 0.0

    def listen(self) -> None:
        """All that comes, for ever."""
        try:
            while True:
                words, more, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
                who = [int.from_bytes(data[:4], sys.byteorder) for _, kind, data in more if kind == SCM_CREDENTIALS]
                if self.pid and who == [self.pid]:  # any user of this machine may send to it
                    self.hear(words.split(b"\n"))
        finally:
            self.allowed_s = None  # no reader: whatever the daemon says, it would seem silent

    def hear(self, words: list[bytes]) -> None:
        """One datagram of the daemon's."""
        if b"STOPPING=1" in words or b"RELOADING=1" in words:  # or another program takes this place
            self.allowed_s = max(END_S, self.limit_s)
        elif b"READY=1" in words or b"WATCHDOG=1" in words:
            self.allowed_s = self.limit_s
        self.count += 1

    @property
    def look_s(self) -> float:
        """How often ``hung`` wants to be asked."""
        return min(LOOK_S, self.limit_s / 8)

    def hung(self) -> bool:
        """Has it been silent for too long?"""
        now, before, heard = time.monotonic(), self.looked, self.seen
        self.looked, self.seen = now, self.count
        # Where /tmp was tidied, the daemon cannot be heard.
        if self.allowed_s is None or self.seen != heard or not (self.address[0] == "@" or os.path.exists(self.address)):
            self.silent_s = 0.0
        else:  # who slept for longer, with the whole container, has not listened either
            self.silent_s += min(now - before, 2 * self.look_s)
        return self.allowed_s is not None and self.silent_s >= self.allowed_s


# ---------------------------------------------------------------- the nanny itself


class Nanny:
    """Starts the daemon, waits, hands signals on, reaps; and again."""

    def __init__(self, command: list[str], once: int, environ: dict[str, str]) -> None:
        self.command = command
        self.once = once
        self.environ = environ
        self.pid_file = environ.pop("RL_SUPERVISOR_PID_FILE", "")
        self.log = environ.pop("RL_SUPERVISOR_CUT_LOG", "")
        self.first_s = seconds(environ.pop("RL_SUPERVISOR_BACKOFF", ""))
        longest = environ.pop("RL_SUPERVISOR_LONGEST_BACKOFF", "")
        self.longest_s = max(self.first_s, seconds(longest)) if longest else LONGEST_WAIT_S
        watch_s = watch_of(environ.pop("RL_SUPERVISOR_WATCHDOG", ""))
        environ[NANNY] = identity(os.getpid())
        self.beat: Beat | None = None
        if watch_s and not environ.get("NOTIFY_SOCKET"):
            try:
                self.beat = Beat(watch_s)
                environ["NOTIFY_SOCKET"], environ["WATCHDOG_USEC"] = self.beat.address, str(int(watch_s * 1e6))
            except OSError:
                pass  # a sandbox without them: then a daemon that hangs is not seen
        self.voice = Voice()
        self.daemon = 0
        self.aborted: float | None = None  # since when it should have ended, being hung
        self.killed = False
        self.code: int | None = None
        self.stopping = False
        self.again = False
        self.last = False
        self.waiting: dict[int, float] = {}
        self.looked = time.monotonic()

    def run(self) -> int:
        """Until the run is over or ended; returns the exit code."""
        os.umask(0o027)  # for the old part of the log
        # Blocked and only ever taken in `turn`: none is lost, and process 1 gets those that have no handler as well.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by the parent, it would take every exit status with it
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_NAME, b"rl-nanny")
        if self.beat is not None:
            self.beat.start()
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:  # onstart.sh's lock is ours, and neither the daemon's nor the job's
                    os.set_inheritable(int(name), False)
                except OSError:
                    pass  # the one that the list itself was read from
        try:
            return self.supervise()
        finally:
            self.forget_pid_file()

    def supervise(self) -> int:
        """Start after start."""
        first, wait_s = True, self.first_s
        while True:
            began = time.monotonic()
            code = self.one_daemon(first=first)
            lived_s = time.monotonic() - began
            if first and self.once and lived_s >= ONCE_S:
                first = False
                self.voice.say("info", f"{' '.join(self.command[-self.once :])} has had its time and is not repeated.")
            # Of a run that was given up at most an ended job's shim is left: that one is not tried again.
            lives = code == PERSON_NEEDED and bool(self.shims(SHIMS if self.stopping else SHIMS[:1]))
            if code in (FINISHED, POD_UNFIT) or (code == PERSON_NEEDED and not lives):
                self.voice.say("info" if code == FINISHED else "error", LAST_WORDS[code])
                return code
            wait_s = next_wait(wait_s, lived_s, self.first_s)
            if not self.stopping:
                told = "" if code == TRY_AGAIN else " A job that runs lives on."
                if lives:
                    told = f" A person is needed, see above: the job lives on. At once: kill -HUP {os.getpid()}"
                self.voice.say("warning", f"rl-supervisor {describe_exit(code)}; again in {wait_s:g} s.{told}")
                self.pause(wait_s)
                wait_s = min(wait_s * 2, self.longest_s)
            if self.stopping:
                if self.last:
                    return self.end_job()
                self.last = True
                self.voice.say(
                    "warning", f"Told to end, and rl-supervisor {describe_exit(code)}: one more ends what it left."
                )
                self.waiting[signal.SIGTERM] = time.monotonic()

    def one_daemon(self, *, first: bool) -> int:
        """One life of the daemon; returns its exit code, 75 when it cannot even be started."""
        command = words_of(self.command, self.once, first=first)
        self.code, self.again = None, False
        self.aborted, self.killed = None, False
        self.waiting = {number: time.monotonic() for number in self.waiting if number in ENDING}
        try:
            self.daemon = os.posix_spawn(
                command[0],
                command,
                self.environ,
                setsid=True,  # a terminal's Ctrl-C comes through us, and not twice
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError as error:  # no memory, or an upgrade that is half done
            self.voice.say("error", f"{command[0]} cannot be started: {error.strerror}.")
            return TRY_AGAIN
        if self.beat is not None:
            self.beat.begin(self.daemon)
        while (code := self.exit_code()) is None:
            self.turn(POLL_S if self.waiting else LOOK_S if self.beat is None else self.beat.look_s)
            self.watch()
        return code

    def exit_code(self) -> int | None:
        """The daemon's exit code, None while it lives."""
        return self.code

    def watch(self) -> None:
        """End a daemon that hangs; only itself, since the job is not its fault."""
        if self.beat is None or not self.daemon:
            return
        hung = self.beat.hung()
        if self.aborted is not None:
            if not self.killed and time.monotonic() - self.aborted >= ABORT_S:
                self.killed = True  # one that the kernel holds (a dead network volume) ends when that lets it go
                os.kill(self.daemon, signal.SIGKILL)
        elif hung:
            self.aborted = time.monotonic()
            self.voice.say(
                "error",
                f"rl-supervisor hangs: its loop has not turned for {self.beat.silent_s:.0f} s. It is killed, and the "
                "job is not touched.",
            )
            os.kill(self.daemon, signal.SIGABRT)  # not reaped yet, so the number is still the daemon's

    def pause(self, seconds: float) -> None:
        """Wait before the next start; a signal to end, or SIGHUP, cuts it short."""
        deadline = time.monotonic() + seconds
        while not self.stopping and not self.again and (left := deadline - time.monotonic()) > 0:
            self.turn(min(left, LOOK_S))

    def shims(self, names: tuple[str, ...] = SHIMS) -> list[int]:
        """What lives of the job, as far as it is left to us."""
        return shims_below(os.getpid(), f"{NANNY}={self.environ.get(NANNY, '')}", names)

    def end_job(self) -> int:
        """No daemon is left to do it in order: tell the job's shims, and wait for them; returns our exit code."""
        left, deadline = self.shims(), time.monotonic() + END_S
        for pid in left:
            os.kill(pid, signal.SIGTERM)  # our own child, not reaped yet: the number is still the shim's
        while left and time.monotonic() < deadline:
            self.turn(1.0)
            left = self.shims()
        if left:
            self.voice.say("error", f"The job was told to end and lives on {END_S:.0f} s later (its shims: {left}).")
            return TRY_AGAIN
        self.voice.say("info", "Stopped.")
        return FINISHED

    def turn(self, limit_s: float) -> None:
        """Sleep until a signal comes or the time is over, then do what follows from it."""
        taken = signal.sigtimedwait(HANDLED, limit_s)
        if taken is not None and taken.si_signo != signal.SIGCHLD:
            self.take(taken.si_signo)
        self.reap()
        self.hand_on()
        if self.log and time.monotonic() - self.looked >= LOOK_S:
            self.looked = time.monotonic()
            cut(self.log)

    def take(self, signum: int) -> None:
        """One signal that came to us."""
        if signum in ENDING:
            self.stopping = True
        if signum == signal.SIGHUP and not self.daemon:
            self.again = True
        elif self.daemon or signum in ENDING:
            self.waiting.setdefault(signum, time.monotonic())

    def reap(self) -> None:
        """Collect every process that has ended, the daemon and whatever was left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.daemon:
                self.daemon, self.code = 0, end_of(status)

    def hand_on(self) -> None:
        """Give the daemon what waits for it, once it listens."""
        if not self.waiting or not self.daemon:
            return
        caught, ignored = masks(self.daemon)
        # Python catches SIGINT from its first moment; SIGTERM only the daemon does.
        up = bool((caught | ignored) & bit(signal.SIGTERM))
        for signum, since in tuple(self.waiting.items()):
            heard = up and bool((caught | ignored) & bit(signum))
            late = time.monotonic() - since > HEAR_S
            if heard or (signum in ENDING and (up or late)):
                os.kill(self.daemon, signum)  # not reaped yet, so the number is still the daemon's
            elif not (up or late):
                continue
            del self.waiting[signum]  # what it has no ear for would only kill it

    def forget_pid_file(self) -> None:
        """Remove the file that names us, if it still does: the number may be another's tomorrow."""
        try:
            with open(self.pid_file) as file:
                mine = file.read().strip() == str(os.getpid())
            if mine:
                os.unlink(self.pid_file)
        except OSError:
            pass


LAST_WORDS = {
    FINISHED: "Done.",
    PERSON_NEEDED: "A person is needed, see the lines above; not started again.",
    POD_UNFIT: "This pod is unfit for the run; not started again.",
}


def prctl(option: int, value: int | bytes) -> bool:
    """One call of prctl(2); False when the kernel refuses (some sandboxes do)."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    return bool(ctypes.CDLL(None).prctl(option, argument, zero, zero, zero) == 0)


def turn_into(command: list[str], once: list[str]) -> None:
    """Replace this process by a nanny for ``command``; its words ``once`` count for the first daemon only.

    Pid, environment, folder and open files stay. Returns only by OSError.
    """
    program = [sys.executable, "-I", "-S", "-X", "utf8", os.path.abspath(__file__)]  # noqa: PTH100
    os.execv(sys.executable, [*program, "--once", str(len(once)), "--", *command, *once])  # noqa: S606


def main(words: list[str]) -> int:
    """Look after one command; returns the exit code of the process."""
    once = 0
    if words[:1] == ["--once"] and len(words) > 1 and words[1].isdigit():
        once, words = int(words[1]), words[2:]
    if words[:1] != ["--"] or len(words) < 2 + once:
        sys.stderr.write("usage: nanny.py [--once N] -- PROGRAM [WORD ...]\n")
        return 2
    return Nanny(words[1:], once, dict(os.environ)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
