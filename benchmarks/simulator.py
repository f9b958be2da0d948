"""Speed and fidelity of the simulator, or its figures for the shipped recipes.

`python -m benchmarks.simulator [RESULTS.jsonl] [--node N] [--model M]` compares with recorded loads;
`python -m benchmarks.simulator --recipes [FOLDER]` starts every starting point of every recipe on its own node;
`python -m benchmarks.simulator --speed` times chat levels of 500 to 100,000 requests on both cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from autotune.engine.flags import from_argv
from autotune.errors import AutotuneError
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.memory import estimate
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, ModelShape, Node, PlannedRequest
from autotune.simulator.core import Core
from autotune.simulator.engine_model import Simulation
from autotune.simulator.measured import figures
from autotune.simulator.recorded import read_recorded, simulate
from autotune.simulator.start_checks import config_problem, memory_problem

ROOT = Path(__file__).parent.parent
DEFAULT_ROWS = ROOT / "tests" / "data" / "h200" / "results.jsonl"
CHAT_CLIENTS_PER_GPU = 64
SPEED_COUNTS = (500, 5_000, 50_000, 100_000)
MOST_S = 0.05
"""CPU seconds that a chat level of 500 requests may take on the compiled core; `--speed` fails beyond it."""


def main() -> int:
    """Print one line per recorded load and means over all, or one line per starting point; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=DEFAULT_ROWS)
    parser.add_argument("--node", default="1xH200-141GB")
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--seeds", type=int, default=3, help="simulate with this many seeds and take the mean")
    parser.add_argument("--recipes", type=Path, nargs="?", const=ROOT / "studies", help="the recipes of this folder")
    parser.add_argument("--speed", action="store_true", help="seconds of one core, by core and number of requests")
    args = parser.parse_args()
    if args.speed:
        return print_speed(args)
    if args.recipes is not None:
        print_recipes(args.recipes)
    else:
        print_fidelity(args)
    return 0


def print_fidelity(args: argparse.Namespace) -> None:
    """Simulated against measured figures of every recorded load."""
    heads = ("output tok/s", "TPOT p50 ms", "TTFT p50 ms", "TTFT p95 ms")
    print(f"{'server':16}{'load':8}" + "".join(f"{head:>26}" for head in heads) + f"{'seconds':>9}")
    errors = []
    for row in read_recorded(args.results):
        begun = time.perf_counter()
        runs = [simulate(row, node=args.node, model=args.model, seed=seed)[0] for seed in range(args.seeds)]
        took = (time.perf_counter() - begun) / args.seeds
        real = row.measured
        error = np.mean([run.errors(real) for run in runs], axis=0)
        errors.append(error)
        truth = (real.output_tok_s, real.tpot_p50_s * 1e3, real.ttft_p50_s * 1e3, real.ttft_p95_s * 1e3)
        cells = "".join(
            f"{value * (1 + off):10.1f} /{value:8.1f}{100 * off:+5.0f} %"
            for value, off in zip(truth, error, strict=True)
        )
        print(f"{row.name:16}{row.load:8}{cells}{took:9.3f}")
    size = np.abs(errors)
    print(f"{'mean size of error':24}" + "".join(f"{100 * value:24.1f} %" for value in size.mean(axis=0)))
    print(f"{'largest':24}" + "".join(f"{100 * value:24.1f} %" for value in size.max(axis=0)))


def print_speed(args: argparse.Namespace) -> int:
    """CPU seconds of chat levels with 64 clients; the first line is what loading or compiling costs; the exit code."""
    node, shape = parse_node_name(args.node), load_shape(args.model)
    settings = resolve(Config.of({}), node, shape)
    kv_tokens = estimate(shape, node.gpus[0], settings).kv_tokens

    def seconds(core: Core, count: int, *, records: bool) -> float:
        level, requests = _chat(CHAT_CLIENTS_PER_GPU, count)
        simulation = Simulation(node, shape, settings, kv_tokens, core=core)
        begun = time.process_time()
        if records:
            simulation.run(level, requests)
        else:
            simulation.figures(level, requests)
        return time.process_time() - begun

    print(f"compiled core ready after {seconds(Core.COMPILED, 1, records=True):.2f} s")
    print(f"{'requests':>9}{'twin':>10}{'compiled':>10}{'figures only':>14}")
    smallest_s: list[float] = []
    for count in SPEED_COUNTS:
        ways = ((Core.PYTHON, True), (Core.COMPILED, True), (Core.COMPILED, False))
        repeats = 3 if count <= SPEED_COUNTS[0] else 1
        best = [min(seconds(core, count, records=records) for _ in range(repeats)) for core, records in ways]
        smallest_s = smallest_s or best
        print(f"{count:9,}{best[0]:10.4f}{best[1]:10.4f}{best[2]:14.4f}")
    return int(smallest_s[1] > MOST_S)


def print_recipes(folder: Path) -> None:
    """Every starting point: whether it starts, a lone request's TPOT, and the throughput of a chat load."""
    print(
        f"{'recipe':32}{'KV tokens':>10}{'lone TPOT ms':>13}{'output tok/s':>13}{'TPOT ms':>9}{'seconds':>9}  settings"
    )
    for path in sorted(folder.glob("r*.yaml")):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        node = parse_node_name(recipe["default_node"])
        try:
            shape = load_shape(recipe["model"])
        except AutotuneError as error:
            print(f"{path.stem:32}{error.message}")
            continue
        extra = dict(from_argv([str(word) for word in recipe.get("extra_args", ())]))
        for point in recipe["starting_points"]:
            given = " ".join(f"{name}={value}" for name, value in point.items())
            print(f"{path.stem:32}{_line(node, shape, {**extra, **point})}  {given}")


def _line(node: Node, shape: ModelShape, values: Mapping[str, Any]) -> str:
    settings = resolve(Config.of(values), node, shape)
    problem = config_problem(node, shape, settings)
    if problem is not None:
        return f"refused: {problem.failure}"
    memory = estimate(shape, node.gpus[0], settings)
    problem = memory_problem(node, shape, settings, memory)
    if problem is not None:
        return f"refused: {problem.failure} ({memory.available_kv_bytes:,} B for KV)"
    begun = time.perf_counter()
    lone, loaded = (
        figures(Simulation(node, shape, settings, memory.kv_tokens).run(*_chat(clients)).records)
        for clients in (1, CHAT_CLIENTS_PER_GPU * settings.gpus)
    )
    took = time.perf_counter() - begun
    return (
        f"{memory.kv_tokens:10,}{lone.tpot_p50_s * 1e3:13.1f}{loaded.output_tok_s:13,.0f}"
        f"{loaded.tpot_p50_s * 1e3:9.1f}{took:9.2f}"
    )


def _chat(clients: int, count: int | None = None) -> tuple[LoadLevel, tuple[PlannedRequest, ...]]:
    """Prompts of 256-768 tokens, answers of 64-192, four for each client where no number is given."""
    rng, count = np.random.default_rng(1), 4 * clients if count is None else count
    requests = tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=int(rng.integers(256, 769)),
            output_tokens=int(rng.integers(64, 193)),
            content_seed=i,
        )
        for i in range(count)
    )
    level = LoadLevel(
        name="chat", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=count, seed=1, concurrency=clients
    )
    return level, requests


if __name__ == "__main__":
    sys.exit(main())
