"""What event streams cost the service: its CPU seconds per second while a study runs and so many read along.

`python -m benchmarks.serve_readers [--readers 50] [--seconds 30] [--limit 0.02] [--json]`

The service is a process of its own with a simulated study as its job, which ends a trial every second or two where a
real one takes minutes: there is more to tell than there ever will be. The readers are in this process and are not
counted. Measured are the service's own CPU seconds (user and system), with the readers and, before that, with none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

STUDY = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "workload": "tiny",
    "engine": "simulated",
    "sampler": "random",
    "node": "4xA100-80GB-NVLink",
    "name": "watched",
    "trials": 2000,
}
WARM_S = 8.0
"""Until the study's process has imported what it needs and its first trials are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One window.

    Attributes:
        core: CPU seconds of the service per second.
        events: that each reader was sent in the window, at the least.
    """

    readers: int
    seconds: float
    core: float
    events: int


async def measure(readers: int, seconds: float, folder: Path) -> tuple[Seen, Seen]:
    """Without readers, and with them."""
    environment = {**os.environ, "AUTOTUNE_LEASE_DIR": str(folder / "leases")}
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "autotune", "serve", "--port", "0", "--studies-dir", str(folder / "studies")),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert service.stdout is not None  # it is a pipe
        url = (await service.stdout.readline()).decode().split()[-1]
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:
            async with session.post("/api/v1/studies", json=STUDY) as answer:
                answer.raise_for_status()
            await asyncio.sleep(WARM_S)
            process = psutil.Process(service.pid)
            alone = await _window(process, [], seconds)
            counts = [0] * readers
            tasks = [asyncio.create_task(_read(session, counts, place)) for place in range(readers)]
            await asyncio.sleep(3.0)
            found = await _window(process, counts, seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        service.send_signal(signal.SIGTERM)
        await service.wait()
    return alone, found


async def _window(process: psutil.Process, counts: list[int], seconds: float) -> Seen:
    before, began, told = process.cpu_times(), time.perf_counter(), list(counts)
    await asyncio.sleep(seconds)
    after, took = process.cpu_times(), time.perf_counter() - began
    used = after.user + after.system - before.user - before.system
    events = min((now - then for now, then in zip(counts, told, strict=True)), default=0)
    return Seen(readers=len(counts), seconds=took, core=max(0.0, used / took), events=events)


async def _read(session: aiohttp.ClientSession, counts: list[int], place: int) -> None:
    async with session.get("/api/v1/events") as answer:
        async for line in answer.content:
            counts[place] += line.startswith(b"event:")


def main() -> int:
    """Measure, print, and say by the exit status whether it is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--limit", type=float, default=0.02, help="of a core, for all readers together")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autotune-readers-") as folder:
        alone, found = asyncio.run(measure(asked.readers, asked.seconds, Path(folder)))
    document: dict[str, Any] = {
        "without": asdict(alone),
        "with": asdict(found),
        "limit": asked.limit,
        "within": found.core <= asked.limit,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    if asked.json:
        print(json.dumps(document, indent=2))
    else:
        print(f"{'readers':>8}  {'core':>8}  {'events to each':>14}  seconds")
        for one in (alone, found):
            print(f"{one.readers:>8}  {one.core:>8.4f}  {one.events:>14}  {one.seconds:.1f}")
        kept = "kept" if document["within"] else "NOT kept"
        print(f"limit {asked.limit}: {kept} ({document['cores']} cores, load average {document['load']:.1f})")
    return 0 if document["within"] and found.events > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
