"""What people and programs see of a study: tables, JSON, CSV, a picture, a page, live progress.

`figures`, `html` and `progress` pull in matplotlib, jinja2 and rich's Live, so they are imported by their own names.
"""

from autotune.report.csv_view import trials_csv
from autotune.report.detail import trial_detail
from autotune.report.grid import print_to
from autotune.report.json_view import show_document, study_document, trial_document
from autotune.report.tables import as_text, front_table, studies_table, study_report, trials_table
from autotune.report.view import StudyRow, StudyView

__all__ = [
    "StudyRow",
    "StudyView",
    "as_text",
    "front_table",
    "print_to",
    "show_document",
    "studies_table",
    "study_document",
    "study_report",
    "trial_detail",
    "trial_document",
    "trials_csv",
    "trials_table",
]
