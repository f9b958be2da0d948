"""The manual: `python -m sphinx -W -b html docs build/manual`. Pages are Markdown that can be read where it lies."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

project = "autotune"
author = "the autotune developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "autotune"
html_show_copyright = False
highlight_language = "text"  # of blocks that name none: commands and what they print
exclude_patterns = ["schemas", "reports"]  # files that pages link to, not pages
myst_heading_anchors = 4  # pages link to headings as GitHub names them


def carry_files_outside(app: Sphinx, page: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    """Links that lead out of docs/ (`](../studies/x/README.md)`) become downloads: there is no page to go to."""
    source[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", r"](<path:\1>)", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", carry_files_outside)
