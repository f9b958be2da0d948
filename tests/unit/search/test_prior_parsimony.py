"""Fewest changes among equals; flags that may change answers count more."""

from __future__ import annotations

import numpy as np

from autotune.records import Config, Value
from autotune.search.parameter import Parameter
from autotune.search.prior.coding import Coder
from autotune.search.prior.parsimony import LOSSY_CHANGES, changes, in_order
from autotune.search.space import SearchSpace

SPACE = SearchSpace(
    name="s",
    parameters=(
        Parameter(name="max-num-seqs", choices=(64, 128, 256)),
        Parameter(name="kv-cache-dtype", choices=("auto", "fp8"), lossy=True),
        Parameter(name="enable-prefix-caching", choices=(True, False)),
    ),
)
HOME: dict[str, Value] = {"max-num-seqs": 256, "kv-cache-dtype": "auto", "enable-prefix-caching": True}


def counted(**other: Value) -> int:
    coder = Coder(SPACE)
    config = Config.of({**HOME, **{name.replace("_", "-"): value for name, value in other.items()}})
    at, home = coder.encode([config]), coder.encode([Config.of(HOME)])[0]
    return int(changes(coder, at, home, frozenset({"kv-cache-dtype"}))[0])


def test_changes_are_counted_by_parameter_and_lossy_ones_more() -> None:
    assert counted() == 0
    assert counted(max_num_seqs=64) == 1
    assert counted(max_num_seqs=64, enable_prefix_caching=False) == 2
    assert counted(kv_cache_dtype="fp8") == LOSSY_CHANGES


def test_a_value_that_is_no_choice_is_a_change_for_all() -> None:
    coder = Coder(SPACE)
    at = coder.encode(list(SPACE))
    home = coder.encode([Config.of({**HOME, "max-num-seqs": 1024})])[0]
    assert changes(coder, at, home, frozenset()).min() == 1


def test_only_what_is_close_to_the_best_is_reordered() -> None:
    scores = np.array([0.5, 1.0, 0.95, 0.91, 0.89])
    counts = np.array([0, 4, 2, 1, 0], dtype=np.intp)
    # 0.91, 0.95 and 1.0 are within a tenth of the best: fewest changes first; then the rest by score.
    assert in_order(scores, counts).tolist() == [3, 2, 1, 4, 0]


def test_of_nothing_there_is_no_order() -> None:
    assert in_order(np.zeros(0), np.zeros(0, dtype=np.intp)).tolist() == []


def test_scores_of_nothing_to_gain_go_by_changes_alone() -> None:
    assert in_order(np.zeros(3), np.array([2, 0, 1], dtype=np.intp)).tolist() == [1, 2, 0]
