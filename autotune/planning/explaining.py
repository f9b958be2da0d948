"""A stored study as `search.explain` is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.errors import InvalidOption
from autotune.planning.plan import StudyPlan
from autotune.planning.prior import completer, prior_of
from autotune.planning.stored import knows_traffic, stored_plan
from autotune.records import Config, LoadPlan, Trial
from autotune.search.explain import Explanation, explain
from autotune.search.explain_model import Question
from autotune.search.prior.physical import PhysicalPrior
from autotune.search.rules import check
from autotune.store.study_record import StudyRecord


def explain_study(
    study: StudyRecord, trials: tuple[Trial, ...], load: LoadPlan | None, *, quick: bool = False
) -> tuple[Explanation, tuple[str, ...]]:
    """What a study has learnt, and what is not as it was when it ran.

    Args:
        load: the levels it was driven with; None before they were found.
        quick: without the event simulator's corrections of the closed form: a second instead of several.

    Raises:
        StorageError: the stored study cannot be read.
    """
    stored = stored_plan(study, trials)
    return explain(trials, question_of(stored.plan, load, quick=quick)), stored.doubts


def question_of(plan: StudyPlan, load: LoadPlan | None, *, quick: bool = False) -> Question:
    """What an explanation needs to know of a plan."""
    return Question(
        space=plan.space,
        configs=plan.feasible,
        prior=_prior(plan, load, quick=quick),
        complete=completer(plan),
        same=_same(plan),
        refusal=lambda config: _refusal(plan, config),
        seed=plan.recipe.seed,
    )


def _prior(plan: StudyPlan, load: LoadPlan | None, *, quick: bool) -> PhysicalPrior | None:
    if load is None or not knows_traffic(plan):
        return None
    prior = prior_of(plan, load)
    return replace(prior, levels=None) if prior is not None and quick else prior


def _same(plan: StudyPlan) -> Callable[[Config], str]:
    """Configs come from the space, without the flags of every launch, or as they were launched."""
    names = {parameter.name for parameter in plan.space.parameters}
    launched_bare = plan.baseline  # what the baseline lacks of them, it lacks on purpose

    def same(config: Config) -> str:
        own = config == launched_bare or not set(dict(config)) <= names
        whole = config if own else plan.complete(config)
        try:
            return plan.effective(whole)
        except InvalidOption:  # a value of a type that vLLM has no meaning for
            return whole.hash

    return same


def _refusal(plan: StudyPlan, config: Config) -> str | None:
    broken = check(config, plan.node, plan.shape, plan.context)
    return broken[0].text if broken else None
