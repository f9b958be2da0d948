"""The quality guard on a real vLLM: a study that tries another dtype, through the command line."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_model import add_weights, make_tiny_model

from autotune.load.words import COMMON_WORDS

pytestmark = pytest.mark.real

NAME, PROMPTS, TOKENS = "dtypes", 12, 8
SPACE = {
    "name": "dtypes",
    "parameters": {"dtype": {"choices": ["bfloat16", "float32"], "why": "whether rounding changes answers"}},
}
FIXED = ["--enforce-eager", "--max-model-len", "512", "--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes"]
FIXED += [str(64 << 20), "--max-num-seqs", "4"]


def words(place: int, count: int) -> str:
    return " ".join(COMMON_WORDS[(7 * place + 3 * i) % len(COMMON_WORDS)] for i in range(count))


def autotune(directory: Path, *command: str, timeout_s: float = 600) -> str:
    environ = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "AUTOTUNE_CACHE_DIR": str(directory / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *command],
        cwd=directory, env=environ, capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ended(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Trial 0 is bfloat16, as the model's config says; trial 1 float32; trial 2 is trial 0 again."""
    directory = tmp_path_factory.mktemp("real-quality")
    model = add_weights(make_tiny_model(directory / "tiny-llama"))
    prompts = {
        "output_tokens": TOKENS,
        "prompts": [{"subject": "words", "text": words(place, 24)} for place in range(PROMPTS)],
    }
    study = {
        "space": "space.yaml",
        "trials": 2,
        "repeats": 1,
        "abandon": 0,  # a trial that ends early is not asked for its answers
        "starting_points": [{"dtype": "float32"}],
        "quality": {"prompts": "prompts.yaml", "perplexity_ratio": 1.5, "logprob_gap": 0.5, "agreement": 0.0},
    }
    for name, content in (("space", SPACE), ("prompts", prompts), ("study", study)):
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    text = autotune(
        directory,
        "study", "--file", "study.yaml", "--name", NAME, "--engine", "process",
        "--vllm-command", f"{vllm_python} -m vllm.entrypoints.openai.api_server",
        "--model", str(model), "--workload", "tiny", "--load", "concurrency=2,rate=4,requests=24",
        "--json", "--", *FIXED,
        timeout_s=3000,
    )  # fmt: skip
    return directory, json.loads(text)


def test_another_dtype_is_seen_and_the_same_one_is_not(ended: tuple[Path, dict[str, Any]]) -> None:
    _, document = ended
    trials = {trial["number"]: trial for trial in document["trials"]}
    reference, other = trials[0]["quality"], trials[1]["quality"]
    assert (reference["state"], reference["prompts"]) == ("reference", PROMPTS)
    assert (other["state"], other["reference"], other["lossy"]) == ("held", "trial 0", ["dtype=float32"])
    # bfloat16 keeps 8 bits: log-probabilities move in the third digit, and by no means by half.
    assert 1e-5 < other["logprob_gap"]["value"] < 0.5
    assert other["perplexity_ratio"]["value"] == pytest.approx(1.0, abs=0.2)
    again = next(trial for trial in document["trials"] if trial["repeat_of"] == 0)["quality"]
    assert (again["state"], again["logprob_gap"]["value"]) == ("reference", pytest.approx(0.0, abs=1e-3))
    assert again["agreement"]["value"] == 1.0
    assert again["logprob_gap"]["value"] < other["logprob_gap"]["value"]
    sys.stdout.write(json.dumps(other, indent=2))  # into the test's own output, for whoever reads a run


def test_the_answers_are_kept_and_the_figures_shown(ended: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = ended
    kept = json.loads(gzip.decompress((directory / "studies" / NAME / "trial-0001" / "quality.json.gz").read_bytes()))
    assert len(kept["answers"]) == PROMPTS
    # 24 words and the token that begins a text; of the first there is no probability.
    assert {len(one["logprobs"]) for one in kept["answers"]} <= {23, 24}
    assert {len(one["greedy"]) for one in kept["answers"]} <= set(range(1, TOKENS + 1))
    assert "changes numerics by dtype=float32" in autotune(directory, "show", NAME, "1")
    assert "answers" in autotune(directory, "pareto", NAME)
    rows = autotune(directory, "report", NAME, "--format", "markdown").splitlines()
    assert any("| answers | changes |" in row for row in rows)
    # Whether trial 1 is on the front, and so in the table, is decided by figures; the baseline always is.
    assert all("% alike |" in row for row in rows if row.startswith("| 1 |"))
    assert any(row.startswith("| 0 |") and "| reference |" in row for row in rows)
