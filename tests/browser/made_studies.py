"""Studies in every state that a page has to show, written through the store."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    Config,
    EarlyEnd,
    EarlyReason,
    EngineKind,
    Estimate,
    Failure,
    FailureClass,
    Goodput,
    GoodputEnd,
    Gpu,
    Latency,
    LevelRole,
    Link,
    LoadLevel,
    Measurement,
    Node,
    Origin,
    Outcome,
    Phase,
    Quality,
    QualityState,
    ServerDelta,
    ServerFacts,
    Slo,
    TrialResult,
)
from autotune.store.codec import encode
from autotune.store.repository import Store
from autotune.store.study_record import StudySpec, StudyState

HOSTILE = '"><img src=x onerror=window.hacked=1><script>window.hacked=2</script>'
LONG = "a-study-with-a-name-that-goes-on-and-on-until-it-is-64-letters-x"
LONG_MODEL = "an-organisation-with-a-long-name/Some-Model-Family-With-Many-Words-405B-Instruct-FP8-dynamic-2026-11"

NODE = Node(
    name="1xH100-80GB",
    gpus=(Gpu(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=85_000_000_000, compute_capability=(9, 0)),),
    link=Link.NONE,
    simulated=False,
    driver="570.86",
)


def add_study(
    store: Store,
    name: str,
    *,
    model: str = "meta-llama/Llama-3.1-8B-Instruct",
    slo: str | None = None,
    target: int = 24,
    simulated: bool = False,
    state: StudyState = StudyState.FINISHED,
    sampler: str = "prior",
    objective: str = "throughput",
) -> str:
    store.create_or_resume_study(
        StudySpec(
            name=name,
            seed=7,
            engine=EngineKind.SIMULATED if simulated else EngineKind.PROCESS,
            simulated=simulated,
            clock=ClockKind.VIRTUAL if simulated else ClockKind.WALL,
            target_trials=target,
            identity={"model": model, "workload": "chat", "space": "abc", "node": NODE.name, "vllm_version": "0.32.0"},
            spec={"workload": "chat", "node": encode(NODE), "slo": slo, "sampler": sampler, "objective": objective},
        )
    )
    store.set_study_state(name, state)
    return name


def latency(p95_s: float, width: float = 0.12) -> Latency:
    def at(share: float) -> Estimate:
        return Estimate(value=p95_s * share, low=p95_s * share * (1 - width), high=p95_s * share * (1 + width))

    return Latency(count=900, mean=at(0.55), p50=at(0.5), p90=at(0.85), p95=at(1.0), p99=at(1.3))


def level(role: LevelRole, tok_s: float, ttft_s: float, *, concurrency: int = 64) -> Measurement:
    closed = role is not LevelRole.TTFT
    empty = dict.fromkeys(("total_tok_s", "goodput_rps", "ttft_from_send_s", "itl_s"))
    return Measurement(
        level=LoadLevel(
            name=f"ramp-{concurrency}" if role is LevelRole.RAMP else role.value,
            role=role,
            arrivals=Arrivals.CLOSED if closed else Arrivals.POISSON,
            requests=900,
            seed=3,
            concurrency=concurrency if closed else None,
            rate_rps=None if closed else 8.5,
        ),
        clock=ClockKind.WALL,
        duration_s=75.0,
        steady_s=61.0,
        planned=900,
        completed=900,
        failed=0,
        errors=(),
        prompt_tokens=460_800,
        output_tokens=115_200,
        output_tok_s=Estimate(value=tok_s, low=tok_s * 0.98, high=tok_s * 1.02),
        request_rps=Estimate(value=tok_s / 128, low=tok_s / 131, high=tok_s / 125),
        ttft_s=latency(ttft_s),
        tpot_s=latency(0.02),
        e2e_s=latency(3.0),
        server=ServerDelta(
            preemptions=3, prefix_queries=10_000, prefix_hits=4200, kv_usage_max=0.83, queue_time_mean_s=0.02
        ),
        **empty,
    )


def measured(tok_s: float, ttft_s: float, *, simulated: bool = False, ramp: bool = False) -> TrialResult:
    steps = [
        level(LevelRole.RAMP, tok_s * part, ttft_s * part, concurrency=n)
        for n, part in ((8, 0.3), (16, 0.55), (32, 0.8))
    ]
    return TrialResult(
        outcome=Outcome.MEASURED,
        clock=ClockKind.VIRTUAL if simulated else ClockKind.WALL,
        simulated=simulated,
        facts=ServerFacts(
            vllm_version="0.32.0",
            kv_cache_tokens=412_336,
            max_concurrency=12.6,
            startup_s=92.0,
            max_num_seqs=256,
            gpu_memory_utilization=0.92,
        ),
        measurements=(
            *(steps if ramp else ()),
            level(LevelRole.THROUGHPUT, tok_s, ttft_s * 4),
            level(LevelRole.TTFT, tok_s * 0.8, ttft_s),
        ),
        phase_seconds=((Phase.LAUNCHING, 92.0), (Phase.WARMING, 15.0), (Phase.MEASURING, 140.0), (Phase.STOPPING, 3.0)),
        caveats=(Caveat(code="unsteady", text="median TTFT rose by 12 %", remedy="Send more requests per level."),),
    )


def failed(
    outcome: Outcome = Outcome.INFEASIBLE, kind: FailureClass = FailureClass.KV_CACHE_TOO_SMALL, line: str | None = None
) -> TrialResult:
    return TrialResult(
        outcome=outcome,
        clock=ClockKind.WALL,
        simulated=False,
        failure=Failure(
            kind=kind,
            line=line
            or "ValueError: To serve at least one request with max seq len 131072, 16.00 GiB KV cache is needed",
            remedies=(
                "Lower --max-model-len to what the workload needs.",
                "Raise --gpu-memory-utilization from 0.9 to 0.92.",
            ),
            facts=(("needed_kv_bytes", 17_179_869_184),),
            exit_status=1,
        ),
        phase_seconds=((Phase.LAUNCHING, 48.0),),
    )


def abandoned(rival: int, ttft_s: float, tok_s: float) -> TrialResult:
    return TrialResult(
        outcome=Outcome.ABANDONED,
        clock=ClockKind.WALL,
        simulated=False,
        measurements=(level(LevelRole.THROUGHPUT, tok_s, ttft_s * 4),),
        phase_seconds=((Phase.LAUNCHING, 92.0), (Phase.MEASURING, 40.0)),
        early=EarlyEnd(
            reason=EarlyReason.DOMINATED,
            rival=rival,
            ttft_s=ttft_s,
            confidence=0.99,
            requests=90,
            planned=900,
            saved_s=60.0,
        ),
    )


def add_trial(
    store: Store,
    study: str,
    result: TrialResult | None,
    values: dict[str, object],
    *,
    repeat_of: int | None = None,
    why: str = "",
) -> int:
    trial = store.begin_trial(
        study,
        config=Config.of(values),
        origin=Origin.REPEAT if repeat_of is not None else Origin.SAMPLER if values else Origin.BASELINE,
        gpus=1,
        repeat_of=repeat_of,
        why=why,
    )
    store.begin_attempt(study, trial.number, directory=f"trial-{trial.number:04d}")
    if result is not None:
        store.finish_trial(study, trial.number, result)
    return trial.number


def usual(store: Store, name: str = "usual", *, slo: str | None = None, simulated: bool = False) -> str:
    """A study with every kind of trial; trial 4 is the pick under 400 ms, trial 2 has the most throughput."""
    add_study(store, name, slo=slo, simulated=simulated)

    def add(result: TrialResult | None, values: dict[str, object], **more: int) -> None:
        add_trial(store, name, result, values, **more)

    add(measured(2000, 0.62, ramp=True, simulated=simulated), {})
    add(measured(2300, 0.30, simulated=simulated), {"max-num-seqs": 128, "max-num-batched-tokens": 4096})
    add(measured(3400, 0.85, simulated=simulated), {"max-num-seqs": 512, "max-num-batched-tokens": 16384})
    add(measured(2100, 0.70, simulated=simulated), {"max-num-seqs": 64, "enable-prefix-caching": False})
    add(measured(2900, 0.33, simulated=simulated), {"max-num-seqs": 512, "max-num-batched-tokens": 4096})
    add(
        measured(2890, 0.34, simulated=simulated),
        {"max-num-seqs": 512, "max-num-batched-tokens": 4096, "stream-interval": 4},
    )
    add(failed(), {"max-num-seqs": 1024, "gpu-memory-utilization": 0.5})
    add(abandoned(4, 0.75, 2500), {"max-num-seqs": 32, "max-num-batched-tokens": 8192})
    add(failed(Outcome.FAULTED, FailureClass.HANG), {"max-num-seqs": 256, "enforce-eager": True})
    add(measured(2010, 0.60, simulated=simulated), {}, repeat_of=0)
    add(measured(2880, 0.335, simulated=simulated), {"max-num-seqs": 512, "max-num-batched-tokens": 4096}, repeat_of=4)
    return name


def guarded(store: Store, name: str = "guarded") -> str:
    """A study that tried an fp8 KV cache, which held its answers, and fp8 weights, which lost them."""
    add_study(store, name)
    held = Quality(
        state=QualityState.HELD,
        why="all figures are within their thresholds",
        prompt_set="shipped (1a2b3c4d)",
        prompts=36,
        reference="trial 0",
        lossy=("kv-cache-dtype=fp8",),
        perplexity_ratio=Estimate(value=1.0012, low=0.9991, high=1.0031),
        logprob_gap=Estimate(value=0.0204, low=0.0151, high=0.0252),
        agreement=Estimate(value=0.875, low=0.802, high=0.951),
        by_subject=(("code", 0.9), ("mathematics", 0.85)),
        seconds=12.0,
    )
    lost = replace(
        held,
        state=QualityState.LOST,
        why="greedy agreement 0.21 [0.15 .. 0.28] is below 0.6",
        lossy=("quantization=fp8",),
        agreement=Estimate(value=0.21, low=0.15, high=0.28),
    )
    reference = Quality(state=QualityState.REFERENCE, why="others are compared with it", prompts=36)
    for tok_s, ttft_s, values, quality in (
        (2000, 0.62, {}, reference),
        (2600, 0.41, {"kv-cache-dtype": "fp8"}, held),
        (3400, 0.38, {"quantization": "fp8"}, lost),
        (2100, 0.60, {"max-num-seqs": 512}, None),
    ):
        add_trial(store, name, replace(measured(tok_s, ttft_s), quality=quality), values)
    return name


def by_chance(store: Store, name: str = "by-chance") -> str:
    """Random search of the question that `usual` asks."""
    add_study(store, name, sampler="random", target=3)
    for tok_s, ttft_s, values in (
        (2000, 0.61, {}),
        (2100, 0.5, {"max-num-seqs": 64}),
        (1500, 0.9, {"max-num-seqs": 16}),
    ):
        add_trial(store, name, measured(tok_s, ttft_s), values)
    return name


def probed(rate_rps: float, ttft_s: float) -> Measurement:
    """A level at a rate that the search for a goodput tried."""
    found = level(LevelRole.GOODPUT, rate_rps * 128, ttft_s)
    how = replace(found.level, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=rate_rps)
    return replace(found, level=replace(how, name=f"goodput-{rate_rps:g}"))


def goodput(store: Store, name: str = "goodput") -> str:
    """Highest rates within an SLO; of trial 1 no rate that was tried missed it."""
    add_study(store, name, objective="goodput", slo="ttft_p95<=400ms", target=3)
    for rate_rps, ttft_s, values, is_open in (
        (10.0, 0.3, {}, False),
        (14.0, 0.31, {"max-num-seqs": 512}, True),
        (8.0, 0.2, {"max-num-seqs": 64}, False),
    ):
        base = measured(rate_rps * 128, ttft_s)
        tried = tuple(probed(rate_rps * share, ttft_s * (1 + share)) for share in (0.5, 0.8, 1.0))
        width = 0.0 if is_open else 0.04
        around = Estimate(value=rate_rps, low=rate_rps * (1 - width), high=rate_rps * (1 + width))
        searched = Goodput(
            slo=Slo.of(ttft_p95=0.4),
            end=GoodputEnd.LEVELS if is_open else GoodputEnd.NARROW,
            rate_rps=replace(around, low=None, high=None) if is_open else around,
            output_tok_s=Estimate(value=rate_rps * 128),
            levels=3,
            seconds=180.0,
            is_open=is_open,
        )
        add_trial(store, name, replace(base, measurements=(*base.measurements, *tried), goodput=searched), values)
    return name


def empty(store: Store, name: str = "empty") -> str:
    return add_study(store, name, state=StudyState.RUNNING)


def one_trial(store: Store, name: str = "one") -> str:
    add_study(store, name, state=StudyState.RUNNING)
    add_trial(store, name, measured(2000, 0.62, ramp=True), {})
    return name


def all_infeasible(store: Store, name: str = "infeasible") -> str:
    add_study(store, name, target=6)
    for number in range(6):
        kind = FailureClass.OOM_AT_LOAD if number % 3 == 2 else FailureClass.KV_CACHE_TOO_SMALL
        add_trial(store, name, failed(kind=kind), {"max-num-seqs": 64 * number} if number else {})
    return name


def long_names(store: Store, name: str = LONG) -> str:
    add_study(store, name, model=LONG_MODEL)
    add_trial(store, name, measured(2000, 0.62), {})
    word = "a-value-without-any-place-to-break-it-" * 5
    add_trial(
        store,
        name,
        measured(2300, 0.4),
        {"a-flag-whose-name-is-much-longer-than-any-that-there-is": word, "max-num-seqs": 4},
    )
    add_trial(
        store,
        name,
        failed(line="x" * 900),
        {"speculative-config": '{"method": "eagle3", "model": "' + "m" * 120 + '"}'},
    )
    return name


def hostile(store: Store, name: str = "hostile") -> str:
    add_study(store, name, model=HOSTILE)
    add_trial(store, name, measured(2000, 0.62), {})
    add_trial(
        store, name, measured(2300, 0.4), {HOSTILE: HOSTILE, "served-model-name": HOSTILE}, why=f"sampler: {HOSTILE}"
    )
    add_trial(store, name, failed(line=HOSTILE), {"x": HOSTILE})
    return name


def many(store: Store, trials: int = 1000, name: str = "many") -> str:
    """A wide study: figures drawn around a curve of throughput against TTFT, one in nine without any."""
    rng = random.Random(11)
    add_study(store, name, target=trials, slo="ttft_p95<=500ms")
    for number in range(trials):
        values: dict[str, object] = {
            "max-num-seqs": rng.choice([32, 64, 128, 256, 512, 1024]),
            "max-num-batched-tokens": rng.choice([2048, 4096, 8192, 16384]),
            "gpu-memory-utilization": rng.choice([0.88, 0.9, 0.92, 0.94]),
            "kv-cache-dtype": rng.choice(["auto", "fp8"]),
            "enable-prefix-caching": rng.choice([True, False]),
            "seed": number,
        }
        effort = rng.random()
        ttft_s = 0.12 * 10 ** (effort * 0.9) * rng.lognormvariate(0.15, 0.18)
        tok_s = (1800 + 2600 * effort) * min(1.0, rng.betavariate(9, 2))
        result = failed() if number and number % 9 == 0 else measured(tok_s, ttft_s, ramp=number == 0)
        add_trial(store, name, result, values if number else {})
    return name


def make_all(path: Path, *, trials: int = 0) -> None:
    """All states in one database; with `trials`, the large one as well."""
    with Store.open(path) as store:
        for make in (usual, by_chance, goodput, empty, one_trial, all_infeasible, long_names, hostile):
            make(store)
        usual(store, "with-slo", slo="ttft_p95<=400ms")
        usual(store, "simulated", simulated=True)
        many(store, 50, name="wide")
        if trials:
            many(store, trials)
