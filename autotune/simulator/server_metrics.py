"""`/metrics` of the simulated server: vLLM 0.25's names, labels and buckets in the Prometheus text format. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
MOST_TOKENS = 1_000_000


def token_buckets(longest: int) -> tuple[int, ...]:
    """1, 2 and 5 times powers of ten up to the model's length, as vLLM's `build_1_2_5_buckets`."""
    bounds = (mantissa * 10**exponent for exponent in range(len(str(longest))) for mantissa in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= longest)


FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Histogram:
    """Cumulative histogram with upper bounds `buckets`, seconds or tokens."""

    buckets: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.buckets) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.buckets, value)] += times
        self.total += value * times

    def samples(self, name: str, labels: str) -> Iterator[str]:
        """The exposition lines."""
        running = 0
        for bound, count in zip((*(str(float(bound)) for bound in self.buckets), "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(running)}'
        yield f"{name}_count{{{labels}}} {float(running)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


@dataclass(slots=True)
class EngineMetrics:
    """What one data-parallel engine counts; all cumulative but the gauges."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_BUCKETS))
    e2e: Histogram = field(default_factory=lambda: Histogram(REQUEST_BUCKETS))
    queue: Histogram = field(default_factory=lambda: Histogram(REQUEST_BUCKETS))
    prompts: Histogram = field(default_factory=lambda: Histogram(token_buckets(MOST_TOKENS)))
    outputs: Histogram = field(default_factory=lambda: Histogram(token_buckets(MOST_TOKENS)))

    @classmethod
    def of_length(cls, max_model_len: int) -> EngineMetrics:
        """With buckets of lengths as a server of that context has them."""
        buckets = token_buckets(max_model_len)
        return cls(prompts=Histogram(buckets), outputs=Histogram(buckets))

    def finish(self, prompt_tokens: int, output_tokens: int, e2e_s: float) -> None:
        """A request has ended with its last token."""
        self.finished["length"] += 1
        self.e2e.observe(e2e_s)
        self.prompts.observe(prompt_tokens)
        self.outputs.observe(output_tokens)


def render(engines: list[EngineMetrics], *, model: str, cache_config: Mapping[str, object]) -> str:
    """The whole page; one series per engine, labelled `engine="0"` and so on."""
    lines: list[str] = [_PROCESS_LINES]
    labels = [f'engine="{index}",model_name="{_escaped(model)}"' for index in range(len(engines))]
    for name, kind, text in _SERIES:
        exposed = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
        lines.append(f"# HELP {exposed} {text}\n# TYPE {exposed} {kind}")
        for engine, own in zip(engines, labels, strict=True):
            value = getattr(engine, _FIELDS[name])
            if isinstance(value, Histogram):
                lines.extend(value.samples(exposed, own))
            elif isinstance(value, dict):
                lines.extend(f'{exposed}{{{own},finished_reason="{r}"}} {float(n)}' for r, n in value.items())
            else:
                lines.append(f"{exposed}{{{own}}} {float(value)}")
    pairs = ",".join(f'{key}="{value}"' for key, value in cache_config.items())
    lines.append(
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge"
    )
    lines.extend(f'vllm:cache_config_info{{engine="{index}",{pairs}}} 1.0' for index in range(len(engines)))
    return "\n".join(lines) + "\n"


def render_process_only() -> str:
    """What is left when vLLM's own metrics are missing (vllm#7188): the Python process's."""
    return _PROCESS_LINES + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


_PROCESS_LINES = (
    "# HELP process_open_fds Number of open file descriptors.\n# TYPE process_open_fds gauge\nprocess_open_fds 64.0"
)
_SERIES = (
    ("num_requests_running", "gauge", "Number of requests in model execution batches."),
    ("num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    ("prefix_cache_queries", "counter", "Prefix cache queries, in terms of number of queried tokens."),
    ("prefix_cache_hits", "counter", "Prefix cache hits, in terms of number of cached tokens."),
    ("num_preemptions", "counter", "Cumulative number of preemption from the engine."),
    ("prompt_tokens", "counter", "Number of prefill tokens processed."),
    ("generation_tokens", "counter", "Number of generation tokens processed."),
    ("request_success", "counter", "Count of successfully processed requests."),
    ("time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds."),
    ("inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds."),
    ("e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds."),
    ("request_queue_time_seconds", "histogram", "Histogram of time spent in WAITING phase for request."),
    ("request_prompt_tokens", "histogram", "Number of prefill tokens processed."),
    ("request_generation_tokens", "histogram", "Number of generation tokens processed."),
)
_FIELDS = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "kv_cache_usage_perc": "kv_usage",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "num_preemptions": "preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "request_success": "finished",
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "e2e_request_latency_seconds": "e2e",
    "request_queue_time_seconds": "queue",
    "request_prompt_tokens": "prompts",
    "request_generation_tokens": "outputs",
}
