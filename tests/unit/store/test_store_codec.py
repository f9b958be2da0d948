"""Records to JSON and back."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum

import pytest
import store_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import autotune.records as records
from autotune.engine.base import ServerIdentity
from autotune.records import Config, Estimate, Failure, FailureClass, Gpu, Origin, Trial, TrialResult
from autotune.store.codec import UndecodableRecord, decode, encode
from autotune.store.study_record import StudySpec, TransitionRecord

RECORDS = [
    found
    for name in records.__all__
    if inspect.isclass(found := getattr(records, name)) and dataclasses.is_dataclass(found)
] + [ServerIdentity, StudySpec, TransitionRecord]

st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(datetime, st.datetimes(timezones=st.just(UTC)))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def same(left: object, right: object) -> bool:
    """Equal in value and in type, all the way down; 1, 1.0 and True are three values."""
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def test_every_record_is_covered():
    assert len(RECORDS) >= 20
    assert TrialResult in RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_round_trip_is_exact(record):
    extra = {}
    if record is StudySpec:
        texts = st.text(max_size=5)
        extra = {"spec": st.dictionaries(texts, JSON_VALUES, max_size=3), "identity": st.dictionaries(texts, texts)}

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.builds(record, **extra))
    def check(made):
        text = json.dumps(encode(made), allow_nan=False)
        assert same(decode(record, json.loads(text)), made)

    check()


@given(st.dictionaries(st.text(min_size=1).map("x_".__add__), JSON_VALUES, max_size=4), st.data())
@settings(max_examples=50, deadline=None)
def test_unknown_keys_are_ignored(extra, data):
    made = data.draw(st.builds(Estimate))
    assert decode(Estimate, {**encode(made), **extra}) == made


def test_one_one_point_zero_and_true_stay_three_values():
    config = Config.of({"a": 1, "b": 1.0, "c": True, "d": None, "e": "1"})
    back = decode(Config, json.loads(json.dumps(encode(config))))
    assert [type(value) for _, value in back] == [int, float, bool, type(None), str]


def test_not_a_number_travels_without_breaking_json():
    text = json.dumps(encode(Estimate(value=math.nan, low=-math.inf, high=math.inf)), allow_nan=False)
    back = decode(Estimate, json.loads(text))
    assert math.isnan(back.value)
    assert (back.low, back.high) == (-math.inf, math.inf)


def test_missing_key_takes_the_default_and_without_one_is_an_error():
    assert decode(Failure, {"kind": "crash", "line": None}) == Failure(kind=FailureClass.CRASH, line=None)
    with pytest.raises(UndecodableRecord, match="line"):
        decode(Failure, {"kind": "crash"})


@pytest.mark.parametrize(
    ("record", "data", "path"),
    [
        (Estimate, {"value": "fast"}, "value"),
        (Estimate, {"value": True}, "value"),
        (Estimate, [1], ""),
        (Failure, {"kind": "sunspots", "line": None}, "kind"),
        (Gpu, {"index": 0, "name": "g", "memory_bytes": 1, "compute_capability": [9]}, "compute_capability"),
        (Gpu, {"index": 0.5, "name": "g", "memory_bytes": 1}, "index"),
        (Config, {"params": [["a", 1], ["b", {}]]}, "params[1][1]"),
        (Config, {"params": "ab"}, "params"),
    ],
)
def test_what_does_not_fit_is_named(record, data, path):
    with pytest.raises(UndecodableRecord) as caught:
        decode(record, data)
    assert caught.value.path == path


def test_times_are_utc_and_naive_ones_refused():
    west = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=-8)))
    assert encode(west) == "2026-01-01T20:00:00+00:00"
    with pytest.raises(TypeError, match="time zone"):
        encode(datetime(2026, 1, 1))


def test_a_foreign_type_is_refused():
    class Colour(Enum):
        RED = 1

    assert encode(Colour.RED) == 1
    with pytest.raises(TypeError, match="set"):
        encode({1, 2})


def test_a_whole_trial():
    trial = Trial(
        number=3,
        config=samples.config(max_num_seqs=64),
        origin=records.Origin.SAMPLER,
        gpus=1,
        attempts=1,
        result=samples.measured(),
    )
    assert same(decode(Trial, json.loads(json.dumps(encode(trial)))), trial)


def test_energy_makes_the_round_trip_and_older_measurements_have_none():
    measured = dataclasses.replace(samples.measurement(records.LevelRole.TTFT, 100.0, 0.5), energy_j=4321.5)
    stored = json.loads(json.dumps(encode(measured)))
    assert decode(records.Measurement, stored) == measured
    del stored["energy_j"]  # as the version before wrote it
    assert decode(records.Measurement, stored) == dataclasses.replace(measured, energy_j=None)


def test_measurements_of_before_levels_were_watched_still_read_and_keep_their_objectives() -> None:
    new = samples.measured()
    stored = encode(new)
    assert isinstance(stored, dict)
    for level in stored["measurements"]:
        del level["use"]
        for name in ("prefill_time_mean_s", "decode_time_mean_s", "kv_usage_mean", "running_mean", "waiting_mean"):
            del level["server"][name]
        # What was late in an older study was late by an older rule; its figures stay what they were.
        level["caveats"] = [{"code": "client_late", "text": "t", "remedy": "r"}]
    old = decode(TrialResult, json.loads(json.dumps(stored)))
    assert [level.use for level in old.measurements] == [None, None]
    trial = Trial(number=0, config=Config.of({}), origin=Origin.BASELINE, gpus=1, attempts=1, result=old)
    assert trial.void is None
    assert trial.objectives is not None
