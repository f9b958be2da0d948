"""The next config: the largest expected gain in hypervolume per expected minute, among what probably runs. Pure.

See docs/sampler.md for the whole of it. The same history, space, prior and state of `rng` give the same proposal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.one_thread import in_one_thread
from autotune.records import Config, Slo, Trial
from autotune.search.objective import is_goodput
from autotune.search.pareto import REFERENCE_THROUGHPUT_SHARE, REFERENCE_TTFT_FACTOR
from autotune.search.prior.bend import Bend
from autotune.search.prior.candidates import COMPILE_MINUTES, Candidates, unknown_expectation
from autotune.search.prior.evidence import observations, running
from autotune.search.prior.expectation import (
    THROUGHPUT,
    TTFT,
    Expectation,
    Floats,
    Observation,
    Prior,
    Proposal,
    Reason,
)
from autotune.search.prior.feasibility import kept, probabilities
from autotune.search.prior.improvement import Pair, expected_improvement, front_of, improvement, volume
from autotune.search.prior.normal import cumulative
from autotune.search.prior.parsimony import changes, in_order
from autotune.search.prior.surrogate import Surrogate, learn
from autotune.search.space import SearchSpace

COVER = 4
"""Measured configs without which, and without a prior, configs are spread over the space."""

DISCOURAGED = 0.3
"""Share of its score that a config keeps when it repeats what went wrong elsewhere."""

CAUTION = 6.0
"""Power of the probability that a config runs. A failed launch costs more than its own minutes: it teaches less, and an
operator who sees every fifth one fail stops the study. What the front holds beyond an edge of memory is mostly nearly
as good before it: in 14 replayed studies 9.2 % of the launches failed with 4 and 7.1 % with 6, and 95 % of the gap took
a median of 43 and of 46 launches, a mean of 47 and of 45."""

KEEPS = 0.7
"""Probability that a config keeps to a limit of which nothing is known yet."""

UNIT = "tok/s/GPU"
GOODPUT_UNIT = "tok/s/GPU of goodput"

_FANTASY_SD = 0.05
_LEAST_MINUTES = 0.25
_SPREAD_SAMPLE = 64


def propose(
    history: Sequence[Trial],
    space: SearchSpace,
    prior: Prior | None,
    rng: np.random.Generator,
    *,
    candidates: Candidates | None = None,
    is_allowed: Callable[[Config], bool] = lambda _: True,
    is_discouraged: Callable[[Config], bool] = lambda _: False,
    complete: Callable[[Config], Config] = lambda config: config,
    limits: Slo | None = None,
    gpus: Floats | None = None,
) -> Proposal | None:
    """A config of `space` that is neither tried nor running; None when none is left.

    Args:
        history: all trials so far. Their configs may hold more than the space's parameters, or lack some.
        prior: None for an unknown model or GPU: then only the trials speak.
        rng: decides where nothing is known; elsewhere it is not asked.
        candidates: `Candidates.of(space, prior)`, to list the space once for many proposals.
        is_allowed: the rules, asked about one config after the other, best first.
        is_discouraged: keeps `DISCOURAGED` of its score; see `search.lessons`.
        complete: fills in what vLLM takes for the parameters that a config of the history lacks.
        limits: what a config has to keep to: its score is multiplied with the probability that it does.
        gpus: that each candidate uses, where they are what is scarce: a minute of eight costs eight times one of one.
    """
    seen = [replace(one, config=complete(one.config)) for one in observations(history, limits)]
    open_now = [complete(config) for config in running(history)]
    tried = [trial.config for trial in history]
    return propose_after(
        seen,
        open_now,
        [*tried, *map(complete, tried)],
        candidates or Candidates.of(space, prior),
        prior,
        rng,
        is_allowed=is_allowed,
        is_discouraged=is_discouraged,
        ttft_p95_s=None if limits is None else limits.ttft_p95_s,
        gpus=gpus,
        unit=GOODPUT_UNIT if is_goodput(history) else UNIT,
    )


@in_one_thread
def propose_after(
    seen: Sequence[Observation],
    open_now: Sequence[Config],
    tried: Iterable[Config],
    listed: Candidates,
    prior: Prior | None,
    rng: np.random.Generator,
    *,
    is_allowed: Callable[[Config], bool] = lambda _: True,
    is_discouraged: Callable[[Config], bool] = lambda _: False,
    ttft_p95_s: float | None = None,
    gpus: Floats | None = None,
    unit: str = UNIT,
) -> Proposal | None:
    """As `propose`, from observations instead of trials.

    Args:
        seen: the baseline, whose objectives set the reference, first.
        open_now: configs that are running.
        tried: what is not to be proposed; may hold more than the space's parameters.
        ttft_p95_s: its limit.
        gpus: as in `propose`, shape (candidates,).
        unit: of the first objective, for the reason.
    """
    free = np.ones(len(listed.configs), dtype=np.bool_)
    for config in tried:
        place = listed.place(config)
        if place is not None:
            free[place] = False
    left = np.flatnonzero(free)
    if not len(left):
        return None
    if prior is None and sum(one.logs is not None for one in seen) < COVER:
        known = [*(one.config for one in seen), *open_now]
        return _cover(listed, left, known, rng, is_allowed, is_discouraged)
    judged = _judge(listed, left, seen, open_now, prior, None if ttft_p95_s is None else math.log(ttft_p95_s))
    home = listed.coder.encode([seen[0].config])[0] if seen else None
    counts = (
        np.zeros(len(left), np.intp) if home is None else changes(listed.coder, listed.at[left], home, listed.lossy)
    )
    # What is tried out of doubt should differ from what is known: only a gain that is expected is wanted plain.
    if gpus is not None:
        judged = replace(judged, scores=judged.scores / np.maximum(gpus[left], 1.0))
    best = int(np.argmax(judged.scores))
    promised = float(judged.means[0][best]), float(judged.means[1][best])
    is_expected = prior is None or improvement(judged.front, judged.reference, promised) > 0.0
    order = in_order(judged.scores, counts if is_expected else np.zeros_like(counts))
    chosen = _choose(judged, listed, left, order, is_allowed, is_discouraged)
    return None if chosen is None else _explained(judged, listed.configs[left[chosen]], chosen, unit)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What is expected of every config left, shape (left,) each; gains are (log throughput, -log TTFT).

    Attributes:
        gains: hypervolume that each is expected to add, that it may fail to run or to keep to the limits included.
    """

    scores: Floats
    gains: Floats
    means: tuple[Floats, Floats]
    sds: tuple[Floats, Floats]
    feasible: Floats
    minutes: Floats
    front: Sequence[Pair]
    reference: Pair
    bend: Bend
    dropped: tuple[str, ...]


def _judge(
    listed: Candidates,
    left: np.ndarray,
    seen: Sequence[Observation],
    open_now: Sequence[Config],
    prior: Prior | None,
    log_limit: float | None = None,
) -> _Judged:
    fitted = None if prior is None else prior.refit(seen)
    bend = Bend.of(seen)
    expected = listed.expectation(fitted) or unknown_expectation(len(listed.configs))
    if fitted is not None:
        expected = replace(
            expected,
            log_throughput=bend.pressed(THROUGHPUT, expected.log_throughput),
            log_ttft=bend.pressed(TTFT, expected.log_ttft),
        )
    here = _Beliefs.of(listed, [one.config for one in seen], fitted, bend)
    measured = np.array([one.logs is not None for one in seen], dtype=np.bool_)
    surrogates = _surrogates(listed, here, seen, measured, expected if fitted is not None else None, bend)
    if open_now:
        there = _Beliefs.of(listed, open_now, fitted, bend)
        surrogates = [
            one.with_fantasies(there.at, there.logs[objective], _FANTASY_SD) for objective, one in enumerate(surrogates)
        ]
    else:
        there = here.where(np.zeros(len(seen), dtype=np.bool_))
    predicted = [one.predict(listed.at[left], expected.logs[place][left]) for place, one in enumerate(surrogates)]
    means = (predicted[THROUGHPUT][0], -predicted[TTFT][0])
    sds = (predicted[THROUGHPUT][1], predicted[TTFT][1])
    feasible = probabilities(
        listed.coder,
        seen,
        here.at,
        here.feasible,
        listed.at[left],
        expected.feasible[left],
        expected.memory_sd_bytes,
    )
    # The front as it is believed to be, not as it was drawn: a lucky launch must not hide its neighbours.
    known = [_Beliefs.values(surrogates, one) for one in (here.where(measured), there)]
    reference = _reference(known[0], expected)
    within, worst = _within(listed, left, here, seen, (-means[1], sds[1]), bend, log_limit)
    front = front_of([point for points in known for point in points if -point[1] <= worst], reference)
    gains = expected_improvement(front, reference, means, sds)
    warm = listed.compiles.warm([*(one.config for one in seen if one.feasible), *open_now])[left]
    minutes = np.maximum(expected.minutes[left] - COMPILE_MINUTES * warm, _LEAST_MINUTES)
    words = ("throughput", "TTFT")
    dropped = tuple(word for word, one in zip(words, surrogates, strict=True) if fitted is not None and not one.trusted)
    likely = gains * feasible * within
    scores = gains * feasible**CAUTION * within / minutes
    return _Judged(scores, likely, means, sds, feasible, minutes, front, reference, bend, dropped)


def _within(
    listed: Candidates,
    left: np.ndarray,
    here: _Beliefs,
    seen: Sequence[Observation],
    ttft: tuple[Floats, Floats],
    bend: Bend,
    log_limit: float | None,
) -> tuple[Floats, float]:
    """How probably each config left keeps to the limits, and the largest pressed log TTFT that does."""
    found, worst = np.ones(len(left)), math.inf
    if log_limit is not None:
        worst = float(bend.pressed(TTFT, np.array(log_limit)))
        found = cumulative((worst - ttft[0]) / ttft[1])
    told = np.array([one.keeps is not None for one in seen], dtype=np.bool_)
    keeps = np.array([bool(one.keeps) for one in seen], dtype=np.bool_)[told]
    if len(keeps) and not keeps.all():
        found = found * kept(listed.coder, here.at[told], keeps, listed.at[left], KEEPS)
    return found, worst


@dataclass(frozen=True, slots=True)
class _Beliefs:
    """Coordinates of some configs and what the prior says of them."""

    at: Floats
    logs: tuple[Floats, Floats]
    feasible: Floats

    @classmethod
    def of(cls, listed: Candidates, configs: Sequence[Config], prior: Prior | None, bend: Bend) -> _Beliefs:
        """As `Candidates.expectation_of`, bent as the measured figures are."""
        at, found = listed.coder.encode(configs), listed.expectation_of(configs, prior)
        if not configs or prior is None:
            return cls(at, found.logs, found.feasible)
        pressed = bend.pressed(THROUGHPUT, found.logs[THROUGHPUT]), bend.pressed(TTFT, found.logs[TTFT])
        return cls(at, pressed, found.feasible)

    def where(self, chosen: np.ndarray) -> _Beliefs:
        """Some of them."""
        return _Beliefs(self.at[chosen], (self.logs[0][chosen], self.logs[1][chosen]), self.feasible[chosen])

    @staticmethod
    def values(surrogates: Sequence[Surrogate], there: _Beliefs) -> list[Pair]:
        """Believed gains of those configs."""
        if not len(there.at):
            return []
        throughput, ttft = (one.predict(there.at, there.logs[place])[0] for place, one in enumerate(surrogates))
        return [(float(x), -float(y)) for x, y in zip(throughput, ttft, strict=True)]


def _surrogates(
    listed: Candidates,
    here: _Beliefs,
    seen: Sequence[Observation],
    measured: np.ndarray,
    expected: Expectation | None,
    bend: Bend,
) -> list[Surrogate]:
    logs = np.array([one.logs for one in seen if one.logs is not None]).reshape(-1, 2)
    sds = np.array([one.sds for one in seen if one.logs is not None]).reshape(-1, 2)
    found = []
    for objective in (THROUGHPUT, TTFT):
        found.append(
            learn(
                objective,
                here.at[measured],
                bend.pressed(objective, logs[:, objective]),
                sds[:, objective],
                None if expected is None else here.logs[objective][measured],
                listed.coder.groups,
                0.0 if expected is None else float(np.mean(expected.logs[objective])),
            )
        )
    return found


def _reference(known: Sequence[Pair], expected: Expectation) -> Pair:
    """Half the baseline's throughput and four times its TTFT; the first measured config stands for the baseline."""
    first = known[0] if known else (float(np.median(expected.log_throughput)), -float(np.median(expected.log_ttft)))
    return first[0] + math.log(REFERENCE_THROUGHPUT_SHARE), first[1] - math.log(REFERENCE_TTFT_FACTOR)


def _choose(
    judged: _Judged,
    listed: Candidates,
    left: np.ndarray,
    order: np.ndarray,
    is_allowed: Callable[[Config], bool],
    is_discouraged: Callable[[Config], bool],
) -> int | None:
    """The first of `order` that the rules allow; of the discouraged only one that is far better."""
    second: int | None = None
    for place in order:
        if second is not None and judged.scores[place] < DISCOURAGED * judged.scores[second]:
            break
        config = listed.configs[left[place]]
        if not is_allowed(config):
            continue
        if not is_discouraged(config):
            return int(place)
        second = int(place) if second is None else second
    return second


def _explained(judged: _Judged, config: Config, place: int, unit: str) -> Proposal:
    throughput, ttft = judged.means[0][place], -judged.means[1][place]
    gain = improvement(judged.front, judged.reference, (float(throughput), -float(ttft)))
    sure = gain > 0.0
    low, middle, high = np.exp(judged.bend.released(TTFT, ttft + np.array([-1, 0, 1]) * judged.sds[1][place]))
    throughput = float(judged.bend.released(THROUGHPUT, throughput))
    text = (
        f"expected {math.exp(throughput):,.0f} {unit} (give or take {math.expm1(judged.sds[0][place]):.0%}) and "
        f"{1e3 * middle:,.0f} ms p95 TTFT ({1e3 * low:,.0f}-{1e3 * high:,.0f}); "
    )
    text += "gains most hypervolume per minute" if sure else "uncertain enough to beat the front"
    text += f"; runs with {judged.feasible[place]:.0%} probability, about {judged.minutes[place]:.1f} minutes"
    if judged.dropped:
        text += f"; the model's {' and '.join(judged.dropped)} is not used: trials contradict it"
    there = volume(judged.front, judged.reference)
    most = float(np.max(judged.gains)) / there if there > 0.0 else None
    return Proposal(config=config, reason=Reason.PRIOR if sure else Reason.EXPLORATION, why=text, gain=most)


def _cover(
    listed: Candidates,
    left: np.ndarray,
    known: Sequence[Config],
    rng: np.random.Generator,
    is_allowed: Callable[[Config], bool],
    is_discouraged: Callable[[Config], bool],
) -> Proposal | None:
    """Of a few drawn configs the one furthest from all that is known (Mitchell's best candidate)."""
    there = listed.coder.encode(known)
    drawn: list[int] = []
    poor: list[int] = []
    for place in rng.permutation(left):
        config = listed.configs[place]
        if is_allowed(config):
            (poor if is_discouraged(config) else drawn).append(int(place))
        if len(drawn) >= _SPREAD_SAMPLE:
            break
    pool = drawn or poor
    if not pool:
        return None
    best = pool[0]
    if len(there):
        smooth = ~listed.coder.marks
        apart = listed.at[pool][:, None, smooth] - there[None, :, smooth]
        apart = (apart**2).sum(axis=2).min(axis=1)
        best = pool[int(np.argmax(apart))]
    return Proposal(
        config=listed.configs[best],
        reason=Reason.COVER,
        why="nothing is known of this model here yet: far from all configs tried so far",
    )
