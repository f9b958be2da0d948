"""A workload's level as the command line of another benchmark client, and what that cannot say. Pure.

Written for `vllm bench serve` of vLLM 0.32 (vllm/benchmarks/serve.py, datasets/datasets.py) and guidellm 0.7
(guidellm/cli/run.py, data/deserializers/synthetic.py). Neither draws the same requests: the same distributions at best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from autotune.load.lengths import Lengths, LengthShape
from autotune.load.workload import Api, Workload
from autotune.load.workload_summary import WorkloadSummary
from autotune.records import Arrivals, LoadLevel

_ENDPOINTS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}
_BACKENDS = {Api.CHAT: "openai-chat", Api.COMPLETIONS: "openai"}
_RATIO_DIGITS = 6


class BenchTool(StrEnum):
    """A client that such a command is for."""

    VLLM_BENCH = "vllm-bench"
    GUIDELLM = "guidellm"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand:
    """A command line, unquoted, and what of the workload it does not carry, one sentence each."""

    argv: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is put into a command: a workload's level, and where it goes.

    Attributes:
        prompt: of what no other request shares; of whole prompts where requests cannot be drawn one by one.
        prefix: count and tokens of openings that every request has one of.
    """

    level: LoadLevel
    api: Api
    seed: int
    url: str
    model: str | None
    prompt: Lengths
    output: Lengths
    prefix: tuple[int, int] | None


def bench_command(
    tool: BenchTool, workload: Workload, summary: WorkloadSummary, *, url: str, model: str | None = None
) -> BenchCommand:
    """The command that comes closest to a level of `workload`.

    Args:
        summary: of the level (workload_summary.sum_up).
        url: of the server, before /v1.
        model: the name to ask for; None for the first that the server lists.
    """
    drawn = workload.trace is None and workload.turns is None
    asked = _Asked(
        level=summary.level,
        api=workload.api,
        seed=workload.seed,
        url=url,
        model=model,
        prompt=workload.prompt_tokens if drawn else Lengths.fixed(max(1, round(summary.prompt.mean))),
        output=workload.output_tokens if drawn else Lengths.fixed(max(1, round(summary.output.mean))),
        prefix=(workload.prefixes.count, workload.prefixes.tokens) if drawn and workload.prefixes else None,
    )
    said = tuple(_unsayable(workload))
    match tool:
        case BenchTool.VLLM_BENCH:
            argv, missing = _vllm_bench(asked)
        case BenchTool.GUIDELLM:
            argv, missing = _guidellm(asked)
        case _:
            assert_never(tool)
    return BenchCommand(argv=argv, missing=said + missing)


def _unsayable(workload: Workload) -> Iterator[str]:
    """What neither client can do."""
    if workload.turns is not None:
        yield (
            "turns: requests are sent alone, with prompts of the mean length of a whole history; no prompt repeats "
            "another, so that a prefix cache serves nothing"
        )
    if workload.trace is not None:
        yield (
            "the recording: prompts and outputs have its mean lengths, nothing is shared between them, and its own "
            "arrival times are not replayed"
        )
    if workload.prefixes is not None and workload.turns is None and workload.prefixes.share < 1:
        yield f"the share of requests with a prefix: all have one, {workload.prefixes.share:.0%} should"


def _vllm_bench(asked: _Asked) -> tuple[tuple[str, ...], tuple[str, ...]]:
    missing: list[str] = []
    argv = ["vllm", "bench", "serve", "--backend", _BACKENDS[asked.api], "--base-url", asked.url]
    argv += ["--endpoint", _ENDPOINTS[asked.api]]
    if asked.model is not None:
        argv += ["--model", asked.model]
    argv += _vllm_data(asked, missing)
    argv += ["--num-prompts", str(asked.level.requests), *_vllm_arrivals(asked.level, missing)]
    argv += ["--seed", str(asked.seed % 2**32), "--temperature", "0", "--ignore-eos"]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,95,99"]
    argv += ["--save-result", "--save-detailed"]
    return tuple(argv), tuple(missing)


def _vllm_data(asked: _Asked, missing: list[str]) -> list[str]:
    prompt, prompt_ratio = _vllm_length("prompt", asked.prompt, missing)
    output, output_ratio = _vllm_length("output", asked.output, missing)
    if asked.prefix is not None and asked.prefix[0] > 1:
        if prompt_ratio or output_ratio:
            missing.append("the spread of lengths: with several prefixes all have the mean length")
        return [
            "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", str(asked.prefix[1]),
            "--prefix-repetition-suffix-len", str(prompt), "--prefix-repetition-num-prefixes", str(asked.prefix[0]),
            "--prefix-repetition-output-len", str(output),
        ]  # fmt: skip
    argv = ["--dataset-name", "random", "--random-input-len", str(prompt), "--random-output-len", str(output)]
    if prompt_ratio or output_ratio:
        argv += ["--random-range-ratio", json.dumps({"input": prompt_ratio, "output": output_ratio})]
    if asked.prefix is not None:
        argv += ["--random-prefix-len", str(asked.prefix[1])]
    return argv


def _vllm_length(name: str, lengths: Lengths, missing: list[str]) -> tuple[int, float]:
    """Its mean and range ratio: it draws evenly from floor(mean x (1 - ratio)) to ceil(mean x (1 + ratio))."""
    mean = max(1, round(lengths.mean))
    if lengths.shape is LengthShape.UNIFORM:
        # Cut rather than rounded, so that floor and ceil give the bounds and not their neighbours.
        ratio = math.floor((mean - lengths.low) / mean * 10**_RATIO_DIGITS) / 10**_RATIO_DIGITS
        if 2 * mean != lengths.low + lengths.high:
            missing.append(f"the longest {name}: its lengths end a token off")
        return mean, ratio
    if lengths.shape is not LengthShape.FIXED:
        missing.append(f"the distribution of {name} lengths: all have the mean, {mean} tokens")
    return mean, 0.0


def _vllm_arrivals(level: LoadLevel, missing: list[str]) -> list[str]:
    if level.rate_rps is None:
        missing.append("the staggered start: all slots send at once in the beginning")
        return ["--max-concurrency", str(level.concurrency or 1)]
    rate = ["--request-rate", f"{level.rate_rps:g}"]
    match level.arrivals:
        case Arrivals.CONSTANT:
            return [*rate, "--burstiness", "inf"]
        case Arrivals.GAMMA:
            return [*rate, "--burstiness", f"{1 / (level.cv or 1.0) ** 2:g}"]
        case Arrivals.RAMP:
            total = (level.ramp_from or 0.0) + (level.ramp_to or 0.0)
            start, end = (2 * level.rate_rps * (at or 0.0) / total for at in (level.ramp_from, level.ramp_to))
            if start > end or round(start) < 1:
                missing.append(f"the ramp from {start:g} to {end:g} requests/s: its own only rises, from 1/s on")
                return rate
            missing.append("the exact ramp: its rates are whole numbers, and rise by request, not by time")
            return [
                "--ramp-up-strategy", "linear",
                "--ramp-up-start-rps", str(round(start)), "--ramp-up-end-rps", str(round(end)),
            ]  # fmt: skip
        case Arrivals.POISSON | Arrivals.TRACE | Arrivals.CLOSED:
            return rate
        case _:
            assert_never(level.arrivals)


def _guidellm(asked: _Asked) -> tuple[tuple[str, ...], tuple[str, ...]]:
    missing: list[str] = []
    backend: dict[str, str | int] = {
        "kind": "openai_http",
        "target": asked.url,
        "request_format": _ENDPOINTS[asked.api],
    }
    if asked.model is not None:
        backend["model"] = asked.model
    data: dict[str, str | int] = {"kind": "synthetic_text"}
    data |= _guidellm_length("prompt", asked.prompt, missing) | _guidellm_length("output", asked.output, missing)
    if asked.prefix is not None:
        data |= {"prefix_count": asked.prefix[0], "prefix_tokens": asked.prefix[1]}
    argv = ["guidellm", "run", "--backend", _setting(backend)]
    argv += ["--profile", _setting(_guidellm_profile(asked.level, missing))]
    argv += ["--constraint", _setting({"kind": "max_requests", "count": asked.level.requests})]
    argv += ["--data", _setting(data)]
    return tuple(argv), tuple(missing)


def _guidellm_length(name: str, lengths: Lengths, missing: list[str]) -> dict[str, str | int]:
    """Its `average`, evenly from min to max where no deviation is given, else a normal distribution cut to them."""
    mean = {f"{name}_tokens": max(1, round(lengths.mean))}
    bounds = {f"{name}_tokens_min": max(1, lengths.low), f"{name}_tokens_max": lengths.high}
    if lengths.shape is LengthShape.FIXED:
        return dict(mean)
    if lengths.shape is LengthShape.UNIFORM:
        return {**mean, **bounds}
    deviation = max(1, round(lengths.mean * math.sqrt(math.expm1(lengths.sigma**2))))
    missing.append(f"the log-normal {name} lengths: normal ones, with the same mean and deviation before they are cut")
    return {**mean, f"{name}_tokens_stdev": deviation, **bounds}


def _guidellm_profile(level: LoadLevel, missing: list[str]) -> dict[str, str | int]:
    if level.rate_rps is None:
        missing.append("the staggered start: all streams send at once in the beginning")
        return {"kind": "concurrent", "streams": level.concurrency or 1}
    rate = f"{level.rate_rps:g}"
    if level.arrivals is Arrivals.CONSTANT:
        return {"kind": "constant", "rate": rate}
    if level.arrivals in {Arrivals.GAMMA, Arrivals.RAMP}:
        missing.append(f"{level.arrivals} arrivals: Poisson ones of the same mean rate")
    return {"kind": "poisson", "rate": rate}


def _setting(values: dict[str, str | int]) -> str:
    """`kind=x,key=value`, or JSON where a value would be cut at its own comma or taken apart otherwise."""
    plain = all(all(sign.isalnum() or sign in "_-./:" for sign in str(value)) for value in values.values())
    return ",".join(f"{key}={value}" for key, value in values.items()) if plain else json.dumps(values)
