"""`autotune workload capture`: a workload from what production serves, without a prompt of it."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.engine.histograms import Histogram
    from autotune.engine.observed import Observation
    from autotune.load.workload import Workload
    from autotune.load.workload_fit import Fitted
    from autotune.records import Estimate

SCHEMA = 1
LEAST_REQUESTS = 20
"""Of fewer no 95th percentile is worth the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Figures of what was served; None where the source does not tell.

    Attributes:
        prompt_p95, output_p95: (low, high) of the 95th percentile; equal where it is exact.
        hit_share: of prompt tokens that a prefix cache served (server), or could serve (log), 0..1.
        left_out: (reason, requests) of a log that could not be sent again.
        cut: the log has more than was read.
    """

    source: str
    seconds: float | None
    requests: int
    rate_rps: Estimate | None
    prompt_mean: float
    prompt_p95: tuple[float, float]
    output_mean: float
    output_p95: tuple[float, float]
    hit_share: float | None
    fitted: Fitted
    left_out: tuple[tuple[str, int], ...] = ()
    cut: bool = False


def capture(
    out: Annotated[Path, typer.Option("--out", help="File to write; it must not exist, unless --force.")],
    url: Annotated[str | None, typer.Option(help="Address of a vLLM that serves users: its /metrics are read.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="Request log or trace instead (JSONL, CSV; also .gz), or an access log.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to look on, with --url.", min=1, max=86_400)] = 60.0,
    model: Annotated[str | None, typer.Option(help="Model of the server, where it has several.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the server's API key.", metavar="NAME")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Make a workload file from what a server serves right now, or from a log: lengths, prefix share, rate, bursts."""
    from autotune.errors import InvalidOption
    from autotune.load.access_log import is_access_log
    from autotune.load.workload_fit import workload_yaml
    from autotune.load.workloads import parse_workload

    if out.suffix not in {".yaml", ".yml"}:
        raise InvalidOption("--out", str(out), "a name that ends in .yaml")
    access = log if log is not None and is_access_log(log) else None
    if access is not None and url is None:
        raise InvalidOption(
            "--log", str(access), "an access log has times and no lengths: give --url as well, or a log with lengths"
        )
    if (url is None) == (log is None) and access is None:
        raise InvalidOption("--url", url, "one of --url and --log (both for an access log)")
    if url is not None:
        found = _from_server(url, seconds, model=model, api_key_env=api_key_env)
        if access is not None:
            found = _with_access_log(found, access)
    else:
        assert log is not None  # one of the two is given
        found = _from_log(log)
    text = workload_yaml(found.fitted)
    parse_workload(text, file=str(out), name=out.stem)
    write_workload(out, text, force)
    if as_json:
        typer.echo(json.dumps(_document(found, out), indent=2))
        return
    for line in _lines(found):
        typer.echo(line)
    typer.echo(f"wrote {out}")


def write_workload(out: Path, text: str, force: bool) -> None:
    """Write a workload file; one that is there stays, unless `force`."""
    from autotune.errors import InvalidFile, InvalidOption

    try:
        with out.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InvalidOption("--out", str(out), "a file that does not exist, or --force to replace it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidFile(str(out), "", reason, "a file that can be written") from None


def _from_server(url: str, seconds: float, *, model: str | None, api_key_env: str | None) -> Captured:
    """What a server served while we looked on.

    Raises:
        ServerUnusable: it cannot be read, was started again, or served too little.
    """
    from autotune.cli.interrupted import run_until_signalled
    from autotune.engine.found_server import base_of, key_of
    from autotune.engine.observed import ServerRestarted, observe
    from autotune.engine.watching import watch
    from autotune.errors import ServerUnusable

    base, key = base_of(url), key_of(api_key_env, os.environ)
    typer.echo(f"looking on at {base} for {seconds:g} s", err=True)
    watched = run_until_signalled(lambda: watch(base, seconds, clock=time.monotonic, model=model, key=key))
    try:
        seen = observe(watched.readings)
    except ServerRestarted as error:
        raise ServerUnusable(f"{base}: {error}", hint="Capture again, while it runs through.") from None
    if seen.prompt is None or seen.output is None or seen.prompt.count < LEAST_REQUESTS:
        count = seen.prompt.count if seen.prompt else 0
        raise ServerUnusable(
            f"{base} ended {count} requests in {seen.seconds:.0f} s, and {LEAST_REQUESTS} are needed",
            hint="Look on for longer with --seconds, or give a log.",
        )
    return _fit(base, seen, seen.prompt, seen.output)


def _fit(base: str, seen: Observation, prompt: Histogram, output: Histogram) -> Captured:
    from autotune.load.workload_fit import cv_of_dispersion, fit_metrics

    p95s = prompt.quantile_interval(0.95), output.quantile_interval(0.95)
    fitted = fit_metrics(
        requests=prompt.count,
        prompt=(prompt.mean, prompt.interpolated(0.95), prompt.longest),
        output=(output.mean, output.interpolated(0.95), output.longest),
        hit_share=seen.hit_share,
    )
    origin = f"{prompt.count:,} requests that {base} ended in {seen.seconds:.0f} s"
    notes = [f"The p95 of prompts lies {_between(p95s[0])} tokens, of outputs {_between(p95s[1])}."]
    if seen.rate_rps is not None:
        notes.append(f"They came at {seen.rate_rps.value:.3g}/s; `--load rate=` says it to a study, per GPU.")
    return Captured(
        source=base,
        seconds=seen.seconds,
        requests=prompt.count,
        rate_rps=seen.rate_rps,
        prompt_mean=prompt.mean,
        prompt_p95=p95s[0],
        output_mean=output.mean,
        output_p95=p95s[1],
        hit_share=seen.hit_share,
        fitted=replace(
            fitted,
            description=f"Captured from {origin}.",
            origin=origin,
            arrivals_cv=cv_of_dispersion(seen.dispersion),
            notes=tuple(notes),
        ),
    )


def _with_access_log(found: Captured, file: Path) -> Captured:
    """How requests came, from their times in an access log."""
    from autotune.load.access_log import read_access_log
    from autotune.load.workload_fit import cv_of_dispersion

    came = read_access_log(file)
    note = f"Arrivals of {file.name}: {came.requests:,} requests at {came.rate_rps.value:.3g}/s."
    fitted = replace(found.fitted, arrivals_cv=cv_of_dispersion(came.dispersion), notes=(*found.fitted.notes, note))
    return replace(found, rate_rps=came.rate_rps, fitted=fitted)


def _from_log(log: Path) -> Captured:
    from autotune.errors import InvalidOption
    from autotune.load.trace_files import TRACE_SUFFIXES, is_trace_name
    from autotune.load.workloads import load_workload

    if not is_trace_name(log.name):
        allowed = f"a log or trace, named {', '.join(TRACE_SUFFIXES)}, also with .gz; or an access log"
        raise InvalidOption("--log", str(log), allowed)
    return captured_log(load_workload(str(log)))


def captured_log(workload: Workload) -> Captured:
    """The figures of a recorded workload, all of them exact."""
    import numpy as np

    from autotune.load.requests import reachable_share
    from autotune.load.workload_fit import fit_trace

    fitted = fit_trace(workload)
    trace = workload.trace
    assert trace is not None  # fit_trace refuses others
    rows = trace.rows
    prompts, outputs = [row.prompt_tokens for row in rows], [row.output_tokens for row in rows]
    seconds = rows[-1].at_s if trace.timed else None
    rate = _log_rate(len(rows), seconds)
    notes = () if rate is None else (f"They came at {rate.value:.3g}/s; `--load rate=` says it to a study, per GPU.",)
    prompt_p95, output_p95 = (float(np.percentile(found, 95)) for found in (prompts, outputs))
    return Captured(
        source=trace.source,
        seconds=seconds,
        requests=len(rows),
        rate_rps=rate,
        prompt_mean=float(np.mean(prompts)),
        prompt_p95=(prompt_p95, prompt_p95),
        output_mean=float(np.mean(outputs)),
        output_p95=(output_p95, output_p95),
        hit_share=reachable_share(rows),
        fitted=replace(fitted, notes=notes),
        left_out=trace.skipped,
        cut=trace.cut,
    )


def _log_rate(requests: int, seconds: float | None) -> Estimate | None:
    from autotune.records import Estimate

    if not seconds or requests < 2:
        return None
    rate = (requests - 1) / seconds
    error = 1.96 * math.sqrt(requests - 1) / seconds
    return Estimate(value=rate, low=max(0.0, rate - error), high=rate + error)


def _lines(found: Captured) -> list[str]:
    over = "" if found.seconds is None else f" over {found.seconds:.0f} s"
    lines = [
        f"{found.requests:,} requests{over}",
        f"prompt  {found.prompt_mean:,.1f} tokens on average, p95 {_between(found.prompt_p95)}",
        f"output  {found.output_mean:,.1f} tokens on average, p95 {_between(found.output_p95)}",
    ]
    if found.rate_rps is not None:
        rate = found.rate_rps
        lines.append(f"rate    {rate.value:.3g}/s [{rate.low:.3g} .. {rate.high:.3g}]")
    if found.hit_share is not None:
        lines.append(f"prefix  {found.hit_share:.1%} of prompt tokens from the cache")
    lines += [f"left out: {count:,}: {reason}" for reason, count in found.left_out]
    if found.cut:
        lines.append("read up to here: the log has more")
    cv = found.fitted.arrivals_cv
    lines.append("arrivals as a Poisson stream, or too few to tell" if cv is None else f"arrivals with cv {cv:.2g}")
    return lines


def _between(bounds: tuple[float, float]) -> str:
    low, high = bounds
    if low == high:
        return f"at {low:,.0f}"
    return f"above {low:,.0f}" if math.isinf(high) else f"between {low:,.0f} and {high:,.0f}"


def _document(found: Captured, out: Path) -> dict[str, Any]:
    rate = found.rate_rps
    return {
        "schema": SCHEMA,
        "source": found.source,
        "seconds": found.seconds,
        "requests": found.requests,
        "rate_rps": rate.value if rate else None,
        "rate_rps_interval": [rate.low, rate.high] if rate else None,
        "prompt_tokens": _lengths(found.prompt_mean, found.prompt_p95),
        "output_tokens": _lengths(found.output_mean, found.output_p95),
        "prefix_hit_share": found.hit_share,
        "arrivals_cv": found.fitted.arrivals_cv,
        "left_out": dict(found.left_out),
        "cut": found.cut,
        "written": str(out),
    }


def _lengths(mean: float, p95: tuple[float, float]) -> dict[str, Any]:
    low, high = p95
    return {"mean": mean, "p95_low": low, "p95_high": None if math.isinf(high) else high}
