"""vLLM's `/metrics` (Prometheus text format) across versions 0.6 to 0.33, and what changed between two snapshots.

Names moved: `gpu_cache_usage_perc` became `kv_cache_usage_perc`, `gpu_prefix_cache_*` became `prefix_cache_*`; some
versions export both, so a concept is read from the first name that is there, never summed over names. Counters add
up over the `engine` label; a missing series is None, never 0 (dashboards that read 0 went silently wrong).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from autotune.records import ServerDelta

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+(?P<value>\S+)", re.ASCII
)
_LABEL = re.compile(r'(?P<key>[A-Za-z_]\w*)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"', re.ASCII)
_PREFIX = re.compile(r"(?:ray_)?vllm[:_]")
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

_KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_PREFIX_QUERIES = ("prefix_cache_queries", "gpu_prefix_cache_queries")
_PREFIX_HITS = ("prefix_cache_hits", "gpu_prefix_cache_hits")
_QUEUE_TIME = "request_queue_time_seconds"
_PREFILL_TIME = "request_prefill_time_seconds"
_DECODE_TIME = "request_decode_time_seconds"
_COUNTERS = ("prompt_tokens", "generation_tokens", "num_preemptions", "request_success")
_START_TIME = "process_start_time_seconds"
_GAUGE_LINE = re.compile(
    r"^(?:ray_)?vllm[:_](?:num_requests_running|num_requests_waiting|(?:gpu_|kv_)cache_usage_perc)\b.*$",
    re.ASCII | re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of the exposition; vLLM's names stand here without their `vllm:`."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, key: str) -> str | None:
        """A label's value."""
        return dict(self.labels).get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One snapshot. Counters are cumulative since the server's start.

    Attributes:
        is_vllm: whether any vLLM series is there; a server with only `python_*` and `process_*` is still measurable
            from the client's side (vllm#7188).
    """

    samples: tuple[tuple[str, tuple[Sample, ...]], ...]
    is_vllm: bool
    started: float | None = None

    def series(self, name: str) -> tuple[Sample, ...]:
        """All samples of a vLLM series (name without `vllm:`)."""
        return dict(self.samples).get(name, ())

    def counter(self, *names: str) -> float | None:
        """A counter, summed over engines and labels, by the first of the names that is there."""
        for name in names:
            # V0 declared `x_total` by hand, V1 lets the client library add it; `x` alone would be a gauge's name.
            for spelled in (f"{name}_total", name):
                found = _values(self.series(spelled))
                if found:
                    return sum(found)
        return None

    def gauge(self, *names: str, over: Callable[[Sequence[float]], float] = sum) -> float | None:
        """A gauge, put together over engines with `over`, by the first of the names that is there."""
        for name in names:
            found = _values(self.series(name))
            if found:
                return over(found)
        return None

    @property
    def kv_usage(self) -> float | None:
        """Share of the KV cache in use, 0..1, of the fullest engine."""
        return self.gauge(*_KV_USAGE, over=max)

    @property
    def running(self) -> float | None:
        """Requests in the batch, all engines together."""
        return self.gauge("num_requests_running")

    @property
    def waiting(self) -> float | None:
        """Requests in the queue, all engines together."""
        return self.gauge("num_requests_waiting")

    @property
    def preemptions(self) -> float | None:
        """Preemptions since the start."""
        return self.counter("num_preemptions")

    @property
    def kv_cache_tokens(self) -> int | None:
        """KV capacity in tokens, engines added up, as the server itself counts it (0.26 and newer).

        None where the label is absent or the string `None`: blocks times block size would undercount MLA and hybrid
        models, so the log's line is the better source there.
        """
        return _whole(self._info("kv_cache_size_tokens"))

    @property
    def kv_cache_max_concurrency(self) -> float | None:
        """Requests of the full model length that fit, engines added up (0.26 and newer)."""
        return self._info("kv_cache_max_concurrency")

    @property
    def kv_cache_block_tokens(self) -> int | None:
        """Blocks times block size, engines added up: a lower bound of the capacity, in every version."""
        total = 0
        for sample in self.series("cache_config_info"):
            blocks, size = _number(sample.label("num_gpu_blocks")), _number(sample.label("block_size"))
            if blocks is None or size is None:
                return None
            total += round(blocks * size)
        return total or None

    def _info(self, label: str) -> float | None:
        found = [_number(sample.label(label)) for sample in self.series("cache_config_info")]
        known = [value for value in found if value is not None]
        return sum(known) if known and len(known) == len(found) else None


def parse_metrics(text: str) -> Metrics:
    """A snapshot from the text of `/metrics`; lines that are no samples are skipped, nothing is raised.

    Exemplars and timestamps (OpenMetrics) are ignored, as are histogram buckets and `_created` series.
    """
    series: dict[str, list[Sample]] = {}
    is_vllm, started = False, None
    for line in text.split("\n"):
        found = None if line.startswith("#") else _SAMPLE.match(line.strip())
        value = _number(found["value"]) if found else None
        if found is None or value is None:
            continue
        name = found["name"]
        if name == _START_TIME:
            started = value
        prefix = _PREFIX.match(name)
        if prefix is None:
            continue
        is_vllm = True
        short = name[prefix.end() :]
        if short.endswith(("_bucket", "_created")):
            continue
        labels = tuple((pair["key"], _unescape(pair["value"])) for pair in _LABEL.finditer(found["labels"] or ""))
        series.setdefault(short, []).append(Sample(name=short, labels=labels, value=value))
    return Metrics(
        samples=tuple((name, tuple(samples)) for name, samples in series.items()), is_vllm=is_vllm, started=started
    )


def parse_gauges(text: str) -> Metrics:
    """Only the gauges that are sampled under load. A whole page takes milliseconds, in which no chunk is stamped."""
    return parse_metrics("\n".join(found[0] for found in _GAUGE_LINE.finditer(text)))


def restarted(before: Metrics, after: Metrics) -> bool:
    """Whether another server answered the second time: a counter went back, or the process started later.

    A level measured across that is invalid.
    """
    if before.started is not None and after.started is not None and abs(after.started - before.started) > 1.0:
        return True
    pairs = [(before.counter(name), after.counter(name)) for name in _COUNTERS]
    pairs += [(before.counter(*names), after.counter(*names)) for names in (_PREFIX_QUERIES, _PREFIX_HITS)]
    return any(old is not None and new is not None and new < old for old, new in pairs)


def delta(before: Metrics | None, after: Metrics | None, during: Iterable[Metrics] = ()) -> ServerDelta | None:
    """What the server counted between two snapshots, and highest and mean gauges of the samples taken `during`.

    None when either snapshot is missing or not vLLM's, or when the server restarted in between (see `restarted`).
    """
    if before is None or after is None or not (before.is_vllm and after.is_vllm) or restarted(before, after):
        return None
    found = ServerDelta(
        preemptions=_grown(before, after, "num_preemptions"),
        prompt_tokens=_grown(before, after, "prompt_tokens"),
        generation_tokens=_grown(before, after, "generation_tokens"),
        prefix_queries=_grown(before, after, *_PREFIX_QUERIES),
        prefix_hits=_grown(before, after, *_PREFIX_HITS),
        queue_time_mean_s=_mean_grown(before, after, _QUEUE_TIME),
        prefill_time_mean_s=_mean_grown(before, after, _PREFILL_TIME),
        decode_time_mean_s=_mean_grown(before, after, _DECODE_TIME),
    )
    sampled = list(during)
    if not sampled:  # the ends of a level are idle: their gauges say nothing about its peak
        return found
    seen = [*sampled, after]
    return replace(
        found,
        kv_usage_max=_highest(m.kv_usage for m in seen),
        running_max=_highest(m.running for m in seen),
        waiting_max=_highest(m.waiting for m in seen),
        kv_usage_mean=_mean(m.kv_usage for m in sampled),
        running_mean=_mean(m.running for m in sampled),
        waiting_mean=_mean(m.waiting for m in sampled),
    )


def _grown(before: Metrics, after: Metrics, *names: str) -> int | None:
    old, new = before.counter(*names), after.counter(*names)
    if new is None:
        return None
    # A counter with labels appears with its first event.
    return round(new - (old or 0.0))


def _mean_grown(before: Metrics, after: Metrics, histogram: str) -> float | None:
    total, count = after.gauge(f"{histogram}_sum"), after.gauge(f"{histogram}_count")
    if total is None or count is None:
        return None
    grown = count - (before.gauge(f"{histogram}_count") or 0.0)
    return (total - (before.gauge(f"{histogram}_sum") or 0.0)) / grown if grown > 0 else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _values(samples: Iterable[Sample]) -> list[float]:
    return [sample.value for sample in samples if math.isfinite(sample.value)]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else round(value)


def _unescape(text: str) -> str:
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found[0]], text)
