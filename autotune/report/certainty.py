"""How sure front and pick are, in words and as JSON: ties, drift, what to expect, whether the pick was validated."""

from __future__ import annotations

from typing import Any

from autotune.records import Estimate
from autotune.report.wording import change_text, gain
from autotune.search.drift import Drift, Trend
from autotune.search.stability import CANDIDATE, CONFIDENCE, Assessment, Standing
from autotune.search.validation import Validation, ValidationState
from autotune.units import plural

MOST_NAMED = 3
"""Trials that a sentence names; JSON has all."""

_UNSURE = 0.995
"""A probability above it is no news in a table."""


def chance(probability: float) -> str:
    """`62 %`; never 0 or 100, which no number of draws shows."""
    if probability < 0.005:
        return "<1 %"
    return ">99 %" if probability > _UNSURE else f"{probability * 100:.0f} %"


def marks(found: Assessment, number: int) -> tuple[str, ...]:
    """What a row of the front has beside its figures: that it is not sure, and whom noise does not tell it from."""
    standing = found.standing(number)
    if standing is None:
        return ()
    unsure = standing.on_front and not standing.is_sure
    place = [f"on the front with {chance(standing.front_probability)}"] if unsure else []
    return (*place, *ties(standing))


def ties(standing: Standing) -> tuple[str, ...]:
    """Whom noise does not tell a config from, and who is better than one of the front."""
    tied = [f"tied with {_numbers(standing.tied_with)}"] if standing.tied_with else []
    beaten = [f"no better than {_numbers(standing.beaten_by)}"] if standing.beaten_by and standing.on_front else []
    return (*tied, *beaten)


def pick_doubt(found: Assessment) -> str:
    """What the pick lacks to be called one, as `, not yet validated`; nothing where it lacks nothing."""
    state = found.validation.state if found.validation else ValidationState.MISSING
    match state:
        case ValidationState.VALIDATED | ValidationState.BASELINE:
            return ""
        case ValidationState.WORSE:
            return ", worse when validated"
        case ValidationState.MISSING:
            return ", not yet validated"


def is_validated(found: Assessment) -> bool | None:
    """Whether the pick kept what it promised on fresh seeds; None where nothing was promised or nothing is picked."""
    if found.validation is None or found.validation.state is ValidationState.BASELINE:
        return None
    return found.validation.state is ValidationState.VALIDATED


def certainty_lines(found: Assessment, what: str = "throughput") -> tuple[str, ...]:
    """Sentences about pick and front, most important first; none without a pick.

    Args:
        what: the first objective: `throughput` or `goodput`.
    """
    standing = found.standing(found.pick)
    if standing is None or found.validation is None:
        return ()
    lines = [*_validation(found.validation, what), *_expected(found, what), *_ties(standing, found), _sureness(found)]
    return (*lines, *drift_lines(found.drift, what))


def _validation(seen: Validation, what: str) -> list[str]:
    if seen.throughput is None or seen.ttft is None:
        if seen.state is ValidationState.BASELINE:
            return []
        return [
            "Not validated: the pick was not launched under fresh prompts and arrivals "
            "(the repeats at a study's end do that: --repeats 1)."
        ]
    told = f"{what} {change_text(seen.throughput)} and TTFT p95 {change_text(seen.ttft)} against what it had promised"
    trials = f"trial {_numbers(seen.launches)}, fresh prompts and arrivals"
    if seen.state is ValidationState.WORSE:
        return [f"Validation failed ({trials}): {told}, more than launches differ."]
    return [f"Validated ({trials}): {told}, within what launches differ."]


def _expected(found: Assessment, what: str) -> list[str]:
    if found.throughput_gain is None or found.ttft_gain is None:
        return []
    return [
        f"To expect of it: {what} per GPU {_gain(found.throughput_gain)}, TTFT p95 {_gain(found.ttft_gain)} against "
        "the baseline; the luck of the best of many is taken off."
    ]


def _gain(figure: Estimate) -> str:
    return f"{gain(figure.value)} [{gain(figure.low)} .. {gain(figure.high)}]"


def _ties(standing: Standing, found: Assessment) -> list[str]:
    if not standing.tied_with:
        return []
    others = [number for number in standing.tied_with if number != 0 or not found.tied_with_baseline]
    named = "; ".join(f"trial {number}{_flags(found.standing(number))}" for number in others[:MOST_NAMED])
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    lines = (
        ["Statistically tied with the baseline: vLLM's defaults may be as good."] if found.tied_with_baseline else []
    )
    if others:
        own = "" if standing.plainness is None else f"; the pick has {plural(standing.plainness.changes, 'change')}"
        lines.append(f"Statistically tied with the pick: {named}{more}{own}. Launches of one config differ as much.")
    return lines


def _flags(standing: Standing | None) -> str:
    """What it changes of the baseline: ` (6 changes, of which kv-cache-dtype=fp8 may change answers)`."""
    plain = None if standing is None else standing.plainness
    if plain is None:
        return ""
    risk = f", of which {', '.join(plain.lossy)} may change answers" if plain.lossy else ""
    return f" ({plural(plain.changes, 'change')}{risk})"


def _sureness(found: Assessment) -> str:
    standing = found.standing(found.pick)
    assert standing is not None  # asked for a pick only
    again = f"the same pick in {chance(standing.pick_probability)} of the studies that could have been"
    if found.is_stable:
        aside = " Those that are no better than another are left out of that." if _any_beaten_luckily(found) else ""
        each = f"each config on the front or off it in {CONFIDENCE:.0%} or more"
        return f"Front and pick are stable: {again}, {each}.{aside}"
    unsure = [one.number for one in found.standings if not one.is_decided]
    place = f"; on the front or not is open for trial {_numbers(unsure)}" if unsure else ""
    return f"Not stable: {again}{place}. More --repeats would tell."


def _any_beaten_luckily(found: Assessment) -> bool:
    """Whether a config is no better than another one, and in so many drawn studies on the front all the same."""
    return any(one.beaten_by and CANDIDATE < one.front_probability < CONFIDENCE for one in found.standings)


def drift_lines(drift: Drift | None, what: str = "throughput") -> tuple[str, ...]:
    """What the baseline's launches say of the node; empty where it was launched once."""
    if drift is None:
        return ()
    if not drift.found and not drift.corrected:
        return (
            f"No drift seen in {len(drift.launches)} launches of the baseline; so few would show {what} "
            f"{gain(drift.throughput.detectable)} or TTFT {gain(drift.ttft.detectable)} in four of five cases.",
        )
    lines = []
    for name, trend in ((what, drift.throughput), ("TTFT p95", drift.ttft)):
        if trend.clear:
            lines.append(
                f"Drift: the baseline's {name} changed by {_trend(trend)} over the study; taken off all figures."
            )
        elif trend.found:
            lines.append(
                f"Drift: the baseline's {name} changed by {_trend(trend)} from trial {drift.launches[0]} to "
                f"{drift.launches[-1]}; nothing is corrected, as {len(drift.launches)} launches do not tell a trend "
                "from an odd launch. Compare early and late trials with care."
            )
    return tuple(lines)


def _trend(trend: Trend) -> str:
    return f"{gain(trend.change)} [{gain(trend.low)} .. {gain(trend.high)}]"


def _numbers(numbers: tuple[int, ...] | list[int]) -> str:
    """`3, 5`; of many the first and how many more."""
    if len(numbers) <= MOST_NAMED + 1:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:MOST_NAMED]))} and {len(numbers) - MOST_NAMED} more"


# --- JSON -----------------------------------------------------------------------------------------------------------


_STANDING = (
    *("front_probability", "pick_probability", "tied_with", "beaten_by", "changes", "lossy"),
    *("expected_tok_s_per_gpu", "expected_tok_s_per_gpu_interval"),
    *("expected_ttft_p95_s", "expected_ttft_p95_s_interval"),
)


def standing_document(found: Assessment, number: int) -> dict[str, Any]:
    """Of one config of the front, the baseline or the pick; nulls for one that was not measured."""
    standing = found.standing(number)
    if standing is None:
        return dict.fromkeys(_STANDING)
    return {
        "front_probability": standing.front_probability,
        "pick_probability": standing.pick_probability,
        "tied_with": list(standing.tied_with),
        "beaten_by": list(standing.beaten_by),
        "changes": None if standing.plainness is None else standing.plainness.changes,
        "lossy": None if standing.plainness is None else list(standing.plainness.lossy),
        **_figure("expected_tok_s_per_gpu", standing.tok_s_per_gpu),
        **_figure("expected_ttft_p95_s", standing.ttft_p95_s),
    }


def pick_document(found: Assessment) -> dict[str, Any]:
    """What is added to the pick."""
    standing = found.standing(found.pick)
    tied = () if standing is None else standing.tied_with
    return {
        "tied": [{"trial": number, **standing_document(found, number)} for number in tied],
        "validated": is_validated(found),
        "validation": _validation_document(found.validation),
        "tied_with_baseline": found.tied_with_baseline,
        **_figure("expected_throughput_gain", found.throughput_gain),
        **_figure("expected_ttft_gain", found.ttft_gain),
    }


def certainty_document(found: Assessment) -> dict[str, Any]:
    """Of the whole study: the spread between launches, drift, whether front and pick are stable."""
    drift = found.drift
    return {
        "stable": found.is_stable,
        "noise": {
            "throughput_sd": found.noise.throughput_sd,
            "ttft_sd": found.noise.ttft_sd,
            "repeats": found.noise.repeats,
        },
        "drift": None
        if drift is None
        else {
            "launches": list(drift.launches),
            "throughput": _trend_document(drift.throughput),
            "ttft": _trend_document(drift.ttft),
        },
    }


def _trend_document(trend: Trend) -> dict[str, Any]:
    return {
        "change": trend.change,
        "interval": [trend.low, trend.high],
        "found": trend.found,
        "corrected": trend.clear,
        "detectable": trend.detectable,
    }


def _validation_document(seen: Validation | None) -> dict[str, Any] | None:
    if seen is None:
        return None
    return {
        "state": str(seen.state),
        "trials": list(seen.launches),
        "throughput_ratio": seen.throughput.ratio if seen.throughput else None,
        "throughput_interval": [seen.throughput.low, seen.throughput.high] if seen.throughput else None,
        "ttft_ratio": seen.ttft.ratio if seen.ttft else None,
        "ttft_interval": [seen.ttft.low, seen.ttft.high] if seen.ttft else None,
    }


def _figure(name: str, figure: Estimate | None) -> dict[str, Any]:
    interval = None if figure is None or figure.low is None else [figure.low, figure.high]
    return {name: figure.value if figure else None, f"{name}_interval": interval}
