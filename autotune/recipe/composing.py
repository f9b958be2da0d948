"""A study file with the command line's words laid over it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import NOT_SHOWN, InvalidOption
from autotune.recipe.asked import EXPECTING_SAMPLER, NAME_PATTERN, ExecutorChoice, LoadChoice, Recipe
from autotune.store.folder import DATABASE_NAME
from autotune.webhook_url import parsed as parsed_url


def compose(from_file: Mapping[str, Any], from_command_line: Mapping[str, Any]) -> Recipe:
    """A recipe from both sources; the command line wins, None there means not said.

    Raises:
        InvalidOption: the model is missing, or the name cannot be a folder name.
    """
    values = {**from_file, **{key: value for key, value in from_command_line.items() if value is not None}}
    if "load" in from_file and isinstance(from_command_line.get("load"), LoadChoice):
        values["load"] = _overlay(from_file["load"], from_command_line["load"])
    if from_command_line.get("workload") is not None and "numbers" in from_file:
        values["numbers"] = None  # the command line named another workload
    if not values.get("model"):
        raise InvalidOption("--model", "", "a folder with config.json, or a model name such as meta-llama/Llama-3.1-8B")
    if "name" not in values:
        workload = "numbers" if values.get("numbers") else values.get("workload", "chat")
        values["name"] = default_name(values["model"], workload, values.get("node"))
    check_name(values["name"])
    recipe = Recipe(**values)
    _check_ends(recipe)
    _check_executor(recipe)
    return recipe


def _check_ends(recipe: Recipe) -> None:
    """What says when a study ends, and who is told.

    Raises:
        InvalidOption: a gain that nobody expects, or no URL.
    """
    if recipe.min_gain is not None and recipe.sampler != EXPECTING_SAMPLER:
        raise InvalidOption(
            "--min-gain",
            f"{recipe.min_gain:g} with --sampler {recipe.sampler}",
            f"the sampler {EXPECTING_SAMPLER} alone: no other says what it expects",
        )
    # Never shown: webhooks have their secret in the path.
    if recipe.notify_url is not None and parsed_url(recipe.notify_url) is None:
        raise InvalidOption("--notify-url", NOT_SHOWN, "an http or https URL in ASCII, without spaces")


def _check_executor(recipe: Recipe) -> None:
    """What a cluster's nodes decide cannot be asked for beside it.

    Raises:
        InvalidOption: it was.
    """
    if recipe.executor is ExecutorChoice.LOCAL:
        said = {"--ray-address": recipe.ray_address, "--ray-nodes": ",".join(recipe.ray_nodes)}
        found = next(((option, value) for option, value in said.items() if value), None)
        if found is not None:
            raise InvalidOption(*found, "nothing without --executor ray")
        return
    if recipe.gpus is not None:
        raise InvalidOption("--gpus", ",".join(map(str, recipe.gpus)), "nothing with --executor ray: see --ray-nodes")


def check_name(name: str) -> None:
    """Whether a study may have this name.

    Raises:
        InvalidOption: it cannot be a folder's name, or is taken by the database.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InvalidOption("--name", name, "1-64 letters, digits, '.', '_' and '-', not starting with a sign")
    if name.startswith(DATABASE_NAME):
        raise InvalidOption("--name", name, f"any name that is not taken by the database {DATABASE_NAME}")


def _overlay(below: LoadChoice, above: LoadChoice) -> LoadChoice:
    said = {
        key: getattr(above, key) for key in ("concurrency", "rate_rps", "requests") if getattr(above, key) is not None
    }
    return replace(below, **said)


def default_name(model: str, workload: str, node: str | None) -> str:
    """`llama-3.1-8b-instruct-chat` and the like: readable, stable, a valid folder name."""
    parts = [Path(model.rstrip("/")).name, Path(workload).stem, *([node] if node else [])]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-._").lower()
    return name[:64] or "study"
