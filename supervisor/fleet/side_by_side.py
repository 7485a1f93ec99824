"""Ask for several runs at once: each answer of a store takes as long as the way to it and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

AT_ONCE = 12
"""As many as a store keeps connections for (``storage.open_store``)."""
T = TypeVar("T")


def ask_for_each(names: Iterable[str], ask: Callable[[str], T]) -> dict[str, Callable[[], T]]:
    """``ask`` of each name, at once. What is returned for a name gives the answer, or raises what ``ask`` raised.

    A single one is asked when its answer is wanted, and by the caller's own thread.
    """
    names = list(names)
    if len(names) <= 1:
        return {name: partial(ask, name) for name in names}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(ask, name).result for name in names}
