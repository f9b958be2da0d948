"""A search space made for one node, model and workload by the guide's judgement (rows G6-G13, G20-G25). Pure.

Layouts first, then KV memory and the scheduler, then whatever else has a stated reason in this case and fits the
bound. The same question always gives the same space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.engine.flags import AcceptedFlags
from autotune.errors import NoFeasibleConfig
from autotune.load.model_len import guide_model_len
from autotune.records import ModelShape, Node, Value
from autotune.search.generate_core import core_parameters, layout_tries
from autotune.search.generate_secondary import secondary_parameters
from autotune.search.layouts import LayoutPlan, no_layout, plan_layouts
from autotune.search.need import Need, Omission, Traffic
from autotune.search.parameter import Parameter
from autotune.search.rules import RuleContext, judge_space
from autotune.search.rules_base import CHECKPOINT
from autotune.search.space import MAX_COMBINATIONS, SearchSpace
from autotune.units import format_bytes

MAX_FEASIBLE = 20_000
"""Configs of a generated space that may start, unless a wide one is asked for: as many as are predicted in a second."""

NAME = "auto"

_LAYOUT_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel")
_SMALLER_LENGTHS = (32_768, 16_384, 8_192, 4_096)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSpace:
    """What is worth searching on this node, and what is not.

    Attributes:
        layouts: every layout with at least one config that may start, in the order in which they are to be tried.
        left_out: parameters (or single values, `max-num-seqs=1024`) that are not in the space, and why.
        feasible: configs of the space that no rule refuses.
    """

    space: SearchSpace
    layouts: tuple[LayoutPlan, ...]
    left_out: tuple[tuple[str, str], ...]
    feasible: int


def generate_space(
    node: Node,
    shape: ModelShape | None,
    *,
    needed_len: int | None,
    min_model_len: int | None = None,
    traffic: Traffic | None = None,
    vllm_version: str | None = None,
    accepted: AcceptedFlags | None = None,
    checkpoints: Mapping[str, ModelShape] | None = None,
    fixed: Sequence[tuple[str, Value]] = (),
    others_bytes: int = 0,
    wide: bool = False,
) -> GeneratedSpace:
    """The space `auto` of a study.

    Args:
        needed_len: tokens of the workload's longest request; None leaves max-model-len as large as fits.
        min_model_len: tokens that the operator wants admitted besides.
        traffic: which requests arrive; None for nothing known.
        accepted: flags of the vLLM that will serve; a flag it lacks is left out, and without it the secondary ones.
        checkpoints: other checkpoints of the model by the value that names them, e.g. its AWQ form.
        fixed: flags of every launch, which are not searched.
        others_bytes: GPU memory that other processes hold on the fullest GPU.
        wide: up to a million configs instead of 20,000.

    Raises:
        NoFeasibleConfig: nothing of it can start; the hint has the plan across nodes where there is one.
    """
    need = Need(
        node=node,
        shape=shape,
        traffic=traffic or Traffic(),
        accepted=accepted,
        vllm_version=vllm_version,
        fixed=tuple(fixed),
        others_bytes=others_bytes,
        wide=wide,
        context=RuleContext(
            needed_len=needed_len,
            min_model_len=min_model_len,
            vllm_version=vllm_version,
            fixed=tuple(fixed),
            accepted=accepted,
            shapes=dict(checkpoints or {}),
        ),
    )
    found = _Layouts.of(need)
    need = replace(need, context=found.context, layouts=found.plans, tightest=found.tightest)
    omitted: list[Omission] = [*found.omitted, *found.omissions(need)]
    parameters = [*found.parameters(), *_kept(core_parameters(need), need, omitted)]
    parameters, count = _bounded(parameters, found, need, omitted)
    parameters = _with_secondary(parameters, count, need, omitted)
    return _finished(parameters, found, need, omitted)


def _with_secondary(
    parameters: Sequence[Parameter], count: int, need: Need, omitted: list[Omission]
) -> list[Parameter]:
    """The secondary parameters behind `parameters`, which make `count` configs, as long as there is room for them."""
    chosen = list(parameters)
    limit = _limit(need)
    for secondary in secondary_parameters(need):
        for parameter in _kept([secondary], need, omitted):
            if count * len(parameter.choices) > limit or _cells([*chosen, parameter]) > MAX_COMBINATIONS:
                text = f"would make up to {count * len(parameter.choices):,} configs, more than {limit:,}"
                omitted.append(Omission(name=parameter.name, why=f"{text}; a wide space has it"))
                continue
            chosen.append(parameter)
            count *= len(parameter.choices)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layouts:
    """The layouts of the model and of its other checkpoints, and the length they were planned for."""

    plans: tuple[LayoutPlan, ...]
    tightest: ModelShape | None
    context: RuleContext
    length: int | None
    checkpoints: tuple[Value, ...] = ()
    omitted: tuple[Omission, ...] = field(default=())

    @classmethod
    def of(cls, need: Need) -> _Layouts:
        """The layouts that can start with the guide's length, else with the bare need.

        Raises:
            NoFeasibleConfig: none can.
        """
        # A length that only quantised KV holds comes behind the bare need: most configs would be refused for it.
        for most_tries in (2, None):
            for length in _lengths(need):
                context = need.context
                if length is not None:
                    context = replace(context, fixed=(*context.fixed, ("max-model-len", length)))
                if not need.node.gpus or any(plans for _, plans in _plans_of(need, context, most_tries)):
                    return _joined(need, context, length, _plans_of(need, context))
        assert need.shape is not None  # without a shape every layout within the GPUs can start
        shorter = need.context.admitted_len
        context = need.context
        if shorter is not None and "max-model-len" not in dict(context.fixed):
            context = replace(context, fixed=(*context.fixed, ("max-model-len", shorter)))
        raise no_layout(f"{need.shape.name} in any layout", need.node, need.shape, context)

    def parameters(self) -> list[Parameter]:
        """The checkpoint and the four flags of the layout, those with one value only left out."""
        chosen: list[Parameter] = []
        if len(self.checkpoints) > 1:
            names = ", ".join(
                f"{x} ({format_bytes(self.context.shapes[str(x)].weight_bytes)})" for x in self.checkpoints if x
            )
            why = f"checkpoints of the same model: {names}; answers differ, compare their quality"
            chosen.append(Parameter(name=CHECKPOINT, choices=self.checkpoints, why=why, lossy=True))
        first = self.plans[0] if self.plans else None
        for name in _LAYOUT_FLAGS:
            values = tuple(
                sorted({plan.flags[name] for plan in self.plans}, key=lambda value: (str(type(value)), value))
            )
            if len(values) > 1 and first is not None:
                why = f"layout first: {first.label} ({first.why})" if name == _LAYOUT_FLAGS[0] else _LAYOUT_WHY[name]
                chosen.append(Parameter(name=name, choices=values, why=why))
        return chosen

    def omissions(self, need: Need) -> list[Omission]:
        """Why a flag of the layout is not searched: it has one value in every layout that is worth trying."""
        told: list[Omission] = []
        for name in _LAYOUT_FLAGS:
            values = {plan.flags[name] for plan in self.plans}
            if len(values) > 1:
                continue
            if need.node.gpu_count < 2:
                why = "one GPU is visible" if need.node.gpus else "no GPU is visible"
            elif name == _LAYOUT_FLAGS[-1] and not any(values):
                why = "G4: the model has no experts, or they cannot be dealt out here"
            else:
                why = f"{', '.join(map(str, values))} in every layout that is worth trying here"
            told.append(Omission(name=name, why=why))
        return told

    def forced(self) -> tuple[tuple[str, Value], ...]:
        """Sizes that every layout shares and that are not vLLM's default: part of every launch."""
        shared: list[tuple[str, Value]] = []
        for name in _LAYOUT_FLAGS:
            values = {plan.flags[name] for plan in self.plans}
            if len(values) == 1 and values not in ({1}, {False}):
                shared.append((name, values.pop()))
        if len(self.checkpoints) == 1 and self.checkpoints[0] is not None:
            shared.append((CHECKPOINT, self.checkpoints[0]))
        return tuple(shared)


_LAYOUT_WHY = {
    "pipeline-parallel-size": "stages instead of split layers: little traffic, bubbles when few requests run",
    "data-parallel-size": "replicas: they fill the GPUs that one replica leaves, and answer more requests at once",
    "enable-expert-parallel": "experts dealt out whole against each of them split: by model and version either wins",
}


def _plans_of(
    need: Need, context: RuleContext, most_tries: int | None = None
) -> list[tuple[Value, tuple[LayoutPlan, ...]]]:
    """Layouts of the study's own checkpoint (None) and of every other one."""
    shapes: list[tuple[Value, ModelShape | None]] = [(None, need.shape), *sorted(context.shapes.items())]
    return [
        (name, plan_layouts(need.node, shape, context, tries=layout_tries(need, shape)[:most_tries], wide=need.wide))
        for name, shape in shapes
    ]


def _joined(
    need: Need, context: RuleContext, length: int | None, found: list[tuple[Value, tuple[LayoutPlan, ...]]]
) -> _Layouts:
    """The first checkpoint's order, then what only other checkpoints can do."""
    plans: dict[tuple[object, ...], LayoutPlan] = {}
    omitted: list[Omission] = []
    usable: list[Value] = []
    for name, own in found:
        if need.node.gpus and not own:
            what = "the model's own checkpoint" if name is None else str(name)
            omitted.append(Omission(name=f"{CHECKPOINT}={what}", why="fits no layout of this node"))
            continue
        usable.append(name)
        for plan in own:
            why = plan.why if name is None else f"{plan.why} (checkpoint {name})"
            plans.setdefault(tuple(plan.flags.values()), replace(plan, why=why))
    ordered = tuple(replace(plan, order=order) for order, plan in enumerate(plans.values()))
    tightest = need.shape if not usable or usable[0] is None else context.shapes[str(usable[0])]
    return _Layouts(
        plans=ordered,
        tightest=tightest,
        context=context,
        length=length,
        checkpoints=tuple(usable),
        omitted=tuple(omitted),
    )


def _lengths(need: Need) -> list[int | None]:
    """Lengths to plan for, the one to prefer first; None leaves what is fixed, or the model's own."""
    if "max-model-len" in dict(need.fixed) or need.shape is None:
        return [None]
    most, admitted = need.shape.max_position_embeddings, need.context.admitted_len
    if admitted is None:
        return [None, *(length for length in _SMALLER_LENGTHS if length < most)]
    return list(dict.fromkeys([max(admitted, min(guide_model_len(admitted), most)), admitted]))


def _kept(parameters: Sequence[Parameter | Omission], need: Need, omitted: list[Omission]) -> list[Parameter]:
    """Those that this vLLM has, that are not fixed, and that have a choice left; the others go to `omitted`."""
    kept: list[Parameter] = []
    fixed = dict(need.fixed)
    for one in parameters:
        if isinstance(one, Omission):
            omitted.append(one)
        elif one.name in fixed:
            omitted.append(Omission(name=one.name, why=f"fixed by you: {fixed[one.name]}"))
        elif need.accepted is not None and need.accepted.get(one.name) is None:
            omitted.append(Omission(name=one.name, why="this vLLM has no such flag"))
        else:
            accepted = need.accepted
            choices = tuple(x for x in one.choices if accepted is None or accepted.problem(one.name, x) is None)
            omitted += [
                Omission(name=f"{one.name}={x}", why="this vLLM does not take it")
                for x in one.choices
                if x not in choices
            ]
            if len(choices) > 1:
                kept.append(replace(one, choices=choices))
    return kept


def _bounded(
    parameters: list[Parameter], found: _Layouts, need: Need, omitted: list[Omission]
) -> tuple[list[Parameter], int]:
    """Middle values go, one after the other, until the rules leave no more configs than the bound."""
    limit = _limit(need)
    while True:
        judged = judge_space(_space(parameters, found), need.node, need.shape, _judging(found))
        if judged.count <= limit and _cells(parameters) <= MAX_COMBINATIONS:
            return parameters, judged.count
        widest = max(
            (p for p in parameters if p.name not in (*_LAYOUT_FLAGS, CHECKPOINT) and len(p.choices) > 1),
            key=lambda p: len(p.choices),
            default=None,
        )
        if widest is None:
            return parameters, judged.count
        dropped = widest.choices[len(widest.choices) // 2]
        omitted.append(Omission(name=f"{widest.name}={dropped}", why=f"keeps the space within {limit:,} configs"))
        thinner = replace(widest, choices=tuple(x for x in widest.choices if x is not dropped))
        parameters = [thinner if p is widest else p for p in parameters]
        parameters = [p for p in parameters if len(p.choices) > 1]


def _finished(parameters: list[Parameter], found: _Layouts, need: Need, omitted: list[Omission]) -> GeneratedSpace:
    space = _space(parameters, found)
    judged = judge_space(space, need.node, need.shape, _judging(found))
    if not judged.count:
        raise NoFeasibleConfig(
            f"the space made for {need.shape.name if need.shape is not None else 'this model'}",
            need.node.name,
            judged.reasons,
            hint="Take fixed flags back, name a larger --node, or choose a smaller model or a shorter workload.",
        )
    names = {parameter.name for parameter in parameters}
    alive = [p for p in found.plans if judged.survives({n: v for n, v in p.flags.items() if n in names})]
    return GeneratedSpace(
        space=space,
        layouts=tuple(replace(plan, order=order) for order, plan in enumerate(alive)),
        left_out=tuple((one.name, one.why) for one in omitted),
        feasible=judged.count,
    )


def _space(parameters: Sequence[Parameter], found: _Layouts) -> SearchSpace:
    length = () if found.length is None else (("max-model-len", found.length),)
    return SearchSpace(
        name=NAME,
        parameters=tuple(parameters),
        fixed=tuple(sorted((*length, *found.forced()))),
        description="Made for this node, model and workload",
    )


def _judging(found: _Layouts) -> RuleContext:
    return replace(found.context, fixed=(*found.context.fixed, *found.forced()))


def _limit(need: Need) -> int:
    return MAX_COMBINATIONS if need.wide else MAX_FEASIBLE


def _cells(parameters: Sequence[Parameter]) -> int:
    return math.prod(len(parameter.choices) for parameter in parameters)
