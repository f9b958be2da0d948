"""A real vLLM that somebody else started: what it counts of each way of writing prompts (`usage.prompt_tokens`), and
what `autotune check` and `autotune workload capture` read off it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from loopback import kept_port
from tiny_model import MAX_POSITIONS, VOCABULARY, make_tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from autotune.errors import ExitCode
from autotune.load.client import DriveOptions, drive
from autotune.load.preparing import PromptSource, prepare_prompts
from autotune.load.tokenizing import find_tokenizer
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import Api
from autotune.promote import Promotion
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    EngineKind,
    LevelRole,
    LoadLevel,
    Origin,
    PlannedRequest,
    RequestRecord,
    ServerFacts,
    SharedSpan,
)
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import PromotionRecord, StudySpec

pytestmark = pytest.mark.real

FLAGS = ["--load-format", "dummy", "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", str(MAX_POSITIONS)]
FLAGS += ["--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", str(64 << 20)]
START_S = 1500
"""Beside other tests, of which these take what is left of the cores, a start of a minute takes many."""


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
def served(python: str, model: Path, log: Path, *flags: str, **variables: str) -> Iterator[str]:
    """A real server's URL."""
    kept = kept_port()
    port = kept.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *FLAGS, *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | variables,
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
        process.wait(300)
        kept.close()


@pytest.fixture(scope="module")
def bpe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return give_bpe_tokenizer(make_tiny_model(tmp_path_factory.mktemp("models") / "bpe-llama"))


@pytest.fixture(scope="module")
def bpe(vllm_python: str, bpe_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with that tokenizer, in development mode."""
    log = tmp_path_factory.mktemp("bpe") / "server.log"
    with served(vllm_python, bpe_model, log, VLLM_SERVER_DEV_MODE="1") as url:
        yield url


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def model_name(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=120) as response:
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


PROMPT, OUTPUT, ENOUGH = 32, 8, 20
PROMOTED = {
    "load-format": "dummy",
    "enforce-eager": True,
    "dtype": "bfloat16",
    "max-model-len": MAX_POSITIONS,
    "gpu-memory-utilization": 0.5,
    "kv-cache-memory-bytes": 64 << 20,
    "max-num-seqs": 7,
}
"""What runs, but for the last one, which nobody gave to the server."""


def version_of(python: str) -> str:
    """The installed version, not asked of a server, and without importing what takes seconds."""
    code = (
        "import importlib.util, pathlib, runpy; "
        "folder = pathlib.Path(importlib.util.find_spec('vllm').origin).parent; "
        "print(runpy.run_path(str(folder / '_version.py'))['__version__'])"
    )
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def promoted(folder: Path, model: Path, version: str) -> None:
    """A history in which PROMOTED was promoted."""
    places, at = Places(root=folder / "studies"), datetime(2026, 3, 1, tzinfo=UTC)
    places.root.mkdir()
    promotion = Promotion(
        name="prod",
        created_at=at,
        study="s",
        trial=0,
        config_hash="h",
        model=str(model),
        vllm_version=version,
        targets=("shell",),
        files=(),
        argv=(),
        simulated=False,
        simulated_allowed=False,
        flags=tuple(sorted(PROMOTED.items())),
        # Keys and values of 2 layers, 2 KV heads of 32 numbers, 2 bytes each: 512 bytes per token.
        resolved=ServerFacts(vllm_version=version, kv_cache_tokens=(64 << 20) // 512),
        prompt_tokens_mean=float(PROMPT),
        output_tokens_mean=float(OUTPUT),
    )
    spec = StudySpec(
        name="s",
        seed=0,
        engine=EngineKind.PROCESS,
        simulated=False,
        clock=ClockKind.WALL,
        target_trials=1,
        identity={"model": str(model), "workload": "w", "node": "cpu", "vllm_version": version},
    )
    with Store.open(places.database) as store:
        store.create_or_resume_study(spec)
        store.begin_trial("s", number=0, config=Config.of(PROMOTED), origin=Origin.BASELINE, gpus=1)
        store.add_promotion(
            PromotionRecord(
                study="s",
                trial=0,
                created_at=at,
                targets=("shell",),
                directory=str(folder),
                simulated=False,
                details=promotion.as_document(),
            )
        )


@contextmanager
def users(url: str, model: str) -> Iterator[None]:
    """Two users who ask one thing after the other, of which none opens as another one does."""
    done, serial = threading.Event(), itertools.count()

    def user() -> None:
        while not done.wait(0.02):
            first = next(serial)
            prompt = [3 + first % 900, 3 + first // 900, *range(100, 100 + PROMPT - 2)]
            body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as response:
                response.read()

    threads = [threading.Thread(target=user) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(600)


def begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *words, "--json"],
        cwd=folder,
        env=os.environ | {"AUTOTUNE_CACHE_DIR": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    out, err = process.communicate(timeout=1500)
    return process.returncode, json.loads(out), err


def test_production_is_held_against_its_promotion_and_its_workload_is_captured(
    bpe: str, bpe_model: Path, vllm_python: str, tmp_path: Path
) -> None:
    promoted(tmp_path, bpe_model, version_of(vllm_python))
    with users(bpe, model_name(bpe)):
        for seconds in (5, 30, 180, 600):  # until enough requests have ended meanwhile, however busy the machine
            watch, out = ("--url", bpe, "--seconds", str(seconds)), f"now-{seconds}.yaml"
            check = begun(tmp_path, "check", *watch, "--promotion", "prod")
            capture = begun(tmp_path, "workload", "capture", *watch, "--out", out)
            (code, found, said), (captured_code, captured, captured_said) = ended(check), ended(capture)
            if found["ended"] >= ENOUGH and captured["requests"] >= ENOUGH:
                break
    # Only in development mode does a vLLM say how many sequences it takes.
    assert code == ExitCode.CONFIG_DRIFTED, said
    assert [(one["kind"], one["what"], one["promoted"]) for one in found["findings"]] == [
        ("config_drift", "max-num-seqs", "7")
    ]
    assert found["ended"] >= ENOUGH
    same = "\n".join(found["as_promoted"])
    for text in (
        f"vLLM {version_of(vllm_python)}",
        f"model {bpe_model}",
        f"max-model-len {MAX_POSITIONS}",
        "gpu-memory-utilization 0.5",
        "kv-cache-dtype auto",
        "enforce-eager True",
        "dtype bfloat16",
        f"kv-cache-memory-bytes {64 << 20}",
        "KV cache tokens 131,072",
        f"mean prompt tokens {PROMPT}",
        f"mean output tokens {OUTPUT}",
    ):
        assert text in same, (text, found)
    assert captured_code == 0, captured_said
    assert captured["requests"] >= ENOUGH
    assert captured["prompt_tokens"]["mean"] == PROMPT
    assert captured["output_tokens"]["mean"] == OUTPUT
    assert captured["prompt_tokens"]["p95_low"] < PROMPT <= (captured["prompt_tokens"]["p95_high"] or PROMPT)
    assert yaml.safe_load((tmp_path / out).read_text())


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
