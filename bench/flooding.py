"""What stands beside the daemon while `bench.flood` measures: those who write its job's logs full, and an idle loop.

`python -m bench.flooding write KIND LINES_A_SECOND FILE...` and `python -m bench.flooding control`, as the bench starts
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from supervisor.daemon.inbox import Inbox

PERIOD_S = 0.02
BURSTS_A_SECOND = 20

_VLLM = "(APIServer pid=812) INFO"
ORDINARY = (
    (40, f'{_VLLM}:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
    (20, "12:01:07    INFO HTTP Request: POST http://localhost:8000/v1/chat/completions 'HTTP/1.1 200 OK'"),
    (
        12,
        f"{_VLLM} 08-21 12:01:07 [loggers.py:236] Engine 000: Avg prompt throughput: 812.4 tokens/s, Running: 48 reqs",
    ),
    (10, "12:01:07   DEBUG Scheduled rollout group 4182 of policy step 17, 48 rollouts in flight"),
    (4, "\x1b[32m12:01:07\x1b[0m \x1b[1m   INFO\x1b[0m Train batch 31/64 (48 inflight rollouts)"),
    (5, '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/async_llm.py", line 441, in generate'),
    (3, "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.31it/s]\r"),
    (3, "{'reward': 0.4121, 'completion': 'The answer is 42.\\n\\nTraceback of my thoughts: ...', 'tokens': 812}"),
    (1, "\x00\x01\xff\xfe\x80\x1b[999;999H\x07 not text at all \xc3\x28"),
    (0.5, "httpx.ConnectError: All connection attempts failed"),
    (0.05, "x" * (64 << 10)),
)
STORM = ((1, "httpx.ConnectError: All connection attempts failed"), (1, "ValueError: a rollout that cannot be read"))
TABLES = {"ordinary": ORDINARY, "storm": STORM}


def write(kind: str, lines_per_s: float, files: Sequence[str]) -> None:
    """Write into the files, in turns, as long as our parent is there; the first gets half of the lines."""
    table = TABLES[kind]
    chance, parent = random.Random(3), os.getppid()
    pool = [text.encode("latin-1") + b"\n" for text in _drawn(chance, table, 20_000)]
    targets = [os.open(name, os.O_WRONLY | os.O_APPEND) for name in files]
    print("up", flush=True)  # it has taken a while to get here
    begun, done, burst = time.monotonic(), 0, 0
    while os.getppid() == parent:
        due = int((time.monotonic() - begun) * lines_per_s)
        target = targets[0] if burst % 2 == 0 else targets[1 + burst // 2 % (len(targets) - 1)]
        data = b"".join(pool[number % len(pool)] for number in range(done, due))
        os.write(target, data)
        done, burst = due, burst + 1
        time.sleep(1 / BURSTS_A_SECOND)


def mean_bytes(kind: str) -> float:
    """Of one line."""
    weights = sum(weight for weight, _ in TABLES[kind])
    return sum(weight * (len(text.encode("latin-1")) + 1) for weight, text in TABLES[kind]) / weights


def _drawn(chance: random.Random, table: Sequence[tuple[float, str]], count: int) -> list[str]:
    return chance.choices([text for _, text in table], [weight for weight, _ in table], k=count)


def control() -> None:
    """An inbox, a probe and a loop that has nothing to do, until our parent is gone; tells its waits when asked."""
    inbox: Inbox[None] = Inbox()

    def probe() -> None:
        while True:
            time.sleep(PERIOD_S)
            inbox.put(None)

    def loop() -> None:
        while True:
            with contextlib.suppress(Exception):
                inbox.get(5.0)

    for work in (probe, loop):
        threading.Thread(target=work, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(inbox.waits.as_dict()), flush=True)


def append(path: Path, size: int, seconds: float) -> int:
    """Ordinary lines, ``size`` bytes of them, evenly within ``seconds``; returns how many bytes were written."""
    chance = random.Random(4)
    block = b"".join(text.encode("latin-1") + b"\n" for text in _drawn(chance, ORDINARY, 5000))
    written, began = 0, time.monotonic()
    with path.open("ab", buffering=0) as file:
        while written < size:
            file.write(block)
            written += len(block)
            ahead = began + seconds * written / size - time.monotonic()
            time.sleep(max(0.0, ahead))
    return written


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        control()
