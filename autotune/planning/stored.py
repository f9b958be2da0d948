"""A plan made again from what the store keeps: to explain a study without the machine that it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.engine.flags import AcceptedFlags, from_argv
from autotune.errors import AutotuneError, InvalidOption, StorageError
from autotune.load.workload import Workload
from autotune.load.workloads import load_workload, workload_fingerprint, workload_from_numbers
from autotune.planning.plan import StudyPlan
from autotune.recipe import QualityChoice, Recipe
from autotune.records import Config, ModelShape, Node, Trial, Value
from autotune.search.need import Traffic
from autotune.search.parameter import Parameter
from autotune.search.rules import RuleContext, feasible
from autotune.search.space import SearchSpace
from autotune.store.codec import decode, decode_value, encode
from autotune.store.study_record import StudyRecord

_PATIENCE = ("start_deadline_s", "stall_deadline_s", "level_deadline_s", "stop_grace_s", "gpu_busy_s")
"""Of a recipe: how long servers, levels and GPUs are waited for. What is launched again is to have as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A study's plan, as far as it can be made again.

    Attributes:
        doubts: what is not as it was when the study ran, one sentence each.
        own_workload: False where the study's workload is not here any more, or was changed: `plan.workload` is then
            drawn from its mean lengths, good enough to explain with, and not to measure with.
    """

    plan: StudyPlan
    doubts: tuple[str, ...]
    own_workload: bool


def kept_of(plan: StudyPlan) -> dict[str, Any]:
    """What `stored_plan` wants to find among a study's spec, beside node, shapes and the rest that is shown."""
    return {
        "space": encode(plan.space),
        "fixed": dict(plan.fixed),
        "traffic": encode(plan.traffic),
        "workload_source": plan.recipe.workload if plan.recipe.numbers is None else None,
        "min_model_len": plan.recipe.min_model_len,
        "quality": encode(plan.recipe.quality) if plan.prompts is not None else None,
        "patience": {name: encode(getattr(plan.recipe, name)) for name in _PATIENCE},
    }


def stored_plan(study: StudyRecord, trials: tuple[Trial, ...]) -> StoredPlan:
    """The plan of a stored study. Nothing of this machine is asked but files of the workload's name.

    Raises:
        StorageError: the study is of a version that stored neither its node nor its space, or cannot be read.
    """
    spec, doubts = study.spec, list[str]()
    try:
        node = decode(Node, spec["node"])
        shapes = {name: decode(ModelShape, shape) for name, shape in spec.get("shapes", {}).items()}
        space = decode(SearchSpace, spec["space"]) if "space" in spec else _bare_space(study, doubts)
        traffic = decode(Traffic, spec["traffic"]) if "traffic" in spec else Traffic()
    except (KeyError, ValueError) as error:
        raise StorageError(f"study {study.name!r}: what it was asked cannot be read back ({error})") from None
    model = study.identity["model"]
    workload, own_workload = _workload(study, traffic, doubts)
    version = study.identity.get("vllm_version", "unknown")
    extra = tuple(from_argv([str(word) for word in spec.get("extra_args", ())]))
    fixed = tuple(sorted(spec["fixed"].items())) if "fixed" in spec else _common(trials, space)
    context = RuleContext(
        needed_len=spec.get("needed_len"),
        min_model_len=spec.get("min_model_len"),
        vllm_version=None if version == "unknown" else version,
        fixed=(*extra, *fixed),
        shapes=shapes,
    )
    kept, refused = feasible(space, node, shapes.get(model), context)
    plan = StudyPlan(
        recipe=Recipe(
            name=study.name,
            model=model,
            seed=study.seed,
            sampler=str(spec.get("sampler", "prior")),
            quality=decode(QualityChoice, spec["quality"]) if spec.get("quality") else QualityChoice(),
            **_patience(spec),
        ),
        engine=study.engine,
        node=node,
        shape=shapes.get(model),
        workload=workload,
        space=space,
        command=None,
        accepted=AcceptedFlags(flags=()),
        vllm_version=context.vllm_version,
        fixed=fixed,
        extra=extra,
        context=context,
        feasible=kept,
        refused=refused,
        baseline=trials[0].config if trials else Config.of({}),
        baseline_changes=(),
        starting_points=(),
        slo=None,
        pick_rule=None,
        notes=(),
        reachable_hits=spec.get("reachable_hits"),
        traffic=traffic,
        checkpoints=tuple((name, shape) for name, shape in shapes.items() if name != model),
    )
    return StoredPlan(plan=plan, doubts=tuple(doubts), own_workload=own_workload)


def _patience(spec: Mapping[str, Any]) -> dict[str, Any]:
    """As stored; nothing of a study of an older version, which then has the defaults."""
    kept = decode_value(spec.get("patience", {}))
    return {name: float(kept[name]) for name in _PATIENCE if name in kept}


def knows_traffic(plan: StudyPlan) -> bool:
    """Whether it is known what the study was driven with, without which nothing can be predicted."""
    return plan.traffic.prompt_mean is not None and plan.traffic.output_mean is not None


def _bare_space(study: StudyRecord, doubts: list[str]) -> SearchSpace:
    """Of a version that stored choices alone."""
    doubts.append("the study is of an older version, which did not store the conditions between parameters")
    return SearchSpace(
        name=study.identity.get("space", ""),
        parameters=tuple(Parameter(name=name, choices=choices) for name, choices in study.choices),
    )


def _common(trials: tuple[Trial, ...], space: SearchSpace) -> tuple[tuple[str, Value], ...]:
    """Flags beside the space's that every trial but the baseline has."""
    names = {parameter.name for parameter in space.parameters}
    found = [dict(trial.config) for trial in trials if trial.number > 0 and trial.repeat_of is None]
    if not found:
        return ()
    shared = {n: v for n, v in found[0].items() if all(n in one and one[n] == v for one in found) and n not in names}
    return tuple(sorted(shared.items()))


def _workload(study: StudyRecord, traffic: Traffic, doubts: list[str]) -> tuple[Workload, bool]:
    """The study's own where it is here and unchanged, else drawn requests of the same means; and whether it is that.

    One that was made from numbers is made from them again.
    """
    source = study.spec.get("workload_source", study.spec.get("workload"))
    if isinstance(source, str):
        found = _same_workload(source, study.identity)
        if found is not None:
            return found, True
    prompt, output = traffic.prompt_mean or 512.0, traffic.output_mean or 256.0
    if source is not None:
        doubts.append(
            f"the workload {study.identity.get('workload', source)} is not here: what was expected of configs is "
            "worked out for drawn requests of the same mean lengths"
        )
    try:
        made = workload_from_numbers(prompt, max(prompt, traffic.prompt_p95 or prompt), output, 512)
    except InvalidOption:  # a p95 that no log-normal has
        made = workload_from_numbers(prompt, prompt, output, 512)
    return made, source is None


def _same_workload(source: str, identity: Mapping[str, str]) -> Workload | None:
    try:
        found = load_workload(source)
    except AutotuneError:
        return None
    same = identity.get("workload") == f"{found.name} ({workload_fingerprint(found)})"
    return found if same else None
