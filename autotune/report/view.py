"""What a report is made of: one study as its renderers need it. Whoever asks decides front and pick."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from autotune.records import Outcome, Pick, Slo, Trial
from autotune.search.objective import Figures, joined_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """One study with its front.

    Attributes:
        engine: where the servers came from, e.g. `simulated`.
        trials: all trials, by number.
        front: numbers of the trials on the front.
        baseline: number of the baseline trial; None before it ran.
        slo: the limit that the pick had to meet, if one was given.
        directory: where the raw files lie.
    """

    name: str
    model: str
    workload: str
    node: str
    engine: str
    simulated: bool
    trials: tuple[Trial, ...]
    front: tuple[int, ...] = ()
    baseline: int | None = None
    pick: Pick | None = None
    slo: Slo | None = None
    directory: str | None = None

    def trial(self, number: int) -> Trial | None:
        """The trial of that number; None when there is none."""
        return next((trial for trial in self.trials if trial.number == number), None)

    def joined(self, trial: Trial) -> Figures:
        """The figures of front, pick and baseline: means over all launches of the trial's config."""
        return joined_figures(trial, self.trials)

    @property
    def front_trials(self) -> tuple[Trial, ...]:
        """Trials of the front, lowest p95 TTFT first; those without both figures are left out."""
        found = [trial for trial in self.trials if trial.number in self.front and trial.measured]
        placed = [(ttft.value, trial.number, trial) for trial in found if (ttft := self.joined(trial).ttft_p95_s)]
        return tuple(trial for _, _, trial in sorted(placed, key=lambda entry: entry[:2]))

    @property
    def compared_trials(self) -> tuple[Trial, ...]:
        """The front, lowest p95 TTFT first, then the baseline where it was measured and is not on it."""
        base = self.baseline_trial
        below = base is not None and base.measured and base.number not in self.front
        return (*self.front_trials, base) if base is not None and below else self.front_trials

    @property
    def baseline_trial(self) -> Trial | None:
        """The baseline; None before it ran."""
        return None if self.baseline is None else self.trial(self.baseline)

    @property
    def picked_trial(self) -> Trial | None:
        """The recommended trial; None when nothing was picked."""
        return None if self.pick is None else self.trial(self.pick.number)

    def count(self, outcome: Outcome) -> int:
        """How many trials ended so."""
        return Counter(trial.result.outcome for trial in self.trials if trial.result)[outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One line of `autotune list` and `status`.

    Attributes:
        state: e.g. `running`, `finished`, `interrupted`.
        done: trials that count against `wanted`, as do `measured` and `infeasible`: repeats are none of them.
        wanted: trials asked for; None when unknown.
        phase: what the running attempt does; None when nothing runs.
        elapsed_s: of the running tuner; None when nothing runs.
    """

    name: str
    model: str
    workload: str
    engine: str
    simulated: bool
    state: str
    done: int
    wanted: int | None = None
    measured: int = 0
    infeasible: int = 0
    trial: int | None = None
    phase: str | None = None
    elapsed_s: float | None = None
    pid: int | None = None
