"""What vLLM's profiling run adds to the weights, and CUDA graphs. Pure.

The run holds one of these at a time; the largest counts (docs/memory.md gives the recorded figures):

* forward: per batched token the MLP's gate-up and its product (3 x intermediate / TP) or the two workspaces of the
  fused experts (`TritonExperts.workspace_shapes`), and about 3.5 rows of the hidden size, in 16 bit. Recorded for a
  dense model: 0.88 GiB at 8,192 tokens with the compile cache warm;
* MLA: the widest up-projection of cached latents, made on purpose (`MLACommonImpl.forward` without metadata);
* first compile: the profile of a graph that is compiled now peaks at one embedding shard (0.98 GiB recorded) plus two
  hidden rows per token (recorded: 0.99, 1.01, 1.10 GiB at 512, 2,048, 8,192 tokens). That the constant is the
  embedding is our inference: the sizes agree to 0.01 GiB, no source line says it;
* sampler: the logits of `max_num_seqs` requests over the whole vocabulary, and copies of them in 32 bit: one with the
  second model runner, three with the first (`TopKTopPSampler.forward_native`: probabilities and noise), and the
  values, indices and scratch of a sort before top-k had a kernel of its own.
"""

from __future__ import annotations

from autotune.node.defaults import ResolvedSettings, Version
from autotune.node.layers import BYTES_16BIT, embedding_bytes
from autotune.records import AttentionKind, ModelShape

ACTIVATION_HIDDEN_ROWS = 3.5
COMPILE_HIDDEN_ROWS = 2

SECOND_RUNNER_SAMPLER_BYTES = 6
FIRST_RUNNER_SAMPLER_BYTES = 14
SORTING_SAMPLER_BYTES = 36
"""Per request and vocabulary entry: 16-bit logits and what lives beside them. The first two are counted in the source;
the last is fitted to two logged starts of gpt-oss-120b (vllm#23278, vllm#27508), which it meets within 0.3 GiB."""
SORT_FREE_SINCE: Version = (0, 17, 0)
"""About when top-k and top-p stopped sorting the logits; the exact release is not known to us."""

LATENT_WORKSPACE_TOKENS = 64 * 1024
"""Most latents that MLA decompresses at once (`MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size`)."""
ROTARY_OF_LATENT = 64

GRAPHS_ESTIMATED_SINCE: Version = (0, 21, 0)
"""Since when the first model runner's estimate of its CUDA graphs is taken off the budget (gpu_worker.py)."""
SECOND_RUNNER_SINCE: Version = (0, 25, 0)
SECOND_RUNNER_FOR_ALL_SINCE: Version = (0, 32, 0)
SECOND_RUNNER_ESTIMATES_SINCE: Version = (0, 32, 0)
"""Read in 0.25.1 (its estimate is 0) and in 0.32; the releases between are not known to us."""
SECOND_RUNNER_MIXTURES = frozenset({"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"})

GRAPH_BYTES_PER_LAYER = 0.6 * 1024**2
"""Of one full-step graph. Recorded for 32 layers: 0.16, 0.59, 0.98 GiB with 7, 35, 51 of them."""
MOST_CAPTURED = 512


def activation_peak(
    shape: ModelShape, settings: ResolvedSettings, *, compiled: bool, version: Version = (0, 25, 1)
) -> int:
    """Peak that the profiling run adds on one GPU, bytes."""
    tp, tokens = settings.tensor_parallel, settings.max_num_batched_tokens
    row = shape.hidden_size * BYTES_16BIT
    per_token = max(_dense_row(shape, tp), _experts_row(shape, settings))
    peak = tokens * (per_token + ACTIVATION_HIDDEN_ROWS * row)
    if shape.decoder and shape.decoder[0].attention.kind is AttentionKind.LATENT:
        peak = max(peak, _latent_workspace(shape, settings) + tokens * ACTIVATION_HIDDEN_ROWS * row)
    logits = min(settings.max_num_seqs, tokens) * shape.vocab_size
    peak = max(peak, logits * _sampler_bytes(shape, version) + tokens * row)
    if not (compiled or settings.enforce_eager):
        peak = max(peak, embedding_bytes(shape) / tp + tokens * COMPILE_HIDDEN_ROWS * row)
    return round(peak)


def _sampler_bytes(shape: ModelShape, version: Version) -> int:
    if second_runner(shape, version):
        return SECOND_RUNNER_SAMPLER_BYTES
    return FIRST_RUNNER_SAMPLER_BYTES if version >= SORT_FREE_SINCE else SORTING_SAMPLER_BYTES


def second_runner(shape: ModelShape, version: Version) -> bool:
    """Whether vLLM serves this model with its second model runner (`VllmConfig.use_v2_model_runner`)."""
    if version >= SECOND_RUNNER_FOR_ALL_SINCE:
        return True
    if version < SECOND_RUNNER_SINCE:
        return False
    return (shape.experts is None or shape.architecture in SECOND_RUNNER_MIXTURES) and not _hybrid(shape)


_KNOWN_SHAPES = 64
_hybrids: dict[int, tuple[ModelShape, bool]] = {}


def _hybrid(shape: ModelShape) -> bool:
    """Whether some layer keeps a state. Kept by identity: asked twice for every config of a space."""
    known = _hybrids.get(id(shape))
    if known is None or known[0] is not shape:
        if len(_hybrids) >= _KNOWN_SHAPES:
            _hybrids.clear()
        known = shape, any(layer.attention.kind is AttentionKind.STATE for layer in shape.decoder)
        _hybrids[id(shape)] = known
    return known[1]


def graph_bytes_in_budget(shape: ModelShape, settings: ResolvedSettings, version: Version) -> int:
    """CUDA graphs that vLLM takes off the KV cache; 0 where they come on top of the requested share."""
    if settings.enforce_eager or version < GRAPHS_ESTIMATED_SINCE:
        return 0
    if second_runner(shape, version) and version < SECOND_RUNNER_ESTIMATES_SINCE:
        return 0
    return graph_bytes(shape, settings)


def graph_bytes(shape: ModelShape, settings: ResolvedSettings) -> int:
    """What the captured CUDA graphs of one GPU take, roughly; 0 with --enforce-eager."""
    if settings.enforce_eager:
        return 0
    layers = -(-shape.layers // settings.pipeline_parallel)
    return round(full_graphs(settings) * layers * GRAPH_BYTES_PER_LAYER)


def full_graphs(settings: ResolvedSettings) -> int:
    """How many batch sizes are captured as a full step: 1, 2, 4, then by 8 up to 256, then by 16.

    The largest is the smaller of 512, two per sequence and the token budget; full graphs stop at max_num_seqs
    (`VllmConfig._set_cudagraph_sizes`).
    """
    largest = settings.max_cudagraph_capture_size or min(MOST_CAPTURED, 2 * settings.max_num_seqs)
    largest = min(largest, settings.max_num_batched_tokens, settings.max_num_seqs)
    count = sum(size <= largest for size in (1, 2, 4))
    count += min(largest, 255) // 8
    return count + max(0, (largest - 256) // 16 + 1)


def _dense_row(shape: ModelShape, tp: int) -> float:
    if shape.experts is not None and not any(layer.expert_bytes == 0 for layer in shape.decoder):
        return 0.0
    return 3 * shape.intermediate_size * BYTES_16BIT / tp


def _experts_row(shape: ModelShape, settings: ResolvedSettings) -> float:
    """The two workspaces of the fused experts per batched token; DP ranks bring their tokens together."""
    experts = shape.experts
    if experts is None:
        return 0.0
    ranks = settings.tensor_parallel * settings.data_parallel
    width = experts.intermediate_size / (1 if settings.expert_parallel else ranks)
    both = max(width, shape.hidden_size) + max(2 * width, shape.hidden_size)
    return experts.per_token * both * BYTES_16BIT * settings.data_parallel


def _latent_workspace(shape: ModelShape, settings: ResolvedSettings) -> float:
    """Latents of the workspace and what they decompress to: K without its rotary part, and V of the same width."""
    block = settings.max_num_seqs * settings.block_size
    tokens = max(block, min(max(8 * settings.max_model_len, 4 * block), LATENT_WORKSPACE_TOKENS))
    heads = shape.heads / settings.tensor_parallel
    up = heads * 2 * (shape.head_dim - ROTARY_OF_LATENT) * BYTES_16BIT
    latent = shape.decoder[0].attention.head_dim * BYTES_16BIT
    return tokens * (up + latent)
