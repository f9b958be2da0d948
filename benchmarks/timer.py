"""How late requests of an open loop are woken: `python -m benchmarks.timer [--json] [--rate 300] [--chunks 30000]`.

A process sends chunks of streams to the event loop, which stamps and drops each, while a schedule of `--rate`
requests/s runs beside it. One row a way of waiting and event loop; all in one run, as only ratios within one mean
anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from autotune.load.arrivals import poisson_schedule
from autotune.load.loops import new_loop
from autotune.load.timer import LEAD_S, Sleeper

STREAMS = 64
CHUNK = b"x" * 250
WAYS = ("asyncio.sleep", "early, then the loop", "descriptor", "descriptor with lead")


def send_chunks(ends: list[socket.socket], per_s: float) -> None:
    """A server's part: every stream gets its chunks evenly, streams shifted against each other."""
    gap_s = len(ends) / per_s
    start, count = time.perf_counter(), 0
    while True:
        for place, end in enumerate(ends):
            due = start + (count + place / len(ends)) * gap_s
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            try:
                end.send(CHUNK)
            except OSError:
                return
        count += 1


class Reader(asyncio.Protocol):
    """Stamps what arrives, as the driver does before it parses anything."""

    def __init__(self) -> None:
        self.chunks = 0
        self.last_s = 0.0

    def data_received(self, data: bytes) -> None:
        self.last_s = time.perf_counter()
        self.chunks += len(data) // len(CHUNK)


async def lateness(way: str, rate: float, seconds: float, ends: list[socket.socket]) -> tuple[list[float], int]:
    """Seconds that each wake-up of a Poisson schedule came after it was due, and the chunks read meanwhile."""
    loop = asyncio.get_running_loop()
    streams = [await loop.create_connection(Reader, sock=end) for end in ends]
    start = time.perf_counter() + 0.2

    def now() -> float:
        return time.perf_counter() - start

    async def plain(at_s: float) -> None:
        while (left_s := at_s - now()) > 0:  # noqa: ASYNC110 - what is measured
            await asyncio.sleep(left_s)

    late = []
    with Sleeper(now, descriptor=way.startswith("descriptor"), lead_s=LEAD_S if way.endswith("lead") else 0) as sleeper:
        until: Callable[[float], Awaitable[None]] = plain if way == "asyncio.sleep" else sleeper.until
        for at_s in poisson_schedule(rate, round(rate * seconds), 1):
            await until(at_s)
            late.append(now() - at_s)
    for transport, _ in streams:
        transport.abort()
    return late, sum(reader.chunks for _, reader in streams)


def row(way: str, loop: str, rate: float, chunks: float, seconds: float) -> dict[str, Any]:
    """One way of waiting, with its own sender."""
    pairs = [socket.socketpair() for _ in range(STREAMS)]
    sender = multiprocessing.get_context("fork").Process(
        target=send_chunks, args=([b for _, b in pairs], chunks), daemon=True
    )
    sender.start()
    for _, b in pairs:
        b.close()
    cpu = time.process_time()
    with asyncio.Runner(loop_factory=new_loop if loop == "uvloop" else asyncio.new_event_loop) as runner:
        late, read = runner.run(lateness(way, rate, seconds, [a for a, _ in pairs]))
    cpu = time.process_time() - cpu
    sender.terminate()
    sender.join()
    p50, p99 = np.percentile(late, (50, 99)) * 1000
    return {
        "way": way,
        "loop": loop,
        "requests": len(late),
        "early": sum(one < 0 for one in late),
        "late_p50_ms": round(float(p50), 3),
        "late_p99_ms": round(float(p99), 3),
        "chunks_s": round(read / (seconds + 0.2)),
        "cpu_share": round(cpu / (seconds + 0.2), 2),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--chunks", type=float, default=30_000.0, help="chunks/s beside it")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [row(way, loop, args.rate, args.chunks, args.seconds) for loop in ("asyncio", "uvloop") for way in WAYS]
    if args.json:
        print(json.dumps({"schema": 1, "rate_rps": args.rate, "chunks_per_s": args.chunks, "rows": rows}, indent=2))
        return
    print(f"{'way':22} {'loop':8} {'p50 ms':>7} {'p99 ms':>7} {'early':>6} {'chunks/s':>9} {'CPU':>5}")
    for one in rows:
        print(
            f"{one['way']:22} {one['loop']:8} {one['late_p50_ms']:7.3f} {one['late_p99_ms']:7.3f} "
            f"{one['early']:6} {one['chunks_s']:9,} {one['cpu_share']:5.2f}"
        )


if __name__ == "__main__":
    main()
