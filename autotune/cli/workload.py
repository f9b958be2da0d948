"""`autotune workload`: look at a workload before it is sent, make one from traffic, or send it with another client."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import Json
from autotune.cli.workload_capture import capture, write_workload

if TYPE_CHECKING:
    from autotune.load.workload import Workload
    from autotune.load.workload_fit import Fitted
    from autotune.load.workload_summary import Distribution, WorkloadSummary
    from autotune.records import PlannedRequest

SCHEMA = 1
FIRST_REQUESTS = 8
MAX_METRICS_BYTES = 1 << 24

_NAME = (
    "Name of a shipped workload, or a file: YAML, a request log (.jsonl, .json) or a trace (.csv, .jsonl; also .gz)."
)


def register(app: typer.Typer) -> None:
    """Add the group and its commands."""
    group = typer.Typer(
        help="Look at a workload before it is sent, or make one from real traffic.", no_args_is_help=True
    )
    group.command("show")(show)
    group.command("make")(make)
    group.command("capture")(capture)
    group.command("command")(command)
    app.add_typer(group, name="workload")


def show(
    workload: Annotated[str, typer.Argument(help=_NAME)],
    concurrency: Annotated[int | None, typer.Option(help="Show a closed loop of so many requests in flight.")] = None,
    rate: Annotated[float | None, typer.Option(help="Show an open loop at so many requests per second.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a workload offers: lengths, what is shared, turns, arrivals, and the max-model-len it needs."""
    from autotune.load.workload_summary import shown_level, sum_up
    from autotune.load.workloads import load_workload

    _check_level(concurrency, rate)
    found = load_workload(workload)
    summary = sum_up(found, shown_level(found, concurrency=concurrency, rate_rps=rate))
    if as_json:
        typer.echo(json.dumps(_document(found, summary), indent=2))
    else:
        _print(found, summary)


def make(
    out: Annotated[Path, typer.Option("--out", help="File to write; it must not exist, unless --force.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Request log or trace to fit; its prompts are not copied.")
    ] = None,
    from_metrics: Annotated[
        Path | None, typer.Option(help="Saved text of a running server's /metrics: `curl -s URL/metrics > FILE`.")
    ] = None,
    prompt_mean: Annotated[float | None, typer.Option(help="Mean prompt length, tokens.")] = None,
    prompt_p95: Annotated[float | None, typer.Option(help="95th percentile of prompt lengths, tokens.")] = None,
    output_mean: Annotated[float | None, typer.Option(help="Mean output length, tokens.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Most requests in flight, per GPU.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file when it exists.")] = False,
) -> None:
    """Make a workload file from a log, a trace, a server's /metrics, or four numbers; it holds no prompt."""
    from autotune.errors import InvalidOption
    from autotune.load.workload_fit import workload_yaml
    from autotune.load.workloads import parse_workload

    numbers = (prompt_mean, prompt_p95, output_mean)
    if sum((source is not None, from_metrics is not None, any(n is not None for n in numbers))) != 1:
        raise InvalidOption(
            "--from", "one source is needed", "--from FILE, or --from-metrics FILE, or --prompt-mean with its like"
        )
    if out.suffix not in {".yaml", ".yml"}:
        raise InvalidOption("--out", str(out), "a name that ends in .yaml")
    if source is not None:
        fitted = _from_file(source)
    elif from_metrics is not None:
        fitted = _from_metrics(from_metrics)
    else:
        fitted = _from_numbers(prompt_mean, prompt_p95, output_mean, concurrency)
    text = workload_yaml(_at_concurrency(fitted, concurrency))
    parse_workload(text, file=str(out), name=out.stem)
    write_workload(out, text, force)
    typer.echo(f"wrote {out}")
    typer.echo(text, nl=False)


class CommandFor(StrEnum):
    """Clients that a command can be for; load.bench_commands.BenchTool, which must not be imported for `--help`."""

    VLLM_BENCH = "vllm-bench"
    GUIDELLM = "guidellm"


def command(
    workload: Annotated[str, typer.Argument(help=_NAME)],
    tool: Annotated[CommandFor, typer.Option("--for", help="The client that the command is for.")],
    url: Annotated[str, typer.Option(help="Address of the server, before /v1: http://127.0.0.1:8000.")],
    concurrency: Annotated[int | None, typer.Option(help="A closed loop of so many requests in flight.")] = None,
    rate: Annotated[float | None, typer.Option(help="An open loop at so many requests per second.")] = None,
    requests: Annotated[
        int | None, typer.Option(help="How many; default as many as a study's level has.", min=1, max=1_000_000)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to ask for; default the first that the server lists.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the command line of another client that comes closest to a workload, and say what it leaves out."""
    import shlex
    from dataclasses import replace

    from autotune.engine.found_server import base_of
    from autotune.errors import InvalidOption
    from autotune.load.bench_commands import BenchTool, bench_command
    from autotune.load.workload_summary import shown_level, sum_up
    from autotune.load.workloads import load_workload

    _check_level(concurrency, rate)
    if model is not None and not (model and model.isprintable()):
        raise InvalidOption("--model", ascii(model), "a model's name, of printable text")
    base = base_of(url)
    found = load_workload(workload)
    summary = sum_up(found, shown_level(found, concurrency=concurrency, rate_rps=rate))
    if requests is not None:
        summary = replace(summary, level=replace(summary.level, requests=requests))
    made = bench_command(BenchTool(tool), found, summary, url=base, model=model)
    if as_json:
        typer.echo(
            json.dumps(
                {"schema": SCHEMA, "for": str(tool), "argv": list(made.argv), "not_expressed": list(made.missing)},
                indent=2,
            )
        )
        return
    typer.echo(shlex.join(made.argv))
    for each in made.missing:
        typer.echo(f"not expressed: {each}", err=True)


def _from_file(source: Path) -> Fitted:
    from autotune.errors import InvalidOption
    from autotune.load.trace_files import TRACE_SUFFIXES, is_trace_name
    from autotune.load.workload_fit import fit_trace
    from autotune.load.workloads import load_workload

    if not is_trace_name(source.name):
        allowed = f"a log or trace, named {', '.join(TRACE_SUFFIXES)}, also with .gz"
        raise InvalidOption("--from", str(source), allowed)
    return fit_trace(load_workload(str(source)))


def _from_metrics(file: Path) -> Fitted:
    from autotune.engine.histograms import histogram
    from autotune.engine.metrics_text import parse_metrics
    from autotune.errors import InvalidFile
    from autotune.load.workload_fit import fit_metrics

    text = _metrics_text(file)
    prompt, output = (histogram(text, name) for name in ("request_prompt_tokens", "request_generation_tokens"))
    if prompt is None or output is None:
        raise InvalidFile(
            str(file),
            "",
            "no histogram of request lengths",
            "/metrics of a vLLM that has served a request: vllm:request_prompt_tokens, vllm:request_generation_tokens",
        )
    metrics = parse_metrics(text)
    queries = metrics.counter("prefix_cache_queries", "gpu_prefix_cache_queries")
    hits = metrics.counter("prefix_cache_hits", "gpu_prefix_cache_hits")
    return fit_metrics(
        requests=prompt.count,
        prompt=(prompt.mean, prompt.interpolated(0.95), prompt.longest),
        output=(output.mean, output.interpolated(0.95), output.longest),
        hit_share=hits / queries if queries and hits is not None else None,
    )


def _metrics_text(file: Path) -> str:
    from autotune.errors import InvalidFile

    allowed = f"a text file of at most {MAX_METRICS_BYTES:,} bytes"
    try:
        if not file.is_file():
            raise InvalidFile(str(file), "", "no regular file", allowed)
        with file.open("rb") as stream:
            content = stream.read(MAX_METRICS_BYTES + 1)
        if len(content) > MAX_METRICS_BYTES:
            raise InvalidFile(str(file), "", "a larger file", allowed)
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(str(file), "", f"byte {error.start} is not UTF-8", allowed) from None
    except (OSError, ValueError) as error:
        raise InvalidFile(str(file), "", str(error), allowed) from None


def _from_numbers(mean: float | None, p95: float | None, output: float | None, concurrency: int | None) -> Fitted:
    from autotune.errors import InvalidOption
    from autotune.load.workload_fit import fit_numbers
    from autotune.load.workloads import OUTPUT_P95_OVER_MEAN, workload_from_numbers

    if mean is None or p95 is None or output is None:
        missing = [
            name
            for name, value in (("--prompt-mean", mean), ("--prompt-p95", p95), ("--output-mean", output))
            if value is None
        ]
        raise InvalidOption(missing[0], "not given", "a number of tokens: --prompt-mean, --prompt-p95, --output-mean")
    workload = workload_from_numbers(mean, p95, output, concurrency or 64)
    return fit_numbers(workload, prompt=(mean, p95), output=(output, OUTPUT_P95_OVER_MEAN * output))


def _at_concurrency(fitted: Fitted, concurrency: int | None) -> Fitted:
    from dataclasses import replace

    from autotune.errors import InvalidOption

    if concurrency is None:
        return fitted
    if not 1 <= concurrency <= 65_536:
        raise InvalidOption("--concurrency", concurrency, "requests in flight, from 1 to 65,536")
    return replace(fitted, start_concurrency=min(8, concurrency), max_concurrency=concurrency)


def _check_level(concurrency: int | None, rate: float | None) -> None:
    from autotune.errors import InvalidOption

    if concurrency is not None and rate is not None:
        raise InvalidOption("--rate", rate, "either --rate or --concurrency")
    if concurrency is not None and not 1 <= concurrency <= 65_536:
        raise InvalidOption("--concurrency", concurrency, "requests in flight, from 1 to 65,536")
    if rate is not None and not 0.001 <= rate <= 100_000:
        raise InvalidOption("--rate", rate, "requests per second, from 0.001 to 100,000")


def _document(workload: Workload, summary: WorkloadSummary) -> dict[str, Any]:
    from dataclasses import asdict

    trace, level = workload.trace, summary.level
    return {
        "schema": SCHEMA,
        "workload": workload.name,
        "description": workload.description,
        "api": str(workload.api),
        "source": trace.source if trace else None,
        "rows": len(trace.rows) if trace else None,
        "rows_cut": trace.cut if trace else None,
        "rows_skipped": dict(trace.skipped) if trace else None,
        "level": {
            "arrivals": str(level.arrivals),
            "concurrency": level.concurrency,
            "rate_rps": level.rate_rps,
            "requests": level.requests,
        },
        "prompt_tokens": asdict(summary.prompt),
        "output_tokens": asdict(summary.output),
        "shared_share": summary.shared_share,
        "continued_share": summary.continued_share,
        "turns_mean": summary.turns,
        "arrival_burstiness": summary.arrival_burstiness,
        "max_model_len_needed": summary.needed,
        "max_model_len_guide": summary.guide,
        "caveats": [asdict(caveat) for caveat in summary.caveats],
        "first_requests": [
            {
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
                "shared_tokens": request.shared_tokens,
                "reachable_tokens": reachable,
                "after": request.after,
                "scheduled_s": request.scheduled_s,
            }
            for request, reachable in _first(summary)
        ],
    }


def _print(workload: Workload, summary: WorkloadSummary) -> None:
    from autotune.cli.console import output_console
    from autotune.report.grid import add, column, grid, pairs, print_to, titled
    from autotune.report.wording import MISSING, number, printable, share

    facts = pairs()
    for name, value in _facts(workload, summary):
        add(facts, name, value)
    lengths = grid()
    column(lengths, "tokens")
    for head in ("mean", "p50", "p95", "p99", "longest"):
        column(lengths, head, right=True)
    for name, found in (("prompt", summary.prompt), ("output", summary.output)):
        add(lengths, name, *(number(value) for value in _figures(found)))
    first = grid()
    for head in ("request", "prompt", "prefix hit at best", "output", "after", "due"):
        column(first, head, right=True)
    for request, reachable in _first(summary):
        add(
            first,
            str(request.index),
            number(request.prompt_tokens),
            number(reachable),
            number(request.output_tokens),
            MISSING if request.after is None else str(request.after),
            MISSING if request.scheduled_s is None else f"{request.scheduled_s:.3f} s",
        )
    console = output_console()
    print_to(console, titled(printable(workload.name), facts))
    print_to(console, titled("Lengths", lengths))
    print_to(console, titled("First requests", first))
    for caveat in summary.caveats:
        typer.echo(f"caveat {caveat.code}: {caveat.text}. {caveat.remedy}")
    if workload.trace is not None:
        for reason, count in workload.trace.skipped:
            typer.echo(f"left out: {count:,} rows ({share(count / (count + len(workload.trace.rows)))}): {reason}")


def _first(summary: WorkloadSummary) -> list[tuple[PlannedRequest, int]]:
    return list(zip(summary.planned, summary.reachable, strict=True))[:FIRST_REQUESTS]


def _facts(workload: Workload, summary: WorkloadSummary) -> list[tuple[str, str]]:
    from autotune.report.wording import number, printable, share

    level, trace = summary.level, workload.trace
    load = (
        f"{level.concurrency} at once" if level.rate_rps is None else f"{level.rate_rps:g}/s, {level.arrivals} arrivals"
    )
    found = [
        ("description", printable(workload.description)),
        ("endpoint", str(workload.api)),
        ("level shown", f"{level.requests:,} requests, {load}"),
        ("shared", f"{share(summary.shared_share)} of prompt tokens can come from the prefix cache"),
    ]
    if summary.turns is not None:
        text = f"{summary.turns:.1f} turns on average; {share(summary.continued_share)} of requests go on from another"
        found.append(("conversations", text))
    if summary.arrival_burstiness is not None:
        text = f"{number(summary.arrival_burstiness, digits=2)} (gaps' deviation over their mean; Poisson has 1)"
        found.append(("burstiness", text))
    if trace is not None:
        rest = ", the first of the file" if trace.cut else ""
        found.append(("source", f"{trace.source}, {len(trace.rows):,} rows{rest}"))
    found.append(("max-model-len", f"{summary.needed:,} needed; the guide's step is {summary.guide:,}"))
    return found


def _figures(found: Distribution) -> tuple[float, ...]:
    return found.mean, found.p50, found.p95, found.p99, found.longest
