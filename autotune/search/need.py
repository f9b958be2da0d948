"""What a space is made for: which requests arrive, on what, with which vLLM. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engine.flags import AcceptedFlags
from autotune.records import AttentionKind, Gpu, ModelShape, Node, Value
from autotune.search.layouts import LayoutPlan
from autotune.search.rules import RuleContext
from autotune.search.rules_memory import smallest_gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Facts of a workload; None where they are not known.

    Attributes:
        prompt_mean, prompt_p95, output_mean: tokens, shared prefixes included.
        concurrency: requests at once that the operator expects, whole node.
        shares_prefixes: whether prompts open alike (a system prompt, turns of a talk, one document).
        repeats_input: whether outputs quote their prompts at length (code edits, extraction, rewriting).
    """

    prompt_mean: float | None = None
    prompt_p95: float | None = None
    output_mean: float | None = None
    concurrency: int | None = None
    shares_prefixes: bool = False
    repeats_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """A parameter, or one value of it, that is not in the space."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Everything a parameter is chosen by.

    Attributes:
        others_bytes: GPU memory that other processes hold on the fullest GPU.
        context: what configs are judged against; its fixed flags include the length once that is settled.
        layouts: the layouts that can start, once they are known.
        tightest: the checkpoint that the KV of the layouts was predicted for.
    """

    node: Node
    shape: ModelShape | None
    traffic: Traffic
    accepted: AcceptedFlags | None
    vllm_version: str | None
    fixed: tuple[tuple[str, Value], ...]
    others_bytes: int
    wide: bool
    context: RuleContext
    layouts: tuple[LayoutPlan, ...] = ()
    tightest: ModelShape | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The smallest GPU; None without any."""
        return smallest_gpu(self.node) if self.node.gpus else None

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the smallest GPU; None where it is not known."""
        return None if self.gpu is None else self.gpu.compute_capability

    @property
    def request_tokens(self) -> float:
        """Tokens that a request holds in KV on average at its end; half the longest one where nobody said."""
        prompt, output = self.traffic.prompt_mean, self.traffic.output_mean
        if prompt is not None and output is not None:
            return max(1.0, prompt + output)
        return max(1.0, (self.context.admitted_len or 4096) / 2)

    @property
    def held(self) -> float | None:
        """Average requests that KV holds at once, of the replica with most KV; None where it cannot be computed."""
        known = [plan.kv_tokens_predicted for plan in self.layouts if plan.kv_tokens_predicted is not None]
        return max(known) / self.request_tokens if known else None

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep a state of fixed size instead of K and V."""
        shape = self.tightest or self.shape
        return shape is not None and any(x.attention.kind is AttentionKind.STATE for x in shape.decoder)

    @property
    def latent(self) -> bool:
        """Whether the model compresses its KV (MLA)."""
        shape = self.tightest or self.shape
        return shape is not None and any(x.attention.kind is AttentionKind.LATENT for x in shape.decoder)
