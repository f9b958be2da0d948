"""What the hidden nodes are: as strange as they are said to be, the same every time, and nobody's to look into."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.bench import hidden, physics, truth
from autotune.bench.beliefs import prior_of
from autotune.bench.columns import Columns, columns_of
from autotune.bench.contenders import Known, available, make_contender
from autotune.bench.situations import NODES, Situation, situation_of
from autotune.bench.surfaces import Surface
from autotune.records import Config
from autotune.search.space import Parameter, SearchSpace
from autotune.simulator.coefficients import Coefficients

SPEC = NODES[0]


@pytest.fixture(scope="module")
def situation() -> Situation:
    return situation_of(SPEC)


@pytest.fixture(scope="module")
def surface(situation: Situation) -> Surface:
    return truth.work_out(SPEC, situation)


@pytest.fixture(scope="module")
def columns(situation: Situation) -> Columns:
    return columns_of(situation.configs, situation.node, situation.shape, situation.context)


def node(situation: Situation) -> physics.Node:
    gpu = situation.node.gpus[0]
    return physics.Node(
        gpu=gpu, hidden_size=situation.shape.hidden_size, traffic=situation.traffic, coefficients=Coefficients()
    )


def test_there_are_eight_nodes_with_names_and_seeds_of_their_own() -> None:
    assert len(NODES) >= 8
    assert len({one.name for one in NODES}) == len({one.seed for one in NODES}) == len(NODES)


def test_unperturbed_it_is_near_a_real_h100(situation: Situation, columns: Columns) -> None:
    # Recorded on an H200 with the same model and load: 5,791 tokens/s at 128 in flight; compute-bound, so an H100 too.
    found = node(situation).throughput(columns.take([situation.configs.index(situation.baseline)]), 128)

    assert float(found[0]) == pytest.approx(5791, rel=0.15)


def test_it_has_the_monotonies_of_a_server(situation: Situation, columns: Columns) -> None:
    hidden_node = node(situation)
    one = columns.take([situation.configs.index(situation.baseline)])
    loads = [float(hidden_node.throughput(one, count)[0]) for count in (1, 4, 16, 64, 256)]
    waits = [float(hidden_node.ttft_p95_s(one, rate)[0]) for rate in (5.0, 20.0, 35.0, 60.0, 120.0)]

    assert loads == sorted(loads)
    assert waits == sorted(waits)
    # Twice the capacity for 25 s leaves about half of it as backlog.
    assert 5.0 < waits[-1] < physics.RUN_S


def test_the_load_is_the_baselines_knee(situation: Situation, columns: Columns) -> None:
    hidden_node = node(situation)
    one = columns.take([situation.configs.index(situation.baseline)])
    load = physics.knee_load(hidden_node, one)
    best = float(hidden_node.throughput(one, load.concurrency)[0])

    assert load.rate_rps == pytest.approx(0.85 * best / situation.traffic.output_mean, rel=0.06)
    assert best < 1.10 * float(hidden_node.throughput(one, load.concurrency / 2)[0])


def test_coefficients_are_off_by_the_share_both_ways() -> None:
    plain, changed = Coefficients(), physics.perturbed(Coefficients(), 0.3, np.random.default_rng(1))
    names = ("step_overhead_s", "sequence_s", "pcie_bytes_per_s", "api_chunk_s", "expert_share", "moe_layer_s")
    factors = {round(getattr(changed, name) / getattr(plain, name), 6) for name in names}

    assert factors == {0.7, 1.3}
    assert changed.compute_share <= 0.98
    assert isinstance(changed.graph_tokens, int)


def test_the_misfit_has_its_spread_and_is_smooth(situation: Situation) -> None:
    features = hidden.features_of(situation.configs, situation.space)
    drawn = hidden.misfit(features, 0.3, np.random.default_rng(5))
    near = [
        abs(float(drawn[i] - drawn[j]))
        for i in range(0, 300, 7)
        for j in range(i)
        if int((features[i] != features[j]).sum()) == 1 and float(np.abs(features[i] - features[j]).max()) <= 0.5
    ]

    assert float(np.std(drawn)) == pytest.approx(0.3)
    # Neighbours differ by far less than two configs drawn anywhere (0.3 x sqrt(2) x sqrt(2 / pi) = 0.34 on average).
    assert np.mean(near) < 0.2


def test_failures_are_structured_and_leave_the_baseline(situation: Situation, surface: Surface) -> None:
    share = 1.0 - float(np.mean(surface.feasible))
    features = hidden.features_of(situation.configs, situation.space)
    failed = ~surface.feasible
    # One by one, a failure would say nothing of the config that differs in one flag by one step.
    alike = [
        bool(failed[i] == failed[j])
        for i in np.flatnonzero(failed)[:60].tolist()
        for j in range(len(failed))
        if int((features[i] != features[j]).sum()) == 1
    ]

    assert 0.15 <= share <= 0.35
    assert surface.feasible[surface.baseline]
    assert np.mean(alike) > share + 0.2


@pytest.mark.parametrize("seed", range(12))
def test_failures_of_any_seed_stay_within_bounds(situation: Situation, seed: int) -> None:
    count, baseline = len(situation.configs), situation.configs.index(situation.baseline)
    found = hidden.hidden_failures(
        situation.configs, situation.space, np.linspace(0.2, 0.8, count), 80e9, baseline, np.random.default_rng(seed)
    )

    assert float(np.mean(found.failed)) <= 0.351
    assert not found.failed[baseline]
    assert ((found.missing_bytes > 0) <= found.failed).all()


def test_a_space_of_one_config_has_nothing_hidden() -> None:
    space = SearchSpace(name="s", parameters=(Parameter(name="a", choices=(1,)),))
    configs = tuple(space)
    rng = np.random.default_rng(0)

    assert hidden.misfit(hidden.features_of(configs, space), 0.3, rng).tolist() == [0.0]
    assert hidden.unmodelled(configs, space, rng).tolist() == [[0.0], [0.0]]


def test_the_truth_differs_from_the_belief_as_much_as_promised(surface: Surface, situation: Situation) -> None:
    load = surface.load
    assert load is not None
    columns = columns_of(situation.configs, situation.node, situation.shape, situation.context)
    believed = np.log(node(situation).throughput(columns, load.concurrency))
    error = surface.log_throughput - believed

    assert float(np.std(error)) > 0.25
    # And yet it is no noise: the belief is worth something.
    assert float(np.corrcoef(believed, surface.log_throughput)[0, 1]) > 0.2


def test_it_is_the_same_every_time_and_from_the_cache(situation: Situation, surface: Surface, tmp_path: Path) -> None:
    first = truth.simulated_surface(SPEC, situation, tmp_path)
    files = list((tmp_path / "bench").iterdir())
    second = truth.simulated_surface(SPEC, situation, tmp_path)

    assert len(files) == 1
    for found in (first, second):
        assert found.load == surface.load
        assert found.failures == surface.failures
        for name in truth._ARRAYS:
            assert np.array_equal(getattr(found, name), getattr(surface, name)), name
    files[0].write_bytes(b"PK\x03\x04 not a zip")
    again = truth.simulated_surface(SPEC, situation, tmp_path)
    assert np.array_equal(again.log_ttft, surface.log_ttft)
    assert files[0].stat().st_size > 1000


def test_another_seed_is_another_node_and_another_file(situation: Situation, surface: Surface, tmp_path: Path) -> None:
    other = dataclasses.replace(SPEC, seed=999)
    truth.simulated_surface(SPEC, situation, tmp_path)
    found = truth.simulated_surface(other, situation, tmp_path)

    assert len(list((tmp_path / "bench").iterdir())) == 2
    assert not np.allclose(found.log_throughput, surface.log_throughput)


def test_without_a_folder_to_write_to_it_is_only_slower(situation: Situation, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")

    assert truth.simulated_surface(SPEC, situation, blocked).feasible.any()


def test_what_the_cache_holds_is_of_that_model_and_those_configs(situation: Situation, tmp_path: Path) -> None:
    wider = dataclasses.replace(situation, shape=dataclasses.replace(situation.shape, hidden_size=8192))
    last = situation.configs[-1]
    other = Config.of({**last.as_dict(), "max-num-batched-tokens": 12345})
    changed = dataclasses.replace(situation, configs=(*situation.configs[:-1], other))
    for number, one in enumerate((situation, wider, changed), start=1):
        truth.simulated_surface(SPEC, one, tmp_path)
        assert len(list((tmp_path / "bench").iterdir())) == number


def test_the_compile_cache_is_shared_as_recorded() -> None:
    base = {"max-num-seqs": 256, "kv-cache-dtype": "auto", "gpu-memory-utilization": 0.9}
    changes: tuple[dict[str, Any], ...] = (
        {}, {"gpu-memory-utilization": 0.94}, {"max-num-seqs": 128}, {"kv-cache-dtype": "fp8"},
    )  # fmt: skip

    keys = truth.compile_keys([Config.of({**base, **one}) for one in changes])

    assert keys[0] == keys[1]
    assert len({int(one) for one in keys}) == 3


# Nothing leaks


def reachable(root: object) -> Iterator[object]:
    """Everything that can be got at from an object by attributes, items and closures."""
    waiting, seen = [root], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | complex | type | types.ModuleType | None):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += list(one)
        if isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
            continue
        waiting += list(getattr(one, "__dict__", {}).values())
        slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
        waiting += [getattr(one, name) for name in slots if isinstance(name, str) and hasattr(one, name)]


def test_what_a_sampler_is_given_leads_to_no_surface(situation: Situation, surface: Surface) -> None:
    assert surface.load is not None
    secrets = (surface.log_throughput, surface.log_ttft, surface.feasible, surface.missing_bytes)
    prior = prior_of(situation.plan, situation.space, surface.load)
    assert prior is not None
    known = Known(
        space=situation.space,
        configs=situation.configs,
        baseline=situation.baseline,
        recipes=situation.recipes,
        budget=150,
        prior=prior,
    )
    for name in available():
        for one in reachable((known, make_contender(name, known, 0))):
            assert not isinstance(one, Surface | physics.Node | hidden.HiddenFailures), name
            assert not isinstance(one, Coefficients) or one == Coefficients(), name
            assert not (isinstance(one, np.ndarray) and any(np.array_equal(one, each) for each in secrets)), name


def test_the_walk_would_find_one(surface: Surface) -> None:
    def closure() -> float:
        return float(surface.log_ttft[0])

    assert any(isinstance(one, Surface) for one in reachable({"a": [types.SimpleNamespace(b=closure)]}))


def test_a_launch_shows_noise_around_the_truth(surface: Surface) -> None:
    drawn = [surface.launch(surface.baseline, False, np.random.default_rng(seed)).logs for seed in range(400)]
    logs = np.array([one for one in drawn if one is not None])

    assert logs[:, 0].std() == pytest.approx(0.03, rel=0.15)
    assert logs[:, 1].std() == pytest.approx(0.10, rel=0.15)
    assert logs[:, 0].mean() == pytest.approx(surface.log_throughput[surface.baseline], abs=0.01)


def test_the_hypervolume_is_that_of_the_product(surface: Surface) -> None:
    from autotune.search.pareto import hypervolume

    chosen = [surface.baseline, *np.flatnonzero(surface.feasible)[::50].tolist()]
    values = [(math.exp(surface.log_throughput[i]), math.exp(surface.log_ttft[i])) for i in chosen]
    base = values[0]

    expected = hypervolume(values, (0.5 * base[0], 4.0 * base[1]))
    assert surface.volume_of(chosen) == pytest.approx(expected)
    assert surface.volumes[0] == pytest.approx(math.log(2) * math.log(4))
    assert surface.volumes[1] >= surface.volume_of(chosen)
