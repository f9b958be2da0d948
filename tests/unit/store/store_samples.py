"""Small records for the tests of the store."""

from __future__ import annotations

from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    Config,
    CpuUse,
    EngineKind,
    Estimate,
    Failure,
    FailureClass,
    GpuUse,
    Latency,
    LevelRole,
    LevelUse,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    Phase,
    ServerDelta,
    ServerFacts,
    TrialResult,
)
from autotune.store.repository import Store
from autotune.store.study_record import StudySpec


def config(**values: object) -> Config:
    return Config.of({name.replace("_", "-"): value for name, value in values.items()})


def spec(name: str = "s", **changes: object) -> StudySpec:
    values: dict[str, object] = {
        "name": name,
        "seed": 7,
        "engine": EngineKind.SIMULATED,
        "simulated": True,
        "clock": ClockKind.VIRTUAL,
        "target_trials": 10,
        "identity": {"model": "m", "workload": "chat", "space": "abc123", "node": "1xH100", "vllm_version": "0.32.0"},
        "choices": (
            ("max-num-seqs", (64, 128, 256)),
            ("enable-prefix-caching", (True, False)),
            ("dtype", (None, "fp8")),
        ),
        "spec": {"file": {"note": "free"}},
    }
    return StudySpec(**(values | changes))


def latency(p95: float) -> Latency:
    return Latency(
        count=100,
        mean=Estimate(value=p95 / 2),
        p50=Estimate(value=p95 / 2),
        p90=Estimate(value=p95 * 0.9),
        p95=Estimate(value=p95, low=p95 * 0.9, high=p95 * 1.1),
        p99=Estimate(value=p95 * 1.2),
    )


def measurement(role: LevelRole, tok_s: float, ttft_p95_s: float) -> Measurement:
    closed = role is LevelRole.THROUGHPUT
    return Measurement(
        level=LoadLevel(
            name=role.value,
            role=role,
            arrivals=Arrivals.CLOSED if closed else Arrivals.POISSON,
            requests=100,
            seed=3,
            concurrency=64 if closed else None,
            rate_rps=None if closed else 8.5,
        ),
        clock=ClockKind.VIRTUAL,
        duration_s=60.0,
        steady_s=50.0,
        planned=100,
        completed=99,
        failed=1,
        errors=(("reset", 1),),
        prompt_tokens=10_000,
        output_tokens=20_000,
        output_tok_s=Estimate(value=tok_s, low=tok_s * 0.98, high=tok_s * 1.02),
        total_tok_s=None,
        request_rps=Estimate(value=2.0),
        goodput_rps=None,
        ttft_s=latency(ttft_p95_s),
        ttft_from_send_s=None,
        tpot_s=latency(0.02),
        itl_s=None,
        e2e_s=latency(3.0),
        server=ServerDelta(preemptions=0, prefix_queries=10, prefix_hits=4, decode_time_mean_s=1.5, running_mean=60.5),
        caveats=(Caveat(code="no_usage", text="t", remedy="r"),),
        use=LevelUse(
            gpus=(GpuUse(index=2, samples=100, busy_share=0.97, nvlink_tx_bytes_per_s=1e9),),
            cpu=CpuUse(client_share=0.2, loop_lag_p99_s=0.001),
            jit_compiles=0,
        ),
    )


def measured(tok_s: float = 1000.0, ttft_p95_s: float = 0.2) -> TrialResult:
    return TrialResult(
        outcome=Outcome.MEASURED,
        clock=ClockKind.VIRTUAL,
        simulated=True,
        facts=ServerFacts(vllm_version="0.32.0", kv_cache_tokens=100_000, simulated=True),
        measurements=(
            measurement(LevelRole.THROUGHPUT, tok_s, 9.0),
            measurement(LevelRole.TTFT, tok_s / 2, ttft_p95_s),
        ),
        phase_seconds=((Phase.LAUNCHING, 40.5), (Phase.MEASURING, 120.0)),
    )


def failed(outcome: Outcome, kind: FailureClass) -> TrialResult:
    return TrialResult(
        outcome=outcome,
        clock=ClockKind.VIRTUAL,
        simulated=True,
        failure=Failure(kind=kind, line="the line", facts=(("needed_kv_bytes", 25769803776), ("share", 0.5))),
    )


def begin_trial(
    store: Store, number: int, *, study: str = "s", params: Config | None = None, repeat_of: int | None = None
) -> None:
    store.begin_trial(
        study,
        number=number,
        config=params if params is not None else config(x=number),
        origin=Origin.BASELINE if number == 0 else Origin.SAMPLER,
        gpus=1,
        repeat_of=repeat_of,
    )


def add_trial(
    store: Store,
    number: int,
    result: TrialResult | None,
    *,
    study: str = "s",
    params: Config | None = None,
    repeat_of: int | None = None,
) -> None:
    """Begin a trial, and finish it when there is a result."""
    begin_trial(store, number, study=study, params=params, repeat_of=repeat_of)
    store.begin_attempt(study, number, directory=f"trial-{number:04d}")
    if result is not None:
        store.finish_trial(study, number, result)
