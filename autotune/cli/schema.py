"""`autotune schema`: JSON Schemas of the YAML files that people write, for their editors."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS = "#/$defs/"


class SchemaKind(StrEnum):
    """Which file a schema is of."""

    SPACE = "space"
    WORKLOAD = "workload"
    STUDY = "study"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


def schema(kind: Annotated[SchemaKind, typer.Argument(help="The kind of file.")]) -> None:
    """Print the JSON Schema of search spaces, workloads or study files, which editors check and complete YAML with."""
    typer.echo(schema_text(kind), nl=False)


def schema_text(kind: SchemaKind) -> str:
    """The schema as docs/schemas holds it."""
    return json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"


def schema_of(kind: SchemaKind) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the model that reads such files.

    What models check beyond single values (that a range rises, that a condition can hold) no schema says; reading the
    file does.
    """
    from pydantic.json_schema import models_json_schema

    from autotune.cli.schema_texts import DESCRIPTIONS, TITLES

    model = _model(kind)
    keys, document = models_json_schema([(model, "validation")], ref_template=f"{_DEFINITIONS}{{model}}")
    root = keys[(model, "validation")]["$ref"].removeprefix(_DEFINITIONS)
    bodies = {name: _plain(_described(body, DESCRIPTIONS.get(name, {}))) for name, body in document["$defs"].items()}
    top = bodies.pop(root)
    title, description = TITLES[str(kind)]
    whole = {"$schema": DIALECT, "title": title, "description": description, **top}
    return {**whole, "$defs": {_public(name): body for name, body in bodies.items()}} if bodies else whole


def _model(kind: SchemaKind) -> type[BaseModel]:
    match kind:
        case SchemaKind.SPACE:
            from autotune.search.space_file import SpaceFile

            return SpaceFile
        case SchemaKind.WORKLOAD:
            from autotune.load.workload_yaml import _WorkloadYaml

            return _WorkloadYaml
        case SchemaKind.STUDY:
            from autotune.recipe import StudyFile

            return StudyFile
        case _:
            assert_never(kind)


def _described(body: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """A model's schema with a description for each key, and without the titles that pydantic makes up."""
    found = {key: value for key, value in body.items() if key not in ("title", "description")}
    if "properties" in body:
        found["properties"] = {
            name: {"description": entry.get("description") or texts.get(name, ""), **_without(entry, "title")}
            for name, entry in body["properties"].items()
        }
    return found


def _plain(node: Any) -> Any:
    """Shorter words for the same: alternatives of bare types in one list, no empty defaults, no names of classes."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _plain(value) for key, value in node.items()}
    if isinstance(node.get("$ref"), str):
        found["$ref"] = _DEFINITIONS + _public(node["$ref"].removeprefix(_DEFINITIONS))
    if "default" in node and node["default"] in (None, "", [], {}):
        found = _without(found, "default")
    alternatives = node.get("anyOf", [])
    if alternatives and all(set(one) == {"type"} for one in alternatives):
        kinds = [one["type"] for one in alternatives]
        found = _without(found, "anyOf") | {
            "type": [kind for kind in kinds if kind != "integer" or "number" not in kinds]
        }
    return found


def _without(node: dict[str, Any], unwanted: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key != unwanted}


def _public(name: str) -> str:
    """`_LengthsYaml` as `lengths`: how a class of ours is called is no business of whoever reads a schema."""
    return name.strip("_").removesuffix("Yaml").removesuffix("File").removesuffix("Entry").lower()
