"""A study's history as observations: one for each config, repeats averaged. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.records import (
    Config,
    Estimate,
    Failure,
    FailureClass,
    Outcome,
    Slo,
    SloMetric,
    Trial,
    Value,
)
from autotune.search.noise import RunNoise, run_noise
from autotune.search.objective import Point, is_goodput, points, violations
from autotune.search.prior.expectation import Observation

_INTERVAL_SDS = 2 * 1.959964
"""Width of a 95 % interval in standard deviations."""

MEMORY_CLASSES = frozenset(
    {
        FailureClass.OOM_AT_LOAD,
        FailureClass.OOM_AT_WARMUP,
        FailureClass.OOM_UNDER_LOAD,
        FailureClass.KV_CACHE_NONE,
        FailureClass.KV_CACHE_TOO_SMALL,
        FailureClass.STATE_CACHE_TOO_SMALL,
    }
)
"""Failures for want of memory: a little less of something cures them."""


SHOWN_TTFT_SD = 1.0
"""Of the logarithm of the p95 TTFT that a level showed until it ended early. It begins on an empty server, and waits
grow: simulated levels showed a third of what they came to (`python -m benchmarks.early`)."""


def observations(history: Sequence[Trial], limits: Slo | None = None) -> tuple[Observation, ...]:
    """What finished trials say, oldest config first.

    Args:
        limits: what a config has to keep to.

    Faulted trials say nothing: the environment was bad. A config that was measured once counts as feasible, whatever
    became of its other launches. An abandoned one started; what it showed until then is known less well, and is no
    objective in a study of the goodput.
    """
    noise = run_noise(history)
    measured = {point.config_hash: point for point in points(history)}
    found: dict[str, Observation] = {}
    for trial in history:
        result, key = trial.result, trial.config.hash
        if result is None or result.outcome is Outcome.FAULTED or (key in found and found[key].feasible):
            continue
        facts = result.facts
        failure = dict(result.failure.facts) if result.failure is not None else {}
        available = facts.available_kv_bytes if facts is not None else None
        point = measured.get(key)
        shown = None if point is not None or is_goodput(history) else shown_until_abandoned(trial, noise)
        found[key] = Observation(
            config=trial.config,
            feasible=result.outcome is not Outcome.INFEASIBLE,
            logs=point.logs if point is not None else shown[0] if shown is not None else None,
            sds=_sds(point, noise) if point is not None else shown[1] if shown is not None else (0.0, 0.0),
            partial=point is None and shown is not None,
            short_of_memory=_short_of_memory(result.failure),
            missing_bytes=_missing(failure),
            keeps=None if point is None else _keeps(point, history, limits),
            kv_tokens=facts.kv_cache_tokens if facts is not None else None,
            available_kv_bytes=_whole(failure.get("available_kv_bytes")) if available is None else available,
        )
    return tuple(found.values())


def shown_until_abandoned(trial: Trial, noise: RunNoise) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Logs and standard deviations of what an abandoned trial showed; None where it did not come to its TTFT level."""
    result, throughput, ttft = trial.result, trial.output_tok_s_per_gpu, trial.ttft_p95_s
    if result is None or result.outcome is not Outcome.ABANDONED or trial.void is not None:
        return None
    if throughput is None or ttft is None or throughput.value <= 0 or ttft.value <= 0:
        return None
    return (
        (math.log(throughput.value), math.log(ttft.value)),
        (
            _sd(throughput, noise.throughput_sd, 1),
            math.hypot(_sd(ttft, noise.ttft_sd, 1), SHOWN_TTFT_SD),
        ),
    )


def running(history: Sequence[Trial]) -> tuple[Config, ...]:
    """Configs whose trial has not ended."""
    return tuple(trial.config for trial in history if trial.result is None)


def _short_of_memory(failure: Failure | None) -> bool | None:
    """A config too slow for the SLO at any rate did start: its neighbours are as slow, and no flag is to blame."""
    if failure is None or failure.kind is FailureClass.SLO_MISSED:
        return None
    return failure.kind in MEMORY_CLASSES


def _missing(facts: Mapping[str, Value]) -> int | None:
    """By how much memory fell short: KV blocks of one longest request, or the allocation that failed."""
    needed, available = _whole(facts.get("needed_kv_bytes")), _whole(facts.get("available_kv_bytes"))
    if needed is None or available is None:
        needed, available = _whole(facts.get("tried_bytes")), _whole(facts.get("free_bytes")) or 0
    return None if needed is None else max(0, needed - available)


def _keeps(point: Point, history: Sequence[Trial], limits: Slo | None) -> bool | None:
    """Whether it keeps to the limits, that of the p95 TTFT aside: the process knows more of an objective than that."""
    others = tuple(limit for limit in limits.limits if limit.metric is not SloMetric.TTFT_P95) if limits else ()
    if not others:
        return None
    return all(value <= 0.0 for value in violations(point, history, Slo(limits=others)).values())


def _sds(point: Point, noise: RunNoise) -> tuple[float, float]:
    return (
        _sd(point.tok_s_per_gpu, noise.throughput_sd, len(point.numbers)),
        _sd(point.ttft_p95_s, noise.ttft_sd, len(point.numbers)),
    )


def _sd(figure: Estimate, run_sd: float, launches: int) -> float:
    """Of the mean: what one launch does not know about itself, and how much launches differ."""
    own = 0.0
    if figure.low is not None and figure.high is not None and figure.low > 0 and launches == 1:
        # The interval of several launches spans theirs: the spread between them is in it already.
        own = (math.log(figure.high) - math.log(figure.low)) / _INTERVAL_SDS
    return math.sqrt((own**2 + run_sd**2) / launches)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
