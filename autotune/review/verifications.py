"""The verifications that were made of a trial; their records lie beside the launches, whatever the verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from autotune.records import GateRecord
from autotune.store.codec import decode
from autotune.store.gate_files import GATE_FOLDER, RECORD_FILE
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
    """Those of one trial, the first one first; empty where nobody verified it."""
    found = []
    for folder in places.folder(study).path.glob("gate-*"):
        name = GATE_FOLDER.fullmatch(folder.name)
        if name is not None and int(name[1]) == trial and folder.is_dir():
            launches = sum(1 for _ in folder.glob("launch-*"))
            found.append(Verification(count=int(name[2]), launches=launches, record=_record(folder / RECORD_FILE)))
    return tuple(sorted(found, key=lambda one: one.count))


def _record(path: Path) -> GateRecord | None:
    try:
        return decode(GateRecord, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):  # a record of another version is one of those
        return None
