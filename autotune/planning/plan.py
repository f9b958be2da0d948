"""What a study knows before its first launch, and what planning sees of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.bottleneck import Setting
from autotune.engine.command import VllmCommand, question_words
from autotune.engine.flag_cache import ask_flags
from autotune.engine.flags import AcceptedFlags
from autotune.load.ramp import most_ttft_requests
from autotune.load.workloads import Workload, workload_fingerprint
from autotune.node.probe import GpuProbe
from autotune.planning.effective import Effective
from autotune.quality.lossy import lossy_names
from autotune.quality.prompts import PromptSet
from autotune.recipe import LoadChoice, Recipe
from autotune.records import Config, EngineKind, LoadPlan, ModelShape, Node, Objective, PickRule, Slo, Value
from autotune.scheduling.packing import Demand
from autotune.search.generate import GeneratedSpace
from autotune.search.need import Traffic
from autotune.search.rules import RuleContext
from autotune.search.space import SearchSpace
from autotune.trial import FixedLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What planning sees of this machine; handed in, so that tests need no machine of their own.

    Attributes:
        probe: None where there is no NVIDIA driver.
        numa_nodes: of this machine; None where it is not known.
        ask: version and flags of a server command; slow (it imports vLLM) unless cached.
        serving: the node that servers run on, where that is another one (a cluster's); None where it is this.
        ask_there: `ask` on that node.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    probe: GpuProbe | None
    shm_bytes: int | None
    has_kfd: bool
    cache_dir: Path
    numa_nodes: int | None = None
    serving: Node | None = None
    ask_there: Callable[[VllmCommand, float], tuple[str | None, AcceptedFlags]] | None = None

    def ask(self, command: VllmCommand, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        if self.ask_there is not None:
            return self.ask_there(command, deadline_s)
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
        reachable_hits: share of the prompt tokens that the workload lets a prefix cache serve, 0..1.
        traffic: the workload in a few numbers.
        checkpoints: shapes of other checkpoints of the model that the space searches.
        generated: how the space came about; None for one from a file.
        cache_dir: where servers of studies keep compiled code; None keeps none.
        prompts: that the quality guard asks; None where nothing that is tried changes numerics.
        today: what runs today, as it is launched; None where nobody said, or it cannot be.
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
    reachable_hits: float | None
    traffic: Traffic
    checkpoints: tuple[tuple[str, ModelShape], ...] = ()
    generated: GeneratedSpace | None = None
    cache_dir: Path | None = None
    prompts: PromptSet | None = None
    today: Config | None = None

    @property
    def lossy(self) -> frozenset[str]:
        """Parameters that change what a model computes: those that the space marks, and those known to."""
        return lossy_names(parameter.name for parameter in self.space.parameters if parameter.lossy)

    @property
    def shapes(self) -> tuple[tuple[str, ModelShape], ...]:
        """Known shapes by model name: of the study's model, and of checkpoints that the space searches."""
        own = () if self.shape is None else ((self.recipe.model, self.shape),)
        return (*own, *self.checkpoints)

    def model_of(self, config: Config) -> str:
        """The checkpoint that a config serves: its own where the space searches them."""
        return str(config.get("model") or self.recipe.model)

    def shape_of(self, config: Config) -> ModelShape | None:
        """The shape of that checkpoint; None where it is not known."""
        return dict(self.shapes).get(self.model_of(config))

    def setting(self, config: Config) -> Setting:
        """What a trial of `config` is judged with."""
        return Setting(
            node=self.node,
            shape=self.shape_of(config),
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
        return self.demand_of(config).gpus if self.node.gpus else 0

    def demand_of(self, config: Config) -> Demand:
        """The GPUs of a config, in tensor-parallel groups; none on a node without GPUs."""
        if not self.node.gpus:
            return Demand(group=0)
        values = {**dict(self.extra), **config.as_dict()}
        sizes = [values.get(f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")]
        tensor, pipeline, data = (size if isinstance(size, int) and not isinstance(size, bool) else 1 for size in sizes)
        return Demand(group=tensor, groups=pipeline * data, stages=pipeline)

    def effective(self, config: Config) -> str:
        """Equal for configs that end up as the same server, whether a default is written out or left out."""
        found = Effective(
            node=self.node,
            model=self.recipe.model,
            shapes=dict(self.shapes),
            vllm_version=self.vllm_version,
            extra=dict(self.extra),
        )
        return found.key(config)

    def load_for(self, stored: LoadPlan | None) -> LoadPlan | None:
        """The levels to drive: those found before, or those the operator fixed; None when they must be found."""
        if stored is not None or not self.recipe.load.fixed:
            return stored
        return fixed_plan(self.recipe.load, self.workload, longest_s=self.recipe.level_deadline_s / 2)

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
        goodput = self.recipe.objective is Objective.GOODPUT
        return {
            "model": self.recipe.model,
            "workload": f"{self.workload.name} ({workload_fingerprint(self.workload)})",
            "space": f"{self.space.name} ({self.space.space_hash})",
            "node": self.node.name,
            "vllm_version": self.vllm_version or "unknown",
            "load": "auto" if load == LoadChoice() else f"{load.concurrency}, {load.rate_rps}, {load.requests}",
            "fixed flags": " ".join(f"{k}={v}" for k, v in (*self.fixed, *self.extra)) or "none",
            # A throughput says the same whatever the SLO; a goodput is of its own.
            "objective": f"goodput within {self.slo}" if goodput else str(self.recipe.objective),
        }


def fixed_plan(load: LoadChoice, workload: Workload, *, longest_s: float) -> LoadPlan:
    """Levels that the operator gave whole; counts come from the workload where they were left out.

    Args:
        longest_s: in which the requests of an open loop must have arrived.
    """
    concurrency, rate = load.concurrency or 1, load.rate_rps or 1.0
    counts = workload.requests
    return LoadPlan(
        concurrency_per_gpu=concurrency,
        rate_rps_per_gpu=rate,
        throughput_requests_per_gpu=load.requests or counts.per_slot * concurrency,
        ttft_requests_per_gpu=load.requests or counts.ttft,
        ttft_most_requests_per_gpu=None
        if load.requests
        else most_ttft_requests(workload, counts.ttft, rate, longest_s=longest_s),
        warmup_requests_per_gpu=counts.warmup_per_slot * concurrency,
    )
