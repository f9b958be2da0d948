"""The second part of a study's page: how sure each place is, and the pick under every limit. Pure."""

from __future__ import annotations

from typing import Any

from autotune.records import PickRule, Slo, SloMetric
from autotune.report.certainty import (
    certainty_document,
    certainty_lines,
    is_validated,
    pick_document,
    pick_doubt,
    standing_document,
)
from autotune.report.page.front_part import SCHEMA, standing_number
from autotune.report.view import StudyView
from autotune.search.objective import is_goodput
from autotune.search.pareto import pick
from autotune.search.slo_steps import kept_from, slo_steps
from autotune.search.stability import Assessment, Standing


def certainty_part(view: StudyView, *, rule: PickRule) -> dict[str, Any]:
    """One JSON-able object. A config's `place` is `front`, `tied` (off the front, but no launch tells it from one that
    is on it) or `dominated`; `sure` tells whether a place on the front is one beyond noise.

    Args:
        rule: how the study picks where the p95 TTFT has no limit.
    """
    found = view.assessment()
    tied = _tied(found)
    others = [limit for limit in view.slo.limits if limit.metric is not SloMetric.TTFT_P95] if view.slo else []
    kept = kept_from(view.trials, others)
    free = pick(view.trials, rule=rule, slo=Slo.made(others) if others else None, lossy=view.lossy)
    steps = slo_steps(view.trials, others=others, lossy=view.lossy)
    return {
        "part": "certainty",
        "schema": SCHEMA,
        "standings": [
            {
                "number": one.number,
                "place": "front" if one.on_front else "tied" if one.number in tied else "dominated",
                "sure": one.on_front and one.is_sure,
                "keeps_from_s": kept.get(one.number),
                **standing_document(found, one.number),
            }
            for one in found.standings
        ],
        "pick": None if view.pick is None else {**pick_document(found), "doubt": pick_doubt(found).removeprefix(", ")},
        "validated": is_validated(found),
        "lines": list(certainty_lines(found, "goodput" if is_goodput(view.trials) else "throughput")),
        "free_pick": None if free is None else {"number": standing_number(view, free.number), "reason": free.reason},
        "slo_steps": [[one.from_s, one.number, one.best, one.meeting] for one in steps],
        **certainty_document(found),
    }


def _tied(found: Assessment) -> frozenset[int]:
    """Configs off the front that launches do not tell from one on it."""
    front = [one for one in found.standings if one.on_front]
    return frozenset(number for one in (*front, *_picked(found)) for number in one.tied_with)


def _picked(found: Assessment) -> tuple[Standing, ...]:
    standing = found.standing(found.pick)
    return () if standing is None else (standing,)
