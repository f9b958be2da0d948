"""`autotune study`: the main job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import asked
from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.planning import StudyPlan
    from autotune.records import Config, Phase, Trial
    from autotune.report.progress import ProgressView
    from autotune.session import Target
    from autotune.store.places import Places


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("study")(study)


def study(
    server_args: asked.ServerArgs = None,
    model: asked.Model = None,
    workload: asked.WorkloadName = None,
    prompt_mean: asked.PromptMean = None,
    prompt_p95: asked.PromptP95 = None,
    output_mean: asked.OutputMean = None,
    concurrency: asked.Concurrency = None,
    space: asked.Space = None,
    checkpoints: asked.Checkpoints = None,
    min_model_len: asked.MinModelLen = None,
    today: asked.Today = None,
    file: asked.File = None,
    name: asked.Name = None,
    engine: asked.EngineName = None,
    node: asked.NodeName = None,
    gpus: asked.Gpus = None,
    vllm_command: asked.VllmCommandText = None,
    trials: asked.Trials = None,
    max_time: asked.MaxTime = None,
    repeats: asked.Repeats = None,
    max_gpu_hours: asked.MaxGpuHours = None,
    min_gain: asked.MinGain = None,
    abandon: asked.Abandon = None,
    sampler: asked.Sampler = None,
    seed: asked.Seed = None,
    load: asked.Load = None,
    objective: asked.ObjectiveName = None,
    slo: SloText = None,
    pick: Annotated[
        str | None,
        typer.Option(
            help="How the pick is chosen without an SLO: knee, throughput or latency; default: as the study was made, "
            "knee for a new one."
        ),
    ] = None,
    start_deadline: Annotated[float | None, typer.Option(min=1, help="Seconds until a server must be ready.")] = None,
    gpu_busy: asked.GpuBusy = None,
    parallel: asked.Parallel = None,
    executor: asked.ExecutorName = None,
    ray_address: asked.RayAddress = None,
    ray_nodes: asked.RayNodes = None,
    level_deadline: Annotated[float | None, typer.Option(min=1, help="Seconds that one load level may take.")] = None,
    notify_command: Annotated[
        str | None,
        typer.Option(
            help="Run when the study ends, without a shell, with a summary as JSON on standard input.",
            show_default=False,
        ),
    ] = None,
    notify_url: Annotated[
        str | None,
        typer.Option(
            envvar="AUTOTUNE_NOTIFY_URL",
            help="A URL to which a summary is POSTed as JSON when the study ends; neither stored nor shown.",
            show_default=False,
            show_envvar=True,
        ),
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Propose flags, launch servers, drive the load, record; end with a front and a pick."""
    os.environ.pop("AUTOTUNE_NOTIFY_URL", None)  # a secret that no server, and nothing else that is started, needs
    count, more = asked.trials_of(trials)
    places = places_of(studies_dir, storage)
    arguments = asked.arguments(
        model=model,
        workload=workload,
        numbers=asked.numbers_of(prompt_mean, prompt_p95, output_mean, concurrency),
        space=space,
        checkpoints=checkpoints,
        min_model_len=min_model_len,
        today=None if today is None else _running(today, places),
        name=name,
        engine=engine,
        node=node,
        gpus=gpus,
        trials=None if more else count,
        max_time=max_time,
        gpu_busy=gpu_busy,
        max_gpu_hours=max_gpu_hours,
        min_gain=min_gain,
        abandon=abandon,
        notify_command=notify_command,
        notify_url=notify_url,
        parallel=parallel,
        executor=executor,
        ray_address=ray_address,
        ray_nodes=ray_nodes,
        repeats=repeats,
        sampler=sampler,
        seed=seed,
        load=load,
        objective=objective,
        slo=slo,
        start_deadline_s=start_deadline,
        level_deadline_s=level_deadline,
        server_args=server_args,
    )
    plan = asked.plan_of(file, arguments, pick, vllm_command, Path(studies_dir))
    # Only now what runs studies is imported: whoever mistyped need not wait for it.
    from autotune.session import Target

    _run(plan, places, Target(trials=count, more=more), as_json=as_json)


def _running(text: str, places: Places) -> Config:
    """The config of a promotion, or of a file of flags.

    Raises:
        UnknownName, InvalidFile: there is neither.
    """
    from autotune.cli.gate_against import LEFT_OUT, side_of_file
    from autotune.cli.stores import opened
    from autotune.promote.history import named
    from autotune.records import Config
    from autotune.review.history import history_of
    from autotune.yaml_input import existing_file

    path = existing_file(text)
    if path is not None:
        return side_of_file(path, "").config
    with opened(places, text, kind="promotion") as store:
        promotion = named(history_of(store), text).promotion
    return Config.of({name: value for name, value in promotion.config if name not in LEFT_OUT})


def _run(plan: StudyPlan, places: Places, target: Target, *, as_json: bool) -> None:
    from autotune.cli.console import output_console
    from autotune.cli.ending import announced
    from autotune.cli.stores import opened
    from autotune.errors import NothingMeasured
    from autotune.node.nvml_probe import open_probe
    from autotune.report.grid import print_to
    from autotune.report.json_view import study_document
    from autotune.report.progress import progress_view
    from autotune.report.tables import study_report
    from autotune.review.views import view_of, with_explanation
    from autotune.session import run_study

    console = output_console(stderr=True)
    _show_plan(plan, target, console)
    with announced(plan, places) as run, progress_view(console, time.monotonic) as progress:
        watcher = _Watcher(plan=plan, progress=progress)
        run.ended_by = run_study(plan, places, target, watcher, probe=open_probe())
    with opened(places) as store:
        view = view_of(store, store.study(plan.recipe.name), places, slo=plan.recipe.slo, rule=plan.pick_rule)
        load = plan.load_for(store.get_load_plan(plan.recipe.name))
    if as_json:
        typer.echo(json.dumps(study_document(view), indent=2))
    else:
        print_to(output_console(), study_report(with_explanation(view, plan, load)))
    if not view.front:
        raise NothingMeasured(
            f"study {plan.recipe.name!r} ended without one measured trial, so there is no front",
            hint=f"`autotune show {plan.recipe.name} 0` tells why the baseline failed and what to change.",
        )


def _show_plan(plan: StudyPlan, target: Target, console: Console) -> None:
    """The plan, before anything is launched."""
    from autotune.cli.plan_text import plan_lines

    for line in plan_lines(plan, target):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


@dataclass(slots=True)
class _Watcher:
    """Turns what the study tells into progress events."""

    plan: StudyPlan
    progress: ProgressView
    began: bool = False
    baseline: Trial | None = None

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None:
        from autotune.records import Origin
        from autotune.report.progress import StudyBegan, TrialBegan
        from autotune.report.wording import changes

        now = time.monotonic()
        if not self.began:
            self.began = True
            name, simulated = self.plan.recipe.name, self.plan.simulated
            # Of a simulated study the limit is on another clock than the screen's.
            limit_s = None if simulated else self.plan.recipe.max_time_s
            began = StudyBegan(at_s=now, study=name, total=target, simulated=simulated, done=counted, limit_s=limit_s)
            self.progress.tell(began)
        repeat = trial.repeat_of is not None and trial.origin is not Origin.PROBE
        if trial.origin is Origin.PROBE:
            what = "the baseline beside others"
        elif repeat:
            what = f"trial {trial.repeat_of} again"
        else:
            what = "baseline" if trial.number == 0 else "  ".join(self._new(changes(trial.config, self.baseline)))
        self.progress.tell(
            TrialBegan(at_s=now, number=trial.number, settings=what, repeat=repeat, repeats_left=repeats_left)
        )
        if trial.why and trial.origin is Origin.SAMPLER:
            self.note(f"trial {trial.number}: {trial.why}")

    def phase(self, phase: Phase, detail: str, *, number: int) -> None:
        from autotune.report.progress import PhaseBegan

        self.progress.tell(PhaseBegan(at_s=time.monotonic(), number=number, phase=phase, detail=detail))

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        from autotune.report.progress import TrialEnded
        from autotune.search.pareto import front_of

        self.baseline = trials[0]
        numbers = front_of(trials)
        front = tuple(t for t in trials if t.number in numbers)
        self.progress.tell(TrialEnded(at_s=time.monotonic(), trial=trial, front=front))

    def _new(self, settings: tuple[str, ...]) -> list[str]:
        """Without what the plan said is fixed for every trial."""
        from autotune.report.wording import setting

        fixed = {setting(name, value) for name, value in self.plan.fixed}
        return [text for text in settings if text not in fixed]

    def note(self, text: str) -> None:
        from autotune.report.progress import Said

        self.progress.tell(Said(at_s=time.monotonic(), text=text))
