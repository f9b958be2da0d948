"""Parameters that are worth a dimension in some cases only; each says why in this one, or why not. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable

from autotune.node.defaults import parse_version
from autotune.records import Value
from autotune.search.need import Need, Omission
from autotune.search.parameter import Parameter

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2})
"""n-gram look-up as `--speculative-config` takes it: lossless, needs no second model."""

_ASYNC_BY_DEFAULT = (0, 14, 0)
_BUSY_TOKENS_S = 10_000.0
"""Tokens per second through one HTTP process from which on it may be what limits. Assumed."""
_DEFAULT_GRAPH_LIMIT = 512
_MANY_STREAMS = 256
_LONG_PROMPT = 8192


def secondary_parameters(need: Need) -> list[Parameter | Omission]:
    """In the order of their expected worth; in a wide space also those that have no reason of their own."""
    if need.accepted is None:
        return [Omission(name=name, why="which flags this vLLM has is not known") for name, _ in _CANDIDATES]
    found: list[Parameter | Omission] = []
    for name, make in _CANDIDATES:
        choices, why, worth = make(need)
        if choices and (worth or need.wide):
            parameter = Parameter(name=name, choices=choices, why=why)
            found.append(_outside_pipelines(parameter, need) if name == "speculative-config" else parameter)
        else:
            found.append(Omission(name=name, why=why))
    return found


_Made = tuple[tuple[Value, ...], str, bool]
"""Choices (none where the flag makes no sense here), the reason for or against, and whether it is one for."""


def _speculation(need: Need) -> _Made:
    if need.keeps_states:
        return (), "state layers keep nothing to go back to when a guess was wrong", False
    if need.traffic.repeats_input:
        return (None, NGRAM), "outputs repeat their inputs: n-gram guesses cost little, and change no answer", True
    return (None, NGRAM), "outputs are not known to repeat their inputs", False


def _api_servers(need: Need) -> _Made:
    rate = _tokens_per_s(need)
    if rate is None:
        return (None, 2), "how many tokens a second go through one HTTP process is not known", False
    count = max(2, min(4, need.node.gpu_count))
    text = f"up to about {rate:,.0f} tokens/s of a replica go through its HTTP process"
    if rate >= _BUSY_TOKENS_S:
        return (None, count), f"{text}, which may be what limits; by default one per DP rank", True
    return (None, count), f"{text}, which one process carries", False


def _async_scheduling(need: Need) -> _Made:
    if parse_version(need.vllm_version) >= _ASYNC_BY_DEFAULT:
        return (None, False), "steps are scheduled ahead by default", False
    return (None, True), "off by default in this version: the next step is scheduled while this one runs", True


def _graph_sizes(need: Need) -> _Made:
    held = need.held
    if held is None or held <= _DEFAULT_GRAPH_LIMIT:
        known = "" if held is None else f" (KV holds about {held:.0f} average requests)"
        return (None, 1024), f"decode batches stay within the {_DEFAULT_GRAPH_LIMIT} that are captured{known}", False
    why = (
        f"KV holds about {held:.0f} average requests, and batches above {_DEFAULT_GRAPH_LIMIT} run without a CUDA graph"
    )
    return (None, 1024), why, True


def _performance_mode(need: Need) -> _Made:
    held, asked = need.held, need.traffic.concurrency
    few = min((x for x in (held, asked) if x is not None), default=None)
    if few is not None and few <= 32:
        why = f"at most about {few:.0f} requests run at once: graphs of every small batch size spare padding"
        return ("balanced", "interactivity"), why, True
    return (
        ("balanced", "interactivity"),
        "pays for batches of up to 32; its other mode sets what is searched here",
        False,
    )


def _numa_bind(need: Need) -> _Made:
    topology = need.node.topology
    near = set() if topology is None else {one for one in topology.numa if one is not None}
    nodes = len(near) if topology is None or topology.numa_nodes is None else topology.numa_nodes
    if topology is None or any(one is None for one in topology.numa):
        return (), "G13: which NUMA node a GPU is near is not known", False
    if nodes < 2:
        return (), "G13: the machine has one NUMA node", False
    return (False, True), f"G13: {nodes} NUMA nodes, GPUs near {', '.join(map(str, sorted(near)))}", True


def _block_size(need: Need) -> _Made:
    if need.keeps_states or need.latent:
        return (), "the attention kernels of this model choose their own", False
    longest = need.traffic.prompt_p95
    if longest is not None and longest >= _LONG_PROMPT:
        return (None, 32), f"prompts of {longest:.0f} tokens (p95): larger blocks halve the block tables", True
    return (None, 32), "prompts are not long enough for block tables to matter", False


def _stream_interval(need: Need) -> _Made:
    rate, held = _tokens_per_s(need), need.held
    if rate is not None and held is not None and held >= _MANY_STREAMS and rate >= _BUSY_TOKENS_S:
        streams = f"about {min(held, 1024):.0f} streams at once"
        why = f"{streams}: one chunk for 4 tokens spares HTTP work, and the first token is not held back"
        return (1, 4), why, True
    return (1, 4), "few enough streams for a chunk per token", False


def _tokens_per_s(need: Need) -> float | None:
    """Most tokens a second of a replica's decode steps: sequences over the time to read its weights and KV once."""
    shape, gpu = need.tightest or need.shape, need.gpu
    if shape is None or gpu is None or gpu.memory_bytes_per_s is None or need.held is None or not need.layouts:
        return None
    first = need.layouts[0]
    gpus = first.tensor * first.pipeline
    sequences = min(256.0, (first.kv_tokens_predicted or 0) / need.request_tokens)
    expert_bytes = sum(layer.expert_bytes for layer in shape.decoder)
    read = (shape.weight_bytes - expert_bytes) / gpus
    if shape.experts is not None:
        # A batch reads every expert that one of its tokens passes, far more than the experts of one token; all
        # replicas share them.
        share = min(1.0, shape.experts.per_token / shape.experts.count)
        read += expert_bytes * (1 - (1 - share) ** (sequences * first.data)) / (gpus * first.data)
    # A latent is not split by tensor parallelism.
    read += sequences * need.request_tokens * shape.kv_bytes_per_token / (first.pipeline if need.latent else gpus)
    return sequences * gpu.memory_bytes_per_s / read if read > 0 else None


def _outside_pipelines(parameter: Parameter, need: Need) -> Parameter:
    """Speculation only where there is one stage, when both are searched."""
    stages = sorted({plan.pipeline for plan in need.layouts})
    if len(stages) < 2 or stages[0] != 1:
        return parameter
    return Parameter(
        name=parameter.name, choices=parameter.choices, why=parameter.why, when=(("pipeline-parallel-size", (1,)),)
    )


_CANDIDATES: tuple[tuple[str, Callable[[Need], _Made]], ...] = (
    ("speculative-config", _speculation),
    ("api-server-count", _api_servers),
    ("async-scheduling", _async_scheduling),
    ("max-cudagraph-capture-size", _graph_sizes),
    ("performance-mode", _performance_mode),
    ("numa-bind", _numa_bind),
    ("block-size", _block_size),
    ("stream-interval", _stream_interval),
)
