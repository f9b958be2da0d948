"""`autotune explain`: what a study has learnt."""

from __future__ import annotations

import json

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import places_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    study: StudyName,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Say why each trial was launched, which parameters mattered, what each gains or costs, and what was never tried.

    Works on any machine: what the study was asked is read from the database, nothing is launched.
    """
    from autotune.cli.console import output_console
    from autotune.cli.stores import opened
    from autotune.planning.explaining import explain_study
    from autotune.report.explained import explanation_document, explanation_text
    from autotune.report.grid import print_to

    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        stored = store.study(study)
        trials, load = store.trials(study), store.get_load_plan(study)
    simulated = stored.simulated or any(trial.result.simulated for trial in trials if trial.result)
    found, doubts = explain_study(stored, trials, load)
    if as_json:
        document = explanation_document(found, study=study, simulated=simulated, doubts=doubts)
        typer.echo(json.dumps(document, indent=2))
    else:
        print_to(output_console(), explanation_text(found, study=study, simulated=simulated, doubts=doubts))
