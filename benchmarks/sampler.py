"""What a proposal of the sampler `prior` costs: `python -m benchmarks.sampler [--json] [--trials 200] [--repeats 5]`.

The largest case that is meant to be quick: 20,000 configs and 200 trials, with the physical prior of a node of eight
GPUs. CPU seconds of the process, the least of some repeats: set OMP_NUM_THREADS=1 for those of one core. On a busy
machine they grow by half and more, as its caches are shared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.search.parameter import Parameter
from autotune.search.prior.candidates import Candidates
from autotune.search.prior.expectation import Observation
from autotune.search.prior.physical import PhysicalPrior
from autotune.search.prior.propose import propose_after
from autotune.search.space import SearchSpace
from autotune.simulator.closed_form import Offered

LIMIT_S = 1.0
"""What a proposal may take on one core, by the project's own goal."""

SPACE = SearchSpace(
    name="large",
    parameters=(
        Parameter(name="tensor-parallel-size", choices=(2, 4, 8)),
        Parameter(name="max-num-seqs", choices=(16, 32, 64, 128, 256, 512, 1024)),
        Parameter(name="max-num-batched-tokens", choices=(1024, 2048, 4096, 8192, 16384)),
        Parameter(name="gpu-memory-utilization", choices=(0.8, 0.86, 0.9, 0.92, 0.94)),
        Parameter(name="kv-cache-dtype", choices=("auto", "fp8"), lossy=True),
        Parameter(name="enable-prefix-caching", choices=(True, False)),
        Parameter(name="enforce-eager", choices=(False, True)),
        Parameter(name="stream-interval", choices=(1, 4)),
        Parameter(name="block-size", choices=(16, 32, 64)),
    ),
)


def main() -> None:
    """Print the parts of a proposal and their seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measured(args.trials, args.repeats)
    if args.json:
        print(json.dumps({"schema": "autotune.benchmarks.sampler", "version": 1, **found}))
        return
    print(f"{found['configs']:,} configs, {found['trials']} trials; CPU seconds, least of {args.repeats}")
    for name in ("list_s", "expect_first_s", "expect_s", "propose_s"):
        print(f"  {name:16}{found[name]:8.3f}")
    print(f"  goal for propose_s {LIMIT_S:g}: {'met' if found['propose_s'] <= LIMIT_S else 'missed'}")


def measured(trials: int, repeats: int) -> dict[str, float]:
    """CPU seconds: listing a space, the first and every later prediction of all of it, and one proposal."""
    prior = PhysicalPrior(
        node=parse_node_name("8xH100-80GB-NVLink"),
        shape=load_shape("meta-llama/Llama-3.1-70B-Instruct"),
        offered=Offered(prompt_tokens=512, output_tokens=128, concurrency=64, rate_rps=4.0),
    )
    begun = time.process_time()
    listed = Candidates.of(SPACE, None)
    list_s = time.process_time() - begun
    begun = time.process_time()
    expected = prior.expect(listed.configs)
    first_s = time.process_time() - begun
    rng = np.random.default_rng(0)
    seen = [
        Observation(
            config=listed.configs[place],
            feasible=bool(number % 5),
            logs=(expected.log_throughput[place] + rng.normal(0, 0.2), expected.log_ttft[place] + rng.normal(0, 0.4))
            if number % 5
            else None,
            short_of_memory=None if number % 5 else bool(number % 2),
        )
        for number, place in enumerate(rng.choice(len(listed.configs), trials, replace=False), start=1)
    ]

    def propose() -> object:
        return propose_after(seen, (), [one.config for one in seen], listed, prior, np.random.default_rng(0))

    return {
        "configs": len(listed.configs),
        "trials": trials,
        "list_s": list_s,
        "expect_first_s": first_s,
        "expect_s": _least(lambda: prior.expect(listed.configs), repeats),
        "propose_s": _least(propose, repeats),
    }


def _least(work: Callable[[], object], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


if __name__ == "__main__":
    main()
