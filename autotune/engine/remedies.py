"""What to change, in the order to try it. The orders for memory, NCCL and preemption follow the operators' guide:
loading (G34), serving (G35), communication (G36), preemption (G37), low throughput (G38)."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records import FailureClass, Value
from autotune.units import format_bytes

_C = FailureClass
STEADY_PREEMPTIONS = 20
"""A few preemptions are fine (G37); from here on they are called steady."""

_MORE_GPUS = "Split the model over more GPUs: raise --tensor-parallel-size or --pipeline-parallel-size."
_FP8_KV = "Try --kv-cache-dtype fp8 (halves the KV cache); compare output quality on mathematics and code first."
_SHM = "In Docker pass --ipc=host or a larger --shm-size; in Kubernetes mount a memory-backed emptyDir at /dev/shm."

_AT_LOAD = (
    "Lower --max-model-len: profiling and the KV cache are reserved right after loading.",
    "Check --dtype: bfloat16 on A100 and newer, an FP8 model on H100 and newer.",
    "Use a quantised checkpoint (AWQ, GPTQ, FP8).",
    _MORE_GPUS,
    "Choose a smaller model; raising --gpu-memory-utilization usually does not help here.",
)
_UNDER_LOAD = (
    "Lower --max-model-len to what requests really need.",
    "Lower --max-num-seqs.",
    _FP8_KV,
    "Raise --gpu-memory-utilization carefully, 0.90 to 0.92 or 0.94; if it already was higher, lower it: "
    "a start proves nothing about the first long request.",
    _MORE_GPUS,
)
_AT_WARMUP = (
    "Lower --max-num-seqs: the warm-up runs that many dummy requests.",
    "Lower --gpu-memory-utilization: what vLLM takes for the KV cache is missing in the warm-up.",
    "Lower --max-num-batched-tokens or --max-model-len: both set the activation peak.",
    "Use a quantised checkpoint, or " + _MORE_GPUS[0].lower() + _MORE_GPUS[1:],
)
_NCCL = (
    "Check that the visible GPUs are TP x PP x DP: CUDA_VISIBLE_DEVICES, and --gpus all in Docker.",
    "Look at `nvidia-smi topo -m`: GPUs across CPU sockets want --numa-bind or another placement.",
    "Lower --tensor-parallel-size (8 to 4 to 2).",
    "Without NVLink compare --pipeline-parallel-size instead.",
    _SHM,
    "Match driver, CUDA, PyTorch and vLLM versions; run once with NCCL_DEBUG=INFO.",
    "On one node use multiprocessing instead of Ray.",
)
PREEMPTION = (
    "Raise --gpu-memory-utilization slightly (0.90 to 0.92).",
    "Lower --max-num-seqs.",
    "Adjust --max-num-batched-tokens.",
    "Lower --max-model-len to what requests really need.",
    "Use more GPUs, or a larger --tensor-parallel-size or --pipeline-parallel-size.",
)
LOW_THROUGHPUT = (
    "Requests wait although the KV cache has room. Look for a communication bound first: GPU utilisation against "
    "PCIe/NVLink traffic (`nvidia-smi dmon`); lower TP or compare PP.",
    "Then for too small a batch: raise --max-num-seqs.",
    "Then for a prefill/decode imbalance: adjust --max-num-batched-tokens.",
    "Then for missed prefix caching: fixed system prompts and repeated documents want --enable-prefix-caching.",
)

_TABLE: dict[FailureClass, tuple[str, ...]] = {
    _C.OOM_AT_LOAD: _AT_LOAD,
    _C.OOM_AT_WARMUP: _AT_WARMUP,
    _C.OOM_UNDER_LOAD: _UNDER_LOAD,
    _C.KV_CACHE_NONE: (
        "Raise --gpu-memory-utilization: weights and activations fill all that it allows; lowering it makes it worse.",
        "Lower --max-num-batched-tokens: it sets the activation peak.",
        "Use a quantised checkpoint.",
        _MORE_GPUS,
    ),
    _C.KV_CACHE_TOO_SMALL: (
        "Lower --max-model-len.",
        _FP8_KV,
        "Raise --gpu-memory-utilization, 0.90 to 0.92 or 0.94 (on the CPU build raise VLLM_CPU_KVCACHE_SPACE).",
        _MORE_GPUS,
    ),
    _C.STATE_CACHE_TOO_SMALL: (
        "Lower --max-num-seqs: every running sequence needs one state block.",
        "Raise --gpu-memory-utilization slightly.",
        "Lower --max-model-len.",
        _MORE_GPUS,
    ),
    _C.GPU_BUSY: (
        "Find and stop what else uses the GPU (`nvidia-smi`): a server that was killed leaves VLLM::EngineCore and "
        "VLLM::Worker processes behind.",
        "Wait until the memory is free again, then retry; the config is not at fault.",
        "On a GPU that has to be shared lower --gpu-memory-utilization (0.80 to 0.88).",
    ),
    _C.GPU_COUNT: (
        "Make TP x PP x DP fit the visible GPUs.",
        "Check CUDA_VISIBLE_DEVICES, and --gpus all in Docker.",
    ),
    _C.INDIVISIBLE: (
        "Choose a --tensor-parallel-size that divides the heads, and divides or is a multiple of the KV heads.",
        "Use --pipeline-parallel-size for the rest of the GPUs.",
    ),
    _C.INVALID_FLAG: (
        "Correct the flag or its value; `vllm serve --help=all` of the installed version lists what it accepts.",
        "Check that the flag exists in this vLLM version.",
    ),
    _C.INVALID_COMBINATION: ("Change one of the settings that the line names; they do not go together.",),
    _C.KV_DTYPE_UNSUPPORTED: (
        "Try --kv-cache-dtype fp8_e5m2, or leave it at auto.",
        "Try another attention backend: support depends on the backend as much as on the GPU.",
    ),
    _C.MODEL_ACCESS: (
        "Set HF_TOKEN to a token of an account that may read the model.",
        "Accept the model's licence on its page with that account.",
        "Offline, download the model first and pass its folder.",
    ),
    _C.MODEL_UNKNOWN: (
        "Check the spelling of the model's name or path.",
        "Check that this vLLM (and its transformers) knows the architecture; upgrade if not.",
        "A private model looks the same as an unknown one: set HF_TOKEN.",
    ),
    _C.DRIVER: (
        "Check `nvidia-smi`; after a driver update reload the kernel module or reboot.",
        "Match driver, CUDA, PyTorch and vLLM versions; a GPU newer than the build needs a newer vLLM.",
        "In Docker check --gpus all and the NVIDIA container toolkit.",
    ),
    _C.NCCL: _NCCL,
    _C.SHARED_MEMORY: (
        _SHM,
        "Check with `df -h /dev/shm` inside the container that the size arrived.",
    ),
    _C.PORT_IN_USE: (
        "Use another --port, or stop what listens there.",
        "Check the data-parallel and master ports too: they must differ from the HTTP port.",
    ),
    _C.COMPILE_CACHE: (
        "Delete vLLM's torch.compile cache (~/.cache/vllm/torch_compile_cache) and Triton's, then retry. A study does "
        "so by itself, once per config, where the cache is its own.",
        "Give every server that starts at the same time its own VLLM_CACHE_ROOT.",
        "Set VLLM_DISABLE_COMPILE_CACHE=1, or --enforce-eager to see whether compilation is at fault.",
    ),
    _C.COMPILE_FAILED: (
        "Try --enforce-eager to see whether compilation is at fault; it costs throughput.",
        "Change what the kernel is compiled for: --kv-cache-dtype, the attention or MoE backend, --block-size.",
        "A kernel that needs more shared memory than this GPU has is a matter of the vLLM version: try another one.",
    ),
    _C.MISSING_DEPENDENCY: ("Install what the line names where the server runs, in the version that vLLM asks for.",),
    _C.SLO_MISSED: (
        "Loosen --slo, or take a smaller or quantised model, more tensor parallelism or faster GPUs: this config is at "
        "no rate within the limits.",
    ),
    _C.NODE_LOST: (
        "Look why the machine or Ray's worker on it went: its OOM killer (`dmesg`), a reboot, `ray status`.",
        "Raise `attempts` of the study file where machines come and go.",
    ),
    _C.HANG: (
        "Look at the last milestone: a long load of weights needs a longer start deadline, not a restart.",
        *_NCCL[:2],
        "Start once with VLLM_LOGGING_LEVEL=DEBUG and NCCL_DEBUG=INFO.",
    ),
    _C.CRASH: ("Read the traceback around the line; retry once, and with --enforce-eager.",),
    _C.HEALTHY: (),
}


def remedies_for(kind: FailureClass, facts: Mapping[str, Value]) -> tuple[str, ...]:
    """What to change, most promising first; the numbers in `facts` make the advice concrete where they are known."""
    table = _TABLE[kind]
    first = _concrete(kind, facts)
    if kind is _C.HEALTHY:
        preemptions = facts.get("preemptions")
        steady = isinstance(preemptions, int) and preemptions >= STEADY_PREEMPTIONS
        # Many versions never print preemptions; requests that wait before a full KV cache are the same complaint.
        if steady or facts.get("kv_full") is True:
            return PREEMPTION
        return LOW_THROUGHPUT if facts.get("queueing") is True else ()
    if kind is _C.HANG and facts.get("stuck_in") == "nccl":
        return _NCCL
    if kind is _C.KV_CACHE_TOO_SMALL and first:
        return (first, *table[1:])
    return (first, *table) if first else table


def _concrete(kind: FailureClass, facts: Mapping[str, Value]) -> str | None:
    """One sentence that only these numbers allow; None when they are not there."""
    if kind is _C.KV_CACHE_TOO_SMALL:
        tokens = facts.get("estimated_max_model_len") or facts.get("available_tokens")
        return f"Lower --max-model-len to {tokens} or less." if tokens else None
    if kind is _C.STATE_CACHE_TOO_SMALL and facts.get("available_state_blocks"):
        return f"Lower --max-num-seqs to {facts['available_state_blocks']}."
    if kind is _C.OOM_AT_WARMUP and "wanted_bytes" in facts:
        return "Lower VLLM_CPU_KVCACHE_SPACE (or --kv-cache-memory-bytes): the machine has less memory free."
    if kind is _C.GPU_BUSY:
        free, wanted = facts.get("free_bytes"), facts.get("wanted_bytes")
        if isinstance(free, int) and isinstance(wanted, int):
            short = format_bytes(wanted - free)
            return f"Free {short} more on the GPU: {format_bytes(free)} of {format_bytes(wanted)} are there."
    if kind is _C.SHARED_MEMORY and facts.get("signal") == 7:
        return "The server died of SIGBUS, which nearly always means that /dev/shm is full."
    if kind is _C.MODEL_ACCESS and facts.get("http_status") == 403:
        return "The token works but the model's licence is not accepted: accept it on the model's page."
    if kind is _C.CRASH and facts.get("signal") == 9:
        return "Killed from outside without a word: look for the kernel's OOM killer (`dmesg`, the container's limit)."
    if kind is _C.CRASH and "last_milestone" in facts and "signal" in facts:
        return f"Died of signal {facts['signal']} after: {facts['last_milestone']}."
    return None
