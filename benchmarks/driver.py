"""What the load client costs and how far its figures are off, beside `vllm bench serve`, in one run.

`python -m benchmarks.driver [--vllm-python PYTHON] [--streams 64,256,512,640,768] [--seconds N] [--json]`

A server of known truth (first token after 50 ms, then one chunk per 10 ms, 64 to 192 tokens) runs on one core, the
client on another. Chunks per second and CPU time are taken from outside, the same way for every client, between a
quarter and 85 % of the chunks: neither start nor end is in them. Errors are those of the figures that the client gives,
TTFT from the scheduled time; of the peer, which starts all streams at once, the first request of each is left out.
A load is honest where p95 TTFT is at most 10 % off.
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
from benchmarks.truth import TTFT_S, BenchmarkError, Sample, compile_server, pin, sample, serving_truth

FORMAT = 1
OURS = ("raw", "aiohttp")
PEER = "vllm bench serve"
COMPARED_STREAMS = 256
"""The load at which the CPU times are compared."""

HONEST_MS = 0.1 * TTFT_S * 1e3
FROM_SHARE, TO_SHARE = 0.25, 0.85
SAMPLE_S = 0.1
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One client at one load. `server_late_p99_ms` is the server's own share of the errors."""

    client: str
    streams: int
    chunks_s: float
    cpu_ms_per_1k: float
    ttft_p95_err_ms: float
    ttft_p99_err_ms: float
    itl_p99_err_ms: float
    mean_itl_err_pct: float
    server_late_p99_ms: float

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
    cores: tuple[int, int] | None


def main() -> int:
    """Measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--vllm-python", help="an interpreter with vLLM, whose `vllm bench serve` is the peer")
    parser.add_argument("--streams", default="64,256,512,640,768", help="requests at once, load by load")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load, about")
    args = parser.parse_args()
    try:
        loads = [int(word) for word in args.streams.split(",")]
        if min(loads) < 1 or not 1 <= args.seconds <= 3600:
            raise ValueError
    except ValueError:
        parser.error("--streams takes numbers from 1 such as 64,256 and --seconds 1 to 3600")
    try:
        rows = measure(loads, args.seconds, args.vllm_python, tell=not args.json)
    except BenchmarkError as error:
        print(f"driver benchmark: {error}", file=sys.stderr)
        return 1
    found = verdict(rows)
    if args.json:
        print(json.dumps({"format": FORMAT, "rows": [asdict(row) for row in rows]} | found))
    else:
        print("  ".join(f"{name} {'-' if value is None else f'{value:,.2f}'}" for name, value in found.items()))
    return 0


def measure(loads: list[int], seconds: float, vllm_python: str | None, *, tell: bool) -> list[Row]:
    """Every client at every load, one after the other; the peer's end with its first dishonest load."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="driver-") as name:
        folder = Path(name)
        bench = Bench(
            program=compile_server(folder),
            tokenizer=peer.make_tokenizer(folder / "tokenizer"),
            folder=folder,
            seconds=seconds,
            vllm_python=vllm_python,
            cores=two_cores(),
        )
        if tell:
            print("".join(f"{head:>{width(head)}}" for head in heads()))
        for client in (*OURS, *([PEER] if vllm_python else [])):
            for streams in loads:
                row = one_row(bench, client, streams)
                rows.append(row)
                if tell:
                    print("".join(cell(getattr(row, head), width(head)) for head in heads()), flush=True)
                if client == PEER and not row.honest and streams >= COMPARED_STREAMS:
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
    server_core, client_core = bench.cores or (None, None)
    result = bench.folder / "result.json"
    result.unlink(missing_ok=True)
    with serving_truth(bench.program, server_core) as server, tempfile.TemporaryFile() as out:
        if client == PEER:
            command = peer.command(bench.vllm_python or "", server.url, streams, bench.seconds, bench.tokenizer, result)
        else:
            load = [server.url, client, str(streams), str(bench.seconds)]
            command = [sys.executable, "-m", "benchmarks.load_once", *load]
        try:
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=os.environ | peer.ENVIRONMENT
            )
        except OSError as error:
            raise BenchmarkError(f"{command[0]}: {error.strerror}") from error
        samples: list[Sample] = []
        with process:
            pin(process.pid, client_core)
            while process.poll() is None:
                samples.append(sample(server, process.pid))
                time.sleep(SAMPLE_S)
        out.seek(0)
        said = out.read().decode("utf-8", "replace").strip()
        if process.returncode:
            raise BenchmarkError(f"{client} at {streams} streams ended with {process.returncode}:\n{said[-2000:]}")
        off = peer.peer_errors(result, streams) if client == PEER else json.loads(said.splitlines()[-1])
        counts = server.counts()
    first, last = middle(samples, counts.chunks)
    chunks = last.chunks - first.chunks
    return Row(
        client=client,
        streams=streams,
        chunks_s=chunks / (last.at_s - first.at_s),
        cpu_ms_per_1k=(last.cpu_s - first.cpu_s) * 1e6 / chunks,
        server_late_p99_ms=counts.late_p99_s * 1e3,
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


def two_cores() -> tuple[int, int] | None:
    """Cores for server and client; None, with a warning, where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("only one core: server and client share it, and the figures say little", file=sys.stderr)
        return None
    return cores[0], cores[1]


def heads() -> list[str]:
    """Columns of the table."""
    return [field.name for field in fields(Row)]


def width(head: str) -> int:
    """Of a column."""
    return max(len(head), len(PEER)) + 2 if head == "client" else len(head) + 2


def cell(value: object, wide: int) -> str:
    """One value of the table."""
    return f"{value:>{wide},.2f}" if isinstance(value, float) else f"{value:>{wide}}"


if __name__ == "__main__":
    sys.exit(main())
