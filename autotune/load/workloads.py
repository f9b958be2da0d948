"""Workloads by name or from a file: YAML, request logs, traces, four numbers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from autotune.errors import InvalidOption, UnknownName
from autotune.load.lengths import MAX_P95_OVER_MEAN, Lengths
from autotune.load.trace_files import is_trace_name, read_trace, trace_stem
from autotune.load.workload import (
    TEMPLATE_TOKENS,
    Api,
    LengthProblem,
    RequestCounts,
    SharedPrefixes,
    Turns,
    Workload,
    check_lengths,
    workload_fingerprint,
)
from autotune.load.workload_yaml import workload_of
from autotune.yaml_input import existing_file, parse_yaml, read_yaml

__all__ = [
    "TEMPLATE_TOKENS",
    "Api",
    "LengthProblem",
    "RequestCounts",
    "SharedPrefixes",
    "Turns",
    "Workload",
    "builtin_workloads",
    "check_lengths",
    "load_workload",
    "parse_workload",
    "workload_fingerprint",
    "workload_from_numbers",
]

OUTPUT_P95_OVER_MEAN = 2.5
"""Spread of outputs of which only the mean is known: between Azure's conversation trace (mean 211, half of them below
129, by which a log-normal has its p95 at 3.0 times the mean) and the narrow outputs of summaries."""

MAX_TOKENS = 10_000_000


def builtin_workloads() -> tuple[str, ...]:
    """Names of the workloads that ship with the program, sorted."""
    folder = files("autotune.load") / "workloads"
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load_workload(name_or_path: str, *, count_tokens: Callable[[str], int] | None = None) -> Workload:
    """A built-in workload by name, one read from a YAML file, or the requests of a log or trace.

    What ends in .yaml or .yml, or like a trace (trace_files.TRACE_SUFFIXES), or holds a slash is a path, everything
    else a name.

    Args:
        count_tokens: tokens of a text, by the model's own tokenizer; without it the tokens of real prompts are
            estimated from their size where the log does not say.

    Raises:
        UnknownName: no such built-in, or no such file.
        InvalidFile: the file cannot be read, or says something that is not accepted.
    """
    known = builtin_workloads()
    yaml_name = name_or_path.endswith((".yaml", ".yml"))
    if "/" in name_or_path or yaml_name or is_trace_name(name_or_path):
        path = existing_file(name_or_path)
        if path is None:
            hint = f"There is no such file; give a file that exists or one of: {', '.join(known)}."
            raise UnknownName("workload", name_or_path, known, hint=hint)
        if is_trace_name(name_or_path):
            return _recorded(path, count_tokens)
        return workload_of(read_yaml(path), file=str(path), name=path.stem)
    if name_or_path not in known:
        raise UnknownName("workload", name_or_path, known, hint="A workload of your own is given as a path to a file.")
    shipped = files("autotune.load") / "workloads" / f"{name_or_path}.yaml"
    return parse_workload(shipped.read_text("utf-8"), file=f"{name_or_path}.yaml", name=name_or_path)


def parse_workload(text: str, *, file: str, name: str) -> Workload:
    """A workload from YAML text; `file` is what errors call it, `name` the default name.

    Raises:
        InvalidFile: with the key path, the value seen and what is allowed.
    """
    return workload_of(parse_yaml(text, file=file), file=file, name=name)


def workload_from_numbers(
    prompt_mean: float, prompt_p95: float, output_mean: float, concurrency: int, *, name: str = "numbers"
) -> Workload:
    """A workload from what a dashboard shows of real traffic: log-normal prompts and outputs, nothing shared.

    The outputs' p95 is OUTPUT_P95_OVER_MEAN times their mean. The ramp ends at `concurrency` per GPU.

    Raises:
        InvalidOption: a number out of range, or a p95 that no log-normal has at that mean.
    """
    for option, value in (("--prompt-mean", prompt_mean), ("--prompt-p95", prompt_p95), ("--output-mean", output_mean)):
        if not 1 <= value <= MAX_TOKENS:  # also false for nan
            raise InvalidOption(option, value, f"tokens, from 1 to {MAX_TOKENS:,}")
    if not 1 <= concurrency <= 65_536:
        raise InvalidOption("--concurrency", concurrency, "requests in flight, from 1 to 65,536")
    if prompt_p95 < prompt_mean:
        raise InvalidOption("--prompt-p95", prompt_p95, f"at least the mean, {prompt_mean:g}")
    if prompt_p95 > MAX_P95_OVER_MEAN * prompt_mean:
        raise InvalidOption(
            "--prompt-p95",
            prompt_p95,
            f"at most {MAX_P95_OVER_MEAN * prompt_mean:g}, which is {MAX_P95_OVER_MEAN:.2f} times the mean: "
            "a log-normal has no more",
            hint="Traffic that is so uneven is better read from a log or a trace: autotune workload make --from FILE.",
        )
    return Workload(
        name=name,
        description=f"Prompts of {prompt_mean:g} tokens on average, p95 {prompt_p95:g}; outputs of {output_mean:g}.",
        api=Api.CHAT,
        prompt_tokens=Lengths.lognormal(prompt_mean, prompt_p95),
        output_tokens=Lengths.lognormal(output_mean, OUTPUT_P95_OVER_MEAN * output_mean),
        prefixes=None,
        requests=RequestCounts(),
        start_concurrency=min(8, concurrency),
        max_concurrency=concurrency,
    )


def _recorded(path: Path, count_tokens: Callable[[str], int] | None) -> Workload:
    trace, texts = read_trace(path, count_tokens=count_tokens)
    return Workload(
        name=trace_stem(path.name),
        description=f"{len(trace.rows):,} requests of {trace.source}.",
        api=Api.CHAT,
        prompt_tokens=Lengths.recorded([row.prompt_tokens for row in trace.rows]),
        output_tokens=Lengths.recorded([row.output_tokens for row in trace.rows]),
        prefixes=None,
        requests=RequestCounts(),
        start_concurrency=8,
        max_concurrency=512,
        trace=trace,
        texts=texts,
    )
