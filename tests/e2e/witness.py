"""What a practice job itself saw: `witness.py FOLDER LAUNCHER...` becomes LAUNCHER and notes every signal to the job.

Two witnesses. Each Python process of the job notes each signal that it can catch, and then does what it would have done
(`sitecustomize` in FOLDER, which this program writes). And a helper in the job, in the launcher's group and session,
blocks them all, so that it also knows who sent one; between its looks it does a fixed piece of work (0.01 to 0.02 s of
SHA-256, then a sleep of 0.08 s) and writes down how long that took, which tells of a disturbance that sleeping steps
do not.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

# What the kernel sends because of the job's own doings, or what no handler can outlive, is left alone.
OWN = ("SIGCHLD", "SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGPIPE")
LISTENS = f"""
import os, signal, time
def _listen(folder, own):
    real, wanted = signal.signal, {{}}
    def note(number):
        fd = os.open(f"{{folder}}/signals-{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, f"{{time.time():.3f}} {{signal.Signals(number).name}}\\n".encode())
        os.close(fd)
    def heard(number, frame):
        note(number)
        then = wanted.get(number, signal.SIG_DFL)
        if callable(then):
            then(number, frame)
        elif then == signal.SIG_DFL and number not in (signal.SIGCONT, signal.SIGWINCH, signal.SIGURG):
            real(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
    def replaced(number, then):
        if signal.Signals(number).name in own:
            return real(number, then)
        before, wanted[number] = wanted.get(number, signal.SIG_DFL), then
        real(number, heard)
        return before
    signal.signal = replaced
    for number in set(signal.Signals) - {{n for n in signal.Signals if n.name in own}}:
        try:
            replaced(number, signal.getsignal(number))
        except (OSError, ValueError):
            pass  # the C library keeps some to itself
if os.environ.get("WITNESS"):
    _listen(os.environ["WITNESS"], {OWN!r})
"""
WORK = b"\0" * (4 << 20)
PAUSE_S = 0.08


def helper(folder: Path) -> None:
    """As long as the launcher lives: note signals with their sender, and how long each piece of work takes."""
    parent = os.getppid()
    every = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    (folder / "helper.tmp").write_text(str(os.getpid()))
    (folder / "helper.tmp").rename(folder / "helper")
    with (folder / "work").open("a", buffering=1) as work:
        while os.getppid() == parent:
            began = time.perf_counter()
            hashlib.sha256(WORK).digest()
            until = time.perf_counter() + PAUSE_S
            while (left := until - time.perf_counter()) > 0:
                taken = signal.sigtimedwait(every, left)
                if taken is not None and taken.si_signo != signal.SIGCHLD:
                    with (folder / f"signals-{os.getpid()}").open("a") as notes:
                        notes.write(f"{time.time():.3f} {signal.Signals(taken.si_signo).name} from {taken.si_pid}\n")
            work.write(f"{time.monotonic():.3f} {time.perf_counter() - began:.6f}\n")


def main() -> None:
    """Fork the helper, become the launcher with witnesses in it."""
    folder, command = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(LISTENS)
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, __file__, "helper", str(folder)])
    os.environ["WITNESS"] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    os.execvp(command[0], command)


if __name__ == "__main__":
    if sys.argv[1] == "helper":
        helper(Path(sys.argv[2]))
    else:
        main()
