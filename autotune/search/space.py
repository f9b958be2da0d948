"""Search spaces: the parameters of `vllm serve`, their choices and conditions, read from `search_spaces/*.yaml`."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from autotune.engine.flags import MANAGED_FLAGS, SECRET_FLAGS
from autotune.errors import InvalidFile, UnknownName
from autotune.records import Config, Value
from autotune.yaml_input import existing_file, parse_yaml, read_yaml

_PARAMETER_NAME = r"^(env:[A-Za-z_][A-Za-z0-9_]*|[a-z][a-z0-9]*(-[a-z0-9]+)*)$"

_MANAGED = MANAGED_FLAGS | {"served-model-name"}  # a name that differs from trial to trial is of use to nobody
_SECRET = SECRET_FLAGS.keys() | {"env:HF_TOKEN", "env:HUGGING_FACE_HUB_TOKEN", "env:VLLM_API_KEY"}

MAX_COMBINATIONS = 1_000_000
"""Every config is judged by the rules before a study begins: about 50,000 a second."""

_Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a space.

    Attributes:
        name: a flag of `vllm serve` without dashes, or `env:NAME`.
        choices: distinct values, in the file's order; None leaves vLLM's default.
        when: (other parameter, values) pairs that must all hold for this one to be active; empty: always active.
    """

    name: str
    choices: tuple[Value, ...]
    why: str = ""
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """A product of choices. Parents of conditions come before their children in `parameters`.

    A config of the space names every active parameter and no inactive one; `fixed` ones are not part of it and are
    merged in at launch.
    """

    name: str
    parameters: tuple[Parameter, ...]
    fixed: tuple[tuple[str, Value], ...] = ()
    description: str = ""

    def __iter__(self) -> Iterator[Config]:
        """Every config once, in a fixed order: the last parameter varies fastest."""
        return (Config.of(values) for values in self._expand(0, {}))

    @property
    def size(self) -> int:
        """How many configs there are, inactive parameters not counted twice."""
        if not any(parameter.when for parameter in self.parameters):
            product = 1
            for parameter in self.parameters:
                product *= len(parameter.choices)
            return product
        return sum(1 for _ in self._expand(0, {}))

    @property
    def space_hash(self) -> str:
        """12 hex digits over what decides a result: choices, conditions, fixed values; not the reasons."""
        content = [
            [[p.name, p.choices, p.when] for p in sorted(self.parameters, key=lambda p: p.name)],
            sorted(self.fixed),
        ]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    def is_active(self, parameter: Parameter, values: Mapping[str, Value]) -> bool:
        """Whether `parameter` has a meaning beside `values` (which must hold its parents' values)."""
        known = {**dict(self.fixed), **values}
        return all(
            other in known and any(_same(known[other], wanted) for wanted in allowed)
            for other, allowed in parameter.when
        )

    def canonical(self, values: Mapping[str, Value]) -> Config:
        """The config of the space that `values` (one for every parameter) stands for: inactive ones dropped."""
        kept: dict[str, Value] = {}
        for parameter in self.parameters:
            if self.is_active(parameter, kept):
                kept[parameter.name] = values[parameter.name]
        return Config.of(kept)

    def contains(self, config: Config) -> bool:
        """Whether `config` is one of the configs that iteration yields."""
        values = config.as_dict()
        names = set()
        for parameter in self.parameters:
            if not self.is_active(parameter, values):
                continue
            names.add(parameter.name)
            if parameter.name not in values or not any(_same(values[parameter.name], c) for c in parameter.choices):
                return False
        return names == set(values)

    def _expand(self, depth: int, chosen: dict[str, Value]) -> Iterator[dict[str, Value]]:
        if depth == len(self.parameters):
            yield chosen
            return
        parameter = self.parameters[depth]
        if not self.is_active(parameter, chosen):
            yield from self._expand(depth + 1, chosen)
            return
        for choice in parameter.choices:
            yield from self._expand(depth + 1, {**chosen, parameter.name: choice})


def load_space(name_or_path: str) -> SearchSpace:
    """A shipped space by name, or a YAML file by path (anything with a slash or ending in .yaml or .yml).

    Raises:
        UnknownName: no shipped space of that name, or no such file.
        InvalidFile: the file does not say what it should.
    """
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    path = existing_file(name_or_path) if is_path else _shipped().get(name_or_path)
    if path is None:
        raise UnknownName(
            "search space",
            name_or_path,
            shipped_spaces(),
            hint="Give the name of a shipped space or the path of a YAML file.",
        )
    return _as_space(read_yaml(path), str(path))


def shipped_spaces() -> tuple[str, ...]:
    """Names that `load_space` knows without a path."""
    return tuple(sorted(_shipped()))


def parse_space(text: str, *, file: str) -> SearchSpace:
    """The space that a YAML text describes; `file` is named in errors.

    Raises:
        InvalidFile: with line, key path, value and what is allowed.
    """
    return _as_space(parse_yaml(text, file=file), file)


def _as_space(content: object, file: str) -> SearchSpace:
    try:
        parsed = _SpaceFile.model_validate(content)
    except ValidationError as error:
        raise _as_invalid_file(error, content, file) from None
    fixed = {name: value for name, value in parsed.fixed.items() if value is not None}
    for name in (*parsed.parameters, *fixed):
        _check_name(name, "parameters" if name in parsed.parameters else "fixed", file)
    for name in parsed.parameters.keys() & fixed.keys():
        raise InvalidFile(file, f"fixed.{name}", fixed[name], "a flag that is not searched under parameters as well")
    parameters = [_as_parameter(name, entry, file) for name, entry in parsed.parameters.items()]
    combinations = math.prod(len(parameter.choices) for parameter in parameters)
    if combinations > MAX_COMBINATIONS:
        raise InvalidFile(file, "parameters", f"{combinations:,} combinations", f"at most {MAX_COMBINATIONS:,} of them")
    return SearchSpace(
        name=parsed.name,
        description=parsed.description,
        parameters=_parents_first(parameters, fixed, file),
        fixed=tuple(sorted(fixed.items())),
    )


class _ParameterEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    choices: list[_Scalar] = Field(min_length=1)
    why: StrictStr = ""
    when: dict[StrictStr, list[_Scalar] | _Scalar] = {}


class _SpaceFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr = Field(min_length=1)
    description: StrictStr = ""
    parameters: dict[StrictStr, _ParameterEntry] = Field(min_length=1)
    fixed: dict[StrictStr, _Scalar] = {}


def _as_parameter(name: str, entry: _ParameterEntry, file: str) -> Parameter:
    for index, choice in enumerate(entry.choices):
        if any(_same(choice, earlier) for earlier in entry.choices[:index]):
            raise InvalidFile(file, f"parameters.{name}.choices[{index}]", choice, "each choice once")
    when = tuple(
        (other, tuple(values) if isinstance(values, list) else (values,)) for other, values in entry.when.items()
    )
    return Parameter(name=name, choices=tuple(entry.choices), why=entry.why, when=when)


def _check_name(name: str, section: str, file: str) -> None:
    if name in _MANAGED:
        raise InvalidFile(file, f"{section}.{name}", name, "a flag that autotune does not set itself for each launch")
    if name in _SECRET:
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


def _parents_first(parameters: list[Parameter], fixed: Mapping[str, Value], file: str) -> tuple[Parameter, ...]:
    """The parameters in the file's order, but each after those its condition names."""
    by_name = {parameter.name: parameter for parameter in parameters}
    ordered: dict[str, Parameter] = {}

    def place(parameter: Parameter, waiting: tuple[str, ...]) -> None:
        if parameter.name in ordered:
            return
        for other, values in parameter.when:
            key = f"parameters.{parameter.name}.when.{other}"
            if other in waiting or other == parameter.name:
                raise InvalidFile(file, key, other, "a parameter whose own condition does not lead back here")
            if other not in by_name and other not in fixed:
                allowed = ", ".join(name for name in (*by_name, *fixed) if name != parameter.name)
                raise InvalidFile(file, key, other, f"another parameter of this file: {allowed}")
            known = by_name[other].choices if other in by_name else (fixed[other],)
            for value in values:
                if not any(_same(value, choice) for choice in known):
                    raise InvalidFile(file, key, value, f"values of {other}: {', '.join(map(_spell, known))}")
            if other in by_name:
                place(by_name[other], (*waiting, parameter.name))
        ordered[parameter.name] = parameter

    for parameter in parameters:
        place(parameter, ())
    return tuple(ordered.values())


def _as_invalid_file(error: ValidationError, content: object, file: str) -> InvalidFile:
    first = error.errors(include_url=False)[0]
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
    return InvalidFile(file, key, value, _allowed(first["type"], key))


def _allowed(kind: str, key: str) -> str:
    if kind == "extra_forbidden":
        inside = key.startswith("parameters.")
        return "keys choices, why, when" if inside else "keys name, description, parameters, fixed"
    if kind == "too_short":
        return "at least one entry"
    if kind == "missing":
        return f"a value for {key}, which is required"
    if "choices" in key or "when" in key or "fixed" in key:
        return "a list of numbers, texts, true, false or null" if key.endswith("choices") else "plain values"
    return "a text" if key.endswith(("name", "description", "why")) else "a mapping"


def _same(one: Value, other: Value) -> bool:
    """Equal as flag values: 1 and 1.0 are the same, 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _spell(value: Value) -> str:
    return json.dumps(value)


def _shipped() -> dict[str, Path]:
    """Spaces by name: beside the package in a source tree, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_shipped" / "search_spaces", package.parent / "search_spaces"):
        found = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        if found:
            return found
    return {}
