"""Commands for `vllm bench serve` are what vLLM's own parser takes, and draw the lengths that the workload has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imported import Imported

pytestmark = pytest.mark.real

URL = "http://127.0.0.1:8000"
WORKLOADS = {
    "ramp": "arrivals: {process: ramp, from: 1, to: 3}",
    "gamma": "arrivals: {process: gamma, cv: 2}",
    "constant": "arrivals: {process: constant}",
    "prefixes": "shared_prefixes: {count: 5, tokens: 64}",
}
SHIPPED = ("chat", "rag", "prefix", "summarize", "code", "agent", "batch", "tiny")

# Of the dataset `random` it also gives the bounds of what would be drawn, by vLLM's own function and a tokenizer
# without special tokens.
PARSE = """
import argparse, json, sys
from types import SimpleNamespace
import numpy as np
from vllm.benchmarks.serve import add_cli_args
from vllm.benchmarks.datasets import utils
from vllm.benchmarks.datasets.datasets import _parse_range_ratio
tokenizer = SimpleNamespace(num_special_tokens_to_add=lambda: 0, vocab_size=1000)
found = []
for argv in json.load(sys.stdin):
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    args = parser.parse_args(argv)
    ends = None
    if args.dataset_name == "random":
        drawn = utils.get_sampling_params(np.random.default_rng(0), 20000, _parse_range_ratio(args.random_range_ratio),
            args.random_input_len, args.random_output_len, tokenizer)
        ends = [int(drawn[0].min()), int(drawn[0].max()), int(drawn[1].min()), int(drawn[1].max())]
    plain = {name: value for name, value in vars(args).items() if isinstance(value, (str, int, float, bool))}
    found.append({"args": plain, "ends": ends})
print("RESULT" + json.dumps(found))
"""


def command(workload: str, *load: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "workload", "command", workload, "--for", "vllm-bench", "--url", URL,
         "--json", *load],
        check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    argv: list[str] = json.loads(done.stdout)["argv"]
    assert argv[:3] == ["vllm", "bench", "serve"]
    return argv[3:]


@pytest.fixture(scope="module")
def parsed(vllm_imported: Imported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the parser made of each workload's command, by workload."""
    folder = tmp_path_factory.mktemp("workloads")
    commands = {name: command(name, "--concurrency", "8") for name in SHIPPED}
    for name, lines in WORKLOADS.items():
        path: Path = folder / f"{name}.yaml"
        path.write_text(f"prompt_tokens: {{fixed: 64}}\noutput_tokens: {{fixed: 16}}\n{lines}\n")
        commands[name] = command(str(path), "--rate", "8")
    said = vllm_imported.run(PARSE, given=json.dumps(list(commands.values())))
    return dict(zip(commands, json.loads(said.rsplit("RESULT", 1)[1].splitlines()[0]), strict=True))


def test_the_parser_takes_every_command(parsed: dict[str, Any]) -> None:
    assert set(parsed) == {*SHIPPED, *WORKLOADS}
    for found in parsed.values():
        assert found["args"]["base_url"] == URL
        assert found["args"]["ignore_eos"] is True
    ways = {name: (found["args"]["backend"], found["args"]["endpoint"]) for name, found in parsed.items()}
    assert {ways.pop("code"), ways.pop("tiny")} == {("openai", "/v1/completions")}
    assert set(ways.values()) == {("openai-chat", "/v1/chat/completions")}


def test_lengths_are_drawn_from_the_bounds_of_the_workload(parsed: dict[str, Any]) -> None:
    # chat.yaml: 512 and 128, both evenly spread by half; prefix.yaml: 256 and 64 by a fifth.
    assert parsed["chat"]["ends"] == [256, 768, 64, 192]
    assert parsed["prefix"]["ends"] == [205, 307, 51, 77]
    assert parsed["prefix"]["args"]["random_prefix_len"] == 1024
    assert parsed["tiny"]["ends"] == [16, 48, 8, 24]


def test_loads(parsed: dict[str, Any]) -> None:
    assert parsed["chat"]["args"]["max_concurrency"] == 8
    assert parsed["chat"]["args"]["request_rate"] == float("inf")
    assert (parsed["gamma"]["args"]["request_rate"], parsed["gamma"]["args"]["burstiness"]) == (8.0, 0.25)
    assert parsed["constant"]["args"]["burstiness"] == float("inf")
    ramp = parsed["ramp"]["args"]
    assert (ramp["ramp_up_strategy"], ramp["ramp_up_start_rps"], ramp["ramp_up_end_rps"]) == ("linear", 4, 12)
    assert ramp["request_rate"] == float("inf")
    assert parsed["prefixes"]["args"]["dataset_name"] == "prefix_repetition"
    assert parsed["prefixes"]["args"]["prefix_repetition_num_prefixes"] == 5
