"""Why a simulated server would not start: vLLM's checks in vLLM's order, with its texts (0.25, 0.32). Pure.

Used by the HTTP double, which prints the text and exits, and by the simulated engine, which reports the class.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.node.defaults import ResolvedSettings
from autotune.node.kv_capacity import kv_value_bytes
from autotune.node.memory import MemoryEstimate
from autotune.records import AttentionKind, FailureClass, Gpu, ModelShape, Node
from autotune.simulator.graph_sizes import captured_sizes
from autotune.units import GIB, gib

CONTEXT_BYTES = round(0.51 * GIB)
"""CUDA context of a process with nothing loaded (recorded on an H200, `worker init memory snapshot`)."""

SMALL_CONTEXT_BYTES = round(0.25 * GIB)
"""The same on a card of less than `LARGE_GPU_BYTES`: contexts grow with a GPU's multiprocessors. Assumed."""

LARGE_GPU_BYTES = 70 * GIB

RECORDED_LAYERS = 32
GRAPH_BYTES_PER_LAYER = round(0.98 * GIB / 51 / RECORDED_LAYERS)
"""One layer's part of one CUDA graph (recorded, `Graph capturing finished`: 0.98 GiB for 51 sizes of a 32-layer model);
on top of the requested share unless the memory model counts graphs in it. Deeper models count as that one: a start must
not be refused by an extrapolation.

That a share too near 1 therefore runs out of memory at warm-up is our inference; no such start was recorded."""

QUANTIZATION_CAPABILITY = {
    "awq": 75, "awq_marlin": 75, "auto_awq": 75, "gptq": 60, "gptq_marlin": 60, "auto_gptq": 60, "fp8": 75,
    "fp8_per_tensor": 75, "fbgemm_fp8": 80, "compressed-tensors": 70, "mxfp4": 80, "gpt_oss_mxfp4": 80,
    "modelopt": 80, "modelopt_fp4": 75, "experts_int8": 80, "moe_wna16": 70, "torchao": 75,
}  # fmt: skip
"""Least compute capability x 10 of each method (`get_min_capability`, 0.32). Below 8.9 fp8 weights are widened (Marlin)
rather than refused."""

_FAMILY = {"awq_marlin": "awq", "auto_awq": "awq", "gptq_marlin": "gptq", "auto_gptq": "gptq", "gpt_oss_mxfp4": "mxfp4"}
"""Words that may stand for one another in a checkpoint and on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProblem:
    """The root cause of a refused start.

    Attributes:
        exception: what is raised, as the traceback's last line begins.
        message: the rest of that line; may have several lines.
        in_engine: raised by the engine process, which the API server then reports in a wrapper.
        after_weights: the start came as far as loading them.
    """

    failure: FailureClass
    exception: str
    message: str
    in_engine: bool = False
    after_weights: bool = False


def config_problem(node: Node, shape: ModelShape, settings: ResolvedSettings) -> StartProblem | None:
    """What vLLM refuses before it touches a GPU; None when the config is accepted."""
    s = settings
    for problem in (
        _length(shape, s),
        _quantization(shape, s),
        _capability(node, s),
        _dtype(node, s),
        _world(node, s),
        _batch(s),
        _heads(shape, s),
        _experts(shape, s),
        _scheduling(s),
        _stages(shape, s),
        _kv_heads(shape, s),
        _kv_dtype(shape, s),
    ):
        if problem is not None:
            return problem
    return None


def context_bytes(gpu: Gpu) -> int:
    """What a process takes of a GPU before it has loaded anything."""
    return CONTEXT_BYTES if gpu.memory_bytes >= LARGE_GPU_BYTES else SMALL_CONTEXT_BYTES


def _graphs_on_top(shape: ModelShape, settings: ResolvedSettings, estimate: MemoryEstimate) -> int:
    if estimate.graph_bytes:
        return 0  # taken off the KV cache already
    layers = min(RECORDED_LAYERS, -(-shape.layers // settings.pipeline_parallel))
    return GRAPH_BYTES_PER_LAYER * layers * len(captured_sizes(settings))


def memory_problem(
    node: Node, shape: ModelShape, settings: ResolvedSettings, estimate: MemoryEstimate
) -> StartProblem | None:
    """What fails on the GPU: memory in use, weights, KV cache, CUDA graphs; None when the server starts."""
    gpu = node.gpus[0]
    s = settings
    if s.gpus > node.gpu_count:
        return StartProblem(
            failure=FailureClass.GPU_COUNT,
            exception="AssertionError",
            message=f"DP adjusted local rank {node.gpu_count} is out of bounds. ",
            in_engine=True,
        )
    free = gpu.memory_bytes - context_bytes(gpu)
    wanted = s.gpu_memory_utilization * gpu.memory_bytes
    if wanted > free:
        return busy_problem(gpu, s, free)
    if estimate.weights_bytes_per_gpu > free:
        return load_problem(gpu, estimate.weights_bytes_per_gpu - free)
    if estimate.available_kv_bytes <= 0:
        return StartProblem(
            failure=FailureClass.KV_CACHE_NONE,
            exception="ValueError",
            message=(
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
                "the "
                "engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). See "
                "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
            ),
            in_engine=True,
            after_weights=True,
        )
    if not estimate.fits:
        return _too_small(s, estimate)
    if wanted + _graphs_on_top(shape, s, estimate) > free:
        return warmup_problem(s)
    return None


def busy_problem(gpu: Gpu, settings: ResolvedSettings, free_bytes: float) -> StartProblem:
    """Less memory is free than the share asks for."""
    wanted = settings.gpu_memory_utilization * gpu.memory_bytes
    return StartProblem(
        failure=FailureClass.GPU_BUSY,
        exception="ValueError",
        message=(
            f"Free memory on device cuda:0 ({gib(free_bytes):.2f}/{gib(gpu.memory_bytes):.2f} GiB) on startup is less "
            "than "
            f"desired GPU memory utilization ({settings.gpu_memory_utilization}, {gib(wanted):.2f} GiB). Decrease GPU "
            "memory "
            "utilization or reduce GPU memory used by other processes."
        ),
        in_engine=True,
    )


def load_problem(gpu: Gpu, short_bytes: float) -> StartProblem:
    """The weights do not fit."""
    return StartProblem(
        failure=FailureClass.OOM_AT_LOAD,
        exception="torch.OutOfMemoryError",
        message=out_of_memory(gpu, max(short_bytes, 224 * 2**20)),
        in_engine=True,
    )


def warmup_problem(settings: ResolvedSettings) -> StartProblem:
    """The warm-up after profiling does not fit beside the KV cache."""
    return StartProblem(
        failure=FailureClass.OOM_AT_WARMUP,
        exception="RuntimeError",
        message=(
            f"CUDA out of memory occurred when warming up sampler with {settings.max_num_seqs} dummy requests. Please "
            "try "
            "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
        in_engine=True,
        after_weights=True,
    )


def out_of_memory(gpu: Gpu, wanted_bytes: float) -> str:
    """PyTorch's message for an allocation that failed."""
    total = gib(gpu.memory_bytes)
    return (
        f"CUDA out of memory. Tried to allocate {gib(wanted_bytes):.2f} GiB. GPU 0 has a total capacity of "
        f"{total:.2f} GiB "
        f"of which 97.12 MiB is free. Including non-PyTorch memory, this process has {total - 0.1:.2f} GiB memory in "
        "use."
    )


def _too_small(s: ResolvedSettings, estimate: MemoryEstimate) -> StartProblem:
    longest = estimate.kv_tokens
    hint = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    return StartProblem(
        failure=FailureClass.KV_CACHE_TOO_SMALL,
        exception="ValueError",
        message=(
            f"To serve at least one request with the model's max seq len ({s.max_model_len}), "
            f"({round(gib(estimate.needed_kv_bytes), 2)} GiB KV cache is needed, which is larger than the available "
            "KV cache "
            f"memory ({round(gib(estimate.available_kv_bytes), 2)} GiB). {hint}Try increasing "
            "`gpu_memory_utilization` (which "
            "also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. "
            "See "
            "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        ),
        in_engine=True,
        after_weights=True,
    )


def _length(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    if s.max_model_len <= shape.max_position_embeddings:
        return None
    return _validation(
        "ModelConfig",
        f"User-specified max_model_len ({s.max_model_len}) is greater than the derived max_model_len "
        f"(max_position_embeddings={shape.max_position_embeddings} or model_max_length=None in model's config.json). "
        "To "
        "allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.",
    )


def _dtype(node: Node, s: ResolvedSettings) -> StartProblem | None:
    capability = node.gpus[0].compute_capability
    if s.dtype != "bfloat16" or capability is None or capability >= (8, 0):
        return None
    return StartProblem(
        failure=FailureClass.INVALID_COMBINATION,
        exception="ValueError",
        message=(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
            f"{node.gpus[0].name} GPU has compute capability {capability[0]}.{capability[1]}. You can use float16 "
            "instead by "
            "explicitly setting the `dtype` flag in CLI, for example: --dtype=half."
        ),
        in_engine=True,
    )


def _world(node: Node, s: ResolvedSettings) -> StartProblem | None:
    world = s.tensor_parallel * s.pipeline_parallel
    if world <= node.gpu_count:
        return None
    return _validation(
        "ParallelConfig",
        f"World size ({world}) is larger than the number of available GPUs ({node.gpu_count}) in this node. If this is "
        "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
        "- multiprocessing, set '--nnodes' appropriately.",
        FailureClass.GPU_COUNT,
    )


def _batch(s: ResolvedSettings) -> StartProblem | None:
    if not s.chunked_prefill and s.max_num_batched_tokens < s.max_model_len:
        return _validation(
            "SchedulerConfig",
            f"max_num_batched_tokens ({s.max_num_batched_tokens}) is smaller than max_model_len ({s.max_model_len}). "
            "This "
            "effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer "
            "sequences. Please increase max_num_batched_tokens or decrease max_model_len.",
        )
    if s.max_num_batched_tokens < s.max_num_seqs:
        return _validation(
            "SchedulerConfig",
            f"max_num_batched_tokens ({s.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
            f"({s.max_num_seqs}).",
        )
    return None


def _heads(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    tp = s.tensor_parallel
    if shape.heads % tp == 0:
        return None
    return _validation(
        "VllmConfig",
        f"Total number of attention heads ({shape.heads}) must be divisible by tensor parallel size ({tp}).",
        FailureClass.INDIVISIBLE,
    )


def _experts(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    if not s.expert_parallel or shape.experts is not None:
        return None
    return _validation(
        "VllmConfig", "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
    )


def _scheduling(s: ResolvedSettings) -> StartProblem | None:
    if not (s.async_scheduling and s.speculative_tokens):
        return None
    return _validation(
        "VllmConfig",
        "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash kind of "
        "speculative decoding",
    )


def _quantization(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    asked, has = s.quantization, shape.quantization
    if asked is None or has is None or _FAMILY.get(asked, asked) == _FAMILY.get(has, has):
        return None
    return _validation(
        "ModelConfig",
        f"Quantization method specified in the model config ({has}) does not match the quantization method specified "
        f"in the `quantization` argument ({asked}).",
    )


def _capability(node: Node, s: ResolvedSettings) -> StartProblem | None:
    capability, least = node.gpus[0].compute_capability, QUANTIZATION_CAPABILITY.get(s.quantization or "", 0)
    if capability is not None and 10 * capability[0] + capability[1] < least:
        return _validation(
            "VllmConfig",
            f"The quantization method {s.quantization} is not supported for the current GPU. Minimum capability: "
            f"{least}. Current capability: {10 * capability[0] + capability[1]}.",
        )
    if _FAMILY.get(s.quantization or "", s.quantization) == "mxfp4" and s.dtype != "bfloat16":
        return _validation(
            "VllmConfig",
            f"torch.{s.dtype} is not supported for quantization method {s.quantization}. Supported dtypes: "
            "[torch.bfloat16]",
        )
    return None


def _stages(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    if s.pipeline_parallel <= shape.layers:
        return None
    # vLLM has no check of its own: a stage without layers fails where its KV cache is planned. The text is ours.
    return StartProblem(
        failure=FailureClass.INDIVISIBLE,
        exception="ValueError",
        message=f"pipeline_parallel_size ({s.pipeline_parallel}) is larger than the number of layers ({shape.layers}).",
        in_engine=True,
    )


def _kv_heads(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    tp = s.tensor_parallel
    latent = any(layer.attention.kind is AttentionKind.LATENT for layer in shape.decoder)
    if latent or not (shape.kv_heads % tp and tp % shape.kv_heads):
        return None
    # The models' own check (model_executor/models/llama.py), an assertion without a text.
    many = shape.kv_heads >= tp
    failed = "self.total_num_kv_heads % tp_size == 0" if many else "tp_size % self.total_num_kv_heads == 0"
    return StartProblem(
        failure=FailureClass.INDIVISIBLE, exception="AssertionError", message=f"assert {failed}", in_engine=True
    )


def _kv_dtype(shape: ModelShape, s: ResolvedSettings) -> StartProblem | None:
    try:
        kv_value_bytes(shape, s)
    except ValueError as error:
        # Real servers know more dtypes than the memory model; the text is ours.
        return StartProblem(
            failure=FailureClass.INVALID_COMBINATION, exception="ValueError", message=str(error), in_engine=True
        )
    return None


def _validation(model: str, text: str, failure: FailureClass = FailureClass.INVALID_COMBINATION) -> StartProblem:
    """A pydantic error, as vLLM's config classes raise it."""
    return StartProblem(
        failure=failure,
        exception="pydantic_core._pydantic_core.ValidationError",
        message=(
            f"1 validation error for {model}\n  Value error, {text} [type=value_error, input_value=ArgsKwargs(()), "
            "input_type=ArgsKwargs]\n    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
        ),
    )
