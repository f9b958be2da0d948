"""What cannot start on this node, said before it is launched. Pure.

A rule refuses only what surely fails, and one config under a second name (`expert-parallel-group`). Where arithmetic
has an error (memory), the config gets the benefit of `MEMORY_TOLERANCE_SHARE`; where a version or a backend decides
(fp8 KV below compute capability 8.9 works with some attention backends and not with others), there is a warning: a
launch finds out. Feasibility is never assumed monotone: no config is refused because a similar one was. Rows are those
of the operators' guide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from autotune.errors import InvalidOption, NoFeasibleConfig
from autotune.node.defaults import resolve
from autotune.records import Config, ModelShape, Node, Value
from autotune.search.funnel import Funnel, Question, RuleCount, ask_all, fits_array
from autotune.search.rules_base import CHECKPOINT, Case, Rule, RuleContext, RuleWarning, Violation
from autotune.search.rules_memory import (
    MEMORY_RULES,
    MEMORY_TOLERANCE_SHARE,
    UTILIZATION_RULE,
    smallest_gpu,
    surely_fits_not,
)
from autotune.search.rules_parallel import GPU_RULES, SHAPE_RULES
from autotune.search.rules_scheduler import LENGTH_RULES, SCHEDULER_RULES
from autotune.search.rules_warnings import WARNING_RULES
from autotune.search.space import SearchSpace

__all__ = [
    "MEMORY_TOLERANCE_SHARE",
    "RULES",
    "RuleContext",
    "RuleCount",
    "RuleWarning",
    "Violation",
    "check",
    "feasible",
    "funnel",
    "judge_space",
    "require_feasible",
    "smallest_gpu",
    "surely_fits_not",
    "warnings_of",
]

RULES: tuple[Rule, ...] = (
    GPU_RULES[0],
    UTILIZATION_RULE,
    *GPU_RULES[1:],
    *SCHEDULER_RULES,
    *LENGTH_RULES,
    *SHAPE_RULES,
    *MEMORY_RULES,
)
"""Every rule, in the order in which configs are counted: the most basic first. `known-flags` and `flag-values` go
before them all."""

_KNOWN_FLAGS = "known-flags"
_FLAG_VALUES = "flag-values"
_BAD_VALUE = "a flag's value has the wrong type"

_UNKNOWN_SHAPE = ModelShape(
    name="unknown",
    layers=1,
    hidden_size=1,
    intermediate_size=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    vocab_size=1,
    max_position_embeddings=2**31,
    weight_bytes=0,
    parameters=0,
)


def check(
    config: Config, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[Violation, ...]:
    """Every rule that `config` breaks, the most basic first; empty when nothing speaks against a launch.

    Without a shape only the rules that need none are asked; on a node without GPUs those about GPUs are not. Where the
    config chooses a checkpoint (`model`), the shape is the context's for it.
    """
    context = context or RuleContext()
    values = _merged(config, context)
    unknown = [_unknown_flag(name, values, context) for name in sorted(values)]
    found = [violation for violation in unknown if violation is not None]
    if found:
        return tuple(found)
    try:
        case = _case(values, node, shape, context)
    except InvalidOption as error:
        return (_bad_value(error),)
    return tuple(_broken(case))


def warnings_of(
    config: Config, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[RuleWarning, ...]:
    """Doubts about a config that may start all the same: shown in `plan` and `show`, never a refusal.

    Empty for a config that cannot be read at all, which `check` says.
    """
    context = context or RuleContext()
    try:
        case = _case(_merged(config, context), node, shape, context)
    except InvalidOption:
        return ()
    return tuple(
        RuleWarning(rule=rule.row, name=rule.name, reason=finding.reason, text=finding.text, remedy=finding.remedy)
        for rule in WARNING_RULES
        if _is_asked(rule, case)
        for finding in rule.judge(case)
    )


def feasible(
    space: SearchSpace | Iterable[Config], node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[tuple[Config, ...], tuple[tuple[str, int], ...]]:
    """The configs that no rule refuses, in the space's order, and how many each reason refused (most first).

    A config counts once, for the first rule it breaks. A space's own fixed flags are taken into account.
    """
    context = _with_fixed(space, context)
    if isinstance(space, SearchSpace) and fits_array(space):
        judged = judge_space(space, node, shape, context)
        return judged.configs(), judged.reasons
    kept: list[Config] = []
    reasons: Counter[str] = Counter()
    for config in space:
        violations = check(config, node, shape, context)
        if violations:
            reasons[violations[0].reason] += 1
        else:
            kept.append(config)
    return tuple(kept), tuple(reasons.most_common())


def require_feasible(
    space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[tuple[Config, ...], tuple[tuple[str, int], ...]]:
    """As `feasible`, but at least one config.

    Raises:
        NoFeasibleConfig: there is none; carries the reasons with their counts.
    """
    configs, reasons = feasible(space, node, shape, context)
    if not configs:
        raise NoFeasibleConfig(
            f"search space {space.name!r}",
            node.name,
            reasons,
            hint="Change the space, name a larger --node, or choose a smaller model or a shorter workload.",
        )
    return configs, reasons


def funnel(
    space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None
) -> tuple[RuleCount, ...]:
    """Every rule in order, with how many configs it refused of those left by the rules before, and what is left."""
    context = _with_fixed(space, context)
    if fits_array(space):
        return judge_space(space, node, shape, context).counts
    first: Counter[str] = Counter()
    size = 0
    for config in space:
        size += 1
        violations = check(config, node, shape, context)
        if violations:
            first[violations[0].name] += 1
    counts: list[RuleCount] = []
    rows = [(_KNOWN_FLAGS, "flags"), (_FLAG_VALUES, "flags"), *((rule.name, rule.row) for rule in RULES)]
    for name, row in rows:
        size -= first[name]
        counts.append(RuleCount(name=name, row=row, refused=first[name], left=size))
    return tuple(counts)


def judge_space(space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext | None = None) -> Funnel:
    """All configs of a space that fits an array, judged together; the context must hold the space's fixed flags."""
    context = context or RuleContext()
    names = sorted({*dict(context.fixed), *(parameter.name for parameter in space.parameters)})
    asked = list(_flag_questions(names, node, shape, context))
    rules = [
        Question(
            rules=tuple((rule.name, rule.row) for rule in alike),
            reads=alike[0].reads,
            verdict=partial(_verdict, rules=alike, node=node, shape=shape, context=context),
        )
        for alike in (tuple(group) for _, group in groupby(RULES, key=lambda rule: rule.reads))
    ]
    judged = ask_all(space, [*asked, *rules])
    counts, flags = judged.counts, len(names)
    known = _joined(_KNOWN_FLAGS, judged.size, counts[:flags])
    readable = _joined(_FLAG_VALUES, known.left, counts[flags : 2 * flags])
    return replace(judged, counts=(known, readable, *counts[2 * flags :]))


def _joined(name: str, before: int, counts: Sequence[RuleCount]) -> RuleCount:
    refused = sum(count.refused for count in counts)
    return RuleCount(name=name, row="flags", refused=refused, left=before - refused)


def _flag_questions(
    names: Sequence[str], node: Node, shape: ModelShape | None, context: RuleContext
) -> Iterator[Question]:
    """One question per flag, for each of the two kinds, so that no combination of flags is asked about."""
    readable = partial(_value_reason, node=node, shape=shape, context=context)
    for name in names:
        verdict = partial(_flag_reason, name=name, context=context)
        yield Question(rules=((_KNOWN_FLAGS, "flags"),), reads=frozenset({name}), verdict=verdict)
    for name in names:
        yield Question(rules=((_FLAG_VALUES, "flags"),), reads=frozenset({name}), verdict=partial(readable, name=name))


def _flag_reason(values: dict[str, Value], *, name: str, context: RuleContext) -> tuple[int, str] | None:
    found = _unknown_flag(name, _merged(Config.of(values), context), context)
    return None if found is None else (0, found.reason)


def _value_reason(
    values: dict[str, Value], *, name: str, node: Node, shape: ModelShape | None, context: RuleContext
) -> tuple[int, str] | None:
    value = _merged(Config.of(values), context).get(name)
    try:
        resolve(Config.of({name: value}), node, shape or _UNKNOWN_SHAPE, context.vllm_version)
    except InvalidOption:
        return 0, _BAD_VALUE
    return None


def _verdict(
    values: dict[str, Value], *, rules: Sequence[Rule], node: Node, shape: ModelShape | None, context: RuleContext
) -> tuple[int, str] | None:
    try:
        case = _case(_merged(Config.of(values), context), node, shape, context)
    except InvalidOption:
        return 0, _BAD_VALUE
    for place, rule in enumerate(rules):
        if _is_asked(rule, case):
            found = next(iter(rule.judge(case)), None)
            if found is not None:
                return place, found.reason
    return None


def _broken(case: Case) -> Iterator[Violation]:
    names: set[str] = set()
    for rule in RULES:
        if not _is_asked(rule, case) or rule.after & names:
            continue
        for finding in rule.judge(case):
            names.add(rule.name)
            yield Violation(
                rule=rule.row,
                name=rule.name,
                reason=finding.reason,
                text=finding.text,
                remedy=finding.remedy if rule.advise is None else rule.advise(case),
            )


def _is_asked(rule: Rule, case: Case) -> bool:
    return not (rule.needs_shape and case.shape is None) and not (rule.needs_gpus and not case.node.gpus)


def _merged(config: Config, context: RuleContext) -> dict[str, Value]:
    given = {**dict(context.fixed), **{name: value for name, value in config if value is not None}}
    return {name: value for name, value in given.items() if value is not None}


def _case(values: Mapping[str, Value], node: Node, shape: ModelShape | None, context: RuleContext) -> Case:
    checkpoint = values.get(CHECKPOINT)
    if checkpoint is not None:
        own = shape if shape is not None and shape.name == checkpoint else None
        shape = context.shapes.get(str(checkpoint), own)
    settings = resolve(Config.of(values), node, shape or _UNKNOWN_SHAPE, context.vllm_version)
    return Case(values=values, settings=settings, node=node, shape=shape, context=context)


def _unknown_flag(name: str, values: Mapping[str, Value], context: RuleContext) -> Violation | None:
    if context.accepted is None or name == CHECKPOINT or name not in values:
        return None
    problem = context.accepted.problem(name, values[name])
    if problem is None:
        return None
    return Violation(
        rule="flags",
        name=_KNOWN_FLAGS,
        reason=f"this vLLM does not accept --{name} as given",
        text=problem,
        remedy="take it out of the search space, or use a vLLM that has it",
    )


def _bad_value(error: InvalidOption) -> Violation:
    return Violation(
        rule="flags", name=_FLAG_VALUES, reason=_BAD_VALUE, text=error.message, remedy=f"give {error.allowed}"
    )


def _with_fixed(space: SearchSpace | Iterable[Config], context: RuleContext | None) -> RuleContext:
    context = context or RuleContext()
    if isinstance(space, SearchSpace) and space.fixed:
        return replace(context, fixed=(*context.fixed, *space.fixed))
    return context
