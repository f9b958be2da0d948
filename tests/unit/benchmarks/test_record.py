"""Rows of loads that were recorded with `vllm bench serve`: what the command makes of its words and of the log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.record import KV_TOKENS, _scaled

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("word", "gpus", "expected"),
    [("64{gpus}", 1, "64"), ("64{gpus}", 2, "128"), ("1.5{gpus}", 2, "3"), ("--seed", 2, "--seed"), ("901", 2, "901")],
)
def test_a_load_is_offered_per_gpu(word: str, gpus: int, expected: str) -> None:
    assert _scaled(word, gpus) == expected


def test_recorded_rows_were_offered_the_loads_of_the_file() -> None:
    folder = ROOT / "studies" / "h200-blind"
    loads = json.loads((folder / "loads.json").read_text("utf-8"))
    rows = [json.loads(line) for line in (folder / "measured.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 16
    for row in rows:
        gpus = 1 if row["name"].startswith("N") else 2
        assert row["bench_args"] == [_scaled(word, gpus) for word in loads[row["load"]]]
        assert row["bench"]["completed"] == int(row["bench_args"][row["bench_args"].index("--num-prompts") + 1])


def test_the_kv_capacity_is_read_from_a_real_log() -> None:
    with gzip.open(ROOT / "studies" / "h200-x2-layouts" / "trial-2-server.log.gz", "rt", encoding="utf-8") as log:
        (tokens,) = set(KV_TOKENS.findall(log.read()))
    # The same figure as our own parser's, `kv_cache_tokens` in trial-2.json.
    trial = json.loads((ROOT / "studies" / "h200-x2-layouts" / "trial-2.json").read_text("utf-8"))
    assert int(tokens.replace(",", "")) == trial["resolved"]["kv_cache_tokens"]
