"""The recipes' situations, against bounds by hand that no card can beat and orders that operators know.

Data-sheet peaks used below: H100 SXM 3.35 TB/s, 989 TFLOP/s bf16, 1,979 fp8; H200 4.8 TB/s; L40S 0.864 TB/s and 362;
RTX 4090 1.008 TB/s and 165.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from model_shapes import deepseek_v3, dense_70b, mixtral

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, ModelShape, PlannedRequest, Value
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import Simulation
from autotune.simulator.measured import Figures, figures

SILENT = Coefficients(step_noise=0.0, run_noise=0.0)
SMALL = load_shape("meta-llama/Llama-3.1-8B-Instruct")
TINY = load_shape("Qwen/Qwen2.5-0.5B")
AWQ = dense_70b(quantization="awq", bits=4)
TP, PP, DP, EP = "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel"


def drive(
    node: str,
    shape: ModelShape,
    config: Mapping[str, Value],
    *,
    concurrency: int = 1,
    count: int = 2,
    prompt: int = 512,
    output: int = 64,
    kv_tokens: int = 400_000,
) -> Figures:
    """Figures of a closed loop; lengths vary by half around `prompt` and `output`."""
    named = parse_node_name(node)
    settings = resolve(Config.of({"max-model-len": 8192, **config}), named, shape)
    rng = np.random.default_rng(1)
    requests = tuple(
        PlannedRequest(
            index=i,
            prompt_tokens=int(rng.integers(prompt // 2, prompt * 3 // 2)),
            output_tokens=int(rng.integers(output // 2, output * 3 // 2)),
            content_seed=i,
        )
        for i in range(count)
    )
    level = LoadLevel(
        name="c",
        role=LevelRole.THROUGHPUT,
        arrivals=Arrivals.CLOSED,
        requests=count,
        seed=1,
        concurrency=concurrency,
    )
    result = Simulation(named, shape, settings, kv_tokens, SILENT).run(level, requests)
    assert all(record.error is None for record in result.records)
    return figures(result.records)


# Least milliseconds of a token: the weights one GPU reads, over its bandwidth. At most 2.5 times that, and the
# collectives' latencies, were seen on real servers of this kind.
@pytest.mark.parametrize(
    ("node", "shape", "config", "least_ms", "most_ms"),
    [
        ("2xRTX4090-24GB-PCIe", AWQ, {TP: 2}, 36.8 / 2 / 1.008, 60),
        ("4xA100-80GB", dense_70b(), {TP: 4}, 139 / 4 / 2.039, 45),
        ("4xH100-80GB", dense_70b(), {TP: 4}, 139 / 4 / 3.35, 30),
        ("8xH100-80GB", dense_70b(), {TP: 8}, 139 / 8 / 3.35, 25),
        # Stages run one after another for a lone request: the sum reads everything.
        ("4xL40S-48GB-PCIe", dense_70b(), {PP: 4}, 139 / 0.864, 280),
        ("4xH100-80GB", SMALL, {TP: 4}, 15 / 4 / 3.35, 8),
        # 37.5 billion active parameters of one byte; experts split evenly under TP.
        ("8xH200-141GB", deepseek_v3(), {TP: 8}, 36.6 / 8 / 4.8, 25),
        ("8xH200-141GB", deepseek_v3(), {DP: 8, EP: True}, 15 / 4.8, 35),
        ("4xA100-80GB", mixtral(), {TP: 4}, 25.5 / 4 / 2.039, 16),
    ],
)
def test_a_lone_request_decodes_no_faster_than_weights_are_read(
    node: str, shape: ModelShape, config: dict[str, Value], least_ms: float, most_ms: float
) -> None:
    assert least_ms < drive(node, shape, config).tpot_p50_s * 1e3 < most_ms


@pytest.mark.parametrize(
    ("node", "shape", "config", "peak_tflops", "active"),
    [
        ("4xH100-80GB", dense_70b(), {TP: 4}, 4 * 989, 68.5e9),
        ("4xL40S-48GB-PCIe", dense_70b(), {PP: 4}, 4 * 362, 68.5e9),
        ("2xRTX4090-24GB-PCIe", AWQ, {TP: 2}, 2 * 165, 68.5e9),
        ("8xH200-141GB", deepseek_v3(), {TP: 8}, 8 * 1979, 36.7e9),
        ("8xH200-141GB", deepseek_v3(), {DP: 8, EP: True}, 8 * 1979, 36.7e9),
        ("4xA100-80GB", mixtral(), {TP: 4, EP: True}, 4 * 312, 12.75e9),
    ],
)
def test_prompts_are_computed_no_faster_than_the_peak_and_no_slower_than_a_sixteenth_of_it(
    node: str, shape: ModelShape, config: dict[str, Value], peak_tflops: float, active: float
) -> None:
    count, prompt = 64, 3000
    batch: dict[str, Value] = {"max-num-batched-tokens": 8192}
    found = drive(node, shape, config | batch, concurrency=count, count=count, prompt=prompt, output=2)
    tokens_per_s = found.output_tok_s * prompt / 2  # about: outputs are 1 or 2 tokens, prompts 3,000
    most = peak_tflops * 1e12 / (2 * active)
    assert most / 16 < tokens_per_s * 0.75 < 1.2 * most


def test_eight_gpus_answer_one_request_more_slowly_than_two() -> None:
    """G25: a small model has little to split, and every GPU more makes each all-reduce longer."""
    tiny = [drive("8xH100-80GB", TINY, {TP: tp}).tpot_p50_s for tp in (1, 2)]
    assert tiny[1] > tiny[0]
    pcie = [drive("8xL40S-48GB-PCIe", SMALL, {TP: tp}).tpot_p50_s for tp in (2, 8)]
    assert pcie[1] > pcie[0]
    # A large model on NVLink is the other way round.
    large = [drive("8xH100-80GB", dense_70b(), {TP: tp}).tpot_p50_s for tp in (4, 8)]
    assert large[1] < large[0]


def test_replicas_of_a_small_model_carry_more_load_than_one_split_server() -> None:
    """R7 and G20; a lone request is the other way round."""
    loaded = [
        drive("4xA100-80GB", SMALL, {size: 4}, concurrency=512, count=1024, output=128).output_tok_s
        for size in (DP, TP)
    ]
    assert loaded[0] > 1.15 * loaded[1]
    alone = [drive("4xA100-80GB", SMALL, {size: 4}).tpot_p50_s for size in (DP, TP)]
    assert alone[1] < alone[0]


def test_on_pcie_stages_carry_prompts_and_tensor_parallel_shortens_a_token() -> None:
    """R6 and G22: 160 all-reduces of every prompt token's 16 KB are dear without NVLink."""
    node, shape = "4xL40S-48GB-PCIe", dense_70b()

    def prompts(config: dict[str, Value]) -> float:
        return drive(node, shape, config, concurrency=64, count=128, prompt=3000, output=8).output_tok_s

    assert prompts({PP: 4}) > 1.3 * prompts({TP: 4})
    assert drive(node, shape, {TP: 4}).tpot_p50_s < 0.5 * drive(node, shape, {PP: 4}).tpot_p50_s


def test_awq_halves_what_a_token_waits_for_and_computes_prompts_more_slowly() -> None:
    node = "4xH100-80GB"
    plain, awq = (drive(node, shape, {TP: 4}) for shape in (dense_70b(), AWQ))
    assert 0.35 < awq.tpot_p50_s / plain.tpot_p50_s < 0.75
    long = [
        drive(node, shape, {TP: 4}, concurrency=32, count=64, prompt=3000, output=4).output_tok_s
        for shape in (dense_70b(), AWQ)
    ]
    assert long[1] < long[0]


def test_fp8_weights_are_faster_in_both() -> None:
    fp8 = dense_70b(quantization="fp8", bits=8)
    plain, fast = (drive("4xH100-80GB", shape, {TP: 4}) for shape in (dense_70b(), fp8))
    assert 0.4 < fast.tpot_p50_s / plain.tpot_p50_s < 0.85
    assert fast.ttft_p50_s < plain.ttft_p50_s


def test_fp8_kv_lets_more_long_requests_run() -> None:
    tight = [
        drive(
            "4xH100-80GB", dense_70b(), {TP: 4, "kv-cache-dtype": dtype}, concurrency=64, count=96, prompt=4000,
            output=200, kv_tokens=tokens,
        ).output_tok_s
        for dtype, tokens in (("auto", 60_000), ("fp8", 120_000))
    ]  # fmt: skip
    assert tight[1] > 1.1 * tight[0]


def test_expert_parallel_is_slower_for_one_request_and_data_parallel_pays_under_load() -> None:
    """R8: dealt experts lie unevenly for few tokens; DP keeps its own KV cache where TP holds eight copies."""
    node, shape = "8xH200-141GB", deepseek_v3()
    sliced, dealt = (drive(node, shape, {TP: 8, EP: on}).tpot_p50_s for on in (False, True))
    assert sliced < dealt < 1.5 * sliced
    shared = drive(node, shape, {TP: 8, EP: True}, concurrency=768, count=1536, output=256, kv_tokens=680_000)
    own = drive(node, shape, {DP: 8, EP: True}, concurrency=768, count=1536, output=256, kv_tokens=280_000)
    assert own.output_tok_s > shared.output_tok_s
