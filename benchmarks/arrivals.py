"""Whether the load client sends as asked: `python -m benchmarks.arrivals [--rate 300] [--tokens 114] [--json]`.

An open loop of every arrival process against the server of known truth, each request answered with one chunk per 10 ms:
300 requests/s of 114 tokens are 30,000 chunks/s beside the schedule, start and end included. One row a process, from
the records as load.arrival_check reads them; server and client have a core each. What the machine takes from the
client's core before and after is told beside (driver_stalls.py), and not subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.load.arrival_check import arrival_check, arrivals_off
from autotune.load.arrivals import open_level, schedule
from autotune.load.client import DriveOptions, drive
from autotune.load.loops import new_loop
from autotune.load.workloads import Api
from autotune.records import ArrivalProcess, Arrivals, LevelRole, PlannedRequest
from benchmarks.driver_stalls import look_at
from benchmarks.truth import BenchmarkError, compile_server, pin, serving_truth

PROCESSES = (
    ArrivalProcess(kind=Arrivals.CONSTANT),
    ArrivalProcess(kind=Arrivals.POISSON),
    ArrivalProcess(kind=Arrivals.GAMMA, cv=2.0),
    ArrivalProcess(kind=Arrivals.RAMP, ramp_from=1.0, ramp_to=3.0),
)
LOOK_S = 0.5
PROMPT = " ".join(["word"] * 64)
SENT = ("arrivals", "chunks_s", "asked_rps", "sent_rps", "cv", "asked_cv", "late_p50_ms", "late_p99_ms")
COLUMNS = (*SENT, "core_lost_pct", "core_stall_p99_ms", "off")


def row(process: ArrivalProcess, program: Path, args: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """One process against a server of its own.

    Raises:
        BenchmarkError: requests failed.
    """
    count = round(args.rate * args.seconds)
    level = open_level("arrivals", LevelRole.EXTRA, process, rate_rps=args.rate, requests=count, seed=1)
    planned = [
        PlannedRequest(index=i, prompt_tokens=64, output_tokens=args.tokens, content_seed=i, scheduled_s=at_s)
        for i, at_s in enumerate(schedule(level) or ())
    ]
    options = DriveOptions(api=Api.COMPLETIONS, model="truth", render=lambda _request: PROMPT, workers=1)
    own = cores[1] if len(cores) > 1 else None
    before = look_at(own, LOOK_S)
    with serving_truth(program, cores[0] if len(cores) > 1 else None) as server:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            records, duration_s = runner.run(drive(server.url, level, planned, options=options))
        chunks = server.counts().chunks
    after = look_at(own, LOOK_S)
    check = arrival_check(level, records)
    failed = sum(record.error is not None for record in records)
    if check is None or failed:
        raise BenchmarkError(f"{failed} of {len(records)} requests failed")
    return {
        "arrivals": str(process.kind),
        "chunks_s": round(chunks / duration_s),
        "asked_rps": args.rate,
        "sent_rps": round(check.sent_rate_rps, 2),
        "cv": round(check.cv or 0.0, 3),
        "asked_cv": round(check.asked_cv or 0.0, 3),
        "late_p50_ms": round(check.lateness_p50_s * 1e3, 3),
        "late_p99_ms": round(check.lateness_p99_s * 1e3, 3),
        "core_lost_pct": round(max(before.lost_pct, after.lost_pct), 2),
        "core_stall_p99_ms": round(max(before.p99_ms, after.p99_ms), 3),
        "off": "; ".join(arrivals_off(check)),
    }


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=300.0, help="requests per second")
    parser.add_argument("--tokens", type=int, default=114, help="of each answer, one chunk each")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pin(os.getpid(), cores[1])
    try:
        with tempfile.TemporaryDirectory(prefix="arrivals-") as name:
            program = compile_server(Path(name))
            rows = [row(process, program, args, cores) for process in PROCESSES]
    except BenchmarkError as error:
        print(f"arrivals benchmark: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"schema": 1, "rows": rows}, indent=2))
        return 0
    for cells in (COLUMNS, *(tuple(str(one[name]) for name in COLUMNS) for one in rows)):
        print("  ".join(f"{cell:>{max(9, len(head))}}" for head, cell in zip(COLUMNS, cells, strict=True)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
