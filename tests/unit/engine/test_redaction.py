import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.redaction import REDACTED, redact

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
