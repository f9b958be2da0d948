"""What goes on beside a level while it runs: the server's gauges, its GPUs, and the CPU time of both ends.

Samples are taken twice a second. Everything slow (NVML, reading /proc) happens in threads, and of `/metrics` only the
gauges are parsed: what samples must not make the client late that it watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from autotune.engine.metrics_text import Metrics, parse_gauges
from autotune.engine.ports import listeners
from autotune.engine.processes import descendants, snapshot
from autotune.errors import UnsupportedHardware
from autotune.load.stats import percentile
from autotune.node.gpu_load import ClockLimit, GpuLoad
from autotune.node.probe import GpuProbe
from autotune.records import CpuUse, GpuUse, LevelUse

SAMPLE_S = 0.5
LAG_TICK_S = 0.02
"""How often the client's event loop is asked whether it wakes up in time."""

_ENGINE_TITLES = ("EngineCore", "Worker", "DPCoordinator")
"""In the titles that vLLM gives its processes (`VLLM::EngineCore`): none of them handles requests or chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """All GPUs of a trial at one moment.

    Attributes:
        at_s: on any monotonic clock; differences count.
        loads: in the order of the indices asked.
    """

    at_s: float
    loads: tuple[GpuLoad, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuReading:
    """CPU seconds that processes have used so far, by pid."""

    at_s: float
    client: Mapping[int, float] = field(default_factory=dict)
    api: Mapping[int, float] = field(default_factory=dict)
    server: Mapping[int, float] = field(default_factory=dict)


def gpu_use(indices: Sequence[int], samples: Sequence[GpuSample]) -> tuple[GpuUse, ...]:
    """The figures of each GPU; empty without samples. What no sample told is None."""
    if not samples:
        return ()
    return tuple(_one_gpu(index, place, samples) for place, index in enumerate(indices))


def _one_gpu(index: int, place: int, samples: Sequence[GpuSample]) -> GpuUse:
    loads = [sample.loads[place] for sample in samples]
    limits = [load.limits for load in loads if load.limits is not None]
    return GpuUse(
        index=index,
        samples=len(loads),
        busy_share=_mean([load.busy_share for load in loads]),
        memory_busy_share=_mean([load.memory_busy_share for load in loads]),
        power_mean_w=_mean([load.power_w for load in loads]),
        power_limit_w=next((load.power_limit_w for load in loads if load.power_limit_w is not None), None),
        sm_clock_mean_mhz=_mean([load.sm_clock_mhz for load in loads]),
        sm_clock_limit_mhz=next((load.sm_clock_limit_mhz for load in loads if load.sm_clock_limit_mhz), None),
        power_capped_share=_mean([float(ClockLimit.POWER_CAP in told) for told in limits]),
        slowed_share=_mean([float(bool(told - {ClockLimit.POWER_CAP})) for told in limits]),
        memory_used_max_bytes=max((load.memory_used_bytes for load in loads if load.memory_used_bytes), default=None),
        pcie_tx_bytes_per_s=_mean([load.pcie_tx_bytes_per_s for load in loads]),
        pcie_rx_bytes_per_s=_mean([load.pcie_rx_bytes_per_s for load in loads]),
        nvlink_tx_bytes_per_s=_rate([(one.at_s, one.loads[place].nvlink_tx_bytes) for one in samples]),
        nvlink_rx_bytes_per_s=_rate([(one.at_s, one.loads[place].nvlink_rx_bytes) for one in samples]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rate(counts: Sequence[tuple[float, int | None]]) -> float | None:
    """Growth of a counter per second between the first and the last time it was told; None where it went back."""
    known = [(at_s, count) for at_s, count in counts if count is not None]
    if len(known) < 2:
        return None
    (first_s, first), (last_s, last) = known[0], known[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s and last >= first else None


def cpu_use(
    before: CpuReading, after: CpuReading, lags_s: Sequence[float] = (), workers_s: Sequence[float] = ()
) -> CpuUse:
    """CPU time between two readings as shares of a core; a process that came meanwhile counts from its start.

    Args:
        workers_s: CPU seconds of each of the client's processes that have ended by the second reading.
    """
    elapsed_s = after.at_s - before.at_s
    lag_s = percentile(list(lags_s), 99)
    if elapsed_s <= 0:
        return CpuUse(loop_lag_p99_s=lag_s)

    def shares(early: Mapping[int, float], late: Mapping[int, float]) -> list[float]:
        return [max(0.0, used - early.get(pid, 0.0)) / elapsed_s for pid, used in late.items()]

    server = shares(before.server, after.server)
    return CpuUse(
        client_share=max((*shares(before.client, after.client), *(s / elapsed_s for s in workers_s)), default=None),
        loop_lag_p99_s=lag_s,
        api_server_share=max(shares(before.api, after.api), default=None),
        server_cores=sum(server) if server else None,
    )


def read_cpu(keeper_pid: int | None, port: int, *, now: Callable[[], float] = time.monotonic) -> CpuReading:
    """CPU seconds of the client (this process and workers of its own) and of the server below `keeper_pid`.

    Args:
        keeper_pid: None for a server whose processes are not to be seen from here (a container).
        port: what the server listens on; its API servers are those that listen and are no engine.
    """
    this = psutil.Process()
    client = {this.pid: this, **{child.pid: child for child in this.children() if not _is_keeper(child)}}
    below = [] if keeper_pid is None else [one.pid for one in descendants(keeper_pid, snapshot()) if not one.zombie]
    server = _processes(below)
    listening: frozenset[int] = frozenset()
    with suppress(psutil.Error):  # some systems tell the owners of sockets to root only
        listening = listeners(port) if server else listening
    api = {pid: process for pid, process in server.items() if pid in listening and not _is_engine(process)}
    return CpuReading(at_s=now(), client=_seconds(client), api=_seconds(api), server=_seconds(server))


def _processes(pids: Sequence[int]) -> dict[int, psutil.Process]:
    found = {}
    for pid in pids:
        with suppress(psutil.Error):
            found[pid] = psutil.Process(pid)
    return found


def _seconds(processes: Mapping[int, psutil.Process]) -> dict[int, float]:
    used = {}
    for pid, process in processes.items():
        with suppress(psutil.Error):
            times = process.cpu_times()
            used[pid] = float(times.user + times.system)
    return used


def _is_keeper(process: psutil.Process) -> bool:
    """Keepers, and the servers below them, are no part of the client."""
    return any(word.endswith("keeper.py") for word in _command(process))


def _is_engine(process: psutil.Process) -> bool:
    title = " ".join(_command(process)[:1])
    return any(f"::{name}" in title for name in _ENGINE_TITLES)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


class LevelSampler:
    """Watches one level. `begin` when its clock starts, `end` when it ended; `close` in any case."""

    def __init__(
        self,
        *,
        metrics: Callable[[], Awaitable[str | None]],
        cpu: Callable[[], CpuReading],
        probe: GpuProbe | None,
        indices: Sequence[int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics, self._cpu = metrics, cpu
        self._probe, self._indices = probe, tuple(indices)
        self._now = now
        self.gauges: list[Metrics] = []
        self._gpus: list[GpuSample] = []
        self._lags_s: list[float] = []
        self._before: CpuReading | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._workers_s: list[float] = []

    def worker_ended(self, cpu_s: float) -> None:
        """A process of the load client is gone that used so many CPU seconds in the level."""
        self._workers_s.append(cpu_s)

    async def begin(self) -> None:
        """Take the first readings and sample from here on."""
        self._before = await asyncio.to_thread(self._cpu)
        self._tasks = tuple(
            asyncio.create_task(watch) for watch in (self._watch_gauges(), self._watch_gpus(), self._watch_loop())
        )

    async def end(self, *, jit_compiles: int | None = None) -> LevelUse:
        """What was seen."""
        await self.close()
        cpu = None
        if self._before is not None:
            cpu = cpu_use(self._before, await asyncio.to_thread(self._cpu), self._lags_s, self._workers_s)
        return LevelUse(gpus=gpu_use(self._indices, self._gpus), cpu=cpu, jit_compiles=jit_compiles)

    async def close(self) -> None:
        """Sample no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    async def _watch_gauges(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            text = await self._metrics()
            if text is not None:
                self.gauges.append(parse_gauges(text))

    async def _watch_gpus(self) -> None:
        """Until the driver stops answering; a level is not lost for that."""
        probe = self._probe
        if probe is None or not self._indices:
            return
        with suppress(UnsupportedHardware):
            while True:
                await asyncio.sleep(SAMPLE_S)
                loads = await asyncio.to_thread(lambda: tuple(probe.load(index) for index in self._indices))
                self._gpus.append(GpuSample(at_s=self._now(), loads=loads))

    async def _watch_loop(self) -> None:
        while True:
            due_s = self._now() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self._lags_s.append(max(0.0, self._now() - due_s))
