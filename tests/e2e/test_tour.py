"""README's tour, command by command: a study, then everything that looks at it, promotes it and extends it.

Unlike those of the other end-to-end tests these commands are seen by coverage.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from autotune_command import LLAMA as MODEL
from autotune_command import SIMULATED_SERVER, run

NAME = "llama-3.1-8b-instruct-tiny"
TRIES = 3
"""Of a study whose figures were void as the load client was late: the machine was busy with other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toured:
    """A folder with a finished study in it; `said` is what the study printed for people."""

    folder: Path
    environ: dict[str, str]
    said: str

    def autotune(self, words: str) -> str:
        return autotune(words, self.folder, self.environ)[0]

    def json(self, words: str) -> Any:
        return json.loads(self.autotune(f"{words} --json"))


def autotune(words: str, folder: Path, environ: dict[str, str]) -> tuple[str, str]:
    """Output and error output of `autotune WORDS`."""
    ended = run(folder, *shlex.split(words), env=environ)
    assert ended.code == 0, ended.err
    return ended.out, ended.err


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    folder = tmp_path_factory.mktemp("tour")
    environ = {name: value for name, value in os.environ.items() if name.startswith("COV")}
    words = f"study --model {MODEL} --workload tiny --space scheduler --engine simulated --trials 4 --repeats 0"
    out, err = autotune(words, folder, environ)
    return Toured(folder=folder, environ=environ, said=err + out)


def test_study(toured: Toured) -> None:
    for text in ("SIMULATED", "1xH100-80GB", "trial 4 of 4", "Front (simulated)", "Pick: trial", f"studies/{NAME}"):
        assert text in toured.said
    assert (toured.folder / "studies" / NAME / "trial-0000" / "level-ttft.jsonl.gz").exists()


def test_list_status_and_stop(toured: Toured) -> None:
    (row,) = toured.json("list")["studies"]
    assert (row["name"], row["done"], row["simulated"], row["state"]) == (NAME, 4, True, "finished")
    assert NAME in toured.autotune("list")
    assert toured.json("status")["studies"] == []
    assert "not running" in toured.autotune(f"stop {NAME}")


def test_pareto(toured: Toured) -> None:
    document = toured.json(f"pareto {NAME}")
    front = {trial["number"] for trial in document["front"]}
    # On the front, or the plainer one of two that are tied: on a tiny load configs are alike.
    assert {document["pick"]["number"], document["pick"]["instead_of"]} & front
    table = toured.autotune(f"pareto {NAME}")
    assert f"Pick: trial {document['pick']['number']}" in table
    every = toured.autotune(f"pareto {NAME} --all")
    assert every.startswith(table)
    listed = re.findall(r"^ {0,4}(\d+)  ", every[len(table) :], flags=re.MULTILINE)
    assert listed == [str(trial["number"]) for trial in document["trials"]]
    rows = list(csv.DictReader(io.StringIO(toured.autotune(f"pareto {NAME} --csv"))))
    assert len(rows) == len(document["trials"])
    limited = toured.json(f"pareto {NAME} --slo ttft_p95<=60s")
    # Every trial meets the limit, so the fastest is picked, or a plainer one that is as fast.
    fastest = max(document["front"], key=lambda trial: trial["output_tok_s_per_gpu"])
    assert fastest["number"] in {limited["pick"]["number"], limited["pick"]["instead_of"]}
    assert limited["pick"]["output_tok_s_per_gpu"] > 0.95 * fastest["output_tok_s_per_gpu"]
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype html")):
        toured.autotune(f"pareto {NAME} --picture front{suffix}")
        assert (toured.folder / f"front{suffix}").read_bytes()[:200].lower().startswith(magic.lower())


def test_report(toured: Toured) -> None:
    assert "wrote review.html" in toured.autotune(f"report {NAME} --out review.html")
    page = (toured.folder / "review.html").read_text(encoding="utf-8")
    data = json.loads(page.partition('id="autotune-data">')[2].partition("</script>")[0])
    said = toured.json(f"pareto {NAME}")
    assert data["parts"]["front"]["pick"]["number"] == said["pick"]["number"]
    assert set(data["parts"]) == {"front", "certainty", "evidence", "learned"}
    assert data["parts"]["evidence"]["spreads"]["0"]["count"] > 0
    assert data["trials"]["0"]["levels"] == toured.json(f"show {NAME} 0")["levels"]
    toured.autotune(f"report {NAME} --format markdown --out review.md")
    text = (toured.folder / "review.md").read_text(encoding="utf-8")
    assert "SIMULATED" in text
    assert "review-front.svg" in text
    assert (toured.folder / "review-front-dark.svg").exists()
    assert toured.autotune(f"report {NAME} --format markdown").startswith("# ")
    assert toured.autotune(f"report {NAME} --format markdown --out -").startswith("# ")
    for standard_output in ("-", "/dev/stdout"):
        page = toured.autotune(f"report {NAME} --out {standard_output}")
        assert page.startswith("<!doctype html")
        assert page.rstrip().endswith("</html>")
    assert not (toured.folder / "-").exists()


def test_show(toured: Toured) -> None:
    shown = toured.json(f"show {NAME} 1")
    assert shown["serve"].startswith(f"vllm serve {MODEL} ")
    assert {level["role"] for level in shown["levels"]} >= {"throughput", "ttft"}
    assert shown["resolved"]["kv_cache_tokens"] > 0
    text = toured.autotune(f"show {NAME} 1")
    assert "Serve it" in text
    assert "SIMULATED" in text


def test_show_exports_levels_for_other_tools(toured: Toured) -> None:
    assert "wrote bench/bench-ttft.json" in toured.autotune(f"show {NAME} 0 --export-bench bench")
    for level in toured.json(f"show {NAME} 0")["levels"]:
        bench = json.loads((toured.folder / "bench" / f"bench-{level['name']}.json").read_text(encoding="utf-8"))
        assert (bench["completed"], bench["total_output_tokens"]) == (level["completed"], level["output_tokens"])
        assert bench["mean_ttft_ms"] > 0


def test_promote(toured: Toured) -> None:
    targets = "vllm-config,docker,compose,kubernetes,helm,systemd,shell"
    promotion = toured.json(f"promote {NAME} --trial 1 --target {targets} --out deploy --allow-simulated --skip-gate")
    written = [toured.folder / path for path in promotion["written"]]
    assert len(written) >= 6
    assert all("SIMULATED" in path.read_text(encoding="utf-8").upper() for path in written)
    settings = yaml.safe_load(next(path for path in written if path.name.endswith(".vllm.yaml")).read_text("utf-8"))
    flags = toured.json(f"show {NAME} 1")["flags"]
    assert settings["max-num-seqs"] == flags["max-num-seqs"]
    said = toured.autotune(f"promote {NAME} --target shell --out deploy2 --allow-simulated --skip-gate")
    assert "SIMULATED" in said


def served(toured: Toured) -> tuple[str, Any]:
    """A study of a real process and its document; again under another name when the machine made the client late."""
    words = f"--engine process --vllm-command '{SIMULATED_SERVER}' --load concurrency=4,rate=40,requests=40 --repeats 0"
    for left in reversed(range(TRIES)):
        name = f"served{left}"
        try:
            return name, toured.json(
                f"study --model {MODEL} --workload tiny --space scheduler --trials 1 --name {name} {words}"
            )
        except AssertionError as error:
            if left == 0 or "measured, void: client_late" not in str(error):
                raise
    raise AssertionError  # the last try has returned or raised


def test_a_real_process_has_logs_that_can_be_diagnosed(toured: Toured) -> None:
    name, document = served(toured)
    assert document["trials"][0]["clock"] == "wall"
    log = toured.autotune(f"logs {name}")
    assert "Application startup complete" in log
    assert toured.autotune(f"logs {name} 0 -f") == log
    path = toured.folder / "studies" / name / "trial-0000" / "server.log"
    assert toured.json(f"diagnose {path}")["class"] == "healthy"
    assert "healthy" in toured.autotune(f"diagnose {path}")


def test_more_trials(toured: Toured) -> None:
    words = f"study --model {MODEL} --workload tiny --space scheduler --engine simulated --trials +1 --repeats 0"
    before = len(toured.json(f"pareto {NAME}")["trials"])
    assert len(toured.json(words)["trials"]) > before


@pytest.mark.parametrize("words", ["--version", "--help", "study --help", "simulate-server --help"])
def test_help(toured: Toured, words: str) -> None:
    assert toured.autotune(words)


def test_a_resumed_study_repeats_and_reports_the_pick_of_the_new_rule(toured: Toured) -> None:
    words = f"study --name picks --model {MODEL} --workload tiny --space scheduler --engine simulated --repeats 1"
    toured = replace(toured, environ={})  # coverage has seen studies enough, and makes one five times as long
    made = toured.json(f"{words} --trials 5 --pick latency")
    assert made["pick"]["rule"] == "latency"
    again = toured.json(f"{words} --pick throughput")
    assert (again["pick"]["rule"], again["pick"]["runs"]) == ("throughput", 2)
    assert f"{again['pick']['output_tok_s_per_gpu']:,.0f} output tokens/s" in again["pick"]["reason"]
    assert again["pick"]["number"] in [trial["repeat_of"] for trial in again["trials"]]
    # Without a rule the study's own counts.
    assert toured.json("pareto picks")["pick"]["rule"] == "latency"
