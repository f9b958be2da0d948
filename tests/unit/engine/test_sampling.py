"""Figures of GPUs and CPUs from samples, and a sampler that leaves no task behind."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from pathlib import Path

import pytest

from autotune.engine import sampling
from autotune.engine.metrics_text import delta, parse_gauges, parse_metrics
from autotune.engine.sampling import CpuReading, GpuSample, LevelSampler, cpu_use, gpu_use, read_cpu
from autotune.errors import UnsupportedHardware
from autotune.node.gpu_load import ClockLimit, GpuLoad
from autotune.node.probe import FakeGpuProbe
from autotune.records import CpuUse, GpuUse, LevelUse

METRICS = Path(__file__).parents[2] / "data" / "metrics"


def page(name: str) -> str:
    return gzip.decompress((METRICS / f"{name}.txt.gz").read_bytes()).decode()


def test_figures_of_a_gpu_are_means_of_what_was_told() -> None:
    samples = [
        GpuSample(at_s=10.0, loads=(GpuLoad(), GpuLoad(busy_share=0.9, power_w=600.0, nvlink_tx_bytes=1000))),
        GpuSample(
            at_s=10.5,
            loads=(
                GpuLoad(),
                GpuLoad(
                    busy_share=1.0, limits=frozenset({ClockLimit.POWER_CAP}), memory_used_bytes=7, sm_clock_mhz=1980
                ),
            ),
        ),
        GpuSample(
            at_s=12.0,
            loads=(
                GpuLoad(),
                GpuLoad(
                    busy_share=0.8,
                    power_w=700.0,
                    power_limit_w=700.0,
                    sm_clock_mhz=1780,
                    sm_clock_limit_mhz=1980,
                    limits=frozenset({ClockLimit.HEAT, ClockLimit.POWER_CAP}),
                    memory_used_bytes=5,
                    pcie_rx_bytes_per_s=3.0,
                    nvlink_tx_bytes=5000,
                    nvlink_rx_bytes=1,
                ),
            ),
        ),
    ]
    silent, told = gpu_use((4, 6), samples)
    assert silent == GpuUse(index=4, samples=3)
    assert told.busy_share == pytest.approx(0.9)
    assert (told.power_mean_w, told.power_limit_w) == (650.0, 700.0)
    assert (told.sm_clock_mean_mhz, told.sm_clock_limit_mhz) == (1880.0, 1980)
    assert (told.power_capped_share, told.slowed_share) == (1.0, 0.5)
    assert (told.memory_used_max_bytes, told.pcie_rx_bytes_per_s, told.pcie_tx_bytes_per_s) == (7, 3.0, None)
    assert told.nvlink_tx_bytes_per_s == pytest.approx(2000.0)  # 4,000 bytes in 2 s
    assert told.nvlink_rx_bytes_per_s is None  # one reading has no rate
    assert gpu_use((4, 6), []) == ()


def test_a_counter_that_went_back_is_no_traffic() -> None:
    samples = [GpuSample(at_s=at, loads=(GpuLoad(nvlink_rx_bytes=count),)) for at, count in ((0.0, 9), (1.0, 2))]
    assert gpu_use((0,), samples)[0].nvlink_rx_bytes_per_s is None


def test_cpu_time_is_a_share_of_a_core_of_the_busiest_and_the_sum_of_the_server() -> None:
    before = CpuReading(at_s=100.0, client={1: 5.0}, api={10: 1.0, 11: 1.0}, server={10: 1.0, 11: 1.0, 12: 50.0})
    after = CpuReading(
        at_s=110.0,
        client={1: 7.0, 2: 4.0},  # a worker that came meanwhile
        api={10: 4.0, 11: 10.0},
        server={10: 4.0, 11: 10.0, 12: 60.0, 13: 1.0},
    )
    used = cpu_use(before, after, [0.001] * 98 + [0.5, 0.5])
    assert used.client_share == pytest.approx(0.4)
    assert used.api_server_share == pytest.approx(0.9)
    assert used.server_cores == pytest.approx((3 + 9 + 10 + 1) / 10)
    assert used.loop_lag_p99_s == pytest.approx(0.5)
    unseen = cpu_use(CpuReading(at_s=0.0, client={1: 0.0}), CpuReading(at_s=2.0, client={1: 1.0}))
    assert unseen == CpuUse(client_share=0.5)
    assert cpu_use(before, before) == CpuUse()


def test_this_process_is_the_client_and_no_server_is_below_nothing() -> None:
    before = read_cpu(None, 1)
    spun = time.process_time() + 0.05
    while time.process_time() < spun:
        pass
    after = read_cpu(None, 1)
    assert after.client[os.getpid()] - before.client[os.getpid()] >= 0.03
    assert (after.api, after.server) == ({}, {})


@pytest.mark.parametrize("name", ["h200-0.25-before", "h200-0.25-after", "cpu-0.32-before", "cpu-0.32-after"])
def test_the_gauges_of_a_page_are_those_of_the_whole_page(name: str) -> None:
    whole, gauges = parse_metrics(page(name)), parse_gauges(page(name))
    assert (whole.running, whole.waiting, whole.kv_usage) == (gauges.running, gauges.waiting, gauges.kv_usage)
    assert gauges.running is not None
    assert gauges.counter("generation_tokens") is None


def test_the_parts_of_a_stay_and_the_means_of_gauges() -> None:
    found = delta(
        parse_metrics(page("h200-0.25-before")),
        parse_metrics(page("h200-0.25-after")),
        [parse_gauges(f"vllm:num_requests_running {n}\nvllm:kv_cache_usage_perc 0.{n}\n") for n in (2, 4)],
    )
    assert found is not None
    assert (found.running_mean, found.waiting_mean) == (3.0, None)
    assert found.kv_usage_mean == pytest.approx(0.3)
    grown = {}
    for part in ("prefill", "decode"):
        totals = []
        for name in ("before", "after"):
            lines = [one for one in page(f"h200-0.25-{name}").splitlines() if f"request_{part}_time_seconds_" in one]
            told = {ending: float(one.split()[-1]) for one in lines for ending in ("_sum{", "_count{") if ending in one}
            totals.append((told.get("_sum{", 0.0), told.get("_count{", 0.0)))
        (sum_a, count_a), (sum_b, count_b) = totals
        grown[part] = (sum_b - sum_a) / (count_b - count_a)
    assert found.prefill_time_mean_s == pytest.approx(grown["prefill"])
    assert found.decode_time_mean_s == pytest.approx(grown["decode"])


class Gone(FakeGpuProbe):
    def load(self, index: int) -> GpuLoad:
        if index == 1:
            raise UnsupportedHardware("the NVIDIA driver does not answer: GPU is lost")
        return super().load(index)


async def test_a_sampler_survives_a_lost_gpu_and_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_S", 0.01)

    async def silent() -> str | None:
        return None

    readings = iter([CpuReading(at_s=0.0, client={1: 0.0}), CpuReading(at_s=1.0, client={1: 0.5})])
    sampler = LevelSampler(metrics=silent, cpu=lambda: next(readings), probe=Gone(), indices=(0, 1))
    await sampler.begin()
    await asyncio.sleep(0.1)
    use = await sampler.end(jit_compiles=2)
    assert (use.gpus, use.jit_compiles, sampler.gauges) == ((), 2, [])
    assert use.cpu is not None
    assert use.cpu.client_share == 0.5
    assert use.cpu.loop_lag_p99_s is not None
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def test_the_busiest_process_of_the_client_counts_also_one_that_has_ended() -> None:
    before = CpuReading(at_s=10.0, client={1: 2.0})
    after = CpuReading(at_s=20.0, client={1: 3.0})
    assert cpu_use(before, after).client_share == pytest.approx(0.1)
    assert cpu_use(before, after, workers_s=(4.0, 7.0)).client_share == pytest.approx(0.7)


async def test_a_sampler_counts_workers_that_ended_before_it_did() -> None:
    async def silent() -> str | None:
        return None

    readings = iter([CpuReading(at_s=0.0, client={1: 0.0}), CpuReading(at_s=2.0, client={1: 0.5})])
    sampler = LevelSampler(metrics=silent, cpu=lambda: next(readings), probe=None, indices=())
    await sampler.begin()
    sampler.worker_ended(1.8)
    use = await sampler.end()
    assert use.cpu is not None
    assert use.cpu.client_share == pytest.approx(0.9)


async def test_a_sampler_that_never_began_has_seen_nothing() -> None:
    async def silent() -> str | None:
        return None

    sampler = LevelSampler(metrics=silent, cpu=lambda: CpuReading(at_s=0.0), probe=None, indices=())
    await sampler.close()
    assert await sampler.end() == LevelUse()
