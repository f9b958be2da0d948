"""Steering studies: `status`, `logs`, `stop`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir, StudyName
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.records import Trial
    from autotune.report.studies import StudyRow
    from autotune.store.folder import HeldFor, StudyFolder
    from autotune.store.places import Places
    from autotune.store.repository import Store
    from autotune.store.study_record import AttemptRecord

FOLLOW_POLL_S = 0.25
STOP_POLL_S = 0.1


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("logs")(logs)
    app.command("stop")(stop)


def status(studies_dir: StudiesDir = DEFAULT_STUDIES, storage: Storage = None, as_json: Json = False) -> None:
    """Show the studies that run now: trial, phase, elapsed."""
    print_studies(studies_dir, storage, live=True, as_json=as_json)


def print_studies(studies_dir: Path, storage: str | None, *, live: bool, as_json: bool) -> None:
    """The table of studies; `live` keeps those that run now."""
    from autotune.cli.console import output_console
    from autotune.report.grid import print_to
    from autotune.report.studies import studies_table
    from autotune.review.listing import study_row
    from autotune.store.listing import listed

    places = places_of(studies_dir, storage)
    if places.storage is None and not Path(places.database).exists():
        rows: list[StudyRow] = []
    else:
        found = listed(places.database, busy_timeout_s=places.busy_timeout_s)
        now = datetime.now(UTC)
        lines = (study_row(study, study.tally, places, partial(_attempts, places), now=now) for study in found)
        rows = [row for row in lines if row.pid or not live]
    if as_json:
        typer.echo(json.dumps({"schema": 1, "studies": [asdict(row) for row in rows]}, indent=2))
    else:
        print_to(output_console(), studies_table(rows, live=live))


def _attempts(places: Places, study: str, trial: int) -> Sequence[AttemptRecord]:
    """Asked of a study that runs: a list of others needs no more of the store."""
    from autotune.cli.stores import opened

    with opened(places, study) as store:
        return store.attempts(study, trial)


def logs(
    study: StudyName,
    trial: Annotated[int | None, typer.Argument(help="Number of the trial; default: the latest.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is written, from trial to trial, until it ends.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
) -> None:
    """Print the server's log of a trial, secrets taken out."""
    from autotune.cli.stores import opened

    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        trials = store.trials(study)
        if trial is not None:
            store.trial(study, trial)  # or it is said which there are
        number = trial if trial is not None else trials[-1].number if trials else 0
        folder = places.folder(study)
        shown = 0
        for line in _lines(store, folder, study, number, follow=follow, fixed=trial is not None):
            sys.stdout.write(line)
            shown += 1
    sys.stdout.flush()
    if not shown:
        typer.echo(f"no server log for trial {number} of study {study} (simulated trials have none)", err=True)


def _lines(store: Store, folder: StudyFolder, study: str, number: int, *, follow: bool, fixed: bool) -> Iterator[str]:
    """Lines of a log, redacted; following moves on to the next trial unless one was named."""
    from autotune.engine.redaction import redact

    while True:
        path = _log_of(store, study, number)
        if path is not None:
            with path.open(encoding="utf-8", errors="replace") as stream:
                while True:
                    line = stream.readline()
                    if line:
                        yield redact(line)
                        continue
                    sys.stdout.flush()
                    if not follow or not _still_open(store, folder, study, number):
                        break
                    time.sleep(FOLLOW_POLL_S)
        if not follow or folder.holder() is None or fixed:
            return
        trials = store.trials(study)
        newest = trials[-1].number if trials else number
        if newest == number:
            time.sleep(FOLLOW_POLL_S)
        number = min(number + 1, newest)


def _log_of(store: Store, study: str, number: int) -> Path | None:
    from autotune.review.evidence import log_path

    trial = _trial(store, study, number)
    path = log_path(trial) if trial is not None else None
    return Path(path) if path is not None else None


def _trial(store: Store, study: str, number: int) -> Trial | None:
    """None also for a study that has just been made and has no trial yet."""
    return next((trial for trial in store.trials(study) if trial.number == number), None)


def _still_open(store: Store, folder: StudyFolder, study: str, number: int) -> bool:
    found = _trial(store, study, number)
    return found is not None and found.result is None and folder.holder() is not None


def stop(
    study: StudyName,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = 900.0,
    now: Annotated[bool, typer.Option("--now", help="Do not let it finish what it measures.")] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
) -> None:
    """End a running study as Ctrl-C would: what it measures is finished, its server stopped, everything stored.

    The same `autotune study` command goes on with it.
    """
    from autotune.cli.stores import opened
    from autotune.errors import StudyBusy
    from autotune.review.stopping import tell_to_stop

    places = places_of(studies_dir, storage)
    with opened(places, study) as store:
        store.study(study)  # or it is said which there are
    folder = places.folder(study)
    holder = folder.holder()
    if holder is None and folder.is_held():
        raise StudyBusy(
            f"study {study!r} is held by a process that {folder.path / '.lock'} does not name, or not to this user",
            hint="Look again in a moment; if it stays so, end the process as the user who started it.",
        )
    if holder is None:
        typer.echo(f"study {study} is not running")
        return
    tell_to_stop(study, holder, now=now)
    deadline = time.monotonic() + wait_s
    while folder.is_held():
        if time.monotonic() > deadline:
            raise StudyBusy(
                f"study {study!r} was told to stop, process {holder.pid} is still finishing what it measures or ending "
                "its server",
                hint="Wait and look with `autotune status`, or end it at once with `autotune stop --now`.",
            )
        time.sleep(STOP_POLL_S)
    typer.echo(stopped_text(study, holder.held_for))


def stopped_text(study: str, held_for: HeldFor) -> str:
    """What was stopped, and the command that goes on with it."""
    from autotune.store.folder import HeldFor

    if held_for is HeldFor.VERIFICATION:
        return f"the verification of study {study} is stopped; the same `autotune promote` command begins it anew"
    return f"study {study} is stopped; the same `autotune study` command goes on with it"
