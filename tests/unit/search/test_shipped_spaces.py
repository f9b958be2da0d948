"""The spaces that ship: vLLM takes what they hold, each says what its situation needs, and something can start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engine.flag_cache import known_flags
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, Value
from autotune.search.rules import RuleContext, check
from autotune.search.space import Parameter, SearchSpace, load_space, shipped_spaces

NAMES = (
    "cpu-tiny",
    "default",
    "long-context",
    "low-latency",
    "moe-expert-parallel",
    "nvlink-large",
    "pcie-large",
    "quantised-24gb",
    "scheduler",
    "server-knobs",
    "small-model-replicas",
)
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
_LLAMA_70B_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
# In the words of their public config.json; written into a folder, as a downloaded model is.
CONFIGS: dict[str, dict[str, object]] = {
    "Llama-3.1-70B-AWQ": {
        **_LLAMA_70B_CONFIG,
        "quantization_config": {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "zero_point": True,
            "version": "gemm",
        },
    },
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    },
}
SITUATIONS = [
    ("default", "4xA100-80GB-NVLink", LLAMA_70B, 8192),
    ("default", "1xL4-24GB", LLAMA_8B, 4096),
    ("nvlink-large", "4xH100-80GB-NVLink", LLAMA_70B, 16384),
    ("nvlink-large", "8xH200-141GB-NVLink", LLAMA_70B, 32768),
    ("pcie-large", "4xL40S-48GB-PCIe", LLAMA_70B, 8192),
    ("small-model-replicas", "4xL4-24GB-PCIe", LLAMA_8B, 8192),
    ("small-model-replicas", "8xH100-80GB-NVLink", LLAMA_8B, 8192),
    ("moe-expert-parallel", "4xH100-80GB-NVLink", "Mixtral-8x7B", 8192),
    ("moe-expert-parallel", "8xH200-141GB-NVLink", "DeepSeek-V3", 8192),
    ("quantised-24gb", "2xRTX4090-24GB-PCIe", "Llama-3.1-70B-AWQ", 4096),
    ("long-context", "8xH100-80GB-NVLink", LLAMA_70B, 65536),
    ("low-latency", "8xH100-80GB-NVLink", LLAMA_70B, 8192),
    ("low-latency", "1xH100-80GB", LLAMA_8B, 8192),
    ("server-knobs", "1xH100-80GB", LLAMA_8B, 8192),
    ("scheduler", "1xH100-80GB", LLAMA_8B, 8192),
]


@pytest.fixture(params=NAMES)
def space(request: pytest.FixtureRequest) -> SearchSpace:
    return load_space(request.param)


def parameter(name: str, of: str) -> Parameter:
    found = load_space(name).parameter(of)
    assert found is not None
    return found


def test_these_ship() -> None:
    assert shipped_spaces() == NAMES


def test_vllm_takes_every_flag_and_value(space: SearchSpace) -> None:
    known = known_flags()
    pairs = [(one.name, choice) for one in space.parameters for choice in one.choices] + list(space.fixed)
    assert [problem for name, value in pairs if (problem := known.problem(name, value))] == []
    for name, value in pairs:
        flag = known.get(name)
        if flag is not None and value is not None:
            assert flag.takes_value != isinstance(value, bool), name


def test_each_is_explained_and_small_enough_to_be_judged_in_seconds(space: SearchSpace) -> None:
    text = (Path(__file__).parents[3] / "search_spaces" / f"{space.name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=../docs/schemas/space.json\n")
    assert space.description
    assert all(one.why for one in space.parameters)
    for one in space.parameters:
        assert re.search(rf"^(  #.*\n)+  {re.escape(one.name)}:", text, re.MULTILINE) or (
            one.name == "pipeline-parallel-size" and space.name == "quantised-24gb"  # explained together with TP
        ), one.name
    assert space.size <= 25_000


def test_what_changes_numerics_is_marked(space: SearchSpace) -> None:
    for one in space.parameters:
        assert one.lossy == (one.name in ("kv-cache-dtype", "quantization", "model")), one.name


def test_comments_on_ranges_name_their_values() -> None:
    """`# Most sequences in one step: 32, 64, 128.` stands above a range that has these."""
    seen = 0
    for name in NAMES:
        text = (Path(__file__).parents[3] / "search_spaces" / f"{name}.yaml").read_text(encoding="utf-8")
        for comment, flag in re.findall(r"((?:  #.*\n)+)  ([a-z-]+):\n    range: .*log: true", text):
            listed = re.search(r": ((?:\d+, )+\d+)\.", comment)
            assert listed, (name, flag)
            assert tuple(int(number) for number in listed[1].split(", ")) == parameter(name, flag).choices
            seen += 1
    assert seen >= 12


@pytest.mark.parametrize(("name", "node", "model", "length"), SITUATIONS)
def test_something_can_start_on_the_node_that_it_is_made_for(
    name: str, node: str, model: str, length: int, tmp_path: Path
) -> None:
    made = load_space(name)
    if model in CONFIGS:
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[model]))
        model = str(tmp_path)
    shape = load_shape(model, env={}, home=tmp_path)
    context = RuleContext(needed_len=length, accepted=known_flags(), fixed=(("max-model-len", length), *made.fixed))
    machine = parse_node_name(node)
    for config in made:
        if not check(config, machine, shape, context):
            return
    pytest.fail(f"no config of {name} can start on {node}")


def active_where(name: str, of: str, holds: Callable[[Config], bool]) -> None:
    """`of` is in exactly those configs for which `holds`."""
    made = load_space(name)
    wrong = [config for config in made if (of in config.as_dict()) != holds(config)]
    assert wrong == []


def above(config: Config, flag: str, limit: int) -> bool:
    value = config.get(flag, 1)
    return isinstance(value, int) and value > limit


def test_tensor_parallelism_comes_first_on_nvlink_and_smaller_layouts_are_there() -> None:
    assert parameter("nvlink-large", "tensor-parallel-size").choices == (8, 4, 2, 1)
    active_where("nvlink-large", "data-parallel-size", lambda config: not above(config, "tensor-parallel-size", 4))
    single: dict[str, Value] = {"tensor-parallel-size": 4, "data-parallel-size": 1, "pipeline-parallel-size": 1}
    configs = [config.as_dict() for config in load_space("nvlink-large")]
    assert any(single.items() <= config.items() and config.get("api-server-count") == 4 for config in configs)


@pytest.mark.parametrize("name", ["nvlink-large", "small-model-replicas", "moe-expert-parallel"])
def test_api_servers_are_a_question_of_a_single_engine(name: str) -> None:
    """Replicas start one each by themselves (vLLM 0.32, entrypoints/cli/serve.py)."""
    active_where(name, "api-server-count", lambda config: not above(config, "data-parallel-size", 1))


def test_pcie_compares_a_split_of_two_with_stages() -> None:
    assert parameter("pcie-large", "tensor-parallel-size").choices == (1, 2)
    assert parameter("pcie-large", "pipeline-parallel-size").choices == (1, 2, 4, 8)
    for flag in ("disable-custom-all-reduce", "env:NCCL_P2P_LEVEL"):
        active_where("pcie-large", flag, lambda config: above(config, "tensor-parallel-size", 1))


def test_experts_are_spread_only_over_several_gpus() -> None:
    active_where(
        "moe-expert-parallel",
        "enable-expert-parallel",
        lambda config: above(config, "tensor-parallel-size", 1) or above(config, "data-parallel-size", 1),
    )
    active_where("moe-expert-parallel", "enable-eplb", lambda config: config.get("enable-expert-parallel") is True)
    layouts = {
        (config.get("tensor-parallel-size"), config.get("data-parallel-size"))
        for config in load_space("moe-expert-parallel")
        if config.get("enable-expert-parallel")
    }
    assert {(8, 1), (1, 8)} <= layouts


def test_asynchronous_scheduling_is_not_asked_for_with_n_gram_drafts() -> None:
    """vLLM 0.32 refuses to start with both (config/vllm.py)."""
    active_where("server-knobs", "async-scheduling", lambda config: config.get("speculative-config") is None)
    layout = {"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"}
    assert layout.isdisjoint(one.name for one in load_space("server-knobs").parameters)


def test_cards_of_24_gb_serve_float16_and_long_contexts_are_cut_by_the_workload() -> None:
    assert dict(load_space("quantised-24gb").fixed) == {"dtype": "float16"}
    made = load_space("long-context")
    assert made.parameter("max-model-len") is None
    assert "max-model-len" not in dict(made.fixed)
    assert parameter("long-context", "gpu-memory-utilization").choices[-1] == 0.95
    assert parameter("low-latency", "max-num-seqs").choices == (4, 8, 16, 32, 64)
