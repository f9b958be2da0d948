"""The end of `autotune study`, told to whoever asked to be told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from autotune.budget import Ending
    from autotune.planning import StudyPlan
    from autotune.report.view import StudyView
    from autotune.store.places import Places


@dataclass(slots=True)
class Run:
    """One run of a study; `ended_by` once it has ended by itself."""

    ended_by: Ending | None = None
    began_s: float = field(default_factory=time.monotonic)


@contextmanager
def announced(plan: StudyPlan, places: Places) -> Iterator[Run]:
    """Tell of the end of what is run inside, however it ends, unless it never began."""
    from autotune.budget import Ending
    from autotune.errors import AutotuneError, BadInput, ExitCode, Interrupted, StudyBusy

    run = Run()
    try:
        yield run
    except (BadInput, StudyBusy):
        raise  # this command ran nothing
    except Interrupted as error:
        _tell(plan, places, run, Ending.STOPPED, str(error), error.exit_code)
        raise
    except AutotuneError as error:
        _tell(plan, places, run, Ending.FAILED, str(error), error.exit_code)
        raise
    except Exception as error:
        _tell(plan, places, run, Ending.FAILED, f"internal error ({type(error).__name__})", ExitCode.INTERNAL)
        raise
    _tell(plan, places, run, run.ended_by or Ending.TRIALS, None, ExitCode.OK)


def _tell(plan: StudyPlan, places: Places, run: Run, ended_by: Ending, error: str | None, exit_code: int) -> None:
    recipe = plan.recipe
    if not recipe.notify_command and recipe.notify_url is None:
        return
    from autotune.notify import Notices, notify
    from autotune.report.summary import summary_document

    summary = summary_document(
        recipe.name,
        ended_by=str(ended_by),
        elapsed_s=time.monotonic() - run.began_s,
        error=error,
        exit_code=int(exit_code),
        view=_view(plan, places),
    )
    for text in notify(Notices(command=recipe.notify_command, url=recipe.notify_url), summary):
        typer.echo(f"autotune: {text}; the study is not affected", err=True)


def _view(plan: StudyPlan, places: Places) -> StudyView | None:
    """The study as stored; None where it cannot be read, which is then no reason to tell nothing."""
    from autotune.cli.stores import opened
    from autotune.errors import AutotuneError
    from autotune.review.views import view_of

    try:
        with opened(places) as store:
            return view_of(store, store.study(plan.recipe.name), places, slo=plan.recipe.slo, rule=plan.pick_rule)
    except AutotuneError:
        return None
