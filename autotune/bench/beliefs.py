"""The prior of a surface's study: the one that the product would make, of the node as it is written down.

It is made from a `Situation` and the load, both of which any study knows, and never from a surface.
"""

from __future__ import annotations

from autotune.bench.physics import Load
from autotune.bench.situations import Situation
from autotune.search.prior.expectation import Prior

HAS_PRIOR = False
"""Whether a study of this program makes a prior yet."""


def prior_of(situation: Situation, load: Load) -> Prior | None:
    """What a study believes of `situation` under `load` before its first launch; None while none is made."""
    del situation, load
    return None
