"""The prior of a node and model whose physics are known: roofline, queue and memory arithmetic. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.errors import InvalidOption
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import estimate
from autotune.records import Config, LoadLevel, ModelShape, Node, PlannedRequest, Value
from autotune.search.prior.expectation import Expectation, Floats, Observation, Prior
from autotune.search.prior.normal import cumulative
from autotune.search.rules_base import CHECKPOINT
from autotune.search.rules_memory import version_of_text
from autotune.simulator.closed_form import ClosedForm, Columns, Factors, Offered, columns_of
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.many import Server, simulate_many

FACTOR_SD = 0.3
"""How far off a physical coefficient is believed to be, in logarithms."""

MISFIT_SDS = (0.3, 0.6)
"""How far a fitted formula is believed to stay off, per objective: what the fit must not chase."""

UNKNOWN_MINUTES = 3.0
"""Until a server is ready of which nothing can be worked out."""

LEVELS = 2
"""Load levels of a trial; the closed loop takes about as long as the fixed rate."""

MISFIT_TRIALS = 2.0
"""How many trials that belief weighs as much as; the misfits that are seen correct it."""

LEVEL_SDS = (0.15, 0.3)
"""How far it may be off everywhere alike: a level is no reason to turn a factor."""

MEMORY_SD_SHARE = 0.015
"""Of a GPU's memory: how far the memory arithmetic is believed to be off; a fifth of it once a log was seen."""

STARTS = 0.95
"""Probability that a config starts and serves for which memory is no question."""

FIT_ROUNDS = 6
_NUDGE = 1e-3

MOST_PACE = 4.0
"""By which a clock is set at most."""

WORTH_KEEPING = 500
"""Listings from this length on are resolved once: the candidates are asked about before every launch."""

DISK_BYTES_PER_S = 2e9
START_MINUTES = 1.4
"""Start-up of a small model with nothing compiled: 83 s on an H200 with vLLM 0.25, weights included."""

Levels = Callable[
    [int], tuple[tuple[LoadLevel, tuple[PlannedRequest, ...]], tuple[LoadLevel, tuple[PlannedRequest, ...]]]
]
"""From the number of GPUs used to the throughput level and the TTFT level with their requests."""


@dataclass(frozen=True, slots=True)
class _Resolved:
    """Configs resolved once: their columns and memory.

    Attributes:
        known: whose physics are known.
        parts: for each checkpoint the places of its configs, and their columns.
    """

    known: np.ndarray
    parts: tuple[tuple[np.ndarray, Columns], ...]
    spare_bytes: Floats
    minutes: Floats


@dataclass(slots=True)
class _Memory:
    """The last listings resolved: a memory of a pure function, shared by a prior and its refits."""

    kept: dict[int, tuple[Sequence[Config], _Resolved]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalPrior:
    """Expects of a config what its arithmetic says.

    Attributes:
        shapes: of other checkpoints, by the value of `model` that names them.
        fixed: flags of every launch of the study beside its config.
        levels: for the event simulator; None leaves `refine` at the closed form.
        pace: seconds here for a second of the coefficients'; see `paced`.
        shift_bytes: by which more memory was seen to be left for KV per GPU than the arithmetic says.
        learnt_bytes: how many logs that was learnt from.
    """

    node: Node
    shape: ModelShape
    offered: Offered
    fixed: tuple[tuple[str, Value], ...] = ()
    vllm_version: str | None = None
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    coefficients: Coefficients = field(default_factory=Coefficients)
    levels: Levels | None = None
    factors: Factors = field(default_factory=Factors)
    pace: float = 1.0
    shift_bytes: float = 0.0
    learnt_bytes: int = 0
    _memory: _Memory = field(default_factory=_Memory, repr=False, compare=False)

    def settings(self, config: Config) -> ResolvedSettings:
        """What a launch of `config` ends up with.

        Raises:
            InvalidOption: a value of the wrong type.
        """
        return resolve(config, self.node, self._shape(config), self.vllm_version, dict(self.fixed))

    def paced(self, baseline: Config, capacity_rps: float) -> PhysicalPrior:
        """The prior with its clock set by a ramp.

        How long requests wait is decided by how near the load is to what a config can do, and the load is a share of
        what the baseline was seen to do. A prior that believes the node a third too slow would see every config choke
        on a load that all of them carry. So all its times are stretched alike, until its baseline does what was seen.

        Args:
            capacity_rps: requests/s per GPU that the baseline served at most.
        """
        found = self._resolved([baseline])
        if not found.known.all() or capacity_rps <= 0:
            return self
        throughput, _ = replace(self, pace=1.0)._predicted(found, self.factors)
        share = float(throughput[0]) / self.offered.output_tokens / capacity_rps
        return replace(self, pace=min(MOST_PACE, max(1.0 / MOST_PACE, share)))

    def _predicted(self, found: _Resolved, factors: Factors) -> Floats:
        """Throughput and TTFT, shape (2, configs); NaN where nothing is known."""
        figures = np.full((2, len(found.known)), np.nan)
        for places, columns in found.parts:
            figures[:, places] = ClosedForm(columns, self.offered, self.coefficients, factors, self.pace).predict()
        return figures

    def expect(self, configs: Sequence[Config]) -> Expectation:
        """Closed form and memory arithmetic; a config that cannot be resolved is expected to fail."""
        found = self._resolved(configs)
        n = len(configs)
        logs = np.log(self._predicted(found, self.factors))
        if found.known.any():
            logs = np.where(found.known, logs, logs[:, found.known].mean(axis=1, keepdims=True))
        else:
            logs = np.zeros((2, n))
        sd = MEMORY_SD_SHARE / math.sqrt(1.0 + 24.0 * min(self.learnt_bytes, 1))
        memory = min((gpu.memory_bytes for gpu in self.node.gpus), default=1)
        feasible = STARTS * cumulative((found.spare_bytes + self.shift_bytes) / (sd * memory))
        return Expectation(
            log_throughput=logs[0],
            log_ttft=logs[1],
            feasible=np.where(found.known, feasible, 0.02),
            minutes=found.minutes,
            memory_sd_bytes=MEMORY_SD_SHARE * memory,
        )

    def refine(self, configs: Sequence[Config]) -> Expectation:
        """The event simulator's figures where levels are known; NaN where it cannot run a config."""
        plain = self.expect(configs)
        if self.levels is None or not self.node.gpus:
            return plain
        logs = [np.full(len(configs), np.nan), np.full(len(configs), np.nan)]
        for row, config in enumerate(configs):
            figures = self._simulated(config)
            if figures is not None:
                logs[0][row], logs[1][row] = math.log(figures[0]), math.log(figures[1])
        return replace(plain, log_throughput=logs[0], log_ttft=logs[1])

    def refit(self, observations: Sequence[Observation]) -> Prior:
        """Factors by damped least squares, and the memory left over by what logs said."""
        shifts = self._shifts(observations)
        shift = float(np.mean(shifts)) if shifts else 0.0
        found = replace(self, shift_bytes=shift, learnt_bytes=len(shifts))
        seen = [one for one in observations if one.logs is not None and not one.partial]
        resolved = self._resolved([one.config for one in seen]) if seen else None
        if resolved is None or not resolved.known.any():
            return found
        truth = np.array([one.logs for one, known in zip(seen, resolved.known, strict=True) if known]).T
        return replace(found, factors=_fitted(lambda logs: self._with_factors(resolved, logs), truth))

    def _with_factors(self, found: _Resolved, logs: Floats) -> Floats:
        """Logarithms of both objectives by several factors, shape (times, 2, known); `logs` (times, factors)."""
        times = len(logs)
        figures = np.full((times, 2, len(found.known)), np.nan)
        for places, columns in found.parts:
            factors = Factors.several(logs, len(places))
            form = ClosedForm(columns.repeated(times), self.offered, self.coefficients, factors, self.pace)
            figures[:, :, places] = np.array(form.predict()).reshape(2, times, -1).transpose(1, 0, 2)
        known: Floats = np.log(figures[:, :, found.known])
        return known

    def _shape(self, config: Config) -> ModelShape:
        return self.shapes.get(str(config.get(CHECKPOINT)), self.shape)

    def _resolved(self, configs: Sequence[Config]) -> _Resolved:
        if len(configs) < WORTH_KEEPING:
            return self._resolve(configs)
        kept = self._memory.kept.get(id(configs))
        if kept is None or kept[0] is not configs:
            if len(self._memory.kept) >= 4:
                self._memory.kept.clear()
            kept = self._memory.kept[id(configs)] = (configs, self._resolve(configs))
        return kept[1]

    def _resolve(self, configs: Sequence[Config]) -> _Resolved:
        version, n = version_of_text(self.vllm_version), len(configs)
        known, spare, minutes = np.zeros(n, dtype=np.bool_), np.full(n, -1e15), np.full(n, UNKNOWN_MINUTES)
        groups: dict[ModelShape, list[tuple[int, ResolvedSettings, int]]] = {}
        gpu = min(self.node.gpus, key=lambda one: one.memory_bytes, default=None)
        for row, config in enumerate(configs):
            shape = self._shape(config)
            try:
                one = resolve(config, self.node, shape, self.vllm_version, dict(self.fixed))
                memory = None if gpu is None else estimate(shape, gpu, one, version=version)
            except (InvalidOption, ValueError):
                continue  # no settings, or a KV dtype of unknown size: the launch finds out
            if memory is None or one.gpus > self.node.gpu_count:
                continue
            known[row] = True
            spare[row] = memory.available_kv_bytes - memory.needed_kv_bytes
            minutes[row] = START_MINUTES + memory.weights_bytes_per_gpu * one.tensor_parallel / DISK_BYTES_PER_S / 60
            groups.setdefault(shape, []).append((row, one, max(memory.kv_tokens, one.block_size)))
        parts = []
        for shape, rows in groups.items():
            places, settings, tokens = zip(*rows, strict=True)
            parts.append((np.array(places), columns_of(self.node, shape, settings, tokens, self.coefficients)))
        minutes += LEVELS * self.offered.requests / self.offered.rate_rps / 60
        return _Resolved(known, tuple(parts), spare, minutes)

    def _simulated(self, config: Config) -> tuple[float, float] | None:
        assert self.levels is not None  # asked only then
        shape, version = self._shape(config), version_of_text(self.vllm_version)
        try:
            settings = self.settings(config)
            memory = estimate(shape, self.node.gpus[0], settings, version=version)
        except (InvalidOption, ValueError):
            return None  # as in `_resolve`
        if settings.gpus > self.node.gpu_count or memory.kv_tokens < settings.block_size:
            return None
        figures = []
        for level, planned in self.levels(settings.gpus):
            requests = [_sooner(one, self.pace) for one in planned]
            server = Server(settings=settings, kv_tokens=memory.kv_tokens)
            figures.append(next(iter(simulate_many(self.node, shape, [server], level, requests, self.coefficients))))
        closed, opened = figures
        if not (closed.completed.any() and opened.completed.any()):
            return None  # every request is longer than the server takes
        clients = self.offered.concurrency * settings.gpus
        stay = float(np.nanmean(closed.e2e_s))
        # Little's law: requests/s of a closed loop are its clients over their stay, whatever ramp and tail do.
        rate = clients / stay * float(np.mean(closed.output_tokens[closed.completed])) / settings.gpus
        ttft = float(np.nanpercentile(opened.ttft_s, 95))
        return (rate / self.pace, ttft * self.pace) if rate > 0 and ttft > 0 else None

    def _shifts(self, observations: Sequence[Observation]) -> list[float]:
        """By how much the logs' KV memory differs from the arithmetic's, bytes per GPU."""
        gpu = min(self.node.gpus, key=lambda one: one.memory_bytes, default=None)
        found = []
        for one in observations:
            if one.available_kv_bytes is None or gpu is None:
                continue
            try:
                memory = estimate(
                    self._shape(one.config), gpu, self.settings(one.config), version=version_of_text(self.vllm_version)
                )
            except (InvalidOption, ValueError):
                continue
            found.append(float(one.available_kv_bytes - memory.available_kv_bytes))
        return found


def _sooner(request: PlannedRequest, pace: float) -> PlannedRequest:
    """The request when a clock of that pace is due to send it."""
    return request if request.scheduled_s is None else replace(request, scheduled_s=request.scheduled_s / pace)


def _fitted(predicted: Callable[[Floats], Floats], truth: Floats) -> Factors:
    """The most probable factors: Gauss-Newton from 1, far-off trials weighted down (Huber), changes bounded.

    Each objective may be off by a level of its own beside: two more unknowns, which the process behind models.

    Args:
        predicted: logarithms of both objectives, shape (times, 2, n), from those of factors, shape (times, factors).
        truth: the measured ones.
    """
    n, factors = truth.shape[1], len(Factors.__dataclass_fields__)
    spread = np.array([*([FACTOR_SD] * factors), *LEVEL_SDS])
    believed = np.repeat(np.array(MISFIT_SDS)[:, None], n, axis=1).ravel()
    levels = np.repeat(np.eye(2), n, axis=0)
    at, sds = np.zeros(factors + 2), believed
    for number in range(FIT_ROUNDS):
        logs = predicted(at[:factors] + _NUDGE * np.vstack([np.zeros(factors), np.eye(factors)]))
        slopes = np.hstack([-((logs[1:] - logs[0]) / _NUDGE).reshape(factors, 2 * n).T, -levels])
        here = (truth - at[factors:, None] - logs[0]).ravel()
        if number:
            squares = np.repeat((here.reshape(2, n) ** 2).sum(axis=1), n)
            sds = np.sqrt((MISFIT_TRIALS * believed**2 + squares) / (MISFIT_TRIALS + n))
        trust = np.minimum(1.0, 1.5 * sds / np.maximum(np.abs(here), 1e-9)) / sds**2
        left = (slopes * trust[:, None]).T @ slopes + np.diag(1.0 / spread**2)
        right = -(slopes * trust[:, None]).T @ here - at / spread**2
        at = np.clip(at + np.clip(np.linalg.solve(left, right), -0.3, 0.3), -1.0, 1.0)
    return Factors.of(list(at[:factors]))
