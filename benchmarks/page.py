"""How long a study's page takes to show its front: `python -m benchmarks.page [--json] [--trials 1000] [--repeats 5]`.

`autotune serve` runs on the loopback as a process of its own, a headless Chromium (AUTOTUNE_TEST_CHROMIUM, else the one
on the PATH) opens the page of a made-up study. *Shown* is the first frame that has the front, the pick and every
dominated config in it, counted from the beginning of the navigation; *first paint* is what the browser itself calls so:
the bar and a word that the rest is loading. *Cold* is the first look after the service began, when nothing is kept yet.
The browser, the service and this program share the machine's cores with whatever else runs: its load is told.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    parser.add_argument("--repeats", type=int, default=5, help="looks when the service has the study's documents")
    parser.add_argument("--cold", type=int, default=3, help="services that are begun anew, with one first look each")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chromium = os.environ.get("AUTOTUNE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("no chromium here: apt-get install chromium, or name one in AUTOTUNE_TEST_CHROMIUM")
    found = measured(chromium, args.trials, args.repeats, args.cold)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['trials']:,} trials, {found['marks']:,} configs drawn, seconds from navigation, median (all)")
    for name, word in (("cold", "front shown, cold"), ("warm", "front shown, warm"), ("paint", "first paint, cold")):
        values = found[f"{name}_s"]
        median = statistics.median(values)
        met = "met" if median <= GOAL_S else "missed"
        print(f"  {word:20}{median:6.2f}  goal {GOAL_S:g}: {met:6}  ({', '.join(f'{one:.2f}' for one in values)})")
    print(f"  every part there {statistics.median(found['whole_s']):.1f} (warm)")
    print(f"  {found['cores']} cores, load average {found['load']:.1f}")


def measured(chromium: str, trials: int, repeats: int, cold: int) -> dict[str, Any]:
    """Seconds of each look."""
    from playwright.sync_api import sync_playwright

    cold_looks, warm_looks = list[Mapping[str, float]](), list[Mapping[str, float]]()
    with tempfile.TemporaryDirectory(prefix="autotune-page-") as folder, sync_playwright() as playwright:
        root = Path(folder) / "studies"
        root.mkdir()
        make_large_study(root / "autotune.db", trials)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for number in range(cold):
            with _served(root) as address:
                looks = [_look(browser, f"{address}studies/{STUDY}") for _ in range(1 if number else 1 + repeats)]
            cold_looks.append(looks[0])
            warm_looks += looks[1:]
        browser.close()
    return {
        "schema": 2,
        "trials": trials,
        "marks": cold_looks[0]["marks"],
        "cold_s": [look["shown_s"] for look in cold_looks],
        "warm_s": [look["shown_s"] for look in warm_looks],
        "paint_s": [look["paint_s"] for look in cold_looks],
        "whole_s": [look["whole_s"] for look in warm_looks],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "goal_s": GOAL_S,
    }


def _look(browser: Any, address: str) -> Mapping[str, float]:
    """One visit by somebody who was never here."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(address)
    while page.evaluate("window.shown ?? null") is None:
        page.wait_for_timeout(50)
    shown_s, marks = page.evaluate("[window.shown, document.querySelectorAll('figure .mark[data-number]').length]")
    paint_s = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
    page.locator("text=Working it out").first.wait_for(state="detached", timeout=120_000)
    whole_s = page.evaluate("performance.now() / 1000")
    context.close()
    return {"shown_s": shown_s, "marks": marks, "whole_s": whole_s, "paint_s": paint_s}


@contextmanager
def _served(root: Path) -> Iterator[str]:
    """The service, as an operator runs it; its address."""
    words = (sys.executable, "-m", "autotune", "serve", "--port", "0", "--studies-dir", str(root))
    environment = {**os.environ, "AUTOTUNE_LEASE_DIR": str(root.parent / "leases")}
    service = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert service.stdout is not None  # it is a pipe
        yield service.stdout.readline().split()[-1]
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
