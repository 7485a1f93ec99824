"""Luck that belongs to the world, not to who asks first: every policy of one seed meets the same.

Each value hangs on the seed, a name, and either a number (a step, a fault) or the moment. Those of a moment change so
slowly that who asks later is never served sooner, so a policy gains nothing by being late.
"""

from __future__ import annotations

import math
from functools import cache
from random import Random
from statistics import NormalDist

KNOT_S = 4 * 3600.0  # between two draws; a value goes straight from one to the next
SPREAD = 2.5  # of a normal draw: no farther from the middle than so many standard deviations


class Chance:
    """The luck of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._knot = cache(self._draw_knot)

    def of(self, *name: object) -> Random:
        """A generator of its own for what ``name`` names."""
        return Random("/".join(map(str, (self.seed, *name))))

    def around(self, median: float, sigma: float, *name: object) -> float:
        """A duration of what ``name`` names: lognormal with this median."""
        return median * math.exp(self.of(*name).gauss(0.0, sigma))

    def normal_at(self, t: float, name: str) -> float:
        """A value of the moment ``t``, about as a standard normal draw."""
        k, part = divmod(t / KNOT_S, 1.0)
        return (1 - part) * self._knot(name, int(k)) + part * self._knot(name, int(k) + 1)

    def around_at(self, t: float, median: float, sigma: float, name: str) -> float:
        """A duration of what begins at ``t``: lognormal with this median."""
        return median * math.exp(sigma * self.normal_at(t, name))

    def between_at(self, t: float, low: float, high: float, name: str) -> float:
        """A duration of what begins at ``t``, from ``low`` to ``high``."""
        return low + (high - low) * NormalDist().cdf(self.normal_at(t, name))

    def _draw_knot(self, name: str, k: int) -> float:
        return max(-SPREAD, min(SPREAD, self.of("at", name, k).gauss(0.0, 1.0)))
