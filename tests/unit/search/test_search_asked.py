import pytest

from autotune.errors import InvalidOption
from autotune.records import PickRule, Slo
from autotune.search.asked import asked_limits, asked_rule, asked_slo

STORED = {"slo": "ttft_p95<=500ms", "pick_rule": "throughput"}


@pytest.mark.parametrize(("spec", "given", "limit_s"), [(STORED, None, 0.5), (STORED, "0.2s", 0.2), ({}, "200ms", 0.2)])
def test_the_commands_limit_beats_the_stored_one(spec: dict[str, str], given: str | None, limit_s: float) -> None:
    assert asked_slo(spec, given) == Slo.of(ttft_p95=limit_s)


def test_no_limit_anywhere_is_none() -> None:
    assert asked_slo({"slo": None}, None) is None


@pytest.mark.parametrize(
    ("spec", "given", "rule"),
    [
        (STORED, None, PickRule.THROUGHPUT),
        (STORED, PickRule.KNEE, PickRule.KNEE),
        ({}, None, PickRule.KNEE),
        ({}, PickRule.LATENCY, PickRule.LATENCY),
    ],
)
def test_the_commands_rule_beats_the_stored_one(spec: dict[str, str], given: PickRule | None, rule: PickRule) -> None:
    assert asked_rule(spec, given) is rule


GOODPUT = {"slo": "ttft_p95<=500ms", "objective": "goodput"}


def test_a_goodput_has_the_slo_that_it_was_searched_under() -> None:
    assert asked_slo(GOODPUT, None) == asked_slo(GOODPUT, "0.5s") == Slo.of(ttft_p95=0.5)
    with pytest.raises(InvalidOption, match="--slo"):
        asked_slo(GOODPUT, "0.2s")


def test_limits_are_the_samplers_only_beside_a_throughput() -> None:
    assert asked_limits(STORED, "0.2s") == Slo.of(ttft_p95=0.2)
    assert asked_limits(GOODPUT, None) is None
