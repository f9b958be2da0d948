import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from report_cases import measured, study

from autotune.records import Slo
from autotune.report.figures import DARK, LIGHT, description, log_ticks, png_bytes, svg_text
from autotune.report.view import StudyView

VIEWS = {
    "full": study(),
    "simulated": study(simulated=True),
    "empty": study(trials=(), front=(), pick=None),
    "one": study(trials=study().trials[:1], front=(0,), pick=None, slo=None),
    "other slo": study(slo=Slo.of(tpot_p95=0.05)),
    "hostile": study(name="$x^2$ \\frac{ 💥 <script>&\x1b\n", model="名前" * 60),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_png_is_drawn(view: StudyView) -> None:
    image = imread(io.BytesIO(png_bytes(view)))
    assert image.shape == (835, 1296, 4)
    assert len(np.unique(image[..., :3].reshape(-1, 3), axis=0)) > 5


def test_the_same_study_gives_the_same_bytes() -> None:
    assert png_bytes(study()) == png_bytes(study())
    assert svg_text(study()) == svg_text(study())
    assert "<dc:date>" not in svg_text(study())
    assert png_bytes(study()) != png_bytes(study(front=(1,)))


def test_the_svg_says_what_is_drawn() -> None:
    svg = svg_text(study())
    for text in (
        *("llama-chat", "TTFT p95 (log scale; left is better)", "pick (trial 1)", "baseline (trial 0)", "other trials"),
        *("SLO ttft_p95&lt;=500ms", "4 measured, 1 infeasible (not shown)", "throughput +40 %"),
    ):
        assert text in svg, text
    assert "SIMULATED" not in svg
    assert "SLO" not in svg_text(study(slo=None))


def test_a_simulated_picture_is_watermarked() -> None:
    svg = svg_text(study(simulated=True))
    assert svg.count("SIMULATED") >= 2


def test_names_stay_text() -> None:
    svg = svg_text(VIEWS["hostile"])
    assert "<script>" not in svg
    assert "$x^2$ \\frac{ ? &lt;script&gt;&amp;\\x1b\\n" in svg


def test_themes_differ_and_share_no_id() -> None:
    light, dark = svg_text(study(), LIGHT), svg_text(study(), DARK)
    ids = [{part.split('"')[0] for part in svg.split('<clipPath id="')[1:]} for svg in (light, dark)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_the_front_in_words() -> None:
    text = description(study())
    assert "2 trials on the front" in text
    assert "trial 1 with 2,100 tokens/s per GPU at a p95 TTFT of 410 ms" in text
    assert description(study(simulated=True)).startswith("Simulated.")
    assert description(VIEWS["empty"]) == "No trial was measured yet."


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.11), (0.2, 0.9), (0.01, 40.0), (0.5, 0.5001), (1e-3, 1e3)])
def test_ticks_lie_inside_and_are_few(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 10
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)


def test_a_front_trial_without_an_interval_has_no_bar() -> None:
    trial = measured(1, 100.0, 0.5, {})
    assert trial.result
    levels = tuple(
        replace(level, output_tok_s=level.output_tok_s and replace(level.output_tok_s, low=None, high=None))
        for level in trial.result.measurements
    )
    bare = replace(trial, result=replace(trial.result, measurements=levels))
    assert png_bytes(study(trials=(bare,), front=(1,), pick=None, baseline=None))
