"""How `autotune capacity` prints: text for people, and the versioned JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.capacity import Capacity, Demand, Remedy

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found: one capacity, or one for every layout of the node."""

    capacities: tuple[Capacity, ...]
    model: str | None
    node: str | None
    version: str
    demand: Demand | None = None
    remedies: tuple[Remedy, ...] = ()


def document(found: Answer) -> dict[str, Any]:
    """The JSON of the command; with several layouts they are in `layouts` and the top level holds the best one."""
    from autotune.capacity import largest, verdict_of

    best = largest(found.capacities)
    demand, concurrent = found.demand, best.concurrent
    return {
        "schema": SCHEMA,
        "model": found.model,
        "node": found.node,
        "vllm_version": found.version,
        **_capacity_document(best),
        "users": demand.users if demand else None,
        "tokens_per_request": demand.tokens_per_request if demand else None,
        "verdict": str(verdict_of(concurrent, demand.users)) if demand and concurrent is not None else None,
        "remedies": [
            {"change": one.change, "kv_tokens": one.kv_tokens, "concurrent": one.concurrent, "note": one.note}
            for one in found.remedies
        ],
        "layouts": [_capacity_document(one) for one in found.capacities] if len(found.capacities) > 1 else [],
    }


def _capacity_document(one: Capacity) -> dict[str, Any]:
    from autotune.units import gib

    settings, memory = one.settings, one.memory
    return {
        "fits": one.fits,
        "reasons": list(one.reasons),
        "tensor_parallel": settings.tensor_parallel if settings else None,
        "pipeline_parallel": settings.pipeline_parallel if settings else None,
        "data_parallel": settings.data_parallel if settings else None,
        "gpus": settings.gpus if settings else None,
        "gpu_memory_utilization": settings.gpu_memory_utilization if settings and memory else None,
        "max_model_len": settings.max_model_len if settings else None,
        "weights_gib_per_gpu": gib(memory.weights_bytes_per_gpu) if memory else None,
        "activation_gib": gib(memory.activation_peak_bytes) if memory else None,
        "available_kv_gib": gib(one.available_kv_bytes) if one.available_kv_bytes is not None else None,
        "kv_tokens": one.kv_tokens,
        "max_concurrency": one.max_concurrency,
        "concurrent": one.concurrent,
    }


def show(found: Answer) -> None:
    """Print an answer as text."""
    from autotune.cli.console import output_console
    from autotune.report.grid import print_to

    console = output_console()
    for part in _parts(found):
        print_to(console, part)


def _parts(found: Answer) -> list[Any]:
    from rich.text import Text

    from autotune.report.wording import printable

    subject = " on ".join(printable(part) for part in (found.model, found.node) if part)
    by_tokens = found.capacities[0].settings is None  # which no rule of a vLLM says anything about
    parts: list[Any] = [Text("a server" if by_tokens else f"{subject}, vLLM {printable(found.version)}")]
    if len(found.capacities) > 1:
        parts += [_layout_table(found), *_refusals(found)]
    else:
        parts.append(_one(found.capacities[0]))
    if found.demand is not None:
        parts += _verdict_parts(found)
    return parts


def _layout_table(found: Answer) -> Any:
    from autotune.report.grid import add, column, grid
    from autotune.report.wording import number
    from autotune.units import gib

    table = grid()
    for head in ("TP", "PP", "DP", "GPUs", "weights GiB", "KV GiB", "KV tokens", "at full length"):
        column(table, head, right=True)
    if found.demand:
        column(table, "at once", right=True)
    column(table, "fits")
    for one in found.capacities:
        assert one.settings is not None
        assert one.memory is not None  # layouts come from a node
        cells = [
            *(str(size) for size in (one.settings.tensor_parallel, one.settings.pipeline_parallel)),
            str(one.settings.data_parallel),
            str(one.settings.gpus),
            number(gib(one.memory.weights_bytes_per_gpu), digits=2),
            number(gib(one.memory.available_kv_bytes), digits=2),
            number(one.kv_tokens),
            number(one.max_concurrency, digits=2),
        ]
        if found.demand:
            cells.append(number(one.concurrent, digits=1))
        add(table, *cells, "yes" if one.fits else "no", style=None if one.fits else "dim")
    return table


def _refusals(found: Answer) -> list[Any]:
    """Why layouts do not fit, each reason once: in a column of the table it would fold to a word a line."""
    from rich.text import Text

    from autotune.report.wording import printable_lines

    layouts: dict[str, list[str]] = {}
    for one in found.capacities:
        if one.reasons:
            layouts.setdefault("; ".join(one.reasons), []).append(_layout(one))
    return [
        *([Text()] if layouts else []),
        *(Text(printable_lines(f"{', '.join(names)}: {reason}")) for reason, names in layouts.items()),
        *([Text()] if layouts else []),
    ]


def _layout(one: Capacity) -> str:
    assert one.settings is not None  # asked of a node's layouts only
    sizes = (one.settings.tensor_parallel, one.settings.pipeline_parallel, one.settings.data_parallel)
    return " x ".join(f"{name} {size}" for name, size in zip(("TP", "PP", "DP"), sizes, strict=True))


def _one(one: Capacity) -> Any:
    from autotune.report.grid import add, pairs
    from autotune.report.wording import number
    from autotune.units import format_bytes

    table = pairs()
    if one.settings is not None or one.max_concurrency is not None:  # else there is no length that would have to fit
        add(table, "fits", "yes" if one.fits else "no")
    for reason in one.reasons:
        add(table, "reason", reason)
    if one.memory is not None:
        add(table, "weights per GPU", format_bytes(one.memory.weights_bytes_per_gpu))
        add(table, "activation peak", format_bytes(one.memory.activation_peak_bytes))
    if one.available_kv_bytes is not None:
        add(table, "available KV per GPU", format_bytes(one.available_kv_bytes))
    add(table, "KV tokens", number(one.kv_tokens))
    if one.max_concurrency is not None:
        length = f" of {one.settings.max_model_len:,} tokens" if one.settings else " of the full length"
        add(table, "at once", f"{one.max_concurrency:,.2f} requests{length}")
    return table


def _verdict_parts(found: Answer) -> list[Any]:
    from rich.text import Text

    from autotune.capacity import Verdict, largest, verdict_of
    from autotune.report.grid import add, column, grid
    from autotune.report.wording import number

    demand = found.demand
    assert demand is not None  # asked only then
    best = largest(found.capacities)
    assert best.concurrent is not None  # there is a demand
    verdict = verdict_of(best.concurrent, demand.users)
    where = f" with {_layout(best)}" if len(found.capacities) > 1 and best.concurrent > 0 else ""
    why = {
        Verdict.FITS: "with room for outputs and spread",
        Verdict.TIGHT: "outputs and the spread of lengths come on top of an average",
        Verdict.OUT_OF_REACH: "less than half of what is asked for",
    }[verdict]
    parts: list[Any] = [
        Text(
            f"{demand.users:,} users of {demand.tokens_per_request:,} tokens: {verdict}; "
            f"{best.concurrent:,.1f} requests fit at once{where} ({why})"
        )
    ]
    if verdict is not Verdict.FITS and found.remedies:
        table = grid()
        column(table, "in this order", whole=True)
        column(table, "KV tokens", right=True)
        column(table, "at once", right=True)
        column(table, "note")
        for one in found.remedies:
            add(table, one.change, number(one.kv_tokens), number(one.concurrent, digits=1), one.note)
        parts.append(table)
    return parts
