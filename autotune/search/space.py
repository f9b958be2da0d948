"""Search spaces: the parameters of `vllm serve`, their choices and conditions, read from `search_spaces/*.yaml`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from autotune.engine.flags import MODEL
from autotune.errors import InvalidFile, UnknownName
from autotune.records import Config, Value
from autotune.search.parameter import Parameter, same_value
from autotune.search.space_file import space_content
from autotune.yaml_input import existing_file, parse_yaml, read_yaml

__all__ = ["MAX_COMBINATIONS", "Parameter", "SearchSpace", "load_space", "parse_space", "shipped_spaces"]

MAX_COMBINATIONS = 1_000_000
"""Every config is judged by the rules before a study begins: about 50,000 a second."""


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
        # Behind the last condition nothing comes or goes: a plain product, and most of the work.
        last = max((index for index, one in enumerate(self.parameters) if one.conditional), default=-1) + 1
        tail = self.parameters[last:]
        for head in self._expand(self.parameters[:last]):
            names = [*(name for name, _ in head), *(parameter.name for parameter in tail)]
            order = sorted(range(len(names)), key=names.__getitem__)
            ordered = [names[index] for index in order]
            given = tuple(value for _, value in head)
            for chosen in product(*(parameter.choices for parameter in tail)):
                values = given + chosen
                yield Config(params=tuple(zip(ordered, [values[index] for index in order], strict=True)))

    @property
    def size(self) -> int:
        """How many configs there are, inactive parameters not counted twice. Counts without listing them."""
        found = self._count(most=None)
        assert found is not None  # without a limit it goes on to the end
        return found

    @property
    def conditional(self) -> bool:
        """Whether parameters come and go."""
        return any(parameter.conditional for parameter in self.parameters)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Names or folders of the checkpoints that are searched, without the study's own; empty when none are."""
        searched = self.parameter(MODEL)
        return () if searched is None else tuple(str(one) for one in searched.choices if one is not None)

    @property
    def space_hash(self) -> str:
        """12 hex digits over what decides a result: choices, conditions, fixed values; not the reasons."""
        content = [
            # `when_any` only where it is used: what was stored before it existed keeps its hash.
            [[p.name, p.choices, p.when, *([p.when_any] if p.when_any else [])] for p in self._by_name()],
            sorted(self.fixed),
        ]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, or None."""
        return next((p for p in self.parameters if p.name == name), None)

    def is_active(self, parameter: Parameter, values: Mapping[str, Value]) -> bool:
        """Whether `parameter` has a meaning beside `values` (which must hold its parents' values)."""
        if not parameter.conditional:
            return True
        return parameter.is_active({**dict(self.fixed), **values})

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
            if parameter.name not in values or not any(
                same_value(values[parameter.name], choice) for choice in parameter.choices
            ):
                return False
        return names == set(values)

    def _by_name(self) -> list[Parameter]:
        return sorted(self.parameters, key=lambda parameter: parameter.name)

    def _expand(self, parameters: tuple[Parameter, ...]) -> Iterator[tuple[tuple[str, Value], ...]]:
        """The (name, value) pairs of every config of the first parameters, the last one varying fastest."""
        waiting: list[tuple[int, tuple[tuple[str, Value], ...]]] = [(0, ())]
        while waiting:
            depth, chosen = waiting.pop()
            if depth == len(parameters):
                yield chosen
                continue
            parameter = parameters[depth]
            if self.is_active(parameter, dict(chosen) if parameter.conditional else {}):
                waiting += [(depth + 1, (*chosen, (parameter.name, one))) for one in reversed(parameter.choices)]
            else:
                waiting.append((depth + 1, chosen))

    def _count(self, most: int | None) -> int | None:
        """The size; None when it is known to be above `most` without having been counted.

        Configs that agree in everything that a later condition asks about are counted together, so what is gone
        through grows with the conditions and not with the space.
        """
        # What the conditions from here on ask about; parents come first, so each is dropped behind its last child.
        order = self._children_early()
        needed = [frozenset[str]()] * (len(order) + 1)
        for index in range(len(order) - 1, -1, -1):
            needed[index] = needed[index + 1] | order[index].parents
        # Choices by position: 1 and true are equal as keys.
        choices = {parameter.name: parameter.choices for parameter in self.parameters}
        counts: Counter[tuple[tuple[str, int], ...]] = Counter({(): 1})
        for index, parameter in enumerate(order):
            after: Counter[tuple[tuple[str, int], ...]] = Counter()
            for chosen, configs in counts.items():
                kept = tuple(pair for pair in chosen if pair[0] in needed[index + 1])
                if parameter.conditional and not self.is_active(
                    parameter, {name: choices[name][position] for name, position in chosen}
                ):
                    after[kept] += configs
                elif parameter.name not in needed[index + 1]:
                    after[kept] += configs * len(parameter.choices)
                else:
                    for position in range(len(parameter.choices)):
                        after[(*kept, (parameter.name, position))] += configs
            # Each of these stands for at least one config.
            if most is not None and len(after) > most:
                return None
            counts = after
        return sum(counts.values())

    def _children_early(self) -> list[Parameter]:
        """The parameters, each as soon as its parents are placed: what has to be remembered when counting is least."""
        waiting, placed, order = list(self.parameters), {name for name, _ in self.fixed}, []
        while waiting:
            ready = (one for one in waiting if one.conditional and one.parents <= placed)
            parameter = next(ready, waiting[0])
            waiting.remove(parameter)
            placed.add(parameter.name)
            order.append(parameter)
        return order


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
    said = space_content(content, file)
    space = SearchSpace(name=said.name, description=said.description, parameters=said.parameters, fixed=said.fixed)
    combinations = space._count(most=MAX_COMBINATIONS)
    if combinations is None or combinations > MAX_COMBINATIONS:
        # A number of thousands of digits helps nobody, and Python would refuse to print it.
        many = f"more than {MAX_COMBINATIONS:,}"
        shown = many if combinations is None or combinations > 10**15 else f"{combinations:,}"
        raise InvalidFile(file, "parameters", f"{shown} combinations", f"at most {MAX_COMBINATIONS:,} of them")
    return space


def _shipped() -> dict[str, Path]:
    """Spaces by name: beside the package in a source tree, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_shipped" / "search_spaces", package.parent / "search_spaces"):
        found = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        if found:
            return found
    return {}
