import pytest

from autotune.records import PickRule, Slo
from autotune.search.asked import asked_rule, asked_slo

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
