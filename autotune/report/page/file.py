"""`autotune report`: the page of a study as one HTML file, with everything inside."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from autotune.report.page.linking import linked

START = "report.js"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="{generator}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top" id="top"></header>
<main id="main" tabindex="-1" aria-busy="true">
<noscript><h1>{title}</h1><p>{summary}</p><p>The pictures are drawn with JavaScript, which is off here.</p></noscript>
</main>
<div id="live" class="unseen" role="status" aria-live="polite"></div>
<script type="application/json" id="autotune-data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""


def report_file(document: dict[str, Any], *, title: str, summary: str) -> str:
    """The file's text. Its own policy lets nothing run or load but what is inside, by hash.

    Args:
        document: `study`, `version`, `written_at`, `parts`, `trials`, `comparisons`, `promotions`: JSON-able.
        summary: what it says without JavaScript, one sentence.
    """
    style, library, script = assets()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _PAGE.format(
        policy=escape(policy),
        generator=escape(f"autotune {document['version']}"),
        title=escape(title),
        summary=escape(summary),
        style=style,
        data=embedded(document),
        library=library,
        script=script,
    )


def embedded(document: dict[str, Any]) -> str:
    """JSON that no text in it can end early: inside a script element only `<` could."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def assets() -> tuple[str, str, str]:
    """Style sheet, charting library and script, as they stand in the file."""
    static = files("autotune").joinpath("web", "static")
    modules = {
        one.name: one.read_text(encoding="utf-8") for one in static.joinpath("js").iterdir() if one.name.endswith(".js")
    }
    style = static.joinpath("page.css").read_text(encoding="utf-8")
    library = static.joinpath("vendor", "d3.min.js").read_text(encoding="utf-8")
    return style, library, linked(modules, START)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
