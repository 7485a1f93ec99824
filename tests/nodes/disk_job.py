"""One rank of a small trainer whose machines have disks of their own, as a process of its own.

``disk_job.py COMMON DISK RANK WORLD ATTEMPT LAST INTERVAL [STEP]``. Each rank writes its shard of a checkpoint below
DISK; rank 0 writes ``.metadata`` when all have. COMMON stands for the network: the ranks wait for each other there. A
rank that resumes loads all shards from its own disk, as torch would, and writes down what it found.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a script, in a folder of its own
from tests.practice import dcp

STEP_S = 0.15
SIZE = 400_000


def plan_of(world: int) -> dcp.Plan:
    return dcp.Plan(seed=7, ranks=world, size_bytes=SIZE, changing=0.5)


def save(disk: Path, step: int, rank: int, world: int) -> None:
    folder = disk / "checkpoints" / f"step_{step}"
    (folder / "trainer").mkdir(parents=True, exist_ok=True)
    data, _ = dcp.shard(plan_of(world), dcp.Progress(step, step, step), rank)
    dcp.write_file(folder / "trainer" / dcp.shard_name(rank), data)
    (folder / "config.json").write_text(json.dumps({"step": step}))  # all write the same
    if (own := disk.parent / "own-words").exists():
        (folder / "hello.txt").write_text(f"{own.read_text()}{rank}")


def main() -> int:
    common, disk = Path(sys.argv[1]), Path(sys.argv[2])
    rank, world, attempt, last, interval = (int(word) for word in sys.argv[3:8])
    step = int(sys.argv[8]) if len(sys.argv) > 8 else 0
    gate = common / f"attempt-{attempt}"
    gate.mkdir(parents=True, exist_ok=True)
    if step:
        folder = disk / "checkpoints" / f"step_{step}"
        assert dcp.read_progress(folder / "trainer").step == step
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        (gate / f"loaded-{rank}").write_text(f"{step} {len(files)} {digest}")
    while step < last:
        step += 1
        time.sleep(STEP_S)
        if step % interval == 0:
            save(disk, step, rank, world)
        (gate / f"{step}-{rank}").touch()
        while len(list(gate.glob(f"{step}-*"))) < world:
            time.sleep(0.02)
        if rank == 0 and step % interval == 0:
            trainer = disk / "checkpoints" / f"step_{step}" / "trainer"
            dcp.write_file(trainer / ".metadata.tmp", dcp.metadata(plan_of(world), dcp.Progress(step, step, step)))
            (trainer / ".metadata.tmp").rename(trainer / ".metadata")
        print(f"step {step} done", flush=True)
    print("training finished", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
