"""A real, headless Chromium that the machine has; its tests are skipped, with that reason, where it has none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_studies
import pytest
from shown import PATIENCE_MS
from sizes import WIDE

from autotune.review.report import report_document, report_html
from autotune.review.views import view_of
from autotune.store.places import Places
from autotune.store.repository import Store

CHROMIUM = os.environ.get("AUTOTUNE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="no chromium on this machine (apt-get install chromium, or AUTOTUNE_TEST_CHROMIUM)")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(skip)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For one module: while it is open an event loop runs in this thread, and no asynchronous test could."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def looking(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address; at the end of the test nothing may have been said to the console, CSP violations included."""
    contexts, said = [], []

    def opened(address: str, *, viewport: Any = WIDE, scheme: str = "light", expected: tuple[str, ...] = ()) -> Any:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()

        def told(text: str) -> None:
            if not any(part in text for part in expected):
                said.append(text)

        page.on("console", lambda message: told(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: told(str(error)))
        contexts.append(context)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Studies in every state, in one database that no test writes to."""
    root = tmp_path_factory.mktemp("studies")
    made_studies.make_all(root / "autotune.db")
    return Places(root=root)


@pytest.fixture(scope="session")
def report(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Address of the report's file of a study, written once."""
    folder, written = tmp_path_factory.mktemp("reports"), dict[str, str]()

    def address(name: str) -> str:
        if name not in written:
            with Store.open(places.database, create=False) as store:
                study = store.study(name)
                view = view_of(store, study, places)
                page = report_html(report_document(store, study, places, view), view)
            path = folder / f"{name}.html"
            path.write_text(page, encoding="utf-8")
            written[name] = path.as_uri()
        return written[name]

    return address
