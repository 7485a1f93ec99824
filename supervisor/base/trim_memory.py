"""What Python has given back goes back to the machine, so that a daemon of weeks is no larger than one of days.

glibc gives each thread that meets another in ``malloc`` an arena of its own, up to eight a core, and an arena that once
held an incident's texts (a quarter of a megabyte for each role, a few copies of it) keeps those pages. Measured with an
incident a day: a megabyte a day, all of it free within the arenas. Few arenas and a trim a minute end that.

mallopt(3), malloc_trim(3). Where the C library has neither (musl), there is nothing to do: it has no arenas.
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8  # malloc.h
ARENAS = 2


def few_arenas() -> None:
    """Call it before the first thread is started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Give back what is free. Takes a millisecond or so; other threads run meanwhile."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
