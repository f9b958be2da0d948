"""Launches that random search needs on the simulated nodes: `python -m benchmarks.chance [--share 0.95] [--seeds 21]`.

`autotune bench search` ends a study after 150 launches, when random search has mostly not got there; then a ratio of
medians is only a bound. This goes on to the end of each space.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from autotune.bench.chance import launches_by_chance
from autotune.bench.situations import NODES, situation_of
from autotune.bench.truth import simulated_surface


def main() -> None:
    """Print the median of each node, and of all studies together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.95)
    parser.add_argument("--seeds", type=int, default=21)
    parser.add_argument("--cache-dir", type=Path, default=None)
    args = parser.parse_args()
    pooled: list[int] = []
    for spec in NODES:
        surface = simulated_surface(spec, situation_of(spec), args.cache_dir)
        found = [launches_by_chance(surface, args.share, seed) for seed in range(args.seeds)]
        pooled += found
        print(f"{spec.name:22}{len(surface.configs):7,} configs, median {statistics.median(found):7,.0f}", flush=True)
    print(f"pooled over {len(pooled)} studies: median {statistics.median(pooled):,.0f} launches")


if __name__ == "__main__":
    main()
