"""From a recipe to a plan: everything checked that can be checked without a launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotune.engine.command import VllmCommand, choose_command, resolve_command
from autotune.engine.flag_cache import HELP_DEADLINE_S, known_flags
from autotune.engine.flags import AcceptedFlags
from autotune.errors import InvalidOption, UnknownName
from autotune.load.model_len import guide_model_len
from autotune.load.workloads import Workload
from autotune.node.catalogue import variants_of
from autotune.node.gpus import parse_node_name
from autotune.node.hub import hub_config
from autotune.node.model_shape import UnsizedModel, load_shape
from autotune.node.probe import cpu_node, detect_node
from autotune.planning.arriving import arriving_of
from autotune.planning.flag_checks import check_config, check_extra, check_space, extra_flags, refuse_searched
from autotune.planning.guarding import guard_prompts
from autotune.planning.plan import StudyPlan, Surroundings
from autotune.planning.spaces import Known, choose_space, complete_point
from autotune.recipe import AUTO_CHECKPOINTS, EngineChoice, ExecutorChoice, Recipe
from autotune.records import (
    Config,
    EngineKind,
    ModelShape,
    Node,
    Objective,
    PickRule,
    Slo,
    Value,
)
from autotune.search.rules import RuleContext, check, require_feasible
from autotune.search.samplers import check_sampler
from autotune.search.space import SearchSpace
from autotune.search.starting import baseline, starting_points
from autotune.slo_text import parse_slo

DEFAULT_NODE = "1xH100-80GB"


def make_plan(
    recipe: Recipe, here: Surroundings, *, pick_rule: PickRule | None = None, vllm_command: str | None = None
) -> StudyPlan:
    """Everything checked that can be checked without a launch.

    Args:
        pick_rule: as this command asks; None leaves it to the study.
        vllm_command: from the command line; beats the environment, which beats the study file.

    Raises:
        BadInput: whatever the operator wrote that cannot be used, the space without a feasible config included.
        VllmCommandError: real servers are wanted and the command cannot be run.
        UnsupportedHardware: ROCm or MIG.
    """
    check_sampler(recipe.sampler)
    node, engine, notes = _choose_engine(recipe, here)
    _check_limits(recipe, node, engine)
    shape, shape_notes = _shape(recipe.model, here, engine)
    arriving = arriving_of(recipe, here)
    slo = _slo(recipe, arriving.workload)
    command, version, accepted = _command(recipe, here, engine, vllm_command)
    extra = extra_flags(recipe)
    check_extra(extra, accepted)
    # A file names its checkpoints in the space, where they are looked up; a generated space needs their shapes first.
    recipe = _with_variants(recipe, here, engine)
    known = Known(
        node=node,
        shape=shape,
        workload=arriving.workload,
        traffic=arriving.traffic,
        vllm_version=version,
        accepted=accepted,
        shapes=dict(_checkpoints(recipe.checkpoints, recipe, here, engine)),
        others_bytes=_others_bytes(node, here),
    )
    space, generated = choose_space(recipe, known, extra)
    refuse_searched(extra, space)
    check_space(space, accepted)
    if generated is None:
        known = replace(known, shapes=dict(_checkpoints(space.checkpoints, recipe, here, engine)))
    start = _start(recipe, known, space, extra, through_layouts=generated is not None)
    today, today_notes = _today(recipe, known, extra, start.context)
    plan = StudyPlan(
        recipe=recipe,
        engine=engine,
        node=node,
        shape=shape,
        workload=arriving.workload,
        space=space,
        command=command,
        accepted=accepted,
        vllm_version=version,
        fixed=start.fixed,
        extra=extra,
        context=start.context,
        feasible=start.feasible,
        refused=start.refused,
        baseline=start.baseline,
        baseline_changes=start.changes,
        starting_points=start.points,
        slo=slo,
        pick_rule=pick_rule,
        notes=(*notes, *shape_notes, *today_notes),
        reachable_hits=arriving.reachable_hits,
        traffic=known.traffic,
        checkpoints=tuple(known.shapes.items()),
        generated=generated,
        cache_dir=here.cache_dir,
        prompts=guard_prompts(recipe.quality, space),
        today=today,
    )
    return replace(plan, notes=plan.notes + _idle_gpus(plan))


def _check_limits(recipe: Recipe, node: Node, engine: EngineKind) -> None:
    """GPU hours need GPUs; and virtual times of different nodes have no common now.

    Raises:
        InvalidOption: a limit that nothing could keep to.
    """
    if recipe.max_gpu_s is not None and not node.gpus:
        raise InvalidOption("--max-gpu-hours", f"{recipe.max_gpu_s / 3600:g}", "a node with GPUs: there are none here")
    if recipe.executor is not ExecutorChoice.RAY or engine is not EngineKind.SIMULATED:
        return
    for option, value in (("--max-time", recipe.max_time_s), ("--max-gpu-hours", recipe.max_gpu_s)):
        if value is not None:
            raise InvalidOption(option, f"{value:g} s", "nothing in a simulation with --executor ray")


def _slo(recipe: Recipe, workload: Workload) -> Slo | None:
    """What the pick must meet: as the study says, else the workload.

    Raises:
        InvalidOption: it cannot be read, or a goodput is asked for without any.
    """
    slo = parse_slo(recipe.slo) if recipe.slo else workload.slo
    if recipe.objective is Objective.GOODPUT and slo is None:
        raise InvalidOption(
            "--objective", str(recipe.objective), "an SLO with it, such as --slo ttft_p95<=500ms,tpot_p95<=50ms"
        )
    return slo


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a study begins with, and what configs are judged by."""

    baseline: Config
    changes: tuple[str, ...]
    fixed: tuple[tuple[str, Value], ...]
    context: RuleContext
    feasible: tuple[Config, ...]
    refused: tuple[tuple[str, int], ...]
    points: tuple[Config, ...]


def _start(
    recipe: Recipe,
    known: Known,
    space: SearchSpace,
    extra: tuple[tuple[str, Value], ...],
    *,
    through_layouts: bool,
) -> _Start:
    """The baseline, the flags of every launch that follow from it, and what is tried first.

    Args:
        through_layouts: whether the layouts are tried even where the operator gave points of their own, as in a
            generated space; in a space of the operator's own those points stand alone.
    """
    node, shape, needed = known.node, known.shape, known.workload.max_model_len_needed
    base, changes = baseline(
        node,
        shape,
        needed,
        min_model_len=recipe.min_model_len,
        vllm_version=known.vllm_version,
        fixed=extra,
        checkpoints=known.shapes,
    )
    fixed = _fixed(space, extra, shape, max(needed, recipe.min_model_len or 0), base)
    own = {} if shape is None else {recipe.model: shape}
    context = RuleContext(
        needed_len=needed,
        min_model_len=recipe.min_model_len,
        vllm_version=known.vllm_version,
        accepted=known.accepted,
        fixed=(*extra, *fixed),
        shapes={**own, **known.shapes},
    )
    kept, refused = require_feasible(space, node, shape, context)
    given = tuple(complete_point(point, space, node, shape, context) for point in recipe.starting_points)
    more = starting_points(space, node, shape, context) if through_layouts or not given else ()
    return _Start(
        baseline=base,
        changes=changes,
        fixed=fixed,
        context=context,
        feasible=kept,
        refused=refused,
        points=tuple(Config.of({**dict(fixed), **point.as_dict()}) for point in dict.fromkeys((*given, *more))),
    )


def _today(
    recipe: Recipe, known: Known, extra: Sequence[tuple[str, Value]], context: RuleContext
) -> tuple[Config | None, tuple[str, ...]]:
    """What runs today as it is launched here, and where it cannot be, why not.

    It has its own length, not the study's: another one would be another server.

    Raises:
        UnknownName, InvalidOption: this vLLM has no such flag, or does not take its value.
    """
    if recipe.today is None:
        return None, ()
    taken = {name for name, _ in extra}
    today = Config.of({name: value for name, value in recipe.today if name not in taken})
    check_config(today, known.accepted, source="--today")
    broken = check(today, known.node, known.shape, replace(context, fixed=tuple(extra)))
    if broken:
        return None, (f"What runs today is not tried, as it cannot serve this: {broken[0].text}.",)
    return today, ()


IDLE_BYTES = 1 << 30
"""A GPU with less in use counts as free: a driver and a display take some hundred MiB."""


def _others_bytes(node: Node, here: Surroundings) -> int:
    """Memory that other processes hold on the fullest GPU of this machine that a study may use; 0 for a named node."""
    if here.probe is None or node.simulated or here.serving is not None:
        return 0
    used = [here.probe.memory_used(gpu.index) for gpu in node.gpus]
    return max((bytes_ for bytes_ in used if bytes_ >= IDLE_BYTES), default=0)


def _with_variants(recipe: Recipe, here: Surroundings, engine: EngineKind) -> Recipe:
    """`auto` among the checkpoints stands for the quantised ones of the model that are known, one of each kind: the
    same weights are often published under several names."""
    if AUTO_CHECKPOINTS not in recipe.checkpoints:
        return recipe
    named = [name for name in recipe.checkpoints if name != AUTO_CHECKPOINTS]
    kinds: dict[tuple[str | None, int], str] = {}
    for name in variants_of(recipe.model):
        shape = _shape(name, here, engine)[0]
        if shape is not None:
            kinds.setdefault((shape.quantization, shape.weight_bits), name)
    found = dict.fromkeys((*named, *kinds.values()))
    if not found:
        raise InvalidOption(
            "--checkpoints", AUTO_CHECKPOINTS, f"names, because no quantised checkpoint of {recipe.model} is known here"
        )
    return replace(recipe, checkpoints=tuple(found))


def _checkpoints(
    names: Iterable[str], recipe: Recipe, here: Surroundings, engine: EngineKind
) -> tuple[tuple[str, ModelShape], ...]:
    """Shapes of the other checkpoints that a space names; those that cannot be read are left to launches."""
    found = []
    for name in dict.fromkeys(names):
        shape = _shape(name, here, engine)[0] if name != recipe.model else None
        if shape is not None:
            found.append((name, shape))
    return tuple(found)


def _idle_gpus(plan: StudyPlan) -> tuple[str, ...]:
    """GPUs that a layout leaves over are told: figures are per GPU used, and say nothing about those (G5)."""
    used, there = plan.gpus_of(plan.baseline), plan.node.gpu_count
    if used >= there:
        return ()
    return (f"The baseline uses {used} of {there} GPUs, the others stay idle; figures are per GPU used.",)


def _choose_engine(recipe: Recipe, here: Surroundings) -> tuple[Node, EngineKind, tuple[str, ...]]:
    requested = None if recipe.gpus is None else ",".join(map(str, recipe.gpus))
    if recipe.engine is EngineChoice.SIMULATED or (recipe.engine is EngineChoice.AUTO and recipe.node is not None):
        if requested is not None:
            raise InvalidOption(
                "--gpus", requested, "nothing on the simulated engine; --node says how many GPUs it has"
            )
        return parse_node_name(recipe.node or recipe.default_node or DEFAULT_NODE), EngineKind.SIMULATED, ()
    if recipe.node is not None:
        raise InvalidOption("--node", recipe.node, "nothing with --engine process, which runs on this machine")
    found = here.serving if here.serving is not None else _this_node(here, requested)
    if recipe.engine is EngineChoice.PROCESS:
        return found or cpu_node(shm_bytes=here.shm_bytes), EngineKind.PROCESS, ()
    if found is not None and found.gpus:
        return found, EngineKind.PROCESS, ()
    name = recipe.default_node or DEFAULT_NODE
    note = (
        f"No GPU was found on this machine: running on the SIMULATED engine for a node of {name} "
        "(choose another with --node, or run real servers with --engine process)."
    )
    return parse_node_name(name), EngineKind.SIMULATED, (note,)


def _this_node(here: Surroundings, requested: str | None) -> Node | None:
    return detect_node(
        here.probe,
        here.environ,
        requested,
        shm_bytes=here.shm_bytes,
        has_kfd=here.has_kfd,
        numa_nodes=here.numa_nodes,
    )


def _shape(model: str, here: Surroundings, engine: EngineKind) -> tuple[ModelShape | None, tuple[str, ...]]:
    """A model's shape; real servers can do without one, the simulation cannot."""
    try:
        shape = load_shape(model, env=here.environ, home=here.home, hub=hub_config(here.environ, here.home))
        return shape, () if shape.doubt is None else (f"{model}: {shape.doubt}",)
    except (UnknownName, UnsizedModel) as error:
        is_hub_id = model.count("/") == 1 and not model.startswith((".", "/", "~"))
        if engine is EngineKind.SIMULATED or (isinstance(error, UnknownName) and not is_hub_id):
            raise
        return None, (f"memory and divisibility cannot be checked before launches: {error.message}",)


def _command(
    recipe: Recipe, here: Surroundings, engine: EngineKind, argument: str | None
) -> tuple[VllmCommand | None, str | None, AcceptedFlags]:
    if engine is EngineKind.SIMULATED:
        if argument is not None:
            raise InvalidOption("--vllm-command", argument, "nothing when simulating: add --engine process to run it")
        return None, None, known_flags()
    chosen = choose_command(argument=argument, environ=here.environ, study_file=recipe.vllm_command)
    command = resolve_command(chosen, search_path=here.environ.get("PATH"))
    # A server that must be ready by the start deadline has shown its flags by then as well.
    version, accepted = here.ask(command, deadline_s=min(HELP_DEADLINE_S, recipe.start_deadline_s))
    return command, version, accepted


def _fixed(
    space: SearchSpace,
    extra: Sequence[tuple[str, Value]],
    shape: ModelShape | None,
    needed: int,
    base: Config,
) -> tuple[tuple[str, Value], ...]:
    """The space's fixed flags, and max-model-len sized from the requests that arrive, not from the model card (G7).

    Where the baseline had to cut the length further to start, every config gets that length.
    """
    fixed = dict(space.fixed)
    taken = {name for name, _ in extra} | set(fixed) | {parameter.name for parameter in space.parameters}
    if "max-model-len" not in taken and shape is not None:
        limits = [guide_model_len(needed), shape.max_position_embeddings]
        cut = base.get("max-model-len")
        limits += [cut] if isinstance(cut, int) else []
        fixed["max-model-len"] = max(needed, min(limits))
    return tuple(sorted(fixed.items()))
