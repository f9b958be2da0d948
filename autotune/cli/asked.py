"""What `study` and `plan` ask for: their common options, and the recipe that these make with a study file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.planning import StudyPlan
    from autotune.recipe import RequestNumbers

ServerArgs = Annotated[
    list[str] | None,
    typer.Argument(help="After `--`: flags passed to every server as they are, e.g. -- --trust-remote-code."),
]
Model = Annotated[str | None, typer.Option(help="A folder with config.json, or a model name.")]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        help="A shipped workload (chat, rag, ...), a YAML file, or a request log or trace (.json, .jsonl, .csv)."
    ),
]
PromptMean = Annotated[
    float | None, typer.Option(min=1, help="Instead of --workload: mean prompt length in tokens, with --output-mean.")
]
PromptP95 = Annotated[float | None, typer.Option(min=1, help="95th percentile of prompt lengths; default: the mean.")]
OutputMean = Annotated[float | None, typer.Option(min=1, help="Mean output length in tokens.")]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Most requests at once per GPU, where --prompt-mean makes the workload.")
]
Space = Annotated[
    str | None,
    typer.Option(
        help="auto (made for node, model and workload), auto-wide, a shipped space (default, ...) or a YAML file."
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        help="Other checkpoints of the model to compare, separated by commas; auto: the quantised ones known."
    ),
]
MinModelLen = Annotated[
    int | None, typer.Option(min=1, help="Tokens that a request must be able to have, whatever the workload sends.")
]
Today = Annotated[
    str | None,
    typer.Option(
        help="What runs today, launched right after the baseline: a promotion (prod-chat, prod-chat@3), or a YAML file "
        "of flags as `vllm serve --config` reads it."
    ),
]
File = Annotated[str | None, typer.Option("--file", help="A study file, by path or by the name of a shipped one.")]
Name = Annotated[str | None, typer.Option(help="Name of the study; the same name goes on where it stopped.")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="auto (real servers where there is a GPU), process, or simulated.")
]
NodeName = Annotated[str | None, typer.Option("--node", help="Node to simulate, e.g. 4xA100-80GB-NVLink.")]
Gpus = Annotated[str | None, typer.Option(help="Physical GPUs to use, e.g. 0,1.")]
VllmCommandText = Annotated[
    str | None,
    typer.Option(
        "--vllm-command",
        help="The server command, e.g. '/opt/vllm/bin/vllm serve'. Environment: AUTOTUNE_VLLM_COMMAND.",
    ),
]
Trials = Annotated[
    str | None, typer.Option(help="Trials to reach, the baseline included; +N adds N to those there are.")
]
MaxTime = Annotated[
    str | None,
    typer.Option(
        "--max-time",
        help="Launch nothing that would end later than this after the start, e.g. 18m or 2h, the launches again "
        "included. Whichever of this and --trials comes first.",
    ),
]
Repeats = Annotated[
    int | None, typer.Option(min=0, max=100, help="Most launches again of one config at the end, to see noise.")
]
MaxGpuHours = Annotated[
    str | None,
    typer.Option(
        "--max-gpu-hours",
        help="Launch nothing that would take the study, all its runs together, beyond so many hours times GPUs used.",
    ),
]
MinGain = Annotated[
    str | None,
    typer.Option(
        "--min-gain",
        help="End when the sampler expects no config to enlarge the front's hypervolume by this share, e.g. 1%.",
    ),
]
Abandon = Annotated[
    str | None,
    typer.Option(
        help="End a trial early once it is shown with this confidence that another config is better in throughput and "
        "p95 TTFT: 99% (default), or off.",
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        help="prior (what physics expect, corrected by what was measured), tpe, nsga2, random, qmc, grid or gp."
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of prompts, arrivals and proposals.")]
GpuBusy = Annotated[
    str | None,
    typer.Option(
        "--gpu-busy",
        help="What to do while somebody else uses the GPUs: wait (default), stop, or wait so long, e.g. 30m.",
    ),
]
Parallel = Annotated[
    str | None,
    typer.Option(
        help="Trials at once where configs need fewer GPUs than the node has: auto, or a number; default 1. "
        "Baseline and finalists are measured alone."
    ),
]
ExecutorName = Annotated[
    str | None,
    typer.Option(
        "--executor",
        help="local (this machine), or ray: each trial on a node of a Ray cluster, several at once (docs/nodes.md).",
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="With --executor ray: HOST:PORT of the cluster's head; auto: RAY_ADDRESS, or here.")
]
RayNodes = Annotated[
    str | None,
    typer.Option(help="With --executor ray: the nodes to use, by host name, address or kind, separated by commas."),
]
ObjectiveName = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="throughput (of a closed loop), or goodput: per config the highest Poisson rate that meets --slo.",
    ),
]
Load = Annotated[str | None, typer.Option(help="auto, or concurrency=N,rate=R,requests=N per GPU used (any subset).")]


def arguments(
    *,
    engine: str | None,
    gpus: str | None,
    load: str | None,
    objective: str | None,
    checkpoints: str | None,
    max_time: str | None,
    gpu_busy: str | None = None,
    parallel: str | None = None,
    executor: str | None = None,
    ray_address: str | None = None,
    ray_nodes: str | None = None,
    server_args: list[str] | None,
    abandon: str | None = None,
    max_gpu_hours: str | None = None,
    min_gain: str | None = None,
    notify_command: str | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The command line's words as `recipe.compose` takes them.

    Raises:
        InvalidOption: one that cannot be read.
    """
    from autotune.recipe import (
        LEAST_CONFIDENCE,
        LEAST_GAIN,
        MOST_CONFIDENCE,
        MOST_GAIN,
        parse_address,
        parse_busy,
        parse_command,
        parse_gpu_hours,
        parse_gpus,
        parse_load,
        parse_names,
        parse_parallel,
        parse_share,
        parse_time,
    )

    return {
        **others,
        "engine": _engine(engine),
        "gpus": None if gpus is None else parse_gpus(gpus),
        "load": None if load is None else parse_load(load),
        "objective": _objective(objective),
        "checkpoints": None if checkpoints is None else parse_names(checkpoints, "--checkpoints"),
        "abandon": None
        if abandon is None
        else parse_share(abandon, "--abandon", least=LEAST_CONFIDENCE, most=MOST_CONFIDENCE, off=True),
        "max_gpu_s": None if max_gpu_hours is None else parse_gpu_hours(max_gpu_hours),
        "min_gain": None if min_gain is None else parse_share(min_gain, "--min-gain", least=LEAST_GAIN, most=MOST_GAIN),
        "notify_command": None if notify_command is None else parse_command(notify_command, "--notify-command"),
        "max_time_s": None if max_time is None else parse_time(max_time, "--max-time"),
        "gpu_busy_s": None if gpu_busy is None else parse_busy(gpu_busy, "--gpu-busy"),
        "parallel": None if parallel is None else parse_parallel(parallel),
        "executor": _executor(executor),
        "ray_address": None if ray_address is None else parse_address(ray_address),
        "ray_nodes": None if ray_nodes is None else parse_names(ray_nodes, "--ray-nodes"),
        "extra_args": tuple(server_args) if server_args else None,
    }


def numbers_of(
    prompt_mean: float | None, prompt_p95: float | None, output_mean: float | None, concurrency: int | None
) -> RequestNumbers | None:
    """The workload from four numbers; None when none was given.

    Raises:
        InvalidOption: some were given, but not both means.
    """
    from autotune.errors import InvalidOption
    from autotune.recipe import RequestNumbers

    given = {"--prompt-p95": prompt_p95, "--concurrency": concurrency}
    if prompt_mean is None or output_mean is None:
        said = [("--prompt-mean", prompt_mean), ("--output-mean", output_mean), *given.items()]
        found = next(((option, value) for option, value in said if value is not None), None)
        if found is not None:
            raise InvalidOption(found[0], found[1], "both --prompt-mean and --output-mean beside it")
        return None
    return RequestNumbers(
        prompt_mean=prompt_mean, prompt_p95=prompt_p95, output_mean=output_mean, concurrency=concurrency
    )


def trials_of(text: str | None) -> tuple[int | None, bool]:
    """How many trials, and whether they are in addition to those there are."""
    from autotune.recipe import parse_trials

    return (None, False) if text is None else parse_trials(text)


def plan_of(
    file: str | None, given: dict[str, Any], pick: str | None, vllm_command: str | None, studies_dir: Path
) -> StudyPlan:
    """The plan of a study file with the command line's words over it.

    Raises:
        BadInput: whatever the operator wrote that cannot be used.
    """
    from autotune.cli.surroundings import surroundings
    from autotune.errors import InvalidOption
    from autotune.planning import make_plan
    from autotune.recipe import ExecutorChoice, compose, find_study_file, read_study_file, shipped_studies
    from autotune.records import PickRule

    from_file: dict[str, Any] = {}
    if file is not None:
        found = find_study_file(file, (studies_dir, shipped_studies()))
        from_file = {"name": found.stem, **read_study_file(found)}
    try:
        rule = None if pick is None else PickRule(pick)
    except ValueError:
        raise InvalidOption("--pick", pick, ", ".join(PickRule)) from None
    recipe, here = compose(from_file, given), surroundings()
    if recipe.executor is ExecutorChoice.RAY:
        from autotune.executor.ray_cluster import surroundings_there

        here = surroundings_there(here, recipe)
    return make_plan(recipe, here, pick_rule=rule, vllm_command=vllm_command)


def _objective(text: str | None) -> object:
    from autotune.errors import InvalidOption
    from autotune.records import Objective

    if text is None:
        return None
    try:
        return Objective(text)
    except ValueError:
        raise InvalidOption("--objective", text, ", ".join(Objective)) from None


def _executor(text: str | None) -> object:
    from autotune.errors import InvalidOption
    from autotune.recipe import ExecutorChoice

    if text is None:
        return None
    try:
        return ExecutorChoice(text)
    except ValueError:
        raise InvalidOption("--executor", text, ", ".join(ExecutorChoice)) from None


def _engine(text: str | None) -> object:
    from autotune.errors import InvalidOption
    from autotune.recipe import EngineChoice

    if text is None:
        return None
    try:
        return EngineChoice(text)
    except ValueError:
        raise InvalidOption("--engine", text, ", ".join(EngineChoice)) from None
