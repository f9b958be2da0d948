"""What real trials teach about the simulation's coefficients, from one study to the next on the same node.

A study begins with the nearest calibration that is kept (`store.calibrations`), and at its end fits the coefficients to
a few of its own trials and keeps them. Simulated trials teach nothing: they would give back what they were made of.
Nothing here ends a study: what cannot be read or fitted is told in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import AutotuneError
from autotune.load.records_file import level_path, read_records
from autotune.load.requests import plan_requests
from autotune.node.defaults import resolve
from autotune.planning.plan import StudyPlan
from autotune.planning.prior import has_physics
from autotune.records import Config, EngineKind, LevelRole, Measurement, Trial
from autotune.simulator.calibrate import UNCERTAINTIES, Calibration, calibrate
from autotune.simulator.coefficients import STUDIED, Coefficients
from autotune.simulator.compiled import compiling
from autotune.simulator.measured import MeasuredLoad, figures
from autotune.store.calibrations import Origin, Place, StoredCalibration, load_calibration, save_calibration

LEVELS = (LevelRole.THROUGHPUT, LevelRole.TTFT)

MOST_TRIALS = 3
"""Trials that are fitted: what a fourth adds was not worth its time on the recorded nodes."""

MOST_TOKENS = 1_200_000
"""Output tokens of all fitted levels together: about 5 s of one core with the compiled core of the simulator."""

MOST_TOKENS_PLAIN = 40_000
"""The same without numba."""

LEAST_REQUESTS = 30
"""Requests of a level below which its figures are luck."""

ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCalibration:
    """One node's coefficients while a study runs on it.

    Attributes:
        folder: where calibrations are kept.
        stored: what an earlier study found; None where there is none.
    """

    plan: StudyPlan
    folder: Path
    place: Place
    stored: StoredCalibration | None

    @classmethod
    def of(cls, plan: StudyPlan, machine: str) -> NodeCalibration | None:
        """Of the node of a plan; None where nothing could be learnt or kept: simulations, containers and wrappers whose
        version is not known, nodes without known physics or with GPUs of several kinds.

        Args:
            machine: its host name.
        """
        kinds = {gpu.name for gpu in plan.node.gpus}
        known = plan.cache_dir is not None and plan.vllm_version is not None and has_physics(plan) and len(kinds) == 1
        if plan.engine is not EngineKind.PROCESS or not known:
            return None
        assert plan.cache_dir is not None  # `known` says both
        assert plan.vllm_version is not None
        place = Place(machine=machine, gpu=kinds.pop(), vllm=plan.vllm_version)
        stored = load_calibration(plan.cache_dir, place, STUDIED)
        return cls(plan=plan, folder=plan.cache_dir, place=place, stored=stored)

    @property
    def coefficients(self) -> Coefficients | None:
        """What the prior begins with; None for what a study begins with where nothing is known."""
        return None if self.stored is None else self.stored.coefficients

    @property
    def told(self) -> str | None:
        """One line for the operator; None where nothing was learnt before."""
        found = self.stored
        if found is None:
            return None
        whence = {
            Origin.SAME: "on this node",
            Origin.OTHER_VERSION: f"on this node with vLLM {found.place.vllm}",
            Origin.OTHER_MACHINE: f"on {found.place.machine}, another machine with {found.place.gpu}",
        }[found.origin]
        return f"predictions begin from {found.loads} load levels measured {whence} on {found.saved_at:%Y-%m-%d}"

    def learn(self, trials: Sequence[Trial]) -> str | None:
        """Fit the coefficients to a few of `trials` and keep them; one line for the operator, None where nothing could
        be learnt. Seconds of CPU time: not beside a measurement.

        Args:
            trials: that no stored calibration was fitted to yet.
        """
        try:
            loads = chosen_loads(self.plan, trials)
            if not loads:
                return None
            found = self._fitted(loads)
            save_calibration(self.folder, self.place, found)
        except (AutotuneError, ValueError, ArithmeticError, OSError) as error:
            why = error.message if isinstance(error, AutotuneError) else str(error)
            return f"nothing was learnt for the next study's predictions: {why}"
        return (
            f"learnt from {found.loads} load levels for the next study here: predictions of them were off by "
            f"{found.misfit_before:.1f} times the measurement's own accuracy, and are by {found.misfit_after:.1f} now"
        )

    def _fitted(self, loads: Sequence[MeasuredLoad]) -> Calibration:
        before = self.stored
        known = UNCERTAINTIES if before is None else before.uncertainties
        found = calibrate(
            loads,
            STUDIED if before is None else before.coefficients,
            uncertainties=known,
            seeds=1,
            rounds=ROUNDS,
        )
        # What these loads tell nothing of (tensor parallelism on one GPU) stays as sure as it was.
        return replace(found, spreads={**known, **found.spreads})


def chosen_loads(plan: StudyPlan, trials: Sequence[Trial]) -> tuple[MeasuredLoad, ...]:
    """The levels of a few trials that differ, within what may be spent: the first measured, the fastest, the slowest.

    Raises:
        StorageError: records that cannot be read.
    """
    real = [trial for trial in trials if _is_real(trial)]
    if not real:
        return ()
    by_speed = sorted(real, key=_speed)
    order = dict.fromkeys(trial.number for trial in (real[0], by_speed[-1], by_speed[0]))
    found: list[MeasuredLoad] = []
    left = MOST_TOKENS if compiling.installed() else MOST_TOKENS_PLAIN
    for number in list(order)[:MOST_TRIALS]:
        for load in measured_loads(plan, next(trial for trial in real if trial.number == number)):
            tokens = sum(request.output_tokens for request in load.requests)
            if tokens <= left:
                left -= tokens
                found.append(load)
    return tuple(found)


def measured_loads(plan: StudyPlan, trial: Trial) -> Iterator[MeasuredLoad]:
    """The two levels of a trial as the simulation can repeat them; those whose records are gone, that had errors or
    were the client's are left out.

    Raises:
        StorageError: a file of records that cannot be read.
    """
    shape, result = plan.shape_of(trial.config), trial.result
    if shape is None or result is None or result.facts is None or not result.facts.kv_cache_tokens:
        return
    settings = resolve(Config.of({**dict(plan.extra), **trial.config.as_dict()}), plan.node, shape, plan.vllm_version)
    for role in LEVELS:
        measured = result.of_role(role)
        path = None if measured is None else _records_of(trial, measured)
        if measured is None or path is None:
            continue
        kept = read_records(path)
        planned = plan_requests(plan.workload, kept.level, trial.number)[: len(kept.records)]
        if len(planned) != len(kept.records) or any(one.error is not None for one in kept.records):
            continue
        if all((one.output_tokens or 0) < 2 for one in kept.records):
            continue  # there is no time per token to be fitted
        yield MeasuredLoad(
            node=plan.node,
            shape=shape,
            settings=settings,
            kv_tokens=result.facts.kv_cache_tokens // settings.data_parallel,
            # It has grown to what it is: simulated, it must not grow on.
            level=replace(kept.level, requests=len(planned), most_requests=None),
            requests=planned,
            measured=figures(kept.records),
        )


def _records_of(trial: Trial, measured: Measurement) -> Path | None:
    if trial.directory is None or measured.void is not None or measured.completed < LEAST_REQUESTS:
        return None
    path = level_path(Path(trial.directory), measured.level)
    return path if path.exists() else None


def _is_real(trial: Trial) -> bool:
    return trial.measured and trial.result is not None and not trial.result.simulated


def _speed(trial: Trial) -> float:
    rate = trial.output_tok_s_per_gpu
    assert rate is not None  # of a measured trial
    return rate.value
