from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.workload import CommandFor
from autotune.load.bench_commands import BenchCommand, BenchTool, bench_command
from autotune.load.workload import Workload
from autotune.load.workload_summary import shown_level, sum_up
from autotune.load.workloads import builtin_workloads, load_workload, parse_workload

URL = "http://127.0.0.1:8000"
BARE = "prompt_tokens: {fixed: 100}\noutput_tokens: {fixed: 20}\n"


def made(workload: Workload, tool: BenchTool, *, model: str | None = None, **level: Any) -> BenchCommand:
    found = sum_up(workload, shown_level(workload, **(level or {"concurrency": 4})))
    return bench_command(tool, workload, found, url=URL, model=model)


def vllm(text: str, **level: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    """Options with their values, and what is missing, of a YAML workload for vLLM's client."""
    command = made(parse_workload(text, file="w.yaml", name="w"), BenchTool.VLLM_BENCH, **level)
    words = command.argv[3:]
    return {a: b for a, b in zip(words, (*words[1:], ""), strict=True) if a.startswith("--")}, command.missing


def guidellm(text: str, **level: Any) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    command = made(parse_workload(text, file="w.yaml", name="w"), BenchTool.GUIDELLM, **level)
    pairs = zip(command.argv[2::2], command.argv[3::2], strict=True)
    return {key: dict(part.split("=", 1) for part in value.split(",")) for key, value in pairs}, command.missing


def test_the_clients_of_the_command_line_are_those_there_are() -> None:
    assert [str(one) for one in CommandFor] == [str(one) for one in BenchTool]


def test_a_closed_loop_for_vllm() -> None:
    options, missing = vllm(f"{BARE}seed: 3\n", concurrency=4)
    assert options["--base-url"] == URL
    assert (options["--backend"], options["--endpoint"]) == ("openai-chat", "/v1/chat/completions")
    assert (options["--dataset-name"], options["--random-input-len"], options["--random-output-len"]) == (
        "random",
        "100",
        "20",
    )
    assert (options["--max-concurrency"], options["--num-prompts"], options["--seed"]) == ("4", "16", "3")
    assert not {"--request-rate", "--random-range-ratio", "--random-prefix-len", "--model"} & options.keys()
    assert [text.split(":")[0] for text in missing] == ["the staggered start"]
    completions, _ = vllm(f"{BARE}api: completions\n")
    assert (completions["--backend"], completions["--endpoint"]) == ("openai", "/v1/completions")


def test_even_lengths_and_prefixes_for_vllm() -> None:
    options, missing = vllm(
        "prompt_tokens: {mean: 512, spread: 0.5}\noutput_tokens: {min: 10, max: 13}\n"
        "shared_prefixes: {count: 1, tokens: 1024}\n",
        rate_rps=2.0,
    )
    # Its draws are from floor(512 x 0.5) to ceil(512 x 1.5); 10 to 13 have no whole mean.
    assert json.loads(options["--random-range-ratio"])["input"] == 0.5
    assert (options["--random-output-len"], options["--random-prefix-len"]) == ("12", "1024")
    assert [text.split(":")[0] for text in missing] == ["the longest output"]
    several, missing = vllm(f"{BARE}shared_prefixes: {{count: 7, tokens: 50, share: 0.5}}\n", rate_rps=2.0)
    assert several["--dataset-name"] == "prefix_repetition"
    assert several["--prefix-repetition-num-prefixes"] == "7"
    assert (several["--prefix-repetition-prefix-len"], several["--prefix-repetition-suffix-len"]) == ("50", "100")
    assert [text.split(":")[0] for text in missing] == ["the share of requests with a prefix"]


@pytest.mark.parametrize(
    ("arrivals", "expected", "lacking"),
    [
        ("{process: poisson}", {"--request-rate": "8"}, 0),
        ("{process: constant}", {"--request-rate": "8", "--burstiness": "inf"}, 0),
        ("{process: gamma, cv: 2}", {"--request-rate": "8", "--burstiness": "0.25"}, 0),
        # Mean 8 with a ratio of 1 to 3: from 4 to 12. Its parser takes no rate beside a ramp.
        ("{process: ramp, from: 1, to: 3}", {"--ramp-up-start-rps": "4", "--ramp-up-end-rps": "12"}, 1),
        ("{process: ramp, from: 3, to: 1}", {"--request-rate": "8"}, 1),
    ],
)
def test_arrivals_for_vllm(arrivals: str, expected: dict[str, str], lacking: int) -> None:
    options, missing = vllm(f"{BARE}arrivals: {arrivals}\n", rate_rps=8.0)
    names = {"--request-rate", "--burstiness", "--ramp-up-start-rps", "--ramp-up-end-rps", "--max-concurrency"}
    assert {key: value for key, value in options.items() if key in names} == expected
    assert len(missing) == lacking


def test_guidellm() -> None:
    options, missing = guidellm(
        "prompt_tokens: {mean: 512, spread: 0.5}\noutput_tokens: {fixed: 20}\n"
        "shared_prefixes: {count: 3, tokens: 1024}\n",
        rate_rps=2.5,
    )
    assert options["--backend"] == {
        "kind": "openai_http",
        "target": URL,
        "request_format": "/v1/chat/completions",
    }
    assert options["--profile"] == {"kind": "poisson", "rate": "2.5"}
    assert options["--data"] == {
        "kind": "synthetic_text",
        "prompt_tokens": "512",
        "prompt_tokens_min": "256",
        "prompt_tokens_max": "768",
        "output_tokens": "20",
        "prefix_count": "3",
        "prefix_tokens": "1024",
    }
    assert missing == ()
    # Log-normal with mean 100 and p95 200: sigma is 1.6449 - sqrt(2.7055 - 2 ln 2) = 0.4963, the deviation
    # 100 x sqrt(exp(0.4963^2) - 1) = 52.8.
    skewed, missing = guidellm("prompt_tokens: {mean: 100, p95: 200, max: 300}\noutput_tokens: {fixed: 2}\n")
    assert (skewed["--data"]["prompt_tokens_stdev"], skewed["--data"]["prompt_tokens_max"]) == ("53", "300")
    assert skewed["--profile"] == {"kind": "concurrent", "streams": "4"}
    assert skewed["--constraint"]["kind"] == "max_requests"
    assert len(missing) == 2
    constant, missing = guidellm(f"{BARE}arrivals: {{process: constant}}\n", rate_rps=3.0)
    assert (constant["--profile"], missing) == ({"kind": "constant", "rate": "3"}, ())
    _, missing = guidellm(f"{BARE}arrivals: {{process: gamma, cv: 3}}\n", rate_rps=3.0)
    assert [text.split(":")[0] for text in missing] == ["gamma arrivals"]


def test_a_name_that_would_be_taken_apart_travels_as_json() -> None:
    workload = parse_workload(BARE, file="w.yaml", name="w")
    command = made(workload, BenchTool.GUIDELLM, model="a,kind=b")
    assert json.loads(command.argv[3])["model"] == "a,kind=b"
    assert made(workload, BenchTool.VLLM_BENCH, model="org/m").argv.count("org/m") == 1


@pytest.mark.parametrize("tool", BenchTool)
@pytest.mark.parametrize("name", builtin_workloads())
def test_every_shipped_workload_has_a_command(name: str, tool: BenchTool) -> None:
    workload = load_workload(name)
    command = made(workload, tool)
    assert command.argv[0] in {"vllm", "guidellm"}
    assert any(text.startswith("turns:") for text in command.missing) == (workload.turns is not None)
    # An agent's prompt is its whole history: 8,000 tokens and not the 700 that a turn adds.
    if name == "agent":
        sizes = [word for word in command.argv if "prompt_tokens=" in word or word.isdigit()]
        assert any(5_000 < int(size.split("prompt_tokens=")[-1].split(",")[0]) < 12_000 for size in sizes)
    opened = replace(workload, seed=2**40)
    assert made(opened, tool, rate_rps=3.0).argv != command.argv
