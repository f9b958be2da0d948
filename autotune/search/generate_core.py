"""Parameters that nearly every study searches: KV memory, the scheduler, prefix caching (rows G6-G11). Pure."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.records import BF16_CAPABILITY, FP8_CAPABILITY, ModelShape, Value
from autotune.search.layouts import SPARING, TIGHT_CONCURRENCY, TYPICAL
from autotune.search.need import Need, Omission
from autotune.search.parameter import Parameter
from autotune.units import GIB, format_bytes

_DEDICATED = (0.90, 0.92, 0.94)
_DEDICATED_WIDE = (0.88, 0.90, 0.92, 0.94, 0.95)
_SHARED = (0.80, 0.84, 0.88)
_MARGIN_BYTES = GIB // 2
"""What a CUDA context of another process may still grow by (A start was refused for 0.07 GiB, pytorch#175666)."""

_SEQUENCES = (8, 16, 32, 64, 128, 256, 512, 1024)
_LONG_PROMPT = 4096
_LARGE_GPU_BYTES = 70 * GIB


def core_parameters(need: Need) -> list[Parameter | Omission]:
    """In the order in which they decide: memory first, then the scheduler."""
    if not need.node.gpus:
        return [
            Parameter(name="max-num-seqs", choices=(4, 16, 64), why="G8: a CPU is full with few sequences"),
            Parameter(
                name="max-num-batched-tokens",
                choices=(256, 512, 1024, 2048),
                why="G10: a large prompt chunk holds up every decoding sequence",
            ),
            _prefix_caching(need),
            Omission(name="gpu-memory-utilization", why="no GPU is visible"),
        ]
    return [_utilization(need), _kv_dtype(need), _sequences(need), _batched_tokens(need), _prefix_caching(need)]


def layout_tries(need: Need, shape: ModelShape | None) -> tuple[Mapping[str, Value], ...]:
    """Settings that layouts are tried with: the space's usual ones, then its most sparing ones."""
    shares = _shares(need)
    middle = 0.92 if 0.92 in shares else shares[-1]
    native = need.capability is not None and need.capability >= FP8_CAPABILITY
    own = shape is not None and shape.kv_cache_dtype is not None
    kv: dict[str, Value] = {"kv-cache-dtype": "fp8"} if native and not own else {}
    usual = {**TYPICAL, "gpu-memory-utilization": middle}
    return (
        usual,
        {**SPARING, "gpu-memory-utilization": shares[-1]},
        {**SPARING, "gpu-memory-utilization": shares[-1], **kv},
    )


def _shares(need: Need) -> tuple[float, ...]:
    """Utilisations to try: the guide's for a dedicated node, or what others leave of a shared one (G6)."""
    if not need.others_bytes or need.gpu is None:
        return _DEDICATED_WIDE if need.wide else _DEDICATED
    free = (need.gpu.memory_bytes - need.others_bytes - _MARGIN_BYTES) / need.gpu.memory_bytes
    fitting = tuple(share for share in _SHARED if share <= free)
    if len(fitting) > 1:
        return fitting
    most = int(max(free, 0.1) * 100) / 100
    return (round(most - 0.04, 2), most)


def _utilization(need: Need) -> Parameter:
    shares = _shares(need)
    if need.others_bytes:
        why = f"G6: other processes hold {format_bytes(need.others_bytes)} of a GPU, so at most {shares[-1]:g}"
    else:
        why = "G6: what weights and activations leave of it holds KV; 0.88-0.92 to start, 0.94-0.95 when dedicated"
    return Parameter(name="gpu-memory-utilization", choices=shares, why=why)


def _kv_dtype(need: Need) -> Parameter | Omission:
    name, capability = "kv-cache-dtype", need.capability
    shape = need.tightest or need.shape
    if shape is not None and shape.kv_cache_dtype is not None:
        return Omission(name=name, why=f"the checkpoint's KV is {shape.kv_cache_dtype} already")
    held = "" if need.held is None else f"; in 16 bit KV holds about {need.held:.0f} average requests at once"
    if capability is None:
        return Omission(name=name, why="G9: the GPU's compute capability is not known, fp8 KV depends on it")
    if capability >= (9, 0) or (capability >= FP8_CAPABILITY and not need.latent):
        why = f"G9: fp8 halves KV{held}; compare answers on mathematics and code before production"
        return Parameter(name=name, choices=("auto", "fp8"), why=why, lossy=True)
    shown = f"{capability[0]}.{capability[1]}"
    if need.latent:
        return Omission(name=name, why=f"G9: fp8 latents need compute capability 9.0, this GPU has {shown}")
    tight = need.held is not None and need.held < TIGHT_CONCURRENCY
    if capability >= BF16_CAPABILITY and (tight or need.wide):
        why = f"G9: no fp8 units ({shown}), so fp8_e5m2 saves memory only, with some backends{held}"
        return Parameter(name=name, choices=("auto", "fp8_e5m2"), why=why, lossy=True)
    reason = f"no fp8 units (compute capability {shown})" + (
        " and KV is ample" if capability >= BF16_CAPABILITY else ""
    )
    return Omission(name=name, why=f"G9: {reason}{held}")


def _sequences(need: Need) -> Parameter:
    """Around what KV holds at once: beyond it requests are preempted, far below it the GPU waits (G8)."""
    held = need.held
    if held is None:
        choices: tuple[int, ...] = (32, 64, 128, 256, 512)
        why = "G8: a low cap keeps the time per token short, a high one fills the GPU until KV runs out"
        return Parameter(name="max-num-seqs", choices=choices, why=why)
    wanted = held
    if need.traffic.concurrency is not None:
        wanted = min(held, 2.0 * need.traffic.concurrency)
    top = next((size for size in _SEQUENCES if size >= wanted), _SEQUENCES[-1])
    top = max(top, 32)
    least = 32 if top > 64 else 8
    sizes = [size for size in _SEQUENCES if least <= size <= top]
    most = 7 if need.wide else 5
    while len(sizes) > most:
        del sizes[1]  # the lowest is where latency is best; above it the larger ones matter
    why = f"G8: KV holds about {held:.0f} requests of {need.request_tokens:.0f} tokens at once in the roomiest layout"
    if need.traffic.concurrency is not None:
        why += f"; {need.traffic.concurrency} at once are expected"
    return Parameter(name="max-num-seqs", choices=tuple(sizes), why=why)


def _batched_tokens(need: Need) -> Parameter:
    """Small favours the time between tokens, large the first token of long prompts (G10)."""
    sizes = {2048, 8192, 16384}
    longest = need.traffic.prompt_p95
    why = "G10: small steps favour the time between tokens, large ones the first token of long prompts"
    if longest is not None and longest >= _LONG_PROMPT:
        sizes |= {32768}
        why += f"; p95 of the prompts is {longest:.0f} tokens"
    if need.gpu is not None and need.gpu.memory_bytes < _LARGE_GPU_BYTES:
        sizes |= {4096}
        why += f"; on {format_bytes(need.gpu.memory_bytes)} activations of large steps take room from KV"
    if need.wide:
        sizes |= {1024, 4096, 32768}
    return Parameter(name="max-num-batched-tokens", choices=tuple(sorted(sizes)), why=why)


def _prefix_caching(need: Need) -> Parameter:
    if need.keeps_states:
        why = "G11: with state layers every cached prefix costs a state of its own, so both are compared"
        return Parameter(name="enable-prefix-caching", choices=(False, True), why=why)
    if need.traffic.shares_prefixes:
        why = "G11: prompts open alike, so cached prefixes skip prefill; off shows what they save"
    else:
        why = "G11: on by default; prompts share nothing that is known, so off may save its bookkeeping"
    return Parameter(name="enable-prefix-caching", choices=(True, False), why=why)
