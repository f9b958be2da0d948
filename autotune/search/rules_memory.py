"""Rules about GPU memory (rows G6, G33, G34), and remedies with the numbers of the case. Pure.

Where arithmetic has an error, the config gets the benefit of `MEMORY_TOLERANCE_SHARE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.node.defaults import ResolvedSettings, Version, parse_version
from autotune.node.memory import CALIBRATED_VERSION, MemoryEstimate, estimate, longest_request
from autotune.records import FP8_CAPABILITY, Gpu, ModelShape, Node
from autotune.search.rules_base import LAYOUT_FLAGS, MEMORY_FLAGS, Case, Finding, Rule
from autotune.search.rules_parallel import SHAPE_RULES, dividing_tensor_sizes
from autotune.units import format_bytes

MEMORY_TOLERANCE_SHARE = 0.02
"""Share of a GPU's memory by which the estimate may be too pessimistic: 1.7 % on the worst publicly logged start of
tests/data/memory (an older engine), 0.02 % on the recorded ones."""

MAX_UTILIZATION = 0.99
"""From here on a server that starts runs out of memory under load: CUDA graphs and NCCL come on top of the share."""

HIGHEST_ADVISED = 0.95
"""What a share is ever raised to; above it there is a warning."""
_MOST_NODES = 16


def utilization(case: Case) -> Iterator[Finding]:
    """1.0 is refused, and what is so near that nothing is left."""
    share = case.settings.gpu_memory_utilization
    if case.node.gpus and share >= MAX_UTILIZATION:
        yield Finding(
            reason=f"gpu-memory-utilization of {MAX_UTILIZATION} or more leaves no room under load",
            text=f"gpu-memory-utilization {share:g} leaves nothing for CUDA graphs and NCCL",
            remedy="0.88-0.92 to start with, up to 0.95 on a dedicated node",
        )


def weights_fit(case: Case) -> Iterator[Finding]:
    """Weights and activations of every pipeline stage within the share of the smallest GPU."""
    found = _estimate(case)
    if found is None or found.available_kv_bytes > 0 or not surely_fits_not(found, smallest_gpu(case.node)):
        return
    yield Finding(
        reason="weights and activations do not fit the GPU",
        text=f"{_split(case)}: {format_bytes(found.weights_bytes_per_gpu)} of weights and at least "
        f"{format_bytes(found.activation_peak_bytes)} of activations per GPU leave nothing of {_share(case)} for KV",
    )


def one_request_fits(case: Case) -> Iterator[Finding]:
    """One request of max-model-len tokens in KV, on the tightest stage: vLLM refuses to start otherwise."""
    found = _estimate(case)
    if found is None or found.available_kv_bytes <= 0 or not surely_fits_not(found, smallest_gpu(case.node)):
        return
    yield Finding(
        reason="KV memory does not hold one request of max-model-len",
        text=f"{_split(case)}: one request of {case.settings.max_model_len} tokens needs "
        f"{format_bytes(found.needed_kv_bytes)} of KV per GPU, about {format_bytes(found.available_kv_bytes)} of "
        f"{_share(case)} are left",
    )


def weights_remedy(case: Case) -> str:
    """In the guide's order (G34): batch, quantised checkpoint, more GPUs; across nodes where this one is too small."""
    shape, settings = case.known_shape, case.settings
    words = []
    if settings.max_num_batched_tokens > 2048 and _holds(case, max_num_batched_tokens=2048, max_num_seqs=256):
        words.append("max-num-batched-tokens 2048 (with max-num-seqs 256 at most)")
    larger = fitting_split(case)
    if larger is not None:
        words.append(larger)
    else:
        beyond = across_nodes(shape, case.node, settings, version_of(case))
        if beyond is not None:
            words.append(f"{beyond[1]} nodes like this: TP {beyond[0]} inside each x PP {beyond[1]} between them")
    if shape.quantization is None:
        words.append(f"a quantised checkpoint ({format_bytes(shape.weight_bytes)} in 16 bit is about a quarter in 4)")
    return ", or ".join(words or ["a smaller model, or larger GPUs"])


def request_remedy(case: Case) -> str:
    """In the guide's order (G35): max-model-len, fp8 KV, utilisation, more GPUs."""
    # A remedy is for the first start of the new config, whose graph has to be compiled.
    found, settings = _estimate(case, compiled=False), case.settings
    if found is None:
        return ""
    gpu, words = smallest_gpu(case.node), []
    longest = longest_request(case.known_shape, settings, found.available_kv_bytes, version=version_of(case))
    if longest >= max(1, case.context.admitted_len or 1):
        words.append(f"max-model-len {longest} at most")
    capability = gpu.compute_capability
    if capability is not None and capability >= FP8_CAPABILITY and _holds(case, kv_cache_dtype="fp8"):
        words.append("kv-cache-dtype fp8")
    missing = (found.needed_kv_bytes - found.available_kv_bytes) / gpu.memory_bytes
    wanted = -(-(settings.gpu_memory_utilization + missing) // 0.01) * 0.01
    if settings.gpu_memory_utilization < wanted <= HIGHEST_ADVISED:
        words.append(f"gpu-memory-utilization {wanted:.2f}")
    larger = fitting_split(case)
    if larger is not None:
        words.append(larger)
    return ", or ".join(words or ["a quantised or smaller model, shorter requests, or larger GPUs"])


def fitting_split(case: Case) -> str | None:
    """The smallest split of one replica over more GPUs that surely fits this node; None when there is none."""
    shape, settings, there = case.known_shape, case.settings, case.node.gpu_count
    now = settings.tensor_parallel * settings.pipeline_parallel
    splits = [
        (tp, pp)
        for tp in dividing_tensor_sizes(shape, there)
        for pp in range(1, min(there // tp, shape.layers) + 1)
        if tp * pp > now
    ]
    for tp, pp in sorted(splits, key=lambda split: (split[0] * split[1], split[1])):
        dp = min(settings.data_parallel, there // (tp * pp))
        if _holds(case, tensor_parallel=tp, pipeline_parallel=pp, data_parallel=dp):
            return f"TP {tp} x PP {pp} ({tp * pp} GPUs per replica)"
    return None


def across_nodes(shape: ModelShape, node: Node, settings: ResolvedSettings, version: Version) -> tuple[int, int] | None:
    """TP inside and the fewest nodes like this one, PP between them, that hold the model (G24); None for none."""
    tp = max(dividing_tensor_sizes(shape, node.gpu_count), default=1)
    for nodes in range(2, min(_MOST_NODES, shape.layers) + 1):
        split = replace(settings, tensor_parallel=tp, pipeline_parallel=nodes, data_parallel=1, expert_parallel=False)
        found = try_estimate(shape, smallest_gpu(node), split, version)
        if found is not None and found.fits:
            return tp, nodes
    return None


def smallest_gpu(node: Node) -> Gpu:
    """The GPU that decides on a mixed node. The node must have one."""
    return min(node.gpus, key=lambda gpu: gpu.memory_bytes)


def surely_fits_not(found: MemoryEstimate, gpu: Gpu) -> bool:
    """Whether one request does not fit even if the estimate is off by the tolerance."""
    return found.available_kv_bytes + MEMORY_TOLERANCE_SHARE * gpu.memory_bytes < found.needed_kv_bytes


def version_of(case: Case) -> Version:
    """The vLLM that memory is estimated for."""
    return version_of_text(case.context.vllm_version)


def version_of_text(text: str | None) -> Version:
    """The vLLM that memory is estimated for where a version is, or is not, known."""
    return CALIBRATED_VERSION if text is None else parse_version(text)


def try_estimate(
    shape: ModelShape, gpu: Gpu, settings: ResolvedSettings, version: Version, *, compiled: bool = False
) -> MemoryEstimate | None:
    """The estimate; None for a KV dtype whose size is not known: a launch finds out."""
    try:
        return estimate(shape, gpu, settings, compiled=compiled, version=version)
    except ValueError:
        return None


def _estimate(case: Case, *, compiled: bool = True) -> MemoryEstimate | None:
    # The most hopeful estimate: the graph already compiled.
    gpu = smallest_gpu(case.node)
    return try_estimate(case.known_shape, gpu, case.settings, version_of(case), compiled=compiled)


def _holds(case: Case, **changed: object) -> bool:
    settings = replace(case.settings, **changed)  # type: ignore[arg-type]  # fields of the settings, by name
    found = try_estimate(case.known_shape, smallest_gpu(case.node), settings, version_of(case))
    return found is not None and found.fits


def _share(case: Case) -> str:
    return f"{case.settings.gpu_memory_utilization:g} x {format_bytes(smallest_gpu(case.node).memory_bytes)}"


def _split(case: Case) -> str:
    return f"TP {case.settings.tensor_parallel} x PP {case.settings.pipeline_parallel}"


UTILIZATION_RULE = Rule(name="utilization", row="G6", reads=frozenset({"gpu-memory-utilization"}), judge=utilization)

# Sizes of a split that cannot be made mean nothing; without GPUs there is no memory to ask about.
_AFTER = frozenset({"gpu-arithmetic"} | {rule.name for rule in SHAPE_RULES})

MEMORY_RULES = (
    Rule(
        name="weights-fit",
        row="G34",
        reads=MEMORY_FLAGS | LAYOUT_FLAGS,
        judge=weights_fit,
        needs_shape=True,
        needs_gpus=True,
        after=_AFTER,
        advise=weights_remedy,
    ),
    Rule(
        name="one-request-fits",
        row="G33",
        reads=MEMORY_FLAGS | LAYOUT_FLAGS,
        judge=one_request_fits,
        needs_shape=True,
        needs_gpus=True,
        after=_AFTER,
        advise=request_remedy,
    ),
)
