"""Recorded loads of a real server, and how far the simulation is from them.

A recorded row names the flags of a server, the arguments of vLLM's benchmark client, and what that client measured;
the same requests are rebuilt from the client's seed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.errors import InvalidFile
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, SharedSpan
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import SimulatedLevel
from autotune.simulator.measured import Figures, MeasuredLoad
from autotune.simulator.server_args import parse_args


class _Bench(BaseModel):
    model_config = ConfigDict(extra="ignore")
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float
    p50_ttft_ms: float
    p95_ttft_ms: float
    p50_tpot_ms: float
    mean_ttft_ms: float | None = None


class RecordedLoad(BaseModel):
    """One row: the server's name and flags, the client's arguments and figures."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str
    load: str
    model: str | None = None
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
            ttft_mean_s=None if b.mean_ttft_ms is None else b.mean_ttft_ms / 1e3,
        )

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
    return measured_load(row, node=node, model=model).simulate(coefficients, seed=seed)


def measured_load(row: RecordedLoad, *, node: str, model: str, kv_tokens: int | None = None) -> MeasuredLoad:
    """The row with its requests and its server's settings.

    Args:
        kv_tokens: instead of the recorded capacity, as for a server that was never started.
    """
    level, requests = row.level()
    return MeasuredLoad(
        node=parse_node_name(node),
        shape=load_shape(model),
        settings=settings_of(row, node, model),
        kv_tokens=kv_tokens or row.kv_tokens,
        level=level,
        requests=requests,
        measured=row.measured,
    )


def settings_of(row: RecordedLoad, node: str, model: str) -> ResolvedSettings:
    """The settings that the row's server ran with (defaults of vLLM 0.25)."""
    config = parse_args(row.flags, {}).config
    return resolve(config, parse_node_name(node), load_shape(model), "0.25.1")


def _lengths(
    rng: np.random.Generator, mean: int, spread: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rng.integers(math.floor(mean * (1 - spread)), math.ceil(mean * (1 + spread)) + 1, size=count)
