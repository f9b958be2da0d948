"""What a study's page takes from the store besides the study itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import store_samples as samples

from autotune.review.page import Part, control_of, page_part
from autotune.store.places import Places
from autotune.store.repository import Store


def test_the_control_is_the_latest_random_search_of_the_same_question(tmp_path: Path) -> None:
    by_chance = {"sampler": "random"}
    other = {**samples.spec().identity, "node": "1xL4"}
    with Store.open(tmp_path / "a.db") as store:
        for name, changes in (
            ("own", {}),
            ("random-1", {"spec": by_chance}),
            ("random-2", {"spec": by_chance}),
            ("elsewhere", {"spec": by_chance, "identity": other}),
            ("tpe", {"spec": {"sampler": "tpe"}}),
            ("on-a-server", {"spec": by_chance, "simulated": False}),
            ("nothing-drawn", {"spec": by_chance}),
        ):
            store.create_or_resume_study(samples.spec(name, **changes))
            samples.add_trial(store, 0, samples.measured(1000.0, 0.2), study=name)
            if name != "nothing-drawn":
                samples.add_trial(store, 1, samples.measured(900.0, 0.3), study=name)
        found = control_of(store, store.study("own"))
        assert found is not None
        assert found.name == "random-2"
        assert [trial.number for trial in found.trials] == [0, 1]
        assert control_of(store, store.study("random-1")) is None
        part = page_part(Part.FRONT, store, store.study("own"), Places(root=tmp_path))
        assert part["growth"]["control"]["name"] == "random-2"
        # Launching and measuring of the first trial, which outlines keep.
        assert part["growth"]["control"]["steps"][0] == pytest.approx([0, 1.0, 160.5])
