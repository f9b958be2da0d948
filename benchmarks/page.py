"""How long a study's page takes to show its front: `python -m benchmarks.page [--json] [--trials 1000] [--repeats 5]`.

The service runs on the loopback, a headless Chromium (AUTOTUNE_TEST_CHROMIUM, else the one on the PATH) opens the page
of a made-up study. *Shown* is the first frame that has the front, the pick and every dominated config in it, counted
from the beginning of the navigation; *cold* is the first look after the service began, when nothing is kept yet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from autotune.store.places import Places
from autotune.web.app import make_app
from autotune.web.settings import ServeSettings
from benchmarks.large_study import STUDY, make_large_study

GOAL_S = 1.0
"""Of a study of 1,000 trials, on the loopback."""

WATCH = """
addEventListener('DOMContentLoaded', () => {
  const look = () => {
    if (document.querySelector('figure .mark.k-pick')) {
      requestAnimationFrame(() => requestAnimationFrame(() => { window.shown = performance.now() / 1000; }));
    } else requestAnimationFrame(look);
  };
  look();
});
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chromium = os.environ.get("AUTOTUNE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium here: apt-get install chromium, or name one in AUTOTUNE_TEST_CHROMIUM")
    found = measured(chromium, args.trials, args.repeats)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['trials']:,} trials, {found['marks']:,} configs drawn, seconds from navigation to the front on screen"
    )
    for name in ("cold_s", "warm_s"):
        met = "met" if found[name] <= GOAL_S else "missed"
        print(f"  {name:8}{found[name]:6.2f}  goal {GOAL_S:g}: {met}")
    print(f"  every part there {found['whole_s']:.1f} (warm); warm is the median of {args.repeats}")


def measured(chromium: str, trials: int, repeats: int) -> dict[str, Any]:
    """Seconds; one cold look and some warm ones."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="autotune-page-") as folder:
        root = Path(folder)
        make_large_study(root / "autotune.db", trials)
        with _served(root) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            browser.new_page().goto("about:blank")
            looks = [_look(browser, f"{address}/studies/{STUDY}") for _ in range(1 + repeats)]
            browser.close()
    return {
        "schema": 1,
        "trials": trials,
        "marks": looks[0]["marks"],
        "cold_s": looks[0]["shown_s"],
        "warm_s": statistics.median(look["shown_s"] for look in looks[1:]),
        "whole_s": statistics.median(look["whole_s"] for look in looks[1:]),
    }


def _look(browser: Any, address: str) -> Mapping[str, float]:
    """One visit by somebody who was never here."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(address)
    while page.evaluate("window.shown ?? null") is None:
        page.wait_for_timeout(20)
    shown_s, marks = page.evaluate("[window.shown, document.querySelectorAll('figure .mark[data-number]').length]")
    page.locator("text=Working it out").first.wait_for(state="detached", timeout=120_000)
    whole_s = page.evaluate("performance.now() / 1000")
    context.close()
    return {"shown_s": shown_s, "marks": marks, "whole_s": whole_s}


@contextmanager
def _served(root: Path) -> Iterator[str]:
    """The service in a thread with a loop of its own."""
    loop, over, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        runner = web.AppRunner(make_app(ServeSettings(places=Places(root=root))), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait()
    yield address[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


if __name__ == "__main__":
    main()
