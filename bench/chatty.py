"""A launcher that talks: `bench/chatty.py LINES_PER_S LAUNCHER...` becomes LAUNCHER and leaves a writer beside it.

The writer puts vLLM's access lines and httpx's request lines, which are most of what a real run writes, into the
captured output, and ends with the launcher.
"""

from __future__ import annotations

import os
import sys
import time

LINES = (
    b'(APIServer pid=812) INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    b"12:01:07    INFO HTTP Request: POST http://localhost:8000/v1/chat/completions 'HTTP/1.1 200 OK'\n",
    b"(APIServer pid=812) INFO 08-21 12:01:07 [loggers.py:236] Engine 000: Avg prompt throughput: 812.4 tokens/s\n",
    b"12:01:07   DEBUG Scheduled rollout group 4182 of policy step 17, 48 rollouts in flight\n",
)


def write(lines_per_s: float) -> None:
    """Ten bursts a second, as long as the process that was our parent is there."""
    parent, count, begun = os.getppid(), 0, time.monotonic()
    while os.getppid() == parent:
        due = int((time.monotonic() - begun) * lines_per_s)
        os.write(1, b"".join(LINES[number % len(LINES)] for number in range(count, due)))
        count = due
        time.sleep(0.1)


def main() -> None:
    """Fork the writer, become the launcher."""
    if sys.argv[1] == "write":
        write(float(sys.argv[2]))
        return
    rate, command = sys.argv[1], sys.argv[2:]
    if os.fork() == 0:
        # Its own program, so that it is no copy of the launcher to whoever looks at titles.
        os.execv(sys.executable, [sys.executable, __file__, "write", rate])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
