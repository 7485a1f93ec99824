"""What a checkpoint's save takes with the real writer: `python -m bench.save_rate`, the rates of the simulator's pods.

`torch.distributed.checkpoint.save` (torch on the CPU, gloo) of 2 GiB with 1, 2 and 4 ranks into memory (tmpfs), onto
the local disk, and onto a volume of 300 MB/s. The writer syncs each file, which is its default. The volume is the local
disk behind a paced sync: a file's sync returns when all ranks together have written no faster than the rate. (A limit
of the control group does not hold back what the page cache writes later, in cgroup v1, and dm-delay is not everywhere.)

torch stays out of this project's environment: a temporary one is made, or `--python` names one that has torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TORCH = ("torch==2.13.0", "numpy")  # gloo gathers objects by way of numpy
RANKS = (1, 2, 4)
GIB = 1 << 30
FILE_BYTES = 64 << 20  # of one tensor
VOLUME_BYTES_S = 300e6


def write_as_rank(folder: Path, total_bytes: int, rounds: int, bytes_s: float) -> None:
    """One rank of the job: save its share ``rounds`` times; rank 0 prints the seconds of each save as JSON.

    Runs with torch's own Python. ``bytes_s``: what the volume takes from all ranks together, 0: as it is.
    """
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    count = max(1, total_bytes // world // FILE_BYTES)
    state = {f"rank{rank}.{n}": torch.rand(FILE_BYTES // 4) for n in range(count)}
    paced_until = _pace_sync(bytes_s / world) if bytes_s else [0.0]
    took = []
    for number in range(rounds):
        dist.barrier()
        began = paced_until[0] = time.monotonic()
        checkpoint.save(state, checkpoint_id=str(folder / f"step_{number}"))
        dist.barrier()
        took.append(time.monotonic() - began)
        if rank == 0:
            shutil.rmtree(folder / f"step_{number}")
    if rank == 0:
        print(json.dumps({"seconds": took, "bytes": count * FILE_BYTES * world}), flush=True)
    dist.destroy_process_group()


def _pace_sync(bytes_s: float) -> list[float]:
    """Let ``os.fsync`` of this process return no sooner than its files' bytes could have gone to the volume.

    Returns the time from which on they go there, to be set when a save begins.
    """
    real = os.fsync
    until = [0.0]

    def paced(fd: int) -> None:
        real(fd)
        until[0] += os.fstat(fd).st_size / bytes_s
        time.sleep(max(0.0, until[0] - time.monotonic()))

    os.fsync = paced
    return until


def measure(python: Path, folder: Path, ranks: int, *, total_bytes: int, rounds: int, bytes_s: float) -> list[float]:
    """GB/s of each save but the first, which also warms the allocator."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    room = Path(tempfile.mkdtemp(prefix="save-rate-", dir=folder))
    base = [str(python), __file__, "--as-rank", str(room), "--gib", str(total_bytes / GIB)]
    base += ["--rounds", str(rounds), "--bytes-s", str(bytes_s)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    try:
        jobs = [
            subprocess.Popen(base, env={**os.environ, **place, "RANK": str(n)}, stdout=subprocess.PIPE, text=True)
            for n in range(ranks)
        ]
        told = [job.communicate()[0] for job in jobs]
        if any(job.returncode for job in jobs):
            raise SystemExit(f"A rank failed: exit codes {[job.returncode for job in jobs]}.")
    finally:
        shutil.rmtree(room, ignore_errors=True)
    found = json.loads(told[0].splitlines()[-1])
    return [found["bytes"] / seconds / 1e9 for seconds in found["seconds"][1:]]


def main() -> int:
    """Measure and print one row a place; GB are 10^9 bytes."""
    parser = argparse.ArgumentParser(prog="python -m bench.save_rate", description=__doc__)
    parser.add_argument("--python", type=Path, help=f"a Python that has torch (else a temporary one gets {TORCH[0]})")
    parser.add_argument("--gib", type=float, default=2.0, help="of all ranks together (2)")
    parser.add_argument("--rounds", type=int, default=6, help="saves of each, the first is not counted (6)")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a folder on a tmpfs (/dev/shm)")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="a folder on the local disk (/var/tmp)")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bytes-s", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    total = int(options.gib * GIB)
    if options.as_rank:
        write_as_rank(options.as_rank, total, options.rounds, options.bytes_s)
        return 0
    with tempfile.TemporaryDirectory(prefix="save-rate-torch-") as home:
        python = options.python or _install_torch(Path(home))
        print(f"GB/s of torch.distributed.checkpoint.save, {options.gib:g} GiB, {os.cpu_count()} cores, median (range)")
        print(f"{'':24}" + "".join(f"{_ranks(n):>22}" for n in RANKS))
        places = (
            ("memory (tmpfs)", options.memory, 0.0),
            ("local disk, synced", options.disk, 0.0),
            ("volume of 300 MB/s", options.disk, VOLUME_BYTES_S),
        )
        for name, folder, bytes_s in places:
            cells = []
            for ranks in RANKS:
                rounds = 3 if bytes_s else options.rounds
                rates = measure(python, folder, ranks, total_bytes=total, rounds=rounds, bytes_s=bytes_s)
                cells.append(f"{statistics.median(rates):.2f} ({min(rates):.2f} to {max(rates):.2f})")
            print(f"{name:24}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
    return 0


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number > 1 else ''}"


def _install_torch(home: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *TORCH], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
