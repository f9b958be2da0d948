"""Which config is launched again at the end of a study, and under which seeds: one decision at a time. Pure.

1. The baseline, right after the search: with its first launch it spans the study and shows drift.
2. While front or pick is not sure, candidates that decide it, the least sure one first.
3. The pick, until it was launched again as often as asked.
4. The baseline, until it was as well: its last launch is the study's last.

Launches beside others (`screening.py`) are none of these: where a config was tried beside others, the first that it has
alone stands in the place of its first.

The last launch that a config but the baseline may have, or has time for, is on fresh seeds (`validation.py`). So
whatever becomes the pick has a launch that chose nothing. A pick that such a launch overturns is followed by the next,
and at most `CONFIGS_AGAIN` configs are launched again beside the baseline.

A study that is taken up again for more trials ends once more. What its baseline and its candidates may have is counted
from the last new config on: the baseline is launched again behind the new configs, or a drift between both runs would
never show, and a new pick finds room however many were launched again before. A config that had all its launches again
in an earlier run has no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.records import Origin, Pick, PickRule, Slo, Trial
from autotune.search.stability import CANDIDATE, Assessment, Standing, assess

CONFIGS_AGAIN = 4
CANDIDATES_AGAIN = CONFIGS_AGAIN - 1
"""The pick among them; one more is left for a pick that nobody thought of."""


_FRESH = 0x9E37_79B1
"""Between the seeds of a study and of its validations: without pattern, so that small seeds do not meet."""


_PROBE_SALT = 500_000
"""More than a study has trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A launch to make.

    Attributes:
        original: the config's first trial, which is launched again.
        fresh: whether prompts and arrivals come from seeds that no trial had.
        why: for the operator.
    """

    original: Trial
    fresh: bool
    why: str


def next_again(
    trials: Sequence[Trial],
    pick: Pick | None,
    repeats: int,
    *,
    rule: PickRule = PickRule.KNEE,
    slo: Slo | None = None,
    lossy: frozenset[str] = frozenset(),
    spare: bool = True,
    last: bool = False,
) -> Again | None:
    """The next launch; None when there are enough.

    Args:
        pick: from these trials, by `rule` or under `slo`.
        lossy: parameters that the space says may change answers.
        repeats: most launches again of one config.
        spare: whether there is time for others than baseline and pick.
        last: whether there is time for one launch only: the pick then has it on fresh seeds.
    """
    if repeats <= 0:
        return None
    base = next((trial for trial in trials if trial.number == 0 and trial.measured), None)
    if base is not None and _baseline_lacks(trials, repeats) == repeats:
        return Again(original=base, fresh=False, why="the baseline again, to see noise and drift")
    # A baseline that was launched more than once again has had its last launch: the study is over but for the pick.
    over = repeats > 1 and base is not None and not _baseline_lacks(trials, repeats)
    if spare and not over:
        found = _least_sure(trials, assess(trials, pick, rule=rule, slo=slo, lossy=lossy), repeats)
        if found is not None:
            return found
    chosen = _picked(trials, pick)
    if chosen is not None and chosen is not base and _may_launch(trials, chosen, repeats):
        return _again(trials, chosen, repeats, f"the pick (trial {chosen.number}) again", last=last)
    if base is not None and _baseline_lacks(trials, repeats):
        return Again(original=base, fresh=False, why="the baseline again, to see noise and drift")
    return None


def seed_of(trials: Sequence[Trial], trial: Trial, study_seed: int) -> int:
    """What prompts and arrivals of `trial` are seeded with: the study's, or for its n-th validation the n-th other one.

    Configs that are validated for the first time have the same arrivals, so that they can be compared.
    """
    if trial.origin is not Origin.VALIDATION:
        return study_seed
    before = sum(
        other.origin is Origin.VALIDATION and other.repeat_of == trial.repeat_of and other.number < trial.number
        for other in trials
    )
    return (study_seed + (1 + before) * _FRESH) % 2**32


def salt_of(trials: Sequence[Trial], trial: Trial) -> int:
    """What prompts (and a simulation's noise) of `trial` differ by from other trials': its number without probes.

    So a config is measured with the same prompts whether or not neighbours were probed for before it.
    """
    probes = sum(other.origin is Origin.PROBE and other.number < trial.number for other in trials)
    return _PROBE_SALT + trial.number if trial.origin is Origin.PROBE else trial.number - probes


def lacking(trials: Sequence[Trial], pick: Pick | None, repeats: int) -> int:
    """Launches that baseline and pick still lack."""
    measured = {trial.number: trial for trial in trials if trial.measured}
    of_base = _baseline_lacks(trials, repeats) if 0 in measured else 0
    chosen = measured.get(pick.number) if pick is not None and pick.number else None
    return of_base + (0 if chosen is None else max(0, repeats - _launched(trials, chosen)))


def _least_sure(trials: Sequence[Trial], found: Assessment, repeats: int) -> Again | None:
    if found.is_stable:
        return None
    again = _configs_again(trials)
    with_pick = again | ({found.pick} if found.pick else set())  # the baseline, trial 0, needs no room
    asked = []
    for standing in found.standings:
        doubt = _doubt(standing, found)
        trial = next(trial for trial in trials if trial.number == standing.number)
        room = trial.number in again or len(with_pick | {trial.number}) <= CANDIDATES_AGAIN
        if doubt > 0 and trial.number != 0 and room and _lacks(trials, trial, repeats):
            asked.append((-doubt, trial.number, trial, standing))
    if not asked:
        return None
    _, _, trial, standing = min(asked, key=lambda entry: entry[:2])
    why = (
        f"trial {trial.number} again: on the front with {standing.front_probability:.0%}, the pick with "
        f"{standing.pick_probability:.0%} by what is known"
    )
    return _again(trials, trial, repeats, why)


def _doubt(standing: Standing, found: Assessment) -> float:
    """Variance of being the pick, and of being on the front, as far as these are not decided."""
    doubt = 0.0
    if not found.pick_is_sure and standing.pick_probability > CANDIDATE:
        doubt += standing.pick_probability * (1 - standing.pick_probability)
    if not standing.is_decided:
        doubt += standing.front_probability * (1 - standing.front_probability)
    return doubt


def _again(trials: Sequence[Trial], original: Trial, repeats: int, why: str, *, last: bool = False) -> Again:
    fresh = last or _launched(trials, original) == repeats - 1
    return Again(original=original, fresh=fresh, why=f"{why}, on fresh seeds" if fresh else why)


def _picked(trials: Sequence[Trial], pick: Pick | None) -> Trial | None:
    return None if pick is None else next((t for t in trials if t.number == pick.number and t.measured), None)


def _launched(trials: Sequence[Trial], original: Trial) -> int:
    """Launches again, whatever became of them."""
    again = sum(trial.repeat_of == original.number and trial.alone for trial in trials)
    return again if original.alone else max(0, again - 1)


def _baseline_lacks(trials: Sequence[Trial], repeats: int) -> int:
    """Launches that the baseline still lacks behind the last new config."""
    return max(0, repeats - sum(trial.repeat_of == 0 for trial in _since_the_search(trials)))


def _since_the_search(trials: Sequence[Trial]) -> list[Trial]:
    """Launches again that came behind the last new config: those of the study's end, or of its latest one."""
    last = max((trial.number for trial in trials if trial.repeat_of is None), default=-1)
    return [trial for trial in trials if trial.number > last and trial.alone]


def _lacks(trials: Sequence[Trial], original: Trial, repeats: int) -> bool:
    return _launched(trials, original) < repeats


def _may_launch(trials: Sequence[Trial], chosen: Trial, repeats: int) -> bool:
    return _lacks(trials, chosen, repeats) and len(_configs_again(trials) | {chosen.number}) <= CONFIGS_AGAIN


def _configs_again(trials: Sequence[Trial]) -> set[int]:
    """Numbers of the configs beside the baseline that were launched again at this end of the study."""
    repeated = {trial.repeat_of for trial in _since_the_search(trials) if trial.repeat_of}
    return {trial.number for trial in trials if trial.number in repeated and _launched(trials, trial)}
