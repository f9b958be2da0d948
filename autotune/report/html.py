"""The front as one HTML file: no script, nothing loaded from anywhere, readable in light and dark."""

from __future__ import annotations

import re
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from autotune.records import Origin, Outcome, Trial
from autotune.report.certainty import certainty_lines, chance, pick_doubt, ties
from autotune.report.figures import DARK, LIGHT, description, svg_text
from autotune.report.running import marks_running, running_lines
from autotune.report.view import StudyView
from autotune.report.wording import (
    brief_latency,
    brief_rate,
    brief_requests,
    changes,
    ending,
    gain,
    latency,
    rate,
    settings,
)
from autotune.search.objective import Figures, own_figures
from autotune.search.reasons import launch_reason, plain_why
from autotune.search.stability import Assessment

_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')


def front_page(view: StudyView, *, serve_line: str | None = None) -> str:
    """The page of a study's front.

    Args:
        view: the study.
        serve_line: command of the pick, ready to paste.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("autotune.report").joinpath("front.html.j2").read_text(encoding="utf-8"))
    shown = view.compared_trials
    pick = view.picked_trial
    found = view.assessment()
    goodput = any(trial.result is not None and trial.result.goodput is not None for trial in view.trials)
    return template.render(
        view=view,
        goodput=goodput,
        mark=" (simulated)" if view.simulated else "",
        picture_light=_inline(svg_text(view, LIGHT)),
        picture_dark=_inline(svg_text(view, DARK)),
        description=description(view),
        front=[{**_row(view, trial, view.joined(trial)), **_certainty(found, trial)} for trial in shown],
        pick_doubt=pick_doubt(found),
        running=running_lines(view),
        certainty=certainty_lines(found, "goodput" if goodput else "throughput"),
        repeated=any(view.joined(trial).runs > 1 for trial in shown),
        pick=_row(view, pick, view.joined(pick)) if pick else None,
        trials=[_row(view, trial, own_figures(trial)) for trial in view.trials],
        counts=[(str(outcome), view.count(outcome)) for outcome in Outcome if view.count(outcome)],
        throughput_gain=gain(view.pick.throughput_gain) if view.pick else None,
        ttft_gain=gain(view.pick.ttft_gain) if view.pick else None,
        serve_line=serve_line,
        doubts=[(trial.number, caveat) for trial in shown for caveat in trial.caveats],
    )


def _inline(svg: str) -> Markup:
    """The `<svg>` element alone: an XML declaration and a doctype have no place inside HTML.

    Ids that nothing refers to go, as two pictures in one page would share them. Safe as markup, because matplotlib
    escapes every text that it draws.
    """
    element = svg[svg.index("<svg") :]
    used = set(_REFERENCE.findall(element))
    return Markup(_ID.sub(lambda found: found[0] if found[1] in used else "", element))  # noqa: S704 - see above


def _certainty(found: Assessment, trial: Trial) -> dict[str, object]:
    standing = found.standing(trial.number)
    return {
        "sure": "-" if standing is None else chance(standing.front_probability),
        "marks": () if standing is None else ties(standing),
    }


def _row(view: StudyView, trial: Trial, figures: Figures) -> dict[str, object]:
    base = view.baseline_trial
    own = base is not None and trial.number == base.number
    changed = "  ".join(settings(trial.config) if own or base is None else changes(trial.config, base))
    return {
        "number": trial.number,
        "gpus": trial.gpus,
        "outcome": ending(trial, unended=view.outcome(trial)),
        "runs": figures.runs,
        "goodput": brief_requests(figures.goodput_rps_per_gpu),
        "rate": brief_rate(figures.output_tok_s_per_gpu),
        "rate_full": rate(figures.output_tok_s_per_gpu),
        "total": brief_rate(figures.output_tok_s),
        "total_full": rate(figures.output_tok_s),
        "ttft": brief_latency(figures.ttft_p95_s),
        "ttft_full": latency(figures.ttft_p95_s),
        "pick": view.pick is not None and view.pick.number == trial.number,
        "baseline": own,
        "on_front": trial.number in view.front,
        "repeat_of": trial.repeat_of,
        "today": marks_running(view, trial),
        "fresh": trial.origin is Origin.VALIDATION,
        "why": f"{launch_reason(trial)}: {plain_why(trial)}",
        "settings": changed.split("  ") if changed else [],
        "default": "vLLM's defaults" if own or base is None else "as the baseline",
        "all_settings": " ".join(settings(trial.config)),
    }
