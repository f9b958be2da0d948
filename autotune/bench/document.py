"""The versioned JSON of `autotune bench search`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.bench.jobs import Ran
from autotune.bench.summary import Comparison, Figures, Launches, Study, by_sampler, compare, pooled
from autotune.bench.survival import Ratio

SCHEMA = 1
OURS = "prior"


def document(ran: Ran) -> dict[str, Any]:
    """All surfaces and samplers. A quartile that fewer studies reached is null; minutes are simulated."""
    studies = ran.studies
    surfaces = []
    for name in dict.fromkeys(one.surface for one in studies):
        own = [one for one in studies if one.surface == name]
        surfaces.append(
            {
                "name": name,
                "kind": str(own[0].kind),
                "samplers": {sampler: _figures(one) for sampler, one in by_sampler(own).items()},
            }
        )
    return {
        "schema": SCHEMA,
        "complete": ran.stopped is None,
        "studies": {"asked": ran.asked, "finished": len(studies), "taken_over": ran.taken_over},
        "surfaces": surfaces,
        "pooled": {sampler: _figures(one) for sampler, one in pooled(studies).items()},
        "comparisons": [_comparison(one) for one in compare(studies, subject(studies))],
    }


def subject(studies: Sequence[Study]) -> str:
    """Whose comparisons are shown: ours where it ran, else random search."""
    names = {one.sampler for one in studies}
    return OURS if OURS in names or "random" not in names else "random"


def _figures(one: Figures) -> dict[str, Any]:
    to_90, to_95, to_99 = one.to
    return {
        "studies": one.studies,
        "launches_to_90": _launches(to_90),
        "launches_to_95": _launches(to_95),
        "launches_to_99": _launches(to_99),
        "minutes_to_90": one.minutes[0],
        "minutes_to_95": one.minutes[1],
        "minutes_to_99": one.minutes[2],
        "gap_closed_at_20": one.gap_closed_at_20,
        "gap_closed_at_40": one.gap_closed_at_40,
        "infeasible_share": one.infeasible_share,
    }


def _launches(one: Launches) -> dict[str, Any]:
    return {
        "median": one.median,
        "q1": one.q1,
        "q3": one.q3,
        "mean": one.mean,
        "censored_share": one.censored_share,
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "sampler": one.sampler,
        "against": one.against,
        "median_ratio": _ratio(one.medians),
        "mean_ratio": _ratio(one.means),
        "p": one.p,
    }


def _ratio(one: Ratio) -> dict[str, Any]:
    return {"value": one.value, "low": one.low, "high": one.high}
