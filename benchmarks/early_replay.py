"""Recorded studies replayed with early ends: what the looks would have seen, and what the study would have had. Pure.

A recorded trial was measured to its end, with the records of every request of its TTFT level. What a look after `n`
requests sees is in them: who was sent by then, and whose first token had come. Nothing that comes later changes that,
so a replay is exact up to the moment of the end; the time until requests in flight have ended is taken from the
record, where later ones slowed them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.load.early_end import looks_of
from autotune.records import EarlyReason, LevelRole, Origin, Outcome, RequestRecord, Trial
from autotune.search.early import rivals_of
from autotune.search.pareto import front_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A trial that was measured to its end.

    Attributes:
        waited: due, first token and end of each request of the TTFT level, in the order due; None for what never came.
    """

    trial: Trial
    waited: tuple[tuple[float, float | None, float | None], ...]

    @property
    def seconds(self) -> float:
        """Of the whole attempt, start and stop included."""
        result = self.trial.result
        return sum(seconds for _, seconds in result.phase_seconds) if result else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """An early end in a replay.

    Attributes:
        saved_s: the recorded level's length less that until then.
        shown, full: p95 TTFT of the requests until then, and of all.
        wrong: the trial is on the front that the study had without early ends.
    """

    reason: EarlyReason
    requests: int
    saved_s: float
    shown: float
    full: float
    wrong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One study with early ends, beside itself without.

    Attributes:
        same_front: whether both fronts are the same configs.
        total_s: what the study took without: launches, warm-ups, levels, stops.
        later_s: of that, the levels that can end early.
    """

    trials: int
    same_front: bool
    ends: tuple[End, ...]
    total_s: float
    later_s: float

    @property
    def saved_s(self) -> float:
        """What early ends saved."""
        return sum(end.saved_s for end in self.ends)


def waited(records: Sequence[RequestRecord]) -> tuple[tuple[float, float | None, float | None], ...]:
    """What a replay needs of a level's records."""
    ordered = sorted(records, key=lambda record: record.scheduled_s)
    return tuple((record.scheduled_s, record.first_token_s, record.done_s) for record in ordered)


def replayed(study: Sequence[Recorded], confidence: float) -> Replay:
    """The study once more, each trial ended where the looks would have had enough.

    Args:
        study: in the order launched, the baseline first; its trials are numbered anew.
    """
    whole = [
        replace(one.trial, number=number, origin=Origin.SAMPLER if number else Origin.BASELINE)
        for number, one in enumerate(study)
    ]
    had: list[Trial] = []
    ends: list[tuple[int, End]] = []
    for one, trial in zip(study, whole, strict=True):
        found = ended(replace(one, trial=trial), had, confidence)
        if found is not None and trial.result is not None:
            ends.append((trial.number, found))
            trial = replace(trial, result=replace(trial.result, outcome=Outcome.ABANDONED))
        had.append(trial)
    front = set(front_of(whole))
    return Replay(
        trials=len(study),
        same_front=set(front_of(had)) == front,
        ends=tuple(replace(end, wrong=number in front) for number, end in ends),
        total_s=sum(one.seconds for one in study),
        later_s=sum(_later_s(trial) for trial in whole),
    )


def ended(one: Recorded, had: Sequence[Trial], confidence: float) -> End | None:
    """Where the trial would have ended after the trials `had`; None for one that is measured to its end."""
    trial, result = one.trial, one.trial.result
    rivals = rivals_of(trial, (*had, replace(trial, result=None)), confidence)
    level = result.of_role(LevelRole.TTFT) if result else None
    if rivals is None or level is None or not trial.measured or level.ttft_s is None:
        return None
    looks = looks_of(level.level, rivals.bars(trial.output_tok_s_per_gpu))
    for count in looks.looks if looks is not None else ():
        if looks is None or count >= len(one.waited):
            break
        sent = one.waited[:count]
        now = sent[-1][0]
        looks.enough([(due, first if first is not None and first <= now else None) for due, first, _ in sent])
        if looks.found is None:
            continue
        firsts = sorted(first - due for due, first, _ in sent if first is not None)
        lasted = max(done for _, _, done in sent if done is not None)
        return End(
            reason=looks.found.reason,
            requests=count,
            saved_s=max(0.0, level.duration_s - (lasted - sent[0][0])),
            shown=firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))],
            full=level.ttft_s.p95.value,
        )
    return None


def _later_s(trial: Trial) -> float:
    level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
    return level.duration_s if level is not None else 0.0
