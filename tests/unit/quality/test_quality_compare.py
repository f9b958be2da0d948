"""The quality guard's figures: what is lossy, how far answers are from a reference's, and whether that is too far."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.quality.answers import Answer
from autotune.quality.compare import compare
from autotune.quality.lossy import lossy_changes, lossy_names
from autotune.records import Config, Quality, QualityState, QualityThresholds

LOOSE = QualityThresholds(perplexity_ratio=10.0, logprob_gap=10.0, agreement=0.0)


def answer(name="001", logprobs=(-1.0, -2.0), greedy=("a", "b", "c", "d"), ids=None):
    return Answer(name=name, prompt_ids=ids or tuple(range(len(logprobs))), logprobs=logprobs, greedy=greedy)


def compared(reference, answers, thresholds=LOOSE, subjects=None, **changes):
    found = Quality(**{"state": QualityState.NOT_MEASURABLE, "why": "", "lossy": ("dtype=float32",), **changes})
    return compare(found, reference, answers, thresholds, subjects or {})


def test_figures_by_hand():
    # Two tokens, by 0.1 less and by 0.3 more likely: 0.2 in sum, 0.4 in absolute terms.
    found = compared([answer()], [answer(logprobs=(-1.1, -1.7), greedy=("a", "b", "x", "d"))])
    assert found.perplexity_ratio.value == pytest.approx(math.exp(-0.2 / 2))
    assert found.logprob_gap.value == pytest.approx(0.2)
    assert found.agreement.value == 0.5
    assert (found.prompts, found.state) == (1, QualityState.HELD)


def test_long_prompts_count_by_their_tokens_and_agreement_by_prompts():
    reference = [answer("001", logprobs=(-1.0,) * 3), answer("002", logprobs=(-1.0,))]
    answers = [answer("001", logprobs=(-1.4,) * 3), answer("002", logprobs=(-1.0,), greedy=("x",) * 4)]
    found = compared(reference, answers, subjects={"001": "code", "002": "mathematics"})
    assert found.logprob_gap.value == pytest.approx(0.3)
    assert found.agreement.value == 0.5
    assert found.by_subject == (("code", 1.0), ("mathematics", 0.0))


def test_the_same_answers_differ_by_nothing():
    answers = [answer(f"{place:03d}", logprobs=(-0.1 * place,) * 5) for place in range(1, 9)]
    found = compared(answers, answers)
    assert (found.perplexity_ratio.value, found.perplexity_ratio.high) == (1.0, 1.0)
    assert (found.logprob_gap.value, found.agreement.low) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("thresholds", "state"),
    [
        (QualityThresholds(perplexity_ratio=1.2, logprob_gap=0.2, agreement=0.5), QualityState.HELD),
        (QualityThresholds(perplexity_ratio=1.2, logprob_gap=0.1, agreement=0.5), QualityState.UNDECIDED),
        (QualityThresholds(perplexity_ratio=1.2, logprob_gap=0.04, agreement=0.5), QualityState.LOST),
    ],
)
def test_a_threshold_is_judged_by_the_interval(thresholds, state):
    # Half of the prompts by 0.05 off, half by 0.15: 0.1 on average, anywhere between over the draws.
    reference = [answer(f"{place:03d}", logprobs=(-1.0,)) for place in range(10)]
    answers = [answer(f"{place:03d}", logprobs=(-1.05 if place % 2 else -1.15,)) for place in range(10)]
    found = compared(reference, answers, thresholds)
    assert found.logprob_gap.low < 0.1 < found.logprob_gap.high
    assert found.state is state
    assert "gap 0.1" in found.why


@pytest.mark.parametrize("count", [1, 10])
def test_a_config_that_computes_no_numbers_is_lost(count):
    reference = [answer(f"{place:03d}") for place in range(count)]
    answers = [answer(f"{place:03d}", logprobs=(math.nan, -2.0)) for place in range(count)]
    assert compared(reference, answers).state is QualityState.LOST


def test_the_reference_again_stays_the_reference_however_it_differs():
    found = compared([answer()], [answer(greedy=("x",))], QualityThresholds(agreement=1.0), lossy=())
    assert found.state is QualityState.REFERENCE
    assert found.agreement.value == 0.0


def test_other_tokens_cannot_be_compared():
    found = compared([answer()], [answer(ids=(7, 8))])
    assert (found.state, found.agreement) == (QualityState.NOT_MEASURABLE, None)
    assert compared([answer("001")], [answer("002")]).state is QualityState.NOT_MEASURABLE


@given(
    st.lists(st.floats(min_value=-20, max_value=0), min_size=1, max_size=6),
    st.floats(min_value=-3, max_value=3),
)
def test_a_shift_of_all_log_probabilities_is_the_gap_and_the_perplexity(logprobs, shift):
    found = compared([answer(logprobs=tuple(logprobs))], [answer(logprobs=tuple(one - shift for one in logprobs))])
    assert found.logprob_gap.value == pytest.approx(abs(shift), abs=1e-9)
    assert found.perplexity_ratio.value == pytest.approx(math.exp(shift), rel=1e-6)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"max-num-seqs": 64}, ()),
        ({"kv-cache-dtype": "auto"}, ()),
        ({"kv-cache-dtype": "fp8", "dtype": None}, ("kv-cache-dtype=fp8",)),
        ({"calculate-kv-scales": False}, ()),
        ({"calculate-kv-scales": True}, ("calculate-kv-scales=true",)),
        ({"model": "org/model-awq", "block-size": 32}, ("block-size=32", "model=org/model-awq")),
    ],
)
def test_what_changes_numerics(config, changes):
    assert lossy_changes(Config.of(config), Config.of({}), lossy_names(["block-size"])) == changes
