"""Flags of every launch and parameters of the space, checked against what this vLLM takes."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.engine.flags import MANAGED_FLAGS, MODEL, SECRET_FLAGS, AcceptedFlags, from_argv
from autotune.engine.redaction import redact
from autotune.errors import InvalidOption, UnknownName
from autotune.recipe import Recipe
from autotune.records import Config, Value
from autotune.search.space import SearchSpace


def extra_flags(recipe: Recipe) -> tuple[tuple[str, Value], ...]:
    """Flags that followed `--`.

    Raises:
        InvalidOption: not flags, secrets, or flags that the tuner itself sets.
    """
    extra = tuple(from_argv(recipe.extra_args))
    for name, value in extra:
        if name in MANAGED_FLAGS:
            raise InvalidOption(
                "--", f"--{name} {value}", "any flag of vllm serve but those the tuner sets for each launch"
            )
        if name in SECRET_FLAGS:
            raise InvalidOption(
                "--",
                f"--{name}",
                "no secrets, which would be stored with the study",
                hint=f"Set {SECRET_FLAGS[name]} in the environment that autotune runs in; the server inherits it.",
            )
        if isinstance(value, str) and redact(value) != value:
            raise InvalidOption(
                "--",
                f"--{name} {redact(value)}",
                "no secrets, which would be stored with the study",
                hint="Set it in the environment that autotune runs in; the server inherits it.",
            )
    return extra


def refuse_searched(extra: Sequence[tuple[str, Value]], space: SearchSpace) -> None:
    """A flag is either searched or the same for every launch.

    Raises:
        InvalidOption: it is both.
    """
    searched = {parameter.name for parameter in space.parameters}
    for name, value in extra:
        if name in searched:
            raise InvalidOption(
                "--",
                f"--{name} {value}",
                f"flags that are not searched (the space {space.name!r} varies --{name})",
                hint="Take the parameter out of the space, or the flag off the command line.",
            )


def check_extra(extra: Sequence[tuple[str, Value]], accepted: AcceptedFlags) -> None:
    """Every flag after `--` must be one of this vLLM's, with a value that it takes.

    Raises:
        UnknownName: it has no such flag.
        InvalidOption: it does not take this value.
    """
    for name, value in extra:
        problem = accepted.problem(name, value)
        if problem and accepted.get(name) is None:
            raise UnknownName("flag", name, _names(accepted), source="after --", hint=problem)
        if problem:
            raise InvalidOption("--", f"--{name} {value}", f"what this vLLM takes: {problem}")


def check_config(config: Config, accepted: AcceptedFlags, *, source: str) -> None:
    """Every flag of a config that somebody wrote must be one of this vLLM's, with a value that it takes.

    Args:
        source: of the config, for people.

    Raises:
        UnknownName: it has no such flag.
        InvalidOption: it does not take this value.
    """
    for name, value in config.params:
        head, dot, _ = name.partition(".")  # `compilation-config.mode` is a part of that flag's value
        problem = accepted.problem(head, None if dot and accepted.get(head) is not None else value)
        if problem and accepted.get(head) is None:
            raise UnknownName("flag", head, _names(accepted), source=source, hint=problem)
        if problem:
            raise InvalidOption(f"--{name}", value, f"what this vLLM takes: {problem}", hint=f"It stands in {source}.")


def check_space(space: SearchSpace, accepted: AcceptedFlags) -> None:
    """A parameter this vLLM does not have at all is the space's mistake; a single bad choice is left to the rules.

    Raises:
        UnknownName: the space names it.
    """
    for name in (*(parameter.name for parameter in space.parameters), *(name for name, _ in space.fixed)):
        if not name.startswith("env:") and name != MODEL and accepted.get(name) is None:
            raise UnknownName(
                "flag",
                name,
                _names(accepted),
                source=f"search space {space.name!r}",
                hint="This vLLM has no such flag; take it out of the space or use another vLLM.",
            )


def _names(accepted: AcceptedFlags) -> list[str]:
    return [flag.name for flag in accepted.flags]
