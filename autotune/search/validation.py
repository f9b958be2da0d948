"""Whether a config keeps what it promised when it is launched under prompts and arrivals that no trial had. Pure.

All trials of a study see the same arrivals, so that configs can be compared. One of them may suit these arrivals by
luck. The launch on fresh seeds chose nothing, so it says what the config does next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.records import Origin, Trial
from autotune.search.noise import Difference, difference, run_noise
from autotune.search.screening import comparable, decisive


class ValidationState(StrEnum):
    """How far a config has been validated."""

    VALIDATED = "validated"
    WORSE = "worse"
    MISSING = "not_validated"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What a config did on fresh seeds, against what its other launches promised.

    Attributes:
        state: WORSE where one of both figures is worse by more than the interval of the difference; BASELINE is the
            baseline itself, of which nothing was promised.
        launches: numbers of the measured trials on fresh seeds.
        throughput, ttft: fresh over promised; None without such a launch.
    """

    state: ValidationState
    launches: tuple[int, ...] = ()
    throughput: Difference | None = None
    ttft: Difference | None = None


def validation(trials: Sequence[Trial], number: int) -> Validation:
    """Of the config that trial `number` is a launch of."""
    chosen = next((trial for trial in trials if trial.number == number), None)
    base = next((trial for trial in trials if trial.number == 0), None)
    if chosen is None:
        return Validation(state=ValidationState.MISSING)
    if base is not None and chosen.config.hash == base.config.hash:
        return Validation(state=ValidationState.BASELINE)
    figures = comparable(trials)
    own = decisive([trial for trial in trials if trial.config.hash == chosen.config.hash])
    launches = [trial for trial in own if trial.number in figures]
    fresh = [trial.number for trial in launches if trial.origin is Origin.VALIDATION]
    promised = [trial.number for trial in launches if trial.origin is not Origin.VALIDATION]
    noise = run_noise(trials)
    throughput, ttft = (
        difference([figures[one][axis] for one in promised], [figures[one][axis] for one in fresh], sd)
        for axis, sd in ((0, noise.throughput_sd), (1, noise.ttft_sd))
    )
    if throughput is None or ttft is None:
        return Validation(state=ValidationState.MISSING)
    worse = throughput.high < 1.0 or ttft.low > 1.0
    state = ValidationState.WORSE if worse else ValidationState.VALIDATED
    return Validation(state=state, launches=tuple(fresh), throughput=throughput, ttft=ttft)
