"""One side of a comparison, by the name that people give it."""

from __future__ import annotations

from autotune.errors import InvalidOption, NothingMeasured
from autotune.report.compare import COMPARED_IDENTITY, Side
from autotune.review.views import view_of
from autotune.store.places import Places
from autotune.store.repository import Store


def side_of(store: Store, places: Places, name: str) -> Side:
    """`STUDY` (its pick), `STUDY:TRIAL`, `STUDY:pick` or `STUDY:baseline`.

    Raises:
        InvalidOption: none of these.
        NothingMeasured: what it names has no figures.
    """
    study, _, which = name.partition(":")
    stored = store.study(study)
    view = view_of(store, stored, places)
    if which in ("", "pick"):
        if view.pick is None:
            raise NothingMeasured(
                f"study {study!r} has no pick", hint=f"Name a trial: {study}:0 is the baseline; see `autotune pareto`."
            )
        number = view.pick.number
    elif which == "baseline":
        number = 0
    elif which.isascii() and which.isdecimal():
        number = int(which)
    else:
        raise InvalidOption("A B", name, "STUDY, STUDY:TRIAL with a trial's number, STUDY:pick or STUDY:baseline")
    trial = store.trial(study, number)
    identity = tuple((key, stored.identity[key]) for key in COMPARED_IDENTITY if key in stored.identity)
    side = Side(view=view, trial=trial, identity=identity)
    if not side.launches:
        raise NothingMeasured(
            f"trial {number} of study {study!r} was not measured", hint=f"`autotune show {study} {number}` says why."
        )
    return side
