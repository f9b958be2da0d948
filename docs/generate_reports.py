"""Write docs/reports/*.html from the studies that are recorded in studies/: `python docs/generate_reports.py`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from autotune.review.report import report_document, report_html
from autotune.review.views import view_of
from autotune.store.places import Places
from autotune.store.repository import Store

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ("h200-llama-8b-chat", "h200-llama-8b-chat-2", "h200-x2-layouts")


def main() -> int:
    """Write all of them; their request records lie beside the database under other names than a study's own."""
    for name in RECORDED:
        folder = ROOT / "studies" / name
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            shutil.copy(folder / "autotune.db", root)
            with Store.open(root / "autotune.db", create=False) as store:
                (study,) = store.studies()
                for path in folder.glob("trial-*-ttft.jsonl.gz"):
                    target = root / study.name / f"trial-{int(path.name.split('-')[1]):04d}"
                    target.mkdir(parents=True)
                    shutil.copy(path, target / "level-ttft.jsonl.gz")
                places = Places(root=root)
                view = view_of(store, study, places)
                document = report_document(store, study, places, view)
        out = ROOT / "docs" / "reports" / f"{name}.html"
        out.write_text(report_html(document, view), encoding="utf-8")
        sys.stdout.write(f"wrote {out.relative_to(ROOT)}, {out.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
