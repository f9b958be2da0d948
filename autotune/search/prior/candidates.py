"""The configs a proposal is chosen from, with everything about them that no trial changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from autotune.records import Config, Value
from autotune.search.parameter import value_key
from autotune.search.prior.coding import Coder
from autotune.search.prior.expectation import Expectation, Floats, Prior
from autotune.search.prior.feasibility import UNKNOWN
from autotune.search.prior.gp import Belief, Gp, Points
from autotune.search.prior.improvement import front_of, improvement
from autotune.search.space import SearchSpace

MOST = 20_000
"""More configs than these are judged by a seeded sample."""

LISTABLE = 1_000_000
"""A space of more configs than these is not gone through at all: its sample is drawn parameter by parameter."""

REFINED = 50
"""Configs that the slow prediction is asked for, once."""

COMPILE_MINUTES = 0.52
"""What a start with a warm compile cache saves: 83 against 52 s on an H200 with vLLM 0.25."""

LAUNCH_MINUTES = 2.5
"""Of a launch that no prior says anything about."""

NOT_COMPILED = frozenset(
    {
        "api-server-count", "async-scheduling", "enable-prefix-caching", "enforce-eager", "gpu-memory-utilization",
        "scheduling-policy", "stream-interval",
    }
)  # fmt: skip
"""Flags that change nothing of what is compiled. Recorded with 0.25: other utilisations and prefix caching off start
warm; a new max-num-seqs, max-num-batched-tokens or KV dtype does not. A flag that is not known here compiles."""

_REFINED_BELIEF = Belief(amplitude=0.15, level_sd=0.5, extra_noise=0.03)


NOTHING: tuple[tuple[str, tuple[bool, Value]], ...] = (("enforce-eager", (True, True)),)
"""Key of configs that compile nothing: their starts are warm from the first on, and warm nobody else's."""


@dataclass(frozen=True, slots=True)
class CompileKeys:
    """Numbers for what a config compiles to; the same number starts warm after the other."""

    of: NDArray[np.intp]
    known: dict[tuple[tuple[str, tuple[bool, Value]], ...], int]

    def warm(self, launched: Iterable[Config]) -> NDArray[np.bool_]:
        """Which candidates reuse the compile cache of one of `launched`."""
        numbers = {self.known.get(compile_key(config), -1) for config in launched}
        nothing = self.known.get(NOTHING, -1)
        return np.isin(self.of, [*numbers, nothing])


def compile_key(config: Config) -> tuple[tuple[str, tuple[bool, Value]], ...]:
    """Equal for configs that share a compiled graph; `NOTHING` with `enforce-eager`."""
    if config.get("enforce-eager") is True:
        return NOTHING
    return tuple((name, value_key(value)) for name, value in config if name not in NOT_COMPILED and value is not None)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Configs of one space, listed once for a study.

    Attributes:
        at: coordinates, shape (n, coordinates).
        names: the space's parameters.
        lossy: those whose values may change answers.
        corrections: of the quick prediction by the slow one, shape (n,) per objective; None where there are none.
    """

    coder: Coder
    configs: tuple[Config, ...]
    at: Floats
    compiles: CompileKeys
    places: dict[Config, int] = field(repr=False)
    names: frozenset[str]
    lossy: frozenset[str]
    corrections: tuple[Floats, Floats] | None

    @classmethod
    def of(
        cls, space: SearchSpace, prior: Prior | None, configs: Iterable[Config] | None = None, seed: int = 0
    ) -> Candidates:
        """List the space, or take `configs` of it.

        Where there are more than `MOST`, a seeded sample of them is taken.
        """
        chosen = _sampled(space, configs, seed)
        coder = Coder(space)
        known: dict[tuple[tuple[str, tuple[bool, Value]], ...], int] = {}
        numbers = [known.setdefault(compile_key(config), len(known)) for config in chosen]
        at = coder.encode(chosen)
        return cls(
            coder,
            chosen,
            at,
            CompileKeys(np.array(numbers, dtype=np.intp), known),
            {config: place for place, config in enumerate(chosen)},
            frozenset(parameter.name for parameter in space.parameters),
            frozenset(parameter.name for parameter in space.parameters if parameter.lossy),
            None if prior is None or not chosen else _corrections(prior, chosen, at, coder.groups),
        )

    def place(self, config: Config) -> int | None:
        """Where a config stands, whatever it holds beside the space's parameters; None when it is no candidate."""
        return self.places.get(Config.of({name: value for name, value in config if name in self.names}))

    def expectation(self, prior: Prior | None) -> Expectation | None:
        """What `prior` expects of all, the slow prediction's corrections spread from the few to the rest."""
        if prior is None or not self.configs:
            return None
        return _shifted(prior.expect(self.configs), self.corrections)

    def expectation_of(self, configs: Sequence[Config], prior: Prior | None) -> Expectation:
        """What `prior` expects of some configs: candidates with their corrections, any other (the baseline, say) with
        the mean of all."""
        if prior is None or not configs:
            return unknown_expectation(len(configs))
        plain = prior.expect(configs)
        if self.corrections is None:
            return plain
        places = [self.place(config) for config in configs]
        throughput, ttft = (
            np.array([float(np.mean(shift)) if place is None else float(shift[place]) for place in places])
            for shift in self.corrections
        )
        return _shifted(plain, (throughput, ttft))


def _shifted(plain: Expectation, corrections: tuple[Floats, Floats] | None) -> Expectation:
    if corrections is None:
        return plain
    return replace(
        plain, log_throughput=plain.log_throughput + corrections[0], log_ttft=plain.log_ttft + corrections[1]
    )


def unknown_expectation(count: int) -> Expectation:
    """Of configs that nothing is believed about."""
    return Expectation(
        log_throughput=np.zeros(count),
        log_ttft=np.zeros(count),
        feasible=np.full(count, UNKNOWN),
        minutes=np.full(count, LAUNCH_MINUTES),
    )


def _sampled(space: SearchSpace, configs: Iterable[Config] | None, seed: int) -> tuple[Config, ...]:
    """All of them, or a uniform sample of `MOST` in their order; of a space that cannot be listed, a drawn one."""
    given = None if configs is None else tuple(configs)
    count = space.size if given is None else len(given)
    if given is None and count > LISTABLE:
        rng = np.random.default_rng(seed)
        draws = (
            space.canonical({one.name: one.choices[rng.integers(len(one.choices))] for one in space.parameters})
            for _ in range(MOST)
        )
        return tuple(dict.fromkeys(draws))
    stream = iter(space) if given is None else iter(given)
    if count <= MOST:
        return tuple(stream)
    wanted = np.zeros(count, dtype=np.bool_)
    wanted[np.random.default_rng(seed).choice(count, MOST, replace=False)] = True
    return tuple(compress(stream, wanted))


def _corrections(
    prior: Prior, configs: Sequence[Config], at: Floats, groups: NDArray[np.intp]
) -> tuple[Floats, Floats] | None:
    """What the slow prediction adds to the quick one, of all configs: exact where it was asked, smooth between."""
    quick = prior.expect(configs)
    best = best_places(quick, REFINED)
    slow = prior.refine([configs[place] for place in best])
    deltas = [after - before[best] for after, before in zip(slow.logs, quick.logs, strict=True)]
    if all(np.allclose(delta, 0.0) for delta in deltas):
        return None
    everywhere, there = Points(at, np.zeros(len(at))), Points(at[best], np.zeros(len(best)))
    found = []
    for delta in deltas:
        known = np.isfinite(delta)
        gp = Gp.fit(
            Points(there.at[known], there.slope[known]),
            delta[known],
            np.zeros(int(known.sum())),
            groups,
            _REFINED_BELIEF,
        )
        found.append(gp.predict(everywhere)[0])
    return found[0], found[1]


def best_places(expected: Expectation, count: int) -> NDArray[np.intp]:
    """Places of the `count` most promising configs: fronts are peeled off, the largest improvements first.

    Improvement is counted over what was chosen so far, from a reference of half the median throughput and four times
    the median TTFT.
    """
    gains, losses = expected.log_throughput, -expected.log_ttft
    reference = (float(np.median(gains)) - np.log(2.0), float(np.median(losses)) - np.log(4.0))
    alone = np.maximum(gains - reference[0], 0.0) * np.maximum(losses - reference[1], 0.0) * expected.feasible
    pool = np.argsort(-alone, kind="stable")[: 20 * count]
    chosen: list[int] = []
    left = [int(place) for place in pool]
    while left and len(chosen) < count:
        layer: list[tuple[float, float]] = []
        taken = []
        for place in left:
            point = (float(gains[place]), float(losses[place]))
            if improvement(front_of(layer, reference), reference, point) > 0.0:
                layer.append(point)
                taken.append(place)
        if not taken:
            taken = left
        chosen += taken
        left = [place for place in left if place not in set(taken)]
    return np.array(chosen[:count], dtype=np.intp)
