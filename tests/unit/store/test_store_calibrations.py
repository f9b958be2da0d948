"""Stored coefficients: read back, found for near places, damaged files ignored."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.errors import StorageError
from autotune.simulator.calibrate import UNCERTAINTIES, Calibration
from autotune.simulator.coefficients import DATASHEET, Coefficients
from autotune.store.calibrations import Origin, Place, load_calibration, save_calibration

HERE = Place(machine="node-1", gpu="NVIDIA H200", vllm="0.25.1")
FOUND = Calibration(
    coefficients=replace(DATASHEET, compute_share=0.55, engine_cpu_s=2e-3, api_turns=3),
    spreads={"compute_share": 0.02, "engine_cpu_s": 0.3},
    loads=7,
    misfit_before=3.0,
    misfit_after=1.0,
)
THEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    save_calibration(tmp_path / "cache", HERE, FOUND, saved_at=THEN)
    found = load_calibration(tmp_path / "cache", HERE, DATASHEET)
    assert found is not None
    assert found.coefficients == FOUND.coefficients
    assert (found.origin, found.place, found.loads, found.saved_at) == (Origin.SAME, HERE, 7, THEN)
    assert found.uncertainties["compute_share"] == 0.02
    assert found.uncertainties["api_chunk_s"] == UNCERTAINTIES["api_chunk_s"]  # never fitted
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]


def test_saving_again_replaces(tmp_path: Path) -> None:
    save_calibration(tmp_path, HERE, FOUND)
    save_calibration(tmp_path, HERE, replace(FOUND, coefficients=DATASHEET))
    found = load_calibration(tmp_path, HERE, FOUND.coefficients)
    assert found is not None
    assert found.coefficients == DATASHEET
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("place", "origin", "share"),
    [
        (replace(HERE, vllm="0.26.0"), Origin.OTHER_VERSION, 0.3),
        (replace(HERE, machine="node-2"), Origin.OTHER_MACHINE, 0.6),
    ],
)
def test_a_near_place_begins_with_more_doubt(tmp_path: Path, place: Place, origin: Origin, share: float) -> None:
    save_calibration(tmp_path, HERE, FOUND)
    found = load_calibration(tmp_path, place, DATASHEET)
    assert found is not None
    assert found.origin is origin
    assert found.coefficients == FOUND.coefficients
    # By hand: the spread that was left and a share of the first doubt, added in squares.
    assert found.uncertainties["compute_share"] == pytest.approx((0.02**2 + (share * 0.12) ** 2) ** 0.5)
    assert found.uncertainties["engine_cpu_s"] <= UNCERTAINTIES["engine_cpu_s"]


def test_another_gpu_says_nothing(tmp_path: Path) -> None:
    save_calibration(tmp_path, HERE, FOUND)
    assert load_calibration(tmp_path, replace(HERE, gpu="NVIDIA L4"), DATASHEET) is None


def test_the_same_machine_goes_before_a_newer_file_of_another(tmp_path: Path) -> None:
    other = replace(FOUND, coefficients=replace(DATASHEET, compute_share=0.4))
    save_calibration(tmp_path, replace(HERE, vllm="0.24.0"), FOUND, saved_at=THEN)
    save_calibration(tmp_path, replace(HERE, machine="node-2"), other, saved_at=THEN + timedelta(days=1))
    found = load_calibration(tmp_path, HERE, DATASHEET)
    assert found is not None
    assert found.origin is Origin.OTHER_VERSION


def test_of_two_versions_the_newer_file_is_taken(tmp_path: Path) -> None:
    newer = replace(FOUND, coefficients=replace(DATASHEET, compute_share=0.4))
    save_calibration(tmp_path, replace(HERE, vllm="0.23.0"), newer, saved_at=THEN + timedelta(days=1))
    save_calibration(tmp_path, replace(HERE, vllm="0.24.0"), FOUND, saved_at=THEN)
    found = load_calibration(tmp_path, HERE, DATASHEET)
    assert found is not None
    assert found.place.vllm == "0.23.0"


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"schema": "another"},
        {"coefficients": {"compute_share": -1.0}},
        {"coefficients": {"compute_share": "much"}},
        {"spreads": {"compute_share": 0.0}},
        {"saved_at": "yesterday"},
        {"loads": None},
    ],
)
def test_a_file_of_another_format_or_without_sense_counts_as_missing(tmp_path: Path, change: dict[str, object]) -> None:
    path = save_calibration(tmp_path, HERE, FOUND)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert load_calibration(tmp_path, HERE, DATASHEET) is None


@pytest.mark.parametrize("text", [b"", b"\xff\x00", b"[" * 5000, b"[]", b'{"version": NaN}'])
def test_damaged_files_count_as_missing(tmp_path: Path, text: bytes) -> None:
    path = save_calibration(tmp_path, HERE, FOUND)
    path.write_bytes(text)
    assert load_calibration(tmp_path, HERE, DATASHEET) is None


@pytest.mark.parametrize("name", [field.name for field in fields(Coefficients)])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e308])
def test_a_file_whose_coefficients_no_step_time_can_be_worked_out_with_counts_as_missing(
    tmp_path: Path, name: str, value: float
) -> None:
    path = save_calibration(tmp_path, HERE, FOUND)
    data = json.loads(path.read_text())
    data["coefficients"][name] = value
    path.write_text(json.dumps(data))
    may_be_nothing = name == "draft_acceptance" and value < 1.0
    assert (load_calibration(tmp_path, HERE, DATASHEET) is not None) == may_be_nothing


def test_coefficients_of_a_later_simulation_are_left_out_and_missing_ones_keep_the_prior(tmp_path: Path) -> None:
    path = save_calibration(tmp_path, HERE, FOUND)
    data = json.loads(path.read_text())
    data["coefficients"] = {"compute_share": 0.5, "flux_capacitor_s": 1.21}
    path.write_text(json.dumps(data))
    found = load_calibration(tmp_path, HERE, DATASHEET)
    assert found is not None
    assert found.coefficients == replace(DATASHEET, compute_share=0.5)


def test_a_folder_that_is_none_has_nothing_and_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load_calibration(tmp_path / "file", HERE, DATASHEET) is None
    assert load_calibration(tmp_path / "missing", HERE, DATASHEET) is None
    with pytest.raises(StorageError, match="cannot be written"):
        save_calibration(tmp_path / "file", HERE, FOUND)
