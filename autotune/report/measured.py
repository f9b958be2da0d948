"""What `autotune measure` shows: a server that somebody else started, under one or several loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.records import Caveat, Estimate, Measurement, ServerFacts, Slo
from autotune.report.detail import levels_table, offered, server_table
from autotune.report.grid import add, column, grid, pairs, titled
from autotune.report.json_view import SCHEMA, caveat_document, facts_document, level_document
from autotune.report.use_table import use_table
from autotune.report.wording import SIMULATED, brief_latency, brief_rate, number, printable, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredServer:
    """A server under load.

    Attributes:
        gpus: that it runs on, as the operator said; None where figures are of the whole server only.
        seed: of the prompts' content; the same seed sends the same prompts again.
        planned_levels: asked for; fewer were measured where somebody stopped it or the server went away.
        caveats: doubts about all levels; each level has its own beside its figures.
    """

    url: str
    model: str
    workload: str
    seed: int
    measurements: tuple[Measurement, ...]
    planned_levels: int
    facts: ServerFacts
    gpus: int | None = None
    slo: Slo | None = None
    caveats: tuple[Caveat, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every level was driven to its end and has figures."""
        cut = any(caveat.code == "aborted" for measured in self.measurements for caveat in measured.caveats)
        whole = [measured for measured in self.measurements if measured.completed]
        return len(whole) == self.planned_levels and not cut

    def meets_slo(self, measured: Measurement) -> bool | None:
        """Whether a level's figures are within all limits; None without a limit or one of the figures."""
        return None if self.slo is None else self.slo.meets(measured)


def measured_report(server: MeasuredServer) -> Group:
    """Everything for a terminal: who was asked, the loads side by side, each with its intervals, and the doubts."""
    mark = f" ({SIMULATED})" if server.facts.simulated else ""
    parts: list[RenderableType] = [_summary(server, mark)]
    if server.measurements:
        parts += [_loads(server, mark), levels_table(server.measurements, mark)]
        if any(measured.server is not None for measured in server.measurements):
            parts.append(server_table(server.measurements, mark))
        used = use_table(server.measurements, mark)
        if used is not None:
            parts.append(used)
    doubts = _doubts(server)
    if doubts is not None:
        parts.append(doubts)
    return Group(*parts)


def measured_document(server: MeasuredServer) -> dict[str, Any]:
    """The versioned JSON of `measure`. `complete` is false where not every level came to its end."""
    return {
        "schema": SCHEMA,
        "url": server.url,
        "model": server.model,
        "workload": server.workload,
        "seed": server.seed,
        "gpus": server.gpus,
        "slo": str(server.slo) if server.slo else None,
        "simulated": server.facts.simulated,
        "complete": server.complete,
        "resolved": facts_document(server.facts),
        "levels": [
            {
                **level_document(measured),
                "output_tok_s_per_gpu": _per_gpu(measured.output_tok_s, server.gpus),
                "total_tok_s_per_gpu": _per_gpu(measured.total_tok_s, server.gpus),
                "meets_slo": server.meets_slo(measured),
            }
            for measured in server.measurements
        ],
        "caveats": [caveat_document(caveat) for caveat in server.caveats],
    }


def _summary(server: MeasuredServer, mark: str) -> Group:
    table = pairs()
    add(table, "server", printable(server.url))
    add(table, "model", printable(server.model))
    facts = server.facts
    if facts.vllm_version is not None:
        add(table, "vLLM", printable(facts.vllm_version))
    if facts.max_model_len is not None:
        add(table, "max-model-len", number(facts.max_model_len))
    if facts.kv_cache_tokens is not None:
        add(table, "KV cache", f"{number(facts.kv_cache_tokens)} tokens")
    add(table, "workload", f"{printable(server.workload)}, seed {server.seed}")
    if server.gpus is not None:
        add(table, "GPUs", str(server.gpus))
    if server.slo is not None:
        add(table, "SLO", str(server.slo))
    return titled(f"Measured{mark}", table)


def _loads(server: MeasuredServer, mark: str) -> Group:
    """One row a load: throughput and TTFT together, never the speed of a single request."""
    table = grid()
    column(table, "load", whole=True)
    heads = ["total tok/s", "output tok/s", "requests/s", "TTFT p50", "TTFT p95", "TPOT p50", "failed"]
    if server.gpus is not None:
        heads.insert(2, "output tok/s per GPU")
    for head in heads:
        column(table, head, right=True)
    if server.slo is not None:
        column(table, str(server.slo), whole=True)
    for found in server.measurements:
        ttft, tpot = (one.p50 if one else None for one in (found.ttft_s, found.tpot_s))
        cells = [
            brief_rate(found.total_tok_s),
            brief_rate(found.output_tok_s),
            number(found.request_rps.value if found.request_rps else None, digits=2),
            seconds(ttft.value if ttft else None),
            brief_latency(found.ttft_s.p95 if found.ttft_s else None),
            seconds(tpot.value if tpot else None),
            str(found.failed),
        ]
        if server.gpus is not None:
            cells.insert(2, number(_per_gpu(found.output_tok_s, server.gpus)))
        if server.slo is not None:
            cells.append({True: "met", False: "missed", None: "-"}[server.meets_slo(found)])
        add(table, offered(found), *cells)
    return titled(f"Throughput and latency by load{mark}", table)


def _doubts(server: MeasuredServer) -> Group | None:
    rows = [(caveat, "") for caveat in server.caveats]
    rows += [(caveat, f"{measured.level.name}: ") for measured in server.measurements for caveat in measured.caveats]
    if not rows:
        return None
    table = pairs()
    for caveat, where in rows:
        add(
            table,
            printable(caveat.code),
            Text(f"{printable(where)}{printable(caveat.text)} → {printable(caveat.remedy)}"),
        )
    return titled("Doubts", table)


def _per_gpu(figure: Estimate | None, gpus: int | None) -> float | None:
    return None if figure is None or gpus is None else figure.value / gpus
