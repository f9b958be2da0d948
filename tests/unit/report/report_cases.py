"""A small study with every kind of trial, figures chosen so that they can be recognised in the output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    Phase,
    Pick,
    PickRule,
    ServerDelta,
    ServerFacts,
    Slo,
    Trial,
    TrialResult,
)
from autotune.report.view import StudyView
from autotune.search.pareto import front_of, pick


def estimate(value: float, spread: float = 0.05) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def latency(p95_s: float) -> Latency:
    return Latency(
        count=400,
        mean=estimate(p95_s / 2),
        p50=estimate(p95_s / 2),
        p90=estimate(p95_s * 0.9),
        p95=estimate(p95_s, 0.15),
        p99=Estimate(value=p95_s * 1.5),
    )


def level(role: LevelRole, **figures: Any) -> Measurement:
    loop = (
        {"arrivals": Arrivals.CLOSED, "concurrency": 64}
        if role is LevelRole.THROUGHPUT
        else {"arrivals": Arrivals.POISSON, "rate_rps": 4.25}
    )
    names = ("prompt_tokens", "output_tokens", "output_tok_s", "total_tok_s", "request_rps", "goodput_rps")
    empty = dict.fromkeys((*names, "ttft_s", "ttft_from_send_s", "tpot_s", "itl_s", "e2e_s"))
    return Measurement(
        level=LoadLevel(name=str(role), role=role, requests=400, seed=3, **loop),
        clock=ClockKind.WALL,
        duration_s=75.0,
        steady_s=61.5,
        planned=400,
        completed=398,
        failed=2,
        errors=(("timeout", 2),),
        **{**empty, **figures},
    )


def measured(
    number: int,
    tok_s: float,
    ttft_s: float,
    values: dict[str, Any],
    *,
    gpus: int = 1,
    simulated: bool = False,
    caveats: tuple[Caveat, ...] = (),
) -> Trial:
    return Trial(
        number=number,
        config=Config.of(values),
        origin=Origin.BASELINE if number == 0 else Origin.SAMPLER,
        gpus=gpus,
        attempts=1,
        result=TrialResult(
            outcome=Outcome.MEASURED,
            clock=ClockKind.VIRTUAL if simulated else ClockKind.WALL,
            simulated=simulated,
            facts=ServerFacts(
                vllm_version="0.32.0", kv_cache_tokens=412_336, max_concurrency=12.58, startup_s=92.0, load_s=30.5
            ),
            measurements=(
                level(LevelRole.THROUGHPUT, output_tok_s=estimate(tok_s)),
                level(
                    LevelRole.TTFT,
                    ttft_s=latency(ttft_s),
                    server=ServerDelta(preemptions=17, prefix_queries=1000, prefix_hits=731),
                ),
            ),
            phase_seconds=((Phase.LAUNCHING, 92.0), (Phase.MEASURING, 140.0)),
            caveats=caveats,
        ),
        argv=("vllm", "serve", "m"),
    )


def failed(number: int, outcome: Outcome, kind: FailureClass, line: str | None) -> Trial:
    return Trial(
        number=number,
        config=Config.of({"max-num-seqs": 1024, "gpu-memory-utilization": 0.5}),
        origin=Origin.SAMPLER,
        gpus=1,
        attempts=1,
        result=TrialResult(
            outcome=outcome,
            clock=ClockKind.WALL,
            simulated=False,
            failure=Failure(
                kind=kind,
                line=line,
                remedies=("raise gpu-memory-utilization", "lower max-model-len"),
                facts=(("needed_kv_bytes", 25769803776),),
                exit_status=1,
            ),
        ),
    )


def running(number: int) -> Trial:
    return replace(measured(number, 1.0, 1.0, {}), result=None)


def study(*, simulated: bool = False, **changes: Any) -> StudyView:
    doubt = Caveat(code="client_late", text="sent 12 ms late at p99", remedy="pin the client to free cores")
    trials = (
        measured(0, 1500.0, 0.9, {}, simulated=simulated),
        measured(
            1, 2100.0, 0.41, {"max-num-seqs": 128, "enable-prefix-caching": True}, simulated=simulated, caveats=(doubt,)
        ),
        measured(2, 2600.0, 0.78, {"max-num-seqs": 512, "max-num-batched-tokens": 16384}, simulated=simulated),
        measured(3, 2000.0, 0.55, {"max-num-seqs": 64}, simulated=simulated),
        failed(
            4, Outcome.INFEASIBLE, FailureClass.KV_CACHE_TOO_SMALL, "To serve at least one request, 24 GiB is needed"
        ),
        failed(5, Outcome.FAULTED, FailureClass.HANG, None),
        running(6),
    )
    base = StudyView(
        name="llama-chat",
        model="meta-llama/Llama-3.1-8B-Instruct",
        workload="chat",
        node="1xH100-80GB",
        engine="simulated" if simulated else "process",
        simulated=simulated,
        trials=trials,
        front=(1, 2),
        baseline=0,
        pick=Pick(
            number=1,
            rule=PickRule.KNEE,
            reason="most throughput within ttft_p95<=500ms",
            throughput_gain=1.4,
            ttft_gain=0.456,
        ),
        slo=Slo.of(ttft_p95=0.5),
        directory="studies/llama-chat",
    )
    return replace(base, **changes)


def repeated_study() -> StudyView:
    """Pick and baseline were launched twice; means by hand: 1,500 tok/s at 850 ms, and 2,200 tok/s at 400 ms."""
    values = {"max-num-seqs": 128}
    trials = (
        measured(0, 1600.0, 0.9, {}),
        measured(1, 2100.0, 0.41, values),
        measured(2, 1900.0, 0.5, {"max-num-seqs": 64}),
        replace(measured(3, 1400.0, 0.8, {}), origin=Origin.REPEAT, repeat_of=0),
        replace(measured(4, 2300.0, 0.39, values), origin=Origin.REPEAT, repeat_of=1),
    )
    return study(trials=trials, front=front_of(trials), pick=pick(trials), slo=None)
