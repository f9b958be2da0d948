"""Which configs a study may try: a space from a file, or one made for this node, model and workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.engine.flags import AcceptedFlags
from autotune.errors import InvalidOption
from autotune.load.workload import Workload
from autotune.node.defaults import resolve
from autotune.recipe import AUTO_SPACE, WIDE_SPACE, Recipe
from autotune.records import Config, ModelShape, Node, Value
from autotune.search.generate import GeneratedSpace, generate_space
from autotune.search.need import Traffic
from autotune.search.parameter import is_number, same_value
from autotune.search.rules import RuleContext, check
from autotune.search.space import Parameter, SearchSpace, load_space

GENERATED = frozenset({AUTO_SPACE, WIDE_SPACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a space is made from, besides the recipe."""

    node: Node
    shape: ModelShape | None
    workload: Workload
    traffic: Traffic
    vllm_version: str | None
    accepted: AcceptedFlags
    shapes: Mapping[str, ModelShape]
    others_bytes: int = 0


def choose_space(
    recipe: Recipe, known: Known, fixed: Sequence[tuple[str, Value]]
) -> tuple[SearchSpace, GeneratedSpace | None]:
    """The space of a recipe, and for a generated one how it came about.

    Args:
        fixed: flags that the operator set for every launch: they are not searched.

    Raises:
        UnknownName, InvalidFile: a space file that is not there or not right.
        InvalidOption: checkpoints beside a space that was written by hand.
        NoFeasibleConfig: nothing can start on this node.
    """
    if recipe.space not in GENERATED:
        if recipe.checkpoints:
            raise InvalidOption(
                "checkpoints",
                ", ".join(recipe.checkpoints),
                f"a generated space (--space {AUTO_SPACE})",
                hint="In a space of your own they are the choices of the parameter `model`.",
            )
        return load_space(recipe.space), None
    made = generate_space(
        known.node,
        known.shape,
        needed_len=known.workload.max_model_len_needed,
        min_model_len=recipe.min_model_len,
        traffic=known.traffic,
        vllm_version=known.vllm_version,
        accepted=known.accepted,
        checkpoints={name: known.shapes[name] for name in recipe.checkpoints if name in known.shapes},
        fixed=fixed,
        others_bytes=known.others_bytes,
        wide=recipe.space == WIDE_SPACE,
    )
    return _widened(made.space, recipe.starting_points), made


def _widened(space: SearchSpace, points: Sequence[Config]) -> SearchSpace:
    """The space with the values of a recipe's own starting points among the choices."""
    parameters = [_with_values(p, points) for p in space.parameters]
    there = {p.name for p in parameters} | set(dict(space.fixed))
    for name in dict.fromkeys(name for point in points for name, _ in point):
        values = tuple(dict.fromkeys(v for point in points if (v := point.get(name)) is not None))
        if name not in there and not all(same_value(value, _NEUTRAL.get(name)) for value in values):
            parameters.append(
                Parameter(name=name, choices=(None, *values), why="in a starting point of the study file")
            )
    return replace(space, parameters=tuple(parameters))


_NEUTRAL: Mapping[str, Value] = {
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "data-parallel-size": 1,
    "enable-expert-parallel": False,
    "enable-prefix-caching": True,
    "enforce-eager": False,
    "kv-cache-dtype": "auto",
}
"""What vLLM takes where nothing is said, for flags that a starting point may write out all the same."""


def _with_values(parameter: Parameter, points: Sequence[Config]) -> Parameter:
    choices = list(parameter.choices)
    for point in points:
        value = point.get(parameter.name)
        if value is not None and not any(same_value(value, choice) for choice in choices):
            choices.append(value)
    if len(choices) == len(parameter.choices):
        return parameter
    numbers = [c for c in choices if is_number(c)]
    return replace(parameter, choices=tuple(sorted(numbers) if len(numbers) == len(choices) else choices))


def complete_point(
    point: Config, space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext
) -> Config:
    """A starting point of a study file as a config of the space: what it leaves out is what vLLM would take, or the
    nearest choice to that.

    Raises:
        InvalidOption: a value that is none of the space's choices, or a config that a rule refuses.
    """
    shown = " ".join(f"{name}={value}" for name, value in point)
    fixed = dict(context.fixed)
    for name, value in point:
        if space.parameter(name) is None and not same_value(value, fixed.get(name, _NEUTRAL.get(name))):
            names = ", ".join(parameter.name for parameter in space.parameters)
            raise InvalidOption("starting_points", f"{name}={value}", f"parameters of the space: {names}")
    defaults = _defaults(node, shape, context)
    values = {
        p.name: point.get(p.name) if point.get(p.name) is not None else _nearest(p, defaults.get(p.name))
        for p in space.parameters
    }
    config = space.canonical(values)
    if not space.contains(config):
        names = ", ".join(parameter.name for parameter in space.parameters)
        raise InvalidOption("starting_points", shown, f"one of its choices for each parameter of the space: {names}")
    violations = check(config, node, shape, context)
    if violations:
        raise InvalidOption("starting_points", shown, violations[0].text, hint=violations[0].remedy)
    return config


def _defaults(node: Node, shape: ModelShape | None, context: RuleContext) -> dict[str, Value]:
    """What vLLM takes where nothing is said."""
    sizes = dict(_NEUTRAL)
    if shape is None:
        return sizes
    settings = resolve(Config.of({}), node, shape, context.vllm_version, dict(context.fixed))
    return {
        **sizes,
        "gpu-memory-utilization": settings.gpu_memory_utilization,
        "max-num-seqs": settings.max_num_seqs,
        "max-num-batched-tokens": settings.max_num_batched_tokens,
        "block-size": settings.block_size,
        "stream-interval": settings.stream_interval,
        "async-scheduling": settings.async_scheduling,
        "performance-mode": settings.performance_mode,
    }


def _nearest(parameter: Parameter, wanted: Value) -> Value:
    """vLLM's own default where it is a choice (None), else the choice nearest to what that default is."""
    if any(choice is None for choice in parameter.choices):
        return None
    if any(same_value(choice, wanted) for choice in parameter.choices):
        return wanted
    numbers = [c for c in parameter.choices if is_number(c)]
    if numbers and is_number(wanted):
        return min(numbers, key=lambda choice: abs(choice - wanted))
    return parameter.choices[0]
