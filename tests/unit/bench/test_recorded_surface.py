"""The JSONL format of recorded studies: reads back, and refuses with line, key and what is allowed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bench.recorded import (
    RecordedLaunch,
    RecordedStudy,
    parse_recorded,
    read_recorded,
    recorded_surface,
    shipped_recorded,
)
from autotune.bench.run import recorded_prior
from autotune.bench.surfaces import SurfaceKind
from autotune.errors import ExitCode, InvalidFile
from autotune.records import Config, FailureClass

DATA = Path(__file__).parents[2] / "data" / "surfaces"
HEADER: dict[str, Any] = {"format": "autotune-surface", "version": 1, "name": "s", "baseline": {}}
BASE: dict[str, Any] = {
    "config": {}, "outcome": "measured", "output_tok_s_per_gpu": 100.0, "ttft_p95_s": 0.5, "start_s": 80.0,
}  # fmt: skip


def text(*lines: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def written(study: RecordedStudy) -> str:
    """The file of a study, as docs/search-benchmark.md states it."""
    header = {
        "format": "autotune-surface",
        "version": 1,
        "name": study.name,
        "about": study.about,
        "node": study.node,
        "model": study.model,
        "workload": study.workload,
        "concurrency_per_gpu": study.concurrency_per_gpu,
        "rate_rps_per_gpu": study.rate_rps_per_gpu,
        "baseline": study.baseline.as_dict(),
        "throughput_sd": study.noise.throughput_sd if study.noise else None,
        "ttft_sd": study.noise.ttft_sd if study.noise else None,
    }
    rows: list[dict[str, object]] = [
        {
            "config": one.config.as_dict(),
            "outcome": "measured" if one.failure is None else "infeasible",
            "output_tok_s_per_gpu": one.output_tok_s_per_gpu,
            "ttft_p95_s": one.ttft_p95_s,
            "failure": None if one.failure is None else str(one.failure),
            "gpus": one.gpus,
            "start_s": one.start_s,
            "warm_start_s": one.warm_start_s,
            "measuring_s": one.measuring_s,
            "kv_tokens": one.kv_tokens,
        }
        for one in study.launches
    ]
    return "".join(
        json.dumps({key: value for key, value in line.items() if value is not None}, allow_nan=False) + "\n"
        for line in (header, *rows)
    )


def changed(line: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {key: value for key, value in {**line, **values}.items() if value is not ...}


def test_a_recorded_study_becomes_a_surface() -> None:
    surface = recorded_surface(read_recorded(DATA / "three-configs.jsonl"))

    assert surface.kind is SurfaceKind.RECORDED
    assert [parameter.name for parameter in surface.space.parameters] == ["kv-cache-dtype", "max-num-seqs"]
    assert surface.space.parameters[1].choices == (None, 64, 1024)
    assert surface.configs[surface.baseline] == Config.of({"kv-cache-dtype": None, "max-num-seqs": None})
    assert surface.feasible.tolist() == [True, True, False]
    # The baseline was launched twice: 100 and 121 tokens/s have the geometric mean 110.
    assert math.exp(surface.log_throughput[0]) == pytest.approx(110.0)
    assert surface.failures[2] is FailureClass.KV_CACHE_NONE
    assert surface.cold_s.tolist() == [70.0, 60.0, 30.0]
    assert surface.measuring_s.tolist() == [40.0, 0.0, 0.0]


def test_repeats_and_what_is_usual_give_the_noise() -> None:
    surface = recorded_surface(read_recorded(DATA / "three-configs.jsonl"))

    # One pair, ln 1.21 apart: variance ln(1.21)^2 / 2, beside four of the usual 1 %.
    expected = math.sqrt((4 * 0.01**2 + math.log(1.21) ** 2 / 2) / 5)
    assert surface.noise.throughput_sd == pytest.approx(expected)
    stated = recorded_surface(parse_recorded(text({**HEADER, "throughput_sd": 0.2, "ttft_sd": 0.3}, BASE), file="f"))
    assert (stated.noise.throughput_sd, stated.noise.ttft_sd) == (0.2, 0.3)


def test_what_comes_with_the_program_can_be_read() -> None:
    studies = [read_recorded(path) for path in shipped_recorded()]

    assert [study.name for study in studies] == ["h200-8B-chat-study", "h200-8B-chat", "h200-8B-rag"]
    # Recorded: 5,791.1 and 5,761.5 tokens/s (tests/data/h200, chat).
    chat = recorded_surface(studies[1])
    assert math.exp(chat.log_throughput[chat.baseline]) == pytest.approx(math.sqrt(5791.134 * 5761.536))
    assert all(parse_recorded(written(study), file="f") == study for study in studies)


def test_the_prior_of_a_recording_comes_from_its_header_alone() -> None:
    rows = (BASE, changed(BASE, config={"max-num-seqs": 32}))
    known = {"node": "1xH200-141GB", "model": "meta-llama/Llama-3.1-8B-Instruct", "workload": "chat"}
    one, faster = (
        parse_recorded(text({**HEADER, **known, "concurrency_per_gpu": 128, "rate_rps_per_gpu": 30}, *lines), file="f")
        for lines in (rows, (changed(BASE, output_tok_s_per_gpu=9e3), changed(rows[1], ttft_p95_s=0.01)))
    )
    surfaces = [recorded_surface(study) for study in (one, faster)]
    found = [recorded_prior(study, surface.space) for study, surface in zip((one, faster), surfaces, strict=True)]

    expected, again = (prior.expect(surfaces[0].configs) for prior in found if prior is not None)
    # 32 in flight at most cannot do what 128 do; and what was measured changes nothing.
    assert expected.log_throughput[1] < expected.log_throughput[0] - 0.2
    assert again.log_throughput == pytest.approx(expected.log_throughput)
    for lacking in ("node", "model", "workload"):
        header = changed({**HEADER, **known, "concurrency_per_gpu": 128}, **{lacking: ...})
        assert recorded_prior(parse_recorded(text(header, *rows), file="f"), surfaces[0].space) is None


def test_ttft_of_a_closed_loop_is_expected_with_its_opening_burst() -> None:
    rag = read_recorded(next(path for path in shipped_recorded() if path.stem == "h200-8b-rag"))
    surface = recorded_surface(rag)
    prior = recorded_prior(rag, surface.space)

    assert prior is not None
    at = surface.configs[surface.baseline]
    # Recorded: 5.0 s, of 64 prompts that come at once. Poisson arrivals at 0.85 of the capacity wait less.
    assert math.exp(prior.refine([at]).log_ttft[0]) == pytest.approx(5.0, rel=0.25)
    assert math.exp(prior.expect([at]).log_ttft[0]) < 1.5


_VALUES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
_CONFIGS = st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9-]{0,8}\Z"), _VALUES.filter(lambda one: one is not None))
_FIGURES = st.floats(1e-6, 1e9)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(_CONFIGS, _FIGURES, _FIGURES, st.sampled_from(FailureClass)), max_size=3), st.text(max_size=20)
)
def test_what_is_written_is_read_back(rows: list[Any], about: str) -> None:
    launches = [RecordedLaunch(config=Config.of({}), start_s=1.0, output_tok_s_per_gpu=1.0, ttft_p95_s=1.0)]
    for config, a, b, failure in rows:
        launches.append(RecordedLaunch(config=Config.of(config), start_s=a, output_tok_s_per_gpu=a, ttft_p95_s=b))
        launches.append(RecordedLaunch(config=Config.of(config), start_s=b, failure=failure, warm_start_s=a))
    study = RecordedStudy(name="s", baseline=Config.of({}), launches=tuple(launches), about=about)

    assert parse_recorded(written(study), file="f") == study


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ((), "line 1"),
        ((BASE,), "line 1: "),
        ((changed(HEADER, version=2), BASE), "line 1: version"),
        ((changed(HEADER, format="other"), BASE), "line 1: format"),
        ((changed(HEADER, name="a b"), BASE), "line 1: name"),
        ((changed(HEADER, speed=1), BASE), "line 1: speed"),
        ((HEADER, changed(BASE, ttft_p95_s=...)), "line 2: ttft_p95_s"),
        ((HEADER, changed(BASE, output_tok_s_per_gpu=0.0)), "line 2: output_tok_s_per_gpu"),
        ((HEADER, changed(BASE, ttft_p95_s="0.5")), "line 2: ttft_p95_s"),
        ((HEADER, changed(BASE, start_s=1e300)), "line 2: start_s"),
        ((HEADER, changed(BASE, outcome="faulted")), "line 2: outcome"),
        ((HEADER, changed(BASE, outcome="infeasible")), "line 2: failure"),
        ((HEADER, changed(BASE, outcome="infeasible", failure="bad luck")), "line 2: failure"),
        ((HEADER, changed(BASE, failure="crash")), "line 2: failure"),
        ((HEADER, changed(BASE, config={"a": [1]})), "line 2: config.a"),
        ((HEADER, changed(BASE, config={"a": float("nan")})), "line 2: config.a"),
        ((HEADER, changed(BASE, config={"a": float("inf")})), "line 2: config.a"),
        ((HEADER, changed(BASE, config={"a": 1})), "baseline"),
        ((HEADER, changed(BASE, gpus=0)), "line 2: gpus"),
    ],
)
def test_a_bad_line_is_told_with_its_place(lines: tuple[dict[str, Any], ...], where: str) -> None:
    with pytest.raises(InvalidFile) as found:
        parse_recorded(text(*lines), file="f.jsonl")

    assert where in found.value.message
    assert found.value.exit_code is ExitCode.INVALID_FILE


@pytest.mark.parametrize(
    "bad", ["{", "[]", "null", '{"a": NaN}', "[" * 5000, '{"format": "autotune-surface", "version": 1e999}']
)
def test_what_is_no_object_is_told(bad: str) -> None:
    with pytest.raises(InvalidFile, match="line 1"):
        parse_recorded(bad, file="f")


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none.jsonl", binary, Path("\0")):
        with pytest.raises(InvalidFile):
            read_recorded(path)
