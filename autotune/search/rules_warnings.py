"""Doubts: what may start, and is worth knowing before it is measured. They depend on version and backend. Pure.

Sources: vLLM 0.32 `v1/attention/backends/*` (supported KV dtypes, block sizes, compute capabilities),
`config/vllm.py` (async scheduling), `layers/quantization/*` (get_min_capability, block shapes),
`layers/fused_moe/expert_map_manager.py`; public threads where named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.node.memory import ONE_BYTE_KV_DTYPES
from autotune.records import FP8_CAPABILITY, AttentionKind, Link
from autotune.search.rules_base import BATCH_FLAGS, CHECKPOINT, LAYOUT_FLAGS, Case, Finding, Rule
from autotune.search.rules_memory import HIGHEST_ADVISED
from autotune.search.rules_parallel import has_dense_mlp, kv_head_counts
from autotune.search.rules_scheduler import speculative_config

_KERNEL_BLOCK = 16
_CPU_KERNEL_BLOCK = 32
_LARGEST_PLAIN_BLOCK = 64
_GROUP = 128

# Weight formats that are computed in 16 bit below the capability that has the units for them.
_NATIVE_SINCE = {
    "fp8": FP8_CAPABILITY,
    "fbgemm_fp8": FP8_CAPABILITY,
    "modelopt": FP8_CAPABILITY,
    "modelopt_fp4": (10, 0),
    "mxfp4": (10, 0),
}
# Below these they are refused (get_min_capability of vLLM 0.32); older versions asked for more.
_LEAST_CAPABILITY = {"awq": (7, 5), "fp8": (7, 5), "fbgemm_fp8": (8, 0), "mxfp4": (8, 0), "modelopt_fp4": (8, 0)}
_SAME_FORMAT = ({"awq", "awq_marlin", "auto_awq"}, {"gptq", "gptq_marlin", "auto_gptq"})


def idle_gpus(case: Case) -> Iterator[Finding]:
    """Figures are per GPU used: they say nothing about GPUs that stay idle."""
    used, there = case.settings.gpus, case.node.gpu_count
    if 0 < used < there:
        replicas = there // (case.settings.tensor_parallel * case.settings.pipeline_parallel)
        yield Finding(
            reason="GPUs stay idle",
            text=f"{case.layout} uses {used} of {there} GPUs",
            remedy=f"data-parallel-size {replicas} fills them" if replicas > case.settings.data_parallel else "",
        )


def mixed_gpus(case: Case) -> Iterator[Finding]:
    """Every rank takes the block count of the poorest, and the slowest sets the pace."""
    sizes = sorted({(gpu.memory_bytes, gpu.name) for gpu in case.gpus})
    if len(sizes) > 1 and case.settings.tensor_parallel > 1:
        yield Finding(
            reason="tensor parallelism over different GPUs",
            text=f"TP {case.settings.tensor_parallel} over {' and '.join(name for _, name in sizes)}: each holds "
            f"as much as the smallest",
            remedy="pipeline-parallel-size over unlike GPUs, or --gpus with like ones",
        )


def slow_links(case: Case) -> Iterator[Finding]:
    """Two all-reduces per layer go over the links."""
    tp = case.settings.tensor_parallel
    if tp > 2 and case.node.link is Link.PCIE:
        yield Finding(
            reason="TP above 2 without NVLink",
            text=f"TP {tp} over PCIe: two all-reduces per layer",
            remedy=f"compare with TP 2 x PP {tp // 2}, and PP {tp}",
        )


def replicated_kv(case: Case) -> Iterator[Finding]:
    """Beyond the KV heads TP saves no KV memory; the latent of MLA it never divides."""
    tp, shape = case.settings.tensor_parallel, case.known_shape
    latent = any(layer.attention.kind is AttentionKind.LATENT for layer in shape.decoder)
    counts = kv_head_counts(shape)
    if tp > 1 and latent:
        yield Finding(
            reason="every GPU of a TP group holds the whole latent KV",
            text=f"TP {tp}: {shape.name} keeps one latent per token, which each of the {tp} GPUs stores in full",
            remedy="data-parallel-size with --enable-expert-parallel gives each GPU KV of its own",
        )
    elif counts and tp > max(counts):
        yield Finding(
            reason="TP above the model's KV heads replicates them",
            text=f"TP {tp} > {max(counts)} KV heads of {shape.name}: each is stored {tp // max(counts)} times",
            remedy=f"tensor-parallel-size {max(counts)} with more DP or PP holds more",
        )


def uneven_experts(case: Case) -> Iterator[Finding]:
    """The fullest rank decides both memory and pace."""
    shape, settings = case.known_shape, case.settings
    ranks = settings.tensor_parallel * settings.data_parallel
    if settings.expert_parallel and shape.experts is not None and shape.experts.count % ranks:
        most, least = -(-shape.experts.count // ranks), shape.experts.count // ranks
        yield Finding(
            reason="experts do not divide over the expert-parallel ranks",
            text=f"{shape.experts.count} experts over {ranks} ranks: some hold {most}, some {least}",
            remedy="TP x DP that divides the experts, or no --enable-expert-parallel",
        )


def kv_dtype(case: Case) -> Iterator[Finding]:
    """fp8 KV depends on GPU generation and attention backend, and changes answers a little (G9, vllm#26431)."""
    name = case.settings.kv_cache_dtype
    if name not in ONE_BYTE_KV_DTYPES:
        return
    for gpu in case.gpus[:1]:
        capability = gpu.compute_capability
        if capability is not None and capability < FP8_CAPABILITY and name != "fp8_e5m2":
            yield Finding(
                reason="fp8 KV below compute capability 8.9 starts with some attention backends only",
                text=f"kv-cache-dtype {name} on {gpu.name} (compute capability {capability[0]}.{capability[1]})",
                remedy="kv-cache-dtype fp8_e5m2 or auto if it does not start",
            )
    if case.shape is None or case.shape.kv_cache_dtype is None:
        yield Finding(
            reason="fp8 KV without scales from the checkpoint changes answers",
            text=f"kv-cache-dtype {name}: the checkpoint brings no scales for it",
            remedy="compare answers on mathematics, code and exact reasoning before production",
        )


def block_size(case: Case) -> Iterator[Finding]:
    """Attention kernels take blocks of certain sizes; others fall back or refuse."""
    size = case.values.get("block-size")
    if not isinstance(size, int) or isinstance(size, bool):
        return
    step = _KERNEL_BLOCK if case.node.gpus else _CPU_KERNEL_BLOCK
    if size % step:
        yield Finding(
            reason="block-size that attention kernels do not take",
            text=f"block-size {size} is not a multiple of {step}",
            remedy=f"block-size {max(1, round(size / step)) * step}",
        )
    elif size > _LARGEST_PLAIN_BLOCK and case.node.gpus:
        yield Finding(
            reason="block-size that only some attention backends take",
            text=f"block-size {size} > {_LARGEST_PLAIN_BLOCK}: FlashInfer takes it on few GPUs only",
            remedy=f"block-size {_LARGEST_PLAIN_BLOCK} at most",
        )


def quantization(case: Case) -> Iterator[Finding]:
    """Formats that this GPU computes in 16 bit, or not at all; a flag against what the checkpoint says."""
    name = case.settings.quantization
    if name is None:
        return
    said, shape = case.values.get("quantization"), case.shape
    if shape is not None and shape.quantization is not None and said is not None:
        alike = said == shape.quantization or any({said, shape.quantization} <= one for one in _SAME_FORMAT)
        if not alike:
            yield Finding(
                reason="quantization is not the checkpoint's",
                text=f"quantization {said}, the checkpoint says {shape.quantization}",
                remedy="leave --quantization out: vLLM reads it from the checkpoint",
            )
    capability = case.gpus[0].compute_capability if case.gpus else None
    if capability is None:
        return
    where = f"{name} weights on {case.gpus[0].name} (compute capability {capability[0]}.{capability[1]})"
    if capability < _LEAST_CAPABILITY.get(name, (0, 0)):
        yield Finding(
            reason="quantised weights that this GPU is too old for",
            text=f"{where}: vLLM 0.32 asks for {'.'.join(map(str, _LEAST_CAPABILITY[name]))}",
            remedy="a GPTQ or AWQ checkpoint" if name not in ("awq", "gptq") else "a 16-bit checkpoint",
        )
    elif capability < _NATIVE_SINCE.get(name, (0, 0)):
        yield Finding(
            reason="quantised weights that are computed in 16 bit",
            text=f"{where}: saves memory, not arithmetic",
            remedy="",
        )


def quantized_groups(case: Case) -> Iterator[Finding]:
    """Groups of 128 columns share a scale; a split through a group is refused or padded, by version."""
    shape, settings = case.known_shape, case.settings
    name = settings.quantization
    grouped = ("awq", "gptq", "awq_marlin", "gptq_marlin", "fp8")
    if name not in grouped:
        return
    parts = []
    if has_dense_mlp(shape):
        parts.append(("MLP columns", shape.intermediate_size, settings.tensor_parallel))
    if shape.experts is not None and not settings.expert_parallel:
        over = settings.tensor_parallel * settings.data_parallel
        parts.append(("columns of an expert", shape.experts.intermediate_size, over))
    for what, columns, over in parts:
        if over > 1 and not columns % over and columns // over % _GROUP:
            yield Finding(
                reason=f"a split of the {what} through a quantisation group",
                text=f"{columns} {what} over {over} GPUs are {columns // over}, no multiple of {_GROUP}: {name} "
                "checkpoints with groups or blocks of 128 may be refused",
                remedy="--enable-expert-parallel" if "expert" in what else "smaller TP, with PP or DP for the rest",
            )


def high_utilization(case: Case) -> Iterator[Finding]:
    """It may start and then run out of memory at the first long request (vllm#21410)."""
    share = case.settings.gpu_memory_utilization
    if case.node.gpus and share > HIGHEST_ADVISED:
        yield Finding(
            reason=f"gpu-memory-utilization above {HIGHEST_ADVISED}",
            text=f"gpu-memory-utilization {share:g} can start, and fail under load",
            remedy="0.94-0.95 on a dedicated node, 0.80-0.88 where others use the GPU",
        )


def numa_bind(case: Case) -> Iterator[Finding]:
    """Binding needs more than one NUMA node to choose from, and to know which one a GPU is near."""
    if case.values.get("numa-bind") is not True:
        return
    topology = case.node.topology
    nodes = None if topology is None else topology.numa_nodes
    if nodes is not None and nodes < 2:
        yield Finding(
            reason="numa-bind with one NUMA node changes nothing",
            text="--numa-bind, and the machine has one NUMA node",
            remedy="leave --numa-bind off",
        )
    elif topology is None or any(near is None for near in topology.numa):
        yield Finding(
            reason="numa-bind where the GPUs' NUMA nodes are not known",
            text="--numa-bind, and the NUMA node of a GPU could not be told: vLLM may not start",
            remedy="--numa-bind-nodes with one number per GPU, or leave it off",
        )


def speculation(case: Case) -> Iterator[Finding]:
    """What speculation switches off, or does not go with in some versions."""
    parsed = speculative_config(case.values)
    if parsed is None:
        return
    method = parsed.get("method") or parsed.get("model")
    if case.settings.pipeline_parallel > 1:
        yield Finding(
            reason="speculation with pipeline parallelism",
            text=f"speculative method {method} with PP {case.settings.pipeline_parallel}: some versions refuse it",
            remedy="TP instead of PP, or no speculation",
        )
    if method == "ngram":
        yield Finding(
            reason="n-gram speculation switches asynchronous scheduling off",
            text="n-gram look-up runs on the CPU between steps, so steps are no longer scheduled ahead",
            remedy="compare with it off: it pays only where outputs repeat their inputs",
        )


def async_pipeline(case: Case) -> Iterator[Finding]:
    """The V1 model runner does not schedule ahead over several stages."""
    if case.values.get("async-scheduling") is True and case.settings.pipeline_parallel > 1:
        yield Finding(
            reason="async-scheduling with pipeline parallelism",
            text=f"--async-scheduling with PP {case.settings.pipeline_parallel}: not in every version",
            remedy="leave --async-scheduling to vLLM",
        )


def graph_sizes(case: Case) -> Iterator[Finding]:
    """Decode batches beyond the largest captured size run without a CUDA graph."""
    size, seqs = case.values.get("max-cudagraph-capture-size"), case.settings.max_num_seqs
    if isinstance(size, int) and not isinstance(size, bool) and size < seqs:
        yield Finding(
            reason="max-cudagraph-capture-size below max-num-seqs",
            text=f"batches of {size + 1} to {seqs} sequences run without a CUDA graph",
            remedy=f"max-cudagraph-capture-size {seqs}, or max-num-seqs {size}",
        )


def batch_beyond_work(case: Case) -> Iterator[Finding]:
    """A step that no set of requests can fill; vLLM warns about it."""
    settings = case.settings
    if case.shape is None and "max-model-len" not in case.values:
        return
    most = settings.max_num_seqs * settings.max_model_len
    if settings.max_num_batched_tokens > most:
        yield Finding(
            reason="max-num-batched-tokens beyond what all sequences hold",
            text=f"max-num-batched-tokens {settings.max_num_batched_tokens} > {settings.max_num_seqs} sequences of "
            f"{settings.max_model_len} tokens",
            remedy=f"max-num-batched-tokens {most} at most",
        )


def ray_on_one_node(case: Case) -> Iterator[Finding]:
    """Ray is for several nodes (G14)."""
    if case.values.get("distributed-executor-backend") == "ray":
        yield Finding(
            reason="Ray on a single node",
            text="distributed-executor-backend ray: one node needs no cluster",
            remedy="distributed-executor-backend mp, or leave it out",
        )


def _rule(
    name: str,
    row: str,
    judge: Callable[[Case], Iterator[Finding]],
    *reads: str,
    needs_shape: bool = False,
    needs_gpus: bool = False,
) -> Rule:
    return Rule(
        name=name,
        row=row,
        reads=LAYOUT_FLAGS | BATCH_FLAGS | {CHECKPOINT, *reads},
        judge=judge,
        needs_shape=needs_shape,
        needs_gpus=needs_gpus,
    )


WARNING_RULES: tuple[Rule, ...] = (
    _rule("idle-gpus", "G5", idle_gpus, needs_gpus=True),
    _rule("mixed-gpus", "G23", mixed_gpus, needs_gpus=True),
    _rule("slow-links", "G22", slow_links, needs_gpus=True),
    _rule("replicated-kv", "G1", replicated_kv, needs_shape=True),
    _rule("uneven-experts", "G4", uneven_experts, needs_shape=True),
    _rule("kv-dtype", "G9", kv_dtype, "kv-cache-dtype"),
    _rule("block-size", "G9", block_size, "block-size"),
    _rule("quantization", "G12", quantization, "quantization"),
    _rule("quantized-groups", "G12", quantized_groups, "quantization", needs_shape=True),
    _rule("high-utilization", "G6", high_utilization, "gpu-memory-utilization"),
    _rule("numa-bind", "G13", numa_bind, "numa-bind"),
    _rule("speculation-limits", "flags", speculation, "speculative-config"),
    _rule("async-pipeline", "G2", async_pipeline, "async-scheduling"),
    _rule("graph-sizes", "flags", graph_sizes, "max-cudagraph-capture-size"),
    _rule("batch-beyond-work", "G10", batch_beyond_work),
    _rule("ray-on-one-node", "G14", ray_on_one_node, "distributed-executor-backend"),
)
"""Everything that is worth saying about a config that no rule refuses."""
