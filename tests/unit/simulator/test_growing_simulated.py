"""Open loops that grow, in virtual time: what is sent, what is not, and that nothing else changes by it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from autotune.load.arrivals import level_steps, open_level
from autotune.load.measure import summarise
from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import ArrivalProcess, ClockKind, Config, LevelRole, LoadLevel, PlannedRequest
from autotune.simulator.engine_model import SimulatedLevel, Simulation

CHAT = load_workload("chat")


def simulation() -> Simulation:
    node, shape = parse_node_name("1xH200-141GB"), load_shape("meta-llama/Llama-3.1-8B-Instruct")
    return Simulation(node, shape, resolve(Config.of({"max-model-len": 8192}), node, shape), 900_000)


def level(rate_rps: float, requests: int, most: int | None) -> LoadLevel:
    return open_level(
        "ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=rate_rps, requests=requests, seed=1, most_requests=most
    )


def run(load: LoadLevel, **options: float) -> SimulatedLevel:
    return simulation().run(load, plan_requests(CHAT, load, trial_salt=1), **options)


def test_a_level_whose_interval_is_wide_grows_without_a_gap() -> None:
    load = level(45.0, 100, 400)  # near capacity: a p95 of 100 requests is known to a third
    grown = run(load)
    assert level_steps(load) == (100,) + (50,) * 6
    assert 150 <= len(grown.records) <= 400
    assert len(grown.records) % 50 == 0
    assert {record.error for record in grown.records} == {None}
    sent = [record.sent_s for record in grown.records if record.sent_s is not None]
    assert max(b - a for a, b in pairwise(sent)) < 0.25  # Poisson at 45/s, no longer than a hiccup
    figures = summarise(load, grown.records, grown.duration_s, ClockKind.VIRTUAL)
    assert figures.planned == figures.completed == len(grown.records)
    assert figures.arrivals is not None
    assert figures.arrivals.sent_rate_rps == pytest.approx(45.0, rel=1e-6)
    assert not {caveat.code for caveat in figures.caveats} & {"aborted", "errors", "arrivals_off", "in_flight_cap"}


def test_a_level_that_knows_enough_ends_as_if_it_could_not_grow() -> None:
    plain = run(level(5.0, 300, None))
    grown = run(level(5.0, 300, 900))
    assert grown.records == plain.records
    assert grown.duration_s == plain.duration_s
    assert grown.server == plain.server


def test_an_overloaded_level_does_not_grow() -> None:
    grown = run(level(200.0, 300, 1200))
    assert len(grown.records) == 300


def test_it_is_deterministic() -> None:
    load = level(45.0, 100, 400)
    assert run(load) == run(load)


def test_the_deadline_ends_it_with_what_was_due() -> None:
    load = level(45.0, 100, 400)
    assert run(load).duration_s > 3.0
    cut = run(load, deadline_s=3.0)
    # 100 requests are due in 2.22 s, 50 more by 3.33 s, of which some are due after 3 s.
    assert 100 < len(cut.records) < 150
    assert "deadline" in {record.error for record in cut.records}
    assert max(record.scheduled_s for record in cut.records) <= 3.0


def test_requests_due_at_the_same_instant_belong_to_one_step() -> None:
    load = level(5.0, 300, 450)

    def due(index: int) -> float:
        return 59.8 if 299 <= index < 303 else index / 5

    requests: tuple[PlannedRequest, ...] = tuple(
        replace(request, scheduled_s=due(request.index)) for request in plan_requests(CHAT, load, trial_salt=1)
    )
    grown = simulation().run(load, requests)
    assert len(grown.records) == 303
    assert {record.error for record in grown.records} == {None}
