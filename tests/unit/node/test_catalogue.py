"""The shipped catalogue against published sizes, and its quantised twins."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.node.catalogue import catalogue_names, find, variants_of
from autotune.node.model_shape import load_shape, shape_from_config
from autotune.records import AttentionKind, ModelShape
from autotune.units import GIB

DATA = Path(__file__).parents[2] / "data" / "shapes"

# (hub id, parameters in billions, of them active for one token or None, where it is published)
PUBLISHED = [
    ("meta-llama/Llama-2-70b-hf", 68.98, None, "safetensors metadata on the hub"),
    ("meta-llama/Meta-Llama-3-70B", 70.55, None, "safetensors metadata on the hub"),
    ("meta-llama/Llama-3.1-405B", 405.85, None, "safetensors metadata on the hub"),
    ("meta-llama/Llama-4-Scout-17B-16E", 108.6, 17.2, "model card: 109B total, 17B active"),
    ("meta-llama/Llama-4-Maverick-17B-128E", 401.6, 17.2, "model card: 400B total, 17B active"),
    ("Qwen/Qwen2.5-Coder-32B-Instruct", 32.76, None, "model card: 32.5B"),
    ("Qwen/Qwen3-30B-A3B", 30.53, 3.35, "model card: 30.5B total, 3.3B active"),
    ("Qwen/Qwen3-235B-A22B", 235.09, 22.2, "model card: 235B total, 22B active"),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480.15, 35.5, "model card: 480B total, 35B active"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79.7, 3.9, "model card: 80B total, 3B active without the embeddings"),
    ("mistralai/Mixtral-8x7B-v0.1", 46.70, 12.88, "Mixtral of Experts, arXiv 2401.04088: 47B, 13B active"),
    ("mistralai/Mixtral-8x22B-Instruct-v0.1", 140.63, 39.16, "announcement: 141B, 39B active"),
    ("mistralai/Mistral-Nemo-Instruct-2407", 12.25, None, "safetensors metadata on the hub"),
    ("mistralai/Mistral-Small-24B-Instruct-2501", 23.57, None, "safetensors metadata on the hub"),
    ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24.01, None, "safetensors metadata on the hub, with its tower"),
    ("mistralai/Mistral-Large-Instruct-2407", 122.61, None, "model card: 123B"),
    ("mistralai/Ministral-8B-Instruct-2410", 8.02, None, "model card: 8,019,808,256"),
    ("deepseek-ai/DeepSeek-V3", 671.0, 37.6, "arXiv 2412.19437: 671B, 37B active"),
    ("deepseek-ai/DeepSeek-V2-Lite", 15.7, 2.66, "arXiv 2405.04434: 15.7B, 2.4B active without the embeddings"),
    ("deepseek-ai/DeepSeek-V2", 235.7, 21.4, "arXiv 2405.04434: 236B, 21B active"),
    ("moonshotai/Kimi-K2-Instruct", 1026.0, 32.9, "model card: 1T, 32B active"),
    ("openai/gpt-oss-20b", 20.91, 4.19, "model card: 20.91B; 3.61B active without the 0.58B of the embedding"),
    ("openai/gpt-oss-120b", 116.83, 5.71, "model card: 116.83B; 5.13B active without the 0.58B of the embedding"),
    ("google/gemma-7b", 8.54, None, "safetensors metadata on the hub"),
    ("google/gemma-2-2b", 2.61, None, "safetensors metadata on the hub"),
    ("google/gemma-2-9b", 9.24, None, "safetensors metadata on the hub"),
    ("google/gemma-2-27b", 27.23, None, "safetensors metadata on the hub"),
    ("google/gemma-3-1b-it", 1.00, None, "safetensors metadata on the hub"),
    ("google/gemma-3-4b-it", 4.30, None, "safetensors metadata on the hub, with its tower"),
    ("google/gemma-3-12b-it", 12.19, None, "safetensors metadata on the hub, with its tower"),
    ("google/gemma-3-27b-it", 27.43, None, "safetensors metadata on the hub, with its tower"),
    ("microsoft/Phi-3-medium-128k-instruct", 13.96, None, "safetensors metadata on the hub"),
    ("microsoft/phi-4", 14.66, None, "safetensors metadata on the hub"),
    ("microsoft/Phi-4-mini-instruct", 3.84, None, "safetensors metadata on the hub"),
    ("microsoft/Phi-3.5-MoE-instruct", 41.87, 6.64, "model card: 42B, 6.6B active"),
    ("zai-org/GLM-4.5-Air", 106.85, None, "model card: 106B"),
    ("MiniMaxAI/MiniMax-M2", 228.7, None, "model card: 230B"),
    ("CohereForAI/c4ai-command-r-v01", 34.98, None, "safetensors metadata on the hub"),
    ("CohereForAI/c4ai-command-r-plus", 103.81, None, "safetensors metadata on the hub"),
    ("ibm-granite/granite-3.1-8b-instruct", 8.17, None, "safetensors metadata on the hub"),
    ("01-ai/Yi-34B", 34.39, None, "safetensors metadata on the hub"),
    ("EleutherAI/gpt-neox-20b", 20.55, None, "arXiv 2204.06745: 20,554,567,680"),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1.10, None, "model card: 1.1B"),
    ("HuggingFaceTB/SmolLM2-1.7B", 1.71, None, "safetensors metadata on the hub"),
]
# Known to the last parameter.
EXACT = {
    "openai-community/gpt2": 124_439_808,
    "facebook/opt-125m": 125_239_296,
    "tiiuae/falcon-7b": 6_921_720_704,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-9b": 9_241_705_984,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "mistralai/Ministral-8B-Instruct-2410": 8_019_808_256,
    "microsoft/phi-4": 14_659_507_200,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
}
# Whole-model bytes of K and V per token in 16 bit, from publicly logged capacities.
KV_BYTES = {
    "meta-llama/Llama-3.1-8B": 131072,
    "meta-llama/Llama-3.1-70B": 327680,
    "meta-llama/Llama-3.1-405B": 516096,
    "meta-llama/Llama-2-7b-hf": 524288,
    "mistralai/Mixtral-8x7B-v0.1": 131072,
    "mistralai/Ministral-3-14B-Instruct-2512": 2 * 81920,
    "Qwen/Qwen2.5-0.5B": 12288,
    "Qwen/Qwen2.5-1.5B": 28672,
    "Qwen/Qwen2.5-3B": 36864,
    "Qwen/Qwen2.5-7B": 57344,
    "Qwen/Qwen2.5-32B": 262144,
    "Qwen/Qwen2.5-72B": 327680,
    "Qwen/Qwen3-8B": 147456,
    "Qwen/Qwen3-32B": 262144,
    "Qwen/Qwen3-30B-A3B": 98304,
    "Qwen/Qwen3-235B-A22B": 192512,
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": 253952,
    "deepseek-ai/DeepSeek-V3": 70272,
    "deepseek-ai/DeepSeek-R1": 70272,
    "microsoft/Phi-3-mini-128k-instruct": 393216,
    "google/gemma-2-9b": 344064,
    "google/gemma-3-27b-it": 507904,
    "google/gemma-4-31B-it": 901120,
    "openai/gpt-oss-20b": 49152,
    "openai/gpt-oss-120b": 73728,
    "tiiuae/falcon-7b": 8192,
}
# GiB that vLLM logged after loading on one GPU ("Model loading took"), whole model.
LOADED_GIB = {
    "neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8": (67.72, "vLLM pull request 12569"),
    "openai/gpt-oss-120b": (65.97, "vLLM issue 23278"),
    "unsloth/Qwen2.5-7B-Instruct-bnb-4bit": (5.43, "public note: a 7B in bitsandbytes 4 bit"),
    "meta-llama/Llama-3.1-8B": (14.99, "vLLM issue 10517"),
    "Qwen/Qwen2.5-1.5B-Instruct": (2.89, "public notebook"),
}


@functools.cache
def shape(name: str) -> ModelShape:
    return load_shape(name, env={"HF_HUB_CACHE": "/nowhere"}, home=Path("/nowhere"))


@pytest.mark.parametrize(("name", "billions", "active", "source"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_parameters_are_the_published_ones(name: str, billions: float, active: float | None, source: str) -> None:
    found = shape(name)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.01), source
    if active is not None:
        assert found.active_parameters is not None
        assert found.active_parameters / 1e9 == pytest.approx(active, rel=0.01), source


@pytest.mark.parametrize(("name", "parameters"), EXACT.items())
def test_parameters_that_are_known_to_the_last_one(name: str, parameters: int) -> None:
    assert shape(name).parameters == parameters


@pytest.mark.parametrize(("name", "kv_bytes"), KV_BYTES.items())
def test_kv_bytes_are_the_logged_ones(name: str, kv_bytes: int) -> None:
    assert shape(name).kv_bytes_per_token == kv_bytes


@pytest.mark.parametrize(("name", "logged"), LOADED_GIB.items(), ids=LOADED_GIB)
def test_weights_are_what_vllm_logged(name: str, logged: tuple[float, str]) -> None:
    assert shape(name).weight_bytes / GIB == pytest.approx(logged[0], rel=0.01), logged[1]


@pytest.mark.no_cover
def test_every_name_loads_and_its_parts_add_up() -> None:
    names = catalogue_names()
    assert len(names) > 400
    for name in names:
        found = shape(name)
        assert found.name == name
        if not found.decoder:
            continue
        assert len(found.decoder) == found.layers
        held = sum(layer.split_bytes + layer.replicated_bytes + layer.expert_bytes for layer in found.decoder)
        tables = 2 * found.vocab_size * found.hidden_size * (1 if found.tie_word_embeddings else 2)
        rest = found.weight_bytes - held - tables - found.other_bytes
        assert 0 <= rest < 2**20, "the final norm, and nothing else"
        if found.active_parameters is not None:
            assert 0 < found.active_parameters < found.parameters


def test_the_share_of_sliding_layers_is_the_published_one() -> None:
    kinds = [layer.attention for layer in shape("google/gemma-3-27b-it").decoder]
    assert sum(kind.kind is AttentionKind.SLIDING and kind.window == 1024 for kind in kinds) == 52
    assert sum(kind.kind is AttentionKind.FULL for kind in kinds) == 10


def test_variants_are_checkpoints_of_the_same_weights() -> None:
    found = variants_of("meta-llama/Llama-3.1-70B-Instruct")
    assert "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4" in found
    assert "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic" in found
    assert variants_of("meta-llama/Meta-Llama-3.1-70B-Instruct") == found, "the older name of the same weights"
    assert variants_of("LLAMA-3.1-70b-instruct") == found
    assert not variants_of("meta-llama/Llama-3.1-70B"), "the base model is no Instruct model"
    assert not variants_of("acme/nothing")


def test_a_variant_names_its_siblings() -> None:
    awq = "Qwen/Qwen2.5-72B-Instruct-AWQ"
    assert awq not in variants_of(awq)
    assert "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4" in variants_of(awq)


def test_every_variant_is_smaller_and_has_the_same_shape() -> None:
    variants = {other for name in catalogue_names() for other in variants_of(name)}
    assert len(variants) > 50
    for original in set(catalogue_names()) - variants:
        for other in variants_of(original):
            small, large = shape(other), shape(original)
            assert small.quantization is not None
            assert small.parameters == large.parameters
            assert small.kv_bytes_per_token == large.kv_bytes_per_token
            assert small.weight_bytes < large.weight_bytes


def test_any_case_and_the_short_name_find_an_entry() -> None:
    found = find("GPT-OSS-20B")
    assert found is not None
    assert found[0] == "openai/gpt-oss-20b"
    assert find("no-such-model") is None


def test_every_text_model_has_the_parameters_that_transformers_counts() -> None:
    counts: dict[str, int] = json.loads((DATA / "transformers-counts.json").read_text())
    assert len(counts) > 70
    wrong = {name: (shape(name).parameters, count) for name, count in counts.items() if shape(name).parameters != count}
    assert not wrong


FAMILIES: dict[str, dict[str, Any]] = json.loads((DATA / "transformers-families.json").read_text())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_parameters_that_transformers_counts(family: str) -> None:
    found = shape_from_config(FAMILIES[family]["config"], name=family, file="f")
    assert found.parameters == FAMILIES[family]["parameters"]
    assert "is not known" not in (found.doubt or "")


def test_the_405b_in_fp8_as_it_was_logged() -> None:
    """vLLM issue 6746 logged 57.75 GiB on each of 8 GPUs, when the checkpoint still held its 8 KV heads twice."""
    found = find("meta-llama/Llama-3.1-405B-FP8")
    assert found is not None
    first = shape_from_config({**found[1], "num_key_value_heads": 16}, name="m", file="f")
    assert first.weight_bytes / 8 / GIB == pytest.approx(57.75, rel=0.005)
    assert shape("meta-llama/Llama-3.1-405B-FP8").kv_bytes_per_token == 8 * 64512
