"""What the service shows is what the command line prints with `--json`."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from web_service import DEPLOYMENT, STUDY, Client, command, serving, studies_in, template

from autotune.records import Config, GateRecord, GateSide, GateVerdict, Origin
from autotune.store.codec import encode
from autotune.store.folder import LockHolder
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.web.settings import ServeSettings

API = "/api/v1"


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serving(ServeSettings(places=Places(root=template()))) as found:
        yield found


def printed(*words: str) -> Any:
    # Fits of few launches tell other kernels of OpenBLAS apart: the command gets those that this process has.
    kernels = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    done = command(template().parent, *words, "--json", env=kernels if words[0] == "explain" else None)
    assert done.code == 0, done.err
    return done.document


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"/studies/{STUDY}", ("pareto", STUDY)),
        (f"/studies/{STUDY}?slo=ttft_p95<=1s", ("pareto", STUDY, "--slo", "ttft_p95<=1s")),
        (f"/studies/{STUDY}/trials/0", ("show", STUDY, "0")),
        (f"/studies/{STUDY}/explain", ("explain", STUDY)),
        (f"/compare?a={STUDY}:1&b={STUDY}:baseline", ("compare", f"{STUDY}:1", f"{STUDY}:baseline")),
        ("/promotions", ("promotions",)),
        (f"/promotions/{DEPLOYMENT}", ("promotions", DEPLOYMENT)),
    ],
)
async def test_documents_are_those_of_the_command_line(client: Client, path: str, words: tuple[str, ...]) -> None:
    status, found = await client.get(API + path)
    assert status == 200
    expected = printed(*words)
    if "directory" in expected:  # as the command was told the folder: relative there, whole here
        assert Path(found.pop("directory")) == template() / STUDY
        assert expected.pop("directory") == f"studies/{STUDY}"
    assert json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


async def test_the_list_has_the_command_lines_rows_and_a_revision(client: Client) -> None:
    _, found = await client.get(f"{API}/studies")
    (row,) = found["studies"]
    (expected,) = printed("list")["studies"]
    assert expected.items() <= row.items()
    assert row.keys() - expected.keys() == {"created_at", "revision", "job"}


async def test_trials_come_in_pieces(client: Client) -> None:
    _, first = await client.get(f"{API}/studies/{STUDY}/trials?limit=3")
    _, rest = await client.get(f"{API}/studies/{STUDY}/trials?after={first['next']}")
    assert [trial["number"] for trial in first["trials"] + rest["trials"]] == list(range(first["total"]))
    assert rest["next"] is None
    _, none = await client.get(f"{API}/studies/{STUDY}/trials?outcome=running")
    assert none == {"trials": [], "total": 0, "next": None}


async def test_measurements_are_the_levels_of_the_trial(client: Client) -> None:
    _, levels = await client.get(f"{API}/studies/{STUDY}/trials/1/measurements")
    _, trial = await client.get(f"{API}/studies/{STUDY}/trials/1")
    assert levels["levels"] == trial["levels"]
    assert len(levels["levels"]) >= 2


async def test_a_curve_is_what_the_page_has_of_a_trial(client: Client) -> None:
    _, evidence = await client.get(f"{API}/studies/{STUDY}/page/evidence")
    _, curve = await client.get(f"{API}/studies/{STUDY}/trials/1/curve")
    spread = curve.pop("spread")
    assert curve == next(one for one in evidence["curves"] if one["number"] == 1)
    assert spread == evidence["spreads"]["1"]
    assert spread["count"] == sum(requests for _, requests in spread["bins"])
    status, _ = await client.get(f"{API}/studies/{STUDY}/trials/99/curve")
    assert status == 404


async def test_every_verification_of_a_trial_is_there_whatever_its_verdict(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    folder = places.folder(STUDY).path
    side = GateSide(label="trial 1", config=Config.of({}), model="m", gpus=1)
    at = datetime(2026, 11, 30, tzinfo=UTC)
    record = replace(GateRecord.skipped(STUDY, side, why="no gain", at=at), verdict=GateVerdict.FAILED)
    for name, text in (("2", "{}"), ("10", None), ("1", json.dumps(encode(record)))):
        for launch in ("launch-1-against", "launch-2-candidate"):
            (folder / f"gate-0001-{name}" / launch).mkdir(parents=True)
        if text is not None:
            (folder / f"gate-0001-{name}" / "gate.json").write_text(text, encoding="utf-8")
    (folder / "gate-0011-1").mkdir()
    async with serving(ServeSettings(places=places)) as client:
        status, found = await client.get(f"{API}/studies/{STUDY}/trials/1/gates")
        assert status == 200
        assert [(one["count"], one["launches"]) for one in found["gates"]] == [(1, 2), (2, 2), (10, 2)]
        assert [one["record"] for one in found["gates"]] == [
            encode(record),
            None,
            None,
        ]  # one unreadable, one that runs
        assert (await client.get(f"{API}/studies/{STUDY}/trials/0/gates"))[1] == {"gates": []}
        assert (await client.get(f"{API}/studies/{STUDY}/trials/99/gates"))[0] == 404


async def test_the_front_is_the_studys_without_its_trials(client: Client) -> None:
    _, front = await client.get(f"{API}/studies/{STUDY}/front?pick=throughput")
    _, study = await client.get(f"{API}/studies/{STUDY}?pick=throughput")
    assert front == {key: study[key] for key in front}
    assert front["pick"]["rule"] == "throughput"
    assert "trials" not in front


async def test_who_has_a_document_is_told_so_until_it_changes(client: Client) -> None:
    path = f"{API}/studies/{STUDY}"
    async with client.client.get(path) as answer:
        tag = answer.headers["ETag"]
        assert answer.headers["Cache-Control"] == "no-cache"
    async with client.client.get(path, headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304
        assert await answer.read() == b""


async def test_a_changed_study_is_another_revision(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    async with serving(ServeSettings(places=places)) as client:
        _, before = await client.get(f"{API}/studies")
        await client.service.ask(lambda store: store.set_target(STUDY, 9))
        _, after = await client.get(f"{API}/studies")
    assert before["studies"][0]["revision"] != after["studies"][0]["revision"]


async def test_a_promotion_has_its_files(client: Client) -> None:
    status, found = await client.get(f"{API}/promotions/{DEPLOYMENT}/1")
    assert status == 200
    texts = {file["path"]: file["text"] for file in found["files"]}
    assert texts
    assert all((template().parent / "out" / path).read_text() == text for path, text in texts.items())
    assert found["gate"]["verdict"] == "skipped"


@pytest.mark.parametrize(
    ("path", "status", "kind", "code"),
    [
        ("/studies/none", 404, "unknown-study", 22),
        ("/studies/..%2f..%2fetc/trials/0", 404, "unknown-study", 22),
        (f"/studies/{STUDY}/trials/999", 404, "unknown-trial", 23),
        (f"/studies/{STUDY}/trials/-1", 404, "not-found", None),
        (f"/studies/{STUDY}?slo=soon", 422, "invalid-value", 24),
        (f"/studies/{STUDY}?pick=best", 422, "invalid-value", 24),
        (f"/studies/{STUDY}?color=red", 422, "invalid-value", 24),
        (f"/studies/{STUDY}/front?pick=knee&pick=knee", 422, "invalid-value", None),
        (f"/compare?a={STUDY}:x&b={STUDY}", 422, "invalid-value", 24),
        ("/promotions/none", 404, "unknown-promotion", 34),
        (f"/promotions/{DEPLOYMENT}/7", 404, "unknown-promotion", 34),
        (f"/promotions/{DEPLOYMENT}/diff", 409, "not-promotable", 26),
        ("/nothing", 404, "not-found", None),
    ],
)
async def test_what_cannot_be_shown_is_a_problem_of_one_line(
    client: Client, path: str, status: int, kind: str, code: int | None
) -> None:
    async with client.client.get(API + path) as answer:
        assert answer.status == status
        assert answer.content_type == "application/problem+json"
        found = await answer.json()
    assert found["type"] == f"urn:autotune:problem:{kind}"
    assert (found["status"], found["exit_code"]) == (status, code)
    assert found["detail"]
    assert "\n" not in found["detail"]


async def test_a_problem_names_the_key_and_the_value(client: Client) -> None:
    _, found = await client.get(f"{API}/studies/{STUDY}?slo=soon")
    (fault,) = found["errors"]
    assert (fault["key"], fault["value"]) == ("slo", "soon")
    assert "METRIC" in fault["allowed"]


async def test_where_nothing_was_ever_tuned_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
        assert await client.get(f"{API}/studies") == (200, {"schema": 1, "studies": []})
        assert await client.get(f"{API}/promotions") == (200, {"schema": 1, "promotions": []})
        assert (await client.get(f"{API}/studies/x"))[0] == 404
        assert (await client.get(f"{API}/promotions/x"))[0] == 404
    assert not Path(tmp_path, "autotune.db").exists()  # noqa: ASYNC240 - looking makes no database


async def test_the_page_is_served_and_nothing_beside_it(client: Client) -> None:
    for path in ("/", "/studies/x", "/studies/x/trials/3", "/promotions", "/queue", "/new"):
        status, page = await client.get(path)
        assert status == 200
        assert page.startswith("<!doctype html>")
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/", "/static/none.js"):
        assert (await client.get(path))[0] == 404


async def test_prometheus_reads_figures_that_the_list_and_the_trials_have(client: Client) -> None:
    _, text = await client.get("/metrics")
    _, studies = await client.get(f"{API}/studies")
    _, study = await client.get(f"{API}/studies/{STUDY}")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    own = (("model", study["model"]), ("simulated", "true"), ("study", STUDY))
    measured = [trial for trial in study["trials"] if trial["outcome"] == "measured"]
    assert found["autotune_trials", *sorted((*own, ("outcome", "measured")))] == len(measured)
    best = max(trial["output_tok_s_per_gpu"] for trial in measured)
    assert found["autotune_best_output_tokens_per_second_per_gpu", *own] == pytest.approx(best)
    quickest = min(trial["ttft_p95_s"] for trial in measured)
    assert found["autotune_best_ttft_p95_seconds", *own] == pytest.approx(quickest)
    assert found["autotune_studies", ("state", "finished")] == len(studies["studies"]) == 1
    assert found["autotune_gpu_seconds_total", *own] > 0
    assert found["autotune_queue_length",] == 0
    assert not [key for key in found if key[0] == "autotune_study_phase"]


async def test_a_study_whose_tuner_was_killed_is_not_said_to_run(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    with Store.open(places.database) as store:
        store.set_study_state(STUDY, StudyState.RUNNING)
        number = len(store.trials(STUDY))
        store.begin_trial(STUDY, number=number, config=Config.of({}), origin=Origin.SAMPLER, gpus=1)
    trial = f"{API}/studies/{STUDY}/trials/{number}"
    path = f"{API}/studies/{STUDY}/page/front"
    async with serving(ServeSettings(places=places)) as client:
        with places.folder(STUDY).locked(LockHolder(pid=17, started=1.0)):
            async with client.client.get(path) as answer:
                told, tag = await answer.json(), answer.headers["ETag"]
            assert told["study"]["state"] == "running"
            assert (told["trials"][number]["outcome"], (await client.get(trial))[1]["outcome"]) == ("running",) * 2
        async with client.client.get(path, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200
            told = await answer.json()
        assert told["study"]["state"] == "interrupted"
        assert (told["trials"][number]["outcome"], (await client.get(trial))[1]["outcome"]) == ("interrupted",) * 2
        _, found = await client.get(f"{API}/studies/{STUDY}/trials?outcome=interrupted")
        assert [one["number"] for one in found["trials"]] == [number]
        _, listed = await client.get(f"{API}/studies")
        assert [one["state"] for one in listed["studies"]] == ["interrupted"]


async def test_a_study_whose_lock_a_verification_holds_is_what_it_was_stored_as(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    path = f"{API}/studies/{STUDY}/page/front"
    async with serving(ServeSettings(places=places)) as client:
        with places.folder(STUDY).locked(LockHolder(pid=17, started=1.0)):
            assert (await client.get(path))[1]["study"]["state"] == "finished"
        assert (await client.get(path))[1]["study"]["state"] == "finished"
