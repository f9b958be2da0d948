"""What trials that ended early (`early.py`) have saved. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.records import Trial


def saved_s(trials: Sequence[Trial]) -> float | None:
    """About how much measuring time trials that ended early have saved together; None where none did."""
    found = [trial.result.early for trial in trials if trial.result is not None and trial.result.early is not None]
    return math.fsum(end.saved_s or 0.0 for end in found) if found else None


def early_count(trials: Sequence[Trial]) -> int:
    """How many trials ended early."""
    return sum(trial.result is not None and trial.result.early is not None for trial in trials)
