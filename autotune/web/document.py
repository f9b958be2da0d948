"""What all documents share. They are made by the renderers in `report/`; these models say what is in them, for whoever
reads the OpenAPI document, and tests hold every answer against them. Nothing is built from them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Flags = dict[str, bool | int | float | str | None]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)] | None
"""Low and high end at 95 %."""
Instant = Annotated[str, Field(description="ISO 8601 with its offset from UTC.")]


class Document(BaseModel):
    """Keys that are there; a later version may add some, and takes none away without another `schema`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Fault(Document):
    """One key of a request that cannot be used."""

    key: str
    value: str | None
    allowed: str


class Problem(Document):
    """RFC 9457 problem details, in the words of the command line."""

    type: str = Field(description="urn:autotune:problem: and the kind.")
    title: str
    status: int
    detail: str = Field(description="One line: what happened, the value seen, what is allowed.")
    hint: str | None = Field(description="What to do next.")
    exit_code: int | None = Field(description="What the command line would end with (docs/exit-codes.md).")
    errors: list[Fault]


class Anything(BaseModel):
    """An object."""

    model_config = ConfigDict(extra="allow")
