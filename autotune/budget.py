"""What a study may spend, and why it ended. Pure: what was spent in, an answer out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.records import Trial
from autotune.store.study_record import AttemptRecord
from autotune.time_limit import RECENT, fits, kept_again, launch_s


class Ending(StrEnum):
    """Why a run of a study ended."""

    TRIALS = "trials"
    SPACE = "space"
    """Every config that can start here has been tried."""
    TIME = "time"
    GPU_HOURS = "gpu_hours"
    GAIN = "gain"
    """The sampler expects less of its best proposal than was asked for."""
    STOPPED = "stopped"
    """By the operator."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits beside the number of trials; None for none.

    Attributes:
        max_time_s: of one run, on the engine's clock.
        max_gpu_s: seconds times GPUs used, of all runs of the study together.
    """

    max_time_s: float | None = None
    max_gpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """In the units of `Budget`."""

    time_s: float
    gpu_s: float


def lacking(budget: Budget, spent: Spent, launches: int, trials: Sequence[Trial]) -> Ending | None:
    """What is too little for as many further launches, judged by the last measured ones; None where all suffices."""
    if not fits(budget.max_time_s, spent.time_s, launches, launch_s(trials)):
        return Ending.TIME
    if not fits(budget.max_gpu_s, spent.gpu_s, launches, launch_gpu_s(trials)):
        return Ending.GPU_HOURS
    return None


def kept_for_again(budget: Budget, asked: int, trials: Sequence[Trial]) -> int:
    """For how many of the launches again that were asked for room is kept while configs are tried."""
    return min(
        kept_again(budget.max_time_s, asked, launch_s(trials)),
        kept_again(budget.max_gpu_s, asked, launch_gpu_s(trials)),
    )


def launch_gpu_s(trials: Sequence[Trial]) -> float | None:
    """GPU seconds that the next launch will probably take; None while no trial was measured.

    Its GPUs are not known before it is proposed: the median over the last measured launches stands for them.
    """
    each_s = launch_s(trials)
    gpus = [trial.gpus for trial in trials if trial.measured]
    return None if each_s is None or not gpus else each_s * statistics.median(gpus[-RECENT:])


def attempt_s(attempt: AttemptRecord) -> float:
    """How long an attempt held its GPUs, as far as is stored: until it last entered a phase.

    Of one whose tuner was killed the time after that is not known.
    """
    known = (move.elapsed_s for move in attempt.transitions if move.elapsed_s is not None)
    return max(known, default=0.0)


def gpu_seconds(attempts: Iterable[tuple[int, AttemptRecord]]) -> float:
    """What attempts have cost; each comes with the GPUs that it used."""
    return sum(gpus * attempt_s(attempt) for gpus, attempt in attempts)


def promises_too_little(gain: float | None, least: float | None) -> bool:
    """Whether a proposal is not worth its launch.

    Args:
        gain: of the front's hypervolume that it is expected to add, as a share; None where that is not known.
        least: share below which a study is to end; None for never.
    """
    return gain is not None and least is not None and gain < least
