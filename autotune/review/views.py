"""From the store to what the renderers need."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.engine.flags import from_argv
from autotune.errors import AutotuneError, InvalidOption, StorageError
from autotune.records import Config, LoadPlan, ModelShape, Node, PickRule, Slo, SloMetric, Trial
from autotune.report.view import Background, Running, StudyView
from autotune.review.listing import state_now
from autotune.search.asked import asked_lossy, asked_rule, asked_slo
from autotune.search.pareto import front_of, pick
from autotune.store.codec import decode
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord, StudyState

if TYPE_CHECKING:
    from autotune.planning import StudyPlan


def with_evidence(store: Store, study: str, trial: Trial) -> Trial:
    """A trial that waits to be launched again, with what its latest failed attempt showed."""
    if trial.result is not None:
        return trial
    failed = [attempt.result for attempt in store.attempts(study, trial.number) if attempt.result]
    return replace(trial, result=failed[-1]) if failed else trial


def node_of(study: StudyRecord) -> Node:
    """The node that a study runs on.

    Raises:
        StorageError: the stored study does not say it.
    """
    try:
        return decode(Node, study.spec["node"])
    except (KeyError, ValueError) as error:
        raise StorageError(f"study {study.name!r}: its stored node cannot be read ({error})") from None


def background_of(study: StudyRecord) -> Background:
    """What verdicts and remedies are worked out from; a study of an older version says less of it.

    Raises:
        StorageError: the stored study cannot be read.
    """
    spec, version = study.spec, study.identity.get("vllm_version", "unknown")
    words = [str(word) for word in spec.get("extra_args", ())]
    try:
        shapes = tuple((name, decode(ModelShape, found)) for name, found in spec.get("shapes", {}).items())
    except ValueError as error:
        raise StorageError(f"study {study.name!r}: its stored model shape cannot be read ({error})") from None
    return Background(
        model=study.identity["model"],
        node=node_of(study) if "node" in spec else None,
        shapes=shapes,
        needed_len=spec.get("needed_len"),
        reachable_hits=spec.get("reachable_hits"),
        vllm_version=None if version == "unknown" else version,
        extra=from_argv(words),
    )


def view_of(
    store: Store, study: StudyRecord, places: Places, *, slo: str | None = None, rule: PickRule | None = None
) -> StudyView:
    """Everything the renderers show of a study.

    Args:
        slo: replaces the study's own limit.
        rule: replaces the study's own way to pick.

    Raises:
        InvalidOption: `slo` cannot be read.
    """
    limit = asked_slo(study.spec, slo)
    return _made(store, study, places, store.trials(study.name), limit, asked_rule(study.spec, rule))


MOST_VOID = 200
"""Void trials that are read in full; of more, only their levels' own caveats are told."""


def brief_view_of(store: Store, study: StudyRecord, places: Places, *, slo: str | None = None) -> StudyView:
    """As `view_of`, with everything of the trials that a report of front and pick speaks of, and of the others only
    what the front is found from: most of a study of 10,000 trials is never decoded.

    Raises:
        InvalidOption: `slo` cannot be read.
    """
    view = outlined_view_of(store, study, places, slo=slo)
    void = [trial.number for trial in view.trials if trial.void is not None]
    told = {*view.front, *void[:MOST_VOID], *([view.pick.number] if view.pick else ())}
    told |= set() if view.baseline is None else {view.baseline}
    gc.freeze()  # a command that ends soon: the collector need not look through all of it again
    full = store.trials_of(study.name, sorted(told))
    return replace(view, detailed={trial.number: trial for trial in full})


def outlined_view_of(
    store: Store, study: StudyRecord, places: Places, *, slo: str | None = None, phases: bool = False
) -> StudyView:
    """Front and pick as of `view_of`, of trials of which only that was read which both are found from.

    Args:
        phases: whether how long each phase of a trial took is read as well.

    Raises:
        InvalidOption: `slo` cannot be read.
    """
    limit = asked_slo(study.spec, slo)
    metrics = {SloMetric.TTFT_P95, *(one.metric for one in (limit.limits if limit else ()))}
    outlines = store.outlines(study.name, metrics=metrics, phases=phases)
    # How plain a config is, is counted against what the baseline's server said of itself, which no outline holds.
    trials = (*store.trials_of(study.name, [0]), *outlines[1:]) if outlines else ()
    return _made(store, study, places, trials, limit, asked_rule(study.spec, None))


def _made(
    store: Store, study: StudyRecord, places: Places, trials: tuple[Trial, ...], limit: Slo | None, rule: PickRule
) -> StudyView:
    spec, running, problem = study.spec, None, None
    try:
        running = running_of(store, study, trials)
    except StorageError as error:  # a record of the history is no reason to hide the front
        problem = str(error)
    return StudyView(
        name=study.name,
        model=study.identity["model"],
        workload=str(spec.get("workload", study.identity["workload"])),
        node=study.identity["node"],
        engine=str(study.engine),
        simulated=study.simulated or any(trial.result.simulated for trial in trials if trial.result),
        trials=trials,
        front=front_of(trials),
        baseline=0 if trials else None,
        pick=pick(trials, rule=rule, slo=limit, lossy=asked_lossy(spec)),
        lossy=asked_lossy(spec),
        slo=limit,
        directory=str(places.folder(study.name).path),
        background=background_of(study),
        running=running,
        running_problem=problem,
        interrupted=state_now(study, places) != StudyState.RUNNING,
    )


QUESTION = ("model", "workload", "node", "vllm_version", "load", "fixed flags", "objective")
"""Keys of a study's identity that figures depend on besides the config."""


def running_of(store: Store, study: StudyRecord, trials: Sequence[Trial]) -> Running | None:
    """The promotion that a study's front is held against: of this study, else of its model, the latest first.

    Raises:
        StorageError: the history cannot be read.
    """
    if not store.all_promotions():
        return None
    from autotune.promote.history import current_of
    from autotune.review.history import history_of

    model = study.identity["model"]
    names = {model, str(Path(model).expanduser().absolute())}
    found = [e for e in current_of(history_of(store)) if e.promotion.study == study.name or e.promotion.model in names]
    if not found:
        return None
    found.sort(key=lambda entry: (entry.promotion.study == study.name, entry.promotion.created_at), reverse=True)
    chosen = found[0].promotion
    # Without its own checkpoint the config of another one would pass for the study's model.
    same = _same_server(study, trials, chosen.config) if chosen.model in names else frozenset[str]()
    hashes = {chosen.config_hash, *same}
    launches = tuple(t for t in trials if t.measured and t.config.hash in hashes)
    differing: tuple[tuple[str, str, str], ...] = ()
    if not launches and chosen.study != study.name:
        differing = _differing(store, store.study(chosen.study), study)
        if not differing:
            own = store.trials(chosen.study)
            launches = tuple(t for t in own if t.measured and t.config.hash == chosen.config_hash)
    return Running(
        label=found[0].label,
        study=chosen.study,
        trial=chosen.trial,
        config_hash=chosen.config_hash,
        launches=launches,
        differing=differing,
        others=tuple(entry.label for entry in found[1:]),
        written_otherwise=same,
    )


def _same_server(study: StudyRecord, trials: Sequence[Trial], config: Config) -> frozenset[str]:
    """Hashes of the study's configs that end up as the same server as `config`; none where that cannot be told."""
    from autotune.planning.effective import Effective

    background = background_of(study)
    if background.node is None:
        return frozenset()
    effective = Effective(
        node=background.node,
        model=background.model,
        shapes=dict(background.shapes),
        vllm_version=background.vllm_version,
        extra=dict(background.extra),
    )
    try:
        wanted = effective.key(config)
        return frozenset(trial.config.hash for trial in trials if effective.key(trial.config) == wanted)
    except InvalidOption:
        return frozenset()


def _differing(store: Store, there: StudyRecord, here: StudyRecord) -> tuple[tuple[str, str, str], ...]:
    """What two studies do not share of what figures depend on, their load among it."""
    pairs = [(key, there.identity.get(key, "-"), here.identity.get(key, "-")) for key in QUESTION]
    pairs.append(("load plan", _load(store.get_load_plan(there.name)), _load(store.get_load_plan(here.name))))
    return tuple((key, one, other) for key, one, other in pairs if one != other)


def _load(plan: LoadPlan | None) -> str:
    if plan is None:
        return "-"
    return f"{plan.concurrency_per_gpu} in flight and {plan.rate_rps_per_gpu:.3g}/s per GPU"


def with_explanation(view: StudyView, plan: StudyPlan, load: LoadPlan | None) -> StudyView:
    """A view whose report says in short what the study has learnt; where that cannot be told, as it was: the figures
    are what the report is for."""
    from autotune.planning.explaining import question_of
    from autotune.search.explain import explain

    try:
        found = explain(view.trials, question_of(plan, load, quick=True))
    except (AutotuneError, ValueError):  # a matrix that is not definite is a ValueError of NumPy's
        return view
    return replace(view, explanation=found)
