"""What the docs promise is there: settings, caveats, exit codes and commands have their place, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import ExitCode
from autotune.recipe import _LoadFile, _StudyFile

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
    missing = set(_StudyFile.model_fields) - headings(DOCS / "settings.md")
    assert missing == set()


def test_every_key_of_a_load_is_explained() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert [key for key in _LoadFile.model_fields if f"{key}:" not in text] == []


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


def test_the_command_line_page_is_in_step() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_cli.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert broken == []


def test_every_room_is_in_the_architecture() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.name + "/" for path in (ROOT / "autotune").iterdir() if (path / "__init__.py").exists()}
    modules = {path.name for path in (ROOT / "autotune").glob("*.py") if not path.name.startswith("__")}
    assert [name for name in sorted(rooms | modules) if f"`{name}`" not in text] == []


def test_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = dict(re.findall(r"<!-- command: (\w+) -->\n```\n(.+)\n```", text))
    assert set(commands) == {"run", "test"}
    assert commands["run"].endswith(
        "autotune study --model meta-llama/Llama-3.1-8B-Instruct --workload chat",
    )
    assert commands["test"].endswith(".venv/bin/pytest -n logical")  # the whole suite, on every core


def test_commands_in_the_readme_exist_with_their_options() -> None:
    """Options that follow `--` are the server's, and so are those inside quotes."""
    sections = re.split(r"^## autotune ", (DOCS / "cli.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    known: dict[str, set[str]] = {}
    for section in sections:  # commands of a group share its name
        known.setdefault(section.split()[0], set()).update(re.findall(r"`[^`]*`", section))
    seen = 0
    for block in re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL):
        commands = re.sub(r"'[^']*'|\"[^\"]*\"", "", re.sub(r" +# .*", "", block))
        for line in commands.splitlines():
            found = re.search(r"(?:^|/)autotune ([a-z-]+)(.*)", line)
            if not found:
                continue
            own = found[2].split(" -- ")[0]
            spelled = {word.strip("`") for cell in known[found[1]] for word in cell.split(", ")}
            assert set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", own)) <= spelled, line
            seen += 1
    assert seen >= 15
