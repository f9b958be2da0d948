"""JSON Schemas of the YAML files: in step with the models, and every shipped file is valid by them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from autotune.cli.schema import DIALECT, SchemaKind, schema_of, schema_text
from autotune.errors import InvalidFile
from autotune.recipe import read_study_file
from autotune.search.space import parse_space
from autotune.yaml_input import parse_yaml, read_yaml

ROOT = Path(__file__).parents[2]
FOLDERS = {
    SchemaKind.SPACE: ROOT / "search_spaces",
    SchemaKind.STUDY: ROOT / "studies",
    SchemaKind.WORKLOAD: ROOT / "autotune" / "load" / "workloads",
}
SHIPPED = [(kind, path) for kind, folder in FOLDERS.items() for path in sorted(folder.glob("*.yaml"))]
IDS = [f"{kind}-{path.stem}" for kind, path in SHIPPED]


def problems(kind: SchemaKind, document: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("kind", SchemaKind)
def test_the_shipped_schemas_are_in_step(kind: SchemaKind) -> None:
    path = ROOT / "docs" / "schemas" / f"{kind}.json"
    assert path.read_text(encoding="utf-8") == schema_text(kind), (
        f"run: autotune schema {kind} > docs/schemas/{kind}.json"
    )


@pytest.mark.parametrize("kind", SchemaKind)
def test_it_is_a_schema_of_that_draft(kind: SchemaKind) -> None:
    document = json.loads(schema_text(kind))
    assert document["$schema"] == DIALECT
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["title"] == f"autotune {'search space' if kind is SchemaKind.SPACE else kind}"
    assert "_" not in "".join(document.get("$defs", {}))


@pytest.mark.parametrize("kind", SchemaKind)
def test_every_key_is_described(kind: SchemaKind) -> None:
    """A new key of a model needs a description of its own, or a line in cli/schema_texts.py."""
    document = schema_of(kind)
    for name, body in {"": document, **document.get("$defs", {})}.items():
        bare = [key for key, entry in body.get("properties", {}).items() if not entry["description"]]
        assert bare == [], name


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=IDS)
def test_shipped_files_are_valid_and_name_their_schema(kind: SchemaKind, path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (path.parent / first.removeprefix(prefix)).resolve() == ROOT / "docs" / "schemas" / f"{kind}.json"
    assert problems(kind, read_yaml(path)) == []


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=IDS)
def test_a_misspelt_key_is_found_wherever_it_stands(kind: SchemaKind, path: Path) -> None:
    """But not among names that the operator makes up: parameters, conditions, fixed flags."""
    document = read_yaml(path)
    free = {"parameters", "when", "fixed"}
    count = 0
    for key in list(document):
        wrong = {**document, f"{key}s": document[key]}
        del wrong[key]
        assert problems(kind, wrong), key
        count += 1
        inner = document[key]
        if isinstance(inner, dict) and key not in free:
            changed = copy.deepcopy(document)
            changed[key]["misspelt-key"] = 1
            assert problems(kind, changed), key
    for name in document.get("parameters", {}):
        changed = copy.deepcopy(document)
        changed["parameters"][name]["choises"] = changed["parameters"][name].get("choices", [1])
        assert problems(kind, changed), name
    assert count


@pytest.mark.parametrize(
    "text",
    [
        "name: s\nparameters:\n  a: {}\n",
        "name: s\nparameters:\n  a: {choices: []}\n",
        "name: s\nparameters:\n  a: {choices: 5}\n",
        "name: s\nparameters:\n  a: {choices: [[1]]}\n",
        "name: s\nparameters:\n  a: {choices: [1], range: {low: 1, high: 2, step: 1}}\n",
        "name: s\nparameters:\n  a: {range: {low: 1, high: 2}}\n",
        "name: s\nparameters:\n  a: {range: {low: 1, high: 2, step: 1, points: 2}}\n",
        "name: s\nparameters:\n  a: {range: {low: 1, high: 2, log: true}}\n",
        "name: s\nparameters:\n  a: {range: {low: 1, high: 2, log: true, points: 2, step: 1}}\n",
        "name: s\nparameters:\n  a: {range: {low: one, high: 2, step: 1}}\n",
        "name: s\nparameters:\n  --a: {choices: [1]}\n",
        "name: s\nparameters:\n  a: {choices: [1], when_any: {b: 1}}\n  b: {choices: [1]}\n",
        "name: s\nparameters: {}\n",
        "name: 7\nparameters:\n  a: {choices: [1]}\n",
        "parameters:\n  a: {choices: [1]}\n",
        "name: s\nparameters:\n  a: {choices: [1], lossy: 1}\n",
    ],
)
def test_reader_and_schema_refuse_the_same_spaces(text: str) -> None:
    with pytest.raises(InvalidFile):
        parse_space(text, file="f")
    assert problems(SchemaKind.SPACE, parse_yaml(text, file="f"))


@pytest.mark.parametrize(
    "text",
    ["trials: 0\n", "trials: many\n", "load: {speed: 3}\n", "engine: warp\n", "gpus: [-1]\n", "seed: -1\n"],
)
def test_reader_and_schema_refuse_the_same_studies(text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InvalidFile):
        read_study_file(path)
    assert problems(SchemaKind.STUDY, read_yaml(path))
