"""Every command that the docs show is one that the program takes: options, values, arguments. None of them is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from autotune.cli.main import command_line
from autotune.load.workloads import builtin_workloads
from autotune.node.gpus import parse_node_name
from autotune.promote import Target
from autotune.recipe import (
    EngineChoice,
    parse_busy,
    parse_gpu_hours,
    parse_gpus,
    parse_load,
    parse_parallel,
    parse_time,
    shipped_studies,
)
from autotune.records import Objective, PickRule
from autotune.search.samplers import check_sampler
from autotune.search.space import shipped_spaces
from autotune.slo_text import parse_slo

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "cli.md"})]
FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)
UP_TO_COMMENT = re.compile(r"""(?:'[^']*'|"[^"]*"|\S| (?! ))+""")
"""Beside a command, after two spaces or more, stands what it is for."""
COMMAND = re.compile(r"(?:^|[\s/;&|(])(autotune (?:[a-z]|--).*)")


def blocks(text: str) -> Iterator[str]:
    """Commands of fenced blocks; a line that ends in a backslash or within a quote goes on in the next."""
    for block in FENCED.findall(text):
        joined = ""
        for line in block.splitlines():
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined.removesuffix("\\")
                continue
            found = COMMAND.search(joined)
            if found and found[1].split("  ")[0].count("'") % 2:
                joined += " "
                continue
            if found:
                matched = UP_TO_COMMENT.match(found[1])
                assert matched
                yield matched[0]
            joined = ""


def mentions(text: str) -> Iterator[str]:
    """Commands within sentences: `autotune pareto STUDY`."""
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", FENCED.sub("", text)):
        if code.startswith("autotune ") and "autotune --" not in code:
            yield " ".join(re.sub(r"[\[\]]|(?<= )\.\.\.|\|\S+", " ", code).split())


def words_of(command: str) -> list[str]:
    """As a shell would split it, up to a pipe or a redirection; a placeholder (`STUDY`, `N`) becomes a 1."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append("1" if re.fullmatch(r"[A-Z]+", word) else word)
    return words[1:]


@cache
def whole() -> Any:
    """The command line; making it takes a fifth of a second."""
    return typer.main.get_command(command_line())


def parse(command: str) -> tuple[str, dict[str, Any]]:
    """The command's name and its parameters, by the program's own parser."""
    group: Any = whole()
    words, names = words_of(command), []
    context = group.make_context("autotune", [], resilient_parsing=True)
    while hasattr(group, "resolve_command"):
        name, group, words = group.resolve_command(context, words)
        names.append(name)
        ends = hasattr(group, "resolve_command")
        context = group.make_context(name, [] if ends else words, parent=context, resilient_parsing=ends)
    return " ".join(names), context.params


def known(names: tuple[str, ...]) -> Callable[[str], object]:
    """Takes one of `names`, or a file."""

    def check(value: str) -> None:
        assert value in names or Path(value).suffix, f"{value} is neither shipped nor a file"

    return check


def comma(check: Callable[[str], object]) -> Callable[[str], object]:
    return lambda value: [check(part) for part in value.split(",")]


VALUES: dict[str, Callable[[str], object]] = {
    "workload": known(builtin_workloads()),
    "space": known(("auto", "auto-wide", *shipped_spaces())),
    "file": known(tuple(path.stem for path in shipped_studies().glob("*.yaml"))),
    "node": parse_node_name,
    "sampler": check_sampler,
    "engine": EngineChoice,
    "objective": Objective,
    "pick": PickRule,
    "slo": parse_slo,
    "target": comma(Target),
    "gpus": parse_gpus,
    "load": parse_load,
    "max_time": lambda value: parse_time(value, "--max-time"),
    "max_gpu_hours": parse_gpu_hours,
    "gpu_busy": lambda value: parse_busy(value, "--gpu-busy"),
    "parallel": parse_parallel,
}
"""What the parser takes as text and the command reads later."""


def check(command: str) -> None:
    name, params = parse(command)
    assert name != "promote" or "--out" in command or "--git" in command, "promote has to know where to write"
    for key, value in params.items():
        if key in VALUES and isinstance(value, str) and value != "1" and "..." not in value:
            VALUES[key](value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_blocks_are_taken(page: Path) -> None:
    for command in blocks(page.read_text(encoding="utf-8")):
        try:
            check(command)
        except Exception as error:
            raise AssertionError(f"{page.name}: {command}\n{error!r}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist_with_their_options(page: Path) -> None:
    """An option may stand there without its value, and a command without what it needs."""
    for command in mentions(page.read_text(encoding="utf-8")):
        try:
            check(command)
        except Exception as error:
            # An error's own name, as Typer carries a click of its own.
            unfinished = type(error).__name__ == "MissingParameter" or "requires an argument" in str(error)
            if unfinished or "where to write" in str(error):
                continue
            raise AssertionError(f"{page.name}: {command}\n{error!r}: {error}") from error


@pytest.mark.parametrize(
    "wrong",
    [
        "autotune studdy --model x",
        "autotune study --modell x",
        "autotune study --trials 4 --repeats 1000",
        "autotune study --model x --workload chatt",
        "autotune study --model x --node 4xA1000",
        "autotune study --model x --slo ttft<=1s",
        "autotune promote",
        "autotune promote a b --target kubernetes",
        "autotune promote a --out x --target kubernets",
        "autotune promote a --target kubernetes",
        "autotune report a --format pdf",
        "autotune workload command chat --for ab --url http://x",
    ],
)
def test_a_wrong_command_is_found(wrong: str) -> None:
    with pytest.raises(Exception, match=r"."):
        check(wrong)


def test_commands_are_read_as_written() -> None:
    text = (
        "```\nautotune study --model X \\\n  --slo 'ttft_p95<=1s'   # why\n$ autotune list | head\n"
        "autotune study --vllm-command 'docker run\n  -p 1 {model}'\n*/15 * * * *  autotune check --url u > log\n```\n"
        "see `autotune show STUDY [TRIAL]`"
    )
    found = list(blocks(text))
    assert [words_of(command)[0] for command in found] == ["study", "list", "study", "check"]
    assert words_of(found[0]) == ["study", "--model", "1", "--slo", "ttft_p95<=1s"]
    assert words_of(found[1]) == ["list"]
    assert words_of(found[2])[-1] == "docker run -p 1 {model}"
    assert list(mentions(text)) == ["autotune show STUDY TRIAL"]
    assert sum(1 for page in PAGES for _ in blocks(page.read_text(encoding="utf-8"))) > 60
