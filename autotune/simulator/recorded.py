"""Recorded loads of a real server, and how far the simulation is from them.

A recorded row names the flags of a server, the arguments of vLLM's benchmark client, and what that client measured;
the same requests are rebuilt from the client's seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.errors import InvalidFile
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord, SharedSpan
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import SimulatedLevel, Simulation
from autotune.simulator.server_args import parse_args


class _Bench(BaseModel):
    model_config = ConfigDict(extra="ignore")
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float
    p50_ttft_ms: float
    p95_ttft_ms: float
    p50_tpot_ms: float


class RecordedLoad(BaseModel):
    """One row: the server's name and flags, the client's arguments and figures."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str
    load: str
    flags: tuple[str, ...]
    bench_args: tuple[str, ...]
    kv_tokens: int
    bench: _Bench
    metrics: dict[str, float | None] = {}

    @property
    def measured(self) -> Figures:
        """What the real server did."""
        b = self.bench
        return Figures(
            output_tok_s=b.output_throughput,
            tpot_p50_s=b.p50_tpot_ms / 1e3,
            ttft_p50_s=b.p50_ttft_ms / 1e3,
            ttft_p95_s=b.p95_ttft_ms / 1e3,
        )

    @property
    def closed_loop(self) -> bool:
        """Whether a fixed number of clients drove it."""
        return self._argument("--max-concurrency") is not None

    def level(self) -> tuple[LoadLevel, tuple[PlannedRequest, ...]]:
        """The load, request by request.

        Lengths and Poisson arrivals are those of `vllm bench serve --dataset-name random` (0.25): prompts first, then
        outputs, from one generator; gaps from another, scaled so that the last request comes at n / rate.
        """
        seed, count = self._number("--seed"), self._number("--num-prompts")
        prefix = self._number("--random-prefix-len", 0)
        spread = float(self._argument("--random-range-ratio") or 0.0)
        rng = np.random.default_rng(seed)
        prompts = _lengths(rng, self._number("--random-input-len"), spread, count)
        outputs = _lengths(rng, self._number("--random-output-len"), spread, count)
        rate = self._argument("--request-rate")
        open_loop = rate is not None and rate != "inf"
        due: list[float | None] = [None] * count
        if rate is not None and open_loop:
            gaps = np.random.RandomState(seed).gamma(1.0, 1.0 / float(rate), count)
            due = [float(at) for at in np.cumsum(gaps) * (count / float(rate) / gaps.sum())]
        requests = tuple(
            PlannedRequest(
                index=i,
                prompt_tokens=int(prompts[i]) + prefix,
                output_tokens=int(outputs[i]),
                content_seed=seed * 1_000_000 + i,
                scheduled_s=due[i],
                shared=(SharedSpan(content=seed, tokens=prefix),) if prefix else (),
            )
            for i in range(count)
        )
        level = LoadLevel(
            name=self.load,
            role=LevelRole.EXTRA,
            arrivals=Arrivals.POISSON if open_loop else Arrivals.CLOSED,
            requests=count,
            seed=seed,
            concurrency=None if open_loop else self._number("--max-concurrency", count),
            rate_rps=float(rate) if rate is not None and open_loop else None,
        )
        return level, requests

    def _argument(self, name: str) -> str | None:
        return self.bench_args[self.bench_args.index(name) + 1] if name in self.bench_args else None

    def _number(self, name: str, default: int | None = None) -> int:
        text = self._argument(name)
        if text is None and default is None:
            raise ValueError(f"row {self.name}/{self.load} has no {name}")
        return int(text) if text is not None else int(default or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What fidelity is judged by."""

    output_tok_s: float
    tpot_p50_s: float
    ttft_p50_s: float
    ttft_p95_s: float

    def errors(self, truth: Figures) -> tuple[float, float, float, float]:
        """Relative errors, in the order of the fields; +0.1 is 10 % too much."""
        return (
            self.output_tok_s / truth.output_tok_s - 1,
            self.tpot_p50_s / truth.tpot_p50_s - 1,
            self.ttft_p50_s / truth.ttft_p50_s - 1,
            self.ttft_p95_s / truth.ttft_p95_s - 1,
        )


def read_recorded(path: Path) -> tuple[RecordedLoad, ...]:
    """The rows of a JSON-lines file; rows of another `kind` than load are left out.

    Raises:
        InvalidFile: a line that is no such row.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            data = json.loads(line)
            if data.get("kind", "load") != "load":
                continue
            data.setdefault("kv_tokens", data.get("facts", {}).get("kv_tokens"))
            rows.append(RecordedLoad.model_validate(data))
        except (ValidationError, json.JSONDecodeError, AttributeError) as error:
            raise InvalidFile(str(path), f"line {number}", line, "a recorded load") from error
    return tuple(rows)


def simulate(
    row: RecordedLoad, *, node: str, model: str, coefficients: Coefficients | None = None, seed: int = 0
) -> tuple[Figures, SimulatedLevel]:
    """The row's load on a fresh simulated server with the row's flags and recorded KV capacity."""
    simulation = Simulation(
        parse_node_name(node), load_shape(model), settings_of(row, node, model), row.kv_tokens, coefficients, seed
    )
    result = simulation.run(*row.level())
    return figures(result.records), result


def settings_of(row: RecordedLoad, node: str, model: str) -> ResolvedSettings:
    """The settings that the row's server ran with (defaults of vLLM 0.25)."""
    config = parse_args(row.flags, {}).config
    return resolve(config, parse_node_name(node), load_shape(model), "0.25.1")


def figures(records: Sequence[RequestRecord]) -> Figures:
    """The client's figures, computed as `vllm bench serve` does: over the whole run, ramp included."""
    done = [r for r in records if r.error is None]
    ttft = [r.first_token_s - r.sent_s for r in done if r.first_token_s is not None and r.sent_s is not None]
    return Figures(
        output_tok_s=sum(r.output_tokens or 0 for r in done) / max(r.done_s or 0.0 for r in done),
        tpot_p50_s=float(np.median(list(_tpots(done)))),
        ttft_p50_s=float(np.median(ttft)),
        ttft_p95_s=float(np.percentile(ttft, 95)),
    )


def _tpots(records: Iterable[RequestRecord]) -> Iterable[float]:
    for r in records:
        if r.last_token_s is not None and r.first_token_s is not None and r.output_tokens and r.output_tokens > 1:
            yield (r.last_token_s - r.first_token_s) / (r.output_tokens - 1)


def _lengths(
    rng: np.random.Generator, mean: int, spread: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rng.integers(math.floor(mean * (1 - spread)), math.ceil(mean * (1 + spread)) + 1, size=count)
