"""The plan of a study for people: a few lines before a study, all of it for `autotune plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.planning import StudyPlan
from autotune.planning.overview import LayoutRow, doubts, layouts, rule_counts, time_estimate
from autotune.planning.prior import tried_first
from autotune.records import Config, Objective, Value
from autotune.report.grid import Unbroken, add, column, grid, pairs, titled
from autotune.report.wording import MISSING, printable
from autotune.search.parameter import Conditions, Parameter
from autotune.search.rules_memory import MEMORY_TOLERANCE_SHARE
from autotune.session import Target
from autotune.units import format_seconds, plural

SCHEMA = 1
MOST_LAYOUTS = 12
"""Layouts that `plan` shows unless all are asked for."""


def plan_lines(plan: StudyPlan, target: Target) -> tuple[str, ...]:
    """Lines for people; the simulated engine is named first and loudly."""
    recipe = plan.recipe
    lines = list(plan.notes)
    engine = "SIMULATED engine (virtual time)" if plan.simulated else f"real servers: {_command(plan)}"
    lines += [
        f"Plan for study {recipe.name}",
        f"  model      {recipe.model}",
        f"  node       {plan.node.name}{' (simulated)' if plan.simulated else ''}",
        f"  engine     {engine}",
        f"  workload   {plan.workload.name}: prompts about {plan.traffic.prompt_mean or 0:.0f} tokens, "
        f"outputs about {plan.traffic.output_mean or 0:.0f}",
        f"  space      {plan.space.name}: {plural(plan.space.size, 'config')}, {len(plan.feasible)} may start here",
    ]
    lines += [f"             {count} ruled out - {reason}" for reason, count in plan.refused[:5]]
    fixed = _flags(Config.of({**dict(plan.fixed), **dict(plan.extra)}))
    if fixed:
        lines.append(f"  fixed      {fixed}")
    lines.append(f"  baseline   vLLM's defaults{': ' + _flags(plan.baseline) if plan.baseline.params else ''}")
    lines += [f"             because {change}" for change in plan.baseline_changes]
    wanted = ("+" if target.more else "") + plural(target.trials or recipe.trials, "trial")
    repeats = f", then baseline and pick again {recipe.repeats}x" if recipe.repeats else ""
    limit = "" if recipe.max_time_s is None else f", at most {format_seconds(recipe.max_time_s)}"
    if recipe.max_gpu_s is not None:
        limit += f", at most {recipe.max_gpu_s / 3600:g} GPU hours"
    if recipe.min_gain is not None:
        limit += f", while a gain of {recipe.min_gain:.3g} is expected"
    lines.append(f"  budget     {wanted}{limit} with sampler {recipe.sampler}, seed {recipe.seed}{repeats}")
    lines.append(f"  objective  {_objective(plan)}")
    return tuple(map(printable, lines))


def _objective(plan: StudyPlan) -> str:
    if plan.recipe.objective is Objective.GOODPUT:
        return f"goodput per GPU, the highest Poisson rate within {plan.slo}, against p95 TTFT at a fixed rate"
    return f"output tokens/s per GPU against p95 TTFT{f', {plan.slo}' if plan.slo else ''}"


def _flags(config: Config) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in config)


def _value(value: Value) -> str:
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _command(plan: StudyPlan) -> str:
    version = f" (vLLM {plan.vllm_version})" if plan.vllm_version else ""
    return f"{plan.command.text if plan.command else 'vllm serve'}{version}"


def plan_report(plan: StudyPlan, *, every: bool) -> Group:
    """All of `autotune plan`: what a study says before it begins, and what leads to it.

    Args:
        every: also rules that refuse nothing, and layouts beyond the first ones.
    """
    found = layouts(plan)
    parts: list[RenderableType] = [
        Unbroken(text="\n".join(plan_lines(plan, Target())) + "\n"),
        _space_table(plan),
        _rule_table(plan, every=every),
        _layout_table(
            plan, found if every else found[:MOST_LAYOUTS], left_out=0 if every else len(found) - MOST_LAYOUTS
        ),
        _first_table(plan),
    ]
    if plan.generated is not None and plan.generated.left_out:
        table = pairs()
        for name, why in plan.generated.left_out:
            add(table, printable(name), printable(why))
        parts.append(titled("Not searched", table))
    warnings = doubts(plan)
    if warnings:
        table = pairs()
        for warning, _ in warnings:
            remedy = f" → {warning.remedy}" if warning.remedy else ""
            add(table, warning.name, printable(warning.text + remedy))
        parts.append(titled("Doubts about some of these configs", table))
    parts.append(Text(_time_line(plan)))
    return Group(*parts)


def _space_table(plan: StudyPlan) -> Group:
    table = grid()
    for head in ("parameter", "choices", "why"):
        column(table, head)
    for parameter in plan.space.parameters:
        condition = f" (only if {_conditions(parameter)})" if parameter.conditional else ""
        add(
            table,
            printable(parameter.name),
            ", ".join(_value(c) for c in parameter.choices),
            printable(parameter.why + condition),
        )
    return titled(f"Search space {printable(plan.space.name)}", table)


def _conditions(parameter: Parameter) -> str:
    def all_of(conditions: Conditions) -> str:
        return " and ".join(f"{other} is {' or '.join(map(_value, values))}" for other, values in conditions)

    parts = [all_of(parameter.when)] if parameter.when else []
    parts += [" or ".join(all_of(group) for group in parameter.when_any)] if parameter.when_any else []
    return ", and ".join(parts)


def _pairs(conditions: Conditions) -> list[list[Any]]:
    return [[other, list(values)] for other, values in conditions]


def _rule_table(plan: StudyPlan, *, every: bool) -> Group:
    table = grid()
    column(table, "rule")
    column(table, "guide")
    for head in ("refused", "left"):
        column(table, head, right=True)
    add(table, "(all)", "", "", f"{plan.space.size:,}")
    for count in rule_counts(plan):
        if every or count.refused:
            add(table, count.name, count.row, f"{count.refused:,}", f"{count.left:,}")
    return titled("Configs left after each rule", table)


def _layout_table(plan: StudyPlan, rows: Sequence[LayoutRow], *, left_out: int) -> Group:
    """Figures and reasons apart: beside seven columns of figures the reasons would fold to a word a line."""
    table, reasons = grid(), pairs()
    for head in ("order", "layout"):
        column(table, head, whole=True)
    for head in ("GPUs", "configs", "KV tokens", "requests"):
        column(table, head, right=True)
    for place, row in enumerate(rows):
        layout = layout_words(row.config)
        add(
            table,
            f"{place}",
            layout,
            str(row.gpus),
            f"{row.configs:,}",
            _span(row.kv_tokens, 0),
            _span(row.concurrency, 1),
        )
        why = [*(["the baseline's"] if row.first_tried == 1 else []), *([row.why] if row.why else [])]
        if why:
            add(reasons, layout, printable("; ".join(why)))
    parts: list[RenderableType] = [table]
    if any(row.concurrency is not None and row.concurrency[0] < 1 for row in rows):
        parts.append(Text(_TOO_NEAR))
    if left_out > 0:
        parts.append(Text(f"{left_out} more layouts: --all shows them"))
    if reasons.row_count:
        parts += [Text(), reasons]
    title = "Layouts in the order they are tried, with the KV memory predicted for one\nreplica: tokens"
    return titled(f"{title}, and requests of {_length(plan)} tokens at once", Group(*parts))


_TOO_NEAR = (
    "Below one request a server is predicted not to start, by less than the prediction may be off "
    f"({MEMORY_TOLERANCE_SHARE:.0%} of a GPU's memory): such configs are not ruled out."
)


def layout_words(layout: Config) -> str:
    """`TP 2 x PP 1 x DP 2 + EP`."""
    tensor, pipeline, data = (layout.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data"))
    return f"TP {tensor} x PP {pipeline} x DP {data}{' + EP' if layout.get('enable-expert-parallel') else ''}"


def _length(plan: StudyPlan) -> str:
    value = {**dict(plan.fixed), **dict(plan.extra)}.get("max-model-len")
    if value is None and plan.shape is not None:
        value = plan.shape.max_position_embeddings
    return f"{value:,}" if isinstance(value, int) else "max-model-len"


def _span(found: tuple[float, float] | None, digits: int) -> str:
    if found is None:
        return MISSING
    low, high = (f"{value:,.{digits}f}" for value in found)
    return low if low == high else f"{low} - {high}"


def _first_table(plan: StudyPlan) -> Group:
    table = pairs()
    add(table, "0", f"baseline: {_flags(plan.baseline) or 'vLLM defaults'}")
    fixed = dict(plan.fixed)
    for place, config in enumerate(tried_first(plan), start=1):
        own = Config.of({name: value for name, value in config if fixed.get(name) != value})
        add(table, str(place), _flags(own))
    add(table, "then", f"what the sampler ({plan.recipe.sampler}) proposes")
    return titled("Tried first", table)


def _time_line(plan: StudyPlan) -> str:
    found = time_estimate(plan, plan.recipe.trials)
    kind = "of virtual time; computing it takes seconds to a minute" if plan.simulated else "on this node"
    return (
        f"Time: {found.launches} launches of about {format_seconds(found.start_s)} start and "
        f"{format_seconds(found.load_s)} load, {format_seconds(found.ramp_s)} to find the load: about "
        f"{format_seconds(found.total_s)} {kind}. Nothing was launched."
    )


def plan_document(plan: StudyPlan) -> dict[str, Any]:
    """The versioned JSON of `plan`; bytes, seconds and tokens."""
    found = time_estimate(plan, plan.recipe.trials)
    return {
        "schema": SCHEMA,
        "study": plan.recipe.name,
        "model": plan.recipe.model,
        "node": plan.node.name,
        "engine": str(plan.engine),
        "simulated": plan.simulated,
        "workload": plan.workload.name,
        "needed_len": plan.workload.max_model_len_needed,
        "reachable_hits": plan.reachable_hits,
        "space": {
            "name": plan.space.name,
            "hash": plan.space.space_hash,
            "size": plan.space.size,
            "feasible": len(plan.feasible),
            "parameters": [
                {
                    "name": p.name,
                    "choices": list(p.choices),
                    "why": p.why,
                    "when": _pairs(p.when),
                    "when_any": [_pairs(c) for c in p.when_any],
                    "lossy": p.lossy,
                }
                for p in plan.space.parameters
            ],
            "not_searched": [{"name": n, "why": w} for n, w in plan.generated.left_out] if plan.generated else [],
        },
        "rules": [{"rule": c.name, "guide": c.row, "refused": c.refused, "left": c.left} for c in rule_counts(plan)],
        "layouts": [
            {
                "flags": row.config.as_dict(),
                "gpus": row.gpus,
                "configs": row.configs,
                "kv_tokens": list(row.kv_tokens) if row.kv_tokens else None,
                "max_concurrency": list(row.concurrency) if row.concurrency else None,
                "why": row.why or None,
            }
            for row in layouts(plan)
        ],
        "baseline": plan.baseline.as_dict(),
        "baseline_changes": list(plan.baseline_changes),
        "fixed": dict((*plan.fixed, *plan.extra)),
        "starting_points": [config.as_dict() for config in tried_first(plan)],
        "warnings": [
            {"rule": w.name, "text": w.text, "remedy": w.remedy, "configs_seen": count} for w, count in doubts(plan)
        ],
        "time": {
            "launches": found.launches,
            "start_s": found.start_s,
            "load_s": found.load_s,
            "ramp_s": found.ramp_s,
            "total_s": found.total_s,
        },
        "notes": list(plan.notes),
    }
