"""The search of a study that has several trials at once, on its node or on several (docs/parallel.md, docs/nodes.md).

The baseline is measured alone, and once more beside the first others: what that differs by is what neighbours cost.
Then configs are proposed while others run, each where it fits (`scheduling/`). What they show chooses who is measured
alone at the end (`search/screening.py`), and no more than that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.executor.base import Floor
from autotune.planning import StudyPlan
from autotune.records import Caveat, Config, Origin, Trial, TrialResult
from autotune.scheduling.beside import Beside, Company, Jobs
from autotune.scheduling.seats import Seat
from autotune.search.noise import Difference
from autotune.search.prior.expectation import Reason
from autotune.search.reasons import why_line
from autotune.search.screening import Interference, interference

SHARED = frozenset({Origin.ENQUEUED, Origin.SAMPLER, Origin.PROBE})
"""Origins of trials that run beside others; launches again are measured alone."""

_REMEDY = "What is recommended is decided by launches alone; `autotune show` tells which trials are such."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A trial to launch.

    Attributes:
        begun: it is on record already, and was interrupted.
    """

    config: Config
    origin: Origin
    why: str
    repeat_of: int | None = None
    begun: Trial | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one trial runs, and who runs beside it on its node; nobody where it has that to itself."""

    seat: Seat
    company: Company | None = None


class Searching(Protocol):
    """What the search asks of its study, which alone knows store, sampler and engine."""

    def trials(self) -> Sequence[Trial]:
        """All so far, those that run included."""
        ...

    def may_begin(self) -> bool:
        """Whether target and time allow one more."""
        ...

    def choose(self, fits: Callable[[Config], bool]) -> Choice | None:
        """The best config that is neither tried nor running and `fits`."""
        ...

    def begin(self, choice: Choice) -> Trial:
        """Put it on record."""
        ...

    def perform(self, trial: Trial, place: Place) -> Awaitable[None]:
        """Do it to its end."""
        ...


class ParallelSearch:
    """One search over one floor. `run` returns when no more may begin and all have ended.

    Args:
        interrupted: trials that are on record and come first.
    """

    def __init__(self, plan: StudyPlan, floor: Floor, study: Searching, interrupted: Sequence[Trial] = ()) -> None:
        self._plan, self._floor, self._study = plan, floor, study
        self._interrupted = [
            Choice(config=one.config, origin=one.origin, why=one.why, repeat_of=one.repeat_of, begun=one)
            for one in interrupted
        ]

    async def run(self) -> None:
        """Search; see `Beside.run` for how it ends early."""
        jobs = Jobs(demand=lambda choice: self._plan.demand_of(choice.config), ask=self._ask, begin=self._begin)
        await Beside(jobs, self._floor.seats, self._floor.most, self._floor.turns).run()

    def _ask(self, fits: Callable[[Choice], bool]) -> Choice | None:
        first = next((choice for choice in self._interrupted if fits(choice)), None)
        if first is not None:
            self._interrupted.remove(first)
            return first
        if not self._study.may_begin():
            return None
        probe = self._probe()
        if probe is not None and fits(probe):
            return probe
        return self._study.choose(lambda config: fits(Choice(config=config, origin=Origin.SAMPLER, why="")))

    def _probe(self) -> Choice | None:
        """The baseline beside others, once a study: where it was measured alone, and others run that it fits beside."""
        trials, seats = self._study.trials(), self._floor.seats
        base = trials[0]
        if not self._floor.shares_nodes or not base.measured or seats.idle:
            return None
        if any(one.origin is Origin.PROBE for one in trials):
            return None
        why = why_line(Reason.REPEAT, "the baseline beside others, to see what neighbours cost")
        return Choice(config=base.config, origin=Origin.PROBE, why=why, repeat_of=0)

    def _begin(self, choice: Choice, seat: Seat, company: Company) -> Awaitable[None]:
        trial = choice.begun or self._study.begin(choice)
        return self._study.perform(trial, Place(seat=seat, company=company if self._floor.shares_nodes else None))


def with_company(result: TrialResult, company: Company | None) -> TrialResult:
    """The result with what is to be known of those that ran beside it."""
    if company is None or company.most == 0:
        return result
    others = "another trial" if company.most == 1 else f"up to {company.most} other trials"
    caveat = Caveat(code="beside_neighbours", text=f"measured beside {others} of this study", remedy=_REMEDY)
    return replace(result, neighbours=company.most, caveats=(*result.caveats, caveat))


def with_interference(trials: Sequence[Trial], trial: Trial, result: TrialResult) -> TrialResult:
    """The baseline's result beside others with what that differs from its launches alone; any other as it is.

    Args:
        trials: of the study, this one without its result.
    """
    if trial.origin is not Origin.PROBE or result.neighbours == 0:
        return result
    ended = replace(trial, result=result)
    cost = interference([ended if one.number == trial.number else one for one in trials])
    if cost is None:
        return result
    caveat = Caveat(code="interference", text=interference_text(cost), remedy=_REMEDY)
    return replace(result, caveats=(*result.caveats, caveat))


def interference_text(cost: Interference) -> str:
    """What neighbours cost, in one line."""
    found = f"throughput {_percent(cost.throughput)}, p95 TTFT {_percent(cost.ttft)}"
    others = "another trial" if cost.neighbours == 1 else f"up to {cost.neighbours} others"
    text = f"the baseline beside {others}, against alone: {found}"
    taken = (
        "is taken off what was measured beside others"
        if cost.found
        else "is within the noise, and nothing is corrected"
    )
    return f"{text}; that {taken}"


def _percent(shown: Difference) -> str:
    return f"{shown.ratio - 1:+.1%} ({shown.low - 1:+.1%} to {shown.high - 1:+.1%})"
