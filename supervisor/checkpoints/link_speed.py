"""How fast bytes go between this pod and the run's store: a few MB each way, in as many requests as a publish has."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from supervisor.checkpoints.catalogue import list_steps
from supervisor.checkpoints.manifest import run_folder
from supervisor.storage.base import Store, StoredFile, StoreError

FOLDER = "probe/"
SMALLEST_BYTES, LARGEST_BYTES = 4 << 10, 2 << 20
"""Of one request. The rounds grow until one takes ``CLEAR_S``: before that they tell of the store, not of the link."""
CLEAR_S, CLEAR_ROUNDS = 1.0, 3
BUDGET_S = 6.0
"""Each way; a round that was begun is waited for."""
STEP_S = 54 * 60.0
"""Within so long a step has to pass: longer than that, half of all spot pods are gone before it has (median up-run of
V100 spot zones on AWS, skypilot-org/spot-traces@221da1ab)."""
LEAST_NEED_MBIT = 8.0
"""What any run needs, also one that has published nothing yet: its model and its packages have gigabytes."""
OLD_S = 3600.0


def step_need_mbit(store: Store, run_id: str) -> float:
    """The link that the run's newest step needs. Raises StoreError."""
    found = list_steps(store, run_id)
    newest = found.steps.get(found.latest.step) if found.latest else None
    return max(LEAST_NEED_MBIT, newest.size_bytes * 8 / 1e6 / STEP_S if newest else 0.0)


def measure_ways(
    store: Store, run_id: str, up_enough: float, down_enough: float, clock: Callable[[], float] = time.monotonic
) -> tuple[float | None, float | None]:
    """Mbit/s out of the pod and into it; None where it is enough, or faster than can be told. Raises StoreError."""
    streams = max(1, store.streams)
    with _probes(store, run_id) as sent, ThreadPoolExecutor(streams) as pool:
        folder = f"{run_folder(run_id)}{FOLDER}{secrets.token_hex(8)}/"
        largest: list[StoredFile] = []

        def send(size: int) -> None:
            data = secrets.token_bytes(size)

            def send_one(number: int) -> StoredFile:
                file = store.put_bytes(f"{folder}{number}", data)
                sent.append(file)
                return file

            largest[:] = pool.map(send_one, range(streams))

        def fetch(size: int) -> None:
            _do_all(pool.map(lambda file: store.get_range(file, 0, size), largest))

        up = measure_way(send, streams, max(up_enough, down_enough), LARGEST_BYTES, clock)
        if up is not None and up < up_enough:
            return up, None
        if up is None:  # to fetch so much takes ``CLEAR_S`` over a link that is not enough
            send(min(LARGEST_BYTES, max(largest[0].size, int(down_enough * CLEAR_S * 1e6 / 8 / streams))))
        return None, measure_way(fetch, streams, down_enough, largest[0].size, clock)


def measure_way(
    move: Callable[[int], None], streams: int, enough_mbit: float, largest: int, clock: Callable[[], float]
) -> float | None:
    """The best of the clear rounds, in Mbit/s: some may stumble. None: it is enough, or that cannot be told."""

    def time_round(size: int) -> float:
        began = clock()
        move(size)
        return clock() - began

    time_round(1)  # connections, and what the store asks for before the first byte
    latency_s = time_round(1)
    size, clear = SMALLEST_BYTES, list[float]()
    until = clock() + BUDGET_S
    while clock() < until or 0 < len(clear) < CLEAR_ROUNDS:
        took_s = max(time_round(size) - latency_s, 1e-6)
        rate = streams * size * 8 / 1e6 / took_s
        if rate >= enough_mbit:
            return None
        if took_s >= CLEAR_S:
            clear.append(rate)
        elif size == largest:
            return None
        else:
            size, clear = min(size * 4, largest), []
    return max(clear) if len(clear) >= CLEAR_ROUNDS else None


@contextmanager
def _probes(store: Store, run_id: str) -> Iterator[list[StoredFile]]:
    """What is sent is deleted at the end, and what an ended measurement left."""
    sent: list[StoredFile] = []
    try:
        yield sent
    finally:
        with suppress(StoreError):
            now = max((file.uploaded_at for file in sent), default=0.0)
            left = store.list_versions(f"{run_folder(run_id)}{FOLDER}")
            sent += [file for file in left if file.uploaded_at < now - OLD_S]
            with ThreadPoolExecutor(max(1, store.streams)) as pool:
                _do_all(pool.map(store.delete, sent))


def _do_all(results: Iterable[object]) -> None:
    for _ in results:
        pass
