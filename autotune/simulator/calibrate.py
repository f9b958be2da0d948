"""Fits the few physical coefficients to loads that were measured. Pure and deterministic.

The coefficients are fitted as factors: each has a prior value and an uncertainty in its logarithm, and the fit finds
the most probable ones given the measured figures (maximum a posteriori; Gauss-Newton with Levenberg's damping). What no
load tells stays at its prior, so one launch is enough to begin with. The simulation has steps in it - which requests
share a batch - so derivatives are differences over half an uncertainty, and figures are means over a few seeds.

Rejected: Nelder-Mead, which needs hundreds of simulations for a dozen coefficients and walks along the valleys that
the prior closes here; a global search, because the prior is never far off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from autotune.one_thread import in_one_thread
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.measured import Figures, MeasuredLoad, Repeated

Vector = NDArray[np.float64]

UNCERTAINTIES: Mapping[str, float] = {
    "compute_share": 0.12,
    "sustained_compute_share": 0.12,
    "half_tokens": 0.5,
    "attention_compute_share": 0.3,
    "weight_read_share": 0.15,
    "kv_read_share": 0.2,
    "overlap_norm": 0.3,
    "step_overhead_s": 0.5,
    "prefill_overhead_s": 0.6,
    "engine_cpu_s": 0.6,
    "sequence_s": 0.5,
    "uncaptured_floor_s": 0.4,
    "eager_floor_s": 0.4,
    "eager_overhead_s": 0.6,
    "allreduce_latency_s": 0.4,
    "allreduce_pcie_latency_s": 0.6,
    "nvlink_bytes_per_s": 0.4,
    "pcie_bytes_per_s": 0.5,
    "rank_overhead_s": 1.0,
    "stage_overhead_s": 0.8,
    "lock_step_s": 0.6,
    "fp8_share": 0.15,
    "dequantised_share": 0.2,
    "expert_share": 0.2,
    "moe_layer_s": 0.5,
    "latent_layer_s": 0.5,
    "unoverlapped_cpu_s": 0.6,
    "api_request_s": 0.5,
    "api_prompt_token_s": 0.6,
    "api_token_s": 0.4,
    "api_chunk_s": 0.4,
    "api_in_latency_s": 0.6,
    "api_out_latency_s": 0.6,
}
"""What calibration may move: the standard deviation of each coefficient's logarithm before anything is measured.

Shares of a peak are known to a tenth or two; times of CPU work to a factor of about 1.5, because they depend on the
host's cores and on the version of vLLM.
"""

CEILINGS: Mapping[str, float] = {name: 0.98 for name in UNCERTAINTIES if name.endswith("_share")}
FLOORS: Mapping[str, float] = {"overlap_norm": 1.0}
_DIFFERENCE = 0.5
_STEEPEST = 3.0  # observations further off than this many deviations count as if they were this far: one odd row


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How closely a measured figure is worth matching: noise of the measurement and misfit of the model, relative."""

    output_tok_s: float = 0.02
    tpot_p50_s: float = 0.03
    ttft_mean_s: float = 0.06
    ttft_p95_s: float = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Coefficients after a fit.

    Attributes:
        spreads: standard deviation of each fitted coefficient's logarithm that is left.
        loads: how many were used.
        misfit_before, misfit_after: root mean square of the figures' errors, in units of `Accuracy`.
    """

    coefficients: Coefficients
    spreads: Mapping[str, float]
    loads: int
    misfit_before: float
    misfit_after: float


@in_one_thread
def calibrate(
    loads: Sequence[MeasuredLoad],
    prior: Coefficients,
    *,
    uncertainties: Mapping[str, float] = UNCERTAINTIES,
    accuracy: Accuracy | None = None,
    seeds: int = 2,
    rounds: int = 5,
) -> Calibration:
    """The coefficients that explain `loads` best without straying from `prior`.

    Args:
        uncertainties: of the coefficients' logarithms; those that are not named keep their prior value. Those of an
            earlier calibration (`Calibration.spreads`) make it the prior of this one.
        seeds: simulations per load and set of coefficients.

    Raises:
        ValueError: no load, one without figures, or a coefficient of that name does not exist.
    """
    if not loads:
        raise ValueError("a calibration needs at least one measured load")
    fit = _Fit(loads, prior, relevant(loads, uncertainties), accuracy or Accuracy(), seeds)
    start = fit.residuals(fit.origin)
    if not np.isfinite(start).all():  # a fit of it would be no number, and worse than what it replaces
        raise ValueError("the simulation or the measurement has no figures for these loads")
    at, now, derivative = _least_squares(fit, start, rounds)
    spread = np.sqrt(np.diag(np.linalg.inv(derivative.T @ derivative + np.eye(len(at)))))
    return Calibration(
        coefficients=fit.coefficients(at),
        spreads={name: float(s) * fit.sigmas[name] for name, s in zip(fit.sigmas, spread, strict=True)},
        loads=len(loads),
        misfit_before=_rms(start),
        misfit_after=_rms(now),
    )


def informative(
    trials: Sequence[Sequence[MeasuredLoad]],
    prior: Coefficients,
    count: int,
    *,
    uncertainties: Mapping[str, float] = UNCERTAINTIES,
    accuracy: Accuracy | None = None,
    seeds: int = 1,
) -> tuple[int, ...]:
    """Which trials to measure first: those that leave least doubt about the figures of all of them.

    Chosen one after another, each such that the sum of the predicted variances of all figures becomes least (the
    A-optimal design of a linear model). Nothing measured enters, only what the simulation says about each trial.

    Args:
        trials: the loads of each.
        count: how many; fewer where there are not that many.
    """
    every = [load for loads in trials for load in loads]
    sigmas = relevant(every, uncertainties)
    slopes = [_Fit(loads, prior, sigmas, accuracy or Accuracy(), seeds).slopes() for loads in trials]
    whole = np.concatenate(slopes)
    known = np.eye(len(sigmas))
    chosen: list[int] = []
    while len(chosen) < min(count, len(trials)):
        left = [index for index in range(len(trials)) if index not in chosen]
        doubt = {
            index: float(np.sum((whole @ np.linalg.inv(known + slopes[index].T @ slopes[index])) * whole))
            for index in left
        }
        best = min(left, key=doubt.__getitem__)
        chosen.append(best)
        known += slopes[best].T @ slopes[best]
    return tuple(chosen)


def relevant(loads: Sequence[MeasuredLoad], uncertainties: Mapping[str, float] = UNCERTAINTIES) -> dict[str, float]:
    """Those uncertain coefficients that at least one of the loads' servers depends on.

    Raises:
        ValueError: a coefficient of that name does not exist.
    """
    known = {field.name for field in fields(Coefficients)}
    unknown = sorted(set(uncertainties) - known)
    if unknown:
        raise ValueError(f"no such coefficients: {', '.join(unknown)}")
    return {
        name: sigma
        for name, sigma in uncertainties.items()
        if name not in _DEPENDS or any(_DEPENDS[name](load) for load in loads)
    }


def _eager(load: MeasuredLoad) -> bool:
    return load.settings.enforce_eager


def _tensor(load: MeasuredLoad) -> bool:
    return load.settings.tensor_parallel > 1


def _experts(load: MeasuredLoad) -> bool:
    return load.shape.experts is not None


def _quantised(load: MeasuredLoad) -> bool:
    return load.settings.quantization is not None


_DEPENDS: Mapping[str, Callable[[MeasuredLoad], bool]] = {
    "uncaptured_floor_s": lambda load: not load.settings.enforce_eager,
    "eager_floor_s": _eager,
    "eager_overhead_s": _eager,
    "allreduce_latency_s": _tensor,
    "allreduce_pcie_latency_s": _tensor,
    "nvlink_bytes_per_s": _tensor,
    "pcie_bytes_per_s": _tensor,
    "rank_overhead_s": _tensor,
    "stage_overhead_s": lambda load: load.settings.pipeline_parallel > 1,
    "lock_step_s": lambda load: load.settings.data_parallel > 1 and _experts(load),
    "fp8_share": _quantised,
    "dequantised_share": _quantised,
    "expert_share": _experts,
    "moe_layer_s": _experts,
    "latent_layer_s": lambda load: bool(load.shape.decoder),
    "unoverlapped_cpu_s": lambda load: not load.settings.async_scheduling,
}


class _Fit:
    """The residuals of a set of loads as a function of standardised log factors."""

    def __init__(
        self,
        loads: Sequence[MeasuredLoad],
        prior: Coefficients,
        sigmas: Mapping[str, float],
        accuracy: Accuracy,
        seeds: int,
    ) -> None:
        self.sigmas = dict(sigmas)
        self.origin: Vector = np.zeros(len(sigmas))
        self._loads = [Repeated(load) for load in loads]
        self._prior = prior
        self._accuracy = accuracy
        self._seeds = seeds

    def coefficients(self, at: Vector) -> Coefficients:
        return moved(self._prior, {name: s * z for (name, s), z in zip(self.sigmas.items(), at.tolist(), strict=True)})

    def residuals(self, at: Vector) -> Vector:
        """One per figure that was measured, in units of its accuracy."""
        c = self.coefficients(at)
        return np.concatenate(
            [
                deviations(repeated.figures(c, seeds=self._seeds)[0], repeated.load.measured, self._accuracy)
                for repeated in self._loads
            ]
        )

    def slopes(self) -> NDArray[np.float64]:
        """The derivative at the prior."""
        return self.derivative(self.origin, self.residuals(self.origin))

    def derivative(self, at: Vector, base: Vector) -> NDArray[np.float64]:
        columns = []
        for index in range(len(at)):
            # Towards the prior, where the other side may lie beyond a ceiling.
            step = np.zeros(len(at))
            step[index] = -_DIFFERENCE if at[index] > 0 else _DIFFERENCE
            columns.append((self.residuals(at + step) - base) / step[index])
        return np.stack(columns, axis=1)


def moved(prior: Coefficients, log_factors: Mapping[str, float]) -> Coefficients:
    """`prior` with coefficients multiplied by e to the power of `log_factors`, within physical bounds."""
    values = {}
    for name, factor in log_factors.items():
        value = getattr(prior, name) * float(np.exp(factor))
        values[name] = max(FLOORS.get(name, 0.0), min(CEILINGS.get(name, np.inf), value))
    return replace(prior, **values)


def deviations(simulated: Figures, measured: Figures, accuracy: Accuracy) -> Vector:
    """Logarithms of simulated over measured, in units of accuracy, of the figures that were measured."""
    found = []
    for field in fields(Accuracy):
        truth = getattr(measured, field.name)
        if truth is not None:
            found.append(np.log(getattr(simulated, field.name) / truth) / getattr(accuracy, field.name))
    return np.array(found)


def _least_squares(fit: _Fit, start: Vector, rounds: int) -> tuple[Vector, Vector, NDArray[np.float64]]:
    """Minimises the robust sum of squares plus that of the log factors; where it stands, residuals and derivative."""
    at, now, damping = fit.origin, start, 0.1
    derivative = fit.derivative(at, now)
    for _ in range(rounds):
        weight = np.minimum(1.0, _STEEPEST / np.maximum(np.abs(now), 1e-12))
        normal = derivative.T @ (derivative * weight[:, None])
        gradient = derivative.T @ (now * weight) + at
        moved_on = False
        for _ in range(4):
            step = np.linalg.solve(normal + (1.0 + damping) * np.eye(len(at)), -gradient)
            then = fit.residuals(at + step)
            gain = _cost(now, at) - _cost(then, at + step)
            if gain > 0:
                at, now, damping, moved_on = at + step, then, damping / 4, True
                break
            damping = 4 * max(damping, 0.1)
        if not moved_on or gain < 0.005 * _cost(now, at):
            break
        derivative = fit.derivative(at, now)
    return at, now, derivative


def _cost(residuals: Vector, at: Vector) -> float:
    size = np.abs(residuals)
    robust = np.where(size <= _STEEPEST, size**2, _STEEPEST * (2 * size - _STEEPEST))
    return float(robust.sum() + at @ at)


def _rms(residuals: Vector) -> float:
    return float(np.sqrt(np.mean(residuals**2)))
