"""Which commands there are, and what a command has to import before it starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.main import MODULES, command_line, needed
from autotune.store.repository import Store
from benchmarks.large_study import STUDY, TEMPLATE

HEAVY = ("numpy", "optuna", "alembic", "sqlalchemy.orm", "matplotlib", "aiohttp", "tokenizers", "numba", "jinja2")
FRONT = ("optuna", "alembic", "matplotlib", "aiohttp", "tokenizers", "numba", "jinja2")


def names(modules: tuple[str, ...]) -> list[str]:
    app = command_line(modules)
    return [one.name for one in (*app.registered_commands, *app.registered_groups) if isinstance(one.name, str)]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_adds_the_commands_that_it_is_made_for(module: str) -> None:
    assert names((module,)) == list(MODULES[module])


def test_a_command_needs_its_own_module_and_anything_else_needs_all() -> None:
    assert [needed(word) for word in ("list", "import", "bench")] == [("review",), ("archive",), ("bench",)]
    for word in (None, "--help", "--version", "lst", ""):
        assert needed(word) == tuple(MODULES)


@pytest.mark.parametrize(
    ("words", "needless"),
    [
        (("--help",), ("sqlalchemy", *HEAVY)),
        (("list",), HEAVY),
        (("status",), HEAVY),
        (("pareto", STUDY), FRONT),
    ],
    ids=lambda given: given[0],
)
def test_what_takes_long_to_import_and_is_not_needed_is_not_imported(
    words: tuple[str, ...], needless: tuple[str, ...], tmp_path: Path
) -> None:
    """By name, as a limit of time would depend on the machine; `benchmarks.storage` has the times."""
    shutil.copyfile(TEMPLATE, tmp_path / "autotune.db")
    Store.open(tmp_path / "autotune.db").close()  # as this version has it: migrating takes longer
    place = () if words == ("--help",) else ("--studies-dir", str(tmp_path))
    program = (
        "import sys; from autotune.cli.main import main; sys.argv = ['autotune', *sys.argv[2:]]\n"
        "try:\n    main()\n"
        "finally:\n    print(*sorted(sys.modules), file=open('modules', 'w'))\n"
    )
    command = [sys.executable, "-c", program, "--", *words, *place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported = (tmp_path / "modules").read_text().split()
    assert "autotune.cli.reporting" in imported
    assert [name for name in needless if name in imported] == []
