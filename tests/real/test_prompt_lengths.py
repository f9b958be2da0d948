"""What a real vLLM counts (`usage.prompt_tokens`) against what the plan asked for, each way of writing prompts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_model import MAX_POSITIONS, VOCABULARY, make_tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from autotune.load.client import DriveOptions, drive
from autotune.load.preparing import PromptSource, prepare_prompts
from autotune.load.tokenizing import find_tokenizer
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import Api
from autotune.records import Arrivals, LevelRole, LoadLevel, PlannedRequest, RequestRecord, SharedSpan

pytestmark = pytest.mark.real

FLAGS = ["--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", str(MAX_POSITIONS)]
FLAGS += ["--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", str(64 << 20)]
START_S = 240


def give_bpe_tokenizer(folder: Path) -> Path:
    """Replace the word-level tokenizer by a byte-level BPE with a beginning-of-sequence token, as Llama 3's is.

    Trained on two thirds of the words only, so that it cuts many of the others.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    known = [word for at, word in enumerate(COMMON_WORDS) if at % 3]
    tokenizer.train_from_iterator([" ".join(known), "\n".join(known)] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@contextmanager
def served(python: str, model: Path, log: Path, *flags: str) -> Iterator[str]:
    """A real server's URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *FLAGS, *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
    try:
        end = time.monotonic() + START_S
        while not healthy(url):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, log.read_text()[-4000:]
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def bpe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return give_bpe_tokenizer(make_tiny_model(tmp_path_factory.mktemp("models") / "bpe-llama"))


@pytest.fixture(scope="module")
def bpe(vllm_python: str, bpe_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with that tokenizer."""
    with served(vllm_python, bpe_model, tmp_path_factory.mktemp("bpe") / "server.log") as url:
        yield url


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def model_name(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def planned() -> list[PlannedRequest]:
    """Prompts of 100 tokens and more, half of them with shared spans."""
    lengths = [100, 101, 117, 160, 256, 333, 512, 700, 1000, 1500]
    return [
        PlannedRequest(
            index=at,
            prompt_tokens=tokens,
            output_tokens=3,
            content_seed=at + 1,
            shared=(SharedSpan(content=7, tokens=64), SharedSpan(content=-3, tokens=16)) if at % 2 else (),
        )
        for at, tokens in enumerate(lengths)
    ]


def sent(url: str, source: PromptSource) -> tuple[tuple[RequestRecord, ...], tuple[str, ...]]:
    """What came back of the planned requests, and the codes of the doubts."""

    async def run() -> tuple[tuple[RequestRecord, ...], tuple[str, ...]]:
        options = DriveOptions(api=source.api, model=model_name(url), render=lambda _request: "")
        prompts = await prepare_prompts(url, source, options)
        assert prompts.exact
        level = LoadLevel(
            name="lengths", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=10, seed=0, concurrency=2
        )
        records, _ = await drive(url, level, planned(), options=prompts.over(options))
        return records, tuple(caveat.code for caveat in prompts.caveats)

    return asyncio.run(run())


def check(records: tuple[RequestRecord, ...]) -> None:
    asked = [request.prompt_tokens for request in planned()]
    assert [record.error for record in records] == [None] * len(asked)
    counted = [record.prompt_tokens or 0 for record in records]
    assert [abs(got / want - 1) <= 0.01 for got, want in zip(counted, asked, strict=True)] == [True] * len(asked), (
        counted
    )
    assert abs(sum(counted) / sum(asked) - 1) <= 0.01


@pytest.mark.parametrize("api", Api)
def test_a_tokenizer_that_cuts_most_words(bpe: str, bpe_model: Path, api: Api) -> None:
    found = find_tokenizer(str(bpe_model))
    assert found.tokenizer is not None, found.reason
    assert found.tokenizer.pool() is None
    records, doubts = sent(bpe, PromptSource(api=api, tokenizer=found.tokenizer))
    assert doubts == ()
    check(records)


def test_words_of_one_token(vllm_python: str, tiny_model: Path, tmp_path: Path) -> None:
    found = find_tokenizer(str(tiny_model))
    assert found.tokenizer is not None, found.reason
    with served(vllm_python, tiny_model, tmp_path / "server.log") as url:
        for api in Api:
            for tokenizer in (found.tokenizer, None):  # ours, and what the server tells by /tokenize
                records, doubts = sent(url, PromptSource(api=api, tokenizer=tokenizer))
                assert doubts == ()
                check(records)
                assert [r.prompt_tokens for r in records] == [request.prompt_tokens for request in planned()]


def test_token_ids_where_the_server_has_no_tokenizer(vllm_python: str, tiny_model: Path, tmp_path: Path) -> None:
    with served(vllm_python, tiny_model, tmp_path / "server.log", "--skip-tokenizer-init") as url:
        records, doubts = sent(url, PromptSource(api=Api.CHAT, vocab_size=VOCABULARY))
    assert doubts == ("completions_instead",)
    check(records)
    assert [record.prompt_tokens for record in records] == [request.prompt_tokens for request in planned()]
    # Its tokens have no text, and are seen all the same.
    assert [record.counted_tokens for record in records] == [3] * len(records)
    assert all(record.first_token_s is not None for record in records)
