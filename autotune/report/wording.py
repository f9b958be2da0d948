"""Figures and settings as people read them. A missing value is `-`, never 0."""

from __future__ import annotations

from collections.abc import Callable

from autotune.records import Config, Estimate, Outcome, Trial, Value
from autotune.search.baseline_values import starting_values
from autotune.search.noise import Difference
from autotune.units import format_seconds

MISSING = "-"
SIMULATED = "simulated"


def printable(text: str) -> str:
    """One line without control characters: log lines and names must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def printable_lines(text: str) -> str:
    """As `printable`, but lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def number(value: float | None, *, digits: int = 0) -> str:
    """`12,345`, or `-`."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def seconds(value_s: float | None) -> str:
    """`412 ms`, or `-`."""
    return MISSING if value_s is None else format_seconds(value_s)


def share(value: float | None) -> str:
    """`73.1 %` of a share 0..1, or `-`."""
    return MISSING if value is None else f"{value * 100:.1f} %"


def rate(figure: Estimate | None, *, digits: int = 0) -> str:
    """`2,400 [2,310 .. 2,480]`, or `-`."""
    return _estimate(figure, lambda value: f"{value:,.{digits}f}")


def latency(figure: Estimate | None) -> str:
    """`412 ms [390 ms .. 441 ms]`, or `-`."""
    return _estimate(figure, format_seconds)


def brief_rate(figure: Estimate | None) -> str:
    """`2,400 ±3 %`, or `-`; the wider side of the interval, so that a column stays narrow."""
    return MISSING if figure is None else f"{figure.value:,.0f}{_wider_side(figure)}"


def brief_requests(figure: Estimate | None) -> str:
    """`48.7 ±3 %` requests/s, or `-`: on small nodes a config serves less than one."""
    return MISSING if figure is None else f"{figure.value:,.3g}{_wider_side(figure)}"


def brief_latency(figure: Estimate | None) -> str:
    """`412 ms ±15 %`, or `-`."""
    return MISSING if figure is None else f"{format_seconds(figure.value)}{_wider_side(figure)}"


def gain(ratio: float | None) -> str:
    """A ratio to the baseline as `+25 %`, or `-`."""
    return MISSING if ratio is None else f"{(ratio - 1) * 100:+.0f} %"


def change_text(found: Difference) -> str:
    """A difference between two configs with its interval: `+12 % [+8 % .. +16 %]`."""
    return f"{gain(found.ratio)} [{gain(found.low)} .. {gain(found.high)}]"


def setting(name: str, value: Value) -> str:
    """A parameter as it stands on the command line."""
    if name.startswith("env:"):
        text = str(int(value)) if isinstance(value, bool) else str(value)
        return printable(f"{name.removeprefix('env:')}={text}")
    if isinstance(value, bool):
        return printable(f"--{name}" if value else f"--no-{name}")
    return printable(f"--{name} {value}")


def settings(config: Config) -> tuple[str, ...]:
    """All parameters that are not left to vLLM's default."""
    return tuple(setting(name, value) for name, value in config if value is not None)


def changes(config: Config, baseline: Trial | None) -> tuple[str, ...]:
    """What a config changes against the baseline's server, one setting each; none where it runs just as that does."""
    base = starting_values(baseline)
    changed = [setting(name, value) for name, value in config if value is not None and base.get(name) != value]
    given = baseline.config if baseline else Config.of({})
    changed += [
        f"{printable(name)} back to default" for name, value in given if value is not None and config.get(name) is None
    ]
    return tuple(changed)


def ending(trial: Trial, *, unended: str = "running") -> str:
    """How a trial ended, and why: `infeasible: kv_cache_too_small`, `measured, void: client_late`; else `unended`."""
    if trial.result is None:
        return unended
    result = trial.result
    if result.failure:
        return f"{result.outcome}: {result.failure.kind}"
    if result.outcome is Outcome.ABANDONED and result.caveats:
        return f"{result.outcome}: {result.caveats[0].code}"
    return f"{result.outcome}, void: {trial.void.code}" if trial.void else str(result.outcome)


def _estimate(figure: Estimate | None, pretty: Callable[[float], str]) -> str:
    if figure is None:
        return MISSING
    if figure.low is None or figure.high is None:
        return pretty(figure.value)
    return f"{pretty(figure.value)} [{pretty(figure.low)} .. {pretty(figure.high)}]"


def _wider_side(figure: Estimate) -> str:
    if figure.low is None or figure.high is None or figure.value <= 0:
        return ""
    return f" ±{max(figure.high - figure.value, figure.value - figure.low) / figure.value * 100:.0f} %"
