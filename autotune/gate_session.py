"""The gate for a trial of a stored study: make its engine again, keep others out, verify, close.

The only thing of a study that a verification needs and the store does not hold is the server command's secrets and this
machine; both are the caller's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from autotune.engine.base import ServerIdentity
from autotune.engine.command import choose_command, resolve_command
from autotune.engine.flag_cache import HELP_DEADLINE_S, known_flags
from autotune.engine.flags import MODEL
from autotune.engine.reaping import reap
from autotune.errors import Interrupted, InvalidOption, NotPromotable, StorageError, UnknownName
from autotune.executor.building import hold_of, make_engine
from autotune.load.arrival_windows import WindowRule
from autotune.load.loops import new_loop
from autotune.node.probe import cpu_node, detect_node
from autotune.planning import StudyPlan, Surroundings
from autotune.planning.flag_checks import check_config
from autotune.planning.stored import StoredPlan, stored_plan
from autotune.quality.lossy import lossy_changes
from autotune.quality.prompts import PromptSet, load_prompts
from autotune.records import EngineKind, GateRecord, GateSide, LoadPlan, Origin, Quality, QualityState, Slo, Trial
from autotune.scheduling.seats import Seats
from autotune.search.again import seed_of
from autotune.search.asked import asked_rule, asked_slo
from autotune.search.noise import run_noise
from autotune.search.objective import is_goodput, joined_figures
from autotune.search.pareto import pick
from autotune.search.stability import assess
from autotune.store.codec import decode
from autotune.store.folder import HeldFor, LockHolder, StudyFolder
from autotune.store.gate_files import gate_folder_name
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord
from autotune.verification import gate_seed_of, verify
from autotune.verification_launch import IDENTITY_FILE, LAUNCHES, MOST_LAUNCHES, GateObserver, GateOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What an operator asks of the gate.

    Attributes:
        trial: the candidate.
        against: what runs today; None for the study's baseline. Its figures may be left out: those of a trial of this
            study with the same config are taken.
        again: how many verifications of this pair there were before; each has other arrivals.
        launches, most_launches: before the first look, and where more may decide what a look left open.
        slo: instead of the study's own.
        vllm_command: instead of the study's; one that took secrets on its command line has to be given again.
    """

    trial: int
    against: GateSide | None = None
    launches: int = LAUNCHES
    most_launches: int = MOST_LAUNCHES
    windows: WindowRule = field(default_factory=WindowRule)
    again: int = 0
    slo: str | None = None
    vllm_command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStudy:
    """All that a verification wants of the store, read before its hours.

    Attributes:
        load: None where the study never found one.
    """

    study: StudyRecord
    trials: tuple[Trial, ...]
    load: LoadPlan | None

    @classmethod
    def of(cls, store: Store, name: str) -> KeptStudy:
        """As it is stored now.

        Raises:
            UnknownName: no such study.
        """
        return cls(study=store.study(name), trials=store.trials(name), load=store.get_load_plan(name))


def verify_trial(
    request: GateRequest, kept: KeptStudy, places: Places, here: Surroundings, observer: GateObserver
) -> GateRecord:
    """Verify a trial of a stored study on this node. Blocks for as long as the launches take; stores nothing.

    Raises:
        UnknownName: no such trial.
        NotPromotable: the study has no load to drive, or its workload is not here, so nothing of it can be repeated.
        InvalidOption: a number of launches that makes no pairs, an SLO that cannot be read, or a config to hold it
            against that cannot be launched here.
        VllmCommandError: the server command cannot be run.
        StudyBusy: a tuner runs the study.
        NodeBusy: another tuner uses the GPUs, for longer than the study was to wait.
        Interrupted: Ctrl-C; the running server is stopped.
    """
    study, trials, load = kept.study, kept.trials, kept.load
    stored = stored_plan(study, trials)
    require_own_workload(study, stored)
    if load is None:
        raise NotPromotable(
            f"study {study.name!r} never found its load, so nothing of it can be driven again",
            hint=f"`autotune show {study.name} 0` tells why its baseline was not measured.",
        )
    recipe = replace(stored.plan.recipe, extra_args=tuple(str(word) for word in study.spec.get("extra_args", ())))
    plan = replace(stored.plan, recipe=recipe, pick_rule=asked_rule(study.spec, None))
    studied_on, node = plan.vllm_version, node_here(plan, here)
    plan = _with_command(plan, study.spec.get("command", ()), request, here)
    doubts = (*stored.doubts, *other_than_studied(plan, studied_on, here))
    slo = asked_slo(study.spec, request.slo)
    candidate = _side(plan, trials, _trial(trials, study.name, request.trial), slo)
    against = _against(plan, trials, request, slo)
    require_launchable(plan, trials, against)
    if same_server(plan, candidate, against):
        observer.note(f"{against.label} ends up as the same server as {candidate.label}: there is nothing to gain")
    folder = places.folder(study.name)
    with folder.locked(
        LockHolder(pid=os.getpid(), started=psutil.Process().create_time(), held_for=HeldFor.VERIFICATION)
    ):
        _reap_left_over(folder, observer)
        seed = gate_seed_of(study.seed, candidate, against, _seeds(trials, study.seed), request.again)
        order = _order(plan, load, candidate, against, request, slo, seed, folder, doubts=doubts, trials=trials)
        return _run(plan, replace(order, node=node), here, observer)


def require_own_workload(study: StudyRecord, stored: StoredPlan) -> None:
    """Refuse to verify with other requests than the study's.

    Raises:
        NotPromotable: its workload is not here any more, or was changed.
    """
    if not stored.own_workload:
        source = study.spec.get("workload_source") or study.identity.get("workload", "")
        raise NotPromotable(
            f"the workload of study {study.name!r} ({source}) is not here, or is another one now, so its requests "
            "cannot be sent again",
            hint="Put the file back as it was and give the command from the same folder, or --skip-gate, which is "
            "recorded.",
        )


def require_launchable(plan: StudyPlan, trials: Sequence[Trial], against: GateSide) -> None:
    """Refuse what the study's node, or its simulated engine, cannot serve; a launch would tell it minutes later.

    Raises:
        InvalidOption: it cannot.
        UnknownName: it has a flag that this vLLM does not have.
    """
    gpus, other = len(plan.node.gpus), "Hold it against something else: --against baseline, or a file of flags."
    if gpus and against.gpus > gpus:
        raise InvalidOption(
            "--against",
            f"{against.label} with {against.gpus} GPUs",
            f"a config of at most {gpus}, as {plan.node.name} has",
            hint=other,
        )
    models = dict.fromkeys((plan.recipe.model, *(plan.model_of(trial.config) for trial in trials)))
    if plan.engine is EngineKind.SIMULATED and not any(same_model(against.model, one) for one in models):
        raise InvalidOption(
            "--against",
            f"{against.label} with model {against.model}",
            f"{', '.join(models)}: a simulation knows the study's own models alone",
            hint=other,
        )
    check_config(against.config, plan.accepted, source=against.label)


def _order(
    plan: StudyPlan,
    load: LoadPlan,
    candidate: GateSide,
    against: GateSide,
    request: GateRequest,
    slo: Slo | None,
    seed: int,
    folder: StudyFolder,
    *,
    doubts: Sequence[str],
    trials: Sequence[Trial],
) -> GateOrder:
    recipe = plan.recipe
    larger = max(candidate, against, key=lambda side: side.gpus)
    indices = Seats(plan.node).whole(plan.demand_of(larger.config)).indices
    return GateOrder(
        study=recipe.name,
        study_seed=recipe.seed,
        gate_seed=seed,
        candidate=candidate,
        against=against,
        workload=plan.workload,
        load=load,
        noise=run_noise(trials),
        directory=_fresh(folder, request.trial),
        slo=slo,
        gpu_indices=indices,
        gpu_memory={gpu.index: gpu.memory_bytes for gpu in plan.node.gpus},
        extra_args=recipe.extra_args,
        launches=request.launches,
        most_launches=request.most_launches,
        windows=request.windows,
        start_deadline_s=recipe.start_deadline_s,
        stall_deadline_s=recipe.stall_deadline_s,
        level_deadline_s=recipe.level_deadline_s,
        same_server=same_server(plan, candidate, against),
        lossy=lossy_changes(candidate.config, against.config, plan.lossy | {MODEL})
        if same_model(candidate.model, against.model)
        else (f"model={candidate.model}",),
        prompts=_prompts(plan),
        thresholds=recipe.quality.thresholds,
        studied=_studied(trials, candidate),
        doubts=tuple(doubts),
    )


def _run(plan: StudyPlan, order: GateOrder, here: Surroundings, observer: GateObserver) -> GateRecord:
    hold, guard = hold_of(plan, here.probe, observer.note)
    engine, clock, _ = make_engine(plan, guard, hold)

    async def until_signalled() -> GateRecord:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # inside a coroutine that a runner drives there is one
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, task.cancel)
        await hold.take()
        return await verify(order, engine, clock=clock, utc=lambda: datetime.now(UTC), observer=observer)

    try:
        with closing(hold), asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(until_signalled())
    except asyncio.CancelledError:
        raise Interrupted(
            "the verification was stopped; nothing was promoted", hint="The same command begins it anew."
        ) from None


def _with_command(plan: StudyPlan, words: Sequence[object], request: GateRequest, here: Surroundings) -> StudyPlan:
    """The plan with what only this machine can tell: the command of real servers, and what they accept."""
    plan = replace(plan, cache_dir=here.cache_dir)
    if plan.engine is EngineKind.SIMULATED:
        return replace(plan, accepted=known_flags())
    text = shlex.join(str(word) for word in words)
    chosen = choose_command(argument=request.vllm_command, environ=here.environ, study_file=text)
    command = resolve_command(chosen, search_path=here.environ.get("PATH"))
    version, accepted = here.ask(command, deadline_s=min(HELP_DEADLINE_S, plan.recipe.start_deadline_s))
    return replace(plan, command=command, accepted=accepted, vllm_version=version or plan.vllm_version)


def other_than_studied(plan: StudyPlan, version: str | None, here: Surroundings) -> tuple[str, ...]:
    """In what this machine and its vLLM are not those that the study's figures are of, one sentence each."""
    if plan.engine is EngineKind.SIMULATED:
        return ()
    name = node_here(plan, here)
    doubts = [] if name == plan.node.name else [f"the study ran on {plan.node.name}, and this is {name}"]
    if version is not None and plan.vllm_version != version:
        doubts.append(f"the study ran vLLM {version}, and this is {plan.vllm_version or 'of an unknown version'}")
    return tuple(doubts)


def node_here(plan: StudyPlan, here: Surroundings) -> str:
    """Name of the node that a verification runs on: this machine, or what a simulation stands for."""
    if plan.engine is EngineKind.SIMULATED:
        return plan.node.name
    return (detect_node(here.probe, here.environ, shm_bytes=here.shm_bytes, has_kfd=here.has_kfd) or cpu_node()).name


def _trial(trials: Sequence[Trial], study: str, number: int) -> Trial:
    found = next((trial for trial in trials if trial.number == number), None)
    if found is None:
        raise UnknownName("trial", str(number), [str(trial.number) for trial in trials], source=f"study {study}")
    return found


def _against(plan: StudyPlan, trials: Sequence[Trial], request: GateRequest, slo: Slo | None) -> GateSide:
    """What the candidate is held against, with the study's figures of it where the study has them."""
    if request.against is None:
        base = next((trial for trial in trials if trial.number == 0), None)
        if base is None:
            raise NotPromotable(f"study {plan.recipe.name!r} has no baseline yet", hint="Let it run its first trial.")
        return replace(_side(plan, trials, base, slo), label="the baseline")
    given = request.against
    twin = next(
        (
            trial
            for trial in trials
            if trial.measured
            and plan.effective(trial.config) == plan.effective(given.config)
            and same_model(plan.model_of(trial.config), given.model)
        ),
        None,
    )
    if twin is None or given.tok_s_per_gpu is not None:
        return given
    found = _side(plan, trials, twin, slo)
    return replace(given, tok_s_per_gpu=found.tok_s_per_gpu, ttft_p95_s=found.ttft_p95_s)


def _side(plan: StudyPlan, trials: Sequence[Trial], trial: Trial, slo: Slo | None) -> GateSide:
    """A trial with what the study expects of it: without the winner's luck, where that can be told."""
    figures = joined_figures(trial, trials)
    throughput, ttft = figures.output_tok_s_per_gpu, figures.ttft_p95_s
    if not is_goodput(trials):
        rule = asked_rule({}, plan.pick_rule)
        found = assess(trials, pick(trials, rule=rule, slo=slo), rule=rule, slo=slo)
        first = next((one for one in trials if one.measured and one.config.hash == trial.config.hash), None)
        standing = found.standing(first.number) if first is not None else None
        if standing is not None:
            throughput, ttft = standing.tok_s_per_gpu, standing.ttft_p95_s
    return GateSide(
        label=f"trial {trial.number}",
        config=trial.config,
        model=plan.model_of(trial.config),
        gpus=max(1, trial.gpus),
        tok_s_per_gpu=throughput,
        ttft_p95_s=ttft,
    )


def same_server(plan: StudyPlan, one: GateSide, other: GateSide) -> bool:
    """Whether both end up as the same server, though one may write out what the other leaves to vLLM."""
    return same_model(one.model, other.model) and plan.effective(one.config) == plan.effective(other.config)


def same_model(one: str, other: str) -> bool:
    """Whether two names serve the same: a promotion names a folder by its whole path, a study as it was typed."""
    paths = [Path(name).expanduser() for name in (one, other)]
    return one == other or (all(path.is_dir() for path in paths) and paths[0].resolve() == paths[1].resolve())


def _prompts(plan: StudyPlan) -> PromptSet:
    """The study's, or where it needed none, the shipped ones."""
    own = plan.recipe.quality.prompts
    return load_prompts(None if own is None else Path(own))


def _studied(trials: Sequence[Trial], candidate: GateSide) -> Quality | None:
    """What the study's guard found of the candidate, in whichever launch came out worst."""
    found = [
        trial.result.quality
        for trial in trials
        if trial.config.hash == candidate.config.hash and trial.result is not None and trial.result.quality is not None
    ]
    return next((one for one in found if one.state is QualityState.LOST), found[-1] if found else None)


def _seeds(trials: Sequence[Trial], study_seed: int) -> frozenset[int]:
    """Seeds that prompts and arrivals of the study's trials had."""
    validated = (seed_of(trials, trial, study_seed) for trial in trials if trial.origin is Origin.VALIDATION)
    return frozenset({study_seed, *validated})


def _fresh(folder: StudyFolder, trial: int) -> Path:
    """A folder that no earlier verification has."""
    count = 1
    while (path := folder.path / gate_folder_name(trial, count)).exists():
        count += 1
    return path


def _reap_left_over(folder: StudyFolder, observer: GateObserver) -> None:
    """Stop what a verification that was killed with its keeper left running.

    Raises:
        StorageError: it cannot be stopped; launching beside it would measure nonsense.
    """
    for file in sorted(folder.path.glob(f"gate-*/*/{IDENTITY_FILE}")):
        with suppress(OSError, ValueError):
            report = reap(decode(ServerIdentity, json.loads(file.read_text(encoding="utf-8"))))
            if report.found:
                pids = ", ".join(str(found.pid) for found in report.found)
                observer.note(f"stopped what an ended verification left running (pid {pids})")
            if report.remaining:
                raise StorageError(
                    f"a server that an ended verification left cannot be stopped (pid {report.remaining[0]})",
                    hint="End it by hand (it may be stuck in the driver), then run the same command again.",
                )
            file.unlink(missing_ok=True)
