"""When a study's quality guard asks, and whose answers count: those of the first launch that computes as the baseline
does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.planning.plan import StudyPlan
from autotune.quality.lossy import lossy_changes, lossy_names
from autotune.quality.prompts import PromptSet, load_prompts
from autotune.recipe import QualityChoice
from autotune.records import QualityState, Trial
from autotune.search.space import SearchSpace
from autotune.trial_quality import QualityOrder


def guard_prompts(choice: QualityChoice, space: SearchSpace) -> PromptSet | None:
    """The prompts to ask; None where the guard is off, or nothing that is tried changes numerics.

    Raises:
        InvalidFile: the operator's own file cannot be used.
    """
    names = lossy_names(parameter.name for parameter in space.parameters if parameter.lossy)
    tried = any(parameter.name in names and len(parameter.choices) > 1 for parameter in space.parameters)
    if not choice.enabled or not tried:
        return None
    return load_prompts(None if choice.prompts is None else Path(choice.prompts))


def quality_order(plan: StudyPlan, trials: Sequence[Trial], trial: Trial) -> QualityOrder | None:
    """What is asked in a trial; None where the guard is off.

    A config that computes as the baseline does is asked while there is no reference, and as the reference is launched
    again: how much two launches of one config differ is what others have to be seen beside.
    """
    if plan.prompts is None:
        return None
    reference = next((one for one in trials if one.number != trial.number and _answered(one)), None)
    changes = lossy_changes(trial.config, plan.baseline, plan.lossy)
    again = reference is not None and reference.config.hash == trial.config.hash
    return QualityOrder(
        prompts=plan.prompts,
        thresholds=plan.recipe.quality.thresholds,
        lossy=changes,
        reference=Path(reference.directory) if reference is not None and reference.directory else None,
        label=f"trial {reference.number}" if reference is not None else None,
        ask=bool(changes) or reference is None or again,
    )


def _answered(trial: Trial) -> bool:
    """Whether its answers are what others are compared with."""
    found = trial.result.quality if trial.result is not None else None
    return found is not None and found.state is QualityState.REFERENCE and found.reference is None
