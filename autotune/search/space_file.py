"""The border of search-space files: what they may say, and what they say, with every error at its place. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError
from pydantic.config import JsonDict

from autotune.engine.flags import MANAGED_FLAGS, MODEL, SECRET_FLAGS
from autotune.engine.redaction import REDACTED, is_secret_name, redact
from autotune.errors import InvalidFile
from autotune.records import Value
from autotune.search.parameter import Conditions, Parameter, value_key
from autotune.search.space_condition import impossible, resolve
from autotune.search.space_range import MAX_CHOICES, RangeEntry, choices_of_range

_PARAMETER_NAME = r"^(env:[A-Za-z_][A-Za-z0-9_]*|[a-z][a-z0-9]*(-[a-z0-9]+)*)$"

_MANAGED = MANAGED_FLAGS | {"served-model-name"}  # a name that differs from trial to trial is of use to nobody
_SECRET = SECRET_FLAGS.keys()

MAX_PARAMETERS = 200
"""Of one space; vLLM has about 320 flags."""

_Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None
_When = dict[StrictStr, list[_Scalar] | _Scalar]
_NAMES: JsonDict = {"propertyNames": {"pattern": _PARAMETER_NAME}}


class ParameterEntry(BaseModel):
    """A parameter has `choices` or a `range`; everything else is optional."""

    model_config = ConfigDict(
        extra="forbid",
        title="Parameter",
        json_schema_extra={"oneOf": [{"required": ["choices"]}, {"required": ["range"]}]},
    )

    choices: list[_Scalar] = Field(
        default=[],
        min_length=1,
        max_length=MAX_CHOICES,
        description="Values to try: numbers, texts, true or false for switches; null leaves vLLM's own default.",
    )
    range: RangeEntry | None = Field(
        default=None,
        description="Instead of choices: evenly spaced numbers, or with log: true numbers of even ratios.",
    )
    why: StrictStr = Field(default="", description="What there is to win or lose; shown to whoever reads the space.")
    when: _When = Field(
        default={},
        description="Only if all of these hold: other parameters with a value, a list of values, or a comparison "
        'such as "> 1".',
        json_schema_extra=_NAMES,
    )
    when_any: list[_When] = Field(
        default=[], description="Only if at least one of these holds; each is written as under `when`."
    )
    lossy: StrictBool = Field(
        default=False, description="It changes the numbers that the model computes: check the answers' quality."
    )


class SpaceFile(BaseModel):
    """A search space: flags of `vllm serve` and environment variables with the values to try."""

    model_config = ConfigDict(extra="forbid", title="autotune search space")

    name: StrictStr = Field(min_length=1, description="Shown in plans and reports.")
    description: StrictStr = Field(default="", description="One line on the situation that it is made for.")
    parameters: dict[StrictStr, ParameterEntry] = Field(
        min_length=1,
        max_length=MAX_PARAMETERS,
        description="By name: a flag without its dashes, env:NAME for a variable of the server's environment, or "
        "`model` for other checkpoints of the study's model.",
        json_schema_extra=_NAMES,
    )
    fixed: dict[StrictStr, _Scalar] = Field(
        default={}, description="Flags that every launch has; conditions may name them.", json_schema_extra=_NAMES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceContent:
    """What a file says; parents of conditions come before their children."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    fixed: tuple[tuple[str, Value], ...]


def space_content(content: object, file: str) -> SpaceContent:
    """A parsed YAML document, checked.

    Raises:
        InvalidFile: with key path, value and what is allowed.
    """
    try:
        parsed = SpaceFile.model_validate(content)
    except ValidationError as error:
        raise _as_invalid_file(error, content, file) from None
    fixed = {name: value for name, value in parsed.fixed.items() if value is not None}
    for name, entry in parsed.parameters.items():
        _check_name(name, "parameters", file)
        for index, choice in enumerate(entry.choices or ()):
            _check_value(choice, f"parameters.{name}.choices[{index}]", file)
    for name, value in fixed.items():
        _check_name(name, "fixed", file)
        _check_value(value, f"fixed.{name}", file)
    for name in parsed.parameters.keys() & fixed.keys():
        raise InvalidFile(file, f"fixed.{name}", fixed[name], "a flag that is not searched under parameters as well")
    parameters = {name: _as_parameter(name, entry, file) for name, entry in parsed.parameters.items()}
    conditional = _with_conditions(parsed.parameters, parameters, fixed, file)
    ordered = _parents_first(conditional, file)
    for parameter in ordered:
        torn = impossible(parameter, conditional, fixed)
        if torn is not None:
            key, other = torn
            wanted = parsed.parameters[parameter.name].when
            allowed = f"conditions that can hold together; these leave {other} no value"
            raise InvalidFile(file, f"parameters.{parameter.name}.{key}", wanted, allowed)
    return SpaceContent(
        name=parsed.name, description=parsed.description, parameters=ordered, fixed=tuple(sorted(fixed.items()))
    )


def _as_parameter(name: str, entry: ParameterEntry, file: str) -> Parameter:
    """The parameter without its conditions."""
    key = f"parameters.{name}"
    given = entry.model_fields_set
    if entry.range is not None:
        if "choices" in given:
            raise InvalidFile(file, f"{key}.range", "beside choices", "either choices or a range")
        choices = choices_of_range(entry.range, file=file, key=f"{key}.range")
    elif "choices" not in given:
        raise InvalidFile(file, f"{key}.choices", None, "a list of values, or a range; one of them is required")
    else:
        choices = tuple(entry.choices)
    seen: set[tuple[bool, Value]] = set()
    for index, choice in enumerate(choices):
        if value_key(choice) in seen:
            raise InvalidFile(file, f"{key}.choices[{index}]", choice, "each choice once")
        seen.add(value_key(choice))
        if name == MODEL and not _is_checkpoint(choice):
            allowed = "a checkpoint's name or folder, or null for the study's own model"
            raise InvalidFile(file, f"{key}.choices[{index}]", choice, allowed)
    return Parameter(name=name, choices=choices, why=entry.why, lossy=entry.lossy)


def _is_checkpoint(choice: Value) -> bool:
    # A word that begins with a dash would be read as a flag.
    return choice is None or (isinstance(choice, str) and bool(choice.strip()) and not choice.startswith("-"))


def _check_name(name: str, section: str, file: str) -> None:
    if name in _MANAGED and not (name == MODEL and section == "parameters"):
        raise InvalidFile(file, f"{section}.{name}", name, "a flag that autotune does not set itself for each launch")
    if name in _SECRET or (name.startswith("env:") and is_secret_name(name)):
        raise InvalidFile(
            file,
            f"{section}.{name}",
            name,
            "no secrets",
            hint="Set it in the environment that autotune runs in; the server inherits it and nothing is stored.",
        )
    if not re.fullmatch(_PARAMETER_NAME, name):
        raise InvalidFile(
            file, f"{section}.{name}", name, "a vllm serve flag without dashes (max-num-seqs) or env:NAME"
        )


def _check_value(value: Value, place: str, file: str) -> None:
    if isinstance(value, str) and redact(value) != value:
        raise InvalidFile(
            file,
            place,
            REDACTED,
            "no secrets",
            hint="Set it in the environment that autotune runs in; the server inherits it and nothing is stored.",
        )


def _with_conditions(
    entries: Mapping[str, ParameterEntry], parameters: Mapping[str, Parameter], fixed: Mapping[str, Value], file: str
) -> dict[str, Parameter]:
    """The parameters with their conditions as values of the others."""

    def conditions(name: str, when: _When, key: str) -> Conditions:
        found: list[tuple[str, tuple[Value, ...]]] = []
        for other, wanted in when.items():
            place = (file, f"{key}.{other}")
            if other == name:
                raise InvalidFile(*place, other, "a parameter whose own condition does not lead back here")
            if other not in parameters and other not in fixed:
                allowed = ", ".join(one for one in (*parameters, *fixed) if one != name)
                raise InvalidFile(*place, other, f"another parameter of this file: {allowed}")
            known = parameters[other].choices if other in parameters else (fixed[other],)
            found.append((other, resolve(wanted, known, other=other, place=place)))
        return tuple(found)

    return {
        name: replace(
            parameters[name],
            when=conditions(name, entry.when, f"parameters.{name}.when"),
            when_any=tuple(
                conditions(name, when, f"parameters.{name}.when_any[{index}]")
                for index, when in enumerate(entry.when_any)
            ),
        )
        for name, entry in entries.items()
    }


def _parents_first(parameters: Mapping[str, Parameter], file: str) -> tuple[Parameter, ...]:
    """The parameters in the file's order, but each after those its conditions name."""
    ordered: dict[str, Parameter] = {}

    def place(parameter: Parameter, waiting: tuple[str, ...]) -> None:
        if parameter.name in ordered:
            return
        for key, conditions in parameter.condition_groups:
            for other, _ in conditions:
                if other in waiting:
                    at = f"parameters.{parameter.name}.{key}.{other}"
                    raise InvalidFile(file, at, other, "a parameter whose own condition does not lead back here")
                if other in parameters:
                    place(parameters[other], (*waiting, parameter.name))
        ordered[parameter.name] = parameter

    for parameter in parameters.values():
        place(parameter, ())
    return tuple(ordered.values())


def _as_invalid_file(error: ValidationError, content: object, file: str) -> InvalidFile:
    """The first complaint of pydantic in our words."""
    # An unknown key before a missing one: the first is usually the misspelling of the second.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    # pydantic names the member of a union that it tried last; that is our vocabulary, not the operator's.
    location = [part for part in first["loc"] if part not in ("bool", "int", "float", "str") and "[" not in str(part)]
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else str(part)
    value: object = content
    for part in location:
        try:
            value = value[part]  # type: ignore[index]  # a misfit is caught below
        except (KeyError, IndexError, TypeError):
            value = None if first["type"] == "missing" else value
            break
    return InvalidFile(file, key, value, _allowed(first["type"], [str(part) for part in location], key))


def _allowed(kind: str, location: list[str], key: str) -> str:
    inside = location[2] if len(location) > 3 and location[0] == "parameters" else ""
    if kind == "extra_forbidden":
        model: type[BaseModel] = RangeEntry if inside == "range" else ParameterEntry if len(location) > 2 else SpaceFile
        return f"keys {', '.join(model.model_fields)}"
    if kind == "too_short":
        return "at least one entry"
    if kind == "too_long":
        return f"at most {MAX_PARAMETERS if location == ['parameters'] else MAX_CHOICES:,} entries"
    if kind == "missing":
        return f"a value for {key}, which is required"
    if inside == "range":
        return _RANGE_VALUES.get(location[3], "a number")
    last = location[-1] if location else ""
    if last == "range":
        return "low, high and step, or low, high, log: true and points"
    if last == "lossy":
        return "true or false"
    if last == "when_any":
        return "a list of mappings, each as under when"
    if "choices" in key or "when" in key or "fixed" in key:
        return "a list of numbers, texts, true, false or null" if key.endswith("choices") else "plain values"
    return "a text" if key.endswith(("name", "description", "why")) else "a mapping"


_RANGE_VALUES = {"log": "true or false", "points": "a whole number"}
