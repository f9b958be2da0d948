"""Turns of conversations, chunks, API servers, ranks in lock-step: what a level does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from model_shapes import deepseek_v3, mixtral

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import (
    Arrivals,
    Config,
    LevelRole,
    LoadLevel,
    ModelShape,
    PlannedRequest,
    RequestRecord,
    SharedSpan,
    Value,
)
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import SimulatedLevel, Simulation

SILENT = Coefficients(step_noise=0.0, run_noise=0.0)
SMALL = load_shape("meta-llama/Llama-3.1-8B-Instruct")


def simulation(
    params: Mapping[str, Value] | None = None,
    *,
    node: str = "1xH200-141GB",
    shape: ModelShape = SMALL,
    c: Coefficients = SILENT,
) -> Simulation:
    named = parse_node_name(node)
    values = {"max-model-len": 8192, **{name.replace("_", "-"): value for name, value in (params or {}).items()}}
    return Simulation(named, shape, resolve(Config.of(values), named, shape), 900_000, c)


def request(index: int, prompt: int = 100, output: int = 20, **more: object) -> PlannedRequest:
    return PlannedRequest(
        index=index,
        prompt_tokens=prompt,
        output_tokens=output,
        content_seed=index,
        **more,
    )


def closed(count: int, concurrency: int) -> LoadLevel:
    return LoadLevel(
        name="c",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=count,
        seed=1,
        concurrency=concurrency,
    )


def open_loop(count: int) -> LoadLevel:
    return LoadLevel(name="o", role=LevelRole.TTFT, arrivals=Arrivals.POISSON, requests=count, seed=1, rate_rps=1.0)


def sent(record: RequestRecord) -> float:
    assert record.sent_s is not None
    return record.sent_s


def done(record: RequestRecord) -> float:
    assert record.done_s is not None
    return record.done_s


def run(level: LoadLevel, requests: tuple[PlannedRequest, ...], **params: Value) -> SimulatedLevel:
    return simulation(params).run(level, requests)


def test_a_turn_waits_for_the_one_before_and_others_pass_it_meanwhile() -> None:
    requests = (request(0, output=300), request(1, after=0), request(2), request(3, after=1))
    records = run(closed(4, 2), requests).records
    assert sent(records[0]) == sent(records[2]) == 0.0
    assert sent(records[1]) == records[1].scheduled_s == done(records[0])
    assert sent(records[3]) == done(records[1])
    assert {r.error for r in records} == {None}


def test_slots_without_a_turn_to_send_idle_and_are_all_used_again() -> None:
    turns = tuple(request(i, after=0) for i in range(1, 5))
    records = run(closed(5, 4), (request(0), *turns)).records
    assert [sent(r) for r in records[1:]] == [done(records[0])] * 4


def test_an_early_turn_keeps_its_schedule_and_a_late_one_counts_from_when_it_could_be_sent() -> None:
    requests = (
        request(0, output=200, scheduled_s=0.0),
        request(1, after=0, scheduled_s=0.1),
        request(2, after=1, scheduled_s=30.0),
    )
    records = run(open_loop(3), requests).records
    assert records[1].scheduled_s == sent(records[1]) == done(records[0])
    assert done(records[0]) > 0.5
    assert records[2].scheduled_s == sent(records[2]) == 30.0


def test_a_refused_turn_lets_the_next_one_go() -> None:
    requests = (request(0, prompt=9000), request(1, after=0))
    records = run(closed(2, 1), requests).records
    assert [r.error for r in records] == ["http_4xx", None]


def test_turns_that_the_deadline_cut_off_were_never_sent() -> None:
    requests = (request(0, output=2000), request(1, after=0))
    level = simulation().run(closed(2, 2), requests, deadline_s=1.0)
    assert [r.error for r in level.records] == ["deadline", "deadline"]
    assert level.records[1].sent_s is None


def test_a_turn_after_a_later_or_unknown_request_is_refused() -> None:
    with pytest.raises(ValueError, match="request 0 comes after 1"):
        run(closed(2, 1), (request(0, after=1), request(1)))


def test_a_conversation_finds_its_earlier_turns_in_the_prefix_cache() -> None:
    history = SharedSpan(content=-7, tokens=1600)
    requests = (request(0, prompt=1600, shared=(history,)), request(1, prompt=1700, shared=(history,), after=0))
    hits = run(closed(2, 2), requests).server.prefix_hits
    assert hits == 1600
    together = tuple(replace(r, after=None) for r in requests)
    # Sent together, the second is admitted with the first, whose blocks it already finds.
    assert run(closed(2, 2), together).server.prefix_hits == 1600


def test_a_stream_interval_merges_tokens_between_the_first_and_the_last() -> None:
    plain, four = (run(closed(1, 1), (request(0, output=21),), stream_interval=n).records[0] for n in (1, 4))
    assert plain.counted_tokens == 21
    # The first token, then 5, 9, 13, 17 and 21.
    assert four.counted_tokens == 6
    assert four.output_tokens == 21
    ends = [plain.token_times_s[i] for i in (0, 4, 8, 12, 16, 20)]
    assert four.token_times_s == pytest.approx(ends, abs=5e-3)
    # The last chunk leaves although it is not full: the first token, then 5, 9 and 10.
    assert run(closed(1, 1), (request(0, output=10),), stream_interval=4).records[0].counted_tokens == 4


def test_fewer_chunks_and_more_api_servers_relieve_a_busy_front_end() -> None:
    # Chunks that wait for the busy core merge by themselves, so not all of their cost is there to be saved.
    slow = replace(SILENT, api_chunk_s=0.4e-3)
    requests = tuple(request(i, output=60) for i in range(300))

    def seconds(**params: Value) -> float:
        return simulation(params, c=slow).run(closed(300, 150), requests).duration_s

    alone = seconds()
    assert seconds(stream_interval=100) < 0.95 * alone
    assert seconds(api_server_count=4) < 0.95 * alone


def test_planning_between_steps_costs_every_token_without_async_scheduling() -> None:
    overlapped, serial = (
        np.diff(run(closed(1, 1), (request(0, output=30),), async_scheduling=on).records[0].token_times_s)
        for on in (True, False)
    )
    assert np.median(serial) - np.median(overlapped) == pytest.approx(SILENT.unoverlapped_cpu_s, rel=0.05)


def test_stages_plan_a_step_ahead_under_async_scheduling() -> None:
    """Two requests on two stages: planning costs a token time only where no step is planned ahead."""
    c = replace(SILENT, engine_cpu_s=3e-3)

    def token_time(*, ahead: bool) -> float:
        params = {"pipeline_parallel_size": 2, "async_scheduling": ahead}
        level = simulation(params, node="2xH200-141GB", c=c).run(closed(2, 2), (request(0, output=60), request(1)))
        return float(np.median(np.diff(level.records[0].token_times_s)))

    assert token_time(ahead=False) - token_time(ahead=True) == pytest.approx(c.engine_cpu_s, rel=0.05)


def test_drafting_from_random_text_gains_nothing_and_gives_up_async_scheduling() -> None:
    asked = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'
    requests = tuple(request(i) for i in range(20))
    drafting = run(closed(20, 4), requests, speculative_config=asked)
    assert drafting.duration_s == run(closed(20, 4), requests, async_scheduling=False).duration_s
    assert drafting.duration_s > run(closed(20, 4), requests).duration_s


def test_ranks_in_lock_step_end_their_steps_together() -> None:
    # Without API-server costs a token arrives when its step ends: a lone decode and 16 long prompts on other ranks.
    c = replace(SILENT, api_request_s=0.0, api_prompt_token_s=0.0, api_token_s=0.0, api_chunk_s=0.0)
    lone = request(0, output=40, scheduled_s=0.0)
    prompts = tuple(request(i, prompt=8000, output=2, scheduled_s=0.2) for i in range(1, 8))

    def longest_gap(shape: ModelShape, requests: tuple[PlannedRequest, ...], **params: Value) -> float:
        sim = simulation({"data_parallel_size": 8, "max_num_seqs": 64, **params}, node="8xH200-141GB", shape=shape, c=c)
        return float(np.max(np.diff(sim.run(open_loop(len(requests)), requests).records[0].token_times_s)))

    # A dense replica does not notice its neighbours' prompts, an MoE rank waits for them.
    assert longest_gap(SMALL, (lone, *prompts)) < 1.2 * longest_gap(SMALL, (lone,))
    moe = longest_gap(mixtral(), (lone, *prompts), enable_expert_parallel=True)
    assert moe > 5 * longest_gap(mixtral(), (lone,), enable_expert_parallel=True)


def test_every_token_of_every_rank_arrives_and_capacity_counts_per_rank() -> None:
    shape = deepseek_v3()
    ranks: dict[str, Value] = {"data_parallel_size": 8, "enable_expert_parallel": True}
    sim = simulation(ranks, node="8xH200-141GB", shape=shape)
    requests = tuple(request(i, prompt=300 + i, output=10 + i % 7) for i in range(60))
    level = sim.run(closed(60, 40), requests)
    assert [r.output_tokens for r in level.records] == [r.output_tokens for r in requests]
    assert level.server.generation_tokens == sum(r.output_tokens for r in requests)
    assert level.server.running_max == 40
    again = simulation(ranks, node="8xH200-141GB", shape=shape)
    assert level == again.run(closed(60, 40), requests)
