"""A stand-in for a shim and what hangs under it: a subreaper that makes processes on demand and ends them with itself.

Reads commands from standard input and answers each with a process id: ``spawn TITLE`` makes a child, ``orphan TITLE``
a grandchild whose parent has ended, ``loader FILE`` a "trainer" (this program again) that forks a copy of itself,
whose process id is put in FILE; on SIGUSR1 the copy becomes something else by exec.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn


def become(title: str) -> NoReturn:
    os.execv("/bin/sleep", [title, "600"])


def loader(file: Path) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # it waits, however early it comes
    copy = os.fork()
    if copy:
        file.with_suffix(".new").write_text(str(copy))
        file.with_suffix(".new").rename(file)
    signal.sigwait({signal.SIGUSR1})
    become("VLLM::EngineCore")


def spawn(title: str) -> int:
    pid = os.fork()
    if not pid:
        become(title)
    return pid


def orphan(title: str) -> int:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"%d" % spawn(title))
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 20))


def start_loader(file: str) -> int:
    pid = os.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, __file__, "trainer", file])
    return pid


def main() -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    for line in sys.stdin:
        verb, _, word = line.strip().partition(" ")
        print({"spawn": spawn, "orphan": orphan, "loader": start_loader}[verb](word), flush=True)
    for _ in range(2):  # the second for those that became ours by the end of their parents
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        for pid in children:
            os.waitpid(int(pid), 0)


if sys.argv[1:2] == ["trainer"]:
    loader(Path(sys.argv[2]))
else:
    main()
