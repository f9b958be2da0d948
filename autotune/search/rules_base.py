"""What a rule is, what it is given and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autotune.engine.flags import MODEL, AcceptedFlags
from autotune.node.defaults import ResolvedSettings
from autotune.records import Gpu, ModelShape, Node, Value

CHECKPOINT = MODEL
"""The parameter that chooses between checkpoints of one model."""

LAYOUT_FLAGS = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})
LENGTH_FLAGS = frozenset({"max-model-len", "hf-overrides", "env:VLLM_ALLOW_LONG_MAX_MODEL_LEN", CHECKPOINT})
BATCH_FLAGS = (
    LAYOUT_FLAGS
    | LENGTH_FLAGS
    | {"max-num-seqs", "max-num-batched-tokens", "enable-chunked-prefill", "performance-mode", "enable-expert-parallel"}
)
"""What decides the two sizes of a step, vLLM's defaults for them included."""

MEMORY_FLAGS = BATCH_FLAGS | {
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "dtype",
    "quantization",
    "enforce-eager",
    "block-size",
    "max-cudagraph-capture-size",
    "speculative-config",
    "async-scheduling",
    "enable-prefix-caching",
}
"""What `node.memory.estimate` may depend on: all that decides ResolvedSettings but the doors of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that a config breaks.

    Attributes:
        rule: id of the guide's row, e.g. `G5`; `flags` for what vLLM's own parser or validation refuses.
        name: the rule's stable name, e.g. `gpu-arithmetic`.
        reason: the rule without this config's numbers; what refusals are counted by.
        text: what is wrong, with the numbers of this config.
        remedy: what to change, with the numbers of this config.
    """

    rule: str
    reason: str
    text: str
    remedy: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWarning:
    """One doubt about a config that may start all the same; fields as those of `Violation`."""

    rule: str
    reason: str
    text: str
    remedy: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What a config is judged against, besides node and model.

    Attributes:
        needed_len: tokens of the workload's longest request, prompt and output together.
        min_model_len: tokens that the operator wants admitted, whatever the workload sends.
        fixed: flags that every launch of the study has beside its config.
        shapes: what each value of the parameter `model` stands for; a value that is not there has no known shape.
    """

    needed_len: int | None = None
    min_model_len: int | None = None
    vllm_version: str | None = None
    accepted: AcceptedFlags | None = None
    fixed: tuple[tuple[str, Value], ...] = ()
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)

    @property
    def admitted_len(self) -> int | None:
        """Tokens that one sequence must be able to hold; None when nobody said."""
        return max((n for n in (self.needed_len, self.min_model_len) if n is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config as a rule sees it.

    Attributes:
        values: the config over the fixed flags, without None values.
        shape: None where it is not known; the settings then come from a stand-in.
    """

    values: Mapping[str, Value]
    settings: ResolvedSettings
    node: Node
    shape: ModelShape | None
    context: RuleContext

    @property
    def layout(self) -> str:
        """`TP 4 x PP 1 x DP 2`."""
        s = self.settings
        return f"TP {s.tensor_parallel} x PP {s.pipeline_parallel} x DP {s.data_parallel}"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the config is given: the first of the node."""
        return self.node.gpus[: self.settings.gpus]

    @property
    def known_shape(self) -> ModelShape:
        """The shape; only for rules that are asked with one."""
        if self.shape is None:
            raise ValueError("this rule needs the model's shape")
        return self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule has to say about one case."""

    reason: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that is asked of a config.

    Attributes:
        name: stable, e.g. `gpu-arithmetic`.
        row: of the operators' guide; `flags` where vLLM itself is the source.
        reads: every parameter that the verdict may depend on, also through a default; others may differ freely.
        judge: yields what is wrong.
        needs_shape: not asked without the model's shape.
        needs_gpus: not asked on a node without GPUs.
        after: names of rules that must have found nothing; without them the question has no meaning.
        advise: a remedy that costs arithmetic, worked out only when it is shown; None: the finding's own.
    """

    name: str
    row: str
    reads: frozenset[str]
    judge: Callable[[Case], Iterable[Finding]]
    needs_shape: bool = False
    needs_gpus: bool = False
    after: frozenset[str] = frozenset()
    advise: Callable[[Case], str] | None = None
