"""Finding a tokenizer: where it lies, and every reason why there is none."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from autotune.load.prompts import render_pooled
from autotune.load.tokenizing import TextTokenizer, find_tokenizer, is_offline
from autotune.load.words import COMMON_WORDS
from autotune.records import PlannedRequest

OFFLINE = {"HF_HUB_OFFLINE": "1"}


def bpe() -> Tokenizer:
    """Byte-level BPE as GPT-2's and Llama 3's, with a vocabulary that holds every word we use."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    text = " ".join(COMMON_WORDS)
    tokenizer.train_from_iterator([text, text, text.replace(" ", "\n")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tokenizer that was saved with truncation and padding on."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = bpe()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def found(place: Path | str, cache: Path | None = None) -> TextTokenizer:
    result = find_tokenizer(str(place), environ=OFFLINE, cache_dir=cache)
    assert result.tokenizer is not None, result.reason
    assert result.reason == ""
    return result.tokenizer


def test_folder_and_file(saved: Path) -> None:
    assert found(saved).source == found(saved / "tokenizer.json").source


def test_truncation_padding_and_special_tokens_do_not_count(saved: Path) -> None:
    assert found(saved).count("like " * 50) >= 50
    assert found(saved).count("like") == 1
    assert found(saved).count("") == 0


def test_lone_surrogates_count_as_something(saved: Path) -> None:
    assert found(saved).count("\ud800") == found(saved).count("?")


def test_in_the_cache_of_the_hub(saved: Path, tmp_path: Path) -> None:
    repo = tmp_path / "models--org--model"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    (snapshot / "tokenizer.json").write_bytes((saved / "tokenizer.json").read_bytes())
    assert found("org/model", tmp_path).source.endswith("tokenizer.json")
    missing = find_tokenizer("org/other", environ=OFFLINE, cache_dir=tmp_path)
    assert missing.tokenizer is None
    assert "HF_HUB_OFFLINE" in missing.reason


def test_a_hub_that_cannot_be_reached_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, not listening: refuses at once
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        result = find_tokenizer("org/model", environ={}, cache_dir=tmp_path)
    assert result.tokenizer is None
    assert "cannot be reached" in result.reason


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[" * 50_000, bytes(range(256)), b'{"model": {"type": "BPE", "vocab": null, "merges": []}}'],
)
def test_what_is_no_tokenizer_is_a_reason(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    result = find_tokenizer(str(tmp_path), environ=OFFLINE)
    assert result.tokenizer is None
    assert "cannot be read as a tokenizer" in result.reason
    assert "\n" not in result.reason


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)  # a hole: takes no room
    assert "no tokenizer has" in find_tokenizer(str(tmp_path), environ=OFFLINE).reason


@pytest.mark.parametrize(
    "name",
    ["", "a\0b", "x" * 5000, "../../etc/passwd", "/nowhere/at/all", "a/b/c", "bad name/with blanks", "~nobody/x"],
)
def test_names_that_lead_nowhere_are_a_reason(name: str, tmp_path: Path) -> None:
    result = find_tokenizer(name, environ=OFFLINE, cache_dir=tmp_path)
    assert result.tokenizer is None
    assert result.reason


def test_an_empty_folder_is_a_reason(tmp_path: Path) -> None:
    assert "holds no tokenizer.json" in find_tokenizer(str(tmp_path), environ=OFFLINE).reason


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("ON", True), ("true", True), ("0", False), ("", False)])
def test_offline_by_environment(value: str, offline: bool) -> None:
    assert is_offline({"HF_HUB_OFFLINE": value}) is offline
    assert is_offline({"TRANSFORMERS_OFFLINE": value}) is offline


def test_the_pool_of_a_real_tokenizer_is_exact(saved: Path) -> None:
    tokenizer = found(saved)
    pool = tokenizer.pool()
    assert pool is not None
    assert len(pool.words) > 400
    for length in range(1, 300, 7):
        planned = PlannedRequest(index=0, prompt_tokens=length, output_tokens=1, content_seed=length)
        assert tokenizer.count(render_pooled(planned, pool)) == length


def test_a_vocabulary_without_our_words_gives_no_pool(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "mot": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "WordLevel"
    assert found(tmp_path).pool() is None  # every word is one token, and the same one
