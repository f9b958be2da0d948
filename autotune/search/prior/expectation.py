"""What a prior says of configs, and what was seen of them: the words that the parts of the sampler share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.records import Config

Floats = NDArray[np.float64]

THROUGHPUT, TTFT = 0, 1
"""Places of the two objectives wherever they stand side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What to expect of n configs; every array has shape (n,).

    Attributes:
        log_throughput: natural logarithm of output tokens/s per GPU used.
        log_ttft: natural logarithm of the p95 TTFT in seconds.
        feasible: probability that it starts and serves, 0..1.
        minutes: of one launch with nothing compiled yet, load included.
        memory_sd_bytes: how far the memory arithmetic behind `feasible` may be off per GPU; None without one.
    """

    log_throughput: Floats
    log_ttft: Floats
    feasible: Floats
    minutes: Floats
    memory_sd_bytes: float | None = None

    @property
    def logs(self) -> tuple[Floats, Floats]:
        """Both objectives, in their order."""
        return self.log_throughput, self.log_ttft


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a study knows of one config, over all its launches.

    Attributes:
        logs: means of (log throughput, log TTFT); None where it did not start, or its figures are no objective.
        sds: standard deviations of those means.
        partial: its levels ended early, so that they are not those that a prior predicts.
        short_of_memory: it failed for want of memory; None where it started or failed for no known reason.
        missing_bytes: GPU memory that its log says was short; None where it says nothing of the kind.
        keeps: whether it keeps to the limits other than that of the p95 TTFT; None where there are none, or no figures.
        kv_tokens: capacity of the KV cache that the log stated; None where it did not.
        available_kv_bytes: what the log stated to be left for KV per GPU, also where that was too little.
    """

    config: Config
    feasible: bool
    logs: tuple[float, float] | None = None
    sds: tuple[float, float] = (0.0, 0.0)
    short_of_memory: bool | None = None
    missing_bytes: int | None = None
    keeps: bool | None = None
    kv_tokens: int | None = None
    available_kv_bytes: int | None = None
    partial: bool = False


class Prior(Protocol):
    """What is believed about configs before they are launched. Immutable; the same arguments give the same answer."""

    def expect(self, configs: Sequence[Config]) -> Expectation:
        """The quick prediction: 20,000 configs in about a second."""
        ...

    def refine(self, configs: Sequence[Config]) -> Expectation:
        """The slow, better prediction for a few dozen configs; may be that of `expect`."""
        ...

    def refit(self, observations: Sequence[Observation]) -> Prior:
        """The prior with its few physical coefficients fitted to what was measured; may be itself."""
        ...


class Reason(StrEnum):
    """Why a config is tried."""

    BASELINE = "baseline"
    RECIPE = "recipe"
    PRIOR = "prior"
    EXPLORATION = "exploration"
    REPEAT = "repeat"
    COVER = "cover"
    """Spread over the space, because nothing is known yet."""
    SAMPLER = "sampler"
    """A sampler that gives no reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A config to try and why, in one line for the operator.

    Attributes:
        gain: the most that any config left is expected to add to the front's hypervolume, as a share of it; None where
            nothing is expected.
    """

    config: Config
    reason: Reason
    why: str
    gain: float | None = field(default=None, compare=False)
