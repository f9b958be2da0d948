"""Which batch sizes vLLM captures as CUDA graphs, and what padding to the next one costs. Pure.

Source: `VllmConfig._set_cudagraph_sizes` (config/vllm.py, 0.32).
"""

from __future__ import annotations

from bisect import bisect_left

from autotune.node.defaults import ResolvedSettings

FINE_UP_TO = 32
"""With `--performance-mode interactivity` every size up to here is captured."""


def captured_sizes(settings: ResolvedSettings, performance_mode: str | None = None) -> tuple[int, ...]:
    """Tokens of the captured batches, ascending; empty without graphs.

    Args:
        performance_mode: instead of the one in `settings`.
    """
    limit = settings.max_cudagraph_capture_size
    if settings.enforce_eager or limit is None:
        return ()
    fine = (performance_mode or settings.performance_mode) == "interactivity"
    sizes = set(range(1, min(limit, FINE_UP_TO) + 1)) if fine else {n for n in (1, 2, 4) if n <= limit}
    sizes |= set(range(8, min(limit + 1, 256), 8)) | set(range(256, limit + 1, 16))
    if settings.max_num_batched_tokens <= limit:
        sizes.add(settings.max_num_batched_tokens)
    return tuple(sorted(sizes))


def padding(settings: ResolvedSettings) -> tuple[int, ...]:
    """By batch size, the tokens of padding that finer graphs save; empty where they save none.

    The step times are fitted to a server with coarse graphs, whose padding they contain.
    """
    if settings.performance_mode != "interactivity":
        return ()
    coarse, fine = captured_sizes(settings, "balanced"), captured_sizes(settings)
    if not coarse:
        return ()  # --enforce-eager: nothing is captured, nothing is padded
    last = min(FINE_UP_TO, coarse[-1])
    return tuple(_padded(coarse, n) - _padded(fine, n) for n in range(last + 1))


def _padded(sizes: tuple[int, ...], tokens: int) -> int:
    return sizes[bisect_left(sizes, tokens)]
