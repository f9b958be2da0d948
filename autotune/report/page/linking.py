"""The page's modules as one script, for a file on a disk, where modules may not import each other. Pure.

Each module becomes a function that is called once, after those that it imports, and hands back what it exports. What
does not fit the few forms that are used here is an error, not a page that stays white.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{ (?P<names>[\w$, ]+) \} from "\./(?P<file>[a-z0-9_-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (?P<name>[A-Za-z_$][\w$]*))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b", re.MULTILINE)


def linked(modules: Mapping[str, str], start: str) -> str:
    """One classic script that runs `start` after everything that it needs.

    Args:
        modules: text by file name.

    Raises:
        ValueError: a module that is not there, modules that import each other in a circle, or an import or export of
            another form than `import { a, b } from "./file.js";` and `export` before what it names.
    """
    parts = ['"use strict";', "const modules = {};"]
    for name in _ordered(modules, start):
        text = modules[name]
        names = [found["name"] for found in _EXPORT.finditer(text)]
        local = _EXPORT.sub(
            "", _IMPORT.sub(lambda found: f"const {{ {found['names']} }} = modules[{found['file']!r}];\n", text)
        )
        if _OTHER.search(local):
            raise ValueError(f"{name}: an import or export of a form that cannot be put into one file")
        parts += [f"modules[{name!r}] = (() => {{", local.rstrip(), f"return {{ {', '.join(names)} }};", "})();"]
    return "(() => {\n" + "\n".join(parts) + "\n})();\n"


def _ordered(modules: Mapping[str, str], start: str) -> list[str]:
    """`start` and what it imports, each after its own imports."""
    ordered: list[str] = []
    above: list[str] = []

    def visit(name: str) -> None:
        if name in ordered:
            return
        if name in above:
            raise ValueError(f"modules import each other in a circle: {' -> '.join([*above, name])}")
        if name not in modules:
            raise ValueError(f"{above[-1] if above else start} imports {name}, which is not there")
        above.append(name)
        for found in _IMPORT.finditer(modules[name]):
            visit(found["file"])
        above.pop()
        ordered.append(name)

    visit(start)
    return ordered
