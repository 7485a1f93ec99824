"""A real Slurm on this machine: a controller and four nodes (n1 to n4), in a folder of its own, with its own munge.

With ``SLURM_PROCTRACK=cgroup`` it knows a task's processes by their control group (v1), else by their parents.

Needs root and what Debian's slurm-wlm brings. All commands find it by SLURM_CONF in ``Cluster.environ``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NODES = ("n1", "n2", "n3", "n4")
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol")
PROCTRACK = os.environ.get("SLURM_PROCTRACK", "linuxproc")
KILL_WAIT_S = 30
LOST_S = 10

CONF = """\
ClusterName=box
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
SlurmctldTimeout=10
SlurmdTimeout={lost}
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""


def why_not() -> str:
    """Why there can be no such cluster here; "" where there can."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        return f"{', '.join(missing)} are not installed (apt-get install slurm-wlm)"
    return "" if os.geteuid() == 0 else "a Slurm of its own needs root"


class Cluster:
    """Up until ``close``. ``squeue`` and the like are called with ``do``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        (folder / "controller").mkdir(parents=True)
        self._start_munge()
        ports = [_free_port() for _ in range(len(NODES) + 1)]
        host = socket.gethostname()
        rows = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000"
            for name, port in zip(NODES, ports[1:], strict=True)
        ]
        text = CONF.format(
            host=f"{host}(127.0.0.1)",
            port=ports[0],
            folder=folder,
            proctrack=PROCTRACK,
            nodes="\n".join(rows),
            kill_wait=KILL_WAIT_S,
            lost=LOST_S,
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        self.do("slurmctld")
        for name in NODES:
            self.start_node(name)
        wait_for(lambda: self.do("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(len(NODES)), "nodes idle", 60)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names = {"socket": "munge", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        places = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self.do("munged", "--force", f"--key-file={key}", *places)

    def do(self, *words: str) -> str:
        """What it prints. Raises AssertionError with its own words."""
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_node(self, name: str) -> None:
        self.do("slurmd", "-N", name)

    def state(self, job: str) -> str:
        return self.do("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def field(self, job: str, letter: str) -> str:
        return self.do("squeue", "-h", "-t", "all", "-j", job, "-o", letter).strip()

    def names(self, nodes: str) -> set[str]:
        """n[1-2] as names."""
        return {*self.do("scontrol", "show", "hostnames", nodes).split()} if nodes not in ("", "(null)") else set()

    def hurry(self, job: str) -> None:
        """A job that was requeued waits two minutes: not in a test.

        Slurm kills one that starts in the second in which it ended ("Job credential revoked").
        """
        wait_for(lambda: self.state(job) == "PENDING", f"job {job} waits in the queue", 60)
        self.do("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def lose_node(self, name: str) -> None:
        """The machine goes silent: Slurm's daemon and its step managers are killed, what they had started lives on."""
        pid = int((self.folder / f"{name}.pid").read_text())
        for one in [pid, *_managers_of(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self.do("scancel", "--user=root", "--full")
            wait_for(lambda: not self.do("squeue", "-h").strip(), "no job is left", 40)
        for file in self.folder.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGTERM)
        for name in NODES:
            for pid in _managers_of(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _managers_of(node: str) -> list[int]:
    """The slurmstepd processes of a node: each has ``slurmstepd: [JOB.STEP]`` as its words, and its node's log open."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"slurmstepd" in (folder / "cmdline").read_bytes() and f"-{node}" in _log_name(folder):
                found.append(int(folder.name))
    return found


def _log_name(folder: Path) -> str:
    names = [os.readlink(one) for one in (folder / "fd").iterdir()]  # noqa: PTH115
    return " ".join(f"-{Path(name).stem}" for name in names if name.endswith(".log"))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: Callable[[], Any], about: str, timeout_s: float, story: Callable[[], str] = str) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {about}\n{story()}"
        time.sleep(0.2)
    return found
