"""What failures and limits teach about configs not tried yet: the remedies as priors. Pure.

A failed or starved config `f` comes with moves (`advice`), e.g. fewer sequences, a smaller share of memory. A config is
*discouraged* when it makes none of those moves against `f`: it repeats what went wrong, or goes further that way. That
is a preference and no rule, because feasibility is not monotone: a discouraged config is proposed once nothing better
is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.advice import Case, Move, Toward, advise
from autotune.bottleneck import Limit, Setting, settings_of, verdicts
from autotune.records import INFEASIBLE_CLASSES, Config, FailureClass, LevelRole, Outcome, Trial, Value

TEACHING_LIMITS = frozenset({Limit.KV_MEMORY})
"""Limits that more of the same makes worse. The others (a cap, a busy API server) only say where to look first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A config that went wrong, and what should change."""

    config: Config
    moves: tuple[Move, ...]


def case_of(trial: Trial, setting: Setting, needed_len: int | None) -> Case | None:
    """What the remedies for a trial are worked out from; None where its settings cannot be."""
    settings = settings_of(trial.config, setting)
    if settings is None:
        return None
    result = trial.result
    facts: dict[str, Value] = dict(result.failure.facts) if result and result.failure else {}
    if result and result.facts and result.facts.kv_cache_tokens is not None:
        facts.setdefault("kv_cache_tokens", result.facts.kv_cache_tokens)
    level = result.of_role(LevelRole.THROUGHPUT) if result else None
    return Case(
        settings=settings,
        shape=setting.shape,
        node=setting.node,
        needed_len=needed_len,
        facts=facts,
        running_max=level.server.running_max if level and level.server else None,
    )


def lessons(trials: Sequence[Trial], setting_of: Callable[[Config], Setting]) -> tuple[Lesson, ...]:
    """What a study's infeasible and starved trials teach, oldest first."""
    found = []
    for trial in trials:
        topic = _topic(trial, setting_of(trial.config))
        if topic is None:
            continue
        case = case_of(trial, setting_of(trial.config), None)
        moves = () if case is None else tuple(m for advice in advise(topic, case) for m in advice.moves)
        if moves:
            found.append(Lesson(config=trial.config, moves=tuple(dict.fromkeys(moves))))
    return tuple(found)


def _topic(trial: Trial, setting: Setting) -> FailureClass | Limit | None:
    result = trial.result
    if result is None:
        return None
    if result.outcome is Outcome.INFEASIBLE and result.failure and result.failure.kind in INFEASIBLE_CLASSES:
        return result.failure.kind
    if result.outcome is Outcome.MEASURED:
        strongest = verdicts(trial, setting)[:1]
        return strongest[0].limit if strongest and strongest[0].limit in TEACHING_LIMITS else None
    return None


def is_discouraged(config: Config, learnt: Sequence[Lesson]) -> bool:
    """Whether `config` takes none of the remedies of some lesson."""
    return any(not any(_made(move, lesson.config, config) for move in lesson.moves) for lesson in learnt)


def _made(move: Move, before: Config, after: Config) -> bool:
    old, new = before.get(move.parameter), after.get(move.parameter)
    if old is None or new is None:
        # vLLM's default on one side: whether it is a step in the right direction is not known.
        return old is not new
    if move.toward is Toward.CHANGE:
        return old != new
    if isinstance(old, str | bool) or isinstance(new, str | bool):
        return False
    return new > old if move.toward is Toward.RAISE else new < old
