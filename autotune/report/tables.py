"""Tables for a terminal. Everything is a rich renderable; `as_text` turns one into plain text."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.records import Caveat, Origin, Outcome, QualityState, Trial
from autotune.report.certainty import certainty_lines, marks, pick_doubt
from autotune.report.grid import add, column, grid, print_to, titled
from autotune.report.quality_text import COLUMN as ANSWERS
from autotune.report.quality_text import quality_cell, quality_of
from autotune.report.running import COLUMN, gain_cell, marks_running, running_lines
from autotune.report.view import StudyView
from autotune.report.wording import (
    brief_latency,
    brief_rate,
    brief_requests,
    changes,
    ending,
    gain,
    printable,
    seconds,
    settings,
)
from autotune.search.objective import is_goodput
from autotune.search.plainness import EXACT_KV_DTYPES
from autotune.search.savings import early_count, saved_s
from autotune.units import plural

GOODPUT = "goodput/s per GPU"
"""Requests/s at the highest rate within the SLO."""

_FIGURES = {"trial", "GPUs", "runs", GOODPUT, "tok/s per GPU", "tok/s", "TTFT p95"}
_NUMERIC = frozenset(_FIGURES)


def as_text(renderable: RenderableType, *, width: int = 120) -> str:
    """Plain text without colour, for pipes, files and tests."""
    stream = io.StringIO()
    print_to(
        Console(file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False), renderable
    )
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def study_report(view: StudyView) -> Group:
    """How a study ends: what it was, the front, the pick with its reason and gain, where everything lies."""
    parts: list[RenderableType] = [heading(view), front_table(view), counts_line(view), *pick_lines(view)]
    today = running_lines(view)
    parts += [Text("\n".join(today) + "\n")] if today else []
    parts += lost_lines(view)
    parts += limit_lines(view)
    if view.explanation is not None:
        from autotune.report.explained import brief_lines  # what explains takes long to import and is seldom shown

        parts += brief_lines(view.explanation, view.name)
    parts += doubt_lines(view)
    if view.directory:
        parts.append(Text(f"Logs and requests lie in {printable(view.directory)}"))
    return Group(*parts)


def heading(view: StudyView) -> Text:
    """What was asked, and loudly whether it was simulated."""
    text = Text()
    text.append(f"Study {printable(view.name)}", style="bold")
    text.append(f": {printable(view.model)}, workload {printable(view.workload)}, on {printable(view.node)}\n")
    if view.simulated:
        text.append("SIMULATED", style="bold yellow")
        text.append(": every figure below comes from a model of vLLM, none was measured on a server.\n", style="yellow")
    return text


def front_table(view: StudyView) -> RenderableType:
    """The front, lowest latency first, with the baseline below it when it is not on it; repeated configs as means."""
    if not view.front_trials:
        return Text("No trial was measured yet, so there is no front.\n")
    shown = view.compared_trials
    # With one GPU everywhere the total says the same as the figure per GPU.
    total = any(trial.gpus > 1 for trial in shown)
    repeated = any(view.joined(trial).runs > 1 for trial in shown)
    found = view.assessment()
    common = _common(view, shown)
    goodput = is_goodput(shown)
    gains = any(view.gain_over_running(trial) for trial in shown)
    answers = [quality_of(trial, view.trials) for trial in shown]
    asked = any(answers)
    table = _table(
        *("trial", "GPUs", *(["runs"] if repeated else []), *([GOODPUT] if goodput else []), "tok/s per GPU"),
        *(*(["tok/s"] if total else []), "TTFT p95", *([COLUMN] if gains else [])),
        *(*([ANSWERS] if asked else []), "", "settings"),
    )
    for trial, quality in zip(shown, answers, strict=True):
        means = view.joined(trial)
        add(
            table,
            *(str(trial.number), str(trial.gpus), *([str(means.runs)] if repeated else [])),
            *([brief_requests(means.goodput_rps_per_gpu)] if goodput else []),
            *(brief_rate(means.output_tok_s_per_gpu), *([brief_rate(means.output_tok_s)] if total else [])),
            *(brief_latency(means.ttft_p95_s), *([gain_cell(view, trial)] if gains else [])),
            *([quality_cell(quality)] if asked else []),
            _role(view, trial, marks(found, trial.number)),
            _settings(view, trial, frozenset(common)),
            style="bold" if view.pick and view.pick.number == trial.number else None,
        )
    return titled("Front" + _mark(view), _with_common(table, common))


def trials_table(view: StudyView) -> RenderableType:
    """All trials in order, each launch with its own figures, failures with their class."""
    if not view.trials:
        return Text("No trial has run yet.\n")
    common = _common(view, view.trials)
    goodput = is_goodput(view.trials)
    heads = ("trial", "outcome", "GPUs", *([GOODPUT] if goodput else []), "tok/s per GPU", "TTFT p95", "", "settings")
    table = _table(*heads)
    for trial in view.trials:
        add(
            table,
            *(str(trial.number), ending(trial, unended=view.outcome(trial)), str(trial.gpus)),
            *([brief_requests(trial.goodput_rps_per_gpu)] if goodput else []),
            brief_rate(trial.output_tok_s_per_gpu),
            *(brief_latency(trial.ttft_p95_s), _role(view, trial), _settings(view, trial, frozenset(common))),
        )
    return titled("Trials" + _mark(view), _with_common(table, common))


def counts_line(view: StudyView) -> Text:
    """How many trials ended how; outcomes that did not occur are left out."""
    ended = Counter(view.outcome(trial) for trial in view.trials)
    parts = [f"{ended[each]} {each}" for each in (*Outcome, "running", "interrupted") if ended[each]]
    void = sum(trial.void is not None for trial in view.trials)
    told = f" ({void} of them void: the load client was the limit)" if void else ""
    return Text(f"{plural(len(view.trials), 'trial')}: {', '.join(parts) or 'none ended'}{told}{_saved(view)}\n")


def _saved(view: StudyView) -> str:
    """What ending trials early has saved; empty where none was."""
    found = saved_s(view.trials)
    return "" if found is None else f"; {early_count(view.trials)} ended early, which saved about {seconds(found)}"


def pick_lines(view: StudyView) -> list[RenderableType]:
    """The recommendation and what it gains."""
    pick, trial = view.pick, view.picked_trial
    if pick is None or trial is None:
        return [Text(f"No pick: {_why_no_pick(view)}\n")]
    found = view.assessment()
    text = Text()
    doubt = pick_doubt(found)
    text.append(f"Pick: trial {pick.number}", style="bold yellow" if doubt else "bold green")
    text.append(f" ({pick.rule}{doubt}): {printable(pick.reason)}\n")
    if pick.throughput_gain is not None or pick.ttft_gain is not None:
        what = "goodput" if is_goodput([trial]) else "throughput"
        text.append(
            f"Against the baseline{_mark(view)}: {what} per GPU {gain(pick.throughput_gain)}, "
            f"TTFT p95 {gain(pick.ttft_gain)}\n"
        )
    for line in certainty_lines(found, "goodput" if is_goodput([trial]) else "throughput"):
        text.append(f"{line}\n")
    return [text]


def _why_no_pick(view: StudyView) -> str:
    """What is missing, and what comes nearest to the limit."""
    if not view.front_trials and any(trial.void for trial in view.trials):
        return "in every trial that was measured the load client was the limit, so no figure is the server's."
    if not view.front_trials:
        return "no trial was measured."
    if view.slo is None:
        return "no trial of the front qualifies."
    nearest = view.front_trials[0]
    if len(view.slo.limits) > 1 or view.slo.ttft_p95_s is None:
        return (
            f"no trial is sure to meet all of {view.slo} (the upper bound of each figure counts); the lowest p95 TTFT "
            f"has trial {nearest.number} with {brief_latency(view.joined(nearest).ttft_p95_s)}."
        )
    return (
        f"no trial is sure to meet {view.slo} (the upper bound of its p95 TTFT counts); the nearest is trial "
        f"{nearest.number} with {brief_latency(view.joined(nearest).ttft_p95_s)}."
    )


def lost_lines(view: StudyView) -> list[RenderableType]:
    """Configs of the front that are not recommended, however fast: their answers are not the reference's any more."""
    found = [(trial, quality_of(trial, view.trials)) for trial in view.front_trials]
    lost = [(trial, one) for trial, one in found if one is not None and one.state is QualityState.LOST]
    return [
        Text(f"Never the pick, its answers differ: trial {trial.number} ({printable(one.why)})\n", style="yellow")
        for trial, one in lost
    ]


def limit_lines(view: StudyView) -> list[RenderableType]:
    """What held the front and the baseline back, one line a limit; `show` has the evidence."""
    kinds: dict[str, list[int]] = {}
    for trial in view.compared_trials:
        for verdict in view.verdicts(trial)[:1]:
            kinds.setdefault(str(verdict.limit), []).append(trial.number)
    if not kinds:
        return []
    said = "; ".join(f"{limit} (trial {', '.join(map(str, sorted(found)))})" for limit, found in kinds.items())
    return [Text(f"Held back by{_mark(view)}: {said}\n")]


def doubt_lines(view: StudyView) -> list[RenderableType]:
    """Doubts about what the front, the baseline and void trials show, once a kind, with the trials they concern."""
    shown = {trial.number: trial for trial in view.front_trials}
    shown |= {trial.number: view.trial(trial.number) or trial for trial in view.trials if trial.void is not None}
    base = view.baseline_trial
    if base is not None:
        shown.setdefault(base.number, base)
    kinds: dict[str, tuple[Caveat, list[int]]] = {}
    for trial in shown.values():
        for caveat in (*trial.caveats, *_lossy(view, trial)):
            numbers = kinds.setdefault(caveat.code, (caveat, []))[1]
            if trial.number not in numbers:
                numbers.append(trial.number)
    lines: list[RenderableType] = []
    for code, (caveat, numbers) in sorted(kinds.items()):
        text = Text(f"Doubt {code}", style="yellow")
        trials = ", ".join(map(str, sorted(numbers)))
        text.append(f" (trial {trials}): {printable(caveat.text)}. {printable(caveat.remedy)}", style="default")
        lines.append(text)
    return [*lines, Text()] if lines else []


def _lossy(view: StudyView, trial: Trial) -> tuple[Caveat, ...]:
    """A pick that changes numerics is not only faster: said where nothing shows that its answers are the same."""
    if view.pick is None or view.pick.number != trial.number:
        return ()
    asked = quality_of(trial, view.trials)
    if asked is not None and asked.state is QualityState.HELD:
        return ()
    dtype, checkpoint = str(trial.config.get("kv-cache-dtype") or "auto"), trial.config.get("model")
    changed = []
    if checkpoint not in {None, view.model}:
        changed.append(f"serves another checkpoint ({checkpoint})")
    if dtype not in EXACT_KV_DTYPES:
        changed.append(f"stores its KV cache as {dtype}")
    if not changed:
        return ()
    return (
        Caveat(
            code="answers_not_compared",
            text=f"the pick {' and '.join(changed)}, which can change answers"
            + (f" ({quality_cell(asked)}: {asked.why})" if asked is not None else ""),
            remedy="Compare them before production, on mathematics, code and exact reasoning, where chat hides it",
        ),
    )


def _table(*heads: str) -> Table:
    table = grid()
    for head in heads:
        column(table, head, right=head in _NUMERIC)
    return table


def _mark(view: StudyView) -> str:
    return " (simulated)" if view.simulated else ""


def _role(view: StudyView, trial: Trial, beside: Sequence[str] = ()) -> Text:
    words = []
    if view.pick and view.pick.number == trial.number:
        words.append("pick")
    if view.baseline == trial.number:
        words.append("baseline")
    elif trial.repeat_of is not None:
        fresh = " on fresh seeds" if trial.origin is Origin.VALIDATION else ""
        words.append(f"repeat of {trial.repeat_of}{fresh}")
    words += marks_running(view, trial)
    return Text(", ".join([*words, *beside]), style="green" if "pick" in words else "")


def _settings(view: StudyView, trial: Trial, common: frozenset[str] = frozenset()) -> Text:
    base = view.baseline_trial
    if base is None or base.number == trial.number:
        return Text("  ".join(settings(trial.config)) or "vLLM's defaults")
    own = [text for text in changes(trial.config, base) if text not in common]
    return Text("  ".join(own) or ("no more than the others" if common else "as the baseline"))


def _common(view: StudyView, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Settings that every one of several trials changes; said once below a table instead of in each of its rows."""
    base = view.baseline_trial
    others = [changes(trial.config, base) for trial in trials if base is None or trial.config != base.config]
    if len(others) < 2:
        return ()
    return tuple(text for text in others[0] if all(text in found for found in others))


def _with_common(table: Table, common: tuple[str, ...]) -> RenderableType:
    if not common:
        return table
    return Group(table, Text(f"All but the baseline also have: {'  '.join(common)}", style="dim"))
