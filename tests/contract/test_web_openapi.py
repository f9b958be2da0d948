"""The OpenAPI document tells the truth: every route is in it, every answer is as it says, and whatever it allows, or
does not allow, is answered as it says by a service that is asked a thousand odd questions."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel
from web_service import DEPLOYMENT, STUDY, serving, studies_in, template

from autotune.store.places import Places
from autotune.web.api import ROUTES
from autotune.web.app import make_app
from autotune.web.openapi import openapi_document
from autotune.web.pages import VIEWS
from autotune.web.route import Route
from autotune.web.settings import Limits, ServeSettings
from autotune.web.tokens import hashed

PROGRAM = (sys.executable, str(Path(__file__).with_name("web_program.py")))
DOCUMENT = openapi_document(ROUTES, token=True)
PAGES = {*VIEWS, "/login", "/static/{file}"}
LATER = ("get_job", "get_job_log", "get_diff", "get_node")
"""Asked below, once there is a job, a second promotion, and the machine's name."""
READ = [
    route
    for route in ROUTES
    if route.method == "GET" and route.media != "text/event-stream" and route.operation not in LATER
]


def test_every_route_is_documented_and_every_document_is_a_route() -> None:
    app = make_app(ServeSettings(places=Places(root=Path("nowhere"))))
    there = {
        (route.method.lower(), re.sub(r":[^{}]*\}", "}", route.resource.canonical))
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    documented = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert there - documented == {("get", page) for page in PAGES}
    assert documented <= there


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_every_schema_is_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    used = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)))
    assert used <= schemas.keys()


def example(route: Route) -> str:
    known = {"name": STUDY, "number": "0", "part": "front", "version": "1", "id": "j-000001"}
    if "/promotions/" in route.path:
        known["name"] = DEPLOYMENT
    path = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], route.path)
    return path + {"/api/v1/compare": f"?a={STUDY}:0&b={STUDY}:1"}.get(route.path, "")


@pytest.mark.parametrize("route", READ, ids=lambda one: one.operation)
async def test_every_answer_is_as_its_model_says_and_no_key_more(route: Route) -> None:
    async with serving(ServeSettings(places=Places(root=template()))) as client:
        status, found = await client.get(example(route))
    assert status == route.status
    if route.answer is not None:
        held(route.answer, found)


def held(model: type[BaseModel], found: Any) -> None:
    """Forbids what is not in the model, and takes no number for a text."""
    model.model_validate(found, strict=False, by_alias=True)


async def test_answers_that_need_something_to_have_happened(tmp_path: Path) -> None:
    answers = {route.operation: route.answer for route in ROUTES}
    api = "/api/v1"
    settings = ServeSettings(places=studies_in(tmp_path), promotions_dir=tmp_path)
    async with serving(settings, program=PROGRAM) as client:
        body = {"study": STUDY, "targets": ["compose"], "trial": 1, "allow_simulated": True, "name": DEPLOYMENT}
        asked: list[tuple[str, str, str, Any]] = [
            ("create_study", "POST", "studies", {"model": "org/x", "name": "new"}),
            ("create_promotion", "POST", "promotions", body),
            ("preview_promotion", "POST", "previews", body),
            ("stop_study", "POST", "studies/small/stop", {}),
            ("start_study", "POST", "studies/again/start", {}),
            ("get_job", "GET", "jobs/j-000001", None),
            ("get_job_log", "GET", "jobs/j-000001/log", None),
            ("stop_job", "DELETE", "jobs/j-000001", None),
            ("list_jobs", "GET", "jobs", None),
            ("get_node", "GET", "nodes/cpu", None),
        ]
        (settings.folder / "studies").mkdir(parents=True, exist_ok=True)
        (settings.folder / "studies" / "again.yaml").write_text("model: org/x\n")
        for operation, method, path, sent in asked:
            status, found = await client.send(method, f"{api}/{path}", json=sent, headers={"X-Autotune": "1"})
            if operation == "get_node" and status == 404:
                continue  # a machine with GPUs
            assert status < 300, (operation, found)
            model = answers[operation]
            assert model is not None
            held(model, found)


async def test_a_rollback_is_as_its_model_says(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    settings = ServeSettings(places=places, promotions_dir=template().parent)
    async with serving(settings) as client:
        status, found = await client.post(
            f"/api/v1/promotions/{DEPLOYMENT}/rollback", {"to": 1, "author": "me", "reason": f"x hf_{'a' * 34}"}
        )
        assert status == 200
        assert found["reason"] == "x <redacted>"
        held(next(route.answer for route in ROUTES if route.operation == "roll_back_deployment"), found)
        assert (found["version"], found["restores"], found["author"]) == (2, 1, "me")
        status, found = await client.get(f"/api/v1/promotions/{DEPLOYMENT}/diff?a=1&b=2")
        held(next(route.answer for route in ROUTES if route.operation == "get_diff"), found)


@pytest.mark.no_cover
async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """All operations but the endless ones, asked with the token and without it."""
    token = "t" * 40
    settings = ServeSettings(
        places=studies_in(tmp_path),
        token_hashes=(hashed(token),),
        limits=Limits(rate_rps=1e9, burst=10**9, logins_per_minute=10**9),
    )
    async with serving(settings, program=PROGRAM) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", str(client.client.make_url("/api/v1/openapi.json"))),
            *("-H", f"Authorization: Bearer {token}", "--max-examples", "3", "--seed", "1"),
            *("--phases", "coverage,fuzzing", "--exclude-path-regex", "events$", "--suppress-health-check", "all"),
            # Whether a model, a trial or an SLO is one, no schema says.
            *("--exclude-checks", "positive_data_acceptance", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    said = out.decode()
    assert process.returncode == 0, said[-4000:]
    tested = re.search(r"(\d+) generated", said)
    assert tested is not None
    assert int(tested[1]) > 300
