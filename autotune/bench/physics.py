"""The hidden nodes' physics: throughput and TTFT of all configs of a space at once, as a fluid model. Pure.

A truth to search against, and no predictor: it is written apart from what the samplers predict with, so that it errs
differently. Steps are a roofline of the same public arithmetic (`columns`); the schedule is solved for its steady state
instead of being played through:

* closed loop: as many requests run as clients, `max_num_seqs` and KV blocks allow; prompts are chunked into what the
  token budget leaves, so a step either holds a chunk or only decodes; the mix follows from prompt and output lengths;
* open loop: the same at the batch that Little's law gives for the rate; waiting is that of a queue before the prompt's
  chunks (Pollaczek-Khinchine) and, near and beyond capacity, the backlog that a run of `RUN_S` seconds builds up.

Coefficients are those of the simulator, each multiplied by a factor that the surface's seed decides.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from autotune.bench.columns import Column, Columns
from autotune.records import Gpu
from autotune.search.need import Traffic
from autotune.simulator.coefficients import Coefficients

RUN_S = 25.0
ROUNDS = 30
FITTED_LAYERS = 32
FP16_BYTES = 2
_SHARES = frozenset({"compute_share", "attention_compute_share", "weight_read_share", "kv_read_share"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is offered, per GPU used: requests in flight of the closed loop, requests/s of the open one."""

    concurrency: float
    rate_rps: float


def perturbed(coefficients: Coefficients, share: float, rng: np.random.Generator) -> Coefficients:
    """Every physical coefficient off by `share`, up or down as the generator says; shares of a peak stay below 1."""
    changed: dict[str, float] = {}
    for one in fields(coefficients):
        value = getattr(coefficients, one.name)
        factor = 1.0 + share if rng.random() < 0.5 else 1.0 - share
        if not isinstance(value, float) or one.name in {"step_noise", "run_noise", "draft_acceptance"}:
            continue
        changed[one.name] = min(0.98, value * factor) if one.name in _SHARES else value * factor
    return replace(coefficients, **changed)  # type: ignore[arg-type]  # float fields only, by the check above


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One hidden node under one workload."""

    gpu: Gpu
    hidden_size: int
    traffic: Traffic
    coefficients: Coefficients

    def step_s(self, k: Columns, decodes: Column, chunk: Column, context: float) -> Column:
        """Seconds of one step on one stage: `decodes` sequences of `context` tokens, and `chunk` prompt tokens."""
        c, gpu = self.coefficients, self.gpu
        assert gpu.bf16_flops is not None  # the nodes of the benchmark are all in the catalogue
        assert gpu.memory_bytes_per_s is not None
        peak, bandwidth = gpu.bf16_flops, gpu.memory_bytes_per_s
        tokens = decodes + chunk
        flops = (tokens + c.half_tokens) * k.flops_token * k.flops_scale + decodes * k.flops_output / k.pp
        compute = flops / (peak * c.sustained_compute_share)
        memory = k.read_bytes / (bandwidth * c.weight_read_share)
        prompt = self.traffic.prompt_mean or 1.0
        compute += k.pair_flops * chunk * np.minimum(prompt, chunk) / 2 / (peak * c.attention_compute_share)
        memory += k.kv_read_bytes * (decodes * context + chunk * prompt * 0.01) / (bandwidth * c.kv_read_share)
        together = tokens * np.where(k.exchanges > 0, k.dp, 1.0)
        hit = k.experts * (1.0 - (1.0 - k.experts_per_token / np.maximum(k.experts, 1.0)) ** together)
        crowd = 1.0 + k.dealt * (c.expert_skew_share + 0.5 * k.expert_ranks / np.maximum(hit, 1.0))
        rows = together * k.experts_per_token + hit * c.tile_tokens
        compute += (
            rows
            / k.expert_ranks
            * k.expert_flops
            * k.flops_scale
            * crowd
            / (peak * c.sustained_compute_share * c.expert_share)
        )
        memory += (
            np.minimum(hit / k.expert_ranks * crowd, k.experts)
            * k.expert_bytes
            / (bandwidth * c.weight_read_share * c.expert_share)
        )
        total = np.hypot(compute, memory)
        total = total + k.allreduces * self._collective_s(k, k.tp, tokens)
        total = total + k.exchanges * 2 * self._collective_s(k, k.world, together)
        deep = np.maximum(1.0, k.layers / FITTED_LAYERS)
        total = total + c.step_overhead_s * deep + c.rank_overhead_s * (k.tp - 1) + c.moe_layer_s * k.moe_layers
        total = total + c.sequence_s * decodes + c.stage_overhead_s * (k.pp > 1) + c.lock_step_s * (k.exchanges > 0)
        total = total + c.prefill_overhead_s * (chunk > 0)
        floor = np.where(k.eager > 0, c.eager_floor_s, c.uncaptured_floor_s * 0.5) * deep
        total = np.where((k.eager > 0) | (tokens > k.graph_tokens), np.maximum(total, floor), total)
        planned: Column = np.where(k.overlapped > 0, np.maximum(total, c.engine_cpu_s), total + c.unoverlapped_cpu_s)
        return planned

    def _collective_s(self, k: Columns, ranks: Column, tokens: Column) -> Column:
        c = self.coefficients
        payload = 2 * (ranks - 1) / ranks * self.hidden_size * FP16_BYTES
        more = np.maximum(ranks - 2, 0.0)
        nvlink = c.allreduce_latency_s * (1 + c.nvlink_rank_share * more) + tokens * payload / c.nvlink_bytes_per_s
        pcie = c.allreduce_pcie_latency_s * (1 + c.pcie_rank_share * more)
        pcie = pcie + tokens * payload / c.pcie_bytes_per_s * (1 + c.pcie_contention_share * more)
        wire = np.where(k.pcie > 0, pcie * np.where(k.across > 0, c.socket_factor, 1.0), nvlink)
        several: Column = np.where(ranks > 1, wire, 0.0)
        return several

    def throughput(self, k: Columns, concurrency: float | None) -> Column:
        """Output tokens/s per GPU of a closed loop of `concurrency` requests per GPU; None for as many as fit."""
        prompt, output = self._lengths()
        clients = np.inf if concurrency is None else concurrency * k.tp * k.pp
        fits = np.maximum(1.0, 0.97 * k.kv_tokens / (prompt + 0.55 * output))
        running = np.minimum(np.minimum(clients, k.seqs), fits) / k.pp
        step, decodes = self._steady(k, running)
        rate = decodes / step
        # Where blocks are short, admitted requests outgrow them and some prompts are computed twice.
        short = (fits < k.seqs) & (fits < clients)
        rate = np.where(short, rate * (1.0 - 0.10 * prompt / (prompt + 4 * output)), rate)
        per_gpu = rate / (k.tp * k.pp)
        api = output / self._api_s(k) * np.minimum(k.api_servers, 16.0) / k.gpus
        joined: Column = (per_gpu**-4.0 + api**-4.0) ** -0.25
        return joined

    def ttft_p95_s(self, k: Columns, rate_rps: float) -> Column:
        """p95 TTFT of Poisson arrivals at `rate_rps` per GPU."""
        c = self.coefficients
        prompt, output = self._lengths()
        rate = rate_rps * k.tp * k.pp / k.pp  # of one lane of one replica
        most = np.maximum(1.0, np.minimum(k.seqs, 0.97 * k.kv_tokens / (prompt + 0.55 * output)) / k.pp)
        running = np.minimum(most, np.maximum(1.0, rate * output * 0.02))
        for _ in range(ROUNDS):
            step, _ = self._steady(k, running)
            step = step * k.pp
            running = np.minimum(most, 0.5 * running + 0.5 * np.maximum(1.0, rate * (output * step + prompt * 1e-5)))
        room = np.maximum(k.budget - running, 0.05 * k.budget)
        chunk = np.minimum(room, prompt)
        full = self.step_s(k, running, room, self._context())
        own = self.step_s(k, running, chunk, self._context()) * k.pp * np.maximum(1.0, prompt / room)
        service = full * prompt / room
        busy = np.minimum(0.97, rate * service * 0.8)
        wait = 3.0 * service * busy / (2.0 * (1.0 - busy)) * 1.3
        capacity = self.throughput(k, None) / output
        load = rate_rps / capacity
        # Beyond capacity the last arrivals wait for the whole backlog; just below it chance builds up a part of one.
        excess = 0.04 * np.logaddexp(0.0, (1.0 - 1.0 / load) / 0.04)
        api = self._api_s(k) * rate_rps * k.gpus / np.minimum(k.api_servers, 16.0)
        api_wait = self._api_s(k) * np.minimum(api, 0.95) / (1.0 - np.minimum(api, 0.95))
        latency = c.api_in_latency_s + c.api_out_latency_s + c.api_request_s + c.api_prompt_token_s * prompt
        total: Column = 1.15 * own + 0.6 * step + wait + 3.0 * api_wait + latency + 0.95 * RUN_S * excess * (load > 0.7)
        return total

    def _steady(self, k: Columns, running: Column) -> tuple[Column, Column]:
        """Mean seconds of a step of one lane, and how many requests get a token in it."""
        prompt, output = self._lengths()
        decodes = running * output / (output + 1.0)
        context = self._context()
        saturated = np.maximum(1.0, k.budget * output / (prompt + output))
        decodes = np.minimum(decodes, saturated)
        for _ in range(4):
            wanted = decodes * prompt / output
            room = np.maximum(k.budget - decodes, 1.0)
            chunk = np.minimum(room, np.maximum(prompt, wanted))
            holds = np.minimum(1.0, wanted / chunk)
            decodes = np.minimum(np.maximum(running - holds * chunk / prompt, 0.3 * running), saturated)
        with_chunk = self.step_s(k, decodes, chunk, context)
        without = self.step_s(k, decodes, np.zeros_like(decodes), context)
        return holds * with_chunk + (1.0 - holds) * without, decodes

    def _api_s(self, k: Columns) -> Column:
        c = self.coefficients
        prompt, output = self._lengths()
        return (
            c.api_request_s
            + prompt * c.api_prompt_token_s
            + output * (c.api_token_s + c.api_chunk_s / k.stream_interval)
        )

    def _lengths(self) -> tuple[float, float]:
        return self.traffic.prompt_mean or 1.0, self.traffic.output_mean or 1.0

    def _context(self) -> float:
        prompt, output = self._lengths()
        return prompt + output / 2


def knee_load(node: Node, baseline: Columns, longest_concurrency: int = 512) -> Load:
    """The load of a study, found on the baseline as `load.ramp` does: concurrency doubles until a doubling gains less
    than 5 %; twice the knee in flight, 0.85 of the capacity as the rate."""
    from autotune.load.ramp import HEAD_ROOM, MIN_GAIN, RATE_SHARE, START_PER_GPU

    seen = [(START_PER_GPU, float(node.throughput(baseline, START_PER_GPU)[0]))]
    while seen[-1][0] < longest_concurrency:
        concurrency = min(2 * seen[-1][0], longest_concurrency)
        seen.append((concurrency, float(node.throughput(baseline, concurrency)[0])))
        if seen[-1][1] < (1.0 + MIN_GAIN) * seen[-2][1]:
            break
    best = max(rate for _, rate in seen)
    knee = next(concurrency for concurrency, rate in seen if rate >= 0.95 * best)
    output = node.traffic.output_mean or 1.0
    return Load(
        concurrency=min(HEAD_ROOM * knee, longest_concurrency),
        rate_rps=RATE_SHARE * best / output,
    )
