"""What a node taught about the simulation's coefficients, kept for the next study there: one small JSON file each.

A file belongs to a machine, its GPU and a version of vLLM. Models, GPU counts and loads are no part of its name: the
coefficients are physical, and carry over. Where only another version or another machine with the same GPU was measured,
that is where the next calibration begins, with more doubt.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, ConfigDict, PositiveFloat, ValidationError

from autotune.errors import StorageError
from autotune.simulator.calibrate import UNCERTAINTIES, Calibration
from autotune.simulator.coefficients import Coefficients

SCHEMA, VERSION = "autotune-calibration", 1
MAX_FILE_BYTES = 1024 * 1024
OTHER_VERSION_SHARE, OTHER_MACHINE_SHARE = 0.3, 0.6
"""Of the doubt before anything was measured, what a new version of vLLM or another host with the same GPU adds."""

MOST_FACTOR = 100.0
"""A coefficient further than this from the simulation's own was not measured: with zero, and with powers of what is
huge, no step time can be worked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where coefficients hold.

    Attributes:
        machine: its host name, or another name that stays.
        gpu: the driver's name for it, e.g. `NVIDIA H200`.
        vllm: version of vLLM.
    """

    machine: str
    gpu: str
    vllm: str


class Origin(StrEnum):
    """What a stored calibration was measured on, seen from the place that asks."""

    SAME = "same"
    OTHER_VERSION = "other_version"
    OTHER_MACHINE = "other_machine"


_FARTHER: Mapping[Origin, float] = {
    Origin.SAME: 0.0,
    Origin.OTHER_VERSION: OTHER_VERSION_SHARE,
    Origin.OTHER_MACHINE: OTHER_MACHINE_SHARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration:
    """Coefficients of an earlier study.

    Attributes:
        uncertainties: what the next calibration may move, and by how much; includes what was never fitted.
        place: where it was measured; `origin` is that, seen from where it was asked for.
        loads: measured loads behind it.
        saved_at: UTC.
    """

    coefficients: Coefficients
    uncertainties: Mapping[str, float]
    place: Place
    origin: Origin
    loads: int
    saved_at: datetime


_USUAL = Coefficients()


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)

    schema_: str
    version: int
    machine: str
    gpu: str
    vllm: str
    saved_at: AwareDatetime
    loads: int
    coefficients: dict[str, float]
    spreads: dict[str, PositiveFloat]

    def coefficients_on(self, prior: Coefficients) -> Coefficients:
        """`prior` with the stored values; those that this version of the simulation does not know are left out."""
        kinds = {field.name: type(getattr(prior, field.name)) for field in fields(Coefficients)}
        known = {name: kinds[name](value) for name, value in self.coefficients.items() if name in kinds}
        return replace(prior, **known)


def save_calibration(folder: Path, place: Place, found: Calibration, *, saved_at: datetime | None = None) -> Path:
    """Write what was found at `place`, in one step and over what was there; the file.

    Args:
        folder: made when missing; the cache folder.

    Raises:
        StorageError: it cannot be written.
    """
    path = folder / _name(place)
    data = {
        "schema": SCHEMA,
        "version": VERSION,
        **asdict(place),
        "saved_at": (saved_at or datetime.now(UTC)).isoformat(),
        "loads": found.loads,
        "coefficients": asdict(found.coefficients),
        "spreads": dict(found.spreads),
    }
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def load_calibration(folder: Path, place: Place, prior: Coefficients) -> StoredCalibration | None:
    """The nearest stored calibration: of the place itself, else of another version there, else of another machine with
    the same GPU, the newest of several. None where there is none: damaged files and those of a later format count as
    missing, as in any cache.

    Args:
        prior: values of what a file does not name.
    """
    nearest: tuple[Origin, _File] | None = None
    for path in sorted(folder.glob("calibration-*.json")):
        file = _read(path)
        if file is None or file.gpu != place.gpu:
            continue
        origin = _origin(file, place)
        if nearest is None or _rank(origin, file) < _rank(*nearest):
            nearest = origin, file
    if nearest is None:
        return None
    origin, file = nearest
    spreads = {name: file.spreads.get(name, sigma) for name, sigma in UNCERTAINTIES.items()}
    return StoredCalibration(
        coefficients=file.coefficients_on(prior),
        uncertainties={
            name: min(UNCERTAINTIES[name], math.hypot(spread, _FARTHER[origin] * UNCERTAINTIES[name]))
            for name, spread in spreads.items()
        },
        place=Place(machine=file.machine, gpu=file.gpu, vllm=file.vllm),
        origin=origin,
        loads=file.loads,
        saved_at=file.saved_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCalibration:
    """One file.

    Attributes:
        place: None for one that no study reads any more: damaged, of a later format, or a draft.
        modified_at: UTC.
    """

    path: Path
    place: Place | None
    size_bytes: int
    modified_at: datetime


def kept_calibrations(folder: Path) -> tuple[KeptCalibration, ...]:
    """The files in a folder, by name; links are not followed, and what bears other names is not ours."""
    found = []
    for path in sorted(folder.glob("calibration-*")):
        try:
            seen = path.lstat()
        except OSError:
            continue  # gone meanwhile
        if not stat.S_ISREG(seen.st_mode) or path.suffix not in (".json", ".tmp"):
            continue
        file = _read(path) if path.suffix == ".json" else None
        found.append(
            KeptCalibration(
                path=path,
                place=None if file is None else Place(machine=file.machine, gpu=file.gpu, vllm=file.vllm),
                size_bytes=seen.st_size,
                modified_at=datetime.fromtimestamp(seen.st_mtime, UTC),
            )
        )
    return tuple(found)


def forget_calibration(kept: KeptCalibration) -> bool:
    """Delete a file; False where it is gone already.

    Raises:
        StorageError: it cannot be deleted.
    """
    try:
        kept.path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{kept.path}: cannot be deleted: {error.strerror}") from None
    return True


def _name(place: Place) -> str:
    key = hashlib.sha256(json.dumps([place.machine, place.gpu, place.vllm]).encode()).hexdigest()[:16]
    return f"calibration-{key}.json"


def _origin(file: _File, place: Place) -> Origin:
    if file.machine != place.machine:
        return Origin.OTHER_MACHINE
    return Origin.SAME if file.vllm == place.vllm else Origin.OTHER_VERSION


def _rank(origin: Origin, file: _File) -> tuple[float, float]:
    return _FARTHER[origin], -file.saved_at.timestamp()


def _read(path: Path) -> _File | None:
    try:
        with path.open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES + 1)
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("version") != VERSION:
            return None
        file = _File.model_validate_json(json.dumps({**data, "schema_": data["schema"]}))
    except (OSError, ValueError, RecursionError, ValidationError):
        return None
    return file if all(_is_sane(name, value) for name, value in file.coefficients.items()) else None


def _is_sane(name: str, value: float) -> bool:
    """Whether the simulation can be run with it; those of a later simulation are not used, so any will do."""
    usual: float | None = getattr(_USUAL, name, None)
    if usual is None:
        return value >= 0.0
    if usual == 0:
        return 0.0 <= value <= 1.0  # what may be nothing is a probability
    least = usual / MOST_FACTOR
    return (max(least, 1.0) if isinstance(usual, int) else least) <= value <= usual * MOST_FACTOR
