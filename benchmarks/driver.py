"""What the load client costs and how far its figures are off, beside `vllm bench serve`, in one run.

`python -m benchmarks.driver [--vllm-python PYTHON] [--streams 192,256,...] [--seconds N] [--workers N] [--json]`

A server of known truth (first token after 50 ms, then one chunk per 10 ms, 64 to 192 tokens) runs on one core, the
client on another. Chunks per second and CPU time are taken from outside, the same way for every client, between a
quarter and 85 % of the chunks: neither start nor end is in them. Errors are those of the figures that the client gives,
TTFT from the scheduled time; of the peer, which starts all streams at once, the first request of each is left out.
A load is honest where p95 TTFT is at most 10 % off; aiohttp and the peer end with their first that is not.

Before and after each load a process that only looks at the clock tells what the machine takes from the client's core
(driver_stalls.py): nothing of that is subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks import peer
from benchmarks.driver_stalls import look_at
from benchmarks.truth import (
    TTFT_S,
    BenchmarkError,
    Sample,
    Watch,
    compile_server,
    pin,
    put_first,
    sample,
    serving_truth,
)

FORMAT = 1
OURS = ("raw", "aiohttp")
PEER = "vllm bench serve"
COMPARED_STREAMS = 256
"""The load at which the CPU times are compared."""

HONEST_MS = 0.1 * TTFT_S * 1e3
FROM_SHARE, TO_SHARE = 0.25, 0.85
SAMPLE_S = 0.25
"""Seldom, and over an open connection: whoever looks takes a core from server or client."""

LOOK_S = 0.5
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client at one load.

    Attributes:
        server_late_p99_ms: how late the server itself was.
        core_lost_pct, core_stall_p99_ms: what the machine took from the client's core before and after, the worse of
            both: share of the time, and how long a chunk would have lain unread in 99 of 100 moments.
    """

    client: str
    streams: int
    chunks_s: float
    cpu_ms_per_1k: float
    ttft_p95_err_ms: float
    ttft_p99_err_ms: float
    itl_p99_err_ms: float
    mean_itl_err_pct: float
    server_late_p99_ms: float
    core_lost_pct: float
    core_stall_p99_ms: float

    @property
    def honest(self) -> bool:
        """Whether its p95 TTFT may be believed."""
        return self.ttft_p95_err_ms <= HONEST_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all rows share."""

    program: Path
    tokenizer: Path
    folder: Path
    seconds: float
    vllm_python: str | None
    cores: tuple[int, ...]
    workers: int

    @property
    def server_core(self) -> int | None:
        """Where the server runs; None for anywhere."""
        return self.cores[0] if self.cores else None

    @property
    def client_cores(self) -> tuple[int, ...]:
        """Where the client runs: one core for each of its workers."""
        return self.cores[1:]


def main() -> int:
    """Measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--vllm-python", help="an interpreter with vLLM, whose `vllm bench serve` is the peer")
    parser.add_argument("--streams", default="192,256,320,640,704,800", help="requests at once, load by load")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load, about")
    parser.add_argument("--workers", type=int, default=1, help="processes of our client, a core each")
    args = parser.parse_args()
    try:
        loads = [int(word) for word in args.streams.split(",")]
        if min(loads) < 1 or not 1 <= args.seconds <= 3600 or not 1 <= args.workers <= 64:
            raise ValueError
    except ValueError:
        parser.error("--streams takes numbers from 1 such as 64,256, --seconds 1 to 3600, --workers 1 to 64")
    try:
        rows = measure(loads, args.seconds, args.vllm_python, args.workers, tell=not args.json)
    except BenchmarkError as error:
        print(f"driver benchmark: {error}", file=sys.stderr)
        return 1
    found = verdict(rows)
    if args.json:
        print(json.dumps({"format": FORMAT, "rows": [asdict(row) for row in rows]} | found))
    else:
        print("  ".join(f"{name} {'-' if value is None else f'{value:,.2f}'}" for name, value in found.items()))
    return 0


def measure(loads: list[int], seconds: float, vllm_python: str | None, workers: int, *, tell: bool) -> list[Row]:
    """Every client at every load, one after the other; all but the quick one end with their first dishonest load."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="driver-") as name:
        folder = Path(name)
        bench = Bench(
            program=compile_server(folder),
            tokenizer=peer.make_tokenizer(folder / "tokenizer"),
            folder=folder,
            seconds=seconds,
            vllm_python=vllm_python,
            cores=own_cores(workers),
            workers=workers,
        )
        if tell:
            print("".join(f"{head:>{width(head)}}" for head in heads()))
        for client in (*OURS, *([PEER] if vllm_python else [])):
            for streams in loads:
                row = one_row(bench, client, streams)
                rows.append(row)
                if tell:
                    print("".join(cell(getattr(row, head), width(head)) for head in heads()), flush=True)
                if client != OURS[0] and not row.honest and streams >= COMPARED_STREAMS:
                    break  # heavier ones would take minutes and be no more honest
    return rows


def verdict(rows: list[Row]) -> dict[str, float | None]:
    """The most chunks per second at which each client is honest, and the CPU time of ours over the peer's.

    The ratio is taken at 256 streams, else at the most that both were measured at.
    """
    ours = {row.streams: row for row in rows if row.client == OURS[0]}
    theirs = {row.streams: row for row in rows if row.client == PEER}
    both = COMPARED_STREAMS in ours and COMPARED_STREAMS in theirs
    common = COMPARED_STREAMS if both else max(ours.keys() & theirs.keys(), default=None)
    return {
        "ours_honest_chunks_s": max((row.chunks_s for row in ours.values() if row.honest), default=None),
        "peer_honest_chunks_s": max((row.chunks_s for row in theirs.values() if row.honest), default=None),
        "cpu_ratio": None if common is None else ours[common].cpu_ms_per_1k / theirs[common].cpu_ms_per_1k,
    }


def one_row(bench: Bench, client: str, streams: int) -> Row:
    """One client at one load, against a server of its own."""
    client_core = bench.client_cores[0] if bench.client_cores else None
    before = look_at(client_core, LOOK_S)
    result = bench.folder / "result.json"
    result.unlink(missing_ok=True)
    with serving_truth(bench.program, bench.server_core) as server, tempfile.TemporaryFile() as out:
        if client == PEER:
            command = peer.command(bench.vllm_python or "", server.url, streams, bench.seconds, bench.tokenizer, result)
        else:
            load = [server.url, client, str(streams), str(bench.seconds), str(bench.workers)]
            command = [sys.executable, "-m", "benchmarks.load_once", *load]
        try:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | peer.ENVIRONMENT
            )
        except OSError as error:
            raise BenchmarkError(f"{command[0]}: {error.strerror}") from error
        samples: list[Sample] = []
        with process, Watch(server) as watch:
            # The peer is one process, and gets the core that one of ours gets.
            pin(process.pid, *(bench.client_cores if client != PEER else (client_core,)))
            put_first(process.pid)
            while process.poll() is None:
                samples.append(sample(watch, process.pid))
                time.sleep(SAMPLE_S)
        out.seek(0)
        said = out.read().decode("utf-8", "replace").strip()
        if process.returncode:
            raise BenchmarkError(f"{client} at {streams} streams ended with {process.returncode}:\n{said[-2000:]}")
        off = peer.peer_errors(result, streams) if client == PEER else json.loads(said.splitlines()[-1])
        counts = server.counts()
    after = look_at(client_core, LOOK_S)
    first, last = middle(samples, counts.chunks)
    chunks = last.chunks - first.chunks
    return Row(
        client=client,
        streams=streams,
        chunks_s=chunks / (last.at_s - first.at_s),
        cpu_ms_per_1k=(last.cpu_s - first.cpu_s) * 1e6 / chunks,
        server_late_p99_ms=counts.late_p99_s * 1e3,
        core_lost_pct=max(before.lost_pct, after.lost_pct),
        core_stall_p99_ms=max(before.p99_ms, after.p99_ms),
        **off,
    )


def middle(samples: list[Sample], chunks: int) -> tuple[Sample, Sample]:
    """The first and last sample of the part that counts.

    Raises:
        BenchmarkError: the load was too short for two.
    """
    inside = [one for one in samples if FROM_SHARE * chunks <= one.chunks <= TO_SHARE * chunks]
    if len(inside) < 2 or inside[0].chunks == inside[-1].chunks:
        raise BenchmarkError("the load was too short to be watched; give it more --seconds")
    return inside[0], inside[-1]


def own_cores(workers: int) -> tuple[int, ...]:
    """Cores for the server and for each worker of the client; none, with a warning, where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("only one core: server and client share it, and the figures say little", file=sys.stderr)
        return ()
    if len(cores) < 1 + workers:
        print(f"{len(cores)} cores: {workers} workers share {len(cores) - 1} of them", file=sys.stderr)
    return tuple(cores[: 1 + workers])


def heads() -> list[str]:
    """Columns of the table."""
    return [field.name for field in fields(Row)]


def width(head: str) -> int:
    """Of a column."""
    return max(len(head), len(PEER)) + 2 if head == "client" else max(len(head), len("100,000.00")) + 2


def cell(value: object, wide: int) -> str:
    """One value of the table."""
    return f"{value:>{wide},.2f}" if isinstance(value, float) else f"{value:>{wide}}"


if __name__ == "__main__":
    sys.exit(main())
