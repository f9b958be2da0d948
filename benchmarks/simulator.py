"""Speed and fidelity of the simulator: `python benchmarks/simulator.py [RESULTS.jsonl] [--node N] [--model M]`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from autotune.simulator.recorded import read_recorded, simulate

DEFAULT_ROWS = Path(__file__).parent.parent / "tests" / "data" / "h200" / "results.jsonl"


def main() -> None:
    """Print one line per recorded load, then means over all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=DEFAULT_ROWS)
    parser.add_argument("--node", default="1xH200-141GB")
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--seeds", type=int, default=3, help="simulate with this many seeds and take the mean")
    args = parser.parse_args()
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


if __name__ == "__main__":
    main()
