"""Our load client and `vllm bench serve` at the same running server, in turns, under the same load.

`python -m benchmarks.agreement --url URL --model FOLDER --vllm-python PYTHON [--concurrency 64] [--rate 20] [--json]`

Prompts of 512 and outputs of 64 to 192 tokens on /v1/completions, greedy, `ignore_eos`, each prompt new: a closed loop,
and evenly spaced arrivals. `vllm bench serve` starts a closed loop all at once and has that burst in its figures; ours
starts staggered. So that both say the same, ours are written in its JSON and by its definitions, over the whole level:
in a short closed loop the stagger lowers ours by its share of the level, and the burst raises the peer's TTFT.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peer import CLIENT, ENVIRONMENT

FORMAT = 1
PROMPT, OUTPUT, SPREAD = 512, 128, 0.5
FIGURES = (
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p95_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "mean_e2el_ms",
)
DEADLINE_S = 300.0
WARM_SEED = 0


def theirs(args: argparse.Namespace, load: Sequence[str], seed: int, out: Path) -> dict[str, Any]:
    """One level of `vllm bench serve`."""
    words = {
        "--backend": "openai",
        "--endpoint": "/v1/completions",
        "--base-url": args.url,
        "--model": args.model,
        "--dataset-name": "random",
        "--random-input-len": PROMPT,
        "--random-output-len": OUTPUT,
        "--random-range-ratio": json.dumps({"input": 0.0, "output": SPREAD}),
        "--num-prompts": args.requests,
        "--seed": seed,
        "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--metric-percentiles": "50,90,95,99",
        "--result-dir": out.parent,
        "--result-filename": out.name,
    }
    pairs = [str(word) for pair in words.items() for word in pair]
    command = [args.vllm_python, "-c", CLIENT, *pairs, *load, "--ignore-eos", "--save-result", "--disable-tqdm"]
    return _run(command, out)


def ours(args: argparse.Namespace, load: Sequence[str], seed: int, out: Path) -> dict[str, Any]:
    """The same level by `autotune measure`, in the peer's JSON."""
    workload = out.with_suffix(".yaml")
    workload.write_text(
        f"api: completions\nprompt_tokens: {{fixed: {PROMPT}}}\n"
        f"output_tokens: {{min: {OUTPUT * (1 - SPREAD):.0f}, max: {OUTPUT * (1 + SPREAD):.0f}}}\n"
        "arrivals: {process: constant}\n",
        encoding="utf-8",
    )
    words = ["--url", args.url, "--workload", workload, "--tokenizer", args.model, "--requests", args.requests]
    command = [sys.executable, "-m", "autotune", "measure", *map(str, words), "--seed", str(seed), "--out", str(out)]
    _run([*command, *load], None)
    (written,) = out.glob("bench-*.json")
    found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return found


def _run(command: list[str], result: Path | None) -> dict[str, Any]:
    done = subprocess.run(
        command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode != 0 or (result is not None and not result.exists()):
        raise SystemExit(f"{' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = {} if result is None else json.loads(result.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Measure in turns, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the running server, before /v1")
    parser.add_argument("--model", required=True, help="folder with the tokenizer, also the served name")
    parser.add_argument("--vllm-python", required=True, help="an interpreter with vLLM, whose client is the peer")
    parser.add_argument("--concurrency", type=int, default=64, help="of the closed loop")
    parser.add_argument("--rate", type=float, default=20.0, help="of the even arrivals")
    parser.add_argument("--requests", type=int, default=400, help="of each level")
    parser.add_argument("--rounds", type=int, default=2, help="of both loads; who goes first changes each time")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    loads = {
        f"{args.concurrency} at once": (
            ["--concurrency", str(args.concurrency)],
            ["--max-concurrency", str(args.concurrency)],
        ),
        f"{args.rate:g} a second": (
            ["--rate", f"{args.rate:g}"],
            ["--request-rate", f"{args.rate:g}", "--burstiness", "inf"],
        ),
    }
    rows: list[dict[str, Any]] = []
    if not args.json:
        print(f"{'load':>14} {'figure':>20} {'ours':>12} {'vllm bench':>12} {'difference':>11}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # What a server does for the first time is slow, and would be in the figures of whoever comes first.
        ours(args, next(iter(loads.values()))[0], WARM_SEED, Path(folder) / "warm")
        for number in range(args.rounds):
            for name, (mine, peers) in loads.items():
                place = Path(folder) / f"{number}-{len(rows)}"
                # A seed is never used twice: the prompts of the level before would be in the prefix cache.
                seed = int.from_bytes(os.urandom(3), "big")
                turns: list[tuple[str, Callable[[], dict[str, Any]]]] = [
                    ("ours", partial(ours, args, mine, seed, place.with_suffix(".ours"))),
                    ("theirs", partial(theirs, args, peers, seed + 1, place.with_suffix(".json"))),
                ]
                found = {who: measure() for who, measure in (turns if number % 2 == 0 else reversed(turns))}
                figures = {f: {who: one[f] for who, one in found.items()} for f in FIGURES}
                rows.append({"load": name, "round": number, "figures": figures})
                if not args.json:
                    _print_row(name, figures)
    if args.json:
        print(json.dumps({"format": FORMAT, "rows": rows}, indent=2))
    return 0


def _print_row(load: str, figures: dict[str, dict[str, float]]) -> None:
    for name, pair in figures.items():
        share = pair["ours"] / pair["theirs"] - 1
        print(f"{load:>14} {name:>20} {pair['ours']:12,.2f} {pair['theirs']:12,.2f} {share:+11.1%}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
