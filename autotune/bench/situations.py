"""What a benchmark study is about: a node, a model, a workload, and the configs that may be launched.

Made by the same planning as a real study, so that the spaces are those that the product itself would search. Where such
a space has fewer than 500 configs, a benchmark adds scheduler flags that operators do turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.spaces import complete_point
from autotune.recipe import EngineChoice, Recipe
from autotune.records import Config, ModelShape, Node, Value
from autotune.search.need import Traffic
from autotune.search.parameter import Parameter
from autotune.search.rules import RuleContext, require_feasible
from autotune.search.space import SearchSpace

WHY = "added for the benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One simulated node of the benchmark.

    Attributes:
        seed: of everything hidden about its surface.
        more: choices that replace a generated parameter's, or add a parameter.
    """

    name: str
    node: str
    model: str
    workload: str
    seed: int
    more: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


_LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
_LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"

NODES: tuple[NodeSpec, ...] = (
    NodeSpec(name="1xH100-8B-chat", node="1xH100-80GB", model=_LLAMA_8B, workload="chat", seed=101),
    NodeSpec(
        name="1xH200-8B-rag",
        node="1xH200-141GB",
        model=_LLAMA_8B,
        workload="rag",
        seed=102,
        more={
            "max-num-batched-tokens": (2048, 4096, 8192, 16384, 32768),
            "stream-interval": (1, 4),
            "api-server-count": (None, 2),
            "performance-mode": ("balanced", "throughput"),
        },
    ),
    NodeSpec(
        name="2x4090-70B-AWQ-PCIe",
        node="2xRTX4090-24GB-PCIe",
        model="hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        workload="chat",
        seed=103,
        more={"async-scheduling": (True, False), "max-num-seqs": (8, 16, 24, 32, 64)},
    ),
    NodeSpec(name="4xA100-70B-chat", node="4xA100-80GB-NVLink", model=_LLAMA_70B, workload="chat", seed=104),
    NodeSpec(
        name="4xL40S-70B-PCIe",
        node="4xL40S-48GB-PCIe",
        model=_LLAMA_70B,
        workload="chat",
        seed=105,
        more={"async-scheduling": (True, False)},
    ),
    NodeSpec(name="8xH100-70B-long", node="8xH100-80GB-NVLink", model=_LLAMA_70B, workload="summarize", seed=106),
    NodeSpec(
        name="8xH100-Mixtral-EP",
        node="8xH100-80GB-NVLink",
        model="mistralai/Mixtral-8x7B-Instruct-v0.1",
        workload="chat",
        seed=107,
    ),
    NodeSpec(
        name="8xH200-405B-FP8",
        node="8xH200-141GB-NVLink",
        model="meta-llama/Llama-3.1-405B-Instruct-FP8",
        workload="chat",
        seed=108,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What everybody may know of a study before its first launch; no truth of any surface is in it.

    Attributes:
        configs: of the space, those that no rule refuses, in its order.
        baseline: vLLM's defaults as a config of the space.
        recipes: the guide's configs for the node, in the order they would be tried.
        context: of the rules; `context.fixed` are flags of every launch.
        plan: the study's plan, with everything the product itself makes a prior from.
    """

    node: Node
    shape: ModelShape
    traffic: Traffic
    space: SearchSpace
    configs: tuple[Config, ...]
    baseline: Config
    recipes: tuple[Config, ...]
    context: RuleContext
    plan: StudyPlan


def situation_of(spec: NodeSpec) -> Situation:
    """The study of `spec`, planned."""
    plan = plan_of(spec.node, spec.model, spec.workload)
    shape = plan.shape
    assert shape is not None  # the models of NODES are in the catalogue
    space = _with_more(plan.space, spec.more)
    configs, _ = require_feasible(space, plan.node, shape, plan.context)
    names = {parameter.name for parameter in space.parameters}

    def inside(config: Config) -> Config:
        point = Config.of({name: value for name, value in config if name in names})
        return complete_point(point, space, plan.node, shape, plan.context)

    return Situation(
        node=plan.node,
        shape=shape,
        traffic=plan.traffic,
        space=space,
        configs=configs,
        baseline=inside(plan.baseline),
        recipes=tuple(dict.fromkeys(inside(point) for point in plan.starting_points)),
        context=plan.context,
        plan=plan,
    )


def plan_of(node: str, model: str, workload: str) -> StudyPlan:
    """Plan a study without looking at this machine: no probe, no environment, no hub.

    Raises:
        AutotuneError: a name that `autotune plan` does not know, or a model that does not fit the node.
    """
    nowhere = Path("/nonexistent")
    here = Surroundings(environ={}, home=nowhere, probe=None, shm_bytes=None, has_kfd=False, cache_dir=nowhere)
    recipe = Recipe(name="benchmark", model=model, workload=workload, node=node, engine=EngineChoice.SIMULATED)
    return make_plan(recipe, here)


def _with_more(space: SearchSpace, more: Mapping[str, tuple[Value, ...]]) -> SearchSpace:
    parameters = [replace(one, choices=more[one.name]) if one.name in more else one for one in space.parameters]
    there = {one.name for one in parameters}
    parameters += [
        Parameter(name=name, choices=choices, why=WHY) for name, choices in more.items() if name not in there
    ]
    return replace(space, parameters=tuple(parameters))
