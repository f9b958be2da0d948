"""How many launches chance alone needs, without the benchmark's limit. Pure.

Random search learns nothing, so its studies need not be replayed: an order is drawn, and the first launch that closes
the share is found by bisection, as what is closed never shrinks. This tells how far beyond the limit its median lies.
"""

from __future__ import annotations

import numpy as np

from autotune.bench.surfaces import Surface


def launches_by_chance(surface: Surface, share: float, seed: int) -> int:
    """Launches, baseline and failed ones included, until a random order of all configs closed `share` of the gap."""
    order = [int(at) for at in np.random.default_rng(seed).permutation(len(surface.configs)) if at != surface.baseline]
    least, best = surface.volumes

    def is_closed(launches: int) -> bool:
        launched = [surface.baseline, *(at for at in order[: launches - 1] if surface.feasible[at])]
        return surface.volume_of(launched) - least >= share * (best - least)

    low, high = 1, len(surface.configs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_closed(middle) else (middle + 1, high)
    return low
