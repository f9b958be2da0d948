import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.redaction import REDACTED, is_secret_name, redact, redact_data, redact_prose, redact_stream

SECRET = "Zx81kQ0pLm55RtYw72Bv"

LEAKS = [
    f"using token hf_{SECRET} for download",
    f"docker run -e HUGGING_FACE_HUB_TOKEN={SECRET} vllm/vllm-openai",
    f"HF_TOKEN={SECRET}",
    f"export OPENAI_API_KEY='{SECRET}'",
    f"environ({{'HF_TOKEN': '{SECRET}', 'PATH': '/bin'}})",
    f"vllm serve m --api-key {SECRET} --port 8000",
    f"vllm serve m --api-key={SECRET}",
    f"vllm serve m --api-key first {SECRET} --port 8000",
    f"argv ['vllm', 'serve', '--api-key', '{SECRET}', '--port', '1']",
    f"non-default args: {{'api_key': ['{SECRET}', 'b'], 'port': 8000}}",
    f"args: Namespace(host=None, api_key='{SECRET}', port=8000, hf_token=None)",
    f"Namespace(hf_token='{SECRET}')",
    f"Authorization: Bearer {SECRET}",
    f"headers={{'Authorization': 'Basic {SECRET}=='}}",
    f"GET https://user:{SECRET}@example.org/model",
    f"GET https://{SECRET}@example.org/model",
    f"https://bucket.example.org/x?X-Amz-Signature={SECRET}&part=1",
    f"OPENAI key sk-proj-{SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
]


@pytest.mark.parametrize("text", LEAKS)
def test_a_secret_in_any_dress_is_taken_out(text):
    shown = redact(text)
    assert SECRET not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "text",
    [
        "GPU KV cache size: 919,824 tokens",
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
        "bos_token='<s>', eos_token_id=1, pad_token='<pad>'",
        "non-default args: {'model': 'a/b', 'api_key': None, 'hf_token': None, 'max_model_len': 8192}",
        "tokenizer_revision=None, hf_overrides={}, hf_text_config=LlamaConfig",
        "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        "error: argument --api-key: expected at least one argument",
        "tcp://127.0.0.1:49505 backend=nccl",
        "HF_TOKEN=None",
    ],
)
def test_ordinary_log_text_is_left_alone(text):
    assert redact(text) == text


def test_what_surrounds_a_secret_stays():
    assert redact(f"a HF_TOKEN={SECRET} b") == f"a HF_TOKEN={REDACTED} b"
    assert redact(f"https://u:{SECRET}@h/x?y=1") == f"https://{REDACTED}@h/x?y=1"
    assert redact(f"x --api-key {SECRET} --port 1") == f"x --api-key {REDACTED} --port 1"


FRAGMENTS = [
    "HF_TOKEN=",
    "--api-key ",
    "'api_key': ['",
    "://",
    "@h",
    "Bearer ",
    "?token=",
    "hf_" + SECRET,
    "'",
    " ",
    REDACTED,
]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=12).map("".join))
def test_redacting_twice_changes_nothing(text):
    once = redact(text)
    assert redact(once) == once


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "env:MY_TOKEN", "--api-key", "DB_PASSWORD", "aws_secret", "X_API_KEY", "Authorization"]
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokenizer", "kv_cache_tokens", "bos_token", "monkey", "key", "env:OMP_NUM_THREADS"]
)
def test_names_of_other_things(name):
    assert not is_secret_name(name)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["HF_TOKEN", "api_key", "env:DB_PASSWORD"]),
    st.booleans(),
)
def test_a_planted_secret_never_leaves_json(data, name, several):
    # Two secrets: one that gives itself away, and one that only its name does.
    planted = {"deep": [data, {name: [SECRET, SECRET] if several else SECRET}], "pair": [name, SECRET]}
    planted["words"] = ["vllm", "--api-key", SECRET, SECRET, "--port", "1", f"--hf-token={SECRET}"]
    planted["text"] = f"a hf_{SECRET} b"
    shown = redact_data(planted)
    assert SECRET not in json.dumps(shown)
    assert redact_data(shown) == shown
    assert shown["deep"][0] == redact_data(data)
    assert shown["words"][4:6] == ["--port", "1"]


@given(st.binary(max_size=300), st.integers(0, 3_000_000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_planted_secret_never_leaves_a_log(around, before, newline):
    line = b"x " * (before // 2) + f"HF_TOKEN={SECRET} hf_{SECRET} ".encode() + around
    shown = b"".join(redact_stream(io.BytesIO(line + b"\n" * newline)))
    assert SECRET.encode() not in shown
    assert shown.startswith(b"x " * (before // 2))
    assert b"".join(redact_stream(io.BytesIO(shown))) == shown


def test_sentences_keep_their_words():
    said = "--api-key is a secret: set VLLM_API_KEY; a bearer token is none"
    assert redact_prose(said) == said
    assert SECRET not in redact_prose(
        f"model 'https://me:{SECRET}@h/x', hf_{SECRET}, --api-key={SECRET} HF_TOKEN={SECRET}"
    )
