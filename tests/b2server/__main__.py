"""``python -m tests.b2server``: print the URL, then serve until stdin (a pipe or terminal) closes or a signal comes."""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import sys
from pathlib import Path

from tests.b2server.http import B2Server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--dir", type=Path, help="folder for `url` (written when it listens) and `journal.jsonl` (at the end)"
    )
    parser.add_argument("--bucket", default="the-bucket")
    parser.add_argument("--part-size", type=int, default=100_000)
    parser.add_argument("--minimum-part-size", type=int, default=5_000)
    options = parser.parse_args()
    with B2Server(options.bucket, options.part_size, options.minimum_part_size, options.port) as server:
        print(server.url, flush=True)
        if options.dir:
            options.dir.mkdir(parents=True, exist_ok=True)
            (options.dir / "url").write_text(server.url)
        try:
            if sys.stdin.isatty() or stat.S_ISFIFO(os.fstat(0).st_mode):
                sys.stdin.read()  # ends with whoever holds the other end
            else:
                signal.pause()
        except KeyboardInterrupt:
            pass
        if options.dir:
            (options.dir / "journal.jsonl").write_text("".join(json.dumps(e) + "\n" for e in server.journal()))


if __name__ == "__main__":
    main()
