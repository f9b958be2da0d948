"""`autotune promote`: verify a pick, render it for production with its provenance, and keep it in the history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import promote_asked as asked_for
from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import author_of, places_of

if TYPE_CHECKING:
    from autotune.cli.gate import GateToRun
    from autotune.cli.promote_asked import PromoteAsked
    from autotune.promote import Deployment, Entry
    from autotune.records import GateRecord, Trial
    from autotune.report.view import StudyView
    from autotune.store.places import Places
    from autotune.store.repository import Store
    from autotune.store.study_record import StudyRecord


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("promote")(promote)


def promote(
    study: StudyName,
    target: asked_for.TargetNames,
    out: asked_for.Out = None,
    trial: asked_for.TrialNumber = None,
    pick: asked_for.Pick = None,
    name: asked_for.DeploymentName = None,
    slo: SloText = None,
    skip_gate: asked_for.SkipGate = False,
    against: asked_for.Against = None,
    gate_launches: asked_for.GateLaunches = 4,
    gate_most_launches: asked_for.GateMostLaunches = None,
    gate_windows: asked_for.GateWindows = None,
    vllm_command: asked_for.GateCommand = None,
    reason: asked_for.Reason = None,
    author: asked_for.Author = None,
    git: asked_for.GitFolder = None,
    port: asked_for.Port = 8000,
    bind: asked_for.Bind = "127.0.0.1",
    image: asked_for.Image = None,
    vllm_version: asked_for.VllmVersion = None,
    gpus: asked_for.Gpus = None,
    allow_simulated: asked_for.AllowSimulated = False,
    overwrite: asked_for.Overwrite = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Verify the pick (or a trial), render it for production and record it in the history."""
    from autotune.cli.gate import GateAsked
    from autotune.recipe import parse_gpus
    from autotune.review.promoting import Rendering

    asked = asked_for.PromoteAsked(
        study=study,
        trial=trial,
        rule=asked_for.rule_of(pick, trial),
        wanted=asked_for.wanted_of(target, out, git, overwrite=overwrite),
        rendering=Rendering(
            name=study if name is None else name,
            author=author_of(author),
            reason=reason,
            allow_simulated=allow_simulated,
            port=port,
            bind=bind,
            image=image,
            vllm_version=vllm_version,
            gpu_indices=parse_gpus(gpus) if gpus else (),
        ),
        gate=GateAsked(
            skip=skip_gate,
            against=against,
            launches=gate_launches,
            most_launches=gate_most_launches,
            windows=gate_windows,
            slo=slo,
            vllm_command=vllm_command,
        ),
    )
    entry, paths = _promoted(asked, places_of(studies_dir, storage))
    _report(entry, paths, as_json=as_json)


def _promoted(asked: PromoteAsked, places: Places) -> tuple[Entry, tuple[Path, ...]]:
    """Verify, write, record. The database is open before the verification and after it, and not for its hours."""
    from autotune.cli.gate import overtaken, placed, verified
    from autotune.cli.stores import opened
    from autotune.review.promoting import current_entry

    with opened(places, asked.study) as store:
        chosen = _chosen(store, asked, places)
    gate = verified(chosen.verification, places)
    with opened(places, asked.study) as store:
        gate = overtaken(gate, chosen.verification.current, current_entry(store, asked.rendering.name))
        return _record(store, chosen, placed(gate, asked.wanted.targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """The trial that is to be promoted, with all that the study says of it."""

    asked: PromoteAsked
    study: StudyRecord
    view: StudyView
    trial: Trial
    at: datetime
    verification: GateToRun

    def deployed(self, gate: GateRecord) -> Deployment:
        """What it is deployed as, with what the gate said of it."""
        return _deployed(self.asked, self.study, self.view, self.trial, self.at, gate)


def _deployed(
    asked: PromoteAsked, study: StudyRecord, view: StudyView, trial: Trial, at: datetime, gate: GateRecord | None
) -> Deployment:
    from autotune.review.promoting import deployment_of

    named = asked.trial is not None
    return deployment_of(asked.rendering, study, view, trial, named_trial=named, created_at=at, gate=gate)


def _chosen(store: Store, asked: PromoteAsked, places: Places) -> _Chosen:
    """What is promoted. Everything that can be refused is refused here, before hours of verification."""
    from autotune.cli.gate import to_run
    from autotune.promote import render
    from autotune.promote.git_folder import check_folder
    from autotune.promote.writing import check_files
    from autotune.review.promoting import check_name_of, chosen_number, current_entry
    from autotune.review.views import view_of

    study, wanted, name = store.study(asked.study), asked.wanted, asked.rendering.name
    check_name_of(store, name)
    view = view_of(store, study, places, slo=asked.gate.slo, rule=asked.rule)
    trial, at = store.trial(asked.study, chosen_number(view, asked.trial)), datetime.now(UTC)
    files = render(_deployed(asked, study, view, trial, at, None), wanted.targets)
    check_files(files, wanted.out, deployment=name, overwrite=wanted.overwrite)
    if wanted.git is not None:
        check_folder(wanted.git)
    verification = to_run(asked.gate, store, places, view, trial, current_entry(store, name))
    return _Chosen(asked=asked, study=study, view=view, trial=trial, at=at, verification=verification)


def _record(store: Store, chosen: _Chosen, gate: GateRecord) -> tuple[Entry, tuple[Path, ...]]:
    """Write the files, then the promotion: what is in the history was rendered."""
    from autotune.promote import Promotion, render, serve_argv, write_files
    from autotune.promote.writing import folder_held
    from autotune.review.promoting import offered_by, stored_promotion

    deployment, wanted = chosen.deployed(gate), chosen.asked.wanted
    files = render(deployment, wanted.targets)
    promotion = Promotion.of(
        deployment,
        files,
        targets=wanted.targets,
        argv=serve_argv(deployment),
        simulated_allowed=chosen.asked.rendering.allow_simulated,
        slo=str(chosen.view.slo) if chosen.view.slo else None,
        offered=offered_by(chosen.trial),
    )
    with folder_held(wanted.out):
        paths = write_files(files, wanted.out, deployment=deployment.name, overwrite=wanted.overwrite)
        entry = stored_promotion(store, promotion, str(wanted.out.absolute()))
    if wanted.git is not None:
        committed(store, entry, wanted.git, overwrite=wanted.overwrite)
    return entry, paths


def committed(store: Store, entry: Entry, folder: Path, *, overwrite: bool) -> None:
    """The commits of what was just recorded.

    Raises:
        InvalidOption, StorageError: there are none; says that the promotion itself stands, and how they are made later.
    """
    from shlex import quote

    from autotune.errors import InvalidOption, StorageError

    try:
        commit(store, entry, folder, overwrite=overwrite)
    except (InvalidOption, StorageError) as error:
        again = f"autotune promotions {quote(entry.promotion.name)} --git {quote(str(folder))}"
        stands = f"{entry.label} is recorded and its files are in {entry.directory}; `{again}` makes its commit."
        error.hint = " ".join(filter(None, (error.hint, stands)))
        raise


def commit(store: Store, entry: Entry, folder: Path, *, overwrite: bool) -> tuple[Entry, ...]:
    """The promotions of a name that `folder` lacks, up to this one, as commits."""
    import os

    from autotune.promote.git_folder import commit_promotions
    from autotune.review.history import history_of

    own = [one for one in history_of(store) if one.promotion.name == entry.promotion.name]
    recorded = [one for one in own[: entry.version] if all(file.text is not None for file in one.promotion.files)]
    return commit_promotions(recorded, folder, environ=os.environ, overwrite=overwrite)


def _report(entry: Entry, paths: tuple[Path, ...], *, as_json: bool) -> None:
    from autotune.promote.rendering import NOBODY, gate_summary, unverified_mark
    from autotune.report.wording import printable

    promotion = entry.promotion
    if as_json:
        document = {**promotion.as_document(), "version": entry.version, "written": [str(path) for path in paths]}
        typer.echo(json.dumps(document, indent=2))
        return
    if promotion.simulated:
        typer.echo("SIMULATED: these figures come from a model of vLLM; do not run this in production unmeasured.")
    if unverified := unverified_mark(promotion.gate):
        typer.echo(f"{unverified}: {NOBODY}.")
    typer.echo(
        f"promoted trial {promotion.trial} of study {promotion.study} as {printable(entry.label)} "
        f"(gate: {printable(gate_summary(promotion.gate))})"
    )
    for path in paths:
        typer.echo(f"  {path}")
