"""Which starts find their compiled code in the cache."""

from __future__ import annotations

from autotune.records import Config, Value
from autotune.search.parameter import Parameter
from autotune.search.prior.candidates import Candidates
from autotune.search.space import SearchSpace

SPACE = SearchSpace(
    name="s",
    parameters=(
        Parameter(name="enforce-eager", choices=(False, True)),
        Parameter(name="max-num-seqs", choices=(64, 128)),
        Parameter(name="gpu-memory-utilization", choices=(0.8, 0.9)),
    ),
)


def warm_after(*launched: dict[str, Value]) -> set[tuple[object, object]]:
    """Eager and max-num-seqs of the configs that start warm."""
    listed = Candidates.of(SPACE, None)
    base: dict[str, Value] = {"gpu-memory-utilization": 0.8}
    found = listed.compiles.warm([Config.of({**base, **one}) for one in launched])
    pairs = zip(listed.configs, found, strict=True)
    return {(config.get("enforce-eager"), config.get("max-num-seqs")) for config, warm in pairs if warm}


def test_a_start_is_warm_after_one_with_the_same_graphs_whatever_its_memory() -> None:
    eager = {(True, 64), (True, 128)}
    assert warm_after({"enforce-eager": False, "max-num-seqs": 64}) == {(False, 64)} | eager


def test_an_eager_server_compiles_nothing_and_leaves_nothing_behind() -> None:
    eager = {(True, 64), (True, 128)}
    assert warm_after() == eager
    assert warm_after({"enforce-eager": True, "max-num-seqs": 64}) == eager
