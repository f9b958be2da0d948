"""The plan of a study in a few lines: what will be launched, on what, and what was ruled out before."""

from __future__ import annotations

from autotune.planning import StudyPlan
from autotune.records import Config, Value
from autotune.session import Target


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
        f"  workload   {plan.workload.name}: prompts about {plan.workload.prompt_tokens.mean:.0f} tokens, "
        f"outputs about {plan.workload.output_tokens.mean:.0f}",
        f"  space      {plan.space.name}: {plan.space.size} configs, {len(plan.feasible)} can start here",
    ]
    lines += [f"             {count} ruled out - {reason}" for reason, count in plan.refused[:5]]
    fixed = _flags(Config.of({**dict(plan.fixed), **dict(plan.extra)}))
    if fixed:
        lines.append(f"  fixed      {fixed}")
    lines.append(f"  baseline   vLLM's defaults{': ' + _flags(plan.baseline) if plan.baseline.params else ''}")
    lines += [f"             because {change}" for change in plan.baseline_changes]
    wanted = f"+{target.trials}" if target.more else str(target.trials or recipe.trials)
    repeats = f", then baseline and pick again {recipe.repeats}x" if recipe.repeats else ""
    lines.append(f"  budget     {wanted} trials with sampler {recipe.sampler}, seed {recipe.seed}{repeats}")
    lines.append(f"  objective  output tokens/s per GPU against p95 TTFT{f', {plan.slo}' if plan.slo else ''}")
    return tuple(lines)


def _flags(config: Config) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in config)


def _value(value: Value) -> str:
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _command(plan: StudyPlan) -> str:
    version = f" (vLLM {plan.vllm_version})" if plan.vllm_version else ""
    return f"{plan.command.text if plan.command else 'vllm serve'}{version}"
