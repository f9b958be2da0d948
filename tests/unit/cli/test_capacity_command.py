"""`autotune capacity` as typed: text, JSON, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import capacity
from autotune.errors import AutotuneError, InvalidOption, UnknownName

LLAMA = ("--model", "meta-llama/Llama-3.1-8B")
H200 = ("--node", "1xH200-141GB")
KEYS = {"fits", "reasons", "weights_gib_per_gpu", "available_kv_gib", "kv_tokens", "max_concurrency", "verdict"}


def run(*arguments: str) -> str:
    app = typer.Typer()
    capacity.register(app)
    done = CliRunner().invoke(app, list(arguments), env={"HF_HUB_CACHE": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def document(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_the_guides_question() -> None:
    found = document("--kv-tokens", "200000", "--users", "50", "--tokens-per-request", "4096")
    assert found.keys() >= KEYS
    assert found["verdict"] == "tight"
    assert found["concurrent"] == pytest.approx(48.8, abs=0.05)
    assert [round(one["concurrent"], 1) for one in found["remedies"] if "fp8" in one["change"]] == [97.7]
    text = run("--kv-tokens", "200000", "--users", "50", "--tokens-per-request", "16384")
    assert "out of reach" in text
    assert "12.2 requests" in text


def test_tokens_alone_say_nothing_about_a_start() -> None:
    text = run("--kv-tokens", "200000", "--users", "50", "--tokens-per-request", "16384")
    assert "fits   " not in text
    assert "vLLM" not in text
    assert "no" in run("--kv-tokens", "2000", "--max-model-len", "4096").split("reason")[0]


def test_layouts_stand_in_80_columns_and_the_verdict_names_its_own() -> None:
    node = ("--node", "4xL40S-48GB-PCIe")
    text = run("--model", "meta-llama/Llama-3.1-70B", *node, "--max-model-len", "8192")
    table = [line.rstrip() for line in text.split("TP  PP", 1)[1].split("\n\n")[0].splitlines()]
    assert max(map(len, table)) <= 80
    # One reason for all that put the whole model on one GPU.
    said = " ".join(text.split())
    assert said.count(": 131 GiB of weights") == 1
    assert "TP 1 x PP 1 x DP 1, TP 1 x PP 1 x DP 2, TP 1 x PP 1 x DP 4: 131 GiB of weights" in said
    asked = ("--users", "2", "--tokens-per-request", "4096")
    assert "requests fit at once with TP 4 x PP 1 x DP 1 (" in " ".join(
        run("--model", "meta-llama/Llama-3.1-70B", *node, "--max-model-len", "8192", *asked).split()
    )


def test_a_recorded_start() -> None:
    # vLLM 0.25.1, first start on an H200: 112.28 GiB, 919,824 tokens, 112.28x of 8,192 tokens.
    found = document(*LLAMA, *H200, "--max-model-len", "8192")
    assert found["fits"]
    assert found["weights_gib_per_gpu"] == pytest.approx(15.0, abs=0.02)
    assert found["available_kv_gib"] == pytest.approx(112.28, abs=0.1)
    assert found["kv_tokens"] == pytest.approx(919824, rel=0.001)
    assert found["max_concurrency"] == pytest.approx(112.28, rel=0.001)


def test_from_a_logged_memory_without_a_node() -> None:
    found = document(*LLAMA, "--available-kv-gib", "112.28", "--max-model-len", "8192")
    assert found["kv_tokens"] == pytest.approx(919824, rel=0.001)
    assert found["weights_gib_per_gpu"] is None
    assert document(*LLAMA, "--available-kv-gib", "4.64")["reasons"]


def test_every_layout_of_a_node() -> None:
    arguments = ("--model", "meta-llama/Llama-3.1-70B", "--node", "4xH100-80GB-NVLink", "--max-model-len", "8192")
    found = document(*arguments)
    assert len(found["layouts"]) == 10
    fitting = {(one["tensor_parallel"], one["pipeline_parallel"]) for one in found["layouts"] if one["fits"]}
    assert (1, 1) not in fitting  # 131 GiB of weights
    assert (4, 1) in fitting
    assert found["kv_tokens"] == max(one["kv_tokens"] for one in found["layouts"])
    assert "leave" in run(*arguments)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((*LLAMA, *H200, "--kv-tokens", "5"), "--kv-tokens"),
        ((*LLAMA, *H200, "--available-kv-gib", "5"), "--available-kv-gib"),
        (("--kv-tokens", "5", "--users", "3"), "--tokens-per-request"),
        (("--kv-tokens", "5", "--tokens-per-request", "3"), "--users"),
        (("--kv-tokens", "5", "--tp", "2"), "--tensor-parallel-size"),
        (("--kv-tokens", "9" * 40), "--kv-tokens"),
        (H200, "--model"),
        (LLAMA, "--node"),
        ((*LLAMA, *H200, "--tp", "2"), "--tp x --pp x --dp"),
        ((*LLAMA, *H200, "--ep"), "--ep"),
        ((*LLAMA, *H200, "--kv-cache-dtype", "fp9"), "--kv-cache-dtype"),
        ((*LLAMA, *H200, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization"),
        ((*LLAMA, *H200, "--max-model-len", "9" * 30), "--max-model-len"),
        ((*LLAMA, *H200, "--vllm-version", "latest"), "--vllm-version"),
        ((*LLAMA, "--available-kv-gib", "nan"), "--available-kv-gib"),
        ((*LLAMA, *H200, "--users", "1", "--tokens-per-request", "200000"), "--tokens-per-request"),
    ],
)
def test_what_cannot_be_answered_names_the_option(arguments: tuple[str, ...], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        run(*arguments)
    assert caught.value.option == option


def test_unknown_names() -> None:
    with pytest.raises(UnknownName):
        run("--model", "no/such-model", *H200)
    with pytest.raises(AutotuneError):
        run(*LLAMA, "--node", "3xNoSuchCard-1GB")
