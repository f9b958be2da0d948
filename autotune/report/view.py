"""What a report is made of: one study as its renderers need it. Whoever asks decides front and pick."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from autotune.advice import Advice, advise
from autotune.bottleneck import Setting, Verdict, verdicts
from autotune.records import Config, ModelShape, Node, Outcome, Pick, PickRule, Slo, Trial
from autotune.search.explain import Explanation
from autotune.search.lessons import case_of
from autotune.search.objective import Figures, joined_figures
from autotune.search.stability import Assessment, assess


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What a study ran on and under, for verdicts and remedies; None where the stored study does not say.

    Attributes:
        shapes: by the name that a config's `model` parameter, or else the study, gives.
        needed_len: tokens of the workload's longest request.
        reachable_hits: share of the prompt tokens that the workload lets a prefix cache serve.
        extra: flags that every launch had beside its config.
    """

    model: str
    node: Node | None = None
    shapes: tuple[tuple[str, ModelShape], ...] = ()
    needed_len: int | None = None
    reachable_hits: float | None = None
    vllm_version: str | None = None
    extra: Config = field(default_factory=lambda: Config.of({}))

    def setting(self, config: Config) -> Setting:
        """What a trial of `config` is judged with; its own checkpoint's shape where `model` is searched."""
        return Setting(
            node=self.node,
            shape=dict(self.shapes).get(str(config.get("model", self.model))),
            reachable_hits=self.reachable_hits,
            vllm_version=self.vllm_version,
            extra=self.extra,
        )


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
        explanation: what the study has learnt, where its short version is to be shown.
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
    background: Background | None = None
    explanation: Explanation | None = None

    def verdicts(self, trial: Trial) -> tuple[Verdict, ...]:
        """What held a measured trial back, strongest first; empty where it cannot be told."""
        return verdicts(trial, self.background.setting(trial.config) if self.background else Setting())

    def remedies(self, trial: Trial) -> tuple[Advice, ...]:
        """The guide's remedies with this trial's numbers: for its failure, or for its strongest limit."""
        if self.background is None or trial.result is None:
            return ()
        case = case_of(trial, self.background.setting(trial.config), self.background.needed_len)
        if case is None:
            return ()
        if trial.result.failure:
            return advise(trial.result.failure.kind, case)
        found = self.verdicts(trial)
        return advise(found[0].limit, case) if found else ()

    def trial(self, number: int) -> Trial | None:
        """The trial of that number; None when there is none."""
        return next((trial for trial in self.trials if trial.number == number), None)

    def joined(self, trial: Trial) -> Figures:
        """The figures of front, pick and baseline: means over all launches of the trial's config."""
        return joined_figures(trial, self.trials)

    def assessment(self) -> Assessment:
        """How sure front and pick are; worked out anew at each call (tens of milliseconds)."""
        return assess(self.trials, self.pick, rule=self.pick.rule if self.pick else PickRule.KNEE, slo=self.slo)

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
