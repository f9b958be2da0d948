"""Optuna's samplers by name, built for one proposal each, and the two that need no history.

Choices travel as indices: a numeric parameter of three or more choices becomes an integer range over them in rising
order, so that a sampler sees that 256 lies between 128 and 512; anything else becomes a category. (Optuna 5 has no
distance function for categories any more.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning

from autotune.errors import InvalidOption
from autotune.records import Config, Value
from autotune.search.parameter import Parameter, is_number, same_value
from autotune.search.space import SearchSpace

SAMPLERS = ("prior", "tpe", "nsga2", "random", "grid", "qmc", "gp")
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)


def check_sampler(name: str, *, option: str = "--sampler") -> str:
    """`name`, when it can be used here.

    Raises:
        InvalidOption: unknown, or one whose libraries are not installed.
    """
    if name not in SAMPLERS:
        raise InvalidOption(option, name, ", ".join(SAMPLERS))
    if name == "gp":
        missing = [library for library in ("torch", "scipy") if importlib.util.find_spec(library) is None]
        if missing:
            others = ", ".join(one for one in SAMPLERS if one != "gp")
            raise InvalidOption(
                option,
                name,
                f"{others} (gp also needs {' and '.join(missing)}, which cannot be imported here)",
                hint=f"pip install {' '.join(missing)}, or choose another sampler.",
            )
    return name


def derived_seed(*parts: object) -> int:
    """A 31-bit seed from `parts`; equal parts give equal seeds on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def make_sampler(
    name: str, *, seed: int, conditional: bool, startup: int, population: int
) -> optuna.samplers.BaseSampler:
    """An Optuna sampler for one proposal.

    Args:
        conditional: whether parameters of the space come and go; TPE then models each group of them jointly.
        startup: how many finished trials are random before the model takes over.
        population: of NSGA-II.
    """
    match name:
        case "tpe":
            with warnings.catch_warnings():
                # `group` is announced as experimental on every use; that is our choice to make, not the operator's.
                warnings.simplefilter("ignore", ExperimentalWarning)
                return optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=startup, multivariate=True, group=conditional
                )
        case "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=population)
        case "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
        case _:
            return optuna.samplers.RandomSampler(seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """A parameter as Optuna sees it: an index into `order`, which holds the choices."""

    parameter: Parameter
    order: tuple[Value, ...]
    ordered: bool

    @property
    def indices(self) -> tuple[int, ...]:
        """What a sampler chooses from."""
        return tuple(range(len(self.order)))

    @property
    def distribution(self) -> BaseDistribution:
        """The same for Optuna's trials of the past."""
        return IntDistribution(0, len(self.order) - 1) if self.ordered else CategoricalDistribution(self.indices)

    @classmethod
    def of(cls, parameter: Parameter) -> Dial:
        """Ordered when all choices are numbers and there are three or more; two are the same either way."""
        choices = parameter.choices
        numbers = [one for one in choices if is_number(one)]
        if len(numbers) == len(choices) >= 3:
            return cls(parameter=parameter, order=tuple(sorted(numbers)), ordered=True)
        return cls(parameter=parameter, order=choices, ordered=False)

    def index(self, value: Value) -> int | None:
        """Where `value` stands; None when it is no choice. 1 and 1.0 are the same, 1 and True are not."""
        for index, choice in enumerate(self.order):
            if same_value(choice, value):
                return index
        return None


def suggested(space: SearchSpace, dials: Iterable[Dial], trial: optuna.Trial) -> Config:
    """The config that a sampler chooses in `trial`: it is asked for active parameters that leave a choice.

    Args:
        dials: of the space's parameters, parents of conditions before their children.
    """
    values: dict[str, Value] = {}
    for dial in dials:
        name = dial.parameter.name
        if not space.is_active(dial.parameter, values):
            continue
        if len(dial.order) == 1:
            index = 0
        elif dial.ordered:
            index = trial.suggest_int(name, 0, len(dial.order) - 1)
        else:
            index = trial.suggest_categorical(name, dial.indices)
        values[name] = dial.order[index]
    return Config.of(values)


def shuffled(space: SearchSpace, seed: int) -> list[Config]:
    """Every config of the space, in an order that the seed decides."""
    configs = list(space)
    random.Random(derived_seed(seed, "grid")).shuffle(configs)
    return configs


def halton(space: SearchSpace, seed: int, count: int) -> Iterator[Config]:
    """`count` configs that cover the space evenly: a Halton sequence with seeded digit permutations, one prime each.

    Own, because Optuna's QMC sampler needs SciPy, and counts its points in the study instead of taking a number. Past
    20 parameters, plain seeded draws fill in: a Halton sequence of large primes is no longer even.
    """
    free = [parameter for parameter in space.parameters if len(parameter.choices) > 1]
    rng = random.Random(derived_seed(seed, "qmc"))
    digits = {prime: rng.sample(range(prime), prime) for prime in _PRIMES[: len(free)]}
    for number in range(count):
        values = {parameter.name: parameter.choices[0] for parameter in space.parameters}
        for position, parameter in enumerate(free):
            if position < len(_PRIMES):
                share = _radical_inverse(number, _PRIMES[position], digits[_PRIMES[position]])
            else:
                share = rng.random()
            values[parameter.name] = parameter.choices[int(share * len(parameter.choices))]
        yield space.canonical(values)


def _radical_inverse(number: int, base: int, permutation: list[int]) -> float:
    """`number` mirrored at the point in `base`, its digits permuted; in [0, 1)."""
    share, scale = 0.0, 1.0 / base
    # A fixed number of digits: a permutation that moves 0 has digits without end. 2^20 points are told apart.
    while scale > 1e-6:
        share += permutation[number % base] * scale
        number //= base
        scale /= base
    return min(share, 1.0 - 1e-9)
