"""Optuna and its dashboard see our studies as Optuna studies."""

from __future__ import annotations

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO, StringIO

import optuna
import pytest
import store_samples as samples
from optuna.trial import TrialState
from sqlalchemy import event

from autotune.errors import ExitCode, SchemaMismatch, StorageError, StorageLocked
from autotune.records import Config, Estimate, FailureClass, Outcome
from autotune.store.projection import METRIC_NAMES, PLACEHOLDER_ATTR, Projection, sync
from autotune.store.repository import Store
from autotune.store.schema import HEAD
from autotune.store.study_record import StudyState

BASE = Config.of({"max-num-seqs": 256, "enable-prefix-caching": True, "dtype": None, "tensor-parallel-size": 4})


def choice(seqs: int, caching: bool = True) -> Config:
    return Config.of({"max-num-seqs": seqs, "enable-prefix-caching": caching, "dtype": "fp8"})


INFEASIBLE = samples.failed(Outcome.INFEASIBLE, FailureClass.OOM_AT_LOAD)
FAULTED = samples.failed(Outcome.FAULTED, FailureClass.PORT_IN_USE)
ABANDONED = replace(samples.measured(), outcome=Outcome.ABANDONED, measurements=())


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a {b} 100%.db") as opened:
        opened.create_or_resume_study(samples.spec())
        yield opened


@pytest.fixture
def load(store):
    opened = []

    def loader(name: str = "s") -> optuna.Study:
        url = store.location.url.render_as_string(hide_password=False)
        storage = optuna.storages.RDBStorage(url)
        opened.append(storage)
        return optuna.load_study(study_name=name, storage=storage)

    yield loader
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()


@pytest.fixture
def full(store):
    """One trial of every kind."""
    results = [samples.measured(1000, 0.2), INFEASIBLE, FAULTED, ABANDONED, samples.measured(1500, 0.4), None]
    for number, result in enumerate(results):
        samples.add_trial(store, number, result, params=BASE if number == 0 else choice(64, number % 2 == 0))
    return store


def test_every_outcome_has_its_state(full, load):
    assert sync(full, "s") == 6
    study = load()
    assert [trial.state for trial in study.trials] == [
        TrialState.COMPLETE,
        TrialState.COMPLETE,
        TrialState.FAIL,
        TrialState.PRUNED,
        TrialState.COMPLETE,
        TrialState.RUNNING,
    ]
    assert [trial.number for trial in study.trials] == [0, 1, 2, 3, 4, 5]
    assert study.trials[0].values == [1000.0, 0.2]
    # Half of the baseline's 1000 tokens/s, four times its 0.2 s.
    assert study.trials[1].values == [500.0, 0.8]
    assert study.trials[1].user_attrs[PLACEHOLDER_ATTR] is True
    assert study.trials[1].constraints["infeasible"] == 1.0
    assert [PLACEHOLDER_ATTR in trial.user_attrs for trial in study.trials] == [False, True, False, False, False, False]
    assert study.trials[2].user_attrs["autotune:reason"] == "port_in_use"
    assert study.trials[4].constraints["infeasible"] == 0.0


def test_optuna_finds_the_front_and_no_placeholder_in_it(full, load):
    sync(full, "s")
    study = load()
    assert [trial.number for trial in study.best_trials] == [0, 4]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == list(METRIC_NAMES)
    assert study.user_attrs["autotune:simulated"] is True
    assert study.user_attrs["autotune:model"] == "m"


def test_placeholders_lose_even_where_constraints_are_ignored(full, load):
    sync(full, "s")
    front = optuna.study._multi_objective._get_pareto_front_trials(load(), consider_constraint=False)
    assert [trial.number for trial in front] == [0, 4]


def test_values_outside_the_choices_stay_out_of_the_distributions(full, load):
    sync(full, "s")
    trial = load().trials[0]
    assert trial.params == {"max-num-seqs": 256, "enable-prefix-caching": True, "dtype": None}
    assert trial.user_attrs["autotune:config"] == BASE.as_dict()
    assert trial.user_attrs["autotune:config_hash"] == BASE.hash


def test_checkpoints_and_points_of_a_range_are_categories(store, load):
    """As a space has them: texts with None for the study's own model, fractions of a grid, a variable."""
    choices = (
        ("model", (None, "org/m-AWQ", "/models/fp8")),
        ("gpu-memory-utilization", (0.88, 0.9, 0.92)),
        ("env:NCCL_P2P_LEVEL", (None, "SYS")),
    )
    store.create_or_resume_study(samples.spec("ranges", choices=choices))
    values = {"model": "org/m-AWQ", "gpu-memory-utilization": 0.9, "env:NCCL_P2P_LEVEL": None}
    samples.add_trial(store, 0, samples.measured(1000, 0.2), study="ranges", params=Config.of({"max-num-seqs": 8}))
    samples.add_trial(store, 1, samples.measured(1100, 0.1), study="ranges", params=Config.of(values))
    samples.add_trial(store, 2, None, study="ranges", params=Config.of({**values, "model": None}))
    sync(store, "ranges")
    trials = load("ranges").trials
    assert trials[1].params == values
    assert trials[2].params == {**values, "model": None}
    assert trials[1].distributions["model"].choices == choices[0][1]
    assert trials[1].distributions["gpu-memory-utilization"].choices == (0.88, 0.9, 0.92)


def test_sync_is_idempotent_and_incremental(store, load):
    with Projection.open(store) as projection:
        assert projection.sync("s") == 0
        samples.add_trial(store, 0, samples.measured(1000, 0.2), params=BASE)
        samples.add_trial(store, 1, None, params=choice(64))
        samples.add_trial(store, 2, samples.measured(1200, 0.1), params=choice(128))
        assert projection.sync("s") == 3
        assert projection.sync("s") == 0
        assert [trial.state.name for trial in load().trials] == ["COMPLETE", "RUNNING", "COMPLETE"]
        store.finish_trial("s", 1, INFEASIBLE)
        assert projection.sync("s") == 1
        assert projection.sync("s") == 0
        store.set_study_state("s", StudyState.FINISHED)
        assert projection.sync("s") == 0
    assert sync(store, "s") == 0
    trial = load().trials[1]
    assert (trial.state, trial.values, trial.constraints["infeasible"]) == (TrialState.COMPLETE, [500.0, 0.8], 1.0)
    assert trial.user_attrs["autotune:reason"] == "oom_at_load"
    assert trial.user_attrs[PLACEHOLDER_ATTR] is True


def test_a_trial_that_another_program_ends_or_begins_meanwhile(store, load, monkeypatch):
    """Trials are read before their times: one may have ended, and one may have been begun, in between."""
    samples.add_trial(store, 0, samples.measured(), params=BASE)
    samples.add_trial(store, 1, None, params=choice(64))
    before = store.trials("s")
    store.finish_trial("s", 1, samples.measured())
    samples.add_trial(store, 2, None, params=choice(128))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store, "trials", lambda name: before)
        assert sync(store, "s") == 2
    assert [trial.state.name for trial in load().trials] == ["COMPLETE", "RUNNING"]
    assert sync(store, "s") == 2
    assert [trial.state.name for trial in load().trials] == ["COMPLETE", "COMPLETE", "RUNNING"]


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5, 8])
def test_a_sync_that_is_cut_off_is_completed_by_the_next(store, load, stop_after):
    class Killed(BaseException):
        pass

    samples.add_trial(store, 0, samples.measured(), params=BASE)
    samples.add_trial(store, 1, None, params=choice(64))
    with Projection.open(store) as projection:
        projection.sync("s")
    store.finish_trial("s", 1, INFEASIBLE)
    with Projection.open(store) as projection:
        storage, calls = projection._storage, 0

        def counted(verb):
            def call(*args, **options):
                nonlocal calls
                calls += 1
                if calls > stop_after:
                    raise Killed
                return verb(*args, **options)

            return call

        for name in ("set_trial_user_attr", "set_trial_system_attr", "set_trial_state_values"):
            setattr(storage, name, counted(getattr(storage, name)))
        try:
            projection.sync("s")
        except Killed:
            assert load().trials[1].state is TrialState.RUNNING
        else:
            assert calls <= stop_after
    sync(store, "s")
    trial = load().trials[1]
    assert (trial.state, trial.values, trial.constraints["infeasible"]) == (TrialState.COMPLETE, [500.0, 0.8], 1.0)


def test_without_a_measured_baseline_placeholders_are_absolute(store, load):
    samples.add_trial(store, 0, INFEASIBLE, params=BASE)
    samples.add_trial(store, 1, samples.measured(10, 3.0), params=choice(64))
    sync(store, "s")
    study = load()
    assert study.trials[0].values == [0.0, 3600.0]
    assert [trial.number for trial in study.best_trials] == [1]


def test_nothing_feasible_is_an_empty_front(store, load):
    samples.add_trial(store, 0, INFEASIBLE, params=BASE)
    sync(store, "s")
    assert load().best_trials == []


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0.0, -1.0])
def test_an_impossible_objective_is_never_a_value(store, load, bad):
    good = samples.measured(1000, 0.2)
    first = replace(good.measurements[0], output_tok_s=Estimate(value=bad))
    samples.add_trial(store, 0, replace(good, measurements=(first, good.measurements[1])), params=BASE)
    sync(store, "s")
    trial = load().trials[0]
    assert (trial.state, trial.values) == (TrialState.FAIL, None)
    assert "not measured" in trial.user_attrs["autotune:reason"]


def test_a_foreign_trial_is_refused_and_deleting_the_study_heals(full, load):
    sync(full, "s")
    study = load()
    study.enqueue_trial({"max-num-seqs": 64})
    with pytest.raises(StorageError, match="7 trials") as caught:
        sync(full, "s")
    assert "dashboard" in caught.value.hint
    optuna.delete_study(study_name="s", storage=study._storage)
    assert sync(full, "s") == 6


def test_a_study_of_other_directions_is_refused(full, load):
    sync(full, "s")
    storage = load()._storage
    optuna.delete_study(study_name="s", storage=storage)
    optuna.create_study(study_name="s", storage=storage, directions=["minimize", "minimize"])
    with pytest.raises(StorageError, match="other directions"):
        sync(full, "s")


@pytest.mark.parametrize(("revision", "words"), [("v3.0.0.d", "optuna storage upgrade"), ("v9.0.0.a", "newer")])
def test_another_optunas_tables_are_refused_untouched(full, revision, words):
    sync(full, "s")
    raw = sqlite3.connect(full.location.path)
    raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    raw.commit()
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    before = full.location.path.read_bytes()
    with pytest.raises(SchemaMismatch, match=revision) as caught:
        sync(full, "s")
    assert words in caught.value.hint
    assert caught.value.exit_code is ExitCode.SCHEMA_MISMATCH
    assert full.location.path.read_bytes() == before
    assert len(full.trials("s")) == 6, "our own tables work on"


def test_both_alembic_environments_live_side_by_side(full):
    sync(full, "s")
    Store.open(full.location.path).close()
    assert sync(full, "s") == 0
    raw = sqlite3.connect(full.location.path)
    assert raw.execute("SELECT version_num FROM autotune_alembic_version").fetchall() == [(HEAD,)]
    assert raw.execute("SELECT count(*) FROM alembic_version").fetchall() == [(1,)]
    raw.close()


def test_many_programs_may_make_optunas_tables_at_once(full):
    barrier = threading.Barrier(4)

    def open_it(_):
        barrier.wait()
        return Projection.open(full)

    with ThreadPoolExecutor(4) as pool:
        for projection in list(pool.map(open_it, range(4))):
            projection.close()
    assert sync(full, "s") == 6


def test_a_locked_database_is_storage_locked(full):
    with Projection.open(full) as projection:
        projection.sync("s")
        full.finish_trial("s", 5, samples.measured())
        other = sqlite3.connect(full.location.path, isolation_level=None)
        projection._storage.engine.dispose()
        other.execute("BEGIN IMMEDIATE")
        event.listen(projection._storage.engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=1"))
        with pytest.raises(StorageLocked):
            projection.sync("s")
        other.execute("ROLLBACK")
        other.close()
        assert projection.sync("s") == 1


def test_nothing_is_printed(full, capfd):
    sync(full, "s")
    assert capfd.readouterr() == ("", "")


def test_the_dashboard_serves_it(full, load):
    dashboard = pytest.importorskip("optuna_dashboard", reason="the extra [dashboard] is not installed")
    sync(full, "s")
    app = dashboard.wsgi(load()._storage)

    def get(path: str) -> dict:
        status = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": "after=0",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.input": BytesIO(),
            "wsgi.errors": StringIO(),
            "wsgi.url_scheme": "http",
        }
        body = b"".join(app(environ, lambda line, *_: status.append(line)))
        assert status[0].startswith("200"), (status, body)
        return json.loads(body)

    (summary,) = get("/api/studies")["study_summaries"]
    assert summary["study_name"] == "s"
    detail = get(f"/api/studies/{summary['study_id']}")
    assert [trial["state"] for trial in detail["trials"]] == [
        "Complete",
        "Complete",
        "Fail",
        "Pruned",
        "Complete",
        "Running",
    ]
    assert [trial["number"] for trial in detail["best_trials"]] == [0, 4]
    assert [trial["constraints"] for trial in detail["trials"][:2]] == [[0.0], [1.0]]
