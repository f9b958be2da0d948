"""Quantised checkpoints: bytes by hand, exceptions by name, the KV dtype, and hostile sections."""

from __future__ import annotations

import time
from typing import Any

import pytest

from autotune.errors import InvalidFile
from autotune.node.model_shape import UnsizedModel, shape_from_config
from autotune.node.quantized import Scheme, read_quantization
from autotune.records import ModelShape

# One layer whose linear weights are q, o 1024 x 1024, k, v 256 x 1024, and three of 2048 x 1024.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}
ATTENTION = 2 * 1024 * 1024 + 2 * 256 * 1024
MLP = 3 * 2048 * 1024
LINEAR = ATTENTION + MLP
ROWS = 1024 + 1024 + 256 + 256 + 2048 + 2048 + 1024
NORMS = 2 * 1024 * 2


def ct(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}, **more}


def read(quantization: Any, **more: Any) -> ModelShape:
    return shape_from_config({**CONFIG, "quantization_config": quantization, **more}, name="m", file="config.json")


def layer_bytes(shape: ModelShape, layer: int = 0) -> int:
    found = shape.decoder[layer]
    return found.split_bytes + found.replicated_bytes + found.expert_bytes


@pytest.mark.parametrize(
    ("quantization", "expected", "method", "bits"),
    [
        # 4 bits, and per group of 128 a 2-byte scale and half a byte of zero point
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, LINEAR // 2 + LINEAR // 128 * 5 // 2, "awq", 4),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, LINEAR // 2 + LINEAR // 64, "gptq", 4),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True}, LINEAR + LINEAR // 16, "gptq", 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, LINEAR // 2 + 2 * ROWS, "gptq", 4),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False},
            LINEAR // 2 + LINEAR // 128 * 5 // 2,
            "gptq",
            4,
        ),
        # one 4-byte scale for each of the seven matrices
        ({"quant_method": "fp8", "activation_scheme": "static"}, LINEAR + 7 * 4, "fp8", 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, LINEAR + LINEAR // (128 * 128) * 4, "fp8", 8),
        ({"quant_method": "fbgemm_fp8"}, LINEAR + 4 * ROWS, "fbgemm_fp8", 8),
        (ct({"num_bits": 8, "type": "int", "strategy": "channel"}), LINEAR + 4 * ROWS, "compressed-tensors", 8),
        (ct({"num_bits": 8, "type": "float", "strategy": "tensor"}), LINEAR + 28, "compressed-tensors", 8),
        (
            ct({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
            LINEAR // 2 + LINEAR // 64,
            "compressed-tensors",
            4,
        ),
        (
            ct({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}),
            LINEAR // 2 + LINEAR // 16,
            "compressed-tensors",
            4,
        ),
        (
            ct({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}),
            LINEAR + LINEAR // 4096,
            "compressed-tensors",
            8,
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, LINEAR // 2 + LINEAR // 16, "bitsandbytes", 4),
        ({"load_in_8bit": True}, LINEAR + 4 * ROWS, "bitsandbytes", 8),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, LINEAR + 28, "modelopt", 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, LINEAR // 2 + LINEAR // 16, "modelopt", 4),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}},
            LINEAR // 2 + LINEAR // 16,
            "modelopt",
            4,
        ),
    ],
)
def test_bytes_of_a_layer(quantization: dict[str, Any], expected: int, method: str, bits: int) -> None:
    shape = read(quantization)
    assert layer_bytes(shape) == expected + NORMS
    assert (shape.quantization, shape.weight_bits) == (method, bits)
    # Embedding, head and norms stay in 16 bit.
    assert shape.weight_bytes == 2 * (expected + NORMS) + 2 * 2 * 32000 * 1024 + 2 * 1024


@pytest.mark.parametrize(
    "names",
    [
        {"modules_to_not_convert": ["self_attn"]},
        {"modules_to_not_convert": ["model.layers.0.self_attn", "model.layers.1.self_attn", "lm_head"]},
        {"ignored_layers": [f"model.layers.{i}.self_attn.{m}_proj" for i in range(2) for m in "qkvo"]},
        {"ignored_layers": [f"model.layers.{i}.self_attn.{m}" for i in range(2) for m in ("qkv_proj", "o_proj")]},
        {"modules_to_not_convert": ["model.layers.*.self_attn.*"]},
        {"ignore": ["re:.*self_attn.*"]},
        {"ignore": [r"re:model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj$"]},
        {"exclude_modules": ["model.layers.0.self_attn*", "model.layers.1.self_attn*"]},
        {"modules_to_not_convert": ["self_attn", *(f"model.layers.{i}.nothing" for i in range(100))]},
    ],
)
def test_modules_that_are_left_alone_stay_in_16_bit(names: dict[str, list[str]]) -> None:
    shape = read({"quant_method": "fp8", **names})
    assert [layer_bytes(shape, i) for i in range(2)] == [2 * ATTENTION + MLP + 3 * 4 + NORMS] * 2


def test_a_whole_layer_can_be_left_alone() -> None:
    shape = read({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.1."]})
    assert layer_bytes(shape, 0) == LINEAR + 28 + NORMS
    assert layer_bytes(shape, 1) == 2 * LINEAR + NORMS


def test_names_of_a_wrapped_text_model() -> None:
    names = ["language_model.model.layers.0.mlp.up_proj"]
    text = {key: value for key, value in CONFIG.items() if key != "architectures"}
    config = {
        "architectures": ["SomeForConditionalGeneration"],
        "text_config": text,
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": names},
    }
    shape = shape_from_config(config, name="m", file="f")
    assert layer_bytes(shape, 0) - layer_bytes(shape, 1) == 2048 * 1024 - 4


def test_groups_with_targets_of_their_own() -> None:
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "tensor"}},
            "b": {
                "targets": ["re:.*mlp.*"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
            },
        },
    }
    assert layer_bytes(read(quantization)) == ATTENTION + 4 * 4 + MLP // 2 + MLP // 64 + NORMS


def test_mxfp4_is_the_experts_alone_and_padded_for_the_kernel() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "model_type": "gpt_oss", "head_dim": 64}
    shape = read({"quant_method": "mxfp4"}, **experts)
    # 1024 is a multiple of 256, 2048 of 128: nothing to pad; half a byte and a one-byte scale for 32 weights.
    biases = 2 * 4 * (2 * 2048 + 1024)
    assert shape.decoder[0].expert_bytes == 4 * (MLP // 2 + MLP // 32) + biases
    # 2880 -> 3072 and 2944, as gpt-oss is loaded
    odd = read({"quant_method": "mxfp4"}, **experts, hidden_size=2880, intermediate_size=2880)
    weights = 3 * 3072 * 2944
    assert odd.decoder[0].expert_bytes == 4 * (weights // 2 + weights // 32) + 2 * 4 * 3 * 2880
    assert odd.parameters < 4 * 2 * weights + 1e9, "padding is no parameter"


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (ct({"num_bits": 8}, kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}), "fp8"),
        (ct({"num_bits": 8}, kv_cache_scheme=None), None),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}, None),
        # vLLM does not follow this one by itself
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, None),
    ],
)
def test_the_kv_dtype_that_auto_means(quantization: dict[str, Any], expected: str | None) -> None:
    assert read(quantization).kv_cache_dtype == expected


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ([1], "quantization_config"),
        ("awq", "quantization_config"),
        ({"quant_method": 7}, "quantization_config.quant_method"),
        ({"quant_method": "awq", "bits": 0}, "quantization_config.bits"),
        ({"quant_method": "never-heard-of", "bits": -1}, "quantization_config.bits"),
        ({"quant_method": "gptq", "bits": 7}, "quantization_config.bits"),
        ({"quant_method": "gptq", "bits": True}, "quantization_config.bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "quantization_config.group_size"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 1 << 60}, "quantization_config.group_size"),
        ({"quant_method": "gptq", "bits": 4, "sym": "yes"}, "quantization_config.sym"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "quantization_config.weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "quantization_config.weight_block_size"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "quantization_config.modules_to_not_convert"),
        ({"quant_method": "compressed-tensors"}, "quantization_config.config_groups"),
        (ct({"num_bits": 8}, ignore=["re:["]), "quantization_config.ignore"),
        (ct({"num_bits": 8}, ignore=["re:(a+)+$"]), "quantization_config.ignore"),
        (ct({"num_bits": 8}, ignore=["re:.*.*.*.*.*x"]), "quantization_config.ignore"),
        (ct({"num_bits": 8}, ignore=[f"re:layer{i}" for i in range(1000)]), "quantization_config.ignore"),
        (ct({"num_bits": 4, "group_size": 0}), "quantization_config.config_groups.group_0.weights.group_size"),
    ],
)
def test_hostile_sections_are_refused_with_their_key(quantization: Any, key: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        read(quantization)
    assert not isinstance(caught.value, UnsizedModel)
    assert caught.value.key in (key, key.replace("modules_to_not_convert", "ignored_layers"))


def test_the_worst_patterns_that_are_accepted_end_soon() -> None:
    started = time.process_time()
    read(ct({"num_bits": 8}, ignore=[f"re:.*.*.*.*{i}!" for i in range(10)]))
    read({"quant_method": "fp8", "ignored_layers": ["*e" * 40 + "!"] * 100})
    assert time.process_time() - started < 5


def test_an_unknown_method_is_sized_by_its_bits_or_refused_by_name() -> None:
    doubted = read({"quant_method": "bitnet", "bits": 2, "group_size": 128})
    assert doubted.doubt is not None
    assert "'bitnet' is not known" in doubted.doubt
    with pytest.raises(UnsizedModel, match="quark"):
        read({"quant_method": "quark"})


def test_an_empty_section_is_none() -> None:
    assert read_quantization({}, file="f") is None
    assert read(None).quantization is None


def test_ragged_matrices_are_rounded_up() -> None:
    assert Scheme(bits=4).size_bytes(3, 3) == 5
    assert Scheme(bits=8, block_rows=128, block_columns=128, scale_bytes=4).size_bytes(129, 129) == 129 * 129 + 4 * 4
