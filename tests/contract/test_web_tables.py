"""A service on a database server: what a dashboard needs there is there when the service answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from sqlalchemy import inspect

from autotune.store.connection import connect, locate
from autotune.store.places import Places
from autotune.web.app import make_app
from autotune.web.settings import ServeSettings


def tables(url: str) -> set[str]:
    engine = connect(locate(url), create=False)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


async def test_tables_of_both_are_made(own_postgres_url: str, tmp_path: Path) -> None:
    assert tables(own_postgres_url) == set()
    app = make_app(ServeSettings(places=Places(root=tmp_path, storage=own_postgres_url)))
    async with TestClient(TestServer(app)) as client:
        assert {"autotune_studies", "version_info", "studies"} <= tables(own_postgres_url)
        assert (await client.get("/healthz")).status == 200


async def test_a_service_starts_before_its_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = "postgresql://autotune@127.0.0.1:1/nowhere?connect_timeout=1"
    app = make_app(ServeSettings(places=Places(root=tmp_path, storage=url)))
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/healthz")).status == 200
        answer = await client.get("/api/v1/studies")
        assert (answer.status, (await answer.json())["type"]) == (500, "urn:autotune:problem:storage")
    assert "tables are not made" in caplog.text
