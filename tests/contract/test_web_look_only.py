"""A service that shows, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from web_service import DEPLOYMENT, STUDY, serving, studies_in

from autotune.store.archive import export_study, import_study
from autotune.store.archive_file import open_archive
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.web.api import ROUTES
from autotune.web.route import STATE_CHANGING
from autotune.web.settings import ServeSettings
from autotune.web.tokens import hashed

API = "/api/v1"
TOKEN = "a-token-of-some-length"


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_every_operation_that_would_change_something_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    before = files_in(places.root)
    names = {"{name}": STUDY, "{id}": "j-000001", "{number}": "0"}
    async with serving(ServeSettings(places=places, look_only=True)) as client:
        assert (await client.get(f"{API}/session"))[1]["look_only"] is True
        tried = set()
        for route in ROUTES:
            if route.method in STATE_CHANGING and not route.open_to_all:
                path = route.path
                for name, value in names.items():
                    path = path.replace(name, value)
                status, found = await client.send(route.method, path, json={})
                assert (status, found["type"]) == (403, "urn:autotune:problem:look-only"), path
                tried.add(route.operation)
        assert {"create_study", "start_study", "stop_study", "create_promotion", "stop_job"} <= tried
        assert (await client.get(f"{API}/studies"))[1]["studies"][0]["name"] == STUDY
        for path in (
            f"studies/{STUDY}/front",
            f"studies/{STUDY}/trials/0",
            f"promotions/{DEPLOYMENT}",
            "jobs",
            "nodes",
        ):
            assert (await client.get(f"{API}/{path}"))[0] == 200, path
        _, summary = await client.get(f"{API}/studies/{STUDY}/summary")
        assert (summary["can_start"], summary["why_not"]) == (False, "this service shows, and changes nothing")
        assert summary["made_here"] is False
    assert files_in(places.root) == before


async def test_it_stands_beside_the_service_that_has_the_folder(tmp_path: Path) -> None:
    places = Places(root=tmp_path / "studies")
    async with (
        serving(ServeSettings(places=places)) as one,
        serving(ServeSettings(places=places, look_only=True)) as other,
    ):
        assert (await one.get(f"{API}/session"))[1]["look_only"] is False
        assert await other.get(f"{API}/studies") == await one.get(f"{API}/studies")


async def test_its_token_is_asked_for_and_taken(tmp_path: Path) -> None:
    settings = ServeSettings(places=studies_in(tmp_path), look_only=True, token_hashes=(hashed(TOKEN),))
    async with serving(settings) as client:
        assert (await client.get(f"{API}/studies"))[0] == 401
        assert (await client.post(f"{API}/session", {"token": TOKEN}))[0] == 204
        assert (await client.get(f"{API}/studies"))[0] == 200
        assert (await client.post(f"{API}/studies", {"model": "m"}))[0] == 403


async def test_a_database_role_that_may_only_select_is_enough(tmp_path: Path, own_postgres_url: str) -> None:
    import psycopg

    made, places = studies_in(tmp_path), Places(root=tmp_path / "there", storage=own_postgres_url)
    with Store.open(made.database) as store:
        export_study(store, made.root, STUDY, tmp_path / "study.zip")
    with Store.open(own_postgres_url) as store, open_archive(tmp_path / "study.zip") as archive:
        import_study(store, places.root, archive, STUDY)
    before = files_in(places.root)
    with psycopg.connect(own_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE looker LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO looker")
    try:
        looking = replace(places, storage=own_postgres_url.replace("autotune@", "looker@"))
        async with serving(ServeSettings(places=looking, look_only=True)) as client:
            status, listed = await client.get(f"{API}/studies")
            assert status == 200, listed
            assert [study["name"] for study in listed["studies"]] == [STUDY]
            for path in ("summary", "front", "trials", "trials/0", "page/front", "page/evidence", "page/learned"):
                status, found = await client.get(f"{API}/studies/{STUDY}/{path}")
                assert status == 200, found
    finally:
        with psycopg.connect(own_postgres_url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY looker")
            connection.execute("DROP ROLE looker")
    assert files_in(places.root) == before
