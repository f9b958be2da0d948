"""Rules about lengths, steps and the server around the engine (rows G7, G8, G10). Pure.

Sources: vLLM 0.32 `config/scheduler.py` (verify_max_model_len), `config/vllm.py` (async scheduling),
`config/speculative.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from autotune.records import Value
from autotune.search.rules_base import BATCH_FLAGS, LENGTH_FLAGS, Case, Finding, Rule

_NGRAM = frozenset({"ngram", "[ngram]"})


def batch_holds_sequences(case: Case) -> Iterator[Finding]:
    """A step gives every running sequence at least one token."""
    tokens, seqs = case.settings.max_num_batched_tokens, case.settings.max_num_seqs
    if tokens < seqs:
        yield Finding(
            reason="max-num-batched-tokens is below max-num-seqs",
            text=f"max-num-batched-tokens {tokens} < max-num-seqs {seqs}: a step cannot give every sequence a token",
            remedy=f"max-num-batched-tokens {seqs} or more, or max-num-seqs {tokens} or less",
        )


def unchunked_batch(case: Case) -> Iterator[Finding]:
    """Without chunked prefill a prompt must fit one step; with it a longer one takes several, which is legal."""
    settings = case.settings
    if case.shape is None and "max-model-len" not in case.values:
        return
    tokens, length = settings.max_num_batched_tokens, settings.max_model_len
    if not settings.chunked_prefill and tokens < length:
        yield Finding(
            reason="without chunked prefill max-num-batched-tokens must reach max-model-len",
            text=f"max-num-batched-tokens {tokens} < max-model-len {length} with chunked prefill off",
            remedy=f"leave chunked prefill on, max-num-batched-tokens {length}, or cut max-model-len",
        )


def positions(case: Case) -> Iterator[Finding]:
    """vLLM refuses more than config.json allows, unless rope scaling is overridden or the check is switched off."""
    shape, length = case.known_shape, case.settings.max_model_len
    lifted = case.values.get("hf-overrides") or case.values.get("env:VLLM_ALLOW_LONG_MAX_MODEL_LEN")
    if length > shape.max_position_embeddings and not lifted:
        yield Finding(
            reason="max-model-len is beyond the model's positions",
            text=f"max-model-len {length} > {shape.max_position_embeddings} positions of {shape.name}",
            remedy=f"max-model-len {shape.max_position_embeddings} at most",
        )


def workload_length(case: Case) -> Iterator[Finding]:
    """The longest request that will be sent must be admitted."""
    needed, length = case.context.needed_len, case.settings.max_model_len
    if needed is not None and length < needed:
        yield Finding(
            reason="the workload's longest request does not fit max-model-len",
            text=f"the longest request has {needed} tokens, max-model-len is {length}",
            remedy=f"max-model-len {needed} or more, or a shorter workload",
        )


def floor_length(case: Case) -> Iterator[Finding]:
    """What the operator wants admitted, beyond what the workload sends."""
    floor, length = case.context.min_model_len, case.settings.max_model_len
    if floor is not None and length < floor:
        yield Finding(
            reason="max-model-len is below the length that must be admitted",
            text=f"max-model-len {length} < {floor} tokens that --min-model-len asks for",
            remedy=f"max-model-len {floor} or more, a lower --min-model-len, or a model with a longer context",
        )


def speculation(case: Case) -> Iterator[Finding]:
    """The window of n-gram look-up has two ends; what is no JSON object at all is a bad value of the flag."""
    parsed = speculative_config(case.values) or {}
    least, most = parsed.get("prompt_lookup_min"), parsed.get("prompt_lookup_max")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding(
            reason="speculative-config has prompt_lookup_min above prompt_lookup_max",
            text=f"speculative-config: prompt_lookup_min {least} > prompt_lookup_max {most}",
            remedy=f"prompt_lookup_min {most} at most",
        )


def speculation_async(case: Case) -> Iterator[Finding]:
    """vLLM refuses n-gram speculation on the CPU beside asynchronous scheduling that was asked for."""
    if case.values.get("async-scheduling") is not True:
        return
    parsed = speculative_config(case.values) or {}
    method = parsed.get("method") or parsed.get("model")
    if isinstance(method, str) and method in _NGRAM:
        yield Finding(
            reason="n-gram speculation does not go with --async-scheduling",
            text=f"--async-scheduling with speculative method {method}: vLLM refuses to start",
            remedy="leave --async-scheduling off, or use method ngram_gpu",
        )


def speculative_config(values: Mapping[str, Value]) -> dict[str, object] | None:
    """The parsed `--speculative-config`; None where there is none, or none that can be read."""
    text = values.get("speculative-config")
    if not isinstance(text, str):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


_SPECULATION = frozenset({"speculative-config"})

SCHEDULER_RULES = (
    Rule(name="batch-holds-sequences", row="G8", reads=BATCH_FLAGS, judge=batch_holds_sequences),
    Rule(name="unchunked-batch", row="G10", reads=BATCH_FLAGS, judge=unchunked_batch),
    Rule(name="speculation", row="flags", reads=_SPECULATION, judge=speculation),
    Rule(name="speculation-async", row="flags", reads=_SPECULATION | {"async-scheduling"}, judge=speculation_async),
)

LENGTH_RULES = (
    Rule(name="positions", row="G7", reads=LENGTH_FLAGS, judge=positions, needs_shape=True),
    Rule(name="workload-length", row="G7", reads=LENGTH_FLAGS, judge=workload_length, needs_shape=True),
    Rule(name="floor-length", row="G7", reads=LENGTH_FLAGS, judge=floor_length, needs_shape=True),
)
