"""`autotune plan`: what fits, what is worth trying, how long it takes; launches nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import asked
from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, StudiesDir

if TYPE_CHECKING:
    from autotune.planning import StudyPlan


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
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
    file: asked.File = None,
    name: asked.Name = None,
    engine: asked.EngineName = None,
    node: asked.NodeName = None,
    gpus: asked.Gpus = None,
    vllm_command: asked.VllmCommandText = None,
    trials: asked.Trials = None,
    max_time: asked.MaxTime = None,
    repeats: asked.Repeats = None,
    sampler: asked.Sampler = None,
    seed: asked.Seed = None,
    load: asked.Load = None,
    objective: asked.ObjectiveName = None,
    slo: SloText = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every layout and every rule, also those without effect.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    as_json: Json = False,
) -> None:
    """Show what a study would try: space, rules, layouts in their order, KV memory, time. Launches nothing."""
    from autotune.cli.console import output_console
    from autotune.cli.plan_text import plan_document, plan_report
    from autotune.report.grid import print_to

    count, more = asked.trials_of(trials)
    arguments = asked.arguments(
        model=model,
        workload=workload,
        numbers=asked.numbers_of(prompt_mean, prompt_p95, output_mean, concurrency),
        space=space,
        checkpoints=checkpoints,
        min_model_len=min_model_len,
        name=name,
        engine=engine,
        node=node,
        gpus=gpus,
        trials=None if more else count,
        max_time=max_time,
        repeats=repeats,
        sampler=sampler,
        seed=seed,
        load=load,
        objective=objective,
        slo=slo,
        server_args=server_args,
    )
    made: StudyPlan = asked.plan_of(file, arguments, None, vllm_command, Path(studies_dir))
    if as_json:
        typer.echo(json.dumps(plan_document(made), indent=2))
    else:
        print_to(output_console(), plan_report(made, every=every))
