"""Figures too bad to matter, pressed together. Pure.

Hypervolume counts from a reference, half the baseline's throughput and four times its TTFT; how much worse a config is
than that is of no use to anybody. But there the logarithms are the largest and the least certain: a server that gets
more requests than it can answer waits for as long as the run lasts. Left as they are, such figures stretch the process
over all others. So beyond the reference a step counts a fifth, of what was measured as of what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.prior.expectation import THROUGHPUT, Floats, Observation

STEP = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """Where figures stop to matter, as logarithms: throughput below, TTFT above."""

    throughput: float = -math.inf
    ttft: float = math.inf

    @classmethod
    def of(cls, seen: Sequence[Observation]) -> Bend:
        """From the first that was measured, which stands for the baseline; none bends nothing."""
        first = next((one.logs for one in seen if one.logs is not None), None)
        if first is None:
            return cls()
        return cls(
            throughput=first[0] + math.log(REFERENCE_THROUGHPUT_SHARE), ttft=first[1] + math.log(REFERENCE_TTFT_FACTOR)
        )

    def pressed(self, objective: int, logs: Floats) -> Floats:
        """Logarithms of one objective, steps beyond shortened."""
        return logs - (1.0 - STEP) * self._beyond(objective, logs)

    def released(self, objective: int, logs: Floats) -> Floats:
        """The other way."""
        return logs + (1.0 / STEP - 1.0) * self._beyond(objective, logs)

    def _beyond(self, objective: int, logs: Floats) -> Floats:
        found: Floats = (
            np.minimum(logs - self.throughput, 0.0) if objective == THROUGHPUT else np.maximum(logs - self.ttft, 0.0)
        )
        return found
