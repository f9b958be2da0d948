"""What requests to change something may say: the bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from autotune.promote import Target
from autotune.recipe import StudyFile
from autotune.records import PickRule
from autotune.verification import LAUNCH_LIMIT
from autotune.verification_launch import LAUNCHES, MOST_LAUNCHES
from autotune.web.policy import REFUSED_FIELDS

Line = Annotated[str, Field(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Wanted(BaseModel):
    """A body: only keys that are named here, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


_FIELDS: dict[str, Any] = {
    name: (field.annotation, field) for name, field in StudyFile.model_fields.items() if name not in REFUSED_FIELDS
}
_FIELDS["model"] = (
    Annotated[str, Field(min_length=1, max_length=300, description="A name such as meta-llama/Llama-3.1-8B-Instruct.")],
    ...,
)
NewStudy: type[BaseModel] = create_model(
    "NewStudy",
    __base__=Wanted,
    __doc__="The keys of a study file (docs/settings.md), without those that name a program or an address.",
    **_FIELDS,
)


class StartStudy(Wanted):
    """How a study goes on."""

    trials: Annotated[int, Field(ge=1, le=100_000)] | Annotated[str, Field(pattern=r"^\+[1-9][0-9]{0,4}$")] | None = (
        Field(default=None, description="Trials to reach, or +N: so many more; default: as many as it was to have.")
    )


class StopStudy(Wanted):
    """How a study ends."""

    now: bool = Field(default=False, description="Do not let it finish what it measures.")


class NewPromotion(Wanted):
    """A trial that is verified, and rendered for production if it passes."""

    study: Name
    targets: Annotated[list[Annotated[Target, Field(strict=False)]], Field(min_length=1, max_length=len(Target))]
    trial: Annotated[int, Field(ge=0, le=10_000_000)] | None = Field(default=None, description="Instead of the pick.")
    pick: Annotated[PickRule, Field(strict=False)] | None = None
    name: Name | None = Field(default=None, description="Of the deployment; default: the study's.")
    slo: Line | None = None
    reason: Line | None = None
    author: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    allow_simulated: bool = Field(default=False, description="Render figures that no server produced; recorded loudly.")
    skip_gate: bool = Field(default=False, description="Render without the verification; recorded loudly.")
    against: Literal["current", "baseline"] | None = Field(
        default=None, description="What it is held against; default: what runs today, else the baseline."
    )
    gate_launches: Annotated[int, Field(ge=2, le=LAUNCH_LIMIT, multiple_of=2)] = LAUNCHES
    gate_most_launches: Annotated[int, Field(ge=2, le=LAUNCH_LIMIT, multiple_of=2)] | None = Field(
        default=None, description=f"It goes on to so many where more may decide it; default: {MOST_LAUNCHES}."
    )
    gate_windows: Annotated[int, Field(ge=1, le=200)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 8000


class Rollback(Wanted):
    """Where a deployment goes back to."""

    to: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Version; default: the last one before what runs today."
    )
    reason: Line | None = None
    author: Annotated[str, Field(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
