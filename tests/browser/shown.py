"""What a page shows, waited for: it draws in parts and after its events, so that nothing is looked at only once."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

PATIENCE_MS = 120_000
"""For what is to appear: what hangs is later than that, and nothing that is slow."""

expect.set_options(timeout=PATIENCE_MS)


def ready(page: Any) -> Any:
    """Waits until every part is drawn."""
    page.wait_for_selector("#main:not([aria-busy])")
    expect(page.locator("text=Working it out")).to_have_count(0)
    return page


def expect_pick(page: Any, number: int | None, where: str = "") -> None:
    """Waits until this trial is recommended, or none is."""
    heading = page.locator(".verdict h2").first
    expect(heading).to_be_visible()  # what is not there says "Pick" neither
    title = expect(heading, where or None)
    if number is None:
        title.not_to_contain_text("Pick: trial")
    else:
        title.to_have_text(re.compile(rf"Pick: trial {number}(?!\d)"))
