"""What the docs promise is there: settings, caveats, exit codes and commands have their place, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.errors import ExitCode
from autotune.recipe import LoadFile, StudyFile

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "autotune").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]


def headings(page: Path) -> set[str]:
    return {line.lstrip("#").strip() for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")}


def texts() -> Iterator[str]:
    """Every string in the program."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def caveat_codes() -> set[str]:
    found = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Caveat":
                code = next(word.value for word in node.keywords if word.arg == "code")
                assert isinstance(code, ast.Constant), f"{source}: a caveat's code must be written out"
                found.add(code.value)
    return found


def test_every_key_of_a_study_file_has_a_heading() -> None:
    missing = set(StudyFile.model_fields) - headings(DOCS / "settings.md")
    assert missing == set()


def test_every_key_of_a_load_is_explained() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert [key for key in LoadFile.model_fields if f"{key}:" not in text] == []


def test_every_variable_has_a_heading_and_every_heading_a_variable() -> None:
    used = {name for text in texts() for name in re.findall(r"\bAUTOTUNE_[A-Z_]+\b", text)}
    assert "AUTOTUNE_VLLM_COMMAND" in used
    documented = {heading for heading in headings(DOCS / "settings.md") if heading.startswith("AUTOTUNE_")}
    assert used == documented


def test_every_caveat_has_an_entry_and_every_entry_a_caveat() -> None:
    codes = caveat_codes()
    assert {"client_late", "too_slow"} <= codes
    listed = {heading for heading in headings(DOCS / "measuring.md") if re.fullmatch(r"[a-z_]+", heading)}
    assert listed == codes


def test_every_exit_code_has_a_heading() -> None:
    numbers = {int(heading.split()[0]) for heading in headings(DOCS / "exit-codes.md") if heading[0].isdigit()}
    assert numbers == {int(code) for code in ExitCode}


@pytest.mark.parametrize("page", ["api", "cli", "database"])
def test_a_generated_page_is_in_step(page: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / f"generate_{page}.py"), "--check"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_every_page_is_in_the_manual_once() -> None:
    """The gate builds it and fails on pages that nothing leads to; here it is said at once."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert len(trees) >= 3
    assert sorted(listed) == sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")


def test_pages_begin_with_their_title_and_skip_no_level() -> None:
    """What the manual's builder demands; code in fences may begin with a sign of its own."""
    for page in DOCS.glob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        levels = [len(found) for found in re.findall(r"^(#+) ", text, flags=re.MULTILINE)]
        assert (levels[0], levels.count(1)) == (1, 1), page.name
        assert all(after - before <= 1 for before, after in pairwise(levels)), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_is_in_a_table_with_a_head(page: Path) -> None:
    """Rows behind an empty line are shown as text with bars."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for rows in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, bar, *_ = (*rows.splitlines(), "")
        assert re.fullmatch(r"\|(?: *:?-+:? *\|)+", bar), head
        widths = {len(row.replace(r"\|", "").split("|")) for row in rows.splitlines()}
        assert len(widths) == 1, f"rows of different widths: {head}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


def test_every_room_is_in_the_architecture_once() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    listed = [name for cell in re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE) for name in cell.split(", ")]
    rooms = {path.name + "/" for path in (ROOT / "autotune").iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in (ROOT / "autotune").glob("*.py") if not path.name.startswith("__")}
    assert sorted(listed) == sorted(f"`{name}`" for name in rooms | modules)


def test_every_row_of_the_guide_that_sources_name_is_on_its_page() -> None:
    named = {row for text in texts() for row in re.findall(r"\bG[1-4]?[0-9]\b", text)}
    assert {"G7", "G34"} <= named
    page = (DOCS / "guide.md").read_text(encoding="utf-8")
    assert named <= set(re.findall(r"^\| (G\d+) \|", page, flags=re.MULTILINE))


def test_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = dict(re.findall(r"<!-- command: (\w+) -->\n```\n(.+)\n```", text))
    assert set(commands) == {"run", "test"}
    assert commands["run"].endswith(
        "autotune study --model meta-llama/Llama-3.1-8B-Instruct --workload chat",
    )
    assert commands["test"].endswith(".venv/bin/pytest -n logical")  # the whole suite, on every core
