"""`autotune promote`: verify a pick, render it for production with its provenance, and keep it in the history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import author_of, places_of

if TYPE_CHECKING:
    from autotune.promote import Deployment, Entry, Target
    from autotune.records import GateRecord, PickRule, Trial
    from autotune.store.repository import Store

Author = Annotated[str | None, typer.Option(help="Who promotes; default: AUTOTUNE_AUTHOR, else the login name.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the history and the rendered files.")]
GitFolder = Annotated[
    Path | None,
    typer.Option("--git", help="Folder of a git repository that gets the files as a commit; made if need be."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that were not rendered here.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("promote")(promote)


def promote(
    study: StudyName,
    target: Annotated[
        str,
        typer.Option(help="Comma-separated: vllm-config, docker, compose, kubernetes, helm, systemd, shell."),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the rendered files; default: the one of --git.")] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Instead of the pick.")] = None,
    pick: Annotated[str | None, typer.Option(help="Rule of the pick: knee, throughput, latency.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment; default: the study's.")] = None,
    slo: SloText = None,
    skip_gate: Annotated[
        bool,
        typer.Option(
            "--skip-gate", help="Render without the verification; said loudly in the history and in the files."
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            help="What the gate holds it against: current, baseline, or a YAML file of flags; default: what runs today "
            "under this name, else the baseline."
        ),
    ] = None,
    gate_launches: Annotated[
        int, typer.Option(help="Launches of the gate before its first verdict, an even number.", min=2, max=100)
    ] = 4,
    gate_most_launches: Annotated[
        int | None,
        typer.Option(
            help="The gate goes on to so many where more launches may decide it; an even number, default 24.",
            min=2,
            max=100,
        ),
    ] = None,
    gate_windows: Annotated[
        int | None,
        typer.Option(
            help="Windows of arrivals in each launch of the gate; default: 6 to 16, as noisy as the first launch is.",
            min=1,
            max=200,
        ),
    ] = None,
    vllm_command: Annotated[
        str | None, typer.Option(help="Server command of the gate's launches; default: the study's.")
    ] = None,
    reason: Reason = None,
    author: Author = None,
    git: GitFolder = None,
    port: Annotated[int, typer.Option(help="Port that the server listens on.")] = 8000,
    bind: Annotated[str, typer.Option(help="Address that the port is published on.")] = "127.0.0.1",
    image: Annotated[
        str | None, typer.Option(help="Container image instead of the measured version's official one.")
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Where the measured server did not tell its version.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Physical GPUs to pin, e.g. 0,1.")] = None,
    allow_simulated: Annotated[
        bool, typer.Option("--allow-simulated", help="Render figures that no server produced; recorded loudly.")
    ] = False,
    overwrite: Overwrite = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Verify the pick (or a trial), render it for production and record it in the history."""
    from autotune.cli.gate import GateAsked, overtaken, verified
    from autotune.cli.stores import opened
    from autotune.promote import render
    from autotune.promote.git_folder import check_folder
    from autotune.promote.writing import check_files
    from autotune.recipe import parse_gpus
    from autotune.review.promoting import Rendering, chosen_number, current_entry, deployment_of
    from autotune.review.views import view_of

    wanted = Wanted(
        targets=_targets(target),
        out=_folder(out, git),
        git=git,
        overwrite=overwrite,
        simulated_allowed=allow_simulated,
    )
    asked_for = Rendering(
        name=name or study,
        author=author_of(author),
        reason=reason,
        allow_simulated=allow_simulated,
        port=port,
        bind=bind,
        image=image,
        vllm_version=vllm_version,
        gpu_indices=parse_gpus(gpus) if gpus else (),
    )
    rule = _rule(pick, trial)
    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        stored = store.study(study)
        view = view_of(store, stored, places, slo=slo, rule=rule)
        chosen = store.trial(study, chosen_number(view, trial))
        now = datetime.now(UTC)

        def deployed(gate: GateRecord | None) -> Deployment:
            named = trial is not None
            return deployment_of(asked_for, stored, view, chosen, named_trial=named, created_at=now, gate=gate)

        # Everything that can be refused is refused before hours of verification.
        check_files(render(deployed(None), wanted.targets), wanted.out, deployment=name or study, overwrite=overwrite)
        if git is not None:
            check_folder(git)
        current = current_entry(store, name or study)
        asked = GateAsked(
            skip=skip_gate,
            against=against,
            launches=gate_launches,
            most_launches=gate_most_launches,
            windows=gate_windows,
            slo=slo,
            vllm_command=vllm_command,
        )
        gate = verified(asked, store, places, view, chosen, current)
        gate = overtaken(gate, current, current_entry(store, name or study))
        entry, paths = _record(store, chosen, deployed(gate), wanted, slo=str(view.slo) if view.slo else None)
    _report(entry, paths, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be written, and where."""

    targets: tuple[Target, ...]
    out: Path
    git: Path | None
    overwrite: bool
    simulated_allowed: bool


def _record(
    store: Store, trial: Trial, deployment: Deployment, wanted: Wanted, *, slo: str | None
) -> tuple[Entry, tuple[Path, ...]]:
    """Write the files, then the promotion: what is in the history was rendered."""
    from autotune.promote import Promotion, render, serve_argv, write_files
    from autotune.review.promoting import offered_by, stored_promotion

    files = render(deployment, wanted.targets)
    promotion = Promotion.of(
        deployment,
        files,
        targets=wanted.targets,
        argv=serve_argv(deployment),
        simulated_allowed=wanted.simulated_allowed,
        slo=slo,
        offered=offered_by(trial),
    )
    paths = write_files(files, wanted.out, deployment=deployment.name, overwrite=wanted.overwrite)
    entry = stored_promotion(store, promotion, str(wanted.out.absolute()))
    if wanted.git is not None:
        commit(store, entry, wanted.git, overwrite=wanted.overwrite)
    return entry, paths


def commit(store: Store, entry: Entry, folder: Path, *, overwrite: bool) -> tuple[Entry, ...]:
    """The promotions of a name that `folder` lacks, up to this one, as commits."""
    import os

    from autotune.promote.git_folder import commit_promotions
    from autotune.review.history import history_of

    own = [one for one in history_of(store) if one.promotion.name == entry.promotion.name]
    recorded = [one for one in own[: entry.version] if all(file.text is not None for file in one.promotion.files)]
    return commit_promotions(recorded, folder, environ=os.environ, overwrite=overwrite)


def _report(entry: Entry, paths: tuple[Path, ...], *, as_json: bool) -> None:
    from autotune.promote.rendering import gate_summary
    from autotune.records import GateVerdict
    from autotune.report.wording import printable

    promotion = entry.promotion
    if as_json:
        document = {**promotion.as_document(), "version": entry.version, "written": [str(path) for path in paths]}
        typer.echo(json.dumps(document, indent=2))
        return
    if promotion.simulated:
        typer.echo("SIMULATED: these figures come from a model of vLLM; do not run this in production unmeasured.")
    if promotion.gate is None or promotion.gate.verdict is GateVerdict.SKIPPED:
        typer.echo("GATE SKIPPED: nobody verified this config against what runs today.")
    typer.echo(
        f"promoted trial {promotion.trial} of study {promotion.study} as {printable(entry.label)} "
        f"(gate: {printable(gate_summary(promotion.gate))})"
    )
    for path in paths:
        typer.echo(f"  {path}")


def _folder(out: Path | None, git: Path | None) -> Path:
    from autotune.errors import InvalidOption

    folder = out or git
    if folder is None:
        raise InvalidOption("--out", None, "a folder for the rendered files, or --git FOLDER")
    return folder


def _rule(text: str | None, trial: int | None) -> PickRule | None:
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
