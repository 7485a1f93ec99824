"""`python -m bench.tier`: what a save costs the trainer with a tier, and what the drain behind its back costs the pod.

The writer is the practice job's (one file a rank, synced); the volume is slowed to a rate, the tier is not. The drain
is the transfer child's own code, in a process of its own. "Page cache" is what the copy held of it at most, by
mincore(2): beside the same bytes on a tmpfs it would count twice against a container's memory.

With `--torch PYTHON`, a Python that has torch, the writer is `torch.distributed.checkpoint.save` instead
(`bench.save_rate`, which slows the volume there, too): each round saves on the volume and on the tier, and the median
of each is told.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from bench.save_rate import measure
from supervisor.checkpoints.drain import drain
from tests.practice.dcp import Plan, Progress, ballast_name, metadata, shard, shard_name, write_file
from tests.practice.volume import write_ballast

PAGE = mmap.PAGESIZE
ROUNDS = 3


def save(folder: Path, plan: Plan, mb_s: float = 0.0) -> float:
    """Seconds of one save."""
    folder.mkdir(parents=True)
    progress, began = Progress(1, 0, 0), time.monotonic()
    for rank in range(plan.ranks):
        write_file(folder / shard_name(rank), shard(plan, progress, rank)[0])
        write_ballast(folder / ballast_name(rank), plan.ballast, mb_s)
    write_file(folder / ".metadata", metadata(plan, progress))
    return time.monotonic() - began


def cached_bytes(path: Path) -> int:
    """What the page cache holds of a file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ) as view:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
            pages = (len(view) + PAGE - 1) // PAGE
            found = (ctypes.c_ubyte * pages)()
            libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found)
            libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
            return PAGE * sum(one & 1 for one in bytes(found))
    except (OSError, ValueError):
        return 0  # not there yet, or empty


def _work(how: str, source: str, target: str, answers: multiprocessing.Queue[float]) -> None:
    if how == "drain":
        drain(Path(source), Path(target), Path(f"{target}.staging"), lambda moved: None)
    else:
        shutil.copytree(source, f"{target}.staging")
        os.sync()
        Path(f"{target}.staging").rename(target)
    used = resource.getrusage(resource.RUSAGE_SELF)
    answers.put(used.ru_utime + used.ru_stime)


def watch_copy(how: str, source: Path, target: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds, and the most bytes of the copy in the page cache."""
    answers: multiprocessing.Queue[float] = multiprocessing.Queue()
    child = multiprocessing.Process(target=_work, args=(how, str(source), str(target), answers))
    began, most = time.monotonic(), 0
    child.start()
    while child.is_alive():
        places = [target, target.with_name(f"{target.name}.staging")]
        most = max(most, sum(cached_bytes(path) for place in places for path in place.glob("*_1.distcp")))
        child.join(0.1)
    return time.monotonic() - began, answers.get(timeout=5), most


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def save_with_torch(options: argparse.Namespace) -> None:
    """Seconds of a save by the real writer, volume and tier in turn: what else the machine does meets both."""
    total, bytes_s = int(options.gib * (1 << 30)), options.volume_mb_s * 1e6
    print(f"{options.gib:g} GiB by torch.distributed.checkpoint.save, {options.ranks} ranks, load {_load()}")
    places = {"volume": (options.volume, bytes_s), "tier": (options.tier, 0.0)}
    took: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(ROUNDS):
        for name, (folder, rate) in places.items():
            found = measure(options.torch, folder, options.ranks, total_bytes=total, rounds=2, bytes_s=rate)
            took[name] += [total / 1e9 / gb_s for gb_s in found]
    volume, tier = (statistics.median(took[name]) for name in places)
    for name, seconds in took.items():
        shown = f"volume at {options.volume_mb_s:g} MB/s" if name == "volume" else name
        print(f"  {shown:20} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"  tier / volume        {tier / volume:6.2f}, load {_load()} afterwards")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tier", description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="size of a step")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--tier", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--volume", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--volume-mb-s", type=float, default=300.0)
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="save with torch, by this Python")
    options = parser.parse_args()
    if options.torch:
        save_with_torch(options)
        return
    plan = Plan(7, options.ranks, 200_000, 0.1, int(options.gib * (1 << 30)) // options.ranks)
    with (
        tempfile.TemporaryDirectory(dir=options.tier) as fast,
        tempfile.TemporaryDirectory(dir=options.volume) as slow,
    ):
        tier, volume = Path(fast), Path(slow)
        on_volume = save(volume / "saved", plan, options.volume_mb_s)
        shutil.rmtree(volume / "saved")
        on_tier = save(tier / "saved", plan)
        print(f"a save of {options.gib:g} GiB, {options.ranks} ranks one after the other")
        print(f"  volume at {options.volume_mb_s:g} MB/s  {on_volume:6.2f} s")
        print(f"  tier                 {on_tier:6.2f} s, {on_tier / on_volume:.2f} of it")
        for how in ("drain", "copy"):
            seconds, cpu_s, cached = watch_copy(how, tier / "saved", volume / how)
            print(
                f"{how}: {seconds:.2f} s, {cpu_s:.2f} s of CPU, at most {cached / (1 << 20):,.0f} MiB in the page cache"
            )
            shutil.rmtree(volume / how)


if __name__ == "__main__":
    main()
