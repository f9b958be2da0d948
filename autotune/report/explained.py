"""What a study has learnt, as text and as versioned JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.records import Estimate
from autotune.report.grid import add, column, grid, titled
from autotune.report.wording import MISSING, latency, printable, rate, setting
from autotune.search.explain import Explanation, Idle, Nothing, PriorUse
from autotune.search.explain_changes import Change
from autotune.search.explain_effect import Basis, Effect, Standing
from autotune.search.explain_knobs import Swing, Weight
from autotune.search.explain_untried import Region, Untried
from autotune.search.knob import Values
from autotune.units import plural

SCHEMA = 2
"""Grows when a key changes its meaning or goes; new keys may come without."""

BRIEF_KNOBS = 3
"""Knobs that the report of a study names."""

_SAID = (Standing.REAL, Standing.INFERRED)
"""What a short version says that launches have shown."""

_LEGEND = (
    "real: servers that differ in nothing else were launched. inferred: both values were launched, together with other "
    "changes, and the model shares out what they gained. expected: nobody launched it, the model alone says so."
)

_PRIOR = {
    PriorUse.NONE: "no physics (unknown model or GPU, or a study that did not store its load): the trials alone speak",
    PriorUse.USED: "what physics expect, corrected by the trials",
    PriorUse.PARTLY: "what physics expect is used for one objective; trials contradict it in the other: ",
    PriorUse.CONTRADICTED: "trials contradict what physics expect, so the trials alone speak",
}


def explanation_text(found: Explanation, *, study: str, simulated: bool, doubts: Sequence[str] = ()) -> Group:
    """Everything, for a terminal."""
    mark = " (simulated)" if simulated else ""
    head = Text()
    head.append(f"Study {printable(study)}{mark}", style="bold")
    launched = f"{plural(found.launched, 'different server')}, {found.measured} of them measured"
    head.append(f": {plural(len(found.lines), 'trial')}, {launched}\n")
    head.append(f"Believed: {_believed(found)}\n")
    for doubt in doubts:
        head.append(f"Note: {printable(doubt)}\n")
    parts: list[RenderableType] = [head, _lines(found)]
    if not found.weights:
        parts.append(Text("Too few trials were measured to say what matters.\n"))
    else:
        parts += [_weights(found, mark), _changes(found, mark), Text(f"{_LEGEND}\n"), _idle(found)]
    if found.merged:
        same = "; ".join(", ".join(map(str, numbers)) for numbers in found.merged)
        parts.append(Text(f"Trials of one server under several configs, taken as repeats: {same}\n"))
    return Group(*parts, *_untried(found, mark))


def brief_lines(found: Explanation, study: str) -> list[RenderableType]:
    """For the report of a study: what mattered and what did nothing, in a few lines."""
    if not found.weights:
        return []
    lines: list[RenderableType] = []
    shown = _brief(found, _SAID)
    if shown:
        lines.append(Text(f"What mattered, best value against worst: {shown}"))
    hoped = _brief(found, (Standing.EXPECTED,))
    if hoped:
        lines.append(Text(f"Expected to matter, but never launched: {hoped}"))
    still = [printable(one.knob) for one in found.idle if one.how is Nothing.MEASURED]
    if still:
        lines.append(Text(f"Made no difference beyond noise: {', '.join(still)}"))
    more = "tells all of it" if lines else "says what is known of each parameter; none of it is beyond noise yet"
    return [*lines, Text(f"`autotune explain {printable(study)}` {more}.\n")]


def _brief(found: Explanation, standings: Sequence[Standing]) -> str:
    """The first knobs that have a swing of these standings, with those swings."""
    told = [(one, _swing_words(one, _what(found), standings)) for one in found.weights]
    named = [f"{printable(one.knob.name)} ({words})" for one, words in told if words]
    return "; ".join(named[:BRIEF_KNOBS])


def explanation_document(
    found: Explanation, *, study: str, simulated: bool, doubts: Sequence[str] = ()
) -> dict[str, Any]:
    """One object (`explain --json`); a ratio above 1 is more throughput, or a longer TTFT."""
    return {
        "schema": SCHEMA,
        "study": study,
        "simulated": simulated,
        "launched": found.launched,
        "measured": found.measured,
        "objective": _what(found),
        "prior": str(found.prior),
        "contradicted": list(found.contradicted),
        "noise": {
            "throughput_sd": found.noise.throughput_sd,
            "ttft_sd": found.noise.ttft_sd,
            "repeats": found.noise.repeats,
        },
        "notes": list(doubts),
        "trials": [{"number": one.number, "reason": str(one.reason), "why": one.why} for one in found.lines],
        "parameters": [_weight_document(one) for one in found.weights],
        "changes": [_change_document(one) for one in found.changes],
        "no_effect": [
            {"parameter": one.knob, "how": str(one.how), "values": [dict(values) for values in one.values]}
            for one in found.idle
        ],
        "same_server": [list(numbers) for numbers in found.merged],
        "untried": {
            "configs": found.left,
            "best": [_untried_document(one) for one in found.untried],
            "values": [_region_document(one) for one in found.regions],
        },
    }


def words_of(values: Values) -> str:
    """A knob's value as people read it: `TP 2 x DP 2`, `256`, `vLLM's default`."""
    given = dict(values)
    if not values or all(value is None for value in given.values()):
        return "vLLM's default"
    if len(values) == 1 and not set(given) <= set(_SIZES):
        value = values[0][1]
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else printable(str(value))
    sizes = [f"{_SIZES[name]} {value}" for name, value in values if name in _SIZES and value not in (None, 1)]
    rest = ["EP" for name, value in values if name == "enable-expert-parallel" and value is True]
    return " x ".join([*sizes, *rest]) or "one GPU"


_SIZES = {"tensor-parallel-size": "TP", "pipeline-parallel-size": "PP", "data-parallel-size": "DP"}


def _what(found: Explanation) -> str:
    """The first objective."""
    return "goodput" if found.goodput else "throughput"


def _believed(found: Explanation) -> str:
    return _PRIOR[found.prior] + (", ".join(found.contradicted) if found.prior is PriorUse.PARTLY else "")


def _lines(found: Explanation) -> RenderableType:
    table = grid()
    for head, right in (("trial", True), ("reason", False), ("why", False)):
        column(table, head, right=right)
    for one in found.lines:
        add(table, str(one.number), str(one.reason), printable(one.why))
    return titled("Why each was launched", table)


def _weights(found: Explanation, mark: str) -> RenderableType:
    table = grid()
    what = _what(found)
    heads = ("parameter", "measured", f"of {what}", "of TTFT", f"{what}{mark}", f"TTFT p95{mark}")
    for head in heads:
        column(table, head, right=head in heads[1:4], whole=head == heads[0])
    for one in found.weights:
        add(
            table,
            *(one.knob.name, f"{len(one.measured)} of {one.values}", f"{one.shares[0]:.0%}", f"{one.shares[1]:.0%}"),
            *(_swing(swing) for swing in one.swings),
        )
    return titled("What matters: share of the differences that are expected here, and best value against worst", table)


def _changes(found: Explanation, mark: str) -> RenderableType:
    table = grid()
    for head in ("parameter", "from", "to", f"{_what(found)}{mark}", f"TTFT p95{mark}", "known from"):
        column(table, head, whole=head == "parameter")
    for one in found.changes:
        before, after = words_of(one.before), words_of(one.values)
        if one.effects is None:
            add(table, one.knob, before, after, MISSING, MISSING, f"cannot start: {one.refusal}")
        else:
            cells = [MISSING, MISSING] if one.failure else [_change(effect) for effect in one.effects]
            add(table, one.knob, before, after, *cells, _source(one))
    return titled("One at a time, against the baseline", table)


def _source(one: Change) -> str:
    numbers = ", ".join(map(str, one.trials))
    if one.failure:
        return f"trial {numbers}: {one.failure}"
    if one.same:
        return "the same server"
    if one.trials:
        return f"trial {numbers}"
    inferred = one.effects is not None and one.effects[0].basis is Basis.INFERRED
    return "launched with other changes" if inferred else "the model, never launched"


def _idle(found: Explanation) -> RenderableType:
    if not found.idle:
        return Text("Every parameter made a difference, or is not known well enough to say that it made none.\n")
    table = grid()
    for head in ("parameter", "how that is known"):
        column(table, head, whole=head == "parameter")
    for one in found.idle:
        add(table, one.knob, _idle_words(one))
    return titled("Did nothing", table)


def _idle_words(one: Idle) -> str:
    if one.how is Nothing.MEASURED:
        values = ", ".join(words_of(values) for values in one.values)
        return f"{values}: launched, and no two of them differ by more than noise"
    return f"{', '.join(words_of(values) for values in one.values)}: the same server"


def _untried(found: Explanation, mark: str) -> list[RenderableType]:
    if not found.untried and not found.regions:
        return []
    table = grid()
    unit = f"tok/s per GPU{' of goodput' if found.goodput else ''}{mark}"
    heads = (unit, f"TTFT p95{mark}", "starts", "front grows by", "changes against the baseline")
    for head in heads:
        column(table, head, right=head != heads[-1])
    for one in found.untried:
        add(table, *_expected(one), _settings(one.changed))
    parts: list[RenderableType] = []
    if found.untried:
        parts.append(titled(f"Never tried: the best of {plural(found.left, 'config')}, as expected", table))
    if found.regions:
        regions = grid()
        for head in ("parameter", "value", "configs", *heads[:4]):
            column(regions, head, right=head not in ("parameter", "value"), whole=head == "parameter")
        for region in found.regions:
            value = words_of(region.values)
            failed = f" (failed in trial {', '.join(map(str, region.failed))})" if region.failed else ""
            add(regions, region.knob, value + failed, f"{region.configs:,}", *_expected(region.best))
        parts.append(titled("Values that no measured trial has, and the best expected with them", regions))
    return parts


def _expected(one: Untried) -> list[str]:
    grows = "more than it is" if math.isinf(one.gain) else f"{one.gain:.1%}"
    return [rate(one.tok_s_per_gpu), latency(one.ttft_p95_s), f"{one.feasible:.0%}", grows]


def _settings(values: Values) -> str:
    return "  ".join(
        setting(name, value) if value is not None else f"{printable(name)} back to default" for name, value in values
    )


def _swing(found: Swing | None) -> str:
    if found is None:
        return MISSING
    return f"{_change(found.effect)}: {words_of(found.better)} against {words_of(found.worse)}"


def _swing_words(one: Weight, what: str, standings: Sequence[Standing]) -> str:
    told = zip((what, "TTFT"), one.swings, strict=True)
    return ", ".join(
        f"{word} {_percent(swing.effect.ratio)} with {words_of(swing.better)} against {words_of(swing.worse)}"
        f"{', inferred' if swing.effect.standing is Standing.INFERRED else ''}"
        for word, swing in told
        if swing and swing.effect.standing in standings
    )


def _change(found: Effect) -> str:
    """`+12 % [+9 .. +15], real`; of what nobody launched `within noise, expected`."""
    beside = f", {found.basis}" if found.basis is Basis.EXPECTED and found.standing is Standing.NOISE else ""
    return f"{_percent(found.ratio)} [{_percent(found.low)} .. {_percent(found.high)}], {found.standing}{beside}"


def _percent(ratio: float) -> str:
    return f"{min((ratio - 1.0) * 100.0, 9999.0):+.0f} %"


def _effect_document(found: Effect) -> dict[str, Any]:
    return {
        "ratio": found.ratio,
        "interval": [found.low, found.high],
        "standing": str(found.standing),
        "basis": str(found.basis),
    }


def _swing_document(found: Swing | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"better": dict(found.better), "worse": dict(found.worse), **_effect_document(found.effect)}


def _weight_document(one: Weight) -> dict[str, Any]:
    return {
        "parameter": one.knob.name,
        "flags": [parameter.name for parameter in one.knob.parameters],
        "values": one.values,
        "measured_values": len(one.measured),
        "throughput": {"share": one.shares[0], "swing": _swing_document(one.swings[0])},
        "ttft_p95": {"share": one.shares[1], "swing": _swing_document(one.swings[1])},
    }


def _change_document(one: Change) -> dict[str, Any]:
    throughput, ttft = (None, None) if one.effects is None or one.failure else map(_effect_document, one.effects)
    return {
        "parameter": one.knob,
        "from": dict(one.before),
        "to": dict(one.values),
        "throughput": throughput,
        "ttft_p95": ttft,
        "trials": list(one.trials),
        "failure": one.failure,
        "refused": one.refusal,
        "same_server": one.same,
    }


def _untried_document(one: Untried) -> dict[str, Any]:
    return {
        "flags": one.config.as_dict(),
        "changes": dict(one.changed),
        "output_tok_s_per_gpu": one.tok_s_per_gpu.value,
        "output_tok_s_per_gpu_interval": _interval(one.tok_s_per_gpu),
        "ttft_p95_s": one.ttft_p95_s.value,
        "ttft_p95_s_interval": _interval(one.ttft_p95_s),
        "feasible": one.feasible,
        "front_gain": None if math.isinf(one.gain) else one.gain,
    }


def _region_document(one: Region) -> dict[str, Any]:
    return {
        "parameter": one.knob,
        "value": dict(one.values),
        "configs": one.configs,
        "failed": list(one.failed),
        "best": _untried_document(one.best),
    }


def _interval(found: Estimate) -> list[float | None]:
    return [found.low, found.high]
