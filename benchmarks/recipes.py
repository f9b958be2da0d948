"""Every shipped recipe on the node it was written for, a few trials each: `python -m benchmarks.recipes`.

Simulated. For each recipe the table shows the space, the baseline, the config that operators start from (trial 1), and
the pick after a few trials; the exit status is 1 when a recipe does not run or nothing of it is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.recipe import read_study_file, shipped_studies

SMALL_LOAD = "concurrency=24,rate=0.5,requests=100"
"""Fixed levels, so that no ramp is needed: enough for figures, quick to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recipe's run; None for what it did not come to."""

    recipe: str
    node: str
    configs: int | None
    baseline: str
    first: str
    pick: str
    seconds: float
    problem: str | None = None


def simulated_recipes() -> tuple[str, ...]:
    """Names of the shipped study files that have a node of their own."""
    found = sorted(shipped_studies().glob("*.yaml"))
    return tuple(path.stem for path in found if "default_node" in read_study_file(path))


def run_recipe(name: str, trials: int, folder: Path, load: str | None = SMALL_LOAD) -> Row:
    """One recipe as a user would run it, on its simulated node."""
    node = str(read_study_file(shipped_studies() / f"{name}.yaml")["default_node"])
    words = ["study", "--file", name, "--node", node, "--trials", str(trials), "--repeats", "0", "--json"]
    words += ["--studies-dir", str(folder), *(["--load", load] if load else [])]
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], capture_output=True, text=True, timeout=600, check=False
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        problem = f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ''}"
        return Row(
            recipe=name, node=node, configs=None, baseline="-", first="-", pick="-", seconds=seconds, problem=problem
        )
    document = json.loads(done.stdout)
    return Row(
        recipe=name,
        node=node,
        configs=_configs(done.stderr),
        baseline=_said(document["trials"][0]),
        first=_said(document["trials"][1]) if len(document["trials"]) > 1 else "-",
        pick=f"trial {document['pick']['number']}" if document["pick"] else "-",
        seconds=seconds,
        problem=_problem(document, trials),
    )


def _configs(plan: str) -> int | None:
    line = next((line for line in plan.splitlines() if "may start here" in line), "")
    number = line.rpartition(", ")[2].split()[0] if line else ""
    return int(number) if number.isdigit() else None


def _said(trial: dict[str, Any]) -> str:
    if trial["outcome"] != "measured":
        return f"{trial['outcome']}: {trial['reason']}"
    return f"{trial['output_tok_s_per_gpu']:,.0f} tok/s/GPU, {trial['ttft_p95_s'] * 1000:,.0f} ms"


def _problem(document: dict[str, Any], trials: int) -> str | None:
    if not document["simulated"]:
        return "not marked simulated"
    if len(document["trials"]) != trials:
        return f"{len(document['trials'])} of {trials} trials"
    if len(document["trials"]) > 1 and document["trials"][1]["origin"] != "enqueued":
        return "the recipe's config was not tried after the baseline"
    return None if document["pick"] else "no pick"


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ("recipe", "node", "configs", "baseline", "recipe's config", "pick", "s")
    lines = [head] + [
        (
            row.recipe,
            row.node,
            f"{row.configs:,}" if row.configs is not None else "-",
            row.baseline,
            row.first,
            row.problem or row.pick,
            f"{row.seconds:.0f}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> int:
    """Run and print; 0 when every recipe came to a pick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--full-load", action="store_true", help="find the load by a ramp, as a study does by itself")
    parser.add_argument("recipes", nargs="*", help="all of them by default")
    asked = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.recipes or simulated_recipes():
            rows.append(run_recipe(name, asked.trials, Path(folder), None if asked.full_load else SMALL_LOAD))
            print(f"{name}: {rows[-1].problem or rows[-1].pick}", file=sys.stderr)
    print("SIMULATED: every figure comes from a model of vLLM.")
    print(table(rows))
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
