"""From a measured trial to something production can run: the deployment record, its targets, its history."""

from autotune.promote.command import serve_argv, serve_line
from autotune.promote.from_trial import Story, Wishes, deployment_from
from autotune.promote.history import Entry, Offered, Promotion
from autotune.promote.manifest import Deployment, Provenance, StudyFacts
from autotune.promote.rendering import RenderedFile
from autotune.promote.targets import Target, render
from autotune.promote.writing import write_files

__all__ = [
    "Deployment",
    "Entry",
    "Offered",
    "Promotion",
    "Provenance",
    "RenderedFile",
    "Story",
    "StudyFacts",
    "Target",
    "Wishes",
    "deployment_from",
    "render",
    "serve_argv",
    "serve_line",
    "write_files",
]
