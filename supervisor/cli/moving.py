"""How far a transfer is, on a terminal: one line that is written over until the transfer ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.cli.render import transfer
from supervisor.effects.transfers import Transfers

LOOK_S = 0.5
CLEAR = "\r\x1b[K"


@contextmanager
def show_transfers(transfers: Transfers, *, quiet: bool = False) -> Iterator[None]:
    """Show what ``transfers`` moves on stderr while the body runs; nothing when that is no terminal, or ``quiet``."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    over = threading.Event()

    def tell() -> None:
        said = False
        while not over.wait(LOOK_S):
            moving = next((one for one in list(transfers.moving.values()) if one.what != "heartbeat"), None)
            if moving is not None:
                how = {
                    "phase": moving.phase,
                    "bytes": moving.bytes,
                    "total_bytes": moving.total,
                    "rate": moving.rate,
                    "remaining_s": moving.remaining_s,
                }
                sys.stderr.write(f"{CLEAR}{transfer(how)}")
                sys.stderr.flush()
                said = True
        if said:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()

    teller = threading.Thread(target=tell, daemon=True, name="progress")
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
