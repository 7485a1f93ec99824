"""The job's parent: a tiny program that outlives the daemon, collects orphans and never loses the exit status.

Run as ``python -I -S -X utf8 PATH/process/shim.py [--detach] SPEC.json [LABEL]``; ``LABEL`` is for people who read
``ps``. It uses the standard library only and imports everything at its start, so that an upgrade that replaces the
files under it does it no harm. Beside the job it costs one sleeping process.

What it promises
- The job (the *child*) runs in a session of its own, with exactly the environment and folder of the spec, its output
  appended to ``ATTEMPT_DIR/NAME.log``. The spec holds secrets, is readable by its owner only, and is gone once read.
- ``NAME.shim.json`` is on disk before the child's first instruction; ``NAME.exit.json`` as soon as the child has
  ended. The room for the second is taken beforehand, so that a disk that has filled up meanwhile does not lose it.
  Where even that fails, the shim's process name carries the status (``rl-exit 1``, ``rl-signal 9``) while it retries.
- It is a subreaper: whatever the job leaves behind becomes its child, and so remains findable by descent.
- It ends when the child has ended and nothing of the job is left, with the child's exit code (128 + n for signal n).
- SIGTERM is forwarded to the child and means "end": orphans that then remain get SIGTERM too, and SIGKILL 20 s later.
  SIGINT, SIGUSR1 and SIGUSR2 are forwarded, SIGHUP and SIGQUIT are ignored. None of them ends the shim itself.
"""
# ruff: noqa: PTH100, PTH104, PTH108, PTH112, PTH118, PTH120, PTH123, PTH208
# (pathlib would cost a third of this program's start-up time)

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import sys
import time

if __name__ == "__main__":  # by its path, and isolated: what else is installed here is not on the module path
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from supervisor.base.proc_stat import boot_id, forks, start_ticks, stat_fields
from supervisor.process.shim_records import write_atomically

TYPE_CHECKING = False  # importing typing costs more than all the rest of this page
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from supervisor.process.shim_records import Answer, Spec

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
HANDLED = (*FORWARDED, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
PR_SET_NAME = 15  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
RESERVED_BYTES = 4096
RETRY_S = 1.0
ORPHAN_PATIENCE_S = 20.0
ORPHAN_LIMIT_S = 50.0  # after this a shim that was told to end leaves what cannot be killed


def name_of_end(code: int | None, signum: int | None) -> str:
    """The process name by which a shim tells its child's end when it cannot write (at most 15 characters)."""
    return f"rl-signal {signum}" if signum is not None else f"rl-exit {code}"


# ---------------------------------------------------------------- files


def reserve(path: str) -> str:
    """Take the disk blocks of a small file that is written later; returns its path."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, b" " * RESERVED_BYTES)
        os.fsync(fd)  # delayed allocation would find the disk full only now
    finally:
        os.close(fd)
    return path


# ---------------------------------------------------------------- preparing


class StartFailure(Exception):  # noqa: N818
    """The child could not be started. ``kind``: "config" (a person has to act) or "try-again"."""

    def __init__(self, sentence: str, kind: str, number: int = 0) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.number = number  # of the system's error, where it decides what the daemon does


def prctl(option: int, value: int | bytes) -> bool:
    """One call of prctl(2); False when the kernel refuses (some sandboxes do)."""
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    return bool(ctypes.CDLL(None).prctl(option, argument, zero, zero, zero) == 0)


def raise_open_files(asked: int, notes: list[str]) -> int:
    """Raise the limit of open files to ``asked``, the hard one too where that is permitted; returns the soft limit."""

    def rank(limit: int) -> float:
        return float("inf") if limit == resource.RLIM_INFINITY else limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if rank(soft) >= asked:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked, hard if rank(hard) >= asked else asked))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        notes.append(
            f"asked for {asked} open files, but this machine's hard limit is {hard} and may not be raised from here, "
            f"so the job has {hard}: start the container with --ulimit nofile={asked}, or set LimitNOFILE= in the unit"
        )
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_output(path: str, notes: list[str]) -> int:
    """The captured output, opened for appending; /dev/null (and a note) when the disk takes no new file."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as error:
        notes.append(f"the job's output is lost: {path} cannot be opened ({error.strerror})")
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def become_the_job(spec: Spec, output: int, go: int, failed: int) -> NoReturn:
    """In the forked child: wait for the word, then turn into the job. Tells ``failed`` the reason when it cannot."""
    step = "prepare"
    try:
        # A shell's background job ignores SIGINT and Python ignores SIGPIPE; the job must inherit neither.
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(signum, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # the C library keeps a few real-time signals to itself
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        os.umask(0o022)
        lose_oom_protection()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        step = "cwd"
        os.chdir(spec["cwd"])
        if not os.read(go, 1):
            os._exit(125)  # the shim died before it had written the record: an unknown job must not run
        step = "exec"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else 0
        os.write(failed, json.dumps([step, number, str(error)]).encode())
    os._exit(127)


def lose_oom_protection() -> None:
    """The daemon may be protected from the kernel's out-of-memory killer; its job must not be."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < 0:
                file.seek(0)
                file.write("0")
    except OSError:
        pass  # no such file in some sandboxes: nothing to lose there


def explain(spec: Spec, step: str, number: int, text: str) -> StartFailure:
    """Why the child could not become the job, in one sentence."""
    name, program = spec["name"], spec["argv"][0]
    if step == "cwd":
        return StartFailure(f"{name} cannot run in {spec['cwd']} ({text})", "config")
    if number == errno.ENOENT:
        return StartFailure(f"{name} cannot start: {program} does not exist, or its #! line names nothing", "config")
    if number in (errno.EACCES, errno.EPERM):
        return StartFailure(f"{name} cannot start: {program} may not be executed ({text})", "config")
    if number == errno.ENOEXEC:
        return StartFailure(f"{name} cannot start: {program} is no program (it lacks a #! line)", "config")
    if number in (errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY):
        return StartFailure(f"{name} could not start for the moment: {program}: {text}", "try-again")
    return StartFailure(f"{name} cannot start: {program}: {text}", "config")


# ---------------------------------------------------------------- the shim itself


class Shim:
    """Starts the child, then waits, forwards and records until nothing of it is left."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.notes: list[str] = []
        self.base = os.path.join(spec["attempt_dir"], spec["name"])
        self.child = 0
        self.code: int | None = None
        self.unwritten: Mapping[str, object] | None = None  # how the child ended
        self.reserved = ""
        self.told_at: float | None = None
        self.orphans_told = False

    def start(self) -> Answer:
        """Start the child; returns the record. StartFailure when it cannot become the job."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        if os.getsid(0) != os.getpid():
            os.setsid()
        os.chdir("/")
        if not prctl(PR_SET_CHILD_SUBREAPER, 1):
            self.notes.append("the kernel refuses a subreaper here: orphans of the job go to init")
        prctl(PR_SET_NAME, b"rl-shim")
        nofile = raise_open_files(self.spec["nofile"], self.notes)
        output = open_output(f"{self.base}.log", self.notes)
        os.dup2(output, 1)
        os.dup2(output, 2)  # what this program itself may die of must be readable somewhere
        try:
            self.reserved = reserve(f"{self.base}.exit.json.reserved")
        except OSError as error:
            self.notes.append(f"no room could be reserved for the exit status ({error.strerror})")

        go_read, go_write = os.pipe()
        failed_read, failed_write = os.pipe()
        try:
            self.child = os.fork()
        except OSError as error:
            raise StartFailure(f"{self.spec['name']} could not be forked: {error.strerror}", "try-again") from error
        if self.child == 0:
            os.close(go_write)
            become_the_job(self.spec, output, go_read, failed_write)
        for fd in (output, go_read, failed_write):
            os.close(fd)
        cgroup = self.enter_cgroup()

        try:
            record: Answer = {
                "shim_pid": os.getpid(),
                "shim_start_ticks": start_ticks(os.getpid()),
                "child_pid": self.child,
                "child_start_ticks": start_ticks(self.child),
                "boot_id": boot_id(),
                "started_wall": time.time(),
                "run_id": self.spec["run_id"],
                "argv": self.spec["shown_argv"],
                "nofile": nofile,
                "how": self.spec["how"],
                "unit": self.spec["unit"],
                "cgroup": cgroup,
                "forks": forks(),
                "init_start_ticks": start_ticks(1),
                "notes": self.notes,
            }
            write_atomically(f"{self.base}.shim.json", record)
        except OSError as error:
            os.close(go_write)  # the child waits for a word, and leaves without it
            os.waitpid(self.child, 0)
            told = f"{self.spec['name']} was not started: {self.base}.shim.json cannot be written ({error.strerror})"
            raise StartFailure(told, "try-again", error.errno or 0) from error
        try:
            os.write(go_write, b"!")
        except BrokenPipeError:
            pass  # it failed before it could wait; its reason follows
        failure = os.read(failed_read, 65536)  # end of file: the pipe closed because exec succeeded
        os.close(go_write)
        os.close(failed_read)
        if failure:
            step, number, text = json.loads(failure)
            self.record_end(os.waitpid(self.child, 0)[1])
            raise explain(self.spec, step, number, text)
        return record

    def enter_cgroup(self) -> str | None:
        """Put the child, which has not begun yet, into its control group; returns the folder, None without one.

        The shim stays outside: a kill of the whole group leaves it to write down how the child ended.
        """
        folder = self.spec.get("cgroup")
        if not folder:
            return None
        try:
            with open(f"{folder}/cgroup.procs", "w") as file:
                file.write(str(self.child))
        except OSError as error:
            self.notes.append(f"the job has no control group of its own: {folder} does not take it ({error.strerror})")
            return None
        return folder

    def watch(self) -> int:
        """Until the child has ended and nothing is left; returns the child's code."""
        while True:
            any_left = self.reap()
            if self.unwritten is not None:
                self.save_end(self.unwritten)
            if self.code is not None:
                if not any_left and (not self.unwritten or self.told_at is not None):
                    return self.code
                if any_left and self.told_at is not None and not self.end_orphans():
                    return self.code
            # Signals are blocked and only ever taken here, so none is lost between the look and the sleep.
            if self.unwritten or (self.code is not None and self.told_at is not None):
                taken = signal.sigtimedwait(HANDLED, RETRY_S / 4 if self.told_at is not None else RETRY_S)
            else:
                taken = signal.sigwaitinfo(HANDLED)
            if taken is not None:
                self.take(taken.si_signo)

    def reap(self) -> bool:
        """Collect everything that has ended; False when no child of any kind is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.record_end(status)

    def record_end(self, status: int) -> None:
        """The child is gone: tell it first by name, which needs no disk, then by file."""
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_code = None if signum is not None else os.WEXITSTATUS(status)
        self.code = 128 + signum if signum is not None else exit_code
        prctl(PR_SET_NAME, name_of_end(exit_code, signum).encode())
        end: dict[str, object] = {
            "exit_code": exit_code,
            "signal": signum,
            "wall": time.time(),
            "child_pid": self.child,
        }
        self.save_end(end)

    def save_end(self, end: Mapping[str, object]) -> None:
        """Write how the child ended, or keep it for the next round."""
        self.unwritten = None
        try:
            write_atomically(f"{self.base}.exit.json", end, reserved=self.reserved)
        except OSError as error:
            if self.reserved and error.errno == errno.ENOENT:
                self.reserved = ""  # someone tidied up; the plain way is still open
            if os.path.isdir(os.path.dirname(self.base)):  # else it was removed, and no daemon waits for it
                self.unwritten = end

    def take(self, signum: int) -> None:
        """One signal that came to the shim."""
        if signum == signal.SIGTERM and self.told_at is None:
            self.told_at = time.monotonic()
        if signum in FORWARDED and self.code is None:
            os.kill(self.child, signum)  # not reaped yet, so the number is still the child's

    def end_orphans(self) -> bool:
        """Told to end and the child has ended: take what it left. False when even SIGKILL did not help."""
        waited = time.monotonic() - (self.told_at or 0.0)
        if waited > ORPHAN_LIMIT_S + ORPHAN_PATIENCE_S:
            return False
        if not self.orphans_told or waited > ORPHAN_PATIENCE_S:
            signum = signal.SIGKILL if self.orphans_told else signal.SIGTERM
            if not self.orphans_told:
                self.orphans_told, self.told_at = True, time.monotonic()
            for pid in children_of(os.getpid()):
                try:
                    os.kill(pid, signum)  # our own child until we reap it
                except PermissionError:
                    pass  # a program that changed its user; only the limit below helps
        return True


def children_of(parent: int) -> list[int]:
    """Pids of the children of ``parent``, unreaped ones included."""
    found = []
    for name in os.listdir("/proc"):
        fields = stat_fields(int(name)) if name.isdigit() else None
        if fields and fields[1][1] == str(parent):
            found.append(int(name))
    return found


def answer(spec: Spec, text: Answer) -> None:
    """Tell the launching daemon how it went (a file in memory; it reads and removes it)."""
    path = spec["reply"]
    try:
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, json.dumps(text).encode())
        finally:
            os.close(fd)
        os.rename(f"{path}.tmp", path)
    except OSError:
        pass  # the daemon then looks at the record, or gives the start up


def main(words: list[str]) -> int:
    """Run one spec to its end; returns the exit code of the process."""
    detach = words[:1] == ["--detach"]
    words = words[1:] if detach else words
    if not words:
        sys.stderr.write("usage: shim.py [--detach] SPEC.json [LABEL]\n")
        return 2
    os.umask(0o027)  # for our records and the captured output; the job gets its own
    with open(words[0], encoding="utf-8") as file:
        spec: Spec = json.load(file)
    os.unlink(words[0])
    if detach:
        if os.fork():
            os._exit(0)
        os.setsid()
    shim = Shim(spec)
    try:
        record = shim.start()
    except StartFailure as failure:
        answer(spec, {"error": str(failure), "kind": failure.kind, "errno": failure.number})
        return 127
    answer(spec, record)
    spec["env"].clear()  # the secrets need not stay in this process
    return shim.watch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
