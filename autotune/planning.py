"""From a recipe to a plan: node, model, workload, space and rules brought together before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.bottleneck import Setting
from autotune.engine.command import VllmCommand, choose_command, question_words, resolve_command
from autotune.engine.flag_cache import HELP_DEADLINE_S, ask_flags, known_flags
from autotune.engine.flags import MANAGED_FLAGS, SECRET_FLAGS, AcceptedFlags, from_argv
from autotune.errors import InvalidOption, UnknownName
from autotune.load.workloads import Workload, load_workload, workload_fingerprint
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import UnsizedModel, load_shape
from autotune.node.probe import GpuProbe, cpu_node, detect_node
from autotune.recipe import EngineChoice, LoadChoice, Recipe
from autotune.records import Config, EngineKind, LoadPlan, ModelShape, Node, PickRule, Slo, Value
from autotune.search.objective import parse_slo
from autotune.search.rules import RuleContext, check, require_feasible
from autotune.search.samplers import check_sampler
from autotune.search.space import SearchSpace, load_space
from autotune.search.starting import baseline, guide_length, starting_points
from autotune.trial import FixedLoad

DEFAULT_NODE = "1xH100-80GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What planning sees of this machine; handed in, so that tests need no machine of their own.

    Attributes:
        probe: None where there is no NVIDIA driver.
        ask: version and flags of a server command; slow (it imports vLLM) unless cached.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    probe: GpuProbe | None
    shm_bytes: int | None
    has_kfd: bool
    cache_dir: Path

    def ask(self, command: VllmCommand, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        found = ask_flags(question_words(command), self.cache_dir, env=self.environ, deadline_s=deadline_s)
        return found.version, found.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """Everything a study needs to know before its first launch.

    Attributes:
        shape: None when the model's config.json cannot be read here (a hub id that vLLM will download).
        fixed: flags of every launch but the baseline's: the space's own, and max-model-len from the workload.
        extra: what followed `--`, read as flags; part of every launch.
        feasible: configs of the space that no rule refuses; `refused` counts the others by reason.
        baseline_changes: why the baseline differs from vLLM's bare defaults, one sentence each.
        notes: what the operator should know, e.g. that no GPU was found.
    """

    recipe: Recipe
    engine: EngineKind
    node: Node
    shape: ModelShape | None
    workload: Workload
    space: SearchSpace
    command: VllmCommand | None
    accepted: AcceptedFlags
    vllm_version: str | None
    fixed: tuple[tuple[str, Value], ...]
    extra: tuple[tuple[str, Value], ...]
    context: RuleContext
    feasible: tuple[Config, ...]
    refused: tuple[tuple[str, int], ...]
    baseline: Config
    baseline_changes: tuple[str, ...]
    starting_points: tuple[Config, ...]
    slo: Slo | None
    pick_rule: PickRule | None
    notes: tuple[str, ...]

    @property
    def shapes(self) -> tuple[tuple[str, ModelShape], ...]:
        """Known shapes by model name: of the study's model, and of checkpoints that the space searches."""
        return () if self.shape is None else ((self.recipe.model, self.shape),)

    @property
    def reachable_hits(self) -> float | None:
        """Share of the prompt tokens that the workload lets a prefix cache serve, 0..1."""
        return None

    def setting(self, config: Config) -> Setting:
        """What a trial of `config` is judged with."""
        return Setting(
            node=self.node,
            shape=dict(self.shapes).get(str(config.get("model", self.recipe.model))),
            reachable_hits=self.reachable_hits,
            vllm_version=self.vllm_version,
            extra=Config.of(dict(self.extra)),
        )

    @property
    def simulated(self) -> bool:
        """Whether every figure will come from the simulation."""
        return self.engine is EngineKind.SIMULATED

    def complete(self, config: Config) -> Config:
        """A config of the space with the study's fixed flags: what is launched and stored."""
        return Config.of({**dict(self.fixed), **config.as_dict()})

    def gpus_of(self, config: Config) -> int:
        """GPUs a config uses: TP x PP x DP; 0 on a node without GPUs."""
        if not self.node.gpus:
            return 0
        values = {**dict(self.extra), **config.as_dict()}
        product = 1
        for size in ("tensor", "pipeline", "data"):
            value = values.get(f"{size}-parallel-size")
            product *= value if isinstance(value, int) and not isinstance(value, bool) else 1
        return product

    def lease(self, gpus: int) -> tuple[int, ...]:
        """Physical indices of the GPUs for a config that uses `gpus`; empty on a node without GPUs."""
        return tuple(gpu.index for gpu in self.node.gpus[:gpus])

    def effective(self, config: Config) -> str:
        """Equal for configs that end up as the same server, whether a default is written out or left out."""
        if self.shape is None or not self.node.gpus:
            return Config.of({**dict(self.extra), **config.as_dict()}).hash
        values = {**dict(self.extra), **config.as_dict()}
        settings = resolve(Config.of(values), self.node, self.shape, self.vllm_version)
        rest = {name: value for name, value in values.items() if name not in RESOLVED_FLAGS}
        return f"{settings}|{Config.of(rest).hash}"

    def load_for(self, stored: LoadPlan | None) -> LoadPlan | None:
        """The levels to drive: those found before, or those the operator fixed; None when they must be found."""
        if stored is not None or not self.recipe.load.fixed:
            return stored
        return fixed_plan(self.recipe.load, self.workload)

    @property
    def fixed_load(self) -> FixedLoad:
        """What a ramp must not replace."""
        load = self.recipe.load
        return FixedLoad(
            concurrency_per_gpu=load.concurrency,
            rate_rps_per_gpu=load.rate_rps,
            throughput_requests_per_gpu=load.requests,
            ttft_requests_per_gpu=load.requests,
        )

    @property
    def identity(self) -> dict[str, str]:
        """What makes results comparable; a study of the same name must agree on all of it."""
        load = self.recipe.load
        return {
            "model": self.recipe.model,
            "workload": f"{self.workload.name} ({workload_fingerprint(self.workload)})",
            "space": f"{self.space.name} ({self.space.space_hash})",
            "node": self.node.name,
            "vllm_version": self.vllm_version or "unknown",
            "load": "auto" if load == LoadChoice() else f"{load.concurrency}, {load.rate_rps}, {load.requests}",
            "fixed flags": " ".join(f"{k}={v}" for k, v in (*self.fixed, *self.extra)) or "none",
        }


RESOLVED_FLAGS = frozenset(
    {
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "gpu-memory-utilization",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "kv-cache-dtype",
        "dtype",
        "enable-prefix-caching",
        "enable-chunked-prefill",
        "enforce-eager",
        "block-size",
        "enable-expert-parallel",
        "api-server-count",
        "async-scheduling",
        "stream-interval",
        "max-cudagraph-capture-size",
        "performance-mode",
        "quantization",
    }
)
"""Flags whose meaning is fully in ResolvedSettings."""


def fixed_plan(load: LoadChoice, workload: Workload) -> LoadPlan:
    """Levels that the operator gave whole; counts come from the workload where they were left out."""
    concurrency, rate = load.concurrency or 1, load.rate_rps or 1.0
    counts = workload.requests
    return LoadPlan(
        concurrency_per_gpu=concurrency,
        rate_rps_per_gpu=rate,
        throughput_requests_per_gpu=load.requests or counts.per_slot * concurrency,
        ttft_requests_per_gpu=load.requests or counts.ttft,
        warmup_requests_per_gpu=counts.warmup_per_slot * concurrency,
    )


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
    workload = load_workload(recipe.workload)
    space = load_space(recipe.space)
    slo = parse_slo(recipe.slo) if recipe.slo else workload.slo
    extra = _extra(recipe, space)
    node, engine, notes = _choose_engine(recipe, here)
    shape, shape_notes = _shape(recipe, here, engine)
    command, version, accepted = _command(recipe, here, engine, vllm_command)
    _check_extra(extra, accepted)
    _check_space(space, accepted)
    base, changes = baseline(node, shape, workload.max_model_len_needed, vllm_version=version, fixed=extra)
    fixed = _fixed(space, extra, shape, workload, base)
    context = RuleContext(
        needed_len=workload.max_model_len_needed,
        vllm_version=version,
        accepted=accepted,
        fixed=(*extra, *fixed),
    )
    kept, refused = require_feasible(space, node, shape, context)
    given = tuple(_checked_point(point, space, node, shape, context) for point in recipe.starting_points)
    points = given or starting_points(space, node, shape, context)
    plan = StudyPlan(
        recipe=recipe,
        engine=engine,
        node=node,
        shape=shape,
        workload=workload,
        space=space,
        command=command,
        accepted=accepted,
        vllm_version=version,
        fixed=fixed,
        extra=extra,
        context=context,
        feasible=kept,
        refused=refused,
        baseline=base,
        baseline_changes=changes,
        starting_points=tuple(Config.of({**dict(fixed), **point.as_dict()}) for point in points),
        slo=slo,
        pick_rule=pick_rule,
        notes=(*notes, *shape_notes),
    )
    return replace(plan, notes=plan.notes + _idle_gpus(plan))


def _idle_gpus(plan: StudyPlan) -> tuple[str, ...]:
    """GPUs that a layout leaves over are told: figures are per GPU used, and say nothing about those (A14, G5)."""
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
        return parse_node_name(recipe.node or DEFAULT_NODE), EngineKind.SIMULATED, ()
    if recipe.node is not None:
        raise InvalidOption("--node", recipe.node, "nothing with --engine process, which runs on this machine")
    found = detect_node(here.probe, here.environ, requested, shm_bytes=here.shm_bytes, has_kfd=here.has_kfd)
    if recipe.engine is EngineChoice.PROCESS:
        return found or cpu_node(shm_bytes=here.shm_bytes), EngineKind.PROCESS, ()
    if found is not None:
        return found, EngineKind.PROCESS, ()
    note = (
        f"No GPU was found on this machine: running on the SIMULATED engine for a node of {DEFAULT_NODE} "
        "(choose another with --node, or run real servers with --engine process)."
    )
    return parse_node_name(DEFAULT_NODE), EngineKind.SIMULATED, (note,)


def _shape(recipe: Recipe, here: Surroundings, engine: EngineKind) -> tuple[ModelShape | None, tuple[str, ...]]:
    """The model's shape; real servers can do without one, the simulation cannot."""
    try:
        return load_shape(recipe.model, env=here.environ, home=here.home), ()
    except (UnknownName, UnsizedModel) as error:
        is_hub_id = recipe.model.count("/") == 1 and not recipe.model.startswith((".", "/", "~"))
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


def _extra(recipe: Recipe, space: SearchSpace) -> tuple[tuple[str, Value], ...]:
    """Flags that followed `--`.

    Raises:
        InvalidOption: not flags, secrets, or flags that the space or the tuner itself sets.
    """
    extra = tuple(from_argv(recipe.extra_args))
    searched = {parameter.name for parameter in space.parameters}
    for name, value in extra:
        if name in MANAGED_FLAGS:
            raise InvalidOption(
                "--", f"--{name} {value}", "any flag of vllm serve but those the tuner sets for each launch"
            )
        if name in SECRET_FLAGS:
            raise InvalidOption(
                "--",
                f"--{name}",
                "no secrets, which would be stored with the study",
                hint=f"Set {SECRET_FLAGS[name]} in the environment that autotune runs in; the server inherits it.",
            )
        if name in searched:
            raise InvalidOption(
                "--",
                f"--{name} {value}",
                f"flags that are not searched (the space {space.name!r} varies --{name})",
                hint="Take the parameter out of the space, or the flag off the command line.",
            )
    return extra


def _check_extra(extra: Sequence[tuple[str, Value]], accepted: AcceptedFlags) -> None:
    """Every flag after `--` must be one of this vLLM's, with a value that it takes.

    Raises:
        UnknownName: it has no such flag.
        InvalidOption: it does not take this value.
    """
    for name, value in extra:
        problem = accepted.problem(name, value)
        if problem and accepted.get(name) is None:
            raise UnknownName("flag", name, _names(accepted), source="after --", hint=problem)
        if problem:
            raise InvalidOption("--", f"--{name} {value}", f"what this vLLM takes: {problem}")


def _check_space(space: SearchSpace, accepted: AcceptedFlags) -> None:
    """A parameter this vLLM does not have at all is the space's mistake; a single bad choice is left to the rules."""
    for name in (*(parameter.name for parameter in space.parameters), *(name for name, _ in space.fixed)):
        if not name.startswith("env:") and accepted.get(name) is None:
            raise UnknownName(
                "flag",
                name,
                _names(accepted),
                source=f"search space {space.name!r}",
                hint="This vLLM has no such flag; take it out of the space or use another vLLM.",
            )


def _names(accepted: AcceptedFlags) -> list[str]:
    return [flag.name for flag in accepted.flags]


def _fixed(
    space: SearchSpace,
    extra: Sequence[tuple[str, Value]],
    shape: ModelShape | None,
    workload: Workload,
    base: Config,
) -> tuple[tuple[str, Value], ...]:
    """The space's fixed flags, and max-model-len sized from the requests that arrive, not from the model card (G7).

    Where the baseline had to cut the length further to start, every config gets that length.
    """
    fixed = dict(space.fixed)
    taken = {name for name, _ in extra} | set(fixed) | {parameter.name for parameter in space.parameters}
    if "max-model-len" not in taken and shape is not None:
        needed = workload.max_model_len_needed
        limits = [guide_length(needed), shape.max_position_embeddings]
        cut = base.get("max-model-len")
        limits += [cut] if isinstance(cut, int) else []
        fixed["max-model-len"] = max(needed, min(limits))
    return tuple(sorted(fixed.items()))


def _checked_point(
    point: Config, space: SearchSpace, node: Node, shape: ModelShape | None, context: RuleContext
) -> Config:
    """A starting point of the study file.

    Raises:
        InvalidOption: not a config of the space, or one that a rule refuses.
    """
    shown = " ".join(f"{name}={value}" for name, value in point)
    if not space.contains(point):
        names = ", ".join(parameter.name for parameter in space.parameters)
        raise InvalidOption("starting_points", shown, f"one of its choices for each parameter of the space: {names}")
    violations = check(point, node, shape, context)
    if violations:
        raise InvalidOption("starting_points", shown, violations[0].text, hint=violations[0].remedy)
    return point
