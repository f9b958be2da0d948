"""`autotune promote`: render a pick for production, with its provenance; keep a history."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune import __version__
from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from autotune.promote import Promotion, StudyFacts, Target
    from autotune.records import Config
    from autotune.report.view import StudyView
    from autotune.store.study_record import StudyRecord


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("promote")(promote)


def promote(
    study: StudyName,
    target: Annotated[
        str, typer.Option(help="Comma-separated: vllm-config, docker, compose, kubernetes, helm, systemd, shell.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the rendered files.")],
    trial: Annotated[int | None, typer.Option(min=0, help="Instead of the pick.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment; default: the study's.")] = None,
    slo: SloText = None,
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that were not rendered here.")] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Render the pick (or a trial) for production and record it in the history."""
    from autotune.cli.views import opened, view_of
    from autotune.promote import Promotion, deployment_from, render, serve_argv, write_files
    from autotune.recipe import parse_gpus
    from autotune.store.study_record import PromotionRecord

    targets = _targets(target)
    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        stored = store.study(study)
        view = view_of(store, stored, places, slo=slo)
        chosen = store.trial(study, _number(view, trial))
        deployment = deployment_from(
            _facts(stored, chosen.config),
            chosen,
            name=name or study,
            created_at=datetime.now(UTC),
            autotune_version=__version__,
            figures=view.joined(chosen),
            allow_simulated=allow_simulated,
            port=port,
            bind=bind,
            image=image,
            vllm_version=vllm_version,
            gpu_indices=parse_gpus(gpus) if gpus else (),
        )
        files = render(deployment, targets)
        paths = write_files(files, out, deployment=deployment.name, overwrite=overwrite)
        promotion = Promotion.of(
            deployment, files, targets=targets, argv=serve_argv(deployment), simulated_allowed=allow_simulated
        )
        store.add_promotion(
            PromotionRecord(
                study=study,
                trial=chosen.number,
                created_at=promotion.created_at,
                targets=tuple(targets),
                directory=str(out),
                simulated=promotion.simulated,
                details=promotion.as_document(),
            )
        )
    _report(promotion, paths, as_json=as_json)


def _report(promotion: Promotion, paths: tuple[Path, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({**promotion.as_document(), "written": [str(path) for path in paths]}, indent=2))
        return
    if promotion.simulated:
        typer.echo("SIMULATED: these figures come from a model of vLLM; do not run this in production unmeasured.")
    typer.echo(
        f"promoted trial {promotion.trial} of study {promotion.study} as {promotion.name} (gate: {promotion.gate})"
    )
    for path in paths:
        typer.echo(f"  {path}")


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


def _number(view: StudyView, given: int | None) -> int:
    from autotune.errors import NotPromotable

    if given is not None:
        return given
    if view.pick is None:
        limit = f" that meets {view.slo}" if view.slo else ""
        raise NotPromotable(
            f"study {view.name!r} has no trial to recommend{limit}", hint=f"See `autotune pareto {view.name}`."
        )
    return view.pick.number


def _facts(study: StudyRecord, config: Config) -> StudyFacts:
    """The part of a study that a deployment of `config` is made of.

    Local model folders become absolute: another place reads it.
    """
    from autotune.cli.views import node_of
    from autotune.engine.flags import MODEL
    from autotune.promote import StudyFacts

    checkpoint = config.get(MODEL)
    spec = study.spec
    return StudyFacts(
        name=study.name,
        model=_absolute(study.identity["model"]),
        checkpoints=((checkpoint, _absolute(checkpoint)),) if isinstance(checkpoint, str) else (),
        workload=str(spec.get("workload", "")),
        node=node_of(study),
        extra_args=tuple(str(word) for word in spec.get("extra_args", ())),
        command=tuple(str(word) for word in spec.get("command", ("vllm", "serve"))),
    )


def _absolute(model: str) -> str:
    """The whole path of a model that is a folder here; any other name as it is."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
