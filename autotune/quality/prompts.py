"""The prompts that the guard asks: a YAML file, shipped or the operator's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.errors import InvalidFile
from autotune.yaml_input import read_yaml

SHIPPED = Path(__file__).parent / "prompts.yaml"
SHIPPED_NAME = "shipped"
OUTPUT_TOKENS = 48
MOST_PROMPTS = 1_000
MOST_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPrompt:
    """One text whose tokens are scored, and which is then gone on with greedily.

    Attributes:
        subject: e.g. `mathematics`; figures are also told by it.
    """

    name: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """All prompts of a guard.

    Attributes:
        name: `shipped`, or the file's name, with the first digits of its content's hash.
        output_tokens: generated for each.
    """

    name: str
    prompts: tuple[QualityPrompt, ...]
    output_tokens: int = OUTPUT_TOKENS


class _PromptFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    subject: Annotated[str, Field(max_length=64)] = ""
    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    description: str | None = None
    output_tokens: Annotated[int, Field(ge=1, le=1024)] = OUTPUT_TOKENS
    prompts: Annotated[list[_PromptFile], Field(min_length=1, max_length=MOST_PROMPTS)]


def load_prompts(path: Path | None = None) -> PromptSet:
    """The prompts of a file; None for the shipped ones.

    Raises:
        InvalidFile: it cannot be read, or a key or value is not accepted.
    """
    file = SHIPPED if path is None else path
    raw = read_yaml(file)
    try:
        parsed = _File.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        allowed = f"keys {', '.join(_File.model_fields)}" if first["type"] == "extra_forbidden" else first["msg"]
        raise InvalidFile(str(file), key, first.get("input"), allowed) from None
    prompts = tuple(
        QualityPrompt(name=f"{place:03d}", subject=one.subject, text=one.text)
        for place, one in enumerate(parsed.prompts, start=1)
    )
    digest = hashlib.sha256(parsed.model_dump_json(exclude={"description"}).encode()).hexdigest()[:8]
    stem = SHIPPED_NAME if path is None else file.name
    return PromptSet(name=f"{stem} ({digest})", prompts=prompts, output_tokens=parsed.output_tokens)
