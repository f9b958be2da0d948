"""A stored study is explained from the store alone: another machine, another time, no vLLM, no workload file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.main import command_line
from autotune.errors import NotPromotable, StorageError
from autotune.gate_session import require_own_workload
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.planning.explaining import explain_study, question_of
from autotune.planning.stored import kept_of, stored_plan
from autotune.recipe import LoadChoice, Recipe
from autotune.records import LoadPlan, Trial
from autotune.report.tables import as_text, study_report
from autotune.review.views import view_of, with_explanation
from autotune.search.explain import PriorUse
from autotune.session import spec_of
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyRecord

SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [16, 64, 256], why: w}
  enable-prefix-caching: {choices: [true, false], why: w}
  enable-chunked-prefill: {choices: [null, true], why: w}
"""


def plan_for(folder: Path, **values: object) -> StudyPlan:
    path = folder / "space.yaml"
    path.write_text(SPACE, encoding="utf-8")
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    asked: dict[str, object] = {
        "name": "s",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "workload": "tiny",
        "space": str(path),
        "node": "1xH100-80GB",
        "load": LoadChoice(concurrency=32, rate_rps=4.0, requests=64),
        "trials": 5,
        "repeats": 0,
        **values,
    }
    return make_plan(Recipe(**asked), here)


def stored(folder: Path, **values: object) -> tuple[StudyPlan, StudyRecord, tuple[Trial, ...], LoadPlan | None]:
    """A small simulated study, run through the command line's own session."""
    from autotune.session import Target, run_study

    plan = plan_for(folder, **values)
    places = Places(root=folder / "studies")
    run_study(plan, places, Target(), _Silent(), probe=None)
    with Store.open(places.database) as store:
        return plan, store.study("s"), store.trials("s"), store.get_load_plan("s")


class _Silent:
    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: object, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: object) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPlan, StudyRecord, tuple[Trial, ...], LoadPlan]:
    folder = tmp_path_factory.mktemp("explained")
    plan, record, trials, load = stored(folder)
    assert load is not None
    return folder, plan, record, trials, load


Stored = tuple[Path, StudyPlan, StudyRecord, tuple[Trial, ...], LoadPlan]


def test_what_is_launched_again_is_waited_for_as_long_as_in_the_study(study: Stored, tmp_path: Path) -> None:
    _, plan, record, trials, _ = study
    assert stored_plan(record, trials).plan.recipe.gpu_busy_s == plan.recipe.gpu_busy_s == math.inf
    waits = {"start_deadline_s": 7200.0, "level_deadline_s": 1800.0, "stop_grace_s": 90.0, "gpu_busy_s": 0.0}
    spec = json.loads(json.dumps({**record.spec, **kept_of(plan_for(tmp_path, **waits))}))
    found = stored_plan(replace(record, spec=spec), trials).plan.recipe
    assert {name: getattr(found, name) for name in waits} == waits
    older = stored_plan(replace(record, spec={**record.spec, "patience": {}}), trials).plan.recipe
    assert older.start_deadline_s == Recipe(name="s", model="m").start_deadline_s


def test_a_verification_never_sends_other_requests_than_the_study(study: Stored) -> None:
    _, _, record, trials, _ = study
    require_own_workload(record, stored_plan(record, trials))
    gone = replace(record, spec={**record.spec, "workload_source": "/nowhere/prod.yaml"})
    changed = replace(record, identity={**record.identity, "workload": "tiny (other)"})
    for other in (gone, changed):
        with pytest.raises(NotPromotable, match="cannot be sent again"):
            require_own_workload(other, stored_plan(other, trials))
    numbers = replace(record, spec={**record.spec, "workload_source": None})
    require_own_workload(numbers, stored_plan(numbers, trials))


def test_the_plan_made_again_is_the_plan(study: Stored) -> None:
    _, plan, record, trials, load = study
    again = stored_plan(record, trials)
    assert again.doubts == ()
    assert again.plan.space.parameters == plan.space.parameters
    assert again.plan.feasible == plan.feasible
    assert again.plan.fixed == plan.fixed
    assert again.plan.traffic == plan.traffic
    assert again.plan.workload == plan.workload
    assert again.plan.baseline == plan.baseline
    for config in (plan.baseline, *map(plan.complete, plan.feasible)):
        assert again.plan.effective(config) == plan.effective(config)
    ours, theirs = question_of(again.plan, load).prior, question_of(plan, load).prior
    assert ours is not None
    assert theirs is not None
    assert ours.expect(plan.feasible).log_ttft.tolist() == theirs.expect(plan.feasible).log_ttft.tolist()


def test_it_is_explained_without_its_machine_and_every_trial_has_its_reason(study: Stored) -> None:
    _, _, record, trials, load = study
    found, doubts = explain_study(record, trials, load, quick=True)
    assert doubts == ()
    assert found.prior is PriorUse.USED
    reasons = [str(one.reason) for one in found.lines]
    assert reasons[0] == "baseline"
    assert set(reasons[1:]) <= {"recipe", "prior", "exploration"}
    same = {one.knob for one in found.idle if one.how == "same server"}
    assert "enable-chunked-prefill" in same
    assert found.weights[0].knob.name == "max-num-seqs"


def test_a_workload_that_is_not_here_is_stood_in_for_and_said(study: Stored) -> None:
    _, _, record, trials, load = study
    moved = replace(record, spec={**record.spec, "workload_source": "/gone/away.yaml"})
    again = stored_plan(moved, trials)
    assert "is not here" in again.doubts[0]
    changed = replace(record, identity={**record.identity, "workload": "tiny (000000000000)"})
    assert "is not here" in stored_plan(changed, trials).doubts[0]
    found, _ = explain_study(moved, trials, load, quick=True)
    assert found.weights[0].knob.name == "max-num-seqs"


def test_a_study_of_an_older_version_is_explained_as_far_as_it_goes(study: Stored) -> None:
    _, plan, record, trials, load = study
    new = set(kept_of(plan))
    older = replace(record, spec={key: value for key, value in record.spec.items() if key not in new})
    without_why = tuple(replace(trial, why="") for trial in trials)
    found, doubts = explain_study(older, without_why, load)
    assert "older version" in doubts[0]
    assert found.prior is PriorUse.NONE  # nobody stored what the requests were like
    assert len(found.weights) == 3
    assert all(one.why for one in found.lines)
    assert stored_plan(older, trials).plan.fixed == plan.fixed  # what all trials but the baseline have beside the space


def test_a_study_that_cannot_be_read_is_one_clear_error(study: Stored) -> None:
    _, _, record, trials, _ = study
    for spec in ({}, {**record.spec, "node": {"gpus": 3}}, {**record.spec, "space": {"name": 1}}):
        with pytest.raises(StorageError, match="cannot be read back"):
            stored_plan(replace(record, spec=spec), trials)


def test_the_command_tells_it_as_text_and_as_json(study: Stored, tmp_path: Path) -> None:
    folder, _, _, trials, _ = study
    place = ["--studies-dir", str(folder / "studies")]
    text = CliRunner().invoke(command_line(), ["explain", "s", *place])
    assert text.exit_code == 0, text.output
    for said in ("Why each was launched", "What matters", "One at a time", "Did nothing", "(simulated)"):
        assert said in text.output
    result = CliRunner().invoke(command_line(), ["explain", "s", "--json", *place])
    document = json.loads(result.output)
    assert document["schema"] == 2
    assert document["simulated"] is True
    assert [one["number"] for one in document["trials"]] == [trial.number for trial in trials]
    assert document["parameters"][0]["parameter"] == "max-num-seqs"
    low, high = document["changes"][0]["throughput"]["interval"]
    assert low <= document["changes"][0]["throughput"]["ratio"] <= high


def test_the_report_of_a_study_ends_with_the_short_version(study: Stored) -> None:
    folder, plan, record, _, load = study
    places = Places(root=folder / "studies")
    with Store.open(places.database) as store:
        view = view_of(store, record, places)
    assert "autotune explain" not in as_text(study_report(view))
    told = with_explanation(view, plan, load)
    assert told.explanation is not None
    assert "`autotune explain s` " in as_text(study_report(told))
    broken = replace(plan, shape=None, space=replace(plan.space, parameters=()))
    assert with_explanation(view, broken, load).trials == view.trials  # figures are shown whatever cannot be explained


def test_a_checkpoint_and_conditions_survive_the_store() -> None:
    here = Surroundings(
        environ={}, home=Path("/nonexistent"), probe=None, shm_bytes=None, has_kfd=False, cache_dir=Path("/nonexistent")
    )
    recipe = Recipe(
        name="s", model="meta-llama/Llama-3.1-8B-Instruct", node="2xH100-80GB-NVLink", checkpoints=("auto",)
    )
    plan = make_plan(recipe, here)
    spec = spec_of(plan)
    record = StudyRecord(
        **{name: getattr(spec, name) for name in spec.__dataclass_fields__},
        created_at=None,
        state=None,
    )
    through_json = replace(record, spec=json.loads(json.dumps(record.spec)))
    again = stored_plan(through_json, ()).plan
    assert again.space.parameters == plan.space.parameters
    assert dict(again.checkpoints).keys() == dict(plan.checkpoints).keys()
    assert set(again.feasible) == set(plan.feasible)
