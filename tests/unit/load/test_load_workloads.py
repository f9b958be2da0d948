from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InvalidFile, UnknownName
from autotune.load.lengths import Lengths, LengthShape
from autotune.load.workloads import (
    TEMPLATE_TOKENS,
    Api,
    builtin_workloads,
    load_workload,
    parse_workload,
    workload_fingerprint,
)
from autotune.records import ArrivalProcess, Arrivals

SHORT = "prompt_tokens: {fixed: 10}\noutput_tokens: {fixed: 5}\n"


def test_builtins() -> None:
    assert builtin_workloads() == ("agent", "batch", "chat", "code", "prefix", "rag", "summarize", "tiny")
    assert {load_workload(name).name for name in builtin_workloads()} == set(builtin_workloads())


def test_chat_is_the_recorded_load() -> None:
    chat = load_workload("chat")
    assert chat.api is Api.CHAT
    assert chat.prompt_tokens == Lengths.uniform(256, 768)
    assert chat.output_tokens == Lengths.uniform(64, 192)
    assert chat.prefixes is None
    # 768 x 1.02 = 783.4 -> 784, the template, 192.
    assert chat.max_model_len_needed == 784 + TEMPLATE_TOKENS + 192


def test_prefix_shares_its_system_prompt() -> None:
    prefix = load_workload("prefix")
    assert prefix.prefixes is not None
    assert (prefix.prefixes.tokens, prefix.prefixes.share) == (1024, 1.0)
    assert prefix.max_model_len_needed > 1024 + 307 + 77
    assert prefix.shared_tokens_per_request is None
    assert load_workload("tiny").shared_tokens_per_request == 0.0


def test_tiny_fits_a_tiny_model() -> None:
    assert load_workload("tiny").max_model_len_needed < 128


def test_every_key_of_the_shipped_files_is_explained() -> None:
    folder = Path(__file__).parents[3] / "autotune" / "load" / "workloads"
    for file in folder.glob("*.yaml"):
        lines = file.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            if line and line[0].isalpha() and not line.startswith("description"):
                assert lines[number - 1].startswith("#"), f"{file.name}: {line}"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
api: completions
prompt_tokens: {mean: 512, p95: 1500, max: 4000}
output_tokens: {min: 1, max: 9}
shared_prefixes: {count: 3, tokens: 100, share: 0.5}
slo: {ttft_p95_ms: 400}
longest_request_tokens: 9000
""",
        encoding="utf-8",
    )
    mine = load_workload(str(file))
    assert (mine.name, mine.api, mine.max_model_len_needed) == ("mine", Api.COMPLETIONS, 9000)
    assert mine.prompt_tokens.shape is LengthShape.LOGNORMAL
    assert str(mine.slo) == "ttft_p95<=400ms"


def test_a_file_holds_whatever_the_command_line_takes_as_an_slo() -> None:
    def slo_of(text: str) -> str:
        return str(parse_workload(f"{SHORT}slo: {text}", file="w.yaml", name="w").slo)

    assert slo_of("tpot_p95<=0.05s, ttft_p95<=500ms,error_rate<=0") == "ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0"
    assert slo_of('"1.5s"') == "ttft_p95<=1500ms"
    assert slo_of("null") == "None"


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean: chat"):
        load_workload("chatt")
    with pytest.raises(UnknownName, match=r"gone\.yaml.*\n?.*no such file"):
        load_workload(str(tmp_path / "gone.yaml"))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("promt_tokens: {fixed: 1}", "promt_tokens", "prompt_tokens"),
        ("output_tokens: {fixed: 5}", "prompt_tokens", "must be given"),
        (SHORT + "api: grpc", "api", "'chat' or 'completions'"),
        (SHORT + "requests: {ttft: 0}", "requests.ttft", "greater than or equal to 1"),
        (SHORT + "requests: {ttft: many}", "requests.ttft", "integer"),
        (SHORT + "requests: {ttfd: 1}", "requests.ttfd", "per_slot, ttft"),
        (SHORT + "shared_prefixes: {tokens: 3}", "shared_prefixes.count", "must be given"),
        (SHORT + "shared_prefixes: {cont: 3}", "shared_prefixes.cont", "count, tokens, share"),
        (SHORT + "slo: ttft_p59<=500ms", "slo", "METRIC one of: ttft_p50, ttft_p95"),
        (SHORT + "slo: fast", "slo", "ttft_p95<=500ms"),
        (SHORT + "slo: ttft_p95<=1s,ttft_p95<=2s", "slo", "each METRIC once"),
        (SHORT + "slo: 500", "slo", '"ttft_p95<=500ms'),
        (SHORT + "slo: [ttft_p95<=500ms]", "slo", '"ttft_p95<=500ms'),
        (SHORT + "slo: {ttft_p95_ms: 0}", "slo.ttft_p95_ms", "greater than 0"),
        (SHORT + "slo: {tpot_p95_ms: 5}", "slo.tpot_p95_ms", "ttft_p95_ms"),
        (SHORT + "concurrency: {start: 9, max: 2}", "concurrency", "start no greater than max"),
        ("prompt_tokens: {fixed: true}\noutput_tokens: {fixed: 5}", "prompt_tokens.fixed", "integer"),
        ("prompt_tokens: {mean: true, p95: 2}\noutput_tokens: {fixed: 5}", "prompt_tokens.mean", "number"),
        ("prompt_tokens: {fixed: null}\noutput_tokens: {fixed: 5}", "prompt_tokens", "one of"),
        ("prompt_tokens: {mean: 5}\noutput_tokens: {fixed: 5}", "prompt_tokens", "mean and spread"),
        ("prompt_tokens: {mean: 5, p95: 50}\noutput_tokens: {fixed: 5}", "prompt_tokens", "3.87 times mean"),
        ("prompt_tokens: {min: 5, max: 4}\noutput_tokens: {fixed: 5}", "prompt_tokens", "min no greater"),
        ("- 1", "", "mapping"),
        ("", "", "mapping"),
        ("a: [", "line 1, column 5", "plain YAML"),
        ("a: 2020-99-99", "", "plain YAML"),
        ("[" * 5000, "", "plain YAML"),
        ("&a {a: *a}", "line 1, column 8", "no aliases"),
    ],
)
def test_bad_files(text: str, key: str, said: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_workload(text, file="w.yaml", name="w")
    assert caught.value.key == key
    assert said in caught.value.allowed
    assert "w.yaml" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"description: caf\xe9")
    with pytest.raises(InvalidFile, match="UTF-8"):
        load_workload(str(tmp_path / "latin.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InvalidFile, match="regular"):
        load_workload(str(tmp_path / "folder.yaml"))
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(InvalidFile, match="at most"):
        load_workload(str(tmp_path / "big.yaml"))


def test_fingerprint_is_of_the_offered_load() -> None:
    chat = load_workload("chat")
    same = replace(chat, name="other", description="words", slo=None)
    assert workload_fingerprint(same) == workload_fingerprint(chat)
    for change in (
        replace(chat, seed=9),
        replace(chat, output_tokens=Lengths.fixed(1)),
        replace(chat, api=Api.COMPLETIONS),
        replace(chat, requests=replace(chat.requests, ttft=301)),
    ):
        assert workload_fingerprint(change) != workload_fingerprint(chat)


@given(st.text(max_size=80))
def test_any_text_is_refused_politely(text: str) -> None:
    with pytest.raises(InvalidFile):
        parse_workload(text, file="w.yaml", name="w")


BARE = "prompt_tokens: {fixed: 8}\noutput_tokens: {fixed: 8}\n"


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ("{process: constant}", ArrivalProcess(kind=Arrivals.CONSTANT)),
        ("{process: poisson}", ArrivalProcess(kind=Arrivals.POISSON)),
        ("{process: gamma, cv: 2}", ArrivalProcess(kind=Arrivals.GAMMA, cv=2.0)),
        ("{process: ramp, from: 0, to: 3}", ArrivalProcess(kind=Arrivals.RAMP, ramp_from=0.0, ramp_to=3.0)),
    ],
)
def test_arrivals_of_open_loops(text: str, process: ArrivalProcess) -> None:
    workload = parse_workload(f"{BARE}arrivals: {text}\n", file="w.yaml", name="w")
    assert workload.open_arrivals == process
    unsaid = parse_workload(BARE, file="w.yaml", name="w")
    assert unsaid.open_arrivals == ArrivalProcess(kind=Arrivals.POISSON)
    assert workload_fingerprint(workload) != workload_fingerprint(unsaid)


@pytest.mark.parametrize(
    "text",
    [
        "poisson",
        "{process: gamma}",
        "{process: poisson, cv: 1}",
        "{process: gamma, cv: 0}",
        "{process: ramp, from: 1}",
        "{process: ramp, from: 0, to: 0}",
        "{process: ramp, from: -1, to: 1}",
        "{process: ramp, from_: 1, to: 1}",
        "{process: trace}",
        "{process: bursty}",
    ],
)
def test_arrivals_that_are_none(text: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_workload(f"{BARE}arrivals: {text}\n", file="w.yaml", name="w")
    assert "arrivals" in str(caught.value)
