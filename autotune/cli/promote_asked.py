"""What `promote` is asked: its options, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autotune.cli.gate import GateAsked
    from autotune.promote import Target
    from autotune.records import PickRule
    from autotune.review.promoting import Rendering

TargetNames = Annotated[
    str,
    typer.Option("--target", help="Comma-separated: vllm-config, docker, compose, kubernetes, helm, systemd, shell."),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the rendered files; default: the one of --git.")]
TrialNumber = Annotated[int | None, typer.Option(min=0, help="Instead of the pick.")]
Pick = Annotated[str | None, typer.Option(help="Rule of the pick: knee, throughput, latency.")]
DeploymentName = Annotated[str | None, typer.Option(help="Name of the deployment; default: the study's.")]
SkipGate = Annotated[
    bool,
    typer.Option("--skip-gate", help="Render without the verification; said loudly in the history and in the files."),
]
Against = Annotated[
    str | None,
    typer.Option(
        help="What the gate holds it against: current, baseline, or a YAML file of flags; default: what runs today "
        "under this name, else the baseline."
    ),
]
GateLaunches = Annotated[
    int, typer.Option(help="Launches of the gate before its first verdict, an even number.", min=2, max=100)
]
GateMostLaunches = Annotated[
    int | None,
    typer.Option(
        help="The gate goes on to so many where more launches may decide it; an even number, default 40.",
        min=2,
        max=100,
    ),
]
GateWindows = Annotated[
    int | None,
    typer.Option(
        help="Windows of arrivals in each launch of the gate; default: 6 to 8, as noisy as the first launch is.",
        min=1,
        max=200,
    ),
]
GateCommand = Annotated[str | None, typer.Option(help="Server command of the gate's launches; default: the study's.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the history and the rendered files.")]
Author = Annotated[str | None, typer.Option(help="Who promotes; default: AUTOTUNE_AUTHOR, else the login name.")]
GitFolder = Annotated[
    Path | None,
    typer.Option("--git", help="Folder of a git repository that gets the files as a commit; made if need be."),
]
Port = Annotated[int, typer.Option(help="Port that the server listens on.")]
Bind = Annotated[str, typer.Option(help="Address that the port is published on.")]
Image = Annotated[str | None, typer.Option(help="Container image instead of the measured version's official one.")]
VllmVersion = Annotated[str | None, typer.Option(help="Where the measured server did not tell its version.")]
Gpus = Annotated[str | None, typer.Option(help="Physical GPUs to pin, e.g. 0,1.")]
AllowSimulated = Annotated[
    bool, typer.Option("--allow-simulated", help="Render figures that no server produced; recorded loudly.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that were not rendered here.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be written, and where."""

    targets: tuple[Target, ...]
    out: Path
    git: Path | None
    overwrite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteAsked:
    """One promotion as it was asked for.

    Attributes:
        trial: None for the pick.
        rule: of the pick; None as the study has it.
    """

    study: str
    trial: int | None
    rule: PickRule | None
    wanted: Wanted
    rendering: Rendering
    gate: GateAsked


def wanted_of(target: str, out: Path | None, git: Path | None, *, overwrite: bool) -> Wanted:
    """What to write.

    Raises:
        InvalidOption: no such target, or no folder.
    """
    from autotune.cli.options import check_out
    from autotune.errors import InvalidOption

    check_out(out, "a folder")
    folder = out or git
    if folder is None:
        raise InvalidOption("--out", None, "a folder for the rendered files, or --git FOLDER")
    return Wanted(targets=_targets(target), out=folder, git=git, overwrite=overwrite)


def rule_of(text: str | None, trial: int | None) -> PickRule | None:
    """The rule of the pick.

    Raises:
        InvalidOption: it is none, or a trial was named.
    """
    from autotune.errors import InvalidOption
    from autotune.records import PickRule

    if text is None:
        return None
    if trial is not None:
        raise InvalidOption("--pick", text, "either --pick or --trial")
    try:
        return PickRule(text)
    except ValueError:
        raise InvalidOption("--pick", text, ", ".join(PickRule)) from None


def _targets(text: str) -> tuple[Target, ...]:
    from autotune.errors import InvalidOption
    from autotune.promote import Target

    found = []
    for part in text.split(","):
        try:
            found.append(Target(part.strip()))
        except ValueError:
            raise InvalidOption("--target", part, ", ".join(Target)) from None
    return tuple(found)
