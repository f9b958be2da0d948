"""The `max-model-len` that a workload's longest request asks for. Pure."""

from __future__ import annotations

GUIDE_MODEL_LENS = (8_192, 16_384, 32_768, 65_536, 131_072)
"""The operators' guide rounds the longest request up to one of the first three; doubled on for longer ones."""


def guide_model_len(needed: int) -> int:
    """The guide's `max-model-len` (G7) for a longest request of `needed` tokens: the next of GUIDE_MODEL_LENS, beyond
    the last of them the need itself."""
    return next((length for length in GUIDE_MODEL_LENS if length >= needed), needed)
