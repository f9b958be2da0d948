"""A running server held against what was promoted: its settings, what its users send, what it promised. Pure.

A finding is only made of what is sure: a figure of the interval that was watched counts as drifted when its whole 95 %
interval lies outside what was promoted for, and an SLO as breached when the lower bound of the quantile or of the share
of failed requests does. What a server does not show is told as not seen, and never taken for good.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.engine.histograms import Histogram
from autotune.engine.observed import Observation
from autotune.promote.history import Promotion
from autotune.records import Estimate, Limit, ServerFacts, Slo, SloMetric, Value
from autotune.units import format_seconds

LENGTH_FACTOR = 1.25
"""Mean lengths that differ by more change which config is best; the study's own spaces step by two."""

RATE_FACTOR = 1.1
"""Above the rate that the pick was measured under; less traffic than that is a night and no drift."""

HIT_DIFFERENCE = 0.15
PREEMPTED_SHARE = 0.05
"""Of the requests, as the gate has it; a few preemptions are fine, steady ones are not."""

CAPACITY_FACTOR = 1.1
_Z95 = 1.959963984540054
LEAST_REQUESTS = 20
"""That have to end before lengths and times are judged."""


class FindingKind(StrEnum):
    """What is not as promoted, the most urgent first."""

    SLO_BREACH = "slo_breach"
    CONFIG_DRIFT = "config_drift"
    WORKLOAD_DRIFT = "workload_drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as promoted, with what was promoted and what was seen."""

    kind: FindingKind
    what: str
    promoted: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a server shows of its settings.

    Attributes:
        names: what it calls its model, and what that stands for.
        labels: of `cache_config_info`.
        info: its resolved configuration as text; None outside of vLLM's development mode.
    """

    vllm_version: str | None
    names: tuple[str, ...]
    max_model_len: int | None = None
    kv_cache_tokens: int | None = None
    labels: Mapping[str, str] | None = None
    info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        same: what was compared and is as promoted, one sentence each.
        unseen: what could not be compared, and why.
    """

    findings: tuple[Finding, ...]
    same: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def worst(self) -> FindingKind | None:
        """The most urgent kind; None where nothing was found."""
        kinds = [finding.kind for finding in self.findings]
        return next((kind for kind in FindingKind if kind in kinds), None)


def check(promotion: Promotion, shown: Shown, seen: Observation, slo: Slo | None) -> Checked:
    """Everything that can be held against the promotion."""
    notes = _Notes()
    _settings(promotion, shown, notes)
    _workload(promotion, seen, notes)
    _limits(slo, seen, notes)
    findings = sorted(notes.findings, key=lambda finding: list(FindingKind).index(finding.kind))
    return Checked(findings=tuple(findings), same=tuple(notes.same), unseen=tuple(notes.unseen))


class _Notes:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.same: list[str] = []
        self.unseen: list[str] = []

    def found(self, kind: FindingKind, what: str, promoted: str, found: str) -> None:
        self.findings.append(Finding(kind=kind, what=what, promoted=promoted, found=found))

    def setting(self, what: str, promoted: Value, found: Value, *, same: bool) -> None:
        if same:
            self.same.append(f"{what} {found}")
        else:
            self.found(FindingKind.CONFIG_DRIFT, what, str(promoted), str(found))


# --- settings -------------------------------------------------------------------------------------------------------


def _settings(promotion: Promotion, shown: Shown, notes: _Notes) -> None:
    flags, resolved = dict(promotion.flags), promotion.resolved or ServerFacts()
    if shown.vllm_version is None:
        notes.unseen.append("vLLM's version: /version does not answer")
    elif not promotion.version_measured:
        notes.unseen.append(f"vLLM's version: {promotion.vllm_version} was assumed when this was promoted")
    else:
        public = [version.partition("+")[0] for version in (promotion.vllm_version, shown.vllm_version)]
        notes.setting("vLLM", promotion.vllm_version, shown.vllm_version, same=public[0] == public[1])
    served = {str(name) for name in (promotion.model, flags.get("served-model-name")) if name is not None}
    named = served | {name.rstrip("/").rpartition("/")[2] for name in served}
    same = any(name in named or name.rstrip("/").rpartition("/")[2] in named for name in shown.names)
    notes.setting("model", promotion.model, " = ".join(dict.fromkeys(shown.names)), same=same)
    labels = dict(shown.labels or {})
    expected: dict[str, tuple[Value, Value]] = {
        "max-model-len": (_or(flags.get("max-model-len"), resolved.max_model_len), shown.max_model_len),
        "gpu-memory-utilization": (
            _or(flags.get("gpu-memory-utilization"), resolved.gpu_memory_utilization),
            labels.get("gpu_memory_utilization"),
        ),
        "enable-prefix-caching": (
            _or(flags.get("enable-prefix-caching"), resolved.prefix_caching),
            labels.get("enable_prefix_caching"),
        ),
        # Without the flag the label is the flag's own default, whatever type the model then gives it.
        "kv-cache-dtype": (flags.get("kv-cache-dtype", "auto"), labels.get("cache_dtype")),
        "block-size": (flags.get("block-size"), labels.get("block_size")),
    }
    for name, value in flags.items():
        told = _told(shown.info, name)
        if told is not None or name not in expected:
            expected[name] = (value, told if told is not None else expected.get(name, (None, None))[1])
    unseen = []
    for name, (promoted, found) in expected.items():
        if promoted is None:
            continue
        if found is None or found == "None":
            unseen += [name] if name in flags and name not in _TOLD_ELSEWHERE else []
        elif not _left_to_the_server(name, promoted):
            notes.setting(name, promoted, found, same=_equal(name, promoted, found))
    if unseen:
        why = "outside of its development mode a vLLM does not show them"
        notes.unseen.append(f"{', '.join(f'--{name}' for name in sorted(unseen))}: {why}")
    capacity = resolved.kv_cache_tokens
    if capacity and shown.kv_cache_tokens:
        ratio = shown.kv_cache_tokens / capacity
        close = 1 / CAPACITY_FACTOR <= ratio <= CAPACITY_FACTOR
        notes.setting("KV cache tokens", f"{capacity:,}", f"{shown.kv_cache_tokens:,}", same=close)


def _left_to_the_server(name: str, promoted: Value) -> bool:
    """Values by which a server decides for itself; what it then shows is no drift."""
    return (str(promoted) == "auto" and name != "kv-cache-dtype") or (name == "max-model-len" and promoted == -1)


def _or(first: Value, second: Value) -> Value:
    return second if first is None else first


_TOLD_ELSEWHERE = frozenset({"served-model-name", "shutdown-timeout"})
"""The first is compared as the model's name; the second is the deployment's own."""

_PLAIN = re.compile(r"[\w./-]+", re.ASCII)


def _told(info: str | None, flag: str) -> str | None:
    """A flag's value in `name=value, ...`; None where the text does not have it, or not as a plain value."""
    if info is None or flag in _TOLD_ELSEWHERE:
        return None
    found = re.search(rf"(?<![\w.]){re.escape(flag.replace('-', '_'))}=('[^']*'|[^,\s)]+)", info)
    value = found[1].strip("'") if found else ""
    return value.removeprefix("torch.") if _PLAIN.fullmatch(value) else None


_SPELLINGS = {"half": "float16", "float": "float32"}
_REFINED = frozenset({"quantization", "kv-cache-dtype"})
"""Where a server says more than it was told: `awq` becomes `awq_marlin`, `fp8` `fp8_e4m3`."""


def _equal(name: str, promoted: Value, found: Value) -> bool:
    one, other = (str(value).strip().lower() for value in (promoted, found))
    one, other = _SPELLINGS.get(one, one), _SPELLINGS.get(other, other)
    if one == other or (name in _REFINED and other.startswith(f"{one}_")):
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6)
    except ValueError:
        return False


# --- workload -------------------------------------------------------------------------------------------------------


def _workload(promotion: Promotion, seen: Observation, notes: _Notes) -> None:
    for what, found, promoted in (
        ("prompt tokens", seen.prompt, promotion.prompt_tokens_mean),
        ("output tokens", seen.output, promotion.output_tokens_mean),
    ):
        if promoted is None:
            notes.unseen.append(f"mean {what}: the promotion does not know what it was measured with")
        elif found is None or found.count < LEAST_REQUESTS:
            notes.unseen.append(f"mean {what}: {_few(found)}")
        else:
            mean = found.mean_estimate
            off = _outside(mean, promoted / LENGTH_FACTOR, promoted * LENGTH_FACTOR)
            _figure(notes, f"mean {what}", f"{promoted:,.0f}", _interval(mean, lambda value: f"{value:,.0f}"), off)
    if promotion.rate_rps_per_gpu is not None and seen.rate_rps is not None:
        gpus = max(1, promotion.gpus)
        rate = seen.rate_rps.times(1 / gpus)
        off = rate.low is not None and rate.low > promotion.rate_rps_per_gpu * RATE_FACTOR
        said = f"at most {promotion.rate_rps_per_gpu:.3g}"
        _figure(notes, "requests/s per GPU", said, _interval(rate, lambda value: f"{value:.3g}"), off)
    prompts = seen.prompt.count if seen.prompt is not None else 0
    if promotion.prefix_hit_share is not None and seen.hit_share is not None and prompts >= LEAST_REQUESTS:
        # By requests, not by tokens: those of one prompt hit or miss together.
        hits = share_estimate(seen.hit_share, prompts)
        off = _outside(hits, promotion.prefix_hit_share - HIT_DIFFERENCE, promotion.prefix_hit_share + HIT_DIFFERENCE)
        said = f"{_interval(hits, lambda value: f'{value:.0%}')} of prompt tokens"
        _figure(notes, "prefix cache hits", f"{promotion.prefix_hit_share:.0%}", said, off)
    if seen.preemptions is not None and seen.ended and seen.ended >= LEAST_REQUESTS:
        off = _least_count(seen.preemptions) > PREEMPTED_SHARE * seen.ended
        _figure(
            notes, "preemptions", f"at most {PREEMPTED_SHARE:.0%}", f"{seen.preemptions} in {seen.ended} requests", off
        )


def _figure(notes: _Notes, what: str, promoted: str, found: str, off: bool) -> None:
    if off:
        notes.found(FindingKind.WORKLOAD_DRIFT, what, promoted, found)
    else:
        notes.same.append(f"{what} {found}, promoted for {promoted}")


def _outside(figure: Estimate, low: float, high: float) -> bool:
    return (figure.low is not None and figure.low > high) or (figure.high is not None and figure.high < low)


def share_estimate(share: float, count: int) -> Estimate:
    """A share of `count` observations with its 95 % interval (Wilson, 1927), which holds at 0 and 1 as well."""
    square = _Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = _Z95 / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return Estimate(value=share, low=max(0.0, middle - half), high=min(1.0, middle + half))


def _least_count(count: int) -> float:
    """What so many events show at least, at 95 %, of how many were to be expected (Anscombe, 1948)."""
    return max(0.0, math.sqrt(count) - _Z95 / 2) ** 2


def _few(found: Histogram | None) -> str:
    return f"{found.count if found else 0} requests ended, and {LEAST_REQUESTS} are needed"


# --- SLO ------------------------------------------------------------------------------------------------------------


def _limits(slo: Slo | None, seen: Observation, notes: _Notes) -> None:
    if slo is None:
        notes.unseen.append("SLO: neither the promotion nor --slo says one")
        return
    for limit in slo.limits:
        if limit.metric is SloMetric.ERROR_RATE:
            _errors(limit, seen, notes)
            continue
        found = _times(seen).get(limit.metric.value.rpartition("_")[0])
        percent = limit.metric.percent
        if found is None or found.count < LEAST_REQUESTS or percent is None:
            notes.unseen.append(f"{limit.metric}: {_few(found)}")
            continue
        low, high = found.quantile_interval(percent / 100)
        upper = (
            f"above {format_seconds(low)}" if math.isinf(high) else f"{format_seconds(low)} .. {format_seconds(high)}"
        )
        told = f"p{percent} {upper} ({found.count} observations)"
        # An observation in a bucket is above its lower bound, so that a bound that equals the limit is beyond it.
        if low >= limit.bound:
            notes.found(FindingKind.SLO_BREACH, str(limit.metric), str(limit), told)
        elif high <= limit.bound:
            notes.same.append(f"{limit} holds: {told}")
        else:
            notes.unseen.append(f"{limit}: {told}; the buckets of /metrics are too coarse to tell")


def _times(seen: Observation) -> dict[str, Histogram | None]:
    return {"ttft": seen.ttft, "tpot": seen.tpot, "itl": seen.itl, "e2e": seen.e2e}


def _errors(limit: Limit, seen: Observation, notes: _Notes) -> None:
    if seen.failed_share is None or seen.ended is None or seen.ended < LEAST_REQUESTS:
        notes.unseen.append(f"{limit.metric}: {seen.ended or 0} requests ended, and {LEAST_REQUESTS} are needed")
        return
    found = f"{seen.failed_share:.2%} of {seen.ended} requests ended in an error or were given up"
    low = share_estimate(seen.failed_share, seen.ended).low
    if seen.failed_share <= limit.bound:
        notes.same.append(f"{limit} holds: {seen.failed_share:.2%} of {seen.ended} requests")
    elif low is not None and low > limit.bound:
        notes.found(FindingKind.SLO_BREACH, str(limit.metric), str(limit), found)
    else:
        notes.unseen.append(f"{limit}: {found}; these are too few requests to tell")


def _interval(figure: Estimate, pretty: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return pretty(figure.value)
    return f"{pretty(figure.value)} [{pretty(figure.low)} .. {pretty(figure.high)}]"


# --- what to do -----------------------------------------------------------------------------------------------------


def remedies(
    promotion: Promotion,
    label: str,
    url: str,
    slo: str | None,
    kinds: Sequence[FindingKind],
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """Commands to paste, in their order: back to what was promoted, or to a config for what users send now.

    Args:
        label: name and version; that very config is tried first when tuning again.
        extra: what the promoted study had after `--`.
    """
    if not kinds:
        return ()
    lines = []
    if FindingKind.CONFIG_DRIFT in kinds:
        again = f"autotune promotions {shlex.quote(promotion.name)} --json"
        lines.append(f"{again}  # files of {label}, as they were rendered: serve from those")
    if set(kinds) - {FindingKind.CONFIG_DRIFT}:
        file = f"{_plain(promotion.name)}-now.yaml"
        limit = f" --slo {shlex.quote(slo)}" if slo is not None else ""
        # With the version, as the next drift is another study's question; within what a study may be called.
        name = f"{_plain(label)[:50].rstrip('-.')}-retune"
        lines += [
            f"autotune workload capture --url {shlex.quote(url)} --seconds 600 --out {file}",
            f"autotune study --model {shlex.quote(promotion.model)} --workload {file} --name {name}{limit} "
            f"--today {shlex.quote(label)}{f' -- {shlex.join(extra)}' if extra else ''}",
            f"autotune promote {name} --name {shlex.quote(promotion.name)} --target "
            f"{','.join(promotion.targets)} --out DIR --reason 'the workload has changed'",
        ]
    return tuple(lines)


def _plain(text: str) -> str:
    """A name for a file or a study; promotions of older versions may have any."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._") or "prod"
