"""The texts by which vLLM, torch, NCCL, CUDA, Hugging Face and argparse say what went wrong, as one table.

The first pattern that matches a line decides its class. Named groups become facts: names that end in `_bytes` catch
a number with its unit, everything else that looks like a number becomes one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.records import FailureClass, Value
from autotune.units import GIB, KIB, MIB

_C = FailureClass
_SIZE_UNITS = {"gib": GIB, "gb": GIB, "mib": MIB, "mb": MIB, "kib": KIB, "kb": KIB, "bytes": 1, "b": 1}
_SIZE = r"-?[\d.]+ ?(?:[GMK]i?B|bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """One way a failure speaks.

    Attributes:
        kind: its class; None for device memory running out, which the phase decides.
        weak: often a consequence of something else; any other cause found in the log is preferred.
    """

    kind: FailureClass | None
    regex: re.Pattern[str]
    weak: bool = False

    def facts(self, found: re.Match[str]) -> dict[str, Value]:
        """The numbers and words that the groups caught."""
        return {name: _value(name, text) for name, text in found.groupdict().items() if text is not None}


def _says(kind: FailureClass | None, *regexes: str, weak: bool = False) -> tuple[FailurePattern, ...]:
    return tuple(FailurePattern(kind=kind, regex=re.compile(regex, re.IGNORECASE), weak=weak) for regex in regexes)


def _value(name: str, text: str) -> Value:
    if name.endswith("_bytes"):
        number, unit = re.match(r"(-?[\d.]*) ?([A-Za-z]*)", text).groups()  # type: ignore[union-attr]  # matches anything
        try:
            return round(float(number) * _SIZE_UNITS.get(unit.lower(), 1))
        except ValueError:
            return text
    digits = text.replace(",", "")
    try:
        return int(digits) if re.fullmatch(r"-?\d{1,18}", digits) else float(digits)
    except ValueError:
        return text.strip().strip("'\"")


_KV_KIND = r"(?P<kv_dtype>fp8\w*|int8\w*|nvfp4)"
_OF_TOTAL = r"\((?P<free_gib>[\d.]+)/(?P<total_gib>[\d.]+) GiB\)"
_WANTED = r"\((?P<gpu_memory_utilization>[\d.]+), (?P<wanted_gib>[\d.]+) GiB\)"
_NEEDED_SEEN = r"\((?P<gpus_needed>\d+)\) {} \((?P<gpus_visible>\d+)\)"

PATTERNS: tuple[FailurePattern, ...] = (
    # --- KV cache -------------------------------------------------------------------------------------------------
    *_says(
        _C.KV_CACHE_TOO_SMALL,
        # The typo "models's" lived from 0.8.5 to 0.19; the estimate is left out when it would be 0.
        r"models?'?s? max seq len \((?P<required_tokens>[\d,]+)\),? "
        rf"\((?P<needed_kv_bytes>{_SIZE}) KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<available_kv_bytes>{_SIZE})\)"
        r"(?:.*?estimated maximum model length is (?P<estimated_max_model_len>[\d,]+))?",
        # V0
        r"max seq len \((?P<required_tokens>[\d,]+)\) is larger than the maximum number of tokens that can be stored "
        r"in (?:the )?KV cache \((?P<available_tokens>[\d,]+)\)",
    ),
    *_says(_C.KV_CACHE_NONE, r"No available memory for the cache blocks"),
    *_says(
        _C.STATE_CACHE_TOO_SMALL,
        r"max_num_seqs \((?P<max_num_seqs>\d+)\) exceeds available \w+ cache blocks "
        r"\((?P<available_state_blocks>\d+)\)",
        r"(?:not enough|insufficient|no free|exhausted) (?:mamba|ssm|state) cache (?:blocks|slots)",
        r"mamba cache .{0,60}(?:too small|exceeds the available|cannot hold)",
    ),
    *_says(
        _C.KV_DTYPE_UNSUPPORTED,
        # Triton below compute capability 8.9
        r"type (?P<kv_dtype>fp8\w+) not supported in this architecture"
        r"(?:.*?supported fp8 dtypes are (?P<supported>\([^)]*\)))?",
        # No backend serves it; each gives its reason behind the whole selector
        r"no valid attention backend.*?kv_cache_dtype=(?P<kv_dtype>\w+).*?kv_cache_dtype not supported",
        rf"kv[_ -]?cache[_ -]?(?:dtype|type)? ?(?:'?{_KV_KIND}'? )?(?:is )?not supported",
        rf"(?:does not|doesn't|only) supports? {_KV_KIND}[ _-]kv[ _-]?cache",
        rf"{_KV_KIND}[ _-]kv[ _-]?cache .{{0,80}}(?:not (?:yet )?supported|unsupported|require)",
        r"(?:unknown|unsupported|unrecognized|invalid) kv[ _-]?cache[ _-]?d?type:? ?'?(?P<kv_dtype>\w+)?",
    ),
    # --- device and shared memory ---------------------------------------------------------------------------------
    *_says(
        _C.GPU_BUSY,
        rf"Free memory on device(?: (?P<device>[a-z]+:\d+))? {_OF_TOTAL} on start-?up is less than .*?{_WANTED}",
        rf"Available memory on node \d+ {_OF_TOTAL} on startup is less than desired CPU memory utilization"
        rf"(?: {_WANTED})?",
        rf"Error in memory profiling\. Initial free memory:? (?P<free_bytes>{_SIZE}|[\d.]+)"
        rf".*?current free memory:? (?P<current_free_bytes>{_SIZE}|[\d.]+)",
        r"all CUDA-capable devices are busy or unavailable",
        r"devices? (?:is|are) in exclusive",
    ),
    *_says(
        _C.OOM_AT_WARMUP,
        rf"Available memory on node \d+ {_OF_TOTAL} on kv cache allocation is less than requested memory for kv "
        r"\((?P<wanted_gib>[\d.]+)",
        r"out of memory occurred when warming up (?:the )?(?P<stage>sampler|pooler)"
        r"(?: with (?P<dummy_requests>\d+))?",
    ),
    *_says(
        _C.SHARED_MEMORY,
        r"(?:creating|attaching to|opening) shared memory segment (?P<segment>/dev/shm/\S+)"
        r"(?: \(size (?P<segment_size>\d+)\))?",
        r"\bBus error\b",
        r"\bSIGBUS\b",
        r"No space left on device.*(?:/dev/shm|psm_|/torch_)",
        r"(?:/dev/shm|psm_|/torch_).*No space left on device",
        r"unable to (?:open|write to|allocate|resize).{0,40}(?:shared memory|/torch_)",
        r"(?:workers are out of|insufficient) shared memory",
    ),
    *_says(
        None,
        rf"(?:CUDA|HIP|XPU) out of memory\.(?: Tried to allocate (?P<tried_bytes>{_SIZE}))?"
        rf"(?:.*?total capacity of (?P<total_bytes>{_SIZE}))?(?:.*?of which (?P<free_bytes>{_SIZE}) is free)?",
        r"(?:CUDA|HIP|XPU|cuMem\w*|device)\b.{0,60}(?:out of memory|OUT_OF_MEMORY)",
        r"OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"DefaultCPUAllocator: can't allocate",
    ),
    # --- how many GPUs, and what divides --------------------------------------------------------------------------
    *_says(
        _C.GPU_COUNT,
        "World size " + _NEEDED_SEEN.format("is larger than the number of available GPUs"),
        "world_size " + _NEEDED_SEEN.format("is less than (?:than )?max local gpu count"),
        "Tensor parallel size " + _NEEDED_SEEN.format("cannot be larger than the number of available GPUs"),
        r"number of required \w+s exceeds the total number of available",
        r"invalid device ordinal",
        r"local rank:? \d+ is out of bounds",
        r"Duplicate GPU detected",
        r"(?:requires?|needs?) (?:at least )?(?P<gpus_needed>\d+) GPUs?,? but (?:only )?(?P<gpus_visible>\d+)",
    ),
    *_says(
        _C.INDIVISIBLE,
        r"attention heads \((?P<heads>\d+)\) must be divisible by (?:the )?tensor parallel size "
        r"\((?P<tensor_parallel_size>\d+)\)",
        r"(?P<dividend>\d[\d,]{0,20}) is not divisible by (?P<divisor>\d+)",
        r"not divisible by (?:the )?(?:weight quantization block|tensor parallel|tp_size|tp\b)",
        r"must be (?:evenly )?divisible by",
        r"input size is not aligned with the quantized weight shape",
    ),
    # --- port, driver, NCCL ---------------------------------------------------------------------------------------
    *_says(
        _C.PORT_IN_USE,
        r"\('[^']*', (?P<port>\d{1,5})\).*?address already in use",
        r"(?:address already in use|EADDRINUSE|port is already allocated)(?:.*?:(?P<port>\d{2,5})\b)?",
    ),
    *_says(
        _C.DRIVER,
        r"no kernel image is available",
        r"device kernel image is invalid",
        r"NVML\w*.{0,60}(?:mismatch|fail|not found|not loaded|unknown error)",
        r"(?:Can't|Failed to) initialize NVML",
        r"driver/library version mismatch",
        r"NVMLError",
        r"Found no NVIDIA driver",
        r"CUDA driver version is insufficient",
        r"NVIDIA driver on your system is too old",
        r"no CUDA-capable device",
        r"No (?:CUDA|HIP) GPUs are available",
        r"forward compatibility was attempted",
        r"system not yet initialized",
        r"Failed to infer device type",
        r"unsupported toolchain",
        r"could not select device driver",
        r"uncorrectable ECC",
        r"fallen off the bus",
        r"hipError(?:NoDevice|InvalidDevice|InsufficientDriver)",
        r"libcuda\.so\S*:? cannot open",
        r"CUDA unknown error",
        r"Unexpected error from cudaGetDeviceCount",
    ),
    *_says(
        _C.NCCL,
        r"NCCL (?:version|library).{0,60}(?:mismatch|not found|too old)",
        r"Watchdog caught collective operation timeout",
    ),
    # A rank that dies takes the others' communicators down: these are often echoes.
    *_says(
        _C.NCCL,
        r"NCCL error(?:.*?NCCL version (?P<nccl_version>[\d.]+))?",
        r"nccl(?:Internal|System|UnhandledCuda|Remote)Error",
        r"ncclInvalidUsage",
        r"NCCL WARN",
        r"RCCL error",
        r"Dist(?:Backend|Store|Network)Error",
        r"Timed out after \d+ seconds waiting for clients",
        r"Connection closed by (?:peer|remote)",
        r"connectFullMesh failed",
        r"custom_all_reduce\.cuh.{0,80}(?:error|fail)",
        weak=True,
    ),
    # --- model ----------------------------------------------------------------------------------------------------
    *_says(
        _C.MODEL_ACCESS,
        r"GatedRepo\w*(?:.*?\b(?P<http_status>40[13]) Client Error)?",
        r"gated repo",
        r"awaiting a review from the repo authors",
        r"trust_remote_code=True",
        r"contains custom code which must be executed",
        r"OfflineModeIsEnabled",
        r"LocalEntryNotFoundError",
        r"outgoing traffic has been disabled",
        r"(?:couldn't connect to|Cannot reach) '?https://(?:huggingface\.co|hf)",
    ),
    *_says(
        _C.MODEL_UNKNOWN,
        r"RepositoryNotFoundError",
        r"Repository Not Found",
        r"is not a valid model identifier",
        r"HFValidationError",
        r"Repo id must (?:be|use)",
        r"Invalid repository ID or local directory",
        r"does not recognize this architecture",
        r"Model architectures? \[.*?\] (?:are|is) not supported",
        r"Cannot find any model weights",
        r"does not appear to have a file named",
        r"No supported config format",
        r"Unrecognized model in",
    ),
    *_says(_C.MODEL_ACCESS, r"(?P<http_status>40[13]) Client Error", weak=True),
    *_says(_C.MODEL_UNKNOWN, r"404 Client Error", weak=True),
    # --- compile cache, missing packages --------------------------------------------------------------------------
    *_says(
        _C.COMPILE_CACHE,
        r"corrupted compilation artifact",
        r"failed to get the hash of the compiled graph",
        r"torch_compile_cache|torch_aot_compile|torchinductor|inductor_cache|\.triton/cache|triton_cache",
    ),
    *_says(
        _C.COMPILE_FAILED,
        # Triton, where the GPU has less shared memory than the kernel was written for
        r"out of resources?: shared memory, Required: (?P<needed_shared_memory>\d+), "
        r"Hardware limit: (?P<shared_memory_limit>\d+)",
        r"\bOutOfResources\b",
        r"(?:Internal Triton )?PTX codegen error",
        r"triton\.compiler\.errors\.\w+",
    ),
    *_says(
        _C.MISSING_DEPENDENCY,
        r"No module named '?(?P<module>[\w.]+)",
        r"cannot import name '(?P<module>\w+)'",
        r"undefined symbol: (?P<symbol>\w+)",
        r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object",
        r"version `(?P<library>(?:GLIBC|GLIBCXX)_[\d.]+)' not found",
        r"Failed to find C compiler",
        r"Could not find nvcc",
        r"fatal error: (?P<header>[\w./]+\.h): No such file",
        r"Ninja is required",
        r"(?:ImportError|ModuleNotFoundError)\b",
        r"(?P<module>[\w-]{1,60}): (?:command not found|not found$)",
        r"please (?:run `?)?(?:pip )?install (?P<module>[\w.\[\]-]+)",
    ),
    # The compiler's own words say as little: a cached library that was cut off (PyTorch looks there for what this CPU
    # can do) makes sources that compile elsewhere fail here.
    *_says(
        _C.COMPILE_CACHE,
        r"InductorError",
        r"BackendCompilerFailed",
        r"CppCompileError",
        r"torch\._inductor\.exc",
        weak=True,
    ),
    # --- flags ----------------------------------------------------------------------------------------------------
    *_says(
        _C.INVALID_FLAG,
        r"\berror: unrecognized arguments?: (?P<argument>.+)",
        r"\berror: argument (?P<argument>[-\w/, .]+): invalid choice: (?P<value>'[^']*'|\S+)",
        r"\berror: argument (?P<argument>[-\w/, .]+): invalid .*?value: (?P<value>'[^']*'|\S+)",
        r"\berror: argument (?P<argument>[-\w/, .]+): .+",
        r": error: (?:the following arguments are required|ambiguous option|expected|unknown|invalid|no such)\b",
        r"unexpected keyword argument '?(?P<argument>\w+)",
        r"no such option: (?P<argument>\S+)",
    ),
    # --- combinations ---------------------------------------------------------------------------------------------
    *_says(
        _C.INVALID_COMBINATION,
        r"max_num_batched_tokens \((?P<max_num_batched_tokens>\d+)\) is smaller than max_model_len "
        r"\((?P<max_model_len>\d+)\)",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens>\d+)\) must be greater than or equal to max_num_seqs "
        r"\((?P<max_num_seqs>\d+)\)",
        r"User-specified max_model_len \((?P<max_model_len>\d+)\) is greater than the derived max_model_len "
        r"\(\w+=(?P<derived_max_model_len>\d+)",
        r"quantization method \S+ is not supported for the current GPU\. Minimum capability: "
        r"(?P<needed_capability>\d+)\. Current capability: (?P<capability>\d+)",
        r"Bfloat16 is only supported on GPUs with compute capability",
        r"is not supported for quantization method",
        r"does not match the quantization method",
        r"not valid for this configuration",
        r"No valid attention backend",
        r"(?:cannot|can not|can't|must not|should not) be (?:used|enabled|combined|set|specified) "
        r"(?:with|together|when|at the same)",
        r"(?:is|are) (?:not (?:yet )?(?:supported|compatible)|incompatible) (?:with|when|for|in combination)",
        r"mutually exclusive",
        r"NotImplementedError",
    ),
    # --- waiting that vLLM itself gave up -------------------------------------------------------------------------
    *_says(
        _C.HANG,
        r"Timed out waiting for (?:new )?engine core processes",
        r"RPC call to \w+ timed out",
        r"TimeoutError: .*(?:engine|worker|executor)",
    ),
    # --- deaths that say no more ----------------------------------------------------------------------------------
    *_says(
        _C.CRASH,
        r"Fatal Python error: (?P<reason>[\w ]+)",
        r"Segmentation fault|Segfault encountered",
        r"illegal memory access",
        r"device-side assert",
        r"unspecified launch failure",
        r"core dumped",
        r"\bSIG(?:SEGV|ABRT)\b",
    ),
)

WRAPPER = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineCore (?:encountered|hit)|Failed core proc"
    r"|WorkerProc (?:hit an exception|failed to start|initialization failed)|EngineDeadError|EngineGenerateError"
    r"|Engine process failed to start|Engine loop (?:has died|is not running)|Background loop (?:is|has) "
    r"|Worker failed with error|died unexpectedly|output_handler failed|fatal signal from worker|ChildFailedError"
    r"|Executor failed|shutting down\.?$|See (?:root cause|stack trace) above|Engine background task failed"
    r"|^(?:\w+\.)*(?:SystemExit|KeyboardInterrupt|CancelledError|BrokenPipeError|ConnectionResetError|EOFError)\b",
    re.IGNORECASE,
)
"""Lines that only report that something else failed; never a root cause (vllm#27194)."""

DEATH = re.compile(
    r"EngineDeadError|EngineCore (?:encountered|hit)|WorkerProc hit an exception|died unexpectedly"
    r"|output_handler failed|Engine background task failed|Engine loop (?:has died|is not running)"
    r"|fatal signal from worker|Background loop has errored|Engine process .{0,40}died",
    re.IGNORECASE,
)
"""Lines after which a server that was ready serves no more."""

STANDALONE = frozenset({_C.DRIVER, _C.NCCL, _C.SHARED_MEMORY, _C.CRASH, _C.HANG})
"""Classes (and device memory running out) that end a serving server even when no line says so; an import error in
one request, say, does not."""

_MATCHED_CHARS = 4000  # causes stand at the front of a line; longer ones are dumps


def match(text: str) -> tuple[FailurePattern, dict[str, Value]] | None:
    """The first pattern that the text matches, and the facts it gives."""
    front = text[:_MATCHED_CHARS]
    for pattern in PATTERNS:
        found = pattern.regex.search(front)
        if found:
            return pattern, _gib_to_bytes(pattern.facts(found))
    return None


def _gib_to_bytes(facts: dict[str, Value]) -> dict[str, Value]:
    """`free_gib` 59.32 becomes `free_bytes`: some texts give the unit once for two numbers."""
    return {
        name.removesuffix("_gib") + "_bytes" if name.endswith("_gib") else name: (
            round(value * GIB) if name.endswith("_gib") and isinstance(value, int | float) else value
        )
        for name, value in facts.items()
    }
