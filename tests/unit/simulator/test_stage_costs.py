"""FLOPs and bytes of one GPU, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_shapes import deepseek_v3, dense_70b, mixtral

from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.records import AttentionKind, Config, LayerAttention, LayerShape, ModelShape, Value
from autotune.simulator.stage_costs import in_lock_step, stage_costs

NODE = parse_node_name("8xH200-141GB")


def settings(shape: ModelShape, **params: Value) -> ResolvedSettings:
    return resolve(Config.of({name.replace("_", "-"): value for name, value in params.items()}), NODE, shape)


def test_70b_reads_every_weight_but_the_input_embedding() -> None:
    shape = dense_70b()
    costs = stage_costs(shape, settings(shape, tensor_parallel_size=4))
    table = 128_256 * 8192
    assert costs.weight_bytes == pytest.approx(2 * (70_553_706_496 - table) / 4)
    assert costs.flops_per_token == pytest.approx(2 * (70_553_706_496 - 2 * table) / 4)
    # 80 layers x 8 KV heads x 128 x 2 x 2 B = 327,680 B a token, a quarter of them on each GPU.
    assert costs.attention[0].kv_bytes == 327_680 / 4
    assert (costs.allreduces, costs.exchanges, costs.experts) == (160, 0, None)


def test_quantised_bodies_are_read_at_their_own_width_and_tables_at_sixteen_bit() -> None:
    shape = dense_70b(quantization="awq", bits=4)
    costs = stage_costs(shape, settings(shape))
    table = 128_256 * 8192
    assert costs.weight_bytes == pytest.approx((70_553_706_496 - 2 * table) / 2 + 2 * table)
    # The same FLOPs as in 16 bit.
    assert costs.flops_per_token == stage_costs(dense_70b(), settings(shape)).flops_per_token


def test_fp8_asked_for_at_the_start_halves_the_body() -> None:
    shape = dense_70b()
    whole, half = (stage_costs(shape, settings(shape, **asked)) for asked in ({}, {"quantization": "fp8"}))
    table = 2 * 128_256 * 8192
    assert half.weight_bytes - table == pytest.approx((whole.weight_bytes - table) / 2)


def test_layers_that_do_not_divide_stretch_to_the_deepest_stage() -> None:
    shape = replace(dense_70b(), layers=5)
    one, two = (stage_costs(shape, settings(shape, pipeline_parallel_size=pp)) for pp in (1, 2))
    # 3 of 5 layers.
    assert two.flops_per_token == pytest.approx(one.flops_per_token * 3 / 5)
    assert two.attention[0].kv_bytes == pytest.approx(one.attention[0].kv_bytes * 3 / 5)


def test_mixtral_splits_experts_from_what_every_token_passes() -> None:
    shape = mixtral()
    costs = stage_costs(shape, settings(shape))
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    other = 4096 * 8 + 2 * 4096
    assert costs.flops_per_token == pytest.approx(2 * 32 * (attention + other))
    assert costs.weight_bytes == pytest.approx(2 * 32 * (attention + other) + 2 * 32_000 * 4096)
    experts = costs.experts
    assert experts is not None
    assert experts.flops == pytest.approx(2 * 3 * 4096 * 14336)
    assert experts.expert_bytes == pytest.approx(2 * 3 * 4096 * 14336)
    assert (experts.layers, experts.ranks, experts.dealt) == (32, 1, False)


def test_experts_lie_on_all_gpus_of_tensor_and_data_parallel_together() -> None:
    shape = mixtral()
    costs = stage_costs(
        shape, settings(shape, tensor_parallel_size=2, data_parallel_size=4, enable_expert_parallel=True)
    )
    assert costs.experts is not None
    assert (costs.experts.ranks, costs.experts.dealt) == (8, True)
    # One all-reduce a layer after attention; the experts' is the exchange over all eight.
    assert (costs.allreduces, costs.exchanges) == (32, 32)


def test_only_ranks_that_share_experts_are_in_lock_step() -> None:
    shape = mixtral()
    assert in_lock_step(shape, settings(shape, data_parallel_size=2))
    assert not in_lock_step(shape, settings(shape, tensor_parallel_size=2))
    assert not in_lock_step(dense_70b(), settings(dense_70b(), data_parallel_size=2))


def test_deepseek_reads_its_latent_whole_on_every_gpu_of_a_group() -> None:
    shape = deepseek_v3()
    one, eight = (stage_costs(shape, settings(shape, tensor_parallel_size=tp)) for tp in (1, 8))
    # 61 layers x 576 numbers x 2 B.
    assert one.attention[0].kv_bytes == eight.attention[0].kv_bytes == 61 * 576 * 2
    # Absorbed: 128 heads x 576 numbers, query x latent and weights x latent, 2 FLOPs each.
    assert one.attention[0].context_flops == 61 * 128 * 576 * 4
    assert eight.attention[0].context_flops == 61 * 128 * 576 * 4 / 8
    # Prompts are computed decompressed: 192 per head.
    assert one.attention[0].pair_flops == 61 * 128 * 192 * 4
    assert (one.moe_layers, one.latent_layers) == (58, 61)
    half = stage_costs(shape, settings(shape, kv_cache_dtype="fp8"))
    assert half.attention[0].kv_bytes == 61 * 576


def test_deepseek_active_parameters_add_up_to_the_published_37_billion() -> None:
    shape = deepseek_v3()
    costs = stage_costs(shape, settings(shape))
    assert costs.experts is not None
    routed = costs.experts.layers * costs.experts.per_token * costs.experts.flops
    total = (costs.flops_per_token + costs.flops_per_output + routed) / 2
    assert total == pytest.approx(37e9, rel=0.02)


def test_windows_and_states_are_layers_of_their_own() -> None:
    def layer(attention: LayerAttention) -> LayerShape:
        return LayerShape(
            attention=attention,
            split_bytes=1000,
            replicated_bytes=0,
            expert_bytes=0,
            parameters=500,
            active_parameters=500,
        )

    sliding = LayerAttention(kind=AttentionKind.SLIDING, kv_heads=4, head_dim=64, window=1024)
    plain = LayerAttention(kind=AttentionKind.FULL, kv_heads=8, head_dim=128)
    state = LayerAttention(kind=AttentionKind.STATE, kv_heads=0, head_dim=0, state_bytes=4_000_000)
    decoder = (*(layer(sliding),) * 5, layer(plain), layer(state), layer(state))
    shape = replace(dense_70b(), layers=8, decoder=decoder)
    costs = stage_costs(shape, settings(shape, tensor_parallel_size=2))
    by_window = {cost.window: cost for cost in costs.attention}
    assert by_window[1024].kv_bytes == 5 * 2 * 4 * 64 * 2 / 2
    assert by_window[None].kv_bytes == 2 * 8 * 128 * 2 / 2
    assert by_window[1024].pair_flops == 5 * 4 * 64 * 64 / 2
    assert costs.state_bytes == 2 * 4_000_000 / 2
