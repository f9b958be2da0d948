"""The tutorial's commands, as they stand on the page, one after the other in one folder."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from autotune_command import run

from autotune.simulator.compiled.compiling import cache_root

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def commands() -> list[list[str]]:
    """The words after `autotune` of each marked line."""
    blocks = re.findall(r"<!-- tutorial: run -->\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert all(words[0] == "autotune" for words in lines)
    return [words[1:] for words in lines]


def test_the_tutorial_goes_as_it_says(tmp_path: Path) -> None:
    told = commands()
    asked = ["plan", "study", "pareto", "show", "compare", "study", "report", "promote", "promotions"]
    assert [words[0] for words in told] == asked
    # The simulation's code, compiled for a quarter of a minute, is shared with other tests.
    env = {"AUTOTUNE_CACHE_DIR": str(cache_root(os.environ))}
    said = []
    for words in told:
        ended = run(tmp_path, *words, env=env, timeout_s=600)
        assert ended.code == 0, f"autotune {shlex.join(words)}\n{ended.err}"
        said.append(ended.out + ended.err)
    for text, words in zip(said, told, strict=True):
        assert "simulated" in text.lower() or words[0] == "report", words
    # What the page tells the reader to see: no figures, which a better model may change.
    plan, study, pareto, show, compare, more, *_ = said
    assert all(f"TP {tp} x PP {pp} x DP {dp}" in plan for tp, pp, dp in ((1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1)))
    assert "load fixed for the study" in study
    assert re.search(r"^Pick: trial \d+ \(knee\)", study, flags=re.MULTILINE)
    assert "Validated" in study
    assert "stable" in study.lower()
    assert re.search(r"^Pick: trial \d+ \(throughput\)", pareto, flags=re.MULTILINE)
    assert "kv_memory" in show
    assert "against A" in compare
    assert "trial 8 of 8" in more
    assert (tmp_path / "first.html").stat().st_size > 100_000
    assert "GATE SKIPPED" in (tmp_path / "deploy" / "tutorial-chat.kubernetes.yaml").read_text(encoding="utf-8")
