"""An open loop that grows: what it would send, when it has enough, and that looking several times costs little."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autotune.load.arrivals import level_steps, open_level, schedule
from autotune.load.growing import Growth, growth_of
from autotune.load.ramp import RampPoint, load_plan, most_ttft_requests, plan_levels
from autotune.load.requests import plan_requests
from autotune.load.stats import percentile_in_order
from autotune.load.workloads import load_workload
from autotune.records import ArrivalProcess, Arrivals, Estimate, LevelRole, LoadLevel, LoadPlan

CHAT = load_workload("chat")


def growing(kind: Arrivals = Arrivals.POISSON, requests: int = 100, most: int | None = 270) -> LoadLevel:
    process = ArrivalProcess(kind=kind, cv=2.0 if kind is Arrivals.GAMMA else None, ramp_from=1.0, ramp_to=3.0)
    return open_level("t", LevelRole.TTFT, process, rate_rps=10.0, requests=requests, seed=7, most_requests=most)


@pytest.mark.parametrize(
    ("requests", "most", "steps"),
    [
        (100, 270, (100, 50, 50, 50)),
        (100, 250, (100, 50, 50, 50)),
        (100, 249, (100, 50, 50)),
        (100, 149, (100,)),
        (100, None, (100,)),
        (100, 20, (100,)),
        (101, 203, (101, 51, 51)),
        (0, 10, (0,)),
    ],
)
def test_steps(requests: int, most: int | None, steps: tuple[int, ...]) -> None:
    level = growing(requests=requests, most=most)
    assert level_steps(level) == steps
    growth = growth_of(level)
    assert (growth.looks if growth else ()) == tuple(np.cumsum(steps).tolist()[:-1])


@pytest.mark.parametrize("kind", [Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.GAMMA])
def test_each_step_has_exactly_the_asked_rate(kind: Arrivals) -> None:
    level = growing(kind)
    due = schedule(level)
    assert due is not None
    assert due[:100] == schedule(replace(level, most_requests=None))  # the same level as if it did not grow
    assert list(due) == sorted(due)
    # 100 requests in the first 10 s at 10/s, then 50 in every 5 s; a request may lie on the edge by rounding.
    counts = np.histogram(np.array(due) + 1e-9, bins=[0, 10, 15, 20, 25])[0]
    assert counts.tolist() == [100, 50, 50, 50]


def test_steps_are_not_the_same_arrivals_again() -> None:
    due = np.array(schedule(growing()))
    assert not np.allclose(due[100:150] - 10, due[150:200] - 15)


def test_a_ramp_does_not_grow() -> None:
    level = growing(Arrivals.RAMP)
    assert level.most_requests is None
    assert growth_of(level) is None


def test_every_step_has_the_whole_mixture() -> None:
    level = growing(requests=300, most=600)
    requests = plan_requests(CHAT, level, trial_salt=3)
    alone = plan_requests(CHAT, replace(level, most_requests=None), trial_salt=3)
    assert requests[:300] == alone
    assert len(requests) == 600
    assert len({request.content_seed for request in requests}) == 600
    for step in (requests[:300], requests[300:450], requests[450:]):
        assert np.mean([request.prompt_tokens for request in step]) == pytest.approx(512, rel=0.005)
        assert np.mean([request.output_tokens for request in step]) == pytest.approx(128, rel=0.005)


@pytest.mark.parametrize("name", ["agent", "prefix"])
def test_conversations_and_prefixes_grow_too(name: str) -> None:
    workload = load_workload(name)
    requests = plan_requests(workload, growing(), trial_salt=3)
    assert len(requests) == 250
    assert [request.index for request in requests] == list(range(250))
    if name == "prefix":
        assert Counter(bool(request.shared) for request in requests[100:150]) == {True: 50}


def waits(ttfts_s: list[float], rate_rps: float = 10.0) -> list[tuple[float, float | None]]:
    return [(at / rate_rps, at / rate_rps + ttft) for at, ttft in enumerate(ttfts_s)]


class TestEnough:
    growth = Growth(looks=(300, 450))

    def test_narrow(self) -> None:
        assert self.growth.enough(waits([0.1] * 300))

    def test_wide(self) -> None:
        heavy = np.exp(np.random.default_rng(0).standard_normal(300)) * 0.1
        assert not self.growth.enough(waits(heavy.tolist()))

    def test_too_few_for_an_interval(self) -> None:
        assert not self.growth.enough(waits([0.1] * 99))

    @pytest.mark.parametrize(("waiting", "enough"), [(30, False), (31, True)])
    def test_a_server_far_behind_is_not_sent_more(self, waiting: int, enough: bool) -> None:
        heavy = (np.exp(np.random.default_rng(0).standard_normal(300)) * 0.1).tolist()
        seen: list[tuple[float, float | None]] = [*waits(heavy)[:-waiting], *((30.0, None) for _ in range(waiting))]
        assert self.growth.enough(seen) is enough

    @pytest.mark.parametrize(("slope", "enough"), [(1.0, False), (1.2, True)])
    def test_neither_is_one_whose_queue_grows(self, slope: float, enough: bool) -> None:
        heavy = np.exp(np.random.default_rng(0).standard_normal(300)) * 0.1
        seen = [(due, first + (slope - 1) * due) for due, first in waits(heavy.tolist()) if first is not None]
        assert self.growth.enough(seen) is enough


def test_looking_several_times_costs_little_coverage() -> None:
    """Log-normal TTFTs: the p95 is exp(0.4 x 1.645). One look has 94-96 % there; 250 levels are known to 1.4 %."""
    rng = np.random.default_rng(5)
    truth = math.exp(0.4 * 1.6448536)
    held = ended = 0
    for run in range(250):
        ttfts = np.exp(0.4 * rng.standard_normal(750))
        growth = Growth(looks=(300, 450, 600), seed=run)
        count = next((n for n in growth.looks if growth.enough(waits((ttfts[:n] * 0.01).tolist()))), 750)
        ended += count < 750
        interval = percentile_in_order(ttfts[:count], 95, seed=run)
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        held += interval.low <= truth <= interval.high
    assert ended > 100  # most levels did end at a look, or nothing was tested
    assert held / 250 > 0.90


class TestPlan:
    def test_the_level_may_grow_to_its_time(self) -> None:
        # 50 requests/s x 0.85 = 42.5/s: 20 s are planned, 40 s the most.
        plan = load_plan([RampPoint(concurrency=8, output_tok_s=Estimate(value=6400.0), request_rps=50.0)], CHAT, 1)
        assert (plan.ttft_requests_per_gpu, plan.ttft_most_requests_per_gpu) == (850, 1700)
        *_, ttft = plan_levels(plan, 2, seed=1)
        assert (ttft.requests, ttft.most_requests) == (1700, 3400)

    def test_a_plan_of_before_does_not_grow(self) -> None:
        plan = LoadPlan(
            concurrency_per_gpu=4,
            rate_rps_per_gpu=5.0,
            throughput_requests_per_gpu=60,
            ttft_requests_per_gpu=50,
            warmup_requests_per_gpu=4,
        )
        *_, ttft = plan_levels(plan, 2, seed=1)
        assert growth_of(ttft) is None

    def test_bounds(self) -> None:
        assert most_ttft_requests(CHAT, 300, 5.0) is None  # 60 s already
        assert most_ttft_requests(CHAT, 300, 20.0) == 800
        assert most_ttft_requests(CHAT, 300, 20.0, longest_s=25.0) == 500
        assert most_ttft_requests(CHAT, 300, 1000.0) == CHAT.requests.most
        never = replace(CHAT, requests=replace(CHAT.requests, ttft_most_s=0.0))
        assert most_ttft_requests(never, 300, 20.0) is None
        logged = replace(CHAT, texts=("a",) * 500)
        assert most_ttft_requests(logged, 300, 20.0) == 500  # no prompt comes twice

    def test_real_prompts_are_as_many_as_they_are_on_any_number_of_gpus(self) -> None:
        plan = LoadPlan(
            concurrency_per_gpu=4,
            rate_rps_per_gpu=5.0,
            throughput_requests_per_gpu=60,
            ttft_requests_per_gpu=100,
            warmup_requests_per_gpu=4,
            ttft_most_requests_per_gpu=200,
        )
        found = {gpus: plan_levels(plan, gpus, seed=1, prompts=500)[2].most_requests for gpus in (1, 2, 4, 8)}
        assert found == {1: 200, 2: 400, 4: 500, 8: None}  # eight GPUs are sent 800 at least
        assert plan_levels(plan, 4, seed=1)[2].most_requests == 800
