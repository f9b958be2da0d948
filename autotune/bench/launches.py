"""One launch as a replay sees it, and as the trial that a sampler would be shown. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    Estimate,
    Failure,
    FailureClass,
    Latency,
    LevelRole,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    Phase,
    ServerFacts,
    Trial,
    TrialResult,
)

_REQUESTS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What one launch showed.

    Attributes:
        index: of the config on its surface.
        seconds: start, and where it started both levels.
        logs: log output tokens/s per GPU and log p95 TTFT, as measured; None where it did not start.
        failure: why it did not start.
        missing_bytes: that the log says were missing; 0 for another reason.
        kv_tokens: that the log says one replica has; None where it did not say.
    """

    index: int
    seconds: float
    logs: tuple[float, float] | None
    failure: FailureClass | None = None
    missing_bytes: float = 0.0
    kv_tokens: int | None = None


def trial_of(launch: Launch, number: int, config: Config, gpus: int, origin: Origin) -> Trial:
    """The trial that a study would have stored of this launch."""
    if launch.logs is None:
        facts = (("tried_bytes", round(launch.missing_bytes)),) if launch.missing_bytes else ()
        failure = Failure(kind=launch.failure or FailureClass.CRASH, line=None, facts=facts)
        result = TrialResult(
            outcome=Outcome.INFEASIBLE,
            clock=ClockKind.VIRTUAL,
            simulated=True,
            failure=failure,
            phase_seconds=((Phase.LAUNCHING, launch.seconds),),
        )
    else:
        throughput, ttft = (math.exp(value) for value in launch.logs)
        result = TrialResult(
            outcome=Outcome.MEASURED,
            clock=ClockKind.VIRTUAL,
            simulated=True,
            facts=ServerFacts(kv_cache_tokens=launch.kv_tokens, simulated=True),
            measurements=(
                _measured(LevelRole.THROUGHPUT, tokens_s=throughput * gpus),
                _measured(LevelRole.TTFT, ttft_s=ttft),
            ),
            phase_seconds=((Phase.LAUNCHING, launch.seconds),),
        )
    return Trial(number=number, config=config, origin=origin, gpus=gpus, attempts=1, result=result)


def _measured(role: LevelRole, *, tokens_s: float | None = None, ttft_s: float | None = None) -> Measurement:
    closed = role is LevelRole.THROUGHPUT
    latency = None
    if ttft_s is not None:
        one = Estimate(value=ttft_s)
        latency = Latency(count=_REQUESTS, mean=one, p50=one, p90=one, p95=one, p99=one)
    return Measurement(
        level=LoadLevel(
            name=str(role),
            role=role,
            arrivals=Arrivals.CLOSED if closed else Arrivals.POISSON,
            requests=_REQUESTS,
            seed=0,
            concurrency=1 if closed else None,
            rate_rps=None if closed else 1.0,
        ),
        clock=ClockKind.VIRTUAL,
        duration_s=1.0,
        steady_s=1.0,
        planned=_REQUESTS,
        completed=_REQUESTS,
        failed=0,
        errors=(),
        prompt_tokens=None,
        output_tokens=None,
        output_tok_s=None if tokens_s is None else Estimate(value=tokens_s),
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latency,
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
    )
