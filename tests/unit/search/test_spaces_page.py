"""docs/spaces.md: its examples are read, what it says of them is so, and every key has a heading."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from autotune.cli.schema import SchemaKind, schema_of
from autotune.search.space import MAX_COMBINATIONS, load_space, parse_space, shipped_spaces
from autotune.search.space_file import MAX_PARAMETERS, ParameterEntry, SpaceFile
from autotune.search.space_range import MAX_CHOICES
from autotune.yaml_input import parse_yaml

PAGE = (Path(__file__).parents[3] / "docs" / "spaces.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=[str(index) for index in range(len(EXAMPLES))])
def test_examples_are_read_and_valid(text: str) -> None:
    space = parse_space(text, file="docs/spaces.md")
    assert space.size >= 2
    jsonschema.validate(parse_yaml(text, file="f"), schema_of(SchemaKind.SPACE))
    for listed in re.findall(r"# ([\d., ]+)\n    range", text):
        assert space.parameters[0].choices == tuple(float(number) for number in listed.split(", "))


def test_there_are_examples_of_everything() -> None:
    together = "\n".join(EXAMPLES)
    keys = [*SpaceFile.model_fields, *ParameterEntry.model_fields, "model"]
    assert [key for key in keys if f"{key}:" not in together] == []


def test_every_key_has_a_heading() -> None:
    headings = set(re.findall(r"^### (\S+)$", PAGE, flags=re.MULTILINE))
    assert headings == {*SpaceFile.model_fields, *ParameterEntry.model_fields}


def test_conditions_in_the_text_are_read() -> None:
    others = "  enable-expert-parallel: {choices: [true, false]}\n  tensor-parallel-size: {choices: [1, 2, 4]}\n"
    conditions = re.findall(r"`(when: \{.*?\})`", PAGE)
    assert len(conditions) == 3
    for condition in conditions:
        parse_space(f"name: s\nparameters:\n{others}  a: {{choices: [1], {condition}}}\n", file="f")


def test_every_shipped_space_is_in_the_table() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, flags=re.MULTILINE)) == set(shipped_spaces())
    assert all(load_space(name).description for name in shipped_spaces())


def test_limits_are_those_of_the_program() -> None:
    text = " ".join(PAGE.split())
    assert f"at most {MAX_PARAMETERS} parameters" in text
    assert f"at most {MAX_CHOICES:,} values" in text
    assert f"at most {MAX_COMBINATIONS:,} configs" in text
