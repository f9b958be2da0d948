"""The verifications that were made of a trial; their records lie beside the launches, whatever the verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass

from autotune.records import GateRecord
from autotune.store.codec import decode
from autotune.store.gate_files import gates_of
from autotune.store.places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """One of them.

    Attributes:
        count: 1 for the first of the trial.
        launches: that were begun.
        record: None while it runs, where it was ended before its verdict, and where it cannot be read.
    """

    count: int
    launches: int
    record: GateRecord | None


def verifications_of(places: Places, study: str, trial: int) -> tuple[Verification, ...]:
    """Those of one trial, the first one first; empty where nobody verified it.

    Raises:
        StorageError: a folder cannot be read.
    """
    return tuple(
        Verification(count=one.count, launches=one.launches, record=_record(one.record))
        for one in gates_of(places.root, study, trial)
    )


def _record(text: str | None) -> GateRecord | None:
    try:
        return None if text is None else decode(GateRecord, json.loads(text))
    except ValueError:  # a record of another version is one of those
        return None
