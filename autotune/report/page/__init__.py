"""The data of a study's page, in parts that are JSON: one source for the service's page and for `autotune report`.

```
front      trials, configs, front, pick, growth: quick, so that the first picture is there at once
certainty  how sure each place is, ties, the pick for every limit of the p95 TTFT
evidence   node, what servers said, verdicts, failures with remedies, load curves, distributions of TTFT
learned    what `autotune explain --json` says
```
"""

from autotune.report.page.certainty_part import certainty_part
from autotune.report.page.evidence_part import curve_document, evidence_part, shown_numbers
from autotune.report.page.front_part import Control, Facts, front_part
from autotune.report.page.spread import Spread, spread_of

__all__ = [
    "Control",
    "Facts",
    "Spread",
    "certainty_part",
    "curve_document",
    "evidence_part",
    "front_part",
    "shown_numbers",
    "spread_of",
]
