"""Which checkpoints the launches of a study will load, as far as the hub has to give them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.engine.command import CommandKind
from autotune.node.config_source import hub_cache
from autotune.node.defaults import parse_version
from autotune.node.weights_download import WeightsOrder
from autotune.planning.plan import StudyPlan
from autotune.records import EngineKind, Value

SPECULATIVE = ("speculative-config", "speculative-model")
SIMULATED = "simulate-server"
"""Our own stand-in for a server; it reads no weights."""
_TRUE = {"1", "true"}


def weights_wanted(plan: StudyPlan, environ: Mapping[str, str], home: Path) -> tuple[WeightsOrder, ...]:
    """What must be in the cache before the first launch; the study's own model first.

    Empty for a simulation, and for containers and wrappers (which tell no version): their servers may have another
    cache, and download for themselves.
    """
    command = plan.command
    if plan.engine is not EngineKind.PROCESS or command is None or command.kind is CommandKind.TEMPLATE:
        return ()
    if plan.vllm_version is None or SIMULATED in command.words:
        return ()
    if environ.get("VLLM_USE_MODELSCOPE", "").lower() in _TRUE:
        return ()  # another hub
    flags = {**dict(plan.fixed), **dict(plan.extra)}
    folder = flags.get("download-dir")
    cache = Path(folder) if isinstance(folder, str) and folder else hub_cache(environ, home)
    revision = flags.get("revision")
    return tuple(
        WeightsOrder(
            model=name,
            cache=cache,
            revision=str(revision) if revision and name == plan.recipe.model else None,
            load_format=str(flags.get("load-format") or "auto"),
            version=parse_version(plan.vllm_version),
        )
        for name in dict.fromkeys(_models(plan, flags))
        if _is_hub_id(name)
    )


def _models(plan: StudyPlan, flags: Mapping[str, Value]) -> Iterator[str]:
    yield plan.recipe.model
    choices = {parameter.name: parameter.choices for parameter in plan.space.parameters}
    for value in choices.get("model", ()):
        yield str(value)
    for name in SPECULATIVE:
        for value in (flags.get(name), *choices.get(name, ())):
            draft = _draft(value)
            if draft is not None:
                yield draft


def _draft(value: Value) -> str | None:
    """The draft model of a speculative config: JSON with a `model`, or a name as older versions take it."""
    if not isinstance(value, str):
        return None
    if not value.lstrip().startswith("{"):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    model = found.get("model") if isinstance(found, dict) else None
    return model if isinstance(model, str) else None


def _is_hub_id(name: str) -> bool:
    """A folder of this name wins, as it does for vLLM."""
    plain = name.count("/") == 1 and not name.startswith((".", "/", "~", "[")) and ".." not in name and "\0" not in name
    return plain and not Path(name).exists()
