"""Small trials for the tests of the search."""

from __future__ import annotations

from dataclasses import replace

from autotune.records import (
    Arrivals,
    Caveat,
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
    Trial,
    TrialResult,
)

Figure = float | tuple[float, float, float]
"""A value, or (low, value, high)."""


def estimate(figure: Figure) -> Estimate:
    if isinstance(figure, tuple):
        low, value, high = figure
        return Estimate(value=value, low=low, high=high)
    return Estimate(value=figure)


def _measurement(role: LevelRole, tok_s: Estimate, ttft: Estimate) -> Measurement:
    latency = Latency(count=100, mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=ttft)
    return Measurement(
        level=LoadLevel(name=role.value, role=role, arrivals=Arrivals.CLOSED, requests=1, seed=0),
        clock=ClockKind.VIRTUAL,
        duration_s=1.0,
        steady_s=1.0,
        planned=1,
        completed=1,
        failed=0,
        errors=(),
        prompt_tokens=None,
        output_tokens=None,
        output_tok_s=tok_s,
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latency,
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
    )


def trial(number: int, result: TrialResult | None, config: Config | None = None, gpus: int = 1) -> Trial:
    return Trial(
        number=number,
        config=config if config is not None else Config.of({"x": number}),
        origin=Origin.SAMPLER,
        gpus=gpus,
        attempts=1,
        result=result,
    )


def measured(number: int, tok_s: Figure, ttft_s: Figure, config: Config | None = None, gpus: int = 1) -> Trial:
    levels = (
        _measurement(LevelRole.THROUGHPUT, estimate(tok_s), estimate(99.0)),
        _measurement(LevelRole.TTFT, estimate(1.0), estimate(ttft_s)),
    )
    result = TrialResult(outcome=Outcome.MEASURED, clock=ClockKind.VIRTUAL, simulated=True, measurements=levels)
    return trial(number, result, config, gpus)


def void(number: int, tok_s: Figure, ttft_s: Figure, config: Config | None = None) -> Trial:
    """Measured, but the load client was the limit in one of the two levels."""
    good = measured(number, tok_s, ttft_s, config)
    assert good.result is not None
    throughput, ttft = good.result.measurements
    late = Caveat(code="client_late", text="t", remedy="r", void=True)
    return replace(good, result=replace(good.result, measurements=(throughput, replace(ttft, caveats=(late,)))))


def failed(number: int, outcome: Outcome, config: Config | None = None) -> Trial:
    kind = FailureClass.OOM_AT_LOAD if outcome is Outcome.INFEASIBLE else FailureClass.PORT_IN_USE
    failure = None if outcome is Outcome.ABANDONED else Failure(kind=kind, line=None)
    result = TrialResult(outcome=outcome, clock=ClockKind.VIRTUAL, simulated=True, failure=failure)
    return trial(number, result, config)
