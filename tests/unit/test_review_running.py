"""What runs today, found among a study's trials by what it ends up as."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.errors import StorageError
from autotune.planning import Surroundings, make_plan
from autotune.promote import Promotion
from autotune.recipe import Recipe
from autotune.records import Config, Origin
from autotune.report.json_view import study_document
from autotune.report.running import running_lines
from autotune.report.tables import as_text, study_report
from autotune.review.history import history_of
from autotune.review.views import running_of, view_of
from autotune.session import spec_of
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import PromotionRecord

AT = datetime(2026, 3, 1, tzinfo=UTC)
MODEL = "meta-llama/Llama-3.1-8B"
LAUNCHED = ({}, {"max-num-seqs": 1024, "tensor-parallel-size": 1}, {"max-num-seqs": 512})


def promotion(model: str, **flags: int) -> Promotion:
    config = {name.replace("_", "-"): value for name, value in flags.items()}
    return Promotion(
        name="prod",
        created_at=AT,
        study="s",
        trial=0,
        config_hash=Config.of(config).hash,
        model=model,
        vllm_version="0.32.0",
        targets=("shell",),
        files=(),
        argv=(),
        simulated=True,
        simulated_allowed=True,
        flags=tuple(sorted(config.items())),
    )


@pytest.mark.parametrize(
    ("promoted", "running"),
    [
        # On an H100 vLLM takes 1,024 sequences where nobody says how many.
        (promotion(MODEL, max_num_seqs=1024), [0, 1]),
        (promotion(MODEL, max_num_seqs=512, pipeline_parallel_size=1), [2]),
        (promotion(MODEL, max_num_seqs=64), []),
        # Another checkpoint is another server, whatever its flags.
        (promotion("org/quantised", max_num_seqs=1024), []),
    ],
    ids=["a default written out", "a default left out", "none of them", "another checkpoint"],
)
def test_what_runs_is_known_however_it_is_written(tmp_path: Path, promoted: Promotion, running: list[int]) -> None:
    here = Surroundings(environ={}, home=tmp_path, probe=None, shm_bytes=None, has_kfd=False, cache_dir=tmp_path)
    plan = make_plan(Recipe(name="s", model=MODEL, workload="tiny", space="scheduler", node="1xH100-80GB"), here)
    with Store.open(tmp_path / "autotune.db") as store:
        store.create_or_resume_study(spec_of(plan))
        for number, flags in enumerate(LAUNCHED):
            origin = Origin.SAMPLER if number else Origin.BASELINE
            store.begin_trial("s", number=number, config=Config.of(flags), origin=origin, gpus=1)
        store.add_promotion(
            PromotionRecord(
                study="s",
                trial=0,
                created_at=AT,
                targets=promoted.targets,
                directory="o",
                simulated=True,
                details=promoted.as_document(),
            )
        )
        trials = store.trials("s")
        found = running_of(store, store.study("s"), trials)
    assert found is not None
    assert [trial.number for trial in trials if found.is_of(trial)] == running


def test_a_promotion_that_cannot_be_read_is_told_beside_the_front(tmp_path: Path) -> None:
    here = Surroundings(environ={}, home=tmp_path, probe=None, shm_bytes=None, has_kfd=False, cache_dir=tmp_path)
    plan = make_plan(Recipe(name="s", model=MODEL, workload="tiny", space="scheduler", node="1xH100-80GB"), here)
    broken = promotion(MODEL).as_document() | {"created_at": "yesterday"}
    with Store.open(tmp_path / "autotune.db") as store:
        store.create_or_resume_study(spec_of(plan))
        store.begin_trial("s", number=0, config=Config.of({}), origin=Origin.BASELINE, gpus=1)
        store.add_promotion(
            PromotionRecord(
                study="s", trial=0, created_at=AT, targets=("shell",), directory="o", simulated=True, details=broken
            )
        )
        view = view_of(store, store.study("s"), Places(root=tmp_path))
    assert view.running is None
    (line,) = running_lines(view)
    assert "What runs today cannot be told" in line
    assert "a promotion cannot be read" in line
    assert line in " ".join(as_text(study_report(view)).split())
    assert study_document(view)["running_problem"] in line


@pytest.mark.parametrize(
    ("column", "content"),
    [("details", "[]"), ("details", "null"), ("details", "{"), ("targets", "5"), ("created_at", "yesterday")],
)
def test_nor_does_a_row_of_the_history_hide_the_front(tmp_path: Path, column: str, content: str) -> None:
    here = Surroundings(environ={}, home=tmp_path, probe=None, shm_bytes=None, has_kfd=False, cache_dir=tmp_path)
    plan = make_plan(Recipe(name="s", model=MODEL, workload="tiny", space="scheduler", node="1xH100-80GB"), here)
    with Store.open(tmp_path / "autotune.db") as store:
        store.create_or_resume_study(spec_of(plan))
        store.begin_trial("s", number=0, config=Config.of({}), origin=Origin.BASELINE, gpus=1)
        details = promotion(MODEL).as_document()
        store.add_promotion(
            PromotionRecord(
                study="s", trial=0, created_at=AT, targets=("shell",), directory="o", simulated=True, details=details
            )
        )
    with closing(sqlite3.connect(tmp_path / "autotune.db")) as damaged:
        damaged.execute(f"update autotune_promotions set {column} = ?", (content,))
        damaged.commit()
    with Store.open(tmp_path / "autotune.db") as store:
        view = view_of(store, store.study("s"), Places(root=tmp_path))
        with pytest.raises(StorageError, match="cannot be read"):
            history_of(store)
    assert "cannot be read" in running_lines(view)[0]
