"""The parts of `autotune show`: what one trial ran, how long it took, what was measured and what the server said."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.advice import Advice
from autotune.bottleneck import Verdict
from autotune.records import (
    ArrivalCheck,
    Failure,
    Goodput,
    Latency,
    LevelRole,
    Measurement,
    Origin,
    ServerFacts,
    Trial,
    TrialResult,
)
from autotune.report.certainty import chance, ties
from autotune.report.grid import Unbroken, add, column, grid, pairs, titled
from autotune.report.life import life_table
from autotune.report.quality_text import quality_lines
from autotune.report.running import detail_line
from autotune.report.tables import heading
from autotune.report.use_table import use_table
from autotune.report.view import StudyView
from autotune.report.wording import (
    MISSING,
    brief_requests,
    ending,
    latency,
    number,
    printable,
    rate,
    seconds,
    settings,
    share,
)
from autotune.search.objective import is_goodput
from autotune.search.reasons import launch_reason, plain_why
from autotune.store.study_record import AttemptRecord
from autotune.units import format_bytes, plural


def trial_detail(
    view: StudyView,
    trial: Trial,
    *,
    serve_line: str | None = None,
    log_path: str | None = None,
    attempts: Sequence[AttemptRecord] = (),
) -> Group:
    """All the evidence of one trial.

    Args:
        view: the study it belongs to.
        trial: running, measured or failed.
        serve_line: a ready `vllm serve` line, quoted for bash on one line.
        log_path: of the server's log.
        attempts: of the trial, with the moves of its life.
    """
    told = [life_table(attempts)] if attempts else []
    return Group(heading(view), *_sections(view, trial, serve_line, log_path), *told)


def _sections(view: StudyView, trial: Trial, serve_line: str | None, log_path: str | None) -> list[RenderableType]:
    """Sections in reading order; one without content is left out."""
    mark = " (simulated)" if trial.result and trial.result.simulated else ""
    parts: list[RenderableType] = [_summary(view, trial, mark, log_path)]
    if serve_line:
        parts.append(Group(Text("Serve it", style="bold"), Unbroken(text=printable(serve_line)), Text()))
    result = trial.result
    if result is None:
        return parts
    parts += [*_why(view, trial, mark), *_measured(result, mark)]
    if result.facts:
        parts.append(_resolved(result.facts, mark))
    if result.phase_seconds:
        spent = pairs()
        for phase, value_s in result.phase_seconds:
            add(spent, str(phase), seconds(value_s))
        parts.append(titled(f"Time spent ({result.clock} clock)", spent))
    caveats = trial.caveats
    if caveats:
        doubts = pairs()
        for caveat in caveats:
            add(doubts, printable(caveat.code), Text(f"{printable(caveat.text)} → {printable(caveat.remedy)}"))
        parts.append(titled("Doubts", doubts))
    return parts


def _why(view: StudyView, trial: Trial, mark: str) -> list[RenderableType]:
    """What failed, or what held it back."""
    if trial.result and trial.result.failure:
        return [_failure(trial.result.failure, view.remedies(trial))]
    limits = view.verdicts(trial)
    return [_limits(limits, view.remedies(trial), mark)] if limits else []


def _measured(result: TrialResult, mark: str) -> list[RenderableType]:
    """The load levels, and the ramp that found them."""
    ramp = tuple(found for found in result.measurements if found.level.role is LevelRole.RAMP)
    levels = tuple(found for found in result.measurements if found.level.role is not LevelRole.RAMP)
    parts: list[RenderableType] = [levels_table(levels, mark), server_table(levels, mark)] if levels else []
    used = use_table(levels, mark)
    if used is not None:
        parts.append(used)
    return [*parts, _ramp(ramp, mark)] if ramp else parts


def _summary(view: StudyView, trial: Trial, mark: str, log_path: str | None) -> Group:
    table = pairs()
    add(table, "outcome", ending(trial, unended=view.outcome(trial)))
    fresh = " on fresh seeds" if trial.origin is Origin.VALIDATION else ""
    roles = [
        *(["pick"] if view.pick and view.pick.number == trial.number else []),
        *(["on the front"] if trial.number in view.front else []),
        *(["baseline"] if view.baseline == trial.number else []),
        *([f"repeat of {trial.repeat_of}{fresh}"] if trial.repeat_of is not None else []),
    ]
    if roles:
        add(table, "place", ", ".join(roles))
    today = detail_line(view, trial)
    if today:
        add(table, f"against today{mark}", today)
    add(table, "config", f"{trial.config.hash}, proposed by {trial.origin}, attempts: {trial.attempts}")
    add(table, "why", Text(printable(f"{launch_reason(trial)}: {plain_why(trial)}")))
    add(table, "settings", Text("\n".join(settings(trial.config)) or "vLLM's defaults"))
    add(table, "GPUs", str(trial.gpus))
    add(table, f"throughput{mark}", f"{rate(trial.output_tok_s)} tok/s, per GPU {rate(trial.output_tok_s_per_gpu)}")
    if trial.result is not None and trial.result.goodput is not None:
        add(table, f"goodput{mark}", _goodput(trial, trial.result.goodput))
    add(table, f"TTFT p95{mark}", latency(trial.ttft_p95_s))
    if trial.result is not None and trial.result.quality is not None:
        add(table, "answers", Text("\n".join(map(printable, quality_lines(trial.result.quality)))))
    _certainty(table, view, trial)
    add(table, "log", Text(printable(log_path) if log_path else MISSING))
    return titled(f"Trial {trial.number}{mark}", table)


def _certainty(table: Table, view: StudyView, trial: Trial) -> None:
    """How the trial's config stands, over all its launches; nothing of one that was not measured."""
    launches = sorted(one.number for one in view.trials if one.measured and one.config.hash == trial.config.hash)
    found = view.assessment()
    standing = found.standing(launches[0]) if launches else None
    if standing is None:
        return
    told = [
        f"on the front with {chance(standing.front_probability)}, the pick with {chance(standing.pick_probability)}"
    ]
    add(table, "how sure", ", ".join([*told, *ties(standing)]))
    unit = "tok/s per GPU of goodput" if is_goodput(view.trials) else "tok/s per GPU"
    expected = f"{rate(standing.tok_s_per_gpu)} {unit}, TTFT p95 {latency(standing.ttft_p95_s)}"
    add(table, "to expect", f"{expected} (the luck of the best of many taken off)")


def _goodput(trial: Trial, found: Goodput) -> str:
    per_gpu = brief_requests(trial.goodput_rps_per_gpu)
    least = "at least " if found.is_open else ""
    effort = f"{plural(found.levels, 'level')}, {seconds(found.seconds)}"
    if found.rate_rps is None:
        return f"no rate within {found.slo} ({effort})"
    return f"{least}{brief_requests(found.rate_rps)} requests/s, per GPU {per_gpu}, within {found.slo} ({effort})"


def _limits(found: tuple[Verdict, ...], remedies: tuple[Advice, ...], mark: str) -> Group:
    """The bottleneck with its evidence, what else was near a limit, and what to turn."""
    table = pairs()
    for place, verdict in enumerate(found):
        add(table, "limit" if place == 0 else "also", f"{verdict.limit}: {verdict.text}")
        for line in verdict.evidence:
            add(table, "", f"because {printable(line)}")
    for place, advice in enumerate(remedies, start=1):
        add(table, f"remedy {place}", printable(advice.text))
    return titled(f"What held it back{mark}", table)


def _failure(failure: Failure, remedies: tuple[Advice, ...]) -> Group:
    """The numbered remedies where they can be worked out, the log's general ones otherwise."""
    table = pairs()
    add(table, "class", str(failure.kind))
    add(table, "line", Text(printable(failure.line) if failure.line else "no line of the log says it"))
    for name, value in failure.facts:
        add(table, printable(name), printable(str(value)))
    if failure.exit_status is not None:
        add(table, "exit status", str(failure.exit_status))
    texts = [advice.text for advice in remedies] or list(failure.remedies)
    for place, remedy in enumerate(texts, start=1):
        add(table, f"remedy {place}", printable(remedy))
    return titled("What went wrong", table)


def levels_table(measurements: tuple[Measurement, ...], mark: str) -> Group:
    """One column a level, one row a figure."""
    table = grid()
    column(table, "")
    for measured in measurements:
        column(table, f"{printable(measured.level.name)} ({offered(measured)})", right=True)
    rows = [
        ("requests ok / failed", [f"{m.completed} / {m.failed}" for m in measurements]),
        ("measured over", [f"{seconds(m.steady_s)} of {seconds(m.duration_s)}" for m in measurements]),
        ("output tok/s", [rate(m.output_tok_s) for m in measurements]),
        ("total tok/s", [rate(m.total_tok_s) for m in measurements]),
        ("requests/s", [rate(m.request_rps, digits=2) for m in measurements]),
        ("goodput requests/s", [rate(m.goodput_rps, digits=2) for m in measurements]),
        *_latency_rows("TTFT", [m.ttft_s for m in measurements]),
        *_latency_rows("TPOT", [m.tpot_s for m in measurements]),
        *_latency_rows("ITL", [m.itl_s for m in measurements]),
        *_latency_rows("E2E", [m.e2e_s for m in measurements]),
        ("J per 1,000 output tokens", [number(energy_per_kilotoken(m), digits=1) for m in measurements]),
        *_arrival_rows([m.arrivals for m in measurements]),
    ]
    for name, cells in rows:
        if any(cell != MISSING for cell in cells):
            add(table, name, *cells)
    errors = [", ".join(f"{count} {printable(kind)}" for kind, count in m.errors) or MISSING for m in measurements]
    if any(m.errors for m in measurements):
        add(table, "errors", *errors)
    return titled(f"Figures with 95 % intervals{mark}", table)


def energy_per_kilotoken(measured: Measurement) -> float | None:
    """Joules of the GPUs per 1,000 output tokens that arrived; None where energy or tokens were not counted."""
    if measured.energy_j is None or not measured.output_tokens:
        return None
    return measured.energy_j / measured.output_tokens * 1000


def _ramp(measurements: tuple[Measurement, ...], mark: str) -> Group:
    """The steps by which the study's load was found, one row each."""
    table = grid()
    for head in ("in flight", "output tok/s", "requests/s", "TTFT p95", "TPOT p50"):
        column(table, head, right=True)
    for found in measurements:
        add(
            table,
            number(found.level.concurrency),
            rate(found.output_tok_s),
            rate(found.request_rps, digits=2),
            latency(found.ttft_s.p95 if found.ttft_s else None),
            latency(found.tpot_s.p50 if found.tpot_s else None),
        )
    return titled(f"Ramp that found the load{mark}", table)


def _latency_rows(name: str, found: list[Latency | None]) -> list[tuple[str, list[str]]]:
    return [
        (f"{name} p50", [latency(at.p50 if at else None) for at in found]),
        (f"{name} p95", [latency(at.p95 if at else None) for at in found]),
        (f"{name} p99", [latency(at.p99 if at else None) for at in found]),
    ]


def _arrival_rows(found: list[ArrivalCheck | None]) -> list[tuple[str, list[str]]]:
    """What was sent of an open loop, each beside what was asked."""

    def both(sent: float | None, asked: float | None) -> str:
        return MISSING if sent is None else f"{number(sent, digits=2)} / {number(asked, digits=2)}"

    def late(at: ArrivalCheck) -> str:
        return f"{seconds(at.lateness_p50_s)} / {seconds(at.lateness_p99_s)}"

    return [
        ("requests/s sent / asked", [both(at.sent_rate_rps, at.asked_rate_rps) if at else MISSING for at in found]),
        ("gaps' deviation / mean, sent / asked", [both(at.cv, at.asked_cv) if at else MISSING for at in found]),
        ("dispersion, sent / asked", [both(at.dispersion, at.asked_dispersion) if at else MISSING for at in found]),
        ("sent late, p50 / p99", [late(at) if at else MISSING for at in found]),
        ("turns that waited", [number(at.waited) if at and at.waited else MISSING for at in found]),
    ]


def offered(measured: Measurement) -> str:
    """The load of a level in words: `64 in flight`, `poisson 3.2/s`, `gamma (cv 2) 3.2/s`, `ramp (1 to 3) 3.2/s`."""
    level = measured.level
    if level.concurrency is not None:
        return f"{level.concurrency} in flight"
    if level.rate_rps is not None:
        shape = "" if level.cv is None else f" (cv {level.cv:g})"
        if level.ramp_from is not None and level.ramp_to is not None:
            shape = f" ({level.ramp_from:g} to {level.ramp_to:g})"
        return f"{level.arrivals}{shape} {level.rate_rps:.3g}/s"
    return str(level.arrivals)


def server_table(measurements: tuple[Measurement, ...], mark: str) -> Group:
    """One column a level; what the server did not say is `-`."""
    table = grid()
    column(table, "")
    for measured in measurements:
        column(table, printable(measured.level.name), right=True)
    said = [measured.server for measured in measurements]
    rows = [
        ("preemptions", [number(at.preemptions if at else None) for at in said]),
        ("prefix hits", [share(at.prefix_hit_share if at else None) for at in said]),
        ("queue time, mean", [seconds(at.queue_time_mean_s if at else None) for at in said]),
        ("prefill time, mean", [seconds(at.prefill_time_mean_s if at else None) for at in said]),
        ("decode time, mean", [seconds(at.decode_time_mean_s if at else None) for at in said]),
        ("KV cache used, mean", [share(at.kv_usage_mean if at else None) for at in said]),
        ("KV cache used, maximum", [share(at.kv_usage_max if at else None) for at in said]),
        ("requests running, mean", [number(at.running_mean if at else None, digits=1) for at in said]),
        ("requests running, maximum", [number(at.running_max if at else None) for at in said]),
        ("requests waiting, mean", [number(at.waiting_mean if at else None, digits=1) for at in said]),
        ("requests waiting, maximum", [number(at.waiting_max if at else None) for at in said]),
    ]
    for name, cells in rows:
        add(table, name, *cells)
    return titled(f"What the server counted{mark}", table)


def _resolved(facts: ServerFacts, mark: str) -> Group:
    """Settings as the server resolved them; what it did not say is `-`."""
    table = pairs()
    rows = [
        ("vLLM", facts.vllm_version),
        ("KV cache", f"{facts.kv_cache_tokens:,} tokens" if facts.kv_cache_tokens is not None else None),
        ("KV memory", _bytes(facts.available_kv_bytes)),
        ("maximum concurrency", f"{facts.max_concurrency:.2f}x" if facts.max_concurrency is not None else None),
        ("weights", _bytes(facts.weights_bytes)),
        ("max-model-len", _text(facts.max_model_len)),
        ("max-num-seqs", _text(facts.max_num_seqs)),
        ("max-num-batched-tokens", _text(facts.max_num_batched_tokens)),
        ("gpu-memory-utilization", _text(facts.gpu_memory_utilization)),
        ("dtype", facts.dtype),
        ("kv-cache-dtype", facts.kv_cache_dtype),
        ("attention backend", facts.attention_backend),
        ("prefix caching", _switch(facts.prefix_caching)),
        ("chunked prefill", _switch(facts.chunked_prefill)),
        ("start", _parts(facts)),
    ]
    for name, value in rows:
        add(table, name, Text(printable(value) if value is not None else MISSING))
    return titled(f"Resolved by the server{mark}", table)


def _parts(facts: ServerFacts) -> str | None:
    if facts.startup_s is None:
        return None
    parts = [("load", facts.load_s), ("compile", facts.compile_s), ("graph capture", facts.graph_capture_s)]
    told = [f"{name} {seconds(value)}" for name, value in parts if value is not None]
    if facts.compile_start is not None:
        told.append(f"compile cache {facts.compile_start}")
    said = ", ".join(told)
    return f"{seconds(facts.startup_s)} ({said})" if said else seconds(facts.startup_s)


def _bytes(value: int | None) -> str | None:
    return None if value is None else format_bytes(value)


def _text(value: float | None) -> str | None:
    return None if value is None else str(value)


def _switch(value: bool | None) -> str | None:
    return None if value is None else ("on" if value else "off")
