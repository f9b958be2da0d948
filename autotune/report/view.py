"""What a report is made of: one study as its renderers need it. Whoever asks decides front and pick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from autotune.bottleneck import Setting, Verdict, verdicts
from autotune.records import Config, ModelShape, Node, Outcome, Pick, PickRule, Slo, Trial
from autotune.search.noise import Difference, difference, run_noise
from autotune.search.objective import Figures, joined_figures
from autotune.search.stability import Assessment, assess

if TYPE_CHECKING:
    from autotune.advice import Advice
    from autotune.search.explain import Explanation


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
class Running:
    """The promotion that runs today and that a study's front is held against.

    Attributes:
        label: e.g. `prod-chat@3`.
        launches: measured launches of its config, in this study where there are any, else in its own; none where its
            own study asked another question.
        differing: (key, there, here) of what the two studies do not share; empty where the launches compare.
        others: labels of further promotions of the model.
        written_otherwise: hashes of further configs of the study that end up as the same server.
    """

    label: str
    study: str
    trial: int
    config_hash: str
    launches: tuple[Trial, ...] = ()
    differing: tuple[tuple[str, str, str], ...] = ()
    others: tuple[str, ...] = ()
    written_otherwise: frozenset[str] = frozenset()

    def is_of(self, trial: Trial) -> bool:
        """Whether a trial of the study that is shown has the config that runs, however that is written."""
        return trial.config.hash == self.config_hash or trial.config.hash in self.written_otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Ratios of one config to another, with 95 % intervals: throughput (or goodput) per GPU, and p95 TTFT."""

    throughput: Difference
    ttft: Difference


@dataclass(frozen=True, kw_only=True)  # no slots: what was worked out is kept
class StudyView:
    """One study with its front.

    Attributes:
        engine: where the servers came from, e.g. `simulated`.
        trials: all trials, by number.
        front: numbers of the trials on the front.
        baseline: number of the baseline trial; None before it ran.
        slo: the limit that the pick had to meet, if one was given.
        lossy: parameters that the space says may change answers.
        directory: where the raw files lie.
        explanation: what the study has learnt, where its short version is to be shown.
        running: what runs today of this model; None where nothing was promoted, or nothing can be told.
        running_problem: why it cannot be told.
        interrupted: nobody runs the study, so that a trial without a result was interrupted.
        detailed: full records of some trials by number, where `trials` are outlines.
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
    lossy: frozenset[str] = frozenset()
    directory: str | None = None
    background: Background | None = None
    explanation: Explanation | None = None
    running: Running | None = None
    running_problem: str | None = None
    interrupted: bool = False
    detailed: Mapping[int, Trial] = field(default_factory=dict)

    def outcome(self, trial: Trial) -> str:
        """How a trial ended; `running` or `interrupted` where it has not."""
        if trial.result is not None:
            return str(trial.result.outcome)
        return "interrupted" if self.interrupted else "running"

    def verdicts(self, trial: Trial) -> tuple[Verdict, ...]:
        """What held a measured trial back, strongest first; empty where it cannot be told."""
        return verdicts(trial, self.background.setting(trial.config) if self.background else Setting())

    def remedies(self, trial: Trial) -> tuple[Advice, ...]:
        """The guide's remedies with this trial's numbers: for its failure, or for its strongest limit."""
        from autotune.advice import advise  # only where one trial is looked at
        from autotune.search.lessons import case_of

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
        if number in self.detailed:
            return self.detailed[number]
        return self._by_number.get(number)

    @cached_property
    def _by_number(self) -> Mapping[int, Trial]:
        return {trial.number: trial for trial in self.trials}

    def joined(self, trial: Trial) -> Figures:
        """The figures of front, pick and baseline: means over all launches of the trial's config."""
        return joined_figures(trial, self.trials)

    def gain_over_running(self, trial: Trial) -> Gain | None:
        """A config against what runs today, over all launches of both; None where they do not compare."""
        running = self.running
        if running is None or running.differing or running.is_of(trial):
            return None
        own = [one for one in self.trials if one.measured and one.config.hash == trial.config.hash]
        pairs = [[one.objectives for one in side] for side in (running.launches, own)]
        today, then = [[pair for pair in side if pair is not None] for side in pairs]
        noise = run_noise((*self.trials, *(one for one in running.launches if one not in self.trials)))
        throughput = difference([pair[0] for pair in today], [pair[0] for pair in then], noise.throughput_sd)
        ttft = difference([pair[1] for pair in today], [pair[1] for pair in then], noise.ttft_sd)
        return None if throughput is None or ttft is None else Gain(throughput=throughput, ttft=ttft)

    def assessment(self) -> Assessment:
        """How sure front and pick are; worked out once (tens of milliseconds)."""
        return self._assessment

    @cached_property
    def _assessment(self) -> Assessment:
        rule = self.pick.rule if self.pick else PickRule.KNEE
        return assess(self.trials, self.pick, rule=rule, slo=self.slo, lossy=self.lossy)

    @cached_property
    def front_trials(self) -> tuple[Trial, ...]:
        """Trials of the front, lowest p95 TTFT first; those without both figures are left out."""
        front = frozenset(self.front)
        found = [trial for trial in self.trials if trial.number in front and trial.measured]
        placed = [(ttft.value, trial.number, trial) for trial in found if (ttft := self.joined(trial).ttft_p95_s)]
        return tuple(
            self.detailed.get(number, trial) for _, number, trial in sorted(placed, key=lambda entry: entry[:2])
        )

    @property
    def compared_trials(self) -> tuple[Trial, ...]:
        """The front, lowest p95 TTFT first, then pick, baseline and what runs today, where they are not on it."""
        shown = list(self.front_trials)
        today = next((t for t in self.trials if self.running and self.running.is_of(t) and t.measured), None)
        for trial in (self.picked_trial, self.baseline_trial, today):
            hashes = {one.config.hash for one in shown}
            if trial is not None and trial.measured and trial.config.hash not in hashes:
                shown.append(trial)
        return tuple(shown)

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
        return self._outcomes[outcome]

    @cached_property
    def _outcomes(self) -> Counter[Outcome]:
        return Counter(trial.result.outcome for trial in self.trials if trial.result)
