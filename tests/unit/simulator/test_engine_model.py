"""The server in virtual time: counts, clocks, noise, and how close it is to recorded loads."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import InvalidFile
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, PlannedRequest, SharedSpan
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import Simulation, block_keys
from autotune.simulator.measured import figures
from autotune.simulator.recorded import RecordedLoad, read_recorded, simulate

MODEL, NODE = "meta-llama/Llama-3.1-8B-Instruct", "1xH200-141GB"
SILENT = Coefficients(step_noise=0.0, run_noise=0.0)
ROWS = read_recorded(Path(__file__).parents[2] / "data" / "h200" / "results.jsonl")


def settings(node: str = NODE, **params: object) -> ResolvedSettings:
    values = {"max-model-len": 8192} | {k.replace("_", "-"): v for k, v in params.items()}
    return resolve(Config.of(values), parse_node_name(node), load_shape(MODEL), "0.25.1")


def simulation(
    node: str = NODE, kv_tokens: int = 900_000, seed: int = 0, c: Coefficients = SILENT, **params: object
) -> Simulation:
    return Simulation(parse_node_name(node), load_shape(MODEL), settings(node, **params), kv_tokens, c, seed)


def chat(count: int = 100, seed: int = 1) -> tuple[PlannedRequest, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=int(rng.integers(256, 769)),
            output_tokens=int(rng.integers(64, 193)),
            content_seed=seed * 10_000 + i,
        )
        for i in range(count)
    )


def closed(count: int = 100, concurrency: int = 16, seed: int = 1) -> LoadLevel:
    return LoadLevel(
        name="c",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=count,
        seed=seed,
        concurrency=concurrency,
    )


def test_every_request_ends_with_its_exact_tokens_and_ordered_times() -> None:
    requests = chat()
    level = simulation().run(closed(), requests)
    assert [r.output_tokens for r in level.records] == [r.output_tokens for r in requests]
    assert level.server.generation_tokens == sum(r.output_tokens for r in requests)
    assert level.server.prompt_tokens == sum(r.prompt_tokens for r in requests)
    assert level.server.running_max == 16
    for record in level.records:
        assert record.error is None
        assert record.sent_s is not None
        assert record.first_token_s is not None
        assert record.done_s is not None
        assert record.scheduled_s <= record.sent_s < record.first_token_s <= record.done_s <= level.duration_s
        assert list(record.token_times_s) == sorted(record.token_times_s)
        assert 1 <= record.counted_tokens <= record.wanted_output_tokens


def test_a_lone_request_takes_prefill_and_decode_steps_and_every_latency() -> None:
    c = replace(SILENT, api_chunk_s=0.0, api_token_s=0.0, api_prompt_token_s=0.0)
    sim = simulation(c=c)
    level = sim.run(closed(1, 1), (PlannedRequest(index=0, prompt_tokens=16, output_tokens=11, content_seed=0),))
    (record,) = level.records
    # Ten equal decode steps within 0.1 ms, each at least the time to read 15.0e9 B at the read share of 4.8e12 B/s.
    gaps = np.diff(record.token_times_s)
    assert np.ptp(gaps) < 1e-4
    assert 15.0e9 / (4.8e12 * c.weight_read_share) < gaps[0] < 8e-3
    assert record.first_token_s is not None
    fixed = c.api_request_s + c.api_in_latency_s + c.engine_cpu_s + c.api_out_latency_s
    assert fixed + 5e-3 < record.first_token_s < fixed + 12e-3


def test_same_seed_same_answer_other_seed_slightly_other() -> None:
    noisy = Coefficients()
    first, again, other = (simulation(seed=s, c=noisy).run(closed(), chat()) for s in (5, 5, 6))
    assert first == again
    change = other.duration_s / first.duration_s - 1
    assert 0 < abs(change) < 0.03


def test_noise_of_throughput_is_about_half_a_percent() -> None:
    rates = [
        figures(simulation(seed=s, c=Coefficients()).run(closed(), chat()).records).output_tok_s for s in range(12)
    ]
    assert 0.001 < np.std(rates) / np.mean(rates) < 0.01


def test_steps_that_hold_only_unfinished_prompts_write_nothing_and_end() -> None:
    # 3,500 prompt tokens through a budget of 1,024: the first three steps give no request a token.
    request = PlannedRequest(index=0, prompt_tokens=3500, output_tokens=2, content_seed=1)
    level = simulation(max_num_batched_tokens=1024).run(closed(1, 1), (request,))
    assert level.records[0].output_tokens == 2
    assert len(level.records[0].token_times_s) == 2


def test_open_loop_keeps_its_schedule() -> None:
    requests = tuple(replace(r, scheduled_s=0.1 * i) for i, r in enumerate(chat(30)))
    level = LoadLevel(name="o", role=LevelRole.TTFT, arrivals=Arrivals.POISSON, requests=30, seed=1, rate_rps=10.0)
    result = simulation().run(level, requests)
    assert [r.scheduled_s for r in result.records] == pytest.approx([0.1 * i for i in range(30)])
    assert result.duration_s > 2.9
    with pytest.raises(ValueError, match="no scheduled time"):
        simulation().run(level, chat(3))


def test_closed_loop_needs_concurrency_and_keeps_it() -> None:
    with pytest.raises(ValueError, match="without concurrency"):
        simulation().run(replace(closed(), concurrency=None), chat(3))
    level = simulation().run(closed(40, 4), chat(40))
    starts = sorted((r.sent_s or 0.0, 1) for r in level.records)
    ends = sorted((r.done_s or 0.0, -1) for r in level.records)
    most = now = 0
    for _, change in sorted([*starts, *ends]):
        now += change
        most = max(most, now)
    assert most == 4


def test_staggered_start_spreads_the_first_requests() -> None:
    # 600 tokens take 3 s at least: no request ends before the last slot opens.
    requests = tuple(replace(r, output_tokens=600) for r in chat(20))
    level = simulation().run(closed(20, 10), requests, stagger_s=2.0)
    assert [r.sent_s for r in level.records][:10] == pytest.approx([0.2 * i for i in range(10)])


def test_prefix_cache_stays_warm_between_levels_of_one_launch_only() -> None:
    requests = tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=1280,
            output_tokens=8,
            content_seed=i,
            shared=(SharedSpan(content=1, tokens=1024),),
        )
        for i in range(8)
    )
    sim = simulation()
    first = sim.run(closed(8, 1), requests)
    # 1024 tokens are 64 whole blocks: every request but the first finds them.
    assert (first.server.prefix_queries, first.server.prefix_hits) == (8 * 1280, 7 * 1024)
    again = sim.run(closed(8, 1), requests)
    # The same contents: everything but the block of the last token is there.
    assert again.server.prefix_hits == 8 * (1280 - 16)
    assert simulation().run(closed(8, 1), requests).server.prefix_hits == 7 * 1024
    off = simulation(enable_prefix_caching=False).run(closed(8, 1), requests)
    assert (off.server.prefix_queries, off.server.prefix_hits) == (None, None)
    assert off.duration_s > first.duration_s


def test_keys_are_equal_exactly_where_content_is() -> None:
    def request(seed: int, prefix: int | None, shared: int) -> PlannedRequest:
        spans = () if prefix is None else (SharedSpan(content=prefix, tokens=shared),)
        return PlannedRequest(index=0, prompt_tokens=100, output_tokens=1, content_seed=seed, shared=spans)

    one, two = block_keys(request(1, 7, 40), 16), block_keys(request(2, 7, 40), 16)
    assert len(one) == 6
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, False, False, False, False]
    assert one == block_keys(request(1, 7, 40), 16)
    assert not set(block_keys(request(1, None, 0), 16)) & set(block_keys(request(2, None, 0), 16))


def test_keys_of_several_spans_are_equal_up_to_the_first_difference() -> None:
    def request(*spans: tuple[int, int]) -> PlannedRequest:
        shared = tuple(SharedSpan(content=content, tokens=tokens) for content, tokens in spans)
        return PlannedRequest(index=0, prompt_tokens=160, output_tokens=1, content_seed=5, shared=shared)

    def same(one: PlannedRequest, other: PlannedRequest) -> int:
        pairs = zip(block_keys(one, 16), block_keys(other, 16), strict=True)
        return [a == b for a, b in pairs].index(False)

    turns = request((1, 40), (-2, 40), (-3, 40))
    # 80 tokens are 5 blocks; the block in which the second span ends and the third begins is not shared in full.
    assert same(turns, request((1, 40), (-2, 40), (-4, 40))) == 5
    assert same(turns, request((1, 40), (-2, 40))) == 5
    # A span of another length shifts all that follows, the span itself is found up to its shorter end.
    assert same(turns, request((1, 36), (-2, 40), (-3, 40))) == 2
    assert same(turns, request((2, 40), (-2, 40), (-3, 40))) == 0


def test_tight_kv_cache_preempts_and_queues() -> None:
    roomy, tight = (simulation(kv_tokens=k).run(closed(200, 128), chat(200)) for k in (900_000, 40_000))
    assert roomy.server.preemptions == 0
    assert tight.server.preemptions is not None
    assert tight.server.preemptions > 0
    assert tight.server.kv_usage_max == pytest.approx(1.0, abs=0.01)
    assert (tight.server.queue_time_mean_s or 0) > (roomy.server.queue_time_mean_s or 0)
    assert [r.output_tokens for r in tight.records] == [r.output_tokens for r in roomy.records]


def test_deadline_ends_the_level_and_the_next_one_starts_clean() -> None:
    sim = simulation()
    cut = sim.run(closed(), chat(), deadline_s=1.0)
    errors = {r.error for r in cut.records}
    assert errors == {None, "deadline"}
    assert cut.duration_s == 1.0
    assert all(r.output_tokens is None for r in cut.records if r.error)
    after = sim.run(closed(), chat(seed=2))
    assert {r.error for r in after.records} == {None}
    assert after.server.running_max == 16


def test_a_request_beyond_the_context_is_refused_like_http_400() -> None:
    requests = (*chat(2), PlannedRequest(index=2, prompt_tokens=8000, output_tokens=200, content_seed=9))
    level = simulation().run(closed(3, 3), requests)
    assert [(r.error, r.status) for r in level.records] == [(None, 200), (None, 200), ("http_4xx", 400)]
    assert level.records[2].first_token_s is None


def test_data_parallel_nearly_doubles_a_saturated_server() -> None:
    one = simulation("2xH200-141GB").run(closed(300, 96), chat(300))
    two = simulation("2xH200-141GB", data_parallel_size=2).run(closed(300, 192), chat(300))
    assert 1.5 < one.duration_s / two.duration_s < 2.1


def test_pipeline_bubbles_at_low_concurrency_and_caps_seats_over_both_batches() -> None:
    one = simulation("2xH200-141GB").run(closed(10, 1), chat(10))
    two = simulation("2xH200-141GB", pipeline_parallel_size=2).run(closed(10, 1), chat(10))
    # A single request passes one stage after the other: nothing is won, the stages' overhead is lost.
    assert two.duration_s > one.duration_s
    capped = simulation("2xH200-141GB", pipeline_parallel_size=2, max_num_seqs=8).run(closed(60, 32), chat(60))
    assert capped.server.running_max == 8


def test_tensor_parallel_shortens_a_long_prompt() -> None:
    requests = tuple(replace(r, prompt_tokens=4000) for r in chat(10))
    one, two = (
        figures(simulation("2xH200-141GB", tensor_parallel_size=tp).run(closed(10, 1), requests).records)
        for tp in (1, 2)
    )
    # The arithmetic halves; API server and all-reduces do not.
    assert 0.5 < two.ttft_p50_s / one.ttft_p50_s < 0.75


def test_500_chat_requests_take_at_most_half_a_second_of_one_core() -> None:
    sim, requests = simulation(c=Coefficients()), chat(500)
    begun = time.process_time()
    level = sim.run(closed(500, 128), requests)
    assert time.process_time() - begun < 0.5
    assert sum(r.error is None for r in level.records) == 500


def test_rows_that_are_no_recorded_loads_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"kind": "failure"}\n{"kind": "load", "name": "x"}\n')
    with pytest.raises(InvalidFile, match="line 2"):
        read_recorded(file)


def test_more_gpus_than_the_node_has_are_refused() -> None:
    with pytest.raises(ValueError, match="2 GPUs are needed"):
        simulation(tensor_parallel_size=2)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.name}-{r.load}")
def test_fidelity_on_recorded_loads(row: RecordedLoad) -> None:
    """Bounds of the issue for default flags; TTFT p50 is not judged: it differs by 28 % between identical runs."""
    got, level = simulate(row, node=NODE, model=MODEL, coefficients=SILENT)
    throughput, tpot, _, ttft_p95 = got.errors(row.measured)
    assert abs(throughput) < 0.08
    assert abs(tpot) < 0.10
    assert abs(ttft_p95) < 0.25
    assert level.server.prompt_tokens == row.bench.total_input_tokens
    assert level.server.generation_tokens == row.bench.total_output_tokens
    preempted = row.metrics.get("num_preemptions_total") or 0
    assert level.server.preemptions == pytest.approx(preempted, rel=0.4, abs=4)
