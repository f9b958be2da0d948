"""A against B: what differs in flags, in figures and in cost, and whether a difference is more than noise.

A side is a config with all its launches. Two sides may come from different studies; then what else differs between
those (node, workload, vLLM) is said first, because it spoils the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.records import Estimate, LevelRole, Measurement, Trial, Value
from autotune.report.grid import add, column, grid, titled
from autotune.report.view import StudyView
from autotune.report.wording import MISSING, printable, rate, setting
from autotune.search.baseline_values import starting_values
from autotune.search.noise import Difference, RunNoise, difference, run_noise
from autotune.units import format_seconds, plural

SCHEMA = 1
COMPARED_IDENTITY = ("model", "workload", "node", "vllm_version", "load")
"""Keys of a study's identity that figures depend on besides the flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison.

    Attributes:
        trial: the one that was named; its config stands for the side.
        identity: the study's, for `COMPARED_IDENTITY`.
    """

    view: StudyView
    trial: Trial
    identity: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """`study 7`."""
        return f"{self.view.name} {self.trial.number}"

    @property
    def launches(self) -> tuple[Trial, ...]:
        """All measured launches of the config in its study."""
        return tuple(t for t in self.view.trials if t.measured and t.config.hash == self.trial.config.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both sides; means over the launches.

    Attributes:
        higher_is_better: None where neither is.
        found: None where a side lacks the figure.
    """

    name: str
    unit: str
    a: float | None
    b: float | None
    higher_is_better: bool | None
    found: Difference | None

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `within noise`, or `-` where nothing can be said."""
        if self.found is None:
            return MISSING
        if not self.found.is_real:
            return "within noise"
        if self.higher_is_better is None:
            return "differs"
        return "better" if (self.found.ratio > 1) is self.higher_is_better else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison shows.

    Attributes:
        differing_studies: (key, of A, of B) of the studies' identities.
        flags: (parameter, of A, of B); None is vLLM's default.
    """

    a: Side
    b: Side
    differing_studies: tuple[tuple[str, str, str], ...]
    flags: tuple[tuple[str, Value, Value], ...]
    rows: tuple[Row, ...]
    noise: RunNoise


def compare(a: Side, b: Side, *, gpu_hour_price: float | None = None) -> Comparison:
    """B against A.

    Args:
        gpu_hour_price: of one GPU, any currency; adds the cost of a million output tokens.
    """
    same_study = a.view.name == b.view.name
    trials = a.view.trials if same_study else (*a.view.trials, *b.view.trials)
    noise = run_noise(trials)
    return Comparison(
        a=a,
        b=b,
        differing_studies=_differing(a, b),
        flags=_flags(a, b),
        rows=tuple(_rows(a, b, noise, gpu_hour_price)),
        noise=noise,
    )


def _differing(a: Side, b: Side) -> tuple[tuple[str, str, str], ...]:
    one, other = dict(a.identity), dict(b.identity)
    keys = [key for key in COMPARED_IDENTITY if one.get(key) != other.get(key)]
    return tuple((key, one.get(key, MISSING), other.get(key, MISSING)) for key in keys)


def _flags(a: Side, b: Side) -> tuple[tuple[str, Value, Value], ...]:
    """What differs, defaults included as the baseline's server told them."""
    one, other = _served(a), _served(b)
    if "model" in one or "model" in other:  # a checkpoint that is a parameter; a trial without it serves the study's
        one, other = {"model": a.view.model, **one}, {"model": b.view.model, **other}
    names = sorted(one.keys() | other.keys())
    return tuple((name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name))


def _served(side: Side) -> dict[str, Value]:
    given = {name: value for name, value in side.trial.config if value is not None}
    return {**starting_values(side.view.baseline_trial), **given}


_Figure = Callable[[Trial], Estimate | None]


def _rows(a: Side, b: Side, noise: RunNoise, gpu_hour_price: float | None) -> list[Row]:
    rows = [
        _row("output tok/s per GPU", "tok/s", a, b, lambda t: t.output_tok_s_per_gpu, noise.throughput_sd, higher=True),
        _row("output tok/s", "tok/s", a, b, lambda t: t.output_tok_s, noise.throughput_sd, higher=True),
        _row("TTFT p95", "s", a, b, lambda t: t.ttft_p95_s, noise.ttft_sd, higher=False),
        _row("TTFT p50", "s", a, b, _latency("ttft_s", "p50", LevelRole.TTFT), noise.ttft_sd, higher=False),
        _row("TPOT p50", "s", a, b, _latency("tpot_s", "p50", LevelRole.TTFT), noise.throughput_sd, higher=False),
        _row("E2E p95", "s", a, b, _latency("e2e_s", "p95", LevelRole.TTFT), noise.ttft_sd, higher=False),
    ]
    goodput = _row(
        "goodput requests/s per GPU", "", a, b, lambda t: t.goodput_rps_per_gpu, noise.throughput_sd, higher=True
    )
    if goodput.a is not None or goodput.b is not None:
        rows.insert(0, goodput)
    energy = _row("energy per 1M output tokens", "J", a, b, _energy, noise.throughput_sd, higher=False)
    if energy.a is not None or energy.b is not None:
        rows.append(energy)
    if gpu_hour_price is not None:

        def cost(trial: Trial) -> Estimate | None:
            return _cost(trial, gpu_hour_price)

        rows.append(_row("cost per 1M output tokens", "", a, b, cost, noise.throughput_sd, higher=False))
    return rows


def _row(name: str, unit: str, a: Side, b: Side, figure: _Figure, run_sd: float, *, higher: bool) -> Row:
    one, other = (_estimates(side, figure) for side in (a, b))
    return Row(
        name=name,
        unit=unit,
        a=_mean(one),
        b=_mean(other),
        higher_is_better=higher,
        found=difference(one, other, run_sd),
    )


def _estimates(side: Side, figure: _Figure) -> list[Estimate]:
    return [found for launch in side.launches if (found := figure(launch)) is not None]


def _mean(found: Sequence[Estimate]) -> float | None:
    return sum(one.value for one in found) / len(found) if found else None


def _latency(kind: str, percentile: str, role: LevelRole) -> _Figure:
    def figure(trial: Trial) -> Estimate | None:
        level = _level(trial, role)
        latency = getattr(level, kind) if level else None
        return getattr(latency, percentile) if latency else None

    return figure


def _level(trial: Trial, role: LevelRole) -> Measurement | None:
    return trial.result.of_role(role) if trial.result else None


def _energy(trial: Trial) -> Estimate | None:
    level = _level(trial, LevelRole.THROUGHPUT)
    if level is None or level.energy_j is None or not level.output_tokens:
        return None
    return Estimate(value=level.energy_j / level.output_tokens * 1e6)


def _cost(trial: Trial, gpu_hour_price: float) -> Estimate | None:
    per_gpu = trial.output_tok_s_per_gpu
    if per_gpu is None or per_gpu.value <= 0:
        return None

    def price(tok_s: float) -> float:
        return gpu_hour_price / 3600 / tok_s * 1e6

    low, high = per_gpu.low, per_gpu.high
    return Estimate(value=price(per_gpu.value), low=price(high) if high else None, high=price(low) if low else None)


# --- renderers ------------------------------------------------------------------------------------------------------


def comparison_text(found: Comparison) -> Group:
    """For people: what spoils it, flags, figures, and what was taken for noise."""
    parts: list[RenderableType] = [_heading(found)]
    if found.differing_studies:
        table = grid()
        for head in ("not the same", "A", "B"):
            column(table, head)
        for key, one, other in found.differing_studies:
            add(table, key, printable(one), printable(other))
        parts.append(titled("The studies differ, so the figures do not compare flags alone", table))
    table = grid()
    for head in ("flag", "A", "B"):
        column(table, head)
    for name, of_a, of_b in found.flags:
        add(table, printable(name), _value(name, of_a), _value(name, of_b))
    parts.append(titled("Flags", table) if found.flags else Text("Both run with the same flags.\n"))
    figures = grid()
    column(figures, "")
    for head in ("A", "B", "B against A", "95 % interval"):
        column(figures, head, right=True)
    column(figures, "")
    for row in found.rows:
        add(figures, row.name, _figure(row, row.a), _figure(row, row.b), *_change(row), _said(row))
    mark = " (simulated)" if found.a.view.simulated or found.b.view.simulated else ""
    parts.append(titled(f"Figures{mark}", figures))
    parts.append(_noise_line(found))
    return Group(*parts)


def _heading(found: Comparison) -> Text:
    text = Text()
    for letter, side in (("A", found.a), ("B", found.b)):
        launches = len(side.launches)
        text.append(f"{letter}: ", style="bold")
        role = " (baseline)" if side.view.baseline == side.trial.number else ""
        text.append(
            f"study {printable(side.view.name)}, trial {side.trial.number}{role}, {launches} measured "
            f"launch{'es' if launches != 1 else ''}, {plural(side.trial.gpus, 'GPU')}\n"
        )
    return text


def _value(name: str, value: Value) -> str:
    return "vLLM's default" if value is None else setting(name, value)


def _figure(row: Row, value: float | None) -> str:
    if value is None:
        return MISSING
    if row.unit == "s":
        return format_seconds(value)
    return rate(Estimate(value=value), digits=0 if value >= 100 else 3) + (f" {row.unit}" if row.unit == "J" else "")


def _change(row: Row) -> tuple[str, str]:
    if row.found is None:
        return MISSING, MISSING
    low, high = (row.found.low - 1) * 100, (row.found.high - 1) * 100
    return f"{(row.found.ratio - 1) * 100:+.1f} %", f"{low:+.1f} .. {high:+.1f} %"


def _said(row: Row) -> str:
    if row.found is None or row.found.is_real or row.found.more_launches is None:
        return row.verdict
    return f"{row.verdict}; about {row.found.more_launches} launches of each would tell"


def _noise_line(found: Comparison) -> Text:
    noise = found.noise
    learnt = (
        f"learnt from {noise.repeats} repeated launch{'es' if noise.repeats != 1 else ''} and an assumption"
        if noise.repeats
        else "assumed, because nothing was launched twice"
    )
    return Text(
        f"Between launches of one config throughput is taken to vary by {noise.throughput_sd:.1%} and TTFT by "
        f"{noise.ttft_sd:.0%} ({learnt}).\n"
    )


def comparison_document(found: Comparison) -> dict[str, Any]:
    """The versioned JSON of `compare`: ratios are B over A; seconds, tokens/s, J and the price's currency."""
    return {
        "schema": SCHEMA,
        "a": _side(found.a),
        "b": _side(found.b),
        "differing_studies": [{"key": key, "a": one, "b": other} for key, one, other in found.differing_studies],
        "flags": [{"name": name, "a": one, "b": other} for name, one, other in found.flags],
        "figures": [_row_document(row) for row in found.rows],
        "noise": {
            "throughput_sd": found.noise.throughput_sd,
            "ttft_sd": found.noise.ttft_sd,
            "repeats": found.noise.repeats,
        },
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "study": side.view.name,
        "trial": side.trial.number,
        "launches": [launch.number for launch in side.launches],
        "gpus": side.trial.gpus,
        "simulated": side.view.simulated,
        "flags": side.trial.config.as_dict(),
    }


def _row_document(row: Row) -> dict[str, Any]:
    found = row.found
    return {
        "name": row.name,
        "unit": row.unit or None,
        "a": row.a,
        "b": row.b,
        "ratio": found.ratio if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "real": found.is_real if found else None,
        "verdict": row.verdict if found else None,
        "launches_needed": found.more_launches if found else None,
    }
