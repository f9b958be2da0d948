"""A limit of the p95 TTFT reaches the sampler: the search goes where it is kept, and so does the pick."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune_command import LLAMA, run

from autotune.simulator.compiled.compiling import cache_root

LIMIT_S = 0.3
TRADE = """
name: trade
parameters:
  tensor-parallel-size: {choices: [1, 2, 4], why: "long prompts: more GPUs answer sooner, and do less each"}
  max-num-batched-tokens: {choices: [2048, 4096, 8192], why: little is left to gain here}
  max-num-seqs: {choices: [32, 64, 128], why: little is left to gain here}
"""
STUDY = (
    *("study", "--engine", "simulated", "--model", LLAMA, "--workload", "summarize", "--node", "4xH100-80GB"),
    *("--load", "concurrency=24,rate=0.3,requests=24", "--trials", "8", "--repeats", "0", "--space", "trade.yaml"),
)


def searched(folder: Path, name: str, *words: str) -> tuple[list[float], Any]:
    """p95 TTFTs of what the sampler proposed, and the pick."""
    # The simulation's code, compiled for a quarter of a minute, is shared with other tests.
    env = {"AUTOTUNE_CACHE_DIR": str(cache_root(os.environ))}
    ended = run(folder, *STUDY, "--name", name, *words, "--json", env=env, timeout_s=600)
    assert ended.code == 0, ended.err
    own = [trial for trial in ended.document["trials"] if trial["origin"] == "sampler"]
    return [trial["ttft_p95_s"] for trial in own], ended.document["pick"]


def test_a_limit_turns_the_search_below_it(tmp_path: Path) -> None:
    """One GPU takes 420 ms or more and has the most throughput for each GPU, four take 240 ms and have the least."""
    (tmp_path / "trade.yaml").write_text(TRADE)
    free, any_pick = searched(tmp_path, "free")
    limited, pick = searched(tmp_path, "limited", "--slo", f"ttft_p95<={LIMIT_S}s")
    assert len(free) == len(limited) == 6
    assert sum(ttft <= LIMIT_S for ttft in free) <= 2
    assert sum(ttft <= LIMIT_S for ttft in limited) >= 4
    assert any_pick["ttft_p95_s"] > LIMIT_S >= pick["ttft_p95_s"]
