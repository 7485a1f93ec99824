"""What the second step of a LoRA run sends, and what finding that out costs: `python -m bench.second_step`.

The first table is computed from the layouts of real models by the function that cuts real files; the second one is
published for real, over HTTP, with B2's own least part (5 MB), to a server that holds all bytes in memory.

Asked: at most 10 % of a file whose tensors lie sorted by size; a step that is published already in under one second.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from supervisor.checkpoints.blocks import HASH_BYTES, fitting_block_size, hash_part
from supervisor.checkpoints.delta import Limits, plan
from supervisor.checkpoints.progress import Moved
from supervisor.checkpoints.publish import Published, PublishPlan, Source, publish
from supervisor.storage import open_store
from supervisor.storage.hashing import fitting_part_size, part_ranges
from supervisor.storage.source import hash_range
from tests.b2server import B2Server
from tests.checkpoints_store.lora import Order, Shape

LEAST, PART, MOST = 5_000_000, 100_000_000, 10_000
ORDERS: tuple[Order, Order] = ("by size", "plan")
MODELS = {
    "0.6B, rank 16": Shape(1024, 28, 16, 151_936, 3.0),
    "1.7B, rank 16": Shape(2048, 28, 16, 151_936, 3.0),
    "8B, rank 16": Shape(4096, 36, 16, 151_936, 3.0),
    "8B, rank 64": Shape(4096, 36, 64, 151_936, 3.0),
    "8B in bf16, rank 16": Shape(4096, 36, 16, 151_936, 3.0, 2),
}
SMALL = Shape(512, 16, 4, 16_000)


def layouts() -> None:
    """What the cut of one file sends, for models whose bytes are not made."""
    print(f"{'model':22}{'order':9}{'GB':>7}{'trained':>9}{'sent':>8}{'parts':>7}{'seconds to find':>17}")
    for name, shape in MODELS.items():
        for order in ORDERS:
            block = fitting_block_size(shape.size(), LEAST)
            size, equal = shape.equal_blocks(order, block)
            began = time.perf_counter()
            spans = plan(size, block, equal, Limits(LEAST, PART, MOST)) or []
            took = time.perf_counter() - began
            sent = sum(span.size for span in spans if not span.copied) / size
            print(
                f"{name:22}{order:9}{size / 1e9:7.1f}{shape.trained_share():9.2%}{sent:8.2%}{len(spans):7}{took:17.3f}"
            )


def quiet(moved: Moved) -> None:
    """Nobody listens."""


def published(folder: Path) -> None:
    """Two steps over HTTP, and the second one once more."""
    print(f"\n{'order':9}{'step':>5}{'MB':>8}{'sent':>9}{'seconds':>9}")
    for order in ORDERS:
        with B2Server(part_size=PART, minimum_part_size=LEAST) as server:
            store = open_store("b2://the-bucket", server.url, server.environ())
            for step, again in ((20, ""), (40, ""), (40, " again")):
                path = folder / f"{order}-{step}"
                if not again:
                    path.write_bytes(SMALL.file(order, step))
                done: Published = publish(
                    store, PublishPlan("bench", step, [Source(path, "shard")], folder / order), quiet
                )
                share = done.sent_bytes / done.size_bytes
                print(f"{order:9}{step:5}{done.size_bytes / 1e6:8.1f}{share:9.2%}{done.seconds:9.3f}{again}")


def hashing(folder: Path) -> None:
    """SHA-1 of the parts alone, and with the hashes of blocks."""
    path, size = folder / "hashed", 1 << 30
    path.write_bytes(os.urandom(1 << 24) * (size >> 24))
    ranges, block = part_ranges(size, fitting_part_size(size, PART)), fitting_block_size(size, LEAST)
    for name in ("SHA-1 of parts", "and XXH3 of blocks", "SHA-1 of parts", "and XXH3 of blocks"):
        began = time.process_time()
        for place in ranges:
            if name.startswith("SHA"):
                hash_range(path, *place)
            else:
                hash_part(path, place, size, block)
        print(f"{name:20}{(time.process_time() - began) / (size / 1e9):6.3f} CPU seconds a GB")
    print(f"block hashes of 50 GB: {50_000_000_000 // block * HASH_BYTES / 1e3:.0f} kB")


def main() -> None:
    """All three."""
    layouts()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        published(Path(folder))
        print()
        hashing(Path(folder))


if __name__ == "__main__":
    main()
