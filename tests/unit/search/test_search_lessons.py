"""Failures and starved trials as preferences: what repeats them is put off, never forbidden."""

from __future__ import annotations

from dataclasses import replace

import pytest
import search_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from autotune.advice import Move, Toward
from autotune.bottleneck import Setting
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, Failure, FailureClass, LevelRole, Outcome, ServerDelta, Trial, Value
from autotune.search.lessons import Lesson, case_of, is_discouraged, lessons

SETTING = Setting(node=parse_node_name("2xA100-80GB-NVLink"), shape=load_shape("meta-llama/Llama-3.1-8B-Instruct"))
TRIED: dict[str, Value] = {
    "tensor-parallel-size": 1,
    "max-num-seqs": 256,
    "gpu-memory-utilization": 0.94,
    "kv-cache-dtype": "auto",
}


def of(_: Config) -> Setting:
    return SETTING


def infeasible(kind: FailureClass, config: dict[str, Value] = TRIED) -> Trial:
    trial = samples.failed(3, Outcome.INFEASIBLE, Config.of(config))
    assert trial.result is not None
    return replace(trial, result=replace(trial.result, failure=Failure(kind=kind, line=None)))


def starved(preemptions: int) -> Trial:
    trial = samples.measured(4, 100.0, 0.2, Config.of(TRIED))
    assert trial.result is not None
    levels = tuple(
        replace(level, completed=100, server=ServerDelta(preemptions=preemptions, running_max=90.0))
        if level.level.role is LevelRole.THROUGHPUT
        else level
        for level in trial.result.measurements
    )
    return replace(trial, result=replace(trial.result, measurements=levels))


@pytest.mark.parametrize(
    ("change", "discouraged"),
    [
        ({}, True),
        ({"max-num-seqs": 512}, True),
        ({"max-num-seqs": 128}, False),
        ({"kv-cache-dtype": "fp8"}, False),
        ({"tensor-parallel-size": 2}, False),
        ({"gpu-memory-utilization": 0.90}, False),
        ({"gpu-memory-utilization": 0.95}, True),
        ({"max-num-batched-tokens": 2048}, True),  # no remedy of running out under load
    ],
)
def test_out_of_memory_under_load_puts_off_what_takes_no_remedy(change: dict[str, Value], discouraged: bool) -> None:
    learnt = lessons([infeasible(FailureClass.OOM_UNDER_LOAD)], of)
    assert is_discouraged(Config.of({**TRIED, **change}), learnt) is discouraged


def test_a_preemption_storm_teaches_and_a_few_preemptions_do_not() -> None:
    assert lessons([starved(5)], of) == ()
    learnt = lessons([starved(30)], of)
    assert is_discouraged(Config.of({**TRIED, "max-num-seqs": 512}), learnt)
    assert not is_discouraged(Config.of({**TRIED, "max-num-seqs": 64}), learnt)
    assert not is_discouraged(Config.of({**TRIED, "data-parallel-size": 2}), learnt)
    # The share is at its sensible end already: raising it is none of the remedies here.
    assert is_discouraged(Config.of({**TRIED, "gpu-memory-utilization": 0.95}), learnt)


@pytest.mark.parametrize("kind", [FailureClass.PORT_IN_USE, FailureClass.CRASH, FailureClass.INVALID_FLAG])
def test_faults_and_what_has_no_order_teach_nothing(kind: FailureClass) -> None:
    assert lessons([infeasible(kind)], of) == ()


def test_without_a_shape_nothing_is_worked_out() -> None:
    assert lessons([infeasible(FailureClass.OOM_UNDER_LOAD)], lambda _: Setting()) == ()
    assert case_of(infeasible(FailureClass.OOM_UNDER_LOAD), Setting(), None) is None


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), min_size=3),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(list(Toward))), min_size=1, max_size=4),
)
def test_the_config_that_failed_is_always_discouraged(values: dict[str, int], moves: list[tuple[str, Toward]]) -> None:
    made = tuple(Move(parameter=name, toward=toward) for name, toward in moves)
    lesson = Lesson(config=Config.of(dict(values)), moves=made)
    assert is_discouraged(lesson.config, [lesson])
    name, toward = moves[0]
    step = -1 if toward is Toward.LOWER else 1
    assert not is_discouraged(Config.of({**values, name: values[name] + step}), [lesson])


def test_a_default_on_one_side_is_a_change_of_unknown_direction() -> None:
    lesson = Lesson(config=Config.of({}), moves=(Move(parameter="max-num-seqs", toward=Toward.LOWER),))
    assert not is_discouraged(Config.of({"max-num-seqs": 64}), [lesson])
    assert is_discouraged(Config.of({"other": 1}), [lesson])
