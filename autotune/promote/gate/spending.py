"""How much chance a verification that is looked at several times may spend at each look. Pure.

A verdict that may be *not yet* is asked again after more launches. Whoever asks five times at 2 % each is wrong more
often than in 2 % of the cases. So the whole chance is fixed beforehand and spent look by look (Lan and DeMets 1983):
after the share f of all launches that may be made, `SPENDING_POWER` says how much of it may be gone. The bounds come
from the recursion of Armitage, McPherson and Rowe (1969) for a Brownian motion; each is then used as the level of a
t test at its look, as Jennison and Turnbull (2000, 3.8) do where the deviation is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

SPENDING_POWER = 0.5
"""f ** 0.5: half of all chance may be spent after a quarter of the launches, as that is where most verdicts fall."""

LOOK_EVERY = 4
"""Launches between two looks: a whole ABBA, so that what drifts evenly cancels at each."""

_POINTS = 641
_REACH = 8.0
"""Standard deviations."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look of several that may be taken.

    Attributes:
        at: launches at each look, rising; the last is the most that may be made.
        number: of this look, 0-based.
    """

    at: tuple[int, ...] = (1,)
    number: int = 0

    @property
    def launches(self) -> int:
        """Made at this look."""
        return self.at[self.number]

    @property
    def most(self) -> int:
        """Launches at the last look."""
        return self.at[-1]

    @property
    def last(self) -> Look:
        """The last look of the same plan."""
        return Look(at=self.at, number=len(self.at) - 1)

    def level(self, total: float) -> float:
        """The level of a one-sided test at this look, where all looks together are to be wrong with `total` at most."""
        return levels(tuple(launches / self.most for launches in self.at), total)[self.number]


ONLY = Look()
"""Of a verification that is looked at once."""


def looks(first: int, most: int) -> tuple[int, ...]:
    """After how many launches to look: after `first`, then after every `LOOK_EVERY` more, and after `most`."""
    return (*range(first, most, LOOK_EVERY), max(first, most))


@cache
def levels(shares: tuple[float, ...], total: float) -> tuple[float, ...]:
    """The level of a one-sided test at each look.

    Args:
        shares: of all launches that are made at each look, rising to 1.
        total: chance that any look shows what is not there.
    """
    normal = NormalDist()
    found: list[float] = []
    # Where the walk is, given that no look has shown anything yet.
    points, density = np.zeros(1), np.ones(1)
    spent = before = 0.0
    for share in shares:
        budget = total * share**SPENDING_POWER - spent
        ahead = np.linspace(-_REACH, _REACH, _POINTS) * share**0.5
        reached = _stepped(points, density, ahead, share - before)
        bound = _exceeded_with(budget, ahead, reached)
        found.append(1 - normal.cdf(bound / share**0.5))
        points, density = ahead, np.where(ahead < bound, reached, 0.0)
        spent, before = spent + budget, share
    return tuple(found)


def _stepped(points: Floats, density: Floats, ahead: Floats, variance: float) -> Floats:
    """The density at `ahead`, a step of that variance after it was `density` at `points` (evenly spaced)."""
    width = points[1] - points[0] if len(points) > 1 else 1.0
    kernel = np.exp(-((ahead[:, None] - points[None, :]) ** 2) / (2 * variance)) / (2 * np.pi * variance) ** 0.5
    return np.asarray(kernel @ density * width)


def _exceeded_with(chance: float, points: Floats, density: Floats) -> float:
    """What is exceeded with that chance."""
    width = points[1] - points[0]
    beyond = np.cumsum(density[::-1])[::-1] * width - density * width / 2
    return float(np.interp(-chance, -beyond, points))
