"""`autotune workload` as typed: text, JSON, files written, and what it refuses."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import workload
from autotune.errors import InvalidFile, InvalidOption, UnknownName
from autotune.load.workloads import builtin_workloads, load_workload

METRICS = Path(__file__).parents[2] / "data" / "metrics"
TRACES = METRICS.parent / "traces"


def run(*arguments: str) -> str:
    app = typer.Typer()
    workload.register(app)
    app.command("other")(lambda: None)
    done = CliRunner().invoke(app, ["workload", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def document(*arguments: str) -> Any:
    return json.loads(run("show", *arguments, "--json"))


@pytest.mark.parametrize("name", builtin_workloads())
def test_every_shipped_workload_can_be_shown(name: str) -> None:
    text = run("show", name)
    assert name in text
    assert "max-model-len" in text


def test_chat_in_figures() -> None:
    found = document("chat", "--concurrency", "100")
    assert found["level"] == {"arrivals": "closed", "concurrency": 100, "rate_rps": None, "requests": 400}
    assert found["prompt_tokens"]["mean"] == pytest.approx(512, rel=0.01)
    assert (found["max_model_len_needed"], found["max_model_len_guide"]) == (1040, 8192)
    assert found["shared_share"] == 0
    assert found["arrival_burstiness"] is None
    assert found["schema"] == 1


def test_an_agent_shares_most_of_its_prompts() -> None:
    found = document("agent", "--rate", "2")
    assert found["turns_mean"] == 10
    # Mooncake's tools and agents: 8,596 and 182 tokens on average.
    assert found["prompt_tokens"]["mean"] == pytest.approx(8596, rel=0.15)
    assert found["output_tokens"]["mean"] == pytest.approx(182, rel=0.05)
    assert 0.6 < found["shared_share"] < 0.95
    # Nothing is cached before the first request; the others open with the system prompt that it sent.
    assert [request["reachable_tokens"] for request in found["first_requests"][:2]] == [0, 3000]


def test_a_trace() -> None:
    file = str(TRACES / "mooncake.jsonl")
    found = document(file, "--rate", "3")
    assert found["level"]["arrivals"] == "trace"
    assert found["rows"] == 4
    assert found["source"] == "a trace in Mooncake's form"
    assert "Mooncake" in run("show", file)
    assert "left out: 1 rows (25.0 %): no output" in run("show", str(TRACES / "burstgpt.csv"))


def test_real_prompts_are_not_shown_nor_written(tmp_path: Path) -> None:
    file, out = TRACES / "sharegpt.json", tmp_path / "mine.yaml"
    said = (
        run("show", str(file)) + run("show", str(file), "--json") + run("make", "--from", str(file), "--out", str(out))
    )
    assert "question" not in said + out.read_text()
    assert "answer, in" not in said + out.read_text()
    assert "caveat estimated_tokens" in said
    assert load_workload(str(out)).turns is not None


def test_make_from_metrics(tmp_path: Path) -> None:
    text = gzip.decompress((METRICS / "h200-0.25-after.txt.gz").read_bytes())
    (tmp_path / "metrics.txt").write_bytes(text)
    out = tmp_path / "mine.yaml"
    run("make", "--from-metrics", str(tmp_path / "metrics.txt"), "--out", str(out), "--concurrency", "96")
    made = load_workload(str(out))
    assert made.output_tokens.mean == pytest.approx(67_266 / 608, abs=0.1)
    assert made.max_concurrency == 96


def test_make_from_numbers(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    numbers = ("--prompt-mean", "800", "--prompt-p95", "2000", "--output-mean", "120", "--concurrency", "24")
    run("make", *numbers, "--out", str(out))
    made = load_workload(str(out))
    assert (made.prompt_tokens.mean, made.output_tokens.mean, made.max_concurrency) == (800, 120, 24)
    with pytest.raises(InvalidOption, match="--force"):
        run("make", *numbers, "--out", str(out))
    run("make", *numbers, "--out", str(out), "--force")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "chat", "--rate", "0"), "--rate"),
        (("show", "chat", "--rate", "nan"), "--rate"),
        (("show", "chat", "--rate", "1e-300"), "--rate"),
        (("show", "chat", "--rate", "1", "--concurrency", "2"), "either"),
        (("show", "chat", "--concurrency", "0"), "--concurrency"),
        (("make", "--out", "x.yaml"), "one source"),
        (("make", "--out", "x.yaml", "--from", "a.csv", "--prompt-mean", "3"), "one source"),
        (("make", "--out", "x.yaml", "--prompt-mean", "3"), "--prompt-p95"),
        (("make", "--out", "x.json", "--prompt-mean", "3"), "ends in .yaml"),
        (("make", "--out", "x.yaml", "--from", "a.txt"), "log or trace"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        run(*arguments)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no such file"):
        run("show", str(tmp_path / "gone.csv"))
    with pytest.raises(InvalidFile, match="regular"):
        run("make", "--out", "x.yaml", "--from-metrics", str(tmp_path))
    (tmp_path / "m.txt").write_text("python_info 1\n")
    with pytest.raises(InvalidFile, match="request_prompt_tokens"):
        run("make", "--out", "x.yaml", "--from-metrics", str(tmp_path / "m.txt"))
    with pytest.raises(InvalidFile, match="can be written"):
        run(
            *("make", "--out", str(tmp_path / "no" / "x.yaml")),
            *("--prompt-mean", "8", "--prompt-p95", "9", "--output-mean", "9"),
        )


def test_the_command_of_another_client() -> None:
    words = ("command", "summarize", "--for", "vllm-bench", "--url", "http://127.0.0.1:8000/v1", "--rate", "2")
    found = json.loads(run(*words, "--requests", "1000000", "--json"))
    assert (found["schema"], found["for"], found["argv"][:3]) == (1, "vllm-bench", ["vllm", "bench", "serve"])
    assert "1000000" in found["argv"]
    assert len(found["not_expressed"]) == 2
    text = run(*words, "--model", "org/it's")
    assert shlex.split(text.splitlines()[0])[:3] == ["vllm", "bench", "serve"]
    assert "org/it's" in shlex.split(text.splitlines()[0])
    assert "not expressed: the distribution of prompt lengths" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "ftp://x"),
        ("--url", "http://u:p@h"),
        ("--url", "http://h", "--model", "a\nb"),
        ("--url", "http://h", "--model", ""),
        ("--url", "http://h", "--rate", "nan"),
        ("--url", "http://h", "--rate", "2", "--concurrency", "3"),
    ],
)
def test_commands_that_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidOption):
        run("command", "chat", "--for", "guidellm", *arguments)
