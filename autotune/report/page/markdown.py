"""A study for a pull request: Markdown with the pick, its evidence and the front. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records import Outcome, Trial
from autotune.report.certainty import certainty_lines, marks, pick_doubt
from autotune.report.quality_text import COLUMN as ANSWERS
from autotune.report.quality_text import quality_cell, quality_of
from autotune.report.running import marks_running, running_lines
from autotune.report.view import StudyView
from autotune.report.wording import (
    brief_latency,
    brief_rate,
    brief_requests,
    changes,
    ending,
    gain,
    printable,
)
from autotune.search.objective import is_goodput

_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_{}[]<>()#+!|~&"})


def plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a table's cell as well."""
    return printable(text).translate(_SIGNS)


def code(text: str) -> str:
    """A code span that holds the text, whatever backticks are in it; a bar would end a table's cell."""
    shown = printable(text).replace("|", "\\|")
    longest, run = 0, 0
    for sign in shown:
        run = run + 1 if sign == "`" else 0
        longest = max(longest, run)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def report_markdown(
    view: StudyView, *, serve_line: str | None = None, picture: str | None = None, dark_picture: str | None = None
) -> str:
    """The text.

    Args:
        serve_line: command of the pick.
        picture: address of the picture of the front, relative to where the text will lie.
        dark_picture: the same for dark pages.
    """
    goodput = is_goodput(view.trials)
    parts = [f"# {plain(view.name)}", _facts(view)]
    if view.simulated:
        parts.append("> **SIMULATED**: every figure below comes from a model of vLLM; none was measured on a server.")
    parts += _pick(view, serve_line, "goodput" if goodput else "throughput")
    if picture:
        parts.append(_picture(view, picture, dark_picture))
    parts += _front(view, goodput)
    failed = _failed(view)
    if failed:
        parts += ["## What failed", failed]
    return "\n\n".join(parts) + "\n"


def _facts(view: StudyView) -> str:
    counts = ", ".join(f"{view.count(outcome)} {outcome}" for outcome in Outcome if view.count(outcome))
    facts = [view.model, f"workload {view.workload}", view.node, f"engine {view.engine}"]
    slo = f", SLO {code(str(view.slo))}" if view.slo else ""
    return f"{' · '.join(map(plain, facts))}{slo} · {plain(counts or 'nothing ended yet')}"


def _pick(view: StudyView, serve_line: str | None, what: str) -> list[str]:
    if view.pick is None:
        return [f"**No pick**{f' meets {code(str(view.slo))}' if view.slo else ''}."]
    mark = " (simulated)" if view.simulated else ""
    found = view.assessment()
    parts = [
        f"**Pick: trial {view.pick.number}{mark}{plain(pick_doubt(found))}**: {what} per GPU "
        f"{gain(view.pick.throughput_gain)}, TTFT p95 {gain(view.pick.ttft_gain)} against the baseline.",
        plain(view.pick.reason),
    ]
    if serve_line:
        parts.append(f"```bash\n{serve_line}\n```")
    lines = [*running_lines(view), *certainty_lines(found, what)]
    if lines:
        parts.append("\n".join(f"* {plain(line)}" for line in lines))
    return parts


def _picture(view: StudyView, picture: str, dark: str | None) -> str:
    words = plain(f"Front of {view.name}: output tokens/s per GPU against p95 TTFT").replace("\\", "")
    if dark is None:
        return f"![{words}]({picture})"
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{picture}" alt="Front of the study: output tokens/s per GPU against p95 TTFT"></picture>'
    )


def _front(view: StudyView, goodput: bool) -> list[str]:
    shown = view.compared_trials
    if not shown:
        return ["No trial was measured yet, so there is no front."]
    asked = any(quality_of(trial, view.trials) for trial in shown)
    heads = [
        *("trial", "place", *(["goodput/s per GPU"] if goodput else []), "tok/s per GPU", "TTFT p95"),
        *([ANSWERS] if asked else []),
        "changes",
    ]
    rows = [_row(view, trial, goodput, asked) for trial in shown]
    rule = "|".join("---:" if head not in ("place", ANSWERS, "changes") else "---" for head in heads)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return [f"## Front{' (simulated)' if view.simulated else ''}", "\n".join(lines)]


def _row(view: StudyView, trial: Trial, goodput: bool, asked: bool) -> list[str]:
    means, base = view.joined(trial), view.baseline_trial
    own = base is not None and trial.number == base.number
    roles = [
        *(["**pick**"] if view.pick and view.pick.number == trial.number else []),
        *(["baseline"] if own else []),
        *map(plain, marks_running(view, trial)),
        *map(plain, marks(view.assessment(), trial.number)),
    ]
    changed: Sequence[str] = () if own or base is None else changes(trial.config, base)
    none = "vLLM's defaults" if own else "none"
    return [
        str(trial.number),
        ", ".join(roles),
        *([brief_requests(means.goodput_rps_per_gpu)] if goodput else []),
        brief_rate(means.output_tok_s_per_gpu),
        brief_latency(means.ttft_p95_s),
        *([plain(quality_cell(quality_of(trial, view.trials)))] if asked else []),
        "<br>".join(map(code, changed)) or none,
    ]


def _failed(view: StudyView) -> str:
    groups: dict[str, list[int]] = {}
    for trial in view.trials:
        if trial.result is not None and not trial.measured:
            groups.setdefault(ending(trial), []).append(trial.number)
    lines = [
        f"* {plain(ended)}: trial {', '.join(map(str, numbers[:10]))}{' ...' if len(numbers) > 10 else ''}"
        for ended, numbers in groups.items()
    ]
    return "\n".join(lines)
